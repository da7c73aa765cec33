"""Work on a node of commands that send, receive and browse, and of those about names; messages as they are printed.

A message, and the history of one, are printed for people, or as lines of JSON for programs.
"""

from __future__ import annotations

import asyncio
import datetime as dt
import functools
import math
import sys
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
import typer

from carrypost.cli import _message_options, _output
from carrypost.cli._exit import Exit
from carrypost.cli._output import progress, styled
from carrypost.errors import CarrypostError, DeliveryTimeoutException, JMSException, LocalError, MessageFormatException
from carrypost.jms.destinations import ChannelTopic, Destination
from carrypost.jms.messages import BytesMessage, MapMessage, Message, StreamMessage, TextMessage
from carrypost.jms.messages.headers_and_properties import is_given
from carrypost.jms.messages.values import text_of
from carrypost.jms.provider import NODE_LOST
from carrypost.model.address import Kind
from carrypost.model.properties import ValueType
from carrypost.naming import InitialContext
from carrypost.printing import many, printable
from carrypost.web.verdict import Verdict, sentence, written

if TYPE_CHECKING:
    from carrypost.cli._joining import Joined
    from carrypost.cli._message_options import Outgoing, Wanted
    from carrypost.jms.consumer import Consumer
    from carrypost.jms.context import Context
    from carrypost.jms.context_sessions import Openable
    from carrypost.jms.sent import Sent
    from carrypost.log.events import OverlayState
    from carrypost.overlay.modulators.modulator import Modulator


_SHOWN_MAX = 2_000
"""Characters of a body that a line for people has; JSON has all of them."""


def when(ms: float) -> str:
    """Return a time, in milliseconds since 1970, as JSON has it."""
    return dt.datetime.fromtimestamp(ms / 1_000, dt.UTC).isoformat(timespec="milliseconds")


def local(seconds: float) -> dt.datetime:
    """Return a time, in seconds since 1970, as clocks on the wall show it."""
    return dt.datetime.fromtimestamp(seconds, dt.UTC).astimezone()


def place(destination: str) -> str:
    """Return a destination as ``-t`` or ``-q`` takes it: a topic or a queue by its name, unless that is ambiguous."""
    kind, _, name = destination.partition("/")
    return name if kind in (Kind.TOPIC, Kind.QUEUE) and not name.startswith(_message_options.KINDS) else destination


def content(message: Message) -> object:
    """Return the body: text, bytes, a dict or a list; of what cannot be read here, the bytes that came."""
    try:
        match message:
            case TextMessage():
                return message.text
            case MapMessage():
                return {name: _finite(value) for name, value in message.entries.items()}
            case StreamMessage():
                return [_finite(value) for value in message.values]
    except MessageFormatException:
        return message.payload
    return None if type(message) is Message else message.payload


def content_text(message: Message) -> str:
    """Return the body in one text, for people."""
    found = content(message)
    if isinstance(found, bytes):
        return f"<{many(len(found), 'byte')}>"
    text = "" if found is None else str(found)
    return text if len(text) <= _SHOWN_MAX else f"{text[:_SHOWN_MAX]}… ({len(text):,} characters)"


def properties(message: Message) -> dict[str, object]:
    """Return the properties that its author gave it, also those of types that JMS has not."""
    try:
        found: Mapping[str, object] = {name: each for name, each in message.properties.items() if not is_given(name)}
    except MessageFormatException:
        found = {} if message.descriptor is None else message.descriptor.attributes
    return {name: _finite(value) for name, value in found.items()}


def _finite(value: object) -> object:
    """Return a value; NaN and infinities, which JSON lacks, as Java writes them."""
    return value if not isinstance(value, float) or math.isfinite(value) else text_of(ValueType.DOUBLE, value)


def _said_here(message: Message, name: str) -> object:
    """Return a property that this node gave a message; None if it has not."""
    try:
        return message.properties.get(name)
    except MessageFormatException:  # It is not there, and those of the author cannot be read.
        return None


