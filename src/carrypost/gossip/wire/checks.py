"""Checks of frames from the wire, against `Limits` and for consistency.

A checked frame has the types and numbers that its class declares. Anything longer than `Limits` allows raises
`LimitError`, and anything that no host of ours writes raises `DecodeError`, before any other code reads the frame.
"""
# Frames are checked once, at the border, so that no other code has to ask whether a list is too
# long or a path has circles. Each check answers an attack on memory or time: a bitmap of megabytes
# for a message of one piece, a list with the same fingerprint a thousand times, a part with no
# bytes out of a million.
#
# Lists have to be in ascending order. That proves that they have no duplicates without a set, and
# gives every list one encoding only.

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable
from operator import lt
from typing import Any, Final

from carrypost.config import Limits
from carrypost.errors import DecodeError, LimitError
from carrypost.gossip.wire import frames as f
from carrypost.gossip.wire.fields import TOKEN_BYTES
from carrypost.gossip.wire.frames import (
    ACK_PARTS,
    CERTAIN,
    ENTRY_BYTES,
    FINGERPRINT_BYTES,
    HEAD_BYTES,
    LEVEL_BYTES,
    LISTED_MAX,
    NAMES_BYTES,
    cut,
    hops,
    listing_bytes,
    unpacked,
    unpacked_entries,
    unpacked_levels,
)
from carrypost.gossip.wire.pieces import HASH_BYTES
from carrypost.model.descriptor import PIECE_BYTES
from carrypost.model.ids import PREFIX_BYTES

RECEIPT_BITMAP_BYTES_MAX: Final = 32
"""Bitmap of one neighbour's unasked Parcels in an announcement: the last 256 serials."""
ACK_BITMAP_BYTES_MAX: Final = 8_192
"""One acknowledgement covers at most 65,536 serials."""
SUMMARY_PARTS_MAX: Final = 1_024
"""Number of parts of one list of a host's messages."""
_CREATED_MASK: Final = 2**54 - 1
_CREATED_MAX: Final = 2**53
"""The part of a floor that is a time, and the latest time."""
NAME_BYTES_MAX: Final = 64
FRAGMENT_BYTES_MIN: Final = 64
"""Shortest fragments that a descriptor may declare."""


class Refusal(enum.StrEnum):
    """Reason why bytes were refused, wholly or in part."""

    OVERSIZE = "oversize"
    MAGIC = "magic"
    VERSION = "version"
    PACKET = "packet"
    """Protected, and not to be opened here; in a closed network also unprotected, or a repetition."""
    DATAGRAM = "datagram"
    """Not an array of frames: truncated, nested too deeply, or something else altogether."""
    FRAMES = "frames"
    """More frames than `Limits` allows; none was read."""
    FRAME = "frame"
    """Not a frame of the kind that it claims to be: wrong types, sizes or numbers."""
    KIND = "kind"
    """A kind that this version does not know."""
    LIMIT = "limit"
    """A frame with more of something than `Limits` allows."""
    DESCRIPTOR = "descriptor"
    """An invalid one-part descriptor."""
    TRAILING = "trailing"
    """Fields that a later version appended. They are skipped, and the frame is accepted."""


def allow(found: int, allowed: int) -> None:
    """Raise `LimitError` if there is more of something than allowed."""
    if found > allowed:
        raise LimitError(Refusal.LIMIT)


def require(*, sound: bool) -> None:
    """Raise `DecodeError` unless the frame makes sense."""
    if not sound:
        raise DecodeError(Refusal.FRAME)


