"""Subscriptions to topics, and the interests of the node that follow from them.

Subscriptions that ask for the same share one interest; it ends a while after the last of them, so that closing and
opening again sends nothing to neighbours. If a topic has an order, its interest covers all of it, and the rest of a
subscription is applied at the claim.

A live subscription lasts as long as its consumers. A durable one has a row, collects while no program consumes, and
ends by `unsubscribe`, or when its lease is over: use renews the lease.
"""

from __future__ import annotations

from itertools import count
from typing import TYPE_CHECKING

import msgspec

from carrypost.application.tables import Table
from carrypost.errors import IllegalArgumentException, IllegalStateException, InvalidDestinationException, JMSException
from carrypost.gossip.composite import Part, Stored
from carrypost.messaging.commands import Subscribe
from carrypost.messaging.state import Interest, LocalNode, Subscription, destination_of, held_of, is_of_circle
from carrypost.model.address import addressee, channel, exactly, notice_of
from carrypost.model.pattern import check_entry, encode_entries, profile_digest, whole_destination
from carrypost.model.pattern import entry as make_entry
from carrypost.model.times import NEVER

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from carrypost.gossip.holdings.copies import Copy
    from carrypost.messaging.context import MessagingContext
    from carrypost.messaging.state import Consumer, Key
    from carrypost.model.descriptor import Ordering
    from carrypost.model.pattern import Entry

LINGER_US = 5_000_000
"""Time by which an interest outlives its last subscription."""
_RENEW_PART = 30
"""Part of the lease of a durable subscription in use after which it is written again."""
_NAME_MAX = 128


class SubscriptionRow(msgspec.Struct, frozen=True, array_like=True):
    """A durable subscription in the store; fields may be appended with a default."""

    client: str
    asked: Subscribe
    lease_us: int | None
    """Time at which it ends if it is not used."""
    results: str = ""
    """Destination of its results, if the topic is a channel."""


