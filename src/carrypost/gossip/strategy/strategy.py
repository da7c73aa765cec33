"""The base class of strategies, and the contacts with neighbours as a strategy sees them.

A strategy decides how a contact begins and which messages are offered. It is informed when a contact begins, when the
neighbour's profile is known, when this host gained a message, when it announced itself, and when a contact ends; at the
end of a step it makes its offers. The base class handles offers, serves requests and handles acknowledgements over any
link, with or without a contact. Each strategy brings everything else: its contacts, its timers, and handlers for other
kinds of frames (`Links.handlers`). A strategy that answers `Digest` works with neighbours that compare sets.

A `Contact` is a neighbour with which messages may be exchanged. It is soft state: it begins when a link becomes usable
and ends with the link. A strategy that remembers more of a neighbour than its profile derives a class of its own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Generic, TypeVar

from mypy_extensions import mypyc_attr

from carrypost.gossip.holdings.eviction import INTEREST_FIRST, Ranking
from carrypost.gossip.timers import ACKNOWLEDGE, OFFER
from carrypost.gossip.transfers.arrivals_and_removals import Arrival
from carrypost.gossip.wire import frames as fr
from carrypost.model.times import NEVER

if TYPE_CHECKING:
    from collections.abc import Sequence

    from carrypost.config import Settings
    from carrypost.gossip.holdings.copies import Copy
    from carrypost.gossip.interest.index import View
    from carrypost.gossip.transfers.arrivals_and_removals import News, Removals
    from carrypost.gossip.transfers.link import HostContext, Link, Links
    from carrypost.gossip.transfers.transfers import Transfers


class Contact:
    """One neighbour with which messages may be exchanged."""

    __slots__ = ("link", "overdue_us", "timers", "view")

    def __init__(self, link: Link, settings: Settings) -> None:  # noqa: ARG002 - for those that remember more
        self.link = link
        self.timers = link.timers
        self.view: View | None = None
        """Profile of the neighbour; None until it is known."""
        self.overdue_us = NEVER
        """Time by which the neighbour should have been heard again; later it may be gone, though it has not timed
        out."""

    def learn(self, view: View) -> None:
        """Note that the profile of the neighbour is known."""
        self.view = view

    def unlearn(self) -> None:
        """Drop the neighbour's profile, which it has replaced by one not known yet."""
        self.view = None

    def announced(self, overdue_us: int, *, period: bool) -> bool:  # noqa: ARG002 - others count periods
        """Handle an announcement that says nothing new, and expect the next one by `overdue_us`.

        `period`: the announcement ends a period. Returns False, without counting it, if there is more to do than this.
        """
        self.overdue_us = overdue_us
        return True

    def count_period(self) -> None:
        """Count a period of the neighbour, which has announced itself again."""

    def expect(self, overdue_us: int) -> None:
        """Expect to hear the neighbour again by this time."""
        self.overdue_us = overdue_us

    def heard(self, now: int, overdue_us: int) -> None:  # noqa: ARG002 - others go on with what they had stopped
        """Note that the neighbour is still there."""
        self.overdue_us = overdue_us

    def forget_slots(self, mask: int) -> None:
        """Drop what is remembered of slots that were freed for other messages."""


C = TypeVar("C", bound=Contact)


class Contacts(Generic[C]):
    """The contacts of one host."""

    __slots__ = ("_by_link", "_links", "all", "of")

    def __init__(self, links: Links) -> None:
        self._links = links
        self._by_link: dict[Link, C] = {}
        self.of = self._by_link.get
        """Return the contact over a link; None for a link over which another layer exchanges messages."""
        self.all: list[C] = []
        """All contacts, in the order of their links."""

    def begin(self, contact: C) -> None:
        """Add a contact, whose link became usable."""
        self._by_link[contact.link] = contact
        contact.link.attach(contact)
        self._changed()

    def end(self, contact: C) -> None:
        """End a contact whose link is not usable any more."""
        del self._by_link[contact.link]
        self._changed()

    def _changed(self) -> None:
        self.all = [self._by_link[link] for link in self._links.usable if link in self._by_link]


