"""Fields of mobility models that hold lists: of whole numbers, and of tables.

They follow the rules of `carrypost.config.rules`: checked when a model is made, with what is allowed said to whoever
wrote something else. A rule only looks at the shape of tables; `made` turns them into values.
"""

from __future__ import annotations

import dataclasses
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from carrypost.config.rules import Fields

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class _Wholes:
    allowed: str

    def take(self, value: object) -> object:
        if not isinstance(value, list | tuple):
            raise ValueError
        if not all(isinstance(each, int) and not isinstance(each, bool) and each >= 0 for each in value):
            raise ValueError
        return tuple(value)

    def read(self, text: str) -> object:
        return tomllib.loads(f"list = {text}")["list"]


@dataclass(frozen=True, slots=True)
class _Tables:
    """A list of tables, or of values of the class that such a table makes."""

    kind: type[Any]
    allowed: str = "a list of tables"

    def take(self, value: object) -> object:
        if not isinstance(value, list | tuple) or not all(isinstance(each, (self.kind, Mapping)) for each in value):
            raise ValueError
        return tuple(value)

    def read(self, text: str) -> object:
        return tomllib.loads(f"list = {text}")["list"]


def wholes(allowed: str) -> tuple[int, ...]:
    """A field that holds a list of whole numbers from 0; an empty one by default."""
    return field(default=(), metadata={"rule": _Wholes(allowed)})


def tables(kind: type[_T]) -> tuple[_T, ...]:
    """A field that holds tables of one kind; none by default. Whoever has it calls `made` in its `__post_init__`."""
    assert dataclasses.is_dataclass(kind)
    return field(default=(), metadata={"rule": _Tables(kind)})


def made(kind: type[_T], given: Iterable[_T | Mapping[str, object]]) -> tuple[_T, ...]:
    """The values of tables, each called by its name where something is wrong with it."""
    fields = Fields({"": kind})
    found: list[_T] = []
    for each in given:
        if isinstance(each, Mapping):
            where = f"in the table of {each['name']!r}, " if "name" in each else "in a table without a name, "
            found.append(kind(**fields.check(dict(each), where)[""]))
        else:
            found.append(each)
    return tuple(found)
