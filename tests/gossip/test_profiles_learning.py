"""Profiles that take long to learn: a part at a time, and in the end as if they had been learnt at once."""

from __future__ import annotations

import random
from itertools import count
from typing import NamedTuple

import pytest
from tests.gossip.test_profiles import Held, held
from tests.support.hostile import Attacker

from carrypost import testing
from carrypost.config import Limits
from carrypost.gossip.interest import matcher
from carrypost.gossip.interest.index import ProfileIndex
from carrypost.gossip.slots import mask_of
from carrypost.model.descriptor import Descriptor, PayloadCodec
from carrypost.model.pattern import Entry

MOST_US = 70_000
"""Time limit of one step of a host, including matches made ahead."""
EVERYTHING = (("destination", ".*"),)


def heavy() -> list[Entry]:
    """As many steps for every message as a datagram has room for: about 1.4 ms."""
    return [Entry(EVERYTHING, f"{'+'.join(['-n'] * 330)} = {number}") for number in range(7)]


def test_learning_in_parts_while_messages_come_and_go_is_learning_at_once() -> None:
    chance = random.Random(1)
    entries = (Entry((("destination", "news"),), "weight > 3"), Entry((("destination", "[a-r]*s"),)))
    for _ in range(30):
        index, numbers = ProfileIndex(Limits()), count()
        here: dict[int, Held] = {}

        def enter(index: ProfileIndex = index, here: dict[int, Held] = here, numbers: count[int] = numbers) -> None:
            copy = held(next(numbers), chance.choice(["news", "sport", "roads"]))
            copy.descriptor.attributes["weight"] = chance.randrange(8)
            here[copy.slot] = copy
            index.add(copy)
            if chance.random() < 0.8:
                index.mark_known(copy)

        for _ in range(100):
            enter()
        learning = index.begin(entries, b"slow", here.values())
        while not index.go_on(learning, chance.choice([1, 3])):
            assert index.view(b"slow") is None
            for _ in range(chance.randrange(4)):
                enter()
            gone = chance.sample(sorted(here), chance.randrange(3))
            for slot in gone:
                del here[slot]
            index.release(mask_of(gone))
        slow = index.view(b"slow")
        at_once = index.learn(entries, b"at once", here.values())
        assert slow is not None
        assert (slow.matches, slow.known, slow.fingerprints) == (at_once.matches, at_once.known, at_once.fingerprints)


class Remembered(NamedTuple):
    """A message that left: its descriptor has to be decoded each time."""

    slot: int
    decoded: list[int]

    @property
    def descriptor(self) -> Descriptor:
        self.decoded.append(self.slot)
        return Descriptor("a", 1, self.slot, 0, None, "news", 0, 0, PayloadCodec.BLANK, b"", 1024)

    @property
    def destination(self) -> str:
        return self.descriptor.destination


def test_a_short_profile_is_matched_against_many_remembered_messages_in_parts() -> None:
    index, decoded = ProfileIndex(Limits()), list[int]()
    copies = [Remembered(slot, decoded) for slot in range(50_000)]
    learning = index.begin([Entry((("destination", "news"),))], b"short", copies)
    steps = []
    while not index.go_on(learning, 50_000):
        steps.append(len(decoded))
        decoded.clear()
    assert len(steps) == 2
    assert max(steps) < 20_000
    view = index.view(b"short")
    assert view is not None
    assert view.matches == (1 << 50_000) - 1


def test_a_profile_that_takes_a_minute_does_not_keep_a_host_from_its_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """Count costs instead of time: the cost of selectors in one step of the host is bounded."""
    spent: list[int] = []
    admits = matcher.Guards.admits

    def counting(self: matcher.Guards, mask: int, descriptor: object) -> bool:
        before = self.spent_us
        found = admits(self, mask, descriptor)  # type: ignore[arg-type]
        spent[-1] += self.spent_us - before
        return found

    monkeypatch.setattr(matcher.Guards, "admits", counting)
    with testing.network("a", "b", seed=1, altruistic=True) as net:
        for number in range(400):
            net.publish("a", "news", str(number).encode())
        attacker = Attacker(net)
        spent.append(0)
        attacker.meet("a", *heavy())  # type: ignore[arg-type]
        assert 0 < spent[-1] < MOST_US
        net.link("a", "b")  # An honest neighbour is served meanwhile.
        for _ in range(100):
            spent.append(0)
            net.advance(0.1)
        assert max(spent) < MOST_US
        assert sum(1 for each in spent if each) > 5
        assert sum(spent) > 400_000, "all of it was done in the end"
        assert net.host("b").overview().messages == 400


def test_a_neighbour_that_leaves_takes_its_profile_along() -> None:
    with testing.network("a", seed=1) as net:
        for number in range(400):
            net.publish("a", "news", str(number).encode())
        attacker = Attacker(net)
        attacker.meet("a", *heavy())  # type: ignore[arg-type]
        attacker.say("a", attacker.announcement("a", profile=b"another!"))
        net.advance(60)
        assert len(attacker.heard) > 0


def test_the_own_profile_may_become_one_that_is_still_being_learnt_from_a_neighbour() -> None:
    """Check with the same program on two nodes: the second subscribes while it learns the interests of the first."""
    selectors = [each.selector for each in heavy()]
    with testing.network("a", "b", seed=1) as net:
        for number in range(120):
            net.publish("a", "news", str(number).encode())
        for selector in selectors:
            net.subscribe("b", ".*", selector)
        net.link("a", "b")
        net.advance(0.3)
        assert net.host("a").overview().neighbours, "they have met"
        for selector in selectors:
            net.subscribe("a", ".*", selector)
        net.advance(3)
        for node, other in ("ab", "ba"):
            net.publish(node, "news", b"to the other", attributes={"n": 0})
            net.advance(3)
            assert net.deliveries(other)[-1].payload == b"to the other"
