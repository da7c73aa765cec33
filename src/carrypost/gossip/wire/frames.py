"""Frames: the messages between hosts, as typed values.

Frames are frozen values; bytes exist only at the edge, in `gossip.wire.codec`. Every frame has a number (its tag)
that is never reused, and its fields stand in a fixed order to which later versions only append. Frames carry
ids and handles, never slots.

Five frames exist in memory only, and travel as the frame that they stand for: `WholeDescriptor` (a one-part
`DescriptorPart` that holds the descriptor by reference), `OpenParcel` (a `Parcel` that does), `StoredData` (a `Data`
whose bytes the driver still has to read from its store), `BlankData` (a `Data` of a number of zeros that are never
allocated) and `OpenRelay` (a `Relay` that holds other frames as they are, so that payloads are filled in inside it,
too).

A *handle* is the number under which one host, in one incarnation, speaks of one message; it is given with the offer.
A *serial* is the number of one transfer frame of one host, to any neighbour; acknowledgements name serials.
"""

from __future__ import annotations

from typing import Annotated, get_args

import msgspec

from carrypost.gossip.wire.cloud_frames import AckList as AckList  # noqa: PLC0414 - part of this interface
from carrypost.gossip.wire.cloud_frames import AckRecord as AckRecord  # noqa: PLC0414
from carrypost.gossip.wire.cloud_frames import LinkRecord as LinkRecord  # noqa: PLC0414
from carrypost.gossip.wire.cloud_frames import LinkState as LinkState  # noqa: PLC0414
from carrypost.gossip.wire.cloud_frames import Missing as Missing  # noqa: PLC0414
from carrypost.gossip.wire.cloud_frames import Relay as Relay  # noqa: PLC0414
from carrypost.gossip.wire.cloud_frames import Summary as Summary  # noqa: PLC0414
from carrypost.gossip.wire.fields import (
    Count,
    Fingerprint,
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
from carrypost.gossip.wire.routing_frames import Encounters as Encounters  # noqa: PLC0414 - part of this interface
from carrypost.gossip.wire.routing_frames import Held as Held  # noqa: PLC0414
from carrypost.gossip.wire.routing_frames import Listing as Listing  # noqa: PLC0414
from carrypost.gossip.wire.routing_frames import Names as Names  # noqa: PLC0414
from carrypost.gossip.wire.routing_frames import NamesRequest as NamesRequest  # noqa: PLC0414
from carrypost.gossip.wire.routing_frames import Tickets as Tickets  # noqa: PLC0414
from carrypost.model.descriptor import Descriptor
from carrypost.model.ids import MessageId


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
    | Listing | Held | NamesRequest | Names
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
