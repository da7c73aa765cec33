"""Receipts on one host: the states that a send reports, when, and what remains after a crash or a full disk."""

from __future__ import annotations

import pytest
from tests.support.authors import LONG_S, MAIL, NEWS, OUTLIVE_S, Author, a_draft
from tests.support.one_node import S

from carrypost.gossip.draft import Draft
from carrypost.log.events import Handed, Published, Receipt, Refused, SendState
from carrypost.log.journal import MESSAGE, MOM, PIECE, StoredMessage
from carrypost.messaging import receipts as rows
from carrypost.messaging.commands import Declare, DeclareQueue, Follow
from carrypost.messaging.control import DELIVERED, FAILED, HANDED_OVER, Outcome, items_of
from carrypost.model.descriptor import Descriptor, PayloadCodec
from carrypost.model.headers import Headers
from carrypost.model.ids import MessageId, NodeId


@pytest.fixture
def node() -> Author:
    author = Author(messaging={"receipt_s": OUTLIVE_S})
    author.now = S
    return author


# --- who is followed ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("draft", "follows"),
    [
        (a_draft(MAIL), True),
        (a_draft(MAIL, persistent=False), False),
        (a_draft(NEWS), True),
        (a_draft(NEWS, persistent=False), False),
        (Draft(NEWS, b"x", persistent=True), False),
        (Draft("plain", b"x", persistent=True), False),
    ],
)
def test_persistent_sends_to_queues_are_followed_and_others_if_they_ask(
    node: Author, draft: Draft, *, follows: bool
) -> None:
    message = node.send(draft)
    assert (message in node.followed()) is False
    node.write()
    assert (message in node.followed()) is follows
    node.hear(message)
    node.write()
    assert node.states() == ["DELIVERED"] * follows


def test_the_row_is_in_the_batch_of_the_message(node: Author) -> None:
    node.send(a_draft())
    node.collect()
    (batch,) = node.batches
    assert {(kind, name[:1] if kind == MOM else b"") for kind, name, _ in batch.puts} >= {("message", b""), (MOM, b"W")}


# --- states ------------------------------------------------------------------------------------------------


def test_what_is_heard_is_told_when_it_is_durable(node: Author) -> None:
    message = node.send(a_draft())
    node.write()
    node.hear(message)
    assert node.told() == []
    node.write()
    assert node.told() == [Receipt(message, SendState.DELIVERED, handed_over=True, last=True)]


def test_a_delivery_implies_the_hand_over_and_that_implies_a_carrier(node: Author) -> None:
    message = node.send(a_draft())
    node.hear(message, HANDED_OVER)
    node.write()
    assert node.told() == [Receipt(message, SendState.CARRIED, handed_over=True)]
    node.hear(message, HANDED_OVER)
    node.write()
    assert node.told() == []


def test_a_queue_of_this_node_has_what_is_stored(node: Author) -> None:
    mine = node.host.messaging.execute(DeclareQueue(Declare("mine")), node.now, node.next_number())
    message = node.send(a_draft(mine))
    node.write()
    assert node.followed()[message].handed_over


def test_what_the_manager_turns_away_has_failed_with_its_reason(node: Author) -> None:
    message = node.send(a_draft())
    node.hear(message, FAILED, reason="there is no such queue")
    node.write()
    assert node.told() == [Receipt(message, SendState.FAILED, reason="there is no such queue")]


def test_a_message_expires_at_its_deadline(node: Author) -> None:
    message = node.send(a_draft(life_s=60))
    node.pass_time(59.9)
    assert node.told() == []
    node.pass_time(0.1)
    assert node.told() == [Receipt(message, SendState.EXPIRED, reason="expired")]


def test_a_message_fails_at_its_delivery_timeout_and_does_not_expire_then(node: Author) -> None:
    message = node.send(a_draft(life_s=60, timeout_s=20))
    node.pass_time(19.9)
    assert node.told() == []
    node.pass_time(0.1)
    assert node.told() == [Receipt(message, SendState.FAILED, reason="timeout")]
    node.pass_time(100)
    assert node.told() == []


