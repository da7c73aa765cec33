"""Codes: short secrets and keys as text that people print, show as a QR code, and type.

A code is upper-case base32, which fits the alphanumeric mode of QR codes, of one byte for its kind, its data, and a
checksum. Case, blanks and dashes do not matter. A code that was typed wrong says so, before anything else is read.

A card is the code of a node: its public key, a sealing key, and the date until which that is used, signed by the node.
"""

from __future__ import annotations

import base64
import enum
import hashlib
import re
import struct
from collections.abc import Sequence
from typing import NamedTuple

from carrypost.errors import ForgeryError, IllegalArgumentException
from carrypost.model.ids import NodeId, node_id
from carrypost.model.times import MICROSECONDS
from carrypost.security.hpke import KEY_BYTES
from carrypost.security.identity import Domain, Identity, verify_bytes
from carrypost.security.sealing import SealingKey

_CHECKSUM_BYTES = 4
DATE_BYTES = 5
"""Seconds since 1970."""
_CARD = struct.Struct(f"32s{KEY_BYTES}s{DATE_BYTES}s64s")
"""Author, sealing key, date until which that is used, signature."""
_IGNORED = re.compile(r"[\s-]+")


class CodeKind(enum.IntEnum):
    """The kinds of codes; numbers are part of the format."""

    CARD = 0x11
    CIRCLE = 0x12
    SEALED_CIRCLE = 0x13


_NAMES = {
    CodeKind.CARD: "a card, made by `carrypost keys card`",
    CodeKind.CIRCLE: "a code of a circle, made by `carrypost circle invite`",
}
"""Names of the kinds of codes for people; a sealed circle is a circle, too."""


def _text(whole: bytes) -> str:
    return base64.b32encode(whole).decode().rstrip("=")


def _checksum(data: bytes) -> bytes:
    return hashlib.sha256(b"carrypost code 1\0" + data).digest()[:_CHECKSUM_BYTES]


def code_of(kind: CodeKind, data: bytes) -> str:
    """Return the code of this kind for these bytes."""
    whole = bytes([kind]) + data
    return _text(whole + _checksum(whole))


def data_of(code: str, kinds: Sequence[CodeKind]) -> tuple[CodeKind, bytes]:
    """Return the kind and the bytes of a code of one of these kinds; raises `IllegalArgumentException`."""
    text = _IGNORED.sub("", code).upper()
    try:
        whole = base64.b32decode(text + "=" * (-len(text) % 8))
    except ValueError:
        raise IllegalArgumentException("a code consists of letters and the digits 2 to 7: type it again") from None
    data = whole[:-_CHECKSUM_BYTES]
    # The last letter has bits to spare: two texts of the same bytes would be two codes.
    if not data or _checksum(data) != whole[-_CHECKSUM_BYTES:] or _text(whole) != text:
        raise IllegalArgumentException("the code was typed wrong, or is not complete: compare it with the original")
    found = next((kind for kind in kinds if kind == data[0]), None)
    if found is None:
        raise IllegalArgumentException(f"the code is not {_NAMES[kinds[0]]}")
    return found, data[1:]


class Card(NamedTuple):
    """The public key of a node, and its sealing key."""

    author: bytes
    key: SealingKey

    @property
    def node(self) -> NodeId:
        """The id of the node."""
        return node_id(self.author)


def card_of(identity: Identity, key: SealingKey) -> str:
    """Return the card of a node."""
    assert isinstance(identity.author, bytes)  # A node without a key has no card.
    said = identity.author + key.public + (key.until_us // MICROSECONDS).to_bytes(DATE_BYTES, "big")
    return code_of(CodeKind.CARD, said + identity.sign_bytes(Domain.CARD, said))


def read_card(code: str, date_us: int) -> Card:
    """Return the contents of a card; raises `IllegalArgumentException` for another text, or one that is too old."""
    _, data = data_of(code, (CodeKind.CARD,))
    if len(data) != _CARD.size:
        raise IllegalArgumentException("the card is of a later version")
    author, public, until, signature = _CARD.unpack(data)
    until_us = int.from_bytes(until, "big") * MICROSECONDS
    try:
        verify_bytes(author, Domain.CARD, data[: -len(signature)], signature)
    except ForgeryError:
        raise IllegalArgumentException("the card was not signed by the node that it names") from None
    if until_us <= date_us:
        raise IllegalArgumentException("the card is out of date: ask for a new one, which `carrypost keys card` makes")
    return Card(author, SealingKey(public, until_us))
