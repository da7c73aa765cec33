"""One session: its sends, its consumers and browsers, and the acknowledgement of received messages.

A session is one thread of work. APIs for programs have it behind their own objects (`jms.context`).
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from carrypost.errors import IllegalArgumentException, IllegalStateException, InvalidDestinationException, JMSException
from carrypost.jms.acknowledgement import TransactedAcknowledgement, acknowledgement_of
from carrypost.jms.bodies import message_of
from carrypost.jms.caller import Caller
from carrypost.jms.completions import CompletionListener, Completions
from carrypost.jms.consumer_options import ConsumerOptions, asked
from carrypost.jms.destinations import ChannelTopic, Destination, Queue, Topic, as_destination, named, resolved
from carrypost.jms.enumeration import Enumeration
from carrypost.jms.intake import Inbox, Intake
from carrypost.jms.listener_task import ListenerTask
from carrypost.jms.mapping import Sending, stamp, to_draft
from carrypost.jms.modes import DeliveryMode
from carrypost.jms.modulator_options import encoded
from carrypost.jms.pause import pause_s
from carrypost.jms.sent import Sends, Sent
from carrypost.jms.transactions import Transaction
from carrypost.jms.units_of_work import SessionUnitsOfWork
from carrypost.log.events import GivenUp, OverlayState, Receipt, SendState
from carrypost.log.journal import Durability
from carrypost.messaging.program_commands import Browse, CloseConsumer, CloseSession, Consume, Follow, Modulate, Recover
from carrypost.model import visible
from carrypost.model.times import MICROSECONDS

if TYPE_CHECKING:
    from collections.abc import MutableMapping

    from carrypost.jms.messages.message import Message
    from carrypost.jms.modes import SessionMode
    from carrypost.jms.provider import Provider
    from carrypost.jms.reports import Reports
    from carrypost.jms.temporary import Temporaries
    from carrypost.log.events import Browsed
    from carrypost.model.ids import MessageId

CONTEXT_CLOSED = "this context is closed: create another"
CONSUMER_CLOSED = "this consumer is closed: create another"
_SENDS_IN_A_ROW = 32
_PLAIN = frozenset({Topic, Queue})
"""Destinations that need no lookup before a message is sent there."""


class OpenConnection(NamedTuple):
    """State that the sessions of one connection share."""

    provider: Provider
    number: int
    """The number of the connection at the node."""
    client_id: str
    """Empty if it has none."""
    reports: Reports
    intakes: MutableMapping[int, Intake]
    """The intakes of all its sessions, by number of the consumer: sessions enter theirs."""
    overlays: MutableMapping[int, OverlayState]
    """States of consumers of channels, by number."""
    temporaries: Temporaries
    callers: type[Caller]
    """Class of the caller of one session."""


class Session:
    """A session that is open."""

    def __init__(self, connection: OpenConnection, number: int, mode: SessionMode) -> None:
        self.connection = connection
        self.number = number
        self.mode = mode
        self.units = SessionUnitsOfWork(connection.provider, number, connection.reports.report)
        self.acknowledgement = acknowledgement_of(mode, self.units)
        self.inbox = Inbox(self.units, self.acknowledgement, self, connection.reports, connection.callers.kinds)
        self.sends = Sends(connection.provider.node_info.node)
        self.caller = connection.callers()
        self.completions = Completions(self.caller)
        self.listening = ListenerTask(self.inbox, self.caller, connection.reports)
        self.transaction = (
            Transaction(self.inbox, self.acknowledgement, self.sends, self.completions)
            if isinstance(self.acknowledgement, TransactedAcknowledgement)
            else None
        )
        """None where there are no transactions."""
        self._enumerations: dict[int, Enumeration] = {}
        self._releases: set[asyncio.Task[None]] = set()
        """Tasks of messages that come again after a while, and of asking for receipts."""
        self._sent = 0
        self._in_a_row = 0

    # --- sending -------------------------------------------------------------------------------------------

    async def send(
        self, to: object, body: object, options: Sending, listener: CompletionListener | None = None
    ) -> Sent:
        """Send a message, or a body, with these options; the `listener` is called when it is stored.

        Every send of a program is one of these, or waits in the transaction. Callers are not all checked.
        """
        units = self.units
        destination: Destination = to if type(to) in _PLAIN else await self.place(to)  # type: ignore[assignment]
        message = message_of(body, self.caller.kinds)
        if units.abandoned:
            await units.abandoned_done()
        await units.provider.room()
        draft = to_draft(message, destination, self._completed(options), units.provider.node_info.limits)
        if self.transaction is not None:
            return await self.transaction.send(draft, message, destination, listener)
        persistent = draft.persistent
        durability = Durability.FULL if persistent else Durability.NORMAL
        performed = units.perform((draft,), durability, early=listener is not None)
        if performed.sent.done():
            (descriptor,) = performed.sent.result()
            sent = self.sends.track(draft, descriptor, SendState.STORED)
        else:
            with self.sends:
                (descriptor,) = await units.sent(performed)
                sent = self.sends.track(draft, descriptor, SendState.STORED)
        if listener is not None:
            self.completions.follow(performed.done, message, listener)
        elif persistent:
            await units.outcome(performed.done)
        else:
            units.leave(performed.done)
        if (listener is not None or not persistent) and self._has_sent_enough():
            await asyncio.sleep(0)  # A program that sends in a loop lets other tasks run.
        stamp(message, descriptor, destination)
        return sent

    def _completed(self, options: Sending) -> Sending:
        """Return the options of a message, completed by those of this session.

        The number is the place of the message among all that the session sends. Receivers compare the places of
        messages to one destination, and only need to know which is later. One count for all destinations suffices for
        that, and needs no memory of each reply queue that a program ever answered.
        """
        if options.lifetime_us is not None and options.lifetime_us <= options.delay_us:
            raise IllegalArgumentException(
                f"the message would expire before delivery: its lifetime is {options.lifetime_us / MICROSECONDS:,g} "
                f"s and its delivery delay {options.delay_us / MICROSECONDS:,g} s. Use a longer time to live, or a "
                "shorter delivery delay"
            )
        self._sent += 1
        return msgspec.structs.replace(
            options,
            receipt=options.receipt and options.delivery_mode is DeliveryMode.PERSISTENT,
            client=self.connection.client_id or None, connection=self.connection.number, session=self.number,
            number=self._sent,
        )  # fmt: skip

    async def place(self, destination: object) -> Destination:
        """Return the destination of a message; arguments of callers are not all checked."""
        found = await resolved(self.units.provider, as_destination(destination))
        if not isinstance(found, Destination):
            raise InvalidDestinationException(
                (
                    "the destination must be a topic (create_topic), a queue (create_queue), or text such as "
                    f"'topic/news', not {destination!r}"
                )[:200]
            )
        self.connection.temporaries.check_sender(found)
        return found

    async def sent(self, message_id: str) -> Sent:
        """Find a message again that this node sent, by its id: in another session, or after a restart.

        Raises `IllegalArgumentException` if nothing is to be heard of it: it did not ask, or `messaging.receipt_s` have
        passed since its end.
        """
        await self.units.ready()
        message = visible.message_named(named(message_id, "a message id"))
        with self.sends:
            found = None if message is None else await self.units.provider.execute(Follow(self.number, message))
            sent = self.sends.find(message, found, message_id)
        if sent is None:
            raise IllegalArgumentException(
                f"this node does not track the message {message_id!r}: it requested no receipt, or has expired"
            )
        await self.units.settled()  # Its state is reported by then.
        return sent

    def _has_sent_enough(self) -> bool:
        """Count a send that did not wait; return True after a row of such sends, when other tasks should have a turn.

        Other tasks have no turn after each send, since a turn of the loop costs half as much as a send.
        """
        self._in_a_row = (self._in_a_row + 1) % _SENDS_IN_A_ROW
        return not self._in_a_row

    # --- consumers -----------------------------------------------------------------------------------------

    async def consume(self, wanted: ConsumerOptions) -> Intake:
        """Open a consumer at the node, and its intake here."""
        await self.units.ready()
        self.acknowledgement.flush()  # A new subscription has what nobody acknowledged: not what this program just got.
        destination = await resolved(self.units.provider, wanted.destination)
        self.connection.temporaries.check_consumer(destination)
        wanted = msgspec.structs.replace(wanted, destination=destination)
        number = await self.units.provider.execute(Consume(self.number, asked(wanted)))
        self.units.check()  # Closed meanwhile, it has taken its consumers with it.
        intake = self.connection.intakes[number] = self.inbox.add(number, wanted)
        return intake

    async def modulate(self, intake: Intake, modulator: object) -> None:
        """Give a consumer of a channel another modulator, or none."""
        self._check_channel(intake, "a modulator")
        await self.units.ready()
        await self.units.provider.execute(Modulate(intake.number, encoded(modulator)))

    def overlay(self, intake: Intake) -> OverlayState:
        """Return the state of a consumer of a channel."""
        self._check_channel(intake, "overlay")
        return self.connection.overlays.get(intake.number, OverlayState())

    @staticmethod
    def _check_channel(intake: Intake, what: str) -> None:
        if intake.closed:
            raise IllegalStateException(intake.closed)
        if not isinstance(intake.wanted.destination, ChannelTopic):
            raise IllegalStateException(
                f"{what} requires a consumer of a channel, and this one is of {intake.wanted.destination!r}: "
                'create the topic with create_topic(NAME, model="channel")'
            )

    async def leave(self, intake: Intake) -> None:
        """Close one consumer."""
        intake.hold_back()
        unread = [each.number for each in intake.waiting]
        self._remove(intake, CONSUMER_CLOSED)
        self.acknowledgement.flush()
        await self.units.provider.execute(CloseConsumer(intake.number, unread))

    def _remove(self, intake: Intake, reason: str) -> None:
        self.connection.intakes.pop(intake.number, None)
        self.connection.overlays.pop(intake.number, None)
        self.inbox.remove(intake, reason)

    def listeners_changed(self) -> None:
        """Begin to call new listeners."""
        if self.inbox.listens:
            self.listening.begin()
        self.inbox.wake()

    def check_not_listening(self, what: str) -> None:
        """Raise if a listener of this session calls."""
        self.listening.check_not_inside(what)
        self.completions.check_not_inside(what)

    # --- browsers ------------------------------------------------------------------------------------------

    async def enumerate(self, queue: Queue, selector: str | None) -> Enumeration:
        """Begin to enumerate the messages that wait in a queue."""
        found = await resolved(self.units.provider, queue)
        begun = await self.units.provider.execute(Browse(self.number, found.address, selector))
        enumeration = self._enumerations[begun.number] = Enumeration(begun)
        return enumeration

    def forget_enumeration(self, enumeration: Enumeration) -> None:
        """Stop waiting for the rest of an enumeration."""
        self._enumerations.pop(enumeration.number, None)

    # --- acknowledging: what messages and programs ask for -------------------------------------------------

    async def acknowledge(self, number: int) -> None:
        """Acknowledge a message, as the program asks."""
        self.units.check()
        await self.acknowledgement.acknowledge(number)

    async def release(self, number: int, delay_us: int) -> None:
        """Let a message come again after a while, as the program asks."""
        self.units.check()
        await self.acknowledgement.release(number, delay_us)

    async def failed(self, number: int, message: Message, error: BaseException, tries: int) -> None:
        """Let a message that the program failed with come again after a while; after too many failures, give it up.

        `tries`: the number of deliveries that its queue allows; 0: as the settings say.
        """
        self.units.check()
        if number <= self.inbox.through:
            return  # The node was lost meanwhile, so that it comes again in any case.
        count, settings = message.get_int_property("JMSXDeliveryCount"), self.units.provider.node_info.settings
        if isinstance(error, Exception) and count >= (tries or settings.tries):
            await self.inbox.give_up(number, message, count, error, block=True)
            return
        self.acknowledgement.forget_one(number)
        if settings.redelivery_delay_s and isinstance(error, Exception):
            delay_s = pause_s(settings.redelivery_delay_s, count)
            task = asyncio.get_running_loop().create_task(self._release_in(delay_s, number))
            self._releases.add(task)
            task.add_done_callback(self._releases.discard)
        else:
            await self.units.provider.execute(Recover(self.number, (), (number,)))

    async def _release_in(self, delay_s: float, number: int) -> None:
        await asyncio.sleep(delay_s)
        with suppress(JMSException):  # A session that is closed has given it back.
            await self.units.provider.execute(Recover(self.number, (), (number,)))

    async def recover(self) -> None:
        """Have every message redelivered that was not acknowledged."""
        if self.transaction is not None:
            raise IllegalStateException("this context is transacted: call rollback() to have the messages redelivered")
        await self.units.ready()
        self.acknowledgement.flush()
        unread = self.inbox.pop_unread()
        self.acknowledgement.forget()
        self.inbox.drop_through(await self.units.provider.execute(Recover(self.number, unread)))

    # --- what the node reports -----------------------------------------------------------------------------

    def note(self, news: Browsed | GivenUp | Receipt) -> None:
        """Take note of an event that may concern another session."""
        if isinstance(news, Receipt):
            self.sends.update(news)
        elif isinstance(news, GivenUp):
            self.inbox.gave_up(news)
        elif (enumeration := self._enumerations.get(news.number)) is not None:
            enumeration.add(news)

    # --- the node goes, and returns ------------------------------------------------------------------------

    def interrupted(self, reason: str, through: int) -> None:
        """Drop what the node handed over up to the number `through`, as it is gone for a while."""
        if self.transaction is not None:
            self.transaction.interrupted()
        self.inbox.interrupted(through)
        for task in self._releases:
            task.cancel()
        for enumeration in self._enumerations.values():
            enumeration.end(reason)
        self._enumerations.clear()

    def resumed(self) -> None:
        """Go on, as the node is back."""
        self.inbox.resumed()
        if messages := self.sends.awaited:
            task = asyncio.get_running_loop().create_task(self._follow(messages))
            self._releases.add(task)
            task.add_done_callback(self._releases.discard)

    async def _follow(self, messages: list[MessageId]) -> None:
        """Ask the node for receipts of messages that were sent before it was lost."""
        with suppress(JMSException):  # The node is lost again, or the session closed.
            for message in messages:
                if await self.units.provider.execute(Follow(self.number, message)) is None:
                    self.sends.end_one(message, "the node was restarted, and does not track this message any more")

    # --- the end -------------------------------------------------------------------------------------------

    @property
    def ended(self) -> str:
        """Reason why the node is gone, if it is."""
        return self.inbox.ended

    async def drain(self) -> None:
        """Hand out no more; wait until all messages are processed and acknowledged, and all sends are durable."""
        await self._quit_delivering()
        await self.completions.done()
        await self.units.all_done()

    async def _quit_delivering(self) -> None:
        """Give the program nothing more; wait for its listeners, and send automatic acknowledgements."""
        self.inbox.drain()
        await self.listening.close()
        self.acknowledgement.flush()

    def cut_off(self) -> None:
        """Cancel running listeners: nothing waits for them any more."""
        self.listening.abandon()
        self.completions.abandon()

    async def close(self, reason: str = CONTEXT_CLOSED) -> None:
        """End the session: listeners finish their message, and unacknowledged messages are returned.

        `reason`: what later calls raise.
        """
        await self._quit_delivering()
        if self.transaction is not None:
            self.transaction.abandon()
        await self.completions.done()
        unread = self.inbox.unread
        self._end(reason)
        if not self.ended:
            await self.units.provider.execute(CloseSession(self.number, unread))

    def node_ended(self, reason: str) -> None:
        """End the session, as the node is gone."""
        self.inbox.ended = reason
        self.listening.abandon()
        self._end(reason)

    def _end(self, reason: str) -> None:
        self.inbox.pause.end()
        for task in self._releases:
            task.cancel()
        for intake in list(self.inbox.intakes.values()):
            self._remove(intake, reason)
        for enumeration in self._enumerations.values():
            enumeration.end(reason)
        self.units.close(reason)
        self.sends.end(reason)
        self.caller.close()
