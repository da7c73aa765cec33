"""Claims: one per message and matching claimant, from the message's arrival until it is acknowledged.

`Pins` keeps the copies of claims, within one bound for all, shared so that no subscription uses up the room of others.
When the bound is reached, the subscription with most pins loses its latest one: a subscription that no program consumes
any more keeps what the others leave, and no more. A claim without a pin remains, but its copy may be evicted.

`Confirmations` records the first acknowledgement of a message on this node, which confirms it. If the application has
still to confirm the message as well, a row records that it was acknowledged.

`SessionOrder` knows the order in which sessions sent their messages, as far as it was broken on the way. A message that
arrives after one that its session sent later to the same destination is marked as out of order as long as its copy is
here. A row records the mark, since programs may get the message only after a restart.

`Suspects` has the doubtful messages, which perhaps ended the program that had them: they are handed over one at a time.
"""

# A claim is made when a message is whole and its order lets it pass, or when a subscription finds
# the message here. The states and moves are in `messaging.claim_and_claimant`. JMS promises more than "delivered": a
# message that a program had and did not acknowledge comes again, flagged and counted, also after a
# crash. A list of unread messages per consumer cannot keep that promise: it forgets which program
# saw what, and dies with the process.
#
# What must hold.
# 1. A `Handed` event waits until the row with its count is durable. Otherwise a crash would deliver
#    the message again without the flag.
# 2. The first acknowledgement on this node confirms the message: later subscribers do not get it.
#    Claims of durable subscriptions are rows, those of live ones are memory.
# 3. While a claim exists its copy is pinned, within bounds (`Pins`); a claim whose copy leaves is
#    reported as lost.
# 4. A message that a program may have seen is not handed to others behind its back: with it comes
#    its count, and after `tries` hand-overs it becomes a dead letter instead of crashing every
#    consumer in turn.
#
# Doubtful messages. After a crash nobody knows which of the messages that the program had caused it.
# Handed over together again, one bad message would use up the tries of all. So each comes alone, and
# the next one follows when
# 1. the program acknowledged or returned it, or
# 2. the program asks for more (`MessagingCommands.go_on`): some acknowledge in groups, or
# 3. a second has passed and the program still lives: a STOMP client cannot ask.
# By 2 and 3 a session may have several doubtful messages. Another crash counts against the first of
# them alone: otherwise a bad message that needs some seconds to end its program would make dead
# letters of innocent ones.

from __future__ import annotations

from operator import attrgetter
from typing import TYPE_CHECKING

import msgspec

from carrypost.application.ledger import Agenda, Marks, Table
from carrypost.gossip.holdings.cache import CLAIMS
from carrypost.gossip.holdings.eviction import Usage
from carrypost.gossip.layer import Part, Stored
from carrypost.log.events import ClaimLost, Handed, Reason
from carrypost.messaging.claim_and_claimant import Claim, ClaimInput, ClaimState
from carrypost.model.address import names_addressee
from carrypost.model.ids import MessageId

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from carrypost.config import Settings
    from carrypost.gossip.holdings.cache import Cache
    from carrypost.gossip.holdings.copies import Copy
    from carrypost.messaging.claim_and_claimant import Claimant, Consumer, Session, Tenure
    from carrypost.messaging.context import MessagingContext
    from carrypost.messaging.receipts import OwedReceipts
    from carrypost.messaging.subscriptions import Topics


_TRIES = 8
"""Pins that others give up for one; most copies are pinned for several subscriptions or for one, not for half."""


class _Holder(Usage):
    """The pins of one subscription."""

    __slots__ = ("claims",)

    def __init__(self) -> None:
        super().__init__()
        self.claims: dict[MessageId, Claim] = {}


