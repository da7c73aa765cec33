"""Figures of pages: means over seeds with their bands, axes of logarithms, numbers, and each as a file."""

from __future__ import annotations

import csv
import dataclasses
import io
import itertools
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import numpy as np
import pytest
from markupsafe import Markup
from tests.support import lab_pages
from tests.support.lab_pages import Reader

from carrypost.cli.app import run
from carrypost.emu.scenario import Scenario
from carrypost.lab.metrics import FAMILIES
from carrypost.lab.metrics import families as f
from carrypost.lab.report import blocks, page, plots
from carrypost.lab.report.blocks import Figures, Grid, TableRow
from carrypost.lab.report.numbers import interval, over_rows, quantile
from carrypost.lab.report.page import Page
from carrypost.lab.report.papers import BUS
from carrypost.lab.report.plots import Axis, Curve, Extent
from carrypost.lab.report.study import FinishedRun, Study, matched
from carrypost.lab.schemas import Table
from tools import results

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
_SVG = "{http://www.w3.org/2000/svg}"


def _made(folder: Path, *seeds: dict[Table, list[dict[str, Any]]]) -> Page:
    """Return the page of a campaign in which each seed has these rows."""
    rows: lab_pages.Rows = {table: [] for table in FAMILIES}
    text = Scenario.parse(_SCENARIO, folder).in_force()
    runs = []
    for seed, found in enumerate(seeds, 1):
        name = f"plain/default/{seed}"
        runs.append(lab_pages.done(folder, name, text))
        counts = {"bcast": 4, "rcvd": 3, "codlvd": 7, "expd": 0, "left": 0, "codlvratio": 1.0, "expratio": 0.0}
        rows[f.PROCESSING].append({"run": name, **counts})
        for table, each in found.items():
            rows[table] += [{"run": name, **row} for row in each]
    lab_pages.keep(folder, rows, runs)
    return page.render(Study(folder))


def _cdf(*values_s: float) -> list[dict[str, Any]]:
    """Each of these once."""
    return [
        {"value_ms": round(value * 1_000), "count": 1, "cumulative": place, "share": place / len(values_s)}
        for place, value in enumerate(values_s, 1)
    ]


def _rows(found: Page, name: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(found.figures[name])))


def _parsed(drawn: str) -> ET.Element:
    return ET.fromstring(drawn)  # noqa: S314 - we have drawn it


def _figure(found: Page, caption: str) -> str:
    """Return the number of the figure whose caption has this."""
    text = Reader(found.text).text
    return text[: text.index(caption)].rpartition("Figure ")[2].split(".")[0].split(",")[0]


@pytest.mark.parametrize(
    ("freedom", "student"), [(1, 12.7062), (2, 4.30265), (9, 2.26216), (29, 2.04523), (99, 1.98422)]
)
def test_the_quantile_is_that_of_tables_of_students_t(freedom: int, student: float) -> None:
    assert quantile(freedom) == pytest.approx(student, rel=3e-6)


def test_quantiles_fall_with_the_number_of_seeds() -> None:
    found = [quantile(each) for each in range(1, 200)]
    assert all(one > other for one, other in itertools.pairwise(found))
    assert found[-1] > 1.959964


def test_an_interval_is_of_the_mean_by_the_deviation_of_a_sample() -> None:
    found = interval([1.0, 2.0, 3.0, 6.0])
    assert found is not None
    assert found.mean == 3
    assert found.half == pytest.approx(3.182446 * np.std([1, 2, 3, 6], ddof=1) / 2)
    assert interval([7.0]) == (7.0, None)
    assert interval([]) is None


def test_a_seed_without_a_figure_does_not_count() -> None:
    mean, half = over_rows(np.array([[1.0, 5.0, np.nan], [3.0, np.nan, np.nan]]))
    assert mean[:2].tolist() == [2, 5]
    assert half[0] == pytest.approx(12.706205)
    assert np.isnan(half[1])
    assert np.isnan(mean[2])


