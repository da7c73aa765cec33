"""The real command with a real node: start, query and stop it; and its errors if the node cannot run."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import pty
import re
import select
import signal
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psutil
import pytest
from tests.support.nodes import toml
from tests.support.shells import COMMAND, PATIENCE_S, Shell
from tests.support.stomp_clients import free_port
from tests.support.waiting import eventually

from carrypost.attach.client import Client
from carrypost.cli import _options, node
from carrypost.security.identity import Identity

ALONE = "No other node is in reach; run `carrypost doctor` to find out why."


def kept(shell: Shell) -> dict[str, bytes]:
    """Return the contents of a node's folder after it has run once."""
    process, _ = shell.node()
    assert shell.end(process) == (0, "", "")
    return shell.contents()


def peers(shell: Shell) -> list[dict[str, Any]]:
    """Return the nodes in reach, as a program reads them; without any, the output is empty, and stderr says so."""
    code, out, err = shell.run("peers", "--json")
    assert (code, err) == (0, "" if out else f"{ALONE}\n")
    return [json.loads(line) for line in out.splitlines()]


# --- a node's life --------------------------------------------------------------------------------------------------


def test_a_node_runs_from_defaults_says_that_it_is_ready_and_ends_by_a_signal(shell: Shell) -> None:
    process, ready = shell.node(fresh=True)
    assert ready["event"] == "ready"
    assert ready["pid"] == process.pid
    assert ready["control"] == str(shell.data / "control.sock")
    assert [address.partition(":")[0] for address in ready["addresses"]] == ["127.0.0.1"]
    assert (ready["carries"]["altruistic"], ready["carries"]["lifetime_s_default"]) == (False, 86_400)
    (status,) = shell.lines("status")
    assert (ready["stomp"], status["services"]) == (None, {})
    assert status["node"] == ready["node"]
    assert status["carries"] == ready["carries"]
    assert status["pid"] == process.pid
    if sys.platform == "linux":
        shown = psutil.Process(process.pid)
        assert (shown.name(), " ".join(shown.cmdline())) == ("carrypost", f"carrypost node --data {shell.data}")
    assert shell.end(process) == (0, "", "")
    assert not (shell.data / "control.sock").exists()
    again, same = shell.node(fresh=True)
    assert same["node"] == ready["node"]
    (status,) = shell.lines("status")
    assert status["incarnation"] == 2
    nothing = f"no node runs in {shell.folder / 'typo'}: there is nothing to stop"
    assert shell.refusal("stop", "--data", "typo") == (4, nothing)
    assert shell.run("stop") == (0, f"the node in {shell.data} has ended (process {again.pid})\n", "")
    assert (again.wait(PATIENCE_S), *again.communicate()) == (0, "", "")
    assert {path.name for path in shell.data.iterdir()} == {
        "lock", "node.id", "node.key", "store.sqlite", "store.sqlite.reserve",
    }  # fmt: skip


def test_a_node_runs_from_a_file_whose_paths_start_at_its_folder(shell: Shell) -> None:
    settings = {
        "security": "off",
        "node": {"data": "data", "name": "anna"},
        "udp": {"interfaces": ["lo"]},
        "record": {"folder": "rows"},
    }
    place = shell.folder / "place"
    place.mkdir()
    (place / "node.toml").write_text(toml(settings))
    process, ready = shell.node("--config", "place/node.toml", "--set", "node.name=bert", "--verbose")
    assert ready["node"] == "bert"
    assert ready["control"] == str(place / "data" / "control.sock")
    (status,) = shell.lines("status", "-c", "place/node.toml")
    assert (status["security"], status["data"]) == ("off", str(place / "data"))
    assert shell.lines("status", "--data", "place/data")[0]["node"] == "bert"
    code, _, err = shell.end(process)
    assert code == 0
    assert "carrypost.udp: used: lo" in err
    assert [path.suffix for path in (place / "rows").iterdir()] == [".jsonl"]
    assert not shell.data.exists()


