"""Sweeps of a campaign: keys of the scenarios that take each of several values, in every combination.

::

    [sweep]
    "workload.0.lifetime_s" = [300, 600, 1200]
    "settings.cache_messages_max" = [25, 50]

Each choice of settings is combined with all values; the last key changes fastest. The combination is named by the last
part of each key and its value, as in ``lifetime_s=300, cache_messages_max=25``, behind the name of the settings if the
campaign has any.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from typing import Any, NamedTuple

from carrypost.config.document import Document

SWEEP = "sweep"


class Combination(NamedTuple):
    """A value of each swept key."""

    name: str
    overrides: dict[str, object]


def combinations(document: Document, flat: Mapping[str, object]) -> Sequence[Combination]:
    """Return the combinations of the values of `[sweep]`; `flat`: its keys with dots."""
    named = _named(flat)
    lists: dict[str, list[Any]] = {}
    for key, values in flat.items():
        if not isinstance(values, list) or not values:
            wrong = f"{key} must be a list of one or more values, such as [300, 600, 1200], not {values!r}"
            raise document.error(f"{SWEEP}.{key}", wrong)
        shown = Counter(map(value_text, values))
        if twice := next((text for text, count in shown.items() if count > 1), None):
            raise document.error(f"{SWEEP}.{key}", f"{key} has the value {twice} twice, or two that have one name")
        lists[key] = values
    return list(_combined(lists, named))


def _combined(lists: Mapping[str, Sequence[Any]], named: Mapping[str, str]) -> Iterator[Combination]:
    for values in product(*lists.values()):
        overrides = dict(zip(lists, values, strict=True))
        name = ", ".join(f"{named[key]}={value_text(value)}" for key, value in overrides.items())
        yield Combination(name, overrides)


def _named(keys: Mapping[str, object]) -> dict[str, str]:
    """Return the last part of each key; the whole key where two have the same."""
    last = {key: key.rpartition(".")[2] for key in keys}
    counts = Counter(last.values())
    return {key: name if counts[name] == 1 else key for key, name in last.items()}


def value_text(value: object) -> str:
    """Return a value as names of runs and the table of runs have it: texts as they are, but for slashes."""
    if isinstance(value, str):
        return value.replace("/", "-")
    if isinstance(value, bool | int | float | list):
        return json.dumps(value, separators=(",", ":"))
    return str(value)