def test_most_intervals_of_drawn_means_hold_the_truth() -> None:
    draws = np.random.default_rng(7).normal(10, 3, size=(5, 4_000))
    mean, half = over_rows(draws)
    assert np.mean(np.abs(mean - 10) <= half) == pytest.approx(0.95, abs=0.01)


def test_a_curve_over_seeds_is_their_mean_within_a_band_that_never_leaves_all_and_none() -> None:
    seeds = [(np.array([1.0, 3.0]), np.array([0.5, 1.0])), (np.array([2.0]), np.array([1.0]))]
    found = plots.distribution(seeds, Extent(4.0, 1.0))
    assert found is not None
    assert found.low is not None
    assert found.high is not None
    points = list(zip(found.x.tolist(), found.y.tolist(), strict=True))
    assert points == [(1, 0), (1, 0.25), (2, 0.25), (2, 0.75), (3, 0.75), (3, 1), (4, 1)]
    assert np.all((found.low <= found.y) & (found.y <= found.high))
    assert found.low.min() >= 0
    assert found.high.max() <= 1


def test_what_is_above_a_value_is_what_is_not_below_it() -> None:
    extent = Extent(100.0, 1.0, 0.5, 1e-3, log=True)
    seeds = [(np.array([1.0, 10.0]), np.array([0.9, 1.0])), (np.array([1.0, 10.0]), np.array([0.8, 1.0]))]
    found = plots.distribution(seeds, extent, above=True)
    assert found is not None
    assert found.low is not None
    assert found.high is not None
    at = found.x.tolist().index(10.0)
    assert found.y[at] == pytest.approx(0.15)
    assert found.y[-1] == 1e-3  # Nothing is above the most: the line falls to the lower edge.
    assert found.low[at] < found.y[at] < found.high[at]


def test_distributions_have_bands_and_a_half_by_logarithms(tmp_path: Path) -> None:
    found = _made(tmp_path, {f.INTER_CONTACT_CDF: _cdf(1, 10, 1_000)}, {f.INTER_CONTACT_CDF: _cdf(1, 20, 1_000)})
    number = _figure(found, "Distribution of the time between contacts")
    drawn = _parsed(found.figures[f"figure-{number}b.svg"])
    told = {each.text for each in drawn.iter(f"{_SVG}text")}
    assert told >= {"1 s", "10 s", "1 min", "10 min", "100 %", "10 %", "1 %", "0.1 %"}
    assert [each for each in drawn.iter(f"{_SVG}path") if each.get("opacity") == "0.2"]
    rows = _rows(found, f"figure-{number}b.csv")
    after = [row for row in rows if float(row["time between contacts of a pair"]) == 20]
    assert float(after[-1]["share of gaps above"]) == pytest.approx(1 / 3)
    band = [(float(row["lower end of 95 %"]), float(row["upper end of 95 %"])) for row in after]
    assert band[-1] == pytest.approx((1 / 3, 1 / 3))
    assert band[0][0] < band[0][1]


def test_one_seed_has_no_band(tmp_path: Path) -> None:
    found = _made(tmp_path, {f.CONTACT_CDF: _cdf(1, 10, 1_000)})
    assert {row["lower end of 95 %"] for row in _rows(found, "figure-1a.csv")} == {""}
    assert ' opacity="0.2"' not in found.figures["figure-1a.svg"]


