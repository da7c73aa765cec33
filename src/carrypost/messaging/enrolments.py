"""Enrolments of this node at the holders of topics that its programs subscribe to, and the notifications they lead to.

All subscriptions of a node to one topic are one enrolment: it lasts as long as the last of them, and its selector
covers all of theirs; each filters for itself once a notification is here. An enrolment is repeated before it ends, and
before the message that carries it expires, and withdrawn when the last subscription ends. Its row remembers its number,
and that it has still to be withdrawn.

A notification counts if the holder sent it, and if the passed-on message is the publisher's (`security.origins`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from carrypost.application.control_outbox import Subject
from carrypost.application.tables import Table
from carrypost.errors import ForgeryError
from carrypost.gossip.composite import Part, Stored
from carrypost.log.events import Reason
from carrypost.messaging import incarnations
from carrypost.messaging.control import Enrol, Leave
from carrypost.model import address
from carrypost.model.descriptor import TIME_US_MAX
from carrypost.model.times import NEVER
from carrypost.security.origins import check_origin

if TYPE_CHECKING:
    from collections.abc import Collection

    from carrypost.gossip.holdings.copies import Copy
    from carrypost.messaging.context import MessagingContext
    from carrypost.messaging.control import Item
    from carrypost.messaging.state import Subscription
    from carrypost.messaging.topic import Topics
    from carrypost.model.descriptor import Descriptor

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
        self._number = incarnations.last_before(context.incarnation)
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
