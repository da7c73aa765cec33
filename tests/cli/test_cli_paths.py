"""Paths on the command line: all commands agree on which paths are mistakes, and which ones the system refuses.

Commands and their parameters are read from the command line itself, so that a new one is tested, too.
"""

from __future__ import annotations

import functools
import inspect
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import typer
from tests.support import emulated
from tests.support.forked import forked

from carrypost.cli import _process
from carrypost.cli._output import line
from carrypost.cli.app import app, run
from carrypost.lab import folders
from carrypost.lab.schemas import POSITIONS
from carrypost.node.folder import write_key
from carrypost.security.identity import Identity

NOWHERE, THROUGH, UNREADABLE, UNWRITABLE = "no/such/thing", "file/thing", "/proc/self/mem", "/sys/carrypost"
"""Paths: to nothing, through a file, one that cannot be read, and one that cannot be created."""
NOBODY = 65_534
SETTINGS = {NOWHERE: 2, THROUGH: 2, UNREADABLE: 1}
INPUT = {NOWHERE: 2, THROUGH: 2}
HOME = {THROUGH: 2, UNWRITABLE: 1}
TABLES = {THROUGH: 2, UNWRITABLE: 1}
"""A folder that is made, with those above it."""
MESSAGES = {
    "pub": ["-t", "x", "--file", "file"], "send": ["-q", "x", "--file", "file"], "sub": ["-t", "x"],
    "receive": ["-q", "x"], "browse": ["-q", "x"], "ls": [], "bind": ["queue/x"], "unbind": ["x"], "console": [],
}  # fmt: skip
"""Commands that start a node if none runs, and their arguments; none makes a new one in a folder that is named."""
ASKING = ("stop", "status", "peers", "trace", "cache inspect", "cache purge")
"""Commands that need a node."""
CIRCLE = {
    "found": ["x"], "invite": ["x"], "join": ["CODE"], "show": [], "remove": ["x", "a" * 26], "rotate": ["x"],
    "leave": ["x"], "export": ["x"],
}  # fmt: skip
"""Commands about circles, and their arguments."""
ASKED = {NOWHERE: 4, THROUGH: 4, UNWRITABLE: 4}
OUTCOMES: dict[str, dict[str, int]] = {
    "node config": SETTINGS, "node data": HOME, "node record": HOME,
    **{f"{name} config": SETTINGS for name in ASKING}, **{f"{name} data": ASKED for name in ASKING},
    "doctor config": SETTINGS, "doctor data": {},  # It does not look at the folder.
    "keys show config": SETTINGS, "keys show data": {NOWHERE: 4, THROUGH: 4},  # There is no node.
    "keys backup file": {NOWHERE: 2, THROUGH: 2, UNWRITABLE: 1},
    "keys backup config": SETTINGS, "keys backup data": {NOWHERE: 4, THROUGH: 4},
    "keys restore file": {NOWHERE: 2, THROUGH: 2, UNREADABLE: 1},
    "keys restore config": SETTINGS, "keys restore data": HOME,
    "keys name config": SETTINGS, "keys name data": ASKED,
    **{f"circle {name} config": SETTINGS for name in CIRCLE}, **{f"circle {name} data": ASKED for name in CIRCLE},
    "keys card config": SETTINGS, "keys card data": ASKED, "keys add config": SETTINGS, "keys add data": ASKED,
    "modulators check file": {NOWHERE: 2, THROUGH: 2, UNREADABLE: 1},
    "modulators check event": {NOWHERE: 2, THROUGH: 2, UNREADABLE: 1}, "modulators check config": SETTINGS,
    "keys names config": SETTINGS, "keys names data": {NOWHERE: 0, UNREADABLE: 1},  # There are no names yet.
    "emu run scenario": {NOWHERE: 2, THROUGH: 2, UNREADABLE: 1},
    "emu run out": {f"{NOWHERE}.jsonl": 2, f"{THROUGH}.parquet": 2, f"{UNWRITABLE}.parquet": 1, "record.txt": 2},
    "emu run export_one": {NOWHERE: 2, THROUGH: 2, UNWRITABLE: 1},
    "emu calibrate scenario": {NOWHERE: 2, THROUGH: 2, UNREADABLE: 1},
    "emu calibrate out": {NOWHERE: 2, THROUGH: 2, UNWRITABLE: 1},
    "emu compare scenario": {NOWHERE: 2, THROUGH: 2, UNREADABLE: 1},
    "emu compare delays": {NOWHERE: 2, THROUGH: 2, UNREADABLE: 1, "file": 1},
    "emu show records": INPUT | {".": 2, UNREADABLE: 1, "file": 1, "torn.jsonl": 1, "headless.jsonl": 1},
    "emu soak out": {},  # It is made when a seed fails, and none does.
    "lab ingest files": INPUT | {"torn.csv.gz": 1}, "lab ingest out": TABLES,
    "lab ingest contacts": INPUT,
    "lab contacts positions": INPUT | {"torn.parquet": 1}, "lab contacts out": TABLES,
    "lab campaign file": INPUT | {UNREADABLE: 1}, "lab campaign out": TABLES,
    "lab metrics folder": INPUT, "lab metrics out": {},  # Only Spark writes there.
    "lab report folder": INPUT, "lab report out": {f"{THROUGH}.html": 2, f"{UNWRITABLE}.html": 1, "page.pdf": 2},
    "lab metrics plugin": INPUT | {UNREADABLE: 1}, "lab report plugin": INPUT | {UNREADABLE: 1},
    "lab stream source": INPUT, "lab stream out": TABLES,
    "web paths": INPUT | {UNREADABLE: 1, "file": 1}, "web scenario": INPUT, "web positions": INPUT,
    "web node": {},  # A page waits for the node of a folder, also if that does not exist yet.
    "reproduce out": TABLES, "demo record": TABLES, "examples folder": TABLES,
    "pub file": {NOWHERE: 2, THROUGH: 2, UNREADABLE: 1}, "send file": {NOWHERE: 2, THROUGH: 2, UNREADABLE: 1},
    **{f"{name} config": SETTINGS for name in MESSAGES}, **{f"{name} data": ASKED for name in MESSAGES},
}  # fmt: skip
"""By command and parameter, what a path given there ends with."""
REST = {
    "keys backup": ["copy"], "keys restore": ["key"], "modulators check": ["file"], "keys name": ["a" * 26, "anna"],
    **{f"circle {name}": given for name, given in CIRCLE.items()}, "keys add": ["CARD"],
    "emu run": ["scene.toml"], "emu show": ["record.jsonl"], "emu soak": ["--seeds", "1"],
    "emu calibrate": ["scene.toml", "--out", "delays.json"], "emu compare": ["scene.toml", "--delays", "file"],
    "lab ingest": ["contacts.csv", "--format", "contacts-csv", "--scenario", "s", "--out", "made", "--engine", "local"],
    "lab contacts": ["made", "--range-m", "5", "--out", "near", "--engine", "local"],
    "lab campaign": ["campaign.toml", "--out", "results"], "lab metrics": ["made"], "lab report": ["made"],
    "lab stream": ["made"], "reproduce": ["bus", "--quick"], **MESSAGES,
    "trace": ["firstMSG"], "cache purge": ["firstMSG"],
}  # fmt: skip
"""Further arguments that a command needs, in the place of its parameters."""
SCENE = 'duration_s = 10\n[contacts]\nfile = "contacts.csv"\n'