def test_cost_of_a_delivery_and_hops_are_means_over_seeds(tmp_path: Path) -> None:
    def seed(sent: int) -> dict[Table, list[dict[str, Any]]]:
        spread = dict.fromkeys(("min_s", "avg_s", "stdev_s", "max_s", *(f"p{each}_s" for each in f.PERCENTILES)), 1.0)
        return {
            f.TRAFFIC: [{"node": "a", "frame": "Parcel", "bytes": sent}, {"node": "b", "frame": "Ack", "bytes": 100}],
            f.DELAY_SPREAD: [{"metric": "codlvdelay", "count": 3, **spread}],
            f.THROUGHPUT: [{"size": 100, "copies": 3, "bytes_per_s": 1.0}],
            f.HOPS: [
                {"node": "a", "received": 1, "direct": 1, "mean": 1.0, "max": 1},
                {"node": "b", "received": 2, "direct": 0, "mean": 2.5, "max": 3},
            ],
            f.TIMELINE: [
                {"t": 0.0, "kind": "publish", "count": 4, "size": 400},
                {"t": 0.0, "kind": "deliver", "count": 5, "size": 500},
                {"t": 60.0, "kind": "deliver", "count": 2, "size": 200},
                {"t": 0.0, "kind": "traffic", "count": 1, "size": sent},
                {"t": 60.0, "kind": "traffic", "count": 1, "size": 100},
            ],
        }

    found = _made(tmp_path, seed(500), seed(800))
    assert Reader(found.text).row("Cost of dissemination", "default")[1:] == [
        "750 ± 1,906", "250 ± 635.3", "86.11 % ± 35.30 pp", "2", "33.33 %", "3",
    ]  # fmt: skip
    number = _figure(found, "Bytes sent for each delivery")
    rows = _rows(found, f"figure-{number}.csv")
    # In the first minute one copy came to another node, in the second two.
    assert [float(row["bytes for each delivery"]) for row in rows] == [650, 50, 50]
    assert [float(row["time since the start (s)"]) for row in rows] == [0, 60, 120]


def test_deliveries_stand_beside_what_a_flood_reaches(tmp_path: Path) -> None:
    def seed(delivered: int) -> dict[Table, list[dict[str, Any]]]:
        message = {"message": "m", "source": "a", "published": 0.0, "mode": "unknown"}
        return {
            f.DELIVERY: [{**message, "recipients": 10, "delivered": delivered, "ratio": delivered / 10}],
            f.DELAY_CDF: [{"metric": "codlvdelay", **row} for row in _cdf(10, 20)],
            f.FLOOD: [{**row, "cumulative": 4 * row["cumulative"]} for row in _cdf(5, 15)],
        }

    found = _made(tmp_path / "known", seed(4), seed(6))
    number = _figure(found, "Delivery ratio by age")
    rows = _rows(found, f"figure-{number}.csv")
    age, reached = "age of the message (s)", "share of recipients reached"
    ours = [(float(row[age]), float(row[reached])) for row in rows if row["settings"] == "default"]
    flood = [(float(row[age]), float(row[reached])) for row in rows if row["settings"] == "default, bound"]
    assert ours == [(10, 0), (10, 0.25), (20, 0.25), (20, 0.5), (21, 0.5)]
    assert flood == [(5, 0), (5, 0.4), (15, 0.4), (15, 0.8), (21, 0.8)]
    assert "Thin lines with circles: a flood over the same contacts" in found.text
    without = {table: rows for table, rows in seed(4).items() if table is not f.FLOOD}
    assert "Contacts are not known" in _made(tmp_path / "unknown", without).text


def test_hops_are_a_distribution_over_receptions(tmp_path: Path) -> None:
    found = _made(tmp_path, {f.HOP_COUNTS: [{"hops": 1, "copies": 3}, {"hops": 2, "copies": 1}]})
    rows = _rows(found, f"figure-{_figure(found, 'Number of hops of the copies')}.csv")
    assert [(float(row["hops, at most"]), float(row["share of receptions"])) for row in rows] == [
        (1, 0), (1, 0.75), (2, 0.75), (2, 1), (3, 1),
    ]  # fmt: skip


def test_what_nodes_hold_is_a_mean_over_nodes_by_time(tmp_path: Path) -> None:
    def sample(node: str, t: float, cache: int | None, *, leaving: bool = False) -> dict[str, Any]:
        return {"node": node, "t": t, "leaving": leaving, "cache": cache}

    held = [
        sample("a", 10, 2), sample("b", 10, 4), sample("a", 70, 8), sample("b", 70, None),
        sample("b", 75, 99, leaving=True),
    ]  # fmt: skip
    found = _made(tmp_path, {f.REGISTRIES: held})
    number = _figure(found, "Number of messages in the cache of a node")
    assert [float(row["messages in the cache, mean"]) for row in _rows(found, f"figure-{number}.csv")] == [3, 8, 8]


