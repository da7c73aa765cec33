"""Pages: the paper's values beside ours, complete files without references, and errors."""

from __future__ import annotations

import re
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.support import lab_pages
from tests.support.lab_pages import Reader

from carrypost.cli.app import run
from carrypost.emu.scenario import Scenario
from carrypost.errors import FileError, LocalError
from carrypost.lab.folders import write_arrow
from carrypost.lab.metrics import FAMILIES
from carrypost.lab.metrics import families as f
from carrypost.lab.report import causal, page
from carrypost.lab.report.blocks import inline_svg
from carrypost.lab.report.papers import BUS, EXPERIMENTS, OSTERMALM, Experiment
from carrypost.lab.report.study import Study

_PLAIN = """
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


@pytest.fixture(scope="module")
def bus(tmp_path_factory: pytest.TempPathFactory) -> Reader:
    """The page of a day of buses with five per cent more of everything."""
    folder = tmp_path_factory.mktemp("bus")
    lab_pages.like_paper(folder, BUS, 1.05)
    (folder / "campaign.toml").write_text("seeds = [1]\n", encoding="utf-8")
    return _page(folder, "carrypost reproduce bus")


@pytest.fixture(scope="module")
def walkers(tmp_path_factory: pytest.TempPathFactory) -> Reader:
    """Return the page of walkers with three seeds: the paper's values, and one and two per cent more."""
    folder = tmp_path_factory.mktemp("walkers")
    lab_pages.like_paper(folder, OSTERMALM, seeds=(10, 2, 1))
    return _page(folder)


@pytest.fixture(scope="module")
def few(tmp_path_factory: pytest.TempPathFactory) -> Reader:
    """The page of walkers with a hundredth of everything."""
    folder = tmp_path_factory.mktemp("few")
    lab_pages.like_paper(folder, OSTERMALM, 0.01, limited=True)
    return _page(folder)


def _page(folder: Path, command: str = "") -> Reader:
    return Reader(page.render(Study(folder), command).text)


def _plain(folder: Path, run_name: str = "plain/default/1") -> None:
    """Write a campaign without order, in which only one message was sent."""
    rows: lab_pages.Rows = {table: [] for table in FAMILIES}
    counts = {"bcast": 4, "rcvd": 3, "codlvd": 7, "expd": 0, "left": 0, "codlvratio": 1.0, "expratio": 0.0}
    rows[f.PROCESSING].append({"run": run_name, **counts})
    delay = {"min_s": 1.0, "max_s": 9.0, "avg_s": 4.0, "stdev_s": 1.0, **{f"p{each}_s": 4.0 for each in f.PERCENTILES}}
    rows[f.DELAY_SPREAD] += [{"run": run_name, "metric": each, "count": 3, **delay} for each in ("tdelay", f.LTCY)]
    rows[f.DELIVERY_RATIO].append({"run": run_name, "messages": 4, "ratio": 0.75})
    lab_pages.keep(folder, rows, [lab_pages.done(folder, run_name, Scenario.parse(_PLAIN, folder).in_force())])


@pytest.mark.parametrize("paper", [BUS, OSTERMALM])
def test_a_page_has_every_table_and_figure_and_needs_nothing_else(paper: Experiment, bus: Reader, few: Reader) -> None:
    found = bus if paper is BUS else few
    text = found.source
    for name in paper.tables:
        assert f"{name}: " in found.text
    for number, name in enumerate(paper.figures, 1):
        assert f"Figure {number}, the paper's {name}. " in found.text
    assert sum(tag == "svg" for tag, _ in found.tags) == 10
    assert not re.search(r"https?:|url\((?!#)|@import", text)
    assert not {tag for tag, _ in found.tags} & {"script", "link", "img", "iframe", "object"}
    outside = [attrs for _, attrs in found.tags if attrs.keys() & {"src", "href", "xlink:href"}]
    assert all((each.get("href") or "").startswith("#") for each in outside), "links to places of the page only"
    assert len(text) < 200_000