def commands(command: Any, *above: str) -> Iterator[tuple[str, Any]]:  # noqa: ANN401 - typer has no public type for it
    """Yield every command, by the words that call it."""
    if hasattr(command, "commands"):
        for name, each in command.commands.items():
            yield from commands(each, *above, name)
    else:
        yield " ".join(above), command


def paths_of(function: Callable[..., None]) -> set[str]:
    """Return the names of a function's parameters that are paths."""
    return {name for name, each in inspect.signature(function).parameters.items() if "Path" in str(each.annotation)}


COMMANDS = dict(commands(typer.main.get_command(app)))
PATHS = {
    f"{name} {each.name}": each
    for name, command in COMMANDS.items()
    for each in command.params
    if each.name in paths_of(command.callback)
}
"""Every parameter that is a path."""


def arguments(case: str, value: str) -> list[str]:
    """Return a command line with this value for a parameter, and the other arguments that the command needs."""
    name, parameter = case.rpartition(" ")[0], PATHS[case]
    rest = list(REST.get(name, []))
    if parameter.param_type_name == "argument":
        return [*name.split(), value, *rest[1:]]
    if parameter.opts[0] in rest:
        at = rest.index(parameter.opts[0])
        del rest[at : at + 2]
    return [*name.split(), *rest, f"{parameter.opts[0]}={value}"]


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a current folder with one of everything."""
    monkeypatch.chdir(tmp_path)
    for name in [name for name in os.environ if name.startswith("CARRYPOST_")]:
        monkeypatch.delenv(name)
    for name, value in {"HOME": str(tmp_path), "XDG_DATA_HOME": str(tmp_path / "share"), "COLUMNS": "400"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("CARRYPOST_UDP_INTERFACES", "lo")
    (tmp_path / "file").write_text("mine")
    emulated.contacts(tmp_path, "a,b,1,5")
    (tmp_path / "scene.toml").write_text(SCENE)
    (tmp_path / "campaign.toml").write_text('scenarios = ["scene.toml"]\nseeds = [1]\n')
    (tmp_path / "torn.csv.gz").write_bytes(b"\x1f\x8b\x08\x00 torn")
    (tmp_path / "torn.parquet").write_bytes(b"PAR1 torn")
    (tmp_path / "torn.jsonl").write_text("{")
    (tmp_path / "made").mkdir()
    return tmp_path


def ends(case: str, value: str) -> int:
    """The exit code of a command; a node, which takes signals and logging for itself, has a process of its own."""
    if case in {"node data", "node record"}:
        given = [*arguments(case, value), *(["--data=node"] if case == "node record" else [])]
        code, _, told = forked(given)
        assert told.count("\n") == 1, told
        return code
    return run(arguments(case, value))


def test_every_path_of_every_command_is_in_the_table() -> None:
    assert PATHS.keys() == OUTCOMES.keys()


@pytest.mark.parametrize("arguments", [["emu", "run", "scene.toml", "--seed"], ["emu", "show"], ["node", "--data"]])
def test_arguments_that_are_no_utf8_are_told_by_their_bytes(
    arguments: list[str], place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run([*arguments, "caf\udce9"]) == 2
    assert capsys.readouterr().err == (
        "carrypost: the argument 'caf\\xe9' is not UTF-8 text; if it names a file, rename the file\n"
    )
    assert not (place / "share").exists()


def test_a_folder_that_is_no_utf8_is_told_in_json_with_escapes(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = place / "caf\udce9"
    folder.mkdir()
    os.chdir(folder)
    (folder / "campaign.toml").write_text('scenarios = ["../scene.toml"]\nseeds = [1]\n')
    line({"folder": str(Path.cwd())})
    assert json.loads(capsys.readouterr().out) == {"folder": str(folder)}


@pytest.mark.parametrize("case", PATHS)
def test_an_empty_text_is_no_path(case: str, capsys: pytest.CaptureFixture[str], place: Path) -> None:
    before = sorted(place.rglob("*"))
    assert run(arguments(case, "")) == 2
    assert "a path must not be empty" in capsys.readouterr().err
    assert sorted(place.rglob("*")) == before


@pytest.mark.parametrize("case", [case for case in PATHS if OUTCOMES.get(case)])
def test_what_was_typed_wrong_ends_with_2_and_what_the_machine_refuses_with_1(
    case: str, place: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def not_here(_order: object) -> int:
        raise AssertionError("a node would run in the process of the test")

    monkeypatch.setattr(_process, "become", not_here)
    write_key(Identity.generate(), place / "key")
    if case.startswith(("emu show", "keys backup file")):
        assert run(["emu", "run", "scene.toml", "--out", "record.jsonl"]) == 0
        (place / "headless.jsonl").write_text(
            "".join((place / "record.jsonl").read_text().splitlines(keepends=True)[1:])
        )
        Path("share/carrypost").mkdir(parents=True)
        write_key(Identity.generate(), Path("share/carrypost/node.key"))
    if case.startswith("lab"):
        rows = [("s", node, t, 0.0, 0.0) for node in "ab" for t in (0.0, 1.0)]
        folders.write_arrow(
            pa.table(dict(zip(POSITIONS.names, zip(*rows, strict=True), strict=True)), POSITIONS.arrow),
            place / "made",
            POSITIONS,
        )
    capsys.readouterr()
    found = {}
    for value in OUTCOMES[case]:
        found[value] = ends(case, value)
        shown = capsys.readouterr()
        assert "Traceback" not in shown.err
        assert "Invalid value" not in shown.err or value in {"record.txt", "page.pdf"}
    assert found == OUTCOMES[case]
    assert not list(place.rglob("*.partial"))


def test_a_folder_that_is_to_be_made_and_cannot_is_told_as_that_of_a_node(place: Path) -> None:
    given = ["pub", "-t", "x", "hello", "--create", "--data"]
    assert {value: run([*given, value]) for value in HOME} == HOME
    assert (place / "file").read_text() == "mine"


@pytest.mark.skipif(os.name != "posix" or os.geteuid() != 0, reason="only the administrator can be somebody else")
@pytest.mark.parametrize("command", ["node", "keys show", "keys names", "keys name", "emu run", "status"])
def test_what_belongs_to_another_user_is_told_so(command: str, place: Path) -> None:
    theirs = place / "theirs"
    theirs.mkdir(mode=0o700)
    os.chown(theirs, NOBODY - 1, NOBODY - 1)
    given = {
        "keys name": ["a" * 26, "anna", "--data", "theirs"],
        "emu run": ["scene.toml", "--out", "theirs/record.jsonl"],
    }.get(command, ["--data", "theirs"])
    for each in (place, *list(place.parents)[:2]):
        each.chmod(0o755)
    code, told = as_nobody([*command.split(), *given])
    assert "belongs to another user" in told
    assert told.count("\n") == 1
    assert code == (4 if command == "status" else 1)


@functools.cache
def load_commands() -> None:
    """Run each kind of command once, so that a copy of this process finds their modules loaded."""
    run(["emu", "run", "scene.toml"])
    run(["status", "--data", "none"])
    run(["keys", "names", "--data", "none"])


def as_nobody(arguments: list[str]) -> tuple[int, str]:
    """Run a command as another user, in a fork of this process, which has loaded its modules."""
    load_commands()

    def become_nobody() -> None:
        os.setresgid(NOBODY, NOBODY, NOBODY)
        os.setresuid(NOBODY, NOBODY, NOBODY)

    code, _, told = forked(arguments, become_nobody)
    return code, told
