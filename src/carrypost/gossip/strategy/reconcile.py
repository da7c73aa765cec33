"""Reconciliation: two hosts find out, in a few datagrams, which messages each of them lacks.

The steps are pure functions of a `View`: `opening` begins, `answer` replies to a step of the other host, and `split`
divides a step into frames that fit into datagrams. No state is kept between two steps. The invariant: a reply either
lists the members of a bucket, or goes deeper than it was asked, so that every run ends. Reconciliation moves no
messages; offers follow from it.
"""

# The problem. Two hosts meet. Of the messages that match a profile the one holds 10,000, the other nearly
# the same ones. Listing them would take 77 datagrams in each contact, and a filter with false positives
# would keep some messages away from some hosts for ever. The cost should follow the difference, and the
# result should be exact.
#
# The tree. A message is known here by its fingerprint: 64 bits of a hash of it, so fingerprints are spread
# evenly. A *bucket* is all of the set that starts with the same `depth` bits; the bucket of depth 0 is
# everything. It has 64 children of depth 6, each of those has 16 children of depth 10, and so on down to
# depth 62. Nothing of this is stored but the 64 XORs of depth 6, which a view keeps up to date; deeper ones
# are computed from the one bucket concerned, some 150 fingerprints where 10,000 are held.
#
# A run. The initiator sends the XOR over each child of the root. The other side compares them with its own, and for
# each child that differs replies with what is less to send: the members, if it has FEW of them or none, else the XORs
# of the grandchildren. The initiator does the same with these, and so on. A side that gets a *listed* bucket knows all
# about it: what is here and not listed, the other lacks (`mine_only`); what is listed and not here is asked for by its
# fingerprint (`wanted`), from which the other side learns what this one lacks (`wanted_mine`). A bucket that is equal
# is not mentioned again. In the end both sides know what of theirs the other lacks:
#
#     initiator                                       the other
#     round 0   64 XORs                               -->
#                                                <--  round 1   16 XORs of each bucket that differs
#     round 2   members of each child that differs    -->  mine_only
#     wanted_mine                                <--  round 3   wanted, and no buckets: the end
#
# State. None, on either side. A digest says all that is needed to answer it; frames of one step may be
# lost, doubled or swapped, and each branch of the tree goes on by itself. What was lost is found by the
# next run: the initiator opens again, when it has heard nothing for a while and at every k-th announcement.
# Both sets may change meanwhile: a run compares what is there when it looks, and a message that comes
# during a contact is offered anyway.
#
# Costs, in datagrams of at most 1200 bytes, both directions, without the offers that follow (tests hold
# them):
#
#     both hold   new on one side   datagrams    bytes
#        10,000                 0           2      629
#        10,000                 1           4      914
#        10,000                10           5    3,429
#        10,000               100          24   19,539    (20 and 17,826 if they are not the initiator's)
#             0            10,000           3      657    (2 and 51 if the initiator has none)
#
# What the XOR is good for. Fingerprints are independent as long as no author chooses them: the chance that a bucket
# that differs looks equal is 2**-64. It is no cryptographic hash of the set, though. An author can sign some sixty
# messages of its own whose fingerprints add up to that of another author's message X; a host that has these and lacks X
# then looks, to one that has X and lacks these, as if there were no difference. The author has to place them at the one
# and keep them from the other; it ends with the first of them that expires or spreads; X still comes by any third host
# and by increments; and nothing is forged by it. Two ids with one fingerprint (2**32 hashes) hide one another, and both
# are their author's own. A key per contact would close this and cost a pass over the set per contact; wire version 1
# does not have it. Digests are not signed, either: a liar learns fingerprints of what matches a profile that it knows,
# can make us offer what the other has, and can waste a run, but can neither forge a message nor take one away.
#
# Hostile digests. One frame may ask about BUCKETS_MAX buckets and CHILDREN_MAX XORs; `split` keeps its own
# frames below that. A XOR costs at most 16 numbers in the reply, so a frame costs a bounded reply and, at
# worst, one look at each known message; a sorted bucket is kept until it changes, so to ask again costs
# what is asked.

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import msgspec

from carrypost.errors import DecodeError, LimitError
from carrypost.gossip.interest.index import FINGERPRINT_BITS, ROOT_BITS, View
from carrypost.gossip.slots import mask_of
from carrypost.gossip.wire.frames import Bucket, Digest

