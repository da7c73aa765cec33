"""Identities: Ed25519 keys, node ids, signatures, and the random bytes that keys are made of.

A signed identity's node id is the hash of its public key, so names such as ``Alan@<node id>`` certify themselves. A
plain identity is a bare name and means that security is off. Keys come from the operating system or from 32 bytes that
the caller derived; never from `random`.

Each kind of signed bytes has a `Domain`, which is signed in front of them. A signature of one kind is therefore never
valid for another, even for bytes that can be read as both.

`check_origin` is for messages that pass on others. The signature of the message itself is checked when it arrives, as
for every message. `check_origin` checks the signature of the message that it passes on, and that both have the same
payload: pieces were checked against the root of the one, so they are those of the other.

Random bytes for keys, salts and secrets come from the operating system (`from_system`), or are `derived` where runs
must repeat. Nothing secret ever comes from a generator of `random`. The derived bytes of an emulated node depend on the
seed of the run, the node and its boot alone, so one more node does not change those of others.
"""

from __future__ import annotations

import enum
import functools
import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

from carrypost.errors import ForgeryError, LocalError
from carrypost.model import ids
from carrypost.model.descriptor import Descriptor
from carrypost.model.ids import NodeId

Entropy = Callable[[int], bytes]
"""A function that returns this many random bytes."""
_BLOCK_BYTES = 32


def from_system(nbytes: int) -> bytes:
    """Return random bytes of the operating system, through the library for cryptography."""
    if nbytes <= _BLOCK_BYTES:
        return ChaCha20Poly1305.generate_key()[:nbytes]
    blocks = [ChaCha20Poly1305.generate_key() for _ in range(-(-nbytes // _BLOCK_BYTES))]
    return b"".join(blocks)[:nbytes]


def derived(seed: int | str, node: str, boot: int) -> Entropy:
    """Return a source for an emulated node: SHA-256 over seed, node, boot and a counter."""
    numbers = count()

    def draw(nbytes: int) -> bytes:
        blocks = [
            hashlib.sha256(f"{seed}/{node}/entropy/{boot}/{next(numbers)}".encode()).digest()
            for _ in range(-(-nbytes // _BLOCK_BYTES))
        ]
        return b"".join(blocks)[:nbytes]

    return draw


SEED_BYTES = 32
PLAIN_NAME_BYTES_MAX = 64


class Domain(enum.Enum):
    """The kinds of bytes that nodes sign. Each value ends with its only zero byte, so none is a prefix of another."""

    DESCRIPTOR = b"carrypost descriptor 1\0"
    ACK_RECORD = b"carrypost ack record 1\0"
    LINK_RECORD = b"carrypost link record 1\0"
    CARD = b"carrypost card 1\0"
    CHARTER = b"carrypost charter 1\0"


@dataclass(frozen=True, slots=True)
class Identity:
    """A node's name and, unless security is off, the key behind it."""

    node: NodeId
    author: bytes | str
    _key: Ed25519PrivateKey | None = field(default=None, repr=False, compare=False)

    @classmethod
    def plain(cls, name: str) -> Identity:
        """Return the identity of a bare name: security off."""
        if not name or ":" in name or len(name.encode()) > PLAIN_NAME_BYTES_MAX:
            raise LocalError(
                f"a plain node name must have 1 to {PLAIN_NAME_BYTES_MAX} bytes and no colon, not {name!r}"
            )
        return cls(NodeId(name), name)

    @classmethod
    def generate(cls) -> Identity:
        """Return an identity with a fresh key from the operating system."""
        return cls._of(Ed25519PrivateKey.generate())

    @classmethod
    def from_seed(cls, seed: bytes) -> Identity:
        """Return the identity whose key these 32 bytes determine."""
        if len(seed) != SEED_BYTES:
            raise LocalError(f"an identity seed must have {SEED_BYTES} bytes, not {len(seed)}")
        return cls._of(Ed25519PrivateKey.from_private_bytes(seed))

    @classmethod
    def derived(cls, seed: int | str, node: str) -> Identity:
        """Return the identity of an emulated node: SHA-256 over run seed, node and purpose."""
        return cls.from_seed(hashlib.sha256(f"{seed}/{node}/identity".encode()).digest())

    @classmethod
    def _of(cls, key: Ed25519PrivateKey) -> Identity:
        public = key.public_key().public_bytes_raw()
        return cls(ids.node_id(public), public, key)

    @property
    def signed(self) -> bool:
        """False means security off."""
        return self._key is not None

    @property
    def seed(self) -> bytes:
        """The 32 bytes to back up."""
        if self._key is None:
            raise LocalError("a plain identity has no key")
        return self._key.private_bytes_raw()

    def sign(self, descriptor: Descriptor) -> Descriptor:
        """Return the descriptor with this identity's signature, or unchanged if security is off."""
        if self._key is None:
            return descriptor
        return descriptor.with_signature(self.sign_bytes(Domain.DESCRIPTOR, descriptor.encoded))

    def sign_bytes(self, domain: Domain, data: bytes) -> bytes:
        """Return this identity's signature of bytes of one kind; empty where security is off."""
        return b"" if self._key is None else self._key.sign(domain.value + data)


def verify(descriptor: Descriptor) -> None:
    """Raise `ForgeryError` unless the descriptor's author signed it."""
    verify_bytes(descriptor.author, Domain.DESCRIPTOR, descriptor.encoded, descriptor.signature)


def verify_bytes(author: bytes | str, domain: Domain, data: bytes, signature: bytes) -> None:
    """Raise `ForgeryError` unless the author, a public key, signed these bytes as bytes of this kind."""
    if isinstance(author, str):
        raise ForgeryError("unsigned", "a plain author where signatures are required")
    try:
        _public_key(author).verify(signature, domain.value + data)
    except (InvalidSignature, ValueError):
        raise ForgeryError("signature", "the signature does not match the signed bytes") from None


@functools.lru_cache(maxsize=256)  # Few authors write most messages.
def _public_key(author: bytes) -> Ed25519PublicKey:
    return Ed25519PublicKey.from_public_bytes(author)


def check_origin(found: Descriptor) -> None:
    """Raise `ForgeryError` unless a message passes on a message of the author that it names, with its payload."""
    origin = found.original
    if origin is found or origin.original is not origin:
        raise ForgeryError("origin", "the origin is missing, or has an origin itself")
    if origin.signed != found.signed:
        raise ForgeryError("origin", "only one of the two messages is signed")
    payload = found.root, found.length, found.size, found.codec
    if payload != (origin.root, origin.length, origin.size, origin.codec):
        raise ForgeryError("origin", "the payload is not that of the message that is passed on")
    if origin.signed:
        verify(origin)
