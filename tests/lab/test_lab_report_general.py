"""The general page, the printing of pages, and the checks while one is made."""

from __future__ import annotations

import itertools
import re
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.support import lab_pages
from tests.support.lab_pages import Reader

from carrypost.cli import _output
from carrypost.cli.app import run
from carrypost.emu.scenario import Scenario
from carrypost.errors import LocalError
from carrypost.lab.metrics import FAMILIES
from carrypost.lab.metrics import families as f
from carrypost.lab.report import blocks, page, papers, plots
from carrypost.lab.report.blocks import Element, Figures, TableRow
from carrypost.lab.report.papers import OSTERMALM
from carrypost.lab.report.study import Study
from carrypost.lab.schemas import Table

_SCENARIO = """
name = "plain"
duration_s = 600
[nodes]
count = 2
[[workload]]
kind = "broadcast"
first_s = 5
period_s = 60
size = 100
"""
_PLAYED = (
    _SCENARIO
    + """
[contacts]
file = "met.csv"
start_s = 45
"""
)
_MOVING = (
    _SCENARIO.replace("[nodes]", "[mobility]").replace("count = 2", 'model = "streets"')
    + """
[radio]
range_m = 30
"""
)


def _made(folder: Path, *seeds: dict[Table, list[dict[str, Any]]], scenario: str = _SCENARIO) -> Reader:
    """Return the page of a campaign in which each seed has these rows."""
    rows: lab_pages.Rows = {table: [] for table in FAMILIES}
    runs = []
    for seed, found in enumerate(seeds or ({},), 1):
        name = f"plain/default/{seed}"
        runs.append(lab_pages.done(folder, name, Scenario.parse(scenario, folder).in_force()))
        rows[f.PROCESSING].append({
            "run": name, "bcast": 4, "rcvd": 3, "codlvd": 7, "expd": 0, "left": 0, "codlvratio": 1.0, "expratio": 0.0,
        })  # fmt: skip
        for table, each in found.items():
            rows[table] += [{"run": name, **row} for row in each]
    lab_pages.keep(folder, rows, runs)
    return Reader(page.render(Study(folder)).text)


def _html(*parts: Element) -> str:
    return Figures().show(*parts)


def _delays(metric: str, time_s: float, most_s: float | None = None) -> dict[Table, list[dict[str, Any]]]:
    """Return the same delay everywhere, except for the longest."""
    names = ("min_s", "avg_s", "stdev_s", *(f"p{each}_s" for each in f.PERCENTILES))
    row = {"metric": metric, "count": 3, **dict.fromkeys(names, time_s)}
    return {f.DELAY_SPREAD: [{**row, "max_s": time_s if most_s is None else most_s}]}


def _cdf(**shares: float) -> list[dict[str, Any]]:
    """Shares by milliseconds."""
    return [
        {"value_ms": int(value[1:]), "count": 1, "cumulative": place, "share": share}
        for place, (value, share) in enumerate(shares.items(), 1)
    ]


def test_an_interval_is_told_only_where_it_can_be_seen(tmp_path: Path) -> None:
    alike = _made(tmp_path / "a", _delays("tdelay", 1_469.0), _delays("tdelay", 1_469.02))
    assert alike.row("Delays", "default")[3] == "24 min 29 s"
    apart = _made(tmp_path / "b", _delays("tdelay", 1_469.0), _delays("tdelay", 1_475.0))
    assert apart.row("Delays", "default")[3] == "24 min 32 s ± 38 s"
    alone = _made(tmp_path / "c", _delays("tdelay", 1_469.0))
    assert alone.row("Delays", "default")[3] == "24 min 29 s"
    assert "one seed gives no interval" in alone.text


def test_a_cell_may_be_broken_before_its_interval_and_nowhere_else() -> None:
    assert blocks.give_or_take("3 ms", "1 ms") == "3 ms<span> </span>± 1 ms"
    assert "td{padding:.1rem .5rem;text-align:right;vertical-align:top;white-space:nowrap}" in blocks.STYLE
    assert "td span{white-space:normal}" in blocks.STYLE


