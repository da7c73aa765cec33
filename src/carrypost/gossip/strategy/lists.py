"""Comparison by lists: two hosts find what each of them lacks by lists of hashes, where digests would cost more.

There are two ways. To the exchange (`ExchangeMachine`) either one is a run: begun by `BEGIN`, over with `AGREE`, on
both sides.

`Lists` is for two hosts with the same interests: one list of short hashes and one answer (`prophet`). The host that
compares sends a short hash of each message that it knows (`Listing`), and the neighbour answers with a bitset of those
that it knows, too (`Held`). Then both know what the other lacks. A reconciliation costs what differs; where most of it
differs, as between hosts that choose what to carry, a list costs less: 12 to 13 bits a message. Hashes are made with a
key that is used once. Two different messages look equal in one list of 1,024, and not in the next. Then one of them is
not offered until sets are compared again.

`Sessions` is EMMA's way (`anti-entropy`): one host lists the messages it has, the other answers with those it lacks,
and each sends what is missing. The smaller node id lists the fingerprints of all messages that are whole or done here
and that either side wants, in parts of one datagram (`Summary`). Each part covers a range of fingerprints and is
answered separately (`Missing`), so a lost part delays nothing else. The side that answers a part sends the messages
that it has in that range and that are not listed; the side that listed them sends those named as missing. Nothing is
requested or offered first: small messages go as Parcels, through the outbox, until they are acknowledged or declined.
Larger ones are offered.
"""

# What must hold of short hashes.
# 1. An author cannot make a message that hides another one: the key is not known before the list is
#    sent, and two fingerprints that look equal under one key mostly differ under the next.
# 2. After a list without an answer, the next run is a review: a neighbour of an earlier version does
#    not know lists.

# Why sessions list at all, when a reconciliation sends digests? EMMA does it this way, and measuring it is the
# point. Digests cost what differs, lists cost what is held. With 1,000 messages held, lists are the
# cheaper way from about 80 new ones on; with nothing new they take 13 times the bytes
# (docs/benchmarks.md, "Lists compared with digests").
#
# The floor. A full cache has a lowest rank, and anything below it would be evicted on arrival. Both
# frames carry their sender's floor, and what is below it is neither sent nor requested. Without it,
# two full caches would hand each other the same messages in every contact and evict them again.
# Messages declined here for lack of room are not listed: there may be room by the time the
# neighbour looks, or the floor keeps them away.
#
# What must hold of sessions.
# 1. Ranges of consecutive parts share one fingerprint, so that no message falls between two parts.
# 2. A neighbour of another version ignores `Summary`. After two lists without any answer a review
#    takes the session's place, as it does where there are more than `SESSION_LISTED_MAX` messages to list.
#    Every strategy answers sessions, but only `AntiEntropy` begins them.

from __future__ import annotations

import hashlib
from operator import attrgetter
from typing import TYPE_CHECKING

from carrypost.errors import DecodeError, RemoteError
from carrypost.gossip.holdings.eviction import precedence
from carrypost.gossip.interest.index import FINGERPRINT_BITS, ROOT_BITS
from carrypost.gossip.slots import Members, bits, mask_of
from carrypost.gossip.strategy.exchange_contact import ReviewRun
from carrypost.gossip.strategy.review import RUN
from carrypost.gossip.timers import REVIEW
from carrypost.gossip.transfers.accounts import LOOKS
from carrypost.gossip.transfers.sending import GIVEN_MAX
from carrypost.gossip.wire.frames import (
    FINGERPRINT_BYTES,
    LISTED_MAX,
    LOW_BITS,
    Held,
    Listing,
    Missing,
    Summary,
    listing_bytes,
    packed,
    packed_hashes,
    unpacked,
    unpacked_hashes,
)

if TYPE_CHECKING:
    from carrypost.gossip.strategy.exchange_contact import Choosing, ExchangeContact
    from carrypost.gossip.strategy.review import Review
    from carrypost.gossip.transfers.arrivals_and_removals import Removals
    from carrypost.gossip.transfers.link import HostContext
    from carrypost.gossip.transfers.sending import RequestServer
    from carrypost.model.descriptor import Descriptor


_FACTOR = 2654435769
"""An odd number: 2^32 by the golden ratio."""
_BITS = 64


class ListRun(ReviewRun):
    """A comparison that this host began by a list."""

    __slots__ = ("slots",)

    def __init__(self, number: int, snapshot: int, slots: list[int]) -> None:
        super().__init__(number, snapshot)
        self.slots = slots
        """Slots in the order of the list."""


