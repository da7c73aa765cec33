"""Headers of a message: their encoding, their allowed values, and that nothing of them is lost on the way."""

from __future__ import annotations

import asyncio
import random
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.loopback import apart
from tests.support.nodes import scene

from carrypost import testing
from carrypost.config import Settings
from carrypost.errors import DecodeError, MessageFormatException, PayloadError
from carrypost.gossip.draft import Draft
from carrypost.host import Host
from carrypost.log.events import Delivered, Delivery, Published
from carrypost.log.journal import PIECE, Key, Value
from carrypost.model.descriptor import AttributeValue, Descriptor, Ordering, PayloadCodec, Predecessor, decode
from carrypost.model.headers import CONTROL_BYTES_MAX, BodyType, Headers, checked
from carrypost.node.runtime import Node
from carrypost.node.settings import parse
from carrypost.security.identity import Identity, verify

BARE = Descriptor("alan", 1, 7, 10**15, None, "news", 9, 9, PayloadCodec.PLAIN, b"", 1024)
FULL = Headers(
    operation="request", body_type=BodyType.TEXT, property_types={"floor": 2, "room": 0}, correlation="a-1",
    reply_to="queue/bea/Alan", type="survey", delivery_time_us=5, sent_us=6, client="alan", connection=1, session=2,
    number=3, receipt=True, control=b"\x00\x01",
)  # fmt: skip
ATTRIBUTES = {"floor": -3}
KEYS = {field.encode_name: field.name for field in msgspec.structs.fields(Headers)}


def wire_of(descriptor: Descriptor, last: object) -> bytes:
    """Return the encoding of a descriptor with `last` in the place of its headers."""
    return b"\x00" + msgspec.msgpack.encode([*msgspec.structs.astuple(descriptor)[:-1], last])


def started() -> Host:
    host = Host(Identity.plain("a"), Settings.emulated(beacons=False), random.Random(1))
    host.start(0)
    return host


def published(
    host: Host,
    headers: Headers | None,
    attributes: Mapping[str, AttributeValue] | None = None,
    ordering: Ordering = Ordering.NONE,
) -> Descriptor:
    host.publish("news", b"x", now=5, headers=headers, attributes=attributes, ordering=ordering)
    return next(event.descriptor for event in host.events() if isinstance(event, Published))


# --- encoding ----------------------------------------------------------------------------------------------


texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
counts = st.integers(0, 2**53)
any_headers = st.builds(
    Headers, operation=st.none() | st.text("abc", min_size=1), body_type=st.integers(0, 255),
    property_types=st.dictionaries(texts, st.just(0)), correlation=st.none() | texts,
    reply_to=st.none() | st.just("topic/x"), type=st.none() | texts,
    delivery_time_us=st.none() | counts, sent_us=st.none() | counts,
    client=st.none() | st.text("abc", min_size=1), connection=counts, session=counts, number=counts,
    receipt=st.booleans(), control=st.binary(max_size=20),
)  # fmt: skip


@given(any_headers)
def test_headers_come_back_as_they_were_sent(headers: Headers) -> None:
    sent = msgspec.structs.replace(BARE, headers=headers)
    found = decode(sent.wire)
    assert found == sent
    assert (found.headers, found.id, found.wire) == (headers, sent.id, sent.wire)
    assert checked(headers, {}) == (None if headers == Headers() else headers)


@pytest.mark.parametrize(
    ("changes", "fields"),
    [
        ({}, 15),
        ({"ordering": Ordering.CAUSAL}, 17),
        ({"ordering": Ordering.CAUSAL, "barrier": (Predecessor("bea", 1, 1, None),)}, 17),
        ({"headers": Headers(number=1)}, 18),
        ({"headers": Headers(number=1), "ordering": Ordering.CAUSAL}, 18),
    ],
)
def test_no_more_fields_are_encoded_than_say_something(changes: dict[str, Any], fields: int) -> None:
    made = msgspec.structs.replace(BARE, **changes)
    assert len(msgspec.msgpack.decode(made.encoded)) == fields
    assert decode(made.wire) == made


def test_a_header_that_is_as_by_default_does_not_travel() -> None:
    made = msgspec.structs.replace(BARE, headers=Headers(number=7, receipt=False))
    assert made.encoded.endswith(b"\x81\xa1n\x07")


def test_no_two_headers_have_the_same_key_and_every_key_is_one_letter() -> None:
    assert len(KEYS) == len(Headers.__struct_fields__)
    assert {len(key) for key in KEYS} == {1}


@pytest.mark.parametrize("last", [None, {}])
def test_no_headers_may_be_said_in_other_ways_by_others(last: object) -> None:
    found = decode(wire_of(BARE, last))
    assert found.headers in (None, Headers())
    assert found.wire == wire_of(BARE, last)


