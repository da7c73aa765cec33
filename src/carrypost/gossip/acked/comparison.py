"""Comparing lists of acknowledgements with a neighbour, when a contact begins and at intervals while it lasts.

Each side sends one XOR over its list. If the two differ, the node with the smaller id answers with one XOR for each
part of its list; the other lists the parts that differ; the first sends what the other lacks and requests what it lacks
itself. A short list is listed at once. An empty list sends nothing until it is asked, so networks without recipients
send none of this.

Any of it may be lost: a host repeats its XOR a few times until it hears that the lists are equal, and sends it again
some time after its list changed. While the last XOR of the neighbour says that the lists differ, it goes on, at ever
longer intervals.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from carrypost.errors import LimitError
from carrypost.gossip.acked.known_acks import ALL_PARTS, part_of
from carrypost.gossip.transfers.accounts import LOOKS
from carrypost.gossip.transfers.link import Link
from carrypost.gossip.wire.cloud_frames import ACK_PARTS, FINGERPRINT_BYTES, AckList, packed, unpacked
from carrypost.model.times import NEVER

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from carrypost.gossip.acked.known_acks import KnownAcks
    from carrypost.gossip.transfers.host_context import HostContext

_SHORT = ACK_PARTS
"""Number of records up to which a list is listed at once: XORs of its parts would be longer."""
_REPEAT_US = 2_000_000
"""Time after which an XOR without an answer is repeated; doubled each time."""
_REPEATS = 3
"""Repetitions for a neighbour whose list is not known to differ."""
_DOUBLINGS_MAX = 5
_AGAIN_PERIODS = 6
"""A list that changed during a contact is compared again after this many times the interval of broadcasts."""
_FRAME_BYTES = 48
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
