"""Kinds of frames that layers bring: registered, encoded, counted, and filled in inside what wraps them."""

from __future__ import annotations

import pytest
from tests.wrapping import OpenWrapped, Wrapped

from carrypost.config import Limits
from carrypost.errors import LimitError, LocalError
from carrypost.gossip.wire import checks, codec
from carrypost.gossip.wire.frames import Ack, BlankData, Data, Frame, LayerFrame, StoredData, kind
from carrypost.gossip.wire.payloads import fill_payloads
from carrypost.model.ids import MessageId

LIMITS = Limits()
ID = MessageId(b"alan:1:1")


class Count(LayerFrame, frozen=True, array_like=True, tag=102):
    number: int


def _few(frame: Count, _: Limits) -> None:
    if frame.number > 3:
        raise LimitError(checks.Refusal.LIMIT)


def test_a_registered_kind_is_decoded_and_checked() -> None:
    frames: list[Frame] = [Count(3), Count(4), Ack(1, b"")]
    (datagram,) = codec.datagrams(frames, 1_200)
    codec.register(Count, _few)
    codec.register(Count, _few)
    assert codec.decode(datagram, LIMITS) == codec.Decoded([Count(3), Ack(1, b"")], {"limit": 1})
    assert codec.wire_size(Count(3)) == len(codec.encode(Count(3)))


@pytest.mark.parametrize("tag", [10, 101, "ten"])
def test_a_kind_whose_number_is_taken_or_is_none_is_not_registered(tag: int | str) -> None:
    class Other(LayerFrame, frozen=True, array_like=True, tag=tag):
        number: int

    with pytest.raises(LocalError, match="needs a number that no other kind of frame has"):
        codec.register(Other)


@pytest.mark.parametrize("count", [1, 15, 16, 300])
def test_what_is_wrapped_is_counted_filled_in_and_travels_as_a_datagram(count: int) -> None:
    stored = [StoredData(1, serial, 3, False, ID, 0, serial, 2) for serial in range(count)]
    blank = BlankData(1, 2, 3, True, 9)
    envelope = OpenWrapped((*stored, blank), "a", "c")
    with pytest.raises(LocalError, match="read from the store"):
        codec.encode(envelope)
    piece = bytes(range(256)) * 2
    (full,), gone = fill_payloads([envelope], lambda _message, _piece: piece)
    assert (gone, kind(envelope)) == ((), "Wrapped")
    assert codec.wire_size(envelope) == codec.wire_size(full) == len(codec.encode(full))
    (sent,) = codec.decode(codec.datagrams([full], 65_507)[0], LIMITS).frames
    assert isinstance(sent, Wrapped)
    found = codec.decode(sent.body, LIMITS).frames
    assert found == [
        *(Data(1, serial, 3, False, piece[serial : serial + 2]) for serial in range(count)),
        Data(1, 2, 3, True, bytes(9)),
    ]


def test_what_is_gone_is_left_out_of_what_wraps_it_and_an_empty_envelope_is_not_sent() -> None:
    gone = StoredData(1, 2, 3, False, ID, 0, 0, 2)
    both, alone = OpenWrapped((Ack(1, b""), gone), "a", "c"), OpenWrapped((gone,), "a", "c")
    assert fill_payloads([both, alone], lambda _message, _piece: None) == (
        [OpenWrapped((Ack(1, b""),), "a", "c")],
        (ID,),
    )
