"""One STOMP client of a node: its frames become calls of a `Provider`, and messages for it become MESSAGE frames.

Frames are processed one after the other, without waiting for durability: a receipt is written when its work is durable.
Any fault, of a frame or of its request, is one ERROR, and the connection ends with it. The client has one connection at
the node, a session for its sends and one for each subscription. Nothing here depends on sockets: bytes are given to an
`Output`.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
from collections import deque
from collections.abc import Callable, Container, Coroutine
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import msgspec

from carrypost.daemon.stomp import mapping, subscriptions
from carrypost.daemon.stomp.codec import RULES, Frame, StompError, Version, agreed, encode, heart_beat
from carrypost.daemon.stomp.mapping import Temporary
from carrypost.daemon.stomp.subscriptions import AUTO, Subscription, Subscriptions
from carrypost.daemon.stomp.transactions import Transactions
from carrypost.errors import (
    CarrypostError,
    IllegalStateException,
    InvalidDestinationException,
    JMSException,
    JMSSecurityException,
    NamingException,
    ResourceAllocationException,
)
from carrypost.jms.consumer_options import ConsumerOptions
from carrypost.jms.consumer_options import asked as wanted_of
from carrypost.jms.destinations import TEMPORARY, Destination, NamedQueue, Queue, resolved
from carrypost.jms.mapping import to_draft
from carrypost.jms.pause import pause_s
from carrypost.jms.provider import Perform, Program
from carrypost.jms.queue_declaration import ANYONE, declare, declared
from carrypost.jms.reports import unserved
from carrypost.journal import Durability
from carrypost.mom import program_commands as do
from carrypost.mom.commands import Declare, Late
from carrypost.version import __version__

if TYPE_CHECKING:
    from carrypost.daemon.stomp.copies import Copies
    from carrypost.events import Browsed, ClaimLost, GivenUp, Handed, OverlayTold, Receipt, Unserved
    from carrypost.gossip.layer import Draft
    from carrypost.jms.provider import Performed, Provider
    from carrypost.mom.commands import Ack

_log = logging.getLogger("carrypost.stomp")
_TEMPORARIES_MAX = 100
_DURABLE_HEADERS = ("durable-subscription-name", "activemq.subscriptionName")


class Output(Protocol):
    """The connection to a client, which takes the bytes for it."""

    def admit(self) -> str:
        """Count the client, whose CONNECT is valid; return the reason why it cannot be served, or an empty text."""

    def write(self, data: bytes) -> None:
        """Write bytes, in order."""

    @property
    def is_full(self) -> bool:
        """True while the client does not read what was written."""

    async def drained(self) -> None:
        """Wait while the client does not read."""

    def end(self) -> None:
        """Close the connection, once everything is written."""


class Options(NamedTuple):
    """Settings that hold for all clients of a node."""

    token: str | None = None
    """The passcode that a client needs; None: none."""
    declares: bool = True
    """True if a subscription to an unknown queue declares it on this node."""
    heart_beat_ms: int = 10_000


class Client(Program):
    """A client, from its first frame to the end of its connection; a `Program` to the node."""

    def __init__(self, provider: Provider, output: Output, options: Options, copies: Copies) -> None:
        self._provider, self._output, self._options, self._copies = provider, output, options, copies
        self.version: Version | None = None
        """None before CONNECT; the decoder of the client's bytes uses it."""
        self.beats_ms = 0, 0
        """Times after which something has to be written, and has to have come; 0: never."""
        self.closed = False
        """True if the connection is to end: nothing more is read or written."""
        self._connection = self._session = 0
        self._client_id = ""
        self._sent = 0
        self._subscriptions = Subscriptions()
        self._transactions = Transactions()
        self._temporaries: dict[str, Queue] = {}
        self._unfinished: dict[asyncio.Future[None], None] = {}
        """Requests of the client that are not durable yet."""
        self._outbox: deque[tuple[Subscription, Handed, bytes | None]] = deque()
        self._written: dict[Subscription, list[Handed]] = {}
        """Messages that count as acknowledged, because they were written."""
        self._delivering: asyncio.Task[None] | None = None
        self._pauses: set[asyncio.Task[None]] = set()
        """Tasks that wait before refused messages come again."""
        self._commands: dict[str, Callable[[Frame], Coroutine[Any, Any, None]]] = {
            "SEND": self._send, "SUBSCRIBE": self._subscribe, "UNSUBSCRIBE": self._unsubscribe, "ACK": self._ack,
            "NACK": self._nack, "BEGIN": self._begin, "COMMIT": self._commit, "ABORT": self._abort,
            "DISCONNECT": self._disconnect,
        }  # fmt: skip

    # --- frames --------------------------------------------------------------------------------------------

    async def carry_out(self, frame: Frame) -> None:
        """Process a frame; a fault ends the connection."""
        if self.closed:
            return
        try:
            if self.version is None:
                await self._connect(frame)
            else:
                await self._commands[frame.command](frame)
        except CarrypostError as error:
            self.fail(error, frame.headers.get("receipt"))

    def fail(self, error: CarrypostError, receipt: str | None = None) -> None:
        """Send the client an error, and end the connection."""
        if self.closed:
            return
        if isinstance(error, StompError):
            receipt = error.receipt or receipt
        text = message = _advised(error)
        if self.version is None:  # It is not known yet whether a backslash in a header is an escape.
            message = message.replace("\\", "?")
        headers = {"message": message[:500], "content-type": "text/plain"}
        if receipt is not None:
            headers["receipt-id"] = receipt
        self._write_frame(Frame("ERROR", headers, text.encode("utf-8", "replace")))
        self._end()

    def _end(self) -> None:
        self.closed = True
        self._output.end()

    def _write_frame(self, frame: Frame) -> None:
        if not self.closed:
            self._output.write(encode(frame, self.version or Version.V1_0))

    def _confirm(self, frame: Frame) -> None:
        """Write the receipt that a frame asks for."""
        receipt = frame.headers.get("receipt")
        if receipt is not None:
            self._write_frame(Frame("RECEIPT", {"receipt-id": receipt}))

    def _follow(self, frame: Frame, done: asyncio.Future[Any]) -> None:
        """Write the receipt of a frame once what it asked for is done; a failure ends the connection."""
        if done.done():
            self._ended(frame, done)
        else:
            self._unfinished[done] = None
            done.add_done_callback(lambda ended: self._ended(frame, ended))

    def _ended(self, frame: Frame, done: asyncio.Future[Any]) -> None:
        self._unfinished.pop(done, None)
        error = None if done.cancelled() else done.exception()
        if isinstance(error, CarrypostError):
            self.fail(error, frame.headers.get("receipt"))
        elif error is None:
            self._confirm(frame)

    # --- the connection ------------------------------------------------------------------------------------

    async def _connect(self, frame: Frame) -> None:
        headers, token = frame.headers, self._options.token
        version = agreed(headers.get("accept-version"))
        if version is None:
            self._write_frame(Frame("ERROR", {"version": ",".join(Version), "message": "no common version of STOMP"}))
            self._end()
            return
        if token is not None and not hmac.compare_digest(headers.get("passcode", "").encode(), token.encode()):
            raise JMSSecurityException("the passcode is not the one in stomp.token, in the folder of the node")
        theirs = heart_beat(headers.get("heart-beat")) if RULES[version].beats else (0, 0)
        if refusal := self._output.admit():
            raise ResourceAllocationException(refusal)
        self._client_id = headers.get("client-id", "")
        self._connection = await self._provider.connect(self._client_id, self)
        self._session = await self._provider.execute(do.OpenSession(self._connection))
        self.version, ours = version, self._options.heart_beat_ms
        self.beats_ms = _slower(ours, theirs[1]), _slower(theirs[0], ours)
        answer = {"version": version.value, "server": f"carrypost/{__version__}", "session": str(self._connection)}
        beats = {"heart-beat": f"{ours},{ours}"} if RULES[version].beats else {}
        self._write_frame(Frame("CONNECTED", answer | beats))

    async def _disconnect(self, frame: Frame) -> None:
        await self.settled()
        self._confirm(frame)
        self._end()
        await self.close(orderly=True)

    async def settled(self) -> None:
        """Wait until everything that the client asked for is durable, and confirmed."""
        while self._unfinished:
            await asyncio.wait(list(self._unfinished))

    async def close(self, *, orderly: bool = False) -> None:
        """End what the client has at the node.

        Unless that is `orderly`, messages that it saw come again one at a time.
        """
        self.closed = True
        if self._delivering is not None:
            self._delivering.cancel()
        for pause in self._pauses:
            pause.cancel()
        connection, self._connection = self._connection, 0
        if connection:
            unread = [number for each in self._subscriptions for number in each.unread]
            with suppress(JMSException):  # The node is gone.
                self._acknowledge_written()
                await self._provider.execute(do.Disconnect(connection, unread, crashed=not orderly))

    # --- sending -------------------------------------------------------------------------------------------

    async def _send(self, frame: Frame) -> None:
        asked = mapping.sent(frame, self._provider.now_us())
        to, reply_to = await self._place(asked.to), asked.reply_to
        self._sent += 1
        sending = msgspec.structs.replace(
            asked.sending, client=self._client_id or None, connection=self._connection, session=self._session,
            number=self._sent, reply_to=None if reply_to is None else await self._place(reply_to),
        )  # fmt: skip
        draft = to_draft(asked.message, to, sending, self._provider.node_info.limits)
        transaction = self._transactions.get(frame.headers)
        if transaction is not None:
            transaction.send(draft, frame, self._provider.node_info.settings.draft_bytes_max)
            self._confirm(frame)
            return
        await self._provider.room()
        performed = self._perform((draft,), (), durable=draft.persistent)
        if draft.persistent:
            self._follow(frame, performed.done)
        else:
            self._follow(frame, performed.sent)
            self._follow(Frame("SEND", {}), performed.done)  # A full disk is reported, too.

    def _perform(self, drafts: tuple[Draft, ...], acks: tuple[Ack, ...], *, durable: bool) -> Performed:
        durability = Durability.FULL if durable else Durability.NORMAL
        return self._provider.perform(Perform(self._session, drafts, acks, durability))

    async def _place(self, meant: Destination | Temporary) -> Destination:
        """Return the destination that a header means; a temporary queue is made when it is named first."""
        if not isinstance(meant, Temporary):
            return await resolved(self._provider, meant)
        found = self._temporaries.get(meant.name)
        if found is None:
            if len(self._temporaries) >= _TEMPORARIES_MAX:
                raise ResourceAllocationException(f"a client has at most {_TEMPORARIES_MAX} temporary queues")
            number = len(self._temporaries) + 1
            name = f"{TEMPORARY}{self._provider.now_us():x}-{self._connection}-{number}"
            await self._provider.execute(do.DeclareQueue(Declare(name, connection=self._connection)))
            found = self._temporaries[meant.name] = Queue(f"{name}@{self._provider.node_info.node}")
        return found

    # --- transactions --------------------------------------------------------------------------------------

    async def _begin(self, frame: Frame) -> None:
        self._transactions.begin(frame.headers)
        self._confirm(frame)

    async def _commit(self, frame: Frame) -> None:
        transaction = self._transactions.end(frame.headers)
        acknowledged = [(each, list(handed.values())) for each, handed in transaction.acknowledged.items()]
        for subscription, _ in acknowledged:
            self._subscriptions.check_open(subscription)
        await self._provider.room()
        acks = tuple(subscription.ack(handed) for subscription, handed in acknowledged)
        done = self._perform(tuple(transaction.drafts), acks, durable=True).done
        for subscription, handed in acknowledged:
            subscription.release(self._provider, handed)
        for subscription, refused in transaction.refused.items():
            if self._subscriptions.has(subscription):  # Else they went back when it ended.
                await self._refuse(subscription, list(refused.values()), transaction.dead)
        self._follow(frame, done)

    async def _abort(self, frame: Frame) -> None:
        self._transactions.end(frame.headers)
        self._confirm(frame)

    # --- subscriptions -------------------------------------------------------------------------------------

    async def _subscribe(self, frame: Frame) -> None:
        headers, provider = frame.headers, self._provider
        id_ = headers.get("id", headers["destination"])
        self._subscriptions.check_new(id_)
        meant = mapping.destination(headers["destination"], headers.get("ordering"))
        name = next((headers[each] for each in _DURABLE_HEADERS if headers.get(each)), "")
        if name and not self._client_id:
            raise IllegalStateException("a durable subscription requires a client id: CONNECT with a client-id")
        wanted = ConsumerOptions(
            destination=await self._found(meant), selector=headers.get("selector"), name=name, durable=bool(name),
            no_local=headers.get("no-local") == "true" or headers.get("activemq.noLocal") == "true",
        )  # fmt: skip
        asked = subscriptions.asked(id_, wanted_of(wanted), headers, provider)
        session = await provider.execute(do.OpenSession(self._connection))
        try:
            consumer = await provider.execute(do.Consume(session, asked.wanted))
        except JMSException:
            await provider.execute(do.CloseSession(session))
            raise
        made = Subscription(asked, session, consumer, self.version or Version.V1_0)
        self._subscriptions.add(made)
        self._confirm(frame)
        made.begin(provider)

    async def _found(self, meant: Destination | Temporary) -> Destination:
        """Return the destination of a subscription: an unknown queue is declared here, if that is allowed."""
        try:
            return await self._place(meant)
        except InvalidDestinationException:
            if not (isinstance(meant, NamedQueue) and self._options.declares):
                raise
            node = self._provider.node_info.node
            asked = declared(node, meant.queue_name, "never", None, "fair", receivers=ANYONE)
            return await declare(self._provider, asked, advertise=True)

    async def _unsubscribe(self, frame: Frame) -> None:
        headers = frame.headers
        id_ = headers.get("id", headers.get("destination", ""))
        name = next((headers[each] for each in _DURABLE_HEADERS if headers.get(each)), "")
        with_one = not name or any(each.id == id_ for each in self._subscriptions)
        if with_one:
            self._acknowledge_written()
            subscription = self._subscriptions.remove(id_)
            self._outbox = deque(each for each in self._outbox if each[0] is not subscription)
            await self._provider.execute(do.CloseSession(subscription.session, list(subscription.unread)))
        if name:
            await self._provider.execute(do.Unsubscribe(self._client_id, name))
        self._confirm(frame)

    # --- acknowledging -------------------------------------------------------------------------------------

    async def _ack(self, frame: Frame) -> None:
        subscription, number = self._subscriptions.find(frame.headers)
        handed = subscription.meant(number)
        transaction = self._transactions.get(frame.headers)
        if transaction is not None:
            transaction.acknowledge(subscription, handed)
            self._confirm(frame)
            return
        done = self._perform((), (subscription.ack(handed),), durable="receipt" in frame.headers).done
        subscription.release(self._provider, handed)
        self._follow(frame, done)

    async def _nack(self, frame: Frame) -> None:
        subscription, number = self._subscriptions.find(frame.headers)
        handed, dead = subscription.meant(number), frame.headers.get("requeue") == "false"
        transaction = self._transactions.get(frame.headers)
        if transaction is not None:
            transaction.refuse(subscription, handed, dead=dead)
        else:
            await self._refuse(subscription, handed, {each.number for each in handed} if dead else ())
        self._confirm(frame)

    async def _refuse(self, subscription: Subscription, handed: list[Handed], dead: Container[int]) -> None:
        """Let messages come again; those that came too often, or whose numbers are in `dead`, become dead letters."""
        settings = self._provider.node_info.settings
        again: list[Handed] = []
        given_up: list[Handed] = []
        for each in subscription.withdraw(handed):
            (given_up if each.number in dead or each.count >= (each.tries or settings.tries) else again).append(each)
        if given_up:
            await self._provider.execute(
                do.Release(subscription.session, [each.number for each in given_up], dead=True, error="NACK")
            )
            subscription.make_room(self._provider, given_up)
        if again and settings.redelivery_delay_s:
            delay_s = pause_s(settings.redelivery_delay_s, max(each.count for each in again))
            pause = asyncio.get_running_loop().create_task(self._redeliver(subscription, again, delay_s))
            self._pauses.add(pause)
            pause.add_done_callback(self._pauses.discard)
        elif again:
            await self._redeliver(subscription, again, 0.0)

    async def _redeliver(self, subscription: Subscription, refused: list[Handed], delay_s: float) -> None:
        """Let refused messages come again after a pause; until then they count as prefetched, so that few can wait."""
        await asyncio.sleep(delay_s)
        with suppress(JMSException):  # The subscription has ended, or the node: they went back with it.
            await self._provider.execute(do.Recover(subscription.session, (), [each.number for each in refused]))
            subscription.make_room(self._provider, refused)

    # --- events of the node --------------------------------------------------------------------------------

    def deliver(self, handed: Handed, body: bytes | None = None) -> None:
        """Write a message from the node, when the client has read what came before."""
        subscription = self._subscriptions.of_consumer(handed.consumer)
        if subscription is None or self.closed:
            return
        subscription.hand(handed)
        self._outbox.append((subscription, handed, body))
        if self._delivering is None or self._delivering.done():
            self._delivering = asyncio.get_running_loop().create_task(self._deliver())

    async def _deliver(self) -> None:
        """Write waiting messages, as fast as the client reads."""
        try:
            while self._outbox and not self.closed:
                await self._write(*self._outbox.popleft())
                if self._output.is_full:
                    self._acknowledge_written()
                    await self._output.drained()
            self._acknowledge_written()
        except CarrypostError as error:
            self.fail(error)
        except Exception:  # noqa: BLE001 - A client that gets nothing more, and no error, would wait for ever.
            _log.exception("a message could not be written to a client; ending its connection")
            self.fail(JMSException("the node failed to write a message: please report this, with the node's log"))

    async def _write(self, subscription: Subscription, handed: Handed, body: bytes | None) -> None:
        number = handed.number
        if 0 < handed.lease_us <= self._provider.now_us():
            # The lease ended while the message waited here: its manager gives it to another consumer.
            await self._provider.execute(do.Recover(subscription.session, (number,), (number,)))
            subscription.release(self._provider, [handed])
            return
        rest = await self._copies.rest(handed, body, subscription.version)
        if rest is None or not subscription.holds(number):
            subscription.release(self._provider, [handed])  # It expired, or its subscription ended.
            return
        subscription.unread.pop(number, None)
        if subscription.mode == AUTO:
            own = b""
            self._written.setdefault(subscription, []).append(handed)
        else:
            own = b"ack:%d\n" % number if subscription.version is Version.V1_2 else b""
        if handed.count > 1:
            own += b"redelivered:true\n"
        self._output.write(subscription.beginning + own + rest)

    def _acknowledge_written(self) -> None:
        """Acknowledge, in one unit of work, messages written to subscriptions with automatic acknowledgement."""
        if not self._written:
            return
        written, self._written = self._written, {}
        acks = tuple(each.ack(handed, late=Late.ACCEPT) for each, handed in written.items())
        self._perform((), acks, durable=False)
        for subscription, handed in written.items():
            subscription.release(self._provider, handed)

    def gave_up(self, event: GivenUp) -> None:
        """Do nothing: the message is a dead letter, which the node's queue for those has."""

    def browsed(self, part: Browsed) -> None:
        """Do nothing: STOMP has no browsers."""

    def receipt(self, receipt: Receipt) -> None:
        """Do nothing: receipts of STOMP mean that the node has something."""

    def lost(self, lost: ClaimLost) -> None:
        """Do nothing: STOMP cannot express it."""

    def overlaid(self, event: OverlayTold) -> None:
        """Do nothing: no client consumes from a channel."""

    def unserved(self, event: Unserved) -> None:
        """End the connection: a client that connects again also subscribes again."""
        self.fail(unserved(event))

    def node_ended(self, reason: str) -> None:
        """End the connection, after the receipts of what was done before."""
        self._connection = 0
        asyncio.get_running_loop().call_soon(self.fail, JMSException(reason))


def _advised(error: CarrypostError) -> str:
    """Return the text of an error; for an unknown name, with advice for STOMP clients."""
    if not isinstance(error, InvalidDestinationException) or not isinstance(error.__cause__, NamingException):
        return str(error)
    return (
        f"{error.__cause__}. SUBSCRIBE, or `carrypost bind queue/NAME`, declares a queue on this node. "
        f"{mapping.QUEUE}NAME@NODE addresses a queue without looking up its name"
    )


def _slower(one_ms: int, other_ms: int) -> int:
    """Return the interval at which one side beats, by what it can and what the other wants; 0: never."""
    return max(one_ms, other_ms) if one_ms and other_ms else 0
