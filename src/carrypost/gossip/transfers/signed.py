"""Records that hosts sign and every host passes on: acknowledgements, and the link states of an island.

Such a record is a frame that begins with its author (a public key or, if security is off, a name) and ends with its
signature. Everything in between is signed with the author, under a separate domain for each kind.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Final

import msgspec

from carrypost.errors import ForgeryError
from carrypost.gossip.transfers.accounts import SIGNATURE
from carrypost.gossip.wire.frames import FINGERPRINT_BYTES, AckRecord, LinkRecord
from carrypost.model.ids import NodeId, node_id
from carrypost.security.identity import Domain, verify_bytes

if TYPE_CHECKING:
    from typing import TypeVar

    from carrypost.gossip.transfers.link import Link
    from carrypost.security.identity import Identity

    Record = TypeVar("Record", AckRecord, LinkRecord)

_KEY_BYTES: Final = 32
_DOMAINS: dict[type, Domain] = {AckRecord: Domain.ACK_RECORD, LinkRecord: Domain.LINK_RECORD}
_encode = msgspec.msgpack.Encoder().encode


# The domain is part of the signed bytes. Without it a signature under a link record could be
# replayed under an acknowledgement whose encoding happens to be the same.
def _signed_bytes(record: AckRecord | LinkRecord) -> bytes:
    return _encode(msgspec.structs.astuple(record)[:-1])


def fingerprint(record: AckRecord | LinkRecord) -> int:
    """Return the number that identifies a record.

    The signature does not count: signing twice makes no second record.
    """
    return int.from_bytes(hashlib.sha256(_signed_bytes(record)).digest()[:FINGERPRINT_BYTES], "big")


def author(identity: Identity) -> bytes:
    """Return the author under which this identity signs records."""
    return identity.author.encode() if isinstance(identity.author, str) else identity.author


def sign(identity: Identity, record: Record) -> Record:
    """Return a record of this identity with its signature; unchanged if security is off."""
    return msgspec.structs.replace(record, signature=identity.sign_bytes(_DOMAINS[type(record)], _signed_bytes(record)))


def author_of(record: AckRecord | LinkRecord, *, signed: bool) -> NodeId:
    """Return the node that a record claims as author; raises `ForgeryError` for an impossible author."""
    if bool(record.signature) is not signed or (signed and len(record.author) != _KEY_BYTES):
        raise ForgeryError("security-level")
    if signed:
        return node_id(record.author)
    try:
        return NodeId(record.author.decode())
    except UnicodeDecodeError:
        raise ForgeryError("security-level") from None


def check(record: AckRecord | LinkRecord, link: Link) -> None:
    """Check the signature of a record that came over a link; raises `ForgeryError`."""
    link.work.did(SIGNATURE)
    verify_bytes(record.author, _DOMAINS[type(record)], _signed_bytes(record), record.signature)
