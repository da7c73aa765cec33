"""`Job`: a message that is processed in a block, whose failure ends neither its program nor the loop around it."""

from __future__ import annotations

import logging
import warnings
from contextlib import AbstractAsyncContextManager
from types import TracebackType

from carrypost.errors import IllegalStateException, JMSException
from carrypost.java_names import JavaNamed
from carrypost.jms.messages.message import Message

_log = logging.getLogger("carrypost.jms")


class Job(JavaNamed):
    """A message and the block that processes it, entered by ``async with``; made by `Consumer.processing`.

    It may be entered in another task, so that several jobs are processed at the same time.
    """

    def __init__(self, message: Message) -> None:
        self._message = message
        self._block: AbstractAsyncContextManager[Message] | None = None

    async def __aenter__(self) -> Message:
        if self._block is not None:
            raise IllegalStateException("this job was entered before: a message that failed comes again as another job")
        self._block = Message.processing(self._message)
        return await self._block.__aenter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool:
        assert self._block is not None
        try:
            await self._block.__aexit__(kind, error, traceback)
        except JMSException as failed:  # It could not be acknowledged, for example because its lease is over.
            error = failed
        if not isinstance(error, Exception):
            return False
        _log.warning("a program failed with %r: %r", self._message, error, exc_info=error)
        return True

    def __repr__(self) -> str:
        return f"<Job of {self._message!r}>"

    def __del__(self) -> None:
        if self._block is None:
            warnings.warn(
                f"{self!r} was never entered, so its message is not acknowledged: write `async with job as message:`, "
                "or `with job as message:` in a blocking program",
                RuntimeWarning,
                2,
                source=self,
            )
