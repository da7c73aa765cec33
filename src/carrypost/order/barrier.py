"""The causal barrier of a host: the direct predecessors of the next message that it publishes in a group."""

# The paper keeps one predecessor per source, and a delivered message replaces whatever it depends
# on. That leaves a hole where lifetimes differ. Take m1 -> m2 -> m3, with m2 the first to die. With
# the paper's rule m3 names m2 alone. A host that has neither m1 nor m2 delivers m3 after the death
# of m2, and m1 after that: a violation, although every barrier was obeyed. So a message replaces a
# predecessor only if it lives at least as long, or if the predecessor is dead; else both stay.
#
# In Δ-causal order the dead leave the barrier. In causal order they stay until a message replaces
# them, so that hosts that never had them learn that they are missing. They leave only where there
# are more entries than a message may have.
#
# The price is longer barriers: with lifetimes of 15 to 300 s, 11.2 entries on average instead of
# 6.7 with equal ones. The paper's hosts deliver only 83 % of such a history (docs/benchmarks.md,
# "Causal order").

from __future__ import annotations

from typing import TYPE_CHECKING

from carrypost.model.descriptor import predecessor

if TYPE_CHECKING:
    from collections.abc import Iterator

    from carrypost.model.descriptor import Barrier as Entries
    from carrypost.model.descriptor import Predecessor
    from carrypost.model.ids import NodeId

BarrierEntries = tuple[tuple[int, int], ...]
"""(tag, deadline) of the messages of one source, by tag; usually one."""


class Barrier:
    """The registry `c_barrier` of one group."""

    __slots__ = ("_entries_max", "_sources")

    def __init__(self, entries_max: int) -> None:
        self._entries_max = entries_max
        """Expired predecessors are forgotten if there are more entries than this."""
        self._sources: dict[NodeId, BarrierEntries] = {}

    def __iter__(self) -> Iterator[tuple[NodeId, int, int]]:
        """Yield source, tag and deadline of every entry, the last delivered first.

        A receiver that has to wait files the message under the first missing predecessor, and that one will probably
        come last.
        """
        for source in reversed(self._sources):
            for tag, deadline_us in reversed(self._sources[source]):
                yield source, tag, deadline_us

    def size(self, clock_us: int) -> int:
        """Return the number of entries of a message published at this time."""
        entries = sum(map(len, self._sources.values()))
        if entries <= self._entries_max:
            return entries
        ends_us = (deadline_us for standing in self._sources.values() for _, deadline_us in standing)
        return max(self._entries_max, sum(1 for deadline_us in ends_us if deadline_us > clock_us))

    def put(self, source: NodeId, tag: int, deadline_us: int, predecessors: Entries, clock_us: int) -> None:
        """Depend on a message that was delivered here, or published, instead of on its predecessors."""
        sources = self._sources
        for named, named_tag, told_us in predecessors:
            standing = sources.get(named)
            if standing is None:
                continue
            # A host waits for its predecessors no longer than the deadlines that it names: an author may lie.
            until_us = max(min(deadline_us, told_us), clock_us)
            if len(standing) == 1:
                own_tag, own_us = standing[0]
                if own_tag == named_tag and own_us <= until_us:
                    del sources[named]
                continue
            left = tuple([each for each in standing if each[0] != named_tag or each[1] > until_us])
            if left:
                sources[named] = left
            else:
                del sources[named]
        standing = sources.pop(source, None)
        if standing is None:
            sources[source] = ((tag, deadline_us),)
        else:
            # A host that delivered it delivers no earlier message of this source any more, for any barrier.
            longer = [each for each in standing if each[1] > deadline_us]
            sources[source] = (*longer, (tag, deadline_us))

    def expunge(self, clock_us: int) -> None:
        """Forget the dead (Code 10) as far as there are too many entries, those first that died first."""
        # What lives longer stands before: only the last of a source can be the first to die.
        dead = [(standing[-1][1], each) for each, standing in self._sources.items() if standing[-1][1] <= clock_us]
        if not dead:
            return
        if self._entries_max:
            entries = sum(map(len, self._sources.values()))
            dead = sorted(dead)[: max(0, entries - self._entries_max)]
        for _, source in dead:
            left = tuple([each for each in self._sources[source] if each[1] > clock_us])
            if left:
                self._sources[source] = left
            else:
                del self._sources[source]

    def entries(self, *, signed: bool) -> tuple[Predecessor, ...]:
        """Return the entries for the next message, in their wire form."""
        return tuple(predecessor(*each, signed=signed) for each in self)

    def load(self, entries: Entries) -> None:
        """Restore the barrier after a restart."""
        for source, tag, deadline_us in reversed(entries):
            self._sources[source] = (*self._sources.get(source, ()), (tag, deadline_us))