def test_two_nodes_meet_and_their_peers_are_shown_to_programs_and_people(shell: Shell) -> None:
    (a, anna), (b, bert) = shell.node(), shell.node("--data", "second")
    deadline_s = time.monotonic() + PATIENCE_S
    while [peer["state"] for peer in peers(shell)] != ["linked"]:
        assert time.monotonic() < deadline_s
    (peer,) = shell.lines("peers")
    assert (peer["node"], peer["name"]) == (bert["node"], "")
    assert peer["address"] in bert["addresses"]
    assert shell.run("keys", "name", bert["node"], "bert [x]") == (0, "", "")
    assert shell.lines("peers")[0]["name"] == "bert [x]"
    assert shell.lines("keys", "names") == [{"node": bert["node"], "name": "bert [x]"}]
    shown = shell.terminal("peers")
    for word in ("bert [x]", bert["node"], "linked"):
        assert word in shown
    shown = shell.terminal("status")
    for word in (anna["node"], f"process {a.pid}", anna["addresses"][0], "ipv4-multicast", "lo"):
        assert word in shown
    names = {line[:15].strip() for line in shown.partition("Interfaces")[0].splitlines()} - {""}
    assert names == {
        "node", "running for", "folder", "security", "addresses", "neighbours", "messages", "messaging", "carries",
        "carries for", "carries until", "store", "datagrams",
    }  # fmt: skip
    code, redirected, err = shell.run("status")
    assert (code, err) == (0, "")
    assert f"\nnode           {anna['node']}\n" in f"\n{redirected}"
    told = "neighbours that ask for the same, nothing for others (set altruistic = true to carry for all nodes)\n"
    assert told in redirected, "no line is broken"
    assert "bert [x]" in shell.terminal("keys", "names")
    for process in (a, b):
        assert shell.end(process) == (0, "", "")


def test_peers_tell_by_which_of_them_others_are_reached(shell: Shell) -> None:
    _, anna = shell.node("--set", "udp.hear=[]")
    _, bert = shell.node("--data", "second")
    _, carl = shell.node("--data", "third", "--set", "udp.hear=[]")

    async def gate(socket: str) -> None:
        async with await Client.connect(Path(socket)) as client:
            await client.gate(bert["addresses"])

    for each in (anna, carl):
        asyncio.run(gate(each["control"]))
    deadline_s = time.monotonic() + PATIENCE_S
    while len(found := peers(shell)) < 2:
        assert time.monotonic() < deadline_s
    assert shell.run("keys", "name", carl["node"], "carl") == (0, "", "")
    assert [each["node"] for each in found] == [bert["node"], carl["node"]]
    assert shell.lines("peers")[1] == {
        "node": carl["node"], "name": "carl", "state": "relayed", "hops": 2, "next": bert["node"], "next_name": "",
    }  # fmt: skip
    assert shell.run("keys", "name", bert["node"], "bert") == (0, "", "")
    assert re.search(rf"carl +{carl['node']} +2 +bert", shell.terminal("peers"))
    # Carl is reached by Bert's record of links. His own one may come later.
    reached = "2 hosts can be reached, 0 routes in use"
    eventually(lambda: reached in " ".join(shell.terminal("status").split()), shell.terminal("status"))


def test_a_node_that_has_no_place_for_more_neighbours_says_so_and_the_doctor_names_it(shell: Shell) -> None:
    shell.node("--set", "limits.neighbours_max=1")
    (status,) = shell.lines("status")
    assert (status["heard"], status["places"], status["waiting"]) == (0, 1, 0)
    for name in ("second", "third"):
        shell.node("--data", name)
    deadline_s = time.monotonic() + PATIENCE_S
    while not shell.lines("status")[0]["waiting"]:
        assert time.monotonic() < deadline_s
    assert "none of 1 place is left" in " ".join(shell.terminal("status").split())
    findings = shell.lines("doctor", "--interface", "lo", "--listen-s", "0.1")
    (finding,) = [each for each in findings if each["means"] == "neighbours"]
    assert (finding["works"], finding["interface"]) == (False, "")
    assert "none of its 1 place for neighbours left" in finding["detail"]
    assert "limits.heard_max" in finding["advice"]


