"""The papers' experiments (`carrypost.lab.campaign.recipes`) as campaigns, laid out in a folder.

An experiment is written into its folder as ``campaign.toml`` with its scenario beside it, so that the folder alone
shows what was run, and `lab campaign` can run it too. Scenarios are found in the source tree and in the installed
package.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Sequence
from pathlib import Path

from carrypost.errors import LocalError
from carrypost.lab import folders
from carrypost.lab.campaign.recipes import RECIPES, Recipe
from carrypost.lab.report.study import Study
from carrypost.lab.report.times import shown
from carrypost.log.files import shipped

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