def as_json(message: Message) -> Mapping[str, object]:
    """Return a message as one line of JSON has it; bytes are in base64."""
    body = content(message)
    found = {
        "id": message.jms_message_id,
        "destination": str(message.jms_destination),
        "body": None if isinstance(body, bytes) else body,
        "body_base64": body if isinstance(body, bytes) else None,
        "type": "bytes" if isinstance(message, BytesMessage) else message.body_type.name.lower(),
        "properties": properties(message) or None,
        "label": message.descriptor.label if message.descriptor else None,
        "correlation_id": message.jms_correlation_id,
        "reply_to": None if message.jms_reply_to is None else str(message.jms_reply_to),
        "priority": message.jms_priority,
        "sent": when(message.jms_timestamp),
        "expires": when(message.jms_expiration) if message.jms_expiration else None,
        "author": _said_here(message, "JMS_carrypost_Author"),
        "hops": _said_here(message, "JMS_carrypost_Hops"),
        "redelivered": message.jms_redelivered or None,
        "events_lost": _said_here(message, "JMS_carrypost_EventsLost"),
    }
    return {name: value for name, value in found.items() if value not in (None, "")}


def show_message(message: Message, *, json: bool) -> None:
    """Print a message at once."""
    if json:
        _output.line(as_json(message))
        return
    name = place(str(message.jms_destination))
    text = content_text(message)
    lost = _said_here(message, "JMS_carrypost_EventsLost")
    if lost and isinstance(lost, int):
        _output.say(f"{many(lost, 'event was', 'events were')} lost before the next one")
    head = [styled(f"{local(message.jms_timestamp / 1_000):%H:%M:%S}", dim=True), styled(name, fg="cyan")]
    given = [styled(f"{key}={value}", dim=True) for key, value in properties(message).items()]
    if "\n" in text:
        typer.echo("  ".join([*head, *given]) + styled(f"\n{text}"))
    else:
        typer.echo("  ".join([*head, styled(text), *given]))


_TOGETHER_MAX = 64
"""Messages that are stored together, if there is no pause between them: a disk is as quick with all as with one."""
_EMBEDDING = "messages are stored there, and sent once a node runs"


class Order:
    """Messages that are to be sent, as the command line has them."""

    def __init__(self, to: str, given: Outgoing) -> None:
        self._to, self._given = to, given
        self._body = _message_options.body(given.body, given.payload, given.file)
        if given.sealed and given.plain:
            raise LocalError("--sealed and --plain exclude each other: leave one of them out")
        if given.limit_s is not None and not given.receipt:
            raise LocalError("--for is the time to wait for a receipt: add --receipt, or leave --for out")
        if given.receipt and given.every is not None and given.count is None:
            raise LocalError("--receipt with --every requires --count, since sending otherwise goes on until Ctrl-C")
        if given.ttl == 0:
            raise LocalError("--ttl must be greater than 0")
        self._body.message(1, given.prop)  # Its mistakes are reported before a node is looked for.

    @property
    def embedding(self) -> str | None:
        """Text that says what happens without a running node; None if the command waits for more than the disk."""
        return None if self._given.receipt or self._given.every is not None else _EMBEDDING

    async def send(self, joined: Joined) -> int:
        """Send all of them, and wait for receipts if that was asked; returns the exit code."""
        loop, every_s = asyncio.get_running_loop(), self._given.every
        begun_s, done, kept = loop.time(), 0, list["Sent"]()
        count = 1 if self._given.count is None and every_s is None else self._given.count
        each_told = joined.json or count == 1 or every_s is not None
        with nullcontext() if each_told or count is None else progress("sent", "messages", count) as move:
            while done != count:
                together = 1 if every_s is not None or count is None else min(count - done, _TOGETHER_MAX)
                if every_s is not None:
                    await asyncio.sleep(begun_s + done * every_s - loop.time())
                sents = await asyncio.gather(*(self._send(joined, done + 1 + at) for at in range(together)))
                done += together
                kept += sents if self._given.receipt else []
                if move is not None and count is not None:
                    move(done, count, "")
                for sent in sents if each_told else sents[-1:] if done == count else []:
                    await self._report(joined, sent, "stored" if each_told else f"{count:,} messages stored")
        return await self._wait(joined, kept)

    async def _send(self, joined: Joined, number: int) -> Sent:
        given, message = self._given, self._body.message(number, self._given.prop)
        return await joined.ctx.send(
            self._to,
            message,
            time_to_live=given.ttl,
            request_receipt=given.receipt,
            label=given.label,
            sealed=True if given.sealed else False if given.plain else None,
        )

    async def _report(self, joined: Joined, sent: Sent, stored: str) -> None:
        """Report that a message is stored, its possible carriers, and when it expires."""
        neighbours, expires_s = await joined.neighbours(), sent.expiration
        if joined.json:
            expires = None if expires_s is None else when(expires_s * 1_000)
            row = {"event": "stored", "id": sent.message_id, "destination": self._to, "neighbours": neighbours}
            _output.line(row | {"expires": expires})
            return
        until = "" if expires_s is None else f", expires at {local(expires_s):%Y-%m-%d %H:%M:%S}"
        typer.echo(f"{stored}, {many(neighbours, 'neighbour')}{until}")

    async def _wait(self, joined: Joined, sents: list[Sent]) -> int:
        """Wait until all are delivered, at most as long as was asked; returns the exit code."""
        loop = asyncio.get_running_loop()
        begun_s, delivered, limit_s = loop.time(), 0, self._given.limit_s
        for sent in sents:
            try:
                await sent.delivered(None if limit_s is None else max(0.0, begun_s + limit_s - loop.time()))
            except DeliveryTimeoutException:
                _output.say(
                    f"no receipt for {sent.message_id} arrived in time; its last known state is {sent.state.name}"
                )
                continue
            delivered += 1
            if joined.json:
                _output.line({"event": "delivered", "id": sent.message_id})
        if delivered and not joined.json:
            which = f"{delivered:,} of {len(sents):,} messages " if len(sents) > 1 else ""
            typer.echo(f"{which}delivered after {_output.duration(loop.time() - begun_s)}")
        return Exit.DONE if delivered == len(sents) else Exit.TIMEOUT


