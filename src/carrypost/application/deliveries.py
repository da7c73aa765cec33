"""Subscriptions of one host's applications, messages by destination for them, and deliveries: due, made and confirmed.

Whole destinations are looked up, and destinations that begin like a pattern are found by bisection: two thousand
subscriptions over twenty thousand messages read what they match, not forty million pairs. A pattern that begins with a
wildcard, or an entry that does not name the destination, still has to read everything.

The common interest of the subscriptions is in `gossip.interest.own_interests`. `Subscriptions` has what concerns only
one of them: a subscription to ordered messages accepts all messages of a destination, and the rest of its pattern is
applied at delivery.

A message is delivered once: when it is whole and every layer has let it pass, or when the first matching subscription
is made. The event waits until the copy, marked as delivered, is durable; so after a crash everything that was delivered
and not confirmed comes again, flagged, and nothing that was confirmed does. Unconfirmed copies are pinned in the cache,
within bounds. A subscription may be confirmed by its deliveries, in the batch that records them.
"""

from __future__ import annotations

from bisect import bisect_left
from operator import attrgetter
from typing import TYPE_CHECKING, Final

from carrypost.gossip.holdings.cache import DELIVERIES
from carrypost.gossip.interest.matcher import Matcher
from carrypost.gossip.layer import Layer
from carrypost.gossip.slots import bits
from carrypost.log.events import Confirmed, Delivered, Delivery, Reason
from carrypost.model.descriptor_values import may_have
from carrypost.model.pattern import DESTINATION, beginnings

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Sequence

    from carrypost.config import Limits
    from carrypost.gossip.holdings.cache import Cache
    from carrypost.gossip.holdings.copies import Copy
    from carrypost.gossip.interest.own_interests import OwnInterests
    from carrypost.gossip.transfers.link import HostContext
    from carrypost.model.descriptor import Descriptor, Ordering
    from carrypost.model.ids import MessageId
    from carrypost.model.pattern import Entry


_STALE_SLACK: Final = 1024


class Destinations:
    """Slots of a cache by the destinations of their messages."""

    __slots__ = ("_slots", "_sorted")

    def __init__(self) -> None:
        self._slots: dict[str, set[int]] = {}
        self._sorted: list[str] | None = None
        """All destinations, sorted when a prefix is first looked up."""

    def add(self, destination: str, slot: int) -> None:
        """Add a slot, unless it is there already."""
        slots = self._slots.get(destination)
        if slots is None:
            slots = self._slots[destination] = set()
            self._sorted = None
        slots.add(slot)

    def candidates(self, entries: Iterable[Entry]) -> set[int]:
        """Return the slots that one of the entries may match, and perhaps more."""
        found: set[int] = set()
        for destination in self._possible(entries):
            found |= self._slots[destination]
        return found

    def _possible(self, entries: Iterable[Entry]) -> Iterable[str]:
        slots, found, prefixes = self._slots, set[str](), set[str]()
        for entry in entries:
            pattern = dict(entry.patterns).get(DESTINATION)
            if pattern is None:
                return slots
            values, begins = beginnings(pattern)
            found.update(value for value in values if value in slots)
            prefixes |= begins
        for prefix in prefixes:
            found.update(self._beginning(prefix))
        return found

    def _beginning(self, prefix: str) -> Iterator[str]:
        if self._sorted is None:
            self._sorted = sorted(self._slots)
        names = self._sorted
        for at in range(bisect_left(names, prefix), len(names)):
            if not names[at].startswith(prefix):
                return
            yield names[at]


class CachedDestinations:
    """The messages of one cache, by destination.

    Arrivals and removals cost nothing: new messages are entered when a program subscribes, and a slot without a tenant,
    or with another one, is skipped until there are many of that kind.
    """

    __slots__ = ("_cache", "_entered", "_serial", "_slots")

    def __init__(self, cache: Cache) -> None:
        self._cache = cache
        self._slots = Destinations()
        self._entered = 0
        """Number of slots entered so far, doubled ones included."""
        self._serial = 0
        """Serial of the last copy entered."""

    def candidates(self, entries: Iterable[Entry]) -> list[Copy]:
        """Return the copies, here or remembered, that one of the entries may match, and perhaps more; by slot."""
        self._catch_up()
        copies = self._cache.copies
        slots = sorted(self._slots.candidates(entries))
        return [copy for slot in slots if slot < len(copies) and (copy := copies[slot]) is not None]

    def _catch_up(self) -> None:
        if self._entered > 2 * len(self._cache.tenants) + _STALE_SLACK:
            self._slots, self._entered, self._serial = Destinations(), 0, 0
        serial = self._serial
        for copy in self._cache.tenants.newer(serial):
            self._slots.add(copy.descriptor.destination, copy.slot)
            self._entered += 1
            self._serial = max(self._serial, copy.serial)


