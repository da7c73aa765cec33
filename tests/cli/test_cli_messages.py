"""The commands that send, receive, browse and name, on a real node, inside of themselves, and without either."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import io
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pexpect
import pytest
import typer
from tests.support.jms_scenes import scene
from tests.support.shells import COMMAND, PATIENCE_S, Shell
from tests.support.waiting import eventually

from carrypost import ConnectionFactory, IllegalStateException, SessionMode, testing
from carrypost.attach.provider import AttachedProvider
from carrypost.cli import _joining, _message_options, _messages, _options, _output
from carrypost.cli.app import app
from carrypost.errors import NoNodeError
from carrypost.jms.provider import NODE_ENDED

COMMANDS = ("pub", "send", "sub", "receive", "browse", "ls", "bind", "unbind")
QUESTIONS = ("status", "trace", "cache inspect", "cache purge", "keys show", "keys names")
EMBEDS = "this command runs its own node until it ends"


def typed(monkeypatch: pytest.MonkeyPatch, text: bytes) -> None:
    """Let the next command read this on stdin."""
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text)))


def bodies(shell: Shell, *arguments: str) -> list[object]:
    return [each["body"] for each in shell.lines(*arguments)]


@pytest.fixture(scope="module")
def noded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shell]:
    """A shell beside a node that runs, for all tests: each has topics and queues of its own."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        made = Shell(tmp_path_factory.mktemp("noded"), monkeypatch)
        overlay = ("island=true", "overlay.enabled=true", "overlay.broker=true", "overlay.modulators=any")
        made.copied_node(*[part for each in overlay for part in ("--set", each)])
        yield made
        made.clean_up()


# --- topics ---------------------------------------------------------------------------------------------------------


def test_what_is_published_is_stored_and_a_subscriber_prints_it_with_types(noded: Shell) -> None:
    given = ["language=English", "level=3", "hot=true", "share=0.5", "phone=0049", "code:string=7", "age:byte=9"]
    given += ["heat:double=nan", "most:float=Infinity", "least:double=-inf"]
    props = [part for each in given for part in ("--prop", each)]
    (stored,) = noded.lines("pub", "-t", "village.roads", "Hello", *props, "--id", "first", "--ttl", "6h")
    assert (stored["event"], stored["destination"], stored["neighbours"]) == ("stored", "topic/village.roads", 0)
    noded.lines("pub", "-t", "village.roads", "-p", "Salut", "--prop", "language=French")
    (message,) = noded.lines("sub", "-t", "village.>", "--select", "language = 'English'", "--count", "1")
    assert message["id"] == stored["id"]
    assert (message["body"], message["type"], message["label"]) == ("Hello", "text", "first")
    assert message["properties"] == {
        "language": "English", "level": 3, "hot": True, "share": 0.5, "phone": "0049", "code": "7", "age": 9,
        "heat": "NaN", "most": "Infinity", "least": "-Infinity",
    }  # fmt: skip
    assert stored["expires"] == message["expires"]
    assert bodies(noded, "sub", "-t", "village.>", "--count", "1") == ["Salut"], "the other one was consumed here"


def test_templates_are_filled_in_and_sent_as_often_and_as_fast_as_was_asked(noded: Shell) -> None:
    before_s = time.monotonic()
    noded.lines("pub", "-t", "load", "--count", "3", "--every", "0.1", "n {n} {time}{x}")
    assert time.monotonic() - before_s >= 0.2
    found = bodies(noded, "sub", "-t", "load", "--count", "3")
    assert [re.sub(r"\d{4}-.*(?={x})", "TIME", str(text)) for text in found] == [f"n {n} TIME{{x}}" for n in (1, 2, 3)]
    assert len(noded.lines("pub", "-t", "many", "--count", "200", "n {n}")) == 200
    assert bodies(noded, "sub", "-t", "many", "--count", "200") == [f"n {n}" for n in range(1, 201)]


