"""Progress of what a program sent: `Sent`, its handle of a message, and the listeners of asynchronous sends.

States rise, and never fall. A `Sent` is updated as long as its context is open; nothing is kept for one that no program
refers to any more (`Sends` refers to it weakly). The node knows the progress of a message in any case: `Context.sent`
finds it again, in another context or after a restart.

A completion listener is called when a message is stored or was not. `Completions` calls the listeners of a session one
at a time, in the order of the sends.
"""

# ruff: noqa: SLF001 - `Sends` changes what programs only see of a `Sent`

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Protocol
from weakref import WeakValueDictionary

from carrypost.errors import DeliveryTimeoutException, IllegalStateException, JMSException
from carrypost.gossip.draft import Draft
from carrypost.java_names import JavaNamed
from carrypost.jms.durations import Duration, seconds
from carrypost.jms.listener_calls import Caller, is_called_by
from carrypost.log.events import TIMEOUT, Receipt, SendState
from carrypost.messaging.commands import Followed
from carrypost.model.address import addressee, is_held
from carrypost.model.descriptor import Descriptor
from carrypost.model.ids import MessageId, NodeId
from carrypost.model.times import MICROSECONDS

_DRAFTED, _STORED, _DELIVERED = SendState.DRAFTED, SendState.STORED, SendState.DELIVERED
_ENDS = frozenset({SendState.EXPIRED, SendState.FAILED})
_EARLY_MAX = 1_024
_NON_PERSISTENT = "a NON_PERSISTENT message has no receipts: send it PERSISTENT"
_UNASKED = "a message to a topic has receipts only if they are requested: send(…, request_receipt=True)"


