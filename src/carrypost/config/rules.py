"""What a field of a settings class may hold, and how tables of such fields are read.

A settings class is a frozen dataclass whose fields carry a `Rule`; every field is checked when a value is made, so
whoever holds one need not check again. `Fields` reads tables of several such classes: from TOML, from the environment,
from keywords. A mistake raises `ConfigError`, which names the field, says what is allowed and what was found, and for
an unknown name the nearest right one.
"""

from __future__ import annotations

import dataclasses
import difflib
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

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
ENVIRONMENT_PREFIX = "CARRYPOST_"
NONE = "none"
"""How a lifetime that does not end is written where there is no None: in TOML and in the environment."""

_TRUE, _FALSE = frozenset({"true", "1", "yes", "on"}), frozenset({"false", "0", "no", "off"})


class Rule(Protocol):
    """What a field may hold. `take` and `read` raise `ValueError` for anything else."""

    @property
    def allowed(self) -> str:
        """For people: 'a whole number from 1 to 8'."""

    def take(self, value: object) -> object:
        """The value as it is kept."""

    def read(self, text: str) -> object:
        """What the text of an environment variable means; still to be taken."""


@dataclass(frozen=True, slots=True)
class _Number:
    kind: type[int | float]
    low: float
    high: float
    optional: bool = False

    @property
    def allowed(self) -> str:
        what = "a whole number" if self.kind is int else "a number"
        return f"{what} from {self.low:,} to {self.high:,}" + (f', or "{NONE}"' if self.optional else "")

    def take(self, value: object) -> object:
        if self.optional and (value is None or value == NONE):
            return None
        # True is an int to Python, but nobody means 1 by it; nan fails the comparison.
        if isinstance(value, bool) or not isinstance(value, (int, self.kind)):
            raise ValueError
        if not self.low <= value <= self.high:
            raise ValueError
        return self.kind(value)

    def read(self, text: str) -> object:
        return NONE if self.optional and text.lower() == NONE else self.kind(text)


@dataclass(frozen=True, slots=True)
class _Flag:
    allowed: str = "true or false"

    def take(self, value: object) -> object:
        if not isinstance(value, bool):
            raise ValueError
        return value

    def read(self, text: str) -> object:
        if (word := text.lower()) in _TRUE | _FALSE:
            return word in _TRUE
        raise ValueError


@dataclass(frozen=True, slots=True)
class _Choice:
    words: tuple[str, ...]

    @property
    def allowed(self) -> str:
        return " or ".join(f'"{word}"' for word in self.words)

    def take(self, value: object) -> object:
        if value not in self.words:
            raise ValueError
        return value

    def read(self, text: str) -> object:
        return text.lower()


@dataclass(frozen=True, slots=True)
class _Patterns:
    """A flag, or a list of patterns. Whether they compile is for the layer that owns patterns to say."""

    allowed: str = "true, false or a list of destination patterns (texts that are not empty)"

    def take(self, value: object) -> object:
        if isinstance(value, bool):
            return value
        if not isinstance(value, list | tuple) or not all(isinstance(text, str) and text for text in value):
            raise ValueError
        return tuple(value)

    def read(self, text: str) -> object:
        """A flag, a list as in TOML, or one pattern: a comma may well be part of a pattern."""
        if text.lower() in _TRUE | _FALSE:
            return text.lower() in _TRUE
        return tomllib.loads(f"list = {text}")["list"] if text.startswith("[") else [text]


@dataclass(frozen=True, slots=True)
class _Text:
    allowed: str

    def take(self, value: object) -> object:
        if not isinstance(value, str):
            raise ValueError
        return value

    def read(self, text: str) -> object:
        return text


@dataclass(frozen=True, slots=True)
class _Texts:
    """A list of texts, or a word that stands for None."""

    allowed: str
    word: str = ""

    def take(self, value: object) -> object:
        if self.word and (value is None or value == self.word):
            return None
        if not isinstance(value, list | tuple) or not all(isinstance(text, str) and text for text in value):
            raise ValueError
        return tuple(value)

    def read(self, text: str) -> object:
        """As in TOML, or with commas."""
        if self.word and text == self.word:
            return text
        if text.startswith("["):
            return tomllib.loads(f"list = {text}")["list"]
        return [part.strip() for part in text.split(",") if part.strip()]


@dataclass(frozen=True, slots=True)
class _Numbers:
    """A list of numbers, one at least."""

    low: float
    high: float

    @property
    def allowed(self) -> str:
        return f"a list of numbers from {self.low:,} to {self.high:,}"

    def take(self, value: object) -> object:
        if not isinstance(value, list | tuple) or not value:
            raise ValueError
        one = _Number(float, self.low, self.high)
        return tuple(one.take(each) for each in value)

    def read(self, text: str) -> object:
        """As in TOML, or with commas."""
        return [float(part) for part in text.strip("[]").split(",") if part.strip()]


def whole(default: int, low: int, high: int) -> int:
    """A field that holds a whole number."""
    return field(default=default, metadata={"rule": _Number(int, low, high)})


def number(default: float, low: float, high: float) -> float:
    """A field that holds a number."""
    return field(default=default, metadata={"rule": _Number(float, low, high)})


def lifetime(default: float) -> float | None:
    """A field that holds a lifetime in seconds, or none."""
    return field(default=default, metadata={"rule": _Number(float, 0.001, 100 * YEAR_S, optional=True)})


