"""Deliveries to the application: those that are due, made, and confirmed.

A message is delivered once: when it is whole and every layer has let it pass, or when the first matching subscription
is made. The event waits until the copy, marked as delivered, is durable; so after a crash everything that was delivered
and not confirmed comes again, flagged, and nothing that was confirmed does. Unconfirmed copies are pinned in the cache,
within bounds. A subscription may be confirmed by its deliveries, in the batch that records them.
"""

from __future__ import annotations

from operator import attrgetter
from typing import TYPE_CHECKING

from carrypost.application.subscriptions import Subscriptions
from carrypost.gossip.holdings.destinations import CachedDestinations
from carrypost.gossip.holdings.owners import DELIVERIES
from carrypost.gossip.interest.matcher import Matcher
from carrypost.gossip.layer import Layer
from carrypost.gossip.slots import bits
from carrypost.log.events import Confirmed, Delivered, Delivery, Reason
from carrypost.model.recipients import may_have

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from carrypost.gossip.holdings.copies import Copy
    from carrypost.gossip.transfers.host_context import HostContext
    from carrypost.model.descriptor import Ordering
    from carrypost.model.ids import MessageId
    from carrypost.model.pattern import Entry

_LENGTH = attrgetter("descriptor.length")
_GIVEN_MAX = 4_096


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
