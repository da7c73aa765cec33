"""Messages of strangers, as commands print them: one line of JSON, or text without control sequences."""

from __future__ import annotations

import io
import json
import logging
from contextlib import redirect_stdout

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from carrypost.cli import _message_options, _messages, _output, node
from carrypost.cli._exit import Exit, report
from carrypost.daemon.service import LogFormatter
from carrypost.errors import JMSException
from carrypost.jms.mapping import from_browsed
from carrypost.model.descriptor import Descriptor, PayloadCodec
from carrypost.model.headers import BodyType, Headers
from carrypost.node.diagnosis import Finding
from carrypost.printing import many

BARE = Descriptor("alan", 1, 7, 10**15, None, "topic/news", 9, 9, PayloadCodec.PLAIN, b"", 1024)
TEXT = msgspec.structs.replace(BARE, headers=Headers(body_type=BodyType.TEXT))
counts = st.integers(0, 2**53)
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
headers = st.builds(
    Headers, body_type=st.integers(0, 255), property_types=st.dictionaries(texts, st.integers(0, 255), max_size=2),
    correlation=st.none() | texts, correlation_bytes=st.none() | st.binary(max_size=4),
    reply_to=st.none() | texts.filter(bool), sent_us=st.none() | counts, type=st.none() | texts,
)  # fmt: skip
values = st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats() | texts
descriptors = st.builds(
    lambda made, attributes, destination, created, deadline: msgspec.structs.replace(
        BARE, headers=made, attributes=attributes, destination=destination, created_us=created, deadline_us=deadline
    ),
    st.none() | headers, st.dictionaries(texts, values, max_size=3), st.just("topic/news") | texts.filter(bool),
    counts, st.none() | counts,
)  # fmt: skip


def shown(descriptor: Descriptor, payload: bytes, *, as_json: bool) -> str:
    with redirect_stdout(io.StringIO()) as out:
        _messages.show_message(from_browsed(descriptor, payload), json=as_json)
    return out.getvalue()


@given(descriptors, st.binary(max_size=16) | texts.map(str.encode))
def test_a_message_of_a_stranger_is_printed_whatever_it_is(descriptor: Descriptor, payload: bytes) -> None:
    line = shown(descriptor, payload, as_json=True)
    assert line.count("\n") == 1
    found = json.loads(line)
    assert found["id"] == descriptor.id_text
    people = shown(descriptor, payload, as_json=False)
    assert all(each.isprintable() or each in "\n\t" for each in people)
    assert all(each.startswith("  ") for each in people.split("\n")[1:-1])


MARKS = "".join(map(chr, [*range(0x7F, 0xA0), 0x061C, 0x200E, 0x200F, *range(0x2028, 0x202F), *range(0x2066, 0x206A)]))
FORGED = "one\n\x1b[2J12:00:00  news  two"


def test_json_escapes_what_steers_a_terminal_and_nothing_else() -> None:
    body = f"Grüße {MARKS} 世界"
    line = shown(TEXT, body.encode(), as_json=True)
    assert json.loads(line)["body"] == body
    assert line[:-1].isprintable()
    assert "Grüße" in line
    assert "世界" in line


def test_nothing_in_a_message_looks_like_another_line() -> None:
    stranger = msgspec.structs.replace(TEXT, destination="topic/news\nroads", attributes={"a": FORGED})
    people = shown(stranger, FORGED.encode(), as_json=False).split("\n")
    assert people[1:] == [
        "  roads  a=one", "  \ufffd[2J12:00:00  news  two", "  one", "  \ufffd[2J12:00:00  news  two", ""
    ]  # fmt: skip


def test_remarks_errors_findings_and_logs_show_what_others_chose_as_text(capsys: pytest.CaptureFixture[str]) -> None:
    said = f"the message failed: {FORGED}\x9b\u202e"
    text = "the message failed: one\n  \ufffd[2J12:00:00  news  two\ufffd\ufffd"
    _output.say(said)
    assert report(JMSException(said)) == Exit.FAILED
    assert capsys.readouterr().err == 2 * f"carrypost: {text}\n"
    node.show_finding(Finding(interface="lo", means="multicast", works=True, detail=said))
    assert capsys.readouterr().out == f"works  lo multicast\n       {text}\n"
    record = logging.makeLogRecord({"msg": "peer %s", "args": (said,), "levelname": "WARNING"})
    assert LogFormatter("%(levelname)s %(message)s").format(record) == f"WARNING peer {text}"


@pytest.mark.parametrize(
    ("count", "text"), [(0, "0 hops, 0 copies"), (1, "1 hop, 1 copy"), (2_000, "2,000 hops, 2,000 copies")]
)
def test_one_thing_is_in_the_singular(count: int, text: str) -> None:
    assert f"{many(count, 'hop')}, {many(count, 'copy', 'copies')}" == text


@pytest.mark.parametrize(
    ("destination", "shown"),
    [
        ("topic/village.roads", "village.roads"), ("topic/a/b", "a/b"), ("topic/x?order=causal", "x?order=causal"),
        ("topic/queue/x", "topic/queue/x"), ("queue/Alan@n", "Alan@n"), ("queue/topic/x@n", "queue/topic/x@n"),
        ("holder/x@n", "holder/x@n"), ("channel/x", "channel/x"),
    ],
)  # fmt: skip
def test_a_destination_is_shown_as_commands_take_it(destination: str, shown: str) -> None:
    assert _messages.place(destination) == shown
    taken = _message_options.queue if destination.startswith("queue/") else _message_options.topic
    assert taken(shown) == destination


@pytest.mark.parametrize("no_color", ["", "1"])
def test_lines_have_colours_unless_nobody_wants_them(monkeypatch: pytest.MonkeyPatch, no_color: str) -> None:
    monkeypatch.setenv("NO_COLOR", no_color)
    assert ("\x1b[" in _output.styled("text", fg="cyan")) is not bool(no_color)


def test_the_history_of_a_message_has_its_destination_as_commands_take_it(capsys: pytest.CaptureFixture[str]) -> None:
    row = {"kind": "publish", "message": "m", "t": 0.0, "attrs": {"destination": "queue/n/Alan"}}
    _messages.show_history({"kept": True, "rows": [row], "held": []}, "m", json=True)
    assert json.loads(capsys.readouterr().out)["attrs"]["destination"] == "queue/Alan@n"
    _messages.show_history({"kept": True, "rows": [row], "held": []}, "m", json=False)
    assert "sent it to queue/Alan@n" in capsys.readouterr().out


@pytest.mark.parametrize("message", ["ID:[/x]:1:2", "ID:[red]n:1:2"])
def test_the_id_of_a_message_is_shown_as_it_is(capsys: pytest.CaptureFixture[str], message: str) -> None:
    row = {"kind": "publish", "message": message, "t": 0.0}
    _messages.show_history({"kept": True, "rows": [row], "held": []}, "m", json=False)
    assert capsys.readouterr().out.startswith(f"Message {message}\n")
