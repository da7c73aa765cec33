"""Commands about files beside the code: `examples` copies what is shipped, `bench` runs benchmarks of the sources.

Documents, examples and scenarios are shipped for people who installed the package.

A benchmark is a file `benchmarks/NAME.py` with `main(argv)`, which returns an exit code or None. They are no part of
the installed package: they are looked for beside the package's source, then in the working directory.
"""

from __future__ import annotations

import importlib.util
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Final

import typer

from carrypost.cli._exit import orderly
from carrypost.cli._options import argument, path_argument
from carrypost.errors import LocalError
from carrypost.log.files import partial, refusing, shipped

SHIPPED: Final = ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "LICENSE", "docs", "examples", "scenarios")
"""Files and folders that are shipped; links between them work in a copy, too."""


def examples(folder: Annotated[Path, path_argument("New folder for the copies.", "FOLDER")]) -> None:
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


FOLDER = "benchmarks"
_SOURCE_TREE = Path(__file__).resolve().parents[3]


def bench(
    context: typer.Context,
    name: Annotated[str, argument("The benchmark to run; without it, list them.")] = "",
) -> None:
    """Run a benchmark of the source tree; the arguments after NAME are passed to it.

    For example:

    * `carrypost bench` lists the benchmarks

    * `carrypost bench core --help` shows the options of one
    """
    if not name:
        for each in available():
            typer.echo(each)
        return
    with orderly():
        code = run(name, context.args)
    raise typer.Exit(code)


def available() -> dict[str, Path]:
    """Benchmarks by name; those of the source tree come before those of the working directory."""
    found: dict[str, Path] = {}
    for folder in (Path.cwd() / FOLDER, _SOURCE_TREE / FOLDER):  # The last one wins.
        found |= {file.stem: file for file in sorted(folder.glob("*.py")) if not file.stem.startswith("_")}
    return dict(sorted(found.items()))


def run(name: str, arguments: Sequence[str]) -> int:
    """Run the benchmark called `name`; returns its exit code."""
    benchmarks = available()
    if name not in benchmarks:
        names = ", ".join(benchmarks) or "none (they come with the source tree, not with the package)"
        raise LocalError(f"there is no benchmark called {name!r}; available: {names}")
    sys.path.insert(0, str(benchmarks[name].parent.parent))  # They share code: `from benchmarks import ...`
    spec = importlib.util.spec_from_file_location(f"{FOLDER}_{name}", benchmarks[name])
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)  # Dataclasses look their module up.
    spec.loader.exec_module(module)
    if not hasattr(module, "main"):
        raise LocalError(f"{benchmarks[name].name} cannot be run: a benchmark must define main(argv)")
    return int(module.main(list(arguments)) or 0)
