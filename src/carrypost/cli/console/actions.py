"""The words of the console, carried out on a node; answers are those of the JOMS console."""

from __future__ import annotations

import asyncio
import textwrap
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Protocol

from carrypost.cli import _directory, _given, _receiving, _shown, node, trace
from carrypost.cli._exit import Exit
from carrypost.cli._message_options import Wanted
from carrypost.cli.console.words import OPTIONS, WORDS, Line
from carrypost.config.rules import nearest
from carrypost.errors import CarrypostError, LocalError
from carrypost.naming import InitialContext
from carrypost.web.live.verdict import verdict

if TYPE_CHECKING:
    from carrypost.cli._joining import Joined
    from carrypost.jms.consumer import Consumer
    from carrypost.jms.messages import Message

_SPECIAL = frozenset(".^$*+?{}[]()\\")
"""Characters that have a meaning in regular expressions, besides the bar."""
_HELP_COLUMNS = 80
_RECEIVED = "You have received a new message with the content: "


class Say(Protocol):
    """The output of a console."""

    def __call__(self, text: str, *, head: str = "", fg: str | None = None) -> None:
        """Print a line of text that others may have chosen, in a colour, after a head that is dim."""


class Actions:
    """Actions of a console, and the subscriptions that it has."""

    def __init__(self, joined: Joined, say: Say) -> None:
        self._joined, self._say = joined, say
        self._subscriptions: dict[str, asyncio.Task[None]] = {}
        """By the destination of the topic."""
        self._bounded: set[asyncio.Task[None]] = set()
        """Subscriptions that end by themselves, as they have -count or -for."""
        self.failure: asyncio.Future[CarrypostError | OSError] = asyncio.get_running_loop().create_future()
        """Done with what ended a subscription that should have gone on."""
        self.exit_code = int(Exit.DONE)
        """3 if less came than was waited for."""
        self._actions: Mapping[str, Callable[[Line], Awaitable[None]]] = {
            "pub": self._pub, "sub": self._sub, "unsub": self._unsub, "send": self._send, "receive": self._receive,
            "browse": self._browse, "bind": self._bind, "unbind": self._unbind, "lookup": self._lookup,
            "ls": self._ls, "peers": self._peers, "trace": self._trace, "help": self._help,
        }  # fmt: skip

    async def perform(self, line: Line) -> None:
        """Carry out a line."""
        await self._actions[line.word](line)

    async def finish(self) -> None:
        """Wait until all subscriptions that end by themselves are over."""
        while self._bounded:
            await asyncio.wait(self._bounded)

    def failed(self) -> CarrypostError | OSError:
        """Return the error that ended a subscription, and watch for the next one."""
        found, self.failure = self.failure.result(), asyncio.get_running_loop().create_future()
        return found

    async def close(self) -> None:
        """End all subscriptions."""
        tasks = list(self._subscriptions.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # --- sending -------------------------------------------------------------------------------------------

    async def _pub(self, line: Line) -> None:
        await self._give(_given.topic(line.options["-t"]), line)
        self._say("The Message has been published")

    async def _send(self, line: Line) -> None:
        await self._give(_given.queue(line.options["-q"]), line)
        self._say("The Message has been sent")

    async def _give(self, to: str, line: Line) -> None:
        message = _given.Body(line.options["-p"]).message(1, line.repeated.get("-prop", []))
        for each in line.repeated.get("-ssl", []):
            name, value = _pair(each)
            message.set_string_property(name, value)
        ttl_s = _length_s(line, "-ttl")
        await self._joined.ctx.send(to, message, label=line.options.get("-id"), time_to_live=ttl_s)

    # --- receiving -----------------------------------------------------------------------------------------

    async def _sub(self, line: Line) -> None:
        topic, durable = _given.topic(line.options["-t"]), line.options.get("-durable")
        if topic in self._subscriptions:
            raise LocalError(f"this console has subscribed to {topic} already: unsub -t {topic} ends the subscription")
        patterns = dict(map(_pair, line.repeated.get("-ssl", [])))
        count, limit_s, select = _count(line), _length_s(line, "-for"), line.options.get("-select")
        wish = _receiving.SubscribeOptions(topic, select, durable, patterns=patterns)
        consumer = await _receiving.subscriber(self._joined.ctx, wish)
        self._say("Waiting ....")
        task = asyncio.get_running_loop().create_task(self._read_on(topic, consumer, count, limit_s))
        self._subscriptions[topic] = task
        if count is not None or limit_s is not None:
            self._bounded.add(task)

    async def _read_on(self, topic: str, consumer: Consumer, count: int | None, limit_s: float | None) -> None:
        """Read a subscription until it is over."""
        try:
            async with consumer:
                await self._read(consumer, count, limit_s)
        except (CarrypostError, OSError) as error:  # Of the node, or of stdout.
            if not self.failure.done():
                self.failure.set_result(error)
        finally:
            self._bounded.discard(self._subscriptions.pop(topic))

    async def _unsub(self, line: Line) -> None:
        topic, durable = _given.topic(line.options["-t"]), line.options.get("-durable")
        task = self._subscriptions.get(topic)
        if task is None and durable is None:
            there = ", ".join(self._subscriptions) or "none"
            raise LocalError(f"this console has not subscribed to {topic}; its subscriptions: {there}")
        if task is not None:
            task.cancel()
            await asyncio.wait({task})
        if durable is not None:
            await self._joined.ctx.unsubscribe(durable)
        self._say("The subscription has been ended")

    async def _receive(self, line: Line) -> None:
        count, limit_s = _count(line) or 1, _length_s(line, "-for")
        opening = _receiving.receiver(self._joined.ctx, line.options["-q"], _selector(line), count)
        async with opening as consumer:
            self._say("Waiting ....")
            await self._read(consumer, count, limit_s)

    async def _read(self, consumer: Consumer, count: int | None, limit_s: float | None) -> None:
        """Tell of what comes, and at the end of what did not."""

        def show(message: Message) -> None:
            self._say(_shown.content_text(message), head=_RECEIVED)

        came = await _receiving.read(consumer, show, count=count, limit_s=limit_s)
        if not came:
            self._say("No message has been received")
        elif came < (count or 0):
            self._say(f"{came:,} of {count:,} messages have been received")
        if came < (count or 0):
            self.exit_code = int(Exit.TIMEOUT)

    async def _browse(self, line: Line) -> None:
        wanted = Wanted(_selector(line), _length_s(line, "-for"))
        code = await _receiving.browse(self._joined, line.options["-q"], wanted, _count(line))
        self.exit_code = code or self.exit_code

    # --- names, and the rest -------------------------------------------------------------------------------

    async def _bind(self, line: Line) -> None:
        name, destination = (*line.arguments, None)[:2]
        await _directory.bind(
            self._joined, name or "", destination, private=False, replace=False, lease_s=None, tries=None
        )

    async def _unbind(self, line: Line) -> None:
        await _directory.unbind(self._joined, line.arguments[0])

    async def _lookup(self, line: Line) -> None:
        found = await InitialContext(self._joined.ctx).lookup(line.arguments[0], _length_s(line, "-for"))
        self._say(str(getattr(found, "name", found)))

    async def _ls(self, line: Line) -> None:
        await _directory.ls(self._joined, "".join(line.arguments))

    async def _peers(self, _line: Line) -> None:
        node.show_peers(await self._joined.ask("peers"), json=False)

    async def _trace(self, line: Line) -> None:
        (message,) = line.arguments
        ask = self._joined.ask
        found = await ask("trace", message)
        made = verdict(message, found, await ask("peers"), await ask("messaging")) if "sends" in found else None
        trace.show(found, message, made, json=False)

    async def _help(self, line: Line) -> None:
        for text in help_(*line.arguments):
            self._say(text)


def help_(name: str | None = None) -> list[str]:
    """Return the console's help on all words, or on one."""
    if name is None:
        wide = max(map(len, WORDS))
        return [
            *(f"{each:<{wide}}  {word.about}" for each, word in WORDS.items()),
            "",
            "help WORD explains one command. A leading % and // comments are ignored.",
        ]
    if name not in WORDS:
        raise LocalError(f"unknown command {name!r}{nearest(name, WORDS) or '; help lists them'}")
    word = WORDS[name]
    options = [f"  {f'{each} {OPTIONS[each][0]}':<17} {OPTIONS[each][1]}" for each in word.options]
    usage = textwrap.wrap(word.usage(name), _HELP_COLUMNS, subsequent_indent="  ", break_on_hyphens=False)
    return [f"{name}: {word.about}", *usage, *options, f"For example: {word.example}"]


def _length_s(line: Line, option: str) -> float | None:
    text = line.options.get(option)
    return None if text is None else _given.length_s(text)


def _count(line: Line) -> int | None:
    text = line.options.get("-count")
    if text is not None and (not text.isdecimal() or not int(text)):
        raise LocalError(f"-count must be a whole number of messages, 1 or more, not {text!r}")
    return None if text is None else int(text)


def _pair(text: str) -> tuple[str, str]:
    """Return name and value of an ``-ssl``."""
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise LocalError(f"-ssl must be NAME=VALUE, such as language=English, not {text!r}")
    return name, value


def _selector(line: Line) -> str | None:
    """Return ``-ssl`` and ``-select`` as one selector: queues have no patterns, but ``A|B`` is a choice."""
    select = line.options.get("-select")
    parts = [f"({select})"] if select else []
    for each in line.repeated.get("-ssl", []):
        name, value = _pair(each)
        if _SPECIAL & {*value}:
            raise LocalError(
                f"-ssl {each!r}: on a queue, -ssl matches texts and A|B only; use -select for more, such as LIKE"
            )
        texts = ", ".join("'" + text.replace("'", "''") + "'" for text in value.split("|"))
        parts.append(f"{name} IN ({texts})")
    return " AND ".join(parts) or None
