"""Campaigns, metrics and reports in an object store: the same as in a folder, without a shared one."""

from __future__ import annotations

import contextlib
import gzip
import io
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from functools import partialmethod
from pathlib import Path
from tempfile import mkdtemp
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import pyarrow as pa
import pyarrow.fs as pa_fs
import pytest
from tests.lab.test_lab_population import CAMPAIGN, TOWN
from tests.support.campaigns import TWO_SETTINGS, campaign, three
from tests.support.populations import calibration
from tests.support.spark_cluster import PATIENCE_S, standalone

from carrypost.cli.app import run
from carrypost.emu import Scenario
from carrypost.errors import LocalError, RunningError
from carrypost.lab import folders
from carrypost.lab.campaign.folder import CampaignObjects
from carrypost.lab.contacts import STATISTICS, TABLES
from carrypost.lab.folders import Folder, ObjectFolder, folder_of
from carrypost.lab.metrics import FAMILIES
from carrypost.lab.metrics.families import DELAY_SPREAD, PROCESSING, TIMELINE
from carrypost.lab.metrics.making import Wanted
from carrypost.lab.schemas import CONTACTS, POSITIONS, Table
from carrypost.lab.spark import java
from carrypost.lab.stream import METRICS, NODES

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_what_names_objects_and_what_a_folder() -> None:
    assert folder_of("results") == Path("results")
    assert folder_of(Path("a place").absolute().as_uri()) == Path("a place").absolute()
    assert folder_of(Path("results").absolute().as_uri()) == Path("results").absolute()
    assert folder_of("s3://bucket/results") == ObjectFolder("s3://bucket/results")
    assert str(ObjectFolder("s3://key:secret@bucket/results/?scheme=http")) == "s3://bucket/results"
    inside = ObjectFolder("s3://key:secret@bucket/results/?scheme=http") / "records"
    assert (str(inside), inside.name) == ("s3://bucket/results/records", "records")
    assert inside.with_name("runs") == ObjectFolder("s3://key:secret@bucket/results/runs?scheme=http")
    with pytest.raises(LocalError, match="gopher:// cannot be opened"):
        ObjectFolder("gopher://host/x").read("y")


