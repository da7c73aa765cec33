"""Random bytes for keys, salts and secrets: from the operating system, or derived where runs must repeat.

Nothing secret ever comes from a generator of `random`. The derived bytes of an emulated node depend on the seed of the
run, the node and its boot alone, so one more node does not change those of others.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from itertools import count

from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

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