_ANSWER_S = 30.0
"""Time for which `browse` waits for another node, unless the user sets another."""
_CHECK_S = 5.0
"""Interval at which `sub` checks that a home broker works for a consumer of a channel."""
_AHEAD_MAX = 10
"""Messages that the node takes from a queue ahead of the command; what is not read goes back, which may take long."""


class SubscribeOptions(NamedTuple):
    """A subscription that is asked for."""

    destination: str
    selector: str | None = None
    durable: str | None = None
    """Name of a durable subscription."""
    modulator: Modulator | None = None
    patterns: Mapping[str, str] | None = None


def subscriber(ctx: Context, wish: SubscribeOptions) -> Openable[Consumer]:
    """Return a consumer of a topic, which is to be opened."""
    destination, selector, durable, modulator, patterns = wish
    if durable is None:
        return ctx.create_consumer(destination, selector, patterns=patterns, modulator=modulator)
    # Shared, since a durable subscription that is not belongs to one program with a client id.
    return ctx.create_shared_durable_consumer(destination, durable, selector, patterns=patterns, modulator=modulator)


def receiver(ctx: Context, queue: str, selector: str | None, count: int) -> Openable[Consumer]:
    """Return a consumer of a queue for so many messages, which is to be opened."""
    ahead = 0 if count == 1 else min(count, _AHEAD_MAX)
    return ctx.create_consumer(_message_options.queue(queue), selector, prefetch=ahead)


async def read(consumer: Consumer, show: Callable[[Message], None], *, count: int | None, limit_s: float | None) -> int:
    """Show messages until there were `count` or the time is over; return their number.

    A message is acknowledged once it is shown. A message that could not be shown, because the reader of stdout was
    gone, is redelivered.
    """
    loop = asyncio.get_running_loop()
    until_s, came = None if limit_s is None else loop.time() + limit_s, 0
    while came != count:
        message = await consumer.receive(None if until_s is None else max(0.0, until_s - loop.time()))
        if message is None:
            break
        show(message)
        came += 1
        try:
            await message.acknowledge()
        except JMSException as error:
            if error.error_code != NODE_LOST:  # Else the message comes again, flagged, when the node is back.
                raise
    return came


