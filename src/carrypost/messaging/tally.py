"""Counts of the messages that nodes consumed from one queue, for programs that place a queue at the busiest node.

A queue counts `NODES_MAX` nodes at most, whatever number of keys an attacker has. Beyond that a newcomer replaces the
node that consumed least, and continues its count, as in the space-saving algorithm. So a node that consumes more than
one in `NODES_MAX` messages is always among them, and no count is too low.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Final

import msgspec

from carrypost.model.headers import DESTINATION_MAX
from carrypost.model.ids import NodeId
from carrypost.model.times import TIME_US_MAX

if TYPE_CHECKING:
    from collections.abc import Iterable

NODES_MAX: Final = 64
"""Nodes that one queue counts for."""
TOLD_MAX: Final = 16
"""Number of nodes whose counts are advertised."""
Counted = tuple[
    Annotated[NodeId, msgspec.Meta(min_length=1, max_length=DESTINATION_MAX)],
    Annotated[int, msgspec.Meta(ge=0, le=TIME_US_MAX)],
]
"""A node, and the number of messages that it consumed."""
Counts = Annotated[tuple[Counted, ...], msgspec.Meta(max_length=TOLD_MAX)]


class Tally:
    """The nodes that consumed most from a queue."""

    __slots__ = ("_counts",)

    def __init__(self) -> None:
        self._counts: dict[NodeId, int] = {}

    def add(self, node: NodeId) -> None:
        """Count one more message."""
        counts = self._counts
        known = counts.get(node, 0)
        if not known and len(counts) >= NODES_MAX:
            known = counts.pop(min(counts, key=counts.__getitem__))
        counts[node] = known + 1

    def restore(self, counts: Iterable[tuple[NodeId, int]]) -> None:
        """Continue from the counts that were advertised before a restart."""
        self._counts |= dict(counts)

    def most(self) -> tuple[tuple[NodeId, int], ...]:
        """Return the nodes that consumed most, at most `TOLD_MAX`, with their counts; the busiest first."""
        return tuple(sorted(self._counts.items(), key=lambda each: (-each[1], each[0]))[:TOLD_MAX])