def test_bodies_come_from_stdin_and_files_and_stay_what_they_are(noded: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    typed(monkeypatch, b"{n} typed\n\n")
    noded.lines("pub", "-t", "kinds")
    (noded.folder / "letter.txt").write_bytes("{n} Grüße\n".encode())
    noded.lines("pub", "-t", "kinds", "--file", "letter.txt")
    (noded.folder / "picture").write_bytes(bytes(range(256)))
    noded.lines("pub", "-t", "kinds", "--file", "picture")
    noded.lines("pub", "-t", "kinds", "")
    first, second, third, fourth = noded.lines("sub", "-t", "kinds", "--count", "4")
    assert (first["body"], second["body"]) == ("{n} typed\n", "{n} Grüße\n")
    assert base64.b64decode(third["body_base64"]) == bytes(range(256))
    assert (third["type"], fourth.get("body", "")) == ("bytes", "")


def test_a_durable_subscription_collects_between_two_commands_until_it_is_ended(noded: Shell) -> None:
    collect = ("sub", "-t", "news", "--durable", "inbox")
    assert bodies(noded, *collect, "--for", "0.2") == []
    noded.lines("pub", "-t", "news", "one")
    noded.lines("pub", "-t", "news", "two")
    assert bodies(noded, *collect, "--count", "1") == ["one"]
    assert bodies(noded, *collect, "--count", "1") == ["two"], "what was not printed was not consumed"
    noded.lines("sub", "--durable", "inbox", "--end")
    code, sentence = noded.refusal("sub", "--durable", "inbox", "--end")
    assert (code, "inbox" in sentence) == (2, True)


def test_events_of_a_channel_go_by_a_broker_which_runs_the_modulator_that_was_asked_for(noded: Shell) -> None:
    half = ("sub", "-t", "rivers", "--channel", "--durable", "half", "--modulator", "synthetic", "--param", "ratio=0.5")
    high = ("sub", "-t", "rivers", "--channel", "--durable", "high", "--select", "level > 2")
    for each in (half, high):
        assert noded.lines(*each, "--for", "0.5") == []
    (stored,) = noded.lines("pub", "-t", "rivers", "--channel", "It rises", "--prop", "level=2")
    assert stored["destination"] == "channel/rivers"
    noded.lines("pub", "-t", "rivers", "--channel", "It rises more", "--prop", "level=3")
    first, second = noded.lines(*half, "--count", "2", "--for", "20")
    assert (first["body"], first["destination"], first["properties"]) == ("It r", "channel/rivers", {"level": 2})
    assert second["body"] == "It ris"
    assert bodies(noded, *high, "--count", "1", "--for", "20") == ["It rises more"]
    (found,) = noded.lines("status")
    overlay = found["overlay"]
    assert (overlay["emitted"], overlay["consumed"], overlay["lost"], len(overlay["seats"])) == (2, 4, 0, 2)
    assert overlay["homes"] == {"rivers": found["node"]}
    for name in ("half", "high"):
        noded.lines("sub", "--durable", name, "--end")
    code, sentence = noded.refusal("sub", "-t", "rivers", "--channel", "--modulator", "box", "--param", "area=[1]")
    assert (code, "does not accept these parameters" in sentence) == (2, True)


def test_a_real_broker_compiles_and_runs_the_module_that_was_asked_for(noded: Shell) -> None:
    pytest.importorskip("wasmtime", reason="WebAssembly modulators need the extra: pip install '.[wasm]'")
    file = Path(__file__).parents[2] / "examples" / "modulators" / "every_nth.wat"
    second = ("sub", "-t", "lakes", "--channel", "--durable", "second", "--modulator", str(file), "--param", "hex=02")
    assert noded.lines(*second, "--for", "0.5") == []
    for body in ("one", "two"):
        noded.lines("pub", "-t", "lakes", "--channel", body)
    assert bodies(noded, *second, "--count", "2", "--for", "60") == ["two", "2"]
    noded.lines("sub", "--durable", "second", "--end")


def test_without_a_node_a_command_is_one_and_what_it_stored_leaves_once_a_node_runs(shell: Shell) -> None:
    code, out, err = shell.run("pub", "-t", "news", "early")
    assert (code, json.loads(out)["event"]) == (0, "stored")
    made, stored = "carrypost: made a new node in {}\n", "messages are stored there, and sent once a node runs"
    assert err == made.format(shell.data) + f"carrypost: no node runs in {shell.data}: {stored} (carrypost node)\n"
    code, out, err = shell.run("sub", "-t", "news", "--count", "1")
    assert (code, json.loads(out)["body"], err) == (0, "early", f"carrypost: no node runs in {shell.data}: {EMBEDS}\n")
    shell.copied_node()
    other = ["--data", "other", "--create"]
    code, out, err = shell.run("sub", *other, "-t", "news", "--count", "1", "--for", str(PATIENCE_S))
    assert (code, json.loads(out)["body"], json.loads(out)["hops"]) == (0, "early", 1)
    assert err.startswith(made.format(shell.folder / "other"))
    code, out, err = shell.run("pub", "-t", "news", "late", "--data", "other")
    stored = f"no node runs in {shell.folder / 'other'}: {stored} (carrypost node --data other)"
    assert (code, err) == (0, f"carrypost: {stored}\n")


CREATING = {
    "pub": ["-t", "x", "hello"], "send": ["-q", "x", "hello"], "sub": ["-t", "x"], "receive": ["-q", "x"],
    "bind": ["queue/x"], "console": [],
}  # fmt: skip
USING: dict[str, list[str]] = {
    "browse": ["-q", "x"], "ls": [], "unbind": ["x"], "sub": ["--durable", "x", "--end"], "status": [], "peers": [],
    "trace": ["x"], "cache inspect": [], "keys name": ["a" * 26, "anna"],
}  # fmt: skip


def test_a_folder_that_is_mistyped_gets_no_node(shell: Shell) -> None:
    (shell.folder / "there").mkdir()
    for folder in ("typo", "there"):
        told = f"there is no node in {shell.folder / folder}: check the folder (--data), or "
        for name, rest in CREATING.items():
            given = [name, *rest, "--data", folder]
            assert shell.refusal(*given) == (4, f"{told}add --create to make one there"), name
        for name, rest in USING.items():
            given = [*name.split(), *rest, "--data", folder]
            assert shell.refusal(*given) == (4, f"{told}make one with: carrypost node --data {folder}"), name
    assert [path.name for path in shell.folder.iterdir()] == ["there"]
    assert list((shell.folder / "there").iterdir()) == []
    told = f"there is no node in {shell.data} yet; make one with: carrypost node"
    for name, rest in USING.items():
        if name != "keys name":
            assert shell.refusal(*name.split(), *rest) == (4, told), name
    assert not shell.data.exists()


# --- queues and names -----------------------------------------------------------------------------------------------


def test_a_queue_is_declared_sent_to_browsed_received_from_and_ended(noded: Shell) -> None:
    (bound,) = noded.lines("bind", "queue/Alan")
    name, _, node = bound["name"].partition("@")
    assert (name, bound["destination"]) == ("Alan", f"queue/Alan@{node}")
    for body, urgency in (("one", 1), ("two", 5)):
        noded.lines("send", "-q", "Alan", body, "--prop", f"urgency={urgency}")
    assert bodies(noded, "browse", "-q", "Alan") == ["one", "two"]
    assert bodies(noded, "browse", "-q", bound["name"], "--count", "1") == ["one"]
    assert bodies(noded, "browse", "-q", bound["destination"], "--count", "1") == ["one"]
    assert {each["destination"] for each in noded.lines("browse", "-q", "Alan")} == {bound["destination"]}
    assert bodies(noded, "receive", "-q", "Alan", "--select", "urgency > 3") == ["two"]
    assert bodies(noded, "receive", "-q", "Alan") == ["one"]
    code, out, err = noded.run("browse", "-q", "Alan")
    assert (code, out, err) == (0, "", "carrypost: Alan is empty\n")
    noded.lines("bind", "roads", "topic/village.roads", "--private")
    assert {"Alan", "roads"} <= {each["name"] for each in noded.lines("ls")}
    assert {"name": "village.roads", "destination": "topic/village.roads"} in noded.lines("ls", "topic")
    assert noded.refusal("bind", "roads", "topic/other")[0] == 2
    noded.lines("bind", "roads", "topic/other", "--replace")
    assert noded.run("unbind", "queue/Alan") == (0, "", "")
    assert noded.run("unbind", "roads") == (0, "", "")
    assert not re.search('"(Alan|roads)"', noded.run("ls")[1])


def test_what_a_command_prints_as_an_address_is_taken_by_others(noded: Shell) -> None:
    for name in ("in.full", "in.full?order=causal"):
        place = f"topic/{name}"
        (stored,) = noded.lines("pub", "-t", name, "hello", "--id", name)
        (found,) = noded.lines("sub", "-t", stored["destination"], "--count", "1", "--for", str(PATIENCE_S))
        assert (found["body"], found["destination"], stored["destination"]) == ("hello", place, place)
        noded.lines("bind", "other", found["destination"])
        assert {"name": "other", "destination": place} in noded.lines("ls")
        assert noded.run("unbind", "other") == (0, "", "")


def test_a_receipt_tells_that_a_receiver_has_it(noded: Shell) -> None:
    noded.lines("bind", "queue/Rosa", "--lease", "1h")
    receiver = noded.beside("receive", "-q", "Rosa")
    stored, delivered = noded.lines("send", "-q", "Rosa", "hello", "--receipt", "--for", str(PATIENCE_S))
    code, out, err = receiver.ended()
    assert (code, json.loads(out)["id"], err) == (0, stored["id"], "")
    assert delivered == {"event": "delivered", "id": stored["id"]}


# --- exit codes -----------------------------------------------------------------------------------------------------

MISTAKES = {
    ("pub", "hello"): "a topic is required",
    ("send", "hello"): "a queue is required",
    ("pub", "-t", "x", "-q", "y", "hello"): "carrypost send -q y",
    ("pub", "-t", "queue/y", "hello"): "queue/y is a queue: use -q",
    ("send", "-q", "topic/x", "hello"): "topic/x is a topic: use -t",
    ("send", "-t", "x", "-q", "y", "hello"): "carrypost pub -t x",
    ("receive", "-t", "x", "-q", "y"): "carrypost sub -t x",
    ("browse", "-t", "x"): "carrypost sub -t x",
    ("sub", "-t", "x", "-q", "y"): "carrypost receive -q y",
    ("sub", "-t", "x", "--for", "0"): "--for must be greater than 0",
    ("sub", "--end"): "--end requires the name of a subscription",
    ("pub", "-t", "x", "hello", "-p", "hello"): "more than once",
    ("pub", "-t", "x", "hello", "--prop", "language"): "'language' must be NAME=VALUE",
    ("pub", "-t", "x", "hello", "--prop", "=English"): "must be NAME=VALUE",
    ("pub", "-t", "x", "hello", "--prop", "level:itn=3"): "did you mean int?",
    ("pub", "-t", "x", "hello", "--prop", "level:int=three"): "'three' is not a valid int",
    ("pub", "-t", "x", "hello", "--prop", "level:byte=300"): "300",
    ("pub", "-t", "x", "hello", "--prop", "level:float=1e39"): "'1e39' is out of the range of float",
    ("pub", "-t", "x", "hello", "--prop", "level=1e999"): "'1e999' is out of the range of double",
    ("pub", "-t", "x", "hello", "--prop", "not-a-name=3"): "not-a-name",
    ("pub", "-t", "x", "hello", "--ttl", "0"): "must be greater than 0",
    ("pub", "-t", "village roads", "hello"): "Did you mean 'village.roads'?",
    ("sub", "-t", "village."): "none may be empty",
    ("send", "-q", "my jobs", "hello"): "'my jobs' cannot be the name of a queue",
    ("pub", "-t", "x", "hello", "--for", "3"): "add --receipt",
    ("pub", "-t", "x", "hello", "--receipt", "--every", "1"): "requires --count",
    ("pub", "-t", "x", "--file", "nowhere"): "nowhere cannot be read",
    ("pub", "-t", "x", "hello", "--set", "client_id=3"): "client_id",
    ("sub", "-t", "x", "--modulator", "box"): "add --channel",
    ("sub", "-t", "x", "--channel", "--param", "a=1"): "requires --modulator",
    ("sub", "-t", "x", "--channel", "--modulator", "bax"): "did you mean box?; if brokers have it, give its version",
    ("sub", "-t", "x", "--channel", "--modulator", "box:new"): "as in box:1",
    ("sub", "-t", "x", "--channel", "--modulator", "no.wasm"): "no.wasm cannot be read",
    (
        "sub",
        "-t",
        "x",
        "--channel",
        "--modulator",
        "no.wasm",
        "--param",
        "a=1",
    ): "one parameter, its bytes in hexadecimal",
    ("sub", "-t", "x", "--channel", "--modulator", "no.wasm", "--param", "hex=x"): "pairs of hexadecimal digits",
    ("sub", "-t", "x", "--channel", "--modulator", "box", "--param", "area"): "must be NAME=VALUE",
    ("sub", "-t", "x", "--channel", "--modulator", "box", "--param", "area=[1"): "the value must be JSON",
}


@pytest.mark.parametrize("arguments", MISTAKES, ids=" ".join)
def test_a_mistake_is_told_in_one_sentence_before_a_node_is_looked_for(
    arguments: tuple[str, ...], shell: Shell
) -> None:
    code, sentence = shell.refusal(*arguments)
    assert code == 2
    assert MISTAKES[arguments] in sentence
    assert not shell.data.exists()


@pytest.mark.parametrize(
    "arguments", [("sub", "x"), ("pub", "x", "hello"), ("receive", "x"), ("browse", "x")], ids=" ".join
)
def test_a_name_without_its_option_is_a_mistake_that_says_which_option(
    arguments: tuple[str, ...], shell: Shell
) -> None:
    code, out, err = shell.run(*arguments)
    assert (code, out) == (2, "")
    assert ("Name the topic with -t." if arguments[0] in {"sub", "pub"} else "Name the queue with -q.") in err


@pytest.mark.parametrize("named", [("-t", "x"), ("--topic=x",)])
def test_a_body_of_several_words_is_a_mistake_that_says_so(named: tuple[str, ...], shell: Shell) -> None:
    code, _, err = shell.run("pub", *named, "two", "words")
    assert code == 2
    assert "Put a body of several words in quotes." in " ".join(err.replace("│", "").split())
    assert "Name the topic" not in err


def test_only_a_change_that_was_made_is_said_to_be_stored(shell: Shell) -> None:
    assert "the change is stored there" in shell.run("bind", "queue/jobs")[2]
    for command, told in {
        ("unbind", "queue/nobody"): "nobody",
        ("bind", "queue/more", "--tries", "10001"): "from 1 to 10,000",
        ("circle", "invite", "rescue"): "not in a circle",
        ("circle", "show"): "in no circle",
    }.items():
        _, _, err = shell.run(*command)
        assert told in err
        assert "the change is stored there" not in err


def test_a_circle_is_shown_to_programs_by_values_and_to_people_by_words(noded: Shell) -> None:
    assert noded.run("circle", "found", "shown")[0] == 0
    (row,) = noded.lines("circle", "show", "shown")
    (member,) = row["members"]
    assert (row["owner"], row["readable"], row["removed"]) == (True, True, [])
    said = noded.terminal("circle", "show", "shown")
    assert re.search(r"owner\s+yes\b", said)
    assert re.search(rf"members\s+{member}\b", said)
    assert noded.run("circle", "leave", "shown")[0] == 0


@pytest.mark.parametrize("text", ["soon", "-3", "3x", "", "1e3"])
def test_a_text_that_is_no_length_of_time_is_refused(text: str, shell: Shell) -> None:
    assert [_message_options.length_s(each) for each in ("90", "1.5", "2 min", "6h", "2d")] == [
        90,
        1.5,
        120,
        21_600,
        172_800,
    ]
    code, out, err = shell.run("sub", "-t", "x", f"--for={text}")
    assert (code, out) == (2, "")
    shown = " ".join(re.sub(r"[│\n]", " ", err).split())
    assert "must be a length of time: seconds, or 30min, 6h, 2d" in shown


def test_a_body_that_never_comes_on_stdin_is_a_mistake(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", None)
    code, sentence = shell.refusal("pub", "-t", "x")
    assert (code, "stdin is closed" in sentence) == (2, True)
    typed(monkeypatch, b"")
    code, sentence = shell.refusal("pub", "-t", "x")
    assert (code, "stdin was empty" in sentence) == (2, True)


def test_what_the_node_refuses_is_a_mistake_and_names_what_is_near(noded: Shell) -> None:
    noded.lines("bind", "queue/Alan")
    for command in ("send", "receive", "browse"):
        code, sentence = noded.refusal(command, "-q", "Alam", *(["hello"] if command == "send" else []))
        assert (code, "near it: 'Alan'" in sentence, "ctx." in sentence) == (2, True, False)
    code, sentence = noded.refusal("sub", "-t", "x", "--select", "a = = 3")
    assert (code, "5" in sentence) == (2, True), "the position"
    assert noded.refusal("pub", "-t", "village.>", "hello")[0] == 2
    code, sentence = noded.refusal("pub", "-t", "village.roads", "hello", "--ttl", "60d")
    assert (code, "at most 30 days on this node (lifetime_s_max), not 60 days" in sentence) == (2, True)
    assert noded.refusal("unbind", "queue/Carl")[0] == 2
    assert noded.refusal("unbind", "carl")[0] == 2
    assert noded.refusal("sub", "--durable", "none", "--end") == (2, "there is no durable subscription 'none' here")
    code, sentence = noded.refusal("bind", "Carl")
    assert (code, "carrypost bind queue/Carl" in sentence) == (2, True)


def test_fewer_than_were_asked_for_end_with_3(noded: Shell) -> None:
    noded.lines("pub", "-t", "fewer", "one")
    noded.lines("bind", "queue/Fred")
    code, out, err = noded.run("sub", "-t", "fewer", "--count", "2", "--for", "1")
    assert (code, json.loads(out)["body"], err) == (3, "one", "carrypost: 1 of 2 messages came within 1.0 s\n")
    assert noded.run("receive", "-q", "Fred", "--for", "0.2") == (3, "", "carrypost: no message came within 0.2 s\n")
    assert noded.run("receive", "-q", "Fred", "--for", "0")[0] == 3
    code, _, err = noded.run("send", "-q", "Fred", "hello", "--receipt", "--for", "0.2")
    assert (code, "no receipt for" in err) == (3, True)
    code, _, err = noded.run("pub", "-t", "fewer", "hello", "--receipt", "--for", "0.2")
    assert (code, "no receipt for" in err) == (3, True)
    code, _, err = noded.run("browse", "-q", f"Fred@{'a' * 26}", "--for", "0.2")
    assert (code, "did not answer within 0.2 s" in err) == (3, True)


def test_sub_and_receive_go_on_when_their_node_is_back(shell: Shell) -> None:
    node = shell.copied_node()
    shell.lines("bind", "queue/Fred")
    reader, receiver = shell.beside("sub", "-t", "x"), shell.beside("receive", "-q", "Fred")
    shell.lines("pub", "-t", "x", "hello")
    assert "hello" in reader.out.readline()
    # Were it slow to attach, it would find no node, and run its own.
    eventually(lambda: shell.lines("status")[0]["messaging"]["receiving"] == 1)
    assert node.end() == (0, "", "")
    shell.copied_node()
    shell.lines("pub", "-t", "x", "again")
    shell.lines("send", "-q", "Fred", "letter")
    found = reader.out.readline()
    if '"redelivered":true' in found:  # The node ended before it knew that the first was printed.
        assert "hello" in found
        found = reader.out.readline()
    assert "again" in found
    code, out, err = reader.end(signal.SIGINT)
    assert (code, out, err.count("\n"), "lost the connection to the node" in err) == (130, "", 1, True)
    code, out, _ = receiver.ended()
    assert (code, "letter" in out) == (0, True)


def test_a_node_that_ends_meanwhile_is_no_node_and_a_folder_in_use_without_a_socket_is_running(shell: Shell) -> None:
    node = shell.copied_node()
    shell.lines("bind", "queue/Fred")
    sender = shell.beside("send", "-q", "Fred", "hello", "--receipt", "--for", "60")
    assert "stored" in sender.out.readline()
    assert node.end() == (0, "", "")
    assert sender.ended() == (4, "", "carrypost: the node has ended; start one with: carrypost node\n")
    shell.copied_node("--set", "node.control=elsewhere.sock")
    code, sentence = shell.refusal("pub", "-t", "x", "hello")
    assert (code, str(shell.data) in sentence) == (5, True)


def test_a_node_that_ends_while_a_command_attaches_is_no_node(noded: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    async def lost(*_: object) -> int:
        raise IllegalStateException("the node has ended", NODE_ENDED)

    monkeypatch.setattr(AttachedProvider, "connect", lost)
    sentence = "the node has ended; start one with: carrypost node"
    assert noded.refusal("pub", "-t", "x", "hello") == (4, sentence)


@scene("s", "h", island=True, island_s_min=0.5)
async def test_sub_reports_what_no_call_raises_and_ends_with_its_node(
    net: testing.Network, capsys: pytest.CaptureFixture[str]
) -> None:
    async with net.context("h") as ctx:
        await ctx.declare_topic("news")
    await net.run(30)
    async with net.context("s", SessionMode.INDIVIDUAL_ACKNOWLEDGE) as ctx:
        factory = cast("ConnectionFactory", SimpleNamespace(settings=None, mode="embedded"))
        joined = _joining.Joined(ctx, factory, _options.Node(data=Path("my folder")).start, json=True)
        wish = _messages.SubscribeOptions("holder/news@h")
        command = asyncio.ensure_future(
            _joining.run_body(joined, lambda joined: _messages.subscribe(joined, wish, count=None, limit_s=None))
        )
        await net.run(5)
        net.unlink("s", "h")
        await net.run(60)
        assert capsys.readouterr().err.startswith(
            "carrypost: the consumer of holder/news@h receives no more messages: "
        )
        assert not command.done()
        assert not await joined.has_ended()
        net.kill("s")
        start = "start one with: carrypost node --data 'my folder'"
        with pytest.raises(NoNodeError, match=f"the node 's' was killed: .*; {start}"):
            await command
    assert capsys.readouterr().err == ""


def test_a_full_disk_is_told_and_is_no_mistake(shell: Shell, small_disk: Callable[[int], Path]) -> None:
    folder = ["--data", str(small_disk(8 * 1024 * 1024))]
    shell.copied_node(*folder)
    (shell.folder / "noise").write_bytes(os.urandom(1_000_000))
    code, _, err = shell.run("pub", "-t", "x", *folder, "--file", "noise", "--count", "20")
    assert code == 1
    assert err.startswith("carrypost: ")
    assert "the disk is full" in err


# --- signals --------------------------------------------------------------------------------------------------------

WAITING = [
    ("sub", "-t", "waiting"),
    ("receive", "-q", "Sue"),
    ("browse", "-q", f"Sue@{'a' * 26}"),
    ("pub", "-t", "waiting", "hello", "--receipt"),
    ("send", "-q", "Sue", "hello", "--receipt", "--for", "60"),
    ("pub", "-t", "waiting", "hello {n}", "--every", "60"),
]


@contextlib.contextmanager
def struck(*numbers: int, after: Path = Path()) -> Iterator[None]:
    """Send this process signals, once a command heeds them, a file is there, and it has begun to wait."""

    def strike() -> None:
        for number in numbers:
            while "Ending" not in getattr(signal.getsignal(number), "__qualname__", "") or not after.exists():
                time.sleep(0.01)
            time.sleep(0.3)
            os.kill(os.getpid(), number)

    thread = threading.Thread(target=strike)
    thread.start()
    yield
    thread.join()


def test_every_command_that_waits_ends_by_ctrl_c_without_a_word(noded: Shell) -> None:
    noded.lines("bind", "queue/Sue")
    for arguments in WAITING:
        with struck(signal.SIGINT):
            code, _, err = noded.run(*arguments)
        assert (code, err) == (130, ""), arguments
    with struck(signal.SIGTERM):
        assert noded.run("sub", "-t", "y") == (143, "", "")
    noded.lines("send", "-q", "Sue", "hello")
    assert bodies(noded, "receive", "-q", "Sue") == ["hello"], "who was ended took nothing along"


def test_a_node_inside_a_command_ends_in_order_with_it(shell: Shell) -> None:
    with struck(signal.SIGINT, after=shell.data / "control.sock"):
        code, _, err = shell.run("sub", "-t", "x")
    made = f"carrypost: made a new node in {shell.data}\n"
    assert (code, err) == (130, f"{made}carrypost: no node runs in {shell.data}: {EMBEDS}\n")
    assert not (shell.data / "control.sock").exists()
    assert not (shell.data / "store.sqlite-wal").exists()
    code, out, err = shell.run("ls")
    assert (code, out, err.splitlines()[-1]) == (0, "", "carrypost: no names are known here")


def test_a_reader_that_is_gone_leaves_its_message_in_the_queue(noded: Shell) -> None:
    noded.lines("bind", "queue/Gus")
    noded.lines("send", "-q", "Gus", "hello")
    reading, writing = os.pipe()
    os.close(reading)
    ran = subprocess.run(  # noqa: S603 - our own command
        [*COMMAND, "receive", "-q", "Gus"], stdout=writing, stderr=subprocess.PIPE, text=True, check=False
    )
    os.close(writing)
    assert (ran.returncode, "Traceback" in ran.stderr) == (1, False), ran.stderr
    with Path("/dev/full").open("wb") as full:
        ran = subprocess.run(  # noqa: S603 - likewise
            [*COMMAND, "receive", "-q", "Gus"], stdout=full, stderr=subprocess.PIPE, text=True, check=False
        )
    assert (ran.returncode, ran.stderr) == (1, "carrypost: stdout cannot be written: No space left on device\n")
    assert bodies(noded, "receive", "-q", "Gus", "--for", "5") == ["hello"]


def test_closed_streams_are_told_and_lose_nothing(noded: Shell) -> None:
    noded.lines("bind", "queue/Hal")
    noded.lines("send", "-q", "Hal", "hello")
    command = shlex.join([*COMMAND, "receive", "-q", "Hal", "--for", "5"])
    ran = subprocess.run(["sh", "-c", f"{command} >&-"], capture_output=True, text=True, check=False)  # noqa: S603, S607
    assert (ran.returncode, ran.stderr.rpartition(":")[0]) == (1, "carrypost: stdout is closed")
    ran = subprocess.run(["sh", "-c", f"{command} 2>&-"], capture_output=True, text=True, check=False)  # noqa: S603, S607
    assert (ran.returncode, json.loads(ran.stdout)["body"]) == (0, "hello")
    ran = subprocess.run(["sh", "-c", f"{command} 2>&-"], capture_output=True, text=True, check=False)  # noqa: S603, S607
    assert (ran.returncode, ran.stdout) == (3, "")


# --- people ---------------------------------------------------------------------------------------------------------


def test_two_terminals_show_people_what_they_need(noded: Shell) -> None:
    def opened(*arguments: str) -> Any:  # noqa: ANN401 - pexpect has no types
        command = [*COMMAND[1:], *arguments, "-d", str(noded.data)]
        return pexpect.spawn(COMMAND[0], command, encoding="utf-8", timeout=PATIENCE_S, dimensions=(24, 80))

    reader = opened("sub", "-t", "people.>")
    reader.expect_exact("waiting; press Ctrl-C to stop")
    writer = opened("pub", "-t", "people.roads", "The bridge \x1b[31mis\x07 closed.", "--prop", "urgency=5")
    writer.expect(r"^stored, 0 neighbours, expires at \d{4}-\d\d-\d\d \d\d:\d\d:\d\d\r\n$")
    reader.expect(r"\d\d:\d\d:\d\d\S*  \S*people\.roads\S*  The bridge \ufffd\[31mis\ufffd closed\.  \S*urgency=5")
    reader.sendintr()
    reader.expect(pexpect.EOF)
    reader.close()
    assert (reader.exitstatus, "Traceback" in reader.before) == (130, False)


def test_people_see_tables_and_lines_where_programs_see_json(noded: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_output, "is_redirected", lambda: False)
    code, out, err = noded.run("bind", "queue/Tom")
    assert (code, bool(re.fullmatch(r"(Tom@[a-z2-7]{26}) is queue/\1\n", out)), err) == (0, True, "")
    assert re.search(r"^Tom +queue/Tom@[a-z2-7]{26} *$", noded.run("ls")[1], re.MULTILINE)
    code, out, err = noded.run("send", "-q", "Tom", "line one\nline two", "--prop", "a=1", "--count", "2")
    assert (code, out.startswith("2 messages stored, 0 neighbours, expires at "), err) == (0, True, "")
    code, out, err = noded.run("browse", "-q", "Tom", "--count", "1")
    assert (code, out.splitlines()[1:], err) == (0, ["  line one", "  line two"], "")
    assert "Tom" in out
    assert "a=1" in out


def examples(name: str) -> list[str]:
    """Return the examples that the help of a command gives."""
    command: Any = typer.main.get_command(app)
    for part in name.split():
        command = command.commands[part]
    found = re.findall(r"`([^`]+)`", command.help.partition("For example")[2])
    return [each for each in found if "carrypost " in each]


def worked(shell: Shell, line: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """Run a line as a shell would, and see that it works; returns the name of its command."""
    head, _, rest = line.rpartition(" | ")
    typed(monkeypatch, f"{head}\n".encode())
    name, *arguments = shlex.split(rest, comments=True)[1:]
    if name == "sub" and not {"--for", "--end", "--count"} & {*arguments}:
        arguments += ["--for", "0.2"]  # Else until Ctrl-C.
    with contextlib.ExitStack() as stack:
        if "--receipt" in arguments:
            flag = "-t" if name == "pub" else "-q"
            answer = [
                "sub" if name == "pub" else "receive",
                flag,
                arguments[arguments.index(flag) + 1],
                "--count",
                "99",
            ]
            stack.callback(shell.beside(*answer).end)
        code, _, err = shell.run(name, *arguments)
    assert (code, err) == (0, ""), line
    return name


def test_the_examples_in_the_help_of_each_command_work(noded: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    (noded.folder / "every_nth.wasm").write_bytes(b"\0asm\1\0\0\0")
    (noded.folder / "letter.txt").write_text("Dear Alan")
    noded.lines("bind", "queue/Alan")
    assert noded.run("circle", "found", "rescue")[0] == 0
    ran = []
    for command in COMMANDS:
        if command == "receive":
            noded.lines("send", "-q", "Alan", "hello", "--prop", "urgency=5", "--count", "12")
        for example in examples(command):
            if command == "sub":
                noded.lines("pub", "-t", "village.roads", "hello", "--prop", "language=English")
            ran.append(worked(noded, example, monkeypatch))
    assert {*ran} == {*COMMANDS}


def test_the_examples_in_the_help_of_commands_that_ask_a_node_work(noded: Shell) -> None:
    noded.lines("bind", "queue/Alan")
    noded.lines("pub", "-t", "x", "hello", "--id", "firstMSG")
    for name in QUESTIONS:
        for example in examples(name):
            _, *arguments = shlex.split(example.replace(" --data ~/second", ""))
            assert noded.run(*arguments)[0] == 0, example
    assert noded.run("unbind", "queue/Alan") == (0, "", "")


def test_the_commands_in_the_documents_work(noded: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    (noded.folder / "map.png").write_bytes(bytes(range(256)))
    text = (Path(__file__).resolve().parents[2] / "docs" / "commands.md").read_text(encoding="utf-8")
    blocks = re.findall(r"^```sh\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    ran = [worked(noded, line, monkeypatch) for block in blocks for line in block.splitlines()]
    assert {*ran} == {*COMMANDS}


# --- completion -----------------------------------------------------------------------------------------------------


def completed(shell: Shell, line: str, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the completions that bash offers after this line."""
    for name, value in {
        "_CARRYPOST_COMPLETE": "complete_bash", "COMP_WORDS": line, "COMP_CWORD": str(len(line.split(" ")) - 1),
    }.items():  # fmt: skip
        monkeypatch.setenv(name, value)
    code, out, err = shell.run()
    assert (code, err) == (0, "")
    return out.split()


def test_shells_complete_commands_topics_and_queues(
    noded: Shell, shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert completed(shell, "carrypost rece", monkeypatch) == ["receive"]
    assert completed(shell, "carrypost send -q ", monkeypatch) == [], "there is no node, and no word about that"
    assert not shell.data.exists()
    monkeypatch.delenv("_CARRYPOST_COMPLETE")
    there = ("-d", str(noded.data))
    for arguments in (["queue/Kim"], ["queue/Kurt"], ["hills", "topic/hills.paths"]):
        shell.lines("bind", *arguments, *there)
    line = f"carrypost {{}} -d {noded.data} {{}}"
    assert completed(shell, line.format("send", "-q K"), monkeypatch) == ["Kim", "Kurt"]
    assert completed(shell, line.format("receive", "-q Ku"), monkeypatch) == ["Kurt"]
    assert completed(shell, line.format("pub", "-t hil"), monkeypatch) == ["hills.paths"]
    assert "hills.paths" in completed(shell, line.format("sub", "-t "), monkeypatch)


def test_a_name_that_a_shell_would_run_is_not_completed(
    noded: Shell, shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    there = ("-d", str(noded.data))
    hostile = [
        "$(touch${IFS}x)",
        ";touch${IFS}x",
        "`touch${IFS}x`",
        "\\$(touch${IFS}x)",
        "'",
        "&x",
        ">x",
        "*",
        "a:b",
        "a=b",
        "!x",
        "~x",
    ]
    topics = ["fair", "fair.a/b_c+d-e", *(f"fair{each}" for each in hostile), "market", "evil$(touch${IFS}ran)"]
    for number, topic in enumerate(topics):
        shell.lines("bind", f"shown{number}", f"topic/{topic}", *there)
    monkeypatch.setattr("shellingham.detect_shell", lambda: ("bash", "bash"))
    (shell.folder / "completion").write_text(shell.run("--show-completion")[1])
    assert completed(shell, f"carrypost sub -d {noded.data} -t fair", monkeypatch) == topics[:2]
    monkeypatch.delenv("_CARRYPOST_COMPLETE")
    command = shell.folder / "carrypost"
    command.write_text(f'#!/bin/sh\n[ "$_CARRYPOST_COMPLETE" ] || exec echo "ran $*"\nexec {shlex.join(COMMAND)}\n')
    command.chmod(0o700)
    monkeypatch.setenv("PATH", f"{shell.folder}:{os.environ['PATH']}")
    bash = pexpect.spawn("bash", ["--norc", "--noprofile"], encoding="utf-8", timeout=PATIENCE_S)
    try:
        bash.send(". ./completion\n")
        bash.send(f"carrypost pub -d {noded.data} -t mar\t-t evi\t\n")
        bash.expect(r"ran pub -d \S+ -t market -t evi\r")
    finally:
        bash.close(force=True)
    assert not (shell.folder / "ran").exists()


@pytest.mark.soak
@pytest.mark.parametrize(("name", "word"), [("bash", "COMP_WORDS"), ("zsh", "compdef"), ("fish", "complete --command")])
def test_each_shell_gets_a_script_of_its_own(
    name: str, word: str, shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shellingham.detect_shell", lambda: (name, name))
    code, out, _ = shell.run("--show-completion")
    assert (code, word in out, "_CARRYPOST_COMPLETE" in out) == (0, True, True)
