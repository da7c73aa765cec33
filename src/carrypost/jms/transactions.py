"""Transactions of one session: what it received and what it sends count together, by `commit`, or not at all.

A message that is sent waits as a draft on the node; what is received is not acknowledged. A commit is one work of the
node: one batch, on disk when it returns. A rollback forgets the drafts, and what was received comes again. The next
transaction begins at once, and a session that closes rolls back.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from carrypost.errors import JMSException, TransactionInProgressException, TransactionRolledBackException
from carrypost.events import SendState
from carrypost.gossip.layer import Draft
from carrypost.jms.acknowledging import TransactedAcknowledging, lease_over
from carrypost.jms.completions import CompletionListener, Completions
from carrypost.jms.destinations import Destination
from carrypost.jms.passage import stamp
from carrypost.jms.pausing import Pause
from carrypost.jms.provider import Performed
from carrypost.jms.sent import Sends, Sent
from carrypost.jms.works import SessionWorks
from carrypost.model.descriptor import Descriptor

_ROLLED_BACK = "its transaction was rolled back"


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
        self,
        works: SessionWorks,
        acknowledging: TransactedAcknowledging,
        sends: Sends,
        completions: Completions,
        pause: Pause,
        *,
        take_back: Callable[[], list[int]],
        drop_through: Callable[[int], None],
    ) -> None:
        self._works, self._acknowledging, self._sends, self._completions = works, acknowledging, sends, completions
        self._pause = pause
        self._take_back = take_back
        """What consumers have and their program never saw, which they do not have any more."""
        self._drop_through = drop_through
        """Forget what comes again because it was handed over before a number."""
        self._drafts: list[Drafted] = []
        self._committing = False
        self._received = False
        """Whether the transaction that is about to end received anything."""

    def check_idle(self) -> None:
        """Raise while a commit runs."""
        if self._committing:
            raise TransactionInProgressException("a commit is under way in this context: wait for it first")

    async def send(
        self, draft: Draft, message: object, destination: Destination, listener: CompletionListener | None
    ) -> Sent:
        """Keep a message for the commit."""
        self.check_idle()
        number, descriptor = await self._works.provider.draft(self._works.session, draft)
        sent = self._sends.made(draft, descriptor)
        self._drafts.append(Drafted(number, sent, message, destination, listener))
        if descriptor is not None:  # One with an order gets its id by the commit.
            stamp(message, descriptor, destination)
        return sent

    async def commit(self) -> None:
        """Make it durable, whole; raises `TransactionRolledBackException` if that cannot be, and nothing of it was.

        Who is cancelled while it waits leaves nothing half done.
        """
        await self._works.ready()
        self.check_idle()
        drafts, numbers = self._drafts, self._acknowledging.numbers
        if not drafts and not numbers:
            return
        if lapsed := self._acknowledging.lapsed(numbers):
            await self.rollback()
            error = lease_over(len(lapsed), len(numbers))
            raise TransactionRolledBackException(f"the transaction was rolled back: {error}", error.error_code)
        performed = self._works.commit(tuple(each.number for each in drafts), numbers)
        if performed.sent.done():
            made = self._begun(drafts, performed.sent)
            self._committing = True
            await self._works.conclude(performed.done, partial(self._end, made, performed.done))
        else:
            self._committing = True
            await self._works.outcome(asyncio.ensure_future(self._commit(drafts, performed)))

    async def _commit(self, drafts: list[Drafted], performed: Performed) -> None:
        """Wait for what its messages were sent with, then for the disk: in a task of its own."""
        try:
            await asyncio.wait([performed.sent])
            made = self._begun(drafts, performed.sent)
        except BaseException:
            self._committing = False
            raise
        await self._end(made, performed.done)
        for each, descriptor in made:
            if each.sent.is_heard_of and descriptor is not None:
                await self._works.provider.followed(descriptor.id)

    def _begun(
        self, drafts: list[Drafted], sent: asyncio.Future[tuple[Descriptor, ...]]
    ) -> list[tuple[Drafted, Descriptor | None]]:
        """The node has it: the next transaction begins. Returns what each was sent with."""
        made = _made(drafts, sent.result())
        self._received = bool(self._acknowledging.numbers)
        for each, descriptor in made:
            self._sends.follow(each.sent, descriptor)
        self._drafts = []
        self._acknowledging.forget()
        return made

    async def _end(self, made: list[tuple[Drafted, Descriptor | None]], done: asyncio.Future[None]) -> None:
        """It is durable, or was undone."""
        try:
            await done
        except JMSException as error:
            self._fail([each for each, _ in made])
            await self._roll_back()
            raise TransactionRolledBackException(f"the transaction was rolled back: {error}") from error
        finally:
            self._committing = False
        self._pause.succeed()
        for each, descriptor in made:
            _stored(each, descriptor)
            died = JMSException("the message expired before its transaction was committed")
            self._complete(each, died if descriptor is None else None)

    async def rollback(self) -> None:
        """Forget what was sent, and let come again what was received."""
        await self._works.ready()
        self.check_idle()
        self.abandon()
        self._received = bool(self._acknowledging.numbers)
        self._acknowledging.forget()
        await self._roll_back()

    def abandon(self) -> None:
        """Forget what was sent: the session rolls back, or closes."""
        drafts, self._drafts = self._drafts, []
        self._fail(drafts)

    def _fail(self, drafts: list[Drafted]) -> None:
        for each in drafts:
            each.sent.rise(SendState.FAILED, _ROLLED_BACK, last=True)
            self._complete(each, TransactionRolledBackException(f"the message was not sent: {_ROLLED_BACK}"))

    def _complete(self, draft: Drafted, error: JMSException | None) -> None:
        """Tell the completion listener of a message, if it has one, what became of it."""
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
            self._pause.begin()
        self._drop_through(await self._works.provider.rollback(self._works.session, self._take_back()))


def _made(drafts: list[Drafted], descriptors: tuple[Descriptor, ...]) -> list[tuple[Drafted, Descriptor | None]]:
    """What each was sent with; None: it died before the commit, and was not."""
    found = iter(descriptors)
    ids = {descriptor.id for descriptor in descriptors}
    died = [each.sent.descriptor is not None and each.sent.descriptor.id not in ids for each in drafts]
    return [(each, None if dead else next(found)) for each, dead in zip(drafts, died, strict=True)]


def _stored(draft: Drafted, descriptor: Descriptor | None) -> None:
    """The commit is on disk."""
    if descriptor is None:
        draft.sent.rise(SendState.EXPIRED, last=True)
        return
    if draft.sent.descriptor is None:
        stamp(draft.message, descriptor, draft.destination)
    draft.sent.descriptor = descriptor
    draft.sent.rise(SendState.STORED)