class Pins:
    """The pins of all claims."""

    def __init__(self, cache: Cache, settings: Settings) -> None:
        self._cache = cache
        self._messages_max, self._bytes_max = settings.pinned_max
        self._bytes = 0
        self._count: dict[MessageId, int] = {}
        """Number of subscriptions for which each copy is pinned."""
        self._holders: dict[Claimant, _Holder] = {}

    def __len__(self) -> int:
        return len(self._count)

    def pin(self, claim: Claim) -> None:
        """Pin the copy of a claim, if that is within the bounds, or if others have more pins than its subscription."""
        holder = self._holders.get(claim.claimant) or _Holder()
        message, nbytes = claim.copy.id, claim.copy.descriptor.length
        if message not in self._count and not self._make_room(holder, nbytes):
            return
        self._holders[claim.claimant] = holder
        holder.claims[message] = claim
        holder.add(1, nbytes)
        self._count[message] = self._count.get(message, 0) + 1
        if self._count[message] == 1:
            self._bytes += nbytes
            self._cache.pin((claim.copy,), CLAIMS)

    def unpin(self, claim: Claim) -> None:
        """Unpin the copy of a claim that ended, or gives up its pin."""
        holder, message, nbytes = self._holders.get(claim.claimant), claim.copy.id, claim.copy.descriptor.length
        if holder is None or holder.claims.get(message) is not claim:
            return
        del holder.claims[message]
        holder.add(-1, -nbytes)
        if not holder.claims:
            del self._holders[claim.claimant]
        self._count[message] -= 1
        if not self._count[message]:
            del self._count[message]
            self._bytes -= nbytes
            self._cache.unpin((claim.copy,), CLAIMS)

    def _make_room(self, holder: _Holder, nbytes: int) -> bool:
        for _ in range(_TRIES):
            if len(self._count) < self._messages_max and self._bytes + nbytes <= self._bytes_max:
                return True
            most = max(self._holders.values(), key=self._part, default=None)
            if most is None or self._part(most) <= self._part(holder, 1, nbytes):
                return False
            self.unpin(next(reversed(most.claims.values())))
        return False

    def _part(self, holder: _Holder, messages: int = 0, nbytes: int = 0) -> float:
        """Return the part of the bounds that a subscription uses, or would use with this much more."""
        return max((holder.messages + messages) / self._messages_max, (holder.bytes + nbytes) / self._bytes_max)


class Confirmations:
    """The messages that programs of one node acknowledged."""

    def __init__(self, context: MessagingContext, owed: OwedReceipts) -> None:
        self._holdings = context.holdings
        self._deliveries, self._ledger, self._owed = context.deliveries, context.ledger, owed
        self._acknowledged = Marks(context.ledger, b"K")
        """Acknowledged messages that the application has still to confirm as well."""

    def has(self, copy: Copy) -> bool:
        """Return True if a program on this node acknowledged it."""
        return self._holdings.is_confirmed(copy) or copy.id in self._acknowledged

    def restore(self, stored: Stored) -> None:
        """Restore acknowledgements that the application has still to confirm after a restart."""
        get, owes = self._holdings.cache.get, self._deliveries.owes
        self._acknowledged.read(stored, lambda message: (copy := get(message)) is not None and owes(copy))

    def add(self, copy: Copy, *, consumed: bool) -> None:
        """Record an acknowledgement, of which the first one counts.

        The author of a message that was given up, and not `consumed`, gets no receipt.
        """
        if self.has(copy):
            return
        if consumed:
            self._owed.acknowledged(copy)
        # A consumed message of a queue is dropped at once, and cannot be confirmed any more.
        if self._deliveries.owes(copy) and not names_addressee(copy.descriptor.destination):
            self._acknowledged.add(copy.id)
        else:
            self._holdings.confirm((copy,))
            self._ledger.confirmed(copy)

    def forget(self, messages: Iterable[MessageId]) -> None:
        """Drop records of acknowledgements: the application confirmed the messages as well, or they left."""
        for message in messages:
            self._acknowledged.discard(message)


_LATEST_MAX = 4_096
"""Number of sessions and destinations whose progress is remembered."""


class SessionOrder:
    """The messages of one host that arrived out of the order of their sessions."""

    def __init__(self, context: MessagingContext) -> None:
        self._holdings = context.holdings
        self._latest: dict[tuple[str | bytes, int, int, str], int] = {}
        """The highest number that arrived, by author, incarnation, session and destination; the least recent are
        dropped first."""
        self.broken = Marks(context.ledger, b"B")
        """Messages that arrived after one that their session sent later."""

    def note(self, copy: Copy) -> None:
        """Note the arrival of a message."""
        descriptor = copy.original
        headers = descriptor.headers
        if headers is None or not headers.session or not headers.number:
            return
        key = descriptor.author, descriptor.incarnation, headers.session, descriptor.destination
        latest = self._latest.pop(key, 0)
        if headers.number < latest:
            self.broken.add(copy.id)
        self._latest[key] = max(latest, headers.number)
        if len(self._latest) > _LATEST_MAX:
            del self._latest[next(iter(self._latest))]

    def left(self, copy: Copy) -> None:
        """Drop the mark of a copy that is gone."""
        self.broken.discard(copy.id)

    def restore(self, stored: Stored) -> None:
        """Restore the marks after a restart."""
        self.broken.read(stored, self._holdings.here)


