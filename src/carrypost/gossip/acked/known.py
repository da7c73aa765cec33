"""The acknowledgements that one host knows and passes on: a circular list, whose oldest record gives way.

Records of messages that are known here are worth more than others: somebody's copy is of no use any more. An id says
nothing of its message, and keys are free, so anybody can make any number of records of messages that do not exist. They
get a quarter of the list, and displace each other there.

For comparison a list is cut into parts by the leading bits of fingerprints, and each part has the XOR over its records.
"""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING

from carrypost.gossip.wire.cloud_frames import ACK_PARTS, FINGERPRINT_BYTES
from carrypost.model.times import NEVER

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from carrypost.gossip.wire.cloud_frames import AckRecord

_PART_SHIFT = 8 * FINGERPRINT_BYTES - (ACK_PARTS - 1).bit_length()
_UNKNOWN_PART = 4
"""Of the list, this part is for records of messages that are not known here."""
ALL_PARTS = (1 << ACK_PARTS) - 1


class Known:
    """The list of one host, by fingerprint, the oldest first."""

    __slots__ = ("_concerns", "_max", "_records", "_unknown", "ends_us", "get", "xors")

    def __init__(self, records_max: int, concerns: Callable[[AckRecord], bool]) -> None:
        self._max, self._concerns = records_max, concerns
        self._records: dict[int, AckRecord] = {}
        self.get: Callable[[int], AckRecord | None] = self._records.get
        self._unknown: dict[int, None] = {}
        """Records of messages that were not known here when they came, the oldest first."""
        self.xors = [0] * ACK_PARTS
        self.ends_us = NEVER
        """Not after the time at which the first of them ends."""

    def __len__(self) -> int:
        return len(self._records)

    def __contains__(self, fingerprint: int) -> bool:
        return fingerprint in self._records

    @property
    def xor(self) -> int:
        """The XOR over all fingerprints; 0 for an empty list."""
        found = 0
        for each in self.xors:
            found ^= each
        return found

    def add(self, fingerprint: int, record: AckRecord) -> list[int]:
        """Add a record that is not here. Returns the fingerprints of those that gave way to it."""
        self._records[fingerprint] = record
        self.xors[fingerprint >> _PART_SHIFT] ^= fingerprint
        self.ends_us = min(self.ends_us, record.until_us)
        if not self._concerns(record):
            self._unknown[fingerprint] = None
        gone: list[int] = []
        while len(self._unknown) > self._max // _UNKNOWN_PART:
            gone += self._displace_unknown()
        excess = len(self._records) - self._max
        gone += self._remove(list(islice(self._records, excess)) if excess > 0 else ())
        return gone

    def _displace_unknown(self) -> list[int]:
        """Take out the oldest record of an unknown message, or find that its message is known by now."""
        oldest = next(iter(self._unknown))
        if self._concerns(self._records[oldest]):
            del self._unknown[oldest]
            return []
        return self._remove((oldest,))

    def expire(self, now: int) -> list[int]:
        """Take out what ended by now; returns the fingerprints."""
        if self.ends_us > now:
            return []
        gone = self._remove([key for key, record in self._records.items() if record.until_us <= now])
        self.ends_us = min((record.until_us for record in self._records.values()), default=NEVER)
        return gone

    def _remove(self, fingerprints: Iterable[int]) -> list[int]:
        gone = list(fingerprints)
        for each in gone:
            del self._records[each]
            self._unknown.pop(each, None)
            self.xors[each >> _PART_SHIFT] ^= each
        return gone

    def in_parts(self, parts: int) -> list[int]:
        """Return the fingerprints in these parts, a bitset; part by part."""
        if parts == ALL_PARTS:
            return sorted(self._records)
        return sorted([each for each in self._records if parts >> (each >> _PART_SHIFT) & 1])


def part_of(fingerprint: int) -> int:
    """Return the number of the part that a fingerprint is in."""
    return fingerprint >> _PART_SHIFT
