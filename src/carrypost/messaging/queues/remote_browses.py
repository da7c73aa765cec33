"""Browsing queues of other nodes: the manager is asked for a snapshot, and its messages are awaited.

The answer contains ids, in order; the messages arrive like those that any node carries. Messages that are here are
reported up to the first missing one; after a while the rest is reported without those that are missing.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from carrypost.application.control_outbox import UnstoredItem
from carrypost.errors import RemoteError
from carrypost.gossip.composite import Part
from carrypost.log.events import Browsed
from carrypost.messaging import control
from carrypost.messaging.admission import ANSWER_US, BROWSES_MAX, SNAPSHOT_MAX
from carrypost.model import address
from carrypost.model.ids import MessageId
from carrypost.model.times import NEVER
from carrypost.security.sealing import SECRET_BYTES

if TYPE_CHECKING:
    from carrypost.gossip.holdings.copies import Copy
    from carrypost.messaging.context import MessagingContext
    from carrypost.messaging.queues.receiver import Receiver
    from carrypost.model.descriptor import Descriptor
    from carrypost.model.ids import NodeId

_PATIENCE_US = 10_000_000
"""Time that a snapshot waits for missing messages after the last one arrived."""


class RemoteBrowse:
    """One browse of another node's queue."""

    __slots__ = ("destination", "due_us", "manager", "messages", "number", "reported", "secrets", "taken_us", "total")

    def __init__(self, number: int, destination: str, manager: NodeId, due_us: int) -> None:
        self.number, self.destination, self.manager, self.due_us = number, destination, manager, due_us
        self.messages: dict[int, MessageId] = {}
        """Ids by place, as far as they are known."""
        self.secrets: dict[MessageId, bytes] = {}
        """Secrets of messages that are sealed, as far as they are known."""
        self.taken_us = 0
        """Time at which the manager took the snapshot; 0 before its answer."""
        self.reported = 0
        """Number of messages that were reported, or are not awaited any more."""
        self.total = 0
        """Number of messages in the snapshot, once it is known."""


class RemoteBrowses(Part):
    """Browses of other nodes' queues by the programs of one node."""

    def __init__(self, context: MessagingContext, receiver: Receiver) -> None:
        self._get, self._emit = context.holdings.cache.get, context.outputs.emit
        self._receiver, self._outbox, self._keyring = receiver, context.outbox, context.keyring
        self._open: dict[int, RemoteBrowse] = {}
        self._number = 0

    def open(self, destination: str, manager: NodeId, selector: str | None, now: int) -> int:
        """Ask a manager; return the number under which its answer is reported."""
        found = address.address(destination)
        assert found is not None  # A program named it, and it was found to be a queue.
        if len(self._open) >= BROWSES_MAX:
            self._give_up(next(iter(self._open.values())))
        # From the clock, so that a late answer to an earlier incarnation is not taken for one to this.
        self._number = max(self._number + 1, now)
        browse = RemoteBrowse(self._number, destination, manager, now + ANSWER_US)
        self._open[browse.number] = browse
        self._receiver.begin_browse(destination)
        asked = control.Browse(found.name, browse.number, selector or "", self._keyring.public)
        self._outbox.add(manager, UnstoredItem(asked), until_us=browse.due_us)
        self.due_us = min(self.due_us, browse.due_us)
        return browse.number

    def handle_snapshot(self, item: control.Snapshot, node: NodeId, now: int) -> None:
        """Handle a part of an answer."""
        browse = self._open.get(item.number)
        if browse is None or browse.manager != node or browse.taken_us not in (0, item.taken_us):
            return
        browse.taken_us = item.taken_us
        # A manager may claim any total; all up to it is looked for at each step.
        browse.total = min(item.total, SNAPSHOT_MAX)
        for place, message in enumerate(item.messages, item.first):
            if place < browse.total:
                browse.messages[place] = MessageId(message)  # If it is none, no copy has it.
        secrets = self._keyring.unwrap_secrets(item.secrets)
        for at, message in enumerate(item.messages if secrets else ()):
            browse.secrets[MessageId(message)] = secrets[at * SECRET_BYTES : (at + 1) * SECRET_BYTES]
        self._wait(browse, now)
        self._emit_next(browse)

    def arrived(self, copy: Copy) -> None:
        """Handle a message of another node's queue."""
        for browse in list(self._open.values()):
            if browse.taken_us and browse.messages.get(browse.reported) == copy.id:
                self._emit_next(browse)

    def _wait(self, browse: RemoteBrowse, now: int) -> None:
        browse.due_us = now + _PATIENCE_US
        self.due_us = min(self.due_us, browse.due_us)

    def _emit_next(self, browse: RemoteBrowse) -> None:
        """Report messages that are here, up to the first missing one."""
        found: list[Descriptor] = []
        while browse.reported < browse.total and (descriptor := self._descriptor(browse, browse.reported)) is not None:
            found.append(descriptor)
            browse.reported += 1
        complete = browse.reported >= browse.total
        if found or complete:
            self._emit(Browsed(browse.number, tuple(found), browse.taken_us, complete))
        if complete:
            self._close(browse)

    def _descriptor(self, browse: RemoteBrowse, place: int) -> Descriptor | None:
        message = browse.messages.get(place)
        copy = None if message is None else self._get(message)
        whole = copy is not None and copy.whole and address.addressee(copy.descriptor.destination) == browse.manager
        if not whole or copy is None:
            return None
        if copy.descriptor.is_sealed and copy.opened is None:
            with suppress(RemoteError):  # Then it is left out.
                self._keyring.open(copy, browse.secrets.get(copy.id, b""))
            return copy.opened
        return copy.readable

    def _close(self, browse: RemoteBrowse) -> None:
        del self._open[browse.number]
        self._receiver.end_browse(browse.destination)

    def expire(self, now: int) -> None:
        """Stop waiting for missing messages."""
        for browse in [each for each in self._open.values() if each.due_us <= now]:
            self._give_up(browse)
        self.due_us = min([each.due_us for each in self._open.values()], default=NEVER)

    def _give_up(self, browse: RemoteBrowse) -> None:
        """Report the messages that are here, without the missing ones."""
        places = range(browse.reported, browse.total)
        here = tuple([found for place in places if (found := self._descriptor(browse, place)) is not None])
        self._emit(Browsed(browse.number, here, browse.taken_us, complete=True))
        self._close(browse)
