"""One STOMP client of a node: its frames become calls of a `Provider`, and messages for it become MESSAGE frames.

Frames are processed one after the other, without waiting for durability: a receipt is written when its work is durable.
Any fault, of a frame or of its request, is one ERROR, and the connection ends with it. The client has one connection at
the node, a session for its sends and one for each subscription. Nothing here depends on sockets: bytes are given to an
`Output`.
"""

from __future__ import annotations

import asyncio
import hmac
from collections.abc import Callable, Container, Coroutine
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from carrypost.daemon import queues
from carrypost.daemon.outbox import Outbox, is_late
from carrypost.daemon.stomp import mapping, subscriptions
from carrypost.daemon.stomp.codec import BEAT, RULES, Decoder, Frame, StompError, Version, agreed, encode, heart_beat
from carrypost.daemon.stomp.mapping import Temporary
from carrypost.daemon.stomp.subscriptions import AUTO, Subscription, Subscriptions
from carrypost.daemon.subscription import opened
from carrypost.daemon.transactions import Transactions
from carrypost.errors import (
    CarrypostError,
    IllegalStateException,
    InvalidDestinationException,
    JMSException,
    JMSSecurityException,
    NamingException,
    ResourceAllocationException,
)
from carrypost.events import Unserved
from carrypost.jms.consumer_options import ConsumerOptions
from carrypost.jms.consumer_options import asked as wanted_of
from carrypost.jms.destinations import Destination, Queue, resolved
from carrypost.jms.mapping import to_draft
from carrypost.jms.pause import pause_s
from carrypost.jms.provider import Perform, Program
from carrypost.jms.reports import unserved
from carrypost.journal import Durability
from carrypost.mom import program_commands as do
from carrypost.mom.commands import Late
from carrypost.version import __version__

if TYPE_CHECKING:
    from carrypost.daemon.connection import Output
    from carrypost.daemon.copies import Copies
    from carrypost.events import Handed
    from carrypost.gossip.layer import Draft
    from carrypost.jms.provider import News, Performed, Provider
    from carrypost.mom.commands import Ack

_DURABLE_HEADERS = ("durable-subscription-name", "activemq.subscriptionName")


class Options(NamedTuple):
    """Settings that hold for all clients of a node."""

    token: str | None = None
    """The passcode that a client needs; None: none."""
    declares: bool = True
    """True if a subscription to an unknown queue declares it on this node."""
    heart_beat_ms: int = 10_000


class Client(Program):
    """A client, from its first frame to the end of its connection; a `Program` to the node."""

    def __init__(self, provider: Provider, output: Output, options: Options, copies: Copies[Version, bytes]) -> None:
        self._provider, self._output, self._options, self._copies = provider, output, options, copies
        self.decoder = Decoder(provider.node_info.limits.message_bytes_max)
        self.beats_ms = 0, 0
        """Times after which something has to be written, and has to have come; 0: never."""
        self.closed = False
        """True if the connection is to end: nothing more is read or written."""
        self._connection = self._session = 0
        self._client_id = ""
        self._sent = 0
        self._subscriptions = Subscriptions()
        self._transactions = Transactions[Subscription]()
        self._temporaries: dict[str, Queue] = {}
        self._unfinished: dict[asyncio.Future[None], None] = {}
        """Requests of the client that are not durable yet."""
        self._outbox = Outbox[Subscription](output, self._write, self._acknowledge_written, self.fail)
        self._written: dict[Subscription, list[Handed]] = {}
        """Messages that count as acknowledged, because they were written."""
        self._pauses: set[asyncio.Task[None]] = set()
        """Tasks that wait before refused messages come again."""
        self._commands: dict[str, Callable[[Frame], Coroutine[Any, Any, None]]] = {
            "SEND": self._send, "SUBSCRIBE": self._subscribe, "UNSUBSCRIBE": self._unsubscribe, "ACK": self._ack,
            "NACK": self._nack, "BEGIN": self._begin, "COMMIT": self._commit, "ABORT": self._abort,
            "DISCONNECT": self._disconnect,
        }  # fmt: skip

    @property
    def version(self) -> Version | None:
        """The version of the client's frames; None before CONNECT."""
        return self.decoder.version

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

    def beat(self) -> None:
        """Write a heart-beat."""
        self._output.write(BEAT)

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
        self.decoder.version, ours = version, self._options.heart_beat_ms
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
        self._outbox.close()
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
        transaction = self._transactions.get(frame.headers.get("transaction"))
        if transaction is not None:
            # Headers count, too: a frame without a body may have 64 KiB of them.
            nbytes = len(frame.body) + sum(len(name) + len(value) for name, value in frame.headers.items())
            transaction.send(draft, nbytes, self._provider.node_info.settings.draft_bytes_max)
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
            number = len(self._temporaries) + 1
            found = await queues.temporary_queue(self._provider, self._connection, number)
            self._temporaries[meant.name] = found
        return found

    # --- transactions --------------------------------------------------------------------------------------

    async def _begin(self, frame: Frame) -> None:
        self._transactions.begin(frame.headers["transaction"])
        self._confirm(frame)

    async def _commit(self, frame: Frame) -> None:
        transaction = self._transactions.end(frame.headers["transaction"])
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
        self._transactions.end(frame.headers["transaction"])
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
        session, consumer = await opened(provider, self._connection, asked.wanted)
        made = Subscription(asked, session, consumer, self.version or Version.V1_0)
        self._subscriptions.add(made)
        self._confirm(frame)
        made.begin(provider)

    async def _found(self, meant: Destination | Temporary) -> Destination:
        """Return the destination of a subscription: an unknown queue is declared here, if that is allowed."""
        if isinstance(meant, Temporary):
            return await self._place(meant)
        return await queues.consumed(self._provider, meant, declares=self._options.declares)

    async def _unsubscribe(self, frame: Frame) -> None:
        headers = frame.headers
        id_ = headers.get("id", headers.get("destination", ""))
        name = next((headers[each] for each in _DURABLE_HEADERS if headers.get(each)), "")
        with_one = not name or any(each.id == id_ for each in self._subscriptions)
        if with_one:
            self._acknowledge_written()
            subscription = self._subscriptions.remove(id_)
            self._outbox.forget(subscription)
            await self._provider.execute(do.CloseSession(subscription.session, list(subscription.unread)))
        if name:
            await self._provider.execute(do.Unsubscribe(self._client_id, name))
        self._confirm(frame)

    # --- acknowledging -------------------------------------------------------------------------------------

    async def _ack(self, frame: Frame) -> None:
        subscription, number = self._subscriptions.find(frame.headers)
        handed = subscription.meant(number)
        transaction = self._transactions.get(frame.headers.get("transaction"))
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
        transaction = self._transactions.get(frame.headers.get("transaction"))
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
        self._outbox.add(subscription, handed, body)

    async def _write(self, subscription: Subscription, handed: Handed, body: bytes | None) -> None:
        number = handed.number
        if await is_late(self._provider, subscription, handed):
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

    def note(self, news: News) -> None:
        """End the connection if a subscription gets nothing further: with another one, a client subscribes again.

        STOMP cannot express other news. Its receipts mean that the node has something.
        """
        if isinstance(news, Unserved):
            self.fail(unserved(news))

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
