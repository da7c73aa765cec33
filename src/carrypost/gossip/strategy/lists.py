"""Lists: two hosts with the same interests compare their sets by one list of short hashes and one answer.

The host that compares sends a short hash of each message that it knows (`Listing`), and the neighbour answers with a
bitset of those that it knows, too (`Held`). Then both know what the other lacks. `reconcile` costs what differs; where
most of it differs, as between hosts that choose what to carry, a list costs less: 12 to 13 bits a message.

Hashes are made with a key that is used once. Two different messages look equal in one list of 1,024, and not in the
next. Then one of them is not offered until sets are compared again.
"""

# What must hold.
# 1. To the exchange (`gossip.strategy.exchange_machine`) a list is a run: begun by `BEGIN`, over with
#    `AGREE`, on both sides.
# 2. An author cannot make a message that hides another one: the key is not known before the list is
#    sent, and two fingerprints that look equal under one key mostly differ under the next.
# 3. After a list without an answer, the next run is a review: a neighbour of an earlier version does
#    not know lists.

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

from carrypost.errors import DecodeError
from carrypost.gossip.slots import Members, bits, mask_of
from carrypost.gossip.strategy.exchange_machine import ReviewRun
from carrypost.gossip.strategy.review import RUN
from carrypost.gossip.timers import REVIEW
from carrypost.gossip.wire.frames import Held, Listing
from carrypost.gossip.wire.routing_frames import LISTED_MAX, LOW_BITS, listing_bytes, packed_hashes, unpacked_hashes

if TYPE_CHECKING:
    from carrypost.gossip.strategy.exchange_contact import ExchangeContact
    from carrypost.gossip.strategy.review import Review
    from carrypost.gossip.transfers.host_context import HostContext
    from carrypost.gossip.transfers.removals import Removals

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

    def receive_held(self, contact: ExchangeContact, frame: Held, now: int) -> bool:
        """Note what the neighbour lacks of a list, and return True; raises `RemoteError` for an impossible answer."""
        run = contact.machine.asking
        if not isinstance(run, ListRun) or run.number != frame.run:
            return False  # Another run has taken its place.
        if len(frame.held) != (len(run.slots) + 7) // 8:
            raise DecodeError("held")
        contact.link.outbox.recovery.expect(now - run.asked_us)
        contact.link.work.credit()
        held = Members(int.from_bytes(frame.held, "little"))
        lacking = mask_of([slot for number, slot in enumerate(run.slots) if number not in held])
        run.mine_only |= lacking & run.snapshot  # Slots that were freed meanwhile are not in it any more.
        self._review.agree(contact, run, now)
        return True

    def _hashes(self, mask: int, key: int, count: int) -> dict[int, int]:
        """Return the short hashes of messages by slot, as a list of `count` messages has them."""
        fingerprints, factor = self._holdings.index.fingerprints, key << 32 | _FACTOR
        shift, whole = _BITS - LOW_BITS - count.bit_length(), (1 << _BITS) - 1
        return {slot: (fingerprints[slot] * factor & whole) >> shift for slot in bits(mask)}


def _by_hash(each: tuple[int, int]) -> int:
    return each[1]
