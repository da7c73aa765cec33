"""The sending half of a link: what the neighbour asked for, and the window under which it goes out.

Every transfer frame has a serial, remembered in `flights` until the neighbour's cumulative acknowledgement names it.
The window counts bytes and adapts to loss as TCP's does: it doubles per round trip until the first loss, then grows by
one datagram per round trip, and shrinks to 70 % at most once per round trip. A frame is taken for lost when three later
ones were acknowledged, or when nothing was for a whole timeout (`gossip.transfers.timeout`). It then goes out under a
new serial, and the old one is remembered: an acknowledgement that comes late all the same says that the content is
there, and how long the round trip really is. `paper_mode` is a window of one message (JOMS-15 figure 3: each is
acknowledged before the next goes out).
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterable, Iterator
from itertools import chain
from typing import TYPE_CHECKING

import msgspec

from carrypost.gossip.slots import bits, mask_of
from carrypost.gossip.transfers.timeout import Timeout
from carrypost.gossip.wire.pieces import HASH_BYTES
from carrypost.model.times import NEVER

if TYPE_CHECKING:
    from random import Random

    from carrypost.config import Settings
    from carrypost.gossip.holdings.copies import Copy

DESCRIPTOR, HASHES, FRAGMENT, SMALL, PARCEL = range(5)
_VOUCHING = (DESCRIPTOR, HASHES)
Item = tuple[int, int]
"""(DESCRIPTOR, part), (HASHES, first piece), (FRAGMENT, index), or a small message under one serial, as two frames
or, if a datagram can hold it, as one."""
_SMALL: tuple[Item, ...] = ((SMALL, 0),)
THE_PARCEL: Item = (PARCEL, 0)
PARCEL_ITEMS: tuple[Item, ...] = (THE_PARCEL,)
SMALL_HEADER_BYTES = 46
"""What a small message takes beside its descriptor and its payload, at most."""

WINDOW_START_BYTES = 16 * 1024
_DATAGRAMS_MIN = 2
_LATER_ACKS = 3
_SHRINK = 0.7
_VOUCHED_US = 1_000_000
_VOUCHED_MAX = 64
_GIVEN_UP_MAX = 4096
"""So many serials of frames that count as lost may still be acknowledged; as many as `receipts` looks back."""
_TIMEOUTS_DOUBTFUL = 2
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
    """Whether all that it lacked was there to be asked for."""
    more: int = 0
    """Of those asked for since: they came in while the others were on their way."""
    items: Iterator[Item] = iter(())
    left: int = 0
    """How many of them have not gone out yet."""
    begun: bool = False
    """Something went out."""
    spent: bool = False
    """Everything went out at least once."""
    parcel: bool = False
    """It is one frame."""
    size: int = 0
    """Of that frame, about."""
    vouchers: tuple[Item, ...] = ()
    """Descriptor and hash list of a message in parts: without them the neighbour can make nothing of the data."""
    vouched: bool = False
    """They are left out because the neighbour was sent them a moment ago."""
    flying: int = 0
    followers: tuple[tuple[Outbox, Job], ...] = ()
    """The same message for other neighbours, served by the same broadcast frames."""

    def plan(self, body_bytes_max: int, rng: Random, *, vouched: bool) -> None:
        """Everything to send, in order: what vouches before what is vouched for, unless the neighbour has it.

        Pieces start anywhere and go round: carriers whose contacts were too short for all of them then hold different
        ones, and complete each other where they meet.
        """
        descriptor = self.copy.descriptor
        if not descriptor.small:
            self._plan_parts(body_bytes_max, rng, vouched=vouched)
            return
        size = len(descriptor.wire)
        whole_size = size + descriptor.length + SMALL_HEADER_BYTES
        if whole_size <= body_bytes_max + PARCEL_GAIN:
            self.items, self.left, self.parcel, self.size = iter(PARCEL_ITEMS), 1, True, whole_size
        elif size <= body_bytes_max:
            self.items, self.left = iter(_SMALL), 1
        else:
            self._plan_parts(body_bytes_max, rng, vouched=vouched)

    def _plan_parts(self, body_bytes_max: int, rng: Random, *, vouched: bool) -> None:
        descriptor = self.copy.descriptor
        per_piece = descriptor.fragments_per_piece
        parts = -(-len(descriptor.wire) // body_bytes_max)
        lists = range(0, descriptor.pieces if self.hashes else 0, body_bytes_max // HASH_BYTES)
        pieces = list(bits(self.wanted))
        start = rng.randrange(len(pieces))
        self.vouchers = (*((DESCRIPTOR, part) for part in range(parts)), *((HASHES, first) for first in lists))
        self.vouched = vouched
        vouchers = () if vouched else self.vouchers
        self.left = len(vouchers) + sum(descriptor.fragments_in(piece) for piece in pieces)
        fragments = (
            (FRAGMENT, piece * per_piece + number)
            for piece in pieces[start:] + pieces[:start]
            for number in range(descriptor.fragments_in(piece))
        )
        self.items = chain(vouchers, fragments)


class Flight(msgspec.Struct, eq=False):
    """One transfer frame that is not acknowledged yet."""

    job: Job
    item: Item
    size: int
    sent_us: int


class Outbox:
    """Jobs by level, the retry queue, and the window."""

    __slots__ = (
        "_given_up", "_levels", "_threshold", "_timeout", "_timeouts", "_vouched", "_window_max", "_window_min",
        "flights", "flying_bytes", "jobs", "lost_us", "not_before_us", "recover", "retries", "stop_and_wait",
        "unfinished", "wait_us", "window",
    )  # fmt: skip

    def __init__(self, settings: Settings, *, stop_and_wait: bool = False) -> None:
        self.stop_and_wait = stop_and_wait
        self._window_min = settings.mtu_bytes * _DATAGRAMS_MIN
        self._window_max = max(settings.window_bytes_max, self._window_min)
        self.jobs: dict[int, Job] = {}
        self.clear()

    def clear(self) -> None:
        """The contact is over; nothing is owed any more."""
        for job in self.jobs.values():
            if job.followers:
                self.part(job)
        self.jobs = {}
        self._levels: dict[int, deque[Job]] = {}
        self.retries: deque[tuple[Job, Item]] = deque()
        self.unfinished: list[Job] = []
        """Jobs that are through, while more of their message was asked for."""
        self._vouched: OrderedDict[int, int] = OrderedDict()
        """By handle: when the last job of a message was through."""
        self.flights: dict[int, Flight] = {}
        self._given_up: OrderedDict[int, Flight] = OrderedDict()
        """By serial: frames that count as lost, until they are acknowledged after all; at most `_GIVEN_UP_MAX`."""
        self.flying_bytes = 0
        self.window = float(min(WINDOW_START_BYTES, self._window_max))
        self._threshold = float(self._window_max)
        self._timeout = Timeout()
        self._timeouts = 0
        """In a row, without an acknowledgement of anything."""
        self.recover = -1
        self.not_before_us = 0
        self.lost_us = NEVER
        """When what is in flight counts as lost."""
        self.wait_us = NEVER
        """When what waited for other requesters goes out."""

    def add(self, job: Job) -> None:
        """Queue a job behind those of its level."""
        self.jobs[job.copy.slot] = job
        queue = self._levels.get(job.level)
        if queue is None:
            queue = self._levels[job.level] = deque()
        queue.append(job)

    def put_back(self, job: Job) -> None:
        """The job is not spent yet and goes on first."""
        self._levels.setdefault(job.level, deque()).appendleft(job)

    def follow(self, job: Job) -> None:
        """The job is served by another neighbour's: it leaves the queue, and only its flights are tracked."""
        self._levels[job.level].remove(job)
        job.items, job.left = iter(()), 0

    @staticmethod
    def part(job: Job, *, fast: bool = False) -> None:
        """Those who follow the job go on alone (`fast`: those that could take more): its neighbour holds them up."""
        if not job.followers:
            return
        rest = list(job.items)
        job.items = iter(rest)
        staying: list[tuple[Outbox, Job]] = []
        for outbox, follower in job.followers:
            if fast and not outbox.open:
                staying.append((outbox, follower))
            elif rest and outbox.jobs.get(job.copy.slot) is follower:
                follower.items, follower.left = iter(rest), len(rest)
                outbox.put_back(follower)
                outbox.wait(outbox.not_before_us)
        job.followers = tuple(staying)

    def pull(self) -> Job | None:
        """The most privileged job that has something left to send."""
        jobs = self.jobs
        while (queue := self._foremost()) is not None:
            while queue:
                job = queue.popleft()
                if jobs.get(job.copy.slot) is job and not job.spent:
                    return job
        return None

    def pull_parcels(self) -> list[Job]:
        """Of the jobs that `pull` would give, all in a row that are one frame each and that the window allows.

        They count as sent; the caller notes their `flights`.
        """
        queue = self._foremost()
        found: list[Job] = []
        jobs, flying, window = self.jobs, self.flying_bytes, self.window
        while queue and flying < window:
            job = queue[0]
            if jobs.get(job.copy.slot) is job and not job.spent:
                if not job.parcel:
                    break
                flying += job.size
                job.begun = job.spent = True
                job.left, job.flying = 0, job.flying + 1
                found.append(job)
            queue.popleft()
        self.flying_bytes = flying
        return found

    def _foremost(self) -> deque[Job] | None:
        """The jobs of the most privileged level that has any."""
        levels = self._levels
        while levels:
            level = max(levels) if len(levels) > 1 else next(iter(levels))
            if levels[level]:
                return levels[level]
            del levels[level]
        return None

    @property
    def open(self) -> bool:
        """Whether another frame may go out."""
        return self.flying_bytes < self.window

    @property
    def timeout_us(self) -> int:
        """How long an acknowledgement is waited for."""
        return self._timeout.us

    def expect(self, round_trip_us: int) -> None:
        """Something else took so long to be answered: transfer frames will hardly take less."""
        self._timeout.expect(round_trip_us)

    @property
    def waits_for_ack(self) -> bool:
        """Stop-and-wait: the next message waits until the last one is acknowledged."""
        return self.stop_and_wait and bool(self.flights)

    def track(self, serial: int, flight: Flight) -> None:
        """A frame went out."""
        self.flights[serial] = flight
        self.flying_bytes += flight.size
        flight.job.flying += 1
        if self.lost_us == NEVER:
            self.lost_us = flight.sent_us + self._timeout.us

    def cancel(self, slot: int) -> None:
        """The message is gone from the cache."""
        job = self.jobs.pop(slot, None)
        if job is None:
            return
        job.spent = True
        self.retries = deque(entry for entry in self.retries if entry[0] is not job)
        for serial in [serial for serial, flight in self.flights.items() if flight.job is job]:
            self._land(serial)

    def acknowledge(self, base: int, arrived: int, now: int) -> int:
        """Take an acknowledgement: bit i of `arrived` is serial base + i. Returns the slots that are through, whole."""
        later = 0
        gained = 0
        newest: Flight | None = None
        lost: list[int] = []
        through: list[int] = []
        flights = self.flights
        # What speaks of nothing that is in flight is not held against every flight: anybody can send it.
        end = base + arrived.bit_length()
        concerned = flights and next(iter(flights)) < end and base <= next(reversed(flights))
        for serial in list(reversed(flights)) if concerned else ():
            offset = serial - base
            if offset >= 0 and arrived >> offset & 1:
                flight = flights.pop(serial)
                flight.job.flying -= 1
                if newest is None:
                    newest = flight
                later += 1
                gained += flight.size
                job = flight.job
                if self._through(job, now):
                    through.append(job.copy.slot)
            elif later >= _LATER_ACKS:
                lost.append(serial)
        self.flying_bytes -= gained
        if self._given_up:
            # What is acknowledged for the first time in a later report would seem to have taken longer than it did: so
            # it tells the round trip only where nothing else does.
            late = self._take_late(base, arrived)
            newest = newest or (late[-1] if late else None)
            through += [flight.job.copy.slot for flight in late if self._through(flight.job, now)]
            lost = [serial for serial in lost if serial in flights]
        if newest is not None:
            self._timeouts = 0
            self._timeout.measure(now - newest.sent_us)
        if gained:
            self._grow(gained)
        if lost:
            self._shrink(max(lost), max(self.flights, default=-1))
            self._lose(reversed(lost))
        self.arm(now)
        return mask_of(through)

    @property
    def unanswered(self) -> int:
        """How many frames an acknowledgement may speak of: in flight, or given up."""
        return len(self.flights) + len(self._given_up)

    def wait(self, until_us: int) -> None:
        """Send what is queued at that time."""
        self.not_before_us = self.wait_us = until_us

    def tick(self, now: int) -> None:
        """Do what is due; what is queued may go out after it."""
        if self.wait_us <= now:
            self.wait_us = NEVER
        if self.lost_us <= now:
            self.time_out(now)

    def time_out(self, now: int) -> None:
        """Nothing was acknowledged for a whole timeout: everything in flight counts as lost."""
        for job in self.jobs.values():
            self.part(job)
        if self.flights:
            self._threshold = max(self._window_min, self.window / 2)
            self.window = float(self._window_min)
            self._timeout.back_off()
            self.recover = max(self.flights)
            self._lose(list(self.flights))
            self._timeouts += 1
            for job in self.jobs.values():
                self._vouch_again(job)
        self.arm(now)

    def _vouch_again(self, job: Job) -> None:
        """Perhaps the neighbour can make nothing of the data, because it forgot what vouches for them.

        That it had acknowledged them does not help: it may have begun the contact anew, and the announcement of that
        was lost. Then nothing else ever comes through, since it asks for what counts as on its way.
        """
        doubtful = job.vouched or (job.begun and self._timeouts >= _TIMEOUTS_DOUBTFUL)
        if doubtful and not any(each is job and kind in _VOUCHING for each, (kind, _) in self.retries):
            self.retries.extendleft((job, item) for item in reversed(job.vouchers))
            job.vouched = False

    def arm(self, now: int) -> None:
        """Something went out, or an acknowledgement came in."""
        self.lost_us = now + self._timeout.us if self.flights else NEVER

    def _land(self, serial: int) -> Flight:
        flight = self.flights.pop(serial)
        self.flying_bytes -= flight.size
        flight.job.flying -= 1
        return flight

    def vouched(self, copy: Copy, now: int) -> bool:
        """Whether the neighbour was sent the descriptor and the hash list of this message a moment ago."""
        return now - self._vouched.get(copy.handle, -NEVER) < _VOUCHED_US

    def _through(self, job: Job, now: int) -> bool:
        """Whether the neighbour has the whole message now."""
        if not job.spent or job.flying or (self.retries and any(entry[0] is job for entry in self.retries)):
            return False
        slot = job.copy.slot
        if self.jobs.get(slot) is not job:
            return False
        del self.jobs[slot]
        if not self.jobs:
            self._given_up.clear()  # Nobody waits for them any more.
        if not job.parcel and not job.copy.descriptor.small:
            self._vouched[job.copy.handle] = now
            if len(self._vouched) > _VOUCHED_MAX:
                self._vouched.popitem(last=False)
        if job.more:
            self.unfinished.append(job)
            return False
        return job.whole

    def _lose(self, serials: Iterator[int] | list[int]) -> None:
        given_up = self._given_up
        for serial in list(serials):
            flight = given_up[serial] = self._land(serial)
            self.retries.append((flight.job, flight.item))
        while len(given_up) > _GIVEN_UP_MAX:
            given_up.popitem(last=False)

    def _take_late(self, base: int, arrived: int) -> list[Flight]:
        """What counted as lost and was not, earliest first: it need not go out again, nor be waited for if it did."""
        given_up = self._given_up
        if arrived.bit_count() <= len(given_up):
            serials = [base + offset for offset in bits(arrived) if base + offset in given_up]
        else:
            serials = _named(given_up, base, arrived)
        if not serials:
            return []
        late = [given_up.pop(serial) for serial in serials]
        contents = {(flight.job, flight.item) for flight in late}
        self.retries = deque([entry for entry in self.retries if entry not in contents])
        again = [serial for serial, flight in self.flights.items() if (flight.job, flight.item) in contents]
        for serial in again:
            self._land(serial)
        return late

    def _grow(self, gained: int) -> None:
        if self.window < self._threshold:
            self.window += gained
        else:
            self.window += self._window_min * gained / (_DATAGRAMS_MIN * self.window)
        self.window = min(self.window, self._window_max)

    def _shrink(self, newest_lost: int, newest_out: int) -> None:
        """Once per round trip: losses among what was out at the last shrinking do not count again."""
        if newest_lost > self.recover:
            self.recover = newest_out
            self.window = self._threshold = max(self._window_min, self.window * _SHRINK)


def _named(serials: Iterable[int], base: int, arrived: int) -> list[int]:
    """Those of the serials that an acknowledgement names, ascending: bit i of `arrived` is serial base + i."""
    # By bytes: to shift a bitmap of 65,536 bits for every serial would take a hundred times as long.
    bitmap = arrived.to_bytes((arrived.bit_length() + 7) // 8, "little")
    nbits = 8 * len(bitmap)
    return sorted(
        serial
        for serial in serials
        if 0 <= (offset := serial - base) < nbits and bitmap[offset >> 3] >> (offset & 7) & 1
    )
