"""Detours: events that a home of producers also passes on to the broker that a seat moves to (OVERLAY §2.4, step 3).

The source of a relocation asks the homes of producers (`Detour`), unless the destination has seats of the channel, and
so gets its events already. A home passes on events to the destination from the next one on, and answers with the
numbers of the last events that it had passed on before (`Detoured`). The same question gets the same answer, so that a
repetition changes nothing. After a restart the answer may have higher numbers. That does no harm: the source then
processes more events, and its state says which.

A detour ends when the source says so, or after the longest time that a relocation takes. From then on the destination's
roster counts. If there is no room for another one, detours are dropped whose destinations have seats, by their rosters:
they get all events anyway. Otherwise, after many consumers moved at once, none could move for long.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from carrypost.model.ids import NodeId, node_prefix
from carrypost.overlay.items import CURSORS_MAX, Detour, Detoured
from carrypost.overlay.relocation import DESTINATION_STAYS, DestinationState, HandoffId

if TYPE_CHECKING:
    from collections.abc import Sequence

    from carrypost.gossip.transfers.host_context import HostContext
    from carrypost.overlay.topology import Topology

    Tail = Sequence[tuple[NodeId, int]]


class _Answer(NamedTuple):
    """A detour, and its answer."""

    channel: str
    to: NodeId
    item: Detoured
    until_us: int


class Detours:
    """Detours of the events that one home of producers passes on."""

    def __init__(self, context: HostContext, topology: Topology) -> None:
        self._topology = topology
        self._life_us = DESTINATION_STAYS[DestinationState.EXPECTING].us(context.settings.overlay)
        self._most = context.limits.handoffs_max
        self._most_of_one = max(round(self._most * context.limits.share_author), 1)
        self._answers: dict[HandoffId, _Answer] = {}

    def asked(self, item: Detour, author: NodeId, last: Tail, now: int) -> list[Detoured] | None:
        """Begin or end a detour; return the answer, if there is one, None if the question does not count.

        `last`: producers of the channel that are attached here, and the numbers of their last events.
        """
        self._answers = {h: answer for h, answer in self._answers.items() if answer.until_us > now}
        if item.h.source != author or not self._has_seats(author, item.channel):
            return None
        if item.to == author:
            self._answers.pop(item.h, None)
            return []
        if (answer := self._answers.get(item.h)) is None:
            if not self._has_room(author):
                self._answers = {
                    h: each for h, each in self._answers.items() if not self._has_seats(each.to, each.channel)
                }
                if not self._has_room(author):
                    return None
            answered = Detoured(item.h, tuple(last[:CURSORS_MAX]))
            answer = _Answer(item.channel, NodeId(item.to), answered, now + self._life_us)
            self._answers[item.h] = answer
        return [answer.item]

    def _has_room(self, author: NodeId) -> bool:
        of_one = sum(h.source == author for h in self._answers)
        return len(self._answers) < self._most and of_one < self._most_of_one

    def _has_seats(self, broker: NodeId, channel: str) -> bool:
        served = self._topology.rosters.serving(channel).get(node_prefix(broker))
        return served is not None and served.seats > 0

    def of(self, channel: str, now: int) -> set[bytes]:
        """Return the brokers that get events of a channel by detours, by four bytes each."""
        return {
            node_prefix(each.to) for each in self._answers.values() if each.channel == channel and each.until_us > now
        }
