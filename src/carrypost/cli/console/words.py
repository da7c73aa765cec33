"""Words of the console: how they are typed and read, what is wrong with a line, and what each does on a node.

A line is a word, options with one dash, and arguments, as in figure 6 of the JOMS paper. A leading ``%`` and what
follows ``//`` are left out, so that the figure can be pasted. Quotes keep spaces together. To read a line takes no
node. The answers of `Actions`, which carry lines out, are those of the JOMS console.
"""

from __future__ import annotations

import asyncio
import textwrap
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple, Protocol

from carrypost.cli import _message_options, _messages, node
from carrypost.cli._exit import Exit
from carrypost.cli._message_options import Wanted
from carrypost.config.rules import nearest
from carrypost.errors import CarrypostError, LocalError
from carrypost.naming import InitialContext
from carrypost.web.verdict import verdict

if TYPE_CHECKING:
    from carrypost.cli._joining import Joined
    from carrypost.jms.consumer import Consumer
    from carrypost.jms.messages import Message


PROMPT = "% "
_COMMENT = "//"
_QUOTES = "\"'"
REPEATED = frozenset({"-ssl", "-prop"})
OPTIONS: Mapping[str, tuple[str, str]] = {
    "-t": ("TOPIC", "the topic"),
    "-q": ("QUEUE", "the queue, as NAME or NAME@NODE"),
    "-p": ("BODY", "the body; quote several words"),
    "-id": ("LABEL", "a label; trace finds the message by it"),
    "-ssl": ("K=V", "a text property, to send or to match; A|B matches either"),
    "-prop": ("K=V", "a property, typed by its value or as K:TYPE=V"),
    "-select": ("SELECTOR", "only messages that match this selector (SQL-92)"),
    "-ttl": ("TIME", "lifetime: 90, 30min, 6h, 2d"),
    "-durable": ("NAME", "name of a durable subscription"),
    "-count": ("N", "stop after this many messages"),
    "-for": ("TIME", "wait no longer than this: 90, 30min, 6h"),
}
"""Placeholder for the value of each option, and what the option does."""


class Word(NamedTuple):
    """A word that begins a line."""

    about: str
    example: str
    options: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()
    """Options that it cannot do without."""
    arguments: tuple[str, ...] = ()
    """Names of what it takes without an option; those in brackets may be missing."""

    def usage(self, name: str) -> str:
        """Return the usage line of the command."""
        options = (f"{each} {OPTIONS[each][0]}" for each in self.options)
        shown = (text if text.split()[0] in self.needs else f"[{text}]" for text in options)
        return " ".join([name, *shown, *self.arguments])


_WHAT = ("-p", "-id", "-ssl", "-prop", "-ttl")
_WHICH = ("-ssl", "-select", "-count", "-for")
WORDS: Mapping[str, Word] = {
    "pub": Word(
        "publish to a topic", "pub -t ChatRoom1 -p Hello -ssl language=English", ("-t", *_WHAT), ("-t", "-p")
    ),
    "sub": Word(
        "subscribe to a topic, in the background", "sub -t ChatRoom1 -ssl language=English|French",
        ("-t", "-durable", *_WHICH), ("-t",),
    ),
    "unsub": Word("end a subscription", "unsub -t ChatRoom1", ("-t", "-durable"), ("-t",)),
    "send": Word("send to a queue", 'send -q Alan -p "Hello Alan"', ("-q", *_WHAT), ("-q", "-p")),
    "receive": Word("take a message from a queue", "receive -q Alan -for 30", ("-q", *_WHICH), ("-q",)),
    "browse": Word("list the messages in a queue", "browse -q Alan", ("-q", *_WHICH), ("-q",)),
    "bind": Word("declare a queue, or bind a name", "bind queue/Alan", arguments=("NAME", "[DESTINATION]")),
    "unbind": Word("delete a queue, or unbind a name", "unbind queue/Alan", arguments=("NAME",)),
    "lookup": Word("show the destination of a name", "lookup Alan", ("-for",), arguments=("NAME",)),
    "ls": Word("list names", "ls queue", arguments=("[NAME]",)),
    "peers": Word("list the nodes in reach", "peers"),
    "trace": Word("show the history of a message", "trace firstMSG", arguments=("ID|LABEL",)),
    "help": Word("list all commands, or explain one", "help pub", arguments=("[WORD]",)),
    "exit": Word("leave; so does Ctrl-D", "exit"),
}  # fmt: skip


