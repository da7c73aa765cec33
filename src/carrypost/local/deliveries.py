"""Local subscriptions, and what the application has, has not, or has not yet confirmed.

A message is delivered once: when it is whole, or when the first subscription that it matches is made. The event waits
until the copy, marked as delivered, is durable; so after a crash everything that was delivered and not confirmed
comes again and says so, and nothing that was confirmed does. Unconfirmed copies are pinned in the cache, within bounds.
"""

from __future__ import annotations

from itertools import groupby
from operator import attrgetter
from typing import TYPE_CHECKING

from carrypost import journal as keys
from carrypost.events import Confirmed, Delivered, Delivery, Reason
from carrypost.gossip.holdings.destinations import CachedDestinations
from carrypost.gossip.interest.matcher import Matcher
from carrypost.gossip.slots import bits, mask_of
from carrypost.journal import Durability
from carrypost.local.subscriptions import Subscriptions

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

    from carrypost.gossip.desk import Desk
    from carrypost.gossip.holdings.copies import Copy
    from carrypost.journal import Key, Value
    from carrypost.model.descriptor import Descriptor
    from carrypost.model.ids import MessageId
    from carrypost.model.pattern import Entry

_LENGTH = attrgetter("descriptor.length")
_ORDERING = attrgetter("descriptor.ordering")