class Subscriptions:
    """The subscriptions of one host, by number."""

    __slots__ = ("_lent", "_limits", "_narrower", "_interests", "confirmed")

    def __init__(self, own: OwnInterests, limits: Limits) -> None:
        self._interests = own
        self._limits = limits
        self._narrower: dict[int, Matcher] = {}
        """Of subscriptions applied at delivery: their conditions besides the destination."""
        self._lent: set[int] = set()
        """Numbers of interests that belong to layers, and not to the application."""
        self.confirmed: set[int] = set()
        """Numbers of subscriptions whose deliveries confirm themselves."""

    def __len__(self) -> int:
        return len(self._interests) - len(self._lent)

    def lend(self, entry: Entry, *, advertised: bool = True) -> int:
        """Return a number for a layer's own interest; without `advertised` the profile leaves it out."""
        number = self._interests.add(entry, advertised=advertised)
        self._lent.add(number)
        return number

    def add(
        self, entry: Entry, narrower: Entry | None = None, *, confirmed: bool = False, advertised: bool = True
    ) -> int:  # fmt: skip
        """Add a subscription that at delivery accepts only what matches `narrower` as well; return its number.

        `confirmed`: its deliveries confirm themselves. `advertised`: the profile has it.
        """
        number = self._interests.add(entry, advertised=advertised)
        if confirmed:
            self.confirmed.add(number)
        if narrower is not None:
            self._narrower[number] = Matcher((narrower,), self._limits, own=True)
        return number

    def remove(self, numbers: Collection[int]) -> list[Entry]:
        """Remove all of these, or none if one does not exist; return their entries."""
        gone = self._interests.remove(numbers)
        for number in numbers:
            self._narrower.pop(number, None)
            self._lent.discard(number)
            self.confirmed.discard(number)
        return gone

    def asked(self, number: int) -> Entry:
        """Return the entry of a subscription, with the conditions applied at delivery."""
        narrower = self._narrower.get(number)
        return self._interests[number] if narrower is None else narrower.entries[0]

    @property
    def asking(self) -> Callable[[Descriptor], tuple[int, ...]]:
        """A function that returns the numbers of the subscriptions to a message, ascending."""
        if not len(self):  # A node whose programs use messaging has interests of layers alone.
            return lambda _: ()
        return self._narrowed if self._narrower or self._lent else self._interests.which

    def _narrowed(self, descriptor: Descriptor) -> tuple[int, ...]:
        narrower, lent = self._narrower, self._lent
        return tuple([
            number for number in self._interests.which(descriptor)
            if number not in lent and ((own := narrower.get(number)) is None or own.matches(descriptor))
        ])  # fmt: skip


_LENGTH: Final = attrgetter("descriptor.length")
_GIVEN_MAX: Final = 4_096


class InterestChanges:
    """Changes of this node's interests that the host has still to apply."""

    __slots__ = ("entries", "found", "missed", "unadvertised", "unwanted")

    def __init__(self) -> None:
        self.entries: list[Entry] = []
        """Entries that were added or removed."""
        self.found: list[Copy] = []
        """Whole messages that became wanted, to be passed to the layers."""
        self.unwanted: list[Copy] = []
        """Copies that are not wanted any more."""
        self.unadvertised = False
        """True if some new entries are left out of the profile. Then no neighbour offers anything anew for them."""
        self.missed: set[MessageId] = set()
        """Messages that these match, and for which there was no room while they were only carried."""

    def pass_over(self, copies: Iterable[Copy]) -> None:
        """Remove these messages from what was found."""
        left_out = {copy.slot for copy in copies}
        self.found = [copy for copy in self.found if copy.slot not in left_out]

    def pop(self) -> tuple[list[Entry], list[Copy], list[Copy]]:
        """Return all changes, each once: several may ask for the same."""
        changes = self.entries, list(dict.fromkeys(self.found)), self.unwanted
        self.entries, self.found, self.unwanted = [], [], []
        return changes

    def pop_missed(self) -> set[MessageId] | None:
        """Return missed messages that became wanted unknown to neighbours; None if these know all entries."""
        if not self.unadvertised:
            return None
        missed, self.missed, self.unadvertised = self.missed, set(), False
        return missed


