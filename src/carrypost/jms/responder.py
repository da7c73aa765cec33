"""`Responder`: calls a function with each request, and replies with its result.

A request and its reply are one transaction: on disk are both the reply and the consumption of the request, or neither.
So a program that is killed in between gets the request again, and exactly one reply leaves the node.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from carrypost.errors import JMSException
from carrypost.jms.requestor import can_reply, reply

if TYPE_CHECKING:
    from carrypost.jms.messages import Message
    from carrypost.jms.session import Session
    from carrypost.jms.transactions import Transaction


class Responder:
    """A message listener of a session with transactions, which replies for a function."""

    def __init__(self, session: Session, transaction: Transaction, function: Callable[[Any], object]) -> None:
        self._session, self._transaction, self._function = session, transaction, function

    async def on_message(self, request: Message) -> None:
        """Handle a request, and reply to it. If that fails, the request comes again, and this raises."""
        error, answer = await self._session.caller.called(self, self._function, request)
        if error is None and answer is not None and can_reply(self._session, request):
            error = await self._reply(request, answer)
        if error is not None:
            with suppress(JMSException):  # A session that is closed has rolled back.
                await self._transaction.rollback()
            raise error
        await self._transaction.commit()

    async def _reply(self, request: Message, answer: object) -> JMSException | None:
        """Keep a reply for the commit; returns what is wrong with it."""
        try:
            await reply(self._session, request, answer, None)
        except JMSException as error:
            return error
        return None
