"""Messaging over carriers and long disconnections, in virtual time: programs on hosts that seldom meet."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import combinations, pairwise

import pytest
from tests.support.programs import Got, Program

from carrypost import testing
from carrypost.log.events import ClaimLost, Event
from carrypost.model.descriptor import Ordering

HOUR_S = 3_600.0


@contextmanager
def network(*names: str, carrier: bool = True, seed: int = 1, **settings: object) -> Iterator[testing.Network]:
    """Yield a network with messaging awake, and a carrier for others; announcements are rare, because days pass."""
    settings = {"announce_s_min": 5.0, "announce_s_max": 20.0} | settings
    with testing.network(*names, seed=seed, **settings) as net:  # type: ignore[arg-type]
        net.open_messaging()
        if carrier:
            net.add("carrier", altruistic=True)
        yield net


def meet(net: testing.Network, a: str, b: str, *, after_s: float = HOUR_S, for_s: float = 120.0) -> None:
    """Let two nodes meet for a short time, after a long time alone."""
    net.advance(after_s)
    net.link(a, b)
    net.advance(for_s)
    net.unlink(a, b)


def test_public_text_reaches_five_nodes_that_never_meet_all_at_once() -> None:
    names = ("anna", "ben", "cleo", "dora", "emil")
    with network(*names, carrier=False) as net:
        programs = {name: Program(net, name, "topic/text") for name in names}
        for number, name in enumerate(names):
            net.publish(name, "topic/text", f"{number} says {name}".encode())
        for a, b in [*pairwise(names), *pairwise(names[::-1])]:
            meet(net, a, b)
        net.kill("cleo")
        net.restart("cleo")
        programs["cleo again"] = Program(net, "cleo", "topic/text")
        net.publish("emil", "topic/text", b"a late word")
        for a, b in pairwise(names[::-1]):
            meet(net, a, b)
        said = sorted(f"{number} says {name}" for number, name in enumerate(names))
        for name in ("anna", "ben", "dora", "emil"):
            assert sorted(programs[name].texts) == [*said, "a late word"]
            assert {each.count for each in programs[name].got} == {1}
        assert sorted(programs["cleo"].texts) == said
        assert programs["cleo again"].texts == ["a late word"]


def test_a_durable_subscriber_that_is_off_while_messages_are_published_expire_and_come() -> None:
    with network("author", "reader") as net:
        asked = {"client": "me", "name": "mail", "durable": True}
        first = Program(net, "reader", "topic/news", **asked)  # type: ignore[arg-type]
        net.advance(60)
        net.kill("reader")

        net.publish("author", "topic/news", b"dead before they meet", lifetime_s=HOUR_S)
        net.publish("author", "topic/news", b"dead before anybody reads", lifetime_s=5 * HOUR_S)
        net.publish("author", "topic/news", b"one", lifetime_s=72 * HOUR_S)
        net.publish("author", "topic/news", b"two")
        meet(net, "author", "carrier", after_s=600.0)
        net.advance(2 * HOUR_S)
        net.restart("reader")
        meet(net, "carrier", "reader")  # The node is on; the program is not.
        overview = net.host("reader").messaging.overview()
        assert overview is not None
        assert (overview.durable, overview.consumers, overview.claims) == (1, 0, 3)
        net.kill("reader")
        net.advance(3 * HOUR_S)
        net.restart("reader")
        net.publish("author", "topic/news", b"three")
        meet(net, "author", "carrier")
        meet(net, "carrier", "reader")

        second = Program(net, "reader", "topic/news", acknowledges=False, **asked)  # type: ignore[arg-type]
        net.advance(1)
        assert first.got == []
        assert second.texts == ["one", "two", "three"]
        assert [each.count for each in second.got] == [1, 1, 1]
        second.acknowledge(1, 3)  # Numbers count what this life handed over.
        net.advance(1)
        net.kill("reader")
        net.restart("reader")
        third = Program(net, "reader", "topic/news", **asked)  # type: ignore[arg-type]
        net.advance(1)
        assert [(each.text, each.count) for each in third.got] == [("two", 2)]


def test_a_claim_whose_copy_has_to_give_way_is_told() -> None:
    with network("author", "reader", cache_messages_max=10, limits={"unconfirmed_max": 5}) as net:
        lost: list[Event] = []
        net.watch(lambda _, __, event: lost.append(event) if isinstance(event, ClaimLost) else None)
        Program(net, "reader", "topic/news", prefetch=0, client="me", name="mail", durable=True)
        net.link("author", "reader")
        for number in range(30):
            net.publish("author", "topic/news", b"%d" % number)
            net.advance(10)
        overview = net.host("reader").messaging.overview()
        assert overview is not None
        assert overview.pinned == 5
        assert overview.lost == len(lost) == 20
        assert overview.claims == 10


def _last_hop(selector: str | None) -> tuple[testing.Traffic, list[str]]:
    """Return the traffic of a carrier to a reader of a hundred messages, half of which are of one language."""
    with network("author", "reader", compress=False) as net:
        program = Program(net, "reader", "topic/news", selector)
        chance = random.Random(1)
        for number in range(100):
            language = ("English", "French")[number % 2]
            body = f"{number:03} " + chance.randbytes(500).hex()
            net.publish("author", "topic/news", body.encode(), attributes={"language": language, "number": number})
        meet(net, "author", "carrier")
        assert net.host("carrier").copies == 100
        meet(net, "carrier", "reader")
        return net.traffic("carrier", "reader"), [text[:3] for text in program.texts]


def test_a_selector_halves_the_traffic_of_the_last_hop() -> None:
    everything, all_of_it = _last_hop(None)
    selected, some_of_it = _last_hop("language = 'French' AND number >= 0")
    assert sorted(all_of_it) == [f"{number:03}" for number in range(100)]
    assert sorted(some_of_it) == [f"{number:03}" for number in range(1, 100, 2)]
    assert selected.bytes < 0.53 * everything.bytes
    assert (everything.frames["Parcel"], selected.frames["Parcel"]) == (100, 50)
    assert selected.frame_bytes["Parcel"] == pytest.approx(0.5 * everything.frame_bytes["Parcel"], rel=0.01)


def _spans(names: Sequence[str], chance: random.Random) -> Iterator[tuple[str, str]]:
    pairs = list(combinations(names, 2))
    for _ in range(25):
        yield chance.choice(pairs)


@pytest.mark.parametrize("ordering", ["causal", "delta-causal"])
def test_a_causal_forum_with_selectors(ordering: str) -> None:
    names = ("anna", "ben", "cleo", "dora", "emil")
    lifetime_s = 4 * HOUR_S if ordering == "delta-causal" else None
    with network(*names, carrier=False, seed=7) as net:
        follows: dict[str, str] = {}

        def say(name: str, text: str, kind: str, to: str = "") -> None:
            follows[text] = to
            attributes = {"kind": kind, "to": to}
            net.publish(
                name, "topic/forum", text.encode(), attributes=attributes, lifetime_s=lifetime_s, ordering=ordering
            )

        def answers(name: str) -> Program:
            def answer(got: Got) -> None:
                if got.descriptor.attributes["kind"] == "question":
                    say(name, f"{got.text}, {name} answers", "answer", got.text)

            order = Ordering.named(ordering)
            return Program(net, name, "topic/forum", "kind = 'question'", ordering=order, answer=answer)

        order = Ordering.named(ordering)
        writers = [answers("ben"), answers("dora")]
        asking = Program(net, "anna", "topic/forum", "kind <> 'chatter'", ordering=order)
        answered = Program(net, "emil", "topic/forum", "kind = 'answer'", ordering=order)
        every = Program(net, "cleo", "topic/forum", ordering=order)
        chance = random.Random(3)
        for number, (a, b) in enumerate(_spans(names, chance)):
            if number < 12:
                last = every.texts[-1] if every.got else ""
                say("cleo", f"chatter {number}", "chatter", last)
                say("anna", f"question {number}", "question", asking.texts[-1] if asking.got else "")
            meet(net, a, b)
        for a, b in combinations(names, 2):
            meet(net, a, b, after_s=10.0)
        for program in (asking, answered, every, *writers):
            _in_order(program.texts, follows)
        assert {each.descriptor.attributes["kind"] for each in answered.got} == {"answer"}
        assert {each.descriptor.attributes["kind"] for each in asking.got} == {"question", "answer"}
        assert not any(each.unordered for each in every.got)
        if lifetime_s is None:
            assert len(answered.got) == 24
            assert sorted(asking.texts) == sorted(text for text in follows if not text.startswith("chatter"))
            assert sorted(every.texts) == sorted(follows)
        else:
            assert len(follows) // 2 < len(every.got) < len(follows)  # Some were dead before they came this far.
            assert max(each.seconds - each.descriptor.created_us / 1e6 for each in every.got) < lifetime_s


def _in_order(texts: list[str], follows: dict[str, str]) -> None:
    """Nothing comes before something that it follows, also by way of what this program did not ask for."""
    assert len(texts) == len(set(texts))
    place = {text: number for number, text in enumerate(texts)}
    for text in texts:
        before = follows[text]
        while before:
            assert place.get(before, -1) < place[text], (before, text)
            before = follows[before]


def test_a_shared_subscription_of_three_consumers_gives_each_message_to_one() -> None:
    with network("author", "shop") as net:
        asked = {"name": "crew", "shared": True, "durable": True}
        crew = [Program(net, "shop", "topic/jobs", prefetch=4, **asked) for _ in range(2)]  # type: ignore[arg-type]
        idle = Program(net, "shop", "topic/jobs", prefetch=4, acknowledges=False, **asked)  # type: ignore[arg-type]
        for day in range(3):
            for number in range(20):
                net.publish("author", "topic/jobs", f"{day}-{number}".encode())
            meet(net, "author", "carrier")
            meet(net, "carrier", "shop")
        assert len(idle.got) == 4  # It has no more credit, and the others go on.
        assert min(len(each.got) for each in crew) > 20
        idle.close()
        net.advance(1)
        given_back = [each for program in crew for each in program.got if each.count == 2]
        assert sorted(each.text for each in given_back) == sorted(idle.texts)
        done = Counter(text for program in crew for text in program.texts)
        assert done == {f"{day}-{number}": 1 for day in range(3) for number in range(20)}
        assert net.host("shop").messaging.overview().claims == 0  # type: ignore[union-attr]


def _said(how: str) -> dict[str, dict[str, tuple[int, int]]]:
    """Return the frames of three nodes in an hour, by kind: numbers and bytes."""
    carried = ("queue/.*", "control/.*", "holder/.*", "notice/.*") if how == "asleep" else ()
    with testing.network("a", "b", "c", seed=1, altruistic=carried) as net:
        if how != "asleep":
            net.open_messaging()
        else:
            for name in "abc":
                net.subscribe(name, "directory/.*")
        for name in "bc":
            net.subscribe(name, "news")
        net.link("a", "b")
        net.link("b", "c")
        net.advance(100)
        if how == "used":
            Program(net, "b", "topic/news", "size > 3", client="me", name="mail", durable=True)
        else:
            net.subscribe("b", "topic/news", "size > 3")
        for number in range(5):
            net.publish("a", "news", b"%d" % number)
            net.advance(HOUR_S / 5)
        said = {name: net.sent(name) for name in "abc"}
        return {
            name: {kind: (each.frames[kind], each.frame_bytes[kind]) for kind in each.frames}
            for name, each in said.items()
        }


def test_messaging_adds_no_byte_to_what_nodes_say_but_that_they_want_advertisements_and_carry_for_others() -> None:
    """Check it without programs, and with a program that subscribes in place of a plain application."""
    asleep = _said("asleep")
    assert asleep["b"]["Announce"][0] > 500
    assert asleep["b"]["Parcel"][0] == 5
    assert _said("unused") == asleep
    assert _said("used") == asleep