class Sent(JavaNamed):
    """A message that was sent."""

    __slots__ = (
        "__weakref__", "_acknowledged", "_changed", "_ended", "_found", "_handed_over", "_held", "_last", "_listed",
        "_name", "_reason", "_states", "_to_queue", "_unheard", "descriptor",
    )  # fmt: skip

    def __init__(
        self,
        descriptor: Descriptor | None,
        state: SendState = _DRAFTED,
        *,
        unheard: str = "",
        to_queue: bool = False,
        listed: bool = False,
        held: bool = False,
        found: Followed | None = None,
        name: str = "",
    ) -> None:
        self.descriptor = descriptor
        """Descriptor; None while the message waits for a commit, if its topic has an order, and if it was found by its
        id."""
        self._states = [state]
        self._unheard = unheard
        """Reason why no receipt of it will ever come; empty if one may."""
        self._to_queue, self._listed, self._held = to_queue, listed, held
        self._acknowledged: tuple[NodeId, ...] = ()
        """Recipients that have it, if it lists them; subscribers that do, if a node holds its topic."""
        self._found, self._name = found, name
        """Answer of the node, and the id, if it was found by that."""
        self._handed_over = False
        self._reason = ""
        """Why it failed."""
        self._last = False
        """True if nothing more will be heard."""
        self._ended = ""
        """Reason why nothing listens any more."""
        self._changed: asyncio.Future[None] | None = None

    # --- what is known -------------------------------------------------------------------------------------

    @property
    def state(self) -> SendState:
        """The progress of the message, as this node knows."""
        return self._states[-1]

    @property
    def message_id(self) -> str | None:
        """JMSMessageID, the same wherever the message goes; None while that waits for a commit."""
        return self._name or (None if self.descriptor is None else self.descriptor.id_text)

    @property
    def expiration(self) -> float | None:
        """The time at which it expires, in seconds since 1970; None if it does not."""
        known = self._found or self.descriptor
        deadline_us = None if known is None else known.deadline_us
        return None if deadline_us is None else deadline_us / MICROSECONDS

    @property
    def sealed(self) -> str | None:
        """The circle that it is sealed for, or ``letter`` if for nodes; else None, as before a commit."""
        return None if self.descriptor is None else self.descriptor.sealed

    @property
    def is_tracked(self) -> bool:
        """True if it will be heard of: PERSISTENT, and to a queue, to recipients, or with a receipt requested."""
        return not self._unheard

    def __repr__(self) -> str:
        return f"<Sent {self.message_id or 'without an id yet'}, {self.state.name}>"

    # --- what is heard of it -------------------------------------------------------------------------------

    async def delivered(self, timeout: Duration | None = None) -> SendState:
        """Wait until its receiver has it: that of a queue acknowledged it, or the first subscriber of a topic did.

        A message that was sent to recipients is delivered when all of them have it.

        Raises `DeliveryTimeoutException`, which has the `state`, when `timeout` is over, and when the message expired
        or its delivery timeout is over; `JMSException` if it was turned away; and `IllegalStateException` if nothing is
        ever heard of it, as it is NON_PERSISTENT or goes to a topic that was not asked for a receipt. A receipt that
        comes late counts: another call returns.
        """
        return await self._reach(lambda: self.state is _DELIVERED, timeout, "receipt")

    async def handed_over(self, timeout: Duration | None = None) -> SendState:
        """Wait until the manager of its queue, or the holder of its topic, has it; raises as `delivered`."""
        if not self._unheard and not (self._to_queue or self._held):
            raise IllegalStateException("a topic has no manager: use delivered(), which waits for the first delivery")
        return await self._reach(lambda: self._handed_over, timeout, "notice of its assignment to a receiver")

    async def carried(self, timeout: Duration | None = None) -> SendState:
        """Wait until a neighbour has a copy: the message travels on even if this node is switched off.

        This works for every message, also to a topic and without a receipt asked for, as long as its context is open. A
        message to a queue of this node is where it belongs at once. Raises `DeliveryTimeoutException` when `timeout` is
        over, or the message expired before any neighbour took a copy.
        """
        return await self._reach(
            lambda: self._handed_over or SendState.CARRIED in self._states or self.state is _DELIVERED,
            timeout, "acknowledgement from a neighbour", by_receipt=False,
        )  # fmt: skip

    async def acknowledgements(self) -> AsyncIterator[NodeId]:
        """Yield the recipients that have it, each as that is heard; ends when all have it.

        Of a message to a topic that a node holds, the subscribers: that ends when nothing more will be heard.

        Raises as `delivered` if the message expired, or its delivery timeout is over, before all had it. A later call
        begins with the first one.
        """
        if not self._unheard and not (self._listed or self._held):
            raise IllegalStateException("the message lists no recipients: use delivered()")
        at = 0
        while True:
            while at < len(self._acknowledged):
                yield self._acknowledged[at]
                at += 1
            if self.state is _DELIVERED and (self._last or not self._held):
                return
            if self._unheard:
                raise IllegalStateException(self._unheard)
            self._check_hope("receipts from all other recipients")
            await self._news(None)

    async def states(self) -> AsyncIterator[SendState]:
        """Iterate over the state, and every further one as it rises; ends when nothing more is to be heard."""
        at = len(self._states) - 1
        while True:
            while at < len(self._states):
                yield self._states[at]
                at += 1
            if self._last or self._ended or (self._unheard and self.state >= _STORED):
                return
            await self._news(None)

    async def _reach(
        self, reached: Callable[[], bool], timeout: Duration | None, what: str, *, by_receipt: bool = True
    ) -> SendState:
        limit_s = None if timeout is None else seconds(timeout, "a timeout")
        if by_receipt and self._unheard:
            raise IllegalStateException(self._unheard)
        until = None if limit_s is None else asyncio.get_running_loop().time() + limit_s
        while not reached():
            self._check_hope(what)
            if not await self._news(until):
                raise DeliveryTimeoutException(
                    f"no {what} within {limit_s:,g} s; last state {self.state.name}", state=self.state
                )
        return self.state

    def _check_hope(self, what: str) -> None:
        """Raise if waiting would be in vain."""
        state = self.state
        if state is SendState.FAILED and self._reason != TIMEOUT:
            raise JMSException(f"the message failed: {self._reason}", state.name)
        if state in _ENDS or self._last:
            raise DeliveryTimeoutException(f"no {what} in time; last state {state.name}", state.name, state)
        if self._ended:
            raise IllegalStateException(self._ended)
        if state is _DRAFTED:
            raise IllegalStateException("the message is sent with its transaction: commit first")

    async def _news(self, until: float | None) -> bool:
        """Wait until something changed; False when the time is over."""
        if self._changed is None:
            self._changed = asyncio.get_running_loop().create_future()
        try:
            async with asyncio.timeout_at(until):
                await asyncio.shield(self._changed)  # Others may wait for it as well.
        except TimeoutError:
            return False
        return True

    # --- updates by `Sends` --------------------------------------------------------------------------------

    def _rise(
        self,
        state: SendState,
        reason: str = "",
        *,
        handed_over: bool = False,
        last: bool = False,
        acknowledged: tuple[NodeId, ...] = (),
    ) -> None:
        """Raise the state at least to this one; `last`: nothing more will be heard."""
        if len(acknowledged) > len(self._acknowledged):
            self._acknowledged = acknowledged
        if state > self.state:
            self._states.append(state)
            self._reason = reason
        self._handed_over = self._handed_over or handed_over
        self._last = self._last or last
        self._wake()

    def _end(self, reason: str) -> None:
        """Note that no further news of the message will come."""
        self._ended = reason
        self._wake()

    def _wake(self) -> None:
        changed, self._changed = self._changed, None
        if changed is not None and not changed.done():
            changed.set_result(None)


