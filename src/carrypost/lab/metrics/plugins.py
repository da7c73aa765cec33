"""Metrics of one's own, from a file of Python: the option `--plugin` of `lab metrics` and `lab report`.

The file has `FAMILIES`, a mapping from tables to families as that of `carrypost.lab.metrics`. It may have a function
`report(study, all_series)`, which returns parts of a page about one scenario; without it the page shows the tables. A
`Plugin` is the text of the file: Spark sends it to executors with each task, so that they need not see the file. An
error of its code is raised as `LabError` with file and line.
"""

from __future__ import annotations

import functools
import hashlib
import sys
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from carrypost.errors import CarrypostError, LabError, LocalError
from carrypost.files import refusing
from carrypost.lab.metrics import FAMILIES
from carrypost.lab.metrics.parts import Family
from carrypost.lab.schemas import Table

_RUN = "run"
_NAME = "FAMILIES"


@dataclass(frozen=True, slots=True)
class Plugin:
    """The file of a plugin, as text."""

    path: str
    source: str

    @classmethod
    def read(cls, path: Path) -> Plugin:
        """Return the plugin in a file; raises `LocalError` for one that has no families."""
        with refusing(f"{path} cannot be read as a plugin", UnicodeDecodeError):
            made = cls(str(path), path.read_text(encoding="utf-8"))
        _loaded(made)
        return made

    @property
    def families(self) -> Mapping[Table, Family]:
        """Families of the file."""
        return _loaded(self).families

    @property
    def report(self) -> Callable[..., Iterable[Any]] | None:
        """Function of the file that returns parts of a page; None: the page shows its tables."""
        return _loaded(self).report


@dataclass(frozen=True, slots=True)
class _Loaded:
    """The contents of a plugin's file."""

    families: Mapping[Table, Family]
    report: Callable[..., Iterable[Any]] | None


def families_with(plugins: Sequence[Plugin]) -> dict[Table, Family]:
    """Return all families: ours and those of plugins. A name must be given once."""
    known = dict(FAMILIES)
    names = {table.name: "carrypost" for table in known}
    for plugin in plugins:
        for table, family in plugin.families.items():
            if (other := names.setdefault(table.name, plugin.path)) != plugin.path:
                raise LocalError(f"{plugin.path}: {other} has a family {table.name!r} already; choose another name")
            known[table] = family
    return known


@functools.cache
def _loaded(plugin: Plugin) -> _Loaded:
    """Run the file, once in each process."""
    module = ModuleType(f"carrypost_plugin_{hashlib.sha256(plugin.source.encode()).hexdigest()[:16]}")
    module.__file__ = plugin.path
    sys.modules[module.__name__] = module  # Classes of parts are found there, when tasks answer.
    run = _explained(plugin, lambda: exec(compile(plugin.source, plugin.path, "exec"), vars(module)))  # noqa: S102
    run()
    found = getattr(module, _NAME, None)
    if not isinstance(found, Mapping) or not found:
        raise LocalError(
            f"{plugin.path} has no {_NAME}: a plugin needs a mapping of that name, from tables to families"
        )
    wrapped: dict[Any, Any] = {}  # Families that share a part still do.
    families = {}
    for table, family in found.items():
        if not (isinstance(table, Table) and isinstance(family, Family)):
            raise LocalError(f"{plugin.path}: {_NAME} must map each Table to a Family, not {table!r} to {family!r}")
        if table.names[:1] != [_RUN]:
            raise LocalError(f"{plugin.path}: the first column of {table.name} must be {_RUN!r}, a string")
        part, rows = (wrapped.setdefault(each, _explained(plugin, each)) for each in family)
        families[table] = Family(part, rows)
    report = getattr(module, "report", None)
    return _Loaded(families, None if report is None else _explained(plugin, report))


def _explained(plugin: Plugin, call: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function with errors that name file and line."""

    @functools.wraps(call)
    def called(*arguments: object) -> Any:  # noqa: ANN401 - whatever the plugin returns
        try:
            return call(*arguments)
        except CarrypostError:
            raise
        except SyntaxError as error:
            raise LocalError(f"{plugin.path}, line {error.lineno}: {error.msg}") from error
        except Exception as error:
            frames = traceback.extract_tb(error.__traceback__)
            line = next((f", line {each.lineno}" for each in reversed(frames) if each.filename == plugin.path), "")
            raise LabError(f"{plugin.path}{line}: {type(error).__name__}: {error}") from error

    return called
