"""Receipts of one host against a model: any reports in any order, a failing disk, and crashes.

The state that a program sees of a message never falls, over all lives of the node. It is never more than a node that
may report it has reported, or the clock. Once the disk has caught up, it is no less than the reports of this life.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from tests.support.authors import MAIL, NEWS, OUTLIVE_S, Author, a_draft
from tests.support.examples import examples
from tests.support.one_node import S

from carrypost.log.events import Done, Receipt, SendState
from carrypost.messaging.commands import Follow, UnitOfWork
from carrypost.messaging.control import DELIVERED, FAILED, HANDED_OVER
from carrypost.model.ids import MessageId

MEANS = {HANDED_OVER: SendState.CARRIED, DELIVERED: SendState.DELIVERED, FAILED: SendState.FAILED}
PICK = st.integers(0, 5)


@dataclass
class Letter:
    """A message, as its sender knows it."""

    queue: bool
    deadline_us: int
    fail_us: int | None
    sent: bool = False
    """True if the outcome is durable, and was reported."""
    told: SendState = SendState.STORED
    handed_over: bool = False
    over: bool = False
    rises: set[SendState] = field(default_factory=set)
    said: set[SendState] = field(default_factory=set)
    """States reported by nodes that may report them, before or after restarts."""
    said_handed_over: bool = False
    due: SendState = SendState.STORED
    """State that must be reported once the disk has caught up: reported in this life, or on disk."""


class ReceiptMachine(RuleBasedStateMachine):
    """A node, its disk, and its receipts."""

    def __init__(self) -> None:
        super().__init__()
        self.node = Author(messaging={"receipt_s": OUTLIVE_S})
        self.node.now = S
        self.letters: dict[MessageId, Letter] = {}
        self.works: dict[int, list[MessageId]] = {}

    def pick(self, pick: int) -> tuple[MessageId, Letter]:
        return list(self.letters.items())[pick % len(self.letters)]

    # --- what happens --------------------------------------------------------------------------------------

    @rule(
        queue=st.booleans(), life_s=st.sampled_from([5, 20, 60]), timeout_s=st.sampled_from([None, 3, 30]),
        count=st.integers(1, 2),
    )  # fmt: skip
    def send(self, *, queue: bool, life_s: int, timeout_s: int | None, count: int) -> None:
        draft = a_draft(MAIL if queue else NEWS, life_s=life_s, timeout_s=timeout_s)
        number, now = self.node.next_number(), self.node.now
        made = self.node.host.perform(UnitOfWork(number, (draft,) * count), now)
        self.works[number] = [each.id for each in made]
        for each in made:
            fail_us = None if timeout_s is None else now + timeout_s * S
            self.letters[each.id] = Letter(queue, now + life_s * S, fail_us)

    @precondition(lambda self: self.letters)
    @rule(pick=PICK, kind=st.sampled_from([HANDED_OVER, DELIVERED, FAILED, 9]), by=st.sampled_from(["m", "m", "x"]))
    def hear(self, pick: int, kind: int, by: str) -> None:
        message, letter = self.pick(pick)
        self.node.hear(message, kind, by=by, reason="so")
        has_a_say = by == "m" if letter.queue else kind == DELIVERED
        if has_a_say and kind in MEANS and not letter.over:
            self.reach(letter, MEANS[kind])
            letter.said_handed_over = letter.said_handed_over or (letter.queue and kind != FAILED)

    @precondition(lambda self: self.letters)
    @rule(pick=PICK)
    def carry(self, pick: int) -> None:
        message, letter = self.pick(pick)
        self.node.carry(message)
        if not letter.over:
            self.reach(letter, SendState.CARRIED)

    def reach(self, letter: Letter, state: SendState) -> None:
        letter.said.add(state)
        letter.due = max(letter.due, state)

    @rule(seconds=st.sampled_from([0, 1, 4, 25]))
    def tick(self, seconds: int) -> None:
        self.node.now += seconds * S
        self.node.host.tick(self.node.now)

    @rule()
    def settle(self) -> None:
        """Let the disk catch up: every state that was reported must be passed on."""
        self.node.pass_time(5)
        self.watch()
        for letter in self.letters.values():
            letter.over = letter.over or letter.deadline_us + OUTLIVE_S * S <= self.node.now
            if letter.sent:
                assert letter.over or letter.told >= letter.due
                assert letter.handed_over or not letter.said_handed_over or letter.over
        assert set(self.node.followed()) == {
            message for message, letter in self.letters.items() if letter.sent and not letter.over
        }

    @rule(seconds=st.sampled_from([100, OUTLIVE_S]))
    def pass_long(self, seconds: int) -> None:
        self.node.pass_time(seconds)

    # --- the disk ------------------------------------------------------------------------------------------

    @precondition(lambda self: self.node.batches)
    @rule()
    def write_one(self) -> None:
        self.node.write_one()

    @rule(written=st.booleans())
    def crash(self, *, written: bool) -> None:
        """Crash; perhaps the oldest batch was written without an answer."""
        self.watch()
        if written and self.node.batches:
            batch = self.node.batches[0]
            for key in batch.deletes:
                self.node.disk.pop(key, None)
            self.node.disk.update(batch.puts)
        self.node.crash()
        self.works = {}
        on_disk = self.node.followed()
        for message, letter in list(self.letters.items()):
            if (row := on_disk.get(message)) is not None:
                letter.sent = True
                letter.due, letter.said_handed_over = row.state, row.handed_over
                self.node.host.messaging.execute(Follow(0, message), self.node.now)
            elif letter.sent:
                letter.over = True  # Else what was told would be forgotten.
                assert letter.deadline_us + OUTLIVE_S * S <= self.node.now
            else:
                del self.letters[message]  # It was never sent.

    # --- what is told --------------------------------------------------------------------------------------

    @invariant()
    def watch(self) -> None:
        self.node.collect()
        events, self.node.events = self.node.events, []
        for event in events:
            if isinstance(event, Done):
                for message in self.works.pop(event.number, ()):
                    self.letters[message].sent = True
            elif isinstance(event, Receipt):
                self.heard(event)

    def heard(self, event: Receipt) -> None:
        letter, now = self.letters[event.message], self.node.now
        assert letter.sent, "before the send itself is"
        assert event.state >= letter.told, "it falls"
        assert letter.handed_over <= event.handed_over
        if event.rose:
            assert event.state not in letter.rises, "told twice"
            letter.rises.add(event.state)
        clock = {SendState.STORED}
        if letter.deadline_us <= now:
            clock.add(SendState.EXPIRED)
        if letter.fail_us is not None and letter.fail_us <= now:
            clock.add(SendState.FAILED)
        assert event.state in letter.said | clock, "nobody said so"
        assert not event.handed_over or letter.queue
        assert event.last or event.state is not SendState.DELIVERED
        letter.told, letter.handed_over = event.state, event.handed_over


TestReceipts = ReceiptMachine.TestCase
TestReceipts.settings = examples(20, stateful_step_count=40)