def test_headers_of_a_later_version_are_passed_on_and_are_part_of_what_is_signed() -> None:
    author = Identity.derived(1, "a")
    bare = msgspec.structs.replace(BARE, author=author.author)
    signed = []
    for numbers in ([1, 2], [1, 3]):
        last = {"n": 7, "recipients": {"bea": numbers}, "Z": None}
        encoded = msgspec.msgpack.encode([*msgspec.structs.astuple(bare)[:-1], last])
        made = msgspec.structs.replace(bare)
        made.__dict__["encoded"] = encoded
        signed.append(author.sign(made))
    one, other = signed
    found = decode(one.wire)
    assert found.headers == Headers(number=7)
    assert found.wire == one.wire
    verify(found)
    assert found.id != decode(other.wire).id
    with pytest.raises(Exception, match="signature"):
        verify(decode(bytes([64]) + one.signature + other.encoded))


# --- what is refused ---------------------------------------------------------------------------------------


WRONG: list[tuple[str, object, str]] = [
    ("operation", "", "length >= 1"),
    ("operation", "x" * 65, "length <= 64"),
    ("operation", 3, "Expected `str"),
    ("body_type", 256, "<= 255"),
    ("body_type", -1, ">= 0"),
    ("body_type", True, "Expected `int`"),
    ("body_type", 2.0, "Expected `int`"),
    ("property_types", [1], "Expected `object`"),
    ("property_types", {"a": 256}, "<= 255"),
    ("property_types", {3: 1}, "Expected `str`"),
    ("correlation", "x" * 1025, "length <= 1024"),
    ("correlation", b"x", "Expected `str"),
    ("correlation_bytes", "x", "Expected `bytes"),
    ("correlation_bytes", bytes(1025), "length <= 1024"),
    ("reply_to", "", "length >= 1"),
    ("reply_to", "x" * 257, "length <= 256"),
    ("type", "x" * 1025, "length <= 1024"),
    ("delivery_time_us", -1, ">= 0"),
    ("delivery_time_us", 2**53 + 1, "<= 9007199254740992"),
    ("delivery_time_us", 1.5, "Expected `int"),
    ("sent_us", "now", "Expected `int"),
    ("client", "x" * 1025, "length <= 1024"),
    ("connection", -1, ">= 0"),
    ("session", None, "Expected `int`"),
    ("number", 2**63, "<= 9007199254740992"),
    ("receipt", 1, "Expected `bool`"),
    ("control", bytes(CONTROL_BYTES_MAX + 1), "length <= 6144"),
    ("control", {}, "Expected `bytes`"),
]


@pytest.mark.parametrize(("name", "value", "why"), WRONG)
def test_what_a_header_may_not_be_is_refused_alike_at_home_and_from_a_peer(name: str, value: object, why: str) -> None:
    key = next(key for key, field in KEYS.items() if field == name)
    with pytest.raises(DecodeError, match=re.escape(why)) as refused:
        decode(wire_of(BARE, {key: value}))
    assert refused.value.reason == "descriptor"
    with pytest.raises(PayloadError, match=f"{name}.*{re.escape(why)}"):
        started().publish("news", b"", now=0, headers=Headers(**{name: value}))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "last",
    [
        b"\x90", b"\x07", b"\xa1n", b"\xc3",  # no map
        b"\x81\x01\x02", b"\x81\xc4\x01n\x02",  # a key that is no text
        b"\x81\xa1n", b"\x82\xa1n\x01", b"\xdf\xff\xff\xff\xff",  # an end too early
        b"\x81\xa1t\xa1\xff",  # no UTF-8
        b"\x81\xa1z" + b"\x91" * 5_000 + b"\xc0",  # a later version's, and deeper than the stack
        b"\x81\xa1z\xc1",  # no msgpack
        b"\x80\x00",  # something behind it
        b"\x82\xa1c\xa1x\xa1C\xc4\x00",  # two correlations
        b"\x81\xa1p\x81\xa5floor\x02",  # the type of what is not there
    ],
)  # fmt: skip
def test_a_malformed_map_is_a_malformed_descriptor(last: bytes) -> None:
    head = b"\xdc\x00\x12" + b"".join(map(msgspec.msgpack.encode, msgspec.structs.astuple(BARE)[:-1]))
    with pytest.raises(DecodeError) as refused:
        decode(b"\x00" + head + last)
    assert refused.value.reason == "descriptor"
    assert decode(b"\x00" + head + b"\x80").headers == Headers()


@pytest.mark.parametrize(
    ("types", "why"),
    [
        ({"floor": 1}, "of type boolean, not 300"), ({"floor": 2}, "of type byte, not 300"),
        ({"floor": 8}, "of type String, not 300"),
        ({"floor": 6}, "of type float"), ({"floor": 0}, "null and has a value"), ({"room": 3}, "'room' is not there"),
        ({"height": 6}, "of type float, not 1.1"), ({"height": 4}, "of type int"), ({"text": 5}, "of type long"),
    ],
)  # fmt: skip
def test_types_that_do_not_fit_the_properties_are_refused_alike_at_home_and_from_a_peer(
    types: dict[str, int], why: str
) -> None:
    attributes: dict[str, AttributeValue] = {"floor": 300, "height": 1.1, "text": "7"}
    headers = Headers(property_types=types)
    with pytest.raises(PayloadError, match=why):
        started().publish("news", b"", now=0, attributes=attributes, headers=headers)
    with pytest.raises(DecodeError, match=why):
        decode(msgspec.structs.replace(BARE, attributes=attributes, headers=headers).wire)


