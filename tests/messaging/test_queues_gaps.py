"""A consumer goes on when an assignment is lost for good and its message dies, and gets no more than it asks for."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.messaging.test_queues_hostile import DAY_US
from tests.messaging.test_queues_hostile import scene as hostile_scene
from tests.messaging.test_queues_reminders import HOUR_S, LIFE_S, Scene, scene
from tests.support.programs import Program

from carrypost.messaging import control
from carrypost.messaging.commands import Credit
from carrypost.messaging.control import INCARNATION_BITS, STRETCHES_MAX
from carrypost.messaging.queues.reminders_and_gaps import HeardNumbers

SHORT_S = 300.0
RESTARTS = pytest.mark.parametrize("restarted", ["", "m", "mm"])
TRANSITORY = 0.1


def send(here: Scene, text: str, life_s: float = LIFE_S) -> None:
    here.net.publish("m", here.queue, text.encode(), lifetime_s=life_s, persistent=True)
    here.net.advance(5)


def lose_an_assignment(here: Scene, life_s: float = SHORT_S) -> Program:
    """Assign one message to a consumer of r that takes one at a time, and evict all control messages about it."""
    reader = Program(here.net, "r", here.queue, prefetch=1)
    here.net.advance(30)
    here.part()
    send(here, "one", life_s)
    here.press("m")
    return reader


@RESTARTS
def test_a_consumer_goes_on_whose_assignment_was_lost_and_whose_message_died(restarted: str) -> None:
    with scene() as here:
        reader = lose_an_assignment(here)
        here.restart(*restarted[:1])
        here.net.advance(SHORT_S)
        here.restart(*restarted[1:])
        here.meet()
        for text in ("two", "three"):
            send(here, text)
            here.net.advance(60)
        assert (reader.texts, here.assigned) == (["two", "three"], ["r", "r", "r"])


@RESTARTS
def test_a_consumer_goes_on_whose_assignment_was_lost_and_whose_lease_ended(restarted: str) -> None:
    with scene(lease_s=SHORT_S) as here:
        reader = lose_an_assignment(here, LIFE_S)
        here.restart(*restarted[:1])
        here.net.advance(SHORT_S)
        here.restart(*restarted[1:])
        here.meet()
        here.net.advance(60)
        assert reader.texts == ["one"]
        send(here, "two")
        here.net.advance(60)
        assert reader.texts == ["one", "two"]


def test_what_says_that_assignments_are_gone_is_said_again_if_that_is_lost_too() -> None:
    with scene() as here:
        reader = lose_an_assignment(here)
        here.net.advance(SHORT_S)
        here.press("m")
        here.meet()
        send(here, "two")
        assert reader.texts == [], "nobody knows of it but the manager"
        here.net.advance(6 * HOUR_S + 120)
        assert reader.texts == ["two"]


def test_several_lost_assignments_are_made_good_and_one_that_lives_is_reminded_of() -> None:
    with scene() as here:
        reader = Program(here.net, "r", here.queue, prefetch=3)
        here.net.advance(30)
        here.part()
        send(here, "short", SHORT_S)
        send(here, "long")
        send(here, "shorter", SHORT_S / 2)
        here.press("m")
        here.net.advance(SHORT_S)
        here.meet()
        for text in ("four", "five", "six"):
            send(here, text)
            here.net.advance(60)
        assert reader.texts == ["four", "five", "six"]
        here.net.advance(LIFE_S / 4)
        assert reader.texts[3:] == ["long"]
        assert (here.entries(), here.assigned) == (0, ["r"] * 6)


@pytest.mark.parametrize("lease_s", [0.0, SHORT_S])
def test_a_consumer_that_holds_what_it_was_given_until_it_dies_is_given_no_more_for_that(lease_s: float) -> None:
    with scene(lease_s=lease_s) as here:
        reader = Program(here.net, "r", here.queue, prefetch=1, acknowledges=False)
        here.net.advance(30)
        send(here, "one", 2 * SHORT_S)
        here.net.advance(3 * SHORT_S)
        send(here, "two")
        here.net.advance(HOUR_S)
        assert (reader.texts, here.assigned) == (["one"], ["r"])
        told = here.told
        here.net.advance(6 * HOUR_S)
        assert here.told == told, "the manager knows that it was heard, and says no more of it"


def test_a_request_that_was_closed_is_withdrawn_again_when_its_assignments_are_told_as_gone() -> None:
    with scene() as here:
        reader = lose_an_assignment(here)
        reader.close()
        here.net.advance(TRANSITORY)
        here.press("r")
        here.net.advance(SHORT_S)
        here.meet()
        assert "R" in here.rows("m"), "it is remembered as withdrawn"
        send(here, "two")
        other = Program(here.net, "s", here.queue)
        here.net.advance(120)
        assert other.texts == ["two"]


@pytest.mark.parametrize("security", ["off", "signed"])
def test_numbers_of_a_manager_that_lies_cost_no_more_than_the_consumers_own_credit(security: str) -> None:
    with hostile_scene(security) as here:
        reader = Program(here.net, "r", here.queue, prefetch=2, acknowledges=False)
        here.net.advance(5)
        number = (1 << INCARNATION_BITS) + 1
        huge = 2**53
        lies = [(1, huge), (huge, huge), (0, 1), (2, 1), (1,), tuple(range(1, 2 * STRETCHES_MAX + 1))]
        here.say("r", *(control.Gone("jobs", number, each) for each in lies), author="m")
        here.say("r", control.Gone("jobs", number + 7, (1, 1)), control.Gone("others", number, (1, 1)), author="m")
        assert here.refused("r", "assignment") == 2
        here.say("r", control.Gone("jobs", number, (1, 2)))
        assert here.refused("r", "assignment") == 3, "it is not the manager of that queue"
        sent = here.send(*"abcdefgh")
        assert len(reader.texts) == 2
        here.say("r", *(control.Gone("jobs", number, (1, 2)) for _ in range(9)), author="m")
        here.net.advance(60)
        assert len(reader.texts) == 2, "it had heard of them"
        here.say("r", *(control.Assign("jobs", each, number, 1, number=huge) for each in sent), author="m")
        here.net.advance(60)
        assert len(reader.texts) == 2


@pytest.mark.parametrize("security", ["off", "signed"])
def test_a_receiver_that_lies_about_numbers_takes_nothing_from_others(security: str) -> None:
    with hostile_scene(security) as here:
        reader = Program(here.net, "r", here.queue, prefetch=1, acknowledges=False)
        here.net.advance(5)
        number = (1 << INCARNATION_BITS) + 1
        until_us = round(here.net.now * 1e6) + DAY_US
        here.send("one")
        here.say("m", control.Gone("jobs", number, (1, 2**53), known=True), control.Gone("x", 1, (1, 1), known=True))
        here.say("m", control.Ask("jobs", number, 0, until_us, heard=2**53))
        here.net.advance(60)
        assert reader.texts == ["one"]
        reader.acknowledge(*reader.numbers)
        reader.messaging.execute(Credit(reader.consumer, 1, 100), reader.now)
        here.send("two")
        assert reader.texts == ["one", "two"]


@given(st.lists(st.tuples(st.integers(1, 40), st.integers(0, 6)), max_size=30))
def test_each_number_is_new_once(words: list[tuple[int, int]]) -> None:
    heard, known = HeardNumbers(), set[int]()
    for first, more in words:
        numbers = set(range(first, first + more + 1))
        assert heard.note(first, first + more) == len(numbers - known)
        known |= numbers
        assert heard.through == next(each for each in range(99) if each + 1 not in known)


def test_the_memory_of_numbers_is_bounded() -> None:
    heard = HeardNumbers()
    for number in range(2, 8 * STRETCHES_MAX, 2):
        heard.note(number, number)
    assert sum(heard.note(number, number) for number in range(1, 8 * STRETCHES_MAX, 2)) <= STRETCHES_MAX + 1
