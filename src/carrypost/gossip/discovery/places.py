"""Places for neighbours, and the queue of nodes that wait for one."""

# The problem. A node that is found by an announcement has to learn that it is heard, and the list
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

from itertools import islice
from operator import attrgetter
from typing import TYPE_CHECKING

from carrypost.gossip.discovery.neighbour import LINKED, SILENT, SILENT_PERIODS
from carrypost.gossip.transfers.link import GIVER

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from carrypost.config import Settings
    from carrypost.gossip.discovery.neighbour import Neighbour
    from carrypost.gossip.transfers.host_context import HostContext

HEARD_BYTES = 6
"""Bytes of an entry of a heard-list."""
ANNOUNCE_BYTES = 192
"""Largest size of the rest of a datagram with an announcement, in bytes."""
ROTATING = 4
"""One place in this many rotates: with fewer, newcomers wait longer; with more, strangers displace more of those that
were there before them."""
STAY_PERIODS = 3
"""Number of the longest periods for which a rotating place is kept. By then it is known whether each side hears the
other (`neighbour.SILENT_PERIODS`), and if that was so at once, most of the time was left for messages."""
WAITING_MAX = 512
"""Number of nodes that may wait. With default settings each has had its turn within about three minutes."""
LAPSE_PERIODS = 2
"""Number of the longest periods without an announcement after which a node waits no more: mostly a forged address."""
_LOOK_US = 100_000
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
