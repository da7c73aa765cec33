"""The benchmarks of real nodes run, show every table, and clean up. How fast they are is not tested."""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
import time
from pathlib import Path

import pytest
from tests.support.benches import COMMAND, Bench, Tables

from tools import netns

PATIENCE_S = 120.0
needs_namespaces = pytest.mark.skipif(bool(netns.available()), reason=netns.available())


def tables(folder: Path, name: str, *arguments: str) -> Tables:
    """Return the tables of a benchmark; it reports progress, too."""
    return Bench(name).tables(folder, *arguments, progress=True)


@pytest.mark.soak
@needs_namespaces
def test_along_a_chain_everything_arrives_beside_the_reference(tmp_path: Path) -> None:
    shown = tables(tmp_path, "chain", "--quick", "--json")
    assert list(shown) == ["Saturated", "One at a time", "Goals"]
    for name in ("Saturated", "One at a time"):
        assert [(row["hops"], row["bytes"]) for row in shown[name]] == [(1, 1_000), (1, 100_000)]
    for row in shown["Saturated"]:
        for kind in ("reference", "signed", "off"):
            assert row[f"{kind} kB/s"] > 0
            assert row[f"{kind} wire"] > 1_000 > row[f"{kind} back"] > 0
            assert row[f"{kind} CPU ms/MB"] > 0
        assert row["signed %"] == pytest.approx(row["signed kB/s"] / row["reference kB/s"] * 100)
        # 20 Mbit/s, a burst of 16 kB, and Ethernet's, IP's and UDP's 42 bytes for at most 1,200.
        assert row["reference whole kB/s"] < 2_500 + 100
        assert row["reference wire"] > 1_000 * 1_242 / 1_200
    for row in shown["One at a time"]:
        assert row["signed ms"] == pytest.approx(row["bytes"] / row["signed kB/s"])
    assert [(row["what"], row["met"]) for row in shown["Goals"]] == [
        (row["what"], row["least %"] >= row["goal %"]) for row in shown["Goals"]
    ]
    assert len(shown["Goals"]) == 4


@pytest.mark.soak
@needs_namespaces
def test_along_a_chain_messages_go_straight_beside_those_handed_on(tmp_path: Path) -> None:
    shown = tables(tmp_path, "chain", "--quick", "--island", "--json")
    assert list(shown) == ["Saturated", "One at a time", "Goals"]
    for row in shown["Saturated"]:
        for kind in ("reference", "signed", "island"):
            assert row[f"{kind} kB/s"] > 0
    assert [row["met"] for row in shown["Goals"][:2]] == [row["found"] >= row["goal"] for row in shown["Goals"][:2]]


@pytest.mark.soak
def test_a_receiver_is_weighed_as_consumer_and_as_carrier_against_the_least_possible(tmp_path: Path) -> None:
    shown = tables(tmp_path, "node", "--quick", "--json", "--profile", "--trace")
    assert list(shown) == ["Reception", "Areas", "Floor"]
    roles = ["consumer", "carrier", "consumer, traced", "carrier, traced"]
    assert [row["receiver"] for row in shown["Reception"]] == roles
    (floor,) = shown["Floor"]
    for row in shown["Reception"]:
        assert row["messages/CPU s"] == pytest.approx(1e6 / row["µs a message"])
        assert row["times floor"] == pytest.approx(row["µs a message"] / (floor["verify"] + floor["commit"]))
        assert row["times floor"] > 1
        assert row["met"] is (row["messages/CPU s"] >= row["goal"])
    for role in ("consumer", "carrier"):
        areas = {row["area"]: row["share %"] for row in shown["Areas"] if row["receiver"] == role}
        assert sum(areas.values()) == pytest.approx(100)
        assert areas["verify"] > areas["decode"] > 0
        assert areas["store, writer thread"] > 0
        assert areas["sockets, receiving"] > 0


