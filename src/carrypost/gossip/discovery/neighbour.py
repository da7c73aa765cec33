"""One neighbour: its announcements with their stamps, whether the link works both ways, its interests, and its place.

A neighbour's link is usable by a small machine over what is heard (`NEIGHBOUR_TABLE`): when each side lists the other,
and has proven that it receives at its address. A node that is heard and does not hear this host is detected, recorded
and not used.

Stamps are values by which announcements of one node are recognized as a series that nobody else can continue. The hash
of each stamp is the stamp of the announcement before it. Stamps are made from the last to the first, and sent from the
first to the last. So a node that heard one stamp can check all later ones, and cannot make any.

`Places` has the places for neighbours, and the queue of nodes that wait for one.
"""

# Why stamps and no signatures. Announcements are not signed: a signature of 64 bytes and a check for each
# beacon of each neighbour would be most of the traffic and of the work of an idle node. A stamp has
# 8 bytes and takes one hash to check. It does not tell who the sender is, but that it is the one
# whose announcements were heard before.
#
# A series ends after `SERIES` announcements. The next one begins with a stamp that continues
# nothing, like that of a node that restarted: neighbours ask for a proof, once (`Neighbours._doubt`).

# Why there are places. A node that is found by an announcement has to learn that it is heard, and the list
# that says so has to fit into one datagram. So the number of places is limited. (Contacts that the
# driver asserts need no list, and take no place.) First come, first served lets a stranger with two
# hundred addresses take all of them for as long as it likes.
#
# The way chosen. When all places are taken, three quarters of them belong to nodes that have earned
# them: givers of messages first, then takers, then those that came first. The last quarter rotates:
# a node that has had its stay leaves when another's turn has come. Turns follow the order of
# waiting, and a node that lost its place waits again at the end of the queue; so announcing more
# often, or coming back at once, gains nothing.
#
# That quarter rotates whatever was exchanged. Strangers with many addresses can earn places, too: a
# message that is wanted here costs them a signature, an acknowledgement nothing at all (so it
# counts for less). And in an honest crowd larger than the list every node has earned one, and a
# latecomer would never be heard.

from __future__ import annotations

import enum
import functools
import hashlib
from itertools import islice
from operator import attrgetter
from typing import TYPE_CHECKING, Final, NamedTuple

from carrypost.gossip.timers import FORGET, PROVE
from carrypost.gossip.transfers.link import GIVER
from carrypost.gossip.wire.fields import TOKEN_BYTES
from carrypost.model.ids import NodeId
from carrypost.model.times import NEVER

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from random import Random

    from carrypost.config import Settings
    from carrypost.gossip.interest.index import View
    from carrypost.gossip.strategy.strategy import Contact
    from carrypost.gossip.transfers.link import HostContext, Link
    from carrypost.gossip.wire.frames import Announce


SERIES: Final = 256
"""Number of stamps in a series. A longer series takes more time to make, and a shorter one needs proofs more often."""
MISSED_MAX: Final = 32
"""Number of announcements that may be lost in a row before a proof is needed: checking takes a hash for each."""


# Remembered, because an emulation has all nodes that hear an announcement, and check it, in one process.
@functools.lru_cache(maxsize=1_024)
def stamp_before(stamp: bytes, steps: int = 1) -> bytes:
    """Return the stamp of the announcement that many places before the one that has this stamp."""
    for _ in range(steps):
        stamp = hashlib.sha256(stamp).digest()[:TOKEN_BYTES]
    return stamp


class Series(NamedTuple):
    """The last announcement that was heard of a node, which the next one has to continue."""

    node: NodeId
    incarnation: int
    counter: int
    stamp: bytes

    def goes_on(self, frame: Announce) -> bool:
        """Return True if the sender of an announcement made the last one, too."""
        return (
            frame.incarnation == self.incarnation
            and frame.node == self.node
            and follows(frame, self.counter, self.stamp)
        )


def follows(frame: Announce, counter: int, stamp: bytes) -> bool:
    """Return True if an announcement is in the same series as an earlier one with this number and stamp."""
    missed = frame.counter - counter
    return 0 < missed <= MISSED_MAX and stamp_before(frame.stamp, missed) == stamp


class Stamps:
    """The stamps of one host in one incarnation."""

    def __init__(self, rng: Random) -> None:
        self._rng = rng
        self._series: tuple[int, list[bytes]] = (-1, [])
        """The number of the current series, and its stamps."""

    def stamp(self, counter: int) -> bytes:
        """Return the stamp of the announcement with this number. Numbers only increase."""
        number, place = divmod(counter, SERIES)
        if number != self._series[0]:
            stamp, sha256 = self._rng.randbytes(TOKEN_BYTES), hashlib.sha256
            stamps = [stamp]
            for _ in range(SERIES - 1):  # Without a call of `stamp_before` for each, this takes half the time.
                stamp = sha256(stamp).digest()[:TOKEN_BYTES]
                stamps.append(stamp)
            self._series = number, stamps[::-1]
        return self._series[1][place]


