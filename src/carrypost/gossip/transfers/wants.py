"""The messages that this host wants, over all its links: the neighbours that offer them, and those that were asked.

The offers of one neighbour, and what has arrived of them, are in the inbox of its link (`gossip.transfers.inbox`).
Unverified data is bounded here per link, and in all: half-received messages, and the fragments of pieces that are not
whole. When a bound is reached the stalest data is dropped, and the link with the most data loses its own first. The
number of wants is bounded per link, and in all, too. Those that were requested in vain make room for others first.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from typing import TYPE_CHECKING, Final

from carrypost.gossip.holdings.memories import Quota
from carrypost.gossip.slots import mask_of
from carrypost.gossip.timers import REQUEST_AGAIN
from carrypost.gossip.transfers.inbox import Want
from carrypost.model import ids

if TYPE_CHECKING:
    from collections.abc import Sequence

    from carrypost.gossip.holdings.copies import Copy
    from carrypost.gossip.transfers.link import HostContext, Link
    from carrypost.gossip.wire.frames import OfferEntry
    from carrypost.model.ids import MessageId

CLOSED_MAX: Final = 4096
FRAGMENT_BYTES: Final = 128
"""Approximate bytes of a stored fragment beside its body."""
BLOCK_US: Final = 30_000_000
"""Time for which a message is not accepted from a neighbour that sent it wrong."""
SHARE_BLOCK_US: Final = 600_000_000
"""Time for which a message is not accepted from a neighbour that used up its share of the cache; or from any neighbour,
if there is no room to remember its delivery."""
PATIENCE_US: Final = 20_000_000
"""Time for which a neighbour that was asked for a message, and sends none of it, keeps others from being asked."""
LINK_SHARE: Final = 8
"""One link may fill one part in this many of the buffers for unverified data."""

_Buffer = tuple["Link", int, int]
"""Key of a buffered piece: link, handle and number of the piece."""


class Wants:
    """All wants of one host, over all its links."""

    def __init__(self, context: HostContext) -> None:
        self._outputs, self._limits = context.outputs, context.limits
        self._memories = context.holdings.cache.memories
        self._quota, self._closed_quota = Quota.of_offers(context.settings), Quota.of_offers(context.settings)
        self._in_vain: dict[tuple[Link, int], None] = {}
        """Wants that were requested in vain and are not requested any more, by link and handle, longest first."""
        self._sources: dict[MessageId, dict[Link, int]] = {}
        """Neighbours that offer a message, and the handle of each offer."""
        self._open: dict[Link, dict[int, Want]] = {}
        """Wants that have a descriptor and are not whole, by link; bounded by `partials_max`."""
        self._buffers: OrderedDict[_Buffer, int] = OrderedDict()
        """Bytes of the fragments by (link, handle, piece), stalest first; bounded by `fragment_buffer_bytes_max`."""
        self._buffer_bytes = 0
        self._stale: dict[Link, OrderedDict[_Buffer, None]] = {}
        """The keys of each link in `_buffers`, stalest first."""
        self._link_bytes: Counter[Link] = Counter()
        """Bytes of the fragments of each link."""
        self._blocked: dict[tuple[Link, MessageId], int] = {}
        """Messages that are not accepted from a neighbour, and the time until which they are not."""
        self._asked: dict[MessageId, int] = {}
        """Time of the last request for a message of which nothing has arrived since."""
        self.orphaned: dict[MessageId, None] = {}
        """Messages whose requested neighbour is not waited for any more."""

    def add(self, link: Link, entry: OfferEntry, now: int, *, whole: bool = False) -> Want | None:
        """Note that `link` offers a message that is not here; None if it may not be requested.

        `whole`: the message came with its offer, and the want ends with the step. It does not count against the limit
        of open wants: if it were refused while all of those wait behind it, neither would ever arrive.
        """
        limits = self._limits
        if entry.length > limits.message_bytes_max:
            self._outputs.refuse("message-size", link.peer, ids.shown(entry.message))
            return None
        if self._blocked and self.blocked(link, entry.message, now + 1):
            return None
        inbox, handle = link.inbox, entry.handle
        want = inbox.wants.get(handle)
        if want is not None and want.entry.message == entry.message:
            want.entry = entry
            return want
        if want is not None:
            self.drop(link, handle)
        if self.is_full(link) and not whole:
            self._outputs.refuse("offers-open", link.peer)
            return None
        sources = self._sources.get(entry.message)
        if sources is not None and link in sources:
            self.drop(link, sources[link])  # It goes by another handle now.
            sources = self._sources.get(entry.message)
        if self._in_vain and not self._quota.has_room(len(inbox.wants)):
            self.drop(*next(iter(self._in_vain)))
            sources = self._sources.get(entry.message)
        want = inbox.wants[handle] = Want(entry)
        self._quota.count += 1
        if sources is None:
            self._sources[entry.message] = {link: handle}
        else:
            sources[link] = handle
        return want

    def is_full(self, link: Link) -> bool:
        """Return True if no more messages may be requested from this neighbour for now."""
        count = len(link.inbox.wants)
        return count >= self._limits.offers_open_max or not (self._in_vain or self._quota.has_room(count))

    def give_up(self, link: Link, handle: int) -> None:
        """Note that a message was requested in vain: it is accepted should it come, while there is room for others."""
        self._in_vain[link, handle] = None

    def revive(self, link: Link, handle: int) -> None:
        """Note that a message that was given up is requested again."""
        self._in_vain.pop((link, handle), None)

    def whole_at(self, link: Link, message: MessageId) -> bool:
        """Return True if this neighbour offers all of the message."""
        handle = self._sources.get(message, {}).get(link)
        want = link.inbox.wants.get(handle) if handle is not None else None
        return want is not None and not want.entry.pieces

    def is_coming(self, message: MessageId) -> bool:
        """Return True if any neighbour was asked for pieces of this message, and may still send them."""
        return any(link.inbox.wants[handle].requested for link, handle in self.sources(message))

    def sources(self, message: MessageId) -> list[tuple[Link, int]]:
        """Return the links that offer this message, and their handles for it."""
        return list(self._sources.get(message, {}).items())

    def asked(self, message: MessageId, now: int) -> None:
        """Note that a neighbour was asked for a message."""
        self._asked.setdefault(message, now)

    def progressed(self, message: MessageId, now: int) -> None:
        """Note that a piece of a message arrived, so that others keep waiting for the rest."""
        if message in self._sources:
            self._asked[message] = now

    def adopt_orphans(self) -> None:
        """Have other neighbours asked for messages that were requested in vain."""
        orphaned, self.orphaned = self.orphaned, {}
        for link, handle in [source for message in orphaned for source in self.sources(message)]:
            link.inbox.fresh.append(handle)

    def requested_elsewhere(self, message: MessageId, link: Link, now: int) -> int:
        """Return the pieces of the message that other neighbours were asked for and may still send."""
        sources = self._sources.get(message)
        if not sources or (len(sources) == 1 and link in sources):
            return 0
        # A neighbour that offers everything and sends nothing would otherwise keep all messages
        # away from this host.
        if now - self._asked.get(message, now) >= PATIENCE_US:
            return 0
        asked = 0
        for other, handle in sources.items():
            if other is not link and (want := other.inbox.wants.get(handle)):
                asked |= want.requested
        return asked

    def alternatives(self, link: Link) -> list[Link]:
        """Return the other links that offer something that `link` offers."""
        sources = [source for want in link.inbox.wants.values() for source in self.sources(want.entry.message)]
        return list(dict.fromkeys(other for other, _ in sources if other is not link))

    def drop(self, link: Link, handle: int) -> None:
        """Give up a neighbour's offer; if it was requested, others may be asked instead."""
        want = link.inbox.wants.get(handle)
        if want is None:
            return
        self._close(link, want)
        message = want.entry.message
        sources = self._sources.get(message)
        if sources is not None:
            sources.pop(link, None)
            if not sources:
                del self._sources[message]
                self._asked.pop(message, None)
            elif want.requested:
                self.orphaned[message] = None

    def fulfil(self, copies: Sequence[Copy]) -> None:
        """Request these messages no more, because they are whole here. Neighbours that offered all of one have it."""
        known: dict[Link, list[int]] = {}
        for copy in copies:
            sources = self._sources.pop(copy.id, None)
            if sources is None:
                continue
            self._asked.pop(copy.id, None)
            for link, handle in sources.items():
                want = link.inbox.wants[handle]
                self._close(link, want)
                if not want.entry.pieces:
                    known.setdefault(link, []).append(copy.slot)
        for link, slots in known.items():
            link.learn(mask_of(slots))

    def _close(self, link: Link, want: Want) -> None:
        """End a want: drop its fragments, and acknowledge further frames of it without using them."""
        inbox, handle = link.inbox, want.entry.handle
        if self._buffers:
            for piece in list(want.fragments):
                self.free(link, handle, piece)
        if self._open and (opened := self._open.get(link)):
            opened.pop(handle, None)
        del inbox.wants[handle]
        self._quota.count -= 1
        self._in_vain.pop((link, handle), None)
        closed = inbox.closed
        if handle not in closed:
            if closed and (len(closed) >= CLOSED_MAX or not self._closed_quota.has_room(len(closed))):
                closed.popitem(last=False)
                self._closed_quota.count -= 1
            self._closed_quota.count += 1
        closed[handle] = want.entry
        if not inbox.wants:
            link.timers.cancel(REQUEST_AGAIN)

    def drop_link(self, link: Link) -> None:
        """End all wants of a contact that is over. Whole pieces stay in the cache, fragments are dropped."""
        self._memories.leave(link)
        for handle in list(link.inbox.wants):
            self.drop(link, handle)
        self._closed_quota.count -= len(link.inbox.closed)
        link.inbox.closed.clear()
        self._open.pop(link, None)
        self._blocked = {key: until for key, until in self._blocked.items() if key[0] is not link}

    def block_from(self, link: Link, handle: int, reason: str, until_us: int, *, blamed: bool = True) -> None:
        """Refuse this message from this neighbour for a while; `blamed`: the work for it is wasted.

        Others may still send it, since the fault may be the neighbour's. It may send it again later, since the fault
        may be a forger's that uses its address.
        """
        want = link.inbox.wants[handle]
        if not blamed:
            link.work.credit()
        self._outputs.refuse(reason, link.peer, want.descriptor.shown if want.descriptor else None)
        self.drop(link, handle)
        self._memories.note_room()  # Nothing is kept free for it any more.
        self._blocked[link, want.entry.message] = until_us
        if len(self._blocked) > self._limits.offers_open_max:
            del self._blocked[next(iter(self._blocked))]

    def blocked(self, link: Link, message: MessageId, now: int = 0) -> bool:
        """Return True if a message is blocked from this neighbour: now or, with 0, since the contact began."""
        return self._blocked.get((link, message), -1) >= now

    def forgive(self, link: Link, message: MessageId) -> None:
        """Accept a message from this neighbour again."""
        self._blocked.pop((link, message), None)

    def opened(self, link: Link, handle: int, want: Want) -> None:
        """Add a half-received message, and drop the stalest one of the fullest link if there are too many."""
        mine = self._open.setdefault(link, {})
        mine[handle] = want
        limit = self._limits.partials_max
        fullest = link
        # A share per link, not one common bound: a neighbour that opens hundreds of messages and
        # finishes none would otherwise evict the incomplete messages of all others.
        if len(mine) <= max(1, limit // LINK_SHARE):
            if len(self._open) == 1 or sum(map(len, self._open.values())) <= limit:
                return
            fullest = max(self._open, key=lambda each: len(self._open[each]))
        stale_handle, stale = next(iter(self._open[fullest].items()))
        self._outputs.refuse("partials", fullest.peer)
        del self._open[fullest][stale_handle]
        for piece in list(stale.fragments):
            self.free(fullest, stale_handle, piece)
        stale.clear()

    def charge(self, link: Link, handle: int, piece: int, nbytes: int) -> None:
        """Charge a fragment of a piece; drop the stalest pieces of this link, then of all links, to make room."""
        key = (link, handle, piece)
        nbytes += FRAGMENT_BYTES
        self._buffer_bytes += nbytes
        self._link_bytes[link] += nbytes
        self._buffers[key] = self._buffers.pop(key, 0) + nbytes
        mine = self._stale.setdefault(link, OrderedDict())
        mine[key] = mine.pop(key, None)
        limit = self._limits.fragment_buffer_bytes_max
        while self._link_bytes[link] > limit // LINK_SHARE and len(mine) > 1:
            self._discard(next(iter(mine)))
        while self._buffer_bytes > limit and len(self._buffers) > 1:
            self._discard(next(iter(self._buffers)))

    def _discard(self, key: _Buffer) -> None:
        self._outputs.refuse("fragment-buffer", key[0].peer)
        self.free(*key)

    def free(self, link: Link, handle: int, piece: int) -> dict[int, bytes] | None:
        """Remove and return the fragments of a piece."""
        key = (link, handle, piece)
        if nbytes := self._buffers.pop(key, 0):
            self._buffer_bytes -= nbytes
            self._link_bytes[link] -= nbytes
            del self._stale[link][key]
            if not self._stale[link]:
                del self._stale[link], self._link_bytes[link]
        want = link.inbox.wants.get(handle)
        return want.fragments.pop(piece, None) if want else None