def test_a_person_at_a_terminal_gets_sentences(shell: Shell) -> None:
    ours, theirs = pty.openpty()
    port = free_port()
    with (
        subprocess.Popen(  # noqa: S603 - our own command
            [*COMMAND, "node", "--set", f"stomp.port={port}"], stdin=theirs, stdout=theirs, stderr=theirs
        ) as process,
        contextlib.ExitStack() as exits,
    ):
        exits.callback(process.kill)  # If the test fails, nothing else ends it.
        os.close(theirs)
        shown, deadline_s = b"", time.monotonic() + PATIENCE_S
        while b"in another terminal" not in shown:
            assert time.monotonic() < deadline_s
            if select.select([ours], [], [], 1)[0]:
                shown += os.read(ours, 65_536)
        assert b"is running in" in shown
        lines = shown.decode().splitlines()
        assert all(len(line) <= 80 or " " not in line.strip() for line in lines), "lines break between words"
        said = "\n".join(lines).replace("\n  ", " ").splitlines()
        assert "it carries what programs here publish and subscribe to; at most 20,000 messages and 256 MiB" in said
        assert (
            "it carries for neighbours that ask for the same, nothing for others (set altruistic = true to carry for "
            "all nodes)"
        ) in said
        assert (
            "it carries until each message's deadline: 1 day after it was sent, unless the sender gives another, "
            "30 days at most"
        ) in said
        token = shell.data / "stomp.token"
        assert f"it serves STOMP clients at 127.0.0.1:{port}; their passcode is in {token}" in said
        status = shell.terminal("status")
        assert "nothing for others" in status
        assert f"at 127.0.0.1:{port}, 0 clients" in status
        assert ALONE in shell.terminal("peers")
        assert peers(shell) == []
        os.write(ours, b"\x03")  # Ctrl-C
        process.send_signal(signal.SIGINT)  # Without a session of its own the terminal does not do it.
        assert process.wait(PATIENCE_S) == 0
        os.close(ours)


def test_a_node_that_was_killed_starts_again(shell: Shell) -> None:
    process, ready = shell.node()
    assert shell.end(process, signal.SIGKILL)[0] == -signal.SIGKILL
    code, told = shell.refusal("status")
    assert code == 4
    assert "no node answers at" in told
    again, same = shell.node()
    assert same["node"] == ready["node"]
    assert shell.end(again) == (0, "", "")


def test_a_node_without_an_interface_runs_warns_and_names_those_there_are(shell: Shell) -> None:
    process, ready = shell.node("--set", 'udp.interfaces=["nope0"]')
    assert ready["addresses"] == []
    assert "No usable interface; run `carrypost doctor` to find out why." in shell.terminal("status")

    assert shell.run("stop") == (0, f"the node in {shell.data} has ended (process {process.pid})\n", "")
    _, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0
    assert "no usable interface called nope0; waiting for one; there are: lo" in err


