"""STOMP clients of a node: listens for them, if the settings say so, and carries out their frames and subscriptions.

Frames become calls of a `Provider`, and messages for a client become MESSAGE frames. Frames are processed one after the
other, without waiting for durability: a receipt is written when its work is durable. Any fault, of a frame or of its
request, is one ERROR, and the connection ends with it. The client has one connection at the node, a session for its
sends and one for each subscription. Nothing in `Client` depends on sockets: bytes are given to an `Output`.

Each subscription is a session of the node with one consumer, so a cumulative acknowledgement is one number. What is
acknowledged, or in mode `auto` written, makes room for more.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Container, Coroutine
from contextlib import suppress
from typing import TYPE_CHECKING, Any, ClassVar, Final, NamedTuple

from carrypost.daemon import client, server
from carrypost.daemon.client import ClientProgram, Copies, Options, Output, Receiving, opened, remote_prefetch
from carrypost.daemon.stomp import mapping
from carrypost.daemon.stomp.codec import BEAT, RULES, Decoder, Frame, StompError, Version, agreed, encode, heart_beat
from carrypost.daemon.stomp.mapping import Temporary, beginning, rest
from carrypost.errors import (
    CarrypostError,
    IllegalArgumentException,
    IllegalStateException,
    InvalidDestinationException,
    JMSException,
    NamingException,
    ResourceAllocationException,
)
from carrypost.jms.consumer_options import ConsumerOptions
from carrypost.jms.consumer_options import asked as wanted_of
from carrypost.jms.destinations import Destination, Queue, resolved
from carrypost.jms.listener_calls import pause_s
from carrypost.jms.mapping import to_draft
from carrypost.messaging import commands as do
from carrypost.version import __version__

if TYPE_CHECKING:
    from collections.abc import Mapping

    from carrypost.attach.served_node import ServedNode
    from carrypost.jms.provider import Provider
    from carrypost.log.events import Handed


AUTO, CLIENT, INDIVIDUAL = "auto", "client", "client-individual"
SUBSCRIPTIONS_MAX: Final = 100
"""Subscriptions that one client may have."""
PREFETCH_MAX: Final = 10_000
_PREFETCH_HEADERS = ("prefetch-count", "activemq.prefetchSize")
_DIGITS_MAX = 9


class SubscribeRequest(NamedTuple):
    """A subscription as its client asks for it."""

    id: str
    """The client's id of the subscription."""
    wanted: do.Subscribe | do.Receive
    mode: str
    """Acknowledgement mode: `auto`, `client` or `client-individual`."""
    prefetch: int
    """Messages that the client may have and not have acknowledged."""


class Subscription(client.Subscription):
    """An open subscription."""

    def __init__(self, asked: SubscribeRequest, session: int, consumer: int, version: Version) -> None:
        super().__init__(session, consumer, asked.prefetch)
        self.id, self.mode = asked.id, asked.mode
        self.version, self.beginning = version, beginning(asked.id, version)
        """The client's version, and what each MESSAGE begins with."""

    def named(self, message: str) -> int | None:
        """Return the number of the message with this id; None if the client has no such message."""
        return next((number for number, each in self._held.items() if each.descriptor.id_text == message), None)

    def meant(self, number: int) -> list[Handed]:
        """Return the messages that an ACK or NACK of this number covers: in mode `client` all up to it."""
        # In mode `client` an acknowledgement is cumulative, as STOMP has it.
        return [self._held[number]] if self.mode == INDIVIDUAL else self.through(number)


