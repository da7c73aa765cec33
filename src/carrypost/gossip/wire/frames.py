"""Frames: the messages between hosts, as typed values.

Frames are frozen values; bytes exist only at the edge, in `gossip.wire.codec`. Every frame has a number (its tag)
that is never reused, and its fields stand in a fixed order to which later versions only append. Frames carry
ids and handles, never slots.

A *handle* is the number under which one host, in one incarnation, speaks of one message; it is given with the offer.
A *serial* is the number of one transfer frame of one host, to any neighbour; acknowledgements name serials.

Five frames exist in memory only, and travel as the frame that they stand for: `WholeDescriptor` (a one-part
`DescriptorPart` that holds the descriptor by reference), `OpenParcel` (a `Parcel` that does), `StoredData` (a `Data`
whose bytes the driver still has to read from its store), `BlankData` (a `Data` of a number of zeros that are never
allocated) and `OpenRelay` (a `Relay` that holds other frames as they are, so that payloads are filled in inside it,
too).

Acknowledgements and links are passed on by all hosts. A recipient signs which messages it has (`AckRecord`);
`gossip.acked` keeps such records and exchanges them. Lists of them are compared by `AckList`, a little at a time, in
four rounds. In an island (`carrypost.island`) a `Relay` carries a datagram to a host that is no neighbour, along a path
that its sender chose. Each host sends its neighbours the list of its relays and a digest of what it knows
(`LinkState`), and sends all hosts the list of its links (`LinkRecord`).

Some frames belong to strategies. In a session of `anti-entropy` one host lists all that it has, in parts (`Summary`),
and the other answers each part with what it lacks of it (`Missing`). `Tickets` are of `spray-and-wait`; tables of
encounters, and lists of messages, are of `prophet`. Hosts with another strategy skip the frames of these two. Such a
host counts as having one ticket of each message, and no table.
"""

from __future__ import annotations

from struct import Struct, pack, unpack
from typing import TYPE_CHECKING, Annotated, Final, get_args

import msgspec

from carrypost.gossip.slots import bits, mask_of
from carrypost.gossip.wire.fields import (
    Count,
    Fingerprint,
    Floor,
    Handle,
    MessageKey,
    NodeName,
    NodePrefix,
    Part,
    Parts,
    ProfileDigest,
    Serial,
    Token,
)
from carrypost.model.descriptor import Descriptor
from carrypost.model.ids import PREFIX_BYTES, MessageId

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence


ACKED_IDS_MAX: Final = 32
"""Messages that one record may name."""
ACK_PARTS: Final = 64
"""Parts by which a list is compared, by the leading bits of fingerprints."""
PATH_BYTES_MAX: Final = 65 * PREFIX_BYTES
"""Of the longest path that any setting allows."""
HEAD_BYTES: Final = 8
"""Of the prefix of a host and the stamp of what it says."""
FINGERPRINT_BYTES: Final = 8
"""Of the fingerprint of a record or a message, and of an XOR over several."""


class AckRecord(msgspec.Struct, frozen=True, array_like=True, tag=12):
    """Record by which its author, a recipient of these messages, acknowledges that it has them."""

    author: Annotated[bytes, msgspec.Meta(min_length=1, max_length=64)]
    """Public key of the author; where security is off, its name in UTF-8."""
    until_us: Count
    """Time at which the record expires: after the deadlines of the messages, or after a day."""
    messages: Annotated[tuple[MessageKey, ...], msgspec.Meta(min_length=1, max_length=ACKED_IDS_MAX)]
    """Ids of the messages, each once."""
    signature: Annotated[bytes, msgspec.Meta(max_length=64)] = b""
    """Signature of all fields before it; empty where security is off."""


class AckList(msgspec.Struct, frozen=True, array_like=True, tag=13):
    """One step of comparing lists of `AckRecord`s. Numbers of 64 bits are packed, big-endian."""

    round: Annotated[int, msgspec.Meta(ge=0, le=3)]
    """0: the XOR over all; 1: the XOR over each part; 2: the fingerprints in some parts; 3: wanted fingerprints."""
    xors: bytes = b""
    """One XOR in round 0, 64 in round 1; in round 2 a bitset of the parts that are listed."""
    fingerprints: bytes = b""
    """Fingerprints that are listed, or wanted."""


