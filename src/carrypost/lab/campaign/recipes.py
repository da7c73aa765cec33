"""The papers' experiments: their scenarios, choices of settings, and the small version of each (X1 to X3, X7 to X9).

An experiment is a scenario and a list of named settings, as `recipes.toml` has them. Those of CAUSAL differ by the
lifetime of messages, as in its Tables II and V. Those of EMMA differ by the strategy of hosts, by load, buffer and
number of hosts (§4); its experiment is there a second time with islands, where messages go straight to recipients that
are connected.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from fnmatch import fnmatch
from itertools import product
from pathlib import Path
from typing import Any

import msgspec

from carrypost.config.document import toml

Changes = Mapping[str, object]
"""Keys of a scenario, and their values."""


@dataclass(frozen=True, slots=True)
class NamedSettings:
    """Keys of a scenario that some runs change, and the name of this choice in records."""

    name: str
    changes: Changes
    label: str
    """The choice in a plan."""
    scenario: str = ""
    """Scenario that it is for; empty: that of the experiment."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """One experiment."""

    name: str
    scenario: str
    varied: str
    """Difference of the settings, in words."""
    settings: tuple[NamedSettings, ...]
    quick: tuple[str, ...]
    """Names of the settings that the small version runs."""
    quick_s: int | None = None
    """Seconds of each run that the small version has; None: all of it."""
    cpu_s: tuple[float, float]
    """Processor time of the runs of one seed, as measured: all of it, and the small version."""
    metrics_cpu_s: tuple[float, float]
    """The same of its metrics and page."""
    files: tuple[str, ...] = ()
    """Files beside the scenario that it needs."""

    def selected_settings(self, *, quick: bool) -> tuple[NamedSettings, ...]:
        """Return the settings that are run, with what the small version changes."""
        if not quick:
            return self.settings
        shorter = {} if self.quick_s is None else {"duration_s": self.quick_s}
        return tuple(
            replace(each, changes={**each.changes, **shorter}) for each in self.settings if each.name in self.quick
        )

    def campaign(self, seeds: tuple[int, ...], *, quick: bool) -> str:
        """Return the experiment as the file of a campaign."""
        settings = [
            {"name": each.name, "set": dict(each.changes)}
            | ({"scenarios": [f"{self.scenario_of(each)}.toml"]} if len(self.scenarios) > 1 else {})
            for each in self.selected_settings(quick=quick)
        ]
        scenarios = [f"{each}.toml" for each in self.scenarios]
        return toml({"scenarios": scenarios, "seeds": list(seeds), "settings": settings})

    @property
    def scenarios(self) -> tuple[str, ...]:
        """Names of all scenarios of the experiment."""
        return tuple(dict.fromkeys(map(self.scenario_of, self.settings)))

    def scenario_of(self, settings: NamedSettings) -> str:
        """Return the scenario that a choice of settings is for."""
        return settings.scenario or self.scenario


@dataclass(frozen=True, slots=True)
class _Group:
    """Settings that differ by the values of some axes."""

    name: str
    label: str
    scenario: str = ""
    all: Changes = field(default_factory=dict)
    """Keys that all of them change."""
    axes: Mapping[str, Mapping[str, Changes]] = field(default_factory=dict)

    def settings(self) -> Iterator[NamedSettings]:
        """Yield every combination, the last axis changing fastest."""
        for values in product(*self.axes.values()):
            chosen = dict(zip(self.axes, values, strict=True))
            changes = dict(self.all)
            for axis, value in chosen.items():
                changes |= self.axes[axis][value]
            yield NamedSettings(self.name.format_map(chosen), changes, self.label.format_map(chosen), self.scenario)


def _recipe(name: str, of: Mapping[str, Any], others: Mapping[str, Mapping[str, Any]]) -> Recipe:
    """Return an experiment; one that is like another has its keys but for those of its own."""
    keys = {**others[of["like"]], **of} if "like" in of else dict(of)
    groups = msgspec.convert(keys.pop("settings"), list[_Group])
    settings = [
        replace(each, changes={**each.changes, **keys.get("all", {})}) for of in groups for each in of.settings()
    ]
    quick = [each.name for each in settings if any(fnmatch(each.name, like) for like in keys["quick"])]
    return msgspec.convert({**keys, "name": name, "settings": settings, "quick": quick}, Recipe)


def _recipes() -> dict[str, Recipe]:
    found = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
    return {name: _recipe(name, of, found) for name, of in found.items()}


RECIPES = _recipes()
