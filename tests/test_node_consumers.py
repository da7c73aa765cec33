"""Several programs on one node: who gets what, and when the host is told that they have it."""

from __future__ import annotations

import random
import re

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule, run_state_machine_as_test
from tests.examples import examples

from carrypost.config import Settings
from carrypost.errors import LocalError, PatternError
from carrypost.events import Confirmed, Delivered, Delivery, Dropped
from carrypost.host import Host
from carrypost.model.ids import MessageId
from carrypost.node.consumers import Consumers
from carrypost.security.identity import Identity

S = 1_000_000


class Program:
    """A consumer that keeps what it gets."""

    def __init__(self) -> None:
        self.got: list[Delivery] = []

    def take(self, delivery: Delivery) -> None:
        self.got.append(delivery)

    @property
    def brief(self) -> list[tuple[str, tuple[int, ...], bool]]:
        """Of each delivery: destination, subscriptions, whether it says that it is not the first."""
        return [(each.descriptor.destination, each.subscriptions, each.redelivered) for each in self.got]


class Machine:
    """A host whose disk is as slow as the test likes, and its consumers."""

    def __init__(self) -> None:
        settings = Settings(security="off")
        self.now = 1_000 * S
        self.host = Host(Identity.plain("anna"), settings, random.Random(1))
        self.consumers = Consumers(self.host, settings.limits)
        self.told: list[MessageId] = []
        """What the host knows to be confirmed, for good."""
        self.host.start(self.now)
        self.write()

    def write(self) -> list[Delivery | MessageId]:
        """The disk writes; returns what was delivered and what was dropped."""
        happened: list[Delivery | MessageId] = []
        busy = True
        while busy:
            batch = self.host.changes()
            if batch is not None:
                self.host.durable(batch.serial, self.now)
            self.host.outgoing()
            events = self.host.events()
            busy = batch is not None or bool(events)
            for event in events:
                if isinstance(event, Delivered):
                    happened += event.deliveries
                    self.consumers.deliver(event.deliveries)
                elif isinstance(event, Dropped):
                    happened += [each.id for each in event.descriptors]
                    self.consumers.forget(event.descriptors)
                elif isinstance(event, Confirmed):
                    self.told += event.messages
        return happened

    def subscribe(self, program: Program, pattern: str, selector: str | None = None) -> int:
        return self.consumers.subscribe(program, pattern, selector, self.now)

    def publish(self, destination: str, lifetime_s: int = 1_000) -> MessageId:
        return self.host.publish(destination, b"", now=self.now, lifetime_us=lifetime_s * S)

    def confirm(self, program: Program, *messages: MessageId) -> tuple[MessageId, ...]:
        return self.consumers.confirm(program, messages, self.now)

    def leave(self, program: Program) -> None:
        self.consumers.leave(program, self.now)


@pytest.fixture
def machine() -> Machine:
    return Machine()


def test_a_message_goes_once_to_everybody_who_asked_for_it(machine: Machine) -> None:
    anna, bert, carl = Program(), Program(), Program()
    first, second, third = (
        machine.subscribe(anna, "news"),
        machine.subscribe(bert, "ne.*"),
        machine.subscribe(bert, ".*"),
    )
    machine.subscribe(carl, "sport")
    machine.publish("news")
    machine.write()
    assert anna.brief == [("news", (first,), False)]
    assert bert.brief == [("news", (second, third), False)]
    assert carl.got == []


def test_the_host_is_told_when_all_have_it(machine: Machine) -> None:
    anna, bert = Program(), Program()
    machine.subscribe(anna, "news")
    machine.subscribe(bert, "news")
    message = machine.publish("news")
    machine.write()
    assert machine.confirm(anna, message) == ()
    assert machine.confirm(anna, message) == ()
    machine.write()
    assert machine.told == []
    assert machine.confirm(bert, message) == (message,)
    machine.write()
    assert machine.told == [message]
    assert machine.confirm(bert, message) == ()