class Summary(msgspec.Struct, frozen=True, array_like=True, tag=14):
    """One part of the list of messages that its sender has and does not need."""

    session: Count
    """Number of the session among the sender's sessions."""
    part: Part
    parts: Parts
    floor: Floor
    """Rank below which the sender accepts no message."""
    fingerprints: bytes = b""
    """Fingerprints of messages, ascending, big-endian. A part covers all fingerprints from its first to its last. It
    begins with the last fingerprint of the part before it. The first part also covers all before it, the last part all
    after it."""


class Missing(msgspec.Struct, frozen=True, array_like=True, tag=15):
    """The answer to one part of a `Summary`: the messages in it that its sender lacks."""

    session: Count
    """Number of the session."""
    part: Part
    fingerprints: bytes = b""
    """Fingerprints from that part, in the same form."""
    floor: Floor = 0
    """Rank below which the sender accepts no message."""


class Relay(msgspec.Struct, frozen=True, array_like=True, tag=18):
    """A datagram that is forwarded along a path, or the report to its source that it could not be forwarded."""

    path: Annotated[bytes, msgspec.Meta(min_length=2 * PREFIX_BYTES, max_length=PATH_BYTES_MAX)]
    """Prefixes of the hosts on the path, none twice: the source, the relays, the target."""
    position: Annotated[int, msgspec.Meta(ge=1, le=PATH_BYTES_MAX // PREFIX_BYTES)]
    """Index on the path of the host that the frame is sent to; the source is 0."""
    broken: Annotated[bytes, msgspec.Meta(max_length=2 * PREFIX_BYTES)] = b""
    """Prefixes of the two ends of a missing link. With a body: the path avoids the link, and is not changed again.
    Without a body: the datagram was dropped there. Empty: no link was missing."""
    body: bytes = b""
    """Datagram for the target only: offers, requests, acknowledgements, and frames that carry messages."""


def hops(path: bytes) -> list[bytes]:
    """Return the prefixes of the hosts on the path of a `Relay`."""
    return cut(path, PREFIX_BYTES)


class LinkState(msgspec.Struct, frozen=True, array_like=True, tag=16):
    """The sender's relays, and a digest of the links that it knows. Prefixes are packed, 4 bytes each, ascending."""

    digest: Annotated[bytes, msgspec.Meta(min_length=FINGERPRINT_BYTES, max_length=FINGERPRINT_BYTES)]
    """XOR over the fingerprints of the records of all hosts that the sender can reach, including its own."""
    relays: bytes = b""
    """Prefixes of the neighbours that are the sender's relays."""
    heads: bytes = b""
    """Prefix and stamp, 4 bytes each, of the records that the sender has, by prefix. A list covers all hosts from its
    first prefix to its last; the stamp 0 means that there is no record. Empty: nothing is listed."""
    wanted: bytes = b""
    """Prefixes of hosts whose records the sender wants. Four zero bytes: all that it lacks, according to its digest."""
    one_way: bytes = b""
    """Prefixes in the sender's heard-list of nodes that do not hear it."""


class LinkRecord(msgspec.Struct, frozen=True, array_like=True, tag=17):
    """The links of one host, sent to all hosts. The highest incarnation counts, then the highest sequence."""

    author: Annotated[bytes, msgspec.Meta(min_length=1, max_length=64)]
    """Public key of the author; where security is off, its name in UTF-8."""
    incarnation: Count
    """Number of the author's incarnation."""
    sequence: Count
    """Number of the record in that incarnation."""
    chosen_by: bytes = b""
    """Prefixes of the neighbours that chose the author as a relay, 4 bytes each, ascending."""
    denied: bytes = b""
    """Prefixes of hosts that wrongly claim to be the author's neighbours, in the same form."""
    signature: Annotated[bytes, msgspec.Meta(max_length=64)] = b""
    """Signature of all fields before it; empty where security is off."""


def cut(data: bytes, size: int) -> list[bytes]:
    """Return packed parts of `size` bytes."""
    return [data[at : at + size] for at in range(0, len(data), size)]


def packed(numbers: Collection[int]) -> bytes:
    """Return numbers of 64 bits as bytes."""
    return pack(f">{len(numbers)}Q", *numbers)


def unpacked(data: bytes) -> list[int]:
    """Return the numbers in these bytes."""
    return list(unpack(f">{len(data) // FINGERPRINT_BYTES}Q", data))


CERTAIN: Final = 1 << 15
"""The probability 1 in a table; the smallest one is 1."""
NAMES_BYTES: Final = 8
"""Of the hash of the names of a table."""
_ENTRY: Final = Struct(f">{PREFIX_BYTES}sH")
ENTRY_BYTES: Final = _ENTRY.size
LEVEL_BYTES: Final = ENTRY_BYTES - PREFIX_BYTES
LISTED_MAX: Final = 1_024
"""Messages in one list."""
LOW_BITS: Final = 10
"""Bits of a short hash beyond those that number the list: two different messages look equal once in 1,024 lists."""


class Tickets(msgspec.Struct, frozen=True, array_like=True, tag=19):
    """The tickets that go with the messages of an offer: the neighbour may pass each message on to so many hosts."""

    serial: Serial
    """Serial of the offer, which was sent before."""
    copies: tuple[Annotated[int, msgspec.Meta(ge=0, le=2**16)], ...]
    """Tickets for each of its entries, in the same order."""


class Encounters(msgspec.Struct, frozen=True, array_like=True, tag=20):
    """One part of the table of the nodes that the sender is likely to meet again."""

    part: Part
    parts: Parts
    entries: bytes
    """For each node that the sender knows, itself among them, its prefix, ascending, and a probability in units of
    2^-15, as 2 bytes. With `names` the probabilities alone."""
    names: bytes = b""
    """The first 8 bytes of SHA-256 over the prefixes, for a neighbour that knows the same nodes."""
    asks: bool = False
    """True if the sender asks for the table of the receiver."""


class Listing(msgspec.Struct, frozen=True, array_like=True, tag=21):
    """The messages that the sender knows, as short hashes under a key that is used once."""

    run: Count
    """Number of the comparison among those that the sender began."""
    key: Annotated[int, msgspec.Meta(ge=0, le=2**32 - 1)]
    """Key of the hashes: those are the leading bits, 10 more than the number of messages has, of the lower 64 bits of
    fingerprint * (key * 2^32 + 2654435769)."""
    count: Annotated[int, msgspec.Meta(ge=0, le=LISTED_MAX)]
    """Number of messages."""
    hashes: bytes = b""
    """Hashes, ascending, as a little-endian number: the lower 10 bits of each, then a bitset with one bit for each, at
    its number in the list plus its upper bits."""


class Held(msgspec.Struct, frozen=True, array_like=True, tag=22):
    """The answer to a `Listing`: the messages on it that its sender knows, too."""

    run: Count
    """Number of the comparison."""
    held: bytes = b""
    """Little-endian; bit i stands for message i of the list."""


def listing_bytes(count: int) -> int:
    """Return the length of the hashes of this many messages."""
    return (LOW_BITS * count + count + (1 << count.bit_length()) + 7) // 8


def packed_hashes(hashes: Sequence[int]) -> bytes:
    """Return ascending short hashes as bytes."""
    low = (1 << LOW_BITS) - 1
    lower = sum((each & low) << LOW_BITS * number for number, each in enumerate(hashes))
    upper = mask_of([(each >> LOW_BITS) + number for number, each in enumerate(hashes)])
    return (lower | upper << LOW_BITS * len(hashes)).to_bytes(listing_bytes(len(hashes)), "little")


def unpacked_hashes(data: bytes, count: int) -> list[int] | None:
    """Return the short hashes in these bytes; None if they are not as many, or not in order."""
    number, low = int.from_bytes(data, "little"), (1 << LOW_BITS) - 1
    uppers = [each - place for place, each in enumerate(bits(number >> LOW_BITS * count))]
    if len(uppers) != count or any(each >> count.bit_length() for each in uppers[-1:]):
        return None
    found = [upper << LOW_BITS | number >> LOW_BITS * place & low for place, upper in enumerate(uppers)]
    return found if found == sorted(found) else None


def packed_entries(entries: Iterable[tuple[bytes, int]]) -> bytes:
    """Return the entries of a table as bytes."""
    return b"".join([_ENTRY.pack(*each) for each in entries])


def packed_levels(levels: Collection[int]) -> bytes:
    """Return probabilities without the names of their nodes as bytes."""
    return pack(f">{len(levels)}H", *levels)


def unpacked_levels(data: bytes) -> tuple[int, ...]:
    """Return the probabilities in these bytes."""
    return unpack(f">{len(data) // LEVEL_BYTES}H", data)


def unpacked_entries(data: bytes) -> list[tuple[bytes, int]]:
    """Return the entries in these bytes."""
    return list(_ENTRY.iter_unpack(data))


def unpacked_table(data: bytes, nodes: Sequence[bytes]) -> dict[bytes, int] | None:
    """Return the table in these bytes, the probabilities of `nodes` or, without, entries; None if it is none."""
    found = dict(zip(nodes, unpacked_levels(data), strict=False) if nodes else unpacked_entries(data))
    return found if len(data) == (LEVEL_BYTES * len(nodes) if nodes else ENTRY_BYTES * len(found)) else None


class Receipt(msgspec.Struct, frozen=True, array_like=True):
    """Unasked Parcels that arrived from one neighbour."""

    node: NodePrefix
    """Prefix of the neighbour that sent them."""
    base: Serial
    """Serial of the first bit."""
    bitmap: bytes
    """Little-endian; bit i stands for serial base + i."""


class Announce(msgspec.Struct, frozen=True, array_like=True, tag=1):
    """Announcement of a host: its presence, the digest of its interests, and the nodes that it hears. Broadcast."""

    node: NodeName
    incarnation: Count
    """Incarnation of the node; a larger one means that it restarted."""
    counter: Count
    """Number of announcements so far in this incarnation."""
    period_ms: Annotated[int, msgspec.Meta(ge=1, le=2**31)]
    """Time until the next announcement. A neighbour is gone after three silent periods."""
    profile: ProfileDigest
    """Digest of the interest profile."""
    heard: tuple[NodePrefix, ...] = ()
    """Prefixes of the nodes heard recently; a link is usable when each side lists the other."""
    begins: Annotated[bytes, msgspec.Meta(max_length=4)] = b""
    """In an announcement to one neighbour: its prefix, if a contact with it begins for the sender; else empty."""
    receipts: tuple[Receipt, ...] = ()
    """Unasked Parcels that arrived recently, by the neighbour that sent them."""
    datagram_bytes: Count = 0
    """Longest datagram that the sender's interfaces carry; 0: unknown."""
    stamp: Token = b""
    """Value whose hash is the stamp of the sender's previous announcement: it shows that both are from one node."""
    token: Token = b""
    """In an announcement to one neighbour: a random value that the neighbour is asked to return, or empty. Then `heard`
    has that neighbour alone."""
    proof: Token = b""
    """In an announcement to one neighbour: the token that it sent. It shows that the sender receives at its address."""


class Profile(msgspec.Struct, frozen=True, array_like=True, tag=2):
    """One part of an interest profile, named by its digest."""

    digest: ProfileDigest
    part: Part
    parts: Parts
    body: bytes
    """Part of the encoded entries."""


class ProfileRequest(msgspec.Struct, frozen=True, array_like=True, tag=3):
    """Request for the profile with this digest."""

    digest: ProfileDigest


class Bucket(msgspec.Struct, frozen=True, array_like=True):
    """The part of a set whose fingerprints start with the `depth` bits `prefix`.

    A bucket with `members` is listed. Without, `fingerprints` has the XOR over each of its equal children.
    """

    depth: Annotated[int, msgspec.Meta(ge=0, le=64)]
    """Number of leading bits that the members share."""
    prefix: Fingerprint
    """The shared bits, as a number."""
    fingerprints: tuple[Fingerprint, ...] = ()
    """XOR over the members of each child, in order."""
    members: tuple[Fingerprint, ...] | None = None
    """The fingerprints of all members, if the bucket is listed."""


class Digest(msgspec.Struct, frozen=True, array_like=True, tag=4):
    """One step of a reconciliation. Even rounds are from the side that offers, odd ones from the side that receives."""

    profile: ProfileDigest
    """Digest of the receiving side's profile, whose matching set is compared."""
    round: Annotated[int, msgspec.Meta(ge=0, le=255)]
    """Number of this step, from 0."""
    buckets: tuple[Bucket, ...] = ()
    """Buckets that are compared."""
    wanted: tuple[Fingerprint, ...] = ()
    """Fingerprints that the other side listed and this side lacks."""
    number: Count = 0
    """Number of this question; 0: it asks nothing."""
    answers: Count = 0
    """Number of the question that this answers; 0: none."""
    part: Part = 0
    parts: Parts = 1
    """Number of frames of the answer; the question is answered when all of them have arrived."""
    run: Count = 0
    """Number of the reconciliation, chosen by the side that began it."""


class OfferEntry(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One message on offer."""

    message: MessageKey
    handle: Handle
    length: Count
    """Payload bytes as sent."""
    privilege: Annotated[int, msgspec.Meta(ge=0, le=255)]
    """Privilege of the message: higher is more important."""
    pieces: bytes = b""
    """Little-endian bitmap of the pieces held; empty: all of them."""


class Offer(msgspec.Struct, frozen=True, array_like=True, tag=5):
    """A list of messages that match the receiver's profile. Answered by a `Request`, even an empty one."""

    serial: Serial
    """Number of this offer among the sender's offers."""
    entries: tuple[OfferEntry, ...]
    """The messages on offer."""


class PieceRequest(msgspec.Struct, frozen=True, array_like=True):
    """A message of which only some pieces are wanted, or none any more."""

    handle: Handle
    pieces: bytes
    """Little-endian bitmap of the wanted pieces; empty: the message was requested, but is not accepted."""


class Request(msgspec.Struct, frozen=True, array_like=True, tag=6):
    """Answer to offers: the messages that the sender wants, in this order."""

    to: NodePrefix
    """Prefix of the addressee; it shows the addressee that it is heard."""
    offers: tuple[Serial, ...]
    """Serials of the offers answered by this."""
    handles: tuple[Handle, ...] = ()
    """Messages that are wanted whole."""
    pieces: tuple[PieceRequest, ...] = ()
    """Messages of which some pieces are wanted."""


class DescriptorPart(msgspec.Struct, frozen=True, array_like=True, tag=7):
    """One part of a descriptor's wire form; `hops` and `age_ms` are outside the signature."""

    handle: Handle
    serial: Serial
    hops: Count
    """Number of times that the message was passed on."""
    age_ms: Count
    """Age of the message, as far as its carriers know."""
    part: Part
    parts: Parts
    body: bytes
    """Part of signature and encoding."""


class HashList(msgspec.Struct, frozen=True, array_like=True, tag=8):
    """SHA-256 of consecutive pieces, from piece number `start` on."""

    handle: Handle
    serial: Serial
    start: Count
    """Number of the first piece."""
    hashes: bytes
    """32 bytes for each piece."""


class Data(msgspec.Struct, frozen=True, array_like=True, tag=9):
    """One fragment of a payload. `last` requests an immediate acknowledgement: nothing follows until it arrives."""

    handle: Handle
    serial: Serial
    index: Count
    """Number of the fragment in the message."""
    last: bool
    """True if the frame is to be acknowledged at once."""
    body: bytes
    """The bytes of the fragment."""


class Ack(msgspec.Struct, frozen=True, array_like=True, tag=10):
    """Acknowledgement of the addressee's transfer frames that arrived since serial `base`, in memory or stored.

    Cumulative.
    """

    base: Serial
    """The serial of the addressee that the first bit stands for."""
    bitmap: bytes
    """Little-endian; bit i stands for serial base + i."""
    stored: bool = False
    """True if what they brought is stored, too: a neighbour that hands messages over may drop its copies."""


class Parcel(msgspec.Struct, frozen=True, array_like=True, tag=11):
    """A whole small message: its descriptor and its only fragment, if both fit into one datagram.

    `last` requests an immediate acknowledgement: nothing follows until it arrives.
    """

    handle: Handle
    serial: Serial
    hops: Count
    """Number of times that the message was passed on."""
    age_ms: Count
    """Age of the message, as far as its carriers know."""
    last: bool
    """True if the frame is to be acknowledged at once."""
    wire: bytes
    """Signature and encoding of the descriptor."""
    body: bytes
    """The payload as sent."""


class WholeDescriptor(msgspec.Struct, frozen=True):
    """In memory only: a `DescriptorPart` that is the only part."""

    handle: int
    serial: int
    hops: int
    age_ms: int
    descriptor: Descriptor


class StoredData(msgspec.Struct, frozen=True):
    """In memory only: a `Data` whose body is still in the driver's store.

    It is `length` bytes of piece `piece` from `offset` on.
    """

    handle: int
    serial: int
    index: int
    last: bool
    message: MessageId
    piece: int
    offset: int
    length: int


class BlankData(msgspec.Struct, frozen=True):
    """In memory only: a `Data` whose body is `length` zeros."""

    handle: int
    serial: int
    index: int
    last: bool
    length: int


class OpenParcel(msgspec.Struct, frozen=True, gc=False):
    """In memory only: a `Parcel` with its descriptor by reference."""

    handle: int
    serial: int
    hops: int
    age_ms: int
    last: bool
    descriptor: Descriptor
    body: bytes | None = None
    """None: still in the driver's store, or blank."""


class OpenRelay(msgspec.Struct, frozen=True):
    """In memory only: a `Relay` with its frames as they are; on the wire these are one datagram, in bytes."""

    inner: tuple[Frame, ...]
    path: bytes
    position: int
    broken: bytes = b""

    def sealed(self, body: bytes) -> Relay:
        """Return the frame in its wire form; `body` is the datagram of the inner frames."""
        return Relay(self.path, self.position, self.broken, body)


WireFrame = (
    Announce | Profile | ProfileRequest | Digest | Offer | Request | DescriptorPart | HashList | Data | Ack | Parcel
    | AckRecord | AckList | Summary | Missing | LinkState | LinkRecord | Relay | Tickets | Encounters
    | Listing | Held
)  # fmt: skip
Frame = WireFrame | WholeDescriptor | OpenParcel | StoredData | BlankData | OpenRelay

WIRE_KINDS: tuple[type[WireFrame], ...] = get_args(WireFrame)
CARRYING: tuple[type[WireFrame], ...] = (DescriptorPart, HashList, Data, Parcel)
"""Kinds that carry messages; all others, and what surrounds frames, are control."""


def kind(frame: Frame) -> str:
    """Return the name under which the frame is counted: that of its wire form."""
    return kind_of(type(frame))


def kind_of(frame_type: type[Frame]) -> str:
    """Return the name under which frames of a type are counted."""
    return _STANDS_FOR.get(frame_type, frame_type).__name__


_STANDS_FOR: dict[type, type] = {
    WholeDescriptor: DescriptorPart, OpenParcel: Parcel, StoredData: Data, BlankData: Data, OpenRelay: Relay,
}  # fmt: skip


def entries(frame_type: type[WireFrame]) -> list[type[msgspec.Struct]]:
    """Return the structures of which a frame of a type holds arrays."""
    info = msgspec.inspect.type_info(frame_type)
    assert isinstance(info, msgspec.inspect.StructType)
    inner = [each.type.item_type for each in info.fields if isinstance(each.type, msgspec.inspect.VarTupleType)]
    return [each.cls for each in inner if isinstance(each, msgspec.inspect.StructType)]


class Decoded(msgspec.Struct, frozen=True):
    """The contents of a datagram."""

    frames: list[Frame]
    refused: dict[str, int]
    """Number of refused parts, by `Refusal`."""


class Transmission(msgspec.Struct, frozen=True):
    """Frames that leave together, to one neighbour or (`to` is None) to all nodes in range."""

    frames: tuple[Frame, ...]
    to: str | None


def coalesce(transmissions: list[Transmission]) -> list[Transmission]:
    """Combine transmissions to the same neighbours into one, so that small frames share datagrams."""
    if len(transmissions) < 2:  # noqa: PLR2004 - nothing to join
        return transmissions
    by_target: dict[str | None, list[Frame]] = {}
    for transmission in transmissions:
        by_target.setdefault(transmission.to, []).extend(transmission.frames)
    return [Transmission(tuple(frames), to) for to, frames in by_target.items()]