async def subscribe(joined: Joined, wish: SubscribeOptions, *, count: int | None, limit_s: float | None) -> int:
    """Print what comes on a topic; returns the exit code."""
    return await _print(joined, subscriber(joined.ctx, wish), count, limit_s)


async def unsubscribe(joined: Joined, name: str) -> int:
    """End a durable subscription; returns the exit code."""
    await joined.ctx.unsubscribe(name)
    return Exit.DONE


async def receive(joined: Joined, queue: str, wanted: Wanted, count: int) -> int:
    """Take messages from a queue and print them; returns the exit code."""
    return await _print(joined, receiver(joined.ctx, queue, wanted.select, count), count, wanted.limit_s)


async def _print(joined: Joined, opening: Openable[Consumer], count: int | None, limit_s: float | None) -> int:
    async with opening as consumer:
        if sys.stderr.isatty():
            _output.say("waiting; press Ctrl-C to stop")
        show = functools.partial(show_message, json=joined.json)
        watching = asyncio.ensure_future(report_trouble(consumer))
        try:
            came = await read(consumer, show, count=count, limit_s=limit_s)
        finally:
            watching.cancel()
    if count is None:
        if not came and limit_s is not None and sys.stderr.isatty():
            _output.say(f"no message came within {_output.duration(limit_s)}")
        return Exit.DONE
    if came == count:
        return Exit.DONE
    wanted = "no message" if not came else f"{came:,} of {count:,} messages"
    _output.say(f"{wanted} came within {_output.duration(limit_s or 0)}")
    return Exit.TIMEOUT


async def report_trouble(consumer: Consumer) -> None:
    """Report the trouble of a consumer of a channel with its home broker, whenever that changes.

    A number of faults is reported when it has grown tenfold.
    """
    reported, faults = "", 0
    while isinstance(consumer.destination, ChannelTopic):
        await asyncio.sleep(_CHECK_S)
        if consumer.closed:
            return
        state = consumer.overlay
        trouble = _trouble(state)
        if trouble != reported and not (state.home is not None and faults < state.faults < 10 * faults):
            _output.say(trouble or f"broker {state.home} is the home now")
            reported, faults = trouble, state.faults


def _trouble(state: OverlayState) -> str:
    """Return the reason why a consumer of a channel gets no results, or not all; empty if there is none."""
    if state.home is not None:
        if not state.faults:
            return ""
        them = "it" if state.faults == 1 else "them"
        last = f": {printable(state.fault)}" if state.fault else ""
        return f"the modulator failed with {many(state.faults, 'event')}, and gave no results for {them}{last}"
    if state.refusal == "modulator":
        return f"a broker refused the modulator: {state.detail}"
    if state.refusal in {"channels", "clients", "seats"}:
        return f"a broker refused: it has no room left for {state.refusal}"
    return (
        "no home broker yet: check that a node with overlay.broker = true is in reach; a broker that has to compile a "
        "module first may take a while"
    )


async def browse(joined: Joined, queue: str, wanted: Wanted, count: int | None) -> int:
    """Print what waits in a queue, and take nothing; returns the exit code."""
    limit_s, came = _ANSWER_S if wanted.limit_s is None else wanted.limit_s, 0
    async with joined.ctx.create_browser(_message_options.queue(queue), wanted.select) as browser:
        async for message in browser.messages(limit_s):
            show_message(message, json=joined.json)
            came += 1
            if came == count:
                return Exit.DONE
        if browser.taken_at is None:
            _output.say(f"the node that manages {queue} did not answer within {_output.duration(limit_s)}")
            return Exit.TIMEOUT
    if not came:
        _output.say(f"{queue} is empty")
    return Exit.DONE


CHANGE_STORED = "the change is stored there, and other nodes learn of it once a node runs"
_QUEUE, _HOLDER = "queue/", "holder/"


