"""Reviews: agreeing with a neighbour on the messages that it lacks, by a reconciliation, once and at intervals.

A review is one run of a reconciliation, begun by the side that offers, for the profile of the side that receives. The
smaller node id begins; the other waits a moment for it. If both profiles are equal, one run serves both directions.
Otherwise the other side runs its own, after it offered what the first run showed its neighbour to lack.

In a reconciliation two hosts find out, in a few datagrams, which messages each of them lacks. Its steps are pure
functions of a `View`: `opening` begins, `answer` replies to a step of the other host, and `split` divides a step into
frames that fit into datagrams. No state is kept between two steps. The invariant: a reply either lists the members of a
bucket, or goes deeper than it was asked, so that every run ends. Reconciliation moves no messages; offers follow from
it.
"""

# Why reconciliation. Two hosts meet. Of the messages that match a profile the one holds 10,000, the other nearly
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

# What a run believes, and when. A run is over when none of its questions is open. Only then are the
# messages that both sets had in common noted as known to the neighbour, and only then is the rest
# offered. Anything sooner would offer messages that a listing still on its way shows to be there.
#
# What must hold.
# 1. A run ends. Every answer lists a bucket or goes one level deeper (`answer`), and a run
#    without answers is begun anew when its patience is over, later each time. While answers come it
#    goes on, however slow the link is.
# 2. Frames of other runs change nothing. A run has a number, a question has a number within it, and
#    an answer names both, the part that it is, and the number of parts. Whatever answers no open
#    question is dropped unread, so duplicates, stragglers and forgeries cost one lookup.
# 3. What a neighbour can make this host do is bounded and charged: questions kept, parts of an
#    answer, frames that open a run, and the runs that it causes by its announcements (`RUN`).
#    A few runs per contact are free, because an honest neighbour needs them.
# 4. The set that is compared is frozen (`ReviewRun.snapshot`). A message that arrives during the
#    run is not in it, so it is neither believed known nor lacking, and is offered as a new one.

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

from carrypost.errors import DecodeError, LimitError
from carrypost.gossip.interest.index import FINGERPRINT_BITS, ROOT_BITS, View
from carrypost.gossip.slots import mask_of
from carrypost.gossip.strategy.exchange_contact import UNDECIDED, ReviewRun
from carrypost.gossip.timers import OFFER, REVIEW
from carrypost.gossip.wire.frames import Bucket, Digest, Frame

if TYPE_CHECKING:
    from carrypost.gossip.strategy.exchange_contact import ExchangeContact
    from carrypost.gossip.transfers.arrivals_and_removals import Removals
    from carrypost.gossip.transfers.link import HostContext


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


_REVIEW_GRACE = 2
"""Number of periods for which the larger id leaves the next review to the other."""
_TURN_US = 4_000_000
"""Time that a neighbour may be silent within its review before this side begins its own."""
_ANSWERED_MAX = 4096
_QUESTIONS_MAX = 4096
"""Number of questions open to one neighbour; beyond it the oldest is forgotten."""
_OPENINGS_MAX = 8
"""Number of frames that may open a run; a neighbour is charged for further ones (`gossip.transfers.accounts`)."""
RUN = 100
"""Work for beginning a run, which a neighbour causes by its announcements (`gossip.transfers.accounts`)."""
_XOR = 12
"""Work for comparing one part of a set, and for listing its contents if it differs."""
_PARTS_MAX = 256
"""Frames of one answer."""


