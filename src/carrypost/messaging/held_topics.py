"""Subscribers of the topics that this node holds: the enrolled nodes, their deadlines and their selectors.

A node has one enrolment at a topic, and of all its items the one with the highest number counts: so repetitions do no
harm, and an item that was overtaken changes nothing. A node that left is remembered until its earlier items have
expired. Rows keep all of it over restarts. A topic has at most `limits.holder_subscribers_max`; nodes that left are
dropped first.

Selectors are evaluated here, within bounds: beyond those a publication counts as matching, and the subscriber, which
evaluates its own selectors once more, skips it (EMMA §3.1.2).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from carrypost.application.tables import Table
from carrypost.errors import CarrypostError
from carrypost.gossip.composite import Part, Stored
from carrypost.gossip.interest.matcher import Matcher
from carrypost.messaging import admission
from carrypost.model import address
from carrypost.model.pattern import DESTINATION, Entry
from carrypost.model.selector import Selector
from carrypost.model.times import NEVER

if TYPE_CHECKING:
    from collections.abc import Iterator

    from carrypost.messaging.context import MessagingContext
    from carrypost.messaging.control import Enrol, Leave
    from carrypost.model.descriptor import Descriptor
    from carrypost.model.ids import NodeId


_MET_US = 30_000_000
"""Time that a subscriber served only while there is a path to it has to be reachable, after it enrolled or after this
node started."""


class EnrolledRow(msgspec.Struct, frozen=True, array_like=True):
    """The last item of a node about its subscription; fields may be appended with a default."""

    number: int
    deadline_us: int
    """Time at which it ends; of a node that left, the time at which that may be forgotten."""
    durable: bool = True
    selector: str = ""
    left: bool = False


class HeldTopic:
    """One topic that this node holds, and its subscribers."""

    __slots__ = ("_matcher", "_selectors", "destination", "name", "subscribers")

    def __init__(self, name: str, destination: str) -> None:
        self.name, self.destination = name, destination
        self.subscribers: dict[NodeId, EnrolledRow] = {}
        """Subscribers by node, including nodes that left."""
        self._selectors: dict[str, int] = {}
        """Place of each selector in the matcher."""
        self._matcher: Matcher | None = None

    def changed(self) -> None:
        """Note that selectors came or went."""
        self._matcher = None

    def matching(self, descriptor: Descriptor, context: MessagingContext) -> list[NodeId]:
        """Return the subscribers that get a publication, in the order of their ids."""
        if self._matcher is None:
            texts = sorted({each.selector for each in self.subscribers.values() if not each.left})
            self._selectors = {text: place for place, text in enumerate(texts)}
            pattern = ((DESTINATION, address.exactly(self.destination)),)
            self._matcher = Matcher([Entry(pattern, text or None) for text in texts], context.limits)
        found = set(self._matcher.which_of(descriptor))
        return sorted([
            node for node, each in self.subscribers.items() if not each.left and self._selectors[each.selector] in found
        ])  # fmt: skip


class TopicRow(msgspec.Struct, frozen=True, array_like=True):
    """A topic that this node holds; fields may be appended with a default."""

    name: str


class HeldTopics(Part):
    """The topics that one node holds, and their subscribers."""

    def __init__(self, context: MessagingContext) -> None:
        self._node, self._outputs, self._context = context.node, context.outputs, context
        self._most = context.limits.holder_subscribers_max
        self._table, self._held = Table(context.ledger, b"H", EnrolledRow), Table(context.ledger, b"T", TopicRow)
        self._accounts = admission.Accounts()
        self._topics: dict[str, HeldTopic] = {}
        self._in_reach, self._island = context.host_context.links.in_reach, context.settings.island
        self.connected: dict[tuple[str, NodeId], int] = {}
        """Topics and subscribers that are served only while there is a path, and the time by which there has to be one;
        0: there was."""

    def __iter__(self) -> Iterator[HeldTopic]:
        return iter(self._topics.values())

    def get(self, destination: str) -> HeldTopic | None:
        """Return the topic that publications with this destination are for."""
        return self._topics.get(destination)

    def add(self, name: str) -> HeldTopic:
        """Hold a topic."""
        self._held.put(name.encode(), TopicRow(name))
        return self._enter(name)

    def _enter(self, name: str) -> HeldTopic:
        destination = address.holder(name, self._node)
        made = self._topics[destination] = HeldTopic(name, destination)
        return made

    def remove(self, topic: HeldTopic) -> None:
        """Stop holding a topic."""
        del self._topics[topic.destination]
        self._held.delete(topic.name.encode())
        for node in list(topic.subscribers):
            self._forget(topic, node)

    def matching(self, topic: HeldTopic, descriptor: Descriptor) -> list[NodeId]:
        """Return the subscribers that get a publication, in the order of their ids."""
        return topic.matching(descriptor, self._context)

    # --- what nodes say ------------------------------------------------------------------------------------

    def enrol(self, item: Enrol, node: NodeId, now: int) -> None:
        """Enrol a node, or renew its enrolment; beyond the bounds it is refused, and counted."""
        topic, units = self._newer(item, node), admission.ITEM_UNITS + admission.SELECTOR_UNITS * len(item.selector)
        if topic is None or item.deadline_us <= now:
            return
        selector = _selector(item.selector)
        if not item.durable and not self._island:
            self._outputs.refuse("enrolments", node)
        elif selector is None:
            self._outputs.refuse("selector", node)
        elif not self._accounts.pay(node, units, now) or not self._has_room(topic, node):
            self._outputs.refuse("enrolments", node)
        else:
            self._put(topic, node, EnrolledRow(item.number, item.deadline_us, item.durable, selector))

    def leave(self, item: Leave, node: NodeId, until_us: int, now: int) -> None:
        """End the enrolment of a node; items that it sent before may arrive until `until_us`, and do not count."""
        topic = self._newer(item, node)
        if topic is None or until_us <= now:
            return
        known = node in topic.subscribers
        if not known and not (self._accounts.pay(node, admission.ITEM_UNITS, now) and self._has_room(topic, node)):
            self._outputs.refuse("enrolments", node)
        else:
            self._put(topic, node, EnrolledRow(item.number, until_us, left=True))

    def _newer(self, item: Enrol | Leave, node: NodeId) -> HeldTopic | None:
        """Return the topic of an item, unless the node sent a later one, or there is no such topic."""
        topic = self._topics.get(address.holder(item.topic, self._node))
        if topic is None or node == self._node:
            self._outputs.refuse("topic", node)
            return None
        known = topic.subscribers.get(node)
        return None if known is not None and known.number >= item.number else topic

    def _has_room(self, topic: HeldTopic, node: NodeId) -> bool:
        """Return True if one more may enrol; of nodes that left, the first to be forgotten makes room."""
        if node in topic.subscribers or len(topic.subscribers) < self._most:
            return True
        gone = [each for each, row in topic.subscribers.items() if row.left]
        if not gone:
            return False
        self._forget(topic, min(gone, key=lambda each: topic.subscribers[each].deadline_us))
        return True

    def _put(self, topic: HeldTopic, node: NodeId, row: EnrolledRow) -> None:
        topic.subscribers[node] = row
        topic.changed()
        self._table.put(_row_name(topic, node), row)
        self._watch(topic, node, row)

    def _watch(self, topic: HeldTopic, node: NodeId, row: EnrolledRow) -> None:
        self.connected.pop((topic.destination, node), None)
        self.due_us = min(self.due_us, row.deadline_us)
        if not row.durable and not row.left:
            until_us = self.connected[topic.destination, node] = self._context.holdings.now_us + _MET_US
            self.due_us = min(self.due_us, until_us)

    def _forget(self, topic: HeldTopic, node: NodeId) -> None:
        del topic.subscribers[node]
        self.connected.pop((topic.destination, node), None)
        topic.changed()
        self._table.delete(_row_name(topic, node))

    # --- time ----------------------------------------------------------------------------------------------

    def expire(self, now: int) -> None:
        """End enrolments whose leases are over."""
        for topic in self:
            for node in [each for each, row in topic.subscribers.items() if row.deadline_us <= now]:
                self._forget(topic, node)
        rows = [row.deadline_us for topic in self for row in topic.subscribers.values()]
        self.due_us = min(rows + [each for each in self.connected.values() if each > now], default=NEVER)

    def drop_unreachable(self, now: int) -> None:
        """Drop subscribers without a path that are served only while there is one."""
        for (destination, node), until_us in list(self.connected.items()):
            if node in self._in_reach:
                self.connected[destination, node] = 0
            elif until_us <= now:
                self._forget(self._topics[destination], node)

    def restore(self, stored: Stored, now: int) -> None:  # noqa: ARG002 - `expire` handles what fell due since
        """Restore the topics and their enrolments after a restart."""
        for _, held in self._held.read(stored):
            self._enter(held.name)
        for name, row in self._table.read(stored):
            found = address.address(name.decode())
            topic = None if found is None else self._topics.get(address.holder(found.name, self._node))
            if found is None or found.node is None or topic is None:
                self._table.delete(name)
                continue
            topic.subscribers[found.node] = row
            self._watch(topic, found.node, row)


def _row_name(topic: HeldTopic, node: NodeId) -> bytes:
    return address.holder(topic.name, node).encode()


def _selector(text: str) -> str | None:
    """Return a selector in its stored form, empty if it selects everything; None if it is invalid."""
    try:
        return text if Selector(text).weight else ""
    except CarrypostError:
        return None