class Deliveries:
    """The application's side of one host."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk
        self.subscriptions = Subscriptions(desk.limits)
        self._here = CachedDestinations(desk.cache)
        self._inherited = 0
        """Slots of what an earlier life wanted: whether somebody does is looked at when a subscription ends."""
        self.in_order: Callable[[Sequence[Copy]], None] = _nothing
        """Takes whole messages that have an order; gives back by `hand_over` what may be delivered."""
        self.waits_no_more: Callable[[Copy], None] = _nothing
        """Told of every ordered copy that leaves, or that nobody here wants any more."""
        self._unconfirmed: dict[MessageId, Copy] = {}
        self._unconfirmed_bytes = 0
        self.burst: list[Delivery] = []
        """Delivered, and not handed over yet."""
        desk.on_leave = self.forget

    def close(self) -> None:
        """The host is done with it."""
        self.in_order = self.waits_no_more = _nothing

    @property
    def unconfirmed(self) -> Mapping[MessageId, Copy]:
        """Deliveries that the application has not confirmed, as far as they are pinned."""
        return self._unconfirmed

    def wants(self, descriptor: Descriptor) -> bool:
        """Whether a local subscription matches."""
        return self.subscriptions.wants(descriptor)

    def carries(self, descriptor: Descriptor) -> bool:
        """Whether it is taken along for others: altruistically, or for somebody within the horizon."""
        own = self._desk.own
        return own is not None and own.matcher.matches(descriptor)

    def subscribe(self, entry: Entry, asked: Entry) -> int:
        """One more subscription; what is in the cache already is delivered.

        The profile has `entry`. Where `asked` is narrower, the rest is taken all the same, and left out at delivery.
        """
        number = self.subscriptions.add(entry, asked if asked != entry else None)
        cache = self._desk.cache
        found = self._matching((entry,))
        for copy in sorted(found, key=_in_order):
            if copy.held and copy.here:
                cache.set_interesting(copy, True)
                if copy.whole and self.deliver(copy):
                    self._desk.keep(copy, again=True)
        for copy in found:
            if not copy.here and not copy.finished:
                cache.remove(copy, Reason.EXPIRED)  # There was no room to carry it; now it is wanted.
        return number

    def unsubscribe(self, numbers: Collection[int]) -> list[Entry]:
        """So many subscriptions fewer; what nobody here wants any more is carried, not favoured."""
        gone = self.subscriptions.remove(numbers)
        copies, inherited, self._inherited = self._desk.cache.copies, self._inherited, 0
        found = {copy.slot: copy for copy in self._matching(gone)}
        found |= {slot: copy for slot in bits(inherited) if (copy := copies[slot]) is not None}
        for _, copy in sorted(found.items()):
            concerned = copy.held and copy.here and copy.interesting and not copy.own
            if concerned and not self.wants(copy.descriptor):
                self._desk.cache.set_interesting(copy, False)
                self.waits_no_more(copy)
        return gone

    def _matching(self, entries: Sequence[Entry]) -> list[Copy]:
        """What is known here and matches one of these, by slot."""
        copies = self._here.candidates(entries)
        if not copies:
            return []
        matcher = Matcher(entries, self._desk.limits, own=True)
        return [copy for copy in copies if matcher.matches(copy.descriptor)]

    def deliver(self, copy: Copy) -> bool:
        """Give a whole message to the application, unless it was given already. True: the caller keeps the copy."""
        desk = self._desk
        bit = 1 << copy.slot
        again = False
        if desk.delivered & bit:
            again = bool(desk.again & bit)
            if not again:
                return False
        if copy.slot in desk.seen:
            return False
        if copy.descriptor.ordering and not again:
            # One that is finished was passed over, or will never be delivered: that was told.
            if not copy.finished and self.wants(copy.descriptor):
                self.in_order((copy,))
            return bool(desk.delivered & bit)
        numbers = self.subscriptions.asking(copy.descriptor)
        if not numbers:
            return False
        if again:
            desk.again &= ~bit
        else:
            desk.delivered |= bit
            self._pin(copy)
        # Within one life it never comes again, also if it is not pinned and leaves.
        if copy.here:
            copy.finished = True
        else:
            desk.cache.mark_done(copy)
        self.burst.append(Delivery(copy.descriptor, numbers, again, copy.hops))
        return not again

    def hand_over(self, copies: Iterable[Copy]) -> None:
        """Give these to the application, in this order. What no subscription asks for is passed over."""
        desk, burst, asking = self._desk, self.burst, self.subscriptions.asking
        destinations = self.subscriptions.destinations
        wanted: list[Copy] = []
        for copy in copies:
            descriptor = copy.descriptor
            numbers = asking(descriptor) if destinations is None else destinations.get(descriptor.destination)
            if numbers:
                wanted.append(copy)
                burst.append(Delivery(descriptor, numbers, False, copy.hops))
            copy.finished = True
        desk.delivered |= mask_of([copy.slot for copy in wanted])
        self._pin_all(wanted)

    def deliver_all(self, copies: Sequence[Copy]) -> None:
        """Give whole messages that were never here before to the application."""
        for ordering, some in groupby(copies, _ORDERING):
            if ordering:
                self.in_order(list(some))
            else:
                self.hand_over(some)

    def flush(self) -> None:
        """Hand over what was delivered since the last call, once it is durable."""
        if self.burst:
            self._desk.journal.hold(Delivered(tuple(self.burst)))
            self.burst = []

    def confirm(self, messages: tuple[MessageId, ...]) -> None:
        """The application has them; told back by `Confirmed` once that is durable."""
        desk = self._desk
        cache, seen, delivered = desk.cache, desk.seen, desk.delivered
        get, pop = cache.get, self._unconfirmed.pop
        confirmed: dict[Key, Value] = {}
        for message in messages:
            held = pop(message, None)
            if held is not None:
                self._unconfirmed_bytes -= held.descriptor.length
                cache.unpin(held)
            copy = get(message)
            if copy is None or copy.slot in seen or not delivered >> copy.slot & 1:
                continue
            if not copy.here or copy.descriptor.persistent:
                self._remember(copy)
                continue
            seen[copy.slot] = message
            copy.finished = True
            confirmed[keys.SEEN, message, 0] = copy.descriptor
        if confirmed:
            desk.journal.put_all(confirmed)
        if messages:
            desk.journal.hold(Confirmed(messages))

    def _remember(self, copy: Copy) -> None:
        desk = self._desk
        desk.seen[copy.slot] = copy.id
        desk.cache.mark_done(copy)
        durability = Durability.FULL if copy.descriptor.persistent else Durability.NORMAL
        desk.journal.put((keys.SEEN, copy.id, 0), copy.descriptor, durability)

    def confirm_again(self, messages: Iterable[MessageId]) -> None:
        """The batch with these confirmations was lost: write them once more."""
        for message in messages:
            copy = self._desk.cache.get(message)
            if copy is not None and copy.slot in self._desk.seen:
                self._remember(copy)
        self._desk.journal.hold(Confirmed(tuple(messages)))

    def _pin(self, copy: Copy) -> None:
        limits, length = self._desk.limits, copy.descriptor.length
        if (
            len(self._unconfirmed) < limits.unconfirmed_max
            and self._unconfirmed_bytes + length <= limits.unconfirmed_bytes_max
        ):
            self._desk.cache.pin(copy)
            self._unconfirmed[copy.id] = copy
            self._unconfirmed_bytes += length

    def _pin_all(self, copies: list[Copy]) -> None:
        limits, nbytes = self._desk.limits, sum(map(_LENGTH, copies))
        if (
            len(self._unconfirmed) + len(copies) <= limits.unconfirmed_max
            and self._unconfirmed_bytes + nbytes <= limits.unconfirmed_bytes_max
        ):
            self._desk.cache.pin_all([copy for copy in copies if not copy.pinned])
            self._unconfirmed.update([(copy.id, copy) for copy in copies])
            self._unconfirmed_bytes += nbytes
            return
        for copy in copies:
            self._pin(copy)

    def forget(self, copy: Copy) -> None:
        """The copy is gone; nobody can confirm it any more, and what was not handed over yet is not."""
        if copy.descriptor.ordering:
            self.waits_no_more(copy)
        if self._unconfirmed.pop(copy.id, None) is not None:
            self._unconfirmed_bytes -= copy.descriptor.length
        desk, bit = self._desk, 1 << copy.slot
        if desk.delivered & bit and copy.slot not in desk.seen:
            waiting = [delivery for delivery in self.burst if delivery.message != copy.id]
            if desk.journal.retract(copy.id) or len(waiting) < len(self.burst):
                self.burst = waiting
                desk.delivered &= ~bit

    def restored(self, copy: Copy, *, delivered: bool, confirmed: bool) -> None:
        """A copy of an earlier life is back."""
        desk = self._desk
        if copy.interesting and not copy.own:
            self._inherited |= 1 << copy.slot
        if confirmed:
            desk.delivered |= 1 << copy.slot
            desk.seen[copy.slot] = copy.id
            desk.cache.mark_done(copy)
        elif delivered:
            desk.delivered |= 1 << copy.slot
            desk.again |= 1 << copy.slot
            self._pin(copy)


def _nothing(_: object) -> None:
    pass


def _in_order(copy: Copy) -> tuple[int, int]:
    """Those that have an order in it: dates rise along it, and of one author so do tags."""
    descriptor = copy.descriptor
    return (descriptor.created_us, descriptor.tag) if descriptor.ordering else (0, 0)
