"""The acknowledgements that one host knows and passes on: signed records, their bounded list, and its comparison.

`signed_record` makes a record, `pages` divides ids among several, and `to_row` and `from_row` store them.

`KnownAcks` is the list of records. It drops those that end first.

`Comparison` compares lists with a neighbour when a contact begins, and at intervals while it lasts. Each side sends one
XOR over its list. If the two differ, the node with the smaller id answers with one XOR for each part of its list; the
other lists the parts that differ; the first sends what the other lacks and requests what it lacks itself. A short list
is listed at once. An empty list sends nothing until it is asked, so networks without recipients send none of this.

Any of it may be lost: a host repeats its XOR a few times until it hears that the lists are equal, and sends it again
some time after its list changed. While the last XOR of the neighbour says that the lists differ, it goes on, at ever
longer intervals.
"""

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
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import msgspec

from carrypost.errors import LimitError
from carrypost.gossip.transfers import signed
from carrypost.gossip.transfers.accounts import LOOKS
from carrypost.gossip.transfers.link import Link
from carrypost.gossip.wire.frames import (
    ACK_PARTS,
    ACKED_IDS_MAX,
    FINGERPRINT_BYTES,
    AckList,
    AckRecord,
    packed,
    unpacked,
)
from carrypost.model.times import NEVER

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from carrypost.gossip.transfers.link import HostContext
    from carrypost.model.ids import MessageId
    from carrypost.security.identity import Identity


_ROOM_BYTES: Final = 160
"""Largest overhead of a record beside its ids, and of a datagram around it, in bytes."""
_ID_BYTES: Final = 2
"""Overhead of an id, in bytes."""

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(AckRecord).decode


def signed_record(identity: Identity, until_us: int, messages: Iterable[MessageId]) -> AckRecord:
    """Return the record by which this identity acknowledges messages."""
    return signed.sign(identity, AckRecord(signed.author(identity), until_us, tuple(messages)))


def pages(messages: Iterable[MessageId], datagram_bytes: int) -> Iterator[list[MessageId]]:
    """Yield the ids of one record after another: as many as it may name, and as fit into a datagram."""
    page: list[MessageId] = []
    room = 0
    for message in messages:
        size = len(message) + _ID_BYTES
        if size > room or len(page) == ACKED_IDS_MAX:
            if page:
                yield page
            page, room = [], max(datagram_bytes - _ROOM_BYTES, size)
        page.append(message)
        room -= size
    if page:
        yield page


def to_row(record: AckRecord) -> bytes:
    """Return the row of a record."""
    return _encode(record)


def from_row(row: bytes) -> AckRecord:
    """Return the record of a row."""
    return _decode(row)


_PART_SHIFT: Final = 8 * FINGERPRINT_BYTES - (ACK_PARTS - 1).bit_length()
_UNKNOWN_PART: Final = 4
"""One part in this many of the list is for records of messages that are not known here."""
ALL_PARTS: Final = (1 << ACK_PARTS) - 1
UNKNOWN: Final = ""
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


_SHORT: Final = ACK_PARTS
"""Number of records up to which a list is listed at once: XORs of its parts would be longer."""
_REPEAT_US: Final = 2_000_000
"""Time after which an XOR without an answer is repeated; doubled each time."""
_REPEATS: Final = 3
"""Repetitions for a neighbour whose list is not known to differ."""
_DOUBLINGS_MAX: Final = 5
_AGAIN_PERIODS: Final = 6
"""A list that changed during a contact is compared again after this many times the interval of broadcasts."""
_FRAME_BYTES: Final = 48
"""Overhead of a datagram and a frame around fingerprints, in bytes."""


@dataclass(eq=False, slots=True)
class Contact:
    """Comparison with one neighbour."""

    link: Link
    sent_xor: int = -1
    """The XOR that was last sent to the neighbour."""
    heard_xor: int = -1
    """The XOR that was last heard from it."""
    repeats: int = 0
    due_us: int = NEVER
    """Time at which the XOR is sent again."""
    owed: dict[int, None] = field(default_factory=dict)
    """Fingerprints of records to send to the neighbour."""