def _pieces_max(limits: Limits) -> int:
    return -(-limits.message_bytes_max // PIECE_BYTES)


def _sound_name(name: str) -> bool:
    """Return True if this can be a node's id or plain name; a colon would make message ids ambiguous."""
    return ":" not in name and (name.isascii() or len(name.encode()) <= NAME_BYTES_MAX)


def _check_announce(frame: f.Announce, limits: Limits) -> None:
    allow(max(len(frame.heard), len(frame.receipts)), limits.heard_max)
    allow(max((len(receipt.bitmap) for receipt in frame.receipts), default=0), RECEIPT_BITMAP_BYTES_MAX)
    require(sound=_sound_name(frame.node))
    require(sound=all(len(each) in (0, TOKEN_BYTES) for each in (frame.stamp, frame.token, frame.proof)))


def _check_part(frame: f.Profile | f.DescriptorPart, bytes_max: int) -> None:
    """Check a part: only a single part may be empty, so that the number of parts is bounded, too."""
    allow(max(frame.parts, len(frame.body)), bytes_max)
    require(sound=frame.part < frame.parts and (frame.parts == 1 or frame.body != b""))


def _check_digest(frame: f.Digest, limits: Limits) -> None:
    require(sound=frame.part < frame.parts)
    numbers = len(frame.wanted) + 2 * len(frame.buckets)
    for bucket in frame.buckets:
        # All numbers of a digest count together: many buckets with few members cost as much as one
        # with many.
        numbers += len(bucket.fingerprints) + len(bucket.members or ())
        # A prefix longer than its depth would put the bucket outside of the tree.
        require(sound=not bucket.prefix >> bucket.depth)
    allow(numbers, limits.digest_members_max)


def _check_offer(frame: f.Offer, limits: Limits) -> None:
    allow(len(frame.entries), limits.offer_entries_max)
    _check_bitmaps(frame.entries, limits)


def _check_request(frame: f.Request, limits: Limits) -> None:
    allow(len(frame.offers), limits.request_handles_max)
    allow(len(frame.handles) + len(frame.pieces), limits.request_handles_max)
    _check_bitmaps(frame.pieces, limits)


def _check_bitmaps(entries: Iterable[f.OfferEntry | f.PieceRequest], limits: Limits) -> None:
    bitmaps = [entry.pieces for entry in entries if entry.pieces]  # Most entries are of whole messages.
    if bitmaps:
        allow(max(map(len, bitmaps)), -(-_pieces_max(limits) // 8))


def _check_hash_list(frame: f.HashList, limits: Limits) -> None:
    hashes, rest = divmod(len(frame.hashes), HASH_BYTES)
    require(sound=hashes > 0 and rest == 0)
    allow(frame.start + hashes, _pieces_max(limits))


def _check_data(frame: f.Data, limits: Limits) -> None:
    if len(frame.body) > PIECE_BYTES or frame.index * FRAGMENT_BYTES_MIN > limits.message_bytes_max:
        raise LimitError(Refusal.LIMIT)


def _check_parcel(frame: f.Parcel, limits: Limits) -> None:
    if len(frame.wire) > limits.descriptor_bytes_max or len(frame.body) > PIECE_BYTES:
        raise LimitError(Refusal.LIMIT)


_XORS: Final = (1, ACK_PARTS, 1, 0)
"""Number of XORs in each round of comparing lists of acknowledgements."""


def _check_ack_list(frame: f.AckList, limits: Limits) -> None:
    listed, rest = divmod(len(frame.fingerprints), FINGERPRINT_BYTES)
    require(sound=rest == 0 and len(frame.xors) == FINGERPRINT_BYTES * _XORS[frame.round])
    require(sound=frame.round > 1 or not listed)
    allow(listed, limits.digest_members_max)


def _check_list(frame: f.Summary | f.Missing, limits: Limits, least: int = 0) -> None:
    """Check that there are at least `least` fingerprints, ascending, and a valid floor."""
    listed, rest = divmod(len(frame.fingerprints), FINGERPRINT_BYTES)
    require(sound=rest == 0 and listed >= least and frame.floor & _CREATED_MASK <= _CREATED_MAX)
    allow(listed, limits.digest_members_max)
    fingerprints = unpacked(frame.fingerprints)
    require(sound=all(map(lt, fingerprints, fingerprints[1:])))


def _check_summary(frame: f.Summary, limits: Limits) -> None:
    require(sound=frame.part < frame.parts)
    allow(frame.parts, SUMMARY_PARTS_MAX)
    _check_list(frame, limits, 2 if frame.parts > 1 else 0)


def _check_relay(frame: f.Relay, _limits: Limits) -> None:
    """Check that a path leads through no host twice; relays decide how long it may be."""
    hosts = hops(frame.path)
    # A circle would let one datagram use the air of the same relays again and again.
    require(sound=len(frame.path) % PREFIX_BYTES == 0 and frame.position < len(hosts) == len(set(hosts)))
    require(sound=len(frame.broken) in (0, 2 * PREFIX_BYTES) and bool(frame.broken or frame.body))


def _check_prefixes(data: bytes, most: int, size: int = PREFIX_BYTES) -> None:
    """Check packed prefixes, each with its data: distinct, ascending, not too many."""
    if not data:
        return
    allow(len(data), most * size)
    prefixes = [each[:PREFIX_BYTES] for each in cut(data, size)]
    require(sound=len(data) % size == 0 and all(map(lt, prefixes, prefixes[1:])))


def _check_link_state(frame: f.LinkState, limits: Limits) -> None:
    for prefixes in (frame.relays, frame.one_way):
        _check_prefixes(prefixes, limits.heard_max)
    _check_prefixes(frame.heads, limits.digest_members_max, HEAD_BYTES)
    _check_prefixes(frame.wanted, limits.digest_members_max)


def _check_link_record(frame: f.LinkRecord, limits: Limits) -> None:
    for prefixes in (frame.chosen_by, frame.denied):
        _check_prefixes(prefixes, limits.heard_max)


def _check_tickets(frame: f.Tickets, limits: Limits) -> None:
    allow(len(frame.copies), limits.offer_entries_max)
    require(sound=bool(frame.copies))


def _check_encounters(frame: f.Encounters, limits: Limits) -> None:
    listed, rest = divmod(len(frame.entries), LEVEL_BYTES if frame.names else ENTRY_BYTES)
    require(sound=rest == 0 and listed > 0 and frame.part < frame.parts and len(frame.names) in (0, NAMES_BYTES))
    most = limits.encounters_max + 1  # There is one of the sender itself, too.
    allow(max(listed, frame.parts), most)
    if not frame.names:
        _check_prefixes(frame.entries, most, ENTRY_BYTES)
    levels = unpacked_levels(frame.entries) if frame.names else [each for _, each in unpacked_entries(frame.entries)]
    require(sound=max(levels) <= CERTAIN)


Check = Callable[[Any, Limits], None]
CHECKS: dict[type, Check] = {
    f.Announce: _check_announce,
    f.Profile: lambda frame, limits: _check_part(frame, limits.profile_bytes_max),
    f.Digest: _check_digest,
    f.Offer: _check_offer,
    f.Request: _check_request,
    f.DescriptorPart: lambda frame, limits: _check_part(frame, limits.descriptor_bytes_max),
    f.HashList: _check_hash_list,
    f.Data: _check_data,
    f.Ack: lambda frame, _: allow(len(frame.bitmap), ACK_BITMAP_BYTES_MAX),
    f.Parcel: _check_parcel,
    f.AckRecord: lambda frame, _: require(sound=len(set(frame.messages)) == len(frame.messages)),
    f.AckList: _check_ack_list,
    f.Summary: _check_summary,
    f.Missing: _check_list,
    f.Relay: _check_relay,
    f.LinkState: _check_link_state,
    f.LinkRecord: _check_link_record,
    f.Tickets: _check_tickets,
    f.Encounters: _check_encounters,
    f.Listing: lambda frame, _: require(sound=len(frame.hashes) == listing_bytes(frame.count)),
    f.Held: lambda frame, _: allow(len(frame.held), LISTED_MAX // 8),
}
"""Checks by kind; a kind without a check is sound as soon as it is decoded."""
