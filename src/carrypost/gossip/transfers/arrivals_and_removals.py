"""Messages that arrive or leave: handed to the layers, journalled, reported, and forgotten in all bitsets.

`Arrivals` has messages that became whole. Those of one step with one neighbour are reported together. Events come in
the order in which things happened, so where room had to be made, earlier arrivals are reported first, then the
evictions, then the message they made room for.

`Removals` has copies that leave the cache: they are reported, journalled, and forgotten in all bitsets before their
slots are reused. `sweep` does this for everything that was removed since the last call, and runs after anything that
may remove copies.

`strike` strikes off recipients that are done with a message, and drops the copy once none is left. Every node with a
copy of such a message drops it and never wants it again, whether the message was its own or carried for others. The
word of a node counts only for messages that it is a recipient of (`model.descriptor_values`).
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from itertools import repeat
from operator import attrgetter
from typing import TYPE_CHECKING, Final, NamedTuple

from carrypost.gossip.holdings.cache import ORDER
from carrypost.gossip.holdings.copies import Copy
from carrypost.gossip.layer import Layer, Layers
from carrypost.gossip.transfers.accounts import MESSAGE
from carrypost.log.events import Reason
from carrypost.model.descriptor_values import is_for

if TYPE_CHECKING:
    from collections.abc import Iterable

    from carrypost.gossip.transfers.link import HostContext, Link
    from carrypost.log.events import Reception
    from carrypost.model.ids import MessageId, NodeId


class Removals:
    """The removal of copies from one host's holdings."""

    __slots__ = ("_cache", "_holdings", "_layers", "_links", "_outputs")

    def __init__(self, context: HostContext, layers: Layers) -> None:
        self._holdings = context.holdings
        self._cache = context.holdings.cache
        self._outputs = context.outputs
        self._links = context.links
        self._layers = layers

    def expire(self, now: int) -> bool:
        """Drop every copy whose deadline has passed; return True if there was any."""
        gone = self._cache.expire(now)
        if gone:
            self._leave(gone, Reason.EXPIRED)
        if self._cache.changed:
            self.sweep()
        return bool(gone)

    def sweep(self) -> None:
        """Report and journal the copies removed since the last sweep, and make all links forget the freed slots."""
        removed = self._cache.pop_removed()
        if removed:
            by_reason: dict[Reason, list[Copy]] = {}
            for copy, reason in removed:
                by_reason.setdefault(reason, []).append(copy)
            for reason, copies in by_reason.items():
                self._leave(copies, reason)
        # The order matters: a slot may be reused as soon as it is released, and a link that still
        # believed something of it would believe it of another message.
        released = self._holdings.pop_released()
        if released:
            for link in self._links:
                link.forget_slots(released)

    def _leave(self, copies: list[Copy], reason: Reason) -> None:
        expired = reason is Reason.EXPIRED
        # What still waited when it died was received and will never be delivered: that is more than being dropped.
        if waited := [copy.descriptor for copy in copies if expired and copy.pins & ORDER]:
            self._outputs.drop(waited, reason, undelivered=True)
        if dropped := [copy.descriptor for copy in copies if not (expired and copy.pins & ORDER)]:
            self._outputs.drop(dropped, reason)
        for layer in self._layers.having[Layer.left]:
            layer.left(copies, reason)
        self._holdings.clear(copies, expired=expired)
        # A burst may be in flight to several neighbours. Sending the rest would read a payload that
        # is gone.
        for outbox in [link.outbox for link in self._links if link.outbox.jobs]:
            for copy in copies:
                outbox.cancel(copy.slot)


_HERE: Final = attrgetter("here")
_FRESH_MAX: Final = 8
"""If more than this arrive in one step it is a burst, which is offered: the neighbours of its sender may get it,
too."""


class Arrival(NamedTuple):
    """One message that became whole here."""

    copy: Copy
    giver: Link | None
    """None: it was published here."""
    serial: int | None
    """Serial of the giver's unasked Parcel; None: it was requested."""


