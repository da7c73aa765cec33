"""Messages that reached their addressees, as these report: they are not admitted any more.

A notice names messages by their ids, and an id does not tell the addressee of a message. So an id is remembered
together with the node whose notice it was, and counts against a message only once its descriptor shows that it is
addressed to that node: naming others' messages keeps none of them away. `gossip.transfers.purging` decides about known
messages; this module remembers those that were named and are not known.

Nothing breaks when an id is forgotten: the message travels on until its deadline, and its addressee remembers it. So
the bounds are what a phone can spare.
"""

from __future__ import annotations

from collections import OrderedDict
from itertools import islice
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from carrypost.model.ids import MessageId, NodeId

IDS_MAX = 65_536
"""Number of ids in all, about 10 MB; beyond it, all ids of the node heard from least recently are forgotten."""
NODE_IDS_MAX = 8_192
"""Number of ids of one node, its latest ones: eight nodes that purge without end fill the memory."""
_SWEEP_US = 60_000_000
"""Least time between two sweeps. Notices that end one by one would otherwise cause a scan of all ids each."""


class Purged:
    """The ids that notices named, by the node whose notices they were."""

    __slots__ = ("_count", "_sweep_us", "by_node")

    def __init__(self) -> None:
        self.by_node: OrderedDict[NodeId, dict[MessageId, int]] = OrderedDict()
        """Time until which each id counts, by node. Checked for every descriptor: empty as long as there was no
        notice."""
        self._count = 0
        self._sweep_us = 0

    def __len__(self) -> int:
        return self._count

    def add(self, messages: Iterable[MessageId], node: NodeId, until_us: int, now: int) -> None:
        """Remember that a notice of this node named these messages, until `until_us`."""
        if now >= self._sweep_us:
            self._sweep_us = now + _SWEEP_US
            self._sweep(now)
        ids = self.by_node.setdefault(node, {})
        self.by_node.move_to_end(node)
        before = len(ids)
        for message in messages:
            ids[message] = max(until_us, ids.pop(message, 0))
        for message in list(islice(ids, max(0, len(ids) - NODE_IDS_MAX))):
            del ids[message]
        self._count += len(ids) - before
        while self._count > IDS_MAX:
            self._count -= len(self.by_node.popitem(last=False)[1])

    def names(self, message: MessageId, node: NodeId, now: int) -> bool:
        """Return True if a notice of this node names the message."""
        ids = self.by_node.get(node)
        return ids is not None and ids.get(message, now) > now

    def _sweep(self, now: int) -> None:
        for node, ids in list(self.by_node.items()):
            for message in [each for each, until_us in ids.items() if until_us <= now]:
                del ids[message]
            if not ids:
                del self.by_node[node]
        self._count = sum(map(len, self.by_node.values()))