@mypyc_attr(allow_interpreted_subclasses=True)
class Strategy(Generic[C]):
    """The deciding half of one host's contacts. The base class offers nothing."""

    contact: type[C]
    """Class of the memory of one neighbour."""
    fixed_period: ClassVar = False
    """True if announcements come at a fixed period, as in the papers."""
    stop_and_wait: ClassVar = False
    """True if each message is acknowledged before the next is sent, as in the papers."""
    carries_everything: ClassVar = False
    """True if a host carries every message that a neighbour has, for any recipient."""
    chooses: ClassVar = False
    """True if `choose` decides which messages a neighbour gets, and `gave` learns which it confirmed."""
    unicast: ClassVar = False
    """True if each message is offered to one neighbour at a time: no offer is broadcast, nothing is sent without one,
    and half-received messages are not offered."""
    acknowledges: ClassVar = True
    """True if acknowledgements of recipients spread, so that other hosts drop their copies."""
    durable_first: ClassVar = False
    """True if a message is acknowledged to the neighbour that sent it once it is durable, and not before: then the
    neighbour may drop its copy."""
    ranking: ClassVar[Ranking] = INTEREST_FIRST
    """The order of eviction from a full cache."""

    def __init__(self, context: HostContext, transfers: Transfers, departures: Removals) -> None:  # noqa: ARG002 - for others
        self.context = context
        self.transfers = transfers
        self.contacts: Contacts[C] = Contacts(context.links)
        self._cache, self._links = context.holdings.cache, context.links
        self._links.handlers.update({fr.Offer: self.receive_offer, fr.Ack: self.receive_ack})

    # --- contacts ------------------------------------------------------------------------------------------

    def begin(self, link: Link) -> C:
        """Begin a contact over a link; the neighbour's profile is not known yet."""
        contact = self.contact(link, self.context.settings)
        self.contacts.begin(contact)
        return contact

    def learn(self, contact: C, view: View, now: int) -> None:
        """Note the neighbour's profile, and begin to exchange messages."""
        contact.learn(view)
        self.meet(contact, now)

    def end(self, contact: C, now: int) -> None:
        """End a contact, and the transfers over its link."""
        self.contacts.end(contact)
        self.transfers.end(contact.link, now)

    # --- what a strategy decides ---------------------------------------------------------------------------

    def meet(self, contact: C, now: int) -> None:
        """Begin a contact, or begin anew because the neighbour's profile changed."""

    def choose(self, contact: C, mask: int, now: int) -> int:  # noqa: ARG002 - routing looks at both
        """Return those of the slots in `mask` whose messages may go to this neighbour, which lacks and wants them all.

        The same is asked again whenever something is to be offered: an answer is not a promise.
        """
        return mask

    def gave(self, contact: C, mask: int, *, stored: bool, now: int) -> None:
        """Note that the neighbour confirmed that it received the messages in these slots, or even `stored` them."""

    def stale(self, contact: C, now: int) -> bool:  # noqa: ARG002 - others look at the time
        """Handle an announcement that says nothing new; return True if something is due nevertheless."""
        return False

    def announced_receipts(self, link: Link, receipts: tuple[fr.Receipt, ...], now: int) -> bool:
        """Handle the neighbour's receipts of unasked Parcels; return True if the step has to be finished for them."""
        arrived, changed = self.transfers.pushes.announced(link, receipts, now)
        if arrived and self.chooses:
            self._report_given(link, arrived, stored=False, now=now)
        return changed

    def gained(self, now: int, *, fresh: Sequence[Arrival] = (), own: bool = False, partial: bool = False) -> None:
        """Handle new messages: published (`own`), received, or only pieces of one (`partial`).

        `fresh`: all of them, if they are few.
        """

    def announced(self, now: int) -> bool:  # noqa: ARG002 - others offer then
        """Note that this host announced itself to all in range; return True if the step has to be finished for that."""
        return False

    def offer(self, now: int) -> None:
        """Make the offers that are due."""

    def repeat(self, link: Link, now: int) -> None:
        """Repeat what was lost on a link on which a timer is due."""
        self.transfers.repeat(link, now)

    def receive_request(self, link: Link, frame: fr.Request, now: int) -> None:
        """Serve a request for messages."""
        contact = self.contacts.of(link)
        self.transfers.server.serve(link, frame, None if contact is None else contact.view, now, answers=False)

    def receive_offer(self, link: Link, frame: fr.Offer, now: int) -> None:
        """Handle an offer of messages."""
        self.transfers.requests.receive_offer(link, frame, now, offered=0)

    def receive_ack(self, link: Link, frame: fr.Ack, now: int) -> None:
        """Handle an acknowledgement of transfer frames."""
        confirmed = self.transfers.server.acknowledge(link, frame, now)
        if confirmed and self.chooses:
            self._report_given(link, confirmed, stored=frame.stored, now=now)

    def _report_given(self, link: Link, mask: int, *, stored: bool, now: int) -> None:
        if (contact := self.contacts.of(link)) is not None:
            self.gave(contact, mask, stored=stored, now=now)

    # --- what happens --------------------------------------------------------------------------------------

    def news(self, now: int, news: News) -> None:
        """Handle messages that became whole, and those that gained another piece."""
        if news.whole:
            self.gained(now, fresh=news.fresh)
        if news.grown:
            self.gained(now, partial=True)

    def published(self, copies: Sequence[Copy], now: int) -> None:
        """Handle own messages, which may leave from now on."""
        self.gained(now, fresh=[Arrival(copy, None, None) for copy in copies], own=True)

    def tick(self, now: int) -> None:
        """Do what is due on the links."""
        self.transfers.room_retry.tick(now)
        for link in self._links.usable:
            if min(link.timers.due) <= now:
                self.repeat(link, now)

    def flush(self, now: int, link: Link | None) -> None:
        """End a step that was with one link, or (None) may concern all: answer, acknowledge, offer, send.

        Most of what a host hears concerns one link alone, and nothing is due on the others. Then they are not looked
        at: among hundreds of neighbours that look took longer than everything else.
        """
        transfers = self.transfers
        if self._cache.memories.has_new_room:
            transfers.room_retry.room_appeared(now)
        offers = sends = False
        for each in self._concerned(link, now):
            inbox, due = each.inbox, each.timers.due
            if inbox.answers or inbox.fresh or due[ACKNOWLEDGE] <= now:
                transfers.requests.flush(each, now)
            if due[OFFER] <= now:
                offers = True
            if each.outbox.jobs:
                sends = True
        if offers:
            self.offer(now)
        if sends:
            transfers.flush(now)

    def _concerned(self, link: Link | None, now: int) -> list[Link]:
        """Return the links over which something may have to be sent at the end of a step."""
        links, wants = self._links, self.transfers.wants
        everywhere = link is None
        if wants.orphaned:
            wants.adopt_orphans()
            everywhere = True
        if links.changed:
            everywhere = True
            for each in links.pop_changed():
                if not each.usable:
                    self.transfers.end(each, now)
        if link is None or everywhere or links.schedule.due_elsewhere(link.timers if link.usable else None, now):
            return links.usable
        return [link] if link.usable else []
