"""Ctrl-C, SIGTERM and SIGHUP at every moment of a command: no traceback, the promised exit code, nothing half done.

The moments are Python's audit events of the process. A signal that it sends to itself there arrives at exactly that
moment, whatever the machine is doing.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from tests.support import emulated
from tests.support.loopback import apart

PATIENCE_S = 60.0
ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
COMMAND = [sys.executable, "-c", "from carrypost.cli import main; main()"]
STRIKE = """
import os, sys
event, what, number = os.environ["STRIKE"].split("|")
def hook(name, args):
    global number
    if number and name == event and what in str(args[0]):
        number, struck = 0, int(number)
        os.kill(os.getpid(), struck)
sys.addaudithook(hook)
"""
ENDLESS = """
duration_s = 10_000_000
[contacts]
file = "contacts.csv"
"""


@pytest.fixture
def place(tmp_path: Path) -> Path:
    (tmp_path / "hook").mkdir()
    (tmp_path / "hook" / "sitecustomize.py").write_text(STRIKE)
    return tmp_path


def shown(code: int) -> int:
    """Return an exit code as a shell shows it: 128 plus the number of the signal that ended the process."""
    return 128 - code if code < 0 else code


def environment(place: Path, event: str, what: str, number: int) -> dict[str, str]:
    """Return a process that sends itself a signal at its first event of this kind with such a first argument."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith("CARRYPOST_")}
    path = os.pathsep.join(filter(None, (str(place / "hook"), kept.get("PYTHONPATH"))))
    ours = {"PYTHONPATH": path, "STRIKE": f"{event}|{what}|{number}", "HOME": str(place)}
    return kept | ours | {"CARRYPOST_UDP_INTERFACES": "lo", "CARRYPOST_UDP_PORT": str(apart()["port"])}


def started(place: Path, event: str, what: str, number: int, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(  # noqa: S603 - our own command
        [*COMMAND, *arguments], text=True, cwd=place, env=environment(place, event, what, number),
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip


def ended(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    """Return exit code, stdout and stderr of a process that was asked to end."""
    try:
        out, err = process.communicate(timeout=PATIENCE_S)
    finally:
        process.kill()
    return process.returncode, out, err


MOMENTS: Sequence[tuple[str, str]] = (
    ("import", "typer"),  # the command line's libraries
    ("import", "carrypost.cli._settings"),  # the command `node`
    ("os.exec", ""),  # becomes another program
    ("import", "carrypost.cli.serve"),  # which begins
    ("import", "carrypost.node.udp.udp"),  # the node's libraries
    ("sqlite3.connect", "store.sqlite"),  # opens its store
    ("socket.bind", ""),  # opens its sockets
)


def test_a_node_that_is_not_ready_ends_without_a_word_whenever_it_is_told_to(place: Path) -> None:
    cases = [(moment, signal.SIGINT) for moment in MOMENTS]
    cases += [(MOMENTS[at], number) for at in (2, 5) for number in (signal.SIGTERM, signal.SIGHUP)]

    def end(number: int) -> tuple[int, str, str]:
        (event, what), struck = cases[number]
        process = started(place, event, what, struck, "node", "--data", f"node-{number}")
        code, out, err = ended(process)
        return shown(code), out, err

    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(end, range(len(cases))))
    expected = [(128 + struck, "", "") for _, struck in cases]
    assert dict(zip(cases, found, strict=True)) == dict(zip(cases, expected, strict=True))
    left = {path.name for path in place.glob("node-*/*")}
    assert left <= {"lock", "node.id", "node.key", "store.sqlite", "store.sqlite.reserve"}


def test_a_node_that_is_ready_ends_in_order_by_each_signal_and_the_next_one_changes_nothing(place: Path) -> None:
    def end(number: int) -> tuple[int, str]:
        # The second one comes while the node ends: it takes its control socket away.
        process = started(place, "os.remove", "control.sock", number, "node", "--data", f"node-{number}")
        assert process.stdout is not None
        assert '"ready"' in process.stdout.readline()
        process.send_signal(number)
        code, _, err = ended(process)
        return code, err

    asking = (signal.SIGINT, signal.SIGTERM)  # By SIGHUP, without a terminal, settings are read again.
    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(end, asking)) == [(0, "")] * 2
    for number in asking:
        assert not (place / f"node-{number}" / "control.sock").exists()
        assert not (place / f"node-{number}" / "store.sqlite-wal").exists()


def test_a_node_under_nohup_outlives_its_terminal(place: Path) -> None:
    ignoring = "import signal; signal.signal(signal.SIGHUP, signal.SIG_IGN); from carrypost.cli import main; main()"
    with subprocess.Popen(  # noqa: S603 - our own command
        [sys.executable, "-c", ignoring, "node", "--data", "node"], text=True, cwd=place,
        env=environment(place, "never", "", 0), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:  # fmt: skip
        assert process.stdout is not None
        assert '"ready"' in process.stdout.readline()
        process.send_signal(signal.SIGHUP)
        process.send_signal(signal.SIGTERM)
        assert ended(process) == (0, "", "")


def test_a_run_that_is_ended_leaves_what_came_after_ctrl_c_and_otherwise_nothing(place: Path) -> None:
    emulated.contacts(place, "a,b,0,10000000")
    (place / "endless.toml").write_text(ENDLESS)

    def end(number: int) -> tuple[int, str, list[str]]:
        folder = place / f"run-{number}"
        folder.mkdir()
        process = started(place, "never", "", 0, "emu", "run", "endless.toml", "--out", f"run-{number}/record.jsonl")
        deadline_s = time.monotonic() + PATIENCE_S
        while not list(folder.iterdir()):
            assert process.poll() is None, process.communicate()
            assert time.monotonic() < deadline_s
            time.sleep(0.01)
        process.send_signal(number)
        code, out, err = ended(process)
        assert out == ""
        return code, err, [path.name for path in folder.iterdir()]

    with ThreadPoolExecutor(3) as pool:
        interrupted, terminated, hung_up = pool.map(end, ENDING)
    assert interrupted[0] == 130
    assert interrupted[1].startswith("carrypost: interrupted at ")
    assert interrupted[1].count("\n") == 1
    assert interrupted[2] == ["record.jsonl"]
    assert terminated == (143, "", [])
    assert hung_up == (129, "", [])


def test_a_command_with_a_node_inside_ends_in_order_while_that_starts_and_while_it_ends(place: Path) -> None:
    moments = [("sqlite3.connect", "store.sqlite", 130), ("os.remove", "control.sock", 0)]

    def end(number: int) -> tuple[int, str, bool]:
        event, what, _ = moments[number]
        command = ["sub", "-t", "x", "--for", "0.1", "-d", f"node-{number}", "--create"]
        process = started(place, event, what, signal.SIGINT, *command)
        code, out, err = ended(process)
        return shown(code), out, "Traceback" in err

    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(end, range(len(moments)))) == [(code, "", False) for _, _, code in moments]
    left = {path.name for path in place.glob("node-*/*")}
    assert left <= {"lock", "node.id", "node.key", "store.sqlite", "store.sqlite.reserve"}
