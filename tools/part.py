"""A plugin of pytest that collects only some files of a folder, in one pass.

pytest goes through a whole folder again for each of its files on the command line, which takes longer than loading all
of them. `tools/check.py` names the folder instead, and the files by `-p tools.part --part=FILES`.
"""

from __future__ import annotations

from pathlib import Path

import pytest


class Part:
    """The plugin itself, with the files that are collected."""

    def __init__(self, files: set[Path]) -> None:
        self._files = files

    def pytest_ignore_collect(self, collection_path: Path) -> bool | None:
        """Leave out the other files."""
        return True if collection_path.is_file() and collection_path not in self._files else None


def pytest_addoption(parser: pytest.Parser) -> None:
    """Know the option that names the files."""
    parser.addoption("--part", metavar="FILES", help="collect only these files, with commas between them")


def pytest_configure(config: pytest.Config) -> None:
    """Collect the files given by `--part`, or all if there is none."""
    if (given := config.getoption("part")) is not None:
        files = {config.rootpath / file for file in given.split(",")}
        if missing := sorted(str(file) for file in files if not file.is_file()):
            raise pytest.UsageError(f"--part names what is not a file: {missing[0]}")
        config.pluginmanager.register(Part(files))
