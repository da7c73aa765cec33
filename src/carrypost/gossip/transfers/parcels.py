"""Small messages, which come whole and in bursts: nearly all that an exchange moves.

A message that plainly may come in (`Inspection.plainly_wanted`), is not known here and finds room takes the short way:
all of a burst that do are admitted and delivered together. Any other takes the long way of
`gossip.transfers.inbound`, one by one, in its place among the others. Both ways lead to the same state; the long one
has more questions.
"""

from __future__ import annotations

from operator import attrgetter
from typing import TYPE_CHECKING

from carrypost.events import Reception
from carrypost.gossip.transfers.transfer import AGE_MS_MAX, HOPS_MAX
from carrypost.model.descriptor import PayloadCodec
from carrypost.model.ids import NodeId

if TYPE_CHECKING:
    from collections.abc import Sequence

    from carrypost.gossip.holdings.copies import Newcomer
    from carrypost.gossip.transfers.ground import Ground
    from carrypost.gossip.transfers.inbound import Inbound
    from carrypost.gossip.transfers.link import Link
    from carrypost.gossip.transfers.receptions import Receptions
    from carrypost.gossip.transfers.wants import Wants
    from carrypost.gossip.wire.frames import OpenParcel

_BLANK = PayloadCodec.BLANK
_LENGTH = attrgetter("descriptor.length")


class Parcels:
    """Takes bursts of small messages in."""

    def __init__(self, ground: Ground, wants: Wants, inbound: Inbound, receptions: Receptions) -> None:
        self._holdings, self._outputs = ground.holdings, ground.outputs
        self._wants = wants
        self._inbound = inbound
        self._plainly_wanted = inbound.inspection.plainly_wanted
        self._receptions = receptions

    def take(self, link: Link, frames: Sequence[OpenParcel], now: int) -> list[int]:
        """Take a burst. Returns the serials to acknowledge."""
        cache, wants, closed = self._holdings.cache, link.inbox.wants, link.inbox.closed
        known, plainly_wanted = cache.get, self._plainly_wanted
        roomy = cache.room.fits(len(frames), sum(map(_LENGTH, frames)), interesting=False)
        taken: list[int] = []
        small: list[OpenParcel] = []
        for frame in frames:
            handle = frame.handle
            want = wants.get(handle)
            if want is None:
                if handle in closed:
                    taken.append(frame.serial)
                else:
                    self._outputs.refuse("unsolicited", link.peer)
                continue
            taken.append(frame.serial)
            descriptor, body = frame.descriptor, frame.body
            if (
                roomy
                and want.requested
                and known(descriptor.id) is None
                and plainly_wanted(descriptor, want.entry, link, now)
                and (descriptor.codec is _BLANK if body is None else len(body) == descriptor.length)
            ):
                want.requested = 0  # Should it come twice in one burst, the second goes the long way.
                small.append(frame)
            else:
                self._enter(small, link, now)
                small = []
                self._inbound.parcel(link, frame, now)
        self._enter(small, link, now)
        return taken

    def _enter(self, frames: list[OpenParcel], link: Link, now: int) -> None:
        if not frames:
            return
        giver = NodeId(link.peer)
        privilege = self._holdings.privilege
        newcomers: list[Newcomer] = []
        for frame in frames:
            # Numbers that nobody signed.
            hops, age_ms, descriptor = frame.hops, frame.age_ms, frame.descriptor
            if not (0 < hops <= HOPS_MAX and 0 <= age_ms <= AGE_MS_MAX):
                hops, age_ms = min(max(hops, 1), HOPS_MAX), min(max(age_ms, 0), AGE_MS_MAX)
            newcomers.append((descriptor, privilege(descriptor), hops, age_ms))
            if frame.body:
                self._holdings.keep_piece(descriptor, 0, frame.body)
        copies = self._holdings.admit_small(newcomers, giver, now)
        self._wants.fulfil(copies)
        link.gave()
        receptions = [Reception(copy.descriptor, copy.hops, copy.age_ms) for copy in copies]
        self._receptions.whole(copies, receptions, link)
