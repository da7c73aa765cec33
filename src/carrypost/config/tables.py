"""Tables of settings, read by the rules of their fields: from TOML, from the environment, from keywords.

`Fields` knows the tables of some settings classes by name. A mistake raises `ConfigError`, which names the field, says
what is allowed and what was found, and for an unknown name the nearest right one.
"""

from __future__ import annotations

import dataclasses
import tomllib
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from carrypost.config.rules import inner_tables, nearest, rules_of
from carrypost.errors import ConfigError

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

ENVIRONMENT_PREFIX = "CARRYPOST_"

Tables = dict[str, dict[str, Any]]
"""Field values by table and name; the table of the top-level fields is called ``""``."""
Where = Callable[[str], str]
"""Beginning of an error message about a field, by the name of the field."""
_T = TypeVar("_T", bound="DataclassInstance")


class Fields:
    """The fields of some settings classes, by table; those of the table ``""`` stand at the top level."""

    def __init__(self, kinds: Mapping[str, type]) -> None:
        self._kinds = dict(kinds)
        for table, kind in kinds.items():
            self._kinds |= {_within(table, name): each for name, each in inner_tables(kind).items()}
        self._rules = {
            _within(table, name): rule for table, kind in self._kinds.items() for name, rule in rules_of(kind).items()
        }
        self._variables = {ENVIRONMENT_PREFIX + name.replace(".", "_").upper(): name for name in self._rules}

    def check(self, changes: Mapping[str, object], where: Where = lambda _: "") -> Tables:
        """Return the changes as fields keep them; ``{"udp": {"port": 1}}`` is as good as ``{"udp.port": 1}``."""
        found: Tables = {table: {} for table in self._kinds}
        for name, value in changes.items():
            if not name or name not in self._kinds:
                self._put(found, name, value, where)
                continue
            given = _values(value) if isinstance(value, self._kinds[name]) else value
            if not isinstance(given, Mapping):
                raise ConfigError(f"{where(name)}{name} must be a table, not {value!r}")
            for key, each in given.items():
                self._put(found, f"{name}.{key}", each, where)
        return found

    def read(self, text: str) -> Tables:
        """Return the tables of a TOML text."""
        try:
            content = tomllib.loads(text)
        except tomllib.TOMLDecodeError as error:
            raise ConfigError(f"the settings are not TOML: {error}") from None
        return self.check(content, lambda _: "in the settings, ")

    def read_environment(self, environment: Mapping[str, str]) -> Tables:
        """Return the settings in environment variables with our prefix; one that names no field is an error."""
        found: Tables = {table: {} for table in self._kinds}
        for variable, text in environment.items():
            if variable.startswith(ENVIRONMENT_PREFIX):
                if (name := self._variables.get(variable)) is None:
                    raise ConfigError(f"{variable} is not a setting{nearest(variable, self._variables)}")
                table, _, key = name.rpartition(".")
                found[table][key] = self._rules[name].read(variable, text)
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

    def _put(self, found: Tables, name: str, value: object, where: Where) -> None:
        if (rule := self._rules.get(name)) is None:
            hint = nearest(name, [*self._rules, *filter(None, self._kinds)])
            raise ConfigError(f"{where(name)}{name or 'an empty name'} is not a setting{hint}")
        table, _, key = name.rpartition(".")
        found[table][key] = rule.convert(where(name) + name, value)


def build_tables(kind: type[_T], given: Iterable[_T | Mapping[str, object]]) -> tuple[_T, ...]:
    """Return the values of tables of one kind; errors name the table."""
    fields = Fields({"": kind})
    found: list[_T] = []
    for each in given:
        if isinstance(each, Mapping):
            where = f"in the table of {each['name']!r}, " if "name" in each else "in a table without a name, "
            found.append(kind(**fields.check(each, lambda _, where=where: where)[""]))  # type: ignore[misc]
        else:
            found.append(each)
    return tuple(found)


def merged(*layers: Tables) -> Tables:
    """Tables laid over each other, the last on top."""
    return {table: {name: value for layer in layers for name, value in layer[table].items()} for table in layers[0]}


def changed(value: _T, tables: Tables, table: str = "") -> _T:
    """Return the value with what the tables say of it and of the tables in it."""
    inner = {name: changed(getattr(value, name), tables, _within(table, name)) for name in inner_tables(type(value))}
    return dataclasses.replace(value, **tables[table], **inner)


def written(value: object) -> dict[str, Any]:
    """Return the fields of a table, and the tables in it, as TOML has them."""
    found: dict[str, Any] = {}
    for name, rule in rules_of(type(value)).items():
        kept = getattr(value, name)
        if isinstance(kept, tuple):
            kept = [written(each) if dataclasses.is_dataclass(each) else each for each in kept]
        found[name] = rule.none if kept is None else kept
    return found | {name: written(getattr(value, name)) for name in inner_tables(type(value))}


def differences(value: object, usual: object) -> dict[str, str]:
    """Return the differences of a table from another one, as text: for records."""
    found = {name: text_form(kept) for name, kept in _values(value).items() if kept != getattr(usual, name)}
    for table in inner_tables(type(value)):
        inner = differences(getattr(value, table), getattr(usual, table))
        found |= {_within(table, name): kept for name, kept in inner.items()}
    return found


def text_form(value: object) -> str:
    """Return a value as it is written in settings, and as patterns see it: true, none, 0.5, plain text, ['news']."""
    if value is None or isinstance(value, bool):
        return str(value).lower()
    return value if isinstance(value, str) else repr(list(value) if isinstance(value, tuple) else value)


def _values(value: object) -> dict[str, Any]:
    return {name: getattr(value, name) for name in rules_of(type(value))}


def _within(table: str, name: str) -> str:
    return f"{table}.{name}" if table else name
