"""One session: its consumers, what they were handed, and how that is acknowledged.

A session is one line of work. APIs for programs have it behind their own objects (`jms.context`).
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, Protocol

import msgspec

from carrypost.errors import (
    IllegalArgumentException,
    IllegalStateException,
    InvalidDestinationException,
    JMSException,
    ListenerException,
)
from carrypost.jms.acknowledging import TransactedAcknowledging, acknowledging
from carrypost.jms.asking import asked
from carrypost.jms.browsing import Look
from carrypost.jms.completions import Completions
from carrypost.jms.consumer import Consumer, Wanted
from carrypost.jms.destinations import Destination, Queue, named, resolved
from carrypost.jms.listening import Listening, given_up
from carrypost.jms.pausing import Pause, pause_s
from carrypost.jms.sent import Sends, Sent
from carrypost.jms.transactions import Transaction
from carrypost.jms.works import SessionWorks
from carrypost.model import visible

if TYPE_CHECKING:
    from carrypost.events import Browsed, GivenUp
    from carrypost.jms.messages.message import Acknowledger, Message
    from carrypost.jms.modes import SessionMode
    from carrypost.jms.provider import Provider
    from carrypost.jms.temporary import Temporaries


_SENDS_IN_A_ROW = 32


class SessionConnection(Protocol):
    """What a session needs of its connection."""

    client_id: str
    number: int
    used: bool
    started: bool
    consumers: dict[int, Consumer]
    """Who gets what is handed over, by number."""

    @property
    def temporaries(self) -> Temporaries:
        """Its own destinations."""

    @property
    def provider(self) -> Provider:
        """The node's messaging."""

    def report(self, error: JMSException, *, seen: bool = False) -> None:
        """Tell of a problem that has no other place to go; `seen`: the program knows already what it is about."""


