"""Subscriptions to topics, and the interests and enrolments of this node that follow from them.

Subscriptions that ask for the same share one interest; it ends a while after the last of them, so that closing and
opening again sends nothing to neighbours. If a topic has an order, its interest covers all of it, and the rest of a
subscription is applied at the claim.

A live subscription lasts as long as its consumers. A durable one has a row, collects while no program consumes, and
ends by `unsubscribe`, or when its lease is over: use renews the lease.

Enrolments. A topic may be held by a node. All subscriptions of this node to such a topic are one enrolment at its
holder: it lasts as long as the last of them, and its selector covers all of theirs; each filters for itself once a
notification is here. An enrolment is repeated before it ends, and before the message that carries it expires, and
withdrawn when the last subscription ends. Its row remembers its number, and that it has still to be withdrawn. A
notification counts if the holder sent it, and if the passed-on message is the publisher's (`security.identity`).
"""

from __future__ import annotations

from itertools import count
from typing import TYPE_CHECKING

import msgspec

from carrypost.application.control_outbox import Subject
from carrypost.application.ledger import Table
from carrypost.errors import (
    ForgeryError,
    IllegalArgumentException,
    IllegalStateException,
    InvalidDestinationException,
    JMSException,
)
from carrypost.gossip.layer import Part, Stored
from carrypost.log.events import Reason
from carrypost.messaging import control
from carrypost.messaging.claim_and_claimant import (
    Interest,
    LocalNode,
    Subscription,
    destination_of,
    held_of,
    is_of_circle,
)
from carrypost.messaging.commands import Subscribe
from carrypost.messaging.control import Enrol, Leave
from carrypost.model import address
from carrypost.model.address import addressee, channel, exactly, notice_of
from carrypost.model.descriptor import TIME_US_MAX
from carrypost.model.pattern import check_entry, encode_entries, profile_digest, whole_destination
from carrypost.model.pattern import entry as make_entry
from carrypost.model.times import NEVER
from carrypost.security.identity import check_origin

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator

    from carrypost.gossip.holdings.copies import Copy
    from carrypost.messaging.claim_and_claimant import Consumer, Key
    from carrypost.messaging.context import MessagingContext
    from carrypost.messaging.control import Item
    from carrypost.model.descriptor import Descriptor, Ordering
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


_CONNECTED_US = 3_600_000_000
"""Lease of an enrolment that lasts as long as there is a path, which is renewed until then."""
_SELECTOR_MAX = 4_096


class EnrolmentRow(msgspec.Struct, frozen=True, array_like=True):
    """The last item of this node for a holder, sent or not; fields may be appended with a default."""

    number: int
    deadline_us: int
    durable: bool = True
    selector: str = ""
    left: bool = False
    """True while the holder has still to be informed that this node left."""


class _Notice(Subject):
    """The item that the holder of one topic has still to get."""

    __slots__ = ("_destination", "_enrolling", "_row")

    def __init__(self, enrolling: Enrolments, destination: str, row: EnrolmentRow) -> None:
        self._enrolling, self._destination, self._row = enrolling, destination, row

    def item(self) -> Item | None:
        """Return the enrolment, or its end, unless it was superseded."""
        return self._enrolling.item(self._destination, self._row)

    def mark_sent(self) -> None:
        """Forget an enrolment whose end was sent."""
        self._enrolling.mark_sent(self._destination, self._row)


