"""Publishing, alone and in works that are carried out whole or not at all.

A work has sends and acknowledgements. Whatever can be wrong with it is found out before anything is done, so a work
that raises has changed nothing; what it does is in one batch. When that is durable the work is `Done`. When it is lost
the work is `Undone`: its messages are gone, and those whom it acknowledged for have theirs again; but a work that only
acknowledges is written again, since its sessions went on.

A draft is a message that has its number, date, id and signature, and waits here for a work that sends it. One with an
order gets all of that from the work.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from carrypost.errors import IllegalStateException, ResourceAllocationException
from carrypost.events import Done, Published, Undone
from carrypost.gossip.holdings.ranking import rank_of
from carrypost.local.publishing import Stamp

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from carrypost.events import Event
    from carrypost.gossip.holdings.copies import Copy
    from carrypost.gossip.layer import Draft, Layers
    from carrypost.gossip.strategy.strategy import Strategy
    from carrypost.gossip.transfers.ground import Ground
    from carrypost.gossip.wire.pieces import Packed
    from carrypost.local.publishing import Publisher
    from carrypost.model.descriptor import Descriptor
    from carrypost.model.ids import MessageId
    from carrypost.mom.commands import Work
    from carrypost.mom.messaging import Messaging
    from carrypost.order.groups import Order


class Drafted:
    """A message that waits for a work."""

    __slots__ = ("descriptor", "draft", "packed", "session")

    def __init__(self, session: int, draft: Draft, packed: Packed, descriptor: Descriptor | None) -> None:
        self.session, self.draft, self.packed = session, draft, packed
        self.descriptor = descriptor
        """None: it has an order, which comes with the work."""


class Unanswered:
    """A command that was not answered yet."""

    __slots__ = ("commit", "messages", "serial")

    def __init__(self, messages: tuple[MessageId, ...], *, commit: bool) -> None:
        self.messages = messages
        self.commit = commit
        """Undone if it is lost; else written again."""
        self.serial = 0
        """Of the batch that it is in."""


class Works:
    """What one host publishes."""

    def __init__(self, ground: Ground, publisher: Publisher, order: Order, layers: Layers, strategy: Strategy) -> None:
        self._holdings, self._outputs, self._settings = ground.holdings, ground.outputs, ground.settings.messaging
        self._journal = ground.outputs.journal
        self.publisher, self._order, self.layers, self._strategy = publisher, order, layers, strategy
        self._messaging: Messaging | None = None
        self._open: dict[int, Unanswered] = {}
        self.unanswered: Mapping[int, Unanswered] = self._open
        """Commands that nobody was told the end of. Looked at whenever events are taken."""
        self._messages: dict[MessageId, int] = {}
        """Of works that were not answered, by the number of the work."""
        self._again: list[Done | Undone] = []
        """Answers that wait until what was lost is written again."""
        self._drafts: dict[int, Drafted] = {}
        self._draft_number = 0
        self._draft_bytes: dict[int, int] = {}
        """By session."""

    def join(self, messaging: Messaging) -> None:
        """Messaging is awake: works may acknowledge from now on."""
        self._messaging = messaging

    # --- one message ---------------------------------------------------------------------------------------

    def publish(self, draft: Draft, now: int) -> Copy:
        """Validate, stamp, admit; let the layers have it, and journal it once."""
        drafted = Drafted(0, draft, self.publisher.pack(draft), None)
        ((_, descriptor),) = self._made((drafted,), now)
        return self._send(drafted, descriptor, now, alone=True)

    def _send(self, drafted: Drafted, descriptor: Descriptor, now: int, *, alone: bool, withheld: bool = False) -> Copy:
        publisher, packed = self.publisher, drafted.packed
        copy = publisher.admit(descriptor, packed, now, withheld=withheld or drafted.draft.withheld)
        self._outputs.tell(Published(copy.descriptor))
        self.layers.published((copy,))
        delivered = self.layers.take((copy,))
        publisher.journal(copy, packed, alone=alone)
        if others := [each for each in delivered if each is not copy]:
            self._holdings.keep(others, again=True)
        self._strategy.gained(now, own=True)
        return copy

    def _made(self, sends: Sequence[Drafted], now: int) -> list[tuple[Drafted, Descriptor]]:
        """Return each with its descriptor, made unless it has one. Raises what is wrong with one, and changes nothing.

        Numbers are reserved when the messages are sent.
        """
        publisher, stamping, sequence = self.publisher, self._order.stamping(now), 0
        made: list[tuple[Drafted, Descriptor]] = []
        for each in sends:
            descriptor, draft = each.descriptor, each.draft
            if descriptor is None:
                stamp = stamping.stamp(draft.destination, draft.ordering)
                descriptor = publisher.sign(publisher.make(draft, each.packed, stamp, now, after=sequence))
                sequence = descriptor.sequence
                if len(sends) > 1:
                    stamping.add(descriptor)
            elif (copy := self._holdings.cache.get(descriptor.id)) is not None and copy.here:
                raise IllegalStateException(f"somebody else sent a message under the id {descriptor.shown}: roll back")
            made.append((each, descriptor))
        return made

    # --- drafts --------------------------------------------------------------------------------------------

    def draft(self, session: int, draft: Draft, now: int) -> tuple[int, Descriptor | None]:
        """Keep a message for a work of this session: its number, and what it is sent with unless it has an order."""
        if self._messaging is not None:
            self._messaging.check_session(session)
        packed = self.publisher.pack(draft)
        used = self._draft_bytes.get(session, 0)
        if used + packed.length > self._settings.draft_bytes_max:
            raise ResourceAllocationException(
                f"the messages of this transaction have more than {self._settings.draft_bytes_max:,} bytes "
                "(messaging.draft_bytes_max): commit sooner"
            )
        made = None
        if not draft.ordering:
            made = self.publisher.sign(self.publisher.make(draft, packed, Stamp(now), now))
            self.publisher.reserve(made)
        self._draft_bytes[session] = used + packed.length
        self._draft_number += 1
        self._drafts[self._draft_number] = Drafted(session, draft, packed, made)
        return self._draft_number, made

    def forget_drafts(self, session: int) -> None:
        """A session rolled back, or is gone."""
        self._draft_bytes.pop(session, None)
        self._drafts = {number: each for number, each in self._drafts.items() if each.session != session}

    def _drafted(self, send: Draft | int) -> Drafted:
        if not isinstance(send, int):
            return Drafted(0, send, self.publisher.pack(send), None)
        found = self._drafts.get(send)
        if found is None:
            raise IllegalStateException(f"there is no draft {send}: it was sent, or its session rolled back or closed")
        return found

    # --- works ---------------------------------------------------------------------------------------------

    def perform(self, work: Work, now: int) -> tuple[Descriptor, ...]:
        """Carry out a work; returns what its messages were sent with, less those that died as drafts."""
        messaging = self._messaging
        self.check_number(work.number)
        sends = [self._drafted(send) for send in work.sends]
        drafts = [send for send in work.sends if isinstance(send, int)]
        if drafts and len(set(drafts)) < len(drafts):
            raise IllegalStateException(f"a draft is sent once, and this work names one twice: {drafts}")
        if messaging is not None:
            messaging.check([each.draft for each in sends], work.acks)
        elif work.acks:
            raise IllegalStateException("messaging is not open on this node: there is nothing to acknowledge")
        # Drafts may have died while they waited.
        alive = [(each, descriptor) for each, descriptor in self._made(sends, now) if descriptor.alive(now)]
        self._check_room(alive)
        # Nobody else may have a part of what a crash, or a full disk, undoes as a whole.
        whole = len(alive) > 1 or bool(work.acks)
        sent = [self._send(*each, now, alone=False, withheld=whole).descriptor for each in alive]
        if messaging is not None:
            messaging.sent([each.draft for each, _ in alive], sent)
        for draft in drafts:
            drafted = self._drafts.pop(draft)
            self._draft_bytes[drafted.session] -= drafted.packed.length
        if messaging is not None and work.acks:
            messaging.acknowledge(work.number, work.acks, now, commit=bool(sends))
        self._journal.demand(work.durability)
        self.follow(work.number, [each.id for each in sent], commit=bool(sends))
        return tuple(sent)

    def check_number(self, number: int) -> None:
        """Raise unless a command may have this number."""
        if number in self._open:
            raise IllegalStateException(f"the command of the number {number} is not answered yet: choose another")

    def follow(self, number: int, messages: Iterable[MessageId] = (), *, commit: bool = True) -> None:
        """A command was carried out in this step: tell when that is durable, or that it was lost."""
        made = self._open[number] = Unanswered(tuple(messages), commit=commit)
        for message in made.messages:
            self._messages[message] = number
        made.serial = self._journal.hold(Done(number))

    def _check_room(self, sends: Collection[tuple[Drafted, Descriptor]]) -> None:
        """Raise unless all of them find room, each by its own right: then none is turned away later."""
        if not sends:
            return
        cache, holdings = self._holdings.cache, self._holdings
        nbytes = sum(each.packed.length for each, _ in sends)
        if cache.vacant(len(sends), nbytes, interesting=True):
            return
        rank = min(rank_of(holdings.privilege(each), True, each.created_us) for _, each in sends)
        lower = [size for other, size in cache.yielding() if other < rank]
        if not cache.vacant(len(sends) - len(lower), nbytes - sum(lower), interesting=True):
            raise ResourceAllocationException(
                f"the cache has no room for {len(sends)} messages of {nbytes:,} bytes, "
                "and not enough in it may give way to them: nothing was sent"
            )

    # --- answers -------------------------------------------------------------------------------------------

    def told(self, events: Iterable[Event]) -> None:
        """These are told to the driver: works that are done among them are answered."""
        for event in events:
            if type(event) is Done:
                self._close(event.number)
                if self._messaging is not None:
                    self._messaging.done(event.number)

    def _close(self, number: int) -> None:
        made = self._open.pop(number, None)
        for message in made.messages if made is not None else ():
            self._messages.pop(message, None)

    def lost(self, serial: int, held: Iterable[Event], gone: Collection[MessageId]) -> list[tuple[int, Unanswered]]:
        """A batch was lost, and these messages with it: the commits that are to be undone for that.

        Of what was held with the batch, works that are in another stay, and those that only acknowledge wait.
        """
        numbers = {self._messages[message] for message in gone if message in self._messages}
        numbers |= {number for number, made in self._open.items() if made.serial == serial and made.commit}
        if self._messaging is not None:
            numbers |= self._messaging.depending(numbers)
        undone = [(number, self._open[number]) for number in sorted(numbers, reverse=True)]
        for number, made in undone:
            self._journal.retract_done(number)
            self._close(number)
            for message in made.messages:
                self._journal.fail(message)
        for event in held:
            if isinstance(event, Undone) or (isinstance(event, Done) and event.number in self._open):
                self._again.append(event)
        return undone

    def undo(self, undone: Iterable[tuple[int, Unanswered]], serial: int, reason: str, now: int) -> None:
        """The messages of these commits are gone, and so is the rest. One that was written is told once it is not."""
        for number, made in undone:
            if self._messaging is not None:
                self._messaging.undo(number, now)
            if made.serial == serial or not made.messages:
                self._outputs.tell(Undone(number, reason))
            else:
                self._journal.hold(Undone(number, reason))

    def tell_again(self) -> None:
        """What was lost, acknowledgements and deletions, is in the batch that is being made."""
        again, self._again = self._again, []
        for answer in again:
            self._journal.hold(answer)
