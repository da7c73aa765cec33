"""The order of happening, from publications and deliveries: what breaks it is found, what does not is left alone."""

from __future__ import annotations

import random
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.order_records import S, Story

from carrypost.emu.verify.invariants import Violation, check
from carrypost.emu.verify.order import Pasts
from carrypost.log.record import Kind, Record


def breaches(record: Record) -> list[Violation]:
    return [each for each in check(record, bound=False) if each.rule == "causal order"]


@pytest.mark.parametrize(("joins", "wrong"), [(False, 2), (True, 0)])
def test_a_message_that_joins_some_predecessors_may_come_before_the_others(joins: bool, wrong: int) -> None:
    story = Story("abc")
    story.publish(1, "a", "p")
    story.get(2, "b", "p")
    story.publish(3, "b", "j", joins=joins)
    story.get(4, "c", "j")
    story.get(5, "c", "p")
    found = [each for each in check(story.end(9), bound=False) if each.rule in {"causal order", "nothing is hurried"}]
    assert len(found) == wrong


def test_what_an_author_published_before_is_delivered_before() -> None:
    for order, wrong in (("pq", 0), ("qp", 1)):
        story = Story("ab")
        story.publish(1, "a", "p")
        story.publish(2, "a", "q")
        for message in order:
            story.get(3, "b", message)
        assert len(breaches(story.end(9))) == wrong


def test_what_an_author_was_given_before_is_delivered_before() -> None:
    story = Story("abc")
    story.publish(1, "a", "p")
    story.get(2, "b", "p")
    story.publish(3, "b", "q")
    story.get(4, "c", "q")
    story.get(5, "c", "p")
    (found,) = breaches(story.end(9))
    assert str(found) == "row 16: c: p at 5.000000 s: delivered after q, which it happened before (causal order)"


def test_what_an_author_only_received_is_not_before() -> None:
    story = Story("abc")
    story.publish(1, "a", "p")
    story.receive(2, "b", "p")
    story.publish(3, "b", "q")
    story.deliver(3.5, "b", "p")
    story.get(4, "c", "q")
    story.get(5, "c", "p")
    assert breaches(story.end(9)) == []


def test_the_order_reaches_over_messages_that_are_dead_or_never_came() -> None:
    """m1 is before m2 is before m3; m2 never reaches d."""
    story = Story("abcd")
    story.publish(1, "a", "m1", until=900)
    story.get(2, "b", "m1")
    story.publish(3, "b", "m2", until=5)
    story.get(4, "c", "m1")
    story.get(4, "c", "m2")
    story.publish(6, "c", "m3", until=900)
    story.get(7, "d", "m3")
    story.get(8, "d", "m1")
    (found,) = breaches(story.record)
    assert "d: m1 at 8.000000 s: delivered after m3" in found.text


def test_messages_that_do_not_know_of_each_other_come_in_any_order() -> None:
    story = Story("abcd")
    story.publish(1, "a", "p")
    story.publish(1, "b", "q")
    for node, order in (("c", "pq"), ("d", "qp")):
        for message in order:
            story.get(2, node, message)
    assert breaches(story.end(9)) == []


def test_topics_without_order_and_other_groups_are_none_of_its_business() -> None:
    for ordering in ("none", "causal"):
        story = Story("ab", ordering=ordering)
        story.publish(1, "a", "p")
        story.destination, story.ordering = "y", "causal"
        story.publish(2, "a", "q")
        story.get(3, "b", "q")
        story.get(4, "b", "p")
        assert breaches(story.end(9)) == []


def test_what_comes_again_after_a_crash_is_not_counted() -> None:
    story = Story("ab")
    story.publish(1, "a", "p")
    story.publish(2, "a", "q")
    story.get(3, "b", "p")
    story.get(3, "b", "q")
    story.leave(4, "b", "crash")
    story.join(5, "b")
    story.deliver(5, "b", "q", detail="redelivered")
    story.deliver(5, "b", "p", detail="redelivered")
    assert check(story.end(9)) == []


