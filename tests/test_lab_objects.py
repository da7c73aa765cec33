"""Campaigns, metrics and reports in an object store: the same as in a folder, without a shared one."""

from __future__ import annotations

import contextlib
import io
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow.fs as pa_fs
import pytest
from tests.campaigns import TWO_SETTINGS, campaign, three

from carrypost.cli.app import run
from carrypost.errors import LocalError, RunningError
from carrypost.lab import folders
from carrypost.lab.campaign.objects import CampaignObjects
from carrypost.lab.metrics import FAMILIES
from carrypost.lab.objects import ObjectFolder, folder_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_what_names_objects_and_what_a_folder() -> None:
    assert folder_of("results") == Path("results")
    assert folder_of(Path("results").absolute().as_uri()) == Path("results").absolute()
    assert folder_of("s3://bucket/results") == ObjectFolder("s3://bucket/results")
    assert str(ObjectFolder("s3://key:secret@bucket/results/?scheme=http")) == "s3://bucket/results"
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
    objects = opened(uri)
    records = {path.name: path.read_bytes() for path in (here / "records").glob("*.parquet")}
    assert {Path(name).name: content for name, content in _bytes(objects, "records").items()} == records
    objects.mirror("metrics", tmp_path / "metrics")
    for table in FAMILIES:
        assert folders.read_arrow(tmp_path / "metrics", table).equals(folders.read_arrow(here / "metrics", table))
    assert not [name for name in objects.names("metrics", deep=True) if ".parts" in name]
    pages = [(tmp_path / f"{name}.html").read_text(encoding="utf-8") for name in (tmp_path.name, engine)]
    runs = re.compile(r'(?<=href=")[^"#]*-figures|<caption>Runs.*?<h3', re.DOTALL)  # How long each of them took.
    ours, theirs = (runs.sub("", each) for each in pages)
    assert ours == theirs

    # Nothing is done again; of another seed only its runs, and of metrics only new files.
    before = objects.names("metrics", deep=True)
    path.write_text(path.read_text().replace("seeds = [1, 2]", "seeds = [1, 2, 3]"))
    told = json.loads(_done("lab", "campaign", str(path), "--out", uri, "--engine", engine, "--json"))
    assert (told["done"], told["new"]) == (6, 2)
    _done("lab", "metrics", uri, "--engine", engine)
    after = objects.names("metrics/processing")
    assert {name: after[name] for name in after if name in before} == {
        name: each for name, each in before.items() if name.startswith("metrics/processing/")
    }
    assert len(after) == 2


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
