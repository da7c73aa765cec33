"""Arrivals that are not complete: the offers of one neighbour, frames to acknowledge, and things in several parts.

The `Inbox` of a neighbour has its offers to this host, and what has arrived of them so far. A `Want` is one message of
these. Everything that is not verified yet belongs to the link that brought it, so that a neighbour that sends rubbish
spoils no other neighbour's pieces. The inbox is dropped with the contact. State that all inboxes of a host share, and
their bounds, is in `gossip.transfers.wants`.

An `AckTracker` records the transfer frames of a neighbour that arrived, and makes the acknowledgements that report
them. An acknowledgement repeats what the last two reported, so that one may be lost. Serials mostly rise by one. A
serial far from the others (a forged one, or a frame that was delayed) must not keep those around it from being
acknowledged: the frames recorded so far are reported, and the bitmap starts anew at that serial.

`Parts` is the buffer of descriptors, profiles and tables of encounters in several parts. It is bounded for all senders
together, in bytes and in parts (a part of one byte is not free, either). When it is full, the sender that fills most of
it loses the thing that has waited longest without a new part, and has to send it again: so a sender of nothing but
first parts does not hinder others.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from typing import TYPE_CHECKING, Final

from carrypost.errors import LimitError
from carrypost.gossip.wire.checks import RECEIPT_BITMAP_BYTES_MAX
from carrypost.gossip.wire.frames import Ack, OfferEntry
from carrypost.gossip.wire.pieces import to_bitmap

if TYPE_CHECKING:
    from carrypost.model.descriptor import Descriptor


_WINDOW: Final = 4096
_SLACK: Final = 64
"""Room for serials that the first one heard has overtaken."""
_NOWHERE: Final = -(2**62)


class AckTracker:
    """The serials heard from one neighbour lately, as far as they are less than `window` apart."""

    __slots__ = ("_base", "_bits", "_marks", "_slack", "_window", "count")

    def __init__(self, window: int = _WINDOW, slack: int = _SLACK) -> None:
        self._window, self._slack = window, slack
        self._base = _NOWHERE
        self._bits = 0
        self._marks = (0, 0)
        """The newest serials that the last two acknowledgements reported."""
        self.count = 0
        """Frames not acknowledged yet."""

    def note(self, serials: list[int]) -> list[Ack]:
        """Record frames that arrived, mostly with consecutive serials; return acknowledgements that are due at once."""
        first, count = serials[0], len(serials)
        # Bursts arrive with consecutive serials, and are recorded by one shift instead of a loop
        # over them.
        offset = first - self._base
        in_a_row = count == 1 or serials == list(range(first, first + count))
        if in_a_row and 0 <= offset <= self._window - count:
            self._bits |= ((1 << count) - 1) << offset
            self.count += count
            return []
        acks: list[Ack] = []
        for serial in serials:
            if not 0 <= serial - self._base < self._window:
                # A jump out of the window. Reporting first matters: otherwise one forged serial
                # would erase the arrivals that were not reported yet, and the sender would send
                # them all again.
                if self.count:
                    acks.append(self.report())
                self._base, self._bits, self._marks = serial - self._slack, 0, (0, 0)
            self._bits |= 1 << serial - self._base
            self.count += 1
        return acks

    @property
    def is_empty(self) -> bool:
        """True if the next report would have nothing to say."""
        return not self._bits

    def peek(self) -> Ack:
        """Return the acknowledgement of everything recorded, and repeat it next time: several hosts have to hear it."""
        return Ack(max(0, self._base), to_bitmap(self._bits >> max(0, -self._base)))

    def report(self) -> Ack:
        """Return the acknowledgement of everything recorded."""
        self.count = 0
        ack = self.peek()
        # Drop the bits that two reports had already: one report may be lost, two in a row hardly
        # ever are, and a retransmission covers that.
        shift = max(0, self._marks[0] - self._base)
        self._bits >>= shift
        self._base += shift
        self._marks = (self._marks[1], self._base + self._bits.bit_length())
        return ack


_UNASKED_SLACK: Final = 16
"""Room for unasked Parcels that the first one heard has overtaken."""


class Want:
    """One message that one neighbour offers and this host would like."""

    __slots__ = (
        "age_ms", "asked_us", "descriptor", "entry", "fragments", "hash_parts", "hashes", "hops", "interesting",
        "requested", "reset", "tries", "unasked", "unsure",
    )  # fmt: skip

    def __init__(self, entry: OfferEntry) -> None:
        self.entry = entry
        self.requested = 0
        """Bitset of the pieces that were requested here and have not arrived."""
        self.asked_us = 0
        """Time at which the pieces were requested, or at which some of them last arrived."""
        self.tries = 0
        self.unasked: int | None = None
        """Serial of the unasked Parcel that is being processed."""
        self.unsure = False
        """True if it was offered a while ago: the neighbour may have evicted it, and then does not answer."""
        self.descriptor: Descriptor | None = None
        self.hashes = b""
        self.interesting = False
        self.hops = self.age_ms = 0
        self.reset = False
        """True if its parts were dropped for lack of room. Fragments are useless until the descriptor arrives again."""
        self.fragments: dict[int, dict[int, bytes]] = {}
        """Fragments of pieces that are not whole, or wait for the hash list: by piece, and by number in it."""
        self.hash_parts: dict[int, bytes] = {}
        """Parts of the hash list by their first piece, until it is whole."""

    def clear(self) -> None:
        """Drop everything that arrived, and begin again with the descriptor."""
        self.reset = True
        self.descriptor = None
        self.hashes = b""
        self.fragments, self.hash_parts = {}, {}


class Inbox:
    """The offers of one neighbour to this host, and what has arrived of them (`gossip.transfers.requests`)."""

    __slots__ = (
        "answers", "asked_us", "closed", "declined", "fresh", "progress_us", "acks", "unasked", "unasked_bytes",
        "wants",
    )  # fmt: skip

    def __init__(self) -> None:
        self.wants: dict[int, Want] = {}
        """By handle."""
        self.closed: OrderedDict[int, OfferEntry] = OrderedDict()
        """By handle: messages that are no longer wanted. Further frames of them are acknowledged or declined."""
        self.declined: dict[int, int] = {}
        """By handle: time at which the neighbour was informed that a message is not accepted."""
        self.answers: list[int] = []
        """Serials of the neighbour's offers to answer."""
        self.fresh: list[int] = []
        """Handles to request."""
        self.asked_us = 0
        """Time of the last request, if nothing has arrived since then; else 0."""
        self.progress_us = 0
        """Time at which the neighbour last sent something requested, or was first asked."""
        self.acks = AckTracker()
        """Receipts of all transfer frames, for acknowledgements."""
        self.unasked = AckTracker(8 * RECEIPT_BITMAP_BYTES_MAX, _UNASKED_SLACK)
        """Receipts of unasked Parcels, for announcements."""
        self.unasked_bytes = 0
        """Bytes of unasked Parcels, accepted or not, since the neighbour was last sent a receipt."""

    def charge_unasked(self, nbytes: int) -> int:
        """Count an unasked Parcel; return the bytes since the last report."""
        self.unasked_bytes += nbytes
        return self.unasked_bytes

    def reported(self) -> None:
        """Note that the neighbour was sent a receipt: it may send as much again."""
        self.unasked_bytes = 0


