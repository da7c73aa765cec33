"""Bursts: turning requests of neighbours into transfer frames.

A burst fills the window of one neighbour, most privileged message first. A message that several neighbours wait for
goes out once, by broadcast, and is tracked in the window of each of them ("one transmission may serve several
requesters"). Serials are numbered per host, so that a broadcast frame has the same serial for all neighbours.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from carrypost.gossip.transfers import outbox as ob
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
from carrypost.gossip.wire.pieces import HASH_BYTES
from carrypost.model.descriptor import PayloadCodec

if TYPE_CHECKING:
    from random import Random

    from carrypost.gossip.holdings.copies import Copy
    from carrypost.gossip.transfers.host_context import HostContext
    from carrypost.gossip.transfers.link import Link

HOPS_MAX = 255
AGE_MS_MAX = 2**40
_BLANK = PayloadCodec.BLANK
_DATA_HEADER_BYTES = 20
_DESCRIPTOR_HEADER_BYTES = 26

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
                return Job(copy, wanted, level, b"", items=iter(ob.PARCEL_ITEMS), left=1, parcel=True, nbytes=nbytes)
            if len(descriptor.wire) <= body_bytes_max:
                return Job(copy, wanted, level, b"", items=iter(ob.SMALL_ITEMS), left=1)
        job = Job(copy, wanted, level, self._holdings.hashes(copy), copy.whole)
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
            burst.append(self._send(link, job, job.pop(), now))
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
            piece, number = divmod(index, descriptor.fragments_per_piece)
            offset = number * descriptor.fragment_bytes
            length = min(descriptor.fragment_bytes, descriptor.piece_length(piece) - offset)
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
