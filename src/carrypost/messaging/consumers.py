"""Consumers: how they join their subscriptions, and how both end.

A durable subscription that asks for something else than the one of the same name replaces it, in one batch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from carrypost.errors import IllegalStateException, JMSException
from carrypost.gossip.composite import Part
from carrypost.messaging.commands import Receive
from carrypost.messaging.state import destination_of, held_of

if TYPE_CHECKING:
    from collections.abc import Collection

    from carrypost.messaging.claims import Claims
    from carrypost.messaging.commands import Subscribe
    from carrypost.messaging.context import MessagingContext
    from carrypost.messaging.names.directory import Directory
    from carrypost.messaging.queues.queues import Queues
    from carrypost.messaging.session import Sessions
    from carrypost.messaging.state import Claimant, Consumer, Session, Subscription
    from carrypost.messaging.topic import Topics


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
            self._change(known, asked.modulator, now)  # What waits for it stays.
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
        self._change(subscription, modulator, now)

    def _change(self, subscription: Subscription, modulator: bytes, now: int) -> None:
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
