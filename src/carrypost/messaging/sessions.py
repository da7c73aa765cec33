"""Connections, sessions and consumers of programs: how they begin and end, and the messages that they are handed.

`Sessions` has all of them, and `Consumers` lets consumers join their subscriptions and leave them. A durable
subscription that asks for something else than the one of the same name replaces it, in one batch.

`Dispatcher` hands messages to consumers, a limited number of times. A message that was handed over `messaging.tries`
times and never acknowledged becomes a dead letter the next time: its consumers may have failed with it, or crashed
because of it. `check_leases` refuses acknowledgements that come after the leases of their messages.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

import msgspec

from carrypost.errors import IllegalStateException, InvalidClientIDException, JMSException
from carrypost.gossip.layer import Part
from carrypost.log.events import GivenUp, Reason
from carrypost.messaging.claim_and_claimant import Connection, Consumer, Session, destination_of, held_of
from carrypost.messaging.commands import LEASE_OVER, Late, Receive
from carrypost.messaging.namespace import letters_of, letters_of_topic
from carrypost.model import address
from carrypost.model.headers import TEXT_MAX

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping

    from carrypost.messaging.claim_and_claimant import Claim, Claimant, Subscription
    from carrypost.messaging.claims import Claims
    from carrypost.messaging.commands import Ack, Subscribe
    from carrypost.messaging.context import MessagingContext
    from carrypost.messaging.directory import Directory
    from carrypost.messaging.queues.queues import Queues
    from carrypost.messaging.subscriptions import Topics


T = TypeVar("T")


class Sessions:
    """The connections to one node's messaging."""

    def __init__(self) -> None:
        self._connections: dict[int, Connection] = {}
        self._sessions: dict[int, Session] = {}
        self._consumers: dict[int, Consumer] = {}
        self._number = 0

    def __iter__(self) -> Iterator[Session]:
        return iter(self._sessions.values())

    def _next(self) -> int:
        self._number += 1
        return self._number

    def connect(self, client: str) -> Connection:
        """Open a connection. A client id belongs to one at a time."""
        if len(client) > TEXT_MAX:  # It travels with messages.
            raise InvalidClientIDException(f"a client id has at most {TEXT_MAX:,} characters, not {len(client):,}")
        if client and any(each.client == client for each in self._connections.values()):
            raise InvalidClientIDException(
                f"the client id {client!r} is in use on this node: close the connection that has it, or choose another"
            )
        connection = Connection(self._next(), client)
        self._connections[connection.number] = connection
        return connection

    def disconnect(self, connection: Connection) -> None:
        """Remove a connection, whose sessions are closed already."""
        del self._connections[connection.number]

    def open(self, connection: Connection) -> Session:
        """Open a session."""
        session = Session(self._next(), connection)
        self._sessions[session.number] = connection.sessions[session.number] = session
        return session

    def close(self, session: Session) -> None:
        """Remove a session, whose consumers are closed already."""
        session.closed = True
        del self._sessions[session.number], session.connection.sessions[session.number]

    def consume(self, session: Session, claimant: Claimant) -> Consumer:
        """Add a consumer."""
        consumer = Consumer(self._next(), session, claimant)
        self._consumers[consumer.number] = session.consumers[consumer.number] = consumer
        return consumer

    def leave(self, consumer: Consumer) -> None:
        """Remove a consumer."""
        del self._consumers[consumer.number], consumer.session.consumers[consumer.number]

    def handed(self, numbers: Collection[int]) -> list[Claim]:
        """Return the claims that sessions have under these numbers."""
        sessions = self._sessions.values()
        return [claim for session in sessions for number, claim in session.handed.items() if number in numbers]

    def handed_for(self, claimant: Claimant) -> list[Claim]:
        """Return the claims of one subscription that sessions have."""
        sessions = self._sessions.values()
        return [claim for each in sessions for claim in each.handed.values() if claim.claimant is claimant]

    def connection_of(self, *, session: int = 0, consumer: int = 0) -> int:
        """Return the number of the connection that a session or a consumer belongs to; 0 if that is closed."""
        found = self._consumers.get(consumer)
        of = self._sessions.get(session) if found is None else found.session
        return 0 if of is None else of.connection.number

    def connection(self, number: int) -> Connection:
        """Return the connection of this number; raises `IllegalStateException`."""
        return _open(self._connections, number, "connection", "connect again")

    def session(self, number: int) -> Session:
        """Return the session of this number; raises `IllegalStateException`."""
        return _open(self._sessions, number, "session", "open another")

    def check(self, ack: Ack, last: int) -> None:
        """Raise `IllegalStateException` for numbers that cannot be acknowledged; `last`: the last number handed over.

        Claims that ended meanwhile are valid: they expired, or were acknowledged before.
        """
        session = self.session(ack.session)
        for number in (*ack.numbers, ack.through):
            if not 0 <= number <= last:
                raise IllegalStateException(
                    f"no message was handed over with the number {number}: acknowledge by `Handed.number`"
                )
        for number in ack.numbers:
            if number not in session.handed and self.handed((number,)):
                raise IllegalStateException(
                    f"the number {number} was handed to another session than {ack.session}: acknowledge it there"
                )

    def consumer(self, number: int) -> Consumer:
        """Return the consumer of this number; raises `IllegalStateException`."""
        return _open(self._consumers, number, "consumer", "create another")


