"""The sending half of a link: jobs of one neighbour, their order, retransmissions, and jobs that share a broadcast.

A *job* is one message on its way to one neighbour; it plans the *items* to send: descriptor, hash list, fragments, or
the whole message as one parcel. Jobs go out by level, the most privileged first, and within a level in the order of
their requests. Retransmissions go before all of them.

Frames in flight, losses and the window are the business of `gossip.transfers.loss`. The outbox passes it the content of
each frame, and learns which arrived and which have to be sent again. A job is done when every item was sent and none of
it is in flight or waits for retransmission. `stop_and_wait` is a window of one message (JOMS-15 figure 3: each message
is acknowledged before the next one is sent).

`Retransmissions` has the contents that have to be sent to one neighbour again, in the order of sending. Each content is
in it once at most. Dropping the contents of one job, or asking for them, costs what that job has there, and not what
all jobs have: a neighbour decides by what it loses how much that is.
"""

# Broadcasts with acknowledgements. A message that several neighbours wait for goes out once.
# TCP-like loss recovery knows one receiver, and a window for a group would run at the pace of its
# slowest member, or of a member that has left. So there is no group: each neighbour has its own
# window, its own losses and its own copy of the job. One of these jobs is sent; the same jobs of
# the others *follow* it. A frame of it counts as in flight in every window, under one serial, and
# each neighbour acknowledges it for itself.
#
# What must hold.
# 1. A job that follows has no items of its own, so that nothing is sent twice while the broadcast
#    goes well.
# 2. Followers part as soon as the leader would hold them up: when its window is full and theirs are
#    open, when it times out, when its message is cancelled or its contact ends. They continue with
#    the items that are left.
# 3. What was lost at one neighbour is retransmitted to that neighbour alone. Losses of different
#    receivers are mostly different frames, and rebroadcasting each of them would cost the airtime
#    of all.

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterator
from itertools import chain, repeat
from typing import TYPE_CHECKING, Final, Generic, TypeVar

from carrypost.gossip.holdings.copies import Copy
from carrypost.gossip.slots import bits, mask_of
from carrypost.gossip.timers import DECLARE_LOST, SEND, Timers
from carrypost.gossip.transfers.loss import LossRecovery, SentFrame
from carrypost.gossip.wire.pieces import HASH_BYTES
from carrypost.model.times import NEVER

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence
    from random import Random


J = TypeVar("J")
I = TypeVar("I")  # noqa: E741 - an item


class Retransmissions(Generic[J, I]):
    """Contents of lost frames: jobs and their items."""

    __slots__ = ("_items", "_order")

    def __init__(self) -> None:
        self._order: OrderedDict[tuple[J, I], None] = OrderedDict()
        self._items: dict[J, dict[I, None]] = {}
        """The same, by job."""

    def __len__(self) -> int:
        return len(self._order)

    def __iter__(self) -> Iterator[tuple[J, I]]:
        return iter(self._order)

    def of(self, job: J) -> Collection[I]:
        """Return the items of a job."""
        return self._items.get(job, ())

    def append(self, content: tuple[J, I]) -> None:
        """Put a content behind all others."""
        self._order[content] = None
        self._order.move_to_end(content)
        self._items.setdefault(content[0], {})[content[1]] = None

    def put_first(self, job: J, items: Sequence[I]) -> None:
        """Add items of a job before all others."""
        for item in reversed(items):
            self.append((job, item))
            self._order.move_to_end((job, item), last=False)

    def popleft(self) -> tuple[J, I]:
        """Remove and return the first content."""
        content, _ = self._order.popitem(last=False)
        self._forget(*content)
        return content

    def discard(self, content: tuple[J, I]) -> None:
        """Drop a content, if it is here."""
        if content in self._order:
            del self._order[content]
            self._forget(*content)

    def drop(self, job: J) -> None:
        """Drop all contents of a job."""
        for item in self._items.pop(job, ()):
            del self._order[job, item]

    def clear(self) -> None:
        """Drop everything."""
        self._order.clear()
        self._items.clear()

    def _forget(self, job: J, item: I) -> None:
        items = self._items[job]
        del items[item]
        if not items:
            del self._items[job]


