"""Metrics of one's own, from a file of Python: the option `--plugin` of `lab metrics` and `lab report`.

The file has `FAMILIES`, a mapping from tables to families as that of `carrypost.lab.metrics`. It may have a function
`report(study, all_series)`, which returns parts of a page about one scenario; without it the page shows the tables. A
`Plugin` is the text of the file: Spark sends it to executors with each task, so that they need not see the file. An
error of its code is raised as `LabError` with file and line.
"""

from __future__ import annotations

import functools
import hashlib
import re
import sys
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from carrypost.errors import CarrypostError, LabError, LocalError
from carrypost.lab.metrics import FAMILIES
from carrypost.lab.metrics.parts import Columns, Family, table_of
from carrypost.lab.schemas import Table
from carrypost.log.files import refusing

_RUN = "run"
_NAME = "FAMILIES"
_PLAIN = re.compile(r"\w[\w-]*")


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

    def load() -> _Loaded:
        exec(compile(plugin.source, plugin.path, "exec"), vars(module))  # noqa: S102
        report = getattr(module, "report", None)
        found = _families(plugin, getattr(module, _NAME, None))
        made = None if report is None else _explained(plugin, lambda *about: list(report(*about)))
        return _Loaded(found, made)

    made: _Loaded = _explained(plugin, load)()
    return made


def _families(plugin: Plugin, found: object) -> dict[Table, Family]:
    """Return the families of a plugin, checked; errors of their functions name file and line."""
    if not isinstance(found, Mapping) or not found:
        raise LocalError(
            f"{plugin.path} has no {_NAME}: a plugin needs a mapping of that name, from tables to families"
        )
    wrapped: dict[Any, Any] = {}  # Families that share a part still do.
    families: dict[Table, Family] = {}
    for table, family in found.items():
        if not (isinstance(table, Table) and isinstance(family, Family)):
            raise LocalError(f"{plugin.path}: {_NAME} must map each Table to a Family, not {table!r} to {family!r}")
        if not _PLAIN.fullmatch(table.name):
            raise LocalError(
                f"{plugin.path}: a table is written to a folder of its name, which must consist of letters, digits, "
                f"hyphens and underscores; {table.name!r} does not"
            )
        if table.arrow.names[:1] != [_RUN]:
            raise LocalError(f"{plugin.path}: the first column of {table.name} must be {_RUN!r}, a string")
        if table.name in {each.name for each in families}:
            raise LocalError(f"{plugin.path}: there are two families {table.name!r}; choose another name for one")
        part = wrapped.setdefault(family.part, _explained(plugin, family.part))
        families[table] = Family(part, _explained(plugin, functools.partial(_columns, plugin, table, family.rows)))
    return families


def _columns(plugin: Plugin, table: Table, rows: Callable[[Any], Columns], part: object) -> Columns:
    """Return the columns that a plugin makes of a part; what does not fit its table is refused."""
    found: object = rows(part)
    names = table.names[1:]
    if not isinstance(found, Mapping) or not set(names) <= set(found):
        there = ", ".join(map(str, found)) if isinstance(found, Mapping) else repr(found)
        raise LocalError(f"{plugin.path}: the columns of {table.name} must be {', '.join(names)}, not {there}")
    made = table_of(table, "", found)
    return {name: made[name] for name in names}


def _explained(plugin: Plugin, call: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function with errors that name file and line."""

    def called(*arguments: object) -> Any:  # noqa: ANN401 - whatever the plugin returns
        try:
            return call(*arguments)
        except CarrypostError:
            raise
        except SyntaxError as error:
            raise LocalError(f"{plugin.path}, line {error.lineno}: {error.msg}") from error
        except (Exception, SystemExit) as error:
            frames = traceback.extract_tb(error.__traceback__)
            line = next((f", line {each.lineno}" for each in reversed(frames) if each.filename == plugin.path), "")
            raise LabError(f"{plugin.path}{line}: {type(error).__name__}: {error}") from error

    return called