def test_what_nobody_confirmed_goes_to_the_next_one_and_says_so(machine: Machine) -> None:
    anna, bert, carl = Program(), Program(), Program()
    machine.subscribe(anna, "news")
    machine.publish("news")
    machine.write()
    machine.leave(anna)
    machine.subscribe(carl, "sport")
    number = machine.subscribe(bert, "new.")
    assert bert.brief == [("news", (number,), True)]
    assert carl.got == []
    assert machine.confirm(bert, bert.got[0].message) == (bert.got[0].message,)
    machine.write()
    assert machine.subscribe(Program(), "news")
    assert machine.told == [bert.got[0].message]


def test_it_goes_at_once_to_who_subscribed_in_the_meantime(machine: Machine) -> None:
    anna, bert = Program(), Program()
    machine.subscribe(anna, "news")
    machine.publish("news")
    machine.write()
    number = machine.subscribe(bert, "news")
    assert bert.got == []
    machine.leave(anna)
    assert bert.brief == [("news", (number,), True)]


def test_what_one_has_and_another_left_is_confirmed(machine: Machine) -> None:
    anna, bert, carl = Program(), Program(), Program()
    machine.subscribe(anna, "news")
    machine.subscribe(bert, "news")
    message = machine.publish("news")
    machine.write()
    machine.confirm(anna, message)
    machine.leave(bert)
    machine.subscribe(carl, "news")
    machine.write()
    assert carl.got == []
    assert machine.told == [message]


def test_who_leaves_while_the_disk_writes_leaves_no_message_unheard(machine: Machine) -> None:
    anna, bert = Program(), Program()
    machine.subscribe(anna, "news")
    machine.publish("news")
    machine.leave(anna)
    number = machine.subscribe(bert, "news")
    machine.write()
    assert anna.got == []
    assert bert.brief == [("news", (number,), False)], "nobody has seen it before"


def test_an_ended_subscription_brings_nothing_more_but_what_came_can_be_confirmed(machine: Machine) -> None:
    anna, bert = Program(), Program()
    number = machine.subscribe(anna, "news")
    message = machine.publish("news")
    machine.write()
    machine.consumers.unsubscribe(anna, number, machine.now)
    machine.publish("news")
    machine.write()
    machine.subscribe(bert, "sport")
    assert len(anna.got) == 1
    assert machine.confirm(anna, message) == (message,)
    assert machine.consumers.subscriptions == 1


def test_a_subscription_ends_only_by_whose_it_is(machine: Machine) -> None:
    anna, bert = Program(), Program()
    number = machine.subscribe(anna, "news")
    for program, wrong in ((bert, number), (anna, number + 1)):
        with pytest.raises(LocalError, match=f"this program has no subscription {wrong}"):
            machine.consumers.unsubscribe(program, wrong, machine.now)
    assert machine.consumers.subscriptions == 1


def test_a_wrong_pattern_changes_nothing(machine: Machine) -> None:
    with pytest.raises(PatternError):
        machine.subscribe(Program(), "(")
    assert machine.consumers.subscriptions == 0


def test_what_expired_is_nobodys(machine: Machine) -> None:
    anna, bert = Program(), Program()
    machine.subscribe(anna, "news")
    message = machine.publish("news", lifetime_s=5)
    machine.write()
    machine.leave(anna)
    machine.now += 6 * S
    machine.host.tick(machine.now)
    machine.write()
    machine.subscribe(bert, "news")
    assert bert.got == []
    assert machine.confirm(bert, message) == ()


DESTINATIONS = ("news", "sport")
PATTERNS = ("news", "sport", ".*")


