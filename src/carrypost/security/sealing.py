"""Sealed messages: content keys, sealed fields and payloads, stanzas.

A sealed message has a secret. Together with a salt it gives the content key, which encrypts the payload and the fields
that only readers may see, and a check, which commits to the secret. Both depend on the author and the destination, so
nobody can sign another's ciphertext, or move it, and a message opens in one way only, for all of its readers. Stanzas
say how readers get the secret. The format is described in `docs/sealing-format.md`, with vectors.

Everything here is pure; randomness is passed in. Whatever is wrong with received bytes raises `ForgeryError`.
"""

# Why the payload and the fields need no nonces of their own: the content key is used for one
# message, with a fresh salt, and encrypts exactly two texts.
#
# Why there is a check beside the tags: ChaCha20-Poly1305 does not commit to its key. An author
# could make one ciphertext that opens differently for two readers, each with a stanza of its own.
# A check that is a hash of the secret has one preimage.

from __future__ import annotations

import functools
import hashlib
import hmac
import operator
import struct
from collections.abc import Mapping, Sequence

import msgspec
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

from carrypost.errors import ForgeryError
from carrypost.model import headers as header_fields
from carrypost.model.address import CIRCLE
from carrypost.model.descriptor import AttributeValue, Descriptor, PayloadCodec, Unsealed
from carrypost.model.headers import Headers
from carrypost.security import hpke

SUITE = 1
"""X25519, HKDF-SHA-256, ChaCha20-Poly1305. 2 is reserved for X25519 with ML-KEM-768."""
SECRET_BYTES = 32
SALT_BYTES = 16
CHECK_BYTES = 16
KEY_ID_BYTES = 8
EPOCH_ID_BYTES = 8
READERS_MAX = 64
"""Number of readers of a message that is sealed for nodes."""
WRAPPED_BYTES = SECRET_BYTES + hpke.OVERHEAD_BYTES
STANZA_BYTES = KEY_ID_BYTES + WRAPPED_BYTES
_OWN, _EPOCH = 0, 255
"""Values in the place of the number of readers."""
_HEAD = struct.Struct(f"B{SALT_BYTES}s{CHECK_BYTES}sB")
"""Suite, salt, check, and the number of readers."""
_HEAD_BYTES = _HEAD.size
_EPOCH_STANZA = struct.Struct(f">I{EPOCH_ID_BYTES}s")
_ALONE = {_OWN: KEY_ID_BYTES, _EPOCH: _EPOCH_STANZA.size}
"""Lengths of the stanzas that are the only one."""
_SUITE = bytes([SUITE])
_CONTENT = b"carrypost seal 1\0"
_LETTER = b"carrypost letter 1\0"
_LETTER_SECRET = b"carrypost letter secret 1\0"
_OWN_SECRET = b"carrypost own 1\0"
_FIELDS_NONCE, _PAYLOAD_NONCE = (number.to_bytes(12, "little") for number in (0, 1))
_CLEAR = ("recipients", "connected", "joins")
"""Headers that carriers read. A message that only joins others has no content, and its place in an order depends on
that."""
_CLEAR_KEYS = tuple(map(header_fields.key_of, _CLEAR))


class SealingKey(msgspec.Struct, frozen=True, array_like=True):
    """A public sealing key of a node, and the date until which messages may be sealed for it."""

    public: bytes
    until_us: int


