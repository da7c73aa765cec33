"""The general page, how pages are printed, and what is checked and told while one is made."""

from __future__ import annotations

import itertools
import re
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests import lab_pages
from tests.lab_pages import Reader

from carrypost.cli import _progress
from carrypost.cli.app import run
from carrypost.cli.lab import metrics as lab_metrics
from carrypost.emu.scenario.scenario import Scenario
from carrypost.errors import LocalError
from carrypost.lab.metrics import FAMILIES
from carrypost.lab.metrics import families as f
from carrypost.lab.report import html, page, plots
from carrypost.lab.report.html import TableRow
from carrypost.lab.report.paper import OSTERMALM
from carrypost.lab.report.seeds import half_width, t_95
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
    """The page of a campaign in which each seed has these rows."""
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
    return Reader(page.text(Study(folder)))


def _delays(metric: str, time_s: float, most_s: float | None = None) -> dict[Table, list[dict[str, Any]]]:
    """One delay throughout, but for the longest."""
    names = ("min_s", "avg_s", "stdev_s", *(f"p{each}_s" for each in f.PERCENTILES))
    row = {"metric": metric, "count": 3, **dict.fromkeys(names, time_s)}
    return {f.DELAY_SPREAD: [{**row, "max_s": time_s if most_s is None else most_s}]}


def _cdf(**shares: float) -> list[dict[str, Any]]:
    """Shares by milliseconds."""
    return [
        {"value_ms": int(value[1:]), "count": 1, "cumulative": place, "share": share}
        for place, (value, share) in enumerate(shares.items(), 1)
    ]


def test_a_mean_of_seeds_has_its_interval_unless_they_are_equal(tmp_path: Path) -> None:
    alike = _made(tmp_path / "a", _delays("tdelay", 1_469.0), _delays("tdelay", 1_469.0))
    assert alike.row("Delays", "default")[3] == "24'29\""
    apart = _made(tmp_path / "b", _delays("tdelay", 1_469.0), _delays("tdelay", 1_475.0))
    assert apart.row("Delays", "default")[3] == '24\'32" ± 38"'


def test_intervals_are_those_of_student() -> None:
    assert half_width([4.0]) is None
    assert half_width([3.0, 5.0]) == pytest.approx(12.706 * 2**0.5 / 2**0.5)
    assert half_width([1.0, 2.0, 3.0, 4.0, 5.0]) == pytest.approx(2.776 * 2.5**0.5 / 5**0.5)
    known = {30: 2.0423, 31: 2.0395, 60: 2.0003, 120: 1.9799, 1_000: 1.9623}
    assert [t_95(freedom) for freedom in known] == pytest.approx(list(known.values()), abs=4e-4)


def test_a_cell_may_be_broken_before_its_interval_and_nowhere_else() -> None:
    assert html.within("3 ms", "2 ms").text == "3 ms<span> </span>± 2 ms"
    assert "td{padding:.1rem .5rem;text-align:right;vertical-align:top;white-space:nowrap}" in html.STYLE
    assert "td span{white-space:normal}" in html.STYLE


