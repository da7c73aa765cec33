"""What the cache has of one message (`Copy`), and how much several of them are (`Usage`).

The lowest module of holdings: whoever speaks of messages that are here knows it, and it knows nobody. Who may stay when
room is short, and whom a copy's room is charged to, is for `gossip.holdings.ranking`; when copies come and go, and what
is remembered of those that left, for `gossip.holdings.cache`.
"""

from __future__ import annotations

import msgspec

from carrypost.gossip.wire.frames import OfferEntry
from carrypost.model.descriptor import Descriptor
from carrypost.model.ids import MessageId, NodeId

DELIVERED, CLAIMED = 1, 2
"""It was given to the application; a subscription of messaging has, or had, a claim to it."""


class Copy(msgspec.Struct, eq=False):
    """What the cache has, or had, of one message: one object per tenancy of a slot, changed by the cache only.

    `handle` and `entry` belong to the exchange, `given` to `Holdings`. Of a copy that left (`here` is false) `held` and
    `held_bytes` still say what it had, until it is admitted again. What follows `id` up to `sending_order` is set when
    it is admitted, and known only then.
    """

    slot: int
    serial: int
    """Rises with every tenancy in this cache."""
    descriptor: Descriptor
    id: MessageId
    privilege: int = 0
    interesting: bool = False
    """Wanted here, or own; else carried for others."""
    own: bool = False
    giver: NodeId | None = None
    hops: int = 0
    age_ms: int = 0
    """At receipt."""
    received_us: int = 0
    rank: int = 0
    """(interesting, privilege, created_us) as one number; the larger stays longer."""
    sending_order: int = 0
    held: int = 0
    """Bitset of pieces."""
    held_bytes: int = 0
    """Bytes it is charged with: those given to `admit`, and those of every `grow`."""
    here: bool = False
    """It uses room: all, some or (just admitted) none of its pieces are held."""
    whole: bool = False
    """It is here with all of its pieces."""
    finished: bool = False
    """Once it leaves it is never wanted again."""
    pins: int = 0
    """Who keeps it from being evicted (`holdings.owners`); of one that left, who did when it left."""
    handle: int = -1
    entry: OfferEntry | None = None
    given: int = 0
    """To whom it was given (`DELIVERED`, `CLAIMED`), in this life or, unconfirmed, in an earlier one. A field here and
    no bitset of slots: to look at one bit copies a bitset, which has 125 kB once a million ids are remembered."""

    def __repr__(self) -> str:
        return f"<Copy {self.descriptor.shown} slot={self.slot} here={self.here} held={self.held:#x}>"


Newcomer = tuple[Descriptor, int, int, int]
"""A descriptor, its privilege, hops and age in milliseconds."""


class Usage:
    """So many messages of so many bytes."""

    __slots__ = ("bytes", "messages")

    def __init__(self) -> None:
        self.messages = 0
        self.bytes = 0

    def add(self, messages: int, nbytes: int) -> None:
        """Count so much more, or less."""
        self.messages += messages
        self.bytes += nbytes