SILENT_PERIODS: Final = 3
"""Number of its periods after which a neighbour that was not heard is gone."""
_EARLY: Final = 3
"""An announcement may come an eighth of its period too soon, and still end the period: periods vary by a tenth."""
_ANSWER_US: Final = 250_000
"""Time after which a token is returned again, if it is sent again."""
_PERIOD_US_MIN: Final = 50_000
_PERIOD_US_MAX: Final = 600_000_000


class NeighbourState(enum.Enum):
    """The state of a neighbour: determines what may be exchanged with it."""

    SILENT = "silent"
    HEARD = "heard"
    LINKED = "linked"


# To ask an enumeration for a member takes ten times as long as to look up a name, and these are asked for all the time.
SILENT: Final = NeighbourState.SILENT
HEARD: Final = NeighbourState.HEARD
LINKED: Final = NeighbourState.LINKED


class NeighbourInput(enum.Enum):
    """The inputs that change a neighbour's state."""

    LISTS_ME = "announcement that lists this host, or a request that names it"
    OMITS_ME = "announcement that does not list this host"
    SILENCE = "three silent periods, or the driver ends the contact"


NEIGHBOUR_TABLE: dict[tuple[NeighbourState, NeighbourInput], NeighbourState] = {
    (NeighbourState.SILENT, NeighbourInput.LISTS_ME): NeighbourState.LINKED,
    (NeighbourState.SILENT, NeighbourInput.OMITS_ME): NeighbourState.HEARD,
    (NeighbourState.SILENT, NeighbourInput.SILENCE): NeighbourState.SILENT,
    (NeighbourState.HEARD, NeighbourInput.LISTS_ME): NeighbourState.LINKED,
    (NeighbourState.HEARD, NeighbourInput.OMITS_ME): NeighbourState.HEARD,
    (NeighbourState.HEARD, NeighbourInput.SILENCE): NeighbourState.SILENT,
    (NeighbourState.LINKED, NeighbourInput.LISTS_ME): NeighbourState.LINKED,
    (NeighbourState.LINKED, NeighbourInput.OMITS_ME): NeighbourState.HEARD,
    (NeighbourState.LINKED, NeighbourInput.SILENCE): NeighbourState.SILENT,
}