def test_types_of_a_later_version_are_passed_on() -> None:
    sent = msgspec.structs.replace(BARE, headers=Headers(property_types={"photo": 77}))
    assert decode(sent.wire) == sent


@pytest.mark.parametrize("wrong", [{"n": 1}, "text", Draft("news", b"")])
def test_headers_are_headers(wrong: Headers) -> None:
    with pytest.raises(PayloadError, match="headers must be Headers"):
        started().publish("news", b"", now=0, headers=wrong)


@pytest.mark.parametrize("wrong", [Headers(type="\ud800"), Headers(client=object()), Headers(number=2**70)])  # type: ignore[arg-type]
def test_headers_that_cannot_be_encoded_are_refused(wrong: Headers) -> None:
    with pytest.raises(PayloadError, match="headers"):
        started().publish("news", b"", now=0, headers=wrong)


def test_headers_and_attributes_together_fit_into_a_descriptor() -> None:
    attributes = {f"a{number}": "x" * 1_000 for number in range(2)}
    host = started()
    published(host, Headers(control=bytes(CONTROL_BYTES_MAX)))
    with pytest.raises(MessageFormatException, match="descriptor has more than 8192 bytes"):
        published(host, Headers(control=bytes(CONTROL_BYTES_MAX)), attributes=attributes)
    assert host.copies == 1


def test_a_publication_that_was_refused_for_its_headers_changes_nothing() -> None:
    host = started()
    with pytest.raises(PayloadError):
        host.publish("news", b"", now=0, ordering=Ordering.CAUSAL, headers=Headers(number=-1))
    made = published(host, None)
    assert (host.copies, made.sequence) == (1, 1)


# --- on the way --------------------------------------------------------------------------------------------


def test_headers_are_published_as_they_are() -> None:
    assert published(started(), FULL, attributes=ATTRIBUTES).headers == FULL


def test_headers_that_say_nothing_are_none() -> None:
    assert published(started(), Headers(body_type=BodyType.UNSAID)).headers is None


def test_what_a_program_does_to_its_headers_later_does_not_change_the_message() -> None:
    types = {"room": 0}
    made = published(started(), Headers(property_types=types))
    types["room"] = 8
    assert made.headers == Headers(property_types={"room": 0})


def test_the_time_of_sending_is_said_where_order_gave_another_date() -> None:
    ahead = started()
    ahead.publish("news", b"", now=9, ordering=Ordering.CAUSAL, headers=Headers(number=1))
    rows: dict[Key, Value] = {}
    while (batch := ahead.changes()) is not None:
        rows |= {key: value for key, value in batch.puts.items() if key[0] != PIECE}
        ahead.durable(batch.serial, 9)
    host = Host(Identity.plain("a"), Settings.emulated(beacons=False), random.Random(1))
    host.restore(rows.items(), 4)  # Its clock was wrong, and was set back.
    made = published(host, Headers(number=2), ordering=Ordering.CAUSAL)
    assert made.created_us >= 9
    assert made.headers == Headers(number=2, sent_us=5)


@pytest.mark.parametrize("options", [{}, {"encoded": True}, {"security": "signed", "lifetime_s_default": 60}])
def test_headers_are_carried_over_hosts_that_do_not_know_what_they_mean(options: dict[str, Any]) -> None:
    with testing.network("a", "b", "c", altruistic=True, **options) as net:
        net.subscribe("c", "news")
        net.host("a").publish("news", b"x", now=0, headers=FULL, attributes=ATTRIBUTES)
        net.link("a", "b")
        net.advance(30)
        net.unlink("a", "b")
        net.kill("b")
        net.restart("b")
        net.link("b", "c")
        net.advance(30)
        (got,) = net.deliveries("c")
    assert got.descriptor.headers == FULL
    assert got.descriptor.attributes == ATTRIBUTES


@scene
async def test_headers_are_there_after_a_restart_of_a_real_node(tmp_path: Path) -> None:
    settings = parse("", {}, {"udp": apart(), "node.data": str(tmp_path)})
    async with Node(settings) as node:
        node.host.publish("news", b"x", now=node.driver.now, headers=FULL, attributes=ATTRIBUTES)
        node.driver.drain()
    async with Node(settings) as again:
        came: asyncio.Future[Delivery] = asyncio.get_running_loop().create_future()
        again.attach({Delivered: lambda event: came.set_result(event.deliveries[0])})
        again.host.subscribe("news", now=again.driver.now)
        again.driver.drain()
        found = await asyncio.wait_for(came, 10)
    assert found.descriptor.headers == FULL
    assert found.descriptor.attributes == ATTRIBUTES
    verify(found.descriptor)
