"""Circles as values: epochs, charters, invitations, tags of topics.

A circle is a group of nodes with a common secret, which changes with each epoch. Its charter, signed by the root, lists
the members and open invitations, with the secret of the epoch wrapped for each, and the nodes that were removed. All of
this is pure; `application.circles` keeps the state. What a peer sent and does not fit raises `ForgeryError`.
"""

from __future__ import annotations

import functools
import hashlib
import struct
from collections.abc import Iterable, Mapping
from typing import Annotated, NamedTuple

import msgspec

from carrypost.errors import ForgeryError, IllegalArgumentException
from carrypost.model import address
from carrypost.model.ids import NodeId, base32, node_bytes, node_id, node_of
from carrypost.model.times import MICROSECONDS, TIME_US_MAX
from carrypost.security import codes, hpke, sealing
from carrypost.security.codes import CodeKind
from carrypost.security.identity import Domain, Entropy, Identity, verify_bytes

MEMBERS_MAX = 1_000
"""Members of a circle, and open invitations: a charter with both has about 250 kB."""
CHARTER_BYTES_MAX = 512 * 1024
TAG_KEY_BYTES = 16
NAME_MAX = 24
"""Characters of a circle's name, so that a code fits a QR code."""
_TAG_LETTERS = 8
_HEAD_BYTES = 32 + 64
_Node = Annotated[bytes, msgspec.Meta(min_length=16, max_length=16)]
_Count = Annotated[int, msgspec.Meta(ge=0, le=TIME_US_MAX)]
_Wrapped = Annotated[bytes, msgspec.Meta(max_length=sealing.STANZA_BYTES)]


class Epoch(NamedTuple):
    """A time of a circle in which one secret is used."""

    number: int
    secret: bytes

    @property
    def id(self) -> bytes:
        """The short name of the secret: two owners that are apart may begin epochs of one number."""
        return hashlib.sha256(b"carrypost epoch 1\0" + self.secret).digest()[: sealing.EPOCH_ID_BYTES]

    def __repr__(self) -> str:
        return f"<Epoch {self.number}>"