@pytest.mark.parametrize("paper", [BUS, OSTERMALM])
def test_names_inside_pictures_are_different_on_one_page(paper: Experiment, bus: Reader, few: Reader) -> None:
    found = bus if paper is BUS else few
    names = [attrs["id"] for _, attrs in found.tags if "id" in attrs]
    assert len(names) > 4
    assert len(names) == len(set(names))
    used = {match for _, attrs in found.tags for match in re.findall(r"url\(#([^)]+)\)", attrs.get("clip-path") or "")}
    assert used <= set(names)


def test_the_same_campaign_gives_the_same_page(tmp_path: Path) -> None:
    lab_pages.like_paper(tmp_path, OSTERMALM, name="elsewhere")
    assert page.render(Study(tmp_path)).text == page.render(Study(tmp_path)).text


def test_the_paper_stands_beside_ours_with_the_difference(bus: Reader) -> None:
    assert bus.row("Verdict", "receptions")[1:] == ["agree for every lifetime", "+5.0 %, at 10 min"]
    assert bus.row("Table II:", "lifetime")[2:] == ["endless", "120 min", "60 min", "40 min", "20 min", "10 min"]
    assert bus.row("Table II:", "receive events")[2:4] == ["106,580", "98,610"]
    assert bus.row("Table II:", "receive events", "ours")[2:4] == ["111,909", "103,540"]
    assert bus.row("Table II:", "receive events", "difference")[2:4] == ["+5.0 %", "+5.0 %"]
    assert bus.row("Table II:", "co-delivery ratio", "difference")[2] == "0 pp"
    assert bus.row("Table II:", "expiry events")[2:] == ["N/A", "0", "0", "0", "5", "3"]
    assert bus.row("Table II:", "neither, at the end")[2] == "7"
    assert bus.row("Table III:", "endless")[2:6] == ["4 ms", "11 h 47 min", "43 min 50 s", "1 h 22 min"]
    assert bus.row("Table III:", "endless", "ours")[4] == "46 min 2 s"
    assert bus.row("Table III:", "endless", "difference")[2:6] == ["+5.0 %"] * 4
    assert bus.row("Table I:", "contacts")[1:] == ["8,892", "9,337", "+5.0 %"]
    assert bus.row("Table I:", "duration of the scenario")[1:] == ["14 h 15 min", "14 h 15 min", "0 %"]


def test_ours_below_the_papers_has_a_minus(few: Reader) -> None:
    assert few.row("Table V:", "receive events", "difference")[2:] == ["\u221299.0 %"] * 4
    assert few.row("Table VI:", "5 min", "difference")[4] == "\u221299.0 %"


def test_of_several_seeds_the_mean_stands_with_its_interval(walkers: Reader) -> None:
    # 1,475,328 and one and two per cent more: a deviation of 14,753, by the root of 3, times 4.3027.
    assert walkers.row("Table V:", "receive events", "ours")[2] == "1,490,081"
    assert walkers.row("Table V:", "receive events", "95 % interval")[2] == "± 36,650"
    assert (
        "Our values are mean ± half-width of the 95 % confidence interval over 3 seeds, by Student's t" in walkers.text
    )
    assert walkers.row("Table V:", "receive events", "difference")[2] == "+1.0 %"
    assert walkers.row("Table IV:", "contacts")[2:4] == ["14,955", "± 368"]
    assert "The same in all rows: seeds 1, 2, 10; runs 3;" in walkers.text


def test_a_part_says_so_and_has_no_differences(tmp_path: Path) -> None:
    lab_pages.like_paper(tmp_path, BUS, part=True)
    found = _page(tmp_path)
    assert "This is a part of the experiment only: 2 h in place of 14 h 15 min." in found.text
    assert not any("difference" in row[:2] for rows in found.tables.values() for row in rows)
    assert found.row("Table II:", "receive events")[2] == "106,580"


def test_quoted_points_tell_the_share_of_ours(bus: Reader) -> None:
    # Made by hand: delays are spread evenly up to the most, 11 h 47 min and a twentieth.
    assert bus.row("Points", "tdelay under 1 h, lifetime endless")[1:] == ["88 %", "8.0 %"]
    assert bus.row("Points", "ltcy under 1.2 s, lifetime 20 min")[1] == "99 %"
    assert len(bus.tables["Points of Figure 5 that the paper quotes"]) == 1 + 7


