"""Keys, node ids and signatures."""

from __future__ import annotations

import hashlib

import msgspec
import pytest

from carrypost.errors import ForgeryError, LocalError
from carrypost.model import descriptor as descriptors
from carrypost.model import ids
from carrypost.model.descriptor import Descriptor, PayloadCodec
from carrypost.model.ids import MessageId, NodeId
from carrypost.security.identity import Domain, Identity, verify, verify_bytes


def descriptor(identity: Identity, **changes: object) -> Descriptor:
    plain = Descriptor(
        author=identity.author, incarnation=1, sequence=2, created_us=3, deadline_us=4, destination="news", size=5,
        length=5, codec=PayloadCodec.PLAIN, root=bytes(32), fragment_bytes=1_024, attributes={"a": 1},
    )  # fmt: skip
    return msgspec.structs.replace(plain, **changes)


def test_a_node_id_is_the_hash_of_its_public_key_in_lower_case_base32() -> None:
    identity = Identity.from_seed(bytes(range(32)))
    assert isinstance(identity.author, bytes)
    assert ids.base32(hashlib.sha256(identity.author).digest()[:16]) == identity.node
    assert identity.node == identity.node.lower()
    assert len(identity.node) == 26
    assert identity.signed


def test_the_same_seed_gives_the_same_identity_and_others_differ() -> None:
    seed = bytes(range(32))
    assert Identity.from_seed(seed) == Identity.from_seed(seed)
    assert Identity.from_seed(seed).seed == seed
    nodes = {Identity.derived(run, name).node for run in (1, 2, "1x") for name in ("a", "b")}
    assert len(nodes) == 6
    assert Identity.generate().node != Identity.generate().node


@pytest.mark.parametrize("seed", [b"", bytes(31), bytes(33)])
def test_a_seed_has_thirty_two_bytes(seed: bytes) -> None:
    with pytest.raises(LocalError, match="32 bytes"):
        Identity.from_seed(seed)


def test_a_plain_name_means_security_off() -> None:
    identity = Identity.plain("bus-7")
    assert (identity.node, identity.author, identity.signed) == ("bus-7", "bus-7", False)
    unsigned = descriptor(identity)
    assert identity.sign(unsigned) is unsigned
    assert unsigned.signature == b""
    with pytest.raises(LocalError, match="no key"):
        _ = identity.seed
    with pytest.raises(ForgeryError):
        verify(unsigned)


@pytest.mark.parametrize("name", ["", "a:b", "x" * 65, "ä" * 33])
def test_a_plain_name_has_one_to_sixty_four_bytes_and_no_colon(name: str) -> None:
    with pytest.raises(LocalError, match="no colon"):
        Identity.plain(name)


def test_a_signature_is_checked_against_the_author_and_every_field() -> None:
    identity = Identity.derived(1, "a")
    signed = identity.sign(descriptor(identity))
    verify(signed)
    changes: list[dict[str, object]] = [
        {"sequence": 9}, {"deadline_us": None}, {"destination": "olds"}, {"root": bytes(31) + b"x"}, {"priority": 9},
        {"persistent": True}, {"label": "x"}, {"attributes": {"a": 2}}, {"author": Identity.derived(1, "b").author},
    ]  # fmt: skip
    for change in changes:
        forged = descriptor(identity, **change).with_signature(signed.signature)
        with pytest.raises(ForgeryError):
            verify(forged)


@pytest.mark.parametrize("domain", Domain)
@pytest.mark.parametrize("data", [b"", b"x", Domain.DESCRIPTOR.value, descriptor(Identity.derived(1, "a")).encoded])
def test_a_signature_is_valid_for_its_author_its_bytes_and_its_kind_only(domain: Domain, data: bytes) -> None:
    identity, other = Identity.derived(1, "a"), Identity.derived(1, "b")
    signature = identity.sign_bytes(domain, data)
    verify_bytes(identity.author, domain, data, signature)
    wrong = [(other.author, domain, data), (identity.author, domain, data + b"\0"), ("a", domain, data)]
    wrong += [(identity.author, kind, data) for kind in Domain if kind is not domain]
    for author, kind, signed in wrong:
        with pytest.raises(ForgeryError):
            verify_bytes(author, kind, signed, signature)


def test_no_bytes_of_one_kind_can_be_moved_into_the_domain_of_another() -> None:
    for one in Domain:
        for other in Domain:
            assert one is other or not one.value.startswith(other.value)
    identity = Identity.derived(1, "a")
    signed = identity.sign(descriptor(identity))
    verify_bytes(identity.author, Domain.DESCRIPTOR, signed.encoded, signed.signature)


def test_a_plain_identity_signs_nothing() -> None:
    assert Identity.plain("a").sign_bytes(Domain.ACK_RECORD, b"x") == b""


@pytest.mark.parametrize("signature", [b"", bytes(63), bytes(64), bytes(65)])
def test_a_signature_of_any_length_that_does_not_fit_is_a_forgery(signature: bytes) -> None:
    with pytest.raises(ForgeryError):
        verify(descriptor(Identity.derived(1, "a")).with_signature(signature))


def test_a_key_of_the_wrong_length_is_a_forgery() -> None:
    identity = Identity.derived(1, "a")
    signed = identity.sign(descriptor(identity, author=b"short"))
    with pytest.raises(ForgeryError):
        verify(signed)


def test_a_descriptor_and_its_signature_survive_the_wire_verbatim() -> None:
    identity = Identity.derived(1, "a")
    signed = identity.sign(descriptor(identity))
    again = descriptors.decode(signed.wire)
    assert again == signed
    assert (again.encoded, again.signature, again.id) == (signed.encoded, signed.signature, signed.id)
    verify(again)


def test_a_field_that_a_newer_author_appended_survives_and_counts_for_id_and_signature() -> None:
    identity = Identity.derived(1, "a")
    fields = [*msgspec.structs.astuple(descriptor(identity)), "a field of the future"]
    newer = descriptors.decode(b"\0" + msgspec.msgpack.encode(fields))
    signed = descriptors.decode(identity.sign(newer).wire)
    verify(signed)
    assert signed.encoded.endswith(b"a field of the future")
    assert signed.id != descriptor(identity).id


def test_an_id_is_derived_from_the_bytes_without_the_signature() -> None:
    identity = Identity.derived(1, "a")
    unsigned = descriptor(identity)
    assert unsigned.id == hashlib.sha256(unsigned.encoded).digest()[:16]
    assert identity.sign(descriptor(identity)).id == unsigned.id
    assert descriptor(Identity.plain("a")).id == b"a:1:2"


def test_ids_are_shown_in_a_form_for_people() -> None:
    assert ids.shown(MessageId(b"a:1:2")) == "a:1:2"
    assert ids.shown(MessageId(bytes(16))) == "ID:" + "a" * 26
    assert descriptor(Identity.plain("a"), label="firstMSG").shown == "firstMSG"


def test_a_key_is_not_shown() -> None:
    identity = Identity.derived(1, "a")
    assert "key" not in repr(identity).lower().replace(repr(identity.author).lower(), "")
    assert len(ids.node_prefix(NodeId(identity.node))) == 4
