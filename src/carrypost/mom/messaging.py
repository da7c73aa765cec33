"""Messaging on one host, as a layer between order and the application's side.

Everything that passes order comes by `take`, gets its claims, and goes on. Commands come from the host, which makes a
step of each; what they change is in that step's batch. Nothing here publishes, and nothing knows about order.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from carrypost.errors import IllegalStateException, JMSException
from carrypost.events import Handed, Reason
from carrypost.gossip.layer import Layer
from carrypost.journal import MOM
from carrypost.model.ids import MessageId
from carrypost.model.times import NEVER
from carrypost.mom import claims as claim_rows
from carrypost.mom import confirmations as confirmation_rows
from carrypost.mom import topic as topic_rows
from carrypost.mom.claims import Claims
from carrypost.mom.commands import Receive
from carrypost.mom.handing import Handing
from carrypost.mom.kept import Kept
from carrypost.mom.ledger import RETRY_US, Ledger
from carrypost.mom.names import directory as directory_rows
from carrypost.mom.names.directory import Directory
from carrypost.mom.overview import MessagingOverview
from carrypost.mom.owed import Owed
from carrypost.mom.post import Post
from carrypost.mom.queues.queues import ADDRESSED, Queues
from carrypost.mom.receipts import Receipts
from carrypost.mom.session import Sessions
from carrypost.mom.state import destination_of
from carrypost.mom.topic import Topics

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from carrypost.events import Event
    from carrypost.gossip.holdings.copies import Copy
    from carrypost.gossip.layer import Draft
    from carrypost.gossip.transfers.ground import Ground
    from carrypost.journal import Key, Value
    from carrypost.local.deliveries import Deliveries
    from carrypost.model.descriptor import Descriptor
    from carrypost.mom.commands import Ack, Browsing, Declare, Followed, Subscribe
    from carrypost.mom.state import Claim, Claimant, Consumer, Subscription

_NUMBER_BYTES = 8


class Messaging(Layer):
    """The subscriptions, claims and sessions of one host."""

    kind = MOM

    def __init__(self, ground: Ground, deliveries: Deliveries, incarnation: int) -> None:
        self._holdings, self._cache = ground.holdings, ground.holdings.cache
        self._journal, self._settings = ground.outputs.journal, ground.settings.messaging
        self._deliveries = deliveries
        self._ledger = Ledger(self._journal)
        post = Post(ground)
        self._receipts = Receipts(ground, self._ledger)
        self._owed = Owed(ground, self._ledger, post)
        self._claims = Claims(ground, deliveries, self._ledger, self._owed)
        self._topics = Topics(ground, deliveries, self._ledger, incarnation)
        self.queues = Queues(
            ground, deliveries, self._claims, self._ledger, post=post, receipts=self._receipts, incarnation=incarnation
        )
        self._handing = Handing(ground, self._claims, self.queues)
        self._sessions = Sessions()
        self.directory = Directory(ground, deliveries, self._ledger)
        """Names of topics and queues; its commands are the host's to give."""
        self._commits: dict[int, list[Claim]] = {}
        """What the commits acknowledged that are not durable, by their numbers."""
        self._made: dict[int, Consumer] = {}
        """The consumers of durable subscriptions that are not durable yet, by the numbers of the commands."""
        self._makers: dict[Claimant, int] = {}
        """Those subscriptions, and the commands that made them."""
        self._replaced: dict[Claimant, Subscription] = {}
        """Those of them that have the name of another one, and that other: it ends when its successor is durable."""
        self._kept = Kept(self._claims, ground.settings)
        self._replaced_for_good: list[Subscription] = []
        """Those whose successors are: they end with the next step."""
        self._resume_us = NEVER
        """Nothing is handed over before this: the disk failed, and what is handed over is counted there."""

    def overview(self) -> MessagingOverview:
        """How things stand."""
        return MessagingOverview(
            subscriptions=len(self._topics),
            durable=sum(each.durable for each in self._topics),
            consumers=sum(len(each.consumers) for each in self._topics),
            claims=len(self._claims),
            pinned=self._claims.pinned,
            lost=self._claims.lost,
            **self.queues.overview(),
        )

    # --- a layer -------------------------------------------------------------------------------------------

    def restore(self, rows: Iterable[tuple[Key, Value]]) -> None:
        """Take in durable subscriptions and their claims; flag what live ones were given."""
        now = self._holdings.now_us
        found = sorted((name, value) for (_, name, _), value in rows if isinstance(value, bytes))
        by_family: dict[bytes, list[tuple[bytes, bytes]]] = {}
        for name, value in found:
            by_family.setdefault(name[:1], []).append((name, value))
        for name, value in by_family.get(topic_rows.FAMILY, ()):
            self._topics.restore(int.from_bytes(name[1:], "big"), value, now)
        claimed = [copy for copy in self._holdings.known_copies() if self._holdings.is_claimed(copy)]
        self._deliveries.wishes.pass_over(claimed)  # The claims to those are rows, or have ended.
        self._claims.confirmations.restore(
            [MessageId(name[1:]) for name, _ in by_family.get(confirmation_rows.FAMILY, ())]
        )
        for copy in claimed:
            if self._claims.claimable(copy):
                self._claims.inherit(copy)
        self._restore_claims(by_family.get(claim_rows.FAMILY, ()), now)
        self.queues.wake()
        self.queues.restore(found, now)
        self._receipts.restore(found)
        self._owed.restore(found, now)
        self.directory.restore(by_family.get(directory_rows.FAMILY, ()), now)
        self._look_ahead()

    def _restore_claims(self, rows: Iterable[tuple[bytes, bytes]], now: int) -> None:
        claims: list[tuple[Subscription, MessageId, bytes]] = []
        for name, value in rows:
            subscription = self._topics[int.from_bytes(name[1 : 1 + _NUMBER_BYTES], "big")]
            if subscription is None:
                self._ledger.delete(name)
            else:
                claims.append((subscription, MessageId(name[1 + _NUMBER_BYTES :]), value))
        self._claims.restore(claims, now)

    def take(self, copies: Sequence[Copy]) -> Sequence[Copy]:
        """Claim these for whoever wants them; all of them go on."""
        claims, interested, now = self._claims, self._topics.interested, self._holdings.now_us
        if self.directory.take(copies):
            self._look_ahead()
        addressed = False
        for copy in copies:
            if copy.descriptor.destination.startswith(ADDRESSED):
                self.queues.take(copy, now)
                addressed = True
                continue
            subscriptions = interested(copy.descriptor)
            if subscriptions and claims.claimable(copy) and claims.make(copy, subscriptions, now):
                self._deliveries.claimed(copy)
                self.directory.used(copy.descriptor.destination, now)
        if addressed:
            self.queues.follow_up(now)
        return copies

    def published(self, copies: Sequence[Copy]) -> None:
        """Messages of this node were admitted: to send is to use what a destination is called."""
        self.queues.post.published(copies)
        for copy in copies:
            self.directory.used(copy.descriptor.destination, self._holdings.now_us)

    def left(self, copies: Sequence[Copy], reason: Reason | None) -> None:
        """Copies are gone, and with them the claims to them."""
        if reason is not None:
            self._receipts.left(copies, reason)
            for copy in copies:
                self._claims.left(copy, reason)
            self.queues.left(copies, reason)
        if reason is Reason.STORE:
            self.directory.left(copies, self._holdings.now_us)

    def confirmed(self, messages: Sequence[MessageId]) -> None:
        """The application has them, too: that they were acknowledged needs no note any more."""
        self._claims.confirmations.forget(messages)

    def expire(self, now: int) -> None:
        """Do what is due: delivery times, leases, interests that nobody has, rows that were not written."""
        self._claims.expire(now)
        if self._kept.due_us <= now:
            self._kept.let_go()
        replaced, self._replaced_for_good = self._replaced_for_good, []
        for subscription in [*replaced, *self._topics.lapsed(now)]:
            self._end(subscription, now)
        self._topics.expire(now)
        self.directory.expire(now, self._is_consumed)
        if self._ledger.due_us <= now:
            self._ledger.write_again()
            self.queues.post.rewritten()
        self._receipts.expire(now)
        self.queues.expire(now)
        if self._resume_us <= now:
            self._resume_us = NEVER
        self._look_ahead()

    def _is_consumed(self, destination: str) -> bool:
        return self._topics.is_consumed(destination) or self.queues.receiver.asks(destination)

    def finish(self, now: int) -> Sequence[Draft]:
        """Hand out what the step brought, and say what others are to know."""
        if self._kept.is_ripe(now) and (self._journal.puts or self._journal.deletes):
            self._kept.let_go()
        if self._resume_us == NEVER:
            self._handing.hand_out(now)
        for copy in self._holdings.take_carried():
            self._receipts.carried(copy.id)
            self.queues.manager.carried(copy)
        drafts = [*self.queues.finish(now), *self.directory.drafts(now)]
        self._look_ahead()
        return drafts

    def _look_ahead(self) -> None:
        self.due_us = min(
            self._claims.due_us, self._topics.due_us, self._ledger.due_us, self._resume_us, self._kept.due_us,
            self.queues.due_us, self._receipts.due_us, self.directory.due_us,
        )  # fmt: skip

    def rows(self, serial: int) -> dict[Key, Value | None]:
        """None that are not in the journal already; the batch that has them gets its number now."""
        self._ledger.batched(serial)
        self.queues.post.batched(serial)
        return {}

    def durable(self, serial: int) -> None:
        """A batch is on disk."""
        self._ledger.durable(serial)
        self.queues.post.durable(serial)
        self._receipts.durable(serial)

    def lost(self, serial: int, held: Sequence[Event]) -> Sequence[Descriptor]:
        """A batch could not be written: its rows are written again.

        What was handed over and is not told yet, by later batches, too, is handed over later: so nothing overtakes.
        """
        now = self._holdings.now_us
        self._ledger.lost(serial, now)
        self.queues.post.lost(serial)
        self._receipts.lost(serial, held)
        untold = {event.number for event in held if isinstance(event, Handed)} | self._journal.retract_handed()
        if untold:
            self._claims.take_back(self._sessions.handed(untold))
            self._resume_us = now + RETRY_US
        self._look_ahead()
        return ()

    # --- programs ------------------------------------------------------------------------------------------

    def connect(self, client: str = "") -> int:
        """A program's connection, with its client id if it has one; returns its number."""
        return self._sessions.connect(client).number

    def disconnect(self, connection: int, now: int, *, unread: Collection[int] = ()) -> None:
        """Close a connection with all its sessions."""
        found = self._sessions.connection(connection)
        for session in list(found.sessions):
            self.close_session(session, now, unread=unread)
        self.queues.end_temporary(connection)
        self._sessions.disconnect(found)

    def sessions_of(self, connection: int) -> list[int]:
        """The numbers of a connection's sessions."""
        return list(self._sessions.connection(connection).sessions)

    def open_session(self, connection: int) -> int:
        """One more session; returns its number."""
        return self._sessions.open(self._sessions.connection(connection)).number

    def close_session(self, session: int, now: int, *, unread: Collection[int] = ()) -> None:
        """Close a session and its consumers. What it did not acknowledge goes back; `unread`: what nobody saw of it."""
        found = self._sessions.session(session)
        self._claims.give_back(list(found.handed.values()), unread=unread)
        for consumer in list(found.consumers):
            self.close_consumer(consumer, now)
        self._sessions.close(found)
        self.queues.follow_up(now)

    def consume(self, session: int, asked: Subscribe | Receive, number: int, now: int) -> int:
        """A consumer of a queue, of a new subscription, or of one that is here already; returns its number.

        `number` is that of the command: where a new durable subscription could not be written, it is undone by it.
        """
        found = self._sessions.session(session)
        if isinstance(asked, Receive):
            self.directory.check_receiver(asked.destination)
            receiving = self.queues.open(asked, found.connection.number, now)
            self.directory.used(asked.destination, now)
            consumer = self._sessions.consume(found, receiving)
            receiving.consumers.append(consumer)
            return consumer.number
        client, policy = found.connection.client, self._settings.non_durable
        adapted = policy == "as_durable" and not (asked.durable or asked.shared)
        if adapted:
            asked = self._topics.as_durable(asked, client)
        elif policy == "reject" and not asked.durable:
            raise JMSException(
                'this node takes durable subscriptions only (messaging.non_durable = "reject"): '
                "give the subscription a name and make it durable"
            )
        known = self._topics.check(asked, client, adapted=adapted)
        self.directory.opened(destination_of(asked.entry), now)
        new = known is None or known.asked != asked
        if known is None or known.asked != asked:
            subscription = self._topics.add(asked, found.connection.number, client, now)
            if known is not None:
                self._replaced[subscription] = known
                self._claims.note_handed([*known.backlog, *self._sessions.handed_for(known)])
        else:
            subscription = known
            subscription.connection = found.connection.number
            self._topics.renew(subscription, now)
        consumer = self._sessions.consume(found, subscription)
        subscription.consumers.append(consumer)
        if new and asked.durable:
            self._makers[subscription] = number
        if subscription in self._makers:
            self._made[number] = consumer
        return consumer.number

    def is_undoable(self, number: int) -> bool:
        """Whether a command made a consumer that goes if it is lost. A live subscription has nothing to write."""
        return number in self._made

    def depending(self, numbers: Collection[int]) -> set[int]:
        """The commands that are undone with these: they made more consumers of the same new subscriptions."""
        subscriptions = {made for made, maker in self._makers.items() if maker in numbers}
        return {number for number, consumer in self._made.items() if consumer.claimant in subscriptions}

    def credit(self, consumer: int, messages: int, nbytes: int, now: int) -> None:
        """A consumer takes so much more."""
        if messages < 0 or nbytes < 0:
            raise JMSException(f"credit is how much more a consumer takes, not {messages} messages of {nbytes} bytes")
        found = self._sessions.consumer(consumer)
        found.messages += messages
        found.nbytes += nbytes
        self._claims.ready[found.claimant] = None
        if (receiving := self.queues.receiver.of(found.claimant)) is not None:
            self.queues.receiver.grant(receiving, messages, now)
            self.queues.follow_up(now)

    def close_consumer(self, consumer: int, now: int, *, unread: Collection[int] = ()) -> None:
        """Close a consumer. What it handed on stays with its session; what is `unread` goes back."""
        found = self._sessions.consumer(consumer)
        mine = [claim for claim in found.session.handed.values() if claim.consumer is found]
        self._claims.give_back(mine, unread=unread, seen=False)
        found.claimant.consumers.remove(found)
        self._sessions.leave(found)
        if (receiving := self.queues.receiver.of(found.claimant)) is not None:
            self.queues.receiver.close(receiving)
            self.queues.follow_up(now)
        elif (subscription := self._topics[found.claimant.number]) is None:
            return  # It ended before.
        elif subscription.durable:
            self._topics.renew(subscription, now)
        elif not subscription.consumers:
            self._end(subscription, now)

    def unsubscribe(self, client: str, name: str, now: int) -> None:
        """End a durable subscription for good, with all that waits for it."""
        subscription = self._topics.named(client, name)
        if self._sessions.handed_for(subscription):
            raise IllegalStateException(
                f"messages of the subscription {name!r} are not acknowledged yet: acknowledge them, commit or recover"
            )
        self._end(subscription, now)

    def _end(self, subscription: Subscription, now: int) -> None:
        if subscription.ended:
            return
        replaced = self._replaced.pop(subscription, None)
        if replaced is not None:
            self._end(replaced, now)
        self._topics.remove(subscription, now)
        self._claims.end(subscription, self._sessions.handed_for(subscription) if subscription.durable else ())

    def recover(self, session: int, *, unread: Collection[int] = (), numbers: Collection[int] | None = None) -> None:
        """Let everything come again that a session has not acknowledged, or of that these `numbers`."""
        handed = self._sessions.session(session).handed
        claims = [claim for number, claim in handed.items() if numbers is None or number in numbers]
        self._claims.give_back(claims, unread=unread)
        self.queues.follow_up(self._holdings.now_us)

    @property
    def last_number(self) -> int:
        """The last number under which something was handed over."""
        return self._claims.number

    # --- queues --------------------------------------------------------------------------------------------

    def declare(self, number: int, asked: Declare) -> str:
        """A queue that this node manages; returns its destination."""
        return self.queues.declare(number, asked).destination

    def end_queue(self, destination: str, now: int) -> None:
        """End a queue of this node, and let go the names that it has here."""
        self.queues.end(destination)
        self.directory.unbind_all(destination, now)

    def unbind(self, name: str, number: int, now: int) -> bool:
        """Let a name go. With the last name of a queue of this node the queue ends: then this returns True."""
        destination = self.directory.names.unbindable(name)[0].destination
        if self.queues.manager.get(destination) is None or len(self.directory.names.bound_to(destination)) > 1:
            self.directory.unbind(name, number, now)
            return False
        self.end_queue(destination, now)
        return True

    def browse(self, session: int, destination: str, selector: str | None, now: int) -> Browsing:
        """What waits in a queue, as far as it is known here."""
        self.directory.check_receiver(destination)
        return self.queues.browse(destination, selector, self._sessions.session(session).connection.number, now)

    def release(self, session: int, numbers: Collection[int], now: int, *, dead: bool) -> None:
        """A session does not take these any more: dead letters go into a queue of their own."""
        self._handing.release(self._sessions.session(session), numbers, now, dead=dead)

    def retry(self, session: int, number: int) -> int:
        """A session tries once more what it has; returns how often that was handed over, 0 if it has it no more."""
        return self._handing.retry(self._sessions.session(session), number)

    def go_on(self, session: int) -> None:
        """A session takes more, though it did not acknowledge what came alone."""
        self._claims.go_on(self._sessions.session(session))

    # --- works ---------------------------------------------------------------------------------------------

    def check(self, sends: Collection[Draft], acks: Iterable[Ack]) -> None:
        """Raise what is wrong with a work before anything is done about it."""
        for draft in sends:
            self._topics.check_open(draft.destination, draft.ordering)
        self.queues.check(sends)
        for ack in acks:
            self._sessions.check(ack, self._claims.number)

    def sent(self, drafts: Iterable[Draft], descriptors: Iterable[Descriptor]) -> None:
        """These were sent in this step: some programs want to hear how far they come."""
        for draft, descriptor in zip(drafts, descriptors, strict=True):
            self._receipts.sent(draft, descriptor)

    def followed(self, message: MessageId) -> Followed | None:
        """What is known of a message of this node, None if nothing is; how far it has come is told."""
        return self._receipts.followed(message)

    def check_session(self, session: int) -> None:
        """Raise unless there is such a session; 0 is none."""
        if session:
            self._sessions.session(session)

    def acknowledge(self, number: int, acks: Iterable[Ack], now: int, *, commit: bool) -> None:
        """Sessions are done with messages. Those of a `commit` are undone if its batch is lost."""
        done: list[Claim] = []
        for ack in acks:
            claims = self._sessions.session(ack.session).named(ack)
            for each in dict.fromkeys(claim.claimant.number for claim in claims if claim.claimant.durable):
                if (subscription := self._topics[each]) is not None:
                    self._topics.renew(subscription, now)
            done += self._claims.acknowledge(claims, undoable=commit)
        if done:
            self._commits[number] = done

    def done(self, number: int) -> None:
        """A command is durable."""
        consumer = self._made.pop(number, None)
        if consumer is not None and self._makers.get(consumer.claimant) == number:
            del self._makers[consumer.claimant]
            if (replaced := self._replaced.pop(consumer.claimant, None)) is not None:
                self._replaced_for_good.append(replaced)
                self.due_us = self._holdings.now_us  # This is no step: what it changed would be in nobody's batch.
        self.queues.done(number)
        if number in self._commits:
            self._kept.add(self._commits.pop(number), self._holdings.now_us)
            self.due_us = min(self.due_us, self._kept.due_us)
        self.directory.done(number)

    def undo(self, number: int, now: int) -> None:
        """A command was lost: sessions and subscriptions are as they were before it."""
        self.queues.undo(number)
        self._claims.undo(self._commits.pop(number, ()))
        self.directory.undo(number, now)
        consumer = self._made.pop(number, None)
        if consumer is None:
            return
        made = consumer.claimant
        if consumer in made.consumers:
            self.close_consumer(consumer.number, now)
        if self._makers.get(made) == number:
            del self._makers[made]
            replaced = self._replaced.pop(made, None)
            if (subscription := self._topics[made.number]) is not None:
                self._end(subscription, now)
            if replaced is not None and not replaced.ended:
                self._bring_back(replaced, made)

    def _bring_back(self, replaced: Subscription, successor: Claimant) -> None:
        """A subscription could not be written, and does not replace another one; what replaces it may."""
        for later, other in self._replaced.items():
            if other is successor:
                self._replaced[later] = replaced
                return
        self._topics.rename(replaced)
