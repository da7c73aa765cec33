"""Local subscriptions, and what the application has, has not, or has not yet confirmed.

A message is delivered once: when it is whole, or when the first subscription that it matches is made. The event waits
until the copy, marked as delivered, is durable; so after a crash everything that was delivered and not confirmed
comes again and says so, and nothing that was confirmed does. Unconfirmed copies are pinned in the cache, within bounds.
"""

from __future__ import annotations

from itertools import groupby
from operator import attrgetter
from typing import TYPE_CHECKING

from carrypost.errors import LocalError
from carrypost.events import Confirmed, Delivered, Delivery, Reason
from carrypost.gossip import journal as keys
from carrypost.gossip.interests import Matcher
from carrypost.gossip.journal import Durability
from carrypost.gossip.slots import bits, mask_of
from carrypost.model.pattern import encode_entries, whole_destination

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from carrypost.gossip.cache import Copy
    from carrypost.gossip.desk import Desk
    from carrypost.gossip.journal import Key, Value
    from carrypost.model.descriptor import Descriptor
    from carrypost.model.ids import MessageId
    from carrypost.model.pattern import Entry

_TOLD_MAX = 256
_LENGTH = attrgetter("descriptor.length")
_ORDERING = attrgetter("descriptor.ordering")


class Deliveries:
    """The application's side of one host."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk
        self._subscriptions: dict[int, Entry] = {}
        """As the profile has them."""
        self._narrower: dict[int, Matcher] = {}
        """Of subscriptions that are applied at delivery only: what they ask for besides the destination."""
        self._numbers: tuple[int, ...] = ()
        self._told: dict[tuple[int, ...], tuple[int, ...]] = {}
        """Numbers of the subscriptions by their places: bursts mostly match the same ones."""
        self.matcher = Matcher((), desk.limits, own=True)
        self._next = 1
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
    def entries(self) -> tuple[Entry, ...]:
        """The local part of the interest profile."""
        return tuple(dict.fromkeys(self._subscriptions.values()))

    @property
    def unconfirmed(self) -> Mapping[MessageId, Copy]:
        """Deliveries that the application has not confirmed, as far as they are pinned."""
        return self._unconfirmed

    def wants(self, descriptor: Descriptor) -> bool:
        """Whether a local subscription matches."""
        return self.matcher.matches(descriptor)

    def carries(self, descriptor: Descriptor) -> bool:
        """Whether it is taken along for others: altruistically, or for somebody within the horizon."""
        own = self._desk.own
        return own is not None and own.matcher.matches(descriptor)

    def subscribe(self, entry: Entry, *, ordered: bool = False) -> int:
        """One more subscription; what is in the cache already is delivered.

        `ordered`: the profile takes all messages of the destination, since what is left out would be waited for.
        """
        asked = entry
        if ordered:
            entry = whole_destination(entry)
        if len(self._subscriptions) >= self._desk.limits.profile_entries_max:
            raise LocalError(f"more than {self._desk.limits.profile_entries_max} subscriptions")
        if len(encode_entries((*self.entries, entry))) > self._desk.limits.profile_bytes_max:
            raise LocalError(f"the interest profile would have more than {self._desk.limits.profile_bytes_max} bytes")
        number, self._next = self._next, self._next + 1
        self._subscriptions[number] = entry
        if asked.patterns != entry.patterns:
            self._narrower[number] = Matcher((asked,), self._desk.limits, own=True)
        self._rebuild()
        cache = self._desk.cache
        newcomer = Matcher((entry,), self._desk.limits, own=True)
        found = [copy for slot in bits(cache.whole | cache.partial) if (copy := cache.copies[slot]) is not None]
        for copy in sorted(found, key=_in_order):
            if newcomer.matches(copy.descriptor):
                cache.set_interesting(copy, True)
                if copy.whole and self.deliver(copy):
                    self._desk.keep(copy, again=True)
        for slot in list(bits(cache.declined)):
            copy = cache.copies[slot]
            if copy is not None and newcomer.matches(copy.descriptor):
                cache.remove(copy, Reason.EXPIRED)  # There was no room to carry it; now it is wanted.
        return number

    def unsubscribe(self, number: int) -> None:
        """One subscription fewer; what nobody here wants any more is carried, not favoured."""
        if self._subscriptions.pop(number, None) is None:
            raise LocalError(f"no subscription {number}")
        self._narrower.pop(number, None)
        self._rebuild()
        cache = self._desk.cache
        for slot in bits(cache.whole | cache.partial):
            copy = cache.copies[slot]
            if copy is not None and not copy.own and copy.interesting and not self.wants(copy.descriptor):
                cache.set_interesting(copy, False)
                self.waits_no_more(copy)

    def _rebuild(self) -> None:
        self._numbers = tuple(self._subscriptions)
        self._told = {}
        self.matcher = Matcher(tuple(self._subscriptions.values()), self._desk.limits, own=True)

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
            if not copy.finished and self.matcher.matches(copy.descriptor):
                self.in_order((copy,))
            return bool(desk.delivered & bit)
        which = self._which(copy.descriptor)
        if not which:
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
        self.burst.append(Delivery(copy.descriptor, self._told_as(which), again, copy.hops))
        return not again

    def hand_over(self, copies: Iterable[Copy]) -> None:
        """Give these to the application, in this order. What no subscription asks for is passed over."""
        desk, told, burst = self._desk, self._told, self.burst
        destinations = None if self._narrower else self.matcher.destinations
        wanted: list[Copy] = []
        for copy in copies:
            descriptor = copy.descriptor
            which = self._which(descriptor) if destinations is None else destinations.get(descriptor.destination)
            if which:
                wanted.append(copy)
                burst.append(Delivery(descriptor, told.get(which) or self._told_as(which), False, copy.hops))
            copy.finished = True
        desk.delivered |= mask_of([copy.slot for copy in wanted])
        self._pin_all(wanted)

    def _which(self, descriptor: Descriptor) -> tuple[int, ...]:
        """The subscriptions that ask for a message, by their places."""
        which = self.matcher.which(descriptor)
        if self._narrower:
            narrower, numbers = self._narrower, self._numbers
            return tuple([
                at for at in which if (own := narrower.get(numbers[at])) is None or own.matches(descriptor)
            ])  # fmt: skip
        return which

    def _told_as(self, which: tuple[int, ...]) -> tuple[int, ...]:
        """The numbers of the subscriptions at these places."""
        numbers = self._told.get(which)
        if numbers is None:
            if len(self._told) >= _TOLD_MAX:
                self._told.clear()
            numbers = self._told[which] = tuple([self._numbers[index] for index in which])
        return numbers

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