_ALONE_US = 1_000_000


class Suspects:
    """The doubtful messages that sessions of one host have."""

    def __init__(self) -> None:
        self.agenda: Agenda[Session] = Agenda(_has_one_alone)
        """Sessions that are handed another message beside a doubtful one, because their programs still live."""

    def hand(self, claim: Claim, session: Session, now: int) -> None:
        """Note a message that a session is handed."""
        claim.accompanied = claim.doubtful and bool(session.doubtful)
        if claim.doubtful:
            session.alone = session.doubtful[claim.number] = claim
            session.alone_until_us = now + _ALONE_US
            self.agenda.add(session, session.alone_until_us)

    def release(self, session: Session) -> None:
        """Let a session be handed more than the message that came alone."""
        if session.alone is not None:
            session.alone = None
            self.agenda.note_ended()


def _has_one_alone(session: Session, due_us: int) -> bool:
    # A message that came alone may be returned, and come alone again, before the first second is over.
    return session.alone is not None and session.alone_until_us == due_us


_NUMBER_BYTES = 8
_PLACE = attrgetter("place")


class ClaimRow(msgspec.Struct, frozen=True, array_like=True):
    """A claim of a durable subscription."""

    place: int
    count: int
    """Number of times that it was handed over."""
    deferred_us: int = 0
    """Time until which a program deferred it; 0: it did not."""
    lost: int = 0
    """Events of its channel that are missing before it."""


