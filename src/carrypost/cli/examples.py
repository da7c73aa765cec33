"""The command `carrypost examples`: what is shipped beside the code, for people who installed the package."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Annotated, Final

import typer

from carrypost.cli import _paths
from carrypost.errors import LocalError
from carrypost.log.files import partial, refusing, shipped

SHIPPED: Final = ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "LICENSE", "docs", "examples", "scenarios")
"""Files and folders that are shipped; links between them work in a copy, too."""


def examples(folder: Annotated[Path, _paths.argument("New folder for the copies.", "FOLDER")]) -> None:
    """Copy the examples, scenarios and documents of this version of carrypost into a new folder.

    For example: `carrypost examples learn`, then `python learn/examples/chat.py anna`
    """
    if folder.exists():
        raise LocalError(f"{folder} exists already: name a new folder")
    copy = partial(folder)
    with refusing(f"{folder} cannot be written"):
        try:
            copy.mkdir(parents=True)
            for name in SHIPPED:
                if (source := shipped() / name).is_dir():
                    shutil.copytree(source, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
                else:
                    shutil.copyfile(source, copy / name)
            copy.rename(folder)
        finally:
            shutil.rmtree(copy, ignore_errors=True)
    for name in SHIPPED:
        typer.echo(folder / name)