class Member(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A member of a circle."""

    node: _Node
    stanza: _Wrapped = b""
    """The secret of the epoch, for the sealing key of the node; empty if the owner does not know any."""


class Invitation(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """An invitation that is open."""

    public: Annotated[bytes, msgspec.Meta(min_length=hpke.KEY_BYTES, max_length=hpke.KEY_BYTES)]
    until_us: _Count
    node: bytes = b""
    """The node that it is for; empty: any."""
    stanza: _Wrapped = b""


class Charter(msgspec.Struct, frozen=True, array_like=True):
    """The state of a circle, as an owner says it; fields may be appended with a default."""

    number: _Count
    date_us: _Count
    epoch: Annotated[int, msgspec.Meta(ge=1, lt=2**32)]
    epoch_id: Annotated[bytes, msgspec.Meta(min_length=8, max_length=8)]
    members: Annotated[tuple[Member, ...], msgspec.Meta(max_length=MEMBERS_MAX)]
    invitations: Annotated[tuple[Invitation, ...], msgspec.Meta(max_length=MEMBERS_MAX)] = ()
    removed: Annotated[tuple[_Node, ...], msgspec.Meta(max_length=MEMBERS_MAX)] = ()


class SignedCharter(NamedTuple):
    """A charter with the signature of the root."""

    root: bytes
    encoded: bytes
    charter: Charter

    @property
    def rank(self) -> tuple[int, bytes]:
        """Of two charters the one with the higher rank counts."""
        return self.charter.number, hashlib.sha256(self.encoded).digest()


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Charter).decode


def sign(root: Identity, charter: Charter) -> SignedCharter:
    """Return a charter, signed by the root of its circle."""
    assert isinstance(root.author, bytes)  # A root is a key.
    said = _encode(charter)
    return SignedCharter(root.author, root.author + root.sign_bytes(Domain.CHARTER, said) + said, charter)


def read_charter(encoded: bytes, circle: NodeId) -> SignedCharter:
    """Return the charter of a circle from its bytes; raises `ForgeryError`."""
    root, signature, said = encoded[:32], encoded[32:_HEAD_BYTES], encoded[_HEAD_BYTES:]
    if not said or len(encoded) > CHARTER_BYTES_MAX or node_id(root) != circle:
        raise ForgeryError("charter", "a charter of another circle, or of an impossible size")
    verify_bytes(root, Domain.CHARTER, said, signature)
    try:
        return SignedCharter(root, encoded, _decode(said))
    except (ValueError, RecursionError) as error:  # ValueError: msgspec's own
        raise ForgeryError("charter", f"a charter that cannot be read: {error}") from None


def charter_of(
    root: bytes, epoch: Epoch, keys: Mapping[NodeId, bytes], invitations: Iterable[Invitation], entropy: Entropy, *,
    before: Charter | None = None, date_us: int = 0, removed: tuple[bytes, ...] = (),
) -> Charter:  # fmt: skip
    """Return a charter for members with these sealing keys, of which some may be unknown (empty).

    Secrets that the charter `before` wrapped for the same key are not wrapped again.
    """
    known: dict[bytes, bytes] = {}
    if before is not None and (before.epoch, before.epoch_id) == (epoch.number, epoch.id):
        known = {each.node: each.stanza for each in before.members}
        known |= {each.public: each.stanza for each in before.invitations}

    def stanza_for(name: bytes, public: bytes) -> bytes:
        stanza = known.get(name, b"")
        if public and stanza[: sealing.KEY_ID_BYTES] != sealing.key_id(public):
            stanza = sealing.wrap(public, epoch.secret, entropy(hpke.KEY_BYTES), _info(root, epoch.number))
        return stanza

    return Charter(
        1 if before is None else before.number + 1, date_us, epoch.number, epoch.id,
        tuple([Member(name := node_bytes(node), stanza_for(name, public)) for node, public in sorted(keys.items())]),
        tuple([msgspec.structs.replace(each, stanza=stanza_for(each.public, each.public)) for each in invitations]),
        removed,
    )  # fmt: skip


def _info(root: bytes, epoch: int) -> bytes:
    return b"carrypost charter 1\0" + root + epoch.to_bytes(4, "big")


def epoch_of(signed: SignedCharter, privates: Mapping[bytes, bytes]) -> Epoch | None:
    """Return the epoch of a charter for the holder of private sealing keys, by their ids; None if it is for none."""
    charter = signed.charter
    listed: tuple[Member | Invitation, ...] = (*charter.members, *charter.invitations)
    for each in listed:
        if each.stanza[: sealing.KEY_ID_BYTES] in privates:
            secret = sealing.unwrap(privates, each.stanza, _info(signed.root, charter.epoch))
            assert secret is not None  # The key is here.
            epoch = Epoch(charter.epoch, secret)
            if epoch.id != charter.epoch_id or len(secret) != sealing.SECRET_BYTES:
                raise ForgeryError("charter", "a charter whose secret is not that of its epoch")
            return epoch
    return None


@functools.lru_cache(1_024)  # Few topics get most messages.
def sealed_topic(circle: NodeId, tag_key: bytes, topic: str) -> str:
    """Return the destination of a topic as carriers see it: one tag for each level of its name."""
    return address.sealed_topic(circle, ".".join([tag(tag_key, level) for level in topic.split(".")]))


def tag(tag_key: bytes, level: str) -> str:
    """Return the tag of one level of a topic's name."""
    return base32(hpke.mac(tag_key, b"carrypost tag 1\0" + level.encode()))[:_TAG_LETTERS]


# ---------------------------------------------------------------------------------------------------- codes


class Code(NamedTuple):
    """The contents of an invitation."""

    root: bytes
    tag_key: bytes
    epoch: Epoch
    private: bytes
    """Private key of the invitation."""
    until_us: int
    name: str

    @property
    def circle(self) -> NodeId:
        """The id of the circle."""
        return node_id(self.root)

    def __repr__(self) -> str:
        return f"<Code {self.name}>"


_FIXED = struct.Struct(f">32s{TAG_KEY_BYTES}sI32s32s{codes.DATE_BYTES}s")
"""Root, tag key, number and secret of the epoch, private key and end of the invitation; the name follows."""
_INVITED = b"carrypost invitation 1\0"


def code_of(code: Code, card: codes.Card | None, entropy: Entropy) -> str:
    """Return the text of an invitation; with a card, only its node can read it."""
    until = (code.until_us // MICROSECONDS).to_bytes(codes.DATE_BYTES, "big")
    said = _FIXED.pack(code.root, code.tag_key, *code.epoch, code.private, until) + code.name.encode()
    if card is None:
        return codes.code_of(CodeKind.CIRCLE, said)
    stanza = sealing.wrap(card.key.public, said, entropy(hpke.KEY_BYTES), _INVITED)
    return codes.code_of(CodeKind.SEALED_CIRCLE, node_bytes(card.node) + stanza)


def read_code(text: str, node: NodeId, privates: Mapping[bytes, bytes], date_us: int) -> Code:
    """Return the contents of an invitation, sealed or not; raises `IllegalArgumentException`.

    `privates`: sealing keys of this node by their ids.
    """
    kind, said = codes.data_of(text, (CodeKind.CIRCLE, CodeKind.SEALED_CIRCLE))
    if kind is CodeKind.SEALED_CIRCLE:
        to, stanza = said[:16], said[16:]
        if to != node_bytes(node):
            raise IllegalArgumentException(f"the code is for another node, {node_of(to)}: ask for one for this node")
        try:
            found = sealing.unwrap(privates, stanza, _INVITED)
        except ForgeryError:
            raise IllegalArgumentException("the code was changed: ask for a new one") from None
        if found is None:
            raise IllegalArgumentException("the code is for an old key of this node: show the owner a new card")
        said = found
    if len(said) <= _FIXED.size:
        raise IllegalArgumentException("the code is of a later version")
    root, tag_key, number, secret, invited, until = _FIXED.unpack_from(said)
    until_us = int.from_bytes(until, "big") * MICROSECONDS
    if until_us <= date_us:
        raise IllegalArgumentException("the code is out of date: ask an owner of the circle for a new one")
    name = said[_FIXED.size :].decode(errors="replace")
    return Code(root, tag_key, Epoch(number, secret), invited, until_us, name)
