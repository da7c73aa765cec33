"""Copies: the state of one message in the cache (`Copy`), and the room that several of them use (`Usage`).

The lowest module of holdings: all others import it, and it imports none of them. Eviction, and the accounts that a
copy's room is charged to, are in `gossip.holdings.eviction`; arrival and removal of copies, and the memory of those
that left, in `gossip.holdings.cache`.
"""

from __future__ import annotations

from typing import Any, Final, cast

import msgspec

from carrypost.gossip.wire.frames import OfferEntry
from carrypost.model.address import CIRCLE
from carrypost.model.descriptor import Descriptor, PayloadCodec, decode, destination_of
from carrypost.model.ids import MessageId, NodeId

DELIVERED: Final = 1
"""Flag: the copy was delivered to the application."""
CLAIMED: Final = 2
"""Flag: a subscription of messaging has, or had, a claim to the copy."""

# An `expiry` has the slot in its lowest bits, then the serial, then the deadline.
SERIAL_SHIFT: Final = 32
DEADLINE_SHIFT: Final = 96


def deadline_of(expiry: int) -> int:
    """Return the deadline in the `expiry` of a copy."""
    return expiry >> DEADLINE_SHIFT


def slot_of(expiry: int) -> int:
    """Return the slot in the `expiry` of a copy."""
    return expiry & (1 << SERIAL_SHIFT) - 1


class Copy(msgspec.Struct, eq=False, gc=False):
    """The copy of one message, present or past: one object per tenancy of a slot, written only by the cache.

    `handle` and `entry` belong to the exchange, `given` to `Holdings`, `predecessors_lost` to the order. When a copy
    has left (`here` is false), `held` and `held_bytes` keep their values until it is admitted again or condensed. The
    fields after `expiry` up to `sending_order` are set on admission, and unknown before.
    """

    slot: int
    serial: int
    """Rises with every tenancy in this cache."""
    descriptor: Descriptor
    id: MessageId
    expiry: int = 0
    """Deadline, serial and slot as one number: the order of expiry."""
    privilege: int = 0
    interesting: bool = False
    """True if wanted here, or own; False if carried for others."""
    own: bool = False
    giver: NodeId | None = None
    hops: int = 0
    age_ms: int = 0
    """Age at receipt."""
    received_us: int = 0
    rank: int = 0
    """Place in the order of eviction (`holdings.eviction`); copies of higher rank stay longer."""
    sending_order: int = 0
    held: int = 0
    """Bitset of the pieces that are here."""
    held_bytes: int = 0
    """Bytes that it is charged with: those passed to `admit`, and those of every `grow`."""
    here: bool = False
    """True if the copy uses room: all, some or (just admitted) none of its pieces are held."""
    whole: bool = False
    """True if the copy is here with all of its pieces."""
    finished: bool = False
    """True if it is never wanted again once it leaves."""
    pins: int = 0
    """Owners that protect the copy from eviction (`holdings.cache`); of a copy that left, those at that time."""
    handle: int = -1
    entry: OfferEntry | None = None
    given: int = 0
    """The programs that it was given to (`DELIVERED`, `CLAIMED`), in this incarnation or, unconfirmed, before a
    restart. A field and not a bitset of slots: reading one bit copies the bitset, which has 125 kB once a million ids
    are remembered."""

    predecessors_lost: int = 0
    """Causal order: number of messages that it names and that died undelivered here."""
    wire: bytes = b""
    """Of a `Memory`: the encoded descriptor."""
    opened: Descriptor | None = None
    """Of a sealed message that this host can read, the descriptor with its plain fields; set by the keyring."""

    @property
    def destination(self) -> str:
        """The destination of the message."""
        return self.descriptor.destination

    @property
    def readable(self) -> Descriptor:
        """The descriptor with the fields that this host can read: the opened one, if there is one."""
        return self.opened or self.descriptor

    @property
    def matched(self) -> Descriptor:
        """The descriptor that this host's interests are matched against: with the destination that carriers see."""
        opened = self.opened
        return opened if opened is not None and not opened.destination.startswith(CIRCLE) else self.descriptor

    @property
    def original(self) -> Descriptor:
        """The message as its author published it, with the fields that this host can read."""
        return self.opened or self.descriptor.original

    def condense(self) -> None:
        """Turn into a `Memory`: the copy left, that is reported, and it is never wanted again."""
        if not self.wire:
            self.wire, self.descriptor, self.giver = self.descriptor.wire, _FORGOTTEN, None
            self.age_ms = self.received_us = self.rank = self.sending_order = self.held_bytes = self.held = 0
            self.opened = None
            self.__class__ = Memory

    def __repr__(self) -> str:
        return f"<Copy {self.descriptor.shown} slot={self.slot} here={self.here} held={self.held:#x}>"


class Memory(Copy, eq=False, gc=False):
    """A copy that is gone for good, in a third of the memory: its descriptor is decoded on demand.

    Profiles that arrive later are still matched against it. It is a class of its own because the descriptor of a copy
    that is here is read twenty times per message.
    """

    descriptor = cast("Any", property(lambda memory: decode(memory.wire)))

    @property
    def destination(self) -> str:
        """The destination of the message."""
        return destination_of(self.wire)


_FORGOTTEN: Final = Descriptor("", 0, 0, 0, None, "", 0, 0, PayloadCodec.BLANK, b"", 64)

Newcomer = tuple[Descriptor, int, int, int]
"""A descriptor, its privilege, hops and age in milliseconds."""
