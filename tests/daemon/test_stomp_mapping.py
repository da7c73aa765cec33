"""SEND as a message, and a message as MESSAGE: destinations, fields, typed properties, bodies."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from carrypost import (
    BytesMessage,
    DeliveryMode,
    IllegalArgumentException,
    InvalidDestinationException,
    JMSException,
    MapMessage,
    Message,
    MessageFormatException,
    Queue,
    StreamMessage,
    TextMessage,
    Topic,
)
from carrypost.daemon.stomp import mapping
from carrypost.daemon.stomp.codec import Decoder, Frame, Version, encode
from carrypost.daemon.stomp.mapping import Temporary, destination, destination_text, received, sent
from carrypost.gossip.draft import Draft
from carrypost.jms.destinations import Destination, NamedQueue
from carrypost.jms.mapping import to_draft
from carrypost.model.descriptor import Descriptor, Ordering, PayloadCodec
from carrypost.model.headers import Headers
from carrypost.model.properties import Property, ValueType

NOW_US = 1_700_000_000_000_000
NEWS = {"destination": "/topic/news"}


def send(body: bytes = b"", **headers: str) -> mapping.Sent:
    return sent(Frame("SEND", NEWS | {name.replace("_", "-"): value for name, value in headers.items()}, body), NOW_US)


def travelled(draft: Draft, **changes: object) -> Frame:
    """Return the MESSAGE frame for a message that was sent as this draft."""
    payload = draft.payload
    assert isinstance(payload, bytes)
    fields: dict[str, object] = {
        "author": "n", "incarnation": 1, "sequence": 1, "created_us": NOW_US, "deadline_us": NOW_US + 60_000_000,
        "destination": draft.destination, "size": len(payload), "length": len(payload), "codec": PayloadCodec.PLAIN,
        "root": b"", "fragment_bytes": 1_024, "attributes": draft.attributes, "headers": draft.headers,
        "persistent": draft.persistent, "priority": draft.priority,
    }  # fmt: skip
    return received(Descriptor(**fields | changes), payload)  # type: ignore[arg-type]


def passed_on(frame: Frame) -> Frame:
    """Return the MESSAGE that comes of a SEND."""
    asked = sent(frame, NOW_US)
    assert isinstance(asked.to, Destination)
    return travelled(to_draft(asked.message, asked.to, asked.sending))


# --- destinations ----------------------------------------------------------------------------------------------

DESTINATIONS: list[tuple[str, Destination | Temporary, str]] = [
    ("/topic/news", Topic("news"), "/topic/news"),
    ("/topic/village.>", Topic("village.>"), "/topic/village.>"),
    ("/topic/a/b", Topic("a/b"), "/topic/a/b"),
    ("/queue/Alan@n", Queue("Alan@n"), "/queue/Alan@n"),
    ("/temp-queue/replies", Temporary("replies"), ""),
]


@pytest.mark.parametrize(("text", "meant", "again"), DESTINATIONS)
def test_destinations_are_named_as_brokers_name_them(text: str, meant: Destination | Temporary, again: str) -> None:
    assert destination(text) == meant
    if isinstance(meant, Destination):
        assert destination_text(meant) == again


def test_a_queue_may_be_named_without_its_node_and_a_topic_with_its_ordering() -> None:
    found = destination("/queue/Alan")
    assert isinstance(found, NamedQueue)
    assert found.queue_name == "Alan"
    ordered = destination("/topic/news", "causal")
    assert isinstance(ordered, Topic)
    assert ordered.ordering is Ordering.CAUSAL
    for header in (None, "causal"):
        named = destination("/topic/news?order=causal", header)
        assert isinstance(named, Topic)
        assert (named.topic_name, named.ordering) == ("news", Ordering.CAUSAL)
    assert destination("/topic/what??") == Topic("what?")
    assert destination_text(Topic("what?")) == "/topic/what??"
    with pytest.raises(IllegalArgumentException, match="contradicts"):
        destination("/topic/news?order=causal", "delta-causal")
    with pytest.raises(InvalidDestinationException, match=r"the option 'ordr' .* did you mean"):
        destination("/topic/news?ordr=causal")
    with pytest.raises(IllegalArgumentException, match="ordering requires a topic"):
        destination("/queue/Alan", "causal")
    with pytest.raises(IllegalArgumentException, match="an ordering must be one of"):
        destination("/topic/news", "any")


@pytest.mark.parametrize(
    "text", ["", "news", "topic/news", "/topic/", "/queue/", "/temp-queue/", "/exchange/x", "/dsub/x"]
)
def test_what_names_nothing_is_told(text: str) -> None:
    with pytest.raises(InvalidDestinationException, match=r"a destination must be /topic/NAME"):
        destination(text)


# --- fields ----------------------------------------------------------------------------------------------------


def test_fields_of_a_send_are_those_of_jms() -> None:
    plain = send().sending
    assert (plain.delivery_mode, plain.priority, plain.lifetime_us) == (DeliveryMode.NON_PERSISTENT, 4, None)
    full = send(
        persistent="true", priority="9", expires=f"{NOW_US // 1_000 + 5_000}", correlation_id="c", type="t",
        reply_to="/temp-queue/r",
    )  # fmt: skip
    said = full.sending
    assert (said.delivery_mode, said.priority, said.lifetime_us) == (DeliveryMode.PERSISTENT, 9, 5_000_000)
    assert (said.correlation_id, said.type, full.reply_to) == ("c", "t", Temporary("r"))
    assert said.properties == {}
    assert send(expires="0").sending.lifetime_us is None
    ignored = {"receipt": "1", "transaction": "t", "message-id": "x", "subscription": "s", "ack": "1", "timestamp": "1"}
    assert sent(Frame("SEND", NEWS | ignored), NOW_US).sending.properties == {}


WRONG: list[tuple[dict[str, str], str]] = [
    ({"persistent": "yes"}, "persistent must be true or false, not 'yes'"),
    ({"priority": "10"}, "priority must be from 0 to 9, not 10"),
    ({"priority": "-1"}, "priority must be a whole number"),
    ({"priority": "٣"}, "priority must be a whole number"),
    ({"expires": "soon"}, "expires must be a whole number"),
    ({"expires": "1"}, "expires must be in the future, not 1"),
    ({"expires": "9" * 30}, "expires must be a whole number"),
    ({"reply-to": "nowhere"}, "a destination must be /topic/NAME"),
    ({"a b": "1"}, "'a b' cannot be the name of a property"),
    ({"1a": "1"}, "cannot be the name of a property"),
    ({"JMSFoo": "1"}, "cannot be the name of a property"),
    ({"select": "1", "and": "2"}, "is a reserved word of selectors"),
    ({"carrypost-types": "a=int"}, "carrypost-types names a: the frame must have headers of these names"),
    ({"a": "1", "carrypost-types": "a"}, "carrypost-types must be NAME=TYPE"),
    ({"a": "1", "carrypost-types": "a=number"}, "types are null, boolean, byte, short, int"),
    ({"a": "x", "carrypost-types": "a=int"}, "'x'"),
    ({"a": "300", "carrypost-types": "a=byte"}, "'300'"),
    ({"amq-msg-type": "map"}, "amq-msg-type must be text or bytes, not 'map'"),
    ({"carrypost-body": "map"}, "the text is not JSON"),
    ({"carrypost-body": ""}, "carrypost-body must be text that is not empty"),
]


@pytest.mark.parametrize(("headers", "text"), WRONG)
def test_a_header_that_is_wrong_is_named(headers: dict[str, str], text: str) -> None:
    with pytest.raises(JMSException) as error:
        sent(Frame("SEND", NEWS | headers), NOW_US)
    assert text in str(error.value)


# --- properties ------------------------------------------------------------------------------------------------


def test_other_headers_are_properties_with_names_and_types_that_come_back() -> None:
    types = "level=int,hot=boolean,far=long,t=double,none=null,b=byte,s=short,f=float"
    values = {"level": "3", "hot": "true", "far": "5000000000", "t": "0.5", "none": "", "b": "-1", "s": "2", "f": "1.5"}
    headers = NEWS | {"content-type": "text/plain", "my.header-x": "y", "carrypost-types": types} | values
    found = sent(Frame("SEND", headers, b"x"), NOW_US).sending.properties
    assert found["my_DOT_header_HYPHEN_x"] == Property(ValueType.STRING, "y")
    assert found["level"] == Property(ValueType.INT, 3)
    assert found["none"] == Property(ValueType.NULL, None)
    back = passed_on(Frame("SEND", headers, b"x"))
    assert {name: back.headers[name] for name in values} == values
    assert back.headers["my.header-x"] == "y"
    assert set(back.headers["carrypost-types"].split(",")) == set(types.split(","))


@given(st.dictionaries(st.from_regex(r"[a-z][a-z.-]{0,8}", fullmatch=True), st.text(max_size=8), max_size=5))
def test_headers_of_a_send_come_back_with_the_message(headers: dict[str, str]) -> None:
    own = {name: value for name, value in headers.items() if name not in mapping._FIELDS}  # noqa: SLF001 - a table
    try:
        back = passed_on(Frame("SEND", NEWS | own))
    except IllegalArgumentException as error:
        assert "word of selectors" in str(error)  # noqa: PT017 - names that no property has
        return
    assert {name: back.headers[name] for name in own} == own


# --- bodies ----------------------------------------------------------------------------------------------------

BODIES: list[tuple[bytes, dict[str, str], type[Message]]] = [
    (b"hello", {}, TextMessage),
    ("größe".encode(), {}, TextMessage),
    (b"", {}, TextMessage),
    (b"a\0b", {}, BytesMessage),
    (b"\xff", {}, BytesMessage),
    (b"hello", {"amq-msg-type": "bytes"}, BytesMessage),
    (b"a\0b", {"amq-msg-type": "text"}, TextMessage),
    (b"{}", {"content-type": "application/json"}, TextMessage),
    (b"<a/>", {"content-type": "application/soap+xml; charset=utf-8"}, TextMessage),
    (b"hello", {"content-type": "text/plain"}, TextMessage),
    (b"hello", {"content-type": "application/octet-stream"}, BytesMessage),
    (b"\xff", {"content-type": "text/plain", "amq-msg-type": "bytes"}, BytesMessage),
    (b'{"a":1,"b":"x","c":null,"d":true,"e":0.5}', {"carrypost-body": "map"}, MapMessage),
    (b'[1,"x",null]', {"carrypost-body": "stream"}, StreamMessage),
]


@pytest.mark.parametrize(("body", "headers", "kind"), BODIES)
def test_bodies_have_the_type_that_is_said_or_seen_and_come_back(
    body: bytes, headers: dict[str, str], kind: type[Message]
) -> None:
    frame = Frame("SEND", NEWS | headers, body)
    assert type(sent(frame, NOW_US).message) is kind
    back = passed_on(frame)
    assert back.body == body
    assert back.headers.get("carrypost-body") == headers.get("carrypost-body")
    if "content-type" in headers:
        assert back.headers["content-type"] == headers["content-type"]


@pytest.mark.parametrize(
    ("body", "headers"),
    [
        (b"\xff", {"amq-msg-type": "text"}),
        (b"\xff", {"content-type": "text/plain"}),
        (b"\xff", {"carrypost-body": "map"}),
        (b"[1]", {"carrypost-body": "map"}),
        (b"{}", {"carrypost-body": "stream"}),
        (b'{"a":{}}', {"carrypost-body": "map"}),
        (b"{}", {"carrypost-body": "object"}),
        (b"NaN", {"carrypost-body": "stream"}),
        (b"[" * 100_000, {"carrypost-body": "stream"}),
    ],
)
def test_a_body_that_is_not_what_was_said_is_told(body: bytes, headers: dict[str, str]) -> None:
    with pytest.raises(MessageFormatException):
        sent(Frame("SEND", NEWS | headers, body), NOW_US)


def test_maps_and_streams_of_jms_programs_are_json_and_their_bytes_base64() -> None:
    map_ = travelled(to_draft(MapMessage({"a": b"\x00\xff", "b": 1}), Topic("x")))
    assert map_.body == b'{"a":"AP8=","b":1}'
    assert (map_.headers["content-type"], map_.headers["carrypost-body"]) == ("application/json", "map")
    stream = travelled(to_draft(StreamMessage([b"\x00", "x"]), Topic("x")))
    assert stream.body == b'["AA==","x"]'
    assert travelled(to_draft(Message(), Topic("x"))).body == b""


# --- what strangers send ---------------------------------------------------------------------------------------


def test_a_message_has_the_fields_that_its_subscriber_needs() -> None:
    fields = {"destination": "/queue/Alan@n", "reply-to": "/queue/Me@m", "correlation-id": "c", "type": "t"}
    asked = sent(Frame("SEND", fields, b"x"), NOW_US)
    assert isinstance(asked.to, Destination)
    assert isinstance(asked.reply_to, Destination)
    draft = to_draft(asked.message, asked.to, asked.sending)
    headers = Headers(body_type=2, correlation="c", type="t", reply_to=asked.reply_to.address)
    back = travelled(draft, headers=headers)
    expected = fields | {
        "priority": "4", "persistent": "false",
        "timestamp": f"{NOW_US // 1_000}", "expires": f"{NOW_US // 1_000 + 60_000}",
    }  # fmt: skip
    assert expected.items() <= back.headers.items()
    assert back.headers["message-id"].startswith("ID:")


def test_what_cannot_be_read_goes_as_bytes_and_without_properties() -> None:
    draft = Draft("topic/x", b"\xff\xfe", {"a": 2**63}, None, "", headers=Headers())
    for kind in (2, 4, 5, 6, 99):
        headers = Headers(body_type=kind, correlation_bytes=b"\x01\x02")
        found = travelled(draft, headers=headers)
        assert found.body == b"\xff\xfe"
        assert found.headers["content-type"] == "application/octet-stream"
        assert found.headers["correlation-id"] == "0102"
        assert "a" not in found.headers
        assert found.headers.get("carrypost-body") == ("object" if kind == 6 else None)


def test_properties_that_are_called_like_fields_break_no_frame() -> None:
    hostile = {
        "content_HYPHEN_length": "0",
        "subscription": "other",
        "destination": "x",
        "ack": "9",
        "message_HYPHEN_id": "y",
    }
    draft = Draft("topic/x", b"body\0body", hostile, None, "", headers=Headers(body_type=3))
    frame = travelled(draft)
    assert "subscription" not in frame.headers
    assert frame.headers["destination"] == "/topic/x"
    decoder = Decoder(1_000, version=Version.V1_2, commands=frozenset({"MESSAGE"}))
    decoder.feed(encode(frame, Version.V1_2) * 2)
    for _ in range(2):
        found = decoder.next()
        assert found is not None
        assert found.body == b"body\0body"


@pytest.mark.parametrize("version", list(Version))
def test_properties_of_a_stranger_cannot_stand_for_the_headers_of_a_message(version: Version) -> None:
    hostile = {
        "destination:/queue/bank": "",
        "message-id:ID:other\ndestination": "/queue/bank",
        " destination": "/queue/bank",
        "": "empty",
        "9": "digit",
        "note": "x\ndestination:/queue/bank\n\nbody\0",
        "room.no": "7",
        "room_HYPHEN_name": "hall",
    }
    frame = travelled(Draft("topic/x", b"body", hostile, None, "", headers=Headers(body_type=3)))
    data = encode(frame, version)
    decoder = Decoder(1_000, version=version, commands=frozenset({"MESSAGE"}))
    decoder.feed(data)
    found = decoder.next()
    assert found is not None
    assert (found.headers["destination"], found.headers["message-id"]) == ("/topic/x", frame.headers["message-id"])
    assert (found.body, decoder.next()) == (b"body", None)
    # A client that does not unescape, or that uses the last header of a name, reads the same.
    lines = data.split(b"\n\n")[0].split(b"\n")
    names = [line.split(b":")[0].decode() for line in lines[1:]]
    assert names.count("destination") == 1
    assert {"room.no", "room-name", "note"} <= set(names) <= {*found.headers}
    properties = [name for name in names if name in ("note", "room.no", "room-name")]
    assert names[-3:] == properties, "properties come last"