class Neighbour:
    """One neighbour, as its announcements show it."""

    __slots__ = (
        "addressed_us", "announced_us", "asks", "challenges", "contact", "counted_us", "counter", "doubted_us",
        "driver_asserted", "first_us", "heard_us", "hears_me", "incarnation", "link", "linked_us", "one_way_reported",
        "period_us", "placed_us", "profile", "profile_asked_us", "proven", "stamp", "state", "token", "token_there",
        "view",
    )  # fmt: skip

    def __init__(self, link: Link, now: int) -> None:
        self.link = link
        self.contact: Contact | None = None
        """The contact while messages may be exchanged, else None."""
        self.incarnation = -1
        self.counter = -1
        self.period_us = _PERIOD_US_MIN
        self.placed_us = now
        """Time at which it got its place."""
        self.first_us = now
        """Time at which this host began to hear it, in this episode."""
        self.heard_us = now
        self.linked_us = now
        """Time at which the link became usable."""
        self.announced_us = -NEVER
        self.counted_us = -NEVER
        """Time at which its last period began; it may announce itself more often."""
        self.state = SILENT
        self.driver_asserted = False
        """True if the driver asserts the contact (`Host.link`); then lists and silence do not matter."""
        self.addressed_us = -NEVER
        """Time of the last announcement that went to it alone."""
        self.token = b""
        """The value that it has to return to prove that it receives at its address; empty: it was sent none."""
        self.token_there = b""
        """The last token that it sent, which proves this host's address to it."""
        self.asks = False
        """True if it sent a token that was not returned yet."""
        self.challenges = 0
        """Number of times that it was asked for a proof before it gave one."""
        self.hears_me = False
        """True if its last announcement shows that it hears this host."""
        self.proven = False
        """True if it returned the token."""
        self.stamp = b""
        """The stamp of its last announcement (`Stamps`)."""
        self.doubted_us = -NEVER
        """Time at which it was last asked for another proof."""
        self.one_way_reported = False
        self.profile = b""
        self.profile_asked_us = -NEVER
        self.view: View | None = None

    def alive(self, heard_us: int) -> None:
        """Note that it was last heard at this time."""
        self.heard_us = heard_us
        self.link.timers.arm(FORGET, self.silent_us)
        if self.contact is not None:
            self.contact.expect(self._overdue_us)

    def heard(self, now: int) -> None:
        """Note that it was heard, by any frame."""
        self.heard_us = now
        overdue_us, period_us = NEVER, self.period_us
        if not self.driver_asserted:
            overdue_us = now + period_us + (period_us >> 1)
            self.link.timers.arm(FORGET, now + SILENT_PERIODS * period_us)
        if self.contact is not None:
            self.contact.heard(now, overdue_us)

    def announced(self, frame: Announce, now: int) -> bool:
        """Note an announcement and its period; return True if the neighbour hears others than before."""
        self.counter = frame.counter
        self.announced_us = now
        self.stamp = frame.stamp
        self.asked(frame, now)
        before = self.link.heard
        if not frame.token and frame.heard != before:
            self.link.set_heard(frame.heard)
        period = now - self.counted_us >= self.period_us - (self.period_us >> _EARLY)
        self.period_us = min(_PERIOD_US_MAX, max(_PERIOD_US_MIN, frame.period_ms * 1000))
        self.alive(now)
        if period:
            self.counted_us = now
            if self.contact is not None:
                self.contact.count_period()
        return self.link.heard != before

    def proves(self, frame: Announce) -> bool:
        """Return True if the sender of an announcement received what was sent to its address."""
        return frame.proof != b"" and frame.proof == self.token

    def asked(self, frame: Announce, now: int) -> None:
        """Note the token of an announcement, if it has one. One that was just returned may be on its way still."""
        if frame.token:
            self.asks = frame.token != self.token_there or now - self.addressed_us >= _ANSWER_US
            self.token_there = frame.token

    def prove(self) -> None:
        """Note that it receives at its address."""
        self.proven = True
        self.link.trust()
        self.link.timers.cancel(PROVE)

    def rename(self) -> None:
        """Note that another node claims its address, and has to prove it."""
        self.proven, self.challenges = False, 0
        self.link.timers.cancel(PROVE)

    def continues(self, frame: Announce) -> bool:
        """Return True if the sender of an announcement made the last one, too."""
        return self.series.goes_on(frame)

    def resume(self, series: Series) -> None:
        """Take it for the node that has proven this address before, and was forgotten."""
        self.link.claim(series.node)
        _, self.incarnation, self.counter, self.stamp = series
        self.prove()

    @property
    def series(self) -> Series:
        """The series of its announcements, up to the last one."""
        return Series(self.link.node, self.incarnation, self.counter, self.stamp)

    def repeats(self, frame: Announce, prefix: bytes, now: int, *, listening: bool = False) -> bool:
        """Return True, and note it, if an announcement only repeats what is known, as most do. Then nothing is due.

        The fast path for what hosts hear most: a beacon from a neighbour over a link that works (`prefix` is this
        host's). Any difference from the last one takes the slow path; another heard-list only if `listening`.
        """
        contact, period_us, asserted = self.contact, frame.period_ms * 1000, self.driver_asserted
        period = now - self.counted_us >= self.period_us - (self.period_us >> _EARLY)
        if (
            frame.counter <= self.counter
            or frame.incarnation != self.incarnation
            or not self.period_us <= period_us <= _PERIOD_US_MAX  # Silence is expected later rather than sooner.
            or frame.profile != self.profile
            or contact is None
            or self.view is None
            or frame.begins
            or frame.token
            or frame.datagram_bytes != self.link.accepted_bytes
            or frame.node != self.link.node
            or prefix not in frame.heard
            or (listening and frame.heard != self.link.heard)
            or not (asserted or follows(frame, self.counter, self.stamp))
            or not contact.announced(NEVER if asserted else now + period_us + (period_us >> 1), period=period)
        ):
            return False
        self.link.set_heard(frame.heard)
        if period:
            self.counted_us = now
        self.counter = frame.counter
        self.stamp = frame.stamp
        self.period_us = period_us
        self.heard_us = self.announced_us = now
        if not asserted:
            self.link.timers.arm(FORGET, now + SILENT_PERIODS * period_us)
        return True

    @property
    def last(self) -> tuple[int, int]:
        """Incarnation and counter of its last announcement."""
        return self.incarnation, self.counter

    @property
    def silent_us(self) -> int:
        """Time at which three periods will have passed in silence."""
        return NEVER if self.driver_asserted else self.heard_us + SILENT_PERIODS * self.period_us

    @property
    def _overdue_us(self) -> int:
        """Time by which it should have been heard again."""
        return NEVER if self.driver_asserted else self.heard_us + self.period_us + (self.period_us >> 1)