class Session:
    """A session that is open."""

    def __init__(self, connection: SessionConnection, number: int, mode: SessionMode) -> None:
        self.connection = connection
        self.number = number
        self.mode = mode
        self.consumers: dict[int, Consumer] = {}
        self._looks: dict[int, Look] = {}
        self.works = SessionWorks(connection.provider, number, connection.report)
        self.acknowledging = acknowledging(mode, self.works)
        self.sends = Sends(connection.provider.place.node)
        self.completions = Completions()
        self.pause = Pause(connection.provider.place.settings.redelivery_delay_s, self.wake)
        self._releases: set[asyncio.Task[None]] = set()
        """Messages that come again in a while."""
        self.transaction = (
            Transaction(
                self.works,
                self.acknowledging,
                self.sends,
                self.completions,
                self.pause,
                take_back=self._take_back,
                drop_through=self._drop_through,
            )
            if isinstance(self.acknowledging, TransactedAcknowledging)
            else None
        )
        """None where there are no transactions."""
        self.given_up = 0
        """Messages that programs failed with too often, in this life or in earlier ones."""
        self._alone = False
        """Something came alone, and nothing else may come before the program is done with it."""
        self.ended = ""
        """Why the node is gone, if it is."""
        self.listens = False
        """Whether it has listeners."""
        self._listening: Listening | None = None
        self._sent = 0
        self._in_a_row = 0
        self._draining = False

    # --- sending -------------------------------------------------------------------------------------------

    def next_number(self) -> int:
        """Return the place of the next message among all that this session sends.

        Receivers compare the places of messages to one destination, and only ask which is later. One count for all
        destinations answers that, and needs no memory of each reply queue that a program ever answered.
        """
        self._sent += 1
        return self._sent

    async def place(self, destination: object) -> Destination:
        """Where a message is to be sent; callers are not all checked."""
        found = await resolved(self.works.provider, destination)
        if not isinstance(found, Destination):
            raise InvalidDestinationException(
                "messages are sent to a topic, made by create_topic, or a queue, made by create_queue, not to "
                f"{destination!r}"[:100]
            )
        self.connection.temporaries.check_sender(found)
        return found

    async def sent(self, message_id: str) -> Sent:
        """Find a message again that this node sent, by its id: in another session, or after a restart.

        Raises `IllegalArgumentException` if nothing is to be heard of it: it did not ask, or `messaging.receipt_s` have
        passed since its end.
        """
        await self.works.ready()
        message = visible.message_named(named(message_id, "a message id"))
        found = None if message is None else await self.works.provider.followed(message)
        sent = self.sends.find(message, found, message_id)
        if sent is None:
            raise IllegalArgumentException(
                f"this node follows no message {message_id!r}: it asked for no receipt, or its time is over"
            )
        await self.works.settled()  # How far it has come is told by then.
        return sent

    def has_sent_enough(self) -> bool:
        """Note a send that did not wait; True if so many were in a row that others should have their turn.

        Not after each: a turn of the loop costs half as much as a send.
        """
        self._in_a_row = (self._in_a_row + 1) % _SENDS_IN_A_ROW
        return not self._in_a_row

    # --- consumers -----------------------------------------------------------------------------------------

    async def consume(self, wanted: Wanted) -> Consumer:
        """Open a consumer."""
        await self.works.ready()
        self.acknowledging.flush()  # A new subscription has what nobody acknowledged: not what this program just got.
        destination = await resolved(self.works.provider, wanted.destination)
        self.connection.temporaries.check_consumer(destination)
        wanted = msgspec.structs.replace(wanted, destination=destination)
        number = await self.works.provider.consume(self.number, asked(wanted))
        consumer = Consumer(self, number, wanted)
        self.consumers[number] = self.connection.consumers[number] = consumer
        return consumer

    async def leave(self, consumer: Consumer) -> None:
        """Close one consumer."""
        unread = [each.number for each in consumer.waiting]
        self._forget(consumer)
        consumer.end()
        self.acknowledging.flush()
        await self.works.provider.close_consumer(consumer.number, unread)

    def _forget(self, consumer: Consumer) -> None:
        self.consumers.pop(consumer.number, None)
        self.connection.consumers.pop(consumer.number, None)
        if consumer.listener is not None:
            self._look_for_listeners()

    @property
    def receives(self) -> bool:
        """Whether a task waits in `receive`."""
        return any(each.is_receiving for each in self.consumers.values())

    @property
    def acknowledger(self) -> Acknowledger:
        """What messages are acknowledged by."""
        return self

    @property
    def delivers(self) -> bool:
        """Whether messages may be given to the program."""
        return self.connection.started and not self._draining and not self.pause.is_on

    def came_alone(self) -> None:
        """A message came that perhaps ended an earlier life: the node hands over nothing else with it."""
        self._alone = True

    def go_on(self) -> bool:
        """The program asks for more, and nothing is here: True if that is because something came alone.

        A program may need several before it acknowledges any of them.
        """
        alone, self._alone = self._alone, False
        if alone:
            self.works.provider.go_on(self.number)
        return alone

    def wake(self) -> None:
        """Something changed for those who wait."""
        for consumer in self.consumers.values():
            consumer.wake()
        self.wake_listeners()

    def wake_listeners(self) -> None:
        """There may be something for a listener."""
        if self._listening is not None:
            self._listening.wake()

    # --- browsers ------------------------------------------------------------------------------------------

    async def look(self, queue: Queue, selector: str | None) -> Look:
        """Begin a look into a queue."""
        found = await resolved(self.works.provider, queue)
        begun = await self.works.provider.browse(self.number, found.address, selector)
        look = self._looks[begun.number] = Look(begun)
        return look

    def browsed(self, part: Browsed) -> None:
        """A part of what waits in a queue; maybe of another session's look."""
        look = self._looks.get(part.number)
        if look is not None:
            look.add(part)

    def forget_look(self, look: Look) -> None:
        """Nobody waits for the rest of it."""
        self._looks.pop(look.number, None)

    # --- listeners -----------------------------------------------------------------------------------------

    def _look_for_listeners(self) -> None:
        """Here, and not with every `receive`: that would cost each of many consumers the number of all."""
        self.listens = any(each.listener is not None for each in self.consumers.values())

    def listeners_changed(self) -> None:
        """A listener came or went."""
        self._look_for_listeners()
        if self.listens and self._listening is None:
            self._listening = Listening(self)
        self.wake()

    def check_not_listening(self, what: str) -> None:
        """Raise if a listener of this session calls."""
        if self._listening is not None:
            self._listening.check_not_inside(what)
        self.completions.check_not_inside(what)

    async def listeners_idle(self) -> None:
        """Wait until no listener is being called."""
        if self._listening is not None:
            await self._listening.idle()

    async def give_up(self, number: int, error: ListenerException, *, seen: bool = False) -> None:
        """Make a dead letter of a message that a program failed with too often; `seen`: it was raised there."""
        self.acknowledging.forget_one(number)
        try:
            await self.works.provider.give_up(self.number, (number,))
        except JMSException as failed:
            self.connection.report(failed)
        self.given_up += 1
        self.connection.report(error, seen=seen)

    def gave_up(self, event: GivenUp) -> None:
        """The node made a dead letter of a message: it was handed over too often, and never acknowledged."""
        self.given_up += 1
        self.connection.report(
            ListenerException(
                f"the message {visible.message_id(event.descriptor)} to {event.descriptor.destination} was handed over "
                f"{event.count} times and never acknowledged: it is a dead letter now"
            ),
            seen=True,  # The program rolled it back, or an earlier life ended with it.
        )

    # --- acknowledging: what messages and programs ask for -------------------------------------------------

    async def acknowledge(self, number: int) -> None:
        """The program acknowledges a message."""
        self.works.check()
        await self.acknowledging.acknowledge(number)

    async def release(self, number: int, message: Message, error: BaseException) -> None:
        """Let a message come again, after a while, that the program failed with; too often, and it is given up."""
        self.works.check()
        count = message.get_int_property("JMSXDeliveryCount")
        if isinstance(error, Exception) and count >= self.works.provider.place.settings.tries:
            await self.give_up(number, given_up(message, count, error), seen=True)
            return
        self.acknowledging.forget_one(number)
        first_s = self.works.provider.place.settings.redelivery_delay_s
        if first_s and isinstance(error, Exception):
            task = asyncio.get_running_loop().create_task(self._release_in(pause_s(first_s, count), number))
            self._releases.add(task)
            task.add_done_callback(self._releases.discard)
        else:
            await self.works.provider.recover(self.number, (), (number,))

    async def _release_in(self, delay_s: float, number: int) -> None:
        await asyncio.sleep(delay_s)
        with suppress(JMSException):  # A session that is closed has given it back.
            await self.works.provider.recover(self.number, (), (number,))

    async def recover(self) -> None:
        """Let everything come again that was not acknowledged."""
        if self.transaction is not None:
            raise IllegalStateException("this context has transactions: rollback() lets everything come again")
        await self.works.ready()
        self.acknowledging.flush()
        unread = self._take_back()
        self.acknowledging.forget()
        self._drop_through(await self.works.provider.recover(self.number, unread, None))

    def _drop_through(self, number: int) -> None:
        """What was on its way when the node let everything come again comes again, too."""
        for consumer in self.consumers.values():
            consumer.drop_through(number)

    def _take_back(self) -> list[int]:
        """What waits at consumers goes back to the node: its numbers."""
        return [number for each in self.consumers.values() for number in each.take_back()]

    # --- the end -------------------------------------------------------------------------------------------

    async def drain(self) -> None:
        """Hand out no more; wait until what was is done with and acknowledged, and all sends are durable."""
        self._draining = True
        if self._listening is not None:
            await self._listening.close()
        self.acknowledging.flush()
        await self.completions.done()
        await self.works.all_done()

    def cut_off(self) -> None:
        """Nobody waits for listeners any more: what they are doing is cancelled."""
        if self._listening is not None:
            self._listening.abandon()
        self.completions.abandon()

    async def close(self) -> None:
        """End it: listeners finish their message, and what was not acknowledged goes back."""
        self._draining = True
        if self._listening is not None:
            await self._listening.close()
        self.acknowledging.flush()
        if self.transaction is not None:
            self.transaction.abandon()
        await self.completions.done()
        unread = [each.number for consumer in self.consumers.values() for each in consumer.waiting]
        self._end("this context is closed: create another")
        if not self.ended:
            await self.works.provider.close_session(self.number, unread)

    def node_ended(self, reason: str) -> None:
        """The node is gone."""
        self.ended = reason
        if self._listening is not None:
            self._listening.abandon()
        self._end(reason)

    def _end(self, reason: str) -> None:
        self.pause.end()
        for task in self._releases:
            task.cancel()
        for consumer in list(self.consumers.values()):
            self._forget(consumer)
            consumer.end(reason)
        for look in self._looks.values():
            look.end(reason)
        self.works.close(reason)
        self.sends.end(reason)