def test_the_walker_is_the_nearest_who_stays_about_five_minutes(few: Reader) -> None:
    assert "Registries of walker n0054, who enters at 1 h 48 min and stays for 5 min" in few.text
    assert few.row("One walker", "20 min")[2:] == ["760", "764", "almost 400", "about 150"]
    assert few.row("One walker", "20 min", "ours (n0054)")[2:] == ["300", "305", "0", "40"]


def test_where_no_copy_waited_a_sentence_replaces_the_picture(tmp_path: Path) -> None:
    lab_pages.like_paper(tmp_path, BUS)
    pair = [series for series in Study(tmp_path).scenarios["city_bus"] if series.lifetime_s in BUS.pair]
    values = pq.read_table(tmp_path / "metrics" / f.DELAY_CDF.name).to_pylist()

    def made(*, waiting: bool) -> tuple[list[str], str]:
        rows = [each | {"value_ms": each["value_ms"] * ("20min" in each["run"]) * waiting} for each in values]
        write_arrow(pa.Table.from_pylist(rows, schema=f.DELAY_CDF.arrow), tmp_path / "metrics", f.DELAY_CDF)
        study = Study(tmp_path)
        return [name for name, _ in causal.against(study, pair, BUS).pictures], Reader(page.render(study).text).text

    drawn, text = made(waiting=True)
    assert drawn == ["lifetime 20 min"]
    assert "Lifetime endless: none of our copies waited for 1 ms or more; in the paper at most 39 min" in text
    drawn, text = made(waiting=False)
    assert drawn == []
    assert "The paper's Figure 4 shows how long copies wait. Lifetime endless: none of our copies waited" in text
    assert "Lifetime 20 min: none of our copies waited" in text


def test_waiting_is_explained_only_where_ours_hardly_wait(walkers: Reader, few: Reader) -> None:
    assert "Waiting." not in walkers.text
    assert "Waiting." in few.text


def test_how_far_receptions_are_off_is_told(bus: Reader, few: Reader) -> None:
    assert "Receptions are within 5.0 % of the paper's, mean transmission delays within 5.0 %. The cali" in bus.text
    assert "Receptions are within 99.0 % of the paper's" in few.text


def test_limited_links_stand_beside_unlimited_ones_and_the_paper(bus: Reader, few: Reader) -> None:
    name = "Waiting on limited links"
    assert few.row(name, "lifetime")[2:5] == ["paper", "unlimited", "limited"]
    assert few.row(name, "20 min")[1:] == ["receive events", "1,475,328", "14,753", "1,475,328", "0 %"]
    assert few.row(name, "ltcy, avg")[2:] == ["19 s", "0.2 s", "19 s", "0 %"]
    assert few.row(name, "5 min", "ltcy, avg")[2] == "2 s"
    assert few.row(name, "pending, most")[2] == "–"
    assert few.row("Table V:", "lifetime")[2:] == ["20 min", "15 min", "10 min", "5 min"]
    for told in ("every direction of a link carries 20,000 bytes/s", "differ by at most 9900.2 % from those"):
        assert told in few.text
    assert "These runs have no limited links" not in few.text
    assert name not in bus.tables


def test_typing_errors_of_the_paper_are_noted(bus: Reader) -> None:
    assert 'printed as 1h22" and the maximum of codlvdelay as 11h47"' in bus.text


def test_parameters_seeds_versions_and_commands_are_told(bus: Reader, tmp_path_factory: pytest.TempPathFactory) -> None:
    assert bus.row("Parameters", "workload.0.size")[1] == "1,000"
    assert bus.row("Parameters", "workload.0.size")[3] == "ours: not given in the paper"
    assert bus.row("Parameters", "workload.0.lifetime_s")[1] == "none, 120 min, 60 min, 40 min, 20 min, 10 min"
    assert bus.row("Parameters", "radio.range_m")[1:] == ["200", "radio range", "the paper"]
    for told in ("Runs: carrypost 1.2.3.", "carrypost reproduce bus", "carrypost lab metrics", "seeds = [1]"):
        assert told in bus.text
    assert str(tmp_path_factory.getbasetemp()) not in bus.text