def test_what_expired_does_not_fail_at_a_later_timeout(node: Author) -> None:
    node.send(a_draft(life_s=60, timeout_s=100))
    node.pass_time(200)
    assert node.states() == ["EXPIRED"]


@pytest.mark.parametrize("timeout_s", [None, 20])
def test_a_late_receipt_still_counts(node: Author, timeout_s: float | None) -> None:
    message = node.send(a_draft(life_s=60, timeout_s=timeout_s))
    node.pass_time(OUTLIVE_S + 59)
    assert len(node.told()) == 1
    node.hear(message)
    node.write()
    assert node.states() == ["DELIVERED"]


@pytest.mark.parametrize("kind", [HANDED_OVER, FAILED])
def test_a_state_does_not_fall(node: Author, kind: int) -> None:
    message = node.send(a_draft(life_s=60, timeout_s=20))
    node.hear(message)
    node.write()
    node.hear(message, kind, reason="too late")
    node.pass_time(100)
    assert node.states() == ["DELIVERED"]
    assert node.followed()[message].state is SendState.DELIVERED


def test_a_hand_over_after_the_failure_is_told_as_no_new_failure(node: Author) -> None:
    message = node.send(a_draft(timeout_s=20))
    node.pass_time(20)
    node.told()
    node.hear(message, HANDED_OVER)
    node.write()
    assert node.told() == [Receipt(message, SendState.FAILED, handed_over=True, reason="timeout", rose=False)]


def test_an_outcome_of_a_later_version_is_passed_over(node: Author) -> None:
    message = node.send(a_draft())
    node.hear(message, 77)
    node.write()
    assert node.told() == []
    assert not any(isinstance(each, Refused) for each in node.events)


# --- who may say so ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [HANDED_OVER, DELIVERED, FAILED])
def test_of_a_message_to_a_queue_only_the_manager_may_say_anything(node: Author, kind: int) -> None:
    message = node.send(a_draft())
    node.hear(message, kind, by="mallory")
    node.write()
    assert node.told() == []
    assert [(each.reason, each.peer) for each in node.events if isinstance(each, Refused)] == [("receipt", "mallory")]


def test_of_a_message_to_a_topic_the_first_who_has_it_counts(node: Author) -> None:
    message = node.send(a_draft(NEWS))
    for subscriber in ("b", "c"):
        node.hear(message, by=subscriber)
    node.write()
    assert node.told() == [Receipt(message, SendState.DELIVERED, last=True)]


@pytest.mark.parametrize("kind", [HANDED_OVER, FAILED])
def test_nobody_can_fail_a_message_to_a_topic(node: Author, kind: int) -> None:
    message = node.send(a_draft(NEWS))
    node.hear(message, kind, by="mallory")
    node.write()
    assert node.told() == []
    assert [each.reason for each in node.events if isinstance(each, Refused)] == ["receipt"]


# --- crashes and full disks --------------------------------------------------------------------------------


def test_a_restart_finds_states_and_timers(node: Author) -> None:
    carried, fails, done = node.send_all(a_draft(), a_draft(timeout_s=20), a_draft())
    node.hear(carried, HANDED_OVER)
    node.hear(done)
    node.write()
    node.told()
    node.crash()
    node.pass_time(20)
    assert [(each.message, each.state) for each in node.told()] == [(fails, SendState.FAILED)]
    node.pass_time(40)
    assert node.told() == [Receipt(carried, SendState.EXPIRED, handed_over=True, reason="expired")]


def test_what_fell_due_while_the_node_was_off_is_told_when_it_is_back(node: Author) -> None:
    message = node.send(a_draft(life_s=60))
    node.write()
    node.now += 100 * S
    node.crash()
    node.pass_time(0)
    assert node.told() == [Receipt(message, SendState.EXPIRED, reason="expired")]