class Sends:
    """The messages of one session with a `Sent` that may still be updated."""

    def __init__(self, node: NodeId) -> None:
        self._node = node
        self._sends: WeakValueDictionary[MessageId, Sent] = WeakValueDictionary()
        self._expected = 0
        """Units of work whose messages have no ids here yet."""
        self._early: dict[MessageId, Receipt] = {}
        """Receipts meanwhile of messages that are not known here, the oldest first."""

    def __enter__(self) -> None:
        """Keep receipts of unknown messages while the block lasts, in which a message becomes known."""
        self._expected += 1

    def __exit__(self, *_: object) -> None:
        self._expected -= 1
        if not self._expected:
            self._early.clear()

    def track(self, draft: Draft, descriptor: Descriptor | None, state: SendState = _DRAFTED) -> Sent:
        """Return the `Sent` of a message that was sent, or waits for a commit."""
        held = is_held(draft.destination)
        to = None if held else addressee(draft.destination)
        asked = to is not None or draft.receipt or bool(draft.recipients)
        unheard = _NON_PERSISTENT if not draft.persistent else "" if asked else _UNASKED
        sent = Sent(
            descriptor, state, unheard=unheard, to_queue=to is not None, listed=bool(draft.recipients), held=held
        )
        if to == self._node:
            sent._rise(state, handed_over=True)  # Its manager is here.
        self.follow(sent, descriptor)
        return sent

    def follow(self, sent: Sent, descriptor: Descriptor | None) -> None:
        """Tell a `Sent` what is heard of its message; None: there is none yet."""
        if descriptor is not None:
            self._sends[descriptor.id] = sent
            self._pop_early(descriptor.id)

    def _pop_early(self, message: MessageId) -> None:
        if (early := self._early.pop(message, None)) is not None:
            self.update(early)

    def committed(self, sent: Sent, descriptor: Descriptor | None) -> None:
        """Note that the transaction of a message is on disk; without a descriptor the message expired before."""
        if descriptor is None:
            sent._rise(SendState.EXPIRED, last=True)
        else:
            sent.descriptor = descriptor
            sent._rise(_STORED)

    def failed(self, sent: Sent, reason: str) -> None:
        """Note that a message was not sent, for this reason."""
        sent._rise(SendState.FAILED, reason, last=True)

    def find(self, message: MessageId | None, found: Followed | None, name: str) -> Sent | None:
        """Return the `Sent` of a message of this context, or another one for what was sent elsewhere or before.

        None if neither this context nor the node knows such a message; `found` is what the node knows.
        """
        if found is None:
            return None if message is None else self._sends.get(message)
        held = is_held(found.destination)
        to_queue = addressee(found.destination) is not None and not held
        sent = Sent(None, _STORED, to_queue=to_queue, listed=found.listed, held=held, found=found, name=name)
        sent = self._sends.setdefault(found.message, sent)
        self._pop_early(found.message)
        return sent

    def update(self, receipt: Receipt) -> None:
        """Note what was heard of a message."""
        sent = self._sends.get(receipt.message)
        if sent is not None:
            sent._rise(
                receipt.state, receipt.reason, handed_over=receipt.handed_over, last=receipt.last,
                acknowledged=receipt.acknowledged,
            )  # fmt: skip
        elif self._expected:
            self._early[receipt.message] = receipt
            if len(self._early) > _EARLY_MAX:
                del self._early[next(iter(self._early))]

    @property
    def awaited(self) -> list[MessageId]:
        """The messages of which more may be heard."""
        return [message for message, sent in self._sends.items() if not sent._last]

    def end_one(self, message: MessageId, reason: str) -> None:
        """Hear of nothing more about one message."""
        sent = self._sends.pop(message, None)
        if sent is not None:
            sent._end(reason)

    def end(self, reason: str) -> None:
        """Hear of nothing more, as the session is over."""
        for sent in list(self._sends.values()):
            sent._end(reason)
        self._sends.clear()


_log = logging.getLogger("carrypost.jms")


class CompletionListener(Protocol):
    """A listener for the completion of sends. Both methods may be async."""

    def on_completion(self, message: object) -> Awaitable[None] | None:
        """Handle a message that is stored on this node."""

    def on_exception(self, message: object, exception: JMSException) -> Awaitable[None] | None:
        """Handle a message that was not sent."""


class Completions:
    """The sends of one session whose listeners were not called yet."""

    def __init__(self, caller: Caller) -> None:
        self._caller = caller
        self._waiting: deque[tuple[asyncio.Future[None], object, CompletionListener]] = deque()
        self._task: asyncio.Task[None] | None = None

    def follow(self, done: asyncio.Future[None], message: object, listener: CompletionListener) -> None:
        """Add a send."""
        self._waiting.append((done, message, listener))
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._run(), name="carrypost completions")

    async def done(self) -> None:
        """Wait until all listeners were called."""
        if self._task is not None:
            await asyncio.wait({self._task})

    def abandon(self) -> None:
        """Cut off the running listener, and call no other."""
        self._waiting.clear()
        if self._task is not None:
            self._task.cancel()

    def check_not_inside(self, what: str) -> None:
        """Raise if this is called by a completion listener: it would wait for itself."""
        if is_called_by(self):
            raise IllegalStateException(f"a completion listener cannot {what}: it would wait for itself")

    async def _run(self) -> None:
        while self._waiting:
            done, message, listener = self._waiting.popleft()
            await asyncio.wait({done})
            error = done.exception()
            if error is None:
                failed, _ = await self._caller.called(self, listener.on_completion, message)
            else:
                failed, _ = await self._caller.called(self, listener.on_exception, message, error)
            if failed is not None:
                _log.error("a completion listener failed", exc_info=failed)
