"""HPKE: the vectors of RFC 9180, the library's own implementation, and bytes that were changed."""

from __future__ import annotations

import hmac

import pytest
from cryptography.hazmat.primitives import hpke as library
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey

from carrypost.errors import ForgeryError
from carrypost.security import hpke

INFO = bytes.fromhex("4f6465206f6e2061204772656369616e2055726e")
EPHEMERAL = bytes.fromhex("f4ec9b33b792c372c1d2c2063507b684ef925b8c75a42dbcbf57d63ccd381600")
PUBLIC = bytes.fromhex("4310ee97d88cc1f088a5576c77ab0cf5c3ac797f3d95139c6c84b5429c59662a")
PRIVATE = bytes.fromhex("8057991eef8f1f1af18f4a9491d16a1ce333f695d4db8e38da75975c4478e0fb")
PLAIN = b"Beauty is truth, truth beauty"
AAD = b"Count-0"
WRAPPED = bytes.fromhex(
    "1afa08d3dec047a643885163f1180476fa7ddb54c6a8029ea33f95796bf2ac4a"
    "1c5250d8034ec2b784ba2cfd69dbdb8af406cfe3ff938e131f0def8c8b60b4db21993c62ce81883d2dd1b51a28"
)
SUITE = library.Suite(library.KEM.X25519, library.KDF.HKDF_SHA256, library.AEAD.CHACHA20_POLY1305)


def test_the_vectors_of_rfc_9180_appendix_a_2_hold_in_both_directions() -> None:
    assert hpke.public_of(PRIVATE) == PUBLIC
    assert hpke.wrap(PUBLIC, PLAIN, INFO, EPHEMERAL, AAD) == WRAPPED
    assert hpke.unwrap(PRIVATE, WRAPPED, INFO, AAD) == PLAIN


def test_the_library_opens_what_is_wrapped_here_and_the_other_way_round() -> None:
    mine = X25519PrivateKey.from_private_bytes(PRIVATE)
    assert SUITE.decrypt(hpke.wrap(PUBLIC, b"secret", INFO, EPHEMERAL), mine, INFO) == b"secret"
    theirs = SUITE.encrypt(b"secret", X25519PublicKey.from_public_bytes(PUBLIC), INFO)
    assert hpke.unwrap(PRIVATE, theirs, INFO) == b"secret"


@pytest.mark.parametrize("at", range(len(WRAPPED)))
def test_every_changed_byte_is_refused(at: int) -> None:
    changed = bytearray(WRAPPED)
    changed[at] ^= 0x41
    with pytest.raises(ForgeryError):
        hpke.unwrap(PRIVATE, bytes(changed), INFO, AAD)


@pytest.mark.parametrize("cut", range(0, len(WRAPPED), 7))
def test_cut_bytes_are_refused(cut: int) -> None:
    with pytest.raises(ForgeryError):
        hpke.unwrap(PRIVATE, WRAPPED[:cut], INFO, AAD)


@pytest.mark.parametrize("public", [bytes(32), b"\x01" + bytes(31), b"short", bytes(33)])
def test_a_public_key_that_gives_everybody_the_same_secret_is_refused(public: bytes) -> None:
    with pytest.raises(ForgeryError):
        hpke.wrap(public, b"secret", INFO, EPHEMERAL)


def test_another_key_or_another_purpose_opens_nothing() -> None:
    with pytest.raises(ForgeryError):
        hpke.unwrap(EPHEMERAL, WRAPPED, INFO, AAD)
    with pytest.raises(ForgeryError):
        hpke.unwrap(PRIVATE, WRAPPED, b"another", AAD)


@pytest.mark.parametrize("length", [0, 16, 32, 64])
def test_the_mac_is_that_of_the_library(length: int) -> None:
    key = bytes(range(length))
    assert hpke.mac(key, PLAIN) == hmac.digest(key, PLAIN, "sha256")