FEW = 16
"""Number of members up to which a bucket is listed: the XORs of its children would not be shorter."""
ROOT_CHILDREN = 1 << ROOT_BITS
CHILD_BITS = 4
CHILDREN = 1 << CHILD_BITS
DEPTHS = (0, 2, *range(ROOT_BITS, FINGERPRINT_BITS, CHILD_BITS))
"""Depths of buckets. The root has 64 children, or is cut into four buckets of depth 2 that have 16 each."""
DEPTH_MAX = DEPTHS[-1]
"""Depth at which a bucket has at most four members, and is listed in any case."""
ROUNDS_MAX = 2 + (DEPTH_MAX - ROOT_BITS) // CHILD_BITS
"""The last round of two honest sides: one XOR step per level, one listing, one list of what is wanted."""
BUCKETS_MAX = 256
"""Buckets in one frame."""
CHILDREN_MAX = 128
"""XORs in one frame; each is answered by at most 16 numbers."""
NUMBERS_MAX = 1024
"""Numbers in one frame made here, whatever the MTU."""
ENVELOPE_BYTES = 32
"""Bytes of a datagram around buckets and wanted fingerprints: headers, profile, round, lengths."""
NUMBER_BYTES = 9


@dataclass(frozen=True, slots=True)
class Step:
    """The contents and consequences of one digest."""

    reply: Digest | None
    """To be sent back, through `split`; None if no answer is due."""
    mine_only: int
    """Slots of messages that the other side's listings show it to lack."""
    wanted_mine: int
    """Slots of messages that the other side asked for by fingerprint, and so lacks, too."""


def opening(view: View) -> Digest:
    """Return the digest that starts a run: a listing of few messages, or the XORs of the root's children."""
    if view.count <= FEW:
        return Digest(view.digest, 0, (_listed(view, 0, 0),))
    return Digest(view.digest, 0, (Bucket(0, 0, view.fingerprints),))


def answer(view: View, digest: Digest) -> Step:
    """Compare the contents of one frame with the set held here.

    A digest with buckets is always answered, if only by an empty one; a digest without buckets never is. Raises
    `DecodeError` for an impossible step, `LimitError` if a frame asks for more than it may.
    """
    _check(digest)
    wanted_mine = mask_of(view.find(digest.wanted)[0]) if digest.wanted else 0
    if not digest.buckets:
        return Step(None, 0, wanted_mine)
    mine_only = 0
    buckets: list[Bucket] = []
    wanted: list[int] = []
    for bucket in digest.buckets:
        if bucket.members is None:
            buckets += _compared(view, bucket)
        else:
            found, missing = view.find(bucket.members)
            wanted += missing
            mine_only |= view.mask(bucket.depth, bucket.prefix) & ~mask_of(found)
    reply = Digest(view.digest, digest.round + 1, tuple(buckets), tuple(wanted))
    return Step(reply, mine_only, wanted_mine)


