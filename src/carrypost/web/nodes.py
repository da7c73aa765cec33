"""Running nodes for pages: samples over time, messages that pages send, browse and hold, and the routes about them.

However many pages look at a node, it is asked once a second, when one of them asks, and they share the answers. When
none has asked for four seconds, the connection is closed, so a node with no page open is as without pages. A node that
ends, hangs or is started again is found out by the same round; its last answers stay, and are marked as old.

For messages, pages act as programs do: attached to the node, opened when needed. Consumers belong to a page. One that
did not ask for ninety seconds is gone (browsers wake hidden tabs once a minute): its consumer is closed, and what it
held comes again. Where pages may only look, there are no routes for sending and receiving.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import itertools
import logging
import time
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from typing import Any

import msgspec
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from carrypost.attach.client import Client
from carrypost.errors import (
    CarrypostError,
    IllegalStateException,
    InvalidSelectorException,
    JMSException,
    LocalError,
    MessageFormatException,
    NoNodeError,
)
from carrypost.jms.consumer import Consumer
from carrypost.jms.context import Context
from carrypost.jms.factory import ConnectionFactory
from carrypost.jms.messages import BytesMessage, Message, TextMessage
from carrypost.jms.messages.headers_and_properties import is_given
from carrypost.jms.modes import DeliveryMode, SessionMode
from carrypost.jms.provider import NODE_ENDED
from carrypost.model.properties import ValueType
from carrypost.model.selector import Selector
from carrypost.model.times import MICROSECONDS
from carrypost.node.diagnosis import of_disk, of_node
from carrypost.node.settings import NodeSettings
from carrypost.web.server import NotFoundError, json_answer, text_of, whole
from carrypost.web.verdict import sentence, verdict, written

PERIOD_S = 1.0
HISTORY = 300
"""Samples of the history: five minutes."""
_LINGER_S = 4.0
_PATIENCE_S = 2.0
"""Time within which a node answers a round; a page must say within three seconds that it does not."""
_COUNTERS = ("sent_bytes", "received_bytes", "sent", "received")


class Samples:
    """One node, as pages see it."""

    def __init__(self, settings: NodeSettings) -> None:
        self.settings = settings
        self.id = hashlib.sha256(str(settings.data.absolute()).encode()).hexdigest()[:10]
        self.serial = 0
        """Number of the last sample."""
        self.last: dict[str, Any] = {}
        """The last answers."""
        self.state, self.reason = "gone", ""
        self.history: deque[tuple[int, list[float]]] = deque(maxlen=HISTORY)
        self._client: Client | None = None
        self._task: asyncio.Task[None] | None = None
        self._wanted, self._fresh = asyncio.Event(), asyncio.Event()
        """Set while a page waits for a round; set for a second after one."""

    @property
    def is_awake(self) -> bool:
        """True while it asks the node."""
        return self._task is not None

    async def sample(self, after: int) -> dict[str, Any]:
        """Return the last sample; of what a page has, by the number of its last one, only the state is repeated."""
        await self._awake()
        found = {"serial": self.serial, "state": self.state, "reason": self.reason, "t": time.time()}
        if after == self.serial:
            return found
        history = [values for number, values in self.history if number > after or after > self.serial]
        return {**found, **self.last, "history": history}

    async def ask(self, what: str, *given: str | int, **named: object) -> Any:  # noqa: ANN401 - what the node says
        """Return what the node answers to a plain call; raises `CarrypostError`."""
        await self._awake()
        if self._client is None:
            raise NoNodeError(self.reason or f"no node runs in {self.settings.data}")
        return await getattr(self._client, what)(*given, **named)

    async def close(self) -> None:
        """End the rounds."""
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task

    async def _awake(self) -> None:
        """Return after a round that began within the last second: if need be, this question begins one."""
        while self._task is None or not self._fresh.is_set():
            if self._task is None:
                self._fresh.clear()
                self._task = asyncio.create_task(self._watch())
            self._wanted.set()
            await self._fresh.wait()

    async def _watch(self) -> None:
        """Ask the node whenever a page wants to know, once a second at most; end when none does for a while."""
        try:
            with suppress(TimeoutError):
                while True:
                    async with asyncio.timeout(_LINGER_S):
                        await self._wanted.wait()
                    begun_s = time.monotonic()
                    await self._look()
                    self._wanted.clear()
                    self._fresh.set()
                    await asyncio.sleep(max(0.0, begun_s + PERIOD_S - time.monotonic()))
                    self._fresh.clear()
        finally:
            self._task = None
            self._fresh.set()  # A question that came too late for this task begins another.
            await self._leave()

    async def _look(self) -> None:
        try:
            async with asyncio.timeout(_PATIENCE_S):
                if self._client is None:
                    self._client = await Client.connect(self.settings.control)
                self.last = await self._answers(self._client)
        except (CarrypostError, TimeoutError) as error:
            self.state = "gone"
            self.reason = str(error) or f"the node at {self.settings.control} does not answer"
            await self._leave()
            self.serial += 1
        else:
            self.note()

    def note(self) -> None:
        """Note the last answers as one more sample."""
        self.state, self.reason = "up", ""
        self.serial += 1
        self.history.append((self.serial, _point(self.last["status"])))

    async def _leave(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            with suppress(CarrypostError, TimeoutError):
                async with asyncio.timeout(_PATIENCE_S):
                    await client.close()

    async def _answers(self, client: Client) -> dict[str, Any]:
        status, peers = await client.status(), await client.peers()
        lacks, messaging = "", {"messaging": None, "channels": None}
        try:
            messaging = await client.messaging()
        except NoNodeError:
            raise
        except CarrypostError as error:  # An earlier version: the other panels work.
            lacks = str(error)
        store = status["store"]
        findings = [
            *of_disk(self.settings.data, store["free_bytes"], store["failure"]),
            *of_node(status, self.settings.core.limits),
        ]
        return {
            "status": status, "peers": peers, "messaging": messaging, "lacks": lacks,
            "findings": msgspec.to_builtins(findings),
        }  # fmt: skip


def _point(status: Mapping[str, Any]) -> list[float]:
    """Return the numbers of one instant: time, traffic, messages and bytes in the cache, dropped and refused.

    The time is that of a clock which nobody sets: rates follow from it.
    """
    counters, cache = status["udp"]["counters"], status["cache"]
    totals = [sum(status[name].values()) for name in ("dropped", "refused")]
    return [
        round(time.monotonic(), 3),
        *(counters[name] for name in _COUNTERS),
        cache["messages"],
        cache["bytes"],
        *totals,
    ]


# --- messages --------------------------------------------------------------------------------------------------------

_log = logging.getLogger("carrypost.web")
CONSUMERS_MAX = 8
HELD_MAX = 20
BODY_MAX = 64 * 1024
_CONSUMERS_LINGER_S = 90.0
_BROWSE_S = 5.0
_RETRY_S = 5.0
_TYPES = {each.name.lower(): each for each in ValueType if ValueType.NULL < each <= ValueType.STRING}
_OPTIONS = {
    "time_to_live": float, "delivery_delay": float, "priority": int, "request_receipt": bool, "label": str,
    "jms_correlation_id": str, "recipients": list, "delivery_timeout": float,
}  # fmt: skip
"""Options of `ctx.send` that a page may give, and the JSON that each is."""


class Held:
    """A consumer of a page, and the messages that it holds."""

    def __init__(self, consumer: Consumer) -> None:
        self.consumer = consumer
        self.messages: dict[int, Message] = {}
        self.asked_s = time.monotonic()
        self._numbers = itertools.count(1)

    async def fill(self, timeout_s: float) -> None:
        """Receive what there is, up to `HELD_MAX` messages in all."""
        while len(self.messages) < HELD_MAX:
            message = await self.consumer.receive(timeout=timeout_s)
            if message is None:
                return
            self.messages[next(self._numbers)] = message
            timeout_s = 0

    def take(self, number: object) -> Message:
        """Remove and return a message; raises `NotFoundError`."""
        found = self.messages.pop(number, None) if isinstance(number, int) else None
        if found is None:
            raise NotFoundError(f"this consumer holds no message {number!r}"[:200])
        return found


class Messages:
    """A program that is attached to one node on behalf of pages."""

    def __init__(self, settings: NodeSettings) -> None:
        self._settings = settings
        self._context: Context | None = None
        self._opening = asyncio.Lock()
        self._held: dict[str, Held] = {}
        self._numbers = itertools.count(1)
        self._ending: asyncio.Task[None] | None = None
        self._used_s = 0.0

    # --- looking -------------------------------------------------------------------------------------------

    async def browse(self, queue: str, selector: str, limit: int) -> dict[str, Any]:
        """Return messages that wait in a queue, and the age of the snapshot where another node manages it."""
        ctx = await self._open()
        browser = ctx.create_browser(queue if "/" in queue else f"queue/{queue}", selector or None)
        found: list[dict[str, Any]] = []
        async for message in browser.messages(timeout=_BROWSE_S):
            found.append(shown(message))
            if len(found) >= limit:
                break
        return {"messages": found, "age_s": browser.age, "taken": browser.taken_at}

    # --- acting --------------------------------------------------------------------------------------------

    async def send(self, asked: Mapping[str, Any]) -> dict[str, Any]:
        """Send a message; returns its id, its state, and when it expires."""
        options = _options(asked)
        sent = await (await self._open()).send(_text(asked, "to"), _message(asked), **options)
        return {"message": sent.message_id, "state": sent.state.name, "expires": sent.expiration}

    async def consume(self, asked: Mapping[str, Any]) -> dict[str, Any]:
        """Open a consumer that holds what it receives, or take one message."""
        mode = asked.get("mode", "hold")
        if str(mode) not in {"hold", "take"}:
            raise LocalError(f"mode must be hold or take, not {mode!r}"[:200])
        if len(self._held) >= CONSUMERS_MAX:
            raise LocalError(f"pages have {CONSUMERS_MAX} consumers of this node already: close one of them first")
        wanted, selector = _text(asked, "from"), asked.get("select") or None
        # Without prefetch a queue gives only what is looked at; the rest waits for others.
        prefetch = 0 if wanted.startswith("queue/") else 1
        made = (await self._open()).create_consumer(wanted, selector, prefetch=prefetch, acknowledge="individual")
        held = Held(await made)
        if mode == "take":
            try:
                message = await held.consumer.receive(timeout=_RETRY_S)
                if message is not None:
                    await message.acknowledge()
                return {"messages": [] if message is None else [shown(message)]}
            finally:
                await held.consumer.close()
        name = str(next(self._numbers))
        self._held[name] = held
        return {"consumer": name}

    async def held(self, name: str) -> dict[str, Any]:
        """Return what a consumer holds; asking keeps it open."""
        held = self._find(name)
        await held.fill(0.5)
        return {"messages": [{"number": number, **shown(each)} for number, each in held.messages.items()]}

    async def settle(self, asked: Mapping[str, Any]) -> dict[str, Any]:
        """Acknowledge a held message, give it back, or close the consumer."""
        name, how = _text(asked, "consumer"), asked.get("how")
        held = self._find(name)
        if how == "acknowledge":
            await held.take(asked.get("number")).acknowledge()
        elif how == "release":
            await held.take(asked.get("number")).release()
        elif how == "close":
            del self._held[name]
            await held.consumer.close()
        else:
            raise LocalError(f"how must be acknowledge, release or close, not {how!r}"[:200])
        return {}

    async def retry(self, asked: Mapping[str, Any]) -> dict[str, Any]:
        """Move a dead letter back to where it came from, for the rest of its lifetime, in one transaction.

        Received and sent in one unit of work, it is in one of the two queues whenever node or server are killed.
        """
        return await asyncio.shield(self._retry(asked))  # A page that is closed meanwhile does not cut it off.

    async def _retry(self, asked: Mapping[str, Any]) -> dict[str, Any]:
        queue, message = _text(asked, "queue"), _text(asked, "message")
        if not queue.removeprefix("queue/").startswith("DLQ."):
            raise LocalError(f"{queue[:80]} is no queue of dead letters: their names begin with DLQ.")
        factory = ConnectionFactory(f"unix:{self._settings.control}", reconnect=False)
        selector = "JMSMessageID = '{}'".format(message.replace("'", "''"))
        async with (
            factory.create_context(SessionMode.SESSION_TRANSACTED) as ctx,
            ctx.create_consumer(queue, selector, prefetch=0) as letters,
        ):
            letter = await letters.receive(timeout=_RETRY_S)
            if letter is None:
                raise NotFoundError(f"{message} is not in {queue} any more, or a program has it"[:300])
            sent = await ctx.send(str(letter.jms_destination), letter, **_rest(letter))
            await ctx.commit()
        return {"message": sent.message_id, "to": str(letter.jms_destination)}

    # --- the connection ------------------------------------------------------------------------------------

    async def _open(self) -> Context:
        self._used_s = time.monotonic()
        async with self._opening:
            if self._context is None:
                factory = ConnectionFactory(f"unix:{self._settings.control}", reconnect=False)
                self._context = opened = await factory.create_context()
                opened.set_exception_listener(lambda error: self._reported(opened, error))
                self._ending = asyncio.create_task(self._end_idle(opened))
            return self._context

    def _reported(self, context: Context, error: JMSException) -> None:
        """Drop a context whose node has ended: the next question opens another."""
        if error.error_code == NODE_ENDED and self._context is context:
            self._context = None
            self._held.clear()
        else:
            _log.warning("%s", error)

    async def _end_idle(self, context: Context) -> None:
        """Close consumers whose pages are gone, and the connection when it is not used, or its node is gone."""
        try:
            while self._context is context and (self._held or time.monotonic() - self._used_s < _CONSUMERS_LINGER_S):
                await asyncio.sleep(1)
                for name, held in list(self._held.items()):
                    if time.monotonic() - held.asked_s > _CONSUMERS_LINGER_S:
                        self._held.pop(name, None)
                        await held.consumer.close()
        finally:
            if self._context is context:
                self._context = None
            with suppress(CarrypostError):
                await context.close()

    async def close(self) -> None:
        """Close everything."""
        if self._ending is not None:
            self._ending.cancel()
            with suppress(asyncio.CancelledError):
                await self._ending

    def _find(self, name: str) -> Held:
        if name not in self._held:
            raise NotFoundError(f"there is no consumer {name[:40]!r}: it was closed, and what it held comes again")
        found = self._held[name]
        found.asked_s = self._used_s = time.monotonic()
        return found


# --- messages as JSON ------------------------------------------------------------------------------------------------


def shown(message: Message) -> dict[str, Any]:
    """Return a message for a page: at most `BODY_MAX` bytes of its body, as text or in base64."""
    try:
        text = message.text if isinstance(message, TextMessage) else None
        properties = {name: _plain(each) for name, each in message.properties.items()}
    except MessageFormatException:
        text, properties = None, {}
    body = message.payload if text is None else text.encode()
    short = body[:BODY_MAX]
    descriptor = message.descriptor
    return {
        "message": message.jms_message_id,
        "label": descriptor.label if descriptor else "",
        "destination": str(message.jms_destination),
        "text": None if text is None else short.decode(errors="ignore"),
        "base64": base64.b64encode(short).decode() if text is None else None,
        "size": len(body),
        "properties": {name: each for name, each in properties.items() if not is_given(name)},
        "given": {name: each for name, each in properties.items() if is_given(name)},
        "correlation": _plain(message.jms_correlation_id),
        "sent": message.jms_timestamp / 1_000,
        "expires": message.jms_expiration / 1_000 if message.jms_expiration else None,
        "priority": message.jms_priority,
        "persistent": message.jms_delivery_mode is DeliveryMode.PERSISTENT,
        "redelivered": message.jms_redelivered,
    }


def _plain(value: object) -> object:
    """Return a value as JSON has it, whole numbers beyond what browsers hold and what is no number as text."""
    if isinstance(value, bytes):
        return value.hex()
    whole = isinstance(value, int) and abs(value) >= 1 << 53
    return str(value) if whole or (isinstance(value, float) and not abs(value) < float("inf")) else value


def _text(asked: Mapping[str, Any], name: str) -> str:
    found = asked.get(name)
    if not isinstance(found, str) or not found:
        raise LocalError(f"{name} must be a text, not {found!r}"[:200])
    return found


def _message(asked: Mapping[str, Any]) -> Message:
    """Return the message that a page describes: a text, or bytes in base64, with properties."""
    made: Message
    if asked.get("base64") is not None:
        made = BytesMessage()
        try:
            made.write_bytes(base64.b64decode(_text(asked, "base64"), validate=True))
        except ValueError:
            raise LocalError("base64 must be the bytes of a body in base64") from None
    else:
        body = asked.get("body", "")
        if not isinstance(body, str):
            raise LocalError(f"body must be a text, or use base64 for bytes, not {body!r}"[:200])
        made = TextMessage(body)
    properties = asked.get("properties") or {}
    if not isinstance(properties, dict):
        raise LocalError('properties must be an object, such as {"level": 3}')
    for name, value in properties.items():
        if not isinstance(value, dict):
            made.properties[name] = value
            continue
        kind = str(value.get("type"))
        if kind not in _TYPES:
            raise LocalError(f"the property {name!r} has the type {kind!r}; there are {', '.join(_TYPES)}"[:300])
        made.properties.set(name, _TYPES[kind], value.get("value"))
    return made


def _options(asked: Mapping[str, Any]) -> dict[str, Any]:
    known = {*_OPTIONS, "to", "body", "base64", "properties", "delivery_mode"}
    if unknown := sorted(set(asked) - known):
        raise LocalError(f"unknown {unknown[0][:40]!r}; there are {', '.join(sorted(known))}")
    found: dict[str, Any] = {}
    for name, kind in _OPTIONS.items():
        if (value := asked.get(name)) is None:
            continue
        numbers = kind in {int, float} and not isinstance(value, bool)
        if not isinstance(value, (int, float) if kind is float else kind) or (kind in {int, float} and not numbers):
            raise LocalError(f"{name} must be of type {kind.__name__}, not {value!r}"[:200])
        found[name] = value
    mode = asked.get("delivery_mode")
    if mode is not None:
        if str(mode) not in DeliveryMode.__members__:
            raise LocalError(f"delivery_mode must be {' or '.join(DeliveryMode.__members__)}, not {mode!r}"[:200])
        found["delivery_mode"] = DeliveryMode[mode]
    return found


def _rest(letter: Message) -> dict[str, Any]:
    """Return the options of a dead letter that is sent again, with the rest of its lifetime."""
    found: dict[str, Any] = {"priority": letter.jms_priority, "delivery_mode": letter.jms_delivery_mode}
    descriptor = letter.descriptor
    if descriptor is not None and descriptor.label:
        found["label"] = descriptor.label
    if letter.jms_expiration:
        left_s = letter.jms_expiration / 1_000 - time.time()
        if left_s * MICROSECONDS < 1:
            raise IllegalStateException("the dead letter has expired meanwhile")
        found["time_to_live"] = left_s
    return found


# --- routes ----------------------------------------------------------------------------------------------------------

BODY_BYTES_MAX = 24 << 20
"""Length of what pages send: a message of 16 MiB in base64 fits."""
_LISTED_MAX = 500
_Look = Callable[[Samples, Request], Awaitable[object]]


class LiveRoutes:
    """The routes about some nodes."""

    def __init__(self, nodes: Mapping[str, NodeSettings], *, read_only: bool = False) -> None:
        self.all = {made.id: made for made in map(Samples, nodes.values())}
        self.messages = {name: Messages(each.settings) for name, each in self.all.items()}
        self.read_only = read_only
        looks: dict[str, _Look] = {
            "sample": self._sample, "cache": _cache, "trace": _trace, "verdict": _verdict, "browse": self._browse,
        }  # fmt: skip
        acts = {} if read_only else {
            "send": Messages.send, "consume": Messages.consume, "settle": Messages.settle, "retry": Messages.retry,
        }  # fmt: skip
        if not read_only:
            looks["held"] = self._held
        self.routes = [
            Route("/api/nodes", self._list),
            *(Route(f"/api/nodes/{{id}}/{name}", self._looking(look)) for name, look in looks.items()),
            *(Route(f"/api/nodes/{{id}}/{name}", self._acting(act), methods=["POST"]) for name, act in acts.items()),
        ]

    @property
    def only(self) -> str | None:
        """The page of the only node."""
        return f"/live/{next(iter(self.all))}" if len(self.all) == 1 else None

    def find(self, name: str) -> Samples:
        """Return a node; raises `LocalError` for any other."""
        if name not in self.all:
            raise LocalError(f"there is no node {name[:40]!r} here; the start page has those that there are")
        return self.all[name]

    async def close(self) -> None:
        """Leave all nodes."""
        await asyncio.gather(
            *(each.close() for each in self.all.values()), *(each.close() for each in self.messages.values())
        )

    # --- looking -------------------------------------------------------------------------------------------

    async def _list(self, _: Request) -> Response:
        return json_answer(await asyncio.gather(*map(self._entry, self.all.values())))

    async def _entry(self, node: Samples) -> dict[str, Any]:
        found = await node.sample(-1)
        status = found.get("status", {})
        return {
            "id": node.id, "folder": str(node.settings.data), "state": node.state, "reason": node.reason,
            "node": status.get("node", ""), "neighbours": status.get("neighbours"),
            "messages": status.get("cache", {}).get("messages"), "findings": len(found.get("findings", ())),
            "entries": (status.get("messaging") or {}).get("entries"),
        }  # fmt: skip

    def _looking(self, look: _Look) -> Callable[[Request], Awaitable[Response]]:
        async def answer(request: Request) -> Response:
            return json_answer(await look(self.find(request.path_params["id"]), request))

        return answer

    async def _sample(self, node: Samples, request: Request) -> object:
        found = await node.sample(whole(request, "after", -1, 1 << 53, -1))
        return {**found, "read_only": self.read_only, "folder": str(node.settings.data)}

    async def _browse(self, node: Samples, request: Request) -> object:
        limit = whole(request, "limit", 50, 200, 1)
        return await self.messages[node.id].browse(text_of(request, "queue"), text_of(request, "select"), limit)

    async def _held(self, node: Samples, request: Request) -> object:
        return await self.messages[node.id].held(text_of(request, "consumer"))

    # --- acting --------------------------------------------------------------------------------------------

    def _acting(
        self, act: Callable[[Messages, Mapping[str, Any]], Awaitable[dict[str, Any]]]
    ) -> Callable[[Request], Awaitable[Response]]:
        made = 201 if act in {Messages.send, Messages.consume} else 200

        async def answer(request: Request) -> Response:
            node = self.find(request.path_params["id"])
            found = await act(self.messages[node.id], await _order(request))
            if act is Messages.send:
                with suppress(CarrypostError):  # It is stored, even if the node ended since.
                    found["neighbours"] = (await node.ask("status"))["neighbours"]
            return json_answer(found, made)

        return answer


async def _order(request: Request) -> Mapping[str, Any]:
    """Return the JSON object that a page sent; raises `HTTPException` for anything else."""
    body = bytearray()
    async for part in request.stream():
        body += part
        if len(body) > BODY_BYTES_MAX:
            raise HTTPException(413, f"a page may send {BODY_BYTES_MAX >> 20} MiB at most")
    try:
        return msgspec.json.decode(bytes(body), type=dict[str, Any])
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise HTTPException(400, f"the body must be a JSON object: {error}") from None


async def _cache(node: Samples, request: Request) -> object:
    """Return a page of copies that match a selector over the columns of the list, the oldest first."""
    text, destination = text_of(request, "select"), text_of(request, "destination")
    try:
        selector = Selector(text) if text else None
    except InvalidSelectorException as error:
        raise LocalError(f"{error} (character {error.position})") from None
    after: int | None = whole(request, "after", 0, 1 << 62)
    rows: list[dict[str, Any]] = []
    while after is not None and len(rows) < _LISTED_MAX:
        page = await node.ask("cache_page", after, destination=destination)
        rows += [row for row in page if selector is None or selector.matches(_columns(row))]
        after = page[-1]["serial"] if page else None
    return {"rows": rows, "next": after}


def _columns(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a selector may name of a copy."""
    return {name: value for name, value in row.items() if isinstance(value, str | int | float | bool)}


async def _trace(node: Samples, request: Request) -> object:
    found = await node.ask("trace", text_of(request, "message"))
    rows = [*map(written, found["rows"]), *({"kind": "held", "t": each["received"], **each} for each in found["held"])]
    return {
        "kept": found["kept"],
        "rows": [{"t": row["t"], "kind": row["kind"], "sentence": sentence(row)} for row in rows],
    }


async def _verdict(node: Samples, request: Request) -> object:
    message = text_of(request, "message")
    if not message:
        raise LocalError("message must be the id or the label of a message")
    found = await node.ask("trace", message)
    if "sends" not in found:
        raise LocalError("this node runs an earlier version, which does not say enough for a verdict")
    return verdict(message, found, await node.ask("peers"), await node.ask("messaging"))
