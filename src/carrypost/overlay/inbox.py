"""The inbox of the overlay: messages to `overlay/N` and `overlay/all`, whose items go to the parts that process them.

An item counts if its author may send it (`items.may_say`), and if the part that processes it finds the author in the
required role. Any other item is refused, and counted. A message that was read is acknowledged and dropped at the end of
the step. One whose payload is the state of a seat stays until that was read.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from carrypost.errors import RemoteError
from carrypost.events import PayloadWanted, Reason
from carrypost.gossip.wire.pieces import Blank
from carrypost.overlay.items import ModuleWanted, Pass, Replay, items_of, may_say

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from carrypost.gossip.holdings.copies import Copy
    from carrypost.gossip.transfers.host_context import HostContext
    from carrypost.model.ids import MessageId, NodeId
    from carrypost.overlay.legs import Legs
    from carrypost.overlay.topology import Topology

Reader = Callable[[bytes | Blank], bool]
"""Function that processes the payload of a message; returns False to refuse it. May raise `RemoteError`."""
CopyHandler = Callable[[Any, "Copy", int], bool | Reader | None]
"""Function that processes an item with its message and a time; returns False to refuse it, or a reader of the payload.
May raise `RemoteError`."""
ItemHandler = Callable[[Any, "NodeId", int], bool | None]
"""Function that processes an item by its author and a time, without its message; returns False to refuse it."""


_QUESTIONS = (Replay, ModuleWanted)
"""Items whose answers are much longer than they are."""
_STRANGERS_MAX, _STRANGER_US = 32, 250_000
"""Questions of brokers out of reach that are answered in a row, and the time after which one more is.

Any node can announce brokers that do not exist. Each of them may ask, and answers to them fill the cache.
"""


class _Eligible:
    """Nodes that may be brokers: those that are listed, or all."""

    def __init__(self, listed: Collection[str]) -> None:
        self._listed = frozenset(listed)

    def __contains__(self, node: object) -> bool:
        return not self._listed or node in self._listed


class Inbox:
    """The items that one node receives from other overlays."""

    def __init__(
        self,
        context: HostContext,
        topology: Topology,
        legs: Legs,
        copy_handlers: Mapping[type, CopyHandler],
        item_handlers: Mapping[type, ItemHandler],
    ) -> None:
        """Map kinds of items to functions that process them, except `Pass`, which `legs` processes."""
        self._holdings, self._outputs = context.holdings, context.outputs
        self._eligible = _Eligible(context.settings.overlay.brokers)
        self._topology, self._legs = topology, legs
        self._copy_handlers, self._item_handlers = copy_handlers, item_handlers
        self._read: list[Copy] = []
        """Messages that were processed, and can be dropped."""
        self._strangers_us = 0
        """Time at which as many questions of brokers out of reach are answered as at the start."""
        self._unread: dict[MessageId, Reader] = {}
        """Messages whose payloads are being read, and what reads them; bounded by the cache, which has the copies."""

    def receive(self, copy: Copy, *, to_all: bool) -> None:
        """Process the items of a message."""
        descriptor, author = copy.descriptor, copy.descriptor.node
        items, unread = items_of(descriptor)
        allowed = [
            item
            for item in items
            if may_say(item, author, to_all=to_all, eligible=self._eligible, known=self._topology.brokers)
        ]
        if unread or len(allowed) < len(items):
            refused = unread + len(items) - len(allowed)
            self._outputs.refuse("overlay", author, descriptor.shown, count=refused)
        passed = [item for item in allowed if isinstance(item, Pass)]
        for item in allowed:
            if not isinstance(item, Pass):
                self._guard(copy, partial(self._handle, item, copy))
        if len(passed) == 1 and len(items) == 1:
            self._legs.arrived(copy, passed[0])
        elif not to_all:
            if passed:  # A leg must have one item: otherwise it is unclear which item forwards the origin.
                self._outputs.refuse("overlay", author, descriptor.shown)
            if copy.id not in self._unread:
                self._finish(copy)

    def _handle(self, item: object, copy: Copy) -> bool | None:
        now = self._holdings.now_us
        if isinstance(item, _QUESTIONS) and not self._may_ask(copy.descriptor.node, now):
            return False
        if (handle := self._item_handlers.get(type(item))) is not None:
            return handle(item, copy.descriptor.node, now)
        answer = self._copy_handlers[type(item)](item, copy, now)
        if answer is None or isinstance(answer, bool):
            return answer
        self._unread[copy.id] = answer
        self._outputs.emit(PayloadWanted(copy.descriptor))
        return None

    def _may_ask(self, author: NodeId, now: int) -> bool:
        """Return True if a broker is answered: it can be reached, or few of those that cannot be asked lately."""
        if self._topology.can_reach(author):
            return True
        full_us = max(self._strangers_us, now) + _STRANGER_US
        if full_us > now + _STRANGERS_MAX * _STRANGER_US:
            return False
        self._strangers_us = full_us
        return True

    def handle_own(self, item: object, author: NodeId) -> None:
        """Process an item that this node sent to itself."""
        self._item_handlers[type(item)](item, author, self._holdings.now_us)

    def _guard(self, copy: Copy, act: Callable[[], bool | None]) -> None:
        """Process an item, and count its refusal, by reason."""
        author, shown = copy.descriptor.node, copy.descriptor.shown
        try:
            if act() is False:
                self._outputs.refuse("overlay", author, shown)
        except RemoteError as error:
            self._outputs.refuse(error.reason, author, shown)

    def _finish(self, copy: Copy) -> None:
        self._read.append(copy)
        self._holdings.acknowledge(copy.id, copy.descriptor.ends_us)

    def payload_read(self, copy: Copy, payload: bytes | Blank) -> None:
        """Process a payload that was requested here."""
        if (read := self._unread.pop(copy.id, None)) is not None:
            self._guard(copy, partial(read, payload))
            self._finish(copy)

    def left(self, copies: Sequence[Copy]) -> None:
        """Forget messages that are gone."""
        for copy in copies if self._unread else ():
            self._unread.pop(copy.id, None)

    def finish(self) -> None:
        """Drop messages that were read."""
        read, self._read = self._read, []
        for copy in read:
            if copy.here:
                self._holdings.discard(copy, Reason.PURGED, done=True)