async def list_names(joined: Joined, context: str) -> int:
    """Print the names in a context of the directory; returns the exit code."""
    found = await InitialContext(joined.ctx).list_bindings(context)
    if not found:
        _output.say(f"no names are known here{f' below {context}' if context else ''}")
        return Exit.DONE
    rows = [
        {"name": each.name, "destination": str(each.bound) if isinstance(each.bound, Destination) else None}
        for each in found
    ]
    if joined.json:
        for row in rows:
            _output.line(row)
    else:
        _output.table("", ("name", "destination"), [(row["name"], row["destination"] or "(names)") for row in rows])
    return Exit.DONE


async def bind_name(
    joined: Joined,
    name: str,
    destination: str | None,
    *,
    private: bool,
    replace: bool,
    lease_s: float | None,
    tries: int | None,
) -> int:
    """Declare a queue or a held topic, or let a name stand for a destination; returns the exit code."""
    if destination is not None:
        if lease_s is not None:
            raise LocalError(
                "--lease requires a queue that this command declares: carrypost bind queue/NAME --lease 1h"
            )
        if tries is not None:
            raise LocalError("--tries requires a queue that this command declares: carrypost bind queue/NAME --tries 3")
        names = InitialContext(joined.ctx)
        await (names.rebind if replace else names.bind)(name, destination, advertise=not private)
        return _bound(joined, name, destination)
    if name.startswith(_QUEUE):
        redelivery = "never" if lease_s is None else "after_lease"
        queue = await joined.ctx.declare_queue(
            name.removeprefix(_QUEUE), redelivery=redelivery, lease_s=lease_s, tries=tries, advertise=not private
        )
        return _bound(joined, queue.queue_name, str(queue))
    if name.startswith(_HOLDER):
        topic = await joined.ctx.declare_topic(name.removeprefix(_HOLDER), advertise=not private)
        return _bound(joined, topic.topic_name, str(topic))
    raise LocalError(
        f"{name!r} needs a destination: write `carrypost bind {name} topic/TOPIC`, or `carrypost bind "
        f"queue/{name}` to declare a queue of that name on this node"
    )


def _bound(joined: Joined, name: str, destination: str) -> int:
    if joined.json:
        _output.line({"name": name, "destination": destination})
    else:
        typer.echo(f"{name} is {destination}")
    return Exit.DONE


async def unbind_name(joined: Joined, name: str) -> int:
    """End a queue or a held topic of this node, or let a name go; returns the exit code."""
    if name.startswith(_QUEUE):
        await joined.ctx.end_queue(name)
    elif name.startswith(_HOLDER):
        await joined.ctx.end_topic(name if "@" in name else f"{name}@{joined.ctx.node_id}")
    else:
        await InitialContext(joined.ctx).unbind(name)
    return Exit.DONE


_OFF = "this node keeps no history of messages: set trace.enabled = true to keep it from now on"


def show_history(found: Mapping[str, Any], message: str, made: Verdict | None = None, *, json: bool) -> None:
    """Print what a node knows of a message; raises `CarrypostError` if that is nothing.

    `made`: the verdict; None if the node runs an earlier version, which does not say enough for one.
    """
    held = ({"kind": "held", "t": each["received"], **each} for each in found["held"])
    rows = [*map(written, found["rows"]), *held]
    if not found["kept"]:
        _output.say(_OFF)
    if not rows and not found.get("sends"):
        text = f"this node knows no message with the id or label {message}"
        if made is not None:
            text = made.sentence[:1].lower() + made.sentence[1:].removesuffix(".")
        raise CarrypostError(text)
    if json:
        for row in rows:
            _output.line({name: value for name, value in row.items() if name not in ("run", "node", "serial")})
        if made is not None:
            _output.line({"kind": "verdict", **msgspec.to_builtins(made)})
        return
    if made is not None:
        _output.pairs([(made.verdict, made.sentence), *([("", made.remedy)] if made.remedy else [])])
    for named in dict.fromkeys(row["message"] for row in rows):
        fields = [(_time(row), sentence(row)) for row in rows if row["message"] == named]
        _output.table(f"Message {_output.cell(named)}", ("time", "what"), fields, breakable=["what"])


def _time(row: Mapping[str, Any]) -> str:
    return "now" if row["kind"] == "held" else _output.clock(row["t"])
