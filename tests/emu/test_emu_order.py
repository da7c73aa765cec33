"""Topics that have an order, from the scenario to the record and its summary."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.support import emulated
from tests.support.emulated import of

from carrypost import emu, testing
from carrypost.cli.app import run
from carrypost.emu.summary import summarise
from carrypost.emu.verify.invariants import check
from carrypost.errors import LocalError, PayloadError
from carrypost.log.record import Record

ORDERED = '[[workload]]\nkind = "script"\nfile = "publish.csv"\nordering = "{}"\n'


def ordered(folder: Path, ordering: str, *rows: str) -> str:
    """Return a workload of publications `t,node,message,size,lifetime` that has an order."""
    emulated.script(folder, *rows)
    return ORDERED.format(ordering)


def forgetful(folder: Path, ordering: str = "delta-causal", lifetime: str = "") -> emulated.Rows:
    """Let c answer p so often that c evicts p; b gets the answers from c, and p only later from a."""
    publications = [f"20,a,p,10,{lifetime}", *(f"{30 + number},c,q{number},10," for number in range(4))]
    tables = (
        emulated.contacts(folder, "a,c,21,25", "b,c,40,60", "a,b,100,140"),
        ordered(folder, ordering, *publications),
        "[settings]\ncache_messages_max = 4\nshares = false\n",
    )
    return emulated.rows(emulated.scenario(folder, *tables, duration_s=200, mode="ideal", top="sample_s = 50"))


def delivered(found: emulated.Rows, node: str) -> list[str]:
    return [row["message"] for row in of(found, "deliver", node=node)]


@pytest.mark.parametrize("ordering", ["causal", "delta-causal"])
def test_answers_wait_for_the_question_and_come_after_it(tmp_path: Path, ordering: str) -> None:
    found = forgetful(tmp_path, ordering)
    assert of(found, "receive", node="b")[0]["message"] == "q0"
    assert of(found, "drop", node="c", message="p")[0]["detail"] == "evicted"
    assert delivered(found, "b")[:2] == ["p", "q0"]
    assert [row["t"] for row in of(found, "deliver", node="b")][:2] == [100.0, 100.0]


def test_without_an_order_answers_come_at_once(tmp_path: Path) -> None:
    assert delivered(forgetful(tmp_path, "none"), "b")[0] == "q0"


def test_a_publication_tells_its_order_and_its_barrier(tmp_path: Path) -> None:
    rows = {row["message"]: row for row in of(forgetful(tmp_path), "publish")}
    assert [rows[name]["detail"] for name in ("p", "q0", "q1")] == ["0", "1", "1"]
    assert rows["p"]["attrs"]["ordering"] == "delta-causal"
    assert rows["p"]["attrs"]["destination"] == "workload-0"
    plain = of(forgetful(tmp_path, "none"), "publish")
    assert all(row["detail"] is None and "ordering" not in row["attrs"] for row in plain)


@pytest.mark.parametrize("ordering", ["causal", "delta-causal"])
def test_answers_come_when_the_question_is_dead(tmp_path: Path, ordering: str) -> None:
    found = forgetful(tmp_path, ordering, lifetime="50")
    assert delivered(found, "b")[0] == "q0"
    assert of(found, "deliver", node="b")[0]["t"] == 70.0
    assert of(found, "expire") == []


def test_what_waits_at_its_own_deadline_expires_and_is_not_dropped_besides(tmp_path: Path) -> None:
    tables = (
        emulated.contacts(tmp_path, "a,c,21,25", "b,c,40,60"),
        ordered(tmp_path, "delta-causal", "20,a,p,10,", *(f"{30 + n},c,q{n},10,45" for n in range(4))),
        "[settings]\ncache_messages_max = 4\nshares = false\n",
    )
    found = emulated.rows(emulated.scenario(tmp_path, *tables, duration_s=100, mode="ideal"))
    waited = {row["message"] for row in of(found, "expire", node="b")}
    assert "q0" in waited
    assert of(found, "expire", node="b", message="q0")[0]["t"] == 75.0
    assert not waited & {row["message"] for row in of(found, "drop", node="b")}
    assert not waited & set(delivered(found, "b"))


def test_registries_are_sampled_and_once_more_when_a_node_leaves(tmp_path: Path) -> None:
    tables = (
        emulated.nodes(tmp_path, "a,0,", "b,0,90", "c,0,"),
        emulated.contacts(tmp_path, "a,c,21,25", "b,c,40,60"),
        ordered(tmp_path, "causal", "20,a,p,10,", *(f"{30 + n},c,q{n},10," for n in range(4))),
        "[settings]\ncache_messages_max = 4\nshares = false\n",
    )
    found = emulated.rows(emulated.scenario(tmp_path, *tables, duration_s=200, mode="ideal", top="sample_s = 50"))
    rows = of(found, "registry", node="b")
    assert [row["t"] for row in rows if row["detail"] == "pending"] == [50.0, 90.0]
    assert {row["size"] for row in rows if row["detail"] == "pending"} == {1}  # The share of one author.
    last = [row for row in rows if row["t"] == 90.0]
    assert [row["detail"] for row in last] == ["cache", "c_barrier", "co_delivered", "pending"]
    assert last[0]["attrs"] == {"at": "leave"}
    assert last[3]["attrs"] == {"destination": "workload-0", "at": "leave"}
    (regular,) = (row for row in of(found, "registry", node="c", detail="co_delivered") if row["t"] == 50.0)
    assert (regular["size"], regular["attrs"]) == (2, {"destination": "workload-0"})


def test_the_summary_of_a_run_tells_of_its_order(tmp_path: Path) -> None:
    forgetful(tmp_path)
    made = emulated.scenario(
        tmp_path, '[contacts]\nfile = "contacts.csv"\n', ORDERED.format("causal"), duration_s=200, mode="ideal"
    )
    table = emu.run(made).table
    assert check(table) == []
    found = summarise(table).ordered
    assert found is not None
    assert (found.groups, found.broadcast, found.received) == ({"workload-0": "causal"}, 5, 10)
    assert found.co_delivery_ratio == 1.0
    assert found.co_delivery_latency is not None
    assert found.co_delivery_latency.max_s == 0.0
    assert set(found.registries) == {"cache", "c_barrier", "co_delivered", "pending"}


def test_show_tells_people_and_programs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    emulated.contacts(tmp_path, "a,b,10,30")
    text = "duration_s = 100\n[contacts]\nfile = 'contacts.csv'\n" + emulated.BROADCAST
    (tmp_path / "scene.toml").write_text(text + 'ordering = "delta-causal"\n')
    out = str(tmp_path / "records.parquet")
    assert run(["emu", "run", str(tmp_path / "scene.toml"), "--out", out]) == 0
    capsys.readouterr()
    assert run(["emu", "show", out, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)["ordered"]
    assert told["groups"] == {"workload-0": "delta-causal"}
    assert told["broadcast"] == 10


# --- networks in memory ---------------------------------------------------------------------------------------------


def test_a_network_in_memory_has_ordered_topics() -> None:
    record = Record("memory")
    with testing.network("a", "b", seed=1, record=record, altruistic=True) as net:
        net.add("c", cache_messages_max=1)
        for node in "abc":
            net.subscribe(node, "forum", ordered=True)
        net.link("a", "c")
        net.publish("a", "forum", b"p", ordering="causal", label="p")
        net.advance(20)
        net.unlink("a", "c")
        net.publish("c", "forum", b"q", ordering="causal", label="q")
        net.link("b", "c")
        net.advance(20)
        assert net.deliveries("b") == []
        net.link("a", "b")
        net.advance(20)
        assert [each.payload for each in net.deliveries("b")] == [b"p", b"q"]
    assert check(record) == []


def test_what_else_an_ordered_subscription_asks_for_is_looked_at_at_delivery() -> None:
    with testing.network("a", "b", seed=1) as net:
        net.subscribe("b", {"destination": "forum", "language": "English"}, ordered=True)
        net.link("a", "b")
        for number, language in enumerate(("English", "French", "English")):
            net.publish("a", "forum", bytes([number]), attributes={"language": language}, ordering="delta-causal")
        net.advance(20)
        assert [each.payload for each in net.deliveries("b")] == [b"\0", b"\2"]


def test_subscriptions_are_ordered_again_after_a_restart() -> None:
    with testing.network("a", "b", seed=1) as net:
        net.subscribe("b", {"destination": "forum", "language": "English"}, ordered=True)
        net.kill("b")
        net.restart("b")
        net.link("a", "b")
        for language in ("French", "English"):
            net.publish("a", "forum", b"", attributes={"language": language}, ordering="causal")
        net.advance(20)
        assert len(net.deliveries("b")) == 1


def test_an_unknown_order_is_a_mistake() -> None:
    with testing.network("a", seed=1) as net, pytest.raises(LocalError, match="'delta-causal'"):
        net.publish("a", "forum", ordering="total")


def test_orders_of_a_wrong_type_are_mistakes() -> None:
    with testing.network("a", seed=1) as net:
        with pytest.raises(LocalError, match="'delta-causal', not \\['causal'\\]"):
            net.publish("a", "forum", ordering=["causal"])  # type: ignore[arg-type]
        with pytest.raises(PayloadError, match="an ordering must be an Ordering, not str: 'causal'"):
            net.host("a").publish("forum", b"", now=1, ordering="causal")  # type: ignore[arg-type]
        with pytest.raises(LocalError, match="ordered must be True or False, not 'yes'"):
            net.subscribe("a", "forum", ordered="yes")  # type: ignore[arg-type]
