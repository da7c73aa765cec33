"""Metrics of emulated runs with order, loss, churn and crashes: by `lab metrics`, and row by row from the records.

The command computes all families once, from one folder of records; each test checks some of them.
"""

from __future__ import annotations

import math
import statistics
import tempfile
from collections import Counter, defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from carrypost.cli.app import run as command
from carrypost.emu.rows import log_of
from carrypost.emu.runs import run
from carrypost.emu.summary import Ordered, Spread, summarise
from carrypost.emu.verify.facts import Facts
from carrypost.emu.verify.random_scenarios import draw_ordered
from carrypost.lab import folders
from carrypost.lab.metrics import FAMILIES, families
from carrypost.lab.schemas import RECORDS, Table
from carrypost.log.record import AGAIN, REDELIVERED, Kind

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SEEDS = (19, 23, 27, 187)
"""Ordered topics: ids given anew after crashes; drops and receptions anew; a rough radio; much expires."""
US = 1_000_000
_OF_BROKERS = (
    families.PATH_LENGTHS,
    families.BROKER_TRAFFIC,
    families.LOAD,
    families.RELOCATIONS,
    families.EVENT_LATENCY,
)
Rows = list[dict[str, Any]]


class Made:
    """Records, what other code finds in them, and the families."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.facts: dict[str, Facts] = {}
        tables = []
        for seed in SEEDS:
            with tempfile.TemporaryDirectory(dir=folder) as scratch:
                tables.append(run(draw_ordered(seed).write(Path(scratch)), seed).table)
            log = log_of(tables[-1])
            self.facts[log.run] = Facts(log)
        self.tables = dict(zip(self.facts, tables, strict=True))
        folders.write_arrow(pa.concat_tables(tables), folder, RECORDS)

    def rows(self, table: Table, run: str | None = None) -> Rows:
        """Return the rows of one run."""
        found: Rows = folders.read_arrow(self.folder / "metrics", table).to_pylist()
        return [row for row in found if run is None or row["run"] == run]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    found = Made(tmp_path_factory.mktemp("metrics"))
    assert command(["lab", "metrics", str(found.folder), "--window-s", "100", "--engine", "local"]) == 0
    return found


def test_spark_makes_the_same_tables(made: Made, spark: SparkSession, tmp_path: Path) -> None:
    assert spark is not None
    assert command(["lab", "metrics", str(made.folder), "--window-s", "100", "--out", str(tmp_path)]) == 0
    for table in FAMILIES:
        assert folders.read_arrow(tmp_path, table).equals(folders.read_arrow(made.folder / "metrics", table))


def test_runs_share_a_file_of_each_family(made: Made) -> None:
    for table in FAMILIES:
        (file,) = (made.folder / "metrics" / table.name).iterdir()
        rows = pq.ParquetFile(file).read()
        assert (rows.num_rows == 0) is (table in _OF_BROKERS), "none of the runs has brokers"
        assert pc.unique(rows["run"]).to_pylist() == ([] if table in _OF_BROKERS else sorted(made.facts))


def test_every_family_is_there_and_the_manifest_tells_where_from(made: Made) -> None:
    told = folders.manifest(made.folder / "metrics")
    assert set(told) == {table.name for table in FAMILIES}
    for table in FAMILIES:
        assert told[table.name]["rows"] == len(made.rows(table))
        assert told[table.name]["parameters"]["window_s"] == 100
    assert not list((made.folder / "metrics").glob(".*"))


class Tale:
    """The fates and delays of copies, row by row from a record; nothing of the package is used."""

    def __init__(self, table: pa.Table) -> None:
        self.published = 0
        self.received: dict[tuple[str, str], int] = {}
        """By node and message: when it came first, and likewise below."""
        self.delivered: dict[tuple[str, str], int] = {}
        self.expired: dict[tuple[str, str], int] = {}
        self.delays: dict[str, list[int]] = {name: [] for name in families.DELAYS}
        born: dict[str, int] = {}
        came: dict[tuple[str, str], int] = {}
        for row in table.select(["t", "kind", "node", "message", "detail"]).to_pylist():
            key, t_us = (row["node"], row["message"]), round(row["t"] * US)
            if row["kind"] == "publish":
                self.published += 1
                born[row["message"]] = t_us
            elif row["kind"] == "receive" and row["detail"] != "again" and key not in self.received:
                self.received[key], came[key] = t_us, t_us - born[row["message"]]
                self.delays[families.TDELAY].append(came[key])
            elif row["kind"] == "deliver" and row["detail"] != "redelivered" and key not in self.delivered:
                self.delivered[key] = t_us
                if key in self.received:
                    waited = t_us - self.received[key]
                    self.delays[families.LTCY].append(waited)
                    self.delays[families.CODLVDELAY].append(came[key] + waited)
            elif row["kind"] == "expire":
                self.expired.setdefault(key, t_us)

    @property
    def counts(self) -> tuple[int, int, int, int, int]:
        left = self.received.keys() - self.delivered.keys() - self.expired.keys()
        return self.published, len(self.received), len(self.delivered), len(self.expired), len(left)


def summed_up(table: pa.Table) -> Ordered:
    found = summarise(table, bound=False).ordered
    assert found is not None
    return found


def test_processing_is_what_the_rows_tell(made: Made) -> None:
    found = {row["run"]: row for row in made.rows(families.PROCESSING)}
    assert set(found) == set(made.facts)
    for name, table in made.tables.items():
        told, row, counts = summed_up(table), found[name], Tale(table).counts
        assert tuple(row[each] for each in ("bcast", "rcvd", "codlvd", "expd", "left")) == counts
        left = told.left_by_drop + told.left_by_leaving + told.left_at_end
        assert (told.broadcast, told.received, told.co_delivered, told.expired, left) == counts
        assert row["codlvratio"] == told.co_delivery_ratio == counts[2] / (counts[0] + counts[1])
        assert row["expratio"] == told.expiry_ratio == counts[3] / counts[1]


def test_the_records_are_worth_looking_at(made: Made) -> None:
    totals: Counter[str] = Counter()
    for row in made.rows(families.PROCESSING):
        totals.update({name: row[name] for name in ("bcast", "rcvd", "expd", "left")})
    details = Counter(detail for table in made.tables.values() for detail in table["detail"].to_pylist())
    assert min(totals.values()) > 10
    assert details[AGAIN] > 10
    assert details[REDELIVERED] > 0
    assert any(len(facts.log.of(Kind.PUBLISH)) > len(set(_published(facts))) for facts in made.facts.values())


def _published(facts: Facts) -> list[int]:
    log = facts.log
    return [int(message) for message in log.message[log.of(Kind.PUBLISH)]]


def test_nodes_add_up_to_their_run(made: Made) -> None:
    for total in made.rows(families.PROCESSING):
        nodes = made.rows(families.PROCESSING_BY_NODE, total["run"])
        for name in ("bcast", "rcvd", "codlvd", "expd", "left"):
            assert sum(row[name] for row in nodes) == total[name]
        log = made.facts[total["run"]].log
        joined = {log.nodes[code] for code in log.node[log.of(Kind.JOIN)].tolist()}
        assert joined <= {row["node"] for row in nodes}


def test_delays_are_what_the_rows_tell(made: Made) -> None:
    for name, table in made.tables.items():
        told, delays = summed_up(table), Tale(table).delays
        found = {row["metric"]: row for row in made.rows(families.DELAY_SPREAD, name)}
        summaries = (told.transmission_delay, told.co_delivery_latency, told.co_delivery_delay)
        for metric, spread in zip(families.DELAYS, summaries, strict=True):
            us, row = delays[metric], found[metric]
            expected = [each / US for each in (min(us), max(us), statistics.fmean(us), statistics.pstdev(us))]
            assert row["count"] == len(us)
            assert [row[each] for each in ("min_s", "max_s", "avg_s", "stdev_s")] == pytest.approx(expected)
            assert isinstance(spread, Spread)
            assert [spread.min_s, spread.max_s, spread.mean_s, spread.stdev_s] == pytest.approx(expected, abs=1e-6)


def transmission_ms(facts: Facts) -> list[int]:
    """Sorted, straight from the rows."""
    log, seen, published, found = facts.log, set[tuple[int, int]](), dict[int, int](), list[int]()
    again = log.is_detail(np.arange(len(log)), AGAIN)
    for row in log.of(Kind.PUBLISH, Kind.RECEIVE).tolist():
        message, node = int(log.message[row]), int(log.node[row])
        if log.kind[row] == log.kind[log.of(Kind.PUBLISH)[0]]:
            published[message] = int(log.t_us[row])
        elif not again[row] and (message, node) not in seen:
            seen.add((message, node))
            found.append(round((int(log.t_us[row]) - published[message]) / 1000))
    return sorted(found)


def test_percentiles_are_of_the_nearest_rank(made: Made) -> None:
    for name, facts in made.facts.items():
        values = transmission_ms(facts)
        (row,) = (each for each in made.rows(families.DELAY_SPREAD, name) if each["metric"] == families.TDELAY)
        assert row["count"] == len(values)
        for share in families.PERCENTILES:
            assert row[f"p{share}_s"] == values[-(-share * len(values) // 100) - 1] / 1000


def test_the_distribution_has_every_value_of_a_small_run(made: Made) -> None:
    for name, facts in made.facts.items():
        values = transmission_ms(facts)
        rows = [row for row in made.rows(families.DELAY_CDF, name) if row["metric"] == families.TDELAY]
        assert {row["value_ms"]: row["count"] for row in rows} == Counter(values)
        rows.sort(key=lambda row: int(row["value_ms"]))
        for row in rows:
            assert row["cumulative"] == sum(value <= row["value_ms"] for value in values)
            assert row["share"] == row["cumulative"] / len(values)


def test_the_grid_counts_every_copy_that_was_delivered(made: Made) -> None:
    for name in made.facts:
        grid = made.rows(families.DELAY_GRID, name)
        spread = {row["metric"]: row for row in made.rows(families.DELAY_SPREAD, name)}
        assert sum(row["copies"] for row in grid) == spread[families.LTCY]["count"]
        for axis in ("tdelay", "ltcy"):
            (width,) = {row[f"{axis}_width_s"] for row in grid}
            most = spread[axis]["max_s"]
            assert most / width <= 60
            assert most == 0 or most / width > 20 or width == 0.001
            assert max(row[f"{axis}_s"] for row in grid) <= most
            assert all(math.isclose(row[f"{axis}_s"] / width, round(row[f"{axis}_s"] / width)) for row in grid)


def test_registries_and_barriers_are_what_the_other_code_finds(made: Made) -> None:
    for name, table in made.tables.items():
        told = summed_up(table)
        sizes = {row["registry"]: row for row in made.rows(families.REGISTRY_SIZES, name)}
        assert set(sizes) == set(told.registries)
        for registry, expected in told.registries.items():
            assert sizes[registry]["max"] == expected.max
            assert sizes[registry]["mean"] == pytest.approx(expected.mean, abs=5e-4)
        entries = made.rows(families.BARRIERS, name)
        assert told.barrier is not None
        assert max(row["entries"] for row in entries) == told.barrier.max
        count = sum(row["messages"] for row in entries)
        assert count == told.broadcast
        mean = sum(row["entries"] * row["messages"] for row in entries) / count
        assert mean == pytest.approx(told.barrier.mean, abs=5e-4)


def test_samples_of_registries_are_there_one_row_for_a_node_and_time(made: Made) -> None:
    for name, table in made.tables.items():
        expected: dict[tuple[str, float, bool], dict[str, int]] = defaultdict(lambda: defaultdict(int))
        for row in table.to_pylist():
            if row["kind"] == Kind.REGISTRY:
                leaving = dict(row["attrs"] or ()).get("at") == "leave"
                expected[row["node"], row["t"], leaving][row["detail"]] += row["size"]
        found = made.rows(families.REGISTRIES, name)
        assert len(found) == len(expected)
        for row in found:
            known = expected[row["node"], row["t"], row["leaving"]]
            assert {each: row[each] for each in known} == known


def test_traffic_is_all_that_was_sent(made: Made) -> None:
    for name, table in made.tables.items():
        sent: Counter[str] = Counter()
        for row in made.rows(families.TRAFFIC, name):
            sent[row["frame"]] += row["bytes"]
        assert sent == summarise(table, bound=False).traffic


def test_the_timeline_counts_every_row_once(made: Made) -> None:
    for name, table in made.tables.items():
        rows = table.select(["t", "kind"]).to_pylist()
        expected = Counter((math.floor(row["t"] / 100) * 100.0, row["kind"]) for row in rows)
        assert {(row["t"], row["kind"]): row["count"] for row in made.rows(families.TIMELINE, name)} == expected


def test_activity_is_from_coming_to_going_or_to_the_end(made: Made) -> None:
    for name, facts in made.facts.items():
        end_us = round(facts.in_force["duration_s"] * US)
        expected = sorted(
            (node, start, end_us if end is None else end)
            for node, start, end in facts.presences
            if end is None or start < end
        )
        found = [(row["node"], round(row["start"] * US), round(row["end"] * US)) for row in _activity(made, name)]
        assert sorted(found) == expected


def _activity(made: Made, name: str) -> Rows:
    return made.rows(families.ACTIVITY, name)


def test_contacts_of_the_record_are_counted(made: Made) -> None:
    for name, facts in made.facts.items():
        (row,) = made.rows(families.CONTACT_SUMMARY, name)
        assert row["contacts"] == len(facts.contacts)
        assert row["pairs"] == len({each[:2] for each in facts.contacts})


def test_recipients_are_those_who_were_there_while_a_message_lived(made: Made) -> None:
    for name, facts in made.facts.items():
        log, lives = facts.log, dict[str, tuple[str, int, int]]()
        rows = log.of(Kind.PUBLISH)
        for row, deadline_us in zip(rows.tolist(), facts.deadline_us(rows).tolist(), strict=True):
            message, author = log.messages[log.message[row]], log.nodes[log.node[row]]
            first = lives.get(message, (author, int(log.t_us[row]), 0))
            lives[message] = (author, first[1], max(first[2], deadline_us))
        stays = [(row["node"], round(row["start"] * US), round(row["end"] * US)) for row in _activity(made, name)]
        delivered = _delivered(facts, {message: life[2] for message, life in lives.items()})
        found = {row["message"]: row for row in made.rows(families.DELIVERY, name)}
        assert set(found) == set(lives)
        for message, (author, start, end) in lives.items():
            there = {node for node, since, until in stays if since < end and until > start} - {author}
            row = found[message]
            assert (row["source"], row["recipients"], row["delivered"]) == (author, len(there), delivered[message])
            assert row["ratio"] == (delivered[message] / len(there) if there else None)
        ratios = [row["ratio"] for row in found.values() if row["ratio"] is not None]
        (total,) = made.rows(families.DELIVERY_RATIO, name)
        assert total["messages"] == len(ratios)
        assert total["ratio"] == pytest.approx(sum(ratios) / len(ratios))


def test_a_flood_brings_as_much_as_the_other_code_says_and_never_less_than_was_delivered(made: Made) -> None:
    for name, facts in made.facts.items():
        found = made.rows(families.FLOOD, name)
        if facts.wrong_clocks.any():
            continue  # The other code takes messages for endless then.
        assert found[-1]["cumulative"] == len(facts.bound)
        assert [row["value_ms"] for row in found] == sorted({row["value_ms"] for row in found})
        assert [row["share"] for row in found] == [row["cumulative"] / len(facts.bound) for row in found]
        delivered = sum(row["delivered"] for row in made.rows(families.DELIVERY, name))
        assert (
            0
            < delivered
            <= found[-1]["cumulative"]
            <= sum(row["recipients"] for row in made.rows(families.DELIVERY, name))
        )


def _delivered(facts: Facts, deadlines: dict[str, int]) -> Counter[str]:
    """By message, how many others got it in time."""
    log = facts.log
    rows = log.of(Kind.DELIVER)
    rows = rows[(log.node[rows] != log.source[rows]) & ~log.is_detail(rows, REDELIVERED)]
    first: dict[tuple[str, int], int] = {}
    for row in rows.tolist():
        first.setdefault((log.messages[log.message[row]], int(log.node[row])), int(log.t_us[row]))
    return Counter(message for (message, _), t_us in first.items() if t_us < deadlines[message])


def test_hops_throughput_and_spread_are_those_of_first_receptions(made: Made) -> None:
    for name, facts in made.facts.items():
        log = facts.log
        rows = log.of(Kind.RECEIVE)
        rows = rows[~log.is_detail(rows, AGAIN)]
        first: dict[tuple[int, int], int] = {}
        for row in rows.tolist():
            first.setdefault((int(log.node[row]), int(log.message[row])), row)
        hops = defaultdict(list)
        for (node, _), row in first.items():
            hops[log.nodes[node]].append(int(log.hops[row]))
        found = {row["node"]: row for row in made.rows(families.HOPS, name)}
        assert {node: (row["received"], row["direct"], row["max"]) for node, row in found.items()} == {
            node: (len(each), each.count(1), max(each)) for node, each in hops.items()
        }
        taken = Counter(int(log.hops[row]) for row in first.values())
        assert {row["hops"]: row["copies"] for row in made.rows(families.HOP_COUNTS, name)} == taken
        sizes = Counter(int(log.size[row]) for row in first.values())
        assert {row["size"]: row["copies"] for row in made.rows(families.THROUGHPUT, name)} == sizes
        reached = Counter(log.messages[message] for _, message in first)
        spread = made.rows(families.SPREAD, name)
        (message,) = {row["message"] for row in spread}
        assert reached[message] == max(reached.values()) == len(spread)
        assert sorted(row["reached"] for row in spread) == list(range(1, len(spread) + 1))
        after = [row["after_s"] for row in sorted(spread, key=lambda row: int(row["reached"]))]
        assert after == sorted(after)