def test_settings_with_one_lifetime_are_told_apart_by_their_names(tmp_path: Path) -> None:
    rows: lab_pages.Rows = {table: [] for table in FAMILIES}
    runs = []
    text = Scenario.load("scenarios/ostermalm.toml").in_force()
    for name in ("usual", "<b>slow"):
        lab_pages.add(rows, f"ostermalm/{name}/1", OSTERMALM, 1_200, 1.0)
        runs.append(lab_pages.done(tmp_path, f"ostermalm/{name}/1", text))
    lab_pages.keep(tmp_path, rows, runs)
    found = _page(tmp_path)
    assert found.row("Table V:", "lifetime")[2:] == ["usual", "<b>slow"]
    assert found.row("Runs", "<b>slow")[1] == "20 min"
    assert "also show lifetimes that were not run here: 5 min" in found.text


def test_buses_with_other_names_and_contacts_from_a_file_are_told_so(tmp_path: Path) -> None:
    rows: lab_pages.Rows = {table: [] for table in FAMILIES}
    lab_pages.add(rows, "city_bus/none/1", BUS, None, 1.0)
    for table in (f.ACTIVITY, f.REGISTRIES):
        for row in rows[table]:
            row["node"] = row["node"].replace("L01", "Vannes")
    rows[f.ACTIVITY][1]["end"] += 1
    text = (
        _PLAIN.replace("plain", "city_bus").replace("size", 'ordering = "causal"\nsize')
        + '[contacts]\nfile = "v.csv"\n'
    )
    lab_pages.keep(
        tmp_path, rows, [lab_pages.done(tmp_path, "city_bus/none/1", Scenario.parse(text, tmp_path).in_force())]
    )
    found = _page(tmp_path)
    assert "Registries of bus Vannes-2." in found.text
    assert "contacts come from v.csv" in found.text


def test_a_campaign_without_order_gets_a_general_page(tmp_path: Path) -> None:
    _plain(tmp_path)
    found = _page(tmp_path)
    assert found.row("Outcome of messages", "default")[1:4] == ["4", "3", "3"]
    assert found.row("Outcome of messages", "default")[-1] == "75.00 %"
    assert found.row("Delays", "default")[2:4] == ["1 s", "4 s"]
    assert "Table I" not in found.text
    assert "Registries" not in found.text
    assert "Nothing was sent." in found.text


def test_a_scenario_of_the_paper_without_order_gets_a_general_page(tmp_path: Path) -> None:
    _plain(tmp_path, "city_bus/default/1")
    assert "Table II" not in _page(tmp_path).text


def test_all_general_figures_are_there_where_there_is_something_to_show(tmp_path: Path) -> None:
    lab_pages.like_paper(tmp_path, OSTERMALM, name="elsewhere")
    found = _page(tmp_path)
    assert sum(tag == "svg" for tag, _ in found.tags) == 9
    assert found.row("Bytes sent", "settings") == ["settings", "all", "per node", "Parcel"]
    assert found.row("Bytes sent", "20min")[1:] == ["5,000", "5,000", "5,000"]
    assert found.row("Sizes", "20min")[1:3] == ["2", "5"]
    assert found.row("Parameters", "workload.0.lifetime_s")[1] == "20 min, 15 min, 10 min, 5 min"


def test_failures_are_told(tmp_path: Path) -> None:
    _plain(tmp_path)
    broken = [lab_pages.failed("plain/other/1", "the disk is <full>"), lab_pages.failed("gone/other/1", "no file")]
    runs = [lab_pages.done(tmp_path, "plain/default/1", Scenario.parse(_PLAIN, tmp_path).in_force()), *broken]
    lab_pages.keep(tmp_path, {}, runs)
    found = _page(tmp_path)
    assert found.row("Runs that failed", "plain/other/1")[1] == "the disk is <full>"
    assert "None of its runs succeeded." in found.text


