"""Words of the console, and lines of them: what may be typed, and what is wrong with what was.

A line is a word, options with one dash, and arguments, as in figure 6 of the JOMS paper. A leading ``%`` and what
follows ``//`` are left out, so that the figure can be pasted. Quotes keep spaces together. Nothing here knows a node.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from carrypost.config.rules import nearest
from carrypost.errors import LocalError

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
