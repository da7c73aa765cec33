"""A plugin of pytest that writes the costs of every test: CPU seconds, seconds and its name, one line each.

`tools/check.py` loads it (`-p tools.meter --meter=FILE`). The lines show the progress of a lane while it runs, and the
most expensive tests at the end. Processes that a test started count once they have ended.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import pytest


@dataclass(frozen=True)
class Cost:
    """One test and its costs."""

    cpu_s: float
    took_s: float
    test: str

    @property
    def file(self) -> str:
        """The file that the test is in."""
        return self.test.partition("::")[0]


def read(file: Path) -> list[Cost]:
    """Return the costs written so far; an incomplete line is left out."""
    try:
        text = file.read_text(encoding="utf-8")
    except FileNotFoundError:
        return []
    rows = (line.split(" ", 2) for line in text.rpartition("\n")[0].splitlines())
    return [Cost(float(cpu_s), float(took_s), test) for cpu_s, took_s, test in rows]


class Meter:
    """The plugin itself, while the tests run."""

    def __init__(self, out: IO[str]) -> None:
        self._out = out

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        """Weigh a test with its fixtures."""
        cpu_s, began_s = _cpu_s(), time.perf_counter()
        try:
            return (yield)
        finally:
            name = item.nodeid.encode("unicode_escape").decode("ascii")
            self._out.write(f"{_cpu_s() - cpu_s:.3f} {time.perf_counter() - began_s:.3f} {name}\n")
            self._out.flush()


def _cpu_s() -> float:
    return sum(os.times()[:4])


def pytest_addoption(parser: pytest.Parser) -> None:
    """Know the option that names the file."""
    parser.addoption("--meter", type=Path, metavar="FILE", help="write there what each test took")


def pytest_configure(config: pytest.Config) -> None:
    """Write to the file given by `--meter`, if there is one."""
    if (file := config.getoption("--meter")) is not None:
        out = file.open("w", encoding="utf-8")
        config.add_cleanup(out.close)
        config.pluginmanager.register(Meter(out))
