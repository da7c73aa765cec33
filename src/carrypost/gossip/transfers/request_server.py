"""Requests of neighbours: queued as jobs of their outboxes, and the acknowledgements of what was sent."""

from __future__ import annotations

from typing import TYPE_CHECKING

from carrypost.gossip.slots import Members, mask_of
from carrypost.gossip.transfers.accounts import LOOKS
from carrypost.gossip.wire.pieces import from_bitmap
from carrypost.model.descriptor import PIECE_BYTES

if TYPE_CHECKING:
    from collections.abc import Iterable

    from carrypost.gossip.holdings.copies import Copy
    from carrypost.gossip.interest.index import View
    from carrypost.gossip.transfers.burst_builder import BurstBuilder
    from carrypost.gossip.transfers.host_context import HostContext
    from carrypost.gossip.transfers.link import Link
    from carrypost.gossip.transfers.pushes import Pushes
    from carrypost.gossip.wire.frames import Ack, Request

_AGAIN_BYTES = 16
"""Number of bytes sent to the same neighbour again that make one unit of work (`gossip.transfers.accounts`)."""
_BITMAP_BYTES = 64
"""Number of bytes of an acknowledgement that make one."""
_WANTED = 256
"""Added to the level of messages that the neighbour wants for itself: they go before those that it would carry."""
GIVEN_MAX = 2048
"""Number of messages that may wait for a neighbour that did not request them; the rest is offered."""


class RequestServer:
    """The giving half of one host's links."""

    def __init__(self, context: HostContext, transfer: BurstBuilder, pushes: Pushes) -> None:
        self._holdings, self._outputs = context.holdings, context.outputs
        self._bursts = transfer
        self._pushes = pushes
        self._given_bytes_max = context.settings.push_bytes_max

    def serve(self, link: Link, frame: Request, view: View | None, now: int, *, answers: bool) -> int:
        """Queue requested messages that are not queued yet, and credit the request by them; return their slots.

        `view`: what the neighbour wants for itself comes first. `answers`: the request answers an offer.
        """
        link.work.did(len(frame.handles) + 2 * len(frame.pieces) + len(frame.offers) // LOOKS)
        known = self._holdings.by_handle
        wanted = [copy for handle in frame.handles if (copy := known(handle)) is not None]
        queued = [copy for copy in wanted if self._queue(link, copy, copy.held, view, now)]
        asked = mask_of([copy.slot for copy in queued])
        again_bytes = 0
        # Asking again is honest after a loss, and the cheapest amplification attack otherwise: a
        # request of 6 bytes per message makes this host send megabytes.
        if repeated := asked & link.served:
            # What was sent in this contact already, and was lost, is sent again, but not as often as one likes.
            served = Members(repeated)
            again_bytes = sum(copy.descriptor.length for copy in queued if copy.slot in served)
        link.serve_whole(asked)
        unknown = len(frame.handles) - len(wanted)
        for some in frame.pieces:
            copy = known(some.handle)
            if copy is None:
                unknown += 1
            elif not some.pieces:
                link.outbox.cancel(copy.slot)
                link.learn(1 << copy.slot)
            elif self._queue(link, copy, pieces := copy.held & from_bitmap(some.pieces), view, now):
                asked |= 1 << copy.slot
                again_bytes += PIECE_BYTES * link.serve(copy.slot, pieces)
        if unknown:
            self._outputs.refuse("handle", link.peer, count=unknown)
        if asked or answers:
            link.work.credit()
            link.work.owe(unknown + again_bytes // _AGAIN_BYTES)
        return asked

    def give(self, link: Link, copies: Iterable[Copy]) -> int:
        """Queue messages that the neighbour lacks and did not request, in this order; return the queued slots.

        Only messages that are short enough for a push, and fit into one frame, and were not sent in this contact
        already.
        """
        outbox = link.outbox
        queued: list[int] = []
        for copy in copies:
            if len(outbox.jobs) >= GIVEN_MAX:
                break
            small = copy.descriptor.small and copy.descriptor.length <= self._given_bytes_max
            if not small or copy.slot in outbox.jobs or link.served >> copy.slot & 1:
                continue
            self._holdings.handle_of(copy)
            job = self._bursts.job(link, copy, copy.held, copy.privilege)
            if job.parcel:
                job.unasked = True
                outbox.add(job)
                queued.append(copy.slot)
        mask = mask_of(queued)
        link.serve_whole(mask)
        return mask

    def _queue(self, link: Link, copy: Copy, wanted: int, view: View | None, now: int) -> bool:
        """Queue these pieces of a message; return False if it is queued already."""
        if not wanted:
            return False
        outbox = link.outbox
        running = outbox.jobs.get(copy.slot)
        if running is not None:
            # What is on its way, or was lost and is to go out again, was asked for twice; what came in since was not.
            running.ask_more(wanted)
            running.unasked = False
            return False
        level = copy.privilege
        if view is not None and view.wants(copy.descriptor, link.node):
            level += _WANTED
        skip_preamble = not copy.descriptor.small and outbox.knows_preamble(copy, now)
        outbox.add(self._bursts.job(link, copy, wanted, level, skip_preamble=skip_preamble))
        return True

    def acknowledge(self, link: Link, frame: Ack, now: int) -> int:
        """Process an acknowledgement of transfer frames; return the slots of messages that it confirms as a whole."""
        outbox, bitmap = link.outbox, from_bitmap(frame.bitmap)
        unacknowledged = outbox.recovery.unacknowledged
        through = outbox.acknowledge(frame.base, bitmap, now)
        pushed = self._pushes.acknowledged(link, frame.base, bitmap) if link.unconfirmed.nbytes else 0
        link.learn(through)
        if through:
            link.took()
            if through & self._holdings.watched:
                self._holdings.mark_carried(through)
            if self._outputs.tracing:
                self._outputs.passed(link.node, [copy.descriptor for copy in self._holdings.at(through)])
        # At worst, each frame was looked at.
        link.work.did(len(frame.bitmap) // _BITMAP_BYTES + unacknowledged // LOOKS)
        if pushed or outbox.recovery.unacknowledged < unacknowledged:
            link.work.credit()
        for job in outbox.pop_unfinished():
            outbox.add(self._bursts.job(link, job.copy, job.more, job.level, skip_preamble=True))
        return through | pushed
