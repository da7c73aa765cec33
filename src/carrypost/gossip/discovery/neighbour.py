"""One neighbour: its announcements, whether the link works both ways, and its interests.

Its link is usable by a small machine over what is heard (`NEIGHBOUR_TABLE`): when each side lists the other, and has
proven that it receives at its address. A node that is heard and does not hear this host is detected, recorded and not
used.
"""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING

from carrypost.gossip.discovery.stamps import Series
from carrypost.gossip.timers import FORGET, PROVE
from carrypost.model.times import NEVER

if TYPE_CHECKING:
    from carrypost.gossip.interest.index import View
    from carrypost.gossip.strategy.contacts import Contact
    from carrypost.gossip.transfers.link import Link
    from carrypost.gossip.wire.frames import Announce

SILENT_PERIODS = 3
"""Number of its periods after which a neighbour that was not heard is gone."""
_EARLY = 3
"""An announcement may come an eighth of its period too soon, and still end the period: periods vary by a tenth."""
_ANSWER_US = 250_000
"""Time after which a token is returned again, if it is sent again."""
_PERIOD_US_MIN = 50_000
_PERIOD_US_MAX = 600_000_000


class NeighbourState(enum.Enum):
    """The state of a neighbour: determines what may be exchanged with it."""

    SILENT = "silent"
    HEARD = "heard"
    LINKED = "linked"


# To ask an enumeration for a member takes ten times as long as to look up a name, and these are asked for all the time.
SILENT, HEARD, LINKED = NeighbourState.SILENT, NeighbourState.HEARD, NeighbourState.LINKED


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
        """The stamp of its last announcement (`discovery.stamps`)."""
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
            or not (asserted or self.continues(frame))
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
