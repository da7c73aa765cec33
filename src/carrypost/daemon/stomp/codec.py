"""Frames of STOMP 1.0, 1.1 and 1.2 as bytes, and back, without input or output.

A `Decoder` is fed what came over a connection, cut anywhere, and returns one frame at a time: so its owner can set the
version that a CONNECT led to before the next frame is read. Whatever is wrong raises a `StompError`, after which the
decoder reads nothing more; its text is sent to the client.

The versions differ by the table `RULES` alone. Beyond what the specifications ask for, lines may end with CR LF in
every version, and colons in values need not be escaped: clients of 1.0 and 1.1 do so, and nothing else could be meant.

The one invariant: a decoder holds no more than `HEAD_BYTES_MAX`, a body within its bound, and what it was fed last.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Mapping
from typing import Final, NamedTuple

from carrypost.errors import DecodeError

HEADERS_MAX: Final = 100
"""Headers of one frame."""
HEAD_BYTES_MAX: Final = 64 * 1024
"""Bytes of a frame before its body."""
BEAT: Final = b"\n"
"""A heart-beat: nothing but the end of a line, between frames."""
_LENGTH_DIGITS_MAX = 18
_SHOWN = 60
"""Characters of what a client sent that an error repeats."""

CONNECTING: Final = frozenset({"CONNECT", "STOMP"})
"""Commands that begin a connection."""
SERVER: Final = frozenset({"CONNECTED", "MESSAGE", "RECEIPT", "ERROR"})
"""Commands that clients are sent."""
_WITH_BODY = frozenset({"SEND", "MESSAGE", "ERROR"})
_PLAIN = CONNECTING | {"CONNECTED"}
"""Commands of frames without escapes: the version is being agreed upon."""
_BLANK_LINE = re.compile(rb"\n\r?\n")
_BEATS = re.compile(rb"(?:\r?\n)*")
_HEART_BEAT = re.compile(r"([0-9]{1,9}),([0-9]{1,9})")
_ESCAPE = re.compile(r"\\(.?)", re.DOTALL)
_SPECIAL = re.compile("[\r\n:\\\\\0]")


class StompError(DecodeError):
    """Bytes that are no frame, or a frame that its version does not have; the connection ends with it."""

    def __init__(self, message: str, receipt: str | None = None) -> None:
        super().__init__("stomp", message)
        self.receipt = receipt
        """The receipt that the frame asked for, if that much of it could be read."""


class Version(enum.StrEnum):
    """A version of STOMP."""

    V1_0 = "1.0"
    V1_1 = "1.1"
    V1_2 = "1.2"


_V1_0 = Version.V1_0


class Rules(NamedTuple):
    """The rules that differ between versions."""

    needed: Mapping[str, tuple[str, ...]]
    """Commands of clients once they are connected, and the headers that each needs."""
    escapes: Mapping[str, str] = {}
    """The letter after a backslash, and the character that both stand for."""
    trims: bool = False
    """Spaces around names and values are no part of them."""
    acknowledges: str = "id"
    """The header of ACK that names a message."""

    @property
    def beats(self) -> bool:
        """Return True if there are heart-beats."""
        return bool(self.escapes)


_ALL = {"SEND": ("destination",), "DISCONNECT": (), **dict.fromkeys(("BEGIN", "COMMIT", "ABORT"), ("transaction",))}
_LATER = _ALL | {"SUBSCRIBE": ("destination", "id"), "UNSUBSCRIBE": ("id",)}
_NAMED = ("message-id", "subscription")
_ESCAPES = {"n": "\n", "c": ":", "\\": "\\"}
RULES: Final[Mapping[Version, Rules]] = {
    Version.V1_0: Rules(
        _ALL | {"SUBSCRIBE": ("destination",), "UNSUBSCRIBE": (), "ACK": ("message-id",)},
        trims=True, acknowledges="message-id",
    ),
    Version.V1_1: Rules(_LATER | {"ACK": _NAMED, "NACK": _NAMED}, _ESCAPES, acknowledges="message-id"),
    Version.V1_2: Rules(_LATER | {"ACK": ("id",), "NACK": ("id",)}, _ESCAPES | {"r": "\r"}),
}  # fmt: skip
_PLAIN_TEXT = {"\r": " ", "\n": " ", "\0": "\ufffd"}
"""Without escapes no header has a line end. No version has an escape for NUL, which ends a frame for many clients."""
_WRITTEN = {
    version: str.maketrans(_PLAIN_TEXT | {meant: f"\\{letter}" for letter, meant in rules.escapes.items()})
    for version, rules in RULES.items()
}
_WRITTEN_PLAIN = str.maketrans(_PLAIN_TEXT)


class Frame(NamedTuple):
    """One frame."""

    command: str
    headers: dict[str, str]
    """Of a header that is repeated, the first."""
    body: bytes = b""


class _Head(NamedTuple):
    """A frame whose body is not here yet."""

    command: str
    headers: dict[str, str]
    length: int | None
    """Bytes of its body; None: up to a NUL."""


class Decoder:
    """Frames of one connection, from the bytes that come."""

    def __init__(
        self, body_bytes_max: int, *, version: Version | None = None, commands: frozenset[str] | None = None
    ) -> None:
        self.version = version
        """None before the version is agreed upon: only a CONNECT or STOMP is read then."""
        self._commands = commands
        """Commands that are read, whatever the version; None: those of clients."""
        self._body_bytes_max = body_bytes_max
        self._buffer = bytearray()
        self._head: _Head | None = None
        self._searched = 0
        """Bytes of the buffer that were searched for the end of the head, or of the body."""
        self._fault: StompError | None = None

    def feed(self, data: bytes) -> None:
        """Add bytes that came; `next` returns the frames in them."""
        self._buffer += data

    def next(self) -> Frame | None:
        """Return the next frame; None if more has to come first. Raises `StompError`, and the same one ever after."""
        if self._fault is not None:
            raise self._fault
        try:
            return self._next()
        except StompError as fault:
            if fault.receipt is None and self._head is not None:
                fault.receipt = self._head.headers.get("receipt")
            self._fault = fault
            self._buffer.clear()
            raise

    def _next(self) -> Frame | None:
        head = self._head
        if head is None:
            if not self._buffer:
                return None
            head = self._head = self._read_head()
            if head is None:
                return None
        body = self._read_body(head)
        if body is None:
            return None
        self._head, self._searched = None, 0
        return Frame(head.command, head.headers, body)

    # --- the head ------------------------------------------------------------------------------------------

    def _read_head(self) -> _Head | None:
        buffer = self._buffer
        if buffer and buffer[0] in b"\r\n":
            self._skip_beats()
        found = _BLANK_LINE.search(buffer, self._searched, HEAD_BYTES_MAX)
        if found is None:
            self._check_beginning()
            self._searched = max(len(buffer) - 2, 0)
            return None
        start, end = found.span()
        del found  # It keeps the buffer from being cut.
        text = _text(bytes(buffer[:start]))
        del buffer[:end]
        self._searched = 0
        self._head = head = self._parsed(text)
        self._check(head)
        return head

    def _skip_beats(self) -> None:
        """Drop the ends of lines before a frame."""
        buffer = self._buffer
        found = _BEATS.match(buffer)
        end = 0 if found is None else found.end()
        del found  # It keeps the buffer from being cut.
        del buffer[:end]
        self._searched = 0
        if buffer.startswith(b"\r") and len(buffer) > 1:
            raise StompError("a carriage return without a line feed between frames")

    def _check_beginning(self) -> None:
        """Raise at once for what can become no frame."""
        buffer = self._buffer
        line, whole, _ = bytes(buffer[:32]).partition(b"\n")
        self._check_command(line.removesuffix(b"\r").decode("utf-8", "replace"), whole=bool(whole))
        if len(buffer) >= HEAD_BYTES_MAX:
            raise StompError(f"headers of more than {HEAD_BYTES_MAX:,} bytes")
        if buffer.find(b"\0", self._searched) >= 0:
            raise StompError("the frame ends before its headers do: an empty line is missing")

    def _check_command(self, text: str, *, whole: bool) -> None:
        commands = self._expected
        if text not in commands if whole else not any(each.startswith(text) for each in commands):
            which = f"STOMP {self.version}" if self.version else "the beginning of a connection"
            raise StompError(
                f"{text[:_SHOWN]!r} is not a command of {which}; the commands are {', '.join(sorted(commands))}"
            )

    @property
    def _expected(self) -> frozenset[str] | Mapping[str, tuple[str, ...]]:
        if self._commands is not None:
            return self._commands
        return CONNECTING if self.version is None else RULES[self.version].needed

    def _parsed(self, text: str) -> _Head:
        lines = text.split("\n")
        if "\r" in text:
            lines = [line.removesuffix("\r") for line in lines]
        command = lines[0]
        if command not in self._expected:
            self._check_command(command, whole=True)
        if len(lines) > HEADERS_MAX + 1:
            raise StompError(f"more than {HEADERS_MAX} headers")
        headers: dict[str, str] = {}
        for line in lines[1:]:
            name, colon, value = line.partition(":")
            if not colon or not name:
                raise StompError(f"a header must be NAME:VALUE, not {line[:_SHOWN]!r}", headers.get("receipt"))
            if name not in headers:
                headers[name] = value
        version = self.version
        if command in _PLAIN:
            # A client of version 1.0 names no version, and may write spaces around values.
            version = _V1_0 if command in CONNECTING and "accept-version" not in headers else None
        try:
            if version is _V1_0 or (version is not None and "\\" in text):
                headers = _read_as(RULES[version], headers)
            length = headers.get("content-length")
            return _Head(command, headers, None if length is None else _length(length))
        except StompError as fault:
            fault.receipt = headers.get("receipt")
            raise

    def _check(self, head: _Head) -> None:
        length = head.length
        if length is not None and length > self._body_bytes_max:
            raise StompError(f"a body of {length:,} bytes; at most {self._body_bytes_max:,} are accepted")
        if length and head.command not in _WITH_BODY:
            raise StompError(f"{head.command} must not have a body")
        if self._commands is None and self.version is not None:
            for name in RULES[self.version].needed[head.command]:
                if name not in head.headers:
                    raise StompError(f"{head.command} needs the header {name!r} in STOMP {self.version}")

    # --- the body ------------------------------------------------------------------------------------------

    def _read_body(self, head: _Head) -> bytes | None:
        buffer, length = self._buffer, head.length
        if length is None:
            length = buffer.find(b"\0", self._searched)
            if length < 0:
                self._searched = length = len(buffer)
            if length and head.command not in _WITH_BODY:
                raise StompError(f"{head.command} must not have a body")
            if length > self._body_bytes_max:
                raise StompError(f"a body of more than {self._body_bytes_max:,} bytes")
        if len(buffer) <= length:
            return None
        if buffer[length]:
            raise StompError(f"no NUL after the {length:,} bytes of the body that content-length announces")
        body = bytes(buffer[:length])
        del buffer[: length + 1]
        return body


def _text(head: bytes) -> str:
    if b"\0" in head:
        raise StompError("the frame ends before its headers do: an empty line is missing")
    try:
        return head.decode()
    except UnicodeDecodeError as error:
        raise StompError(f"headers that are not UTF-8: {error.reason} at byte {error.start}") from None


def _length(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= _LENGTH_DIGITS_MAX):
        raise StompError(f"content-length must be a number of bytes, not {text[:_SHOWN]!r}")
    return int(text)


def _read_as(rules: Rules, headers: dict[str, str]) -> dict[str, str]:
    """Return headers as a version means them."""
    if rules.trims:
        headers = {name.strip(): value.strip() for name, value in reversed(headers.items())}
        return dict(reversed(headers.items()))
    found: dict[str, str] = {}
    for name, value in headers.items():
        found.setdefault(_unescaped(name, rules), _unescaped(value, rules))
    return found


def _unescaped(text: str, rules: Rules) -> str:
    if "\\" not in text:
        return text
    try:
        return _ESCAPE.sub(lambda found: rules.escapes[found[1]], text)
    except KeyError as error:
        raise StompError(f"unknown escape \\{error.args[0]} in {text[:_SHOWN]!r}") from None


# --- to bytes --------------------------------------------------------------------------------------------------------


def encode(frame: Frame, version: Version) -> bytes:
    """Return a frame as bytes, with the length of its body, whatever its headers say of that.

    What a version cannot say in a header is replaced: line ends by spaces where there are no escapes for them, and NUL.
    """
    command, headers, body = frame
    written = _WRITTEN_PLAIN if command in _PLAIN else _WRITTEN[version]
    lines = [command, f"content-length:{len(body)}"] if body else [command]
    for name, value in headers.items():
        if name == "content-length":
            continue
        line = f"{name}:{value}"
        if _SPECIAL.search(line, len(name) + 1) or _SPECIAL.search(name):
            line = f"{name.translate(written)}:{value.translate(written)}"
        lines.append(line)
    lines.append("\n")
    return b"%b%b\0" % ("\n".join(lines).encode("utf-8", "replace"), body)


# --- versions and heart-beats ----------------------------------------------------------------------------------------


def agreed(accepted: str | None) -> Version | None:
    """Return the highest version that a client accepts, by its header `accept-version`; None if there is none."""
    if accepted is None:
        return _V1_0
    offered = {each.strip() for each in accepted.split(",")}
    return max((each for each in Version if each in offered), default=None)


def heart_beat(text: str | None) -> tuple[int, int]:
    """Return how often a client can send something, and wants to receive something, in milliseconds; 0: never."""
    found = _HEART_BEAT.fullmatch("0,0" if text is None else text)
    if found is None:
        raise StompError(f"heart-beat must be two numbers of milliseconds separated by a comma, not {text!r}"[:200])
    return int(found[1]), int(found[2])