@pytest.mark.parametrize(("letters", "kind"), [(60, ""), (110, " many"), (160, " most")])
def test_tables_that_are_too_wide_for_a_sheet_are_smaller_in_print(letters: int, kind: str) -> None:
    cells: list[html.Piece] = ["x" * 8] * (letters // 10)
    text = html.table("", [""] * len(cells), [[TableRow("", cells)]]).text
    assert text.startswith(f'<div class="wide{kind} short">')
    cells = [html.within("x" * 8, "zz")] * (letters // 10)
    assert html.table("", [""] * len(cells), [[TableRow("", cells)]]).text.startswith(f'<div class="wide{kind} short">')


def test_a_distribution_rises_in_steps_from_its_least_value() -> None:
    x, y = plots.staircase(np.array([10.0, 20.0]), np.array([0.5, 1.0]), 40.0, 1.0)
    assert x.tolist() == [10, 10, 20, 20, 40]
    assert y.tolist() == [0, 0.5, 0.5, 1, 1]
    values = np.arange(1.0, 1_001.0)
    x, y = plots.staircase(values, values / 1_000, 1_000.0, 1.0)
    assert len(x) < 20  # Steps that cannot be seen are a slope.


def test_of_a_distribution_beyond_the_axis_nothing_is_drawn() -> None:
    x, y = plots.staircase(np.array([90.0]), np.array([1.0]), 40.0, 1.0)
    assert (x.tolist(), y.tolist()) == ([0, 40], [0, 0])


def test_durations_of_contacts_are_drawn_as_steps(tmp_path: Path) -> None:
    found = _made(tmp_path, {f.CONTACT_CDF: _cdf(_10000=0.5, _30000=1.0)})
    picture = found.source[found.source.index("<title>duration of contacts") :]
    curve = re.search(r'<path d="([^"]*)"[^>]*stroke="#08306b"', picture)
    assert curve is not None
    assert re.fullmatch(r"M[\d.]+,250v-[\d.]+h[\d.]+v-[\d.]+h[\d.]+", curve[1]), curve[1]


def test_where_an_axis_is_cut_is_told(tmp_path: Path) -> None:
    whole = _made(tmp_path / "a", {f.CONTACT_CDF: _cdf(_10000=0.5, _30000=1.0)})
    assert "Distribution of the duration of contacts." in whole.text
    assert "is cut" not in whole.text
    cut = _made(tmp_path / "b", {f.CONTACT_CDF: _cdf(_10000=0.5, _100000=0.995, _900000=1.0)})
    assert "The axis is cut at 1'45\"; at most 0.50 % is beyond, up to 15'." in cut.text


@pytest.mark.parametrize(
    ("most_s", "shares", "told"),
    [
        (0.0, {"_0": 1.0}, "Every copy is delivered in the instant of its reception."),
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
    in_print = html.STYLE[html.STYLE.index("@media print") :]
    assert "display:none" not in in_print
    assert re.search(r"\.every\{[^}]*max-height:none", in_print)


def test_what_nodes_keep_is_told_without_an_order_too(tmp_path: Path) -> None:
    found = _made(tmp_path, {f.REGISTRY_SIZES: [{"registry": "cache", "samples": 9, "mean": 2.5, "max": 8}]})
    assert found.tables["Sizes of registries (cache: messages held), first seed"] == [
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
    monkeypatch.setattr("carrypost.cli._progress.time.monotonic", lambda: float(next(clock)))
    with _progress.progress("metrics", "runs") as move:
        move(1, 22, "")
        assert capsys.readouterr().err == "metrics: 1 of 22 runs, about 14 min left\n"
        move(1, 22, "")
        assert capsys.readouterr().err == ""


def test_metrics_fit_into_a_terminal_of_80_columns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    lab_pages.like_paper(tmp_path, OSTERMALM)
    monkeypatch.setattr(lab_metrics, "wants_json", lambda _: False)
    monkeypatch.setattr("carrypost.lab.spark.session.session", nullcontext)
    monkeypatch.setattr("carrypost.lab.metrics.making.make", lambda *_, **__: tmp_path / "metrics")
    assert run(["lab", "metrics", str(tmp_path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == ["run", *(f"ostermalm/{each}min/1" for each in (10, 15, 20, 5))]
    assert lines[3].split() == [
        "ostermalm/20min/1", "10557", "1475328", "1414438", "1573", "7", "95.19", "%", "9'03\"", '19"',
    ]  # fmt: skip


def test_figures_are_numbered_and_are_also_files(tmp_path: Path) -> None:
    told = {
        **_delays("codlvdelay", 1.0),
        f.DELAY_CDF: [{"metric": "codlvdelay", **row} for row in _cdf(_1=0.5, _9=1.0)],
    }
    made = _made(tmp_path / "a", told)
    captions = [each for each in made.text.split("Figure ") if each[0].isdecimal()]
    assert captions[0].startswith("1. Distribution of the time from publication to delivery.")
    study = page.complete(tmp_path / "a", lambda *_: None)
    page.write(study, tmp_path / "r.html")
    names = sorted(path.name for path in (tmp_path / "r-figures").iterdir())
    assert names == sorted(f"figure-{at + 1}.{end}" for at in range(len(captions)) for end in ("csv", "svg"))
    svg = (tmp_path / "r-figures" / "figure-1.svg").read_text(encoding="utf-8")
    assert svg.startswith("<svg")
    assert "xmlns=" in svg
    rows = (tmp_path / "r-figures" / "figure-1.csv").read_text(encoding="utf-8").splitlines()
    assert rows[0].startswith("settings,time from publication to delivery")
    assert rows[1].split(",")[0] == "default"


def test_what_it_took_to_deliver_is_told(tmp_path: Path) -> None:
    nodes = [
        {"node": "a", "received": 1, "direct": 1, "mean": 1.0, "max": 1},
        {"node": "b", "received": 3, "direct": 0, "mean": 3.0, "max": 4},
    ]
    traffic = [{"node": "a", "frame": "Data", "bytes": 600}, {"node": "b", "frame": "Beacon", "bytes": 300}]
    held = (("a", 0.0, False, 2), ("b", 0.0, False, 4), ("a", 60.0, False, 7), ("b", 60.0, True, 99))
    other = {"c_barrier": None, "co_delivered": None, "pending": None}
    samples = [{"node": node, "t": t, "leaving": leaves, "cache": each, **other} for node, t, leaves, each in held]
    lasting = [{"value_ms": 1_000 * at, "count": 1, "cumulative": at, "share": at / 20} for at in range(1, 21)]
    sizes = [{"registry": "cache", "samples": 3, "mean": 4.0, "max": 99}]
    made = _made(tmp_path / "a", {
        f.HOPS: nodes, f.TRAFFIC: traffic, f.REGISTRIES: samples, f.CONTACT_CDF: lasting, f.REGISTRY_SIZES: sizes,
    })  # fmt: skip
    # Seven were delivered, four of them to their authors: 900 bytes for three.
    assert made.row("What it took", "default")[1:] == ["300", "2.5", "25"]
    page.write(page.complete(tmp_path / "a", lambda *_: None), tmp_path / "r.html")
    files = {path.read_text(encoding="utf-8") for path in (tmp_path / "r-figures").glob("*.csv")}
    assert 'settings,time since the start (s),"messages held, mean"\ndefault,0.75,3.0\ndefault,59.25,7.0\n' in files
    (tail,) = (each for each in files if "share that is longer" in each)
    assert tail.splitlines()[1] == "default,1.0,0.95"
    assert len(tail.splitlines()) == 20  # The longest has none that is longer.


def test_what_is_by_time_has_bands_where_there_are_several_seeds(tmp_path: Path) -> None:
    def shares(*ratios: float) -> dict[Table, list[dict[str, Any]]]:
        about = {"message": "m", "source": "a", "recipients": 4, "delivered": 1}
        return {f.DELIVERY: [{**about, "published": 100.0 * at, "ratio": each} for at, each in enumerate(ratios)]}

    made = _made(tmp_path / "a", shares(0.5, 0.75), shares(0.5, 0.25))
    assert "Bands are 95 % intervals of the mean over seeds." in made.text
    page.write(page.complete(tmp_path / "a", lambda *_: None), tmp_path / "r.html")
    (rows,) = (path.read_text(encoding="utf-8").splitlines() for path in (tmp_path / "r-figures").glob("*.csv"))
    assert rows[0] == 'settings,time since the start (s),"delivery ratio, mean",95 % ±'
    assert rows[1] == "default,1.25,0.5,0.0"
    name, t, ratio, half = rows[2].split(",")
    assert (name, t, ratio) == ("default", "98.75", "0.5")
    assert float(half) == pytest.approx(12.706 * 0.25)