DESCRIPTOR: Final = 0
HASHES: Final = 1
FRAGMENT: Final = 2
SMALL: Final = 3
PARCEL: Final = 4
_PREAMBLE: Final = (DESCRIPTOR, HASHES)
Item = tuple[int, int]
"""(DESCRIPTOR, part), (HASHES, first piece), (FRAGMENT, index), or a small message under one serial, as two frames or,
if a datagram can hold it, as one."""
SMALL_ITEMS: tuple[Item, ...] = ((SMALL, 0),)
THE_PARCEL: Item = (PARCEL, 0)
PARCEL_ITEMS: tuple[Item, ...] = (THE_PARCEL,)
SMALL_HEADER_BYTES: Final = 46
"""Largest overhead of a small message beside its descriptor and its payload, in bytes."""

_PREAMBLE_KNOWN_US: Final = 1_000_000
_PREAMBLES_KNOWN_MAX: Final = 64
TIMEOUTS_DOUBTFUL: Final = 2
"""Number of timeouts in a row after which the neighbour may have forgotten what it acknowledged: one is mostly mere
loss."""
FRAME_ROOM: Final = 64
"""Bytes of a datagram reserved for the headers of frame and datagram around a body."""
PARCEL_GAIN: Final = FRAME_ROOM - 8
"""A parcel, whose header is counted already, needs room for the header of the datagram only."""


