"""`lab ingest` gives the same table whatever the engine and however files are cut into blocks."""

from __future__ import annotations

import gzip
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from carrypost.errors import LocalError
from carrypost.lab import folders
from carrypost.lab.ingest.inputs import IngestRequest
from carrypost.lab.ingest.run import ingest
from carrypost.lab.schemas import CONTACTS, POSITIONS
from carrypost.traces.formats import FORMATS

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SOME = {"gps-csv", "one-connections", "ccp"}
"""Formats that Spark reads in every run of the tests: positions, events and contacts; each read takes a while."""
NODES = [f"n{number}" for number in range(9)]


# ------------------------------------------------------------------------------------------------------ samples
def _walks(chance: random.Random) -> Iterator[tuple[float, str, float, float]]:
    places = {node: (chance.uniform(0, 500), chance.uniform(0, 500)) for node in NODES}
    for t in range(0, 400, 5):
        for node in NODES:
            x, y = places[node]
            places[node] = (x + chance.uniform(-5, 5), y + chance.uniform(-5, 5))
            yield t + NODES.index(node) / 10, node, round(x, 2), round(y, 2)


def _meetings(chance: random.Random) -> list[tuple[float, float, str, str]]:
    """Contacts that do not overlap, by start."""
    found = []
    for a in NODES:
        for b in NODES:
            t = 0.0
            while a < b and (t := round(t + chance.uniform(1, 200), 2)) < 900:
                until = round(t + chance.uniform(1, 90), 2)
                found.append((t, until, a, b))
                t = until
    return sorted(found)


def _events(chance: random.Random) -> str:
    events = [(t, 1, f"{t} CONN {a} {b} up") for t, _, a, b in _meetings(chance)]
    events += [(until, 0, f"{until} CONN {b} {a} down") for _, until, a, b in _meetings(random.Random(1))]
    return "\n".join(each for _, _, each in sorted(events)[:-7])


def _ns2(chance: random.Random) -> str:
    lines = [f"$node_({n}) set {axis}_ {chance.uniform(0, 300):.1f}" for n in range(9) for axis in "XYZ"]
    for t in range(1, 300, 7):
        x, y, v = (chance.uniform(1, 300) for _ in range(3))
        lines.append(f'$ns_ at {t}.5 "$node_({chance.randrange(9)}) setdest {x:.2f} {y:.2f} {v / 40:.3f}"')
    return "\n".join(["# made by hand", "set god_ [God instance]", *lines])


def _kth(chance: random.Random) -> str:
    events: list[tuple[float, str]] = []
    for n in range(12):
        t = chance.randrange(50)
        for _ in range(2):
            events.append((t, f"create {n} {chance.uniform(0, 99):.1f} 5 0"))
            for _ in range(5):
                lasts = chance.randrange(1, 9)
                events.append((t, f"setdest {n} {chance.uniform(0, 99):.1f} 7.5 0 1.5 {t + lasts}"))
                t += chance.randrange(1, 9)
            events.append((t, f"destroy {n}"))
            t += 1 + chance.randrange(30)
    return "\n".join(f"{t:.1f} {event}" for t, event in sorted(events, key=lambda event: event[0]))


def _plan(chance: random.Random, sign: str, more: str) -> str:
    lines = []
    for t, until, a, b in _meetings(chance):
        for one, two in ((a, b), (b, a)):
            shift = chance.choice((0, 0, 3, 5))
            lines.append(f"a contact {sign}{t + shift} {sign}{until + shift} {one} {two} 9{more}")
    return "\n".join([*lines, "a contact 0 5 n0 n9 9" + more, "m horizon +0"])


def _sample(name: str) -> str:
    chance = random.Random(1)
    if name in {"gps-csv", "one-movement"}:
        rows = "".join(f"{t} {node} {x} {y}\n" for t, node, x, y in _walks(chance))
        return ("0 400 0 500 0 500\n" if name == "one-movement" else "t node x y\n") + rows
    if name == "pairs":
        seen = [(20 * chance.randrange(1, 40), *chance.sample(NODES, 2)) for _ in range(900)]
        return "".join(f"{t}\t{i}\t{j}\tx\n" for t, i, j in sorted(seen))
    if name == "haslemere":
        steps = [(chance.randrange(1, 577), *chance.sample(range(9), 2), chance.randrange(51)) for _ in range(2000)]
        header = "time_step,user1_id,user2_id,distance_m\n"
        return header + "".join(f"{s},{i},{j},{d}\n" for s, i, j, d in sorted(steps))
    if name == "imote":
        return "".join(f"{b} {a} {t:.0f} {until:.0f} 1 0\n" for t, until, a, b in _meetings(chance))
    if name == "contacts-csv":
        return "a,b,start,end\n" + "".join(f"{b},{a},{t},{until}\n" for t, until, a, b in _meetings(chance))
    made: dict[str, Callable[[random.Random], str]] = {
        "one-connections": _events,
        "ns2": _ns2,
        "kth": _kth,
        "ion": lambda chance: _plan(chance, "+", ""),
        "ccp": lambda chance: _plan(chance, "", " 0.0 0 0"),
    }
    return made[name](chance)


def _request(path: Path, name: str, out: Path, **more: object) -> IngestRequest:
    return IngestRequest(paths=[path], format=name, scenario="s", out=out, **{"engine": "local", **more})  # type: ignore[arg-type]


