"""Many subscriptions: interests stay right while subscriptions are added and removed, at a bounded cost."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.loopback import apart
from tests.support.node_programs import Programs
from tests.support.nodes import QUICK, scene

from carrypost import testing
from carrypost.application.deliveries import Destinations, Subscriptions
from carrypost.config import Limits, Settings
from carrypost.errors import InvalidSelectorException, LocalError, PatternError
from carrypost.gossip.interest.matcher import Matcher
from carrypost.gossip.interest.own_interests import OwnInterests
from carrypost.gossip.wire.frames import Announce
from carrypost.gossip.wire.pieces import Blank
from carrypost.host import Host
from carrypost.log.events import Delivered, Delivery
from carrypost.model.descriptor import Descriptor, PayloadCodec
from carrypost.model.ids import NodeId
from carrypost.model.pattern import Entry, encode_entries, entry, profile_digest
from carrypost.node.runtime import Node
from carrypost.node.settings import parse
from carrypost.security.identity import Identity

S = 1_000_000
LIMITS = Limits()


def a_descriptor(destination: str) -> Descriptor:
    return Descriptor(
        author="alan", incarnation=0, sequence=1, created_us=0, deadline_us=None, destination=destination,
        size=0, length=0, codec=PayloadCodec.PLAIN, root=b"", fragment_bytes=1024,
    )  # fmt: skip


# --- who asks for what ---------------------------------------------------------------------------------------

pieces = st.sampled_from(["a", "b", "1", ".", ".*", "[ab]", "a+", "b?", r"\.", "(a|b1)", "a{2}", "^a", "b$", "(?i)a"])
patterns = st.lists(st.lists(pieces, max_size=4).map("".join), min_size=1, max_size=2).map("|".join)
words = st.text("abB1.", max_size=4)
interests = st.one_of(
    patterns.map(entry), st.builds(lambda pattern: entry({"destination": pattern, "priority": "4|5"}), patterns)
)


def naive(entries: dict[int, Entry], descriptor: Descriptor) -> tuple[int, ...]:
    return tuple(number for number, each in entries.items() if Matcher([each], LIMITS, own=True).matches(descriptor))


hidden = st.tuples(interests, st.booleans())


@given(st.lists(st.one_of(interests, hidden, st.integers(0, 8), words.map(a_descriptor)), max_size=30))
def test_whoever_asks_is_found_however_subscriptions_came_and_went(
    steps: list[Entry | tuple[Entry, bool] | int | Descriptor],
) -> None:
    own, expected, lent, untold = OwnInterests(Settings(), NodeId("here")), dict[int, Entry](), set[int](), set[int]()
    subscriptions = Subscriptions(own, LIMITS)
    for step in steps:
        if isinstance(step, Entry):
            expected[subscriptions.add(step)] = step
        elif isinstance(step, tuple):
            wanted, told = step
            number = subscriptions.lend(wanted, advertised=told)
            expected[number] = wanted
            lent.add(number)
            if not told:
                untold.add(number)
        elif isinstance(step, int):
            gone = list(expected)[step : step + 2]
            assert subscriptions.remove(gone) == [expected.pop(number) for number in gone]
        else:
            asking = naive(expected, step)
            assert own.wants(step) == bool(asking)
            assert own.which(step) == asking
            assert subscriptions.asking(step) == tuple(number for number in asking if number not in lent)
        profile = [each for number, each in expected.items() if number not in untold]
        assert own.entries == tuple(dict.fromkeys(profile))


@given(st.lists(words), st.lists(interests, min_size=1, max_size=3))
def test_what_an_entry_matches_is_among_its_candidates(destinations: list[str], entries: list[Entry]) -> None:
    index = Destinations()
    for number, destination in enumerate(destinations):
        index.add(destination, number)
    matcher = Matcher(entries, LIMITS, own=True)
    matching = {n for n, destination in enumerate(destinations) if matcher.matches(a_descriptor(destination))}
    assert matching <= index.candidates(entries) <= set(range(len(destinations)))


def test_several_subscriptions_end_together_or_not_at_all() -> None:
    anna = Anna()
    first, second = anna.subscribe("news"), anna.subscribe("sport")
    with pytest.raises(LocalError, match="no subscription 99"):
        anna.host.unsubscribe([first, 99], anna.now)
    anna.publish("news")
    assert [each.subscriptions for each in anna.delivered] == [(first,)]
    anna.host.unsubscribe([first, second, first], anna.now)
    anna.publish("sport")
    assert len(anna.delivered) == 1


# --- what it costs -------------------------------------------------------------------------------------------


@dataclass
class Work:
    """The work that is done for subscriptions, counted."""

    compiled: int = 0
    """Entries that became part of a matcher."""
    looked_at: int = 0
    """Number of messages compared with an entry."""


@contextmanager
def counted() -> Iterator[Work]:
    work = Work()
    make, matches, which = Matcher.__init__, Matcher.matches, Matcher.which_of

    def making(self: Matcher, entries: tuple[Entry, ...], limits: Limits, *, own: bool = False) -> None:
        work.compiled += len(entries)
        make(self, entries, limits, own=own)

    def matching(self: Matcher, descriptor: Descriptor) -> bool:
        work.looked_at += 1
        return matches(self, descriptor)

    def finding(self: Matcher, descriptor: Descriptor) -> tuple[int, ...]:
        work.looked_at += 1
        return which(self, descriptor)

    with (
        patch.object(Matcher, "__init__", making),
        patch.object(Matcher, "matches", matching),
        patch.object(Matcher, "which_of", finding),
    ):
        yield work


class Anna:
    """A host whose steps are called one by one, with everything that a driver does after each; a millisecond apart."""

    def __init__(self, **settings: object) -> None:
        self.host = Host(Identity.plain("anna"), Settings.emulated(**settings), random.Random(1))
        self.now = S
        self.delivered: list[Delivery] = []
        self.announced = b""
        """The digest of its profile, as neighbours hear it."""
        self.host.start(self.now)
        self.step()

    def step(self) -> None:
        host = self.host
        self.now += 1_000
        if (due := host.next_deadline()) is not None and due <= self.now:
            host.tick(self.now)
        while host.busy:
            if (batch := host.changes()) is not None:
                host.durable(batch.serial, self.now)
            for transmission in host.outgoing():
                for frame in transmission.frames:
                    if isinstance(frame, Announce):
                        self.announced = frame.profile
            for event in host.events():
                if isinstance(event, Delivered):
                    self.delivered += event.deliveries

    def subscribe(self, pattern: str) -> int:
        number = self.host.subscribe(pattern, now=self.now)
        self.step()
        return number

    def unsubscribe(self, number: int) -> None:
        self.host.unsubscribe(number, self.now)
        self.step()

    def publish(self, destination: str) -> None:
        self.host.publish(destination, Blank(1), now=self.now)
        self.step()

    def rest(self) -> None:
        """A second in which nothing happens."""
        for _ in range(1_000):
            self.step()


def made_and_dropped(count: int, *, published: bool = False) -> int:
    """Return the number of entries compiled while this many subscriptions are made and dropped, one by one."""
    anna = Anna()
    with counted() as work:
        numbers = []
        for number in range(count):
            numbers.append(anna.subscribe(f"room/{number}"))
            if published:
                anna.publish("lobby")
        for number in numbers:
            anna.unsubscribe(number)
            if published:
                anna.publish("lobby")
    return work.compiled


@pytest.mark.pure("counts calls")
def test_four_times_as_many_subscriptions_cost_about_four_times_as_much() -> None:
    # The announcements, five a second at most, each make the profile; nothing else may depend on how many there are.
    few, many = made_and_dropped(500), made_and_dropped(2_000)
    announcements = 5 * 2 * 2_000 // 1_000
    assert few < 500 * 10
    assert many < 2_000 * (announcements + 4)


@pytest.mark.pure("counts calls")
def test_messages_in_between_do_not_make_every_subscription_cost_all_others() -> None:
    few, many = made_and_dropped(250, published=True), made_and_dropped(1_000, published=True)
    assert many < few * 10  # Sixteen times as many, where each costs all others.


@pytest.mark.pure("counts calls")
def test_subscriptions_look_only_at_the_messages_that_they_get() -> None:
    anna = Anna(beacons=False)
    for number in range(2_000):
        anna.publish(f"room/{number % 1_000}")
    with counted() as work:
        numbers = [anna.subscribe(f"room/{number}") for number in range(800)]
        numbers += [anna.subscribe(f"room/{number}.*") for number in range(800, 1_000)]
    assert len(anna.delivered) == 2_000
    assert [each.descriptor.destination for each in anna.delivered[:4]] == ["room/0", "room/0", "room/1", "room/1"]
    assert work.looked_at < 5 * 2_000  # And not two thousand times a thousand.
    with counted() as work:
        for number in numbers:
            anna.unsubscribe(number)
    assert work.looked_at < 5 * 2_000
    assert work.compiled < 10 * 1_000


def test_a_slot_that_has_another_message_by_now_is_not_mistaken_for_what_it_had() -> None:
    anna = Anna(beacons=False)
    for turn in range(3):
        for number in range(40):
            anna.host.publish(f"room/{(number + turn) % 40}", Blank(1), now=anna.now, lifetime_us=S)
            anna.step()
        mine = anna.subscribe("room/7")
        assert [each.descriptor.destination for each in anna.delivered] == ["room/7"]
        anna.unsubscribe(mine)
        anna.delivered.clear()
        anna.rest()
        anna.rest()


@pytest.mark.parametrize("dropped", [0, 3, 40])
def test_the_profile_that_is_announced_is_that_of_the_subscriptions_there_are(dropped: int) -> None:
    anna = Anna()
    patterns = [f"room/{number}" for number in range(30)] + [f"hall/[a-c]{number}" for number in range(10)]
    numbers = [anna.subscribe(pattern) for pattern in patterns]
    anna.host.unsubscribe(numbers[:dropped], anna.now)
    anna.rest()
    expected = encode_entries(entry(pattern) for pattern in patterns[dropped:])
    assert anna.announced == profile_digest(expected)


def test_every_subscription_that_is_taken_is_in_the_profile() -> None:
    """Check that a subscription beyond the limit in bytes raises, and is not left out without a word."""
    anna = Anna(limits={"profile_bytes_max": 1_000, "descriptor_bytes_max": 1_000}, mtu_bytes=9_000)
    patterns: list[str] = []

    def fill() -> None:
        while True:
            anna.subscribe(f"r{len(patterns)}")
            patterns.append(f"r{len(patterns)}")

    with pytest.raises(LocalError, match="more than 1000 bytes"):
        fill()
    anna.rest()
    assert anna.announced == profile_digest(encode_entries(entry(pattern) for pattern in patterns))
    anna.subscribe("r0")  # What is there already takes no room.


# --- programs ------------------------------------------------------------------------------------------------


class Program:
    """A consumer that keeps its messages."""

    def __init__(self) -> None:
        self.got: list[Delivery] = []

    def take(self, delivery: Delivery) -> None:
        self.got.append(delivery)


TIGHT = {"pattern_bytes_max": 12, "selector_bytes_max": 12, "attributes_max": 1, "attribute_bytes_max": 4}


@pytest.mark.parametrize(
    ("pattern", "selector", "limit"),
    [
        ("news.of.the.day", None, "limits.pattern_bytes_max"),
        ("news", "weight BETWEEN 3 AND 5", "limits.selector_bytes_max"),
        ({"destination": "news", "weight": "3"}, None, "limits.attribute_bytes_max"),
        ({"a": "1", "b": "2"}, None, "limits.attributes_max"),
    ],
)
def test_a_subscription_that_equal_neighbours_cannot_evaluate_is_refused_where_it_is_made(
    pattern: str | dict[str, str], selector: str | None, limit: str
) -> None:
    with testing.network("a", "b", limits=TIGHT) as net:
        net.subscribe("b", "news")
        with pytest.raises(PatternError, match=limit):
            net.subscribe("b", pattern, selector)
        net.link("a", "b")
        net.publish("a", "news", b"still comes")
        net.advance(5)
        assert [each.payload for each in net.deliveries("b")] == [b"still comes"]


def test_a_topic_that_equal_neighbours_cannot_evaluate_is_refused_where_a_consumer_is_opened() -> None:
    async def play() -> None:
        async with testing.network("a", limits=TIGHT) as net, net.context("a") as context:
            await context.create_consumer(context.create_topic("news"))
            with pytest.raises(InvalidSelectorException, match=r"limits\.pattern_bytes_max"):
                await context.create_consumer(context.create_topic("news.of.the.day"))

    testing.run(play)


@scene
async def test_a_node_makes_one_profile_when_a_program_with_many_subscriptions_hangs_up(tmp_path: Path) -> None:
    settings = parse("", {}, {**QUICK, "udp": apart(), "node.data": str(tmp_path)})
    async with Node(settings) as node:
        programs = Programs(node)
        async with programs.context() as other, other.create_consumer("topic/kept") as kept:
            program = await programs.context()
            for number in range(1_000):
                await program.create_consumer(f"topic/room.{number}")
            with counted() as work:
                await program.close()
            overview = node.host.messaging.overview()
            assert overview is not None
            assert overview.subscriptions == 1
            assert work.compiled < 5_000  # A profile that was due meanwhile included; one by one it were a million.
            await other.send("topic/kept", "x")
            assert await kept.receive_body(str, timeout=10) == "x"


@pytest.mark.parametrize("ordered", [False, True])
def test_a_selector_beside_a_destination_is_kept_also_where_messages_have_an_order(ordered: bool) -> None:
    host = Host(Identity.plain("a"), Settings.emulated(), random.Random(1))
    host.start(0)
    number = host.subscribe("news", "price > 3", ordered=ordered, now=0)
    assert host._deliveries.subscriptions.asked(number) == entry("news", "price > 3")  # noqa: SLF001 - nobody asks yet