class Deliveries(Layer):
    """The application's side of one host: the last layer, which passes nothing on."""

    def __init__(self, context: HostContext) -> None:
        self._holdings, self._cache = context.holdings, context.holdings.cache
        self._journal, self._interests, self._limits = context.outputs.journal, context.interests, context.limits
        self._node = context.node
        self.subscriptions = Subscriptions(context.interests, context.limits)
        self._here = CachedDestinations(self._cache)
        self._inherited = 0
        """Slots of messages wanted before a restart: whether they still are is checked when a subscription ends."""
        self._again: set[MessageId] = set()
        """Messages delivered and not confirmed before a restart, until they are delivered again."""
        self._pinned_max = context.settings.pinned_max
        self._unconfirmed: dict[MessageId, Copy] = {}
        self._unconfirmed_bytes = 0
        self.waiting: dict[int, Copy] = {}
        """By slot, messages with a first claim of messaging: they count as delivered at the end of this step, or when
        they pass before."""
        self._passed_over: set[int] = set()
        """Slots of ordered messages that their order let pass and that were not wanted."""
        self._given: set[tuple[str, Ordering]] = set()
        """Groups of which a program was given something; all of them, once there are many."""
        self.burst: dict[MessageId, Delivery] = {}
        """Deliveries of this step, by message, which are not in the journal yet."""
        self.interest_changes = InterestChanges()

    @property
    def redelivers(self) -> bool:
        """True if any message is to be redelivered."""
        return bool(self._again)

    def comes_again(self, copy: Copy) -> bool:
        """Return True if it was delivered before a restart and no program confirmed it.

        It is due, whatever else it waits for.
        """
        return copy.id in self._again

    # --- subscriptions -------------------------------------------------------------------------------------

    def subscribe(self, entry: Entry, asked: Entry, *, confirmed: bool = False) -> int:
        """Add a subscription and return its number; `confirmed`: its deliveries confirm themselves.

        The profile has `entry`, unless it is a part of what this node carries. If `asked` is narrower, the rest is
        accepted nevertheless, and left out at delivery.
        """
        advertised, narrower = not self._interests.is_carried(entry), asked if asked != entry else None
        number = self.subscriptions.add(entry, narrower, confirmed=confirmed, advertised=advertised)
        self.interest_changes.found += sorted(self._begin(entry, advertised=advertised), key=_in_order)
        return number

    def want(self, entry: Entry, *, advertised: bool = True) -> int:
        """Add an interest of a layer and return its number.

        Neighbours are not `advertised` of a part of something that this node carries: they offer it in any case.
        """
        number = self.subscriptions.lend(entry, advertised=advertised)
        self.interest_changes.found += sorted(self._begin(entry, advertised=advertised), key=_as_they_came)
        return number

    def carry(self, entries: Sequence[Entry]) -> None:
        """Carry messages for others that match these, whatever the settings say."""
        self._interests.carry(entries)
        self.interest_changes.entries += entries

    def find(self, entry: Entry) -> None:
        """Pass whole messages that are here and match to the layers."""
        self.interest_changes.found += sorted(
            [copy for copy in self._matching((entry,)) if copy.whole], key=_as_they_came
        )

    def _begin(self, entry: Entry, *, advertised: bool = True) -> list[Copy]:
        """Make matching messages here wanted, and admit those that were declined; return the whole ones."""
        found = self._matching((entry,))
        for copy in found:
            if copy.held and copy.here:
                self._cache.set_interesting(copy, True)
            elif not copy.here and not copy.finished:
                self._cache.remove(copy, Reason.EXPIRED)  # There was no room to carry it; now it is wanted.
                if not advertised:
                    self.interest_changes.missed.add(copy.id)
        self.interest_changes.entries.append(entry)
        if not advertised:
            self.interest_changes.unadvertised = True
        return [copy for copy in found if copy.whole]

    def unsubscribe(self, numbers: Collection[int]) -> None:
        """End subscriptions, or interests of layers. Messages that are not wanted any more are merely carried."""
        gone = self.subscriptions.remove(numbers)
        copies, inherited, self._inherited = self._cache.copies, self._inherited, 0
        found = {copy.slot: copy for copy in self._matching(gone)}
        found |= {slot: copy for slot in bits(inherited) if (copy := copies[slot]) is not None}
        unwanted = [
            copy for _, copy in sorted(found.items())
            if copy.held and copy.here and copy.interesting and not (copy.own or self._interests.wants(copy.descriptor))
        ]  # fmt: skip
        for copy in unwanted:
            self._cache.set_interesting(copy, False)
        self.interest_changes.entries += gone
        self.interest_changes.unwanted += unwanted

    def _matching(self, entries: Sequence[Entry]) -> list[Copy]:
        """Return the known messages that match one of these and are not for other nodes only, by slot."""
        copies = self._here.candidates(entries)
        if not copies:
            return []
        matcher = Matcher(entries, self._limits, own=True)
        return [copy for copy in copies if matcher.matches(copy.descriptor) and may_have(copy.descriptor, self._node)]

    # --- delivery ------------------------------------------------------------------------------------------

    def receive(self, copies: Sequence[Copy]) -> Sequence[Copy]:
        """Deliver these to the application in this order, unless it has them; return those that are new to it.

        Messages that no subscription asks for are skipped. Ordered messages are skipped for good, once anything of
        their group was delivered. Messages that only join others are reported, to no subscription.
        """
        holdings, burst, asking = self._holdings, self.burst, self.subscriptions.asking
        awaited = self._again
        claimed, confirmed = self.waiting, self.subscriptions.confirmed
        new: list[Copy] = []
        done: list[Copy] = []
        noted: list[Copy] = []
        for copy in copies:
            descriptor, again = copy.descriptor, False
            # What was delivered in this incarnation, or claimed by messaging, is finished.
            if (awaited or copy.finished) and (holdings.is_delivered(copy) or holdings.is_confirmed(copy)):
                again = copy.id in awaited
                if not again:
                    continue
            joins = bool(descriptor.ordering) and descriptor.joins
            numbers = () if joins else asking(descriptor if copy.opened is None else copy.matched)
            if numbers:
                first = claimed.pop(copy.slot, None) is not None or copy.id in burst
                known = not first and holdings.is_claimed(copy)
                auto = confirmed.issuperset(numbers)
                burst[copy.id] = Delivery(
                    copy.opened or descriptor, numbers, again, copy.hops, known, auto, copy.predecessors_lost
                )
                (done if again else new).append(copy)
            elif joins or claimed.pop(copy.slot, None) is not None:
                burst[copy.id] = Delivery(descriptor, (), again, copy.hops, predecessors_lost=copy.predecessors_lost)
                noted.append(copy)
            elif descriptor.ordering and not again:
                done.append(copy)
                self._passed_over.add(copy.slot)
                continue
            if descriptor.ordering and not joins and len(self._given) < _GIVEN_MAX:
                self._given.add((descriptor.destination, descriptor.ordering))
        if done:
            self._again.difference_update([copy.id for copy in done])
            self._cache.mark_done(done)
        if not new:
            return noted
        holdings.mark_delivered(new)
        self._pin(new)
        self._cache.mark_done(new)  # Within one incarnation it never comes again, also if it is not pinned and leaves.
        return copies if len(new) == len(copies) else new + noted

    def claimed(self, copy: Copy) -> None:
        """Note the first claim of messaging to a message, which counts as its delivery."""
        self.waiting[copy.slot] = copy

    def is_open(self, copy: Copy) -> bool:
        """Return True if its order let it pass and neither it nor anything of its group was wanted so far."""
        descriptor = copy.descriptor
        if copy.slot not in self._passed_over or len(self._given) >= _GIVEN_MAX:
            return False
        return (descriptor.destination, descriptor.ordering) not in self._given

    def owes(self, copy: Copy) -> bool:
        """Return True if it was delivered to the application, which has still to confirm it."""
        return copy.id in self._unconfirmed or copy.id in self._again

    def flush(self) -> None:
        """Hand over what was delivered since the last call, once it is durable; record claims in the store."""
        if self.waiting:
            claimed = [copy for copy in self.waiting.values() if copy.here]
            self._holdings.keep(self.receive(claimed))
            self.waiting = {}
        if self.burst:
            if self.subscriptions.confirmed:
                self._confirm([message for message, delivery in self.burst.items() if delivery.confirmed])
            self._journal.hold(Delivered(tuple(self.burst.values())))
            self.burst = {}

    def left(self, copies: Sequence[Copy], reason: Reason | None) -> None:
        """Handle copies that are gone: they cannot be confirmed any more, and pending deliveries are withdrawn."""
        if reason is not None:
            for copy in copies:
                self._forget(copy)
                self._passed_over.discard(copy.slot)

    def _forget(self, copy: Copy) -> None:
        if self._unconfirmed.pop(copy.id, None) is not None:
            self._unconfirmed_bytes -= copy.descriptor.length
        if self._again:
            self._again.discard(copy.id)
        holdings = self._holdings
        given = holdings.is_given(copy) or copy.descriptor.joins
        if given and (self.subscriptions.confirmed or not holdings.is_confirmed(copy)):
            unwritten = self.burst.pop(copy.id, None) is not None
            if self._journal.retract(copy.id) or unwritten:
                holdings.unconfirm(copy)  # By its delivery, if it was: no program has it yet.
                holdings.unmark_delivered(copy)

    # --- confirmation --------------------------------------------------------------------------------------

    def confirm(self, messages: tuple[MessageId, ...]) -> None:
        """Confirm messages for the application; `Confirmed` follows once that is durable."""
        self._confirm(messages)
        if messages:
            self._journal.hold(Confirmed(messages))

    def _confirm(self, messages: Sequence[MessageId]) -> None:
        get, pop = self._cache.get, self._unconfirmed.pop
        known = [copy for message in messages if (copy := get(message)) is not None]
        pinned = [copy for message in messages if (copy := pop(message, None)) is not None]
        self._unconfirmed_bytes -= sum(map(_LENGTH, pinned))
        self._cache.unpin(pinned, DELIVERIES)
        self._holdings.confirm(known)

    def _pin(self, copies: Iterable[Copy]) -> None:
        """Pin copies until they are confirmed, as far as the bounds allow."""
        unconfirmed, nbytes, (messages_max, bytes_max) = self._unconfirmed, self._unconfirmed_bytes, self._pinned_max
        pinned: list[Copy] = []
        for copy in copies:
            length = copy.descriptor.length
            if len(unconfirmed) < messages_max and nbytes + length <= bytes_max:
                unconfirmed[copy.id] = copy
                nbytes += length
                pinned.append(copy)
        self._unconfirmed_bytes = nbytes
        self._cache.pin(pinned, DELIVERIES)

    def restored(self, copy: Copy, *, delivered: bool, confirmed: bool) -> None:
        """Restore a copy after a restart."""
        if copy.interesting and not copy.own:
            self._inherited |= 1 << copy.slot
        if confirmed:
            self._holdings.mark_confirmed(copy)
        elif delivered:
            self._holdings.mark_delivered((copy,))
            self._again.add(copy.id)
            self._pin((copy,))


def _in_order(copy: Copy) -> tuple[int, int]:
    """Return a key that sorts ordered messages in their order: dates rise along it, and tags do within one author."""
    descriptor = copy.descriptor
    return (descriptor.created_us, descriptor.tag) if descriptor.ordering else (0, 0)


def _as_they_came(copy: Copy) -> tuple[int, int, int]:
    """Return a key that sorts messages of one author as it sent them, as far as they arrived so."""
    descriptor = copy.descriptor
    if descriptor.ordering:
        return descriptor.created_us, descriptor.tag, 0
    return copy.received_us, descriptor.incarnation, descriptor.sequence