def test_what_a_node_was_given_before_a_crash_is_before_what_it_publishes_after_it() -> None:
    story = Story("abc")
    story.publish(1, "a", "p")
    story.get(2, "b", "p")
    story.leave(3, "b", "crash")
    story.join(4, "b")
    story.publish(5, "b", "q")
    story.get(6, "c", "q")
    story.get(7, "c", "p")
    assert len(breaches(story.end(9))) == 1


def test_an_id_that_a_crash_set_free_is_another_message() -> None:
    """Check an id whose first bearer was lost with the author's memory, and so was everything that knew of it."""
    story = Story("ab")
    story.publish(1, "a", "p")
    story.record.add(Kind.PUBLISH, 2 * S, "a", message="lost", source="a", size=10, attrs={"ordering": "causal"})
    story.leave(3, "a", "crash")
    story.join(4, "a")
    story.publish(5, "a", "q")
    story.publish(6, "a", "lost")
    for message in ("p", "q", "lost"):
        story.get(7, "b", message)
    assert breaches(story.end(9)) == []


def test_a_publication_that_failed_and_was_delivered_nowhere_holds_up_nobody() -> None:
    story = Story("ab")
    story.publish(1, "a", "p")
    story.record.add(
        Kind.PUBLISH, 2 * S, "a", message="failed", source="a", size=10,
        attrs={"ordering": "delta-causal", "destination": "x"},
    )  # fmt: skip
    story.publish(3, "a", "q")
    story.get(4, "b", "p")
    story.get(4, "b", "q")
    assert breaches(story.end(9)) == []


def random_story(chance: random.Random, nodes: int, messages: int) -> tuple[Story, set[tuple[str, str]]]:
    """Messages come in any order; what breaks the order, by a graph and a walk through it."""
    names = "abcdefgh"[:nodes]
    story = Story(names)
    before: dict[str, set[str]] = {}
    had: dict[str, list[str]] = {name: [] for name in names}
    wrong: set[tuple[str, str]] = set()
    for number in range(messages * 3):
        node, t = chance.choice(names), 1 + number / 10
        lacking = sorted(set(before) - set(had[node]))
        if lacking and chance.random() < 0.7:
            message = chance.choice(lacking)
            if any(message in reach(before, each) for each in had[node]):
                wrong.add((message, node))
            story.get(t, node, message)
        else:
            message = f"m{number}"
            before[message] = set(had[node])
            story.publish(t, node, message)
        had[node].append(message)
    return story, wrong


def reach(before: dict[str, set[str]], message: str) -> set[str]:
    found: set[str] = set()
    open_ = [message]
    while open_:
        new = before[open_.pop()] - found
        found |= new
        open_ += new
    return found


@given(seed=st.integers(0, 10**9), nodes=st.integers(2, 6), messages=st.integers(1, 25), sweep=st.integers(1, 8))
def test_the_same_is_found_as_by_walking_through_a_graph(seed: int, nodes: int, messages: int, sweep: int) -> None:
    story, wrong = random_story(random.Random(seed), nodes, messages)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("carrypost.emu.verify.order._SWEEP_MIN", sweep)
        patch.setattr("carrypost.emu.verify.invariants.SHOWN_MAX", 10_000)
        found = breaches(story.end(900))
    record = story.record
    assert {(record.message[each.row], record.node[each.row]) for each in found} == wrong


def test_messages_that_are_through_give_back_their_bits() -> None:
    pasts = Pasts({number: 2 * number + 1 for number in range(50_000)})
    for number in range(50_000):
        pasts.publish(0, number)
        assert pasts.deliver(1, number, 2 * number + 1)
    assert max(pasts.bit.values()).bit_length() < 4_096
    assert len(pasts.past) < 4_096


def test_hundreds_of_thousands_of_deliveries_take_seconds() -> None:
    chance, nodes = random.Random(1), 100
    rows = 0
    began = time.process_time()
    pasts = Pasts(dict.fromkeys(range(2_000), -1))
    for number in range(2_000):
        pasts.publish(chance.randrange(nodes), number)
        for node in range(nodes):
            rows += 1
            pasts.deliver(node, number, rows)
    assert time.process_time() - began < 20  # About 0.2 on an idle machine.