PARTS_MAX: Final = 256
"""Number of parts of one thing."""
OPEN_MAX: Final = 1024
"""Number of parts of all things."""
_PART_BYTES: Final = 128
"""Approximate bytes of a part beside its body."""


class Parts:
    """A bounded buffer of incomplete multi-part things, by owner."""

    __slots__ = ("_bytes", "_bytes_max", "_count", "_open", "_used")

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._bytes = 0
        self._count = 0
        self._open: dict[str, dict[Hashable, dict[int, bytes]]] = {}
        self._used: dict[str, int] = {}

    def __len__(self) -> int:
        return sum(map(len, self._open.values()))

    def add(self, owner: str, key: Hashable, part: int, parts: int, body: bytes) -> bytes | None:
        """Add one part; return the whole once it is complete.

        An empty or oversized part is refused, and so is one that contradicts those before it about their number.
        """
        if not 0 <= part < parts <= PARTS_MAX or not body or len(body) > self._bytes_max:
            raise LimitError("parts", f"part {part} of {parts}, {len(body)} bytes")
        things = self._open.setdefault(owner, {})
        have = things.pop(key, {})
        things[key] = have
        if part in have:
            self._charge(owner, -1, -len(have[part]))
        self._charge(owner, 1, len(body))
        have[part] = body
        if len(have) == parts and max(have) == parts - 1:
            self._forget(owner, key)
            return b"".join(have[number] for number in range(parts))
        if max(have) >= parts:
            self._forget(owner, key)
            raise LimitError("parts", f"part {max(have)} of {parts}")
        while self._bytes > self._bytes_max or self._count > OPEN_MAX:
            fullest = max(self._used, key=self._used.__getitem__)
            self._forget(fullest, next(iter(self._open[fullest])))
        return None

    def leave(self, owner: str) -> None:
        """Drop everything of an owner."""
        for key in list(self._open.get(owner, ())):
            self._forget(owner, key)

    def _forget(self, owner: str, key: Hashable) -> None:
        have = self._open[owner].pop(key)
        self._charge(owner, -len(have), -sum(map(len, have.values())))
        if not self._open[owner]:
            del self._open[owner], self._used[owner]

    def _charge(self, owner: str, parts: int, nbytes: int) -> None:
        self._count += parts
        self._bytes += nbytes
        self._used[owner] = self._used.get(owner, 0) + nbytes + parts * _PART_BYTES