class Comparison:
    """The comparisons of one host with its neighbours."""

    def __init__(self, context: HostContext, known: KnownAcks) -> None:
        self._node, self._known = context.node, known
        self._again_us = round(context.settings.acked_s * 1e6) * _AGAIN_PERIODS
        self._lossless = not self._again_us
        """True if nothing is delayed: then a driver asserts contacts, and nothing is repeated."""
        self.contacts: dict[str, Contact] = {}
        """Contacts by link address."""

    @property
    def due_us(self) -> int:
        """Time at which `repeat` has something to do."""
        return min([each.due_us for each in self.contacts.values()], default=NEVER)

    def met(self, link: Link, now: int) -> None:
        """Begin a contact."""
        contact = self.contacts[link.peer] = Contact(link)
        if self._known:
            self._send_xor(contact, now)

    def parted(self, link: Link) -> None:
        """End a contact."""
        self.contacts.pop(link.peer, None)

    def changed(self, now: int) -> None:
        """Compare the changed list again with neighbours that may not hear of the change."""
        if not self._lossless:
            for contact in self.contacts.values():
                contact.repeats = 0
                contact.due_us = min(contact.due_us, now + self._again_us)

    def repeat(self, now: int) -> None:
        """Send the XOR again where that is due."""
        for contact in self.contacts.values():
            if contact.due_us <= now:
                contact.repeats += 1
                self._send_xor(contact, now)

    def _send_xor(self, contact: Contact, now: int) -> None:
        contact.sent_xor = self._known.xor
        contact.link.send((AckList(0, packed((contact.sent_xor,))),))
        self._wait(contact, now)

    def _wait(self, contact: Contact, now: int) -> None:
        differs = contact.heard_xor not in (-1, self._known.xor)
        waits = (contact.repeats < _REPEATS or differs) and not self._lossless
        contact.due_us = now + (_REPEAT_US << min(contact.repeats, _DOUBLINGS_MAX)) if waits else NEVER

    def receive(self, link: Link, frame: AckList, now: int) -> None:
        """Handle one step of the neighbour, and answer it; raises `RemoteError`."""
        contact = self.contacts.get(link.peer)
        if contact is None:  # This host had no such layer when the contact began.
            contact = self.contacts[link.peer] = Contact(link)
        link.work.did((len(frame.xors) + len(frame.fingerprints)) // FINGERPRINT_BYTES)
        if not link.answers.try_spend(1, now):
            raise LimitError("rate")
        _STEPS[frame.round](self, contact, frame, now)

    def _compare(self, contact: Contact, frame: AckList, now: int) -> None:
        """Round 0: the neighbour sends one XOR."""
        known, theirs = self._known, int.from_bytes(frame.xors, "big")
        xor = known.xor
        contact.heard_xor = theirs
        if theirs == xor:
            if contact.sent_xor != xor:
                self._send_xor(contact, now)
            contact.due_us = NEVER
            return
        if contact.sent_xor == xor and self._node > contact.link.node:
            self._wait(contact, now)  # They have heard, or will hear, that it differs.
            return
        if len(known) <= _SHORT:
            self._list(contact, ALL_PARTS)
        else:
            contact.link.send((AckList(1, packed(known.xors)),))
        self._wait(contact, now)

    def _compare_parts(self, contact: Contact, frame: AckList, now: int) -> None:
        """Round 1: the neighbour sends one XOR for each part."""
        pairs = zip(unpacked(frame.xors), self._known.xors, strict=True)
        differing = sum(1 << part for part, (theirs, mine) in enumerate(pairs) if theirs != mine)
        if differing:
            self._list(contact, differing)
        self._wait(contact, now)

    def _list(self, contact: Contact, parts: int) -> None:
        """List the records in some parts, in as many frames as it takes."""
        fingerprints = self._known.in_parts(parts)
        contact.link.work.did(len(fingerprints) // LOOKS)
        room = (contact.link.datagram_bytes_max - _FRAME_BYTES) // FINGERPRINT_BYTES
        frames = [AckList(2, packed((mask,)), packed(listed)) for mask, listed in _pages(fingerprints, parts, room)]
        contact.link.send(frames)

    def _answer(self, contact: Contact, frame: AckList, now: int) -> None:
        """Round 2: the neighbour lists some parts. Send what it lacks, and request what this host lacks."""
        theirs, mine = unpacked(frame.fingerprints), self._known.in_parts(int.from_bytes(frame.xors, "big"))
        contact.link.work.did(len(mine) // LOOKS)
        contact.owed.update(dict.fromkeys(sorted(set(mine) - set(theirs))))
        lacking = [each for each in theirs if each not in self._known]
        if lacking:
            contact.link.send((AckList(3, b"", packed(lacking)),))
        self._wait(contact, now)

    def _serve(self, contact: Contact, frame: AckList, now: int) -> None:
        """Round 3: the neighbour requests records."""
        contact.owed.update({each: None for each in unpacked(frame.fingerprints) if each in self._known})
        self._wait(contact, now)


_STEPS: tuple[Callable[[Comparison, Contact, AckList, int], None], ...] = (
    Comparison._compare, Comparison._compare_parts, Comparison._answer, Comparison._serve,  # noqa: SLF001 - one table
)  # fmt: skip


def _pages(fingerprints: list[int], parts: int, room: int) -> Iterator[tuple[int, list[int]]]:
    """Yield parts and the fingerprints in them, as many together as fit; empty parts go with the first page.

    A part is never divided: what is not listed of it would seem to be missing.
    """
    by_part: dict[int, list[int]] = {}
    for each in fingerprints:
        by_part.setdefault(part_of(each), []).append(each)
    mask = parts & ~sum(1 << part for part in by_part)
    page: list[int] = []
    for part, listed in by_part.items():
        if page and len(page) + len(listed) > room:
            yield mask, page
            mask, page = 0, []
        mask |= 1 << part
        page += listed
    yield mask, page