def whole_or_none(low: int, high: int) -> int | None:
    """A field that holds a whole number, or, by default, none."""
    return field(default=None, metadata={"rule": _Number(int, low, high, optional=True)})


def number_or_none(low: float, high: float) -> float | None:
    """A field that holds a number, or, by default, none."""
    return field(default=None, metadata={"rule": _Number(float, low, high, optional=True)})


def flag(default: bool) -> bool:
    """A field that is true or false."""
    return field(default=default, metadata={"rule": _Flag()})


def choice(default: str, words: tuple[str, ...]) -> Any:  # noqa: ANN401 - the caller's field is a Literal
    """A field that holds one of some words."""
    return field(default=default, metadata={"rule": _Choice(words)})


def patterns() -> bool | tuple[str, ...]:
    """A field that is a flag, or holds patterns; false by default."""
    return field(default=False, metadata={"rule": _Patterns()})


def text(default: str, allowed: str) -> str:
    """A field that holds a text, perhaps an empty one."""
    return field(default=default, metadata={"rule": _Text(allowed)})


def texts(allowed: str) -> tuple[str, ...]:
    """A field that holds a list of texts; an empty one by default."""
    return field(default=(), metadata={"rule": _Texts(allowed)})


def numbers(default: tuple[float, ...], low: float, high: float) -> tuple[float, ...]:
    """A field that holds a list of numbers."""
    return field(default=default, metadata={"rule": _Numbers(low, high)})


def texts_or(word: str, allowed: str) -> tuple[str, ...] | None:
    """A field that holds a list of texts, or, by default, None, which is written as `word`."""
    return field(default=None, metadata={"rule": _Texts(allowed, word)})


def rule_of(each: dataclasses.Field[Any]) -> Rule | None:
    """The rule of a field; None where it holds a value of another settings class."""
    rule: Rule | None = each.metadata.get("rule")
    return rule


def keep_checked(value: DataclassInstance, table: str = "") -> None:
    """Check every field of a settings value that was just made; to be called by its `__post_init__`."""
    for each in dataclasses.fields(value):
        if (rule := rule_of(each)) is not None:
            name = f"{table}.{each.name}" if table else each.name
            object.__setattr__(value, each.name, _taken(rule, name, getattr(value, each.name)))


Tables = dict[str, dict[str, Any]]
"""Field values by table and name; the table of the top-level fields is called ``""``."""


class Fields:
    """The fields of some settings classes, by table; those of the table ``""`` stand at the top level."""

    def __init__(self, tables: Mapping[str, type]) -> None:
        self._classes = dict(tables)
        self._rules: dict[str, Rule] = {}
        for table, kind in tables.items():
            for each in dataclasses.fields(kind):
                if (rule := rule_of(each)) is not None:
                    self._rules[f"{table}.{each.name}" if table else each.name] = rule
        self._variables = {ENVIRONMENT_PREFIX + name.replace(".", "_").upper(): name for name in self._rules}

    def check(self, changes: Mapping[str, object], where: str = "") -> Tables:
        """The changes as fields keep them; ``{"udp": {"port": 1}}`` is as good as ``{"udp.port": 1}``."""
        found: Tables = {table: {} for table in self._classes}
        for name, value in changes.items():
            if not name or name not in self._classes:
                kept = self._taken(name, value, where)
                table, _, key = name.rpartition(".")
                found[table][key] = kept
                continue
            given = dataclasses.asdict(value) if isinstance(value, self._classes[name]) else value  # type: ignore[call-overload]
            if not isinstance(given, Mapping):
                raise ConfigError(f"{where}{name} must be a table, not {value!r}")
            found[name] |= {key: self._taken(f"{name}.{key}", each, where) for key, each in given.items()}
        return found

    def read(self, text: str) -> Tables:
        """What a TOML text says."""
        try:
            table = tomllib.loads(text)
        except tomllib.TOMLDecodeError as error:
            raise ConfigError(f"the settings are not TOML: {error}") from None
        return self.check(table, "in the settings, ")

    def read_environment(self, environment: Mapping[str, str]) -> Tables:
        """What environment variables with our prefix say; one that names no field is an error."""
        found: Tables = {table: {} for table in self._classes}
        for variable, text in environment.items():
            if not variable.startswith(ENVIRONMENT_PREFIX):
                continue
            if (name := self._variables.get(variable)) is None:
                raise ConfigError(f"{variable} is not a setting{_nearest(variable, self._variables)}")
            rule = self._rules[name]
            try:
                value = rule.take(rule.read(text.strip()))
            except ValueError:
                raise ConfigError(f"{variable} must be {rule.allowed}, not {text!r}") from None
            table, _, key = name.rpartition(".")
            found[table][key] = value
        return found

    def _taken(self, name: str, value: object, where: str) -> object:
        if (rule := self._rules.get(name)) is None:
            names = [*self._rules, *filter(None, self._classes)]
            raise ConfigError(f"{where}{name or 'an empty name'} is not a setting{_nearest(name, names)}")
        return _taken(rule, name, value, where)


def merged(*layers: Tables) -> Tables:
    """Tables laid over each other, the last on top."""
    return {table: {name: value for layer in layers for name, value in layer[table].items()} for table in layers[0]}


def _taken(rule: Rule, name: str, value: object, where: str = "") -> object:
    try:
        return rule.take(value)
    except ValueError:
        raise ConfigError(f"{where}{name} must be {rule.allowed}, not {value!r}") from None


def _nearest(name: str, names: Iterable[str]) -> str:
    near = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    return f"; did you mean {near[0]}?" if near else ""