class Crowd(RuleBasedStateMachine):
    """Programs come, ask, confirm and go, in any order; an account is kept of who holds what."""

    programs = Bundle("programs")

    def __init__(self) -> None:
        super().__init__()
        self.machine = Machine()
        self.asked: dict[Program, dict[int, str]] = {}
        self.holds: dict[Program, set[MessageId]] = {}
        self.delivered: dict[MessageId, str] = {}
        """By the host, and neither confirmed nor gone; with their destinations."""
        self.seen: set[MessageId] = set()
        """Given to somebody."""
        self.read: set[MessageId] = set()
        """Confirmed by somebody."""
        self.done: list[MessageId] = []

    @rule(target=programs)
    def come(self) -> Program:
        program = Program()
        self.asked[program], self.holds[program] = {}, set()
        return program

    @rule(program=programs, pattern=st.sampled_from(PATTERNS))
    def subscribe(self, program: Program, pattern: str) -> None:
        number = self.machine.subscribe(program, pattern)
        self.asked[program][number] = pattern
        self.look()

    @rule(program=programs, data=st.data())
    def unsubscribe(self, program: Program, data: st.DataObject) -> None:
        if self.asked[program]:
            number = data.draw(st.sampled_from(sorted(self.asked[program])))
            del self.asked[program][number]
            self.machine.consumers.unsubscribe(program, number, self.machine.now)

    @rule(destination=st.sampled_from(DESTINATIONS), lifetime_s=st.sampled_from((10, 1_000_000)))
    def publish(self, destination: str, lifetime_s: int) -> None:
        self.machine.publish(destination, lifetime_s)

    @rule()
    def write(self) -> None:
        for each in self.machine.write():
            if isinstance(each, Delivery):
                assert each.message not in self.delivered
                self.delivered[each.message] = each.descriptor.destination
            else:
                self.delivered.pop(each, None)
                for held in self.holds.values():
                    held.discard(each)
        self.look()

    @rule(program=programs, data=st.data())
    def confirm(self, program: Program, data: st.DataObject) -> None:
        if not self.holds[program]:
            return
        chosen = data.draw(st.lists(st.sampled_from(sorted(self.holds[program])), min_size=1, unique=True))
        self.holds[program] -= set(chosen)
        self.read |= set(chosen)
        complete = [each for each in chosen if not self.holders(each)]
        assert self.machine.confirm(program, *chosen) == tuple(complete)
        self.finish(complete)

    @rule(program=consumes(programs))
    def leave(self, program: Program) -> None:
        held = self.holds.pop(program)
        del self.asked[program]
        self.machine.leave(program)
        self.finish([each for each in held if each in self.read and not self.holders(each)])
        self.look()

    @rule(seconds=st.sampled_from((1, 20)))
    def wait(self, seconds: int) -> None:
        self.machine.now += seconds * S
        self.machine.host.tick(self.machine.now)
        self.write()

    def finish(self, messages: list[MessageId]) -> None:
        self.done += messages
        for each in messages:
            del self.delivered[each]

    def holders(self, message: MessageId) -> list[Program]:
        return [program for program, held in self.holds.items() if message in held]

    def matching(self, program: Program, destination: str) -> set[int]:
        return {number for number, pattern in self.asked[program].items() if re.fullmatch(pattern, destination)}

    def look(self) -> None:
        """What the programs got in this step."""
        new = [(program, delivery) for program in self.asked for delivery in program.got]
        for program, delivery in new:
            message, destination = delivery.message, delivery.descriptor.destination
            assert self.delivered[message] == destination
            assert message not in self.holds[program]
            assert delivery.redelivered == (message in self.seen)
            assert delivery.subscriptions
            assert set(delivery.subscriptions) <= self.matching(program, destination)
            assert len(set(delivery.subscriptions)) == len(delivery.subscriptions)
            self.holds[program].add(message)
            program.got.remove(delivery)
        self.seen |= {delivery.message for _, delivery in new}

    @invariant()
    def nothing_lies_about_that_somebody_wants(self) -> None:
        for message, destination in self.delivered.items():
            if not self.holders(message):
                assert not any(self.matching(program, destination) for program in self.asked)
                assert message not in self.read

    def teardown(self) -> None:
        self.write()
        assert sorted(self.machine.told) == sorted(self.done)


def test_whatever_programs_do_nothing_is_lost_and_nothing_comes_twice() -> None:
    run_state_machine_as_test(Crowd, settings=examples(15, stateful_step_count=30))