def test_a_node_that_hangs_is_told_after_a_while(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    process, _ = shell.node()
    process.send_signal(signal.SIGSTOP)
    monkeypatch.setattr(_options, "_ANSWER_S", 0.2)
    try:
        code, told = shell.refusal("status")
        monkeypatch.setattr(node, "_END_S", 0.2)
        late = shell.refusal("stop")
    finally:
        process.send_signal(signal.SIGCONT)
    assert (code, told) == (3, f"the node at {shell.data / 'control.sock'} does not answer")
    assert late == (3, f"the node at {shell.data / 'control.sock'} did not end within 0 s")
    assert shell.end(process)[0] == 0


def test_a_node_inside_a_command_is_not_stopped(shell: Shell) -> None:
    command = shell.beside("sub", "-t", "x")
    eventually(lambda: shell.run("status")[0] == 0, "a node that runs")
    told = f"this node runs inside a program and stops with it: stop the process {command.pid}"
    assert shell.refusal("stop") == (2, told)
    assert command.end(signal.SIGINT)[0] == 130


# --- keys -----------------------------------------------------------------------------------------------------------


def test_keys_are_shown_backed_up_and_restored(shell: Shell) -> None:
    nothing = (4, f"there is no node in {shell.data} yet; make one with: carrypost node")
    assert shell.refusal("keys", "show") == shell.refusal("keys", "backup", "copy") == nothing
    process, ready = shell.node()
    shell.end(process)
    (key,) = shell.lines("keys", "show")
    assert key["node"] == ready["node"]
    assert set(key) == {"node", "public_key", "file"}
    secret = (shell.data / "node.key").read_text().split()[-1]
    shown = shell.terminal("keys", "show")
    assert ready["node"] in shown
    assert secret not in shown
    code, out, err = shell.run("keys", "backup", "copy")
    assert (code, out, err) == (0, "", "the key is in copy; keep it secret\n")
    assert stat.S_IMODE((shell.folder / "copy").stat().st_mode) == 0o600
    before = (shell.folder / "copy").read_bytes()
    assert shell.refusal("keys", "backup", "copy") == (1, "copy exists already; it was left unchanged")
    assert (shell.folder / "copy").read_bytes() == before
    code, told = shell.refusal("keys", "restore", "copy")
    assert code == 1
    assert "node.key exists already; it was left unchanged" in told
    code, _, err = shell.run("keys", "restore", "copy", "--data", "elsewhere")
    assert (code, err) == (0, f"{shell.folder / 'elsewhere'} has the key of the node {ready['node']} again\n")
    assert shell.lines("keys", "show", "--data", "elsewhere")[0]["node"] == ready["node"]
    other, _ = shell.node("--data", "other")
    shell.end(other)
    (shell.folder / "other" / "node.key").unlink()
    code, told = shell.refusal("keys", "restore", "copy", "--data", "other")
    assert code == 1
    assert "belongs to the node" in told
    assert not (shell.folder / "other" / "node.key").exists()


def test_names_are_refused_that_are_none(shell: Shell) -> None:
    nobody = "No names yet; give one with `carrypost keys name NODE NAME`.\n"
    assert shell.run("keys", "names") == (0, "", nobody)
    assert shell.run("keys", "names", "--json") == (0, "", nobody)
    first, second = (Identity.derived(1, name).node for name in ("first", "second"))
    shape = "a node id has 26 letters and digits, as `carrypost peers` shows it"
    for wrong in ("a b", "xyz", "", first[:-1], first[:-1] + "z"):
        assert shell.refusal("keys", "name", wrong, "anna") == (2, f"{shape}, not {wrong!r}")
    assert not shell.data.exists()
    told = f"{shape}, not {first.upper()!r}; did you mean {first}?"
    assert shell.refusal("keys", "name", first.upper(), "anna") == (2, told)
    assert shell.refusal("keys", "name", first, "") == (2, f"the node {first} has no pet name")
    assert shell.run("keys", "name", first, "anna")[0] == 0
    assert shell.refusal("keys", "name", second, "anna") == (2, f"'anna' is already the name of {first}")
    assert shell.run("keys", "name", first, "")[0] == 0
    assert shell.run("keys", "names") == (0, "", nobody)
    (shell.data / "names.json").write_text('{"xyz": "old"}')  # From a time when anything was taken.
    assert shell.run("keys", "name", "xyz", "")[0] == 0


def test_where_security_is_off_names_are_for_plain_names(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CARRYPOST_SECURITY", "off")
    assert shell.run("keys", "name", "node-7", "anna")[0] == 0
    code, told = shell.refusal("keys", "name", "node:7", "bert")
    assert (code, told.partition(":")[0]) == (2, "a plain node name must have 1 to 64 bytes and no colon, not 'node")


# --- when it cannot run ---------------------------------------------------------------------------------------------


def test_mistakes_in_settings_are_usage_errors_that_name_the_nearest(
    shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    (shell.folder / "node.toml").write_text("[udp]\nprot = 1\n")
    early: Sequence[tuple[list[str], str]] = (
        (["--config", "node.toml"], "node.toml, line 2: udp.prot is not a setting; did you mean udp.port?"),
        (["--config", "none.toml"], "cannot read the settings file none.toml: No such file or directory"),
        (["--set", "udp.prot=1"], "udp.prot is not a setting; did you mean udp.port?"),
        (["--set", "udp.port=x"], "udp.port must be a whole number from 1 to 65,535, not 'x'"),
        (["--set", "stomp.host=0.0.0.0"], "stomp.host must be an address of the loopback interface"),
        (["--set", "udp.port"], "--set must be KEY=VALUE, such as udp.port=4000, not 'udp.port'"),
    )
    late: Sequence[tuple[list[str], str]] = (
        early[0],
        (["--set", "security=off", "--set", "node.name=a:b"], "a plain node name must have 1 to 64 bytes and no colon"),
        (["--set", 'udp.peers=["nobody"]', "--data", "second"], "udp.peers"),
    )
    found = [shell.refusal("node", *arguments) for arguments, _ in early]
    found += shell.refused_nodes(*(arguments for arguments, _ in late))
    for (code, told), (_, expected) in zip(found, (*early, *late), strict=True):
        assert code == 2
        assert told.startswith(expected)
    monkeypatch.setenv("CARRYPOST_UDP_PROT", "1")
    assert shell.refusal("status") == (2, "CARRYPOST_UDP_PROT is not a setting; did you mean CARRYPOST_UDP_PORT?")


def test_a_second_node_in_the_folder_and_no_node_have_codes_of_their_own(shell: Shell) -> None:
    told = f"there is no node in {shell.data} yet; make one with: carrypost node"
    for command in ("status", "peers"):
        assert shell.refusal(command) == (4, told)
    (shell.folder / "second").mkdir()
    (shell.folder / "second" / "node.id").touch()
    (shell.folder / "node.toml").write_text('[node]\ndata = "second"\n')
    for given in (["--data", "second"], ["--config", "node.toml"]):
        place = shell.folder / "second" / "control.sock"
        told = f"no node answers at {place}; start one with: carrypost node {' '.join(given)}"
        assert shell.refusal("status", *given) == (4, told)
    process, _ = shell.node()
    before = shell.contents()
    code, told = shell.refusal("node", apart=True)
    whose = f"{shell.data} (process {process.pid})"
    assert code == 5
    assert told == f"a node is already running in {whose}; another node needs its own folder (data)"
    log = {"store.sqlite-wal"}  # The node that runs may begin it now.
    assert shell.contents().keys() - log == before.keys() - log
    assert len(shell.lines("status")) == 1
    assert shell.end(process) == (0, "", "")


def test_a_damaged_store_is_told_and_left_as_it_is(shell: Shell) -> None:
    kept(shell)
    store = shell.data / "store.sqlite"
    whole = store.read_bytes()
    for content, told in (
        (b"hello" * 1_000, "is damaged (it does not begin like a database) and was left unchanged"),
        (whole[:4_096] + bytes(len(whole) - 4_096), "is damaged"),
    ):
        store.write_bytes(content)
        before = shell.contents()
        code, sentence = shell.refusal("node", apart=True)
        assert code == 1
        assert told in sentence
        assert shell.contents() == before
    store.write_bytes(whole)
    process, _ = shell.node()
    assert shell.end(process) == (0, "", "")


def test_a_damaged_or_missing_key_is_told_and_left_as_it_is(shell: Shell) -> None:
    before = kept(shell)
    key = shell.data / "node.key"
    key.write_bytes(before["node.key"][:-20])
    code, told = shell.refusal("node", apart=True)
    assert code == 1
    wrong = "(its last word, of 33 characters, is not a key)"
    assert (
        f"node.key is not a key file, or is damaged {wrong}: restore it from its backup; it was left unchanged" in told
    )
    assert shell.refusal("keys", "restore", str(key), "--data", "elsewhere") == (
        1, f"{key} is not a key file, or is damaged {wrong}: use another copy of the key; it was left unchanged",
    )  # fmt: skip
    assert shell.contents() == before | {"node.key": before["node.key"][:-20]}
    assert shell.refusal("keys", "show")[0] == shell.refusal("keys", "backup", "copy")[0] == 1
    key.unlink()
    code, told = shell.refusal("node", apart=True)
    assert code == 1
    assert "is missing, but the node's store is there: restore the key from its backup" in told
    key.mkdir()
    code, told = shell.refusal("node", apart=True)
    assert (code, told) == (
        1, f"cannot read the key file {key}: Is a directory; check its permissions; it was left unchanged",
    )  # fmt: skip
    key.rmdir()
    del before["node.key"]
    assert shell.contents() == before


def test_a_port_that_another_program_has_is_told(shell: Shell) -> None:
    before = kept(shell)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as other, socket.create_server(("127.0.0.1", 0)) as server:
        other.bind(("", 0))
        port, tcp_port = other.getsockname()[1], server.getsockname()[1]
        shared, own, stomp = shell.refused_nodes(
            ["--set", f"udp.port={port}"],
            ["--set", f"udp.unicast_port={port}", "--data", "second"],
            ["--set", f"stomp.port={tcp_port}", "--data", "third"],
        )
    assert shared[0] == own[0] == stomp[0] == 1
    assert stomp[1].startswith(f"cannot listen for STOMP clients at 127.0.0.1:{tcp_port}: Address already in use;")
    assert shared[1].startswith(
        f"UDP port {port} (setting udp.port) is in use by a program that does not share it: stop"
    )
    assert own[1].startswith(
        f"UDP port {port} (setting udp.unicast_port) is in use by another program or node: stop it"
    )
    after = shell.contents()
    assert {name: after[name] for name in ("node.key", "node.id")} == {
        name: before[name] for name in ("node.key", "node.id")
    }


def test_a_folder_that_cannot_be_used_is_told(shell: Shell) -> None:
    (shell.folder / "file").write_text("mine")
    (shell.folder / "notes").write_text("mine")
    # Not even the administrator may make a folder in the second one.
    folders = (("file/node", "Not a directory", 2), ("/sys/carrypost", "", 1))
    *found, control = shell.refused_nodes(
        *(["--data", folder] for folder, *_ in folders), ["--set", "node.control=notes"]
    )
    for (code, told), (folder, reason, expected) in zip(found, folders, strict=True):
        assert code == expected
        assert re.fullmatch(rf"cannot use the folder .*{folder}: {reason}.*; choose another folder \(data\)", told)
    assert control == (
        1, f"{shell.folder / 'notes'} is not a socket, and was left unchanged; choose another path in [node] control",
    )  # fmt: skip
    for name in ("file", "notes"):
        assert (shell.folder / name).read_text() == "mine"


@pytest.mark.parametrize(
    ("ahead_s", "set_back_s", "told"),
    [
        (0.4, 0.4, ""),
        (0.0, 3_600.4, "set back by 60 min since the node was started"),
        (172_800.0, 0.0, "the system's clock is 2 d behind this node's"),
    ],
)
def test_the_status_tells_of_a_clock_that_is_not_believed_or_was_set_back(
    ahead_s: float, set_back_s: float, told: str
) -> None:
    assert node._clock({"clock_ahead_s": ahead_s, "clock_set_back_s": set_back_s}) == told  # noqa: SLF001 - its words
