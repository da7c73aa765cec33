"""Recipients that are struck off a message: they have it, and it need not be carried to them any more.

The list of recipients is the author's, signed, and never changes. The struck-off ones are local knowledge: a bitset of
places in the list, and a row in the store, for each message that has any. Both stay until the message's deadline,
whatever becomes of its copy. So a struck-off recipient is not listed again when the message leaves and returns, nor
after a restart.

Only messages that list recipients have such a bitset. A message for a single node, by its destination, is dropped as
soon as that node is done with it, and only the message itself is remembered.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import msgspec

from carrypost.gossip.wire.pieces import from_bitmap, to_bitmap
from carrypost.log.journal import STRUCK
from carrypost.model.descriptor_values import recipients

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from carrypost.gossip.holdings.copies import Copy
    from carrypost.gossip.holdings.memories import Purged
    from carrypost.gossip.outputs import Journal
    from carrypost.model.descriptor import Descriptor
    from carrypost.model.ids import MessageId, NodeId

ABSENT_MAX = 65_536
"""Number of messages with struck-off recipients that are not known otherwise: the latest ones, some 20 MB."""
_SWEEP_US = 60_000_000
"""Shortest time between two searches for outdated entries."""


class Struck(NamedTuple):
    """The struck-off recipients of one list, and the time until which they matter."""

    places: int
    """Bitset of places in the list."""
    ends_us: int
    """The message's deadline, or `NEVER`."""


class _Row(msgspec.Struct, frozen=True, array_like=True):
    """A `Struck` in the store; fields may be appended with a default."""

    places: bytes
    ends_us: int


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(_Row).decode


class Recipients:
    """The remaining recipients of each message that one host knows, or knew."""

    __slots__ = ("_alone", "_journal", "_known", "_node", "_purged", "_sweep_at", "_sweep_us", "struck")

    def __init__(
        self, node: NodeId, journal: Journal, purged: Purged, known: Callable[[MessageId], Copy | None]
    ) -> None:
        self._node, self._alone, self._journal = node, (node,), journal
        self._purged, self._known = purged, known
        self.struck: dict[MessageId, Struck] = {}
        """Struck-off recipients by message, the latest last. Checked for every descriptor: empty while there are
        none."""
        self._sweep_us = 0
        self._sweep_at = ABSENT_MAX
        """Number of entries that causes a sweep, whatever the time is."""

    def left(self, descriptor: Descriptor) -> list[NodeId]:
        """Return the recipients of a message that are not struck off, in the order of its list."""
        found = self.struck.get(descriptor.id)
        nodes = recipients(descriptor)
        return list(nodes) if found is None else [node for at, node in enumerate(nodes) if not found.places >> at & 1]

    def lists_this_host(self, descriptor: Descriptor) -> bool:
        """Return True if this host is one of the recipients that a message lists."""
        return self._node in descriptor.listed

    def is_for_this_host_alone(self, descriptor: Descriptor) -> bool:
        """Return True if this host is the only recipient left."""
        nodes = recipients(descriptor)
        if self._node not in nodes:
            return False
        found = self.struck.get(descriptor.id) if self.struck else None
        if found is None:
            return nodes == self._alone
        return found.places & _all(nodes) == _all(nodes) & ~(1 << nodes.index(self._node))

    def is_direct(self, descriptor: Descriptor) -> bool:
        """Return True if a message went straight from this host, or to it: neighbours do not miss it.

        If some of them carry it, what this host acknowledges reaches them.
        """
        return descriptor.service.direct and (descriptor.node == self._node or self.is_for_this_host_alone(descriptor))

    def strike(self, descriptor: Descriptor, node: NodeId, now: int) -> bool:
        """Strike a recipient off a message; return True if none is left."""
        if not descriptor.listed:
            return True
        self._add(descriptor, 1 << descriptor.listed.index(node), now)
        return not _all(descriptor.listed) & ~self.struck[descriptor.id].places

    def enter(self, descriptor: Descriptor, now: int) -> None:
        """Strike off those recipients of an arriving message that reported before that they have it."""
        if self._purged.by_node:
            self._add(descriptor, self._named(descriptor, now), now)

    def is_over(self, descriptor: Descriptor, now: int) -> bool:
        """Return True if all recipients of a message that is not here reported that they have it."""
        nodes = recipients(descriptor)
        if not nodes:
            return False
        found = self.struck.get(descriptor.id)
        places = self._named(descriptor, now) | (0 if found is None else found.places)
        return places == _all(nodes)

    def _named(self, descriptor: Descriptor, now: int) -> int:
        """Return the places of recipients whose notices named a message before it was known."""
        names, message = self._purged.names, descriptor.id
        return sum(1 << at for at, node in enumerate(recipients(descriptor)) if names(message, node, now))

    def _add(self, descriptor: Descriptor, places: int, now: int) -> None:
        message = descriptor.id
        before = self.struck.get(message)
        after = places if before is None else before.places | places
        if after == (0 if before is None else before.places):
            return
        if now >= self._sweep_us or len(self.struck) >= self._sweep_at:
            self._sweep(now)
        self.struck.pop(message, None)
        self.struck[message] = Struck(after, descriptor.ends_us)
        self._keep(message)

    # --- the store -----------------------------------------------------------------------------------------

    def _keep(self, message: MessageId) -> None:
        places, ends_us = self.struck[message]
        self._journal.put((STRUCK, message, 0), _encode(_Row(to_bitmap(places), ends_us)))

    def restore(self, message: MessageId, row: bytes, now: int) -> None:
        """Restore the struck-off recipients of a message after a restart."""
        found = _decode(row)
        if found.ends_us <= now:
            self._journal.delete((STRUCK, message, 0))
        else:
            self.struck[message] = Struck(from_bitmap(found.places), found.ends_us)

    def _sweep(self, now: int) -> None:
        """Forget outdated entries, and the oldest of unknown messages beyond the bound."""
        struck = self.struck
        absent = [message for message in struck if self._known(message) is None]
        excess = set(absent[: max(0, len(absent) - ABSENT_MAX)])
        for message in [each for each in struck if each in excess or struck[each].ends_us <= now]:
            del struck[message]
            self._journal.delete((STRUCK, message, 0))
        self._sweep_us = now + _SWEEP_US
        self._sweep_at = 2 * len(struck) + ABSENT_MAX


def _all(nodes: Sequence[NodeId]) -> int:
    """Return a bitset of all places in a list."""
    return (1 << len(nodes)) - 1