@pytest.mark.parametrize(("letters", "kind"), [(60, ""), (110, " many")])
def test_tables_that_are_too_wide_for_a_sheet_are_smaller_in_print(letters: int, kind: str) -> None:
    cells: list[blocks.Piece] = ["x" * 8] * (letters // 10)
    text = _html(blocks.table("", [""] * len(cells), [[TableRow("", cells)]]))
    assert text.startswith(f'<div class="wide{kind} short">')
    cells = [blocks.give_or_take("x" * 8, "zz")] * (letters // 10)
    assert _html(blocks.table("", [""] * len(cells), [[TableRow("", cells)]])).startswith(
        f'<div class="wide{kind} short">'
    )


def test_a_table_wider_than_the_page_goes_on_below() -> None:
    heads: list[blocks.Piece] = ["settings", "", *("abcdefgh"[place] for place in range(8))]
    row = TableRow("slow", ["ours", *("x" * 20 for _ in range(8))])
    found = Reader(_html(blocks.table("Wide", heads, [[row]], kept=2)))
    assert found.tables["Wide"][0] == ["settings", "", "a", "b", "c", "d"]
    assert found.tables["Wide (continued)"][0] == ["settings", "", "e", "f", "g", "h"]
    assert found.tables["Wide (continued)"][1][:2] == ["slow", "ours"]
    over = [("", 2), ("first", 4), ("second", 4)]
    found = Reader(_html(blocks.table("Wide", heads, [[row]], kept=2, over=over)))
    assert [rows[0] for rows in found.tables.values()] == [["", "first"], ["", "second"]]
    assert found.tables["Wide (continued)"][1] == ["settings", "", "e", "f", "g", "h"]


def test_columns_without_a_value_are_left_out_with_their_heads() -> None:
    lines = [TableRow("a", ["1", "–", "2", ""]), TableRow("b", ["3", "–", "4", "–"])]
    over = [("", 1), ("first", 2), ("second", 1), ("third", 1)]
    found = Reader(_html(blocks.table("some", ["", "one", "none", "two", "never"], [lines], over=over)))
    assert found.tables["some"] == [["", "first", "second"], ["", "one", "two"], ["a", "1", "2"], ["b", "3", "4"]]
    assert ("th", {"colspan": "1"}) in found.tags
    assert ("th", {"colspan": "2"}) not in found.tags


def test_in_place_of_a_table_without_rows_there_is_a_sentence() -> None:
    found = Reader(_html(blocks.table("Moves", ["", "count"], [[]])))
    assert (found.tables, found.text) == ({}, "Moves: there are no data in these runs.")


def test_columns_that_are_alike_in_all_rows_become_a_sentence() -> None:
    lines = [TableRow("a", ["endless", "1, 2", "7 s", "–"]), TableRow("b", ["endless", "1, 2", "9 s", "–"])]
    heads = ["settings", "lifetime", "seeds", "time", "loss"]
    found = Reader(_html(*blocks.comparison("Runs", heads, lines, texts=(1, 2))))
    assert found.tables["Runs"] == [["settings", "time"], ["a", "7 s"], ["b", "9 s"]]
    assert found.text.endswith("The same in all rows: lifetime endless; seeds 1, 2.")
    one = Reader(_html(*blocks.comparison("Runs", heads, lines[:1])))
    assert one.tables["Runs"] == [heads[:4], ["a", "endless", "1, 2", "7 s"]]


def test_an_interval_that_is_shown_as_zero_is_left_out() -> None:
    assert papers.over_seeds([1_346.3, 1_346.6, 1_346.6], lambda value: f"{value or 0:,.0f}") == "1,346"


def test_a_distribution_rises_in_steps_from_its_least_value() -> None:
    found = _distribution([(10.0, 0.5), (20.0, 1.0)], most=40.0)
    assert found.x.tolist() == [10, 10, 20, 20, 40]
    assert found.y.tolist() == [0, 0.5, 0.5, 1, 1]
    found = _distribution([(value, value / 1_000) for value in range(1, 1_001)], most=1_000.0)
    assert len(found.x) < 20  # Steps that cannot be seen are a slope.


def test_of_a_distribution_beyond_the_axis_nothing_is_drawn() -> None:
    found = _distribution([(90.0, 1.0)], most=40.0)
    assert (found.x.tolist(), found.y.tolist()) == ([0, 40], [0, 0])


def _distribution(points: list[tuple[float, float]], most: float) -> plots.Curve:
    x, y = np.array(points).T
    found = plots.distribution([(x, y)], plots.Extent(most, 1.0))
    assert found is not None
    assert found.low is None
    return found


def test_durations_of_contacts_are_drawn_as_steps(tmp_path: Path) -> None:
    found = _made(tmp_path, {f.CONTACT_CDF: _cdf(_10000=0.5, _30000=1.0)})
    picture = found.source[found.source.index("<title>duration of contacts") :]
    curve = re.search(r'<path d="([^"]*)"[^>]*stroke="#08306b"', picture)
    assert curve is not None
    assert re.fullmatch(r"M([\d.]+),250L\1,([\d.]+)L([\d.]+),\2L\3,([\d.]+)L600,\4", curve[1]), curve[1]


def test_where_an_axis_is_cut_is_told(tmp_path: Path) -> None:
    whole = _made(tmp_path / "a", {f.CONTACT_CDF: _cdf(_10000=0.5, _30000=1.0)})
    assert "Distribution of the duration of contacts: (a) CDF, (b) complementary CDF" in whole.text
    assert "is cut" not in whole.text
    cut = _made(tmp_path / "b", {f.CONTACT_CDF: _cdf(_10000=0.5, _100000=0.995, _900000=1.0)})
    assert "The axis is cut at 1 min 45 s; at most 0.50 % of the values are above, up to 15 min." in cut.text


@pytest.mark.parametrize(
    ("most_s", "shares", "told"),
    [
        (0.0, {"_0": 1.0}, "Every copy is delivered at the moment of its reception."),
        (0.0004, {"_0": 1.0}, "All copies are delivered within 1 ms of their reception; the longest waits for 0.4 ms."),
        (9.0, {"_0": 0.998, "_9000": 1.0}, "At least 99.80 % of the copies are delivered within 1 ms of their rec"),
    ],
)
def test_how_many_do_not_wait_is_what_the_table_says(
    most_s: float, shares: dict[str, float], told: str, tmp_path: Path
) -> None:
    cdf = [{"metric": "ltcy", **row} for row in _cdf(**shares)]
    found = _made(tmp_path, {**_delays("ltcy", 0.0, most_s), f.DELAY_CDF: cdf})
    assert told in found.text


def test_where_nothing_was_delivered_nothing_is_said_of_waiting(tmp_path: Path) -> None:
    found = _made(tmp_path, _delays("tdelay", 4.0))
    assert "reception" not in found.text


def test_parameters_tell_where_contacts_come_from(tmp_path: Path) -> None:
    played = _made(tmp_path / "a", scenario=_PLAYED)
    assert played.row("Parameters", "contacts.file")[1] == "met.csv"
    assert played.row("Parameters", "contacts.start_s")[1] == "45"
    assert played.row("Parameters", "nodes.count")[1] == "2"
    keys = [row[0] for row in played.tables["Parameters in force"]]
    assert "radio.range_m" not in keys
    moving = _made(tmp_path / "b", scenario=_MOVING)
    assert moving.row("Parameters", "mobility.model")[1] == "streets"
    assert moving.row("Parameters", "radio.range_m")[1] == "30"
    assert not [row for row in moving.tables["Parameters in force"] if row[0].startswith("contacts.")]


def test_every_key_can_be_read_in_print(tmp_path: Path) -> None:
    found = _made(tmp_path)
    assert not [tag for tag, _ in found.tags if tag == "details"]
    assert ("pre", {"class": "every"}) in found.tags
    assert "disk_delay_s = 0.0" in found.text
    in_print = blocks.STYLE[blocks.STYLE.index("@media print") :]
    assert "display:none" not in in_print
    assert re.search(r"\.every\{[^}]*max-height:none", in_print)


def test_what_nodes_keep_is_told_without_an_order_too(tmp_path: Path) -> None:
    found = _made(tmp_path, {f.REGISTRY_SIZES: [{"registry": "cache", "samples": 9, "mean": 2.5, "max": 8}]})
    assert found.tables["Sizes of registries (cache: messages held)"] == [
        ["", "cache"],
        ["settings", "mean", "most"],
        ["default", "2.5", "8"],
    ]


def test_a_page_that_cannot_be_written_is_told_before_metrics_are_made(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    lab_pages.like_paper(tmp_path / "found", OSTERMALM)
    (tmp_path / "found" / "metrics" / "hops").rename(tmp_path / "aside")
    monkeypatch.setattr(page, "complete", lambda *_: pytest.fail("metrics are made"))
    (tmp_path / "file").touch()
    for out, told in ((tmp_path / "found", "is a folder"), (tmp_path / "file" / "r.html", "cannot be written: Not a")):
        assert run(["lab", "report", str(tmp_path / "found"), "--out", str(out)]) == 2
        assert told in capsys.readouterr().err


def test_looking_whether_a_page_can_be_written_leaves_nothing(tmp_path: Path) -> None:
    page.check(tmp_path / "new" / "deep" / "r.html")
    assert not list(tmp_path.iterdir())
    with pytest.raises(LocalError, match="cannot be written"):
        page.check(Path("/proc/none/r.html"))


def test_how_long_work_still_takes_is_told_now_and_then(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    clock = itertools.count(step=40)
    monkeypatch.setattr("carrypost.cli._output.time.monotonic", lambda: float(next(clock)))
    with _output.progress("metrics", "runs") as move:
        move(1, 22, "")
        assert capsys.readouterr().err == "metrics: 1 of 22 runs, about 14 min left\n"
        move(1, 22, "")
        assert capsys.readouterr().err == ""


def test_metrics_fit_into_a_terminal_of_80_columns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    lab_pages.like_paper(tmp_path, OSTERMALM)
    monkeypatch.setattr("carrypost.lab.engines.session", nullcontext)
    monkeypatch.setattr("carrypost.lab.metrics.making.make", lambda *_, **__: tmp_path / "metrics")
    assert run(["lab", "metrics", str(tmp_path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80
    assert [line.split()[0] for line in lines] == ["run", *(f"ostermalm/{each}min/1" for each in (10, 15, 20, 5))]
    assert lines[3].split() == [
        "ostermalm/20min/1", "10557", "1475328", "1473748", "75.00", "%", "9", "min", "22", "s"
    ]  # fmt: skip
