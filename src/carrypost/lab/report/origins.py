"""Origins of a page's figures: the runs and their options, the versions, and the command to do it again."""

from __future__ import annotations

import platform
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from markupsafe import Markup

import carrypost
from carrypost.lab.metrics import FAMILIES
from carrypost.lab.metrics.records import remarks
from carrypost.lab.report.blocks import Element, TableRow, comparison, filled, join, paragraph, table, tag
from carrypost.lab.report.numbers import NOTHING, count, lifetime, shown
from carrypost.lab.report.papers import PARAMETERS, Experiment
from carrypost.lab.report.study import Series, Study

_PACKAGES = ("pyspark", "pyarrow", "numpy", "vl-convert-python")
_GIVEN_BY = {
    "paper": "the paper",
    "ours": "ours: not given in the paper",
    "varied": "ours: varied, or not given in the paper",
}
_NONE = "none"
_CHANGES = ("status", "--porcelain", "--untracked-files=no", "--", "src", "scenarios")
"""The question of git for changes that no commit has."""
_LISTED_MAX = 12


def flat(table: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, object]]:
    """Keys with dots, and their values."""
    for key, value in table.items():
        if isinstance(value, dict):
            yield from flat(value, f"{prefix}{key}.")
        elif isinstance(value, list) and value and all(isinstance(each, dict) for each in value):
            for place, each in enumerate(value):
                yield from flat(each, f"{prefix}{key}.{place}.")
        else:
            yield prefix + key, value


def _value(key: str, value: object) -> str:
    if value is None or value == _NONE:
        return "none" if value == _NONE else NOTHING
    if isinstance(value, int | float) and not isinstance(value, bool):
        if key == "workload.0.lifetime_s":
            return lifetime(value)
        return shown(value) if key == "duration_s" else f"{value:,g}" if value < 1 else count(value)
    return str(value)


def ran(all_series: Sequence[Series]) -> list[Element]:
    """Return a line for each choice of settings: seeds, runs, what they cost."""
    lines = []
    for series in all_series:
        cpu = [run.cpu_s for run in series.runs if run.cpu_s is not None]
        seeds = [run.seed for run in series.runs]
        listed = ", ".join(seeds[:_LISTED_MAX]) + (
            f" and {len(seeds) - _LISTED_MAX} more" if len(seeds) > _LISTED_MAX else ""
        )
        lived = lifetime(series.lifetime_s) if series.first.in_force else NOTHING
        lines.append(
            TableRow(series.settings, [lived, listed, count(len(seeds)), f"{sum(cpu):,.0f} s" if cpu else NOTHING])
        )
    heads = ["settings", "lifetime", "seeds", "runs", "processor time"]
    return [*comparison("Runs", heads, lines, texts=(1,)), population(all_series)]


def population(all_series: Sequence[Series]) -> Markup:
    """Say which settings were run in population mode, and by which calibration; nothing where none was."""
    found = [series for series in all_series if series.first.origin.of_population]
    if not found:
        return Markup("")
    names = ", ".join(series.settings for series in found)
    notes = remarks([run.origin for series in found for run in series.runs], FAMILIES)
    return paragraph(
        f"In population mode: {names}. {'. '.join(each[0].upper() + each[1:] for each in notes)}.", kind="note"
    )


def seeds(all_series: Sequence[Series]) -> str:
    """Return a sentence about the number of seeds, and the meaning of ± and bands."""
    counts = {len(series.runs) for series in all_series}
    if counts == {1}:
        return "Our values are of one run each; one seed gives no interval."
    least, most = min(counts), max(counts)
    many = f"{most} seeds" if least == most else f"{least} to {most} seeds"
    mixed = "" if least == most else " Every figure shows those seeds only that all of its curves have."
    return (
        f"Our values are mean ± half-width of the 95 % confidence interval over {many}, by Student's t; bands or "
        f"bars in figures show the same interval. Intervals too small to be seen are left out.{mixed}"
    )


def failures(study: Study, scenario: str) -> list[Element]:
    """Return the failures, if there are any."""
    failed = [each for each in study.failures if each["scenario"] == scenario]
    if not failed:
        return []
    lines = [TableRow(each["run"], [each["error"]]) for each in failed[:_LISTED_MAX]]
    more = f", the first {_LISTED_MAX} of {len(failed)}" if len(failed) > _LISTED_MAX else ""
    return [tag("h3", "Failures"), table(f"Runs that failed{more}", ["run", "why"], [lines], texts=(0,))]