def test_missing_families_are_made_and_only_these(tmp_path: Path) -> None:
    _plain(tmp_path)
    (tmp_path / "metrics" / "hops").rename(tmp_path / "aside")
    asked: list[list[str]] = []

    def make(folder: Path, tables: object) -> None:
        asked.append([table.name for table in tables])  # type: ignore[attr-defined]
        (tmp_path / "aside").rename(folder / "metrics" / "hops")

    assert page.complete(tmp_path, make).runs
    assert asked == [["hops"]]
    assert page.complete(tmp_path, make).runs
    assert len(asked) == 1


def test_families_that_do_not_know_all_runs_are_made_again(tmp_path: Path) -> None:
    _plain(tmp_path)
    text = Scenario.parse(_PLAIN, tmp_path).in_force()
    lab_pages.keep(tmp_path, {}, [lab_pages.done(tmp_path, f"plain/default/{seed}", text) for seed in (1, 2)])
    assert len(Study(tmp_path).missing()) == len(FAMILIES)


def test_families_older_than_a_record_are_made_again(tmp_path: Path) -> None:
    _plain(tmp_path)
    assert not Study(tmp_path).missing()
    lab_pages.done(tmp_path, "plain/default/1", Scenario.parse(_PLAIN, tmp_path).in_force())
    assert len(Study(tmp_path).missing()) == len(FAMILIES)


def test_one_family_that_is_new_does_not_vouch_for_the_others(tmp_path: Path) -> None:
    _plain(tmp_path)
    lab_pages.done(tmp_path, "plain/default/1", Scenario.parse(_PLAIN, tmp_path).in_force())
    for file in (tmp_path / "metrics" / "processing").glob("*.parquet"):
        file.touch()
    assert len(Study(tmp_path).missing()) == len(FAMILIES) - 1


def test_families_that_cannot_be_made_are_an_error(tmp_path: Path) -> None:
    _plain(tmp_path)
    (tmp_path / "metrics" / "hops").rename(tmp_path / "aside")
    with pytest.raises(LocalError, match="still lacks hops"):
        page.complete(tmp_path, lambda _folder, _tables: None)
    with pytest.raises(LocalError, match="has no table of hops"):
        Study(tmp_path).table(f.HOPS)


def test_metrics_of_a_record_that_is_gone_are_not_waited_for(tmp_path: Path) -> None:
    _plain(tmp_path)
    (tmp_path / "metrics" / "hops").rename(tmp_path / "aside")
    (tmp_path / "records" / "plain-default-1.parquet").unlink()
    with pytest.raises(LocalError, match="neither all metrics nor the record of plain/default/1"):
        page.complete(tmp_path, lambda _folder, _tables: None)


def test_a_folder_that_is_no_campaign_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["lab", "report", str(tmp_path / "nowhere"), "--out", str(tmp_path / "r.html")]) == 2
    assert "there is no such folder" in capsys.readouterr().err
    assert run(["lab", "report", str(tmp_path), "--out", str(tmp_path / "r.html")]) == 2
    said = " ".join(capsys.readouterr().err.split())
    assert "does not contain a campaign" in said
    assert "nor does it contain records of real nodes" in said
    assert not (tmp_path / "r.html").exists()


def test_a_campaign_without_runs_is_an_error(tmp_path: Path) -> None:
    lab_pages.keep(tmp_path, {}, [])
    with pytest.raises(LocalError, match="no run of the campaign has finished"):
        Study(tmp_path)
    lab_pages.keep(tmp_path, {}, [lab_pages.failed("a/b/1", "no such file")])
    with pytest.raises(LocalError, match="none of its 1 runs succeeded; the first failed with: no such file"):
        Study(tmp_path)


def test_a_record_that_is_damaged_is_an_error_and_one_that_is_gone_is_not(tmp_path: Path) -> None:
    _plain(tmp_path)
    record = tmp_path / "records" / "plain-default-1.parquet"
    record.write_bytes(b"PAR1 nothing")
    with pytest.raises(FileError, match="cannot be read as a record"):
        Study(tmp_path)
    record.unlink()
    assert "parameters of these runs are unknown" in _page(tmp_path).text


