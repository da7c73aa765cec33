"""Rows that a host wants stored, by key, and batches of changes to them.

One batch is one transaction of the driver's store; batches are applied in the order of their serials and each key
occurs once per batch. Hosts make them in `gossip.outputs`.
"""

from __future__ import annotations

import enum
from typing import Final

import msgspec

from carrypost.model.descriptor import Descriptor
from carrypost.model.ids import MessageId, NodeId

Key = tuple[str, bytes, int]
"""(kind, message id or name, piece number or 0)."""

MESSAGE: Final = "message"
PIECE: Final = "piece"
HASHES: Final = "hashes"
SEEN: Final = "seen"
STRUCK: Final = "struck"
ORDER: Final = "order"
MOM: Final = "mom"
ACKED: Final = "acked"
SEALING: Final = "sealing"
LAYERS: set[str] = {MOM, ACKED, STRUCK, SEALING}
"""Kinds of rows that the store does not interpret: names and values are their owner's. The owner is a layer, whose kind
is registered when the first layer of its class joins a host; struck-off recipients belong to the core."""
META: Final = "meta"
CORE: Final = frozenset({MESSAGE, PIECE, HASHES, SEEN, STRUCK, META})
"""Kinds of rows that belong to no layer."""
INCARNATION: Key = (META, b"incarnation", 0)
DATE: Key = (META, b"date", 0)
"""The latest date that is known to have passed, to the minute."""


class StoredMessage(msgspec.Struct, frozen=True, gc=False):
    """The stored state of one copy, less its payload."""

    descriptor: Descriptor
    held: int
    """Bitset of the pieces that are in the store."""
    hops: int
    age_ms: int
    received_us: int
    giver: NodeId | None
    own: bool
    interesting: bool
    delivered: bool
    """Delivered to the application; without a `seen` key, not confirmed yet."""
    claimed: bool = False
    """Claimed by a subscription of messaging; without a `seen` key, not acknowledged yet."""
    predecessors_lost: int = 0
    """Causal order: number of messages that it names and that died undelivered here."""


class PieceOf(msgspec.Struct, frozen=True, gc=False):
    """A piece that equals another message's piece of that number, which the store had before this batch.

    The store copies it without passing it to the host.
    """

    message: MessageId


Value = StoredMessage | Descriptor | PieceOf | bytes | int
"""Values of a message, a seen id, a piece, a hash list, an uninterpreted row, or the incarnation."""


class Durability(enum.IntEnum):
    """The level of safety that a batch must reach before its events may be released."""

    NORMAL = 0
    """Survives the process."""
    FULL = 1
    """Survives the loss of power."""


class Batch(msgspec.Struct, frozen=True):
    """One store transaction."""

    serial: int
    durability: Durability
    puts: dict[Key, Value]
    deletes: tuple[Key, ...]
    refers: bool = False
    """True if any of the puts is a `PieceOf`. Its source may be among the deletes."""