def test_figures_are_numbered_throughout_and_are_there_as_files(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lab_pages.like_paper(tmp_path / "found", BUS, seeds=(1, 2))
    out = tmp_path / "pages" / "bus.html"
    (tmp_path / "pages" / "bus-figures").mkdir(parents=True)
    (tmp_path / "pages" / "bus-figures" / "figure-99.svg").touch()  # Of a page that had more of them.
    assert run(["lab", "report", str(tmp_path / "found"), "--out", str(out), "--json"]) == 0
    assert f'"figures":"{out.with_name("bus-figures")}"' in capsys.readouterr().out
    found = Reader(out.read_text(encoding="utf-8"))
    numbers = [int(each) for each in re.findall(r"<b>Figure (\d+)</b>", found.source)]
    assert numbers == list(range(1, len(numbers) + 1))
    files = {file.name for file in (tmp_path / "pages" / "bus-figures").iterdir()}
    assert {"figure-1.svg", "figure-1.csv", "figure-2a.svg", "figure-2b.csv"} <= files
    assert "figure-99.svg" not in files
    figures = {name for name in files if name.startswith("figure-")}
    assert len(figures) == 3 * sum(tag == "svg" for tag, _ in found.tags)
    links = {attrs["href"] for tag, attrs in found.tags if tag == "a"}
    assert {f"bus-figures/{name}" for name in files} <= links
    assert 'href="bus-figures' not in results.unlinked(found.source)
    for name in figures:
        if name.endswith(".pdf"):
            assert (out.with_name("bus-figures") / name).read_bytes().startswith(b"%PDF")
            continue
        text = (tmp_path / "pages" / "bus-figures" / name).read_text(encoding="utf-8")
        if name.endswith(".svg"):
            assert _parsed(text).get("width")
        else:
            widths = {len(row) for row in csv.reader(io.StringIO(text))}
            assert len(widths) == 1, name
    first = (out.with_name("bus-figures") / "table-1.csv").read_text(encoding="utf-8")
    assert first.startswith("figure of the paper,")
    _compiled(out.with_name("bus-figures"), tmp_path)


def _compiled(folder: Path, scratch: Path) -> None:
    """Check LaTeX tables: their rows have as many cells as columns, and where there is pdflatex it takes them all."""
    files = sorted(folder.glob("table-*.tex"))
    assert files
    for file in files:
        text = file.read_text(encoding="utf-8")
        (columns,) = re.findall(r"\\begin\{tabular\}\{(\w+)\}", text)
        rows = [line for line in text.splitlines() if line.endswith(r" \\") and "multicolumn" not in line]
        assert {len(re.split(r"(?<!\\)&", row)) for row in rows} == {len(columns)}, file.name
    if pdflatex := shutil.which("pdflatex"):
        inputs = "\n".join(rf"\input{{{file}}}" for file in files)
        text = rf"\documentclass{{article}}\usepackage{{booktabs}}\begin{{document}}{inputs}\end{{document}}"
        (scratch / "all.tex").write_text(text, encoding="utf-8")
        order = [pdflatex, "-interaction=nonstopmode", "-halt-on-error", "all.tex"]
        subprocess.run(order, cwd=scratch, check=True, capture_output=True)  # noqa: S603 - our own file


def test_a_table_in_parts_is_one_file() -> None:
    heads = ["settings", *(f"a rather long head of column {number}" for number in range(12))]
    rows = [TableRow(name, [f"{name}-{number}-{'x' * 12}" for number in range(12)]) for name in ("one", "50 %")]
    figures = Figures("figures")
    text = figures.show([blocks.table("Wide", heads, [rows]), blocks.table("", ["", "x"], [[TableRow("a", ["b"])]])])
    assert text.count("Wide (continued)") == text.count("<table>") - 2 > 0
    assert sorted(figures.files) == ["table-1.csv", "table-1.tex"]
    assert text.count("Table 1: ") == text.count('class="files"') == 1
    found = list(csv.reader(io.StringIO(figures.files["table-1.csv"])))
    assert found == [heads, *([row.head, *row.cells] for row in rows)]
    assert r"50 \% & 50 \%-0-" in figures.files["table-1.tex"]


def test_files_of_a_table_have_what_the_page_shows() -> None:
    rows = [TableRow("slow", [blocks.give_or_take("1", "2 & 3"), "–", "4"]), TableRow(Markup("<b>fast</b>"), ["5"])]
    grid = Grid("Some", ["settings", "one", "none", "two"], [rows[:1], rows[1:]], over=[("", 1), ("first", 2), ("", 1)])
    assert grid.csv() == "settings,first: one,two\nslow,1 ± 2 & 3,4\nfast,5,\n"
    assert grid.latex("x").splitlines()[4:] == [
        r"\begin{tabular}{lrr}", r"\toprule", r" & first &  \\", r"settings & one & two \\", r"\midrule",
        r"slow & 1 $\pm$ 2 \& 3 & 4 \\", r"\midrule", r"fast & 5 &  \\", r"\bottomrule", r"\end{tabular}",
        r"\end{table}",
    ]  # fmt: skip


def test_the_contents_name_every_heading() -> None:
    text, found = blocks.contents(Markup("<h2>One &amp; all</h2><p>x</p><h3>Messages</h3><h2>Two</h2>"))
    assert found == [(2, "section-1", "One & all"), (3, "section-2", "Messages"), (2, "section-3", "Two")]
    assert '<h3 id="section-2">Messages</h3>' in text
    assert blocks.contents(Markup("<h2>One</h2>")) == ("<h2>One</h2>", [])


# --------------------------------------------------------------------------------------------------------- curves
def _drawn_curves(count: int, bounds: dict[str, Curve] | None = None) -> str:
    x = np.linspace(0.0, 100.0, 50)
    lines = {f"c{number}": Curve(x, x * number, x * number - 1, x * number + 1) for number in range(count)}
    return plots.curves(lines, (Axis("x", 100.0), Axis("y", 500.0)), "t", bounds=bounds, steps=False).svg


def test_more_than_three_curves_have_bars_in_place_of_bands() -> None:
    few, many = _drawn_curves(3), _drawn_curves(4)
    assert few.count('opacity="0.2"') == 3
    assert 'opacity="0.2"' not in many
    assert many.count('opacity="0.8"') == 4 * 8 * 3, "a line with two ends, at eight places of each curve"


def test_the_bound_is_in_the_legend() -> None:
    x = np.linspace(0.0, 100.0, 50)
    drawn = _drawn_curves(2, bounds={"c1": Curve(x, x)})
    symbol = drawn[: drawn.index("flood bound")].rpartition("<path")[2]
    assert 'fill="white" stroke="black"' in symbol, "a circle that can be seen"
    assert "flood bound" not in _drawn_curves(2)


def test_a_figure_has_the_seeds_that_all_its_series_have(tmp_path: Path) -> None:
    lab_pages.like_paper(tmp_path, BUS, seeds=(1, 2))
    one, two, *_ = Study(tmp_path).scenarios["city_bus"]
    first, second = two.runs
    third = dataclasses.replace(second, seed="3")

    def seeds(*runs: FinishedRun) -> list[list[str]]:
        return [[run.seed for run in each.runs] for each in matched([one, dataclasses.replace(two, runs=runs)])]

    assert seeds(first, second) == [["1", "2"], ["1", "2"]]
    assert seeds(second, third) == [["2"], ["2"]]
    assert seeds(third) == [["1"], ["3"]], "without a common seed as many of each"
