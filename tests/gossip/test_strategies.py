"""Strategies behind one interface: a flood of about fifty lines beside ours and the papers', in one network."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import pytest
from tests.support.frames import RECEIVED

from carrypost import testing
from carrypost.gossip.holdings.eviction import PRIVILEGE_ONLY
from carrypost.gossip.slots import bits
from carrypost.gossip.strategy import review
from carrypost.gossip.strategy.strategy import Contact, Strategy
from carrypost.gossip.timers import OFFER
from carrypost.gossip.transfers.arrivals_and_removals import Arrival, Removals
from carrypost.gossip.transfers.link import HostContext, Link
from carrypost.gossip.transfers.transfers import Transfers
from carrypost.gossip.wire.frames import (
    Digest,
    Encounters,
    Frame,
    Held,
    Listing,
    Missing,
    Offer,
    OfferEntry,
    Summary,
    Tickets,
)
from carrypost.host.parts import STRATEGIES
from carrypost.log.events import Delivered, Event

PAGE = 20


class Flood(Strategy[Contact]):
    """Offers everything that matches to all neighbours, whenever there is anything new, and with every announcement.

    It does not compare sets by itself, and answers neighbours that do: that requires no memory.
    """

    contact = Contact
    serial = 0

    def __init__(self, context: HostContext, transfers: Transfers, departures: Removals) -> None:
        super().__init__(context, transfers, departures)
        context.links.handlers[Digest] = self._compare
        # Who lists what it has, and hears nothing of that, compares.
        context.links.handlers[Summary] = context.links.handlers[Missing] = lambda _link, _frame, _now: None

    def _compare(self, link: Link, frame: Digest, _now: int) -> None:
        own = self.context.interests.view
        if own is None or frame.profile != own.digest or (reply := review.answer(own, frame).reply) is None:
            return
        pages = review.split(reply, link.body_bytes_max)
        for part, page in enumerate(pages):
            self.serial += 1
            number = self.serial if page.buckets else 0
            link.send([msgspec.structs.replace(
                page, number=number, answers=frame.number, part=part, parts=len(pages), run=frame.run
            )])  # fmt: skip

    def meet(self, contact: Contact, now: int) -> None:
        super().meet(contact, now)
        contact.timers.arm(OFFER, now)

    def gained(self, now: int, *, fresh: Sequence[Arrival] = (), own: bool = False, partial: bool = False) -> None:
        super().gained(now, fresh=fresh, own=own, partial=partial)
        self._all_due(now)

    def announced(self, now: int) -> bool:
        self._all_due(now)
        return True

    def offer(self, now: int) -> None:
        for contact in self.contacts.all:
            if contact.timers.due[OFFER] <= now:
                contact.timers.cancel(OFFER)
                self._flood(contact)

    def _all_due(self, now: int) -> None:
        for contact in self.contacts.all:
            contact.timers.arm(OFFER, now)

    def _flood(self, contact: Contact) -> None:
        holdings, cache = self.context.holdings, self.context.holdings.cache
        if contact.view is None:
            return
        mask = contact.view.matches & cache.whole & ~(holdings.withheld | contact.link.known)
        copies = [copy for slot in bits(mask) if (copy := cache.copies[slot]) is not None]
        entries = [
            OfferEntry(copy.id, holdings.handle_of(copy), copy.descriptor.length, copy.privilege) for copy in copies
        ]
        for at in range(0, len(entries), PAGE):
            self.serial += 1
            contact.link.send((Offer(self.serial, tuple(entries[at : at + PAGE])),))


@pytest.fixture(autouse=True)
def _flooding(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make hosts in `paper_mode` flood."""
    monkeypatch.setitem(STRATEGIES, "paper", Flood)


def delivered(net: testing.Network) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}

    def note(_t: float, node: str, event: Event) -> None:
        if isinstance(event, Delivered):
            found.setdefault(node, set()).update(each.descriptor.label for each in event.deliveries)

    net.watch(note)
    return found


@pytest.mark.parametrize("relay", ["ours", "other"])
def test_hosts_with_another_strategy_pass_on_what_ours_publish_and_the_other_way_round(relay: str) -> None:
    """Check a chain: messages of each end reach the other, with any host in the middle."""
    with testing.network("a", seed=1, loss=0.1, altruistic=True) as net:
        net.add("b", paper_mode=relay == "other")
        net.add("c", paper_mode=relay == "ours")
        found = delivered(net)
        for node in "abc":
            net.subscribe(node, "news")
        net.link("a", "b")
        net.link("b", "c")
        net.advance(5)
        for number in range(30):
            net.publish("a" if number % 2 else "c", "news", b"x" * 500, label=f"m{number}")
            net.advance(0.5)
        net.advance(60)
        everything = {f"m{number}" for number in range(30)}
        assert found == dict.fromkeys("abc", everything)


def test_a_flood_ends_when_everybody_has_everything() -> None:
    """Check that a message is not offered to a neighbour that has it, however often there is an announcement."""
    with testing.network("a", seed=2) as net:
        net.add("b", paper_mode=True)
        for node in "ab":
            net.subscribe(node, "news")
        net.link("a", "b")
        for number in range(10):
            net.publish("b", "news", b"x", label=f"m{number}")
        net.advance(60)
        before = net.sent("b").frame_bytes["Offer"]
        assert before
        net.advance(120)
        assert net.sent("b").frame_bytes["Offer"] == before


@pytest.mark.parametrize("paper_mode", [False, True])
@pytest.mark.parametrize(
    "frame",
    [each for each in RECEIVED if not isinstance(each, Tickets | Encounters | Listing | Held)],
    ids=lambda frame: type(frame).__name__,
)
def test_whatever_the_strategy_no_kind_of_frame_is_without_a_handler(frame: Frame, paper_mode: bool) -> None:
    with testing.network("a", "b", seed=1, paper_mode=paper_mode, island=True) as net:
        net.link("a", "b")
        net.advance(5)
        net.inject("a", [frame], "b")
        assert "kind" not in net.host("a").overview().refused


def test_only_routing_strategies_know_tickets_and_tables() -> None:
    with testing.network("a", "b", seed=1) as net:
        net.link("a", "b")
        net.advance(5)
        net.inject("a", [Tickets(1, (1,)), Encounters(0, 1, bytes(6))], "b")
        assert net.host("a").overview().refused == {"kind": 2}


def test_a_strategy_says_what_its_hosts_carry_and_who_gives_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Flood, "carries_everything", True)
    monkeypatch.setattr(Flood, "ranking", PRIVILEGE_ONLY)
    with testing.network("a", "c", seed=1) as net:
        net.add("b", paper_mode=True, cache_messages_max=2, shares=False)
        found = delivered(net)
        net.subscribe("b", "mine")
        net.subscribe("c", "yours")
        net.link("a", "b")
        for priority in (1, 2, 7):
            net.publish("a", "mine", b"x", priority=1)
            net.publish("a", "yours", b"x", priority=priority, label=str(priority))
        net.advance(30)
        assert len(net.deliveries("b")) > 0
        net.unlink("a", "b")
        net.link("b", "c")
        net.advance(30)
        assert found["c"] == {"2", "7"}
