"""The inbox of one neighbour: its offers to this host, and what has arrived of them so far.

A `Want` is one message of those. Everything that is not verified yet belongs to the link that brought it, so that a
neighbour who sends rubbish spoils nobody else's pieces. The inbox is gone with the contact; what all inboxes of a host
have in common, and their bounds, is for `gossip.transfers.wants`.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING

import msgspec

from carrypost.gossip.transfers.acks import Receipts
from carrypost.gossip.wire.checks import RECEIPT_BITMAP_BYTES_MAX

if TYPE_CHECKING:
    from carrypost.gossip.wire.frames import OfferEntry
    from carrypost.model.descriptor import Descriptor


_UNASKED_SLACK = 16
"""Room for unasked Parcels that were overtaken by the first one that came."""


class Want(msgspec.Struct, eq=False, gc=False):
    """One message that one neighbour offers and this host would like."""

    entry: OfferEntry
    requested: int = 0
    """Bitset of the pieces asked for here and not come yet."""
    asked_us: int = 0
    """Time at which the pieces were requested, or at which some of them last arrived."""
    tries: int = 0
    unasked: int | None = None
    """Serial of the Parcel that came unasked, and is looked at."""
    unsure: bool = False
    """True if it was offered a while ago: the neighbour may have evicted it, and then does not answer."""
    descriptor: Descriptor | None = None
    hashes: bytes = b""
    interesting: bool = False
    hops: int = 0
    age_ms: int = 0
    reset: bool = False
    """True if the parts were given up for want of room. Fragments are of no use until the descriptor comes again."""
    fragments: dict[int, dict[int, bytes]] = {}
    """By piece, and by number in it: of pieces that are not whole, or wait for the hash list."""
    hash_parts: dict[int, bytes] = {}
    """Parts of the hash list, by their first piece, until it is whole."""

    def clear(self) -> None:
        """Forget all that came, and begin again with the descriptor."""
        self.reset = True
        self.descriptor = None
        self.hashes = b""
        self.fragments, self.hash_parts = {}, {}


class Inbox:
    """The offers of one neighbour to this host, and what has arrived of them (`gossip.transfers.requests`)."""

    __slots__ = (
        "answers", "asked_us", "closed", "declined", "fresh", "progress_us", "receipts", "unasked", "unasked_bytes",
        "wants",
    )  # fmt: skip

    def __init__(self) -> None:
        self.wants: dict[int, Want] = {}
        """By handle."""
        self.closed: OrderedDict[int, OfferEntry] = OrderedDict()
        """By handle: what was wanted lately and is no more. What still comes of it is acknowledged, or declined."""
        self.declined: dict[int, int] = {}
        """By handle: when the neighbour was told that what comes of a message is not taken."""
        self.answers: list[int] = []
        """Serials of the neighbour's offers that are to be answered."""
        self.fresh: list[int] = []
        """Handles that are to be asked for."""
        self.asked_us = 0
        """Time of the last request, or repeated request, if nothing has arrived since then; else 0."""
        self.progress_us = 0
        """Time at which the neighbour last sent something requested, or was first asked."""
        self.receipts = Receipts()
        """Of all transfer frames, for acknowledgements."""
        self.unasked = Receipts(8 * RECEIPT_BITMAP_BYTES_MAX, _UNASKED_SLACK)
        """Of unasked Parcels, for announcements."""
        self.unasked_bytes = 0
        """Bytes that came in unasked Parcels, taken or not, since the neighbour was last told of any."""

    def charge_unasked(self, nbytes: int) -> int:
        """Count a Parcel that nobody asked for. Returns how much that makes since the last report."""
        self.unasked_bytes += nbytes
        return self.unasked_bytes

    def reported(self) -> None:
        """Note that the neighbour is told what came: it may send as much again."""
        self.unasked_bytes = 0