class Topics(Part):
    """The subscriptions of one node."""

    def __init__(self, context: MessagingContext) -> None:
        self._limits, self._settings = context.limits, context.settings.messaging
        self.here = LocalNode(context.node, context.incarnation)
        self._own_interests, self._deliveries = context.interests, context.deliveries
        self._table = Table(context.ledger, b"S", SubscriptionRow)
        self._interests: dict[Entry, Interest] = {}
        self._by_number: dict[int, Interest] = {}
        self._named: dict[Key, Subscription] = {}
        self._all: dict[int, Subscription] = {}
        self._open: dict[str, dict[Subscription, None]] = {}
        """Subscriptions by the pattern of their destinations."""
        self._number = 0
        self._channels, self._circles = context.channels, context.circles
        self._in_reach, self._island = context.host_context.links.in_reach, context.settings.island
        self.changed: dict[str, None] = {}
        """Held topics whose subscriptions here were added, removed or renewed."""

    def __len__(self) -> int:
        return len(self._all)

    def __iter__(self) -> Iterator[Subscription]:
        return iter(self._all.values())

    def __getitem__(self, number: int) -> Subscription | None:
        return self._all.get(number)

    # --- coming --------------------------------------------------------------------------------------------

    def as_durable(self, asked: Subscribe, client: str) -> Subscribe:
        """Return a live subscription as a durable one, named after its interest: the first one without a consumer."""
        digest = profile_digest(encode_entries((asked.entry,))).hex()
        for number in count(1):
            name = f"{digest}-{number}"
            known = self._named.get((client, name, True))
            if known is None or not known.consumers:
                return msgspec.structs.replace(asked, name=name, durable=True)
        raise AssertionError

    def check(self, asked: Subscribe, client: str, *, adapted: bool = False) -> Subscription | None:
        """Return the subscription that a consumer would join, None if it needs a new one; raises as JMS demands.

        `adapted`: the node made it durable; then it needs no client id.
        """
        check_entry(asked.entry, self._limits)
        self._channels.check(asked)
        if held := held_of(asked.entry):
            self._check_held(asked, held)
        self._check_ordering(asked)
        if not (asked.durable or asked.shared):
            if asked.name:
                raise JMSException(
                    f"only durable or shared subscriptions have a name: leave {asked.name!r} out, or make the "
                    "subscription durable or shared"
                )
            return None
        if asked.durable and not asked.shared and not client and not adapted:
            raise IllegalStateException(
                "a durable subscription requires a client id: give one to the connection factory, or share the "
                "subscription"
            )
        if asked.shared and asked.no_local:
            raise JMSException(
                f"no_local cannot be used with the shared subscription {asked.name!r}, which belongs to no single "
                "connection: leave no_local out, or do not share the subscription"
            )
        _check_name(asked.name)
        known = self._named.get((client, asked.name, asked.durable))
        if known is None:
            return None
        if known.asked.shared != asked.shared:
            kinds = ("unshared", "shared") if known.asked.shared else ("shared", "unshared")
            raise JMSException(
                f"{asked.name!r} is a {kinds[1]} subscription, and cannot be opened as {kinds[0]}: choose another name"
            )
        if known.consumers and not asked.shared:
            raise JMSException(f"the durable subscription {asked.name!r} has a consumer: close it first")
        if known.asked != asked and known.consumers:
            raise JMSException(
                f"the shared subscription {asked.name!r} is in use for another topic, selector or modulator: "
                "use the same, or another name"
            )
        return known

    def _check_ordering(self, asked: Subscribe) -> None:
        if is_of_circle(asked.entry):
            self._circles.pattern(destination_of(asked.entry))  # Raises where this node is not in the circle.
        if asked.ordering:
            whole_destination(asked.entry)  # Raises where no destination is named.
        self.check_open(destination_of(asked.entry), asked.ordering)

    def check_open(self, destination: str, ordering: Ordering) -> None:
        """Raise unless a topic may be opened with this ordering."""
        for each in self._open.get(destination, ()):
            if each.ordering is not ordering:
                raise JMSException(
                    f"the topic {destination!r} is open on this node with the ordering {each.ordering.text!r}: "
                    f"open it so here, too, or end the subscription {each.name!r} first"
                )
            return  # All of them have the same.

    def _check_held(self, asked: Subscribe, held: str) -> None:
        """Raise unless a held topic may be subscribed to in this way."""
        holder = addressee(held)
        if asked.ordering:
            raise IllegalArgumentException(
                f"a topic that a node holds has no ordering: leave {asked.ordering.text!r} out"
            )
        if asked.durable or holder == self.here.node:
            return
        if not self._island:
            raise JMSException(
                "a non-durable subscription to a topic that a node holds requires paths to that node: set island "
                "= true, or use create_durable_consumer"
            )
        if holder not in self._in_reach:
            raise JMSException(
                f"there is no path to {holder!r}, which holds the topic, as a non-durable subscription requires: "
                "subscribe when the node is in reach, or use create_durable_consumer"
            )

    def add(self, asked: Subscribe, connection: int, client: str, now: int) -> Subscription:
        """Add a subscription; the host finds messages for it here, which are claimed in the same step."""
        self._number += 1
        subscription = Subscription(self._number, asked, connection, client, self._limits)
        if subscription.channel:
            self._channels.enter(subscription, "", now)
        self._enter(subscription)
        self.renew(subscription, now)
        return subscription

    def _enter(self, subscription: Subscription) -> None:
        asked, held = subscription.asked, subscription.held
        entry = whole_destination(asked.entry) if asked.ordering else asked.entry
        if held:
            self.changed[held] = None
            local = addressee(held) == self.here.node
            entry = make_entry(exactly(held if local else notice_of(held)))
        elif subscription.channel:
            entry = make_entry(exactly(subscription.results or channel(subscription.channel)))
        elif subscription.circle:
            entry = make_entry(self._circles.pattern(subscription.pattern))
        interest = self._interests.get(entry)
        if interest is None:
            interest = Interest(entry, self._deliveries.want(entry, advertised=not (held or subscription.channel)))
            self._interests[entry] = self._by_number[interest.number] = interest
        else:
            self._deliveries.find(entry)  # What its last subscription left; and what others were given is here for all.
        interest.ends_us = NEVER
        interest.subscriptions[subscription] = None
        subscription.interest = interest
        self._all[subscription.number] = subscription
        self._open.setdefault(destination_of(asked.entry), {})[subscription] = None
        if asked.name:
            self._named[subscription.key] = subscription

    def lapsing(self) -> list[tuple[str, int]]:
        """Return the unused durable subscriptions and the ends of their leases, the first to end first."""
        unused = [each for each in self._all.values() if each.durable and not each.consumers and each.lease_us < NEVER]
        return [(each.written, each.lease_us) for each in sorted(unused, key=lambda each: each.lease_us)]

    def restore(self, stored: Stored, now: int) -> None:
        """Restore the durable subscriptions after a restart, by number."""
        for name, row in self._table.read(stored):
            self._number = int.from_bytes(name, "big")
            subscription = Subscription(self._number, row.asked, 0, row.client, self._limits)
            if subscription.circle and not self._circles.has(subscription.pattern):
                self._table.delete(name)  # This node left the circle.
                continue
            if (ended := self._named.get(subscription.key)) is not None:
                self.remove(ended, now)  # It ended before this one began; that could not be written.
            if subscription.channel:
                self._channels.enter(subscription, row.results, now)
            self._enter(subscription)
            self._lease(subscription, row.lease_us)
            if subscription.results != row.results:
                self._write(subscription)
        self._channels.close_unknown(now)

    # --- asking --------------------------------------------------------------------------------------------

    def interested(self, copy: Copy) -> list[Subscription]:
        """Return the subscriptions that want a message."""
        by_number = self._by_number
        if not by_number:
            return []
        sealed = copy.opened is not None
        matched, original = (copy.matched, copy.original) if sealed else (copy.descriptor, copy.descriptor.original)
        return [
            subscription
            for number in self._own_interests.which(matched)
            if (interest := by_number.get(number)) is not None
            for subscription in interest.subscriptions
            if subscription.takes(original, self.here)
        ]

    def pop_changed(self) -> list[tuple[str, list[Subscription]]]:
        """Return the held topics whose subscriptions were added, removed or renewed, with all subscriptions."""
        changed, self.changed = self.changed, {}
        return [(held, list(self._open.get(exactly(held), ()))) for held in changed]

    def renew_consumed(self, held: Iterable[str], now: int) -> None:
        """Renew the subscriptions in use to these held topics; all enrolments have to be repeated."""
        for each in held:
            self.changed[each] = None
            for subscription in self._open.get(exactly(each), ()):
                if subscription.consumers:
                    self.renew(subscription, now)

    def is_consumed(self, destination: str) -> bool:
        """Return True if there is a consumer of this very topic."""
        return bool(self.consumers_of(destination))

    def consumers_of(self, destination: str) -> list[Consumer]:
        """Return the consumers of this very topic."""
        return [consumer for each in self._open.get(exactly(destination), ()) for consumer in each.consumers]

    # --- use -----------------------------------------------------------------------------------------------

    def renew(self, subscription: Subscription, now: int) -> None:
        """Renew the lease of a durable subscription in use; it is written at intervals only."""
        if not subscription.durable or subscription.ended:
            return
        lease_s = self._settings.subscription_lease_s
        lease_us = None if lease_s is None else now + round(lease_s * 1e6)
        fresh = lease_us is not None and lease_us - subscription.lease_us < (lease_us - now) // _RENEW_PART
        if not fresh or subscription.lease_us == NEVER:
            self._lease(subscription, lease_us)
            self._write(subscription)
            if subscription.held:
                self.changed[subscription.held] = None

    def _write(self, subscription: Subscription) -> None:
        lease_us = None if subscription.lease_us == NEVER else subscription.lease_us
        row = SubscriptionRow(subscription.client, subscription.asked, lease_us, subscription.results)
        self._table.put(_row_name(subscription), row)

    def modulate(self, subscription: Subscription, modulator: bytes, now: int) -> None:
        """Give a subscription to a channel another modulator, or none; raises if that is invalid."""
        self._channels.change(subscription, modulator, now)
        subscription.asked = msgspec.structs.replace(subscription.asked, modulator=modulator)
        if subscription.durable and not subscription.ended:
            self._write(subscription)

    def _lease(self, subscription: Subscription, lease_us: int | None) -> None:
        subscription.lease_us = NEVER if lease_us is None else lease_us
        self.due_us = min(self.due_us, subscription.lease_us)

    def lapsed(self, now: int) -> list[Subscription]:
        """Return durable subscriptions whose lease is over; of those in use it begins anew."""
        over = [each for each in self._all.values() if each.lease_us <= now]
        for each in over:
            if each.consumers:
                self.renew(each, now)
        return [each for each in over if not each.consumers]

    # --- going ---------------------------------------------------------------------------------------------

    def named(self, client: str, name: str) -> Subscription:
        """Return the durable subscription of this name, which is to end; raises as JMS demands."""
        found = self._named.get((client, name, True))
        if found is None:
            whose = f" of client {client!r}" if client else ""
            raise InvalidDestinationException(f"there is no durable subscription {name!r}{whose} here")
        if found.consumers:
            raise IllegalStateException(f"the subscription {name!r} has a consumer: close it before you unsubscribe")
        return found

    def remove(self, subscription: Subscription, now: int) -> None:
        """Remove a subscription, whose claims are ended already."""
        subscription.ended = True
        if subscription.held:
            self.changed[subscription.held] = None
        self._channels.leave(subscription, now)
        del self._all[subscription.number]
        destination = destination_of(subscription.asked.entry)
        del self._open[destination][subscription]
        if not self._open[destination]:
            del self._open[destination]
        if self._named.get(subscription.key) is subscription:
            del self._named[subscription.key]
        if subscription.durable:
            self._table.delete(_row_name(subscription))
        interest = subscription.interest
        assert interest is not None  # Every subscription that entered has one.
        del interest.subscriptions[subscription]
        if not interest.subscriptions:
            interest.ends_us = now + LINGER_US
            self.due_us = min(self.due_us, interest.ends_us)

    def expire(self, now: int) -> None:
        """Drop interests without subscriptions, and determine what is due next."""
        gone = [each for each in self._interests.values() if each.ends_us <= now]
        for interest in gone:
            del self._interests[interest.entry], self._by_number[interest.number]
        if gone:
            self._deliveries.unsubscribe([interest.number for interest in gone])
        dues = [each.ends_us for each in self._interests.values()]
        self.due_us = min([each.lease_us for each in self._all.values()] + dues, default=NEVER)


def _row_name(subscription: Subscription) -> bytes:
    return subscription.number.to_bytes(8, "big")


def _check_name(name: str) -> None:
    if not 0 < len(name) <= _NAME_MAX or not all(each.isalnum() or each in "_.-" for each in name):
        raise JMSException(
            f"the name of a subscription must have 1 to {_NAME_MAX} letters, digits or characters of '_.-', "
            f"not {name!r}"
        )
