"""Rules for the fields of settings classes.

A settings class is made by `table`: a frozen dataclass whose fields carry a `Rule`, or are tables themselves. Every
field is checked when a value is made, so its users need not check again. A mistake raises `ConfigError`, which names
the field, says what is allowed and what was found. Tables are read from text by `carrypost.config.tables`.
"""

from __future__ import annotations

import dataclasses
import tomllib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar, dataclass_transform

from carrypost.config.units import UNBOUNDED, YEAR_S, size_bytes
from carrypost.errors import ConfigError

NONE = "none"
"""Spelling of None in TOML and in the environment, which lack it."""

_TRUE, _FALSE = frozenset({"true", "1", "yes", "on"}), frozenset({"false", "0", "no", "off"})
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Rule:
    """The values that a field may hold."""

    what: str
    """For people: 'a whole number from 1 to 8'."""
    kept: Callable[[Any], object]
    """The value as it is kept; raises `ValueError` for one that is not allowed."""
    meant: Callable[[str], object] = str
    """The value that the text of an environment variable means; raises `ValueError` for a text that means none."""
    none: str = ""
    """The word for None; empty: None is not allowed."""
    bounds: tuple[float, float] | None = None
    """The least and the most, where it is a number."""
    words: tuple[str, ...] = ()
    """All values, where there are few."""

    @property
    def allowed(self) -> str:
        """For people, with the word for None."""
        return f'{self.what}, or "{self.none}"' if self.none else self.what

    def convert(self, name: str, value: object) -> object:
        """Return the value as it is stored; the error about a wrong value names its field."""
        if self.none and (value is None or value == self.none):
            return None
        try:
            return self.kept(value)
        except ValueError:
            hint = nearest(value, self.words) if isinstance(value, str) else ""
            raise ConfigError(f"{name} must be {self.allowed}, not {value!r}{hint}") from None

    def read(self, variable: str, text: str) -> object:
        """Return the value of an environment variable, as it is kept."""
        word = text.strip()
        if self.none and word.lower() == self.none:
            return None
        try:
            return self.kept(self.meant(word))
        except ValueError:
            raise ConfigError(f"{variable} must be {self.allowed}, not {text!r}{nearest(word, self.words)}") from None


def nearest(name: str, names: Iterable[str], *, cutoff: float = 0.5) -> str:
    """Return ``; did you mean X?`` if one of the names is nearly the same, else nothing."""
    import difflib  # noqa: PLC0415 - needed for errors alone, and slow to load

    known = {each.upper(): each for each in names}
    near = difflib.get_close_matches(name.upper(), known, n=1, cutoff=cutoff)
    return f"; did you mean {known[near[0]]}?" if near else ""


# --- rules -----------------------------------------------------------------------------------------------------------


def _number(kind: type[int | float], low: float, high: float, none: str = "") -> Rule:
    def kept(value: object) -> object:
        # True is an int in Python, but does not mean 1 here; nan fails the comparison.
        if isinstance(value, bool) or not isinstance(value, (int, kind)) or not low <= value <= high:
            raise ValueError
        return kind(value)

    what = "a whole number" if kind is int else "a number"
    return Rule(f"{what} from {low:,} to {high:,}", kept, kind, none, (low, high))


def _size(low: int, high: int, none: str = "") -> Rule:
    plain = _number(int, low, high).kept

    def kept(value: object) -> object:
        return plain(size_bytes(value) if isinstance(value, str) else value)

    def meant(text: str) -> object:
        try:
            return int(text)
        except ValueError:
            return size_bytes(text)

    return Rule(f"a size from {low:,} to {high:,} bytes (such as 4096, 64KiB or 1.5MB)", kept, meant, none, (low, high))


def _checked(allowed: Callable[[Any], bool]) -> Callable[[Any], object]:
    """Keep what is allowed as it is."""

    def kept(value: object) -> object:
        if not allowed(value):
            raise ValueError
        return value

    return kept


def _instance(kind: type | tuple[type, ...], what: str, meant: Callable[[str], object] = str) -> Rule:
    return Rule(what, _checked(lambda value: isinstance(value, kind)), meant)


def _list(one: Rule, what: str, least: int = 0, none: str = "") -> Rule:
    def kept(value: object) -> object:
        if not isinstance(value, list | tuple) or len(value) < least:
            raise ValueError
        return tuple(one.kept(each) for each in value)

    def meant(text: str) -> object:
        """Return the list of a text, as in TOML or separated by commas."""
        if text.startswith("["):
            return tomllib.loads(f"list = {text}")["list"]
        return [one.meant(part.strip()) for part in text.split(",") if part.strip()]

    return Rule(what, kept, meant, none)


def _yes_or_no(text: str) -> bool:
    if (word := text.lower()) not in _TRUE | _FALSE:
        raise ValueError
    return word in _TRUE


_NAME = Rule("a text that is not empty", _checked(lambda value: isinstance(value, str) and value != ""))


# --- fields ----------------------------------------------------------------------------------------------------------


def whole(default: int, low: int, high: int) -> int:
    """Return a field that holds a whole number."""
    return field(default=default, metadata={"rule": _number(int, low, high)})


def number(default: float, low: float, high: float) -> float:
    """Return a field that holds a number."""
    return field(default=default, metadata={"rule": _number(float, low, high)})


def size(default: int, low: int, high: int) -> int:
    """Return a field that holds a number of bytes, which may be written with a unit."""
    return field(default=default, metadata={"rule": _size(low, high)})


