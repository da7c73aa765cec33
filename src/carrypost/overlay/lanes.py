"""Lanes: events of producers that wait in a seat for their turn, and the room for them.

The events of one producer have a lane in each seat of their channel. A lane is bounded in events and bytes, and so are
all lanes of a broker together, in which a message that waits for several seats counts once. Where there is no room,
later events give way to earlier ones of their lane: otherwise a lane could fill up with events that wait for one that
finds no place. A lane always holds one event. What is dropped is asked for again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from carrypost.model.times import NEVER

if TYPE_CHECKING:
    from carrypost.config import Limits
    from carrypost.gossip.holdings.copies import Copy
    from carrypost.model.ids import MessageId
    from carrypost.overlay.legs import Legs

ASK_US, ASK_US_MAX = 1_000_000, 30_000_000
"""Shortest and longest time after which a producer is asked for what is missing."""
LANES = 16
"""Full lanes that a broker has room for."""


class Lane(msgspec.Struct, eq=False):
    """Events of one producer that wait, and what is done about those that are missing."""

    events: dict[int, Copy] = {}
    """By number; those that were processed stay until that is durable."""
    nbytes: int = 0
    """Bytes of their payloads."""
    last: int = 0
    """Number of the producer's last event, as far as this broker heard of it."""
    since_us: int = NEVER
    """Time since which something is missing."""
    ask_us: int = NEVER
    """Time at which the producer is asked."""
    delay_us: int = ASK_US


class Room:
    """Room for the events in the lanes of one broker."""

    def __init__(self, legs: Legs, limits: Limits) -> None:
        self._legs = legs
        self._events_max, self._bytes_max = limits.lane_events_max, limits.lane_bytes_max
        self._held: dict[MessageId, int] = {}
        """Messages that wait, and the number of lanes that they wait in; bounded by the lanes."""
        self.bytes = 0
        """Payloads of these."""

    def keep(self, lane: Lane, number: int, copy: Copy) -> bool:
        """Keep an event in its lane, if later ones can give way to it. Returns False if there is no room."""
        while lane.events and not self._fits(lane, copy):
            if (last := max(lane.events)) < number:
                return False
            self.release(lane, last)
        lane.events[number] = copy
        lane.nbytes += copy.descriptor.length
        if copy.id not in self._held:
            self.bytes += copy.descriptor.length
        self._held[copy.id] = self._held.get(copy.id, 0) + 1
        self._legs.hold(copy)
        return True

    def _fits(self, lane: Lane, copy: Copy) -> bool:
        nbytes = copy.descriptor.length
        in_all = self.bytes + (0 if copy.id in self._held else nbytes)
        fits = len(lane.events) < self._events_max and lane.nbytes + nbytes <= self._bytes_max
        return fits and in_all <= LANES * self._bytes_max

    def release(self, lane: Lane, number: int) -> None:
        """Let an event go that was processed, or is not needed."""
        self._legs.release(self.remove(lane, number))

    def release_upto(self, lane: Lane, cursor: int) -> None:
        """Let all events go up to this one."""
        for number in [number for number in lane.events if number <= cursor]:
            self.release(lane, number)

    def remove(self, lane: Lane, number: int) -> Copy:
        """Forget an event whose message is gone. Returns its copy."""
        copy = lane.events.pop(number)
        lane.nbytes -= copy.descriptor.length
        self._held[copy.id] -= 1
        if not self._held[copy.id]:
            del self._held[copy.id]
            self.bytes -= copy.descriptor.length
        return copy

    def clear(self, lane: Lane) -> None:
        """Let all events of a lane go."""
        for number in list(lane.events):
            self.release(lane, number)