@pytest.mark.parametrize(
    "attack",
    [
        pytest.param(("--quick", "--seconds", "0.3", "--attack", "Request: unknown handles"), id="one kind"),
        pytest.param(("--quick",), id="all kinds", marks=pytest.mark.soak),
    ],
)
@pytest.mark.soak
def test_strangers_are_weighed_datagram_by_datagram_and_as_a_flood(tmp_path: Path, attack: tuple[str, ...]) -> None:
    shown = tables(tmp_path, "hostile", "--json", *attack)
    whole = ["Datagrams", "Profiles", "States", "Floods"]
    assert list(shown) == (["Datagrams", "Floods"] if "--attack" in attack else whole)
    for row in shown.get("States", ()):
        assert 0 < row["read"] < row["sent"]
        assert row["met"] is (row["CPU % of a core"] <= 10)
    for row in shown["Datagrams"]:
        assert 1_000 < row["bytes"] <= 9_216
        assert row["CPU µs"] > 1
    assert [row["strangers"] for row in shown["Floods"]] == [1, 10]
    assert sum(row["unread"] for row in shown["Floods"]) > 0  # Strangers were muted.
    for row in shown["Floods"]:
        assert row["sent/s"] > 1_000
        assert row["times"] == pytest.approx(row["latency ms"] / row["aside ms"])
        assert row["met"] is (row["CPU % of a core"] <= 10 and row["times"] <= 2)


@pytest.mark.soak
def test_programs_are_weighed_against_the_host_and_the_bare_commit(tmp_path: Path) -> None:
    shown = tables(tmp_path, "jms", "--quick", "--json")
    assert list(shown) == ["Persistent", "Non-persistent", "Fan-out", "Receiving"]
    cases = [(security, coroutines) for security in ("signed", "off") for coroutines in (1, 10, 100)]
    for name in ("Persistent", "Non-persistent"):
        assert [(row["security"], row["coroutines"]) for row in shown[name]] == cases
    for row in shown["Persistent"]:
        assert row["times"] == pytest.approx(row["µs"] / (row["publish µs"] + row["commit µs"]))
        assert row["messages per commit"] <= row["coroutines"]  # Each waits until its message is on disk.
        assert row["fdatasync ms"] > 0
    for row in shown["Non-persistent"]:
        assert row["times"] == pytest.approx(row["µs"] / row["publish µs"])
    assert [row["consumers"] for row in shown["Fan-out"]] == [1, 10, 100] * 4
    for row in shown["Fan-out"]:
        assert row["µs a consumer"] == pytest.approx(row["µs"] / row["consumers"])
    for row in shown["Receiving"]:
        assert row["deliver and confirm µs"] > row["without payload and disk µs"] > 0
    for rows in shown.values():
        assert all(row["met"] is (row["times"] <= row["goal"]) for row in rows)


@pytest.mark.soak
def test_programs_of_the_classic_api_are_weighed_against_contexts(tmp_path: Path) -> None:
    shown = tables(tmp_path, "classic", "--quick", "--json")
    assert set(shown) == {"Classic", "Blocking", "Attributes"}
    for table in ("Classic", "Blocking"):
        assert [row["what"] for row in shown[table]] == ["send PERSISTENT", "send NON_PERSISTENT", "receive"]
        assert all(0.2 < row["times"] < 5 for row in shown[table])
    assert all(0.5 < row["times"] < 2 for row in shown["Attributes"])


@pytest.mark.soak
def test_attached_and_blocking_programs_are_weighed_against_embedded_and_awaited_ones(tmp_path: Path) -> None:
    shown = tables(tmp_path, "attached", "--quick", "--json")
    assert list(shown) == ["Attached", "Long bodies", "Sync"]
    assert len(shown["Attached"]) == 5
    (small,) = shown["Long bodies"]
    assert small["part"] == pytest.approx(small["attached"] / small["embedded"])
    assert [row["what"] for row in shown["Sync"]] == ["PERSISTENT", "NON_PERSISTENT", "iteration"]
    for row in (*shown["Attached"], *shown["Sync"]):
        assert row["times"] == pytest.approx(row["µs"] / row["embedded µs"])
        assert row["met"] is (row["times"] <= row["goal"])


def test_decoding_stomp_is_weighed_against_cutting(tmp_path: Path) -> None:
    (row,) = tables(tmp_path, "stomp", "--quick", "--json", "--only", "Frames")["Frames"]
    assert row["times"] == pytest.approx(row["µs"] / row["cut µs"])
    assert row["met"] is (row["times"] <= row["goal"])


