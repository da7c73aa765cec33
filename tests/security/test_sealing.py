"""Sealed messages as values: frozen vectors, padding, and every kind of bytes that do not fit."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st
from tests.support import sealed
from tests.support.sealed import AUTHOR, OTHER, PRIVATE, PUBLIC, SALT, SECRET

from carrypost.config import Limits
from carrypost.errors import ForgeryError, IllegalArgumentException, RemoteError
from carrypost.gossip.wire.codec import assemble_payload
from carrypost.model.descriptor import Descriptor, PayloadCodec, decode
from carrypost.model.headers import Headers
from carrypost.security import codes, hpke, sealing
from carrypost.security.sealing import SealingKey

VECTORS = Path(__file__).parents[1] / "golden" / "sealing.json"


def opened(found: Descriptor) -> Descriptor:
    """Open a message as its reader does."""
    seal = sealing.seal_of(found)
    return sealing.opened_with(found, seal, sealed.secret_of(PRIVATE, seal.stanzas[0], seal.salt))[0]


def body_of(found: Descriptor, sent: bytes) -> bytes:
    """Return the body of an opened message."""
    return assemble_payload(found, lambda _, piece: sent[piece * 16384 : (piece + 1) * 16384], Limits())


def test_the_frozen_vectors_hold() -> None:
    found, sent = sealed.sealed()
    assert isinstance(AUTHOR.author, bytes)
    key, check = sealing.content(sealing.letter_secret(SECRET, SALT), SALT, AUTHOR.author, sealed.DESTINATION)
    made = {
        "author": AUTHOR.author.hex(), "destination": sealed.DESTINATION, "reader_private": PRIVATE.hex(),
        "reader_public": PUBLIC.hex(), "wrapped_secret": SECRET.hex(),
        "secret": sealing.letter_secret(SECRET, SALT).hex(), "salt": SALT.hex(),
        "content_key": key.hex(), "check": check.hex(),
        "own_secret": sealing.own_secret(PRIVATE, SALT).hex(),
        "seal": found.headers.seal.hex() if found.headers is not None else "", "payload": sent.hex(),
        "descriptor": found.wire.hex(),
        "card": codes.card_of(AUTHOR, SealingKey(PUBLIC, 2_000_000_000 * 10**6)),
    }  # fmt: skip
    assert made == json.loads(VECTORS.read_text())


def test_a_reader_sees_all_fields_and_a_carrier_none() -> None:
    found, sent = sealed.sealed()
    plain = opened(found)
    assert (plain.attributes, plain.label, plain.size) == (sealed.ATTRIBUTES, sealed.LABEL, len(sealed.BODY))
    assert plain.headers == sealed.HEADERS
    assert (plain.id, plain.wire, plain.signature) == (found.id, found.wire, found.signature)
    assert body_of(plain, sent) == sealed.BODY
    for secret in (b"bridge", b"colour", b"red", b"urgency", b"a label", b"notice", b"replies"):
        assert secret not in found.wire + sent
    assert SECRET.hex() not in repr(plain) + repr(plain.unsealed) + repr(found)


@given(st.integers(0, 20_000_000))
def test_padding_adds_at_most_twelve_percent_and_leaves_few_lengths(length: int) -> None:
    padded = sealing.padded_length(length)
    assert length <= padded <= length * 1.12 + 1
    assert sealing.padded_length(padded) == padded


def test_a_compressed_body_comes_back_and_a_bomb_does_not() -> None:
    squeezed = zstandard.compress(bytes(1500))
    found, sent = sealed.sealed(body=squeezed, size=1500, codec=PayloadCodec.ZSTD)
    assert body_of(opened(found), sent) == bytes(1500)
    bomb, sent = sealed.sealed(body=zstandard.compress(bytes(10**6)), size=5000, codec=PayloadCodec.ZSTD)
    with pytest.raises(RemoteError):
        body_of(opened(bomb), sent)
    large, sent = sealed.sealed(body=squeezed, size=10**7, codec=PayloadCodec.ZSTD)
    with pytest.raises(RemoteError):
        body_of(opened(large), sent)


def _wrong() -> dict[str, Descriptor]:
    """Return messages that are signed, and do not open."""
    good, _ = sealed.sealed()
    assert good.headers is not None
    plain = AUTHOR.sign(msgspec.structs.replace(good, attributes={"beside": 1}))
    beside = AUTHOR.sign(msgspec.structs.replace(good, headers=msgspec.structs.replace(good.headers, type="beside")))
    longer = AUTHOR.sign(msgspec.structs.replace(good, length=good.length + 1, size=good.length + 1))
    other_reader = sealing.stanzas_for_readers([sealing.wrap(PUBLIC, bytes(32), sealed.EPHEMERAL)])
    return {
        "another author": sealed.sealed(signer=OTHER)[0],
        "another destination": sealed.sealed(moved_to="queue/aaaaaaaaaaaaaaaaaaaaaaaaaa/Bob")[0],
        "a wrong check": sealed.sealed(stanzas=other_reader)[0],
        "plain attributes": plain,
        "plain headers": beside,
        "another length": longer,
        "headers that are never sealed": sealed.sealed(headers=Headers(control=b"x"))[0],
        "a seal inside the seal": sealed.sealed(headers=Headers(seal=b"x"))[0],
        "a plain body of another size": sealed.sealed(size=5)[0],
        "a blank body": sealed.sealed(codec=PayloadCodec.BLANK)[0],
    }


@pytest.mark.parametrize("what", list(_wrong()))
def test_what_does_not_fit_its_seal_is_refused(what: str) -> None:
    with pytest.raises(ForgeryError) as raised:
        opened(_wrong()[what])
    assert raised.value.reason == "seal"


def test_every_changed_or_missing_byte_of_a_seal_is_refused() -> None:
    found, _ = sealed.sealed()
    assert found.headers is not None
    seal = found.headers.seal
    changed = [seal[:at] + bytes([seal[at] ^ 0x15]) + seal[at + 1 :] for at in range(len(seal))]
    for each in changed + [seal[:cut] for cut in range(1, len(seal))] + [seal + b"x"]:
        forged = AUTHOR.sign(msgspec.structs.replace(found, headers=Headers(seal=each)))
        with pytest.raises(ForgeryError) as raised:
            _read(forged)
        assert raised.value.reason == "seal"


def _read(found: Descriptor) -> None:
    """Open a message as a host does: by the stanza with the id of its key."""
    seal = sealing.seal_of(found)
    stanza = next((each for each in seal.stanzas if each[:8] == sealing.key_id(PUBLIC) and len(each) > 8), None)
    if stanza is None:
        raise ForgeryError("seal", "there is no stanza for this reader")
    sealing.opened_with(found, seal, sealed.secret_of(PRIVATE, stanza, seal.salt))


def test_every_changed_byte_of_a_payload_is_refused() -> None:
    found, sent = sealed.sealed()
    plain = opened(found)
    assert plain.unsealed is not None
    for at in range(len(sent)):
        with pytest.raises(ForgeryError):
            sealing.open_payload(plain.unsealed, sent[:at] + bytes([sent[at] ^ 1]) + sent[at + 1 :])
        with pytest.raises(ForgeryError):
            sealing.open_payload(plain.unsealed, sent[:at])


@pytest.mark.parametrize("readers", [1, 2, 64])
def test_each_reader_finds_its_stanza(readers: int) -> None:
    privates = [bytes([at]) * 32 for at in range(1, readers + 1)]
    stanzas = [sealing.wrap(hpke.public_of(each), SECRET, bytes([99]) * 32) for each in privates]
    found, _ = sealed.sealed(stanzas=sealing.stanzas_for_readers(stanzas))
    seal = sealing.seal_of(found)
    assert len(seal.stanzas) == readers
    for private, stanza in zip(privates, seal.stanzas, strict=True):
        assert stanza[: sealing.KEY_ID_BYTES] == sealing.key_id(hpke.public_of(private))
        plain = sealing.opened_with(found, seal, sealed.secret_of(private, stanza, seal.salt))[0]
        assert plain.attributes == sealed.ATTRIBUTES


def test_more_than_64_stanzas_are_refused() -> None:
    found, _ = sealed.sealed(stanzas=bytes([65]) + bytes(65 * sealing.STANZA_BYTES))
    assert found.headers is not None
    with pytest.raises(ForgeryError, match="at most 64 stanzas, not 65"):
        sealing.seal_of(found)


def test_a_carrier_decodes_a_sealed_message_as_it_came() -> None:
    found, _ = sealed.sealed()
    again = decode(found.wire)
    assert (again.id, again.wire, again.is_sealed, again.sealed) == (found.id, found.wire, True, "letter")


# --------------------------------------------------------------------------------------------------- cards


CARD = codes.card_of(AUTHOR, SealingKey(PUBLIC, 2_000 * 10**6))


def test_a_card_names_the_node_and_its_key_however_it_is_typed() -> None:
    typed = "-".join(CARD[at : at + 5] for at in range(0, len(CARD), 5)).lower() + "\n"
    for text in (CARD, typed):
        found = codes.read_card(text, 1_999 * 10**6)
        assert (found.node, found.key) == (AUTHOR.node, SealingKey(PUBLIC, 2_000 * 10**6))
    assert len(CARD) <= 250
    assert CARD.isupper()


@pytest.mark.parametrize("at", range(0, len(CARD), 3))
def test_a_card_with_a_wrong_letter_says_that_it_was_typed_wrong(at: int) -> None:
    wrong = CARD[:at] + ("B" if CARD[at] != "B" else "C") + CARD[at + 1 :]
    with pytest.raises(IllegalArgumentException, match="typed wrong"):
        codes.read_card(wrong, 0)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "typed wrong"),
        ("hello!", "letters and the digits"),
        ("ÄÖÜ", "letters and the digits"),
        (CARD[:-8], "typed wrong"),
        (codes.code_of(codes.CodeKind.CARD, b"short"), "later version"),
        (codes.code_of(0x7E, b"x" * 133), "not a card"),  # type: ignore[arg-type]  # of a later version
        (codes.code_of(codes.CodeKind.CARD, b"x" * 133), "not signed by the node"),
    ],
)
def test_what_is_no_card_says_why(text: str, says: str) -> None:
    with pytest.raises(IllegalArgumentException, match=says):
        codes.read_card(text, 0)


def test_a_card_that_is_out_of_date_says_so() -> None:
    with pytest.raises(IllegalArgumentException, match="out of date"):
        codes.read_card(CARD, 2_000 * 10**6)