def test_the_command_writes_the_page_without_spark(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lab_pages.like_paper(tmp_path / "found", BUS)
    out = tmp_path / "pages" / "report.html"
    assert run(["lab", "report", str(tmp_path / "found"), "--out", str(out), "--json"]) == 0
    assert f'"bytes":{out.stat().st_size}' in capsys.readouterr().out
    assert out.read_text(encoding="utf-8").startswith("<!DOCTYPE html>")


def test_pictures_keep_their_labels_and_lose_what_nobody_sees() -> None:
    drawn = (
        '<svg version="1.1" xmlns="http://x" class="marks" viewBox="0 0 99.5 20"><g transform="translate(0.25,10.123)">'
        '<path aria-label="a" d="M0.12345,1L2,1L2,7.77" stroke="#08306b"/><text>0.125</text></g></svg>'
    )
    assert inline_svg(drawn, "a < \\1") == (
        '<svg viewBox="0 0 99.5 20" style="max-width:99.5px" role="img"><title>a &lt; \\1</title>'
        '<g transform="translate(0.25,10.123)">'
        '<path d="M0.12,1L2,1L2,7.77" stroke="#08306b"/><text>0.125</text></g></svg>'
    )


def test_the_paper_is_what_the_requirements_say() -> None:
    received = {name: [each.processing.rcvd for each in paper.lifetimes] for name, paper in EXPERIMENTS.items()}
    assert received["city_bus"] == [106_580, 98_610, 94_329, 85_301, 50_365, 21_571]
    assert received["ostermalm"] == [1_475_328, 1_192_205, 884_810, 539_652]
    delivered = {name: [each.processing.codlvd for each in paper.lifetimes] for name, paper in EXPERIMENTS.items()}
    assert delivered["city_bus"] == [108_580, 100_614, 96_331, 87_304, 52_364, 23_572]
    assert delivered["ostermalm"] == [1_414_438, 1_169_382, 883_120, 545_018]
    assert [each.processing.codlvratio for each in OSTERMALM.lifetimes] == [0.9519, 0.9722, 0.9863, 0.9906]
    assert [each.processing.expd for each in BUS.lifetimes] == [None, 0, 0, 0, 5, 3]
    assert [each.processing.expd for each in OSTERMALM.lifetimes] == [1_573, 1_074, 724, 716]
    assert {each.processing.bcast for each in BUS.lifetimes} == {2_004}
    assert {each.processing.bcast for each in OSTERMALM.lifetimes} == {10_557}
    assert (BUS.nodes, BUS.active_max, BUS.contacts) == (60, 56, 8_892)
    assert (OSTERMALM.nodes, OSTERMALM.active_max, OSTERMALM.contacts) == (2_092, 57, 14_807)
    times_s: list[float] = [
        BUS.duration_s,
        BUS.activity.min_s,
        BUS.activity.max_s,
        BUS.contact.max_s,
        BUS.contact.avg_s,
    ]
    assert times_s == [51_300, 1_560, 50_880, 249, 84]
    times_s = [OSTERMALM.duration_s, OSTERMALM.activity.min_s, OSTERMALM.contact.min_s, OSTERMALM.contact.max_s]
    assert times_s == [18_000, 7.8, 0.6, 492]
    none = BUS.of[None]
    times_s = [none.tdelay.avg_s, none.ltcy.avg_s, none.ltcy.max_s, none.tdelay.stdev_s]
    assert times_s == [2_630, 13, 2_353, 4_920]
    assert [(each.value_s, each.share) for each in none.tdelay_points] == [(1_200, 0.5), (3_600, 0.88), (7_200, 0.92)]
    quoted = {life: [(each.value_s, each.share) for each in of.ltcy_points] for life, of in BUS.of.items()}
    some = {None: [(7.6, 0.9), (50, 0.95)], 1_200: [(1.2, 0.99)], 2_400: [(3.4, 0.99)]}
    assert quoted == {key: [] for key in BUS.of} | some