def test_a_crash_before_the_row_is_written_takes_back_what_was_heard_and_not_told(node: Author) -> None:
    message = node.send(a_draft())
    node.write()
    node.hear(message)
    node.collect()
    node.crash()
    assert node.told() == []
    assert node.followed()[message].state is SendState.STORED
    node.hear(message)
    node.write()
    assert node.states() == ["DELIVERED"]


def test_the_drafts_of_a_commit_are_followed_from_the_commit_on(node: Author) -> None:
    session = node.session()
    numbers = [node.host.draft(session, a_draft(life_s=60, timeout_s=20), node.now)[0] for _ in range(2)]
    node.write()
    node.pass_time(15)
    assert node.followed() == {}
    node.work(*numbers)
    node.pass_time(19)
    assert node.told() == []
    assert len(node.followed()) == 2
    node.pass_time(1)
    assert node.states() == ["FAILED", "FAILED"]


# --- the end of rows ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("delivered", [False, True])
def test_a_row_outlives_its_message_by_a_while_and_the_last_is_told(node: Author, *, delivered: bool) -> None:
    message = node.send(a_draft(life_s=60))
    if delivered:
        node.hear(message)
    node.pass_time(OUTLIVE_S + 59)
    assert len(node.told()) == 1
    assert message in node.followed()
    node.pass_time(1)
    last = Receipt(message, SendState.EXPIRED, reason="expired", rose=False, last=True)
    assert node.told() == ([] if delivered else [last])
    assert node.followed() == {}


def test_a_message_without_an_end_is_followed_without_one(node: Author) -> None:
    message = node.send(a_draft(life_s=None))
    node.pass_time(10 * LONG_S)
    assert message in node.followed()
    assert node.told() == []


def test_rows_are_bounded_and_what_was_delivered_gives_way_first(node: Author, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows, "SENDS_MAX", 3)
    first, second, third = node.send_all(a_draft(), a_draft(), a_draft())
    node.hear(second)
    fourth = node.send(a_draft())
    node.write()
    assert set(node.followed()) == {first, third, fourth}
    node.told()
    node.crash()  # The order of age survives.
    fifth = node.send(a_draft())
    node.write()
    assert set(node.followed()) == {third, fourth, fifth}
    assert node.told() == [Receipt(first, SendState.STORED, rose=False, last=True)]


def test_timers_of_rows_that_gave_way_do_not_pile_up(node: Author, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows, "SENDS_MAX", 4)
    for _ in range(500):
        node.send(a_draft(life_s=LONG_S))
    node.write()
    assert len(node.receipts._agenda._heap) < 100  # noqa: SLF001
    node.told()
    node.pass_time(LONG_S)
    assert node.states() == ["EXPIRED"] * 4


# --- asking ------------------------------------------------------------------------------------------------


def test_a_message_is_found_again_and_told_of(node: Author) -> None:
    message = node.send(a_draft())
    node.hear(message)
    node.write()
    node.crash()
    node.told()
    found = node.host.messaging.execute(Follow(0, message), node.now)
    assert found is not None
    assert (found.destination, found.deadline_us) == (MAIL, 61 * S)
    assert node.told() == [Receipt(message, SendState.DELIVERED, handed_over=True, rose=False, last=True)]
    assert node.host.messaging.execute(Follow(0, MessageId(b"n:1:99")), node.now) is None


def test_who_asks_hears_nothing_that_a_crash_could_take_back(node: Author) -> None:
    message = node.send(a_draft())
    node.write()
    node.hear(message)
    node.collect()
    assert node.host.messaging.execute(Follow(0, message), node.now) is not None
    assert node.told() == []
    node.write()
    assert node.states() == ["DELIVERED", "DELIVERED"]


# --- receipts that are owed --------------------------------------------------------------------------------