class News:
    """The arrivals of one step."""

    __slots__ = ("fresh", "grown", "unasked", "whole")

    def __init__(self, fresh: Sequence[Arrival], *, whole: bool, grown: bool, unasked: bool) -> None:
        self.fresh = fresh
        """The messages that became whole, if they are few."""
        self.whole = whole
        """True if messages became whole."""
        self.grown = grown
        """True if other messages got another piece."""
        self.unasked = unasked
        """True if some of them were not requested."""


class Arrivals:
    """The messages that one host received."""

    def __init__(self, context: HostContext, layers: Layers, departures: Removals, *, every: bool = False) -> None:
        """`every`: all messages of a step are reported one by one, and not only a few."""
        self._holdings, self._cache = context.holdings, context.holdings.cache
        self._outputs = context.outputs
        self._layers = layers
        self._removals = departures
        self._fresh_max = sys.maxsize if every else _FRESH_MAX
        self._count = 0
        """Number of messages that became whole."""
        self._fresh: list[Arrival] = []
        self._grown = self._unasked = self.news = False
        """True if something arrived since the last call of `pop_news`."""

    def pop_news(self) -> News:
        """Return what arrived since the last call."""
        few = self._count <= self._fresh_max
        fresh = self._fresh if few else ()
        news = News(fresh, whole=self._count > 0, grown=self._grown, unasked=self._unasked)
        self._count, self._fresh = 0, []
        self._grown = self._unasked = self.news = False
        return news

    def piece(self, copy: Copy) -> None:
        """Journal another piece of a message that is not whole yet."""
        self._holdings.keep((copy,))
        self._grown = self.news = True

    def whole(
        self,
        copies: Sequence[Copy],
        receptions: Sequence[Reception],
        link: Link,
        serials: Sequence[int | None] | None = None,
    ) -> None:
        """Handle messages whose last pieces arrived: all of them are wanted here, or none is.

        `serials`: of unasked Parcels, None for requested ones; without it all were requested.
        """
        if self._cache.changed:
            self._outputs.report()
            self._removals.sweep()
        self._outputs.receive(link.node, link.path, receptions)
        self.news = True
        self._count += len(copies)
        if serials is not None:
            self._unasked = True
        if self._count <= self._fresh_max:
            self._fresh += map(Arrival, copies, repeat(link), serials or repeat(None))
        # Layers may hold a message back (causal order), or release others that waited for it. So
        # the messages delivered are not always those that arrived.
        delivered = self._layers.receive(copies) if copies[0].interesting else copies
        # One that was turned away at once, because too many wait for others, led to nothing.
        link.work.credit(MESSAGE * sum(map(_HERE, copies)))
        self._holdings.keep(copies)
        if delivered is not copies:
            arrived = set(copies)
            held_back = [copy for copy in delivered if copy not in arrived]
            self._holdings.keep(held_back)


def strike(context: HostContext, messages: Iterable[MessageId], node: NodeId, until_us: int) -> None:
    """Strike this node off these messages, as it asked for under its signature, until `until_us`.

    Messages without any recipient left are dropped at once if they are here, and refused when they come. Unknown
    messages are remembered with the node. Messages of which the node is no recipient are counted, and stay.
    """
    holdings = context.holdings
    cache, now = holdings.cache, holdings.date_us
    if until_us <= now:
        return
    here: list[Copy] = []
    gone: list[Copy] = []
    unknown: list[MessageId] = []
    others = 0
    for message in dict.fromkeys(messages):  # One may be named twice.
        copy = cache.get(message)
        if copy is None:
            unknown.append(message)
        # Without this check any node could purge other nodes' messages from all caches by
        # acknowledging them.
        elif not is_for(copy.descriptor, node):
            others += 1
        elif holdings.strike(copy, node):
            if copy.here and copy.descriptor.listed and (copy.pins or copy in holdings.lingering):
                holdings.linger(copy)  # Another subscription of this host has still to get it.
            else:
                (here if copy.here else gone).append(copy)
    cache.mark_done(gone)
    if here:
        cache.throw_out(here, Reason.PURGED)
    if unknown:
        holdings.purged.add(unknown, node, until_us, now)
    if others:
        context.outputs.refuse("purge-authority", node, count=others)
