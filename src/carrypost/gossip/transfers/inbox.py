"""The inbox of one neighbour: its offers to this host, and what has arrived of them so far.

A `Want` is one message of these. Everything that is not verified yet belongs to the link that brought it, so that a
neighbour that sends rubbish spoils no other neighbour's pieces. The inbox is dropped with the contact. State that all
inboxes of a host share, and their bounds, is in `gossip.transfers.wants`.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from carrypost.gossip.transfers.ack_tracker import AckTracker
from carrypost.gossip.wire.checks import RECEIPT_BITMAP_BYTES_MAX
from carrypost.gossip.wire.frames import OfferEntry

if TYPE_CHECKING:
    from carrypost.model.descriptor import Descriptor


_UNASKED_SLACK = 16
"""Room for unasked Parcels that the first one heard has overtaken."""


@dataclass(eq=False, slots=True)
class Want:
    """One message that one neighbour offers and this host would like."""

    entry: OfferEntry
    requested: int = 0
    """Bitset of the pieces that were requested here and have not arrived."""
    asked_us: int = 0
    """Time at which the pieces were requested, or at which some of them last arrived."""
    tries: int = 0
    unasked: int | None = None
    """Serial of the unasked Parcel that is being processed."""
    unsure: bool = False
    """True if it was offered a while ago: the neighbour may have evicted it, and then does not answer."""
    descriptor: Descriptor | None = None
    hashes: bytes = b""
    interesting: bool = False
    hops: int = 0
    age_ms: int = 0
    reset: bool = False
    """True if its parts were dropped for lack of room. Fragments are useless until the descriptor arrives again."""
    fragments: dict[int, dict[int, bytes]] = field(default_factory=dict)
    """Fragments of pieces that are not whole, or wait for the hash list: by piece, and by number in it."""
    hash_parts: dict[int, bytes] = field(default_factory=dict)
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