class Fields(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The fields of a message that only its readers see; fields may be appended with a default."""

    attributes: dict[str, AttributeValue]
    label: str
    topic: str
    """Name of the topic, if the destination does not show it; else empty."""
    size: int
    """Payload bytes as published."""
    packed: int
    """Payload bytes as compressed, without padding."""
    codec: PayloadCodec
    headers: Headers | None = None
    reply_key: SealingKey | None = None
    """The author's sealing key, for replies to it."""


class Seal(msgspec.Struct, frozen=True, gc=False):
    """A parsed `Headers.seal`."""

    salt: bytes
    check: bytes
    stanzas: tuple[bytes, ...]
    """For each reader, the id of its key and the wrapped secret; the id alone: its author derives the secret of it."""
    epoch: tuple[int, bytes] | None
    """Number and id of the epoch of a circle, if it has the secret."""
    fields: bytes
    """The encrypted fields."""

    @property
    def is_own(self) -> bool:
        """True if only the author can read it."""
        return bool(self.stanzas) and len(self.stanzas[0]) == KEY_ID_BYTES


class Sealing(msgspec.Struct, eq=False):
    """The seal of a message that is being made, first without the message's payload, and then without its fields."""

    key: bytes
    """The content key."""
    cipher: ChaCha20Poly1305
    head: bytes
    """The beginning of the seal, up to the fields."""
    reply_key: SealingKey | None = None
    topic: str = ""
    """Name of the topic of a circle."""
    circle: str = ""
    """Name of the circle on this node."""
    secret: bytes = b""
    """The secret of a message to a queue of its own author, who wraps it for other receivers."""
    plain: tuple[int, int, PayloadCodec] = (0, 0, PayloadCodec.PLAIN)
    """Size, packed length and codec of the payload before it was sealed."""
    published: Fields | None = None
    """The fields with all headers, once the message is made."""

    @property
    def is_own(self) -> bool:
        """True if the author is among the readers."""
        return bool(self.circle or self.secret)

    def __repr__(self) -> str:
        return "<Sealing>"


def key_id(public: bytes) -> bytes:
    """Return the short name of a public sealing key, by which a reader finds its stanza."""
    return hashlib.sha256(public).digest()[:KEY_ID_BYTES]


def content(secret: bytes, salt: bytes, author: bytes, destination: str) -> tuple[bytes, bytes]:
    """Return the content key and the check of a message: HKDF-SHA-256, 48 bytes."""
    key, more = hpke.hkdf(secret, salt, _CONTENT + author + destination.encode())
    return key, more[:CHECK_BYTES]


def begun(secret: bytes, salt: bytes, author: bytes, destination: str, stanzas: bytes) -> Sealing:
    """Return the beginning of a seal."""
    key, check = content(secret, salt, author, destination)
    return Sealing(key, ChaCha20Poly1305(key), _SUITE + salt + check + stanzas)


def own_secret(private: bytes, salt: bytes) -> bytes:
    """Return the secret of a message that its author seals for itself."""
    return hpke.mac(private, _OWN_SECRET + salt)


def letter_secret(wrapped: bytes, salt: bytes) -> bytes:
    """Return the secret of one message, from the one that its stanzas wrap, which serves its author for a while."""
    return hpke.mac(wrapped, _LETTER_SECRET + salt)


# ------------------------------------------------------------------------------------------------ stanzas


def wrap(public: bytes, secret: bytes, ephemeral: bytes, info: bytes = _LETTER) -> bytes:
    """Return the stanza of one reader."""
    return key_id(public) + hpke.wrap(public, secret, info, ephemeral)


def unwrap(privates: Mapping[bytes, bytes], stanza: bytes, info: bytes = _LETTER) -> bytes | None:
    """Return the secret of a stanza; None if it is for none of these private keys, which are given by their ids.

    Raises `ForgeryError`.
    """
    private = privates.get(stanza[:KEY_ID_BYTES])
    return None if private is None else hpke.unwrap(private, stanza[KEY_ID_BYTES:], info)


def stanzas_for_readers(stanzas: Sequence[bytes]) -> bytes:
    """Return the encoded stanzas of readers."""
    assert 0 < len(stanzas) <= READERS_MAX
    return bytes([len(stanzas)]) + b"".join(stanzas)


def stanza_for_author(key: bytes) -> bytes:
    """Return the encoded stanza of a message for its own author, from the id of its key."""
    return bytes([_OWN]) + key


def stanza_for_epoch(number: int, epoch: bytes) -> bytes:
    """Return the encoded stanza of a message for a circle."""
    return bytes([_EPOCH]) + _EPOCH_STANZA.pack(number, epoch)


def seal_of(descriptor: Descriptor) -> Seal:
    """Return the parts of the seal of a message; raises `ForgeryError`, also if it has none."""
    seal = b"" if descriptor.headers is None else descriptor.headers.seal
    if len(seal) < _HEAD_BYTES or seal[0] != SUITE:
        raise ForgeryError("seal", "a seal of an unknown suite, or cut short")
    _, salt, check, count = _HEAD.unpack_from(seal)
    if READERS_MAX < count != _EPOCH:
        raise ForgeryError("seal", f"a seal has at most {READERS_MAX} stanzas, not {count}")
    alone = _ALONE.get(count)
    end = _HEAD_BYTES + (alone or count * STANZA_BYTES)
    if len(seal) < end + hpke.TAG_BYTES:
        raise ForgeryError("seal", "a seal that is cut short")
    if count == _EPOCH:
        return Seal(salt, check, (), _EPOCH_STANZA.unpack_from(seal, _HEAD_BYTES), seal[end:])
    each = alone or STANZA_BYTES
    stanzas = tuple([seal[at : at + each] for at in range(_HEAD_BYTES, end, each)])
    return Seal(salt, check, stanzas, None, seal[end:])


# -------------------------------------------------------------------------------------------------- sealing


@functools.lru_cache(1_024)  # There are few lengths, and each message needs one twice.
def padded_length(length: int) -> int:
    """Return the length of a payload after padding (Padmé): at most 12 % more, and few different lengths."""
    if length < 2:  # noqa: PLR2004 - has no logarithm to speak of
        return length
    exponent = length.bit_length() - 1
    mask = (1 << exponent - exponent.bit_length()) - 1
    return length + mask & ~mask


def seal_payload(sealing: Sealing, codec: PayloadCodec, size: int, packed: bytes) -> bytes:
    """Return the encrypted payload, of this size and compressed before; it is padded."""
    sealing.plain = size, len(packed), codec
    return sealing.cipher.encrypt(_PAYLOAD_NONCE, packed.ljust(padded_length(len(packed)), b"\0"), None)


def sealed_length(length: int) -> int:
    """Return the length of a payload of this length after `seal_payload`."""
    return padded_length(length) + hpke.TAG_BYTES


def seal_headers(
    sealing: Sealing, headers: Headers | None, attributes: dict[str, AttributeValue], label: str
) -> Headers:
    """Return the headers of the sealed message, which has no other attributes and no label."""
    fields = attributes, label, sealing.topic, *sealing.plain
    sealing.published = Fields(*fields, headers)
    inner = {} if headers is None else header_fields.travelling(headers)
    for key in _CLEAR_KEYS if inner else ():
        inner.pop(key, None)
    encoded = _encode((*fields, inner or None, sealing.reply_key))
    seal = sealing.head + sealing.cipher.encrypt(_FIELDS_NONCE, encoded, None)
    return Headers(seal=seal) if headers is None else _with_clear(Headers(seal=seal), headers)


def _with_clear(headers: Headers, carried: Headers) -> Headers:
    """Return headers with those that carriers read."""
    return msgspec.structs.replace(
        headers, recipients=carried.recipients, connected=carried.connected, joins=carried.joins
    )


# -------------------------------------------------------------------------------------------------- opening


def opened_with(descriptor: Descriptor, seal: Seal, secret: bytes, circle: str = "") -> tuple[Descriptor, Fields]:
    """Return a sealed message with its plain fields, from its secret; raises if the check does not agree.

    `seal`: that of the message. `circle`: the name that its circle has on this node.
    """
    if isinstance(descriptor.author, str):
        raise ForgeryError("seal", "a seal of an author without a key")
    key, check = content(secret, seal.salt, descriptor.author, descriptor.destination)
    if not hmac.compare_digest(check, seal.check):
        raise ForgeryError("seal", "a seal for another author or destination, or with a wrong check")
    return opened(descriptor, seal, key, b"" if circle else secret, circle)


def opened(
    descriptor: Descriptor, seal: Seal, key: bytes, secret: bytes = b"", circle: str = ""
) -> tuple[Descriptor, Fields]:
    """Return a sealed message with its plain fields, and the fields.

    Its payload is opened by `open_payload`.
    """
    sealed = descriptor.headers
    assert sealed is not None  # It has a seal.
    if descriptor.attributes or descriptor.label or sealed != _with_clear(Headers(seal=sealed.seal), sealed):
        raise ForgeryError("seal", "a sealed message with plain fields beside the seal")
    try:
        fields = _decode(ChaCha20Poly1305(key).decrypt(_FIELDS_NONCE, seal.fields, None))
    except InvalidTag:
        raise ForgeryError("seal", "fields that were changed, or another key") from None
    except (ValueError, RecursionError) as error:  # ValueError: msgspec's own, and text that is not UTF-8
        raise ForgeryError("seal", f"fields that are none: {error}") from None
    inner = fields.headers or _NONE
    if inner is not _NONE:
        if any(_never_sealed(inner)):
            raise ForgeryError("seal", "fields with headers that are never sealed")
        if (wrong := header_fields.fault(inner, fields.attributes)) is not None:
            raise ForgeryError("seal", wrong)
    packed, size = fields.packed, fields.size
    plain = fields.codec is PayloadCodec.PLAIN
    if fields.codec is PayloadCodec.BLANK or sealed_length(packed) != descriptor.length or (plain and packed != size):
        raise ForgeryError("seal", "fields that do not fit the payload")
    if sealed.recipients or sealed.connected or sealed.joins:
        inner = _with_clear(inner, sealed)
    return _with_fields(descriptor, fields, inner, Unsealed(key, packed, secret, circle)), fields


def as_published(descriptor: Descriptor, sealing: Sealing) -> Descriptor:
    """Return what `opened` would for a message of this node: its author need not decrypt it."""
    fields = sealing.published
    assert fields is not None  # The message was made.
    unsealed = Unsealed(sealing.key, fields.packed, sealing.secret, sealing.circle)
    return _with_fields(descriptor, fields, fields.headers or _NONE, unsealed)


def _with_fields(sealed: Descriptor, fields: Fields, headers: Headers, unsealed: Unsealed) -> Descriptor:
    """Return a sealed message with its plain fields. It has the id, the signature and the bytes of the sealed one."""
    is_topic = unsealed.circle and fields.topic
    made = msgspec.structs.replace(
        sealed, destination=f"{CIRCLE}{unsealed.circle}/{fields.topic}" if is_topic else sealed.destination,
        size=fields.size, codec=fields.codec, label=fields.label, attributes=fields.attributes, headers=headers,
    )  # fmt: skip
    made.__dict__.update(
        encoded=sealed.encoded, signature=sealed.signature, id=sealed.id, node=sealed.node, unsealed=unsealed
    )
    return made


def open_payload(unsealed: Unsealed, sealed: bytes) -> bytes:
    """Return the compressed payload of a message, from its bytes as sent."""
    try:
        return ChaCha20Poly1305(unsealed.key).decrypt(_PAYLOAD_NONCE, sealed, None)[: unsealed.packed]
    except InvalidTag:
        raise ForgeryError("seal", "a payload that was changed, or another key") from None


_NONE = Headers()
_never_sealed = operator.attrgetter(*_CLEAR, "seal", "control", "origin", "event", "covers", "fault")
"""Values of the headers that no seal has; all of them are false unless they are given."""
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Fields).decode
