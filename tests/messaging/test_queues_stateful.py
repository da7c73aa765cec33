"""Queues on four nodes under everything that can happen to them, against an oracle that only sees the programs."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test
from tests.support.examples import examples
from tests.support.queue_model import LIFETIMES_S, QUEUES, SELECTORS, Content, QueueWorld

PICK = st.integers(0, 7)
CONTENT = st.builds(
    Content,
    queue=st.integers(0, 1),
    k=st.integers(0, 3),
    lifetime_s=st.sampled_from((*LIFETIMES_S, LIFETIMES_S[-1])),
    delay_s=st.sampled_from((0.0, 0.0, 0.0, 5.0, 100.0)),
    priority=st.integers(0, 9),
    persistent=st.booleans(),
)
NEVER = tuple(queue for queue in QUEUES if not queue.lease_s)
LEASED = tuple(queue for queue in QUEUES if queue.lease_s)


class NeverMachine(RuleBasedStateMachine):
    """Queues that never redeliver elsewhere, on two nodes."""

    queues = NEVER

    def __init__(self) -> None:
        super().__init__()
        self.world: QueueWorld | None = None
        self.sound = False
        """True if the last step was completed, so that a final check is meaningful."""

    @initialize(seed=st.integers(0, 99), disk_delay_s=st.sampled_from((0.0, 0.0, 0.005, 0.2)), linked=st.booleans())
    def begin(self, seed: int, disk_delay_s: float, linked: bool) -> None:
        self.world = QueueWorld(seed=seed, disk_delay_s=disk_delay_s, queues=self.queues)
        if linked:
            self.play("link_all")

    def play(self, name: str, *arguments: object) -> None:
        self.sound = False
        assert self.world is not None
        self.world.play(name, *arguments)
        self.sound = True

    @rule(pick=PICK, contents=st.lists(CONTENT, min_size=1, max_size=3))
    def send(self, pick: int, contents: list[Content]) -> None:
        self.play("send", pick, contents)

    @rule(
        pick=PICK,
        queue=st.integers(0, 1),
        selector=st.sampled_from(list(SELECTORS)),
        credit=st.sampled_from((1, 2, 5)),
        prompt=st.sampled_from((False, False, False, True)),
    )
    def consume(self, pick: int, queue: int, selector: str | None, credit: int, prompt: bool) -> None:
        self.play("consume", pick, queue, selector, credit, prompt)

    @rule(pick=PICK, messages=st.integers(1, 3))
    def credit(self, pick: int, messages: int) -> None:
        self.play("credit", pick, messages)

    @rule(pick=PICK, left_out=st.integers(0, 127), contents=st.lists(CONTENT, max_size=2))
    def acknowledge(self, pick: int, left_out: int, contents: list[Content]) -> None:
        self.play("acknowledge", pick, left_out, contents)

    @rule(
        pick=PICK,
        how=st.sampled_from(("consumer", "connection", "recover")),
        left_out=st.sampled_from((127, 127, 0, 5)),
    )
    def leave(self, pick: int, how: str, left_out: int) -> None:
        self.play("leave", pick, how, left_out)

    @rule(pair=st.integers(0, 5), loss=st.sampled_from((0.0, 0.0, 0.1, 0.4)))
    def link(self, pair: int, loss: float) -> None:
        self.play("link", pair, loss)

    @rule()
    def link_all(self) -> None:
        self.play("link_all")

    @rule(pair=st.integers(0, 5))
    def part(self, pair: int) -> None:
        self.play("part", pair)

    @rule(seconds=st.sampled_from((0.0005, 0.01, 0.2, 1.0, 4.0, 15.0, 15.0, 40.0, 70.0, 500.0, 3_600.0)))
    def time_passes(self, seconds: float) -> None:
        self.play("advance", seconds)

    @rule(pick=st.integers(0, 4), seconds=st.sampled_from((0.0, 0.0, 0.0005, 0.01, 0.3)))
    def evict(self, pick: int, seconds: float) -> None:
        if seconds:
            self.play("advance", seconds)
        self.play("evict", pick)

    @rule(pick=PICK)
    def kill(self, pick: int) -> None:
        self.play("kill", pick)

    @rule(pick=PICK, fuse=st.integers(1, 6), after=st.booleans())
    def crash_at_a_batch(self, pick: int, fuse: int, after: bool) -> None:
        self.play("arm", pick, fuse, after)

    @rule(pick=PICK)
    def restart(self, pick: int) -> None:
        self.play("restart", pick)

    @rule(pick=PICK, full=st.booleans())
    def fill_disk(self, pick: int, full: bool) -> None:
        self.play("fill_disk", pick, full)

    def teardown(self) -> None:
        if self.world is None:
            return
        try:
            if self.sound:
                self.world.settle()
        finally:
            self.world.close()


class LeasedMachine(NeverMachine):
    """Queues that redeliver after a lease."""

    queues = LEASED


TestNever = NeverMachine.TestCase
TestNever.settings = examples(8, stateful_step_count=30)
TestLeased = LeasedMachine.TestCase
TestLeased.settings = examples(8, stateful_step_count=30)


@pytest.mark.soak
@pytest.mark.parametrize("machine", [NeverMachine, LeasedMachine])
def test_queues_for_long(machine: type[NeverMachine]) -> None:
    run_state_machine_as_test(machine, settings=settings(max_examples=3_000, stateful_step_count=60))
