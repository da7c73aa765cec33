"""Verdicts on the pages about overlays: statements of the paper, our measurements, and whether the statements hold."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.support import lab_pages
from tests.support.lab_pages import Reader

from carrypost.emu.scenario import Scenario
from carrypost.lab.campaign.reproduce import RECIPES, Recipe, scenario_file
from carrypost.lab.metrics import FAMILIES
from carrypost.lab.metrics import families as f
from carrypost.lab.report import page
from carrypost.lab.report.page import Page
from carrypost.lab.report.study import Study
from carrypost.lab.schemas import Table

VERDICT = "Verdict"
Found = dict[Table, list[dict[str, Any]]]
Measured = Callable[[str], Found]
"""The rows of a run, by the name of its settings."""


def made(
    folder: Path,
    recipe: Recipe,
    measured: Measured,
    *,
    scenario: str = "",
    only: str = "",
    quick_s: float | None = None,
) -> Page:
    """Return the page of a campaign with these measurements."""
    rows: lab_pages.Rows = {table: [] for table in FAMILIES}
    runs, name = [], scenario or recipe.scenario
    length = {} if quick_s is None else {"duration_s": quick_s}
    for chosen in recipe.settings:
        if chosen.name.startswith("clients") == (name == "overlay_clients") and only in chosen.name:
            run = f"{name}/{chosen.name}/1"
            in_force = Scenario.load(scenario_file(name), {**chosen.changes, **length}).in_force()
            runs.append(lab_pages.done(folder, run, in_force))
            for table, found in measured(chosen.name).items():
                rows[table] += [{"run": run, **row} for row in found]
    lab_pages.keep(folder, rows, runs)
    return page.render(Study(folder))


def verdicts(found: Page) -> dict[str, str]:
    """Return what holds, by what the paper says."""
    rows = next(rows for name, rows in Reader(found.text).tables.items() if name.startswith(VERDICT))
    return {says: holds for says, _, holds in rows[1:]}


def paths(path: str, hops: float, at_s: float = 100.0) -> dict[str, Any]:
    return {"t": at_s, "path": path, "pairs": 10, "hops": hops}


def latency(name: str, *, slower: float = 1.0) -> Found:
    """Return latencies as the paper has them; static ones are longer by a factor if events come at the higher rate."""
    approach, case, topology = name.split("-", 2)
    static = {"A-B-C": 1.3, "A-B-C-A": 1.3, "A-C-B": 2.0, "B-A-C": 5.8}
    box = {"A-B-C": 0.7, "A-B-C-A": 0.7, "A-C-B": 1.5, "B-A-C": 0.8}
    mean_s = 0.97 if case != "box" else 0.15
    if approach == "static":
        mean_s = (box if case == "box" else static)[topology] * (slower if case == "full" else 1.0)
    spread = dict.fromkeys(("avg_s", "p50_s", "p95_s", "max_s"), mean_s)
    return {f.EVENT_LATENCY: [{"t": 60.0, "results": 10, **spread}]}


def test_the_flood_watch_begins_with_what_holds_and_has_bars_by_topology(tmp_path: Path) -> None:
    found = made(tmp_path, RECIPES["floodwatch"], latency)
    assert len(verdicts(found)) == 6
    assert set(verdicts(found).values()) == {"yes"}
    head, *rows = found.figures["figure-1a.csv"].splitlines()
    assert head.startswith("topology,approach,latency (ms)")
    assert [row.split(",")[0] for row in rows[:4]] == ["A-B-C", "A-B-C", "A-B-C-A", "A-B-C-A"]
    assert "quoted by the paper" in rows[-1]


def test_a_value_between_those_of_our_rates_holds_and_one_beyond_does_not(tmp_path: Path) -> None:
    def far(name: str, factor: float) -> Found:
        rows = latency(name, slower=factor)[f.EVENT_LATENCY]
        return {f.EVENT_LATENCY: [row | {"avg_s": row["avg_s"] / 2} for row in rows]}

    between = verdicts(made(tmp_path / "between", RECIPES["floodwatch"], lambda name: far(name, 4), only="B-A-C"))
    beyond = verdicts(made(tmp_path / "beyond", RECIPES["floodwatch"], lambda name: far(name, 1), only="B-A-C"))
    slow = "with all data the static approach takes 6,000 ms in B-A-C"
    assert (between[slow], beyond[slow]) == ("yes", "no")
    assert between["with all data the opportunistic approach takes 1,000 ms in B-A-C"] == "no"


def loads(name: str) -> Found:
    """Return loads and paths of which everything holds."""
    approach, _, percent = name.partition("-")
    mean = int(percent or 60) / 100
    most = mean * 2.8 if approach == "nearest" or mean <= 0.3 else 0.9
    hops = 4.3 if approach == "static" else 3.6 if approach == "control" and mean > 0.7 else 3.1
    return {
        f.LOAD: [{"t": 60.0, "brokers": 5, "mean": mean, "max": most}],
        f.PATH_LENGTHS: [paths("delivery", hops)],
    }


def test_load_balancing_begins_with_what_holds(tmp_path: Path) -> None:
    found = verdicts(made(tmp_path, RECIPES["balance"], loads))
    assert len(found) == 7
    assert set(found.values()) == {"yes"}


def test_control_that_changes_nothing_does_not_make_it_better(tmp_path: Path) -> None:
    found = verdicts(made(tmp_path, RECIPES["balance"], lambda name: loads(name.replace("control", "nearest"))))
    assert (
        found["above 30 % control lowers the highest load"]
        == found["above 70 % paths become longer with the load"]
        == "no"
    )
    assert found["at 100 % paths are still shorter than static ones"] == "yes"


def test_what_was_not_run_is_listed_and_short_runs_are_a_part(tmp_path: Path) -> None:
    text = Reader(made(tmp_path, RECIPES["balance"], loads, only="control-90", quick_s=120).text).text
    assert "These runs last 2 min in place of 10 min." in text
    assert "Not measured by these runs: below a mean load of 30 %" in text
    assert "Static paths have" not in text


def brokers(name: str) -> Found:
    """Return the paper's path lengths, and others in between."""
    hops = {"static": 6.06, "adaptive-10": 3.32, "adaptive-25": 3.8, "adaptive-50": 4.17, "adaptive-75": 4.3}
    traffic = {"node": "a", "bytes": 1, "bits_per_s": 2_400.0}
    return {
        f.PATH_LENGTHS: [paths("network", 2.36), paths("overlay", hops.get(name, 4.43))],
        f.BROKER_TRAFFIC: [traffic],
    }