def split(digest: Digest, mtu_bytes: int) -> list[Digest]:
    """Return the digest as frames that each fit one datagram and can be answered separately."""
    room_bytes = mtu_bytes - ENVELOPE_BYTES
    frames: list[Digest] = []
    buckets: list[Bucket] = []
    used_bytes = children = numbers = 0
    for bucket, size_bytes in _cut(digest.buckets, room_bytes):
        xors = len(bucket.fingerprints)
        more = xors + len(bucket.members or ())
        full = used_bytes + size_bytes > room_bytes or children + xors > CHILDREN_MAX
        if buckets and (full or numbers + more > NUMBERS_MAX or len(buckets) == BUCKETS_MAX):
            frames.append(Digest(digest.profile, digest.round, tuple(buckets)))
            buckets, used_bytes, children, numbers = [], 0, 0, 0
        buckets.append(bucket)
        used_bytes += size_bytes
        children += xors
        numbers += more
    wanted = digest.wanted
    fit = max(0, min((room_bytes - used_bytes) // NUMBER_BYTES, NUMBERS_MAX - numbers))
    frames.append(Digest(digest.profile, digest.round, tuple(buckets), wanted[:fit]))
    chunk = max(1, min(room_bytes // NUMBER_BYTES, NUMBERS_MAX))
    frames += [
        Digest(digest.profile, digest.round, (), wanted[start : start + chunk])
        for start in range(fit, len(wanted), chunk)
    ]
    return frames


def _compared(view: View, theirs: Bucket) -> Iterator[Bucket]:
    """Yield the answer about those children of a bucket that differ."""
    width = ROOT_BITS if len(theirs.fingerprints) == ROOT_CHILDREN else CHILD_BITS
    depth = theirs.depth + width
    first = theirs.prefix << width
    mine_xors = view.xors(depth, first, len(theirs.fingerprints))
    pairs = zip(mine_xors, theirs.fingerprints, strict=True)
    differing = [prefix for prefix, (here, there) in enumerate(pairs, first) if here != there]
    if not differing:
        return
    members = [view.members(depth, prefix) for prefix in differing]
    mine = sum(map(len, members))
    if mine <= FEW and mine == view.mask(theirs.depth, theirs.prefix).bit_count():
        # All that is here is in children that differ: one listing of the parent says it shorter.
        yield _listed(view, theirs.depth, theirs.prefix)
        return
    for prefix, values in zip(differing, members, strict=True):
        if len(values) <= FEW or depth == DEPTH_MAX:
            yield Bucket(depth, prefix, (), tuple(values))
        else:
            yield Bucket(depth, prefix, _children(values, depth))


def _children(values: list[int], depth: int) -> tuple[int, ...]:
    shift = FINGERPRINT_BITS - depth - CHILD_BITS
    xors = [0] * CHILDREN
    for value in values:
        xors[value >> shift & (CHILDREN - 1)] ^= value
    return tuple(xors)


def _listed(view: View, depth: int, prefix: int) -> Bucket:
    return Bucket(depth, prefix, (), tuple(view.members(depth, prefix)))


def _cut(buckets: tuple[Bucket, ...], room_bytes: int) -> Iterator[tuple[Bucket, int]]:
    """Yield buckets with their sizes; a root with 64 children that does not fit becomes four buckets of 16."""
    for bucket in buckets:
        size_bytes = len(_ENCODER.encode(bucket))
        if size_bytes > room_bytes and len(bucket.fingerprints) == ROOT_CHILDREN:
            for prefix in range(ROOT_CHILDREN // CHILDREN):
                part = bucket.fingerprints[prefix * CHILDREN : (prefix + 1) * CHILDREN]
                quarter = Bucket(DEPTHS[1], prefix, part)
                yield quarter, len(_ENCODER.encode(quarter))
        else:
            yield bucket, size_bytes


def _check(digest: Digest) -> None:
    # Bounds come before any lookup: a stranger chooses these numbers, and each XOR may cost 16 in
    # the reply.
    if not 0 <= digest.round <= ROUNDS_MAX:
        raise DecodeError("digest", f"round {digest.round} of a reconciliation")
    if len(digest.buckets) > BUCKETS_MAX or sum(len(b.fingerprints) for b in digest.buckets) > CHILDREN_MAX:
        raise LimitError("digest", "a digest that asks about too much at once")
    for bucket in digest.buckets:
        _check_bucket(bucket)
    if any(value >> FINGERPRINT_BITS for value in digest.wanted):
        raise DecodeError("digest", "a fingerprint out of range")


def _check_bucket(bucket: Bucket) -> None:
    depth, prefix = bucket.depth, bucket.prefix
    if depth not in DEPTHS or prefix >> depth:
        raise DecodeError("digest", f"no bucket of depth {depth} and prefix {prefix}")
    if bucket.members is None:
        allowed = ROOT_CHILDREN if depth == 0 else CHILDREN if depth < DEPTH_MAX else 0
        if len(bucket.fingerprints) != allowed or not allowed:
            raise DecodeError("digest", f"{len(bucket.fingerprints)} children at depth {depth}")
        return
    width = FINGERPRINT_BITS - depth
    # A listing that names values outside its bucket would make `answer` believe that this side
    # lacks messages that were never compared.
    if bucket.fingerprints or any(value >> width != prefix for value in bucket.members):
        raise DecodeError("digest", f"members that are not in the bucket of depth {depth}")


_ENCODER = msgspec.msgpack.Encoder()
