"""The holder: topics of this node that others subscribe to, and publish to, at this node (EMMA §3.1.2).

For each publication the holder makes one message to its subscribers, or several where they are many: a notification
with the list of recipients, the publisher's descriptor as its origin, and its payload, which the store copies. The
holder keeps nothing else: the carriers of notifications serve subscribers that are away.

A publication is acknowledged, and leaves, once its notifications are on disk; they leave this node no sooner. So a
crash leaves the publication, the notifications, or both, and `restore` sees which: nothing is lost or sent twice.
Programs of this node that subscribe have claims to the publication itself.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import msgspec

from carrypost.application.control_outbox import UnstoredItem
from carrypost.application.tables import Marks
from carrypost.errors import InvalidDestinationException, JMSException
from carrypost.gossip.composite import Part, Stored
from carrypost.gossip.draft import Draft
from carrypost.log.events import Reason
from carrypost.messaging.control import FAILED, HANDED_OVER, Outcome
from carrypost.messaging.held_topics import HeldTopic, HeldTopics
from carrypost.model import address
from carrypost.model.address import Kind
from carrypost.model.headers import ORIGIN_BYTES_MAX, Headers
from carrypost.model.ids import MessageId
from carrypost.model.times import NEVER

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from carrypost.gossip.holdings.copies import Copy
    from carrypost.messaging.context import MessagingContext
    from carrypost.model.ids import NodeId

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