class Subscriptions(Receiving[Subscription, Version, bytes]):
    """All subscriptions of one client."""

    def __init__(
        self,
        provider: Provider,
        output: Output,
        copies: Copies[Version, bytes],
        fail: Callable[[CarrypostError], None],
        *,
        decoder: Decoder,
    ) -> None:
        super().__init__(provider, output, copies, fail)
        self._decoder = decoder
        self._by_id: dict[str, Subscription] = {}

    @property
    def version(self) -> Version:
        """The client's version of STOMP."""
        return self._decoder.version or Version.V1_0

    async def open(self, connection: int, asked: SubscribeRequest) -> Subscription:
        """Open one more, which has no credit yet."""
        self._check_new(asked.id)
        session, consumer = await opened(self._provider, connection, asked.wanted)
        made = Subscription(asked, session, consumer, self.version)
        self._by_id[made.id] = self._by_consumer[consumer] = made
        return made

    def _check_new(self, id_: str) -> None:
        if id_ in self._by_id:
            raise IllegalArgumentException(f"there is a subscription {id_!r} already: choose another id"[:200])
        if len(self._by_id) >= SUBSCRIPTIONS_MAX:
            raise ResourceAllocationException(f"a client has at most {SUBSCRIPTIONS_MAX} subscriptions")

    async def remove(self, id_: str) -> None:
        """End the one with this id; raises `IllegalArgumentException` if there is none."""
        found = self._get(id_)
        del self._by_id[id_]
        await self.end(found, found.unread)

    def _get(self, id_: str) -> Subscription:
        found = self._by_id.get(id_)
        if found is None:
            raise IllegalArgumentException(f"there is no subscription {id_!r}: SUBSCRIBE first"[:200])
        return found

    def check_open(self, subscription: Subscription) -> None:
        """Raise if a subscription whose messages a transaction acknowledges has ended."""
        if not self.has(subscription):
            raise IllegalArgumentException(
                "the transaction was not committed: it acknowledges messages of the subscription "
                f"{subscription.id[:60]!r}, which has ended"
            )

    async def write(self, subscription: Subscription, handed: Handed, copy: bytes) -> None:
        """Write a message; in mode `auto` it counts as acknowledged then."""
        number, own = handed.number, b""
        subscription.unread.pop(number, None)
        if subscription.mode == AUTO:
            self.acknowledge(subscription, [handed])
        elif subscription.version is Version.V1_2:
            own = b"ack:%d\n" % number
        if handed.count > 1:
            own += b"redelivered:true\n"
        self._output.write(subscription.beginning + own + copy)

    def find(self, headers: Mapping[str, str]) -> tuple[Subscription, int]:
        """Return the subscription and the number of the message that an ACK or NACK names."""
        ack = headers.get("id")
        if ack is not None:
            # Numbers of any length would be converted here, which takes quadratic time.
            number = int(ack) if ack.isascii() and ack.isdigit() and len(ack) <= 2 * _DIGITS_MAX else 0
            candidates = [(each, number) for each in self if each.holds(number)]
        else:
            among = [self._get(headers["subscription"])] if "subscription" in headers else list(self)
            found = [(each, each.named(headers["message-id"])) for each in among]
            candidates = [(each, number) for each, number in found if number is not None]
        if not candidates:
            what = ack if ack is not None else headers["message-id"]
            raise IllegalArgumentException(
                f"there is no message {what[:60]!r} to acknowledge: it was acknowledged, is being redelivered, "
                "expired, or belongs to another subscription"
            )
        if candidates[0][0].mode == AUTO:
            raise IllegalArgumentException("the subscription acknowledges automatically: subscribe with ack:client")
        return candidates[0]


def subscribe_request(
    id_: str, wanted: do.Subscribe | do.Receive, headers: Mapping[str, str], provider: Provider
) -> SubscribeRequest:
    """Return a subscription as a SUBSCRIBE asks for it."""
    mode = headers.get("ack", AUTO)
    if mode not in (AUTO, CLIENT, INDIVIDUAL):
        raise IllegalArgumentException(f"ack must be {AUTO}, {CLIENT} or {INDIVIDUAL}, not {mode!r}"[:200])
    return SubscribeRequest(id_, wanted, mode, _prefetch(wanted, headers, provider))


def _prefetch(wanted: do.Subscribe | do.Receive, headers: Mapping[str, str], provider: Provider) -> int:
    for name in _PREFETCH_HEADERS:
        text = headers.get(name)
        if text is None:
            continue
        if not (text.isascii() and text.isdigit() and len(text) <= _DIGITS_MAX and 0 < int(text) <= PREFETCH_MAX):
            raise IllegalArgumentException(f"{name} must be a number from 1 to {PREFETCH_MAX:,}, not {text!r}"[:200])
        return int(text)
    remote = remote_prefetch(provider, wanted)
    return provider.node_info.settings.prefetch if remote is None else remote


_DURABLE_HEADERS = ("durable-subscription-name", "activemq.subscriptionName")


