"""Messaging on one host, as a layer between order and the application's side.

Everything that passes order comes by `receive`, gets its claims, and goes on. The commands of programs are in
`messaging.programs`. Nothing here publishes or depends on order.
"""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING

from carrypost.gossip.composite import Composite
from carrypost.log import record
from carrypost.log.events import Unserved
from carrypost.log.journal import MOM
from carrypost.messaging import leases, log_rows
from carrypost.messaging.claims import Claims
from carrypost.messaging.commands import Late
from carrypost.messaging.consumers import Consumers
from carrypost.messaging.context import MessagingContext
from carrypost.messaging.discovery import Discoveries
from carrypost.messaging.dispatcher import Dispatcher
from carrypost.messaging.names.directory import PREFIX, Directory
from carrypost.messaging.names.sealing_keys import SUFFIX, SealingKeys
from carrypost.messaging.overview import NAMES_TOLD, MessagingOverview
from carrypost.messaging.owed_receipts import OwedReceipts
from carrypost.messaging.placement import Placements
from carrypost.messaging.queues.queues import ADDRESSED, Queues
from carrypost.messaging.receipts import Receipts
from carrypost.messaging.session import Sessions
from carrypost.messaging.topic import Topics
from carrypost.messaging.views import Viewed, Views
from carrypost.model.ids import MessageId

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from carrypost.application.circles import Circles
    from carrypost.application.deliveries import Deliveries
    from carrypost.application.keyring import Keyring
    from carrypost.gossip.draft import Draft
    from carrypost.gossip.holdings.copies import Copy
    from carrypost.gossip.layer import Steps
    from carrypost.gossip.transfers.host_context import HostContext
    from carrypost.messaging.channels import Overlay
    from carrypost.messaging.commands import Ack
    from carrypost.messaging.state import Claim
    from carrypost.model.descriptor import Descriptor


class Messaging(Composite):
    """The subscriptions, claims and sessions of one host."""

    kind = MOM

    @classmethod
    def register(cls) -> None:
        """Let receipts and assignments append rows to the event log."""
        record.register(log_rows.ROWS)

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
        self._topics = Topics(context)
        self.claims = Claims(context, owed, self._topics)
        self.queues: Queues = Queues(context, self.claims, self.receipts, self._topics)
        self.handing: Dispatcher = Dispatcher(context, self.claims, self.queues)
        self.sessions: Sessions = Sessions()
        self.directory: Directory = Directory(context, self._topics, self.queues)
        self._keys = SealingKeys(context)
        self.placements: Placements = Placements(context, self.queues, self.directory)
        self.discoveries = Discoveries(context, self.queues, self.directory)
        self.consuming: Consumers = Consumers(
            context, self.sessions, self._topics, self.claims, queues=self.queues, directory=self.directory
        )
        self.compose(
            host_context.holdings,
            (
                context.outbox, self.receipts, self.consuming, self._topics, self._channels, self.claims,
                *self.queues.parts, owed, self.directory, self._keys, circles, self.placements,
                self.discoveries,
            ),
        )  # fmt: skip

    def overview(self) -> MessagingOverview:
        """Return an overview of messaging."""
        date_of, lapsing = self.holdings.date_of, islice(self._topics.lapsing(), NAMES_TOLD)
        return MessagingOverview(
            subscriptions=len(self._topics),
            durable=sum(each.durable for each in self._topics),
            consumers=sum(len(each.consumers) for each in self._topics),
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
        parts = Viewed(self.queues, self._topics, self.receipts, self.sessions, self.claims)
        return Views(parts, self.holdings, self._node)

    def owed_to(self, message: MessageId) -> list[str]:
        """Return the subscriptions and queues of this node that have claims to a message."""
        claimants = [claim.claimant.written for claim in self.claims.of(message)]
        return list(dict.fromkeys([*claimants, *self.queues.having(message)]))

    # --- a layer -------------------------------------------------------------------------------------------

    def receive(self, copies: Sequence[Copy]) -> Sequence[Copy]:
        """Claim these messages for matching subscriptions; all of them go on."""
        claims, interested, now = self.claims, self._topics.interested, self.holdings.now_us
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
        holdings, topics, queues = self.holdings, self._topics, self.queues
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

    def check_unit(self, drafts: Sequence[Draft], acks: Sequence[Ack]) -> None:
        """Raise if a unit of work is invalid, before anything is done about it."""
        for draft in drafts:
            self._channels.check_destination(draft.destination)
            self._topics.check_open(draft.destination, draft.ordering)
        self.queues.manager.check(drafts)
        for ack in acks:
            self.sessions.check(ack, self.claims.number)
        if acks:
            leases.check(((self.sessions.session(ack.session), ack) for ack in acks), self.holdings.now_us)

    def performed(self, sent: Sequence[tuple[Draft, Descriptor]], acks: Sequence[Ack]) -> None:
        """Track messages whose programs want receipts, and acknowledge what sessions are done with."""
        for draft, descriptor in sent:
            self.receipts.sent(draft, descriptor)
        for ack in acks:
            claims = self._standing(ack)
            for each in dict.fromkeys(claim.claimant.number for claim in claims if claim.claimant.durable):
                if (subscription := self._topics[each]) is not None:
                    self._topics.renew(subscription, self.holdings.now_us)
            self.claims.acknowledge(claims)

    def _standing(self, ack: Ack) -> list[Claim]:
        """Return the claims that an acknowledgement ends; return those to their queues for which it is too late."""
        session = self.sessions.session(ack.session)
        claims = session.named(ack)
        if not session.leased:
            return claims
        late = leases.lapsed(claims, self.holdings.now_us)
        session.forget_overtaken(session.named_overtaken(ack))
        if ack.late is Late.RETURN:
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
