"""`QueueBrowser`: shows the messages that wait in a queue, and takes none.

At the node that manages the queue it shows the queue itself. Elsewhere it asks that node for a snapshot, and shows its
messages as far as they arrive, with the snapshot's age.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Self

from carrypost.errors import IllegalStateException
from carrypost.java_names import JavaNamed
from carrypost.jms.durations import Duration, seconds
from carrypost.jms.mapping import from_browsed
from carrypost.model.times import MICROSECONDS

if TYPE_CHECKING:
    from carrypost.jms.destinations import Queue
    from carrypost.jms.messages import Message
    from carrypost.jms.session import Session
    from carrypost.model.descriptor import Descriptor


class QueueBrowser(JavaNamed):
    """A view of the messages that wait in a queue; made by `Context.create_browser`. Every iteration looks anew."""

    def __init__(self, session: Session, queue: Queue, selector: str | None) -> None:
        self._session, self._queue, self._selector = session, queue, selector
        self._taken_us = 0
        self._closed = False

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    @property
    def queue(self) -> Queue:
        """The queue that it browses."""
        return self._queue

    @property
    def message_selector(self) -> str | None:
        """The selector that its messages fulfil; None if there is none."""
        return self._selector

    @property
    def taken_at(self) -> float | None:
        """The time of the manager's last snapshot, in seconds since 1970 by its clock; None: there is none yet."""
        return self._taken_us / MICROSECONDS or None

    @property
    def age(self) -> float | None:
        """The age of the snapshot in seconds; None: there is none yet."""
        passed_us = self._session.units.provider.now_us() - self._taken_us
        return max(0, passed_us) / MICROSECONDS if self._taken_us else None

    def __aiter__(self) -> AsyncIterator[Message]:
        return self.messages()

    async def messages(self, timeout: Duration | None = None) -> AsyncIterator[Message]:
        """Iterate over the waiting messages, in the order of assignment; ends if nothing more comes for `timeout`.

        On the manager's node all of them are here. Elsewhere an iteration without a timeout waits for the manager's
        answer, and for the messages, but not longer than the node does: an hour, and ten seconds for each message.
        """
        limit_s = None if timeout is None else seconds(timeout, "a timeout")
        self._check()
        await self._session.units.ready()
        enumeration = await self._session.enumerate(self._queue, self._selector)
        try:
            while True:
                self._taken_us = enumeration.taken_us or self._taken_us
                while enumeration.waiting:
                    message = await self._read(enumeration.waiting.popleft())
                    if message is not None:
                        yield message
                        self._check()
                if enumeration.complete or not await enumeration.more(limit_s):
                    return
                if enumeration.ended:
                    raise IllegalStateException(enumeration.ended)
        finally:
            self._session.forget_enumeration(enumeration)

    def _check(self) -> None:
        self._session.units.check()
        if self._closed:
            raise IllegalStateException("this browser is closed: create another")

    async def _read(self, descriptor: Descriptor) -> Message | None:
        """Return the message; None if it is gone meanwhile, or dead."""
        provider = self._session.units.provider
        payload = await provider.payload(descriptor) if descriptor.alive(provider.now_us()) else None
        return None if payload is None else from_browsed(descriptor, payload, self._session.caller.kinds)

    async def close(self) -> None:
        """Close the browser. Idempotent."""
        self._closed = True

    def __repr__(self) -> str:
        return f"<QueueBrowser of {self._queue!r}{', closed' if self._closed else ''}>"
