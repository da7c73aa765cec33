"""Copies: the state of one message in the cache (`Copy`), and the room that several of them use (`Usage`).

The lowest module of holdings: whoever speaks of messages that are here knows it, and it knows nobody. Who may stay when
room is short, and whom a copy's room is charged to, is for `gossip.holdings.room`; when copies come and go, and what
is remembered of those that left, for `gossip.holdings.cache`.
"""

from __future__ import annotations

from typing import Any, cast

import msgspec

from carrypost.gossip.wire.frames import OfferEntry
from carrypost.model.descriptor import Descriptor, PayloadCodec, decode
from carrypost.model.ids import MessageId, NodeId

DELIVERED, CLAIMED = 1, 2
"""The copy was delivered to the application; a subscription of messaging has, or had, a claim to it."""


SERIAL_SHIFT, DEADLINE_SHIFT = 32, 96
"""An `expiry` has the slot in its lowest bits, then the serial, then the deadline."""


def deadline_of(expiry: int) -> int:
    """Return the deadline in the `expiry` of a copy."""
    return expiry >> DEADLINE_SHIFT


def slot_of(expiry: int) -> int:
    """Return the slot in the `expiry` of a copy."""
    return expiry & (1 << SERIAL_SHIFT) - 1


class Copy(msgspec.Struct, eq=False, gc=False):
    """The copy of one message, present or past: one object per tenancy of a slot, changed only by the cache.

    `handle` and `entry` belong to the exchange, `given` to `Holdings`. Of a copy that left (`here` is false) `held` and
    `held_bytes` still say what it had, until it is admitted again or condensed. What follows `expiry` up to
    `sending_order` is set when it is admitted, and known only then.
    """

    slot: int
    serial: int
    """Rises with every tenancy in this cache."""
    descriptor: Descriptor
    id: MessageId
    expiry: int = 0
    """Deadline, serial and slot as one number: the order in which copies expire."""
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
    """Place in the order of replacement (`holdings.ranking`); copies of higher rank stay longer."""
    sending_order: int = 0
    held: int = 0
    """Bitset of pieces."""
    held_bytes: int = 0
    """Bytes it is charged with: those given to `admit`, and those of every `grow`."""
    here: bool = False
    """True if the copy uses room: all, some or (just admitted) none of its pieces are held."""
    whole: bool = False
    """True if the copy is here with all of its pieces."""
    finished: bool = False
    """Once it leaves it is never wanted again."""
    pins: int = 0
    """Owners that keep the copy from being evicted (`holdings.owners`); of a copy that left, those at that time."""
    handle: int = -1
    entry: OfferEntry | None = None
    given: int = 0
    """To whom it was given (`DELIVERED`, `CLAIMED`), in this life or, unconfirmed, in an earlier one. A field here and
    no bitset of slots: to look at one bit copies a bitset, which has 125 kB once a million ids are remembered."""

    wire: bytes = b""
    """Of a `Memory`: the descriptor as it travels."""

    def condense(self) -> None:
        """Become a `Memory`: the copy left, what it leaves is reported, and it is never wanted again."""
        if not self.wire:
            self.wire, self.descriptor, self.giver = self.descriptor.wire, _FORGOTTEN, None
            self.age_ms = self.received_us = self.rank = self.sending_order = self.held_bytes = self.held = 0
            self.__class__ = Memory

    def __repr__(self) -> str:
        return f"<Copy {self.descriptor.shown} slot={self.slot} here={self.here} held={self.held:#x}>"


class Memory(Copy, eq=False, gc=False):
    """A copy that is gone for good, in a third of the memory: the descriptor is made whenever somebody asks for it.

    Profiles that come later are still matched against it. A class of its own, because a copy that is here is asked for
    its descriptor twenty times per message.
    """

    descriptor = cast("Any", property(lambda memory: decode(memory.wire)))


_FORGOTTEN = Descriptor("", 0, 0, 0, None, "", 0, 0, PayloadCodec.BLANK, b"", 64)

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
