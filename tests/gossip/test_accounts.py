"""Accounts of strangers: useless work is measured or counted, and a peer that causes too much of it is muted.

Without a meter, rates are checked in units of `gossip.transfers.accounts`; `carrypost bench hostile` shows what they
are in CPU time.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest
from benchmarks._strangers import ATTACKS, Stranger
from benchmarks._victim import SECOND_US
from tests.support.examples import soaked

from benchmarks import _states, _victim
from carrypost import testing
from carrypost.config import Limits
from carrypost.gossip.holdings.copies import Copy
from carrypost.gossip.interest.matcher import Matcher
from carrypost.gossip.strategy.strategy import Strategy
from carrypost.gossip.transfers import link
from carrypost.gossip.transfers.accounts import ACCOUNTS_MAX, MERIT_MAX, Accounts, Work
from carrypost.gossip.transfers.link import Link
from carrypost.gossip.transfers.requests import Requests
from carrypost.gossip.wire import codec
from carrypost.gossip.wire.frames import WIRE_KINDS, ProfileRequest


class Victim(_victim.Victim):
    """One that is flooded from several addresses."""

    def __init__(self, held: int = 50, meter: Callable[[], int] | None = None) -> None:
        super().__init__(held, meter=meter)

    def flood(self, make: Callable[[Stranger], bytes], strangers: list[Stranger], seconds: int) -> int:
        """Send a thousand datagrams a second from each for this long; return the number that was read."""
        before = self.read.total()
        for _ in range(seconds * 100):
            for stranger in strangers:
                for _ in range(10):
                    if self.host.listens(f"s{stranger.number}", self.now):  # What is not read need not be made.
                        self.take(make(stranger), f"s{stranger.number}")
            self.wait(0.01)
            self.drain()
        return self.read.total() - before


def strangers(victim: Victim, count: int) -> list[Stranger]:
    """Neighbours of the victim, at addresses s1, s2 and so on."""
    found = [
        Stranger(number, victim.host.node, victim.settings.limits.datagram_bytes_max, now_us=victim.now)
        for number in range(1, count + 1)
    ]
    for each in found:
        victim.meet(each, f"s{each.number}")
    return found


def test_there_is_an_attack_with_every_kind_of_frame() -> None:
    assert {name.partition(":")[0] for name in ATTACKS} == {"no frames", *(kind.__name__ for kind in WIRE_KINDS)}


FEW = sorted(ATTACKS)[::3]


@pytest.mark.parametrize("attack", [*FEW, *soaked(sorted(ATTACKS.keys() - {*FEW}))])
def test_of_what_leads_to_nothing_little_is_read(attack: str) -> None:
    victim = Victim()
    (mallory,) = strangers(victim, 1)
    # Of 2,000 datagrams. Those that are cheapest to refuse cost some 100 units, at 15,000 a second.
    assert victim.flood(ATTACKS[attack], [mallory], 2) < 500
    assert not victim.host.listens("s1", victim.now) or victim.flood(ATTACKS[attack], [mallory], 1) < 250


@pytest.mark.parametrize("attack", _states.ATTACKS)
def test_of_what_uses_the_state_of_the_victim_little_is_read(attack: str) -> None:
    found = _states.row(attack, 0.3, 0.02)
    read, sent = found["read"], found["sent"]
    assert isinstance(read, int)
    assert isinstance(sent, int)
    assert 0 < read < sent / 5


def test_profiles_are_learnt_at_a_pace_where_many_ids_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    matched: list[int] = []
    slots_of = Matcher.slots_of

    def counting(matcher: Matcher, copies: list[Copy]) -> list[int]:
        matched.append(len(copies))
        return slots_of(matcher, copies)

    victim = Victim()
    victim.remember(20_000, done=True)
    found = strangers(victim, 3)
    monkeypatch.setattr(Matcher, "slots_of", counting)
    assert victim.flood(_states.short_profile, found, 1) > 10
    assert 0 < sum(matched) < 4 * 20_000


def test_ten_strangers_together_are_read_less_than_ten_times_as_much_as_one() -> None:
    attack = ATTACKS["Request: unknown handles"]
    alone, crowd = Victim(), Victim()
    one = alone.flood(attack, strangers(alone, 1), 5)
    ten = crowd.flood(attack, strangers(crowd, 10), 5)
    assert 1 < one < ten < 6 * one


def test_an_honest_neighbour_is_heard_while_strangers_flood() -> None:
    with testing.network("a", "b", seed=1, altruistic=True) as net:
        net.subscribe("b", "news")
        net.link("a", "b")
        net.advance(5)
        host = net.host("b")
        found = [Stranger(number, host.node) for number in range(10)]
        for stranger in found:
            net.inject("b", codec.decode(stranger.introduction()[0], Limits()).frames, f"s{stranger.number}")
        net.advance(1)
        frames = codec.decode(ATTACKS["Data: unasked"](found[0]), Limits()).frames[:256]
        for number in range(40):
            for stranger in found:
                net.inject("b", frames, f"s{stranger.number}")
            net.publish("a", "news", b"%d" % number)
            net.advance(0.25)
        assert [delivery.payload for delivery in net.deliveries("b")] == [b"%d" % number for number in range(40)]
        assert host.overview().refused["muted"] > 100


def test_a_muted_address_is_heard_again_when_its_debt_is_paid() -> None:
    victim = Victim()
    (mallory,) = strangers(victim, 1)
    victim.flood(ATTACKS["Request: unknown handles"], [mallory], 1)
    assert victim.host.muted_until("s1") > victim.now
    victim.now = victim.host.muted_until("s1")
    assert victim.host.listens("s1", victim.now)


class Meter:
    """A measure of CPU time that advances by a fixed time whenever it is read."""

    def __init__(self) -> None:
        self.us = self.step_us = 0

    def __call__(self) -> int:
        self.us += self.step_us
        return self.us


@pytest.mark.parametrize(("step_us", "heard"), [(0, True), (10, True), (3_000, False)])
def test_frames_are_charged_for_the_time_that_they_take(step_us: int, heard: bool) -> None:
    meter = Meter()
    victim = Victim(meter=meter)
    (mallory,) = strangers(victim, 1)
    victim.wait(2)
    meter.step_us = step_us
    (datagram,) = codec.datagrams([ProfileRequest(bytes(8))], 1_200)
    for _ in range(3):
        victim.take(datagram, f"s{mallory.number}")
    assert victim.host.listens("s1", victim.now) == heard


def work(done: int, useful: int, owed: int = 0) -> Work:
    """Return work of which this much was useful."""
    found = Work()
    found.did(done)
    found.credit(useful)
    found.owe(owed)
    return found


def test_of_measured_time_the_part_is_wasted_that_the_count_tells() -> None:
    meter = Meter()
    accounts = Accounts(Limits(), meter)
    meter.us = 1_000
    assert accounts.waste(work(40, 30), 0) == 250
    assert accounts.waste(work(400, 0), 900) == 100  # It took less than the count says.
    assert accounts.waste(work(40, 40), 0) == 0
    assert accounts.waste(work(6, 1_006), 0) == -1_000
    assert accounts.waste(work(40, 40, 7), 0) == 7
    meter.us = 10**9
    assert accounts.waste(work(10, 0), 0) == accounts.step_max < Limits().link_waste_per_s
    assert Accounts(Limits()).waste(work(40, 30), 0) == 10


def test_one_long_step_mutes_no_address_and_the_next_one_does() -> None:
    meter = Meter()
    accounts = Accounts(Limits(waste_per_s=10**9), meter)
    for heard in (True, False):
        meter.us += 10**6
        accounts.settle("a", work(10, 0), meter.us - 10**6, 0)
        assert accounts.listens("a", 0, neighbour=True) == heard


def test_while_all_are_over_their_bound_a_step_wastes_little_beyond_its_merit() -> None:
    accounts = Accounts(Limits(link_waste_per_s=10_000, waste_per_s=10_000))
    accounts.charge("giver", -5_000, 0)
    assert not accounts.exceeds("a", work(8_900, 0), 0)
    assert accounts.exceeds("a", work(9_000, 0), 0)
    accounts.charge("s", 15_000, 0)
    assert accounts.exceeds("a", work(1_100, 0), 0)
    assert not accounts.exceeds("a", work(900, 0), 0)
    assert not accounts.exceeds("a", work(9_000, 8_100), 0)
    assert not accounts.exceeds("giver", work(5_900, 0), 0)
    assert not accounts.exceeds("a", work(1_100, 0), 2 * SECOND_US)


def test_of_strangers_that_begin_at_once_not_each_has_a_long_step() -> None:
    meter = Meter()
    victim = Victim(meter=meter)
    found = strangers(victim, 10)
    victim.wait(2)
    meter.step_us = 500
    for each in found:
        victim.host.receive([ProfileRequest(bytes(8))] * 400, f"s{each.number}", victim.now)
    handled = 10 * 400 - victim.host.overview().refused["muted"]
    assert 3 * 100 < handled < 4 * 100  # Two have a long step, of a hundred frames.


def test_of_a_burst_of_forged_messages_only_as_many_signatures_are_checked_as_its_sender_may_waste() -> None:
    meter = Meter()
    victim = Victim(meter=meter)
    (mallory,) = strangers(victim, 1)
    victim.wait(2)
    meter.step_us = 1_000
    forged = codec.decode(ATTACKS["Parcel: unasked, forged"](mallory), victim.settings.limits).frames
    victim.host.receive(forged, "s1", victim.now)
    assert victim.host.overview().refused["muted"] == len(forged) - 14


def test_the_end_of_a_step_is_charged_like_its_frames() -> None:
    meter = Meter()
    accounts = Accounts(Limits(link_waste_per_s=10_000, waste_per_s=10**9), meter)
    for wasted, heard in ((0, True), (4, True), (8, False)):
        accounts.begin_step()
        accounts.settle(f"{wasted}", work(8, 8 - wasted), meter.us, 0)
        for _ in range(2):  # The second time there is nothing left to charge.
            meter.us += 9_000
            accounts.end_step(0)
            accounts.charge(f"{wasted}", 1, 0)
        accounts.charge(f"{wasted}", 1_500, 0)
        assert accounts.listens(f"{wasted}", 0, neighbour=True) == heard
    accounts.settle("next", work(8, 0), meter.us, 0)
    meter.us += 9_000
    accounts.begin_step()
    accounts.end_step(0)
    accounts.charge("next", 9_900, 0)
    assert accounts.listens("next", 0, neighbour=True)


@pytest.mark.parametrize("wasteful", [False, True])
def test_answers_are_charged_to_the_address_that_wastes(wasteful: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    meter = Meter()
    victim = Victim(meter=meter)
    (mallory,) = strangers(victim, 1)
    victim.wait(2)
    flush = Strategy.flush

    def slow(strategy: Strategy[Any], now: int, link: Link | None) -> None:
        meter.us += 14_000
        flush(strategy, now, link)

    monkeypatch.setattr(Strategy, "flush", slow)
    offers = codec.decode(ATTACKS["Offer: what nobody has"](mallory), victim.settings.limits).frames
    for offer in offers[:2]:
        victim.host.receive([ProfileRequest(bytes(8)) if wasteful else offer], "s1", victim.now)
    assert victim.host.listens("s1", victim.now) != wasteful


def test_repeated_requests_are_charged_to_the_neighbour_that_does_not_send_what_it_offers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    meter = Meter()
    victim = Victim(meter=meter)
    (mallory,) = strangers(victim, 1)
    repeat = Requests.repeat

    def slow(requests: Requests, link: Link, now: int) -> None:
        meter.us += 14_000
        repeat(requests, link, now)

    monkeypatch.setattr(Requests, "repeat", slow)
    victim.take(ATTACKS["Offer: what nobody has"](mallory), "s1")
    accounts = victim.host._links.accounts  # noqa: SLF001 - what is left of an account shows what was charged before
    while not meter.us:
        victim.now = victim.host.next_deadline() or 0
        victim.host.tick(victim.now)
        victim.drain()
    accounts.charge("s1", 2_000, victim.now)
    assert not victim.host.listens("s1", victim.now)


def test_frames_that_take_long_are_not_all_handled_in_one_step() -> None:
    meter = Meter()
    victim = Victim(meter=meter)
    strangers(victim, 1)
    victim.wait(2)
    meter.step_us = 5_000
    victim.host.receive([ProfileRequest(bytes(8))] * 500, "s1", victim.now)
    assert victim.host.overview().refused["muted"] > 400


def test_nobody_is_muted_for_so_long_that_its_link_ends() -> None:
    victim = Victim()
    (mallory,) = strangers(victim, 1)
    for _ in range(50):  # All at once, as if a driver had not asked in between.
        frames = codec.decode(ATTACKS["Digest: of no profile"](mallory), victim.settings.limits).frames
        victim.host.receive(frames, "s1", victim.now)
    assert victim.now < victim.host.muted_until("s1") <= victim.now + 3 * SECOND_US


def test_to_end_a_link_and_begin_a_new_one_does_not_pay_a_debt() -> None:
    victim = Victim()
    (mallory,) = strangers(victim, 1)
    victim.flood(ATTACKS["Request: unknown handles"], [mallory], 1)
    until = victim.host.muted_until("s1")
    victim.host.link("s1", False, victim.now)
    victim.take(mallory.introduction()[0], "s1")
    assert victim.host.muted_until("s1") == until > victim.now


def test_what_strangers_say_who_never_announced_themselves_is_bounded_for_all_of_them() -> None:
    victim = Victim()
    unknown = [Stranger(number, victim.host.node) for number in range(1, 200)]
    attack = ATTACKS["Data: unasked"]  # 2,048 units each, of 20,000 a second and as many at first.
    assert victim.flood(attack, unknown, 2) < 120


def test_a_neighbour_that_brings_messages_may_waste_more() -> None:
    accounts = Accounts(Limits())
    accounts.charge("a", -3 * MERIT_MAX, 0)
    accounts.charge("a", MERIT_MAX, 0)
    assert accounts.listens("a", 0, neighbour=True)
    accounts.charge("a", MERIT_MAX, 0)
    assert not accounts.listens("a", 0, neighbour=True)


def test_while_all_are_over_their_bound_neighbours_that_waste_nothing_are_heard() -> None:
    limits = Limits(link_waste_per_s=10_000, waste_per_s=10_000)
    accounts = Accounts(limits)
    accounts.charge("honest", 100, 0)
    for number in range(10):
        accounts.charge(f"s{number}", 15_000, 0)
    assert accounts.listens("honest", 0, neighbour=True)
    assert not accounts.listens("newcomer", 0, neighbour=False)
    assert not accounts.listens("s9", 0, neighbour=True)  # Within its own bound, but it pays with the others.
    assert accounts.listens("s9", 3 * SECOND_US, neighbour=True)
    assert accounts.listens("newcomer", 4 * SECOND_US, neighbour=False)


def test_addresses_without_debt_or_merit_are_forgotten_and_the_others_are_not() -> None:
    accounts = Accounts(Limits(waste_per_s=10**9))
    accounts.charge("debtor", 10**6, 0)
    accounts.charge("giver", -1_000, 0)
    for number in range(3 * ACCOUNTS_MAX):
        accounts.charge(f"s{number}", 1, 0)
    assert not accounts.listens("debtor", 0, neighbour=True)
    accounts.charge("giver", 1_000, 0)
    accounts.charge("giver", 15_001, 0)
    assert not accounts.listens("giver", 0, neighbour=True)
    assert len(accounts._accounts) <= ACCOUNTS_MAX  # noqa: SLF001 - what bounds the memory


@pytest.mark.parametrize("measured", [False, True])
def test_what_an_honest_exchange_wastes_is_far_below_the_bound(measured: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if measured:
        monkeypatch.setattr(
            link, "Accounts", lambda limits, _: Accounts(limits, lambda: time.thread_time_ns() // 1_000)
        )
    with testing.network("a", "b", "c", seed=1, loss=0.2, delay_s=0.02, altruistic=True) as net:
        for node in "abc":
            net.subscribe(node, "news")
        for number in range(120):
            net.publish("abc"[number % 3], "news", bytes(1_000 if number % 10 else 100_000))
        net.link("a", "b")
        net.link("b", "c")
        net.link("a", "c")
        net.advance(60)
        assert all(len(net.deliveries(node)) == 120 for node in "abc")
        assert all("muted" not in net.host(node).overview().refused for node in "abc")