class Token(NamedTuple):
    """A part of a line."""

    text: str
    quoted: bool = False


@dataclass(frozen=True)
class Line:
    """A line that was understood."""

    word: str
    options: Mapping[str, str] = field(default_factory=dict)
    repeated: Mapping[str, list[str]] = field(default_factory=dict)
    """Values of the options that may be given more than once."""
    arguments: tuple[str, ...] = ()


def tokens(text: str) -> Iterator[Token]:
    """Yield the parts of a line; raises `LocalError` for a quote that is not closed."""
    text = text.strip().removeprefix(PROMPT.strip())
    at = 0
    while at < len(text):
        if text[at].isspace():
            at += 1
            continue
        if text.startswith(_COMMENT, at):
            return
        parts, quoted = list[str](), False
        while at < len(text) and not text[at].isspace():
            if text[at] in _QUOTES:
                part, at = _quoted(text, at)
                quoted = True
            else:
                part, at = text[at], at + 1
            parts.append(part)
        yield Token("".join(parts), quoted)


def _quoted(text: str, begin: int) -> tuple[str, int]:
    """Return what is between quotes, and where the line goes on; a backslash keeps the next quote or backslash."""
    quote, at, inside = text[begin], begin + 1, list[str]()
    while at < len(text) and text[at] != quote:
        at += text[at] == "\\" and text[at + 1 : at + 2] in {quote, "\\"}
        inside.append(text[at])
        at += 1
    if at >= len(text):
        raise LocalError(f"the quote {quote} at character {begin + 1} is not closed: {text[begin : begin + 20]}")
    return "".join(inside), at + 1


def parse(text: str) -> Line | None:
    """Return what a line says, or None if it says nothing; raises `LocalError` for what is wrong with it."""
    parts = list(tokens(text))
    if not parts:
        return None
    name = parts[0].text
    if name not in WORDS:
        raise LocalError(f"unknown command {name!r}{nearest(name, WORDS) or '; help lists them'}")
    word, options, repeated, arguments = WORDS[name], dict[str, str](), dict[str, list[str]](), list[str]()
    rest = iter(parts[1:])
    for part in rest:
        if part.quoted or not part.text.startswith("-") or not part.text[1:2].isalpha():
            arguments.append(part.text)
            continue
        value = next(rest, None)
        _check_option(name, word, part.text, value, again=part.text in options)
        if value is not None and part.text in REPEATED:
            repeated.setdefault(part.text, []).append(value.text)
        elif value is not None:
            options[part.text] = value.text
    _check_whole(name, word, options, arguments)
    return Line(name, options, repeated, tuple(arguments))


def _check_option(name: str, word: Word, option: str, value: Token | None, *, again: bool) -> None:
    if option not in word.options:
        known = nearest(option, word.options, cutoff=0.4) or f"; {word.usage(name)}"
        raise LocalError(f"{name} has no option {option}{known}")
    if value is None or (value.text in word.options and not value.quoted):
        raise LocalError(f"{option} needs a value: {option} {OPTIONS[option][0]}, {OPTIONS[option][1]}")
    if again:
        raise LocalError(f"{option} was given twice")


