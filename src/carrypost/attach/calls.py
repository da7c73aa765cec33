"""Frames at a node's socket: msgpack maps, each behind its length in four bytes.

A program on this machine sends a greeting, and the node welcomes it. Then the program makes calls; each has a number,
and the node answers under that number, in any order. Plain calls are a frame kind each, those of messaging are commands
(`messaging.commands`). The socket belongs to the node's owner alone, but no program may bring the node down:
lengths are bounded, and any fault ends one connection, with a sentence. Values longer than 64 KiB are announced by
their `length` and sent in parts, so that others need not wait for them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, TypeVar

import msgspec
from msgspec import Raw

from carrypost import errors
from carrypost.errors import CarrypostError, LocalError

T = TypeVar("T")
VERSION = 2
"""The version of these frames. Since version 1, commands and news of messaging are different values."""
VERSIONS_OF_PLAIN_CALLS = [VERSION, 1]
"""Versions in which plain calls are the same; a node that does not know one refuses that one alone."""
UNKNOWN = -1
"""Number of a refusal that answers no call, because there was none: the node disconnects after it."""
NOTHING = Raw(b"\xc0")


class Frame(msgspec.Struct, frozen=True, omit_defaults=True):
    """A frame from either side."""

    long: ClassVar[str] = ""
    """The field that may come in parts."""


# ---------------------------------------------------------------------------------------------- what programs say


class Asked(Frame, tag_field="do", frozen=True):
    """A frame from a program."""


class Hello(Asked, tag="hello", frozen=True):
    """The first frame of a program: the versions that it speaks, and what it is called."""

    versions: list[int]
    program: str = ""


class Call(Asked, tag="call", frozen=True):
    """A command of messaging, encoded by `attach.values`; its number is 0 if it has no answer."""

    long: ClassVar[str] = "command"
    number: int
    command: Raw = NOTHING
    length: int = 0
    read: int = 0
    """The highest number of a message that the program has read."""


class Status(Asked, tag="status", frozen=True):
    """Ask for the state of the node."""

    number: int


class Peers(Asked, tag="peers", frozen=True):
    """Ask for the nodes in range."""

    number: int


class Gate(Asked, tag="gate", frozen=True):
    """Set the gate: the addresses whose datagrams are accepted from now on; None: all."""

    number: int
    hear: list[str] | None


class Cache(Asked, tag="cache", frozen=True):
    """Ask for the copies that the node holds, a page at a time: of one message, of one destination, or carried ones."""

    number: int
    after: int = 0
    """The serial of the last copy of the page before."""
    message: str = ""
    destination: str = ""
    foreign: bool = False
    purge: bool = False
    """Drop these copies, except those that a program here has a claim to."""
    force: bool = False
    """Drop those, too."""


class Trace(Asked, tag="trace", frozen=True):
    """Ask for the history of the message of an id, or of those of a label."""

    number: int
    message: str


class Messaging(Asked, tag="messaging", frozen=True):
    """Ask for queues, held topics, subscriptions, channels and sends."""

    number: int


class Stop(Asked, tag="stop", frozen=True):
    """End the node."""

    number: int


class CallPart(Asked, tag="part", frozen=True):
    """A part of a call that was announced under this number."""

    number: int
    data: bytes = msgspec.field(name="bytes")


PlainCall = Status | Peers | Gate | Cache | Trace | Messaging | Stop
AnyCall = Hello | Call | CallPart | PlainCall


class _Numbered(msgspec.Struct):
    """The fields of every call, also of one that a newer program makes and this node does not know."""

    number: int


# --------------------------------------------------------------------------------------------- what the node says


class Reply(Frame, tag_field="is", frozen=True):
    """A frame from the node."""


class Welcome(Reply, tag="welcome", frozen=True):
    """The answer to a greeting."""

    version: int
    carrypost: str
    place: Raw
    """Description of the node for programs, encoded by `attach.values`; nothing where messaging is off."""
    now_us: int
    system_us: int
    """The system's clock at that time."""


class Answer(Reply, tag="answer", frozen=True):
    """The result of a call."""

    long: ClassVar[str] = "value"
    number: int
    value: Raw = NOTHING
    length: int = 0


class Sent(Answer, tag="sent", frozen=True):
    """The node has the messages of a unit of work; an answer without a value follows when it is durable."""


_OF_SOME = "error_code", "state", "position"
"""Attributes that some errors have."""


class Refusal(Reply, tag="refusal", frozen=True):
    """A call was refused: the name of the error, what it says, and what belongs to some errors."""

    number: int
    error: str
    text: str
    error_code: str | None = None
    state: int | None = None
    position: int | None = None

    @classmethod
    def of(cls, number: int, error: CarrypostError) -> Refusal:
        """Return the refusal of a call for which an error was raised."""
        return cls(number, type(error).__name__, str(error), *[getattr(error, each, None) for each in _OF_SOME])

    def raised(self, base: type[CarrypostError] = CarrypostError) -> CarrypostError:
        """Return the error, as a `base` if this version does not know it as one.

        Errors about peers are the node's own, and do not concern the caller.
        """
        kind = getattr(errors, self.error, None)
        known = isinstance(kind, type) and issubclass(kind, base) and not issubclass(kind, errors.RemoteError)
        made: CarrypostError = kind(self.text) if known else base(self.text)  # type: ignore[misc]  # one of them
        for each in _OF_SOME:
            if hasattr(made, each):
                setattr(made, each, getattr(self, each))
        return made


class News(Reply, tag="news", frozen=True):
    """Something for a connection of the program: calls of one method of `jms.provider.Program`, in a row."""

    connection: int
    name: str
    args: Raw


class Busy(Reply, tag="busy", frozen=True):
    """The disk is behind, and programs must not send; or no longer."""

    on: bool


class Clock(Reply, tag="clock", frozen=True):
    """The time by which the node's clock is ahead of the system's from now on."""

    ahead_us: int


class Ended(Reply, tag="ended", frozen=True):
    """The node ends; the connection is closed after this."""

    reason: str


class ReplyPart(Reply, tag="part", frozen=True):
    """A part of an answer that was announced under this number."""

    number: int
    data: bytes = msgspec.field(name="bytes")


AnyReply = Welcome | Answer | Sent | Refusal | News | Busy | Clock | Ended | ReplyPart
AnyFrame = AnyCall | AnyReply

encode: Callable[[AnyFrame], bytes] = msgspec.msgpack.Encoder().encode
encode_value: Callable[[Any], bytes] = msgspec.msgpack.Encoder().encode
_decode_call: Callable[[bytes], AnyCall] = msgspec.msgpack.Decoder(AnyCall).decode
_decode_number: Callable[[bytes], _Numbered] = msgspec.msgpack.Decoder(_Numbered).decode
_decode_reply: Callable[[bytes], AnyReply] = msgspec.msgpack.Decoder(AnyReply).decode


def decode_call(body: bytes) -> AnyCall | Refusal:
    """Return a call, or the refusal of one that is not understood but has a number; raise `LocalError` for others."""
    try:
        return _decoded(_decode_call, body)
    except LocalError as error:
        return Refusal.of(_decoded(_decode_number, body).number, error)


def decode_reply(body: bytes) -> AnyReply:
    """Return what the node says; raise `LocalError` for what is not understood."""
    return _decoded(_decode_reply, body)


def _decoded(decode: Callable[[bytes], T], body: bytes) -> T:
    try:
        return decode(body)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
        raise LocalError(f"the control socket received a malformed frame: {error}") from None
