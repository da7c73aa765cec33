"""Messages that list their recipients: which hosts want and get them, and which lists are refused."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.gossip.test_addressed import Receptions
from tests.support.hostile import Message, message, scene

from carrypost import testing
from carrypost.errors import DecodeError, IllegalArgumentException, LocalError, PayloadError
from carrypost.gossip.holdings.cache import CopyState
from carrypost.model.address import Service, as_sent
from carrypost.model.descriptor import Descriptor, Ordering, PayloadCodec, decode
from carrypost.model.descriptor_values import is_for, may_have, recipients
from carrypost.model.headers import Headers
from carrypost.model.ids import NodeId, node_bytes
from carrypost.security.identity import Identity

A, B, C = (NodeId(name) for name in "abc")
ROADS = "topic/roads"
LARGE = bytes(range(256)) * 400
S = 1_000_000


def descriptor(destination: str = ROADS, *, author: bytes | str = "a", **changes: object) -> Descriptor:
    made = Descriptor(author, 1, 1, 0, None, destination, 0, 0, PayloadCodec.PLAIN, b"", 1024)
    return msgspec.structs.replace(made, **changes)


def listing(*named: bytes | str, **changes: object) -> Descriptor:
    made = Headers(recipients=named)
    return descriptor(**{"headers": made} | changes)  # type: ignore[arg-type]  # all are fields


# --- whom a message is for -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (descriptor(), ()),
        (descriptor("queue/b/inbox"), (B,)),
        (descriptor("control/b"), (B,)),
        (descriptor("control/all"), ()),
        (descriptor("directory/b/x"), ()),
        (descriptor(headers=Headers(number=1)), ()),
        (listing("b", "c"), (B, C)),
    ],
)
def test_a_message_is_for_those_whom_it_lists_else_for_the_node_in_its_destination(
    given: Descriptor, expected: tuple[NodeId, ...]
) -> None:
    assert recipients(given) == expected
    assert [is_for(given, node) for node in (A, B, C)] == [node in expected for node in (A, B, C)]
    listed = bool(given.headers and given.headers.recipients)
    assert [may_have(given, node) for node in (A, B, C)] == [not listed or node in expected for node in (A, B, C)]


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (descriptor(), Service()),
        (descriptor("queue/b/inbox"), Service()),
        (descriptor("control/b", headers=Headers(connected=True)), Service(private=True)),
        (descriptor(headers=Headers(connected=True, recipients=("b",))), Service()),
        (descriptor("overlay/b"), Service(direct=True)),
        (descriptor("results/b/1", size=5), Service(direct=True)),
        (descriptor("overlay/b", size=5, headers=Headers(connected=True)), Service(direct=True, private=True)),
        (descriptor("overlay/b", headers=Headers(connected=True)), Service(direct=True, private=True, momentary=True)),
    ],
)
def test_the_class_of_service_follows_from_destination_headers_and_size(given: Descriptor, expected: Service) -> None:
    assert given.service == expected


# --- the list on the wire ------------------------------------------------------------------------------------

ALAN, BETH, CARL = (Identity.derived("recipients", name) for name in ("alan", "beth", "carl"))
KEYS = sorted(node_bytes(each.node) for each in (BETH, CARL))
names = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=8)


@given(st.sets(names.filter(lambda name: name != "a"), min_size=1, max_size=20))
def test_any_names_travel_in_order_and_each_once(named: set[str]) -> None:
    doubled = (*named, *sorted(named))
    sent = as_sent(doubled, A, ROADS, ordered=False, signed=False, most=20)
    made = decode(listing(*sent).wire)
    assert recipients(made) == tuple(sorted(named))
    assert made.id == listing(*sent).id


def test_ids_of_keys_travel_as_sixteen_bytes_each() -> None:
    sent = as_sent((CARL.node, BETH.node), ALAN.node, ROADS, ordered=False, signed=True, most=2)
    made = decode(ALAN.sign(listing(*sent, author=ALAN.author, root=bytes(32))).wire)
    assert made.headers is not None
    assert list(made.headers.recipients) == KEYS
    assert set(recipients(made)) == {BETH.node, CARL.node}
    without = ALAN.sign(descriptor(author=ALAN.author, root=bytes(32)))
    assert len(made.encoded) - len(without.encoded) <= 2 * 18 + 8


FAULTS: dict[str, tuple[dict[str, Any], str]] = {
    "not in order": ({"headers": Headers(recipients=tuple(reversed(KEYS)))}, "order"),
    "one twice": ({"headers": Headers(recipients=(KEYS[0], KEYS[0]))}, "twice"),
    "the author": ({"headers": Headers(recipients=(node_bytes(ALAN.node),))}, "author"),
    "plain names beside a key": ({"headers": Headers(recipients=("b",))}, "another way"),
    "ids that are too short": ({"headers": Headers(recipients=(b"short",))}, "another way"),
    "a number": ({"headers": Headers(recipients=(7,))}, "another way"),  # type: ignore[arg-type]  # that is the point
    "to a queue": ({"headers": Headers(recipients=tuple(KEYS)), "destination": "queue/b/inbox"}, "queue/b/inbox"),
    "to a node": ({"headers": Headers(recipients=tuple(KEYS)), "destination": "control/b"}, "control/b"),
    "to all nodes": ({"headers": Headers(recipients=tuple(KEYS)), "destination": "control/all"}, "control/all"),
    "with an order": ({"headers": Headers(recipients=tuple(KEYS)), "ordering": Ordering.CAUSAL}, "order"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_wrong_list_is_no_descriptor(name: str) -> None:
    changes, text = FAULTS[name]
    wrong = ALAN.sign(descriptor(author=ALAN.author, root=bytes(32), **changes))
    with pytest.raises(DecodeError, match=text):
        decode(wrong.wire)


@pytest.mark.parametrize("named", [(3, "b"), ("b", b"b" * 16), ("",), ({},), (["b"],)])
def test_names_that_are_no_texts_are_refused_where_nothing_is_signed(named: tuple[Any, ...]) -> None:
    with pytest.raises(DecodeError, match="another way"):
        decode(listing(*named).wire)


def _said(given: Message, *, whole: bool) -> dict[str, int]:
    """Return what the victim refused of a message that it is offered and sent, as a Parcel or in parts."""
    with scene(limits={"recipients_max": 2}) as stage:
        mallory = stage.attacker("b")
        frames = [mallory.parcel(given)] if whole else [*mallory.describe(given), *mallory.fragments(given)]
        mallory.say("b", mallory.offer(given), *frames)
        stage.net.advance(5)
        assert stage.net.host("b").state_of(given.descriptor.id) is CopyState.UNKNOWN
        refused = stage.refused()
        stage.check()
        return dict(refused)


@pytest.mark.parametrize("whole", [True, False])
@pytest.mark.parametrize("name", FAULTS)
def test_a_wrong_list_is_refused_counted_and_harms_nobody(name: str, whole: bool) -> None:
    refused = _said(message(ALAN, **FAULTS[name][0]), whole=whole)
    assert refused
    assert set(refused) <= {"descriptor", "unsolicited", "frame"}


@pytest.mark.parametrize("whole", [True, False])
def test_more_recipients_than_the_limit_are_refused_and_counted(whole: bool) -> None:
    many = tuple(sorted(bytes([number]) * 16 for number in range(3)))
    assert _said(message(ALAN, headers=Headers(recipients=many)), whole=whole) == {"recipients": 1}


# --- what programs do wrong ----------------------------------------------------------------------------------

Wrong: Any = object()


@pytest.mark.parametrize(
    ("named", "options", "text"),
    [
        ("b", {}, "a list of node ids"),
        (b"b", {}, "a list of node ids"),
        ({"b": 1}, {}, "a list of node ids"),
        (Wrong, {}, "a list of node ids"),
        (["b", 7], {}, "as text, not 7"),
        ([""], {}, "as text"),
        ([], {}, "empty"),
        (["b", "a"], {}, "out of the list"),
        (["b", "c", "d"], {}, "limits.recipients_max"),
        (["b"], {"ordering": Ordering.CAUSAL}, "without an ordering"),
        (["b"], {"destination": "queue/b/inbox"}, "send to a topic"),
        (["b"], {"destination": "control/all"}, "send to a topic"),
        (["\ud800"], {}, "lone surrogates"),
    ],
)
def test_misuse_raises_says_what_to_do_and_sends_nothing(named: object, options: dict[str, Any], text: str) -> None:
    with testing.network("a", "b", seed=1, limits={"recipients_max": 2}) as net:
        host = net.host("a")
        with pytest.raises(IllegalArgumentException, match=text):
            host.publish(**{"destination": ROADS, "payload": b"", "now": 0, "recipients": named} | options)  # type: ignore[arg-type]  # wrong on purpose
        assert host.copies == 0
        host.publish(ROADS, b"", now=0, recipients={"b"})
        assert host.copies == 1


def test_a_list_among_the_headers_is_not_taken() -> None:
    with testing.network("a", "b", seed=1) as net, pytest.raises(PayloadError, match="beside the headers"):
        net.host("a").publish(ROADS, b"", now=0, headers=Headers(recipients=("b",)))


def test_names_of_nobody_are_told() -> None:
    with testing.network("a", "beth", seed=1) as net:
        with pytest.raises(LocalError, match="did you mean 'beth'"):
            net.publish("a", ROADS, recipients=["bet"])
        with pytest.raises(IllegalArgumentException, match="a list of node ids"):
            net.publish("a", ROADS, recipients="beth")
    with (
        testing.network("a", "beth", seed=1, security="signed") as net,
        pytest.raises(IllegalArgumentException, match="26 lower-case letters"),
    ):
        net.host("a").publish(ROADS, b"", now=0, recipients=["beth"])


# --- who is given it -----------------------------------------------------------------------------------------


def delivered(net: testing.Network, nodes: Collection[str]) -> set[str]:
    return {node for node in nodes if net.deliveries(node)}


@pytest.mark.parametrize("payload", [b"closed", LARGE], ids=["small", "large"])
@pytest.mark.parametrize("settings", [{}, {"paper_mode": True}, {"security": "signed"}], ids=["", "paper", "signed"])
def test_recipients_alone_deliver_and_others_carry(settings: dict[str, Any], payload: bytes) -> None:
    with testing.network(*"abcde", seed=1, compress=False, **settings) as net:
        came = Receptions(net)
        for node in "abcd":
            net.subscribe(node, ROADS)
        for pair in ("ab", "bc", "cd", "de"):
            net.link(*pair)
        net.advance(10)
        sent = net.publish("a", ROADS, payload, label="sent", recipients=["d", "b"])
        net.advance(120)
        assert delivered(net, "abcde") == {"b", "d"}
        assert came.at("c") == ["sent"]  # It subscribes, so it carries for d, until d says that it has it.
        assert {net.host(node).state_of(sent) for node in "abcd"} == {CopyState.DONE}
        assert net.host("e").state_of(sent) is CopyState.UNKNOWN  # It does not ask for the topic, and is not listed.
        net.subscribe("c", ROADS)
        net.subscribe("a", ROADS)
        net.advance(60)
        assert delivered(net, "abcde") == {"b", "d"}


@pytest.mark.parametrize("settings", [{}, {"paper_mode": True}], ids=["", "paper"])
def test_a_recipient_that_does_not_subscribe_gets_it_and_gives_it_to_who_subscribes_later(
    settings: dict[str, Any],
) -> None:
    with testing.network("a", "b", "c", seed=1, **settings) as net:
        came = Receptions(net)
        net.link("a", "b")
        net.link("a", "c")
        net.advance(10)
        small = net.publish("a", ROADS, b"x", label="small", recipients=["b"])
        net.publish("a", ROADS, LARGE, label="large", recipients=["b"])
        net.publish("a", ROADS, b"x", label="for all")
        net.advance(60)
        assert (sorted(came.at("b")), came.at("c")) == (["large", "small"], [])
        assert delivered(net, "abc") == set()
        net.unlink("a", "b")
        net.kill("b")
        net.restart("b")
        net.subscribe("b", ROADS)
        assert [each.message for each in net.deliveries("b")][:1] == [small]
        assert len(net.deliveries("b")) == 2


def test_what_comes_to_a_host_while_it_does_not_want_it_is_wanted_as_soon_as_its_list_says_so() -> None:
    """Check that a host that carries all of a topic prefers messages that list it to messages that it only carries."""
    with testing.network("a", "b", seed=1, altruistic=True, cache_messages_max=4) as net:
        net.link("a", "b")
        net.advance(10)
        kept = [net.publish("a", ROADS, b"x", recipients=["b"], priority=0) for _ in range(2)]
        net.advance(5)
        for _ in range(4):
            net.publish("a", "topic/other", b"x", priority=9)
            net.advance(5)
        assert [net.host("b").state_of(each) for each in kept] == [CopyState.WHOLE] * 2


def test_the_only_recipient_left_offers_it_to_nobody() -> None:
    with testing.network("a", "b", "c", "d", seed=1, altruistic=True) as net:
        net.link("a", "b")
        net.advance(10)
        alone = net.publish("a", ROADS, b"x", recipients=["b"])
        large = net.publish("a", ROADS, LARGE, recipients=["b"])
        both = net.publish("a", ROADS, b"x", recipients=["b", "d"])
        net.advance(30)
        net.unlink("a", "b")
        net.link("b", "c")
        net.advance(100)
        states = [net.host("c").state_of(each) for each in (alone, large, both)]
        assert states == [CopyState.UNKNOWN, CopyState.UNKNOWN, CopyState.WHOLE]
        reviews = net.sent("b").frames["Digest"]
        net.advance(100)
        assert net.sent("b").frames["Digest"] - reviews <= 60  # It does not review without end what it never offers.


def test_messages_that_list_a_node_fill_no_more_than_their_authors_share_of_its_cache() -> None:
    with testing.network("a", "m", seed=1, security="signed") as net:
        net.add("b", cache_messages_max=20, limits={"share_author": 0.25, "share_neighbour": 1.0})
        net.subscribe("b", "news")
        net.link("m", "b")
        forced = [net.publish("m", "spam", b"x", recipients=["b"], persistent=True) for _ in range(40)]
        net.advance(20)
        assert net.host("b").copies == 20
        net.link("a", "b")
        wanted = [net.publish("a", "news", b"x", persistent=True, lifetime_s=3_600) for _ in range(5)]
        net.advance(20)
        others = [net.publish("m", "spam", b"x", recipients=["b"], persistent=True) for _ in range(40)]
        net.advance(20)
        here = (CopyState.WHOLE, CopyState.FINISHED)
        assert [net.host("b").state_of(message) in here for message in wanted] == [True] * 5
        assert sum(net.host("b").state_of(message) in here for message in forced + others) == 15


@pytest.mark.parametrize("security", ["off", "signed"])
def test_a_publication_has_the_names_of_its_recipients_in_the_record(tmp_path: Path, security: str) -> None:
    file = tmp_path / "record.jsonl"
    with testing.network("a", "b", "c", seed=1, security=security, record=file) as net:
        net.publish("a", ROADS, b"x", recipients=["c", "b"])
    rows = [msgspec.json.decode(line) for line in file.read_text(encoding="utf-8").splitlines()]
    (found,) = [row["attrs"]["recipients"] for row in rows if row["kind"] == "publish"]
    assert sorted(found.split(" ")) == ["b", "c"]
