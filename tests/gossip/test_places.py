"""Places among the neighbours of a host that hears more than it can list, and turns for those that wait."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import count

import pytest
from tests.support.hostile import Attacker, Scene, message, scene
from tests.support.proofs import tell

from carrypost.config import Limits, Settings
from carrypost.gossip.discovery.neighbour import LAPSE_PERIODS, ROTATING, STAY_PERIODS, WAITING_MAX
from carrypost.gossip.wire import codec
from carrypost.gossip.wire.frames import Ack, Announce, Parcel, Request
from carrypost.host import Host
from carrypost.log.events import NeighbourDown
from carrypost.model.ids import NodeId, node_prefix
from carrypost.security.identity import Identity

SECOND = 1_000_000
PLACES = 8
TURNS = PLACES // ROTATING
"""Places that rotate."""
PERIOD_S = 5.0
STAY_S = STAY_PERIODS * PERIOD_S
CROWD = 24
STORM_PER_S = 20
WANTS_NOTHING = bytes(8)


class Crowded:
    """A host `a` with few places, driven by hand, and strangers around it."""

    def __init__(self, **settings: object) -> None:
        made = Settings.emulated(limits={"heard_max": PLACES}).replace(**settings)
        self.settings = made
        self.host = Host(Identity.plain("a"), made, random.Random(1))
        self.host.start(0)
        batch = self.host.changes()
        assert batch is not None
        self.host.durable(batch.serial, 0)
        self.now = 0
        self._counter = count(1)

    def hears(self, *names: str) -> None:
        """Announcements that list this host."""
        me = node_prefix(NodeId("a"))
        for name in names:
            said = Announce(NodeId(name), 1, next(self._counter), 1_000, WANTS_NOTHING, (me,))
            tell(self.host, said, name, self.now)

    def run(self, seconds: float) -> list[Announce]:
        """Let time pass; return the announcements that were broadcast."""
        end = self.now + round(seconds * SECOND)
        announced = self._announced()
        while (due := self.host.next_deadline()) is not None and due <= end:
            self.now = max(due, self.now)
            self.host.tick(self.now)
            announced += self._announced()
        self.now = end
        return announced

    def _announced(self) -> list[Announce]:
        sent = [frame for each in self.host.outgoing() if each.to is None for frame in each.frames]
        return [frame for frame in sent if isinstance(frame, Announce)]

    @property
    def neighbours(self) -> set[str]:
        return {each.address for each in self.host.overview().neighbours}


# --- turns ---------------------------------------------------------------------------------------------------------


def test_everybody_who_is_left_out_has_its_turn_and_it_lasts() -> None:
    crowded = Crowded()
    names = [f"n{number}" for number in range(CROWD)]
    came: dict[str, int] = {}
    stays: dict[str, list[float]] = {name: [] for name in names}
    round_s = (CROWD - PLACES) / TURNS * STAY_S
    for _ in range(round(round_s) + 5):
        crowded.hears(*names)
        there = crowded.neighbours
        assert len(there) == PLACES
        for name in names:
            if name in there:
                came.setdefault(name, crowded.now)
            elif name in came:
                stays[name].append((crowded.now - came.pop(name)) / SECOND)
        crowded.run(1)
    assert {name for name in names if name not in came and not stays[name]} == set()
    assert min(stay for each in stays.values() for stay in each) >= STAY_S


def test_who_announces_itself_more_often_has_no_more_turns() -> None:
    crowded = Crowded()
    loud, quiet = [f"loud{number}" for number in range(CROWD // 2)], [f"quiet{number}" for number in range(CROWD // 2)]
    turns: Counter[str] = Counter()
    before: set[str] = set()
    for step in range(2_000):
        crowded.hears(*loud)
        if step % 50 == 49:
            crowded.hears(*quiet)
        turns.update(crowded.neighbours - before)
        before = crowded.neighbours
        crowded.run(0.1)
    # The first of the loud came before anybody else, and have what does not rotate.
    had = [turns[name] for name in loud[PLACES - TURNS :]], [turns[name] for name in quiet]
    assert min(had[1]) >= 2
    assert max(had[0]) <= max(had[1]) + 1


def test_the_line_is_bounded_and_forgets_who_is_heard_no_more() -> None:
    crowded = Crowded()
    for number in range(2 * WAITING_MAX):
        crowded.hears(f"n{number}")
    overview = crowded.host.overview()
    assert (len(overview.neighbours), overview.places, overview.waiting) == (PLACES, PLACES, WAITING_MAX)
    assert overview.refused["neighbours"] == 2 * WAITING_MAX - PLACES
    crowded.run((LAPSE_PERIODS + 1) * PERIOD_S + 1)
    assert crowded.host.overview().waiting == 0


def test_a_step_of_the_clock_takes_nobody_from_its_place_or_out_of_the_line() -> None:
    crowded = Crowded()
    crowded.hears(*(f"n{number}" for number in range(PLACES + 2)))
    there, waiting = crowded.neighbours, crowded.host.overview().waiting
    crowded.host.clock_stepped(3_600 * SECOND)
    crowded.now += 3_600 * SECOND
    crowded.hears("another")
    assert (crowded.neighbours, crowded.host.overview().waiting) == (there, waiting + 1)


def test_who_is_gone_makes_room_for_who_has_waited_longest() -> None:
    crowded = Crowded()
    names = [f"n{number}" for number in range(PLACES)]
    crowded.hears(*names, "first", "second")
    crowded.run(2.5)
    crowded.hears(*names[1:], "first", "second")
    crowded.run(1)
    crowded.hears("third", "second", "first")  # `names[0]` was silent for three of its periods.
    assert crowded.neighbours == {*names[1:], "first"}


# --- what was exchanged --------------------------------------------------------------------------------------------


def gives(stage: Scene, name: str) -> Attacker:
    """Return a neighbour of `b` that brings a message that is wanted there."""
    made = stage.attacker("b", address=name)
    given = message(made.identity)
    made.say("b", made.offer(given))
    stage.net.advance(1)
    assert made.sends(Request)
    made.say("b", made.parcel(given))
    return made


def takes(stage: Scene, name: str) -> Attacker:
    """Return a neighbour of `b` that is sent a message and acknowledges it."""
    made = stage.attacker("b", address=name)
    made.agree("b")
    stage.net.publish("b", "news", b"for whoever takes it")
    stage.net.advance(1)
    (parcel,) = made.sends(Parcel)
    made.say("b", Ack(parcel.serial, b"\x01"))
    return made


@pytest.mark.parametrize(
    ("exchange", "seldom", "keeps"),
    [(gives, False, True), (gives, True, True), (takes, False, True), (None, False, False), (None, True, False)],
)
def test_who_exchanged_a_message_keeps_its_place_and_who_did_not_has_turns(
    exchange: Callable[[Scene, str], Attacker] | None, seldom: bool, keeps: bool
) -> None:
    with scene(limits={"heard_max": PLACES}) as stage:
        crowd = [stage.attacker("b", address=f"crowd{number}") for number in range(PLACES - 2)]
        late = exchange(stage, "late") if exchange is not None else stage.attacker("b", address="late")
        crowd += [Attacker(stage.net, f"more{number}") for number in range(4)]
        away = 0
        for _ in range(90):
            for each in crowd if seldom else (*crowd, late):
                each.say("b", each.announcement("b"))
            stage.net.advance(1)
            away += late.address not in {each.address for each in stage.net.host("b").overview().neighbours}
        assert (away == 0) is keeps


def stays(stage: Scene) -> Iterator[list[Attacker]]:
    """Yield strangers that announce themselves every second."""
    crowd = [Attacker(stage.net, f"crowd-{number}") for number in range(CROWD)]
    while True:
        yield crowd


def earns(stage: Scene) -> Iterator[list[Attacker]]:
    """Yield strangers, of which those that find a place at first earn it by a message."""
    crowd = [gives(stage, f"crowd-{number}") for number in range(PLACES - 1)]
    crowd += [Attacker(stage.net, f"crowd-{number}") for number in range(PLACES - 1, CROWD)]
    while True:
        yield crowd


def storms(stage: Scene) -> Iterator[list[Attacker]]:
    """Addresses that were never heard before, and never will be again."""
    for second in count():
        yield [Attacker(stage.net, f"storm-{second}-{number}") for number in range(STORM_PER_S)]


@pytest.mark.parametrize(
    ("flood", "within_s"),
    [
        # All who wait have their turns first; then the newcomer, at its next announcement.
        (stays, (CROWD + 2 - PLACES) / TURNS * STAY_S + PERIOD_S),
        (earns, (CROWD + 2 - PLACES) / TURNS * STAY_S + PERIOD_S),
        # Who was forged once holds a place until it has been silent for long enough, and waits for less.
        (storms, STAY_S + LAPSE_PERIODS * PERIOD_S + PERIOD_S),
    ],
)
def test_a_newcomer_finds_its_place_in_a_flood_and_a_friend_keeps_its(
    flood: Callable[[Scene], Iterator[list[Attacker]]], within_s: float
) -> None:
    with scene(limits={"heard_max": PLACES}) as stage:
        net, lost = stage.net, list[NodeId]()
        net.watch(lambda _t, _node, event: lost.append(event.node) if isinstance(event, NeighbourDown) else None)
        friend = net.host("a").node
        stage.publish()
        net.advance(5)
        strangers = flood(stage)

        def say(seconds: float) -> None:
            for _ in range(round(seconds)):
                for each in next(strangers):
                    each.say("b", each.announcement("b"))
                net.advance(1)

        say(2 * STAY_S)
        assert len(net.host("b").overview().neighbours) == PLACES
        net.add("c")
        net.subscribe("c", "news")
        net.publish("c", "news", b"from the newcomer")
        net.publish("b", "news", b"to the newcomer")
        net.link("b", "c")
        say(within_s)
        assert b"from the newcomer" in [delivery.payload for delivery in net.deliveries("b")]
        assert b"to the newcomer" in [delivery.payload for delivery in net.deliveries("c")]
        net.publish("a", "news", b"from the friend")
        say(2)
        assert b"from the friend" in [delivery.payload for delivery in net.deliveries("b")]
        assert friend not in lost


# --- how many ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "places"),
    [
        ({}, Limits().heard_max),
        ({"mtu_bytes": 576}, 64),
        ({"mtu_bytes": 9_000}, Limits().heard_max),
        ({"limits": {"heard_max": 16_384}}, Limits().heard_max),
        # So many newcomers in one moment are more work than strangers may cause.
        (
            {
                "mtu_bytes": 9_000,
                "limits": {"heard_max": 16_384, "neighbours_max": 65_536, "waste_per_s": 10**9},
            },
            1_468,
        ),
        ({"limits": {"heard_max": 5}}, 5),
        ({"limits": {"neighbours_max": 5}}, 5),
    ],
)
def test_there_are_as_many_places_as_limits_and_datagrams_allow_and_all_are_listed(
    settings: dict[str, object], places: int
) -> None:
    crowded = Crowded(**{"limits": {"heard_max": Limits().heard_max}} | settings)
    assert crowded.host.overview().places == places
    names = [f"{number:032}" for number in range(places + 1)]  # As long as a node's id is.
    crowded.hears(*names[: places // 2])
    crowded.run(1)  # All newcomers together may cause only so much work a second.
    crowded.hears(*names)
    announced = crowded.run(1)[-1]
    assert set(announced.heard) == {node_prefix(NodeId(name)) for name in names[:places]}
    assert len(codec.datagrams([announced], 65_507)[0]) <= crowded.settings.datagram_bytes


def test_contacts_that_the_driver_tells_of_take_no_place_and_announcements_to_them_stay_short() -> None:
    crowded = Crowded(limits={"heard_max": PLACES, "neighbours_max": 65_536})
    told = [f"told{number}" for number in range(300)]
    for name in told:
        crowded.host.link(name, True, crowded.now)
        crowded.hears(name)
    crowded.run(1)
    found = [f"found{number}" for number in range(PLACES)]
    crowded.hears(*found)
    assert crowded.neighbours == {*told, *found}
    assert crowded.host.overview().waiting == 0
    assert set(crowded.run(1)[-1].heard) == {node_prefix(NodeId(name)) for name in found}
    crowded.host.subscribe("news", now=crowded.now)
    sent = {each.to: each.frames[0] for each in crowded.host.outgoing() if each.to is not None}
    for name in told:
        said = sent[name]
        assert isinstance(said, Announce)
        assert said.heard[0] == node_prefix(NodeId(name))
        assert len(said.heard) == PLACES


def test_contacts_that_the_driver_tells_of_are_bounded_by_neighbours_max_alone() -> None:
    crowded = Crowded(limits={"heard_max": 1, "neighbours_max": 20})
    for number in range(30):
        crowded.host.link(f"told{number}", True, crowded.now)
    assert len(crowded.neighbours) == 20
    crowded.host.link("told0", False, crowded.now)
    crowded.host.link("nobody", False, crowded.now)
    assert crowded.neighbours == {f"told{number}" for number in range(1, 20)}
    crowded.hears("found", "too late")
    assert crowded.neighbours == {"found", *(f"told{number}" for number in range(1, 20))}
