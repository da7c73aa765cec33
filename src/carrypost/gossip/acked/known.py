"""The acknowledgements that one host knows and passes on: a circular list, whose oldest record gives way.

Records of messages that are known here are worth more than others: somebody's copy is of no use any more. An id says
nothing of its message, and keys are free, so anybody can make any number of records of messages that do not exist. They
get a quarter of the list, and displace each other there.

Messages that list keys of their own author could fill the rest. So records count for the author of their messages, and
the author with most gives way first, with its oldest record.

For comparison a list is cut into parts by the leading bits of fingerprints, and each part has the XOR over its records.
"""

from __future__ import annotations

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
UNKNOWN = ""
"""Author of messages that are not known here."""


class Known:
    """The list of one host, by fingerprint."""

    __slots__ = ("_author_of", "_by_author", "_max", "_records", "_serial", "ends_us", "xors")

    def __init__(self, records_max: int, author_of: Callable[[AckRecord], str]) -> None:
        """`author_of`: who wrote the messages of a record; `UNKNOWN` where none is known here."""
        self._max, self._author_of = records_max, author_of
        self._records: dict[int, tuple[AckRecord, str]] = {}
        """Each with the author that it counts for."""
        self._by_author: dict[str, dict[int, int]] = {UNKNOWN: {}}
        """Of each author, fingerprints with the numbers in whose order they came."""
        self._serial = 0
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

    def get(self, fingerprint: int) -> AckRecord | None:
        """Return a record, if it is here."""
        found = self._records.get(fingerprint)
        return None if found is None else found[0]

    def add(self, fingerprint: int, record: AckRecord) -> list[int]:
        """Add a record that is not here. Returns the fingerprints of those that gave way to it."""
        self._serial += 1
        self._charge(fingerprint, record, self._serial)
        self.xors[fingerprint >> _PART_SHIFT] ^= fingerprint
        self.ends_us = min(self.ends_us, record.until_us)
        gone: list[int] = []
        while len(self._by_author[UNKNOWN]) > self._max // _UNKNOWN_PART:
            gone += self._displace_unknown()
        while len(self._records) > self._max:
            gone += self._remove((self._oldest_of_most(),))
        return gone

    def _charge(self, fingerprint: int, record: AckRecord, serial: int) -> None:
        """Let a record count for the author of its messages."""
        author = self._author_of(record)
        self._records[fingerprint] = record, author
        self._by_author.setdefault(author, {})[fingerprint] = serial

    def _displace_unknown(self) -> list[int]:
        """Take out the oldest record of an unknown message, or find that its message is known by now."""
        unknown = self._by_author[UNKNOWN]
        oldest = next(iter(unknown))
        serial, (record, _) = unknown[oldest], self._records[oldest]
        if self._author_of(record) == UNKNOWN:
            return self._remove((oldest,))
        del unknown[oldest]
        self._charge(oldest, record, serial)
        return []

    def _oldest_of_most(self) -> int:
        """Return the oldest record of the author with most; of several authors with as many, the oldest of all."""
        oldest = {author: next(iter(each)) for author, each in self._by_author.items() if author != UNKNOWN}
        by_author = self._by_author
        most = max(oldest, key=lambda author: (len(by_author[author]), -by_author[author][oldest[author]]))
        return oldest[most]

    def expire(self, now: int) -> list[int]:
        """Take out what ended by now; returns the fingerprints."""
        if self.ends_us > now:
            return []
        gone = self._remove([key for key, (record, _) in self._records.items() if record.until_us <= now])
        self.ends_us = min((record.until_us for record, _ in self._records.values()), default=NEVER)
        return gone

    def _remove(self, fingerprints: Iterable[int]) -> list[int]:
        gone = list(fingerprints)
        for each in gone:
            _, author = self._records.pop(each)
            del self._by_author[author][each]
            if not self._by_author[author] and author != UNKNOWN:
                del self._by_author[author]
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
