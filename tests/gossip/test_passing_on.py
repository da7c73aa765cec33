"""Messages that pass on others: the same payload without reading it, and whose message that is."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest
from tests.support.one_node import OneNode

from carrypost.errors import ForgeryError, MessageFormatException, PayloadError, StateError
from carrypost.gossip.draft import Draft
from carrypost.log.events import Published
from carrypost.log.journal import PIECE, PieceOf
from carrypost.model.descriptor import Descriptor, PayloadCodec
from carrypost.model.headers import ORIGIN_BYTES_MAX, Headers
from carrypost.model.ids import MessageId
from carrypost.security.identity import Identity, check_origin

LARGE = bytes(range(256)) * 200
"""Several pieces."""


@pytest.fixture
def node() -> OneNode:
    return OneNode()


def passed_on(node: OneNode, message: MessageId) -> Descriptor:
    node.work(Draft("copies", b"", payload_of=message))
    node.collect()
    return next(each.descriptor for each in reversed(node.events) if isinstance(each, Published))


def test_the_store_is_told_whose_pieces_they_are(node: OneNode) -> None:
    source = node.publish("news", LARGE)
    node.write()
    copy = passed_on(node, source)
    (batch,) = node.batches
    assert batch.refers
    assert {key[2]: value for key, value in batch.puts.items() if key[:2] == (PIECE, copy.id)} == dict.fromkeys(
        range(4), PieceOf(source)
    )
    assert (copy.length, copy.size, copy.codec, copy.pieces) == (len(LARGE), len(LARGE), PayloadCodec.PLAIN, 4)


def test_pieces_of_the_same_batch_are_put_as_they_are(node: OneNode) -> None:
    source = node.publish("news", b"small")
    copy = passed_on(node, source)
    puts = {key: value for batch in node.batches for key, value in batch.puts.items() if key[0] == PIECE}
    assert puts == {(PIECE, source, 0): b"small", (PIECE, copy.id, 0): b"small"}
    assert not any(batch.refers for batch in node.batches)


def test_the_message_does_not_push_out_the_one_that_it_passes_on() -> None:
    node = OneNode(cache_messages_max=2)
    for priority, payload in ((0, b"first"), (4, b"second")):
        node.work(Draft("news", payload, priority=priority))
        node.write()
    source = next(each.descriptor.id for each in node.events if isinstance(each, Published))
    node.work(Draft("copies", b"", priority=9, payload_of=source))
    node.write()
    kept = {name for kind, name, _ in node.disk if kind == PIECE}
    assert len(kept) == 2
    assert source in kept


def test_what_is_not_here_cannot_be_passed_on(node: OneNode) -> None:
    with pytest.raises(StateError, match="is not here, so its payload cannot be passed on"):
        node.work(Draft("copies", b"", payload_of=MessageId(b"x:1:1")))


def test_messages_to_holders_leave_room_for_being_passed_on(node: OneNode) -> None:
    with pytest.raises(MessageFormatException, match="at most 2048 bytes beside its body"):
        node.publish("holder/m/news", b"", text="x" * 1_000, more="x" * 1_000)
    node.publish("topic/news", b"", text="x" * 1_000, more="x" * 1_000)


# --- whose message it is ---------------------------------------------------------------------------------------------

AUTHOR, HOLDER = (Identity.derived("origins", name) for name in ("author", "holder"))


def described(identity: Identity, **fields: object) -> Descriptor:
    given: dict[str, object] = {"length": 9, "size": 9, "root": b"r" * 32, "codec": PayloadCodec.PLAIN} | fields
    made = Descriptor(identity.author, 1, 1, 5, None, "news", fragment_bytes=1_024, **given)  # type: ignore[arg-type]
    return identity.sign(made)


def passing(origin: bytes, **fields: object) -> Descriptor:
    return described(HOLDER, headers=Headers(origin=origin), **fields)


def test_a_message_that_passes_on_another_is_checked_and_shows_it() -> None:
    origin = described(AUTHOR)
    found = passing(origin.wire)
    check_origin(found)
    assert (found.original, found.original.signature) == (origin, origin.signature)
    assert origin.original is origin
    plain = Identity.plain("a"), Identity.plain("b")
    origin = described(plain[0], root=b"")
    check_origin(described(plain[1], root=b"", headers=Headers(origin=origin.wire)))


def tampered() -> bytes:
    wire = bytearray(described(AUTHOR).wire)
    wire[10] ^= 1
    return bytes(wire)


BAD: dict[str, Callable[[], Descriptor]] = {
    "another root": lambda: passing(described(AUTHOR, root=b"q" * 32).wire),
    "another length": lambda: passing(described(AUTHOR, length=8, size=8).wire),
    "another size": lambda: passing(described(AUTHOR, size=10).wire),
    "another codec": lambda: passing(described(AUTHOR, codec=PayloadCodec.ZSTD).wire),
    "another signature": lambda: passing(tampered()),
    "no signature": lambda: passing(b"\x00" + described(AUTHOR).encoded),
    "no key": lambda: passing(described(Identity.plain("a")).wire),
    "no descriptor": lambda: passing(b"\x00nonsense"),
    "none": lambda: described(HOLDER),
    "one that passes on a third": lambda: passing(passing(described(AUTHOR).wire).wire),
}


@pytest.mark.parametrize("name", BAD)
def test_an_origin_that_does_not_fit_is_refused(name: str) -> None:
    with pytest.raises(ForgeryError):
        check_origin(BAD[name]())


def test_an_origin_has_a_bound() -> None:
    host = OneNode().host
    with pytest.raises(PayloadError, match="origin"):
        host.publish("news", b"", now=0, headers=Headers(origin=bytes(ORIGIN_BYTES_MAX + 1)))
    assert "g" in msgspec.to_builtins(Headers(origin=b"x"))
