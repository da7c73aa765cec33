"""Messaging on one host, as a layer between order and the application's side, and its commands for programs.

Everything that passes order comes by `Messaging.receive`, gets its claims, and goes on. Nothing here publishes or
depends on order.

`MessagingCommands` are the commands of programs: `host.messaging`. Each is a step of the host. Messaging is dormant
until it is opened: it has no interests and no rows, and costs nothing. The rows from before a restart are kept for it
meanwhile. A command that changes durable state has a number, and is answered by `Done` of that number, as units of work
are.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import islice
from typing import TYPE_CHECKING, Any, TypeVar

from carrypost.errors import IllegalStateException, StateError
from carrypost.gossip.layer import Composite
from carrypost.log import record
from carrypost.log.events import Assigned, Event, Receipt, SendState, Unserved
from carrypost.log.journal import MOM
from carrypost.log.record import Kind
from carrypost.messaging import commands as do
from carrypost.messaging.claims import Claims
from carrypost.messaging.context import MessagingContext
from carrypost.messaging.directory import PREFIX, SUFFIX, Directory, SealingKeys
from carrypost.messaging.namespace import Binding
from carrypost.messaging.overview import NAMES_TOLD, MessagingOverview, Viewed, Views
from carrypost.messaging.placement_and_discovery import Discoveries, Placements
from carrypost.messaging.queues.queues import ADDRESSED, Queues
from carrypost.messaging.receipts import OwedReceipts, Receipts
from carrypost.messaging.sessions import Consumers, Dispatcher, Sessions, check_leases, lapsed
from carrypost.messaging.subscriptions import Topics
from carrypost.model import address
from carrypost.model.ids import MessageId

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from carrypost.application.circles import Circles
    from carrypost.application.deliveries import Deliveries
    from carrypost.application.keyring import Keyring
    from carrypost.gossip.draft import Draft
    from carrypost.gossip.holdings.copies import Copy
    from carrypost.gossip.layer import Steps
    from carrypost.gossip.transfers.link import HostContext
    from carrypost.log.record import Append, Record
    from carrypost.messaging.claim_and_claimant import Claim
    from carrypost.messaging.context import Overlay
    from carrypost.model.descriptor import Descriptor
    from carrypost.model.ids import NodeId


_KINDS = {SendState.EXPIRED: Kind.FAILURE, SendState.FAILED: Kind.FAILURE, SendState.DELIVERED: Kind.RECEIPT}


def _assigned(record: Record, t_us: int, node: str, event: Assigned) -> None:
    """Append the assignment of a message to a node."""
    given = event.descriptor
    record.add(
        Kind.ASSIGN, t_us, node, message=record.named(given.id, given.label), source=given.node, size=given.size,
        detail=event.receiver,
    )  # fmt: skip


def _receipt(record: Record, t_us: int, node: str, event: Receipt) -> None:
    """Append news of the outcome of a message for its author."""
    kind = _KINDS.get(event.state)
    if kind is Kind.RECEIPT and event.acknowledged:
        return  # `Acknowledged` reports each recipient.
    if event.rose and kind is not None:
        message = record.named(event.message, event.label)
        record.add(kind, t_us, node, message=message, source=node, detail=event.reason or None)


ROWS: Mapping[type[Event], Append] = {Assigned: _assigned, Receipt: _receipt}


class Messaging(Composite):
    """The subscriptions, claims and sessions of one host."""

    kind = MOM

    @classmethod
    def register(cls) -> None:
        """Let receipts and assignments append rows to the event log."""
        record.register(ROWS)

    def __init__(
        self,
        host_context: HostContext,
        deliveries: Deliveries,
        circles: Circles,
        steps: Steps,
        overlay: Overlay | None = None,
    ) -> None:
        self.forget_drafts = steps.forget_drafts
        self.circles: Circles = circles
        self.keyring: Keyring = circles.keyring
        self._cache, self._emit = host_context.holdings.cache, host_context.outputs.emit
        self._deliveries, self._node = deliveries, host_context.node
        context = MessagingContext(host_context, deliveries, circles, steps.incarnation, overlay)
        self._channels = context.channels
        self.receipts = Receipts(context)
        owed = OwedReceipts(context)
        self.topics: Topics = Topics(context)
        self.claims = Claims(context, owed, self.topics)
        self.queues: Queues = Queues(context, self.claims, self.receipts, self.topics)
        self.handing: Dispatcher = Dispatcher(context, self.claims, self.queues)
        self.sessions: Sessions = Sessions()
        self.directory: Directory = Directory(context, self.topics, self.queues)
        self._keys = SealingKeys(context)
        self.placements: Placements = Placements(context, self.queues, self.directory)
        self.discoveries = Discoveries(context, self.queues, self.directory)
        self.consuming: Consumers = Consumers(
            context, self.sessions, self.topics, self.claims, queues=self.queues, directory=self.directory
        )
        self.compose(
            host_context.holdings,
            (
                context.outbox, self.receipts, self.consuming, self.topics, self._channels, self.claims,
                *self.queues.parts, owed, self.directory, self._keys, circles, self.placements,
                self.discoveries,
            ),
        )  # fmt: skip

    def overview(self) -> MessagingOverview:
        """Return an overview of messaging."""
        date_of, lapsing = self.holdings.date_of, islice(self.topics.lapsing(), NAMES_TOLD)
        return MessagingOverview(
            subscriptions=len(self.topics),
            durable=sum(each.durable for each in self.topics),
            consumers=sum(len(each.consumers) for each in self.topics),
            claims=len(self.claims),
            pinned=self.claims.pinned,
            lost=self.claims.lost,
            **self.queues.overview(),
            unattended=tuple(islice(self.queues.unattended(), NAMES_TOLD)),
            lapsing=tuple([(name, date_of(end_us)) for name, end_us in lapsing]),
            circles=self.circles.conditions(),
        )

    def views(self) -> Views:
        """Return what makes views of messaging at this moment."""
        parts = Viewed(self.queues, self.topics, self.receipts, self.sessions, self.claims)
        return Views(parts, self.holdings, self._node)

    def owed_to(self, message: MessageId) -> list[str]:
        """Return the subscriptions and queues of this node that have claims to a message."""
        claimants = [claim.claimant.written for claim in self.claims.of(message)]
        return list(dict.fromkeys([*claimants, *self.queues.having(message)]))

    # --- a layer -------------------------------------------------------------------------------------------

    def receive(self, copies: Sequence[Copy]) -> Sequence[Copy]:
        """Claim these messages for matching subscriptions; all of them go on."""
        claims, interested, now = self.claims, self.topics.interested, self.holdings.now_us
        lost_before = self._channels.lost_before
        addressed = False
        for copy in copies:
            destination = copy.descriptor.destination
            if copy.descriptor.joins:
                continue
            if destination.startswith(PREFIX):
                (self._keys if destination.endswith(SUFFIX) else self.directory).receive(copy)
            elif destination.startswith(ADDRESSED):
                addressed = True
                if not self.queues.receive(copy, now):
                    continue
            subscriptions = interested(copy)
            if subscriptions and claims.claimable(copy) and claims.make(copy, subscriptions, now, lost_before(copy.id)):
                self._deliveries.claimed(copy)
                self.directory.used(copy.original.destination, now)
            elif not subscriptions and not claims.of(copy.id):
                self.queues.decline(copy)
        if addressed:
            self.queues.follow_up(now)
        return copies

    def confirmed(self, messages: Sequence[MessageId]) -> None:
        """Drop records of acknowledgements that the application confirmed as well."""
        self.claims.confirmations.forget(messages)

    def expire(self, now: int) -> None:
        """Do what is due, and handle its consequences."""
        self.receipts.follow_clock()
        self.expire_parts(now)
        self.queues.follow_up(now)
        self.look_ahead()

    def finish(self, now: int) -> Sequence[Draft]:
        """Hand out what the step brought, and return messages for other nodes."""
        holdings, topics, queues = self.holdings, self.topics, self.queues
        if self.claims.ready:
            self.handing.hand_out(now)
        for copy in holdings.pop_carried() if holdings.carried else ():
            self.receipts.carried(copy)
            queues.manager.carried(copy)
        for message, node in holdings.pop_struck() if holdings.struck else ():
            self.receipts.acknowledged(message, node)
        for destination, subscriptions in topics.pop_changed() if topics.changed else ():
            queues.enrolling.follow(destination, subscriptions, now)
            if not subscriptions:
                queues.forsake(destination)
        for destination in queues.enrolling.drop_unreachable(now) if queues.enrolling.rows else ():
            for consumer in topics.consumers_of(destination):
                self._emit(Unserved(consumer.number, destination))
        queues.finish(now)
        return super().finish(now)

    # --- units of work -------------------------------------------------------------------------------------

    def check_session(self, session: int) -> None:
        """Raise unless there is such a session; 0 is none."""
        if session:
            self.sessions.session(session)

    def check_unit(self, drafts: Sequence[Draft], acks: Sequence[do.Ack]) -> None:
        """Raise if a unit of work is invalid, before anything is done about it."""
        for draft in drafts:
            self._channels.check_destination(draft.destination)
            self.topics.check_open(draft.destination, draft.ordering)
        self.queues.manager.check(drafts)
        for ack in acks:
            self.sessions.check(ack, self.claims.number)
        if acks:
            check_leases(((self.sessions.session(ack.session), ack) for ack in acks), self.holdings.now_us)

    def performed(self, sent: Sequence[tuple[Draft, Descriptor]], acks: Sequence[do.Ack]) -> None:
        """Track messages whose programs want receipts, and acknowledge what sessions are done with."""
        for draft, descriptor in sent:
            self.receipts.sent(draft, descriptor)
        for ack in acks:
            claims = self._standing(ack)
            for each in dict.fromkeys(claim.claimant.number for claim in claims if claim.claimant.durable):
                if (subscription := self.topics[each]) is not None:
                    self.topics.renew(subscription, self.holdings.now_us)
            self.claims.acknowledge(claims)

    def _standing(self, ack: do.Ack) -> list[Claim]:
        """Return the claims that an acknowledgement ends; return those to their queues for which it is too late."""
        session = self.sessions.session(ack.session)
        claims = session.named(ack)
        if not session.leased:
            return claims
        late = lapsed(claims, self.holdings.now_us)
        session.forget_overtaken(session.named_overtaken(ack))
        if ack.late is do.Late.RETURN:
            self.claims.give_back(late)
            claims = session.named(ack)
        else:
            for claim in late:
                claim.claimant.answer_late()
        self.queues.follow_up(self.holdings.now_us)
        return claims

    # --- commands ------------------------------------------------------------------------------------------

    def recover(self, session: int, *, unread: Collection[int] = (), numbers: Collection[int] | None = None) -> int:
        """Have everything redelivered that a session has not acknowledged, or only these `numbers`.

        Returns the last number under which anything was handed over before.
        """
        before, found = self.claims.number, self.sessions.session(session)
        if numbers is None:
            claims = list(found.handed.values())
            found.forget_overtaken(list(found.overtaken))
        else:
            claims = [found.handed[number] for number in numbers if number in found.handed]
            found.forget_overtaken(numbers)
        self.claims.give_back(claims, unread=unread)
        self.queues.follow_up(self.holdings.now_us)
        return before

    def end_queue(self, destination: str, now: int) -> None:
        """End a queue of this node, and unbind its names here."""
        self.queues.end(destination)
        self.directory.unbind_all(destination, now)

    def end_topic(self, destination: str, now: int) -> None:
        """Stop holding a topic of this node, and unbind its names here."""
        self.queues.holder.end(destination)
        self.directory.unbind_all(destination, now)

    def unbind(self, name: str, now: int) -> None:
        """Unbind a name, and end a queue of this node with its last name."""
        destination = self.directory.names.unbindable(name)[0].destination
        if self.queues.manager.declared.get(destination) is None or len(self.directory.names.bound_to(destination)) > 1:
            self.directory.unbind(name, now)
        else:
            self.end_queue(destination, now)


R = TypeVar("R")


class MessagingCommands:
    """Commands that programs give to messaging."""

    def __init__(
        self,
        steps: Steps,
        host_context: HostContext,
        deliveries: Deliveries,
        circles: Circles,
        overlay: Overlay | None = None,
    ) -> None:
        self._steps, self._step, self._host_context, self._deliveries = steps, steps.step, host_context, deliveries
        self._circles = circles
        self._overlay = overlay
        self._messaging: Messaging | None = None

    @property
    def is_open(self) -> bool:
        """True if messaging was opened."""
        return self._messaging is not None

    def overview(self) -> MessagingOverview | None:
        """Return an overview; None while messaging is dormant."""
        return None if self._messaging is None else self._messaging.overview()

    def views(self) -> Views | None:
        """Return what makes views of messaging at this moment, in full; None while it is dormant."""
        return None if self._messaging is None else self._messaging.views()

    def owed_to(self, message: MessageId) -> list[str]:
        """Return the subscriptions and queues of this node that have claims to a message."""
        return [] if self._messaging is None else self._messaging.owed_to(message)

    def open(self, now: int) -> None:
        """Open messaging: durable subscriptions from before a restart collect from now on. Idempotent."""
        if self._messaging is not None:
            return
        if not self._steps.incarnation:
            raise StateError(
                "start or restore the host first: otherwise state from before the restart would not be found"
            )
        with self._step(now):
            self._messaging = Messaging(self._host_context, self._deliveries, self._circles, self._steps, self._overlay)
            self._steps.join(self._messaging)

    @property
    def _awake(self) -> Messaging:
        if self._messaging is None:
            raise IllegalStateException("messaging is not open on this node: open it first (host.messaging.open)")
        return self._messaging

    @property
    def sessions(self) -> Sessions:
        """Connections, sessions and consumers of programs on this node."""
        return self._awake.sessions

    def execute(self, command: do.Command[R], now: int, number: int = 0) -> R:
        """Carry out a command, and return its answer, unless that comes by an event of this number.

        A durable command requires a number, which `Done` has.
        """
        with self._step(now, links=command.links, number=number if command.durable else None):
            return _DO[type(command)](self._awake, command, now, number)  # type: ignore[no-any-return]  # see its class

    def discover(self, number: int, nodes: Collection[NodeId], until_us: int, now: int) -> None:
        """Ask connected nodes for their names; `Discovered` of that number follows."""
        if not self._host_context.settings.island:
            raise IllegalStateException(
                "discovery asks connected nodes and requires island = true: set it, or look names up in the "
                "directory of this node"
            )
        with self._step(now):
            self._awake.discoveries.ask(number, nodes, until_us, now)


def _disconnect(on: Messaging, asked: do.Disconnect, now: int, _: int) -> None:
    for session in on.sessions.connection(asked.connection).sessions:
        on.forget_drafts(session)
    on.consuming.disconnect(asked.connection, now, unread=asked.unread, crashed=asked.crashed)


def _close_session(on: Messaging, asked: do.CloseSession, now: int, _: int) -> None:
    on.consuming.close_session(asked.session, now, unread=asked.unread)
    on.forget_drafts(asked.session)


def _rollback(on: Messaging, asked: do.Rollback, _now: int, _: int) -> int:
    before = on.recover(asked.session, unread=asked.unread)
    on.forget_drafts(asked.session)
    return before


def _browse(on: Messaging, asked: do.Browse, now: int, _: int) -> do.Browsing:
    on.directory.check_receiver(asked.destination)
    connection = on.sessions.session(asked.session).connection.number
    return on.queues.browse(asked.destination, asked.selector, connection, now)


def _lookup(on: Messaging, asked: do.Lookup, _now: int, _: int) -> Binding:
    """Return the binding of a name on this device. Raises a `NamingException`."""
    name, kind = asked.name, asked.kind
    names = on.directory.names
    letters = on.queues.letters_named(name)
    if letters is not None and name not in names.bound and kind in (None, address.Kind.QUEUE):
        return Binding(name, letters)  # A node that advertises such a name is not in the way.
    found = names.lookup(name, kind)
    if found is None:
        raise names.missing(name, "name" if kind is None else kind)
    return found


def _open_requests(on: Messaging, *_: object) -> tuple[do.OpenRequest, ...]:
    date_of = on.holdings.date_of
    return tuple(do.OpenRequest(each.correlation, date_of(each.deadline_us)) for each in on.queues.calls.all_open())


_Does = Callable[[Messaging, Any, int, int], Any]
_DO: Mapping[type[do.Command[Any]], _Does] = {
    do.Connect: lambda on, it, *_: on.sessions.connect(it.client).number,
    do.Disconnect: _disconnect,
    do.OpenSession: lambda on, it, *_: on.sessions.open(on.sessions.connection(it.connection)).number,
    do.CloseSession: _close_session,
    do.Recover: lambda on, it, *_: on.recover(it.session, unread=it.unread, numbers=it.numbers),
    do.Rollback: _rollback,
    do.Follow: lambda on, it, *_: on.receipts.followed(it.message),
    do.Consume: lambda on, it, now, _: on.consuming.consume(it.session, it.asked, now),
    do.Modulate: lambda on, it, now, _: on.consuming.modulate(it.consumer, it.modulator, now),
    do.Credit: lambda on, it, now, _: on.consuming.credit(it.consumer, it.messages, it.nbytes, now),
    do.CloseConsumer: lambda on, it, now, _: on.consuming.close_consumer(it.consumer, now, unread=it.unread),
    do.Unsubscribe: lambda on, it, now, _: on.consuming.unsubscribe(it.client, it.name, now),
    do.DeclareQueue: lambda on, it, *_: on.queues.manager.declared.declare(it.asked).destination,
    do.EndQueue: lambda on, it, now, _: on.end_queue(it.destination, now),
    do.DeclareTopic: lambda on, it, *_: on.queues.holder.declare(it.name).destination,
    do.EndTopic: lambda on, it, now, _: on.end_topic(it.destination, now),
    do.Browse: _browse,
    do.Release: lambda on, it, now, _: on.handing.release(
        on.sessions.session(it.session), it.numbers, now, dead=it.dead, error=it.error
    ),
    do.Defer: lambda on, it, now, _: on.handing.defer(
        on.sessions.session(it.session), it.number, now + it.delay_us, now
    ),
    do.Retry: lambda on, it, *_: on.handing.retry(on.sessions.session(it.session), it.number),
    do.GoOn: lambda on, it, *_: on.claims.go_on(on.sessions.session(it.session)),
    do.ReceiveCounts: lambda on, it, *_: on.placements.counts(it.name),
    do.AskToManage: lambda on, it, now, number: on.placements.ask(
        number, it.asked, it.node, now + it.timeout_us, now, advertise=it.advertise
    ),
    do.RememberRequest: lambda on, it, *_: on.queues.calls.remember(
        it.correlation, on.holdings.own_time(it.deadline_us)
    ),
    do.ForgetRequest: lambda on, it, *_: on.queues.calls.forget(it.correlation),
    do.OpenRequests: _open_requests,
    do.MakeCard: lambda on, _, now, __: on.keyring.card(now),
    do.AddCard: lambda on, it, now, _: on.keyring.add_card(it.card, now),
    do.FoundCircle: lambda on, it, now, _: on.circles.found(it.name, now),
    do.InviteToCircle: lambda on, it, now, _: on.circles.invite(it.circle, it.card, it.days, now, fresh=it.fresh),
    do.JoinCircle: lambda on, it, now, _: on.circles.join(it.code, now, it.root),
    do.RemoveFromCircle: lambda on, it, now, _: on.circles.remove(it.circle, it.node, now),
    do.RotateCircle: lambda on, it, now, _: on.circles.rotate(it.circle, now),
    do.LeaveCircle: lambda on, it, *_: on.circles.leave(it.circle),
    do.ExportCircle: lambda on, it, *_: on.circles.export(it.circle),
    do.ShowCircles: lambda on, *_: on.circles.views(),
    do.BindName: lambda on, it, now, _: on.directory.bind(on.queues.described(it.asked), now),
    do.Unbind: lambda on, it, now, _: (on.directory.destroy if it.context else on.unbind)(it.name, now),
    do.Lookup: _lookup,
    do.Entries: lambda on, it, *_: on.directory.names.listing(it.context),
}
"""Functions by the command that they carry out, given the command, the time, and the number of its answer."""
