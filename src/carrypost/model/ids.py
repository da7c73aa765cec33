"""Ids of nodes and messages.

A node id is text: the lower-case base32 of the first 16 bytes of SHA-256 over its Ed25519 public key, or, with security
off, a plain name. A message id is bytes: the first 16 bytes of SHA-256 over the descriptor, or, with security off,
``author:incarnation:sequence``. Ids are always derived, and never accepted from a peer.
"""

from __future__ import annotations

import base64
import functools
import hashlib
import re
from contextlib import suppress
from typing import Final, NewType

NodeId = NewType("NodeId", str)
MessageId = NewType("MessageId", bytes)

DIGEST_BYTES: Final = 16
PREFIX_BYTES: Final = 4
_PLAIN: Final = re.compile(rb"[^:]+:[0-9]+:[0-9]+")
_LETTERS: Final = "abcdefghijklmnopqrstuvwxyz234567"
_PAIRS: Final = tuple(first + second for first in _LETTERS for second in _LETTERS)
_PAIR_BITS: Final = 10
_PAIR_MASK: Final = (1 << _PAIR_BITS) - 1


def base32(data: bytes) -> str:
    """Return the lower-case base32 of bytes, without padding."""
    # Two letters at a time: `base64.b32encode` takes nearly twice as long, and every message that people see has an id.
    letters = -(-len(data) * 8 // 5)
    pairs = -(-letters // 2)
    number = int.from_bytes(data, "big") << pairs * _PAIR_BITS - len(data) * 8
    shifts = range((pairs - 1) * _PAIR_BITS, -1, -_PAIR_BITS)
    return "".join([_PAIRS[number >> shift & _PAIR_MASK] for shift in shifts])[:letters]


def from_base32(text: str) -> bytes:
    """Return the bytes of a text that `base32` made; raises `ValueError`."""
    return base64.b32decode(text.upper() + "=" * (-len(text) % 8))


@functools.lru_cache(maxsize=1024)  # Few authors write most messages, and base32 is slow.
def node_id(public_key: bytes) -> NodeId:
    """Return the id of the node with this Ed25519 public key."""
    return NodeId(base32(hashlib.sha256(public_key).digest()[:DIGEST_BYTES]))


@functools.lru_cache(maxsize=1024)
def node_of(data: bytes) -> NodeId:
    """Return the id of a node from its bytes."""
    return NodeId(base32(data))


@functools.lru_cache(maxsize=1024)
def node_bytes(node: NodeId) -> bytes:
    """Return the bytes of the id of a node with a key."""
    return from_base32(node)


@functools.lru_cache(maxsize=1024)
def is_node_id(text: str) -> bool:
    """Return True if a text can be the id of a node with a key."""
    try:
        found = from_base32(text)
    except ValueError:
        return False
    return len(found) == DIGEST_BYTES and base32(found) == text


@functools.lru_cache(maxsize=1024)
def node_prefix(node: NodeId) -> bytes:
    """Return the four bytes that identify a node in heard-lists and requests."""
    return hashlib.sha256(node.encode()).digest()[:PREFIX_BYTES]


def signed_message_id(encoded: bytes) -> MessageId:
    """Return the id of a signed descriptor: the hash of exactly its bytes."""
    return MessageId(hashlib.sha256(encoded).digest()[:DIGEST_BYTES])


def plain_message_id(author: str, incarnation: int, sequence: int) -> MessageId:
    """Return the id of a descriptor made with security off."""
    return MessageId(f"{author}:{incarnation}:{sequence}".encode())


def shown(message: MessageId) -> str:
    """Return a message id as people see it: ``ID:`` and base32, or the plain text.

    One hash in forty million looks like a plain id, so an attacker can find one in a minute; almost surely it is not
    text.
    """
    if _PLAIN.fullmatch(message):
        with suppress(UnicodeDecodeError):
            return message.decode()
    return "ID:" + base32(message)


def spellings(name: str) -> frozenset[str]:
    """Return the spellings under which people may know the message with this id."""
    return frozenset({name, f"ID:{name}", name.removeprefix("ID:")})