def test_the_broker_network_begins_with_what_holds(tmp_path: Path) -> None:
    found = verdicts(made(tmp_path / "alike", RECIPES["overlay"], brokers))
    assert len(found) == 9
    assert set(found.values()) == {"yes"}
    still = verdicts(made(tmp_path / "still", RECIPES["overlay"], lambda _: brokers("static")))
    assert still["paths over static brokers have 6.06 hops"] == "yes"
    assert still["paths become longer with the update period"] == "no"
    assert still["paths over adaptive brokers are shorter than static ones at almost all times"] == "no"


def clients(name: str) -> Found:
    hops = {"clients-static": 8.0, "clients-static-adaptive": 5.0}.get(name)
    if hops is None:
        period_s, _, speed = name.removeprefix("clients-adaptive-").partition("-at-")
        hops = 3.0 + float(period_s) / 100 * (1 + float(speed or 1) / 10)
    moves = {"what": "home", "reason": "near", "count": 1_151}
    return {
        f.PATH_LENGTHS: [paths(path, hops - less) for path, less in (("delivery", 0.0), ("best", 0.5))],
        f.RELOCATIONS: [moves, moves | {"what": "relocate", "count": 70, "pause_max_s": 115.0}],
    }


def test_clients_begin_with_what_holds_and_count_without_decimals(tmp_path: Path) -> None:
    found = made(tmp_path, RECIPES["overlay"], clients, scenario="overlay_clients")
    assert len(verdicts(found)) == 6
    assert set(verdicts(found).values()) == {"yes"}
    assert Reader(found.text).row("Homes, seats", "static")[1:4] == ["1,151", "70", "1 min 55 s"]
