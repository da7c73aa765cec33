"""The sending half of a link: the jobs of one neighbour, in which order they go out, and who follows whom.

A *job* is one message on its way to one neighbour; it plans the *items* to send: descriptor, hash list, fragments, or
the whole message as one parcel. Jobs go out by level, the most privileged first, and in the order in which they were
asked for within a level. Retransmissions go before all of them.

A message that several neighbours wait for goes out once, by broadcast: the jobs of the others *follow* the one that is
sent, at the pace of its window, and share its serials. They part when its neighbour holds the others up.

What is in flight, when it is lost and how much may be sent is the business of `gossip.transfers.loss`; the outbox says
what each frame held, and learns what arrived and what has to be sent again. A job is done when every item went out and
nothing of it is in flight or to be sent again. `stop_and_wait` is a window of one message (JOMS-15 figure 3: each is
acknowledged before the next goes out).
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterator
from itertools import chain
from typing import TYPE_CHECKING

import msgspec

from carrypost.gossip.slots import bits, mask_of
from carrypost.gossip.timers import DECLARE_LOST, SEND, Timers
from carrypost.gossip.transfers.loss import LossRecovery, SentFrame
from carrypost.gossip.transfers.retransmissions import Retransmissions
from carrypost.gossip.wire.pieces import HASH_BYTES
from carrypost.model.times import NEVER

if TYPE_CHECKING:
    from random import Random

    from carrypost.gossip.holdings.copies import Copy

DESCRIPTOR, HASHES, FRAGMENT, SMALL, PARCEL = range(5)
_PREAMBLE = (DESCRIPTOR, HASHES)
Item = tuple[int, int]
"""(DESCRIPTOR, part), (HASHES, first piece), (FRAGMENT, index), or a small message under one serial, as two frames
or, if a datagram can hold it, as one."""
SMALL_ITEMS: tuple[Item, ...] = ((SMALL, 0),)
THE_PARCEL: Item = (PARCEL, 0)
PARCEL_ITEMS: tuple[Item, ...] = (THE_PARCEL,)
SMALL_HEADER_BYTES = 46
"""Bytes of a small message beside its descriptor and its payload, at most."""

_PREAMBLE_KNOWN_US = 1_000_000
_PREAMBLES_KNOWN_MAX = 64
TIMEOUTS_DOUBTFUL = 2
"""After so many in a row it is doubted that the neighbour still knows what it acknowledged: one is mostly mere loss."""
FRAME_ROOM = 64
"""Bytes of a datagram kept free for the headers of frame and datagram around a body."""
PARCEL_GAIN = FRAME_ROOM - 8
"""A parcel, whose header is counted already, needs room for that of the datagram only."""


class Job(msgspec.Struct, eq=False):
    """One message on its way to one neighbour."""

    copy: Copy
    wanted: int
    """Bitset of the pieces to send."""
    level: int
    hashes: bytes
    whole: bool = True
    """True if all pieces were here when they were requested."""
    more: int = 0
    """Bitset of pieces that came in, and were asked for, while the others were on their way."""
    items: Iterator[Item] = iter(())
    """Items that have not gone out yet."""
    left: int = 0
    """Number of these items."""
    begun: bool = False
    """Something went out."""
    exhausted: bool = False
    """Everything went out at least once, or will not go out any more."""
    parcel: bool = False
    """The whole message is one frame; no longer, if that turned out to be too long."""
    nbytes: int = 0
    """Of that frame, about."""
    unasked: bool = False
    """The neighbour did not ask for it: it takes it as one frame only."""
    preamble: tuple[Item, ...] = ()
    """Descriptor and hash list of a message in fragments: without them the neighbour can make nothing of those."""
    preamble_skipped: bool = False
    """The preamble is left out because the neighbour was sent it a moment ago."""
    in_flight: set[int] = msgspec.field(default_factory=set)
    """Serials of the frames of this job that are in flight."""
    followers: tuple[tuple[Outbox, Job], ...] = ()
    """The same message for other neighbours, served by the same broadcast frames."""

    def plan(self, body_bytes_max: int, rng: Random, *, skip_preamble: bool) -> None:
        """Plan a message in fragments: before them the preamble, which vouches for them, unless the neighbour has it.

        Pieces start anywhere and go round: carriers whose contacts were too short for all of them then hold different
        ones, and complete each other where they meet.
        """
        descriptor = self.copy.descriptor
        per_piece = descriptor.fragments_per_piece
        parts = -(-len(descriptor.wire) // body_bytes_max)
        lists = range(0, descriptor.pieces if self.hashes else 0, body_bytes_max // HASH_BYTES)
        pieces = list(bits(self.wanted))
        start = rng.randrange(len(pieces))
        self.preamble = (*((DESCRIPTOR, part) for part in range(parts)), *((HASHES, first) for first in lists))
        self.preamble_skipped = skip_preamble
        preamble = () if skip_preamble else self.preamble
        self.left = len(preamble) + sum(descriptor.fragments_in(piece) for piece in pieces)
        fragments = (
            (FRAGMENT, piece * per_piece + number)
            for piece in pieces[start:] + pieces[:start]
            for number in range(descriptor.fragments_in(piece))
        )
        self.items = chain(preamble, fragments)

    def ask_more(self, pieces: int) -> None:
        """Take pieces that are asked for while the job is on its way: those that it does not send follow it."""
        self.more |= pieces & ~self.wanted

    def begin(self) -> None:
        """Mark the job, and those that follow it, as begun: its first item goes out now."""
        self.begun = True
        for _, follower in self.followers:
            follower.begun = True

    def take(self) -> Item:
        """Take the next item, which goes out now, for those that follow as well."""
        self.left -= 1
        if not self.left:
            self.exhausted = True
            for _, follower in self.followers:
                follower.exhausted = True
        return next(self.items)

    def find_followers(self, others: list[Outbox]) -> None:
        """Let the same job of other neighbours follow this one, if neither has begun and their windows are open."""
        if self.begun:
            return
        slot = self.copy.slot
        for other in others:
            twin = other.jobs.get(slot)
            if twin is None:
                continue
            alike = twin.wanted == self.wanted and twin.preamble_skipped == self.preamble_skipped
            if alike and not twin.begun and other.recovery.open:
                other.follow(twin)
                self.followers = (*self.followers, (other, twin))

    def release_followers(self, *, fast: bool = False) -> None:
        """Let those who follow go on alone (`fast`: those whose windows are open): this job holds them up."""
        if not self.followers:
            return
        rest = list(self.items)
        self.items = iter(rest)
        staying: list[tuple[Outbox, Job]] = []
        for outbox, follower in self.followers:
            if fast and not outbox.recovery.open:
                staying.append((outbox, follower))
            elif rest and outbox.jobs.get(self.copy.slot) is follower:
                outbox.resume(follower, rest)
        self.followers = tuple(staying)


Content = tuple[Job, Item]
"""The content of a frame in flight."""


class Outbox:
    """The jobs of one neighbour by level, what has to be sent again, and what is in flight."""

    __slots__ = (
        "_datagram_bytes", "_levels", "_patience_us", "_preambles_known", "_timers", "_unfinished", "_window_bytes_max",
        "jobs", "not_before_us", "recovery", "retransmissions", "stop_and_wait",
    )  # fmt: skip

    def __init__(
        self,
        timers: Timers,
        datagram_bytes: int,
        window_bytes_max: int,
        *,
        patience_us: int = 0,
        stop_and_wait: bool = False,
    ) -> None:
        self._timers, self._patience_us = timers, patience_us
        self.stop_and_wait = stop_and_wait
        self._datagram_bytes, self._window_bytes_max = datagram_bytes, window_bytes_max
        self.jobs: dict[int, Job] = {}
        self.clear()

    def clear(self) -> None:
        """Forget everything: the contact is over, and nothing is owed any more."""
        for job in self.jobs.values():
            job.release_followers()
        self.jobs = {}
        """By slot: what is not done. Whoever serves requests bounds it."""
        self._levels: dict[int, deque[Job]] = {}
        self.retransmissions: Retransmissions[Job, Item] = Retransmissions()
        self._unfinished: list[Job] = []
        """Jobs that are done, while more of their message was asked for."""
        self._preambles_known: OrderedDict[int, int] = OrderedDict()
        """By handle: when the last job of a message in parts was done."""
        self.recovery: LossRecovery[Content] = LossRecovery(
            self._timers, self._datagram_bytes, self._window_bytes_max, self._patience_us
        )
        self.not_before_us = 0

    # --- the queue -----------------------------------------------------------------------------------------

    def add(self, job: Job) -> None:
        """Queue a job behind those of its level."""
        self.jobs[job.copy.slot] = job
        queue = self._levels.get(job.level)
        if queue is None:
            queue = self._levels[job.level] = deque()
        queue.append(job)

    def put_back(self, job: Job) -> None:
        """Queue a job that has begun before those of its level."""
        self._levels.setdefault(job.level, deque()).appendleft(job)

    def follow(self, job: Job) -> None:
        """Take a job out of the queue: another neighbour's serves it, and here only what is in flight is known."""
        self._levels[job.level].remove(job)
        job.items, job.left = iter(()), 0

    def resume(self, job: Job, items: list[Item]) -> None:
        """Queue a job that followed another neighbour's, with the items that are left."""
        job.items, job.left = iter(items), len(items)
        self.put_back(job)
        self.wait(self.not_before_us)

    def pull(self) -> Job | None:
        """Take the most privileged job that has something left to send out of the queue."""
        jobs = self.jobs
        while (queue := self._foremost()) is not None:
            while queue:
                job = queue.popleft()
                if jobs.get(job.copy.slot) is job and not job.exhausted:
                    return job
        return None

    def _foremost(self) -> deque[Job] | None:
        """The jobs of the most privileged level that has any."""
        levels = self._levels
        while levels:
            level = max(levels) if len(levels) > 1 else next(iter(levels))
            if levels[level]:
                return levels[level]
            del levels[level]
        return None

    def cancel(self, slot: int) -> None:
        """Drop the job of a message that is gone from the cache, or that the neighbour does not take."""
        job = self.jobs.pop(slot, None)
        if job is None:
            return
        job.release_followers()
        job.exhausted = True
        self.retransmissions.drop(job)
        self.recovery.discard(job.in_flight)
        if job.in_flight:
            self.wait(self.not_before_us)  # Its frames kept others from being sent.
        job.in_flight.clear()
        if not self.jobs:
            self.recovery.forget_lost()

    def unpack(self, parcel_bytes_max: int) -> list[Job]:
        """Let messages go as two frames that were to go, or went, as a longer one. Returns their jobs.

        Those that nobody asked for are dropped: the neighbour would refuse the two frames. They are to be offered.
        """
        found = [job for job in self.jobs.values() if job.parcel and job.nbytes > parcel_bytes_max]
        for job in found:
            job.parcel = False
            if job.unasked:
                self.cancel(job.copy.slot)
        return found

    def take_unfinished(self) -> list[Job]:
        """Take the jobs that are done, while more of their message was asked for."""
        unfinished, self._unfinished = self._unfinished, []
        return unfinished

    # --- sending -------------------------------------------------------------------------------------------

    @property
    def waits_for_ack(self) -> bool:
        """True if the next message waits until the last one is acknowledged (stop-and-wait)."""
        return self.stop_and_wait and bool(self.recovery.in_flight)

    def wait(self, until_us: int) -> None:
        """Send what is queued at that time."""
        self.not_before_us = until_us
        self._timers.arm(SEND, until_us)

    def sent(self, serial: int, content: Content, nbytes: int, now: int, *, shared: bool = False) -> None:
        """Note a frame that went out; `shared`: by broadcast, to those who follow the job as well."""
        job, item = content
        job.in_flight.add(serial)
        self.recovery.sent(serial, content, nbytes, now)
        for other, follower in job.followers if shared else ():
            if other.jobs.get(job.copy.slot) is follower:
                other.sent(serial, (follower, item), nbytes, now)

    def send_parcels(self, serial: int, now: int) -> list[Copy]:
        """Note as sent all jobs in a row that `pull` would give, are parcels, and have room in the window.

        Returns their messages, which go out under this serial and those that follow it. Most bursts are nothing else:
        so this does in one go what `pull`, `begin`, `take` and `sent` do for one job.
        """
        queue = self._foremost()
        copies: list[Copy] = []
        frames: list[SentFrame[Content]] = []
        jobs, room_bytes = self.jobs, self.recovery.room_bytes
        while queue and room_bytes > 0:
            job = queue[0]
            copy = job.copy
            if jobs.get(copy.slot) is job and not job.exhausted:
                if not job.parcel:
                    break
                job.begun = job.exhausted = True
                job.left = 0
                number = serial + len(frames)
                job.in_flight.add(number)
                room_bytes -= job.nbytes
                frames.append(SentFrame(number, (job, THE_PARCEL), job.nbytes, now))
                copies.append(copy)
            queue.popleft()
        self.recovery.sent_burst(serial, frames, now)
        return copies

    # --- what becomes of it --------------------------------------------------------------------------------

    def acknowledge(self, base: int, bitmap: int, now: int) -> int:
        """Take an acknowledgement of serials (base + i for each bit i). Returns the slots that arrived as a whole."""
        outcome = self.recovery.acknowledged(base, bitmap, now)
        done: list[int] = []
        for frame in outcome.arrived:
            job = frame.content[0]
            job.in_flight.discard(frame.serial)
            if self._finish(job, now):
                done.append(job.copy.slot)
        if outcome.late:
            for frame in outcome.late:
                self.retransmissions.discard(frame.content)
            for frame in outcome.spurious:
                frame.content[0].in_flight.discard(frame.serial)
            done += [job.copy.slot for job, _ in [frame.content for frame in outcome.late] if self._finish(job, now)]
        if outcome.lost:
            self._send_again(outcome.lost)
        return mask_of(done)

    def tick(self, now: int) -> None:
        """Do what is due; what is queued may go out after it."""
        due = self._timers.due
        if due[SEND] <= now:
            self._timers.cancel(SEND)
        if due[DECLARE_LOST] <= now:
            self.time_out(now)

    def time_out(self, now: int) -> None:
        """Send everything again that is in flight, since nothing was acknowledged for a whole timeout."""
        for job in self.jobs.values():
            job.release_followers()
        lost = self.recovery.timed_out(now)
        if lost:
            self._send_again(lost)
            for job in self.jobs.values():
                self._repeat_preamble(job)

    def _send_again(self, frames: list[SentFrame[Content]]) -> None:
        """Queue lost frames again, fragments behind their descriptor and hash list: without these they are dropped."""
        headless: dict[Job, None] = {}
        for frame in frames:
            job, (kind, _) = frame.content
            job.in_flight.discard(frame.serial)
            self.retransmissions.append(frame.content)
            if kind in _PREAMBLE:
                headless[job] = None
        for job in headless:
            for item in list(self.retransmissions.of(job)):
                if item[0] not in _PREAMBLE:
                    self.retransmissions.append((job, item))

    def _repeat_preamble(self, job: Job) -> None:
        """Send the preamble again, if perhaps the neighbour can make nothing of the fragments because it forgot it.

        That it had acknowledged the preamble does not help: it may have begun the contact anew, and the announcement
        of that was lost. Then nothing else ever comes through, since it asks for what counts as on its way.
        """
        doubtful = job.preamble_skipped or (job.begun and self.recovery.timeouts >= TIMEOUTS_DOUBTFUL)
        if doubtful and not any(kind in _PREAMBLE for kind, _ in self.retransmissions.of(job)):
            self.retransmissions.put_first(job, job.preamble)
            job.preamble_skipped = False

    def knows_preamble(self, copy: Copy, now: int) -> bool:
        """Return True if the neighbour was sent the descriptor and the hash list of this message a moment ago."""
        return now - self._preambles_known.get(copy.handle, -NEVER) < _PREAMBLE_KNOWN_US

    def _finish(self, job: Job, now: int) -> bool:
        """Drop a job of which everything arrived. Returns True if the neighbour has the whole message now."""
        if not job.exhausted or job.in_flight or self.retransmissions.of(job):
            return False
        slot = job.copy.slot
        if self.jobs.get(slot) is not job:
            return False
        del self.jobs[slot]
        if not self.jobs:
            self.recovery.forget_lost()
        if not job.parcel and not job.copy.descriptor.small:
            self._preambles_known[job.copy.handle] = now
            if len(self._preambles_known) > _PREAMBLES_KNOWN_MAX:
                self._preambles_known.popitem(last=False)
        if job.more:
            self._unfinished.append(job)
            return False
        return job.whole
