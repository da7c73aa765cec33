"""One frame of each kind, with its exact bytes: what tests take that are about every kind there is."""

from __future__ import annotations

from carrypost.gossip.wire.frames import (
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
    packed_hashes,
)
from carrypost.model.descriptor import Descriptor, PayloadCodec
from carrypost.model.ids import MessageId, NodeId

EIGHT = b"12345678"
FOUR = b"1234"
ALAN = NodeId("alan")
ID = MessageId(b"alan:1:7")
DESCRIPTOR = Descriptor("alan", 1, 7, 10**15, None, "news", 9, 9, PayloadCodec.PLAIN, b"", 1024)

EXACT: list[tuple[Frame, str]] = [
    (
        Announce(ALAN, 1, 128, 1000, EIGHT, (FOUR,), b"", (Receipt(FOUR, 5, b"\x03"),), 1452, EIGHT, b"", EIGHT),
        (
            "9d 01 a4616c616e 01 cc80 cd03e8 c4083132333435363738 91c40431323334 c400 9193c4043132333405c40103 cd05ac"
            " c4083132333435363738 c400 c4083132333435363738"
        ),
    ),
    (Profile(EIGHT, 0, 2, b"x"), "95 02 c4083132333435363738 00 02 c40178"),
    (ProfileRequest(EIGHT), "92 03 c4083132333435363738"),
    (
        Digest(EIGHT, 2, (Bucket(6, 1, (9,)), Bucket(6, 2, (), (3,))), (4,), 5, 6, 1, 2, 7),
        "9a 04 c4083132333435363738 02 92 940601 9109 c0 940602 90 9103 9104 05 06 01 02 07",
    ),
    (Offer(1, (OfferEntry(ID, 2, 3, 4, b"\x05"),)), "93 05 01 91 95 c408616c616e3a313a37 02 03 04 c40105"),
    (
        Request(FOUR, (1,), (2, 3), (PieceRequest(4, b"\x05"),)),
        "95 06 c40431323334 9101 920203 91 9204c40105",
    ),
    (DescriptorPart(1, 2, 3, 4, 0, 2, b"x"), "98 07 01 02 03 04 00 02 c40178"),
    (HashList(1, 2, 3, bytes(32)), "95 08 01 02 03 c420" + 32 * "00"),
    (Data(1, 65_536, 3, True, b"xy"), "96 09 01 ce00010000 03 c3 c4027879"),
    (Ack(2**32, b"\xff", stored=True), "94 0a cf0000000100000000 c401ff c3"),
    (BlankData(1, 2, 3, False, 2), "96 09 01 02 03 c2 c4020000"),
    (
        WholeDescriptor(1, 2, 0, 0, DESCRIPTOR),
        (
            "98 07 01 02 00 00 00 01 c424 00 "
            "9f a4616c616e 01 07 cf00038d7ea4c68000 c0 a46e657773 09 09 00 c400 cd0400 04 c2 a0 80"
        ),
    ),
    (
        OpenParcel(1, 2, 0, 128, True, DESCRIPTOR, b"nine byte"),
        (
            "98 0b 01 02 00 cc80 c3 c424 00 "
            "9f a4616c616e 01 07 cf00038d7ea4c68000 c0 a46e657773 09 09 00 c400 cd0400 04 c2 a0 80 "
            "c409 6e696e652062797465"
        ),
    ),
    (
        AckRecord(b"alan", 10**15, (ID,), b"s"),
        "95 0c c404616c616e cf00038d7ea4c68000 91c408616c616e3a313a37 c40173",
    ),
    (AckList(2, EIGHT, EIGHT), "94 0d 02 c4083132333435363738 c4083132333435363738"),
    (Summary(3, 0, 1, 2**54, EIGHT), "96 0e 03 00 01 cf0040000000000000 c4083132333435363738"),
    (Missing(3, 0, EIGHT, 0), "95 0f 03 00 c4083132333435363738 00"),
    (Relay(EIGHT, 1, EIGHT, b"x"), "95 12 c4083132333435363738 01 c4083132333435363738 c40178"),
    (
        LinkState(EIGHT, FOUR, EIGHT, b"", FOUR),
        "96 10 c4083132333435363738 c40431323334 c4083132333435363738 c400 c40431323334",
    ),
    (LinkRecord(b"alan", 1, 2, FOUR, b"", b"s"), "97 11 c404616c616e 01 02 c40431323334 c400 c40173"),
    (Tickets(9, (3, 1)), "93 13 09 920301"),
    (Encounters(0, 1, FOUR + b"\x60\x00"), "96 14 00 01 c406313233346000 c400 c2"),
    (Listing(3, 2**31, 1, packed_hashes([1025])), "95 15 03 ce80000000 01 c4020108"),
    (Held(3, b"\x01"), "93 16 03 c40101"),
]  # fmt: skip
"""`tests/gossip/test_codec.py` says when a kind is missing."""
RECEIVED: list[Frame] = [frame for frame, _ in EXACT if not isinstance(frame, BlankData)]
"""As `codec.decode` gives them."""
