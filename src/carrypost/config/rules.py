"""Settings classes: the values that their fields may hold, and tables of them from TOML, the environment and keywords.

A settings class is made by `table`: a frozen dataclass whose fields are checked by msgspec's constraints when a value
is made, so its users need not check again. The functions below define fields with bounds. A field that is a flag, one
of some words or a table itself needs none: its annotation is enough. `Fields` reads tables of such classes. A mistake
raises `ConfigError`, which names the field, says what is allowed and what was found, and for an unknown name the
nearest right one.

Sizes and lengths of time are read as people write them, and have the units in which settings count them.
"""

from __future__ import annotations

import dataclasses
import re
import tomllib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    Literal,
    TypeVar,
    cast,
    dataclass_transform,
    get_args,
    get_origin,
    get_type_hints,
)

import msgspec
from msgspec import Meta

from carrypost.errors import ConfigError

if TYPE_CHECKING:
    from _typeshed import DataclassInstance


KIB = 1024
MIB = 1024 * KIB
HOUR_S = 3_600.0
DAY_S = 24 * HOUR_S
YEAR_S = 365 * DAY_S
UNBOUNDED = 2**53
"""As good as no limit: the largest whole number that every format we speak keeps exactly."""

_AMOUNT = re.compile(r"([0-9]+(?:\.[0-9]+)?) ?([A-Za-z]*)")
_TIMES_S = {"": 1.0, "s": 1.0, "m": 60.0, "min": 60.0, "h": HOUR_S, "d": DAY_S}
# "MB", "mB" and "mb" are all in use. "Mb" means bits.
_SIZES: dict[str, int] = {"B": 1, "b": 1} | {
    spelling: base**power
    for base, middle in ((1_000, ""), (KIB, "i"))
    for power, letter in enumerate("KMGT", 1)
    for spelling in (f"{letter}{middle}B", f"{letter.lower()}{middle}B", f"{letter.lower()}{middle}b")
}


def length_s(text: str) -> float:
    """Return a length of time in seconds: a number of them, or one with s, min, h or d; raises `ValueError`."""
    amount, unit = _parts(text, _TIMES_S)
    return float(amount) * _TIMES_S[unit]


def size_bytes(text: str) -> int:
    """Return a size with its unit, such as 256MB or 1.5 GiB, in bytes; raises `ValueError`."""
    amount, unit = _parts(text, _SIZES)
    whole, _, decimals = amount.partition(".")
    scale: int = 10 ** len(decimals)
    size, rest = divmod(int(whole + decimals) * _SIZES[unit], scale)
    if rest:
        raise ValueError(text)
    return size


def _parts(text: str, units: Mapping[str, float]) -> tuple[str, str]:
    found = _AMOUNT.fullmatch(text.strip())
    if found is None or found[2] not in units:
        raise ValueError(text)
    return found[1], found[2]


ENVIRONMENT_PREFIX = "CARRYPOST_"
_OF_COMMANDS = frozenset({
    "CARRYPOST_COMPILE", "CARRYPOST_DATA", "CARRYPOST_MASTER", "CARRYPOST_PICTURES", "CARRYPOST_PURE",
    "CARRYPOST_STOMPJS",
})  # fmt: skip
"""Variables with this prefix that are options of commands, of builds, of the import and of tests, and no settings."""
NONE = "none"
"""Spelling of None in TOML and in the environment, which lack it."""

_TRUTHS = dict.fromkeys(("true", "1", "yes", "on"), True) | dict.fromkeys(("false", "0", "no", "off"), False)
_NAMES = tuple[Annotated[str, Meta(min_length=1)], ...]
_T = TypeVar("_T")
_Table = TypeVar("_Table", bound="DataclassInstance")
Where = Callable[[str], str]
"""Beginning of an error message about a field, by the name of the field."""


def nearest(name: str, names: Iterable[str], *, cutoff: float = 0.5) -> str:
    """Return ``; did you mean X?`` if one of the names is nearly the same, else nothing.

    Of names with dots only the last parts are compared, among those of the same table, if there are any.
    """
    import difflib  # noqa: PLC0415 - needed for errors alone, and slow to load

    table, last = (name[: name.rfind(".") + 1], name[name.rfind(".") + 1 :])
    listed = list(names)
    beside = [each for each in listed if each.startswith(table)] if table else []
    known = {each.removeprefix(table if beside else "").upper(): each for each in beside or listed}
    near = difflib.get_close_matches((last if beside else name).upper(), known, n=1, cutoff=cutoff)
    return f"; did you mean {known[near[0]]}?" if near else ""


# --- rules -----------------------------------------------------------------------------------------------------------


def _nowhere(_: str) -> str:
    return ""


