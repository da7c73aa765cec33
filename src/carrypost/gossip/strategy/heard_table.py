"""The table of encounters that one neighbour sends in one contact, in parts (`gossip.strategy.prophet`)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from carrypost.errors import RemoteError
from carrypost.gossip.wire.routing_frames import ENTRY_BYTES, unpacked_entries

if TYPE_CHECKING:
    from carrypost.gossip.wire.frames import Encounters


class HeardTable:
    """The table of one neighbour in one contact, and its consequences."""

    __slots__ = (
        "arrived", "asked_us", "better", "keys", "met", "named", "parts", "revision", "sent_us", "since_us", "table",
        "unread", "used",
    )  # fmt: skip

    def __init__(self) -> None:
        self.parts: dict[int, bytes] = {}
        """Parts of a table that is not complete yet, by number."""
        self.table: dict[bytes, int] = {}
        """The latest complete table."""
        self.since_us = -1
        """Time at which that was complete; -1: none was."""
        self.met = self.used = self.named = self.arrived = False
        """True once the contact counted as an encounter, once the table raised probabilities, once the own table was
        sent with names, and once the neighbour has shown that it has the own table."""
        self.unread: Encounters | None = None
        """A table that came without names and could not be read; the names were asked for."""
        self.asked_us = 0
        """Time at which names were last asked for."""
        self.keys: list[bytes] = []
        """The names that the own table had when it was last sent without them."""
        self.sent_us = 0
        """Time at which the own table was last sent."""
        self.better, self.revision = 0, -1
        """Slots for whose recipients the neighbour is the better carrier, as of a revision."""

    def add(self, frame: Encounters, entries_max: int) -> dict[bytes, int] | None:
        """Add a part with names; return the table that it completes. Raises `RemoteError` if the parts make none."""
        parts = self.parts
        parts[frame.part] = frame.entries
        if max(parts) >= frame.parts or sum(map(len, parts.values())) > entries_max * ENTRY_BYTES:
            self.parts = {}  # They are of two tables, or of none.
            raise RemoteError("encounters")
        if len(parts) < frame.parts:
            return None
        self.parts = {}
        entries = [each for part in sorted(parts) for each in unpacked_entries(parts[part])]
        if len(found := dict(entries)) < len(entries):
            raise RemoteError("encounters")
        return found
