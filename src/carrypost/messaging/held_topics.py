"""Topics that this node holds: others subscribe to them, and publish to them, at this node (EMMA §3.1.2).

Subscribers (`HeldTopics`) are the enrolled nodes, with their deadlines and their selectors. A node has one enrolment at
a topic, and of all its items the one with the highest number counts: so repetitions do no harm, and an item that was
overtaken changes nothing. A node that left is remembered until its earlier items have expired. Rows keep all of it over
restarts. A topic has at most `limits.holder_subscribers_max`; nodes that left are dropped first. Selectors are
evaluated here, within bounds: beyond those a publication counts as matching, and the subscriber, which evaluates its
own selectors once more, skips it.

Publications (`Holder`). For each publication the holder makes one message to its subscribers, or several where they are
many: a notification with the list of recipients, the publisher's descriptor as its origin, and its payload, which the
store copies. The holder keeps nothing else: the carriers of notifications serve subscribers that are away.

A publication is acknowledged, and leaves, once its notifications are on disk; they leave this node no sooner. So a
crash leaves the publication, the notifications, or both, and `restore` sees which: nothing is lost or sent twice.
Programs of this node that subscribe have claims to the publication itself.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import msgspec

from carrypost.application.control_outbox import UnstoredItem
from carrypost.application.ledger import Marks, Table
from carrypost.errors import CarrypostError, InvalidDestinationException, JMSException
from carrypost.gossip.draft import Draft
from carrypost.gossip.interest.matcher import Matcher
from carrypost.gossip.layer import Part, Stored
from carrypost.log.events import Reason
from carrypost.messaging import control
from carrypost.messaging.control import FAILED, HANDED_OVER, Outcome
from carrypost.model import address
from carrypost.model.address import Kind
from carrypost.model.headers import ORIGIN_BYTES_MAX, Headers
from carrypost.model.ids import MessageId
from carrypost.model.pattern import DESTINATION, Entry
from carrypost.model.selector import Selector
from carrypost.model.times import NEVER

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from carrypost.gossip.holdings.copies import Copy
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
        self._accounts = control.Accounts()
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
        topic, units = self._newer(item, node), control.ITEM_UNITS + control.SELECTOR_UNITS * len(item.selector)
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
        if not known and not (self._accounts.pay(node, control.ITEM_UNITS, now) and self._has_room(topic, node)):
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


_NODES_BYTES_MAX = 4 * 1024
"""Bytes of the ids that one notification lists: with security off they are names, which may be long."""
_NODE_BYTES = 3
"""Largest overhead of an id beside its characters, in bytes."""
_AGAIN_US = 5_000_000
"""Delay before notifications that found no room, in the cache or on the disk, are published again."""
_TOPICS_MAX = 1_024


class Page(NamedTuple):
    """The recipients of one notification."""

    nodes: tuple[NodeId, ...]
    connected: bool = False
    """True if they are served only while there is a path to them."""


class Publication(msgspec.Struct, eq=False):
    """A publication until all its notifications are on disk."""

    copy: Copy
    destination: str
    """Destination of the notifications."""
    pages: list[Page]
    """Recipients of the notifications that have still to be published."""
    after_us: int = 0
    """Time before which they are not published."""
    unwritten: int = 0
    """Number of notifications that were published, and are not on disk yet."""


class Holder(Part):
    """The topics that one node holds, and their publications."""

    def __init__(self, context: MessagingContext) -> None:
        self._node, self._limits, self._outputs = context.node, context.limits, context.outputs
        self._holdings, self._journal, self._ledger = context.holdings, context.journal, context.ledger
        self._outbox = context.outbox
        self.enrolled = HeldTopics(context)
        self._open: dict[MessageId, Publication] = {}
        """Open publications; bounded by the cache, which has their copies."""
        self._notified = Marks(context.ledger, b"N")
        """Publications that others were notified of, and that stay for subscribers of this node."""

    # --- topics --------------------------------------------------------------------------------------------

    def declare(self, name: str) -> HeldTopic:
        """Hold a topic, unless it is held already."""
        known = self.enrolled.get(address.holder(name, self._node))
        if known is not None:
            return known
        if len(list(self.enrolled)) >= _TOPICS_MAX:
            raise JMSException(f"this node holds {_TOPICS_MAX} topics already: end some of them first")
        return self.enrolled.add(name)

    def end(self, destination: str) -> None:
        """Stop holding a topic: its subscribers get nothing further of it."""
        topic = self.enrolled.get(destination)
        if topic is None:
            raise InvalidDestinationException(
                f"this node holds no topic {address.name_of(destination) or destination!r}: declare it first"
            )
        self.enrolled.remove(topic)

    def restore(self, stored: Stored, now: int) -> None:  # noqa: ARG002 - `drafts` handles what is due
        """Resume publications whose subscribers were not all notified before a restart."""
        self._notified.read(stored, self._holdings.here)
        here = [copy for copy in self._holdings.known_copies() if copy.here]
        notified: dict[MessageId, set[NodeId]] = {}
        for copy in here:
            if copy.own and copy.descriptor.destination.startswith(f"{Kind.NOTICE}/"):
                notified.setdefault(copy.descriptor.original.id, set()).update(copy.descriptor.listed)
        for copy in here:
            if copy.id in self._notified:
                self._holdings.linger(copy)
            elif copy.whole and self.enrolled.get(copy.descriptor.destination):
                self._begin(copy, notified.get(copy.id, set()))

    # --- publications --------------------------------------------------------------------------------------

    def arrived(self, copy: Copy) -> bool:
        """Handle a publication; return True if subscriptions of this node may have it."""
        if self._holdings.is_confirmed(copy):
            return False
        if copy.id not in self._open and copy.id not in self._notified:
            self._begin(copy, ())
        return self.enrolled.get(copy.descriptor.destination) is not None

    def _begin(self, copy: Copy, notified: Iterable[NodeId]) -> None:
        """Determine the recipients of a publication, without those that were notified already."""
        descriptor = copy.descriptor
        topic = self.enrolled.get(descriptor.destination)
        pages: list[Page] = []
        if topic is None:
            self._report(copy, FAILED, "there is no such topic")
        elif descriptor.wire_bytes > ORIGIN_BYTES_MAX:
            self._report(copy, FAILED, f"it has more than {ORIGIN_BYTES_MAX} bytes beside its body")
        else:
            nodes = [each for each in self.enrolled.matching(topic, descriptor) if each not in notified]
            for connected in (False, True):
                some = [each for each in nodes if topic.subscribers[each].durable is not connected]
                pages += [Page(page, connected) for page in _pages(some, self._limits.recipients_max)]
            self._report(copy, HANDED_OVER)
        self._open[copy.id] = Publication(copy, address.notice_of(descriptor.destination), pages)
        self.due_us = 0

    def _report(self, copy: Copy, kind: int, reason: str = "") -> None:
        """Inform the author of the progress of a publication, if it asked for that."""
        descriptor, headers = copy.descriptor, copy.descriptor.headers
        if headers is not None and headers.receipt:
            until_us = self._holdings.own_time(descriptor.ends_us)
            self._outbox.add(descriptor.node, UnstoredItem(Outcome(copy.id, kind, reason)), until_us=until_us)

    def drafts(self, now: int) -> list[Draft]:
        """Return the notifications to publish; release publications that are complete."""
        drafts: list[Draft] = []
        for publication in list(self._open.values()):
            if not publication.copy.here:
                del self._open[publication.copy.id]  # It expired, or gave way; then it comes again.
            elif publication.pages and publication.after_us <= now:
                publication.after_us = now + _AGAIN_US  # `published` says which of them found room.
                drafts += [self._draft(publication, page, now) for page in publication.pages]
            elif not publication.pages and not publication.unwritten:
                self._acknowledge(publication)
        self._look_ahead()
        return drafts

    def _look_ahead(self) -> None:
        self.due_us = min([each.after_us for each in self._open.values() if each.pages], default=NEVER)

    def _draft(self, publication: Publication, page: Page, now: int) -> Draft:
        descriptor = publication.copy.descriptor
        date_us = self._holdings.date_of(now)
        lifetime_us = None if descriptor.deadline_us is None else max(1, descriptor.deadline_us - date_us)
        return Draft(
            publication.destination, b"", lifetime_us=lifetime_us, persistent=descriptor.persistent,
            priority=descriptor.priority, recipients=page.nodes, withheld=True, payload_of=descriptor.id,
            headers=Headers(
                origin=descriptor.wire, delivery_time_us=descriptor.due_us or None, connected=page.connected
            ),
        )  # fmt: skip

    def published(self, copies: Sequence[Copy]) -> None:
        """Record the notifications among messages of this node that were admitted."""
        for copy in copies if self._open else ():
            descriptor = copy.descriptor
            publication = self._open.get(descriptor.original.id)
            if publication is not None and publication.destination == descriptor.destination:
                publication.pages = [page for page in publication.pages if page.nodes[0] not in descriptor.listed]
                publication.unwritten += 1
                self._look_ahead()
                self._journal.when_durable(self._written, publication)

    def _written(self, publication: Publication) -> None:
        publication.unwritten -= 1
        self.due_us = 0

    def left(self, copies: Sequence[Copy], reason: Reason) -> None:  # noqa: ARG002 - whatever the reason is
        """Forget publications that are gone."""
        for copy in copies:
            self._notified.discard(copy.id)

    def _acknowledge(self, publication: Publication) -> None:
        """Acknowledge a publication: its carriers may forget it, and this node never accepts it again."""
        copy, holdings = publication.copy, self._holdings
        del self._open[copy.id]
        holdings.acknowledge(copy.id, copy.descriptor.ends_us)
        if holdings.is_given(copy) and not holdings.is_confirmed(copy):  # A subscription of this node waits for it.
            self._notified.add(copy.id)
            holdings.linger(copy)
            return
        holdings.mark_claimed(copy)
        holdings.confirm((copy,))
        self._ledger.confirmed(copy)
        holdings.discard(copy, Reason.PURGED, done=True)


def _pages(nodes: Sequence[NodeId], most: int) -> list[tuple[NodeId, ...]]:
    """Divide a list of recipients among several messages."""
    pages: list[list[NodeId]] = []
    nbytes = _NODES_BYTES_MAX
    for node in nodes:
        size = len(node.encode()) + _NODE_BYTES
        if nbytes + size > _NODES_BYTES_MAX or len(pages[-1]) >= most:
            pages.append([])
            nbytes = 0
        pages[-1].append(node)
        nbytes += size
    return [tuple(page) for page in pages]
