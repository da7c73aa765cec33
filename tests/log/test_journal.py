"""Batches, and events that wait for them."""

from __future__ import annotations

import pytest

from carrypost.gossip.outputs import Journal, Retractable
from carrypost.log.events import Delivered, Delivery, Event, Handed, Stored
from carrypost.log.journal import Durability, Key
from carrypost.model.descriptor import Descriptor, PayloadCodec
from carrypost.model.ids import MessageId

ONE, TWO, THREE = (Stored(MessageId(name)) for name in (b"1", b"2", b"3"))


def key(name: str) -> Key:
    return ("meta", name.encode(), 0)


@pytest.fixture
def released() -> list[Event | Retractable]:
    return []


@pytest.fixture
def journal(released: list[Event | Retractable]) -> Journal:
    return Journal(released)


def test_nothing_changed_is_no_batch(journal: Journal) -> None:
    assert journal.pop_batch() is None
    journal.put(key("a"), 1)
    assert journal.pop_batch() is not None
    assert journal.pop_batch() is None


def test_of_several_changes_to_a_key_the_last_one_counts(journal: Journal) -> None:
    journal.put(key("a"), 1)
    journal.put(key("a"), 2)
    journal.put(key("b"), 3)
    journal.delete(key("b"))
    journal.delete(key("c"))
    journal.put(key("c"), 4)
    batch = journal.pop_batch()
    assert batch is not None
    assert (batch.puts, batch.deletes) == ({key("a"): 2, key("c"): 4}, (key("b"),))


def test_deletions_that_can_wait_go_with_the_next_batch(journal: Journal) -> None:
    journal.put(key("a"), 1)
    journal.delete_later(key("a"))  # A batch that others wait for is made, though this takes back its only change.
    batch = journal.pop_batch()
    assert batch is not None
    assert (batch.puts, batch.deletes) == ({}, (key("a"),))
    journal.delete_later(key("a"))
    journal.delete_later(key("b"))
    journal.delete_later(key("c"))
    assert journal.pop_batch() is None
    journal.put(key("b"), 2)
    journal.put_all({key("c"): 3})
    batch = journal.pop_batch()
    assert batch is not None
    assert (batch.puts, batch.deletes) == ({key("b"): 2, key("c"): 3}, (key("a"),))
    for number in range(300):
        journal.delete_later(key(str(number)))
    batch = journal.pop_batch()
    assert batch is not None
    assert len(batch.deletes) == 300


def test_a_batch_is_as_safe_as_its_most_demanding_change(journal: Journal) -> None:
    for demands, expected in (
        ([Durability.NORMAL], Durability.NORMAL),
        ([Durability.FULL, Durability.NORMAL], Durability.FULL),
        ([Durability.NORMAL], Durability.NORMAL),
    ):
        for number, durability in enumerate(demands):
            journal.put(key(str(number)), 1, durability)
        batch = journal.pop_batch()
        assert batch is not None
        assert batch.durability is expected


def test_an_event_with_nothing_to_wait_for_is_released_at_once(
    journal: Journal, released: list[Event | Retractable]
) -> None:
    journal.hold(ONE)
    assert released == [ONE]


def test_an_event_waits_for_the_batch_of_the_change_before_it(
    journal: Journal, released: list[Event | Retractable]
) -> None:
    journal.put(key("a"), 1)
    journal.hold(ONE)
    first = journal.pop_batch()
    journal.hold(TWO)
    journal.put(key("b"), 1)
    journal.hold(THREE)
    second = journal.pop_batch()
    assert first is not None
    assert second is not None
    assert released == []
    journal.durable(first.serial)
    assert released == [ONE, TWO]
    journal.durable(second.serial)
    assert released == [ONE, TWO, THREE]


def test_events_are_released_in_order_whatever_the_order_of_the_answers(
    journal: Journal, released: list[Event | Retractable]
) -> None:
    serials = []
    for number, event in enumerate((ONE, TWO, THREE)):
        journal.put(key(str(number)), 1)
        journal.hold(event)
        batch = journal.pop_batch()
        assert batch is not None
        serials.append(batch.serial)
    journal.durable(serials[2])
    journal.durable(serials[1])
    assert released == []
    journal.durable(serials[0])
    assert released == [ONE, TWO, THREE]


def test_serials_rise(journal: Journal) -> None:
    serials = []
    for number in range(3):
        journal.put(key("a"), number)
        batch = journal.pop_batch()
        assert batch is not None
        serials.append(batch.serial)
    assert serials == sorted(set(serials))


def descriptor(number: int) -> Descriptor:
    return Descriptor("a", 1, number, 0, None, "news", 100, 100, PayloadCodec.BLANK, b"", 1_024)


def test_a_delivery_is_withheld_from_every_event_that_no_driver_has_taken(journal: Journal) -> None:
    claimed, kept, asked = Delivery(descriptor(1), (), False), Delivery(descriptor(2), (1,), False), descriptor(1)
    journal.put(key("a"), 1)
    journal.hold(Delivered((claimed, kept)))
    first = journal.pop_batch()
    journal.put(key("b"), 1)
    journal.hold(Delivered((Delivery(asked, (1,), False, known=True),)))
    journal.hold(Handed(1, 1, asked, 1))
    journal.hold(Handed(1, 2, descriptor(2), 1))
    second = journal.pop_batch()
    assert first is not None
    assert second is not None
    journal.durable(first.serial)
    assert journal.retract(asked.id)
    assert not journal.retract(asked.id)
    assert journal.retract_handed((1, 3)) == {1}
    assert journal.pop_released() == [Delivered((kept,))]
    assert not journal.retract(kept.message)
    journal.durable(second.serial)
    assert journal.retract_handed((2,)) == {2}
    assert journal.pop_released() == []
