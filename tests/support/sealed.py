"""Sealed messages made by hand, of fixed keys, for tests of values."""

from __future__ import annotations

import hashlib

from carrypost.model.descriptor import AttributeValue, Descriptor, PayloadCodec, decode
from carrypost.model.headers import Headers
from carrypost.security import hpke, sealing
from carrypost.security.identity import Identity

AUTHOR = Identity.from_seed(b"author".ljust(32, b"."))
OTHER = Identity.from_seed(b"other".ljust(32, b"."))
PRIVATE = hashlib.sha256(b"reader").digest()
PUBLIC = hpke.public_of(PRIVATE)
SECRET = hashlib.sha256(b"secret").digest()
SALT = hashlib.sha256(b"salt").digest()[:16]
EPHEMERAL = hashlib.sha256(b"ephemeral").digest()
DESTINATION = "queue/aaaaaaaaaaaaaaaaaaaaaaaaaa/Alan"
BODY = b"The north bridge is closed. " * 9
HEADERS = Headers(body_type=2, type="notice", reply_to="queue/b/replies", session=3, number=7, receipt=True)
ATTRIBUTES: dict[str, AttributeValue] = {"colour": "red", "urgency": 5}
LABEL = "a label"


def secret_of(private: bytes, stanza: bytes, salt: bytes) -> bytes:
    """Return the secret of a letter, as its reader finds it."""
    found = sealing.unwrap({sealing.key_id(hpke.public_of(private)): private}, stanza)
    assert found is not None
    return sealing.letter_secret(found, salt)


def sealed(
    *,
    author: Identity = AUTHOR,
    signer: Identity | None = None,
    destination: str = DESTINATION,
    moved_to: str | None = None,
    body: bytes = BODY,
    size: int | None = None,
    codec: PayloadCodec = PayloadCodec.PLAIN,
    headers: Headers | None = HEADERS,
    stanzas: bytes | None = None,
) -> tuple[Descriptor, bytes]:
    """Return a sealed message as a carrier has it, and its payload as sent."""
    assert isinstance(author.author, bytes)
    if stanzas is None:
        stanzas = sealing.stanzas_for_readers([sealing.wrap(PUBLIC, SECRET, EPHEMERAL)])
    secret = sealing.letter_secret(SECRET, SALT)
    seal = sealing.begun(secret, SALT, author.author, destination, stanzas)
    sent = sealing.seal_payload(seal, codec, len(body) if size is None else size, body)
    made = sealing.seal_headers(seal, headers, dict(ATTRIBUTES), LABEL)
    signer = signer or author
    descriptor = Descriptor(
        author=signer.author, incarnation=1, sequence=2, created_us=3, deadline_us=10**15,
        destination=moved_to or destination, size=len(sent), length=len(sent), codec=PayloadCodec.PLAIN,
        root=hashlib.sha256(hashlib.sha256(sent).digest()).digest(), fragment_bytes=1024, headers=made,
    )  # fmt: skip
    return decode(signer.sign(descriptor).wire), sent