class Enrolments(Part):
    """The enrolments of one node."""

    def __init__(self, context: MessagingContext, topics: Topics) -> None:
        self._node, self._holdings, self._outputs = context.node, context.holdings, context.outputs
        self._ledger, self._outbox, self._topics = context.ledger, context.outbox, topics
        self._table = Table(context.ledger, b"L", EnrolmentRow)
        self._in_reach = context.host_context.links.in_reach
        life_s = context.settings.lifetime_s_max
        self._life_us = NEVER if life_s is None else round(life_s * 1e6)
        """Longest lifetime of a control message."""
        self._number = control.last_before(context.incarnation)
        self.rows: dict[str, EnrolmentRow] = {}
        """Enrolments by the destination of publications."""
        self._again_us: dict[str, int] = {}
        """Time at which each is repeated."""

    def expire(self, now: int) -> None:
        """Repeat enrolments whose time has come; leases of subscriptions in use begin anew."""
        due = [destination for destination, again_us in self._again_us.items() if again_us <= now]
        for destination in due:
            del self._again_us[destination]
        self.due_us = min(self._again_us.values(), default=NEVER)
        self._topics.renew_consumed(due, now)

    def restore(self, stored: Stored, now: int) -> None:
        """Restore the enrolments after a restart, and send what was still to be sent."""
        for name, row in self._table.read(stored):
            self.rows[name.decode()] = row
            if row.left:
                self._send(name.decode(), row)
            else:
                self._schedule(name.decode(), row, now)
        self._topics.renew_consumed(self.rows, now)

    # --- saying --------------------------------------------------------------------------------------------

    def follow(self, destination: str, subscriptions: Collection[Subscription], now: int) -> None:
        """Send the enrolment that the subscriptions of this node to a topic amount to, if it changed."""
        if address.addressee(destination) == self._node:
            return  # Programs of the holder's own node need no enrolment.
        before = self.rows.get(destination)
        if not subscriptions:
            if before is not None and not before.left:
                self._put(destination, msgspec.structs.replace(before, number=self._next(), left=True), now)
            return
        durable, selector = any(each.durable for each in subscriptions), _selector(subscriptions)
        deadline_us = now + _CONNECTED_US
        if durable:
            deadline_us = min(max(each.lease_us for each in subscriptions if each.durable), TIME_US_MAX)
        stands = before is not None and not before.left and (before.durable, before.selector) == (durable, selector)
        if before is None or not stands or self._again_us.get(destination, 0) <= now or (
            # The holder should know of at least half of the time that is left.
            before.deadline_us - now < (deadline_us - now) // 2
        ):  # fmt: skip
            self._put(destination, EnrolmentRow(self._next(), deadline_us, durable, selector), now)

    def drop_unreachable(self, now: int) -> list[str]:
        """Drop enrolments that last as long as there is a path to the holder, if there is none; return their topics.

        The holder does the same. It is informed, too, since it may have been restarted and know nothing of it. They are
        made again only by a new subscription.
        """
        dropped = [
            destination for destination, row in self.rows.items()
            if not row.durable and not row.left and address.addressee(destination) not in self._in_reach
        ]  # fmt: skip
        for destination in dropped:
            self.follow(destination, (), now)
        return dropped

    def _next(self) -> int:
        self._number += 1
        return self._number

    def _put(self, destination: str, row: EnrolmentRow, now: int) -> None:
        self.rows[destination] = row
        self._table.put(destination.encode(), row)
        self._schedule(destination, row, now)
        self._send(destination, row)

    def _schedule(self, destination: str, row: EnrolmentRow, now: int) -> None:
        self._again_us.pop(destination, None)
        half_us = min(row.deadline_us - now, self._life_us) // 2
        if not row.left and half_us > 0 and row.deadline_us < TIME_US_MAX:
            self._again_us[destination] = now + half_us
        self.due_us = min(self._again_us.values(), default=NEVER)

    def _send(self, destination: str, row: EnrolmentRow) -> None:
        holder = address.addressee(destination)
        assert holder is not None  # `follow` has destinations of topics that a node holds.
        self._outbox.add(holder, _Notice(self, destination, row), until_us=row.deadline_us)

    # --- for its words -------------------------------------------------------------------------------------

    def item(self, destination: str, row: EnrolmentRow) -> Item | None:
        """Return the item for an enrolment; None if it was superseded, or has ended by now."""
        found = address.address(destination)
        if found is None or self.rows.get(destination) is not row:
            return None
        if row.deadline_us <= self._holdings.now_us:
            self.mark_sent(destination, row)
            return None
        if row.left:
            return Leave(found.name, row.number)
        return Enrol(found.name, row.number, row.durable, row.deadline_us, row.selector)

    def mark_sent(self, destination: str, row: EnrolmentRow) -> None:
        """Forget an enrolment whose end was sent."""
        if row.left and self.rows.get(destination) is row:
            del self.rows[destination]
            self._table.delete(destination.encode())

    # --- notifications -------------------------------------------------------------------------------------

    def admits(self, copy: Copy) -> bool:
        """Return True if a notification may be given to subscriptions; else it is refused and dropped."""
        descriptor = copy.descriptor
        if copy.own or self._holdings.is_confirmed(copy) or self._node not in descriptor.listed:
            return False
        if self._is_the_holders(descriptor, copy.giver or ""):
            return True
        self._holdings.discard(copy, Reason.PURGED, done=True)
        return False

    def _is_the_holders(self, descriptor: Descriptor, giver: str) -> bool:
        """Return True if the holder of a topic passes on a publisher's message; else count a refusal."""
        found = address.address(descriptor.destination)
        try:
            check_origin(descriptor)
        except ForgeryError:
            self._outputs.refuse("origin", giver, descriptor.shown)
            return False
        published_to = address.notice_of(descriptor.original.destination)
        if found is None or found.node != descriptor.node or published_to != descriptor.destination:
            self._outputs.refuse("notification", giver, descriptor.shown)
            return False
        return True

    def decline(self, copy: Copy) -> None:
        """Drop a notification that no subscription of this node takes; it is carried for others, if there are any."""
        if not self._holdings.is_confirmed(copy):
            self._holdings.mark_claimed(copy)
            self._holdings.confirm((copy,))
            self._ledger.confirmed(copy)
            self._holdings.cache.set_interesting(copy, False)


def _selector(subscriptions: Collection[Subscription]) -> str:
    """Return a selector that covers all of these subscriptions; an empty one selects everything."""
    texts = sorted({each.asked.entry.selector or "" for each in subscriptions})
    if len(texts) == 1:
        return texts[0]
    joined = " OR ".join(f"({text})" for text in texts)
    return joined if all(texts) and len(joined) <= _SELECTOR_MAX else ""
