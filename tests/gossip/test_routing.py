"""Routing strategies: direct delivery, first contact, spray-and-wait and PRoPHET, in small networks."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import permutations, product
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.emu.test_emu_exact_addressed import addressed, deliveries, played
from tests.support.examples import examples
from tests.support.routing_oracle import direct

from carrypost import testing
from carrypost.config import Limits, Settings, parse
from carrypost.emu import run
from carrypost.emu.verify.invariants import check
from carrypost.errors import ConfigError, LocalError
from carrypost.gossip.strategy.prophet import EncounterTable
from carrypost.gossip.wire import codec
from carrypost.gossip.wire.frames import (
    CERTAIN,
    LISTED_MAX,
    NAMES_BYTES,
    Encounters,
    Frame,
    Held,
    Listing,
    Offer,
    OfferEntry,
    Tickets,
    packed_entries,
    packed_levels,
)
from carrypost.log.events import Dropped, Event, Reason, Received
from carrypost.model.ids import MessageId, NodeId, node_prefix
from carrypost.model.times import MICROSECONDS
from carrypost.node.settings import NodeSettings
from carrypost.testing import Network

ROUTING = ["direct", "epidemic", "first-contact", "spray-and-wait", "prophet"]
KINDS: dict[str, dict[str, Any]] = {
    "exchange": {"strategy": "exchange", "altruistic": True},
    "paper": {"strategy": "exchange", "altruistic": True, "paper_mode": True},
    **{each: {"strategy": each} for each in ("anti-entropy", *ROUTING)},
}  # fmt: skip
"""Settings of hosts that carry what they can, by their strategy."""


class Watch:
    """The messages that arrived at each node, and those that it gave up, by label."""

    def __init__(self, net: Network) -> None:
        self.received: list[tuple[str, str]] = []
        self.dropped: Counter[tuple[str, str, Reason]] = Counter()
        net.watch(self._note)

    def _note(self, _t: float, node: str, event: Event) -> None:
        if isinstance(event, Received):
            self.received += [(each.descriptor.label, node) for each in event.receptions]
        elif isinstance(event, Dropped):
            self.dropped.update((each.label, node, event.reason) for each in event.descriptors)


@contextmanager
def network(names: str, strategy: str, **settings: Any) -> Iterator[Network]:  # noqa: ANN401 - settings have many types
    with testing.network(*names, strategy=strategy, **settings) as net:
        for name in names:
            net.subscribe(name, "news")
        net.advance(1)
        yield net


def meet(net: Network, a: str, b: str, seconds: float = 10) -> None:
    net.link(a, b)
    net.advance(seconds)
    net.unlink(a, b)
    net.advance(20)


def got(net: Network, node: str) -> list[str]:
    return sorted(each.descriptor.label for each in net.deliveries(node))


# --- each by itself --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [100, 50_000])
def test_direct_takes_a_message_to_its_recipient_only(size: int) -> None:
    with network("abc", "direct") as net:
        watch = Watch(net)
        net.publish("a", "news", bytes(size), label="m", recipients=list("c"))
        meet(net, "a", "b")
        meet(net, "b", "c")
        assert watch.received == []
        meet(net, "a", "c")
        meet(net, "a", "c")
        assert watch.received == [("m", "c")]
        assert got(net, "c") == ["m"]
        # A recipient keeps nothing that its program has; the author does.
        assert watch.dropped == {("m", "c", Reason.PURGED): 1}


@pytest.mark.parametrize("size", [100, 50_000])
def test_first_contact_hands_its_only_copy_over_and_does_not_take_it_again(size: int) -> None:
    with network("abcd", "first-contact") as net:
        watch = Watch(net)
        net.publish("a", "news", bytes(size), label="m", recipients=list("d"))
        for pair in ("ab", "ac", "ab", "bc", "ac", "bc", "cd"):
            meet(net, *pair)
        assert watch.received == [("m", "b"), ("m", "c"), ("m", "d")]
        assert {key for key in watch.dropped if key[2] is Reason.FORWARDED} == {
            ("m", node, Reason.FORWARDED) for node in "abc"
        }
        assert got(net, "d") == ["m"]


def test_first_contact_offers_a_message_to_one_neighbour_at_a_time() -> None:
    with network("abcdef", "first-contact") as net:
        watch = Watch(net)
        for name in "bcdef":
            net.link("a", name)
        net.advance(5)
        for number in range(10):
            net.publish("a", "news", bytes(30_000), label=str(number), recipients=list("f"))
        net.unlink("a", "f")
        net.advance(30)
        assert max(Counter(label for label, _ in watch.received).values()) == 1


@pytest.mark.parametrize("neighbour", KINDS)
def test_first_contact_hands_a_message_over_only_to_a_neighbour_that_has_stored_it(neighbour: str) -> None:
    """Check a neighbour that crashes while its disk still writes the message: the giver keeps its copy."""
    size = 100 if neighbour in {"exchange", "first-contact"} else 50_000
    with network("ac", "first-contact", disk_delay_s=2) as net:
        net.add("b", **KINDS[neighbour])
        watch = Watch(net)
        net.publish("a", "news", bytes(size), label="m", recipients=list("c"))
        net.advance(5)
        net.link("a", "b")
        for _ in range(100):
            net.advance(0.1)
            if watch.received:
                break
        net.advance(0.5)
        net.kill("b")
        net.restart("b")
        net.unlink("a", "b")
        net.advance(30)
        meet(net, "a", "c", 30)
        assert got(net, "c") == ["m"]


def test_first_contact_does_not_hand_a_message_back_to_an_author_that_forgot_it() -> None:
    with network("abc", "first-contact") as net:
        net.publish("a", "news", b"x", label="m", recipients=list("c"))
        meet(net, "a", "b")
        net.kill("a")
        net.restart("a")
        meet(net, "a", "b")
        meet(net, "b", "c")
        assert got(net, "c") == ["m"]


@pytest.mark.parametrize("binary", [True, False])
def test_spray_and_wait_gives_half_of_its_tickets_or_one(binary: bool) -> None:
    with network("abcdefghz", "spray-and-wait", spray_copies=6, spray_binary=binary) as net:
        watch = Watch(net)
        net.publish("a", "news", b"x", label="m", recipients=list("z"))
        for pair in ("ab", "ac", "ad", "be", "bf", "ce", "eg", "dh"):
            meet(net, *pair)
        carriers = [node for _, node in watch.received]
        # a has 6, and gives 3 to b, 1 to c and 1 to d; b has 3, and gives 1 to e and 1 to f. The others wait.
        assert carriers == (["b", "c", "d", "e", "f"] if binary else ["b", "c", "d"])
        meet(net, "d", "z")
        assert got(net, "z") == ["m"]


def test_a_delivery_takes_tickets_too() -> None:
    with network("abcz", "spray-and-wait", spray_copies=2) as net:
        watch = Watch(net)
        net.publish("a", "news", b"x", label="m", recipients=list("z"))
        for pair in ("az", "ab", "az"):
            meet(net, *pair)
        assert watch.received == [("m", "z")]


def test_tickets_return_if_a_contact_ends_before_anything_was_sent() -> None:
    with network("abc", "spray-and-wait", spray_copies=2, delay_s=1.0) as net:
        watch = Watch(net)
        net.publish("a", "news", bytes(50_000), label="m", recipients=list("b"))
        net.publish("a", "news", bytes(50_000), label="n", recipients=list("c"))
        for _ in range(3):
            net.link("a", "b")
            for _ in range(100):
                before = net.traffic("a", "b").frames.get("Tickets", 0)
                net.advance(0.1)
                if net.traffic("a", "b").frames.get("Tickets", 0) > before:
                    break
            net.unlink("a", "b")
            net.advance(30)
        assert watch.received == []
        meet(net, "a", "b", 60)
        assert ("n", "b") in watch.received


@pytest.mark.parametrize("size", [100, 3_000])
def test_tickets_are_spent_if_a_contact_ends_before_the_acknowledgement(size: int) -> None:
    with network("abc", "spray-and-wait", spray_copies=2, delay_s=1.0) as net:
        watch = Watch(net)
        net.add("z")
        net.publish("a", "news", bytes(size), label="m", recipients=["z"])
        net.link("a", "b")
        for _ in range(300):
            net.advance(0.1)
            if watch.received:
                break
        net.unlink("a", "b")
        net.advance(60)
        meet(net, "a", "c", 60)
        assert watch.received == [("m", "b")]


def test_a_carried_copy_that_was_evicted_comes_again() -> None:
    with testing.network() as net:
        for name, room in (("a", 100), ("b", 2), ("z", 100)):
            net.add(name, strategy="epidemic", cache_messages_max=room)
        watch = Watch(net)
        for number in range(2):
            net.publish("a", "news", b"x", label=str(number), recipients=list("z"))
        meet(net, "a", "b")
        net.publish("b", "news", b"x", label="own", recipients=list("z"))  # It takes the place of 0.
        for _ in range(4):
            meet(net, "a", "b")
        assert watch.dropped["0", "b", Reason.EVICTED] >= 1
        assert watch.received.count(("0", "b")) >= 2
        assert watch.received.count(("own", "a")) == 1


@pytest.mark.parametrize("order", ["rank", "random"])
def test_the_copy_that_came_first_is_evicted_first_whatever_the_order_of_sending(order: str) -> None:
    with testing.network() as net:
        for name, room in (("a", 100), ("b", 2), ("c", 100), ("z", 100)):
            net.add(name, strategy="epidemic", cache_messages_max=room, send_order=order)
        watch = Watch(net)
        net.publish("c", "news", b"x", label="older", recipients=list("z"))
        net.advance(1)
        net.publish("a", "news", b"x", label="younger", recipients=list("z"))
        meet(net, "a", "b")
        meet(net, "b", "c")
        net.publish("b", "news", b"x", label="own", recipients=list("z"))
        net.advance(1)
        assert watch.dropped == {("younger", "b", Reason.EVICTED): 1}
        meet(net, "a", "b")
        assert watch.received.count(("younger", "b")) == 2


def test_prophet_gives_messages_to_better_carriers_only() -> None:
    with network("abcdz", "prophet") as net:
        watch = Watch(net)
        meet(net, "b", "z")
        net.publish("a", "news", b"x", label="m", recipients=list("z"))
        meet(net, "a", "c")
        assert watch.received == []  # Neither has met z.
        meet(net, "a", "b")
        assert watch.received == [("m", "b")]
        meet(net, "a", "d")  # a has heard of z by b, and d has not.
        assert watch.received == [("m", "b")]
        meet(net, "b", "z")
        assert got(net, "z") == ["m"]


@pytest.mark.parametrize("strategy", ["epidemic", "first-contact", "spray-and-wait", "prophet"])
def test_messages_for_all_subscribers_are_carried_too(strategy: str) -> None:
    with network("abc", strategy) as net:
        net.publish("a", "news", b"x", label="m")
        meet(net, "a", "b")
        meet(net, "b", "c")
        assert [got(net, node) for node in "abc"] == [["m"]] * 3


@pytest.mark.parametrize("strategy", ROUTING)
def test_messages_with_several_recipients_reach_each_of_them(strategy: str) -> None:
    with network("abcd", strategy) as net:
        net.publish("a", "news", b"x", label="m", recipients=list("bc"))
        meet(net, "a", "b")
        meet(net, "b" if strategy == "first-contact" else "a", "c")
        assert [got(net, node) for node in "bcd"] == [["m"], ["m"], []]


# --- an oracle -------------------------------------------------------------------------------------------------------


@given(addressed(), st.sampled_from((100, 70_000)))
@examples(20)
def test_direct_delivers_exactly_what_authors_can_hand_over(drawn: Any, size: int) -> None:  # noqa: ANN401 - as drawn
    schedule, lists = drawn
    table = played(schedule, lists, size, 'strategy = "direct"')
    expected = [(each[0], name) for each in schedule.messages for name in direct(schedule, each, lists[each[0]])]
    assert sorted(deliveries(table)) == sorted(expected)
    assert check(table) == []


@given(addressed(), st.integers(1, 4), st.booleans())
@examples(20)
def test_spray_and_wait_never_has_more_carriers_than_tickets(drawn: Any, copies: int, binary: bool) -> None:  # noqa: ANN401
    schedule, lists = drawn
    settings = f'strategy = "spray-and-wait"\nspray_copies = {copies}\nspray_binary = {str(binary).lower()}'
    table = played(schedule, lists, 100, settings)
    columns = (table[name].to_pylist() for name in ("kind", "message", "node"))
    carried = Counter(
        message
        for kind, message, node in zip(*columns, strict=True)
        if kind == "receive" and node not in lists[message]
    )
    assert max(carried.values(), default=0) <= copies - 1
    assert check(table) == []


@pytest.mark.parametrize("strategy", ["epidemic", "first-contact", "prophet"])
@given(addressed(), st.sampled_from(("", "cache_messages_max = 2")))
@examples(5)
def test_records_of_routing_are_sound(strategy: str, drawn: Any, room: str) -> None:  # noqa: ANN401
    schedule, lists = drawn
    assert check(played(schedule, lists, 100, f'strategy = "{strategy}"\n{room}')) == []


@given(addressed())
@examples(10)
def test_epidemic_routing_delivers_what_anti_entropy_does(drawn: Any) -> None:  # noqa: ANN401
    schedule, lists = drawn
    found = [deliveries(played(schedule, lists, 100, f'strategy = "{each}"')) for each in ("epidemic", "anti-entropy")]
    assert sorted(found[0]) == sorted(found[1])


# --- PRoPHET by hand -------------------------------------------------------------------------------------------------


def test_three_encounters_equal_the_published_formulas() -> None:
    table, p_init, beta, gamma, unit = EncounterTable(Settings.emulated()), 0.75, 0.25, 0.98, 30 * MICROSECONDS
    b, c = b"b" * 4, b"c" * 4
    table.met(b, 0)
    table.met(b, 10 * unit)
    first = p_init * gamma**10
    second = first + (1 - first) * p_init
    assert table.units([b], 10 * unit)[b] / CERTAIN == pytest.approx(second, abs=2**-16)
    table.learn(b, {c: CERTAIN // 2}, 20 * unit)
    through = second * gamma**10 * 0.5 * beta
    assert table.units([c], 20 * unit)[c] / CERTAIN == pytest.approx(through, abs=2**-16)
    table.met(c, 50 * unit)
    third = through * gamma**30
    third += (1 - third) * p_init
    assert table.entries(50 * unit) == {
        b"": 0, b: round(second * gamma**40 * CERTAIN), c: round(third * CERTAIN)
    }  # fmt: skip
    assert abs(table.units([c], 50 * unit)[c] / CERTAIN - third) <= 2**-16


_KEYS = st.sampled_from([bytes([letter]) * 4 for letter in b"abc"])
_GAPS = st.integers(0, 10**9)


@given(
    st.lists(st.one_of(st.tuples(_KEYS, _GAPS), st.tuples(_KEYS, _GAPS, _KEYS, st.integers(1, CERTAIN)))),
    st.lists(st.integers(0, 10**10), max_size=20),
)
@examples(50)
def test_probabilities_stay_in_bounds_and_do_not_depend_on_reading(steps: list[Any], looks: list[int]) -> None:
    """Play the same encounters twice, once with a look at all entries before each, at times of its own."""
    tables = [EncounterTable(Settings.emulated()) for _ in range(2)]
    now = 0
    for step in steps:
        for look in looks:
            tables[1].entries(now + look)
        now += step[1]
        for table in tables:
            if len(step) == 2:
                table.met(step[0], now)
            else:
                table.learn(step[0], {step[2]: step[3]}, now)
    found = [table.entries(now) for table in tables]
    assert found[0] == found[1]
    assert all(0 <= units <= CERTAIN for units in found[0].values())


def test_a_table_keeps_the_likeliest_nodes() -> None:
    table = EncounterTable(Settings.emulated(limits={"encounters_max": 3}))
    for number in range(5):
        table.met(bytes([number]) * 4, number * 10**9)
    assert [node[:1] for node in table.entries(5 * 10**9)] == [b"", b"\2", b"\3", b"\4"]


# --- other strategies, and lies --------------------------------------------------------------------------------------


@pytest.mark.parametrize(("one", "other"), [*product(KINDS, ROUTING)])
def test_hosts_with_different_strategies_give_each_other_what_is_for_them(one: str, other: str) -> None:
    """Check both roles of a session: `a` has the smaller id, and begins it if it is one for that."""
    for first, second in ((one, other), (other, one)):
        with testing.network() as net:
            for name, strategy in zip("ab", (first, second), strict=True):
                net.add(name, **KINDS[strategy])
                net.subscribe(name, "news")
            net.publish("a", "news", b"1", label="small", recipients=["b"])
            net.publish("b", "news", bytes(40_000), label="large", recipients=["a"])
            net.link("a", "b")
            net.advance(30)
            net.publish("b", "news", b"1", label="late", recipients=["a"])
            net.advance(30)
            assert [got(net, node) for node in "ab"] == [["large", "late"], ["small"]]


def test_other_hosts_skip_tickets_and_tables() -> None:
    for strategy, frame in (("spray-and-wait", "Tickets"), ("prophet", "Encounters")):
        with testing.network() as net:
            net.add("a", strategy=strategy)
            net.add("b", altruistic=True)
            net.subscribe("b", "news")
            net.add("z")
            net.publish("a", "news", b"x", label="m", recipients=["z"])
            net.link("a", "b")
            net.advance(30)
            assert net.sent("a").frames[frame] >= 1
            assert net.host("b").overview().refused["kind"] >= 1


def refuse_routing_frames(net: Network, node: str) -> None:
    handlers = net.host(node)._host_context.links.handlers  # noqa: SLF001 - as if it were an earlier version
    for kind in (Tickets, Encounters, Listing, Held):
        handlers.pop(kind, None)


@pytest.mark.parametrize("strategy", ["spray-and-wait", "prophet"])
@pytest.mark.parametrize("refusing", "ab")
def test_a_host_that_refuses_the_frames_of_its_strategy_gets_and_gives_what_is_for_others(
    strategy: str, refusing: str
) -> None:
    with network("ab", strategy) as net:
        refuse_routing_frames(net, refusing)
        net.publish("a", "news", b"1", label="small", recipients=["b"])
        net.publish("b", "news", bytes(40_000), label="large", recipients=["a"])
        meet(net, "a", "b", 30)
        assert [got(net, node) for node in "ab"] == [["large"], ["small"]]
        assert net.host(refusing).overview().refused.keys() <= {"kind"}


def test_a_host_that_refuses_tickets_has_one_of_each_message() -> None:
    with network("abcz", "spray-and-wait") as net:
        refuse_routing_frames(net, "b")
        watch = Watch(net)
        net.publish("a", "news", b"x", label="m", recipients=["z"])
        for pair in ("ab", "bc", "bz"):
            meet(net, *pair)
        assert watch.received == [("m", "b"), ("m", "z")]


def test_a_host_that_refuses_tables_gives_only_what_is_for_the_neighbour() -> None:
    with network("abz", "prophet") as net:
        meet(net, "b", "z")
        refuse_routing_frames(net, "a")
        watch = Watch(net)
        net.publish("a", "news", b"x", label="m", recipients=["z"])
        for pair in ("ab", "az"):
            meet(net, *pair)
        assert watch.received == [("m", "z")]


def offered(serial: int = 7, count: int = 2) -> list[Frame]:
    entries = tuple(OfferEntry(MessageId(b"z:1:%d" % number), number, 10, 4) for number in range(1, count + 1))
    return [Offer(serial, entries)]


@pytest.mark.parametrize(
    ("frames", "refused"),
    [
        ([Tickets(7, (1, 1))], 1),
        ([Offer, Tickets(7, (1, 1))], 0),
        ([Offer, Tickets(7, (1, 1)), Tickets(7, (1, 1))], 1),
        ([Offer, Tickets(8, (1, 1))], 1),
        ([Offer, Tickets(7, (1,))], 1),
        ([Offer, Tickets(7, (0, 1))], 1),
        ([Offer, Tickets(7, (6, 6))], 0),
        ([Offer, Tickets(7, (1, 7))], 1),
    ],
)
def test_tickets_that_fit_no_offer_are_refused(frames: list[Any], refused: int) -> None:
    with network("ab", "spray-and-wait") as net:
        net.link("a", "b")
        net.advance(10)
        net.inject("a", [each for frame in frames for each in (offered() if frame is Offer else [frame])], "b")
        assert net.host("a").overview().refused.get("tickets", 0) == refused


def entry(node: str, units: int = CERTAIN) -> tuple[bytes, int]:
    return node_prefix(NodeId(node)), units


def _named(*parts: list[str]) -> list[Frame]:
    """Return a table with names, in these parts."""
    packed = [packed_entries(sorted(map(entry, each))) for each in parts]
    return [Encounters(part, len(parts), each) for part, each in enumerate(packed)]


_NAMES = hashlib.sha256(b"".join(sorted([node_prefix(NodeId("a")), node_prefix(NodeId("b"))]))).digest()[:NAMES_BYTES]
"""Of two hosts that have met nobody else."""


@pytest.mark.parametrize(
    ("frames", "refused"),
    [
        ([Encounters(0, 1, packed_entries([entry("x")]))], {}),
        ([Encounters(0, 1, packed_entries([entry("b", 0)]))], {}),
        ([Encounters(1, 2, packed_entries([entry("x")]))], {}),
        (_named(["x"], ["x"]), {"encounters": 1}),
        (_named(["x"], ["y"], ["z"])[2:] + _named(["x"], ["y"])[:1], {"parts": 1}),
        (_named(["x", "y"], ["z", "w"]), {"encounters": 1}),
        ([Encounters(0, 1, packed_levels([1]), _NAMES)], {"encounters": 1}),
        ([Encounters(0, 1, packed_levels([1, 2, 3]), _NAMES)], {"encounters": 1}),
        ([Encounters(0, 1, packed_levels([1, 0]), _NAMES)], {}),
    ],
)
def test_tables_that_are_none_are_refused(frames: list[Frame], refused: dict[str, int]) -> None:
    with network("ab", "prophet", limits={"encounters_max": 2}) as net:
        net.link("a", "b")
        net.advance(10)
        net.inject("a", frames, "b")
        assert net.host("a").overview().refused == refused


@pytest.mark.parametrize(
    ("frame", "refusal"),
    [
        (Tickets(7, ()), "frame"),
        (Tickets(7, (1,) * 513), "limit"),
        (Encounters(1, 1, packed_entries([entry("x")])), "frame"),
        (Encounters(0, 1, b""), "frame"),
        (Encounters(0, 1, b"1234567"), "frame"),
        (Encounters(0, 1, packed_entries([entry("x"), entry("x")])), "frame"),
        (Encounters(0, 1, packed_entries([entry("x", CERTAIN + 1)])), "frame"),
        (Encounters(0, 1, packed_entries([(number.to_bytes(4, "big"), 1) for number in range(4_098)])), "limit"),
        (Encounters(0, 4_098, packed_entries([entry("x")])), "limit"),
        (Encounters(0, 1, packed_levels([1]), b"1234567"), "frame"),
        (Encounters(0, 1, b"123", bytes(8)), "frame"),
        (Encounters(2, 2, packed_levels([1]), bytes(8)), "frame"),
        (Encounters(0, 1, packed_levels([CERTAIN + 1]), bytes(8)), "frame"),
        (Encounters(0, 1, packed_levels([1] * 4_098), bytes(8)), "limit"),
        (Listing(1, 1, 2, bytes(3)), "frame"),
        (Listing(1, 1, LISTED_MAX + 1, bytes(2_000)), "frame"),
        (Held(1, bytes(LISTED_MAX // 8 + 1)), "limit"),
    ],
)
def test_wrong_frames_are_refused_before_anything_looks_at_them(frame: Frame, refusal: str) -> None:
    (datagram,) = codec.datagrams([frame], 65_000)
    decoded = codec.decode(datagram, Limits(datagram_bytes_max=65_000))
    assert (decoded.frames, decoded.refused) == ([], {refusal: 1})


def test_tables_go_without_names_where_both_hosts_know_the_same_nodes() -> None:
    with network("abcd", "prophet") as net:
        for pair in 2 * list(permutations("abcd", 2)):
            meet(net, *pair)
        before = net.traffic("a", "b").frame_bytes["Encounters"]
        meet(net, "a", "b")
        known = 4
        assert net.traffic("a", "b").frame_bytes["Encounters"] - before < 8 * known
        net.add("e")
        net.add("z", strategy="prophet")
        meet(net, "b", "z")
        net.publish("a", "news", b"x", label="m", recipients=["z"])
        sent = [net.sent(node).frames["Encounters"] for node in "ab"]
        meet(net, "a", "b")
        assert net.host("b").overview().messages == 1  # b knows z, and a does not: it took the names to see that.
        # The larger id asks, gets names for an answer, and answers with names.
        assert [net.sent(node).frames["Encounters"] for node in "ab"] == [sent[0] + 1, sent[1] + 2]


def test_tables_that_fit_into_no_datagram_go_in_parts() -> None:
    """Check both forms: hosts know different nodes when they meet first, and the same when they meet again."""
    nodes = sorted([entry(f"n{number}") for number in range(700)])
    parts = [packed_entries(nodes[at : at + 175]) for at in range(0, 700, 175)]
    with network("ac", "prophet") as net:
        net.add("b", strategy="direct")
        net.link("a", "b")
        net.advance(5)
        net.inject("a", [Encounters(part, 4, each) for part, each in enumerate(parts)], "b")
        net.unlink("a", "b")
        for form, size in (("names", 6), ("levels", 2)):
            before = net.traffic("a", "c").frame_bytes["Encounters"]
            meet(net, "a", "c")
            sent = net.traffic("a", "c").frame_bytes["Encounters"] - before
            assert size * len(nodes) < sent < size * len(nodes) + 200, form
        assert net.host("a").overview().refused == net.host("c").overview().refused == {}


def test_tables_are_answered_within_bounds() -> None:
    """Check a neighbour that asks all the time: each question may be answered by a long table."""
    with network("ab", "prophet") as net:
        net.link("a", "b")
        net.advance(30)
        before = net.traffic("a", "b").frames["Encounters"]
        for _ in range(150):
            net.inject("a", [Encounters(0, 1, packed_levels([1, 2, 3]), bytes(8))], "b")
        net.advance(0.1)
        answered = net.traffic("a", "b").frames["Encounters"] - before
        assert 0 < answered <= 100
        assert net.host("a").overview().refused == {"rate": 150 - answered}


def test_a_table_says_nothing_of_its_reader() -> None:
    """Check a liar: messages for third nodes go to it, and nothing that it says of `a` counts."""
    with network("abz", "prophet") as net:
        watch = Watch(net)
        net.publish("a", "news", b"x", label="m", recipients=["z"])
        net.link("a", "b")
        net.advance(10)
        assert watch.received == []
        net.inject("a", [Encounters(0, 1, packed_entries(sorted([entry("a"), entry("z")])))], "b")
        net.advance(10)
        assert watch.received == [("m", "b")]


def test_a_wrong_choice_says_what_to_do() -> None:
    for strategy in ROUTING:
        assert parse(f'strategy = "{strategy}"\nisland = false').strategy == strategy
        with pytest.raises(ConfigError, match="requires island = false"):
            parse(f'strategy = "{strategy}"')
        with pytest.raises(ConfigError, match=r'"exchange" where paper_mode is true.*leave one of them out'):
            Settings.emulated(strategy=strategy, paper_mode=True)
        with pytest.raises(ConfigError, match=r'for emulation only.*use "exchange" or "anti-entropy"'):
            NodeSettings(core=Settings(strategy=strategy, island=False))
    with pytest.raises(ConfigError, match="did you mean spray-and-wait"):
        parse('strategy = "spray-wait"')


ONE_WORKLOAD = 'duration_s = 10\n[nodes]\ncount = 3\n[settings]\nstrategy = "direct"\n[[workload]]\n'


@pytest.mark.parametrize(
    ("workload", "error"),
    [
        ('kind = "broadcast"', r'workload.0.kind: "direct" takes messages to their recipients.*use kind = "addressed"'),
        ('kind = "broadcast"\nordering = "causal"', r'workload.0.ordering: "direct" does not bring.*use strategy'),
        (
            'kind = "script"\nfile = "script.csv"',
            r"script.csv, line 3: message 'n' has no recipients.*another strategy",
        ),
    ],
)
def test_scenarios_that_routing_cannot_play_say_what_to_do(workload: str, error: str, tmp_path: Path) -> None:
    (tmp_path / "script.csv").write_text("t,node,message,size,recipients\n1,n0001,m,5,n0002\n2,n0001,n,5,\n")
    (tmp_path / "scenario.toml").write_text(ONE_WORKLOAD + workload)
    with pytest.raises(LocalError, match=error):
        run(tmp_path / "scenario.toml", 1)