def _open(things: Mapping[int, T], number: int, what: str, advice: str) -> T:
    if number not in things:
        raise IllegalStateException(f"{what} {number} is closed: {advice}")
    return things[number]


def lapsed(claims: Iterable[Claim], now: int) -> list[Claim]:
    """Return the claims that were handed over with a lease that is over: others may have their messages by now."""
    return [claim for claim in claims if claim.leased and claim.is_lapsed(now)]


def check_leases(acks: Iterable[tuple[Session, Ack]], now: int) -> None:
    """Raise `IllegalStateException` if leases are over whose acknowledgements must not be late."""
    over = count = 0
    for session, ack in acks:
        if session.leased and ack.late is Late.REFUSE:
            named, overtaken = session.named(ack), session.named_overtaken(ack)
            count += len(named) + len(overtaken)
            over += len(lapsed(named, now)) + len(overtaken)
    if over:
        which = "the lease of the message is" if count == 1 else f"the leases of {over} of {count} messages are"
        raise IllegalStateException(
            f"{which} over, and the messages may have been redelivered elsewhere: declare the queue with a longer "
            "lease_s",
            LEASE_OVER,
        )


class Dispatcher:
    """The messages that sessions of one host are handed, and those that they give up."""

    def __init__(self, context: MessagingContext, claims: Claims, queues: Queues) -> None:
        self._emit, self._node = context.outputs.emit, context.node
        self._claims, self._queues = claims, queues

    def hand_out(self, now: int) -> None:
        """Hand waiting messages to consumers; those handed over too often become dead letters instead."""
        while self._claims.ready:
            spent = self._claims.hand_out()
            if not spent:
                return
            for claim, consumer in spent:
                self._emit(GivenUp(consumer.number, claim.copy.readable, claim.count))
                self._give_up(claim, now, "")
            self._queues.follow_up(now)

    def _give_up(self, claim: Claim, now: int, error: str) -> str:
        """Make a dead letter of a message, for a queue at its manager; return the address of the queue that it enters.

        `error`: what a program failed with; empty if that is not known.
        """
        pattern, tenure = claim.claimant.pattern, claim.tenure
        if tenure is None and not self._queues.manager.bury(claim.copy, pattern, now, claim.count, error):
            self._claims.lose(claim, Reason.DEAD_LETTER)
        self._claims.give_up(claim, error)
        if tenure is None:
            return address.queue(letters_of_topic(pattern, self._node), self._node)
        return letters_of(tenure.queue)

    def release(self, session: Session, numbers: Collection[int], now: int, *, dead: bool, error: str = "") -> str:
        """Release messages that a session does not take any more: dead letters go into a queue of their own.

        Returns the address of that queue for the last of them; an empty text if none is a dead letter.
        """
        letters = ""
        for claim in [session.handed[number] for number in numbers if number in session.handed]:  # Others ended.
            if dead and not claim.is_of_dead_letters:
                letters = self._give_up(claim, now, error)
            elif claim.tenure is not None and not dead:
                self._claims.withdraw(claim)
                claim.tenure.release(dead=False)
            # A dead letter would come again at once: it stays with the session, and comes again when that ends.
        self._queues.follow_up(now)
        return letters

    def defer(self, session: Session, number: int, until_us: int, now: int) -> None:
        """Return a message that a session has, to be handed out again only after `until_us`."""
        claim = session.handed.get(number)
        if claim is not None:  # Else it expired, or its subscription ended.
            self._claims.defer(claim, until_us)
            self._queues.follow_up(now)

    def retry(self, session: Session, number: int) -> int:
        """Count another try of a message that a session has; return the number of tries, 0 if it has it no more."""
        claim = session.handed.get(number)
        return 0 if claim is None else self._claims.count_again(claim)