class Review:
    """Runs the reconciliations of one host."""

    def __init__(self, context: HostContext, departures: Removals) -> None:
        self._holdings, self._outputs, self._interests = context.holdings, context.outputs, context.interests
        self._settings, self._node = context.settings, context.node
        self._removals = departures
        self._number = 0
        self._wait_us = round(self._settings.coalesce_s * 1e6)

    def begin(self, contact: ExchangeContact, now: int) -> None:
        """Begin a run, or wait for the neighbour's: a contact began, or its profile changed."""
        if self._node < contact.link.node:
            self.ask(contact, now)
        else:
            contact.timers.arm(REVIEW, now + self._wait_us)

    def conclude(self, contact: ExchangeContact, now: int) -> None:
        """Agree without a comparison: the neighbour may lack anything that it is not known to have."""
        self.agree(contact, ReviewRun(0, 0), now)

    def ask(self, contact: ExchangeContact, now: int) -> None:
        """Begin a run, if the neighbour's profile is known."""
        view = contact.view
        if view is None:
            return
        self._removals.sweep()  # What expired is not compared any more.
        self._holdings.invite()
        self._number += 1
        run = ReviewRun(self._number, view.known)
        # With nothing to compare there is nothing to ask. If the profiles are equal the run also
        # shows what this host lacks, so an empty host asks nevertheless.
        if not run.snapshot and not self.same(contact):
            self.agree(contact, run, now)
            return
        contact.timers.arm(REVIEW, now + self.patience_us(contact))
        contact.machine.begin(run)
        contact.link.work.owe(RUN)
        self._send(contact, run, opening(view), 0)

    def due(self, contact: ExchangeContact, now: int) -> bool:
        """Return True, and arm the timer, if it is time to compare again.

        A review is repeated every `digest_every` periods of the neighbour, by the smaller id if it can.
        """
        grace = 0 if self._node < contact.link.node else _REVIEW_GRACE
        if contact.machine.periods < self._settings.digest_every + grace:
            return False
        contact.timers.arm(REVIEW, now)
        return True

    @staticmethod
    def patience_us(contact: ExchangeContact) -> int:
        """Return the time to wait for an answer before a run is begun anew."""
        return contact.link.outbox.recovery.answer_us(contact.machine.tries)

    def receive(self, contact: ExchangeContact, frame: Digest, now: int) -> None:
        """Handle one step of a reconciliation; raises `RemoteError` for an impossible one."""
        self._removals.sweep()
        # Even rounds are questions about what this host wants, odd rounds are answers about what it
        # gives.
        offering = frame.round % 2 == 1
        view = contact.view if offering else self._interests.view
        if view is None or frame.profile != view.digest:
            self._outputs.refuse("profile-stale", contact.link.peer)
            return
        agreement = contact.machine
        run = agreement.asking if offering else self._answering(contact, view, frame, now)
        if run is None or run.number != frame.run or not _expected(run, frame):
            return
        # A digest and its answer measure the round trip before any message was sent: the first
        # burst then starts with a timeout that fits the link.
        if frame.answers:
            contact.link.outbox.recovery.expect(now - run.asked_us)
        contact.link.work.did(len(frame.wanted) + sum(map(_looks, frame.buckets)))
        if run.free:
            contact.link.work.credit()
        if offering:
            contact.timers.arm(REVIEW, now + self.patience_us(contact))
        elif contact.view is not None and (agreement.state in UNDECIDED or self.same(contact)):
            # A neighbour that begins a run and never ends it must not keep this side from its own. Nor must one that
            # begins runs often: a run of this side that is under way keeps its own patience.
            contact.timers.arm(REVIEW, now + _TURN_US)
        step = answer(view, frame)
        run.mine_only |= step.mine_only | step.wanted_mine
        if step.reply is not None:
            self._send(contact, run, step.reply, frame.number)
        if not run.questions:
            self._end(contact, run, now, offering=offering)

    def _answering(self, contact: ExchangeContact, view: View, frame: Digest, now: int) -> ReviewRun | None:
        """Return the neighbour's run, if this side has to answer it.

        If both sides begin a run for the same set at the same time, the run of the smaller id is kept. If half of its
        patience is over, its question or the answer was probably lost, while the neighbour's question is here.
        """
        run = contact.machine.answering
        if frame.round == 0 and (run is None or run.number != frame.run):
            run = self.answering(contact, view, frame.run, now)
        if frame.round == 0 and run is not None:
            run.openings += 1
            run.free = run.free and run.openings <= _OPENINGS_MAX
        return run

    def answering(self, contact: ExchangeContact, view: View, number: int, now: int) -> ReviewRun | None:
        """Return a new run of the neighbour; None if this host's own takes precedence."""
        agreement = contact.machine
        if self.same(contact):
            mine = agreement.asking
            if (
                mine is not None
                and self._node < contact.link.node
                and (now - mine.asked_us < contact.timers.due[REVIEW] - now)
            ):
                return None
            agreement.give_way()
        free = contact.link.takes_free(now)
        if free:
            # This takes milliseconds in a nearly full cache: a neighbour that begins runs all the
            # time must not cause it each time.
            self._holdings.invite()
        run = ReviewRun(number, view.known)
        run.free = free
        agreement.answer(run)
        return run

    def _end(self, contact: ExchangeContact, run: ReviewRun, now: int, *, offering: bool) -> None:
        """End a run without open questions."""
        # A part of the neighbour's opening may still come, and correct what is believed from here
        # on.
        agreement = contact.machine
        if offering or self.same(contact):
            self.agree(contact, run, now)
        elif agreement.state in UNDECIDED and contact.view is not None:
            offered = self._holdings.cache.whole & ~self._holdings.withheld
            lacks = run.mine_only & contact.view.matches & offered & ~contact.link.known
            if lacks or agreement.peer_lacks:
                agreement.shown(lacks)
                contact.timers.arm(OFFER, now)
            else:
                self.ask(contact, now)

    def same(self, contact: ExchangeContact) -> bool:
        """Return True if both sides have the same profile, so that one run serves both."""
        return contact.view is not None and contact.view is self._interests.view

    def _send(self, contact: ExchangeContact, run: ReviewRun, digest: Digest, answers: int) -> None:
        run.asked_us = self._holdings.now_us
        pages = split(digest, contact.link.body_bytes_max)
        frames: list[Frame] = []
        for part, page in enumerate(pages):
            number = 0
            if page.buckets:
                self._number = number = self._number + 1
                run.questions[number] = set()
                # A dict keeps insertion order, so the first key is the oldest question.
                if len(run.questions) > _QUESTIONS_MAX:
                    del run.questions[next(iter(run.questions))]
            frames.append(
                msgspec.structs.replace(
                    page, number=number, answers=answers, part=part, parts=len(pages), run=run.number
                )
            )
        contact.link.send(frames)

    @staticmethod
    def agree(contact: ExchangeContact, run: ReviewRun, now: int) -> None:
        """Note what a run has shown that is over: the neighbour knows all that was compared, except what it lacks."""
        contact.machine.agree()
        # The order matters: everything compared is known, except what the other side turned out to
        # lack.
        contact.link.learn(run.snapshot)
        contact.link.unlearn(run.mine_only)
        contact.timers.arm(OFFER, now)
        contact.timers.cancel(REVIEW)


def _looks(bucket: Bucket) -> int:
    """Return the work for comparing a part of a set: all that is held here is compared with a list of everything."""
    listed = 2 if bucket.depth else _XOR
    return listed + _XOR * len(bucket.fingerprints) + len(bucket.members or ())


def _expected(run: ReviewRun, frame: Digest) -> bool:
    """Return False for a question that was answered already, or an answer to no open question."""
    if frame.number:
        if frame.number in run.answered:
            return False
        run.answered[frame.number] = None
        if len(run.answered) > _ANSWERED_MAX:
            del run.answered[next(iter(run.answered))]
    if not frame.answers:
        return frame.round == 0
    parts = run.questions.get(frame.answers)
    if parts is None or frame.part in parts or frame.parts > _PARTS_MAX:
        return False
    parts.add(frame.part)
    if len(parts) >= frame.parts:
        del run.questions[frame.answers]
    return True