def of_paper(study: Study, all_series: Sequence[Series], paper: str) -> dict[str, object]:
    """Return what stands on the page of each experiment of a paper: seeds, parameters, runs and failures."""
    scenario = all_series[0].scenario
    return {
        "seeds": seeds(all_series),
        "parameters": parameters(all_series, None, PARAMETERS[paper]),
        "ran": ran(all_series),
        "failures": failures(study, scenario),
    }


def parameters(
    all_series: Sequence[Series], paper: Experiment | None, keys: Mapping[str, Mapping[str, str]] | None = None
) -> list[Element]:
    """Show the settings that held: of the keys that matter, and of those that settings change.

    `keys` are those of another paper than CAUSAL, with their meanings, by source.
    """
    known = [dict(flat(series.first.in_force)) for series in all_series]
    if not any(known):
        return [paragraph("The parameters of these runs are unknown, because their records are missing.", kind="note")]
    groups = []
    columns_of, given = keys or _keys(known), bool(paper or keys)
    for source, these in columns_of.items():
        lines = [
            TableRow(key, [_held(key, known), meaning, *([_given(key, source, known, paper)] if given else [])])
            for key, meaning in these.items()
            if any(key in each for each in known)
        ]
        groups.append(lines)
    listed = {key for these in columns_of.values() for key in these}
    changed = [key for key in dict.fromkeys(key for each in known for key in each) if key not in listed]
    changed = [key for key in changed if len({repr(each.get(key)) for each in known}) > 1]
    groups.append([TableRow(key, [_held(key, known), "", *([""] if given else [])]) for key in changed[:_LISTED_MAX]])
    heads = ["key of the scenario", "value", "meaning", *(["given by"] if given else [])]
    made = table("Parameters in force", heads, [group for group in groups if group], texts=(0, 1, 2))
    whole = all_series[0].first
    full = tag("pre", whole.text.strip(), kind="every")
    return [made, paragraph(f"Every key of {whole.name}, defaults included:"), full]


def _keys(known: Sequence[Mapping[str, object]]) -> dict[str, dict[str, str]]:
    """Return the relevant keys by source; which ones are relevant depends on the source of contacts."""
    moving = any("mobility.model" in each for each in known)
    played = any(each.get("contacts.file") for each in known)
    sources = {
        key: meaning for key, meaning in PARAMETERS["sources"].items()
        if any(each.get(key) not in {None, "", 0, _NONE} for each in known)
    }  # fmt: skip
    return {
        "paper": PARAMETERS["causal"] | (PARAMETERS["movement"] if moving else {}),
        "ours": sources | (PARAMETERS["played"] if played else {}) | PARAMETERS["ours"],
    }


def _given(key: str, source: str, known: Sequence[Mapping[str, object]], paper: Experiment | None) -> str:
    """Return the source of a value; a part of the experiment is shorter than the paper's."""
    if paper is None or key != "duration_s" or all(each.get(key) == paper.duration_s for each in known):
        return _GIVEN_BY[source]
    return f"ours, a part; the paper: {shown(paper.duration_s)}"


def _held(key: str, known: Sequence[Mapping[str, object]]) -> str:
    return ", ".join(dict.fromkeys(_value(key, each.get(key)) for each in known))


def versions(study: Study) -> Markup:
    """Return the versions of the software that made the runs, and of that which made this page."""
    runs = ", ".join(dict.fromkeys(run.version for run in study.runs))
    return join([paragraph(f"Runs: carrypost {runs}.", kind="note"), made()])


def made() -> Markup:
    """Return the versions of the software that made this page."""
    packages = ", ".join(f"{name} {found}" for name in _PACKAGES if (found := _installed(name)))
    own = f"{made_by()}, Python {platform.python_version()}"
    return paragraph(f"Page: {own}, {packages}.", kind="note")


def made_by() -> str:
    """Return the version of carrypost and, in the source tree, the commit."""
    found = f"carrypost {carrypost.__version__}"
    if not (root := Path(carrypost.__file__).parents[2]).joinpath(".git").exists():
        return found
    git = shutil.which("git")
    commit, changes = (_asked(git, root, *words) for words in (("rev-parse", "--short=12", "HEAD"), _CHANGES))
    return f"{found}, commit {commit}{' with changes' * bool(changes)}" if commit else found


def _asked(git: str | None, root: Path, *words: str) -> str:
    """Return the answer of git; empty: there is none."""
    if git is None:
        return ""
    order = [git, "-C", str(root), *words]
    answer = subprocess.run(order, capture_output=True, text=True, check=False)  # noqa: S603 - only reads the tree
    return "" if answer.returncode else answer.stdout.strip()


def _installed(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return ""


def again(study: Study, command: str, campaign: str) -> Markup:
    """Commands that make this page anew; the same seeds give the same records, to the byte."""
    return filled("again", folder=study.folder.resolve().name, command=command, campaign=campaign.strip())