class Consumers(Part):
    """The consumers of one host, with their sessions and subscriptions."""

    def __init__(
        self, context: MessagingContext, sessions: Sessions, topics: Topics, claims: Claims,
        *, queues: Queues, directory: Directory,
    ) -> None:  # fmt: skip
        self._non_durable, self._channels = context.settings.messaging.non_durable, context.channels
        self._sessions, self._topics, self._claims = sessions, topics, claims
        self.timers = (topics,)  # Their leases.
        self._queues, self._directory = queues, directory

    def expire(self, now: int) -> None:
        """End durable subscriptions whose leases are over."""
        for subscription in self._topics.lapsed(now):
            self.end(subscription, now)

    # --- coming --------------------------------------------------------------------------------------------

    def consume(self, session: int, asked: Subscribe | Receive, now: int) -> int:
        """Add a consumer of a queue, of a new subscription, or of an existing one; return its number."""
        found = self._sessions.session(session)
        if isinstance(asked, Receive):
            self._directory.check_receiver(asked.destination)
            receiving = self._queues.open(asked, found.connection.number, now)
            self._directory.used(asked.destination, now)
            return self._join(found, receiving).number
        client = found.connection.client
        adapted = self._non_durable == "as_durable" and not (asked.durable or asked.shared)
        if adapted:
            asked = self._topics.as_durable(asked, client)
        elif self._non_durable == "reject" and not asked.durable:
            raise JMSException(
                'this node accepts only durable subscriptions (messaging.non_durable = "reject"): give the '
                "subscription a name and make it durable"
            )
        elif self._non_durable == "connected" and not asked.durable and not held_of(asked.entry):
            raise JMSException(
                "this node accepts a non-durable subscription only to a topic that a node holds "
                '(messaging.non_durable = "connected"), and this topic has no holder: make the subscription '
                "durable"
            )
        known = self._topics.check(asked, client, adapted=adapted)
        self._directory.opened(destination_of(asked.entry), now)
        self._channels.consumed(now)
        if known is not None and known.channel and _is_modulated_otherwise(known.asked, asked):
            self._topics.modulate(known, asked.modulator, now)  # What waits for it stays.
        if known is None or known.asked != asked:
            return self._subscribe(found, asked, known, now).number
        known.connection = found.connection.number
        self._topics.renew(known, now)
        return self._join(found, known).number

    def _subscribe(self, session: Session, asked: Subscribe, known: Subscription | None, now: int) -> Consumer:
        subscription = self._topics.add(asked, session.connection.number, session.connection.client, now)
        if known is not None:
            self._claims.note_handed([*self._claims.unhanded(known), *self._sessions.handed_for(known)])
        consumer = self._join(session, subscription)
        if known is not None:
            self.end(known, now)
        return consumer

    def _join(self, session: Session, claimant: Claimant) -> Consumer:
        consumer = self._sessions.consume(session, claimant)
        claimant.consumers.append(consumer)
        return consumer

    def modulate(self, consumer: int, modulator: bytes, now: int) -> None:
        """Give the consumer of a channel another modulator, or none."""
        subscription = self._topics[self._sessions.consumer(consumer).claimant.number]
        if subscription is None or not subscription.channel:
            raise IllegalStateException(
                'a modulator requires a consumer of a channel: create its topic with model="channel"'
            )
        asked = subscription.asked
        if modulator and (asked.no_local or asked.entry.selector is not None):
            option = "no_local" if asked.no_local else "a selector"
            raise IllegalStateException(
                f"this consumer has {option}, which cannot be combined with a modulator: close it, and create "
                "another without"
            )
        self._topics.modulate(subscription, modulator, now)

    def credit(self, consumer: int, messages: int, nbytes: int, now: int) -> None:
        """Raise the credit of a consumer."""
        if messages < 0 or nbytes < 0:
            raise JMSException(f"the credit of a consumer must not be negative: {messages} messages, {nbytes} bytes")
        found = self._sessions.consumer(consumer)
        found.messages += messages
        found.nbytes += nbytes
        self._claims.ready[found.claimant] = None
        if (receiving := self._queues.receiver.of(found.claimant)) is not None:
            self._queues.receiver.grant(receiving, messages, now)
            self._queues.follow_up(now)

    # --- going ---------------------------------------------------------------------------------------------

    def disconnect(self, connection: int, now: int, *, unread: Collection[int] = (), crashed: bool = False) -> None:
        """Close a connection with all its sessions; `crashed`: a message that it saw may have ended its program."""
        found = self._sessions.connection(connection)
        for session in list(found.sessions):
            self.close_session(session, now, unread=unread, crashed=crashed)
        self._queues.end_temporary(connection)
        self._sessions.disconnect(found)

    def close_session(self, session: int, now: int, *, unread: Collection[int] = (), crashed: bool = False) -> None:
        """Close a session and its consumers, and return what it did not acknowledge; `unread`: what no program saw."""
        found = self._sessions.session(session)
        self._claims.give_back(list(found.handed.values()), unread=unread, crashed=crashed)
        for consumer in list(found.consumers):
            self.close_consumer(consumer, now)
        self._sessions.close(found)
        self._queues.follow_up(now)

    def close_consumer(self, consumer: int, now: int, *, unread: Collection[int] = ()) -> None:
        """Close a consumer. What it passed on stays with its session; what is `unread` is returned."""
        found = self._sessions.consumer(consumer)
        mine = [claim for claim in found.session.handed.values() if claim.consumer is found]
        self._claims.give_back(mine, unread=unread, seen=False)
        found.session.forget_overtaken(unread)
        found.claimant.consumers.remove(found)
        self._sessions.leave(found)
        if (receiving := self._queues.receiver.of(found.claimant)) is not None:
            self._queues.receiver.close(receiving)
            self._queues.follow_up(now)
        elif (subscription := self._topics[found.claimant.number]) is None:
            return  # It ended before.
        elif subscription.durable:
            self._topics.renew(subscription, now)
        elif not subscription.consumers:
            self.end(subscription, now)

    def unsubscribe(self, client: str, name: str, now: int) -> None:
        """End a durable subscription for good, with everything that waits for it."""
        subscription = self._topics.named(client, name)
        if self._sessions.handed_for(subscription):
            raise IllegalStateException(
                f"messages of the subscription {name!r} are not acknowledged yet: acknowledge them, commit or recover"
            )
        self.end(subscription, now)

    def end(self, subscription: Subscription, now: int) -> None:
        """End a subscription. Idempotent."""
        if subscription.ended:
            return
        self._topics.remove(subscription, now)
        self._claims.end(subscription, self._sessions.handed_for(subscription) if subscription.durable else ())


def _is_modulated_otherwise(known: Subscribe, asked: Subscribe) -> bool:
    """Return True if two subscriptions differ in their modulators alone."""
    return known != asked and msgspec.structs.replace(known, modulator=asked.modulator) == asked
