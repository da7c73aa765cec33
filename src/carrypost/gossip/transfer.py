"""Bursts: turning what neighbours asked for into transfer frames.

A burst fills the window of one neighbour, most privileged message first. A message that several neighbours wait for
goes out once, to the link, and is tracked in the window of each of them ("one transmission may serve several
requesters"). Serials are numbered per host, so that a broadcast frame has the same one for everybody.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import msgspec

from carrypost.gossip import outbox as ob
from carrypost.gossip.frames import (
    BlankData,
    Data,
    DescriptorPart,
    Frame,
    HashList,
    StoredData,
    Transmission,
    WholeDescriptor,
)
from carrypost.gossip.outbox import FRAME_ROOM, Flight, Item, Job, Outbox
from carrypost.gossip.pieces import HASH_BYTES
from carrypost.model.descriptor import PayloadCodec

if TYPE_CHECKING:
    from carrypost.gossip.cache import Copy
    from carrypost.gossip.desk import Desk
    from carrypost.gossip.link import Link

HOPS_MAX = 255
AGE_MS_MAX = 2**40
_DATA_HEADER_BYTES = 20
_DESCRIPTOR_HEADER_BYTES = 26


class Transfer:
    """Builds the bursts of one host."""

    __slots__ = ("_body_bytes_max", "_desk", "_serial")

    def __init__(self, desk: Desk) -> None:
        self._desk = desk
        self._serial = 0
        self._body_bytes_max = desk.settings.mtu_bytes - FRAME_ROOM

    def job(self, copy: Copy, wanted: int, level: int) -> Job:
        """A message that a neighbour asked for."""
        job = Job(copy, wanted, level, self._desk.hashes.get(copy.slot, b""))
        job.plan(self._body_bytes_max)
        return job

    def flush(self, links: Iterable[Link], now: int) -> None:
        """Send what the windows allow."""
        links = [link for link in links if link.usable]
        for link in links:
            outbox = link.outbox
            if outbox.not_before_us > now or not (outbox.retries or outbox.jobs):
                continue
            if outbox.open:
                self._burst(link, links, now)

    def _burst(self, link: Link, links: list[Link], now: int) -> None:
        outbox = link.outbox
        alone: list[Frame] = []
        shared: list[Frame] = []
        while outbox.retries and outbox.open:
            job, item = outbox.retries.popleft()
            alone.append(self._send(outbox, job, item, now))
        while outbox.open and not outbox.waits_for_ack:
            job_next = outbox.pull()
            if job_next is None:
                break
            self._find_followers(job_next, link, links)
            self._run(outbox, job_next, shared if job_next.followers else alone, now)
        self._close(alone, link.peer)
        self._close(shared, None)
        if alone or shared:
            outbox.arm(now)

    def _run(self, outbox: Outbox, job: Job, frames: list[Frame], now: int) -> None:
        """Send of one job what the window allows; in stop-and-wait the whole message counts as one."""
        for item in job.items:
            job.left -= 1
            if not job.left:
                job.spent = True
                for _, follower in job.followers:
                    follower.spent = True
            frames.append(self._send(outbox, job, item, now))
            if not outbox.open and job.left:
                outbox.put_back(job)
                return

    def _find_followers(self, job: Job, link: Link, links: list[Link]) -> None:
        if job.followers or job.flying:
            return
        slot = job.copy.slot
        for other in links:
            if other is link:
                continue
            twin = other.outbox.jobs.get(slot)
            if twin and twin.wanted == job.wanted and twin.left and not twin.flying and other.outbox.open:
                other.outbox.follow(twin)
                job.followers.append((other.outbox, twin))

    def _close(self, frames: list[Frame], to: str | None) -> None:
        """Mark the end of a burst, so that it is acknowledged at once, and send it."""
        if not frames:
            return
        final = frames[-1]
        if isinstance(final, Data | StoredData | BlankData):
            frames[-1] = msgspec.structs.replace(final, last=True)
        self._desk.outgoing.append(Transmission(tuple(frames), to))

    def _send(self, outbox: Outbox, job: Job, item: Item, now: int) -> Frame:
        self._serial = serial = self._serial + 1
        frame, size = self._frame(job, item, serial, now)
        outbox.track(serial, Flight(job, item, size, now))
        for other, follower in job.followers:
            other.track(serial, Flight(follower, item, size, now))
        return frame

    def _frame(self, job: Job, item: Item, serial: int, now: int) -> tuple[Frame, int]:
        kind, index = item
        copy = job.copy
        descriptor, handle = copy.descriptor, copy.handle
        if kind == ob.FRAGMENT:
            piece, number = divmod(index, descriptor.fragments_per_piece)
            offset = number * descriptor.fragment_bytes
            length = min(descriptor.fragment_bytes, descriptor.piece_length(piece) - offset)
            size = length + _DATA_HEADER_BYTES
            if descriptor.codec is PayloadCodec.BLANK:
                return BlankData(handle, serial, index, False, length), size
            return StoredData(handle, serial, index, False, descriptor.id, piece, offset, length), size
        step = self._body_bytes_max
        if kind == ob.HASHES:
            count = step // HASH_BYTES
            body = job.hashes[index * HASH_BYTES : (index + count) * HASH_BYTES]
            return HashList(handle, serial, index, body), len(body) + _DATA_HEADER_BYTES
        hops = min(HOPS_MAX, copy.hops + 1)
        age_ms = min(AGE_MS_MAX, copy.age_ms + max(0, now - copy.received_us) // 1000)
        wire = descriptor.wire
        if len(wire) <= step:
            return WholeDescriptor(handle, serial, hops, age_ms, descriptor), len(wire) + _DESCRIPTOR_HEADER_BYTES
        body = wire[index * step : (index + 1) * step]
        parts = -(-len(wire) // step)
        part = DescriptorPart(handle, serial, hops, age_ms, index, parts, body)
        return part, len(body) + _DESCRIPTOR_HEADER_BYTES
