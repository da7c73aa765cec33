"""A TOML text that people wrote: what it says, where it says it, single values changed from outside, and written again.

Scenarios and campaigns are read through a `Document`, which makes values of their tables and names file and line in
every message. Overrides (``--set workload.0.lifetime_s=600``) go into the content before anything is checked, so they
obey the same rules. The writer knows what a scenario can hold: texts, numbers, flags, lists, tables, lists of tables.
"""

from __future__ import annotations

import math
import re
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from carrypost.config.rules import Fields, nearest
from carrypost.errors import CarrypostError, ConfigError

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

_HEADER = re.compile(r"\s*(\[\[?)\s*([^\]#]+?)\s*\]\]?\s*(#|$)")
_KEY = re.compile(r"""\s*["']?([\w.\-]+)["']?\s*=""")
_T = TypeVar("_T", bound="DataclassInstance")
_Made = TypeVar("_Made")


class Document:
    """The tables of a TOML text, with what was overridden."""

    def __init__(self, text: str, file: str, overrides: Sequence[str] | Mapping[str, object] = ()) -> None:
        try:
            self.content: dict[str, Any] = tomllib.loads(text)
        except tomllib.TOMLDecodeError as error:
            raise ConfigError(f"{file} cannot be read as TOML: {error}") from None
        pairs = overrides.items() if isinstance(overrides, Mapping) else map(assigned, overrides)
        self._overridden: list[str] = []
        for key, value in pairs:
            _put(self.content, key, value)
            self._overridden.append(key)
        self._file = file
        self._source = text
        self._lines = _lines_of(text)
        self.text = toml(self.content) if self._overridden else text

    # --- tables

    def table(self, name: str) -> Mapping[str, Any]:
        """Return the table ``[name]``, or all of them; an empty one where it is not there."""
        found = self.content.get(name, {}) if name else self.content
        if not isinstance(found, Mapping):
            raise self.error(name, f"{name} must be a table, not {found!r}")
        return found

    def rows(self, name: str) -> list[dict[str, Any]]:
        """Return the tables ``[[name]]``."""
        found = self.content.get(name, [])
        if not isinstance(found, list) or not all(isinstance(row, dict) for row in found):
            raise self.error(name, f"{name} must be a list of tables, each written [[{name}]]")
        return found

    def value(self, kind: type[_T], name: str, table: Mapping[str, Any] | None = None) -> _T:
        """Return the settings of a class, as the table ``[name]`` has them, or one that was taken out of it before."""
        kept = self.fields(Fields({"": kind}), name, table)
        return self.build(name, lambda: kind(**kept))

    def fields(self, fields: Fields, name: str = "", table: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Return the fields of the table ``[name]``, or of one that was taken out of it before, by names with dots."""
        given = self.table(name) if table is None else table
        return fields.check(given, self.where, f"{name}." if name else "")

    def build(self, name: str, make: Callable[[], _Made]) -> _Made:
        """Return the result of `make`; an error about the table as a whole gets its file and line."""
        try:
            return make()
        except CarrypostError as error:
            raise self.error(name, str(error)) from None

    def check_known(self, what: str, table: Mapping[str, Any], names: Sequence[str], name: str = "") -> None:
        """Raise an error for a key of a table that is not one of these names."""
        for key in table:
            if key not in names:
                hint = nearest(key, names) or f"; there are {', '.join(names)}"
                raise self.error(f"{name}.{key}" if name else key, f"{key} is not a key of {what}{hint}")

    # --- places

    def error(self, place: str | int, message: str) -> ConfigError:
        """Return the error that says what is wrong with a key, or on a line."""
        where = f"{self._file}, line {place}: " if isinstance(place, int) else self.where(place)
        return ConfigError(where + message)

    def where(self, key: str) -> str:
        """Return the file and, if known, the line of a key; for a missing key, the line of its table."""
        if any(key == each or each.startswith(key + ".") or key.startswith(each + ".") for each in self._overridden):
            return f"{self._file} with --set: "
        while key and key not in self._lines:
            key = key.rpartition(".")[0]
        return f"{self._file}, line {self._lines[key]}: " if key else f"{self._file}: "

    def line_with(self, word: str) -> int | None:
        """Return the first line that has a word outside a comment."""
        lines = enumerate(self._source.splitlines(), 1)
        return next((number for number, line in lines if word in line.partition("#")[0]), None)


def assigned(text: str, example: str = "workload.0.lifetime_s=600") -> tuple[str, object]:
    """Key and value of an argument KEY=VALUE; the value is as in TOML, but text need not be quoted."""
    key, equals, value = (part.strip() for part in text.partition("="))
    if not equals or not key:
        raise ConfigError(f"--set must be KEY=VALUE, such as {example}, not {text!r}")
    try:
        return key, tomllib.loads(f"value = {value}")["value"]
    except tomllib.TOMLDecodeError:
        return key, value


def toml(content: Mapping[str, Any]) -> str:
    """Return the tables as TOML."""
    return "\n".join(_lines(content, "")).strip() + "\n"


def _lines_of(text: str) -> dict[str, int]:
    """Return the line on which a key of a TOML text stands; close enough to find a mistake."""
    found: dict[str, int] = {}
    counts: dict[str, int] = {}
    prefix = ""
    for number, line in enumerate(text.splitlines(), 1):
        if head := _HEADER.match(line):
            name = head[2].replace('"', "")
            if head[1] == "[[":
                counts[name] = counts.get(name, -1) + 1
                found.setdefault(name, number)
                name = f"{name}.{counts[name]}"
            found.setdefault(name, number)
            prefix = name + "."
        elif key := _KEY.match(line):
            found.setdefault(prefix + key[1], number)
    return found


def _put(content: dict[str, Any], key: str, value: object) -> None:
    *path, last = key.split(".")
    place: Any = content
    for depth, name in enumerate(path):
        at = _at(place, name, key, path[:depth])
        if isinstance(place, dict):
            place.setdefault(name, {})
        place = place[at]
    place[_at(place, last, key, path)] = value


def _at(place: object, name: str, key: str, path: Sequence[str]) -> str | int:
    """Return the key or the index by which one name of a dotted key finds its value, in a table or in a list."""
    if isinstance(place, dict):
        return name
    where = ".".join(path)
    if not isinstance(place, list):
        raise ConfigError(f"--set {key}: {where} is a value, not a table")
    if not name.isdecimal() or int(name) >= len(place):
        raise ConfigError(f"--set {key}: {where} is a list of {len(place)}, counted from 0, and has no {where}.{name}")
    return int(name)


def _lines(table: Mapping[str, Any], prefix: str) -> Iterator[str]:
    for key, value in table.items():
        if not isinstance(value, Mapping) and not _tables(value):
            yield f"{_key(key)} = {_value(value)}"
    for key, value in table.items():
        name = prefix + _key(key)
        if isinstance(value, Mapping):
            yield from ("", f"[{name}]", *_lines(value, f"{name}."))
        elif _tables(value):
            for each in value:
                yield from ("", f"[[{name}]]", *_lines(each, f"{name}."))


def _tables(value: object) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(each, Mapping) for each in value)


def _key(key: str) -> str:
    bare = key and all(each.isascii() and (each.isalnum() or each in "-_") for each in key)
    return key if bare else _value(key)


def _value(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, str):
        return msgspec.json.encode(value).decode().replace("\x7f", "\\u007f")
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_value, value))}]"
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{_key(key)} = {_value(each)}' for key, each in value.items())}}}"
    return str(value)