class Client(ClientProgram[Frame, Subscription]):
    """A client, from its first frame to the end of its connection; a `Program` to the node."""

    decoder: Decoder

    def __init__(self, provider: Provider, output: Output, options: Options, copies: Copies[Version, bytes]) -> None:
        super().__init__(provider, output, options)
        self.decoder = Decoder(provider.node_info.limits.message_bytes_max)
        self.receiving = self._subscriptions = Subscriptions(provider, output, copies, self.fail, decoder=self.decoder)
        self._temporaries: dict[str, Queue] = {}
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
            self._refuse(frame, error)

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

    def _refuse(self, frame: Frame, error: CarrypostError) -> None:
        self.fail(error, frame.headers.get("receipt"))

    # --- the connection ------------------------------------------------------------------------------------

    async def _connect(self, frame: Frame) -> None:
        headers = frame.headers
        version = agreed(headers.get("accept-version"))
        if version is None:
            self._write_frame(Frame("ERROR", {"version": ",".join(Version), "message": "no common version of STOMP"}))
            self._end()
            return
        theirs = heart_beat(headers.get("heart-beat")) if RULES[version].beats else (0, 0)
        self._admit(headers.get("passcode", ""), "the passcode is not the one in stomp.token")
        await self._join(headers.get("client-id", ""))
        self.decoder.version, ours = version, self._options.heart_beat_ms
        self.beats_ms = _slower(ours, theirs[1]), _slower(theirs[0], ours)
        answer = {"version": version.value, "server": f"carrypost/{__version__}", "session": str(self._connection)}
        beats = {"heart-beat": f"{ours},{ours}"} if RULES[version].beats else {}
        self._write_frame(Frame("CONNECTED", answer | beats))

    async def _disconnect(self, frame: Frame) -> None:
        await self.settled()
        self._confirm(frame)
        self._end()
        self._orderly = True
        await self.close()

    async def close(self) -> None:
        """End what the client has at the node."""
        for pause in self._pauses:
            pause.cancel()
        await super().close()

    # --- sending -------------------------------------------------------------------------------------------

    async def _send(self, frame: Frame) -> None:
        asked = mapping.sent(frame, self._provider.now_us())
        to = await self._place(asked.to)
        reply_to = None if asked.reply_to is None else await self._place(asked.reply_to)
        draft = to_draft(asked.message, to, self._completed(asked.sending, reply_to), self._provider.node_info.limits)
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

    async def _place(self, meant: Destination | Temporary) -> Destination:
        """Return the destination that a header means; a temporary queue is made when it is named first."""
        if not isinstance(meant, Temporary):
            return await resolved(self._provider, meant)
        found = self._temporaries.get(meant.name)
        if found is None:
            number = len(self._temporaries) + 1
            found = await client.temporary_queue(self._provider, self._connection, number)
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
                await self._give_up(subscription, list(refused.values()), transaction.dead)
        self._follow(frame, done)

    async def _abort(self, frame: Frame) -> None:
        self._transactions.end(frame.headers["transaction"])
        self._confirm(frame)

    # --- subscriptions -------------------------------------------------------------------------------------

    async def _subscribe(self, frame: Frame) -> None:
        headers, provider = frame.headers, self._provider
        id_ = headers.get("id", headers["destination"])
        meant = mapping.destination(headers["destination"], headers.get("ordering"))
        name = next((headers[each] for each in _DURABLE_HEADERS if headers.get(each)), "")
        if name and not self._client_id:
            raise IllegalStateException("a durable subscription requires a client id: CONNECT with a client-id")
        wanted = ConsumerOptions(
            destination=await self._found(meant), selector=headers.get("selector"), name=name, durable=bool(name),
            no_local=headers.get("no-local") == "true" or headers.get("activemq.noLocal") == "true",
        )  # fmt: skip
        request = subscribe_request(id_, wanted_of(wanted), headers, provider)
        made = await self._subscriptions.open(self._connection, request)
        self._confirm(frame)
        made.begin(provider)

    async def _found(self, meant: Destination | Temporary) -> Destination:
        """Return the destination of a subscription: an unknown queue is declared here, if that is allowed."""
        if isinstance(meant, Temporary):
            return await self._place(meant)
        return await client.consumed(self._provider, meant, declares=self._options.declares)

    async def _unsubscribe(self, frame: Frame) -> None:
        headers = frame.headers
        id_ = headers.get("id", headers.get("destination", ""))
        name = next((headers[each] for each in _DURABLE_HEADERS if headers.get(each)), "")
        with_one = not name or any(each.id == id_ for each in self._subscriptions)
        if with_one:
            await self._subscriptions.remove(id_)
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
            await self._give_up(subscription, handed, {each.number for each in handed} if dead else ())
        self._confirm(frame)

    async def _give_up(self, subscription: Subscription, handed: list[Handed], dead: Container[int]) -> None:
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


TOKEN_FILE: Final = "stomp.token"  # noqa: S105 - its name is no secret


class Server(server.Server):
    """The STOMP clients of one node."""

    name: ClassVar[str] = "STOMP"
    table: ClassVar[str] = "stomp"
    first: ClassVar[str] = "CONNECT"
    command: ClassVar[str] = "frame"

    def __init__(self, served: ServedNode) -> None:
        super().__init__(served)
        self._heart_beat_ms = round(1_000 * served.node.settings.stomp.heart_beat_s)
        self._copies = Copies(self.provider, rest)

    def client(self, output: Output) -> Client:
        """Return a new client."""
        options = self.options._replace(heart_beat_ms=self._heart_beat_ms)
        return Client(self.provider, output, options, self._copies)