@dataclass(frozen=True, slots=True)
class Rule:
    """The values that a field may hold."""

    kind: Any
    """Type of the values, with msgspec's constraints."""
    what: str
    """For people: 'a whole number from 1 to 8'."""
    meant: Callable[[str], object] = str
    """The value that the text of an environment variable means; raises `ValueError` for a text that means none."""
    none: str = ""
    """The word for None; empty: None is not allowed."""

    @property
    def allowed(self) -> str:
        """For people, with the word for None."""
        return f'{self.what}, or "{self.none}"' if self.none else self.what

    def convert(self, name: str, value: object, where: Where = _nowhere) -> object:
        """Return the value as it is stored; the error about a wrong value names its field."""
        if self.none and (value is None or value == self.none):
            return None
        try:
            if self.meant is _size and isinstance(value, str):
                return msgspec.convert(size_bytes(value), self.kind)
            return msgspec.convert(value, self.kind)
        except ValueError:
            raise self._error(where(name) + name, value) from None

    def read(self, variable: str, text: str) -> object:
        """Return the value of an environment variable, as it is stored."""
        word = text.strip()
        if self.none and word.lower() == self.none:
            return None
        try:
            return msgspec.convert(self.meant(word), self.kind)
        except ValueError:
            raise self._error(variable, text) from None

    def _error(self, name: str, value: object) -> ConfigError:
        words = get_args(self.kind) if get_origin(self.kind) is Literal else ()
        return ConfigError(f"{name} must be {self.allowed}, not {value!r}{nearest(str(value), words)}")


@dataclass(frozen=True, slots=True)
class Rows(Rule):
    """The rule of a field that holds tables of one class, `kind`."""

    needed: tuple[str, ...] = ()
    """Keys that each of them must have."""

    def convert(self, name: str, value: object, where: Where = _nowhere) -> object:
        """Return the tables as values of their class."""
        if not isinstance(value, list | tuple) or not all(isinstance(each, (self.kind, Mapping)) for each in value):
            raise ConfigError(f"{where(name)}{name} must be a list of tables, each written [[{name}]], not {value!r}")
        return tuple(self._made(f"{name}.{index}", each, where) for index, each in enumerate(value))

    def _made(self, name: str, row: object, where: Where) -> object:
        if not isinstance(row, Mapping):
            return row
        for key in self.needed:
            if key not in row:
                raise ConfigError(f"{where(name)}{name}.{key} is missing")
        kept = Fields({"": self.kind}).check(row, where, f"{name}.")
        try:
            return self.kind(**kept)
        except ConfigError as error:
            raise ConfigError(where(name) + str(error)) from None