class Job:
    """One message on its way to one neighbour."""

    __slots__ = (
        "begun", "copy", "exhausted", "followers", "hashes", "in_flight", "items", "left", "level", "more", "nbytes",
        "parcel", "preamble", "preamble_skipped", "unasked", "wanted", "whole",
    )  # fmt: skip

    def __init__(
        self,
        copy: Copy,
        wanted: int,
        level: int,
        items: Sequence[Item] = (),
        *,
        hashes: bytes = b"",
        whole: bool = True,
        nbytes: int = 0,
    ) -> None:
        """Make a job of these items; `nbytes`: the approximate size of the one frame that the whole message is."""
        self.copy, self.level, self.hashes = copy, level, hashes
        self.wanted = wanted
        """Bitset of the pieces to send."""
        self.whole = whole
        """True if all pieces were here when they were requested."""
        self.more = 0
        """Bitset of pieces that arrived here, and were requested, while the others were on their way."""
        self.items = iter(items)
        """Items that have not been sent yet."""
        self.left = len(items)
        """Number of these items."""
        self.begun = False
        """True once an item was sent."""
        self.exhausted = False
        """True once every item was sent at least once, or will not be sent any more."""
        self.parcel = nbytes > 0
        """True if the whole message is one frame; reset if that frame turns out to be too long."""
        self.nbytes = nbytes
        self.unasked = False
        """True if the neighbour did not request it: it accepts it as one frame only."""
        self.preamble: tuple[Item, ...] = ()
        """Descriptor and hash list of a message in fragments, which the neighbour cannot use without them."""
        self.preamble_skipped = False
        """True if the preamble is left out because the neighbour was sent it a moment ago."""
        self.in_flight: set[int] = set()
        """Serials of the frames of this job that are in flight."""
        self.followers: tuple[tuple[Outbox, Job], ...] = ()
        """The same message for other neighbours, served by the same broadcast frames."""

    def plan(self, body_bytes_max: int, rng: Random, *, skip_preamble: bool) -> None:
        """Plan a message in fragments, after the preamble that vouches for them, unless the neighbour has that.

        Pieces start at a random one and wrap around: carriers whose contacts were too short for all pieces then hold
        different ones, and complete each other when they meet.
        """
        descriptor = self.copy.descriptor
        per_piece = descriptor.fragments_per_piece
        parts = -(-len(descriptor.wire) // body_bytes_max)
        lists = range(0, descriptor.pieces if self.hashes else 0, body_bytes_max // HASH_BYTES)
        last = descriptor.pieces - 1
        every = self.wanted == (2 << last) - 1  # As mostly: then there are no bits to look for.
        pieces = list(range(last + 1)) if every else list(bits(self.wanted))
        start = rng.randrange(len(pieces))
        self.preamble = (*((DESCRIPTOR, part) for part in range(parts)), *((HASHES, first) for first in lists))
        self.preamble_skipped = skip_preamble
        preamble = () if skip_preamble else self.preamble
        spare = per_piece - descriptor.fragments_in(last) if pieces[-1] == last else 0
        self.left = len(preamble) + per_piece * len(pieces) - spare
        fragments = chain.from_iterable([
            range(piece * per_piece, (piece + 1) * per_piece - (spare if piece == last else 0))
            for piece in pieces[start:] + pieces[:start]
        ])  # fmt: skip
        self.items = chain(preamble, zip(repeat(FRAGMENT), fragments, strict=False))

    def ask_more(self, pieces: int) -> None:
        """Add pieces that are requested while the job is on its way: those that it does not send follow it."""
        self.more |= pieces & ~self.wanted

    def begin(self) -> None:
        """Mark the job, and its followers, as begun."""
        self.begun = True
        for _, follower in self.followers:
            follower.begun = True

    def pop(self) -> Item:
        """Return the next item, which is sent now, for the followers as well."""
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
        """Let followers continue alone (`fast`: only those whose windows are open), because this job holds them up."""
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
    """The jobs of one neighbour by level, the contents to send again, and the frames in flight."""

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
        """Drop everything at the end of a contact."""
        for job in self.jobs.values():
            job.release_followers()
        self.jobs = {}
        """Unfinished jobs by slot. Bounded by the parts that serve requests."""
        self._levels: dict[int, deque[Job]] = {}
        self.retransmissions: Retransmissions[Job, Item] = Retransmissions()
        self._unfinished: list[Job] = []
        """Jobs that are done, though more of their message was requested."""
        self._preambles_known: OrderedDict[int, int] = OrderedDict()
        """By handle: time at which the last job of a message in parts was done."""
        self.recovery: LossRecovery[Content] = LossRecovery(
            self._timers, self._datagram_bytes, self._window_bytes_max, self._patience_us
        )
        self.not_before_us = 0

    # --- the queue -----------------------------------------------------------------------------------------

    def add(self, job: Job) -> None:
        """Queue a job behind the others of its level."""
        self.jobs[job.copy.slot] = job
        queue = self._levels.get(job.level)
        if queue is None:
            queue = self._levels[job.level] = deque()
        queue.append(job)

    def put_back(self, job: Job) -> None:
        """Queue a job that has begun before the others of its level."""
        self._levels.setdefault(job.level, deque()).appendleft(job)

    def follow(self, job: Job) -> None:
        """Remove a job from the queue, because another neighbour's job serves it; its frames in flight stay known."""
        self._levels[job.level].remove(job)
        job.items, job.left = iter(()), 0

    def resume(self, job: Job, items: list[Item]) -> None:
        """Queue a job that followed another neighbour's, with the items that are left."""
        job.items, job.left = iter(items), len(items)
        self.put_back(job)
        self.wait(self.not_before_us)

    def pull(self) -> Job | None:
        """Remove and return the most privileged job that has something left to send; None if there is none."""
        jobs = self.jobs
        while (queue := self._foremost()) is not None:
            while queue:
                job = queue.popleft()
                # Cancelled jobs stay in their queues and are skipped here: removing one from the
                # middle of a deque is O(n), and a purge may cancel thousands.
                if jobs.get(job.copy.slot) is job and not job.exhausted:
                    return job
        return None

    def _foremost(self) -> deque[Job] | None:
        """Return the jobs of the most privileged level that has any."""
        levels = self._levels
        while levels:
            level = max(levels) if len(levels) > 1 else next(iter(levels))
            if levels[level]:
                return levels[level]
            del levels[level]
        return None

    def cancel(self, slot: int) -> None:
        """Drop the job of a message that is gone from the cache, or that the neighbour does not accept."""
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
        """Split messages into two frames that went, or were to go, as one frame that is too long; return their jobs.

        Those that were not requested are dropped, since the neighbour would refuse the two frames. The caller offers
        them.
        """
        found = [job for job in self.jobs.values() if job.parcel and job.nbytes > parcel_bytes_max]
        for job in found:
            job.parcel = False
            if job.unasked:
                self.cancel(job.copy.slot)
        return found

    def pop_unfinished(self) -> list[Job]:
        """Return the jobs that are done, though more of their message was requested."""
        unfinished, self._unfinished = self._unfinished, []
        return unfinished

    # --- sending -------------------------------------------------------------------------------------------

    @property
    def waits_for_ack(self) -> bool:
        """True if the next message waits until the last one is acknowledged (stop-and-wait)."""
        return self.stop_and_wait and bool(self.recovery.in_flight)

    def wait(self, until_us: int) -> None:
        """Postpone sending until this time."""
        self.not_before_us = until_us
        self._timers.arm(SEND, until_us)

    def sent(self, serial: int, content: Content, nbytes: int, now: int, *, shared: bool = False) -> None:
        """Record a frame that was sent; `shared`: by broadcast, to the followers of the job as well."""
        job, item = content
        job.in_flight.add(serial)
        self.recovery.sent(serial, content, nbytes, now)
        for other, follower in job.followers if shared else ():
            if other.jobs.get(job.copy.slot) is follower:
                other.sent(serial, (follower, item), nbytes, now)

    def send_parcels(self, serial: int, now: int) -> list[Copy]:
        """Record as sent all jobs in a row that `pull` would return, are parcels, and fit into the window.

        Returns their messages, which go out under this serial and those that follow it. Most bursts consist of nothing
        else, so this does in one call what `pull`, `begin`, `pop` and `sent` do for one job.
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

    def send_fragments(self, job: Job, item: Item, nbytes: int, serial: int, now: int) -> list[int]:
        """Record as sent this fragment of a job without followers, which was just popped, and as many more as may be.

        Returns their indices; they go out under this serial and those that follow it. Of a long message, almost
        everything that is sent goes this way.
        """
        indices: list[int] = []
        frames: list[SentFrame[Content]] = []
        room_bytes = self.recovery.room_bytes
        while True:
            number = serial + len(frames)
            job.in_flight.add(number)
            frames.append(SentFrame(number, (job, item), nbytes, now))
            indices.append(item[1])
            room_bytes -= nbytes
            if not job.left or room_bytes <= 0:
                break
            item = job.pop()
        self.recovery.sent_burst(serial, frames, now)
        return indices

    # --- what becomes of it --------------------------------------------------------------------------------

    def acknowledge(self, base: int, bitmap: int, now: int) -> int:
        """Process an acknowledgement of serials (base + i for each bit i); return the slots that arrived as a whole."""
        outcome = self.recovery.acknowledged(base, bitmap, now)
        done: list[int] = []
        for frame in outcome.arrived:
            job = frame.content[0]
            job.in_flight.discard(frame.serial)
            if job.exhausted and self._finish(job, now):
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
        """Handle the timers that are due; queued frames may be sent afterwards."""
        due = self._timers.due
        if due[SEND] <= now:
            self._timers.cancel(SEND)
        if due[DECLARE_LOST] <= now:
            self.time_out(now)

    def time_out(self, now: int) -> None:
        """Retransmit everything in flight, because nothing was acknowledged for a whole timeout."""
        # A neighbour that times out has probably left. Those that share its broadcast must not wait
        # for it.
        for job in self.jobs.values():
            job.release_followers()
        lost = self.recovery.timed_out(now)
        if lost:
            self._send_again(lost)
            for job in self.jobs.values():
                self._repeat_preamble(job)

    def _send_again(self, frames: list[SentFrame[Content]]) -> None:
        """Queue lost frames again, fragments behind their descriptor and hash list, without which they are dropped."""
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
        """Send the preamble again, if the neighbour may have forgotten it and so cannot use the fragments.

        Its earlier acknowledgement of the preamble proves nothing: it may have begun the contact anew, and the
        announcement of that was lost. Then nothing else ever gets through, since it waits for messages that count as on
        their way.
        """
        doubtful = job.preamble_skipped or (job.begun and self.recovery.timeouts >= TIMEOUTS_DOUBTFUL)
        if doubtful and not any(kind in _PREAMBLE for kind, _ in self.retransmissions.of(job)):
            self.retransmissions.put_first(job, job.preamble)
            job.preamble_skipped = False

    def knows_preamble(self, copy: Copy, now: int) -> bool:
        """Return True if the neighbour was sent descriptor and hash list of this message a moment ago."""
        return now - self._preambles_known.get(copy.handle, -NEVER) < _PREAMBLE_KNOWN_US

    def _finish(self, job: Job, now: int) -> bool:
        """Drop a job of which everything arrived; return True if the neighbour has the whole message now."""
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