@pytest.fixture(scope="module")
def store() -> Iterator[str]:
    """Yield the URI of a bucket of a server on loopback."""
    server_of = pytest.importorskip("moto.server", reason="needs moto[s3] and flask").ThreadedMotoServer
    server = server_of(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {
            "AWS_ENDPOINT_URL": f"http://{host}:{port}", "AWS_ACCESS_KEY_ID": "x", "AWS_SECRET_ACCESS_KEY": "y",
            "AWS_DEFAULT_REGION": "us-east-1", "AWS_EC2_METADATA_DISABLED": "true",
        }.items():  # fmt: skip
            patch.setenv(name, value)
        pa_fs.S3FileSystem(endpoint_override=f"{host}:{port}", scheme="http", allow_bucket_creation=True).create_dir(
            "bucket"
        )
        yield "s3://bucket"
    server.stop()


_TIMED = re.compile(r'(?<=href=")[^"#]*-figures|<caption>Runs.*?<h3', re.DOTALL)
"""Parts of a page that differ: the names of files, and how long runs took."""


def opened(uri: str) -> ObjectFolder:
    found = folder_of(uri)
    assert isinstance(found, ObjectFolder)
    return found


def _done(*words: str) -> str:
    with contextlib.redirect_stdout(io.StringIO()) as out:
        assert run([*words]) == 0
    return out.getvalue()


def _bytes(folder: ObjectFolder, name: str) -> dict[str, bytes]:
    return folder.read_all(folder.names(name, deep=True))


class Shelf(pa_fs.LocalFileSystem):  # type: ignore[misc] # Arrow has no types
    """A folder of this machine as a store, which makes folders as it needs them."""

    def open_output_stream(self, path: str) -> pa.NativeFile:
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        return super().open_output_stream(path)


@pytest.fixture
def shelf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Return the URI of a store without a server; only this process can open it."""
    system, root = Shelf(), str(tmp_path / "shelf")
    monkeypatch.setattr(folders, "_opened", lambda uri: (system, root + urlsplit(uri).path))
    return "s3://shelf"


def _town(place: Path, settings: str) -> None:
    (place / "town.toml").write_text(TOWN)
    (place / "campaign.toml").write_text(settings)
    calibration(place / "delays.json", Scenario.parse(TOWN.replace("delays.json", "zero"), place))


def windows_and_slices(place: Path, store: str, settings: str, *families: Table) -> None:
    """Do a campaign of windows, and these metrics of it in slices, here and in a store, and compare them."""
    _town(place, settings)
    uri, wanted = f"{store}/here", [word for table in families for word in ("--family", table.name)]
    for out in ("here", uri):
        _done("lab", "campaign", "campaign.toml", "--out", out, "--engine", "local")
        _done("lab", "metrics", out, "--engine", "local", *wanted)
    records = {file.name: file.read_bytes() for file in Path("here/records").glob("*.parquet")}
    assert {Path(name).name: content for name, content in _bytes(opened(uri), "records").items()} == records
    # Records in a folder may have their tables in a store, and the other way round.
    _done("lab", "metrics", "here", "--engine", "local", "--out", f"{store}/tables", *wanted)
    _done("lab", "metrics", uri, "--engine", "local", "--out", "tables", *wanted)
    for table in families:
        made = folders.read_arrow(Path("here/metrics"), table)
        assert made.num_rows
        for tables in (opened(f"{uri}/metrics"), opened(f"{store}/tables"), Path("tables")):
            assert folders.read_arrow(tables, table).equals(made)
    there = [*opened(uri).names("", deep=True), *opened(f"{store}/tables").names("", deep=True)]
    assert not [name for name in there if "/windows/" in name or ".parts" in name or ".made" in name]


def test_windows_and_slices_of_runs_are_objects_until_the_run_is_whole(
    shelf: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(Wanted, "__init__", partialmethod(Wanted.__init__, slice_rows=700))
    settings = 'scenarios = ["town.toml"]\nseeds = [1]\n[[settings]]\nname = "w"\nset = {"population.window_s" = 100}\n'
    windows_and_slices(tmp_path, shelf, settings, PROCESSING, TIMELINE)


@pytest.mark.soak
def test_windows_slices_and_pages_in_a_store(store: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(Wanted, "__init__", partialmethod(Wanted.__init__, slice_rows=300))
    store = f"{store}/windows"
    windows_and_slices(tmp_path, store, CAMPAIGN, *FAMILIES)
    _done("lab", "report", "here", "--out", "page.html", "--engine", "local")
    _done("lab", "report", f"{store}/here", "--out", f"{store}/page.html", "--engine", "local")
    assert opened(store).read("page.html") == Path("page.html").read_bytes()
    there = {Path(name).name for name in opened(store).names("page-figures")}
    assert there == {each.name for each in Path("page-figures").iterdir()}
    for name in (each for each in there if not each.endswith(".pdf")):
        assert opened(store).read(f"page-figures/{name}") == Path("page-figures", name).read_bytes()


def test_uris_of_files_are_paths(tmp_path: Path) -> None:
    walk, out = trace(tmp_path).as_uri(), (tmp_path / "a place").as_uri()
    _traced(walk, out, "--engine", "local")
    records = (tmp_path / "records").as_uri()
    (tmp_path / "records").mkdir()
    row = {"run": "node/a", "t": 1.0, "kind": "publish", "node": "a", "message": "m", "source": "a", "size": 7}
    (tmp_path / "records" / "1.jsonl").write_text(json.dumps(row) + "\n", encoding="utf-8")
    _done("lab", "report", records, "--out", f"{out}/page.html", "--engine", "local")
    made = {each.name for each in (tmp_path / "a place").iterdir()}
    assert made >= {"positions", "contacts", "page.html", "page-figures"}


def test_a_store_that_lacks_a_library_says_which(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(java, "find_library", lambda _: None)
    for name in ("ARROW_LIBHDFS_DIR", "HADOOP_HOME", "JAVA_HOME"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(LocalError, match=r"^hdfs:// needs Hadoop's library libhdfs\.\w+, which was not found: set"):
        opened("hdfs://host:9000/results").names("")
    (tmp_path / "libhdfs.so").touch()
    monkeypatch.setenv("ARROW_LIBHDFS_DIR", str(tmp_path))
    monkeypatch.setattr(java, "homes", lambda _: iter([tmp_path]))
    with pytest.raises(LocalError, match=r"^hdfs:// needs Java's library libjvm\.\w+, which was not found: pip"):
        opened("hdfs://host:9000/results").names("")


@pytest.mark.parametrize("text", ["file://host/x", "file:x"])
def test_a_folder_of_this_machine_has_an_absolute_path(text: str) -> None:
    with pytest.raises(LocalError, match="must name a folder of this machine"):
        folder_of(text)


@pytest.mark.soak
def test_an_object_is_read_written_and_removed(store: str, tmp_path: Path) -> None:
    folder = opened(f"{store}/one")
    assert folder.read("a/b") is None
    assert folder.names("a") == {}
    folder.write("a/b", b"hello")
    assert folder.read("a/b") == b"hello"
    assert {name: each.size for name, each in folder.names("a").items()} == {"a/b": 5}
    (tmp_path / "x").write_bytes(b"other")
    folder.replace("a", {"c/d": tmp_path / "x"})
    assert _bytes(folder, "a") == {"a/c/d": b"other"}
    folder.delete("a/c/d")
    folder.delete("a/c/d")
    with pytest.raises(LocalError, match=r"s3://bucket/one/a/c/d cannot be read"):
        folder.fetch("a/c/d", tmp_path / "y")


@pytest.mark.soak
@pytest.mark.parametrize("engine", ["local", "spark"])
def test_a_campaign_in_a_store_is_what_it_is_in_a_folder(
    store: str, engine: str, spark: SparkSession, tmp_path: Path
) -> None:
    assert spark.version
    three(tmp_path)
    # Workers of Spark have the environment that it was started in.
    uri = f"{store.replace('://', '://x:y@') if engine == 'spark' else store}/{engine}/results"
    path, here = campaign(tmp_path, TWO_SETTINGS), tmp_path / "results"
    for out, on in ((str(here), "local"), (uri, engine)):
        told = json.loads(_done("lab", "campaign", str(path), "--out", out, "--engine", on, "--json"))
        assert (told["done"], told["new"]) == (told["runs"], told["runs"])
        _done("lab", "metrics", out, "--engine", on)
        _done("lab", "report", out, "--out", str(tmp_path / f"{Path(out).parent.name}.html"), "--engine", on)
    there = opened(uri)
    records = {path.name: path.read_bytes() for path in (here / "records").glob("*.parquet")}
    assert {Path(name).name: content for name, content in _bytes(there, "records").items()} == records
    there.mirror("metrics", tmp_path / "metrics")
    for table in FAMILIES:
        assert folders.read_arrow(tmp_path / "metrics", table).equals(folders.read_arrow(here / "metrics", table))
    assert not [name for name in there.names("metrics", deep=True) if ".parts" in name]
    pages = [(tmp_path / f"{name}.html").read_text(encoding="utf-8") for name in (tmp_path.name, engine)]
    ours, theirs = (_TIMED.sub("", each) for each in pages)
    assert ours == theirs

    # Nothing is done again; of another seed only its runs, and of metrics only new files.
    before = there.names("metrics", deep=True)
    path.write_text(path.read_text().replace("seeds = [1, 2]", "seeds = [1, 2, 3]"))
    told = json.loads(_done("lab", "campaign", str(path), "--out", uri, "--engine", engine, "--json"))
    assert (told["done"], told["new"]) == (6, 2)
    _done("lab", "metrics", uri, "--engine", engine)
    after = there.names("metrics/processing")
    assert {name: after[name] for name in after if name in before} == {
        name: each for name, each in before.items() if name.startswith("metrics/processing/")
    }
    assert len(after) == 2


def trace(folder: Path) -> Path:
    """Write positions of nodes that meet now and then, packed."""
    rows = [f"{t},n{node},{(node * 37 + t * (node % 3 + 1)) % 100},{node * 5}" for t in range(120) for node in range(6)]
    path = folder / "walk.csv.gz"
    path.write_bytes(gzip.compress("\n".join(["t,node,x,y", *rows]).encode()))
    return path


def _traced(trace: str, out: str, *more: str) -> str:
    """Ingest a trace and find its contacts; return what the commands print, without the names of folders."""
    told = _done("lab", "ingest", trace, "--format", "csv", "--scenario", "walk", "--out", out, "--json", *more)
    told += _done("lab", "contacts", out, "--range-m", "9", "--statistics", "--out", out, "--json", *more)
    return told.replace(trace, "TRACE").replace(out, "OUT").replace('"engine":"spark"', '"engine":"local"')


def _plain(text: str) -> str:
    return text.replace("x:y@", "")


def _rows(place: Folder) -> dict[str, pa.Table]:
    tables = {table.name: folders.read_arrow(place, table) for table in (POSITIONS, CONTACTS)}
    return tables | {table.name: folders.read_arrow(place / STATISTICS, table) for table in TABLES}


def _sorted(tables: dict[str, pa.Table]) -> dict[str, list[dict[str, object]]]:
    return {name: sorted(table.to_pylist(), key=str) for name, table in tables.items()}


@pytest.mark.soak
@pytest.mark.parametrize("engine", ["local", "spark"])
def test_traces_and_contacts_in_a_store_are_what_they_are_in_a_folder(
    store: str, engine: str, spark: SparkSession, tmp_path: Path
) -> None:
    assert spark.version
    store = store.replace("://", "://x:y@")
    path, here = trace(tmp_path), tmp_path / "here"
    told = _traced(str(path), str(here), "--engine", "local")
    opened(f"{store}/traces").put("walk.csv.gz", path)
    uri = f"{store}/traces-{engine}"
    _traced(f"{store}/traces/walk.csv.gz", uri, "--engine", engine)
    theirs = _traced(f"{store}/traces/walk.csv.gz", uri, "--engine", engine)  # It replaces the tables.
    assert theirs.replace(_plain(f"{store}/traces/walk.csv.gz"), "TRACE").replace(_plain(uri), "OUT") == told
    assert _sorted(_rows(opened(uri))) == _sorted(_rows(here))
    assert _rows(opened(uri))["contacts"].equals(_rows(here)["contacts"])
    assert not [name for name in opened(uri).names("", deep=True) if "/." in name or name.startswith(".")]
    noted = folders.manifest(opened(uri))
    assert noted["contacts"]["source"] == _plain(uri)
    assert "/tmp" not in json.dumps(noted)  # noqa: S108 - nothing is said of the driver's own folders
    assert run(["lab", "ingest", str(path), "--format", "csv", "--scenario", "other", "--out", uri]) == 2


@pytest.mark.soak
def test_a_stream_of_objects_has_the_tables_of_one_of_files(store: str, spark: SparkSession, tmp_path: Path) -> None:
    assert spark.version
    rows = [
        {"run": f"node/{node}", "t": t + 0.5 * (kind == "receive"), "kind": kind, "node": node, "message": f"m{t}",
         "source": "a", "size": 7, **({"hops": 1, "peer": "a"} if kind == "receive" else {})}
        for t in range(5) for kind, node in (("publish", "a"), ("receive", "b"))
    ]  # fmt: skip
    records = tmp_path / "records" / "a"
    records.mkdir(parents=True)
    (records / "1.jsonl").write_text("\n".join(map(json.dumps, rows)) + "\n", encoding="utf-8")
    opened(f"{store}/live").put("records/a/1.jsonl", records / "1.jsonl")
    told = _done("lab", "stream", str(records.parent), "--once", "--json").splitlines()
    theirs = _done("lab", "stream", f"{store}/live/records", "--once", "--json").splitlines()
    assert json.loads(told[-1])["received"] == json.loads(theirs[-1])["received"] == 5
    uri = f"{store}/live/records-live"
    for inside, table in (("", NODES), (METRICS, TIMELINE), (METRICS, DELAY_SPREAD)):
        found = folders.read_arrow(opened(f"{uri}/{inside}".rstrip("/")), table)
        assert found.equals(folders.read_arrow(tmp_path / "records-live" / inside, table))
    assert folders.manifest(opened(uri))["stream"]["source"] == f"{store}/live/records"


@pytest.mark.soak
def test_workers_that_do_not_see_the_folder_of_the_driver_work_in_a_store(store: str, tmp_path: Path) -> None:
    """Two workers of their own, each with an empty disk over everything that this test writes."""
    three(tmp_path)
    path, walk, logs = campaign(tmp_path, TWO_SETTINGS), trace(tmp_path), Path(mkdtemp(prefix="carrypost-workers-"))
    hidden = ["unshare", "--mount", "sh", "-c", f'mount -t tmpfs none {tmp_path} && exec "$@"', "sh"]
    opened(f"{store}/apart").put("walk.csv.gz", walk)
    places = {"local": (str(tmp_path / "here"), str(walk)), "apart": (f"{store}/apart", f"{store}/apart/walk.csv.gz")}
    try:
        with standalone(logs, hidden) as address:
            for name, (out, walked) in places.items():
                for order in (
                    ["ingest", walked, "--format", "csv", "--scenario", "walk", "--out", f"{out}/trace"],
                    ["contacts", f"{out}/trace", "--range-m", "9", "--statistics", "--out", f"{out}/trace"],
                    ["campaign", str(path), "--out", f"{out}/results"],
                    ["metrics", f"{out}/results"],
                    ["report", f"{out}/results", "--out", str(tmp_path / f"{name}.html")],
                ):
                    if name == "local":
                        _done("lab", *order, "--engine", "local")
                        continue
                    # In a process of its own: here Spark may run already.
                    program = [sys.executable, "-c", "from carrypost.cli import main; main()", "lab", *order]
                    conf = ["--master", address, "--conf", "spark.sql.shuffle.partitions=4"]
                    subprocess.run([*program, *conf], check=True, timeout=PATIENCE_S)  # noqa: S603 - ours
    finally:
        shutil.rmtree(logs)
    there, here = opened(f"{store}/apart"), tmp_path / "here"
    records = {file.name: file.read_bytes() for file in (here / "results" / "records").glob("*.parquet")}
    assert {Path(name).name: content for name, content in _bytes(there, "results/records").items()} == records
    assert len(records) == 4
    for table in FAMILIES:
        found = folders.read_arrow(there / "results/metrics", table)
        assert found.equals(folders.read_arrow(here / "results" / "metrics", table))
    assert _sorted(_rows(there / "trace")) == _sorted(_rows(here / "trace"))
    assert _rows(there / "trace")["contacts"].equals(_rows(here / "trace")["contacts"])
    pages = [(tmp_path / f"{name}.html").read_text(encoding="utf-8") for name in places]
    ours, theirs = (_TIMED.sub("", each) for each in pages)
    assert ours == theirs


@pytest.mark.soak
def test_a_second_campaign_is_refused_and_the_object_to_remove_is_named(store: str, tmp_path: Path) -> None:
    place = CampaignObjects(tmp_path, opened(f"{store}/locked"))
    with place.locked() as token:
        assert place.holder() is not None
        with (
            pytest.raises(RunningError, match=r"if it is gone, remove s3://bucket/locked/\.runs/lock$"),
            place.locked(),
        ):
            pass
        assert token
    assert place.holder() is None
