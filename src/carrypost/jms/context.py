"""`Context`: a program's access to messaging, as in JMS 2.0: a connection and one session of it.

Calls that involve the node are awaited; messages, destinations and producers are made by plain calls. A context is
opened by ``async with``, or by awaiting it, and closed at the end of that block or by `close`.

Its bases create consumers, and declare topics on the node (`messaging.held_topics`). Its circles are groups of nodes
whose topics only members can read.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping
from contextlib import AbstractAsyncContextManager, suppress
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from carrypost.application.circle_state import CircleView
from carrypost.errors import InvalidDestinationException, NameAlreadyBoundException, TransactionInProgressException
from carrypost.jms import declarations, requestor
from carrypost.jms.consumer import Consumer, QueueBrowser
from carrypost.jms.consumer_options import ConsumerOptions, queue_selector
from carrypost.jms.context_sessions import Openable, ValueFactory
from carrypost.jms.destinations import (
    RESERVED,
    Destination,
    HeldTopic,
    Queue,
    Topic,
    as_destination,
    as_queue,
    check_one,
    named,
    resolved,
)
from carrypost.jms.durations import Duration
from carrypost.jms.mapping import Sending
from carrypost.jms.messages import Message
from carrypost.jms.messages.headers_and_properties import PropertyValue
from carrypost.jms.modes import Acknowledge, DeliveryMode, SessionMode
from carrypost.jms.producer import Body, Producer, send_options
from carrypost.jms.requestor import Request
from carrypost.messaging import commands as do
from carrypost.messaging.namespace import Bind
from carrypost.model import address
from carrypost.model.headers import DESTINATION_MAX
from carrypost.model.ids import NodeId

if TYPE_CHECKING:
    from carrypost.jms.declarations import TemporaryQueue, TemporaryTopic
    from carrypost.jms.listener_calls import ExceptionListener
    from carrypost.jms.provider import Provider
    from carrypost.jms.sent import Sent
    from carrypost.messaging.placement_and_discovery import Policy
    from carrypost.overlay.modulators.modulator import Modulator


class ContextCircles:
    """Commands about circles. Circles have names that this node gave them."""

    def __init__(self, provider: Callable[[], Awaitable[Provider]]) -> None:
        self._provider = provider

    async def found(self, name: str) -> str:
        """Found a circle of which this node is the owner; return its id."""
        return await (await self._provider()).execute(do.FoundCircle(name))

    async def invite(self, circle: str, *, to: str | None = None, days: float = 30, fresh: bool = False) -> str:
        """Return a code with which a node joins; with the card `to`, that node alone can use it.

        Everybody who sees a code without `to` can join until the next removal, or for `days`. `fresh`: begin an epoch
        first, so that the newcomer reads nothing older.
        """
        return await (await self._provider()).execute(do.InviteToCircle(circle, to, days, fresh))

    async def join(self, code: str, *, root: str | None = None) -> str:
        """Join the circle of a code; return the name that it has here. With the `root`, this node is an owner, too."""
        return await (await self._provider()).execute(do.JoinCircle(code, root or ""))

    async def remove(self, circle: str, node: str) -> None:
        """Remove a node, and begin an epoch: it reads nothing that members send from then on."""
        await (await self._provider()).execute(do.RemoveFromCircle(circle, NodeId(node)))

    async def rotate(self, circle: str) -> None:
        """Begin a new epoch."""
        await (await self._provider()).execute(do.RotateCircle(circle))

    async def leave(self, circle: str) -> None:
        """Leave a circle, and delete its secrets on this node."""
        await (await self._provider()).execute(do.LeaveCircle(circle))

    async def export(self, circle: str) -> str:
        """Return the seed of the root, for a safe. Whoever has it can act as an owner."""
        return await (await self._provider()).execute(do.ExportCircle(circle))

    async def show(self) -> tuple[CircleView, ...]:
        """Return the circles of this node."""
        return await (await self._provider()).execute(do.ShowCircles())

    async def members(self, circle: str) -> tuple[NodeId, ...]:
        """Return the listed members of a circle."""
        return next((each.members for each in await self.show() if circle in (each.name, each.id)), ())


class TopicDeclaration(ValueFactory):
    """The part of a context that makes its node the holder of topics."""

    async def declare_topic(self, name: str, *, advertise: bool = True) -> Topic:
        """Make this node the holder of a topic, ``NAME@NODE``. Repeated, it keeps the topic and its subscribers.

        Subscribers enrol with this node, and publications are sent to it. It forwards each to the subscribers, in one
        message that lists them. The topic outlives context and program, until `end_topic`. It is bound to its name in
        the directory, which is advertised to other nodes unless `advertise` is false.
        """
        found = named(name, "the name of a topic")
        if "@" in found or found.startswith(RESERVED):
            raise InvalidDestinationException(
                "a held topic is declared by its name alone, and this node is added to it: the name must not "
                f"contain '@' or begin with {RESERVED!r}, as {found!r} does"
            )
        check_one(Topic(found))
        self._opened()
        provider = (await self._ready()).units.provider
        destination = address.holder(found, provider.node_info.node)
        if len(destination.encode()) > min(DESTINATION_MAX, provider.node_info.limits.destination_bytes_max):
            raise InvalidDestinationException(f"{found!r} is too long for a topic of this node")
        await provider.execute(do.DeclareTopic(found))
        with suppress(NameAlreadyBoundException):  # It was declared before, or the program knows.
            await provider.execute(do.BindName(Bind(found, destination, advertise=advertise)))
        return HeldTopic(address.queue_name(found, provider.node_info.node))

    async def end_topic(self, topic: Topic | str) -> None:
        """Stop holding a topic of this node, and unbind its names here: its subscribers get nothing further.

        Raises `InvalidDestinationException` if this node does not hold it.
        """
        found = as_destination(topic)
        if not isinstance(found, HeldTopic):
            raise InvalidDestinationException(f"end_topic requires a topic, made by declare_topic, not {topic!r}"[:200])
        self._opened()
        await (await self._ready()).units.provider.execute(do.EndTopic(found.address))


Relocation = Literal["strict", "stateless", "lossy", "light"]


class ConsumerCreation(TopicDeclaration):
    """The part of a context that creates consumers of topics, channels and queues."""

    def create_consumer(
        self,
        destination: Destination | str,
        selector: str | None = None,
        *,
        no_local: bool = False,
        patterns: Mapping[str, str] | None = None,
        prefetch: int | None = None,
        modulator: Modulator | None = None,
        relocation: Relocation | None = None,
        acknowledge: Acknowledge | None = None,
    ) -> Openable[Consumer]:
        """Return a consumer of a topic or a queue, to be awaited or entered by ``async with``; it lasts while open.

        `selector`: receive only messages that match it; other messages of a queue wait for other consumers.
        `no_local`: leave out messages of this connection. `patterns`: receive only messages whose attributes match
        these regular expressions. Both are for topics. `prefetch`: number of messages that the node hands over ahead of
        the program. With 1, at most one message is in doubt after a crash. With 0, for queues, the node requests a
        message only while `receive` waits, and leaves the rest to other consumers.

        `acknowledge`: the mode of this consumer alone, in a session of its own, which closes with it: "auto", "client",
        "dups-ok" or "individual". Raises `IllegalStateException` in a transacted context.

        For a channel, the consumer's home broker runs the selector, or the `modulator`, on every event. `relocation`
        selects how its seat moves to another broker: "strict" loses nothing; "stateless", "lossy" and "light" give up
        the modulator's state, events, or both. Raises `IllegalStateException` if the overlay is off.
        """
        return self._opening(
            "create_consumer", destination, selector=selector, no_local=no_local, patterns=patterns, prefetch=prefetch,
            modulator=modulator, relocation=relocation, acknowledge=acknowledge,
        )  # fmt: skip

    def create_durable_consumer(
        self,
        topic: Destination | str,
        name: str,
        selector: str | None = None,
        *,
        no_local: bool = False,
        patterns: Mapping[str, str] | None = None,
        prefetch: int | None = None,
        modulator: Modulator | None = None,
        relocation: Relocation | None = None,
        acknowledge: Acknowledge | None = None,
    ) -> Openable[Consumer]:
        """Return a consumer of a durable subscription, which collects messages while it has none, until `unsubscribe`.

        It belongs to the connection's client id and has one consumer at a time. Opening it with another topic or
        selector creates it anew; another modulator, for a channel, replaces its present one.
        """
        return self._opening(
            "create_durable_consumer", topic, name, durable=True, selector=selector, no_local=no_local,
            patterns=patterns, prefetch=prefetch, modulator=modulator, relocation=relocation, acknowledge=acknowledge,
        )  # fmt: skip

    def create_shared_consumer(
        self,
        topic: Destination | str,
        name: str,
        selector: str | None = None,
        *,
        patterns: Mapping[str, str] | None = None,
        prefetch: int | None = None,
        modulator: Modulator | None = None,
        relocation: Relocation | None = None,
        acknowledge: Acknowledge | None = None,
    ) -> Openable[Consumer]:
        """Return one of several consumers of a subscription, on this node: each message goes to one of them."""
        return self._opening(
            "create_shared_consumer", topic, name, shared=True, selector=selector, patterns=patterns, prefetch=prefetch,
            modulator=modulator, relocation=relocation, acknowledge=acknowledge,
        )  # fmt: skip

    def create_shared_durable_consumer(
        self,
        topic: Destination | str,
        name: str,
        selector: str | None = None,
        *,
        patterns: Mapping[str, str] | None = None,
        prefetch: int | None = None,
        modulator: Modulator | None = None,
        relocation: Relocation | None = None,
        acknowledge: Acknowledge | None = None,
    ) -> Openable[Consumer]:
        """Return one of several consumers of a durable subscription, on this node: each message goes to one of them."""
        return self._opening(
            "create_shared_durable_consumer", topic, name, shared=True, durable=True, selector=selector,
            patterns=patterns, prefetch=prefetch, modulator=modulator, relocation=relocation, acknowledge=acknowledge,
        )  # fmt: skip


L = TypeVar("L", bound=Callable[[Any], object])


class Context(ConsumerCreation):
    """A connection and a session; made by `ConnectionFactory.create_context`, or by another context."""

    # --- what it is ----------------------------------------------------------------------------------------

    @property
    def session_mode(self) -> SessionMode:
        """The acknowledgement mode."""
        self._check_not_closed()
        return self._mode

    @property
    def transacted(self) -> bool:
        """True if it has transactions."""
        return self.session_mode is SessionMode.SESSION_TRANSACTED

    @property
    def client_id(self) -> str | None:
        """The client id of its connection; None if it has none."""
        self._check_not_closed()
        return self._connection.client_id or None

    async def set_client_id(self, client_id: str) -> None:
        """Set the client id of the connection, before anything else is done; better, pass it to the factory.

        Raises `InvalidClientIDException` if another connection of this node has it.
        """
        self._own = await self._connection.rename(named(client_id, "a client id"), self._opened())

    @property
    def node_id(self) -> NodeId:
        """The id of the node that it uses."""
        return self._opened().units.provider.node_info.node

    @property
    def given_up(self) -> int:
        """The number of messages that its listeners, including those of `listener`, failed with too often."""
        return sum(session.inbox.given_up for session in self._all)

    # --- contexts and delivery -----------------------------------------------------------------------------

    def create_context(self, mode: SessionMode = SessionMode.AUTO_ACKNOWLEDGE) -> Context:
        """Another context on the same connection, with a session of its own."""
        self._use()
        return Context(self._connection, mode)

    @property
    def auto_start(self) -> bool:
        """True if the first consumer starts the connection."""
        self._check_not_closed()
        return self._auto_start

    def set_auto_start(self, auto_start: bool) -> None:
        """Let the first consumer start the connection, which is the default, or only `start`."""
        self._check_not_closed()
        self._auto_start = auto_start

    async def stop(self) -> None:
        """Stop the delivery of messages to the contexts of this connection, until `start`.

        Returns when no listener is being called. Timeouts of `receive` go on, and so does all sending and carrying.
        """
        self._opened()
        await self._connection.stop()

    def set_exception_listener(self, listener: ExceptionListener | None) -> None:
        """Set the function that is called with problems that no call can raise; without one they are logged.

        Those are sends and acknowledgements that could not be stored after their call returned, messages that a
        listener failed with too often (`ListenerException`), messages that a durable subscription of this client id
        lost (`ResourceAllocationException`: the first, the second, the fourth, and so on), and the end of the node.
        That no other node is near is no problem.
        """
        self._opened()
        self._connection.reports.listen(listener)

    # --- sending -------------------------------------------------------------------------------------------

    async def send(
        self,
        to: Destination | str,
        body: Body,
        *,
        properties: Mapping[str, PropertyValue | None] | None = None,
        jms_correlation_id: str | bytes | None = None,
        jms_reply_to: Destination | str | None = None,
        jms_type: str | None = None,
        priority: int | None = None,
        time_to_live: Duration | None = None,
        delivery_delay: Duration | None = None,
        delivery_timeout: Duration | None = None,
        delivery_mode: DeliveryMode | None = None,
        request_receipt: bool = False,
        label: str | None = None,
        recipients: Collection[str] | None = None,
        sealed: bool | None = None,
    ) -> Sent:
        """Send a message, or a body, to a topic or a queue; returns when this node has it.

        ::

            await ctx.send("topic/village.roads", "The bridge is closed.", properties={"urgency": 5})

        `to` is a destination, or text that names one: ``topic/x``, ``queue/Alan``, ``queue/Alan@NODE``. Lengths of time
        are seconds, or a `timedelta`. Each option means what the producer's setter of that name says, and what is
        raised is as with `Producer.send`.
        """
        session = self._own or self._opened()
        self._connection.used = True
        reply_to = None if jms_reply_to is None else as_destination(jms_reply_to)
        options = send_options(
            Sending(), properties=properties, jms_correlation_id=jms_correlation_id,
            jms_reply_to=reply_to and await resolved(session.units.provider, reply_to), jms_type=jms_type,
            priority=priority, time_to_live=time_to_live, delivery_delay=delivery_delay,
            delivery_timeout=delivery_timeout, delivery_mode=delivery_mode, request_receipt=request_receipt,
            label=label, recipients=recipients, sealed=sealed,
        )  # fmt: skip
        return await session.send(to, body, options)

    def create_producer(self) -> Producer:
        """Create a producer; cheap, and never closed."""
        return Producer(self._use())

    async def sent(self, message_id: str) -> Sent:
        """Find a message by its id, also after a restart; raises `IllegalArgumentException` (`Session.sent`)."""
        return await self._opened().sent(message_id)

    # --- consumers -----------------------------------------------------------------------------------------

    async def unsubscribe(self, name: str) -> None:
        """End a durable subscription of this client id, with everything that waits for it.

        Raises `InvalidDestinationException` if there is none of this name, `IllegalStateException` if it has a consumer
        or unacknowledged messages.
        """
        session = self._opened()
        await session.units.ready()
        await session.units.provider.execute(do.Unsubscribe(self._connection.client_id, name))

    def listener(
        self, destination: Destination | str, selector: str | None = None, *, no_local: bool = False
    ) -> Callable[[L], L]:
        """Decorate a function that gets the messages of a topic or a queue, in a context of its own.

        That context has the same mode. `start` waits until it is ready, and raises why it is not. Several of them run
        side by side; each is called with one message at a time. Raises the exceptions of `create_consumer` for a
        destination or a selector.
        """
        return self._listening(ConsumerOptions(destination=destination, selector=selector, no_local=no_local))

    def responder(self, destination: Destination | str, selector: str | None = None) -> Callable[[L], L]:
        """Decorate a function, which gets requests from a topic or a queue; what it returns is the reply.

        ::

            @ctx.responder("queue/weather")
            async def forecast(question: Message) -> str:
                return f"{question.text} sunny"

        None is no reply, and so is anything if the message has no `jms_reply_to`. The function has a session of its
        own: reply and acknowledgement are one commit, so a program that is killed in between gets the request again,
        and replies once. If the function raises, the request comes again, after a while, as after a rollback. It
        stands when `start` returns. Raises what `listener` raises.
        """
        return self._listening(ConsumerOptions(destination=destination, selector=selector), responds=True)

    # --- queues --------------------------------------------------------------------------------------------

    async def declare_queue(
        self,
        name: str,
        *,
        redelivery: str = "never",
        lease_s: Duration | None = None,
        policy: str = "fair",
        tries: int | None = None,
        receivers: Literal["anyone"] | Collection[str] = declarations.ANYONE,
        advertise: bool = True,
        sealed: bool = False,
        placement: Policy | None = None,
        timeout: Duration | None = None,
    ) -> Queue:
        """Make this node the manager of a queue, ``NAME@NODE``; again, and it finds what waits there.

        The queue outlives context and program, until `end_queue`, or until its last name is unbound. It is bound to its
        name in the directory, which other nodes hear of unless `advertise` is false. `redelivery`: a message that a
        receiver got and does not acknowledge stays with that receiver's node ("never": no two nodes ever get it), or
        goes to any node that asks when its lease of `lease_s` (an hour) is over ("after_lease": it may be consumed
        twice). `policy`: which of the nodes that ask for a message gets it. `receivers`: the ids of the nodes, 64 at
        most, that may receive from it and browse it beside this one; "anyone" includes strangers, which can consume
        what they get. `tries`: deliveries without an acknowledgement after which a message becomes a dead letter,
        instead of `messaging.tries`. `sealed`: messages in plain text fail. Raises
        `JMSException` if the queue is there, and was declared otherwise.

        `placement` lets another node manage it: a function that is given the number of messages that each node consumed
        from queues of this name, and this node's id, and returns a node, such as `most_receiving`. That node is asked,
        and its `messaging.manage` decides; when it declines, the function is called again without its count. Raises
        `JMSException` with all that declined when no node is left, and `DeliveryTimeoutException` if a node does not
        answer within `timeout` (a minute for all).
        """
        provider = self._opened().units.provider
        wanted = declarations.declared(
            provider.node_info.node, name, redelivery, lease_s, policy, receivers=receivers, tries=tries, sealed=sealed
        )
        timeout_us = declarations.placed(placement, timeout)
        here = declarations.managed_by(wanted, provider.node_info.node)
        await self._ready()
        if placement is None:
            return await declarations.declare(provider, here, advertise=advertise)
        return await declarations.place(provider, wanted, placement, timeout_us, advertise=advertise)

    async def end_queue(self, queue: Queue | str) -> None:
        """End a queue that this node manages, with everything that waits in it and all of its names here.

        Its senders are informed that those messages failed. Raises `InvalidDestinationException` if this node does not
        manage the queue, `IllegalStateException` while a program of this node consumes from it.
        """
        self._opened()
        named_queue = as_queue(queue, "end_queue requires a queue, made by declare_queue")
        provider = (await self._ready()).units.provider
        found = await resolved(provider, named_queue)
        await provider.execute(do.EndQueue(found.address))

    @property
    def circles(self) -> ContextCircles:
        """The circles of the node: found, join, invite, remove."""
        return ContextCircles(self._provider)

    async def _provider(self) -> Provider:
        return (await self._ready()).units.provider

    async def card(self) -> str:
        """Return the card of this node: text, or a QR code, by which those who meet its owner can seal messages for it.

        Raises `JMSSecurityException` where security is off.
        """
        return await (await self._ready()).units.provider.execute(do.MakeCard())

    async def add_card(self, card: str) -> str:
        """Learn the sealing key of another node from its card; return the node's id.

        Raises `IllegalArgumentException` for a text that is no card, or one that is out of date.
        """
        return await (await self._ready()).units.provider.execute(do.AddCard(card))

    async def create_temporary_queue(self) -> TemporaryQueue:
        """Create a queue that lives as long as this connection; others may send to it, as to a `jms_reply_to`."""
        connection = (await self._ready()).connection
        return await connection.temporaries.queue(connection.provider, connection.number)

    async def create_temporary_topic(self) -> TemporaryTopic:
        """Create a topic that lives as long as this connection; others may send to it, as to a `jms_reply_to`."""
        connection = (await self._ready()).connection
        return connection.temporaries.topic(connection.provider, connection.number)

    def create_browser(self, queue: Queue | str, selector: str | None = None) -> QueueBrowser:
        """Return a browser: it sees the messages that wait in a queue, by ``async for``, and takes none."""
        session = self._use()
        found = as_queue(queue, "a browser requires a queue, made by create_queue")
        return QueueBrowser(session, found, queue_selector(selector))

    # --- requests ------------------------------------------------------------------------------------------

    async def request(
        self, destination: Destination | str, body: Body, *, time_to_live: Duration, correlation_id: str | None = None
    ) -> Request:
        """Send a message, or a body, and wait for the reply by the handle that this returns, for `time_to_live`.

        The reply comes to a queue of this node, and waits there also while program or node are off: `open_request`
        finds the request again. Returns when request and note are on disk.
        """
        life_s = requestor.waiting_s(time_to_live, "time_to_live")
        return await self._request(destination, body, life_s, correlation_id=correlation_id)

    async def ask(
        self,
        to: Destination | str,
        body: Body,
        *,
        timeout: Duration,
        properties: Mapping[str, PropertyValue | None] | None = None,
    ) -> Message:
        """Send a message, or a body, to a topic or a queue, and return the reply.

        ::

            reply = await ctx.ask("queue/weather@hut", "tomorrow?", timeout=60)

        The request lives as long as the `timeout`. When that is over it is forgotten, and `DeliveryTimeoutException` is
        raised. `request` is for replies that may come after a restart.
        """
        life_s = requestor.waiting_s(timeout, "timeout")
        request = await self._request(to, body, life_s, properties=properties)
        return await self._requestor.answer(request)

    async def _request(
        self,
        to: Destination | str,
        body: Body,
        life_s: float,
        *,
        correlation_id: str | None = None,
        properties: Mapping[str, PropertyValue | None] | None = None,
    ) -> Request:
        if self._opened().transaction is not None:
            raise TransactionInProgressException(
                "a transacted context sends requests only with the commit: make requests in a context of another "
                "mode (ctx.create_context())"
            )
        await self._ready()
        made = await self._requestor.send(to, body, life_s, correlation_id=correlation_id, properties=properties)
        self._start_by_itself()
        return made

    async def open_request(self, correlation_id: str) -> Request:
        """Return the request of this correlation id that a program of this node sent, perhaps before a restart.

        Raises `IllegalStateException` if none is open: its reply was received, or its time is over.
        """
        await self._ready()
        found = await self._requestor.open(named(correlation_id, "a correlation id"))
        self._start_by_itself()
        return found

    async def reply(self, request: Message, body: Body, *, time_to_live: Duration | None = None) -> Sent:
        """Reply to a message: to its `jms_reply_to`, with its correlation id, or else its message id.

        The reply lives as long as the request, unless `time_to_live` says otherwise.
        """
        return await requestor.reply(self._use(), request, body, time_to_live)

    # --- acknowledging -------------------------------------------------------------------------------------

    async def acknowledge(self) -> None:
        """Acknowledge everything that this context received so far; returns when that is on disk.

        Where the mode acknowledges by itself there is nothing to do.
        """
        await self._opened().acknowledgement.acknowledge_all()

    async def recover(self) -> None:
        """Have every message redelivered that this context received and did not acknowledge, flagged as redelivered."""
        await self._opened().recover()

    # --- transactions --------------------------------------------------------------------------------------

    async def commit(self) -> None:
        """Commit the transaction: messages received in it are consumed, messages sent are sent; the next one begins.

        All of it is on disk when this returns, or none of it happened: then `TransactionRolledBackException` is raised,
        and the received messages come again.
        """
        await self._transaction().commit()

    async def rollback(self) -> None:
        """Roll the transaction back: nothing was sent, and received messages come again, flagged."""
        await self._transaction().rollback()

    def transaction(self) -> AbstractAsyncContextManager[None]:
        """Commit at the end of the block; roll back if it raises.

        A context has one transaction at a time: inside the block of another one this raises
        `TransactionInProgressException`.
        """
        return self._transaction().block()


JMSContext = Context
"""As JMS calls it."""