def _size(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        return size_bytes(text)


def _truth(text: str) -> bool:
    try:
        return _TRUTHS[text.lower()]
    except KeyError:
        raise ValueError from None


def _several(text: str) -> object:
    """Return the list of a text, as in TOML or separated by commas."""
    return _toml(text) if text.startswith("[") else [word.strip() for word in text.split(",") if word.strip()]


def _one_or_several(text: str) -> object:
    """Return a flag, a list as in TOML, or one pattern: a comma may well be part of a pattern."""
    return _TRUTHS.get(text.lower(), _toml(text) if text.startswith("[") else [text])


def _toml(text: str) -> object:
    return tomllib.loads(f"value = {text}")["value"]


# --- fields ----------------------------------------------------------------------------------------------------------


def _field(default: _T, kind: object, what: str, meant: Callable[[str], object] = str, none: str | None = None) -> _T:
    word = none if none is not None else NONE if default is None else ""
    return field(default=default, metadata={"rule": Rule(kind, what, meant, word)})


def whole(default: _T, low: int, high: int) -> _T:
    """Return a field that holds a whole number; or None, if that is the default."""
    return _field(default, Annotated[int, Meta(ge=low, le=high)], f"a whole number from {low:,} to {high:,}", int)


def number(default: _T, low: float, high: float, *, none: str | None = None) -> _T:
    """Return a field that holds a number; or None, if that is the default or has a word."""
    return _field(default, Annotated[float, Meta(ge=low, le=high)], f"a number from {low:,} to {high:,}", float, none)


def size(default: _T, low: int, high: int, *, none: str | None = None) -> _T:
    """Return a field that holds a number of bytes, perhaps with a unit; or None, if that is the default."""
    what = f"a size from {low:,} to {high:,} bytes (such as 4096, 64KiB or 1.5MB)"
    return _field(default, Annotated[int, Meta(ge=low, le=high)], what, _size, none)


def whole_or_range(default: int, low: int, high: int) -> int | tuple[int, int]:
    """Return a field that holds a whole number, or a range of them as a list of the lowest and the highest."""
    one = Annotated[int, Meta(ge=low, le=high)]
    what = f"a whole number from {low:,} to {high:,}, or a list of the lowest and the highest"
    return _field(cast("int | tuple[int, int]", default), one | _pair(one), what, _toml)


def number_or_range(low: float, high: float) -> float | tuple[float, float] | None:
    """Return a field that holds a number, or a range as a list of the lowest and the highest; None by default."""
    one = Annotated[float, Meta(ge=low, le=high)]
    what = f"a number from {low:,} to {high:,}, or a list of the lowest and the highest"
    return _field(cast("float | tuple[float, float] | None", None), one | _pair(one), what, _toml)


def _pair(one: Any) -> Any:  # noqa: ANN401 - a type, as annotations have it
    """Return the type of a list of two."""
    # Not `tuple[one, one]`: in a union with `one`, msgspec 0.22 crashes the interpreter.
    return Annotated[tuple[one, ...], Meta(min_length=2, max_length=2)]


def lifetime(default: float) -> float | None:
    """Return a field that holds a lifetime in seconds, or none."""
    return number(default, 0.001, 100 * YEAR_S, none=NONE)


def patterns() -> bool | tuple[str, ...]:
    """Return a field that is a flag, or holds patterns; false by default.

    Its layer checks that the patterns compile.
    """
    what = "true, false or a list of destination patterns (texts that are not empty)"
    return _field(False, bool | _NAMES, what, _one_or_several)


def text(default: str, what: str) -> str:
    """Return a field that holds a text, perhaps an empty one."""
    return _field(default, str, what)


def texts(what: str) -> tuple[str, ...]:
    """Return a field that holds a list of texts; an empty one by default."""
    return _field((), _NAMES, what, _several)


def texts_or(word: str, what: str) -> tuple[str, ...] | None:
    """Return a field that holds a list of texts, or, by default, None, which is written as `word`."""
    return _field(None, _NAMES, what, _several, word)


def numbers(default: tuple[float, ...], low: float, high: float) -> tuple[float, ...]:
    """Return a field that holds a list of numbers, one at least."""
    one = Annotated[float, Meta(ge=low, le=high)]
    kind = Annotated[tuple[one, ...], Meta(min_length=1)]
    return _field(default, kind, f"a list of numbers from {low:,} to {high:,}", _several)


def wholes(what: str) -> tuple[int, ...]:
    """Return a field that holds a list of whole numbers from 0; an empty one by default."""
    return _field((), tuple[Annotated[int, Meta(ge=0, le=UNBOUNDED)], ...], what, _several)


def values(what: str) -> Mapping[str, object]:
    """Return a field that holds values by name, as a table without rules of its own; an empty one by default."""
    return field(default_factory=dict, metadata={"rule": Rule(dict[str, Any], what, _toml)})


def rows(kind: type[_T], *needed: str) -> tuple[_T, ...]:
    """Return a field that holds tables of one kind, each of which has the needed keys; none by default."""
    return field(default=(), metadata={"rule": Rows(kind, "a list of tables", needed=needed)})


# --- tables ----------------------------------------------------------------------------------------------------------


@dataclass_transform(frozen_default=True, kw_only_default=True)
def table(name: str = "") -> Callable[[type[_T]], type[_T]]:
    """Make a settings class of a class whose fields have rules; `name` is what messages call its table.

    The fields are checked before `__post_init__` of the class, which so needs to look only at several together.
    """
    prefix = f"{name}." if name else ""

    def made(kind: type[_T]) -> type[_T]:
        together = getattr(kind, "__post_init__", None)

        def checked(self: _T) -> None:
            for key, rule in rules_of(type(self)).items():
                found = getattr(self, key)
                if isinstance(rule, Rule):
                    object.__setattr__(self, key, rule.convert(prefix + key, found))
                elif not isinstance(found, rule):
                    allowed = f"must be {rule.__name__} here (or a table in `replace`)"
                    raise ConfigError(f"{prefix}{key} {allowed}, not {found!r}")
            if together is not None:
                together(self)

        kind.__post_init__ = checked  # type: ignore[attr-defined]
        whole: Any = dataclass(frozen=True, slots=True, kw_only=True)(kind)
        hints = get_type_hints(kind)
        whole.__rules__ = {
            each.name: each.metadata["rule"] if "rule" in each.metadata else _annotated(hints[each.name])
            for each in dataclasses.fields(whole)
        }
        return cast("type[_T]", whole)

    return made


def rules_of(kind: type) -> Mapping[str, Rule | type]:
    """Return the rules of the fields of a settings class by name; of a table in it, its class."""
    return cast("Mapping[str, Rule | type]", kind.__rules__)  # type: ignore[attr-defined]


def _annotated(hint: type) -> Rule | type:
    if dataclasses.is_dataclass(hint):
        return hint
    if hint is bool:
        return Rule(bool, "true or false", _truth)
    return Rule(hint, " or ".join(f'"{word}"' for word in get_args(hint)), str.lower)


class Fields:
    """The fields of some settings classes, by table; those of the table ``""`` stand at the top level."""

    def __init__(self, kinds: Mapping[str, type]) -> None:
        self._tables: dict[str, type] = {}
        self._rules: dict[str, Rule] = {}
        for name, kind in kinds.items():
            self._add(name, kind)
        self._variables = {ENVIRONMENT_PREFIX + name.replace(".", "_").upper(): name for name in self._rules}

    def _add(self, table: str, kind: type) -> None:
        if table:
            self._tables[table] = kind
        for key, rule in rules_of(kind).items():
            name = f"{table}.{key}" if table else key
            if isinstance(rule, Rule):
                self._rules[name] = rule
            else:
                self._add(name, rule)

    def check(self, changes: Mapping[str, object], where: Where = _nowhere, prefix: str = "") -> dict[str, Any]:
        """Return the changes as fields keep them, by their names with dots; messages put a prefix before these names.

        ``{"udp": {"port": 1}}`` is as good as ``{"udp.port": 1}``.
        """
        found: dict[str, Any] = {}
        for name, value in changes.items():
            if (kind := self._tables.get(name)) is not None:
                given = {each: getattr(value, each) for each in rules_of(kind)} if isinstance(value, kind) else value
                if not isinstance(given, Mapping):
                    raise ConfigError(f"{where(prefix + name)}{prefix}{name} must be a table, not {value!r}")
                found |= self.check({f"{name}.{key}": each for key, each in given.items()}, where, prefix)
            elif (rule := self._rules.get(name)) is not None:
                found[name] = rule.convert(prefix + name, value, where)
            else:
                full, hint = prefix + name, nearest(name, [*self._rules, *self._tables])
                raise ConfigError(f"{where(full)}{full or 'an empty name'} is not a setting{hint}")
        return found

    def read_environment(self, environment: Mapping[str, str]) -> dict[str, Any]:
        """Return the settings in environment variables with our prefix; one that names no field is an error."""
        found: dict[str, Any] = {}
        for variable, text in environment.items():
            if variable.startswith(ENVIRONMENT_PREFIX) and variable not in _OF_COMMANDS:
                if (name := self._variables.get(variable)) is None:
                    raise ConfigError(f"{variable} is not a setting{nearest(variable, self._variables)}")
                found[name] = self._rules[name].read(variable, text)
        return found

    def meant(self, name: str, text: str) -> object:
        """Return the value that a text stands for, as in the environment; or the text, if it stands for none."""
        rule = self._rules.get(name)
        if rule is None or text == rule.none:
            return text
        try:
            return rule.meant(text)
        except ValueError:  # Checking the value will say what is allowed.
            return text


def changed(value: _Table, changes: Mapping[str, object], prefix: str = "") -> _Table:
    """Return the value with the changes to its fields and to those of the tables in it, by names with dots."""
    given: dict[str, object] = {}
    for name, rule in rules_of(type(value)).items():
        if not isinstance(rule, Rule):
            given[name] = changed(getattr(value, name), changes, f"{prefix}{name}.")
        elif prefix + name in changes:
            given[name] = changes[prefix + name]
    return dataclasses.replace(value, **given)


def written(value: object) -> dict[str, Any]:
    """Return the fields of a table, and the tables in it, as TOML has them."""
    found: dict[str, Any] = {}
    for name, rule in rules_of(type(value)).items():
        kept = getattr(value, name)
        if isinstance(rule, Rows):
            found[name] = [written(each) for each in kept]
        elif isinstance(rule, Rule):
            found[name] = rule.none if kept is None else list(kept) if isinstance(kept, tuple) else kept
        else:
            found[name] = written(kept)
    return found


def differences(value: object, usual: object) -> dict[str, str]:
    """Return the differences of a table from another one, as text: for records."""
    found: dict[str, str] = {}
    for name, rule in rules_of(type(value)).items():
        kept, before = getattr(value, name), getattr(usual, name)
        if not isinstance(rule, Rule):
            found |= {f"{name}.{key}": text for key, text in differences(kept, before).items()}
        elif kept != before:
            found[name] = text_form(kept)
    return found


def text_form(value: object) -> str:
    """Return a value as it is written in settings, and as patterns see it: true, none, 0.5, plain text, ['news']."""
    if value is None or isinstance(value, bool):
        return str(value).lower()
    return value if isinstance(value, str) else repr(list(value) if isinstance(value, tuple) else value)
