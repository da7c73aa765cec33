"""What goes over a node's control socket: msgpack values, each behind its length in four bytes.

A program on this machine makes calls; each has a number, and the node answers under that number. The socket belongs to
the node's owner alone, so both sides are trusted not to be hostile, but a mistake must not bring the node down: lengths
are bounded and every error is answered.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, TypeVar

import msgspec

from carrypost.errors import LocalError

T = TypeVar("T")
LENGTH_BYTES = 4
_CALL_BYTES_MAX = 1024 * 1024
_SKIP_BYTES = 64 * 1024
UNKNOWN = -1
"""Number of a refusal that answers no call, because there was none: the node hangs up after it."""


class Call(msgspec.Struct, tag_field="do", kw_only=True, frozen=True):
    """Something that a program wants of the node."""

    number: int


class Status(Call, tag="status", frozen=True):
    """Ask for the state of the node."""


class Peers(Call, tag="peers", frozen=True):
    """Ask who is in reach."""


class Gate(Call, tag="gate", frozen=True):
    """Set the gate: the addresses whose datagrams are taken from now on; None: everybody's."""

    hear: list[str] | None


class Stop(Call, tag="stop", frozen=True):
    """End the node."""


AnyCall = Status | Peers | Gate | Stop


class _Numbered(msgspec.Struct):
    """What every call has, also one of a newer program that this node does not know."""

    number: int


class Reply(msgspec.Struct, tag_field="is", frozen=True):
    """Something that the node says."""


class AnswerReply(Reply, tag="answer", frozen=True):
    """The call was carried out."""

    number: int
    value: Any = None


class RefusalReply(Reply, tag="refusal", frozen=True):
    """The call was refused: the name of the error, and what it says."""

    number: int
    error: str
    text: str


AnyReply = AnswerReply | RefusalReply

_encode = msgspec.msgpack.Encoder().encode
_decode_call: Callable[[bytes], AnyCall] = msgspec.msgpack.Decoder(AnyCall).decode
_decode_number: Callable[[bytes], _Numbered] = msgspec.msgpack.Decoder(_Numbered).decode
_decode_reply: Callable[[bytes], AnyReply] = msgspec.msgpack.Decoder(AnyReply).decode


def packed(value: AnyCall | AnyReply) -> bytes:
    """The bytes of one call or reply."""
    body = _encode(value)
    return len(body).to_bytes(LENGTH_BYTES, "big") + body


async def read_call(reader: asyncio.StreamReader) -> AnyCall | RefusalReply:
    """The next call, or the refusal of one that is not understood but has a number.

    Raises `EOFError` at the end and `LocalError` for what is no call at all.
    """
    body = await _read(reader, _CALL_BYTES_MAX)
    try:
        return _decoded(_decode_call, body)
    except LocalError as error:
        return RefusalReply(_decoded(_decode_number, body).number, type(error).__name__, str(error))


async def read_reply(reader: asyncio.StreamReader) -> AnyReply:
    """The next reply; raises `EOFError` at the end."""
    return _decoded(_decode_reply, await _read(reader, 2**32))


async def skip(reader: asyncio.StreamReader) -> None:
    """Read on to the end of the connection, and keep nothing."""
    while await reader.read(_SKIP_BYTES):
        pass


async def _read(reader: asyncio.StreamReader, bytes_max: int) -> bytes:
    length = int.from_bytes(await reader.readexactly(LENGTH_BYTES), "big")
    if length > bytes_max:
        raise LocalError(f"a call of {length:,} bytes; at most {bytes_max:,} are taken")
    return await reader.readexactly(length)


def _decoded(decode: Callable[[bytes], T], body: bytes) -> T:
    try:
        return decode(body)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise LocalError(f"not understood at the control socket: {error}") from None
