"""Identities: Ed25519 keys, node ids, signatures.

A signed identity's node id is the hash of its public key, so names such as ``Alan@<node id>`` certify themselves.
A plain identity is a bare name and means that security is off. Keys come from the operating system or from 32
bytes that the caller derived; never from `random`.
"""

from __future__ import annotations

import functools
import hashlib
from dataclasses import dataclass, field

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from carrypost.errors import ForgeryError, LocalError
from carrypost.model import ids
from carrypost.model.descriptor import SIGNATURE_DOMAIN, Descriptor
from carrypost.model.ids import NodeId

SEED_BYTES = 32
PLAIN_NAME_BYTES_MAX = 64


@dataclass(frozen=True, slots=True)
class Identity:
    """A node's name and, unless security is off, the key behind it."""

    node: NodeId
    author: bytes | str
    _key: Ed25519PrivateKey | None = field(default=None, repr=False, compare=False)

    @classmethod
    def plain(cls, name: str) -> Identity:
        """A bare name: security off."""
        if not name or ":" in name or len(name.encode()) > PLAIN_NAME_BYTES_MAX:
            raise LocalError(f"a plain node name has 1 to {PLAIN_NAME_BYTES_MAX} bytes and no colon: {name!r}")
        return cls(NodeId(name), name)

    @classmethod
    def generate(cls) -> Identity:
        """A fresh key from the operating system."""
        return cls._of(Ed25519PrivateKey.generate())

    @classmethod
    def from_seed(cls, seed: bytes) -> Identity:
        """The key that these 32 bytes determine."""
        if len(seed) != SEED_BYTES:
            raise LocalError(f"an identity seed has {SEED_BYTES} bytes, not {len(seed)}")
        return cls._of(Ed25519PrivateKey.from_private_bytes(seed))

    @classmethod
    def derived(cls, seed: int | str, node: str) -> Identity:
        """The key of an emulated node: SHA-256 over run seed, node and purpose."""
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
        """The descriptor with this identity's signature; as it is where security is off."""
        if self._key is None:
            return descriptor
        return descriptor.with_signature(self._key.sign(SIGNATURE_DOMAIN + descriptor.encoded))


def verify(descriptor: Descriptor) -> None:
    """Raise `ForgeryError` unless the descriptor's author signed it."""
    if isinstance(descriptor.author, str):
        raise ForgeryError("unsigned", "a plain author where signatures are required")
    try:
        _public_key(descriptor.author).verify(descriptor.signature, SIGNATURE_DOMAIN + descriptor.encoded)
    except (InvalidSignature, ValueError):
        raise ForgeryError("signature", "the signature does not fit the descriptor") from None


@functools.lru_cache(maxsize=256)  # Few authors write most messages.
def _public_key(author: bytes) -> Ed25519PublicKey:
    return Ed25519PublicKey.from_public_bytes(author)