class Subscriber(Author):
    """A node that has a message of another one, which asked for a receipt."""

    def __init__(self, *, wish: bool = True) -> None:
        super().__init__(messaging={"receipt_s": OUTLIVE_S})
        self.now = S
        self.letter = Descriptor(
            author="far", incarnation=1, sequence=1, created_us=0, deadline_us=60 * S, destination=NEWS, size=1,
            length=1, codec=PayloadCodec.PLAIN, root=b"", fragment_bytes=1024, headers=Headers(receipt=wish, type="t"),
        )  # fmt: skip
        here = StoredMessage(
            self.letter, 1, 1, 0, 0, NodeId("far"), own=False, interesting=False, delivered=False
        )  # fmt: skip
        self.disk |= {(MESSAGE, self.letter.id, 0): here, (PIECE, self.letter.id, 0): b"x"}
        self.crash()

    def take(self, session: int) -> Handed:
        """The message, as a consumer of this session gets it."""
        consumer = self.consume(session, self.letter.destination)
        self.credit(consumer)
        self.write()
        (handed,) = self.handed()
        return handed

    def said(self) -> list[tuple[str, Outcome]]:
        """Return the outcomes that were sent to other nodes since the last call."""
        self.collect()
        published = [each for each in self.events if isinstance(each, Published)]
        self.events = [each for each in self.events if each not in published]
        found = [each.descriptor for each in published if each.descriptor.destination.startswith("control/")]
        return [
            (each.destination, item) for each in found for item in items_of(each)[0] if isinstance(item, Outcome)
        ]  # fmt: skip

    def owes(self) -> bool:
        return (MOM, b"O" + self.letter.id, 0) in self.disk


def test_who_acknowledges_first_owes_the_author_a_receipt_once_that_is_durable() -> None:
    node = Subscriber()
    sessions = [node.session(), node.session()]
    handed = [node.take(session) for session in sessions]
    node.acknowledge(sessions[0], handed[0])
    node.collect()
    assert node.said() == []
    node.write()
    node.pass_time(1)
    assert node.said() == [("control/far", Outcome(node.letter.id, DELIVERED))]
    assert not node.owes()
    node.acknowledge(sessions[1], handed[1])
    node.pass_time(10)
    assert node.said() == []


def test_no_receipt_is_owed_for_what_asks_for_none() -> None:
    node = Subscriber(wish=False)
    session = node.session()
    node.acknowledge(session, node.take(session))
    node.pass_time(10)
    assert node.said() == []


@pytest.mark.parametrize("written", range(3))
def test_a_crash_after_any_batch_says_what_was_acknowledged_and_nothing_else(written: int) -> None:
    node = Subscriber()
    session = node.session()
    node.acknowledge(session, node.take(session))
    node.collect()
    said: list[tuple[str, Outcome]] = []
    for _ in range(written):
        while not node.batches:
            due = node.host.next_deadline()
            assert due is not None
            node.now = max(node.now, due)
            node.host.tick(node.now)
            node.collect()
        node.write_one()
    said += node.said()
    acknowledged = any(kind == "seen" for kind, *_ in node.disk)
    assert acknowledged is (written > 0)
    node.crash()
    node.pass_time(10)
    assert bool(said + node.said()) is acknowledged
    assert not node.owes()


def test_a_receipt_of_no_use_any_more_is_not_said() -> None:
    node = Subscriber()
    session = node.session()
    node.acknowledge(session, node.take(session))
    node.collect()
    node.write_one()
    assert node.owes()
    assert len(node.said()) == 1  # And that is not durable.
    node.now += (60 + OUTLIVE_S) * S
    node.crash()
    node.pass_time(10)
    assert node.said() == []
    assert not node.owes()


# --- the clock ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("back_s", [0, 3_600])
def test_a_send_expires_at_its_date_although_the_clock_was_set_back(node: Author, back_s: int) -> None:
    node.now = 10_000 * S
    node.send(Draft(NEWS, b"x", lifetime_us=600 * S, persistent=True, receipt=True))
    node.write()
    node.host.clock_stepped(-back_s * S)
    node.pass_time(600 + back_s - 1)
    assert node.states() == []
    node.pass_time(2)
    assert node.states() == ["EXPIRED"]