class Claims(Part):
    """All claims of one host."""

    def __init__(self, context: MessagingContext, owed: OwedReceipts, topics: Topics) -> None:
        self._holdings, self._cache = context.holdings, context.holdings.cache
        self._topics, self._interest_changes = topics, context.deliveries.interest_changes
        self._journal, self._emit = context.journal, context.outputs.emit
        self._table, self._tries = Table(context.ledger, b"C", ClaimRow), context.settings.messaging.tries
        self.confirmations = Confirmations(context, owed)
        self._pins = Pins(context.holdings.cache, context.settings)
        self._by_message: dict[MessageId, list[Claim]] = {}
        self._place = 0
        self.number = 0
        """The last number under which a message was handed over."""
        self._delays, self._suspects = Agenda(_is_delayed), Suspects()
        self.timers = self._delays, self._suspects.agenda
        self._again: dict[MessageId, int] = {}
        """Number of times that messages were handed to subscriptions that are gone, or before a restart."""
        self._session_order = SessionOrder(context)
        self.ready: dict[Claimant, None] = {}
        """Claimants that may have something for a consumer."""
        self.lost = 0
        """Number of claims whose copies left before their time."""

    def __len__(self) -> int:
        return sum(map(len, self._by_message.values()))

    @property
    def pinned(self) -> int:
        """Number of copies that are pinned for claims."""
        return len(self._pins)

    def of(self, message: MessageId) -> list[Claim]:
        """Return the claims to one message."""
        return self._by_message.get(message, [])

    # --- making --------------------------------------------------------------------------------------------

    def claimable(self, copy: Copy) -> bool:
        """Return True while no program on this node has acknowledged it, so that a subscription may claim it."""
        return not self.confirmations.has(copy)

    def make(self, copy: Copy, subscriptions: Collection[Claimant], now: int, lost: int = 0) -> bool:
        """Claim a message for subscriptions that have no claim yet; return True if it is the message's first claim.

        `lost`: events of its channel that are missing before it.
        """
        claims = self._by_message.setdefault(copy.id, [])
        known = {claim.claimant for claim in claims}
        first = not self._holdings.is_claimed(copy)
        # Sessions may still have what subscriptions that are gone were handed.
        count = max([self._again.get(copy.id, 0), *(claim.count for claim in claims if claim.claimant.ended)])
        due_us = self._holdings.own_time(copy.original.due_us)
        for claimant in subscriptions:
            if claimant in known:
                self.ready[claimant] = None
                continue
            self._place += 1
            claim = Claim(claimant, copy, self._place, count, lost=lost)
            claims.append(claim)
            self._pins.pin(claim)
            self._file(claim, due_us, now)
            if claimant.durable:
                self._write(claim)
        if not claims:
            del self._by_message[copy.id]
            return False
        if first:
            self._session_order.note(copy)
        self._holdings.mark_claimed(copy)
        self._cache.mark_done((copy,))
        return first

    def assign(self, copy: Copy, claimant: Claimant, tenure: Tenure) -> None:
        """Claim a message of a queue, whose copy is pinned already, for the consumer that it was assigned to."""
        place = tenure.place
        if not place:
            self._place += 1
            place = self._place
        claim = Claim(claimant, copy, place, tenure.count, tenure)
        claim.doubtful = tenure.doubtful
        self._by_message.setdefault(copy.id, []).append(claim)
        claim.deferred_us = tenure.deferred_us
        self._file(claim, claim.deferred_us, self._holdings.now_us)
        self._session_order.note(copy)
        self._holdings.mark_claimed(copy)
        self._cache.mark_done((copy,))

    def reserve(self, place: int) -> None:
        """Reserve the place that a message of a queue had before a restart, and all places before it."""
        self._place = max(self._place, place)

    def recount(self, message: MessageId) -> None:
        """Update the counts of claims to a message of a queue, which others may have been handed."""
        for claim in self.of(message):
            if claim.tenure is not None:
                claim.count = max(claim.count, claim.tenure.count)

    def withdraw(self, claim: Claim) -> None:
        """Drop the claim of a consumer of a queue."""
        self._drop(claim, ClaimInput.END)

    def _file(self, claim: Claim, due_us: int, now: int) -> None:
        if due_us > now:
            claim.state = ClaimState.DELAYED
            self._delays.add(claim, due_us)
        else:
            claim.claimant.backlog.add(claim)
            self.ready[claim.claimant] = None

    def _write(self, claim: Claim) -> None:
        if claim.tenure is not None:
            claim.tenure.keep(claim.count, claim.place, claim.deferred_us)
            return
        self._table.put(_row_name(claim), ClaimRow(claim.place, claim.count, claim.deferred_us, claim.lost))

    def restore(self, stored: Stored, now: int) -> None:
        """Restore claims after a restart, by their places; delete those without a claimant or a copy.

        Messages that live subscriptions were given are flagged.
        """
        claimed = [copy for copy in self._holdings.known_copies() if self._holdings.is_claimed(copy)]
        self._interest_changes.pass_over(claimed)  # The claims to those are rows, or have ended.
        self.confirmations.restore(stored)
        self._again = {each.id: 1 for each in claimed if self.claimable(each)}  # They may have been handed over.
        self._session_order.restore(stored)
        found: list[Claim] = []
        for name, row in self._table.read(stored):
            claimant = self._topics[int.from_bytes(name[:_NUMBER_BYTES], "big")]
            copy = self._cache.get(MessageId(name[_NUMBER_BYTES:]))
            if claimant is None or copy is None or not copy.whole:
                self._table.delete(name)
            else:
                claim = Claim(claimant, copy, row.place, row.count, lost=row.lost)
                claim.deferred_us = row.deferred_us
                claim.doubtful = row.count > 0 and not row.deferred_us
                found.append(claim)
        for claim in sorted(found, key=_PLACE):
            self._restore(claim, now)

    def _restore(self, claim: Claim, now: int) -> None:
        copy = claim.copy
        self._place = max(self._place, claim.place)
        claims = self._by_message.setdefault(copy.id, [])
        if not claims:
            self._session_order.note(copy)
        claims.append(claim)
        self._pins.pin(claim)
        due_us = self._holdings.own_time(copy.original.due_us)
        self._file(claim, claim.deferred_us or due_us, now)
        if not self.claimable(copy):
            self._holdings.mark_claimed(copy)  # Else the next claimant does, and that is its delivery.

    # --- handing over --------------------------------------------------------------------------------------

    def expire(self, now: int) -> None:
        """Move delayed claims that are due to the backlogs of their consumers, and end solitudes that are over."""
        for session in self._suspects.agenda.pop_due(now):
            self.go_on(session)
        for claim in self._delays.pop_due(now):
            claim.move(ClaimInput.DUE)
            backlog = claim.claimant.backlog
            backlog.put_back((claim,)) if claim.deferred_us else backlog.add(claim)
            self.ready[claim.claimant] = None

    def hand_out(self) -> list[tuple[Claim, Consumer]]:
        """Hand waiting messages to consumers with credit.

        Returns those that were handed over too often, with the consumer that would be next: they are to be given up.
        """
        spent: list[tuple[Claim, Consumer]] = []
        ready, self.ready = self.ready, {}
        for claimant in ready:
            backlog = claimant.backlog
            while len(backlog) and (consumer := claimant.next_consumer()) is not None:
                claim = backlog.next()
                if claim.count >= (claim.tries or self._tries) and not claim.is_of_dead_letters:
                    spent.append((claim, consumer))
                else:
                    self._hand(claim, consumer)
        return spent

    def _hand(self, claim: Claim, consumer: Consumer) -> None:
        copy, claimant = claim.copy, claim.claimant
        descriptor = copy.opened or copy.descriptor
        claim.move(ClaimInput.HAND)
        self.number += 1
        claim.number, claim.consumer = self.number, consumer
        claim.leased = claim.tenure is not None and claim.tenure.lease_us > 0
        claim.count += 1
        claim.deferred_us = 0
        consumer.hand(claim)
        self._suspects.hand(claim, consumer.session, self._holdings.now_us)
        if claim.kept and not claim.accompanied:
            self._write(claim)
        unordered = bool(claimant.ordering) and descriptor.ordering is not claimant.ordering
        lease_us = 0 if claim.tenure is None else claim.tenure.lease_us
        terms = None if claim.tenure is None else claim.tenure.terms
        self._journal.hold(
            Handed(
                consumer.number, claim.number, descriptor, claim.count, copy.hops,
                unordered=unordered, out_of_order=copy.id in self._session_order.broken, alone=claim.doubtful,
                lease_us=lease_us and self._holdings.date_of(lease_us), giver=copy.giver,
                events_lost=claim.lost, predecessors_lost=copy.predecessors_lost,
                tries=claim.tries, letter=None if terms is None else terms.letter,
            )
        )  # fmt: skip

    def count_again(self, claim: Claim) -> int:
        """Count another try of a message by the program that has it; return the number of tries."""
        claim.count += 1
        if claim.kept:
            self._write(claim)
        return claim.count

    def go_on(self, session: Session) -> None:
        """Let a session be handed more messages, although it did not acknowledge the one that came alone."""
        self._suspects.release(session)
        for consumer in session.consumers.values():
            self.ready[consumer.claimant] = None

    def _remove_from_session(self, claim: Claim) -> None:
        if claim.consumer is None:
            return
        session = claim.consumer.session
        session.handed.pop(claim.number, None)
        session.doubtful.pop(claim.number, None)
        if session.alone is claim:
            self.go_on(session)

    def give_back(
        self, claims: Sequence[Claim], *, unread: Collection[int] = (), seen: bool = True, crashed: bool = False
    ) -> None:
        """Return claims to their backlogs: unread ones and, with `seen`, those that a program saw.

        `crashed`: their program ended, perhaps because of one that it saw.
        """
        unreported = self._journal.retract_handed({claim.number for claim in claims})
        unseen = unreported.union(unread)
        for claim in claims:
            if claim.number in unseen:
                continue
            if crashed:
                claim.doubt()
                claim.count -= claim.accompanied
            elif claim.accompanied and claim.kept:
                self._write(claim)
        self._return([claim for claim in claims if seen or claim.number in unseen], unseen, unreported)

    def defer(self, claim: Claim, until_us: int) -> None:
        """Return a message that a consumer gave back, but hand it to no consumer before `until_us`."""
        claim.deferred_us = until_us
        if claim.kept:
            self._write(claim)
        if claim.claimant.ended or claim.is_lapsed(self._holdings.now_us):
            self._end(claim)
            return
        claim.move(ClaimInput.DEFER)
        self._remove_from_session(claim)
        self._delays.add(claim, until_us)

    def _return(self, claims: Iterable[Claim], unseen: Collection[int], unreported: Collection[int]) -> None:
        by_claimant: dict[Claimant, list[Claim]] = {}
        for claim in claims:
            if claim.number in unseen:
                claim.count -= 1
            if claim.number in unreported:
                self._return_credit(claim)
            lapsed = claim.is_lapsed(self._holdings.now_us)
            if lapsed and claim.number in unreported:
                claim.claimant.miss()
            elif lapsed:
                claim.claimant.answer_late()
            if lapsed or claim.claimant.ended:
                self._end(claim)
                continue
            claim.move(ClaimInput.RETURN)
            self._remove_from_session(claim)
            claim.consumer = None
            if claim.number in unseen and claim.kept:
                self._write(claim)
            by_claimant.setdefault(claim.claimant, []).append(claim)
        for claimant, some in by_claimant.items():
            claimant.backlog.put_back(some)
            self.ready[claimant] = None

    def _return_credit(self, claim: Claim) -> None:
        """Give back the credit of a hand-over that was not reported: the consumer gets another message instead."""
        if claim.consumer is not None:
            claim.consumer.return_credit(claim)
            self.ready[claim.claimant] = None

    # --- the end -------------------------------------------------------------------------------------------

    def acknowledge(self, claims: Iterable[Claim]) -> None:
        """End claims that their consumers acknowledged, and release their copies."""
        for claim in claims:
            claim.move(ClaimInput.ACKNOWLEDGE)
            self._remove_from_session(claim)
            self._unlist(claim)
            if claim.tenure is not None and not claim.tenure.stands:
                continue  # It came too late: the message was reassigned, and is not finished.
            self.confirmations.add(claim.copy, consumed=True)
            self._pins.unpin(claim)
            if claim.tenure is not None:
                claim.tenure.done()
                continue
            if claim.claimant.durable:
                self._table.delete(_row_name(claim))
            if claim.claimant.is_only and claim.copy.here:
                self._holdings.discard(claim.copy, Reason.PURGED, done=True)

    def give_up(self, claim: Claim, error: str) -> None:
        """Make a message that no program here can consume a dead letter; its author does not hear of a delivery."""
        tenure, unserved = claim.tenure, not claim.number and not claim.doubtful
        if tenure is None:
            self.confirmations.add(claim.copy, consumed=False)
        self._drop(claim, ClaimInput.END)
        if tenure is not None:
            if unserved:
                claim.claimant.miss()
            tenure.release(dead=True, error=error)

    def end(self, claimant: Claimant, handed: Iterable[Claim] = ()) -> None:
        """End the claims of a subscription that ended. Sessions may still acknowledge or return `handed` ones."""
        for claim in handed:
            self._table.delete(_row_name(claim))
        for claim in self.unhanded(claimant):
            self._end(claim)

    def unhanded(self, claimant: Claimant) -> list[Claim]:
        """Return the claims of a claimant that wait for a consumer, or for their time."""
        return [*claimant.backlog, *(each for each in self._delays if each.claimant is claimant)]

    def note_handed(self, claims: Iterable[Claim]) -> None:
        """Remember the counts of these claims for the next claimant of their messages."""
        for claim in claims:
            if claim.count:
                self._again[claim.copy.id] = max(claim.count, self._again.get(claim.copy.id, 0))

    def _end(self, claim: Claim) -> None:
        """End a claim; the next claimant of its message gets it, flagged if it was handed over."""
        if claim.tenure is None:
            self.note_handed((claim,))
        else:
            claim.claimant.give_back(claim.tenure)
        self._drop(claim, ClaimInput.END)

    def left(self, copies: Sequence[Copy], reason: Reason) -> None:
        """Drop the claims to copies that are gone, and report those that did not end with their lives."""
        for copy in copies:
            self._again.pop(copy.id, None)
            self._session_order.left(copy)
            self.confirmations.forget((copy.id,))
            for claim in self._by_message.get(copy.id, [])[:]:
                claim.overtake(self._holdings.now_us)
                self._drop(claim, ClaimInput.LEAVE)
                if reason not in _FORESEEN:
                    self.lose(claim, reason)

    def lose(self, claim: Claim, reason: Reason) -> None:
        """Count and report that a subscription does not get a message after all."""
        self.lost += 1
        of = claim.claimant
        self._emit(ClaimLost(of.name, claim.copy.descriptor, reason, of.client, of.durable))

    def _drop(self, claim: Claim, move: ClaimInput) -> None:
        delayed = claim.state is ClaimState.DELAYED
        if claim.state is ClaimState.WAITING:
            claim.claimant.backlog.discard(claim)
        elif claim.state is ClaimState.HANDED and claim.consumer is not None:
            self._remove_from_session(claim)
            if self._journal.retract_handed((claim.number,)):
                self._return_credit(claim)
        claim.move(move)
        if delayed:
            self._delays.note_ended()
        if claim.tenure is None and claim.claimant.durable:
            self._table.delete(_row_name(claim))
        self._pins.unpin(claim)
        self._unlist(claim)

    def _unlist(self, claim: Claim) -> None:
        claims = self._by_message[claim.copy.id]
        claims.remove(claim)
        if not claims:
            del self._by_message[claim.copy.id]


_FORESEEN = frozenset({Reason.EXPIRED, Reason.WITHDRAWN, Reason.PURGED})
"""Reasons for which a copy may leave without a report to its claimants: what was purged had reached a program."""


def _row_name(claim: Claim) -> bytes:
    return claim.claimant.number.to_bytes(_NUMBER_BYTES, "big") + claim.copy.id


def _is_delayed(claim: Claim, _due_us: int) -> bool:
    return claim.state is ClaimState.DELAYED