def size_or_none(low: int, high: int, word: str = NONE) -> int | None:
    """Return a field that holds a number of bytes, as `size`, or, by default, none, which is written as `word`."""
    return field(default=None, metadata={"rule": _size(low, high, word)})


def whole_or_none(low: int, high: int, word: str = NONE) -> int | None:
    """Return a field that holds a whole number, or, by default, none, which is written as `word`."""
    return field(default=None, metadata={"rule": _number(int, low, high, word)})


def number_or_none(low: float, high: float) -> float | None:
    """Return a field that holds a number, or, by default, none."""
    return field(default=None, metadata={"rule": _number(float, low, high, NONE)})


def lifetime(default: float) -> float | None:
    """Return a field that holds a lifetime in seconds, or none."""
    return field(default=default, metadata={"rule": _number(float, 0.001, 100 * YEAR_S, NONE)})


def flag(default: bool) -> bool:
    """Return a field that is true or false."""
    return field(default=default, metadata={"rule": _instance(bool, "true or false", _yes_or_no)})


def choice(default: str, words: tuple[str, ...]) -> Any:  # noqa: ANN401 - the caller's field is a Literal
    """Return a field that holds one of some words."""
    what = " or ".join(f'"{word}"' for word in words)
    rule = Rule(what, _checked(lambda value: value in words), str.lower, words=words)
    return field(default=default, metadata={"rule": rule})


def patterns() -> bool | tuple[str, ...]:
    """Return a field that is a flag, or holds patterns; false by default.

    Its layer checks that the patterns compile.
    """
    several = _list(_NAME, "a list of destination patterns (texts that are not empty)")

    def kept(value: object) -> object:
        return value if isinstance(value, bool) else several.kept(value)

    def meant(text: str) -> object:
        """Return a flag, a list as in TOML, or one pattern: a comma may well be part of a pattern."""
        if text.lower() in _TRUE | _FALSE:
            return _yes_or_no(text)
        return several.meant(text) if text.startswith("[") else [text]

    return field(default=False, metadata={"rule": Rule(f"true, false or {several.what}", kept, meant)})


def text(default: str, what: str) -> str:
    """Return a field that holds a text, perhaps an empty one."""
    return field(default=default, metadata={"rule": _instance(str, what)})


def texts(what: str) -> tuple[str, ...]:
    """Return a field that holds a list of texts; an empty one by default."""
    return field(default=(), metadata={"rule": _list(_NAME, what)})


def values(what: str) -> Mapping[str, object]:
    """Return a field that holds values by name, as a table without rules of its own; an empty one by default."""
    return field(
        default_factory=dict,
        metadata={"rule": _instance(Mapping, what, lambda text: tomllib.loads(f"table = {text}")["table"])},
    )


def texts_or(word: str, what: str) -> tuple[str, ...] | None:
    """Return a field that holds a list of texts, or, by default, None, which is written as `word`."""
    return field(default=None, metadata={"rule": _list(_NAME, what, none=word)})


def numbers(default: tuple[float, ...], low: float, high: float) -> tuple[float, ...]:
    """Return a field that holds a list of numbers, one at least."""
    one = _number(float, low, high)
    return field(default=default, metadata={"rule": _list(one, f"a list of numbers from {low:,} to {high:,}", 1)})


def wholes(what: str) -> tuple[int, ...]:
    """Return a field that holds a list of whole numbers from 0; an empty one by default."""
    return field(default=(), metadata={"rule": _list(_number(int, 0, UNBOUNDED), what)})


def rows(kind: type[_T]) -> tuple[_T, ...]:
    """Return a field that holds tables of one kind; none by default.

    Its class creates the values by `tables.build_tables`.
    """
    rule = _list(_instance((kind, Mapping), "a table"), "a list of tables")
    return field(default=(), metadata={"rule": rule, "rows": kind})


def inner(kind: type[_T]) -> _T:
    """Return a field that is a table in this table, known by the name of the field."""
    return field(default_factory=kind, metadata={"table": kind})


# --- tables ----------------------------------------------------------------------------------------------------------


@dataclass_transform(frozen_default=True, kw_only_default=True)
def table(name: str = "") -> Callable[[type[_T]], type[_T]]:
    """Make a settings class of a class whose fields have rules; `name` is what messages call its table.

    The fields are checked before `__post_init__` of the class, which so needs to look only at several together.
    """

    def made(kind: type[_T]) -> type[_T]:
        together = getattr(kind, "__post_init__", None)

        def checked(self: _T) -> None:
            _check(self, f"{name}." if name else "")
            if together is not None:
                together(self)

        kind.__post_init__ = checked  # type: ignore[attr-defined]
        return dataclass(frozen=True, slots=True, kw_only=True)(kind)

    return made


def rules_of(kind: type) -> dict[str, Rule]:
    """Return the rules of the fields of a settings class; inner tables are not among them."""
    return {each.name: each.metadata["rule"] for each in dataclasses.fields(kind) if "rule" in each.metadata}


def inner_tables(kind: type) -> dict[str, type]:
    """Return the tables in a table, by name."""
    return {each.name: each.metadata["table"] for each in dataclasses.fields(kind) if "table" in each.metadata}


def _check(value: object, prefix: str) -> None:
    for name, kind in inner_tables(type(value)).items():
        if not isinstance(found := getattr(value, name), kind):
            raise ConfigError(f"{prefix}{name} must be {kind.__name__} here (or a table in `replace`), not {found!r}")
    for name, rule in rules_of(type(value)).items():
        object.__setattr__(value, name, rule.convert(prefix + name, getattr(value, name)))
