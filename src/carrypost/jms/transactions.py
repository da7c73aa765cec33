"""Transactions of one session: what it received and what it sends count together, by `commit`, or not at all.

A message that is sent waits as a draft on the node; what is received is not acknowledged. A commit is one unit of work
of the node: one batch, on disk when it returns. A rollback forgets the drafts, and what was received comes again. The
next transaction begins at once, and a session that closes rolls back.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import NamedTuple

from carrypost.errors import (
    IllegalStateException,
    JMSException,
    TransactionInProgressException,
    TransactionRolledBackException,
)
from carrypost.gossip.draft import Draft
from carrypost.jms.acknowledgement import TransactedAcknowledgement
from carrypost.jms.destinations import Destination
from carrypost.jms.intake import Inbox
from carrypost.jms.mapping import stamp
from carrypost.jms.provider import NODE_LOST, Performed, is_lost
from carrypost.jms.sent import CompletionListener, Completions, Sends, Sent
from carrypost.log.journal import Durability
from carrypost.messaging.commands import KeepDraft, Rollback
from carrypost.model.descriptor import Descriptor

_ROLLED_BACK = "its transaction was rolled back"
_INTERRUPTED = "the connection to the node was lost since the transaction began"
_IN_DOUBT = "the node ended before it answered the commit, and it is not known whether the message was sent"


class Drafted(NamedTuple):
    """A message that waits for the commit."""

    number: int
    sent: Sent
    message: object
    destination: Destination
    listener: CompletionListener | None
    """Called when its transaction ends."""


class Transaction:
    """The transaction that a session has open, which it always has."""

    def __init__(
        self, inbox: Inbox, acknowledgement: TransactedAcknowledgement, sends: Sends, completions: Completions
    ) -> None:
        self._inbox, self._acknowledgement, self._sends, self._completions = inbox, acknowledgement, sends, completions
        self._units = inbox.units
        self._drafts: list[Drafted] = []
        self._in_block = False
        self._received = False
        """True if the transaction that is about to end received anything."""
        self._broken = False
        """True if the node was lost since the transaction began to receive or send: it cannot be committed."""

    async def send(
        self, draft: Draft, message: object, destination: Destination, listener: CompletionListener | None
    ) -> Sent:
        """Keep a message for the commit."""
        self._units.check()
        self._acknowledgement.check_idle()
        number, descriptor = await self._units.provider.execute(KeepDraft(self._units.session, draft))
        sent = self._sends.track(draft, descriptor)
        self._drafts.append(Drafted(number, sent, message, destination, listener))
        if descriptor is not None:  # One with an order gets its id by the commit.
            stamp(message, descriptor, destination)
        return sent

    async def commit(self) -> None:
        """Make the transaction durable as a whole, or raise `TransactionRolledBackException` with nothing of it done.

        A caller that is cancelled while it waits leaves nothing half done.
        """
        await self._units.ready()
        self._acknowledgement.check_idle()
        if self._broken:
            await self._units.outcome(asyncio.ensure_future(self._refused(JMSException(_INTERRUPTED, NODE_LOST))))
            return
        drafts, numbers = self._drafts, self._acknowledgement.numbers
        if not drafts and not numbers:
            return
        self._acknowledgement.committing = True
        try:
            performed = self._units.perform(tuple(each.number for each in drafts), Durability.FULL, numbers)
        except JMSException as refusal:
            await self._units.outcome(asyncio.ensure_future(self._refused(refusal)))
            return
        if performed.sent.done() and performed.sent.exception() is None:
            sends = self._begun(drafts, performed.sent)
            await self._units.conclude(performed.done, partial(self._end, sends, performed.done))
        else:
            await self._units.outcome(asyncio.ensure_future(self._commit(drafts, performed)))

    def interrupted(self) -> None:
        """Forget what was sent, as the node is lost: the commit will raise. One that is under way raises by itself."""
        if not self._acknowledgement.committing:
            self._broken = self._broken or bool(self._drafts or self._acknowledgement.numbers)
            self.abandon()

    async def _commit(self, drafts: list[Drafted], performed: Performed) -> None:
        """Wait for what its messages were sent with, then for the disk: in a task of its own."""
        try:
            with self._sends:
                await asyncio.wait([performed.sent])
                sends = self._begun(drafts, performed.sent)
        except JMSException as error:
            if is_lost(error):
                self._doubt(drafts)
                raise
            await self._refused(error)
        except BaseException:
            self._acknowledgement.committing = False
            raise
        else:
            await self._end(sends, performed.done)

    def _doubt(self, drafts: list[Drafted]) -> None:
        """Begin the next transaction, because the node ended and it is not known whether it did this one."""
        self._drafts = []
        for each in drafts:
            self._sends.failed(each.sent, _IN_DOUBT)
            self._complete(each, IllegalStateException(_IN_DOUBT, NODE_LOST))
        self._acknowledgement.forget()
        self._acknowledgement.committing = False

    async def _refused(self, error: JMSException) -> None:
        """Roll back, because the node refused the commit and did nothing of it; raise the reason."""
        # The session may be used again afterwards, and a refused message must not return with the next commit.
        self._forget()
        try:
            await self._roll_back()
        except JMSException:
            raise error from None  # The node is gone, and what it did before is not known.
        finally:
            self._acknowledgement.committing = False
        raise TransactionRolledBackException(f"the transaction was rolled back: {error}", error.error_code) from error

    def _begun(
        self, drafts: list[Drafted], sent: asyncio.Future[tuple[Descriptor, ...]]
    ) -> list[tuple[Drafted, Descriptor | None]]:
        """Begin the next transaction, because the node has the last one. Returns the descriptor of each send."""
        sends = _made(drafts, sent.result())
        self._received = bool(self._acknowledgement.numbers)
        for each, descriptor in sends:
            self._sends.follow(each.sent, descriptor)
        self._drafts = []
        self._acknowledgement.forget()
        return sends

    async def _end(self, sends: list[tuple[Drafted, Descriptor | None]], done: asyncio.Future[None]) -> None:
        """Note that it is durable, or was undone."""
        try:
            await done
        except JMSException as error:
            if is_lost(error):
                self._doubt([each for each, _ in sends])
                raise
            self._fail([each for each, _ in sends])
            await self._roll_back()
            raise TransactionRolledBackException(f"the transaction was rolled back: {error}") from error
        finally:
            self._acknowledgement.committing = False
        self._inbox.pause.succeed()
        for each, descriptor in sends:
            if descriptor is not None and each.sent.descriptor is None:
                stamp(each.message, descriptor, each.destination)
            self._sends.committed(each.sent, descriptor)
            died = JMSException("the message expired before its transaction was committed")
            self._complete(each, died if descriptor is None else None)

    @asynccontextmanager
    async def block(self) -> AsyncIterator[None]:
        """Commit at the end of the block; roll back if it raises."""
        if self._in_block:
            raise TransactionInProgressException(
                "a transaction of this context is in progress: leave its block first, or use another context "
                "(ctx.create_context(SessionMode.SESSION_TRANSACTED))"
            )
        self._in_block = True
        try:
            yield
        except BaseException:
            with suppress(JMSException):  # A context that is closed has rolled back.
                await asyncio.shield(asyncio.ensure_future(self.rollback()))
            raise
        finally:
            self._in_block = False
        await self.commit()

    async def rollback(self) -> None:
        """Forget what was sent, and let come again what was received."""
        await self._units.ready()
        self._acknowledgement.check_idle()
        self._forget()
        await self._roll_back()

    def _forget(self) -> None:
        """Forget what was sent and what was received: the next transaction begins."""
        self.abandon()
        self._broken = False
        self._received = bool(self._acknowledgement.numbers)
        self._acknowledgement.forget()

    def abandon(self) -> None:
        """Forget what was sent: the session rolls back, or closes."""
        drafts, self._drafts = self._drafts, []
        self._fail(drafts)

    def _fail(self, drafts: list[Drafted]) -> None:
        for each in drafts:
            self._sends.failed(each.sent, _ROLLED_BACK)
            self._complete(each, TransactionRolledBackException(f"the message was not sent: {_ROLLED_BACK}"))

    def _complete(self, draft: Drafted, error: JMSException | None) -> None:
        """Notify the completion listener of a message, if it has one, of the outcome."""
        if draft.listener is None:
            return
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if error is None:
            done.set_result(None)
        else:
            done.set_exception(error)
        self._completions.follow(done, draft.message, draft.listener)

    async def _roll_back(self) -> None:
        if self._received:
            self._inbox.pause.begin()
        if self._inbox.away:
            return  # The next session of the node has nothing of it.
        unread = self._inbox.pop_unread()
        self._inbox.drop_through(await self._units.provider.execute(Rollback(self._units.session, unread)))


def _made(drafts: list[Drafted], descriptors: tuple[Descriptor, ...]) -> list[tuple[Drafted, Descriptor | None]]:
    """Return each draft with its descriptor; None: it expired before the commit, and was not sent."""
    found = iter(descriptors)
    ids = {descriptor.id for descriptor in descriptors}
    died = [each.sent.descriptor is not None and each.sent.descriptor.id not in ids for each in drafts]
    return [(each, None if dead else next(found)) for each, dead in zip(drafts, died, strict=True)]
