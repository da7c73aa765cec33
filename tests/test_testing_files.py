"""Networks in tests that play a file of contacts and write their record to a file."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from carrypost import testing
from carrypost.emu import records
from carrypost.errors import LocalError
from carrypost.log.record import Record


@pytest.fixture
def contacts(tmp_path: Path) -> Path:
    path = tmp_path / "contacts.csv"
    path.write_text("a,b,start,end\na,bus,10,40\nbus,c,100,130\n")
    return path


def test_a_file_of_contacts_is_played(contacts: Path) -> None:
    with testing.network("a", contacts=contacts, altruistic=True, seed=1) as net:
        net.subscribe("c", "news")
        net.publish("a", "news", b"hello")
        assert not net.linked("a", "bus")
        net.advance(20)
        assert net.linked("a", "bus")
        assert net.linked("bus", "a")
        net.advance(20)
        assert not net.linked("a", "bus")
        net.advance(80)
        assert [delivery.payload for delivery in net.deliveries("c")] == [b"hello"]


def test_a_file_of_contacts_is_played_inside_a_virtual_loop(contacts: Path) -> None:
    async def scene() -> int:
        async with testing.network(contacts=str(contacts), altruistic=True) as net:
            net.subscribe("c", "news")
            net.publish("a", "news")
            await net.run(120)
            return len(net.deliveries("c"))

    assert testing.run(scene) == 1


def test_a_link_made_by_hand_ends_when_the_file_says_so(contacts: Path) -> None:
    with testing.network(contacts=contacts) as net:
        net.link("a", "bus")
        net.advance(39)
        assert net.linked("a", "bus")
        net.advance(1)
        assert not net.linked("a", "bus")
        net.advance(100)


@pytest.mark.parametrize("name", ["record.jsonl", "record.parquet"])
def test_the_record_is_a_file_once_the_network_is_closed(contacts: Path, tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    with testing.network(contacts=contacts, record=path, seed=3) as net:
        net.publish("a", "news")
        net.advance(90)
        assert not path.exists()
    rows = records.read(path).to_pylist()
    assert {row["run"] for row in rows} == {"record/default/3"}
    assert [(row["t"], row["node"], row["peer"]) for row in rows if row["kind"] == "contact"] == [(10, "a", "bus")]
    assert {"run", "join", "publish", "up", "down"} <= {row["kind"] for row in rows}


def test_mistakes_show_at_the_start(contacts: Path, tmp_path: Path) -> None:
    with pytest.raises(LocalError, match="there is no folder"):
        testing.network("a", record=tmp_path / "nowhere" / "r.jsonl")
    with pytest.raises(LocalError, match="record takes"):
        testing.network("a", record=5)  # type: ignore[arg-type]
    with pytest.raises(LocalError, match="there is no such file"):
        testing.network(contacts=tmp_path / "none.csv")
    contacts.write_text("a,b,start,end\na,b,2,1\n")
    with pytest.raises(LocalError, match="line 2"):
        testing.network(contacts=contacts)


def test_a_record_that_is_a_value_is_still_filled() -> None:
    record = Record("mine")
    with testing.network("a", record=record):
        pass
    assert record.kind[:2] == ["run", "join"]


def test_none_of_it_needs_numpy_or_pyarrow(contacts: Path, tmp_path: Path) -> None:
    program = """
import sys
sys.modules["numpy"] = sys.modules["pyarrow"] = None
from carrypost import testing
with testing.network(contacts=sys.argv[1], record=sys.argv[2]) as net:
    net.advance(20)
"""
    out = tmp_path / "r.jsonl"
    subprocess.run([sys.executable, "-c", program, str(contacts), str(out)], check=True)  # noqa: S603 - ours
    assert '"kind":"contact"' in out.read_text()
