"""Between frames and a driver's store: payloads are put in, put together, and missed where they are gone."""

from __future__ import annotations

import msgspec
import pytest

from carrypost import testing
from carrypost.config import Limits
from carrypost.errors import StoreError
from carrypost.gossip.wire.codec import assemble_payload, fill_payloads
from carrypost.gossip.wire.frames import Ack, BlankData, Data, Frame, OpenParcel, StoredData
from carrypost.log.events import Dropped, Event, Reason
from carrypost.log.journal import PIECE, Batch, Durability
from carrypost.model.descriptor import Descriptor, PayloadCodec
from carrypost.model.ids import MessageId

SMALL = Descriptor("alan", 1, 1, 0, None, "news", 5, 5, PayloadCodec.PLAIN, b"", 1_024)
OTHER = msgspec.structs.replace(SMALL, sequence=2)
EMPTY = msgspec.structs.replace(SMALL, sequence=3, size=0, length=0)
BLANK = msgspec.structs.replace(SMALL, sequence=4, codec=PayloadCodec.BLANK)
LARGE = msgspec.structs.replace(SMALL, sequence=5, size=20_000, length=20_000)
PIECES = {(SMALL.id, 0): b"hello", (LARGE.id, 0): bytes(range(256)) * 64, (LARGE.id, 1): bytes(3_616)}


def read(message: MessageId, piece: int) -> bytes | None:
    return PIECES.get((message, piece))


def parcel(descriptor: Descriptor, body: bytes | None = None) -> OpenParcel:
    return OpenParcel(1, 2, 3, 4, True, descriptor, body)


def stored(piece: int, offset: int, length: int, message: MessageId = LARGE.id) -> StoredData:
    return StoredData(1, 2, 3, True, message, piece, offset, length)


def test_what_names_stored_bytes_gets_them_and_the_rest_stays_as_it_is() -> None:
    frames: list[Frame] = [
        Ack(1, b""), parcel(SMALL), parcel(EMPTY), parcel(BLANK), parcel(OTHER, b"there"), stored(0, 256, 3),
        stored(1, 0, 3_616), stored(7, 0, 0), BlankData(1, 2, 3, True, 9),
    ]  # fmt: skip
    found, gone = fill_payloads(frames, read)
    assert gone == ()
    assert list(found) == [
        Ack(1, b""), parcel(SMALL, b"hello"), parcel(EMPTY, b""), parcel(BLANK), parcel(OTHER, b"there"),
        Data(1, 2, 3, True, b"\x00\x01\x02"), Data(1, 2, 3, True, bytes(3_616)), Data(1, 2, 3, True, b""),
        BlankData(1, 2, 3, True, 9),
    ]  # fmt: skip


def test_where_nothing_is_to_be_filled_in_the_frames_are_handed_on() -> None:
    frames = (Ack(1, b""), parcel(BLANK), parcel(SMALL, b"hello"))
    assert fill_payloads(frames, lambda _message, _piece: pytest.fail("it was read")) == (frames, ())


def test_what_is_gone_is_left_out_and_named_once() -> None:
    frames: list[Frame] = [
        parcel(OTHER),
        stored(5, 0, 9),
        parcel(SMALL),
        parcel(OTHER),
        stored(1, 3_600, 17),
        stored(1, 3_600, 16),
    ]
    found, gone = fill_payloads(frames, read)
    assert list(found) == [parcel(SMALL, b"hello"), Data(1, 2, 3, True, bytes(16))]
    assert gone == (OTHER.id, LARGE.id)


@pytest.mark.parametrize("body", [b"", b"hell", b"hello!"])
def test_a_small_message_whose_stored_bytes_are_not_all_of_it_is_gone(body: bytes) -> None:
    assert fill_payloads([parcel(SMALL)], lambda _message, _piece: body) == ([], (SMALL.id,))


def test_pieces_are_put_together_and_a_missing_one_is_named() -> None:
    assert assemble_payload(LARGE, read, Limits()) == PIECES[LARGE.id, 0] + PIECES[LARGE.id, 1]
    assert assemble_payload(EMPTY, read, Limits()) == b""
    assert assemble_payload(BLANK, read, Limits()) == bytes(5)
    with pytest.raises(StoreError, match="piece 0 of alan:1:2 is gone"):
        assemble_payload(OTHER, read, Limits())


@pytest.mark.parametrize("size", [5, 3_000])
def test_a_payload_that_vanished_from_the_store_is_not_sent_and_told_and_the_others_are_sent(size: int) -> None:
    drops: list[tuple[str, Reason, MessageId]] = []

    def note(_t: float, node: str, event: Event) -> None:
        if isinstance(event, Dropped):
            drops.extend((node, event.reason, each.id) for each in event.descriptors)

    with testing.network("a", "b", compress=False) as net:
        net.watch(note)
        net.subscribe("b", "news")
        first, second = (net.publish("a", "news", bytes([n]) * size) for n in (1, 2))
        net.advance(1)
        driver = net._driver("a")  # noqa: SLF001 - there is no public way to spoil a disk
        driver.store.write(Batch(10**6, Durability.NORMAL, {}, ((PIECE, first, 0),)))
        net.link("a", "b")
        net.advance(30)
        assert [each.message for each in net.deliveries("b")] == [second]
        assert drops == [("a", Reason.PAYLOAD_GONE, first)]
        assert driver.gone == 1
