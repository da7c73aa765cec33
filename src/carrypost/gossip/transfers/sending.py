"""Sending over links: requests of neighbours become jobs and bursts of transfer frames, and pushes go out unasked.

`BurstBuilder` turns requests of neighbours into transfer frames. A burst fills the window of one neighbour, most
privileged message first. A message that several neighbours wait for goes out once, by broadcast, and is tracked in the
window of each of them ("one transmission may serve several requesters"). Serials are numbered per host, so that a
broadcast frame has the same serial for all neighbours.

`Pushes` sends messages unasked: as Parcels, within the window of each link, and handles the neighbours' receipts of
them. Unconfirmed pushes are kept with the link (`Unconfirmed`), so that any link can be used, with or
without a contact. `gossip.strategy` chooses the messages and the neighbours. The same message goes to all of them under
one serial, by broadcast or one by one, so that those that hear each other know what the others were sent.

`RequestServer` queues requests of neighbours as jobs of their outboxes, and handles the acknowledgements of what was
sent.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from carrypost.gossip.slots import Members, mask_of
from carrypost.gossip.transfers import outbox as ob
from carrypost.gossip.transfers.accounts import LOOKS
from carrypost.gossip.transfers.outbox import SMALL_HEADER_BYTES, Item, Job, Outbox
from carrypost.gossip.wire.frames import (
    BlankData,
    Data,
    DescriptorPart,
    Frame,
    HashList,
    OpenParcel,
    StoredData,
    WholeDescriptor,
)
from carrypost.gossip.wire.pieces import HASH_BYTES, from_bitmap
from carrypost.model.descriptor import PIECE_BYTES, PayloadCodec

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from random import Random

    from carrypost.gossip.holdings.copies import Copy
    from carrypost.gossip.interest.index import View
    from carrypost.gossip.transfers.link import HostContext, Link
    from carrypost.gossip.wire.frames import Ack, Receipt, Request


HOPS_MAX: Final = 255
AGE_MS_MAX: Final = 2**40
_BLANK: Final = PayloadCodec.BLANK
_DATA_HEADER_BYTES: Final = 20
_DESCRIPTOR_HEADER_BYTES: Final = 26

Unit = tuple[Frame, ...]
"""The frames under one serial: a single frame, or the descriptor and the payload of a small message."""


class BurstBuilder:
    """Builds the bursts of one host."""

    __slots__ = ("_holdings", "_outputs", "_rng", "_serial")

    def __init__(self, context: HostContext, rng: Random) -> None:
        self._holdings, self._outputs = context.holdings, context.outputs
        self._rng = rng
        self._serial = 0

    def job(self, link: Link, copy: Copy, wanted: int, level: int, *, skip_preamble: bool = False) -> Job:
        """Plan a requested message; `skip_preamble`: the neighbour has descriptor and hash list already."""
        descriptor, body_bytes_max = copy.descriptor, link.body_bytes_max
        if descriptor.small:
            nbytes = len(descriptor.wire) + descriptor.length + SMALL_HEADER_BYTES
            # A longer one than usual has to be fit for two frames as well.
            if nbytes <= body_bytes_max + ob.PARCEL_GAIN or (
                nbytes <= link.parcel_bytes_max and len(descriptor.wire) <= body_bytes_max
            ):
                return Job(copy, wanted, level, ob.PARCEL_ITEMS, nbytes=nbytes)
            if len(descriptor.wire) <= body_bytes_max:
                return Job(copy, wanted, level, ob.SMALL_ITEMS)
        job = Job(copy, wanted, level, hashes=self._holdings.hashes(copy), whole=copy.whole)
        job.plan(body_bytes_max, self._rng, skip_preamble=skip_preamble)
        return job

    def flush(self, links: list[Link], now: int) -> None:
        """Send what the windows allow."""
        for link in links:
            outbox = link.outbox
            # Retransmissions are of unfinished jobs.
            if outbox.not_before_us <= now and outbox.jobs and outbox.recovery.open:
                self._burst(link, links, now)

    def _burst(self, link: Link, links: list[Link], now: int) -> None:
        outbox = link.outbox
        recovery = outbox.recovery
        alone: list[Unit] = []
        shared: list[Unit] = []
        # Retransmissions go to this neighbour alone: see `outbox` on broadcasts.
        while outbox.retransmissions and recovery.open:
            lost, item = outbox.retransmissions.popleft()
            alone.append(self._send(link, lost, item, now, shared=False))
        others = [each.outbox for each in links if each is not link and each.outbox.jobs and each.broadcast]
        if not link.broadcast:
            others = []
        if not others and not outbox.stop_and_wait:
            alone += self._parcels(outbox, now)
        while recovery.open and not outbox.waits_for_ack:
            job = outbox.pull()
            if job is None:
                break
            if others:
                job.find_followers(others)
            self._run(link, job, shared if job.followers else alone, now)
        if alone:
            link.send(self._closed(alone, link.body_bytes_max))
        if shared:
            self._outputs.broadcast(self._closed(shared, link.body_bytes_max))
        if alone or shared:
            recovery.restart(now)

    def _run(self, link: Link, job: Job, burst: list[Unit], now: int) -> None:
        """Send as much of one job as the window allows; in stop-and-wait a whole message is one unit."""
        outbox, recovery = link.outbox, link.outbox.recovery
        job.begin()
        while job.left:
            item = job.pop()
            if item[0] == ob.FRAGMENT and not job.followers:
                burst += self._fragments(outbox, job, item, now)
            else:
                burst.append(self._send(link, job, item, now))
            if job.left and not recovery.open:
                outbox.put_back(job)
                # The rest waits in this neighbour's outbox, but neighbours that followed the
                # broadcast need not wait for its window.
                job.release_followers(fast=True)
                return

    @classmethod
    def _closed(cls, burst: list[Unit], body_bytes_max: int) -> list[Frame]:
        """Return the frames of a burst with its end marked, so that it is acknowledged at once."""
        frames = cls._arranged(burst, body_bytes_max)
        final = frames[-1]
        if isinstance(final, OpenParcel | Data | StoredData | BlankData):
            # Without this mark the receiver would delay its acknowledgement, hoping that more
            # frames of the burst come.
            frames[-1] = msgspec.structs.replace(final, last=True)
        return frames

    @staticmethod
    def _arranged(burst: list[Unit], body_bytes_max: int) -> list[Frame]:
        """Return the frames in order, but group descriptors that do not fit into a datagram with their payload.

        A frame does not span datagrams: one by one, such descriptors would cost as many datagrams as the payloads.
        """
        frames: list[Frame] = [unit[0] for unit in burst]
        # Most bursts are of one frame per message, and need no arranging.
        if sum(map(len, burst)) == len(frames):
            return frames
        frames = []
        payloads: list[Frame] = []
        room = 0
        for unit in burst:
            size = _bulky(unit, body_bytes_max)
            if not size or size > room:
                frames += payloads
                payloads = []
                room = body_bytes_max
            frames.append(unit[0])
            if size:
                payloads.append(unit[1])
                room -= size
            else:
                frames += unit[1:]
        return frames + payloads

    def _parcels(self, outbox: Outbox, now: int) -> list[Unit]:
        """Send messages of one frame each to one neighbour alone, which is what most bursts consist of."""
        serial = self._serial
        units: list[Unit] = []
        for copy in outbox.send_parcels(serial + 1, now):
            serial += 1
            hops, age_ms = _passed_on(copy, now)
            units.append((OpenParcel(copy.handle, serial, hops, age_ms, False, copy.descriptor),))
        self._serial = serial
        return units

    def _fragments(self, outbox: Outbox, job: Job, item: Item, now: int) -> list[Unit]:
        """Send fragments of one message to one neighbour alone, from this one on."""
        copy, serial = job.copy, self._serial + 1
        nbytes = copy.descriptor.fragment_bytes + _DATA_HEADER_BYTES
        indices = outbox.send_fragments(job, item, nbytes, serial, now)
        self._serial += len(indices)
        return [(self._fragment(copy, index, number),) for number, index in enumerate(indices, serial)]

    def parcel(self, copy: Copy, now: int) -> OpenParcel:
        """Return a message, which must have a handle, as one frame with a new serial."""
        self._serial += 1
        hops, age_ms = _passed_on(copy, now)
        return OpenParcel(copy.handle, self._serial, hops, age_ms, False, copy.descriptor)

    def _send(self, link: Link, job: Job, item: Item, now: int, *, shared: bool = True) -> Unit:
        kind, index = item
        body_bytes_max = link.body_bytes_max
        copy, descriptor = job.copy, job.copy.descriptor
        frames: Unit
        nbytes = len(descriptor.wire) + descriptor.length + SMALL_HEADER_BYTES
        if kind == ob.PARCEL and job.parcel:
            frames = (self.parcel(copy, now),)
            link.outbox.sent(self._serial, (job, item), nbytes, now, shared=shared)
            return frames
        self._serial = serial = self._serial + 1
        if kind in {ob.SMALL, ob.PARCEL}:
            frames = (self._descriptor(copy, 0, serial, now, body_bytes_max), self._fragment(copy, 0, serial))
        elif kind == ob.FRAGMENT:
            frames = (self._fragment(copy, index, serial),)
            nbytes = descriptor.fragment_bytes + _DATA_HEADER_BYTES
        elif kind == ob.HASHES:
            body = job.hashes[index * HASH_BYTES :][: body_bytes_max // HASH_BYTES * HASH_BYTES]
            frames = (HashList(copy.handle, serial, index, body),)
            nbytes = len(body) + _DATA_HEADER_BYTES
        else:
            frames = (self._descriptor(copy, index, serial, now, body_bytes_max),)
            nbytes = min(len(descriptor.wire), body_bytes_max) + _DESCRIPTOR_HEADER_BYTES
        link.outbox.sent(serial, (job, item), nbytes, now, shared=shared)
        return frames

    @staticmethod
    def _fragment(copy: Copy, index: int, serial: int) -> Frame:
        descriptor, handle = copy.descriptor, copy.handle
        if descriptor.small:
            piece, offset, length = 0, 0, descriptor.length
        else:
            piece, offset, length = descriptor.fragment_at(index)
        if descriptor.codec is _BLANK:
            return BlankData(handle, serial, index, False, length)
        return StoredData(handle, serial, index, False, descriptor.id, piece, offset, length)

    @staticmethod
    def _descriptor(copy: Copy, part: int, serial: int, now: int, step: int) -> Frame:
        hops, age_ms = _passed_on(copy, now)
        wire = copy.descriptor.wire
        if len(wire) <= step:
            return WholeDescriptor(copy.handle, serial, hops, age_ms, copy.descriptor)
        body = wire[part * step : (part + 1) * step]
        return DescriptorPart(copy.handle, serial, hops, age_ms, part, -(-len(wire) // step), body)


def _bulky(unit: Unit, body_bytes_max: int) -> int:
    """Return the bytes of a small message's descriptor that does not fit into a datagram with its payload, else 0."""
    descriptor = unit[0]
    if len(unit) == 1 or not isinstance(descriptor, WholeDescriptor):
        return 0
    size = len(descriptor.descriptor.wire) + _DESCRIPTOR_HEADER_BYTES
    fits = size + descriptor.descriptor.length + _DATA_HEADER_BYTES <= body_bytes_max
    return 0 if fits else size


def _passed_on(copy: Copy, now: int) -> tuple[int, int]:
    """Return hops and age of a message as the next host sees them."""
    hops, age_ms = copy.hops + 1, copy.age_ms
    # The age is summed up by hosts, each with its own clock: no host has to trust the date of
    # another.
    if now > copy.received_us:
        age_ms += (now - copy.received_us) // 1000
    if hops > HOPS_MAX or age_ms > AGE_MS_MAX:
        return min(HOPS_MAX, hops), min(AGE_MS_MAX, age_ms)
    return hops, age_ms


WINDOW_BYTES_MAX: Final = 32 * 1024
"""Bytes that may be on their way to a neighbour, requested or not, for anything to be pushed to it."""
_ON_ITS_WAY_US: Final = 100_000
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


_AGAIN_BYTES: Final = 16
"""Number of bytes sent to the same neighbour again that make one unit of work (`gossip.transfers.accounts`)."""
_BITMAP_BYTES: Final = 64
"""Number of bytes of an acknowledgement that make one."""
_WANTED: Final = 256
"""Added to the level of messages that the neighbour wants for itself: they go before those that it would carry."""
GIVEN_MAX: Final = 2048
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
