"""Messages of strangers, as commands print them: one line of JSON, or text without control sequences."""

from __future__ import annotations

import io
import json
from contextlib import redirect_stdout

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from carrypost.cli import _shown
from carrypost.jms.mapping import from_browsed
from carrypost.model.descriptor import Descriptor, PayloadCodec
from carrypost.model.headers import Headers

BARE = Descriptor("alan", 1, 7, 10**15, None, "topic/news", 9, 9, PayloadCodec.PLAIN, b"", 1024)
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
        _shown.show(from_browsed(descriptor, payload), json=as_json)
    return out.getvalue()


@given(descriptors, st.binary(max_size=16) | texts.map(str.encode))
def test_a_message_of_a_stranger_is_printed_whatever_it_is(descriptor: Descriptor, payload: bytes) -> None:
    line = shown(descriptor, payload, as_json=True)
    assert line.count("\n") == 1
    found = json.loads(line)
    assert found["id"] == descriptor.id_text
    people = shown(descriptor, payload, as_json=False)
    assert all(each.isprintable() or each in "\n\t" for each in people)


@pytest.mark.parametrize("no_color", ["", "1"])
def test_lines_have_colours_unless_nobody_wants_them(monkeypatch: pytest.MonkeyPatch, no_color: str) -> None:
    monkeypatch.setenv("NO_COLOR", no_color)
    assert ("\x1b[" in _shown.styled("text", fg="cyan")) is not bool(no_color)
