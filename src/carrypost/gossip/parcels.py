"""Small messages, which come whole and in bursts: nearly all that an exchange moves.

A message that plainly may come in (`Inspection.plainly_wanted`), is not known here and finds room takes the short way:
all of a burst that do are entered, settled and delivered together. Any other takes the long way of `gossip.inbound`,
one by one, in its place among the others. Both ways lead to the same state; the long one has more questions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from carrypost.gossip.transfer import AGE_MS_MAX, HOPS_MAX
from carrypost.model.descriptor import PayloadCodec
from carrypost.model.ids import NodeId

if TYPE_CHECKING:
    from collections.abc import Sequence

    from carrypost.gossip.cache import Copy
    from carrypost.gossip.desk import Desk
    from carrypost.gossip.frames import OpenParcel
    from carrypost.gossip.inbound import Inbound
    from carrypost.gossip.link import Link
    from carrypost.gossip.receptions import Receptions
    from carrypost.gossip.wants import Wants


class Parcels:
    """Takes bursts of small messages in."""

    def __init__(self, desk: Desk, wants: Wants, inbound: Inbound, receptions: Receptions) -> None:
        self._desk = desk
        self._wants = wants
        self._inbound = inbound
        self._plainly_wanted = inbound.inspection.plainly_wanted
        self._receptions = receptions

    def take(self, link: Link, frames: Sequence[OpenParcel], now: int) -> list[int]:
        """Take a burst. The serials to acknowledge."""
        cache, wants, settled = self._desk.cache, link.inbox.wants, link.inbox.settled
        giver = NodeId(link.peer)
        taken: list[int] = []
        copies: list[Copy] = []
        for frame in frames:
            want = wants.get(frame.handle)
            if want is None:
                if frame.handle in settled:
                    taken.append(frame.serial)
                else:
                    self._desk.refuse("unsolicited", link.peer)
                continue
            taken.append(frame.serial)
            descriptor, body = frame.descriptor, frame.body
            if (
                want.requested
                and cache.get(descriptor.id) is None
                and self._plainly_wanted(descriptor, want.entry, now)
                and cache.roomy(1, descriptor.length)
                and (descriptor.codec is PayloadCodec.BLANK if body is None else len(body) == descriptor.length)
            ):
                want.requested = 0  # Should it come twice in one burst, the second goes the long way.
                copy = cache.admit_small(
                    descriptor, self._desk.rank(descriptor), giver=giver, hops=_within(frame.hops, 1, HOPS_MAX),
                    age_ms=_within(frame.age_ms, 0, AGE_MS_MAX), now=now,
                )  # fmt: skip
                copies.append(copy)
                if body:
                    self._desk.keep_piece(descriptor, body)
            else:
                self._enter(copies, link)
                copies = []
                self._inbound.parcel(link, frame, now)
        self._enter(copies, link)
        return taken

    def _enter(self, copies: list[Copy], link: Link) -> None:
        if copies:
            self._desk.book.take_in(copies)
            self._wants.settle_all(copies)
            self._receptions.all_whole(copies, link)


def _within(number: int, low: int, high: int) -> int:
    """A number that nobody signed."""
    return low if number < low else min(number, high)