def _check_whole(name: str, word: Word, options: Mapping[str, str], arguments: list[str]) -> None:
    if missing := [each for each in word.needs if each not in options]:
        raise LocalError(f"{name} needs {' and '.join(missing)}, as in: {word.example}")
    if len(arguments) > len(word.arguments):
        hint = "; quote values that contain spaces" if options else ""
        raise LocalError(f"unexpected argument {arguments[len(word.arguments)]!r}; usage: {word.usage(name)}{hint}")
    if len(arguments) < sum(not each.startswith("[") for each in word.arguments):
        raise LocalError(f"{name} needs {word.arguments[len(arguments)]}, as in: {word.example}")


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

    async def perform(self, line: Line) -> None:
        """Carry out a line."""
        action: Callable[[Line], Awaitable[None]] = getattr(self, f"_{line.word}")
        await action(line)

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
        await self._give(_message_options.topic(line.options["-t"]), line)
        self._say("The Message has been published")

    async def _send(self, line: Line) -> None:
        await self._give(_message_options.queue(line.options["-q"]), line)
        self._say("The Message has been sent")

    async def _give(self, to: str, line: Line) -> None:
        message = _message_options.GivenBody(line.options["-p"]).message(1, line.repeated.get("-prop", []))
        for each in line.repeated.get("-ssl", []):
            name, value = _pair(each)
            message.set_string_property(name, value)
        ttl_s = _length_s(line, "-ttl")
        await self._joined.ctx.send(to, message, label=line.options.get("-id"), time_to_live=ttl_s)

    # --- receiving -----------------------------------------------------------------------------------------

    async def _sub(self, line: Line) -> None:
        topic, durable = _message_options.topic(line.options["-t"]), line.options.get("-durable")
        if topic in self._subscriptions:
            raise LocalError(f"this console has subscribed to {topic} already: unsub -t {topic} ends the subscription")
        patterns = dict(map(_pair, line.repeated.get("-ssl", [])))
        count, limit_s, select = _count(line), _length_s(line, "-for"), line.options.get("-select")
        wish = _messages.SubscribeOptions(topic, select, durable, patterns=patterns)
        consumer = await _messages.subscriber(self._joined.ctx, wish)
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
        topic, durable = _message_options.topic(line.options["-t"]), line.options.get("-durable")
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
        opening = _messages.receiver(self._joined.ctx, line.options["-q"], _selector(line), count)
        async with opening as consumer:
            self._say("Waiting ....")
            await self._read(consumer, count, limit_s)

    async def _read(self, consumer: Consumer, count: int | None, limit_s: float | None) -> None:
        """Tell of what comes, and at the end of what did not."""

        def show(message: Message) -> None:
            self._say(_messages.content_text(message), head=_RECEIVED)

        came = await _messages.read(consumer, show, count=count, limit_s=limit_s)
        if not came:
            self._say("No message has been received")
        elif came < (count or 0):
            self._say(f"{came:,} of {count:,} messages have been received")
        if came < (count or 0):
            self.exit_code = int(Exit.TIMEOUT)

    async def _browse(self, line: Line) -> None:
        wanted = Wanted(_selector(line), _length_s(line, "-for"))
        code = await _messages.browse(self._joined, line.options["-q"], wanted, _count(line))
        self.exit_code = code or self.exit_code

    # --- names, and the rest -------------------------------------------------------------------------------

    async def _bind(self, line: Line) -> None:
        name, destination = (*line.arguments, None)[:2]
        await _messages.bind_name(
            self._joined, name or "", destination, private=False, replace=False, lease_s=None, tries=None
        )

    async def _unbind(self, line: Line) -> None:
        await _messages.unbind_name(self._joined, line.arguments[0])

    async def _lookup(self, line: Line) -> None:
        found = await InitialContext(self._joined.ctx).lookup(line.arguments[0], _length_s(line, "-for"))
        self._say(str(getattr(found, "name", found)))

    async def _ls(self, line: Line) -> None:
        await _messages.list_names(self._joined, "".join(line.arguments))

    async def _peers(self, _line: Line) -> None:
        node.show_peers(await self._joined.ask("peers"), json=False)

    async def _trace(self, line: Line) -> None:
        (message,) = line.arguments
        ask = self._joined.ask
        found = await ask("trace", message)
        made = verdict(message, found, await ask("peers"), await ask("messaging")) if "sends" in found else None
        _messages.show_history(found, message, made, json=False)

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
    return None if text is None else _message_options.length_s(text)


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