@pytest.mark.soak
def test_stomp_clients_are_weighed_against_embedded_programs_and_slow_ones_against_none(tmp_path: Path) -> None:
    shown = tables(tmp_path, "stomp", "--quick", "--json")
    assert {name: len(rows) for name, rows in shown.items()} == {"Frames": 1, "Sending": 2, "Receiving": 2, "Slow": 1}
    for row in (*shown["Sending"], *shown["Receiving"]):
        assert row["times"] == pytest.approx(row["µs"] / row["embedded µs"])
        assert row["met"] is (row["times"] <= row["goal"])
    (slow,) = shown["Slow"]
    assert slow["part"] == pytest.approx(slow["beside 50 slow"] / slow["alone"])


@needs_namespaces
def test_a_node_at_rest_is_weighed_alone_and_with_a_neighbour(tmp_path: Path) -> None:
    shown = tables(tmp_path, "idle", "--quick", "--json")
    assert list(shown) == ["Island", "Alone", "Neighbours"]
    without, island = shown["Island"]
    assert (without["island"], without["neighbours"], island["island"]) == ("false", 1, "true")
    assert island["met"] is (island["times"] <= island["goal"])
    (alone,) = shown["Alone"]
    assert alone["memory kB"] > alone["of it anonymous kB"] > 1_000
    assert alone["CPU met"] is (alone["CPU µs/s"] < alone["goal µs/s"])
    assert alone["memory met"] is (alone["memory kB"] < alone["goal kB"])
    assert [row["neighbours"] for row in shown["Neighbours"]] == [0, 1]
    # With somebody there, who wants it, a message is sent: its payload at least.
    assert shown["Neighbours"][1]["a message: bytes"] > 1_000


@pytest.mark.parametrize(
    "name", ["chain", "node", "idle", "hostile", "jms", "attached", "classic", "stomp", "openwire"]
)
def test_help_gives_an_example(name: str) -> None:
    outcome = Bench(name).here("--help")
    assert outcome.returncode == 0
    assert f"carrypost bench {name} --" in " ".join(outcome.stdout.split("For example:")[1].split())


@pytest.mark.parametrize(
    "arguments",
    [
        ("chain", "--rounds", "0"),
        ("node", "--messages", "0"),
        ("jms", "--messages", "0"),
        ("attached", "--messages", "0"),
        ("classic", "--messages", "0"),
        ("stomp", "--messages", "0"),
        ("idle", "--seconds", "0"),
        ("hostile", "--seconds", "0"),
    ],
)
def test_a_number_that_makes_no_sense_is_a_usage_error(arguments: tuple[str, ...]) -> None:
    outcome = Bench(arguments[0]).here(*arguments[1:])
    assert (outcome.returncode, outcome.stdout) == (2, "")
    assert arguments[1] in outcome.stderr


@pytest.mark.parametrize("name", ["chain", "idle"])
def test_where_there_are_no_namespaces_it_says_so(name: str, tmp_path: Path) -> None:
    outcome = Bench(name).run("--quick", PATH=str(tmp_path))  # Nothing is installed there.
    assert (outcome.returncode, outcome.stdout) == (1, "")
    assert "namespaces" in outcome.stderr
    assert "Traceback" not in outcome.stderr


def processes_that_name(folder: Path) -> list[str]:
    found = []
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            command = file.read_bytes().decode(errors="replace")
        except OSError:
            continue
        if str(folder) in command:
            found.append(command)
    return found


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_benchmark_that_is_stopped_leaves_nothing_behind(number: int) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        running = subprocess.Popen(  # noqa: S603 - our own command
            [COMMAND, "bench", "node", "--messages", "100000"],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, env={**os.environ, "TMPDIR": name},
        )  # fmt: skip
        assert running.stderr is not None
        assert b"publishing" in running.stderr.readline()
        assert processes_that_name(folder)
        running.send_signal(number)
        running.communicate(timeout=PATIENCE_S)
        assert running.returncode not in {0, None}
        deadline_s = time.monotonic() + PATIENCE_S
        while (left := processes_that_name(folder)) and time.monotonic() < deadline_s:
            time.sleep(0.05)
        assert left == []
        assert list(folder.iterdir()) == []
