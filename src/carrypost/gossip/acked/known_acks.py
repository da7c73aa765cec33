"""The acknowledgements that one host knows and passes on: a bounded list, which drops the first to end first."""

# The attack. An id says nothing of its message, and keys are free, so an attacker can make any
# number of records of messages that do not exist. Records of messages that are known here are worth
# more: some copy is of no use any more. So records of unknown messages get a quarter of the list,
# and displace each other there.
#
# Messages that list keys of their own author could fill the rest. So records count for the author
# of their messages, and the author with most records loses one first, the one that ends first. That
# choice does not depend on the order of arrival. The obvious one, to drop the oldest, does: a
# record that one neighbour displaced, the next neighbour would send again as news, and where there
# are more records than lists hold, that never ended.
#
# For comparison a list is cut into parts by the leading bits of fingerprints, and each part has the
# XOR over its records.

from __future__ import annotations

from bisect import bisect_left, insort
from typing import TYPE_CHECKING

from carrypost.gossip.wire.cloud_frames import ACK_PARTS, FINGERPRINT_BYTES
from carrypost.model.times import NEVER

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from carrypost.gossip.wire.cloud_frames import AckRecord

_PART_SHIFT = 8 * FINGERPRINT_BYTES - (ACK_PARTS - 1).bit_length()
_UNKNOWN_PART = 4
"""One part in this many of the list is for records of messages that are not known here."""
ALL_PARTS = (1 << ACK_PARTS) - 1
UNKNOWN = ""
"""Author of messages that are not known here."""


class KnownAcks:
    """The list of one host, by fingerprint."""

    __slots__ = ("_author_of", "_max", "_records", "_shares", "_unknown", "ends_us", "xors")

    def __init__(self, records_max: int, author_of: Callable[[AckRecord], str]) -> None:
        """Make a list; `author_of` returns the author of a record's messages, `UNKNOWN` if none is known here."""
        self._max, self._author_of = records_max, author_of
        self._records: dict[int, tuple[AckRecord, str]] = {}
        """Records, each with the author that it counts for."""
        self._shares: dict[str, list[tuple[int, int]]] = {}
        """Of each author, the ends of records and their fingerprints; sorted."""
        self._unknown: dict[int, None] = {}
        """Fingerprints of records of unknown messages, in the order in which they came."""
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
        """Add a record that is not here; return the fingerprints of dropped ones, perhaps its own."""
        self._charge(fingerprint, record)
        self.xors[fingerprint >> _PART_SHIFT] ^= fingerprint
        self.ends_us = min(self.ends_us, record.until_us)
        gone: list[int] = []
        while len(self._unknown) > self._max // _UNKNOWN_PART:
            gone += self._displace_unknown()
        while len(self._records) > self._max:
            gone += self._remove((self._first_of_most(),))
        return gone

    def _charge(self, fingerprint: int, record: AckRecord) -> None:
        """Count a record for the author of its messages."""
        author = self._author_of(record)
        self._records[fingerprint] = record, author
        if author == UNKNOWN:
            self._unknown[fingerprint] = None
        else:
            insort(self._shares.setdefault(author, []), (record.until_us, fingerprint))

    def _displace_unknown(self) -> list[int]:
        """Drop the oldest record of an unknown message, unless its message is known by now."""
        oldest = next(iter(self._unknown))
        record, _ = self._records[oldest]
        if self._author_of(record) == UNKNOWN:
            return self._remove((oldest,))
        del self._unknown[oldest]
        self._charge(oldest, record)
        return []

    def _first_of_most(self) -> int:
        """Return the record that ends first of the author with most; of authors with as many, the first of all."""
        most = max(map(len, self._shares.values()))
        return min(share[0] for share in self._shares.values() if len(share) == most)[1]

    def expire(self, now: int) -> list[int]:
        """Remove records that ended by now; return their fingerprints."""
        if self.ends_us > now:
            return []
        gone = self._remove([key for key, (record, _) in self._records.items() if record.until_us <= now])
        self.ends_us = min((record.until_us for record, _ in self._records.values()), default=NEVER)
        return gone

    def _remove(self, fingerprints: Iterable[int]) -> list[int]:
        gone = list(fingerprints)
        for each in gone:
            record, author = self._records.pop(each)
            if author == UNKNOWN:
                del self._unknown[each]
            else:
                share = self._shares[author]
                del share[bisect_left(share, (record.until_us, each))]
                if not share:
                    del self._shares[author]
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
