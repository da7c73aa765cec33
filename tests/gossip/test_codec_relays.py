"""Frames inside of a `Relay`: encoded, counted, and filled in there."""

from __future__ import annotations

import pytest

from carrypost.config import Limits
from carrypost.errors import LocalError
from carrypost.gossip.wire import codec
from carrypost.gossip.wire.codec import fill_payloads
from carrypost.gossip.wire.frames import Ack, BlankData, Data, OpenRelay, Relay, StoredData, kind
from carrypost.model.ids import MessageId, NodeId, node_prefix

LIMITS = Limits()
ID = MessageId(b"alan:1:1")


PATH = b"".join(node_prefix(NodeId(name)) for name in "abc")


@pytest.mark.parametrize("count", [1, 15, 16, 300])
def test_what_is_wrapped_is_counted_filled_in_and_travels_as_a_datagram(count: int) -> None:
    stored = [StoredData(1, serial, 3, False, ID, 0, serial, 2) for serial in range(count)]
    blank = BlankData(1, 2, 3, True, 9)
    relay = OpenRelay((*stored, blank), PATH, 1)
    with pytest.raises(LocalError, match="read from the store"):
        codec.encode(relay)
    piece = bytes(range(256)) * 2
    (full,), gone = fill_payloads([relay], lambda _message, _piece: piece)
    assert (gone, kind(relay)) == ((), "Relay")
    assert codec.wire_size(relay) == codec.wire_size(full) == len(codec.encode(full))
    (sent,) = codec.decode(codec.datagrams([full], 65_507)[0], LIMITS).frames
    assert isinstance(sent, Relay)
    found = codec.decode(sent.body, LIMITS).frames
    assert found == [
        *(Data(1, serial, 3, False, piece[serial : serial + 2]) for serial in range(count)),
        Data(1, 2, 3, True, bytes(9)),
    ]


def test_what_is_gone_is_left_out_of_what_wraps_it_and_an_empty_relay_is_not_sent() -> None:
    gone = StoredData(1, 2, 3, False, ID, 0, 0, 2)
    both, alone = OpenRelay((Ack(1, b""), gone), PATH, 1), OpenRelay((gone,), PATH, 1)
    assert fill_payloads([both, alone], lambda _message, _piece: None) == (
        [OpenRelay((Ack(1, b""),), PATH, 1)],
        (ID,),
    )
