"""Publishing, alone and in atomic units of work.

A unit has sends and acknowledgements. All of it is checked before anything is done, so a unit that raises has changed
nothing; its changes are in one batch. When that is durable the unit is `Done`. If it cannot be written, nothing of the
unit happened: the host ends, and another one is restored from the store.

A draft is a message that has its number, date, id and signature, and waits here for a unit of work that sends it. A
message with an order gets all of that from the unit.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from carrypost.application.publishing import Stamp
from carrypost.errors import IllegalStateException, LocalError, ResourceAllocationException
from carrypost.gossip.draft import Draft
from carrypost.gossip.layer import Layer, Layers
from carrypost.log.events import Published
from carrypost.model.address import is_channel
from carrypost.model.headers import Headers
from carrypost.security.sealing import as_published

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from carrypost.application.publishing import Publisher
    from carrypost.gossip.holdings.copies import Copy
    from carrypost.gossip.strategy.strategy import Strategy
    from carrypost.gossip.transfers.link import HostContext
    from carrypost.gossip.wire.pieces import Packed
    from carrypost.messaging.commands import UnitOfWork
    from carrypost.model.descriptor import Descriptor
    from carrypost.order.groups import Order


class Drafted:
    """A message that waits for a unit of work."""

    __slots__ = ("descriptor", "draft", "packed", "session")

    def __init__(self, session: int, draft: Draft, packed: Packed, descriptor: Descriptor | None) -> None:
        self.session, self.draft, self.packed = session, draft, packed
        self.descriptor = descriptor
        """The descriptor; None: it has an order, or a number as an event, which the unit of work assigns."""


class UnitsOfWork:
    """The publications of one host."""

    def __init__(
        self, context: HostContext, publisher: Publisher, order: Order, layers: Layers, strategy: Strategy[Any]
    ) -> None:
        self._holdings, self._outputs, self._settings = context.holdings, context.outputs, context.settings.messaging
        self._journal = context.outputs.journal
        self.publisher, self._order, self.layers, self._strategy = publisher, order, layers, strategy
        self._drafts: dict[int, Drafted] = {}
        self._draft_number = 0
        self._draft_bytes: dict[int, int] = {}
        """Bytes of drafts by session."""

    # --- one message ---------------------------------------------------------------------------------------

    def publish(self, draft: Draft, now: int) -> Copy:
        """Validate, stamp and admit a message; pass it to the layers, and journal it once."""
        draft = self.publisher.accepted(draft)
        admitted = self._admitted(draft, now, limited=self._holdings.cache.room.limited)
        self._enter(admitted, now, alone=True)
        return admitted[-1][0]

    def publish_all(self, drafts: Sequence[Draft], now: int) -> None:
        """Publish drafts of layers together. Those that cannot be are counted, and not reported by `published`."""
        admitted: list[tuple[Copy, Packed]] = []
        for draft in drafts:
            try:
                admitted += self._admitted(draft, now, limited=False)
            except LocalError:  # There is no room, or it is beyond the limits.
                self._outputs.refuse("draft", "")
        if admitted:
            self._enter(admitted, now, alone=True)

    def _admitted(self, draft: Draft, now: int, *, limited: bool) -> list[tuple[Copy, Packed]]:
        """Admit a message, and those that join its predecessors before it; `limited`: as far as the disk has room.

        Control messages are not limited, as they have no payload.
        """
        made = self._made((Drafted(0, draft, self.publisher.pack(draft), None),), now)
        if limited or len(made) > 1:
            self._check_room(made)
        admit, withheld = self.publisher.admit, draft.withheld
        return [(admit(found, each.packed, now, withheld=withheld), each.packed) for each, found in made]

    def _enter(self, admitted: Sequence[tuple[Copy, Packed]], now: int, *, alone: bool) -> None:
        """Pass admitted messages to the layers, journal them, and offer them to others."""
        copies = [copy for copy, _ in admitted]
        for copy in copies:
            self._outputs.emit(Published(copy.descriptor))
        for layer in self.layers.having[Layer.published]:
            layer.published(copies)
        delivered = self.layers.receive(copies)
        for copy, packed in admitted:
            self.publisher.journal(copy, packed, alone=alone)
        if others := [each for each in delivered if each not in copies]:
            self._holdings.keep(others)
        self._strategy.published(copies, now)

    def _send(self, drafted: Drafted, descriptor: Descriptor, now: int, *, withheld: bool) -> Descriptor:
        """Send a message of a unit of work."""
        withheld = withheld or drafted.draft.withheld
        copy = self.publisher.admit(descriptor, drafted.packed, now, withheld=withheld)
        self._enter(((copy, drafted.packed),), now, alone=False)
        if (seal := drafted.packed.seal) is None:
            return copy.descriptor
        return copy.opened or as_published(copy.descriptor, seal)

    def _made(self, sends: Sequence[Drafted], now: int) -> list[tuple[Drafted, Descriptor]]:
        """Return each send with its descriptor, made unless it has one. Raises if one is invalid, and changes nothing.

        Numbers are reserved when the messages are sent. Before a message with too many predecessors come messages that
        join these.
        """
        publisher, date_us, sequence = self.publisher, self._holdings.date_of(now), 0
        stamping = self._order.stamping(date_us)
        numbers: dict[str, int | None] = {}
        made: list[tuple[Drafted, Descriptor]] = []
        for each in sends:
            descriptor, draft = each.descriptor, each.draft
            if descriptor is None:
                stamp = stamping.stamp(draft.destination, draft.ordering)
                while stamp.until_us:
                    made.append(self._joining(draft, stamp, date_us, after=sequence))
                    sequence = made[-1][1].sequence
                    stamping.add(made[-1][1])
                    stamp = stamping.stamp(draft.destination, draft.ordering)
                stamp = self._numbered(stamp, draft.destination, numbers)
                descriptor = publisher.sign(publisher.make(draft, each.packed, stamp, date_us, after=sequence))
                sequence = descriptor.sequence
                if len(sends) > 1:
                    stamping.add(descriptor)
            elif (copy := self._holdings.cache.get(descriptor.id)) is not None and copy.here:
                raise IllegalStateException(f"another message has the id {descriptor.shown}: roll back")
            made.append((each, descriptor))
        return made

    def _joining(self, draft: Draft, stamp: Stamp, date_us: int, *, after: int) -> tuple[Drafted, Descriptor]:
        """Return a message that joins predecessors of another one. It is kept and passed on like that one."""
        joining = Draft(
            draft.destination, b"", priority=draft.priority, persistent=draft.persistent, ordering=draft.ordering,
            headers=Headers(joins=True), topic=draft.topic,
        )  # fmt: skip
        publisher = self.publisher
        packed = publisher.pack(joining)
        descriptor = publisher.sign(publisher.make(joining, packed, stamp, date_us, after=after))
        return Drafted(0, joining, packed, None), descriptor

    def _numbered(self, stamp: Stamp, destination: str, numbers: dict[str, int | None]) -> Stamp:
        """Return a stamp with the next number of its channel, if layers number events.

        `numbers`: the last number of each channel that earlier messages of the same unit have.
        """
        if not is_channel(destination):
            return stamp
        if destination not in numbers:
            found = [layer.last_event(destination) for layer in self.layers.having[Layer.last_event]]
            numbers[destination] = next((number for number in found if number is not None), None)
        last = numbers[destination]
        if last is None:
            return stamp
        numbers[destination] = last + 1
        homes = [layer.event_home(destination) for layer in self.layers.having[Layer.event_home]]
        return stamp._replace(event=last + 1, home=next((home for home in homes if home is not None), None))

    def _check_unit(self, drafts: Sequence[Draft], acks: Sequence[Any]) -> None:
        """Let every layer refuse a unit of work, before anything is done about it."""
        for layer in self.layers.having[Layer.check_unit]:
            layer.check_unit(drafts, acks)

    # --- drafts --------------------------------------------------------------------------------------------

    def draft(self, session: int, draft: Draft, now: int) -> tuple[int, Descriptor | None]:
        """Keep a message for a unit of work of this session; return its number, and its descriptor if it has one.

        A message with an order, or an event, gets its descriptor from the unit of work.
        """
        for layer in self.layers.having[Layer.check_session]:
            layer.check_session(session)
        draft = self.publisher.accepted(draft)
        if is_channel(draft.destination):
            self._check_unit((draft,), ())
        packed = self.publisher.pack(draft)
        used = self._draft_bytes.get(session, 0)
        if used + packed.length > self._settings.draft_bytes_max:
            raise ResourceAllocationException(
                f"the messages of this transaction have more than {self._settings.draft_bytes_max:,} bytes "
                "(messaging.draft_bytes_max): commit sooner"
            )
        made = None
        if not draft.ordering and not is_channel(draft.destination):
            date_us = self._holdings.date_of(now)
            made = self.publisher.sign(self.publisher.make(draft, packed, Stamp(date_us), date_us))
            self.publisher.reserve(made)
        self._draft_bytes[session] = used + packed.length
        self._draft_number += 1
        self._drafts[self._draft_number] = Drafted(session, draft, packed, made)
        return self._draft_number, made if made is None or packed.seal is None else as_published(made, packed.seal)

    def forget_drafts(self, session: int) -> None:
        """Drop the drafts of a session that rolled back, or is gone."""
        self._draft_bytes.pop(session, None)
        self._drafts = {number: each for number, each in self._drafts.items() if each.session != session}

    def _drafted(self, send: Draft | int, session: int) -> Drafted:
        if not isinstance(send, int):
            send = self.publisher.accepted(send)
            return Drafted(0, send, self.publisher.pack(send), None)
        found = self._drafts.get(send)
        if found is None or (session and found.session != session):
            raise IllegalStateException(f"there is no draft {send}: it was sent, or its session rolled back or closed")
        return found

    # --- units of work -------------------------------------------------------------------------------------

    def perform(self, unit: UnitOfWork, now: int) -> tuple[Descriptor, ...]:
        """Perform a unit of work; return the descriptors of its messages, without drafts that expired."""
        sends = [self._drafted(send, unit.session) for send in unit.sends]
        drafts = [send for send in unit.sends if isinstance(send, int)]
        # The same draft twice would be two messages under one id.
        if drafts and len(set(drafts)) < len(drafts):
            raise IllegalStateException(
                f"a draft can be sent only once, and this transaction names one twice: {drafts}"
            )
        self._check_unit([each.draft for each in sends], unit.acks)
        if unit.acks and not self.layers.having[Layer.performed]:
            raise IllegalStateException("messaging is not open on this node: there is nothing to acknowledge")
        # Drafts may have died while they waited.
        # Made before anything is admitted: signing may raise, and a unit that raises must have
        # changed nothing.
        made, date_us = self._made(sends, now), self._holdings.date_of(now)
        alive = [(each, descriptor) for each, descriptor in made if descriptor.alive(date_us)]
        self._check_room(alive)
        # No other node may have a part of a unit that a crash undoes as a whole.
        whole = len(alive) > 1 or bool(unit.acks)
        sent: list[tuple[Draft, Descriptor]] = []
        for each, found in alive:
            descriptor = self._send(each, found, now, withheld=whole)
            if not descriptor.joins:
                sent.append((each.draft, descriptor))
        for draft in drafts:
            drafted = self._drafts.pop(draft)
            self._draft_bytes[drafted.session] -= drafted.packed.length
        for layer in self.layers.having[Layer.performed]:
            layer.performed(sent, unit.acks)
        self._journal.demand(unit.durability)
        return tuple([descriptor for _, descriptor in sent])

    def _check_room(self, sends: Collection[tuple[Drafted, Descriptor]]) -> None:
        # All or nothing: a transaction of which only some messages fit would be sent in part. So
        # room is checked for all of them at once, counting what the least privileged copies would
        # free.
        """Raise unless all messages find room, each by its own right: then none is turned away later."""
        if not sends:
            return
        cache, holdings = self._holdings.cache, self._holdings
        nbytes = sum(each.packed.length for each, _ in sends)
        if cache.room.limited:
            nbytes = max(nbytes, 1)  # Without a payload, too, it takes room on the disk.
        if cache.room.fits(len(sends), nbytes):
            return
        rank = cache.room.reach(min(cache.ranking.rank(holdings.privilege(each), True, each) for _, each in sends))
        lower = [size for other, size in cache.room.yielding() if other < rank]
        if not cache.room.fits(len(sends) - len(lower), nbytes - sum(lower)):
            if cache.room.limited:
                raise ResourceAllocationException(
                    f"the disk is full: it takes {max(cache.room.bytes_max - cache.bytes, 0):,} bytes of messages, not "
                    f"{nbytes:,}; free some space"
                )
            raise ResourceAllocationException(
                f"the cache has no room for {len(sends)} messages of {nbytes:,} bytes, and not enough of it can "
                "be evicted: nothing was sent"
            )
