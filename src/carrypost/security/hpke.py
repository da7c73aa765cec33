"""HPKE (RFC 9180) in base mode: secrets wrapped for the holder of one X25519 key.

The one suite is DHKEM(X25519, HKDF-SHA256) with HKDF-SHA256 and ChaCha20-Poly1305. The library's own implementation
draws the ephemeral key from the system; here the caller passes it, because emulated runs must repeat. Each encryption
has a key of its own, so the only sequence number is 0. A test compares both implementations, and the vectors of
appendix A.2.
"""

from __future__ import annotations

import functools
from hashlib import sha256

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

from carrypost.errors import ForgeryError

KEY_BYTES = 32
TAG_BYTES = 16
OVERHEAD_BYTES = KEY_BYTES + TAG_BYTES
"""Bytes that wrapping adds: the encapsulated key and the tag."""
_KEM = b"KEM" + (0x0020).to_bytes(2, "big")
_SUITE = b"HPKE" + b"".join(each.to_bytes(2, "big") for each in (0x0020, 0x0001, 0x0003))
_VERSION = b"HPKE-v1"
_NONCE_BYTES = 12


# HMAC by two calls of SHA-256: each call of `hmac.digest` looks its algorithm up anew, which takes twice as long as all
# of this.
_BLOCK_BYTES = 64
_INNER, _OUTER = (bytes(byte ^ pad for byte in range(256)) for pad in (0x36, 0x5C))


def mac(key: bytes, data: bytes) -> bytes:
    """Return HMAC-SHA-256 of some bytes, with a key of up to 64 bytes."""
    inner, outer = _pads(key)
    return sha256(outer + sha256(inner + data).digest()).digest()


def hkdf(secret: bytes, salt: bytes, info: bytes) -> tuple[bytes, bytes]:
    """Return 64 bytes of HKDF-SHA-256 in two halves: what is made of one secret needs a key, and some bytes more."""
    inner, outer = _pads(salt)
    inner, outer = _pads(sha256(outer + sha256(inner + secret).digest()).digest())
    key = sha256(outer + sha256(inner + info + b"\x01").digest()).digest()
    return key, sha256(outer + sha256(inner + key + info + b"\x02").digest()).digest()


def _pads(key: bytes) -> tuple[bytes, bytes]:
    """Return what HMAC hashes before the data, and before the hash of the data."""
    assert len(key) <= _BLOCK_BYTES  # Longer keys would have to be hashed.
    padded = key.ljust(_BLOCK_BYTES, b"\0")
    return padded.translate(_INNER), padded.translate(_OUTER)


def _extract(suite: bytes, salt: bytes, label: bytes, material: bytes) -> bytes:
    return mac(salt, _VERSION + suite + label + material)


def _expand(suite: bytes, key: bytes, label: bytes, info: bytes, length: int) -> bytes:
    # At most one block of SHA-256 is needed: `length` is 32 or less.
    return mac(key, length.to_bytes(2, "big") + _VERSION + suite + label + info + b"\x01")[:length]


_BASE = b"\0" + _extract(_SUITE, b"", b"psk_id_hash", b"")
"""The mode without a shared secret, as it enters the key schedule."""


def _aead(shared: bytes, encapsulated: bytes, public: bytes, info: bytes) -> tuple[ChaCha20Poly1305, bytes]:
    """Return the cipher and its nonce, from the result of the key exchange."""
    secret = _extract(_KEM, b"", b"eae_prk", shared)
    secret = _expand(_KEM, secret, b"shared_secret", encapsulated + public, 32)
    context = _BASE + _extract(_SUITE, b"", b"info_hash", info)
    secret = _extract(_SUITE, secret, b"secret", b"")
    key = _expand(_SUITE, secret, b"key", context, KEY_BYTES)
    return ChaCha20Poly1305(key), _expand(_SUITE, secret, b"base_nonce", context, _NONCE_BYTES)


@functools.lru_cache(64)  # To load a key takes longer than an exchange, and a node uses its few keys again and again.
def _loaded(private: bytes) -> tuple[X25519PrivateKey, bytes]:
    """Return a private key, and its public one."""
    key = X25519PrivateKey.from_private_bytes(private)
    return key, key.public_key().public_bytes_raw()


def public_of(private: bytes) -> bytes:
    """Return the public key of a private one."""
    return _loaded(private)[1]


def wrap(public: bytes, plain: bytes, info: bytes, ephemeral: bytes, aad: bytes = b"") -> bytes:
    """Return bytes that only the holder of a key can read, as the encapsulated key and the ciphertext.

    `ephemeral`: 32 fresh random bytes. Raises `ForgeryError` for a public key that is none.
    """
    key = X25519PrivateKey.from_private_bytes(ephemeral)
    encapsulated = key.public_key().public_bytes_raw()
    try:
        shared = key.exchange(X25519PublicKey.from_public_bytes(public))
    except ValueError:  # It has another length, or is a point of low order: the result would be known to everybody.
        raise ForgeryError("seal", "a sealing key that is none") from None
    aead, nonce = _aead(shared, encapsulated, public, info)
    return encapsulated + aead.encrypt(nonce, plain, aad)


def unwrap(private: bytes, wrapped: bytes, info: bytes, aad: bytes = b"") -> bytes:
    """Return the bytes that `wrap` was given; raises `ForgeryError` if they are for another key, or changed."""
    (key, public), encapsulated = _loaded(private), wrapped[:KEY_BYTES]
    try:
        shared = key.exchange(X25519PublicKey.from_public_bytes(encapsulated))
        aead, nonce = _aead(shared, encapsulated, public, info)
        return aead.decrypt(nonce, wrapped[KEY_BYTES:], aad)
    except (InvalidTag, ValueError):
        raise ForgeryError("seal", "a wrapped secret that this key does not open") from None
