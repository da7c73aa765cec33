"""One session: its sends, its consumers, listeners and browsers, and the acknowledgement of received messages.

A session is one thread of work. APIs for programs have it behind their own objects (`jms.context`). Its listeners are
called one at a time, in one task, in the order in which messages were handed over. The messages of a browser arrive in
parts, as the manager of the queue sends them (`Enumeration`).
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from carrypost.errors import IllegalArgumentException, IllegalStateException, InvalidDestinationException, JMSException
from carrypost.jms.acknowledgement import ACKNOWLEDGEMENTS, SessionUnitsOfWork, TransactedAcknowledgement
from carrypost.jms.consumer_options import ConsumerOptions, asked, encoded
from carrypost.jms.destinations import ChannelTopic, Destination, Queue, Topic, as_destination, named, resolved
from carrypost.jms.intake import Inbox, Intake
from carrypost.jms.listener_calls import Caller, is_called_by, pause_s
from carrypost.jms.mapping import Sending, message_of, stamp, to_draft
from carrypost.jms.modes import DeliveryMode
from carrypost.jms.sent import CompletionListener, Completions, Sends, Sent
from carrypost.jms.transactions import Transaction
from carrypost.log.events import GivenUp, OverlayState, Receipt, SendState
from carrypost.log.journal import Durability
from carrypost.messaging import commands as do
from carrypost.model import descriptor_values
from carrypost.model.times import MICROSECONDS

if TYPE_CHECKING:
    from collections.abc import MutableMapping

    from carrypost.jms.declarations import Temporaries
    from carrypost.jms.intake import Listener
    from carrypost.jms.listener_calls import Reports
    from carrypost.jms.messages import Message
    from carrypost.jms.modes import SessionMode
    from carrypost.jms.provider import Provider
    from carrypost.log.events import Browsed, Handed
    from carrypost.model.descriptor import Descriptor
    from carrypost.model.ids import MessageId


class Enumeration:
    """One enumeration of a queue: the messages that arrived so far."""

    def __init__(self, begun: do.Browsing) -> None:
        self.number = begun.number
        self.waiting: deque[Descriptor] = deque(begun.descriptors or ())
        self.taken_us = begun.taken_us
        """Time at which the manager took the snapshot; 0 before its answer."""
        self.complete = begun.descriptors is not None
        self.ended = ""
        """Reason why nothing more will arrive; empty while more may."""
        self._news = asyncio.Event()

    def add(self, part: Browsed) -> None:
        """Add a further part."""
        self.waiting.extend(part.descriptors)
        self.taken_us, self.complete = part.taken_us, part.complete
        self._news.set()

    def end(self, reason: str) -> None:
        """End it: nothing more will arrive."""
        self.ended = reason
        self._news.set()

    async def more(self, limit_s: float | None) -> bool:
        """Wait for a further part; return False if none came in time."""
        self._news.clear()
        try:
            async with asyncio.timeout(limit_s):
                await self._news.wait()
        except TimeoutError:
            return False
        return True


_log = logging.getLogger("carrypost.jms")


class ListenerTask:
    """The task in which the listeners of a session are called."""

    def __init__(self, inbox: Inbox, caller: Caller, reports: Reports) -> None:
        self._inbox, self._caller, self._reports = inbox, caller, reports
        self._idle = asyncio.Event()
        self._idle.set()
        self._ends = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        """The task; None before the first listener."""

    def begin(self) -> None:
        """Begin to call the listeners. Idempotent."""
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run(), name="carrypost listeners")

    def check_not_inside(self, what: str) -> None:
        """Raise if this is called by a listener: it would wait for itself."""
        if is_called_by(self):
            raise IllegalStateException(f"a listener cannot {what}: it would wait for itself")

    async def idle(self) -> None:
        """Wait until no listener is being called."""
        await self._idle.wait()

    async def close(self) -> None:
        """Let the running listener finish, and call no other."""
        self._ends.set()
        self._inbox.news.set()
        if self._task is not None:
            await asyncio.wait({self._task})

    def abandon(self) -> None:
        """Cancel the running listener: the node is gone, or nothing waits for it any more."""
        self._ends.set()
        if self._task is not None:
            self._task.cancel()

    async def _run(self) -> None:
        while not self._ends.is_set():
            intake = self._next()
            if intake is None:
                self._inbox.news.clear()
                if self._inbox.delivers:
                    self._inbox.go_on()
                await self._inbox.news.wait()
                continue
            handed = intake.waiting[0]
            self._idle.clear()
            try:
                await self._serve(intake, handed)
            # What listeners raise is dealt with below. This is the node, such as one whose disk is
            # full, or a fault of ours, and the other listeners go on.
            except Exception as error:  # noqa: BLE001 - whatever it is
                await self._return(intake, handed, error)
            finally:
                self._idle.set()

    async def _return(self, intake: Intake, handed: Handed, error: Exception) -> None:
        """Report why a message could not be given to its listener, and let it come again after a while."""
        if handed.number <= self._inbox.through:
            return  # The node was lost meanwhile, and it comes again.
        if isinstance(error, JMSException):
            self._reports.report(error)
        else:
            _log.error("a message could not be given to its listener", exc_info=error)
        if intake.is_next(handed):
            intake.waiting.popleft()
        if await self._pause(handed.count):
            return  # The end of the session returns it.
        with suppress(JMSException):  # The node has ended, or has no message under this number any more.
            await self._inbox.units.provider.execute(do.Recover(self._inbox.units.session, (), (handed.number,)))
        intake.was_taken(handed)

    def _next(self) -> Intake | None:
        """Return the intake whose message is next."""
        if not self._inbox.delivers:
            return None
        waiting = [each for each in self._inbox.intakes.values() if each.listener is not None and each.waiting]
        return min(waiting, key=lambda each: each.waiting[0].number, default=None)

    async def _serve(self, intake: Intake, handed: Handed) -> None:
        message = await intake.read(handed)
        listener = intake.listener
        if listener is None or not intake.is_next(handed):
            return  # Things changed meanwhile.
        intake.waiting.popleft()
        if message is None:
            intake.was_taken(handed)
        elif self._inbox.acknowledgement.retries:
            consumed = await self._tried(intake, listener, handed, message)
            if consumed and handed.number > self._inbox.through:  # Else the node was lost meanwhile.
                self._inbox.acknowledgement.consumed(handed)
            intake.was_taken(handed)
        else:
            self._inbox.acknowledgement.consumed(handed)
            intake.was_taken(handed)
            await self._called(listener, message)

    async def _tried(self, intake: Intake, listener: Listener, handed: Handed, message: Message) -> bool:
        """Call the listener until it does not raise; return True if the message is consumed, False if it is given up.

        Earlier hand-overs count, also those before restarts: a message that crashes its program each time is given up
        in the end. So each further try is counted, and that is durable, before it begins.
        """
        units = self._inbox.units
        tries = handed.tries or units.provider.node_info.settings.tries
        while True:
            error = await self._called(listener, message)
            if error is None:
                return True
            if handed.number <= self._inbox.through:
                return False  # The node was lost meanwhile, and it comes again.
            if handed.count >= tries:
                await self._inbox.give_up(handed.number, message, handed.count, error)
                return False
            if await self._pause(handed.count):
                return False
            count = await units.provider.execute(do.Retry(units.session, handed.number))
            handed = msgspec.structs.replace(handed, count=count)
            again = await intake.read(handed) if count else None
            if again is None:
                return False  # It expired.
            message = again

    async def _pause(self, failures: int) -> bool:
        """Wait before the next try; return True if listeners are not called any more."""
        first_s = self._inbox.units.provider.node_info.settings.redelivery_delay_s
        with suppress(TimeoutError):
            async with asyncio.timeout(pause_s(first_s, failures)):
                await self._ends.wait()
        return self._ends.is_set()

    async def _called(self, listener: Listener, message: Message) -> BaseException | None:
        """Call a listener; return what it raised."""
        error, _ = await self._caller.called(self, listener, message)
        if error is not None:
            _log.warning("a listener failed with %r: %r", message, error, exc_info=error)
        return error


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
        self.acknowledgement = ACKNOWLEDGEMENTS[mode](self.units)
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
        message = descriptor_values.message_named(named(message_id, "a message id"))
        with self.sends:
            found = None if message is None else await self.units.provider.execute(do.Follow(self.number, message))
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
        number = await self.units.provider.execute(do.Consume(self.number, asked(wanted)))
        self.units.check()  # Closed meanwhile, it has taken its consumers with it.
        intake = self.connection.intakes[number] = self.inbox.add(number, wanted)
        return intake

    async def modulate(self, intake: Intake, modulator: object) -> None:
        """Give a consumer of a channel another modulator, or none."""
        self._check_channel(intake, "a modulator")
        await self.units.ready()
        await self.units.provider.execute(do.Modulate(intake.number, encoded(modulator)))

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
        await self.units.provider.execute(do.CloseConsumer(intake.number, unread))

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
        begun = await self.units.provider.execute(do.Browse(self.number, found.address, selector))
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
            await self.units.provider.execute(do.Recover(self.number, (), (number,)))

    async def _release_in(self, delay_s: float, number: int) -> None:
        await asyncio.sleep(delay_s)
        with suppress(JMSException):  # A session that is closed has given it back.
            await self.units.provider.execute(do.Recover(self.number, (), (number,)))

    async def recover(self) -> None:
        """Have every message redelivered that was not acknowledged."""
        if self.transaction is not None:
            raise IllegalStateException("this context is transacted: call rollback() to have the messages redelivered")
        await self.units.ready()
        self.acknowledgement.flush()
        unread = self.inbox.pop_unread()
        self.acknowledgement.forget()
        self.inbox.drop_through(await self.units.provider.execute(do.Recover(self.number, unread)))

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
                if await self.units.provider.execute(do.Follow(self.number, message)) is None:
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
            await self.units.provider.execute(do.CloseSession(self.number, unread))

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