class Lists:
    """The comparisons of one host that are made by lists."""

    def __init__(self, context: HostContext, departures: Removals, review: Review) -> None:
        self._holdings, self._interests, self._node = context.holdings, context.interests, context.node
        self._removals, self._review = departures, review
        self._number = 0

    def ask(self, contact: ExchangeContact, now: int) -> bool:
        """Send a list, and return True; False if this comparison needs a review."""
        machine, link, view = contact.machine, contact.link, self._interests.view
        if machine.tries or view is None or not self._review.same(contact):
            return False
        self._removals.sweep()  # What expired is not compared any more.
        self._holdings.invite()
        known = view.known
        count = known.bit_count()
        if count > LISTED_MAX or listing_bytes(count) > link.body_bytes_max:
            return False
        self._number += 1
        seed = f"{self._node} {self._number} {now}".encode()
        key = int.from_bytes(hashlib.sha256(seed).digest()[:4], "big")
        hashes = sorted(self._hashes(known, key, count).items(), key=_by_hash)
        run = ListRun(self._number, known, [slot for slot, _ in hashes])
        run.asked_us = now
        contact.timers.arm(REVIEW, now + self._review.patience_us(contact))
        machine.begin(run)
        link.work.owe(RUN)
        link.send((Listing(run.number, key, count, packed_hashes([each for _, each in hashes])),))
        return True

    def receive_listing(self, contact: ExchangeContact, frame: Listing, now: int) -> None:
        """Answer a list, and note what the neighbour lacks; raises `RemoteError` for an impossible one."""
        listed = unpacked_hashes(frame.hashes, frame.count)
        if listed is None:
            raise DecodeError("listing")
        view = self._interests.view
        if view is None or not self._review.same(contact):
            return
        contact.link.work.did(frame.count)
        self._removals.sweep()
        run = self._review.answering(contact, view, frame.run, now)
        if run is None:
            return
        if run.free:
            contact.link.work.credit()
        mine, theirs = self._hashes(view.known, frame.key, frame.count), set(listed)
        run.mine_only = mask_of([slot for slot, each in mine.items() if each not in theirs])
        known = set(mine.values())
        held = mask_of([number for number, each in enumerate(listed) if each in known])
        contact.link.send((Held(frame.run, held.to_bytes((frame.count + 7) // 8, "little")),))
        self._review.agree(contact, run, now)

    def receive_held(self, contact: ExchangeContact, frame: Held, now: int) -> None:
        """Note what the neighbour lacks of a list; raises `RemoteError` for an impossible answer."""
        run = contact.machine.asking
        if not isinstance(run, ListRun) or run.number != frame.run:
            return  # Another run has taken its place.
        if len(frame.held) != (len(run.slots) + 7) // 8:
            raise DecodeError("held")
        contact.link.outbox.recovery.expect(now - run.asked_us)
        contact.link.work.credit()
        held = Members(int.from_bytes(frame.held, "little"))
        lacking = mask_of([slot for number, slot in enumerate(run.slots) if number not in held])
        run.mine_only |= lacking & run.snapshot  # Slots that were freed meanwhile are not in it any more.
        self._review.agree(contact, run, now)

    def _hashes(self, mask: int, key: int, count: int) -> dict[int, int]:
        """Return the short hashes of messages by slot, as a list of `count` messages has them."""
        fingerprints, factor = self._holdings.index.fingerprints, key << 32 | _FACTOR
        shift, whole = _BITS - LOW_BITS - count.bit_length(), (1 << _BITS) - 1
        return {slot: (fingerprints[slot] * factor & whole) >> shift for slot in bits(mask)}


def _by_hash(each: tuple[int, int]) -> int:
    return each[1]


SESSION_LISTED_MAX = 16_384
"""Number of messages in one list; if there are more, sets are compared instead."""
_SUMMARIES = 2
"""Number of lists without any answer after which sets are compared instead."""
_TURN_US = 4_000_000
"""Time that a neighbour may be silent within its session before this side compares sets."""
_SENDING_ORDER = attrgetter("sending_order")
_LAST = (1 << FINGERPRINT_BITS) - 1


class Session(ReviewRun):
    """One session, as one of its two sides sees it."""

    __slots__ = ("answered_early", "open", "parts", "arrived", "unanswered")

    def __init__(self, number: int, parts: int) -> None:
        super().__init__(number, 0)
        self.parts = parts
        self.open: dict[int, list[int]] = {}
        """Fingerprints of the parts that were listed and not answered yet."""
        self.unanswered = 0
        """Number of lists since the last answer."""
        self.arrived = 0
        """Bitset of the parts of the neighbour's list that arrived."""
        self.answered_early = False
        """True if all parts arrived before the neighbour's profile was known."""


class Sessions:
    """The sessions of one host."""

    def __init__(
        self, context: HostContext, serving: RequestServer, departures: Removals, review: Review, choosing: Choosing
    ) -> None:
        self._holdings, self._cache, self._index = context.holdings, context.holdings.cache, context.holdings.index
        self._interests, self._node = context.interests, context.node
        self._server, self._removals, self._review = serving, departures, review
        self._choosing = choosing
        self._number = 0

    # --- the side that lists -------------------------------------------------------------------------------

    def begin(self, contact: ExchangeContact, now: int) -> None:
        """List the messages held here, or wait for the neighbour's list: a contact began, or its profile changed."""
        heard = contact.machine.answering
        if isinstance(heard, Session) and heard.answered_early:
            heard.answered_early = False
            self._review.conclude(contact, now)
        elif self._node < contact.link.node:
            self._list(contact, now)
        else:
            contact.timers.arm(REVIEW, now + contact.link.outbox.recovery.answer_us(0))

    def repeat(self, contact: ExchangeContact, now: int) -> bool:
        """List again the parts without an answer; return False if sets have to be compared instead."""
        session = contact.machine.asking
        if not isinstance(session, Session) or session.unanswered >= _SUMMARIES:
            return False
        self._send(contact, session, now)
        return True

    def _list(self, contact: ExchangeContact, now: int) -> None:
        """Begin a session."""
        self._removals.sweep()
        fingerprints = self._fingerprints(contact)
        if len(fingerprints) > SESSION_LISTED_MAX:
            self._review.ask(contact, now)
            return
        self._number += 1
        parts = _cut(fingerprints, contact.link.body_bytes_max // FINGERPRINT_BYTES)
        session = Session(self._number, len(parts))
        session.open = dict(enumerate(parts))
        contact.machine.begin(session)
        contact.link.work.owe(RUN + len(fingerprints) // LOOKS)
        contact.link.supply()
        self._send(contact, session, now)

    def _fingerprints(self, contact: ExchangeContact) -> list[int]:
        """Return, in ascending order, the fingerprints of messages held or done here that either side wants."""
        mask = 0
        for view in (self._interests.view, contact.view):
            if view is not None:
                mask |= view.known
        known = self._index.fingerprints
        return sorted({known[slot] for slot in bits(mask & ~self._cache.memories.waiting)})

    def _send(self, contact: ExchangeContact, session: Session, now: int) -> None:
        session.asked_us = now
        session.unanswered += 1
        contact.timers.arm(REVIEW, now + contact.link.outbox.recovery.answer_us(session.unanswered - 1))
        floor = self._cache.floor
        contact.link.send([
            Summary(session.number, part, session.parts, floor, packed(listed)) for part, listed in session.open.items()
        ])  # fmt: skip

    def receive_missing(self, contact: ExchangeContact, frame: Missing, now: int) -> None:
        """Send what the neighbour lacks of a listed part; raises `RemoteError` for an impossible answer."""
        session, link = contact.machine.asking, contact.link
        if not isinstance(session, Session) or session.number != frame.session:
            return  # Another run has taken its place.
        if frame.part >= session.parts:
            raise DecodeError("missing")
        listed = session.open.get(frame.part)
        if listed is None:
            return  # It was answered already.
        lacking = unpacked(frame.fingerprints)
        link.work.did(len(lacking))
        # Without this check a neighbour could name any fingerprint, and learn by what it is sent
        # which messages are here.
        if not set(lacking) <= set(listed):
            raise RemoteError("missing", "lacks what was not listed")
        del session.open[frame.part]
        session.unanswered = 0
        link.outbox.recovery.expect(now - session.asked_us)
        link.work.credit()
        contact.timers.arm(REVIEW, now + link.outbox.recovery.answer_us(0))
        self._removals.sweep()
        lacks = self._slots(lacking)
        link.learn(self._slots(listed) & ~lacks)
        self._supply(contact, lacks, frame.floor)
        if not session.open:
            self._review.conclude(contact, now)

    # --- the side that answers -----------------------------------------------------------------------------

    def receive_summary(self, contact: ExchangeContact, frame: Summary, now: int) -> None:
        """Answer one part of the neighbour's list; raises `RemoteError` if it does not fit the other parts."""
        link, agreement = contact.link, contact.machine
        session = agreement.answering
        if not isinstance(session, Session) or session.number != frame.session:
            session = Session(frame.session, frame.parts)
            session.free = link.takes_free(now)
            agreement.answer(session)
        if frame.parts != session.parts:
            raise DecodeError("summary", "another number of parts than before")
        self._removals.sweep()
        listed = unpacked(frame.fingerprints)
        link.work.did(len(listed))
        fresh = not session.arrived >> frame.part & 1
        if fresh:
            session.arrived |= 1 << frame.part
            if session.free:
                link.work.credit()
            # The first range begins at zero and the last ends at the highest fingerprint, so that
            # messages outside of all that is listed are compared, too.
            first = listed[0] if frame.part else 0
            self._compare(contact, listed, first, listed[-1] if frame.part < session.parts - 1 else _LAST, frame.floor)
        link.supply()
        floor = self._cache.floor
        link.send((Missing(frame.session, frame.part, packed(self._lacking(listed, floor)), floor),))
        if contact.view is None:
            session.answered_early = session.arrived.bit_count() == session.parts
        elif session.arrived.bit_count() < session.parts:
            contact.timers.arm(REVIEW, now + _TURN_US)
        elif fresh:
            self._review.conclude(contact, now)

    def _compare(self, contact: ExchangeContact, listed: list[int], first: int, last: int, floor: int) -> None:
        """Note the messages that the neighbour has from `first` to `last`, and send those that it lacks there."""
        self._index.apply()
        has = self._slots(listed)
        contact.link.learn(has)
        # A list of one part covers everything: no need to look which messages are between its ends.
        here = self._cache.whole if not first and last == _LAST else self._between(contact, first, last)
        self._supply(contact, here & ~has, floor)

    def _between(self, contact: ExchangeContact, first: int, last: int) -> int:
        """Return the slots of the messages whose fingerprints are from `first` to `last`."""
        index, shift = self._index, FINGERPRINT_BITS - ROOT_BITS
        buckets = [index.by_bucket.get(number, ()) for number in range(first >> shift, (last >> shift) + 1)]
        contact.link.work.did(sum(map(len, buckets)) // LOOKS)
        return mask_of([slot for bucket in buckets for slot in bucket if first <= index.fingerprints[slot] <= last])

    def _lacking(self, listed: list[int], floor: int) -> list[int]:
        """Return the fingerprints of messages that are not here, and would not be declined for lack of room again."""
        # By sets: a stranger may list thousands of messages that nobody has.
        held = self._index.holders.keys() & listed
        if held and (declined := self._cache.memories.waiting):
            held = {each for each in held if not self._wanted_again(each, declined, floor)}
        return [each for each in listed if each not in held] if held else listed

    def _wanted_again(self, fingerprint: int, declined: int, floor: int) -> bool:
        """Return True for a message that was declined, and would not be declined for lack of room again."""
        slot = self._index.holders[fingerprint]
        copy = self._cache.copies[slot]
        return bool(declined >> slot & 1) and copy is not None and self._reaches(copy.descriptor, floor)

    # --- both ----------------------------------------------------------------------------------------------

    def _slots(self, fingerprints: list[int]) -> int:
        """Return the slots of the fingerprints that are known here."""
        holders = self._index.holders
        return mask_of([holders[each] for each in holders.keys() & fingerprints])

    def _reaches(self, descriptor: Descriptor, floor: int) -> bool:
        return precedence(self._holdings.privilege(descriptor), descriptor) >= floor

    def _supply(self, contact: ExchangeContact, lacks: int, floor: int) -> None:
        """Send the messages that the neighbour lacks and wants, highest rank first; too large ones are offered."""
        link, view = contact.link, contact.view
        lacks &= self._cache.whole & ~self._holdings.withheld & ~link.unconfirmed.slots
        if view is not None:
            lacks &= view.matches
        link.learn(lacks)
        if floor:  # What is below it is not offered, either.
            copies = self._holdings.at(lacks)
            lacks = mask_of([copy.slot for copy in copies if precedence(copy.privilege, copy.descriptor) >= floor])
        jobs = link.outbox.jobs
        link.unlearn(lacks & ~mask_of(jobs))
        if view is not None and len(jobs) < GIVEN_MAX and not self._choosing.unicast:
            given = lacks & ~link.served
            if self._choosing.chooses:
                given = self._choosing.choose(contact, given, self._holdings.now_us)
            link.learn(self._server.give(link, sorted(self._holdings.at(given), key=_SENDING_ORDER)))


def _cut(fingerprints: list[int], most: int) -> list[list[int]]:
    """Return parts of at most `most` fingerprints, each beginning with the last one of the part before."""
    return [fingerprints[:most]] + [
        fingerprints[start : start + most] for start in range(most - 1, len(fingerprints) - 1, most - 1)
    ]