HEARD_BYTES: Final = 6
"""Bytes of an entry of a heard-list."""
ANNOUNCE_BYTES: Final = 192
"""Largest size of the rest of a datagram with an announcement, in bytes."""
ROTATING: Final = 4
"""One place in this many rotates: with fewer, newcomers wait longer; with more, strangers displace more of those that
were there before them."""
STAY_PERIODS: Final = 3
"""Number of the longest periods for which a rotating place is kept. By then it is known whether each side hears the
other (`neighbour.SILENT_PERIODS`), and if that was so at once, most of the time was left for messages."""
WAITING_MAX: Final = 512
"""Number of nodes that may wait. With default settings each has had its turn within about three minutes."""
LAPSE_PERIODS: Final = 2
"""Number of the longest periods without an announcement after which a node waits no more: mostly a forged address."""
_LOOK_US: Final = 100_000
"""Time for which the list of neighbours that could leave is reused: strangers ask thousands of times a second."""


def places(settings: Settings) -> int:
    """Return the number of neighbours that an announcement can list as heard."""
    limits, room = settings.limits, settings.datagram_bytes - ANNOUNCE_BYTES
    return min(limits.heard_max, limits.neighbours_max, room // HEARD_BYTES)


class Places:
    """The places of one host."""

    def __init__(self, context: HostContext, neighbours: Mapping[str, Neighbour]) -> None:
        self.neighbours, self._limits = neighbours, context.limits
        self.count = places(context.settings)
        self._lasting = self.count - max(1, self.count // ROTATING)
        self._period_us = round(context.settings.announce_s_max * 1e6)
        self._line: dict[str, int] = {}
        """Waiting nodes, the longest waiting first, and the time at which each was last heard."""
        self._openings = 0
        """Number of neighbours that could leave, as last determined."""
        self._look_us = 0
        """Time at which that is determined again."""

    def waiting(self, now: int) -> int:
        """Return the number of nodes that wait for a place."""
        since_us = now - LAPSE_PERIODS * self._period_us
        return sum(heard_us >= since_us for heard_us in self._line.values())

    def room_for_asserted(self) -> bool:
        """Return True if one more contact that the driver asserts may be kept."""
        return len(self.neighbours) < self._limits.neighbours_max

    def ask(self, peer: str, now: int) -> Sequence[Neighbour] | None:
        """Return the neighbours that have to leave for a newcomer, one or none; None if its turn has not come."""
        free = self._free()
        if free and not self._line:
            return ()
        self._look(now)
        if peer not in self._line and len(self._line) >= WAITING_MAX:
            return None
        self._line[peer] = now
        if peer not in islice(self._line, free + self._openings):
            return None
        going = [] if free else self._expendable(now)[:1]
        if not free and not going:
            return None
        self._openings -= len(going)
        del self._line[peer]
        return going

    def listed(self, to: Neighbour | None) -> tuple[bytes, ...]:
        """Return the neighbours that an announcement lists, in a host that has more neighbours than places.

        A neighbour that the driver asserts needs no list, except to see that it was heard in what is sent to itself.
        """
        heard = [each for each in self.neighbours.values() if each.state is not SILENT]
        heard.sort(key=lambda each: (each is not to, each.driver_asserted))
        return tuple([each.link.prefix for each in heard[: self.count]])

    def clock_stepped(self, delta_us: int) -> None:
        """Shift all times after the clock was set forward."""
        self._line = {peer: heard_us + delta_us for peer, heard_us in self._line.items()}

    def _free(self) -> int:
        """Return the number of free places."""
        known, limits = self.neighbours, self._limits
        free = self.count - len(known)
        if free <= 0:
            asserted = sum(each.driver_asserted for each in known.values())
            free = max(0, min(free + asserted, limits.neighbours_max - len(known)))
        return free

    def _look(self, now: int) -> None:
        """Determine which nodes still wait, and how many neighbours could leave for them."""
        if now < self._look_us:
            return
        self._look_us = now + _LOOK_US
        since_us = now - LAPSE_PERIODS * self._period_us
        self._line = {peer: heard_us for peer, heard_us in self._line.items() if heard_us >= since_us}
        self._openings = len(self._expendable(now))

    def _expendable(self, now: int) -> list[Neighbour]:
        """Return the neighbours that could leave: those that seem to be gone, then those that have had their stay.

        Strangers may announce a long silence; that is believed only of nodes that gave a message.
        """
        links = [each for each in self.neighbours.values() if not each.driver_asserted]
        gone = [each for each in links if each.link.rank < GIVER and now - each.heard_us > self._patience_us(each)]
        # Sorting keeps the order of arrival among equals.
        rotating = sorted(links, key=attrgetter("link.rank"), reverse=True)[self._lasting :]
        stayed_us = now - STAY_PERIODS * self._period_us
        stayed = [each for each in rotating if each.placed_us <= stayed_us and each not in gone]
        return gone + sorted(stayed, key=attrgetter("placed_us"))

    def _patience_us(self, neighbour: Neighbour) -> int:
        return SILENT_PERIODS * self._period_us if neighbour.state is LINKED else self._period_us
