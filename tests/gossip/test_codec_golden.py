"""Datagrams that must mean the same for ever; see `golden/README.md`."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from carrypost.config import Limits
from carrypost.gossip.wire import codec
from carrypost.gossip.wire.frames import (
    WIRE_KINDS,
    Ack,
    AckList,
    AckRecord,
    Announce,
    BlankData,
    Bucket,
    Data,
    DescriptorPart,
    Digest,
    Encounters,
    Frame,
    HashList,
    Held,
    LinkRecord,
    LinkState,
    Listing,
    Missing,
    Offer,
    OfferEntry,
    OpenParcel,
    PieceRequest,
    Profile,
    ProfileRequest,
    Receipt,
    Relay,
    Request,
    Summary,
    Tickets,
    WholeDescriptor,
    kind,
    packed_hashes,
)
from carrypost.model.descriptor import Descriptor, Ordering, PayloadCodec, Predecessor
from carrypost.model.headers import Headers
from carrypost.model.ids import MessageId, NodeId

GOLDEN = Path(__file__).parents[1] / "golden"
MTU_BYTES = 65_507

DIGEST = bytes.fromhex("0123456789abcdef")
PREFIXES = (b"\x00\x01\x02\x03", b"\xfc\xfd\xfe\xff")
SIGNED_ID = MessageId(bytes(range(16)))
PLAIN_ID = MessageId(b"alan:1:7")

PLAIN = Descriptor("alan", 1, 7, 1_700_000_000_000_000, None, "news", 1000, 1000, PayloadCodec.BLANK, b"", 1024)
SMALL = Descriptor("alan", 1, 8, 1_700_000_000_000_000, None, "news", 5, 5, PayloadCodec.PLAIN, b"", 1024)
EMPTY = Descriptor("alan", 1, 9, 1_700_000_000_000_000, None, "news", 0, 0, PayloadCodec.PLAIN, b"", 1024)
SIGNED = Descriptor(
    bytes(range(32)), 2, 300, 1_700_000_000_000_000, 1_700_000_086_400_000, "täglich/*", 5000, 1234,
    PayloadCodec.ZSTD, bytes(range(32, 64)), 1100, priority=9, persistent=True, label="first",
    attributes={"language": "English", "urgent": True, "floor": -3, "height_m": 1.5},
).with_signature(bytes(range(64)))  # fmt: skip
SIGNED_SMALL = Descriptor(
    bytes(range(32)), 2, 301, 1_700_000_000_000_000, 1_700_000_086_400_000, "täglich/*", 40, 40, PayloadCodec.PLAIN,
    bytes(range(32, 64)), 1100,
).with_signature(bytes(range(64)))  # fmt: skip
ORDERED = Descriptor(
    "alan", 1, 10, 1_700_000_000_000_000, None, "forum", 1000, 1000, PayloadCodec.BLANK, b"", 1024,
    ordering=Ordering.CAUSAL,
    barrier=(Predecessor("alan", 1, 9, None), Predecessor("bea", 2, 70_000, 1_700_000_000_000_001)),
)  # fmt: skip
SIGNED_ORDERED = Descriptor(
    bytes(range(32)), 2, 302, 1_700_000_000_000_000, 1_700_000_086_400_000, "forum", 40, 40, PayloadCodec.PLAIN,
    bytes(range(32, 64)), 1100, ordering=Ordering.DELTA_CAUSAL,
    barrier=(Predecessor(bytes(range(16)), 3, 4, 1_700_000_086_000_000),),
).with_signature(bytes(range(64)))  # fmt: skip
WITH_HEADERS = Descriptor(
    "alan", 1, 11, 1_700_000_000_000_000, None, "topic/forum", 5, 5, PayloadCodec.PLAIN, b"", 1024,
    headers=Headers(body_type=2, connection=1, session=3, number=70_000),
)  # fmt: skip
SIGNED_WITH_HEADERS = Descriptor(
    bytes(range(32)), 2, 303, 1_700_000_000_000_000, 1_700_000_086_400_000, "topic/forum", 40, 40, PayloadCodec.PLAIN,
    bytes(range(32, 64)), 1100, persistent=True, attributes={"floor": -3, "height_m": 1.5},
    ordering=Ordering.CAUSAL, barrier=(Predecessor(bytes(range(16)), 3, 4, None),),
    headers=Headers(
        operation="request", body_type=4, property_types={"floor": 2, "height_m": 6, "room": 0}, correlation="täglich",
        reply_to="queue/abcdefghijklmnopqrstuvwxyz/Alan", type="survey", delivery_time_us=1_700_000_060_000_000,
        sent_us=1_699_999_999_999_000, client="alan", connection=2, session=5, number=1, receipt=True,
        control=bytes(range(20)),
    ),
).with_signature(bytes(range(64)))  # fmt: skip
CORRELATED = Descriptor(
    "alan", 1, 12, 1_700_000_000_000_000, None, "control/all", 0, 0, PayloadCodec.PLAIN, b"", 1024,
    headers=Headers(correlation_bytes=b"\x00\xff"),
)  # fmt: skip
LISTING = Descriptor(
    "alan", 1, 13, 1_700_000_000_000_000, None, "topic/roads", 0, 0, PayloadCodec.PLAIN, b"", 1024,
    headers=Headers(recipients=("beth", "carl", "täglich")),
)  # fmt: skip
SIGNED_LISTING = Descriptor(
    bytes(range(32)), 2, 303, 1_700_000_000_000_000, 1_700_000_086_400_000, "topic/roads", 40, 40, PayloadCodec.PLAIN,
    bytes(range(32, 64)), 1100, headers=Headers(number=7, recipients=(bytes(16), bytes(range(16)), bytes([255] * 16))),
).with_signature(bytes(range(64)))  # fmt: skip

ANNOUNCE = Announce(NodeId("abcdefghijklmnopqrstuvwxyz"), 3, 1000, 5000, DIGEST, PREFIXES)
OFFER = Offer(70_000, (OfferEntry(SIGNED_ID, 12, 5000, 19), OfferEntry(PLAIN_ID, 128, 40_000, 4, b"\x05")))
DATA = Data(12, 70_001, 3, False, b"fragment")

CASES: dict[str, tuple[Frame, ...]] = {
    "announce": (ANNOUNCE,),
    "announce_alone": (Announce(NodeId("alan"), 0, 0, 1, DIGEST),),
    "announce_size": (Announce(NodeId("alan"), 1, 2, 1000, DIGEST, PREFIXES, b"", (), 1452),),
    "announce_stamp": (Announce(NodeId("alan"), 1, 2, 1000, DIGEST, PREFIXES, b"", (), 0, bytes(range(8))),),
    "announce_token": (
        Announce(NodeId("alan"), 1, 2, 1000, DIGEST, PREFIXES[:1], b"", (), 1452, bytes(range(8)), bytes(range(8, 16))),
    ),
    "announce_proof": (
        Announce(
            NodeId("alan"), 1, 2, 1000, DIGEST, PREFIXES, PREFIXES[1], (), 0, bytes(range(8)), b"", bytes(range(16, 24))
        ),
    ),
    "announce_begins": (Announce(NodeId("alan"), 1, 2, 1000, DIGEST, PREFIXES, PREFIXES[1]),),
    "announce_receipts": (
        msgspec.structs.replace(
            ANNOUNCE, receipts=(Receipt(PREFIXES[0], 70_000, b"\x05"), Receipt(PREFIXES[1], 0, b"\x01"))
        ),
    ),
    "announce_no_receipts": (ANNOUNCE, DATA),
    "profile": (Profile(DIGEST, 0, 1, b"\x90"),),
    "profile_part": (Profile(DIGEST, 2, 3, b"the last of three"),),
    "profile_request": (ProfileRequest(DIGEST),),
    "digest_fingerprints": (Digest(DIGEST, 0, (Bucket(0, 0, tuple(range(2**64 - 64, 2**64))),)),),
    "digest_listing": (
        Digest(DIGEST, 3, (Bucket(6, 63, (), (1, 2**63, 2**64 - 1)), Bucket(10, 5, (), ())), (7, 2**40), 2, 1, run=9),
    ),
    "digest_part": (Digest(DIGEST, 2, (Bucket(6, 63, (), (1, 2)),), (), 3, 2, 1, 4),),
    "digest_empty": (Digest(DIGEST, 1),),
    "offer": (OFFER,),
    "request": (Request(PREFIXES[0], (70_000, 70_002), (12, 128, 65_536)),),
    "request_nothing": (Request(PREFIXES[0], (70_000,)),),
    "request_pieces": (Request(PREFIXES[1], (), (), (PieceRequest(128, b"\x04"),)),),
    "descriptor_part": (DescriptorPart(12, 70_000, 1, 2500, 1, 2, b"the second of two"),),
    "descriptor_plain": (WholeDescriptor(128, 4, 0, 0, PLAIN),),
    "descriptor_signed": (WholeDescriptor(12, 70_000, 3, 86_400_000, SIGNED),),
    "descriptor_ordered": (WholeDescriptor(128, 4, 0, 0, ORDERED),),
    "descriptor_ordered_signed": (WholeDescriptor(12, 70_000, 1, 2500, SIGNED_ORDERED),),
    "descriptor_headers": (WholeDescriptor(128, 4, 0, 0, WITH_HEADERS),),
    "descriptor_headers_signed": (WholeDescriptor(12, 70_000, 1, 2500, SIGNED_WITH_HEADERS),),
    "descriptor_headers_bytes": (WholeDescriptor(128, 4, 0, 0, CORRELATED),),
    "descriptor_recipients": (WholeDescriptor(128, 4, 0, 0, LISTING),),
    "descriptor_recipients_signed": (WholeDescriptor(12, 70_000, 1, 2500, SIGNED_LISTING),),
    "hash_list": (HashList(12, 70_000, 4, bytes(range(64))),),
    "data": (DATA,),
    "data_last": (Data(12, 70_002, 4, True, b""),),
    "data_blank": (BlankData(128, 5, 0, True, 300),),
    "ack": (Ack(69_999, b"\xff\x01"),),
    "ack_nothing": (Ack(0, b""),),
    "ack_stored": (Ack(69_999, b"\xff\x01", stored=True),),
    "largest_numbers": (Data(2**63 - 1, 2**63 - 1, 2**18, True, b"\xff"), Ack(2**63 - 1, b"\x01")),
    "mixed_meeting": (ANNOUNCE, ProfileRequest(DIGEST), Profile(DIGEST, 0, 1, b"\x90"), Digest(DIGEST, 0)),
    "mixed_exchange": (OFFER, Request(PREFIXES[0], (9,), (1,)), WholeDescriptor(12, 9, 1, 50, SIGNED), DATA),
    "parcel_plain": (OpenParcel(128, 4, 0, 0, False, SMALL, b"hello"),),
    "parcel_signed": (OpenParcel(12, 70_000, 3, 86_400_000, True, SIGNED_SMALL, bytes(range(40))),),
    "parcel_blank": (OpenParcel(128, 5, 1, 2500, True, PLAIN),),
    "parcel_empty": (OpenParcel(1, 2, 0, 0, False, EMPTY, b""),),
    "mixed_parcels": (
        ANNOUNCE,
        OpenParcel(128, 4, 0, 0, False, SMALL, b"hello"),
        OpenParcel(1, 5, 0, 0, True, EMPTY, b""),
        DATA,
    ),
    "ack_record": (AckRecord(bytes(range(32)), 1_700_000_086_400_000, (SIGNED_ID, PLAIN_ID), bytes(range(64))),),
    "ack_record_plain": (AckRecord("täglich".encode(), 1, (PLAIN_ID,)),),
    "ack_list": (AckList(0, DIGEST), AckList(2, DIGEST, DIGEST + bytes(8)), AckList(3, b"", DIGEST)),
    "ack_list_parts": (AckList(1, DIGEST * 64),),
    "summary": (Summary(1, 0, 2, 0, DIGEST + bytes([255] * 8)), Summary(70_000, 0, 1, 255 << 54 | 2**53)),
    "link_state": (LinkState(DIGEST), LinkState(DIGEST, b"".join(PREFIXES), DIGEST, PREFIXES[0], PREFIXES[1])),
    "link_record": (LinkRecord(bytes(range(32)), 3, 70_000, b"".join(PREFIXES), PREFIXES[1], bytes(range(64))),),
    "link_record_plain": (LinkRecord("täglich".encode(), 1, 0),),
    "missing": (Missing(1, 0, DIGEST), Missing(70_000, 1, bytes(8) + DIGEST, 5 << 54 | 1_700_000_086_400_000)),
    "tickets": (Tickets(9, (3, 1)), Tickets(70_000, (65_536,))),
    "encounters": (
        Encounters(1, 2, PREFIXES[0] + b"\x60\x00" + bytes([255] * 4) + b"\x80\x00"),
        Encounters(0, 1, b"\0\0\x60\x00", DIGEST, asks=True),
    ),
    "listing": (Listing(1, 0, 0, b"\0"), Listing(70_000, 2**32 - 1, 3, packed_hashes([1, 1_025, 4_095]))),
    "held": (Held(1), Held(70_000, b"\xff\x01")),
    "relay": (Relay(b"".join(PREFIXES) + b"abcd", 1, b"", b"CP\x01\x90"), Relay(b"".join(PREFIXES), 1, b"abcdefgh")),
    "mixed_fifteen": tuple(Ack(base, b"\x01") for base in range(15)),
    "mixed_sixteen": tuple(Ack(base, b"\x01") for base in range(16)),
}


OUTGROWN = {"announce", "announce_alone", "announce_begins", "mixed_meeting", "mixed_parcels"}
"""Frames that have more fields since: they mean the same, but are written longer."""


def taken(frame: Frame) -> Frame:
    """Return the frame that the receiver sees."""
    if isinstance(frame, BlankData):
        return Data(frame.handle, frame.serial, frame.index, frame.last, bytes(frame.length))
    if isinstance(frame, OpenParcel) and frame.body is None:
        return msgspec.structs.replace(frame, body=bytes(frame.descriptor.length))
    return frame


def test_every_golden_file_has_its_frames_and_the_other_way_round() -> None:
    assert {path.stem for path in GOLDEN.glob("*.hex")} == set(CASES)


def test_every_kind_has_a_golden_datagram() -> None:
    assert {kind(frame) for frames in CASES.values() for frame in frames} == {each.__name__ for each in WIRE_KINDS}


@pytest.mark.parametrize("name", CASES)
def test_golden_datagram_is_decoded_to_its_frames_and_encoded_to_its_bytes(name: str) -> None:
    datagram = bytes.fromhex((GOLDEN / f"{name}.hex").read_text())
    decoded = codec.decode(datagram, Limits())
    assert decoded.refused == {}
    assert decoded.frames == [taken(frame) for frame in CASES[name]]
    written = codec.datagrams(decoded.frames, MTU_BYTES)
    assert written == codec.datagrams(CASES[name], MTU_BYTES)
    assert (written == [datagram]) is (name not in OUTGROWN)


def test_signature_and_encoding_of_a_golden_descriptor_are_kept_verbatim() -> None:
    datagram = bytes.fromhex((GOLDEN / "descriptor_signed.hex").read_text())
    (frame,) = codec.decode(datagram, Limits()).frames
    assert isinstance(frame, WholeDescriptor)
    assert frame.descriptor.wire == SIGNED.wire
    assert frame.descriptor.id == SIGNED.id


def test_signature_and_encoding_of_a_golden_parcel_are_kept_verbatim() -> None:
    datagram = bytes.fromhex((GOLDEN / "parcel_signed.hex").read_text())
    (frame,) = codec.decode(datagram, Limits()).frames
    assert isinstance(frame, OpenParcel)
    assert frame.descriptor.wire == SIGNED_SMALL.wire
    assert frame.descriptor.id == SIGNED_SMALL.id


def write_missing() -> None:
    """Write the files that are not there yet."""
    for name, frames in CASES.items():
        path = GOLDEN / f"{name}.hex"
        if not path.exists():
            (datagram,) = codec.datagrams(frames, MTU_BYTES)
            rows = (datagram[at : at + 32].hex() for at in range(0, len(datagram), 32))
            path.write_text("\n".join(rows) + "\n")


if __name__ == "__main__":
    write_missing()
