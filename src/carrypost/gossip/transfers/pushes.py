"""Messages that are sent unasked: as Parcels, within the window of each link, and the neighbours' receipts of them.

Unconfirmed pushes are kept with the link (`gossip.transfers.unconfirmed`), so that any link can be used, with or
without a contact. `gossip.strategy` chooses the messages and the neighbours. The same message goes to all of them under
one serial, by broadcast or one by one, so that those that hear each other know what the others were sent.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from carrypost.gossip.transfers.outbox import SMALL_HEADER_BYTES

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from carrypost.gossip.holdings.copies import Copy
    from carrypost.gossip.transfers.burst_builder import BurstBuilder
    from carrypost.gossip.transfers.host_context import HostContext
    from carrypost.gossip.transfers.link import Link
    from carrypost.gossip.wire.frames import OpenParcel, Receipt

WINDOW_BYTES_MAX = 32 * 1024
"""Bytes that may be on their way to a neighbour, requested or not, for anything to be pushed to it."""
_ON_ITS_WAY_US = 100_000
"""Time within which an announcement may have crossed a push."""


class Pushes:
    """Sender of unasked messages."""

    def __init__(self, context: HostContext, transfer: BurstBuilder) -> None:
        self._holdings, self._outputs = context.holdings, context.outputs
        self._prefix = context.prefix
        self._bursts = transfer
        settings = context.settings
        # Without announcements no neighbour would report which pushes arrived.
        self.bytes_max = settings.push_bytes_max if settings.beacons else 0
        """Longest payload that is pushed; 0: none is."""

    def push(self, chosen: Mapping[Link, Sequence[Copy]], now: int, *, broadcast: bool = False) -> None:
        """Send messages to neighbours, as far as they fit; `broadcast`: all nodes in range may hear them.

        A message that does not fit into a Parcel, or into the window of a link, is not sent.
        """
        parcels: dict[int, OpenParcel] = {}
        sent: dict[Link, list[OpenParcel]] = {}
        for link, copies in chosen.items():
            frames: list[OpenParcel] = []
            for copy in copies:
                nbytes = len(copy.descriptor.wire) + copy.descriptor.length + SMALL_HEADER_BYTES
                if not self._fits(link, copy, nbytes):
                    continue
                parcel = parcels.get(copy.slot)
                if parcel is None:
                    self._holdings.handle_of(copy)
                    parcel = parcels[copy.slot] = self._bursts.parcel(copy, now)
                link.unconfirmed.add(self._prefix, parcel.serial, copy.slot, now, nbytes)
                frames.append(parcel)
            if frames:
                sent[link] = frames
        if broadcast and len(sent) == len(chosen) and all(len(each) == len(parcels) for each in sent.values()):
            self._outputs.broadcast(list(parcels.values()))
            return
        for link, frames in sent.items():
            link.send(frames)

    def _fits(self, link: Link, copy: Copy, nbytes: int) -> bool:
        # Pushes have no window of their own: they may use only what requested messages leave free
        # in the link's.
        recovery = link.outbox.recovery
        return (
            copy.descriptor.small
            and copy.descriptor.length <= self.bytes_max
            and nbytes <= link.parcel_bytes_max
            and recovery.bytes_in_flight + link.unconfirmed.nbytes + nbytes
            <= min(recovery.window.nbytes, WINDOW_BYTES_MAX)
        )

    def announced(self, link: Link, receipts: tuple[Receipt, ...], now: int) -> tuple[int, bool]:
        """Process an announcement's receipts of unasked Parcels.

        Returns the slots that arrived, and True if anything follows: a Parcel was lost, or a program waits for another
        node to carry its message.
        """
        unconfirmed = link.unconfirmed
        if not unconfirmed.slots:
            return 0, False
        found = unconfirmed.announced(receipts)
        news = self._arrived(link, found)
        if unconfirmed.slots:
            unconfirmed.lose(now - max(_ON_ITS_WAY_US, link.outbox.recovery.timeout_us))
        return found, news or unconfirmed.lost

    def acknowledged(self, link: Link, base: int, bitmap: int) -> int:
        """Process an acknowledgement of serials (base + i for each bit i); return the slots of the pushes it names."""
        found = link.unconfirmed.confirm(self._prefix, base, bitmap)
        self._arrived(link, found)
        return found

    def _arrived(self, link: Link, slots: int) -> bool:
        """Note that the neighbour has these; return True if a program waits for another node to carry one of them."""
        if not slots:
            return False
        link.learn(slots)
        link.took()
        if self._outputs.tracing:
            self._outputs.passed(link.node, [copy.descriptor for copy in self._holdings.at(slots)])
        watched = bool(slots & self._holdings.watched)
        if watched:
            self._holdings.mark_carried(slots)
        return watched