def _table(out: Path, name: str) -> pa.Table:
    return folders.read_arrow(out, POSITIONS if FORMATS[name].gives == "positions" else CONTACTS)


# ------------------------------------------------------------------------------------------------------ engines
@pytest.mark.parametrize(
    "by_spark", [pytest.param(SOME, id="some"), pytest.param({*FORMATS}, id="all", marks=pytest.mark.soak)]
)
def test_every_format_gives_one_table_whatever_the_engine_and_the_size_of_blocks(
    spark: SparkSession, tmp_path: Path, by_spark: set[str]
) -> None:
    assert spark.version
    for name in FORMATS:
        path = tmp_path / f"{name}.txt"
        path.write_text(_sample(name) + "\n", encoding="utf-8")
        whole = ingest(_request(path, name, tmp_path / name / "local"))
        expected = _table(tmp_path / name / "local", name)
        assert expected.num_rows > 20, name
        keys = ["node", "t"] if FORMATS[name].gives == "positions" else ["start", "a", "b"]
        assert expected.equals(expected.sort_by([(key, "ascending") for key in keys])), name
        for engine, block_bytes in (("local", 1_009), ("spark", 7_000)):
            if engine == "spark" and name not in by_spark:
                continue
            out = tmp_path / name / f"{engine}-{block_bytes}"
            found = ingest(_request(path, name, out, engine=engine, block_bytes=block_bytes))
            assert _table(out, name).equals(expected), (name, engine)
            assert found.facts["counts"] == whole.facts["counts"], (name, engine)
            assert found.remarks == whole.remarks, (name, engine)
            assert sorted(each.name for each in out.iterdir()) == sorted(["manifest.json", FORMATS[name].gives])


def test_faults_and_bad_lines_have_the_same_numbers_under_both_engines(spark: SparkSession, tmp_path: Path) -> None:
    assert spark.version
    lines = _sample("gps-csv").splitlines()
    lines[300] = "soon n1 2 3"
    lines[500] = lines[500].replace(" ", " x", 2)
    path = tmp_path / "trace.txt"
    path.write_text("\n".join(lines), encoding="utf-8")
    said = []
    for engine, block_bytes in (("local", 16 << 20), ("spark", 5_000)):
        report = ingest(_request(path, "csv", tmp_path / engine, engine=engine, block_bytes=block_bytes))
        assert report.facts["counts"]["bad_lines"] == 2
        said.append(report.remarks)
    assert said[0] == said[1]
    assert f"  {path}, line 301: t must be a number, not 'soon' (soon n1 2 3)" in said[0]
    lines[600] = lines[10]
    lines[640] = lines[1]
    path.write_text("\n".join(lines), encoding="utf-8")
    errors = []
    for engine in ("local", "spark"):
        with pytest.raises(LocalError) as error:
            ingest(_request(path, "csv", tmp_path / "wrong", engine=engine, block_bytes=5_000))
        errors.append(str(error.value))
        assert not (tmp_path / "wrong").exists()
    assert errors[0] == errors[1]
    assert ", line 601: the time of node n0 goes back, from" in errors[0]


@pytest.mark.soak
def test_degrees_have_one_middle_under_both_engines(spark: SparkSession, tmp_path: Path) -> None:
    assert spark.version
    path = tmp_path / "trace.csv"
    rows = [f"{t},{node},{59.3 + y / 1e5:.6f},{18.0 + x / 1e5:.6f}" for t, node, x, y in _walks(random.Random(1))]
    path.write_text("\n".join(["t,node,lat,lon", "0,lost,0,0", *rows, "0,far,-33.9,151.2"]), encoding="utf-8")
    here = ingest(_request(path, "csv", tmp_path / "local", block_bytes=1_009))
    there = ingest(_request(path, "csv", tmp_path / "spark", engine="spark", block_bytes=7_000))
    assert _table(tmp_path / "local", "gps-csv").equals(_table(tmp_path / "spark", "gps-csv"))
    assert here.facts["parameters"]["origin"] == there.facts["parameters"]["origin"]
    assert here.facts["parameters"]["origin"]["lat"] == pytest.approx(59.3, abs=0.01)
    assert (here.facts["counts"], here.remarks) == (there.facts["counts"], there.remarks)
    assert here.facts["counts"]["bad_lines"] == 1


def test_packed_files_are_read_by_spark_too_and_few_rows_are_one_file(spark: SparkSession, tmp_path: Path) -> None:
    assert spark.version
    text = _sample("pairs")
    plain, packed = tmp_path / "trace.txt", tmp_path / "trace.dat"
    plain.write_text(text, encoding="utf-8")
    packed.write_bytes(gzip.compress(text.encode()))
    ingest(_request(plain, "pairs", tmp_path / "one"))
    partitions = spark.conf.get("spark.sql.shuffle.partitions")
    spark.conf.set("spark.sql.shuffle.partitions", "40")  # A cluster has many; files follow the rows.
    try:
        ingest(_request(packed, "pairs", tmp_path / "two", engine="spark", block_bytes=3_000))
    finally:
        spark.conf.set("spark.sql.shuffle.partitions", str(partitions))
    assert len(list((tmp_path / "two" / "contacts").glob("*.parquet"))) == 1
    assert _table(tmp_path / "one", "pairs").equals(_table(tmp_path / "two", "pairs"))
