"""The papers' experiments (X1 to X3, X7 to X9), and each of them as a campaign that is laid out in a folder.

An experiment is a scenario and a list of named settings, as `recipes.toml` has them, and has a small version. Those of
CAUSAL differ by the lifetime of messages, as in its Tables II and V. Those of EMMA differ by the strategy of hosts, by
load, buffer and number of hosts (§4); its experiment is there a second time with islands, where messages go straight
to recipients that are connected.

An experiment is written into its folder as ``campaign.toml`` with its scenario beside it, so that the folder alone
shows what was run, and `lab campaign` can run it too. Scenarios are found in the source tree and in the installed
package.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatch
from itertools import product
from pathlib import Path
from typing import Any

import msgspec

from carrypost.config.document import toml
from carrypost.errors import LocalError
from carrypost.lab import folders
from carrypost.lab.report.numbers import shown
from carrypost.lab.report.study import Study
from carrypost.log.files import shipped

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


_WRITTEN = tomllib.loads(Path(__file__).with_name("recipes.toml").read_text(encoding="utf-8"))
RECIPES = {name: _recipe(name, of, _WRITTEN) for name, of in _WRITTEN.items()}


CAMPAIGN = "campaign.toml"
PAGE = "report.html"
_SEEDS = re.compile(r"(0|[1-9][0-9]*)(?:-(0|[1-9][0-9]*))?")
_SEEDS_MAX = 1_000
_SPARK_S = 40
"""Starting Spark, and what its first jobs take."""
_SOON_S = 120


def recipe(name: str) -> Recipe:
    """Return the experiment of this name."""
    if name not in RECIPES:
        known = ", ".join(RECIPES)
        raise LocalError(f"{name!r} cannot be reproduced; choose one of {known}")
    return RECIPES[name]


def seeds_of(text: str) -> tuple[int, ...]:
    """Seeds as people write them: 1, or 1,2,5, or 1-10."""
    found: list[int] = []
    for each in text.split(","):
        match = _SEEDS.fullmatch(each.strip())
        first, last = (int(match[1]), int(match[2] or match[1])) if match else (1, 0)
        if not first <= last or last - first >= _SEEDS_MAX:
            raise LocalError(f"--seeds must be whole numbers such as 1, 1,2,5 or 1-10, not {text!r}")
        found += range(first, last + 1)
    return tuple(dict.fromkeys(found))


def scenario_file(name: str) -> Path:
    """Return the path of a shipped scenario."""
    if (file := shipped() / "scenarios" / f"{name}.toml").is_file():
        return file
    raise LocalError(f"the scenario {name} is missing: this installation of carrypost is incomplete")


def laid_out(of: Recipe, out: Path, seeds: Sequence[int], *, quick: bool) -> Path:
    """Write the campaign and its scenario into a folder; where the campaign is. Other seeds may follow later."""
    text, file = of.campaign(tuple(seeds), quick=quick), out / CAMPAIGN
    if file.exists() and _settings(file) != tomllib.loads(text)["settings"]:
        raise LocalError(f"{out} holds another campaign ({file.name} differs): name another folder with --out")
    scenarios = [(out / f"{name}.toml", scenario_file(name).read_text(encoding="utf-8")) for name in of.scenarios]
    beside = scenario_file(of.scenario).parent
    scenarios += [(out / name, (beside / name).read_text(encoding="utf-8")) for name in of.files]
    for path, content in (*scenarios, (file, text)):
        with folders.staged(path) as partial:
            partial.write_text(content, encoding="utf-8", newline="\n")
    return file


def is_complete(of: Recipe, out: Path, seeds: Sequence[int], *, quick: bool) -> bool:
    """Return True if all runs and metrics seem to be there, so that Spark is not needed."""
    try:
        study = Study(out)
        done = {run.name for run in study.runs}
        wanted = {
            f"{of.scenario_of(each)}/{each.name}/{seed}" for each in of.selected_settings(quick=quick) for seed in seeds
        }
        return wanted <= done and not study.missing()
    except LocalError:
        return False


def plan(of: Recipe, seeds: Sequence[int], *, quick: bool, cores: int) -> str:
    """Return a description of the work, and about how long it will take."""
    chosen = of.selected_settings(quick=quick)
    runs = len(chosen) * len(seeds)
    labels = ", ".join(dict.fromkeys(each.label for each in chosen))
    part = f", the first {shown(of.quick_s)} only" if quick and of.quick_s is not None else ""
    wall_s = _SPARK_S + len(seeds) * (of.cpu_s[quick] / min(cores, runs) + of.metrics_cpu_s[quick] / cores)
    how_long = "a minute or two" if wall_s < _SOON_S else f"about {round(wall_s / 60)} min"
    about = f"{how_long} on {cores} processor{'s' * (cores > 1)}"
    many = f"{len(seeds)} seeds" if len(seeds) > 1 else f"seed {seeds[0]}"
    scenarios = " and ".join(of.scenarios)
    return f"{runs} runs of {scenarios}{part} ({of.varied} {labels}; {many}), then metrics and page; {about}"


def command(of: Recipe, seeds: Sequence[int], *, quick: bool) -> str:
    """Return the command that repeats the experiment."""
    given = f" --seeds {','.join(map(str, seeds))}" if tuple(seeds) != (1,) else ""
    return f"carrypost reproduce {of.name}{' --quick' if quick else ''}{given}"


def _settings(file: Path) -> object:
    try:
        return tomllib.loads(file.read_text(encoding="utf-8")).get("settings")
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError):
        return None
