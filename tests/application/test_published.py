"""`Published`: emitted once for every message of this host, before any event that follows from it; and its row."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
from tests.support import emulated
from tests.support.hostile import Attacker, message

from carrypost import testing
from carrypost.config import Settings
from carrypost.errors import LocalError, OrderError, PayloadError, StateError
from carrypost.gossip.draft import Draft
from carrypost.host import Host
from carrypost.log.events import Confirmed, Delivered, Done, Dropped, Event, Published, Reason, Stored
from carrypost.messaging.commands import UnitOfWork
from carrypost.model.descriptor import Ordering
from carrypost.model.ids import NodeId
from carrypost.security.identity import Identity


def started(**settings: object) -> Host:
    host = Host(Identity.plain("a"), Settings.emulated(beacons=False, **settings), random.Random(1))
    host.start(0)
    write(host)
    return host


def write(host: Host) -> None:
    while (batch := host.changes()) is not None:
        host.durable(batch.serial, 0)


def kinds(events: list[Event]) -> list[type]:
    return [type(event) for event in events]


# --- at the host -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ordering", Ordering)
def test_a_publication_is_told_at_once_and_its_storing_when_that_is_done(ordering: Ordering) -> None:
    host = started()
    message = host.publish("news", b"x", now=0, label="m", ordering=ordering)
    (told,) = host.events()
    assert isinstance(told, Published)
    assert (told.descriptor.id, told.descriptor.label, told.descriptor.ordering) == (message, "m", ordering)
    write(host)
    assert host.events() == [Stored(message)]


@pytest.mark.parametrize("ordering", Ordering)
def test_every_publication_is_told_once_before_what_follows_from_it(ordering: Ordering) -> None:
    host = started()
    host.subscribe("news", ordered=bool(ordering), now=0)
    messages = [host.publish("news", b"x", now=0, ordering=ordering) for _ in range(3)]
    write(host)
    told = host.events()
    assert [event.descriptor.id for event in told if isinstance(event, Published)] == messages
    assert [event.message for event in told if isinstance(event, Stored)] == messages
    assert kinds(told)[:3] == [Published] * 3
    assert set(kinds(told)[3:]) == {Stored, Delivered}


def test_what_gives_way_to_a_publication_is_told_after_it_and_what_had_expired_before() -> None:
    host = started(cache_messages_max=2)
    for label, lifetime_us in (("short", 5), ("long", None)):
        host.publish("news", b"x", now=0, label=label, lifetime_us=lifetime_us)
    write(host)
    host.events()
    for label in ("first", "second"):
        host.publish("news", b"x", now=5, label=label)
    told = [
        (type(event), event.descriptor.label if isinstance(event, Published) else event.descriptors[0].label)
        for event in host.events()
        if isinstance(event, Published | Dropped)
    ]
    assert told == [(Dropped, "short"), (Published, "first"), (Published, "second"), (Dropped, "long")]


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"payload": "text"}, PayloadError),
        ({"priority": 10}, PayloadError),
        ({"lifetime_us": 0}, PayloadError),
        ({"attributes": {"n": 2**63}}, PayloadError),
        ({"payload": bytes(2_000)}, StateError),
        ({"ordering": Ordering.DELTA_CAUSAL, "destination": "sport"}, OrderError),
    ],
)
def test_what_could_not_be_published_is_not_told(changes: dict[str, Any], error: type[LocalError]) -> None:
    host = started(cache_bytes_max=1_000, compress=False, limits={"groups_max": 1})
    host.publish("news", b"x", now=0, ordering=Ordering.DELTA_CAUSAL)
    host.events()
    with pytest.raises(error):
        host.publish(**{"destination": "news", "payload": b"x", "now": 0, **changes})
    assert host.events() == []


def test_a_host_that_has_not_begun_publishes_and_tells_nothing() -> None:
    host = Host(Identity.plain("a"), Settings.emulated(), random.Random(1))
    with pytest.raises(StateError):
        host.publish("news", b"x", now=0)
    assert host.events() == []


# --- in works ----------------------------------------------------------------------------------------------

DELTA = Ordering.DELTA_CAUSAL


def ordered(*topics: str) -> tuple[Draft, ...]:
    """Return messages each of which dies before those that it depends on: a barrier then names these, too."""
    return tuple(
        Draft(topic, b"x", ordering=DELTA, lifetime_us=(100 - number) * 1_000_000)
        for number, topic in enumerate(topics)
    )


@pytest.mark.parametrize(
    ("limits", "topics"),
    [
        ({"groups_max": 3}, ("news", "sport", "roads", "rails")),
        ({"groups_max": 2, "barrier_entries_max": 2}, ("news", "news", "news", "news", "sport", "roads")),
        ({"descriptor_bytes_max": 256}, ("news",) * 30 + ("n" * 200,)),
    ],
)
def test_a_work_whose_last_ordered_send_fails_publishes_nothing(
    limits: dict[str, int], topics: tuple[str, ...]
) -> None:
    host = started(limits=limits)
    host.subscribe(".*", ordered=True, now=0)
    write(host)
    host.events()
    with pytest.raises((OrderError, PayloadError)):
        host.perform(UnitOfWork(1, ordered(*topics)), 0)
    assert (host.copies, host.events(), host.changes()) == (0, [], None)
    assert all((each.c_barrier, each.co_delivered) == (0, 0) for each in host.registries(0))
    (sent,) = host.perform(UnitOfWork(1, ordered(topics[0])), 0)
    assert (sent.sequence, sent.barrier) == (1, ())
    write(host)
    assert Done(1) in host.events()


def test_what_a_work_sends_in_order_is_stamped_as_if_each_was_sent_by_itself() -> None:
    together, apart = started(), started()
    sends = ordered("news", "sport", "news", "news", "sport")
    for each in sends:
        apart.perform(UnitOfWork(1, (each,)), 0)
        write(apart)
        apart.events()
    last = Draft("news", b"x", ordering=DELTA)
    found = together.perform(UnitOfWork(1, (*sends, last)), 0)
    assert found[-1] == apart.perform(UnitOfWork(1, (last,)), 0)[0]
    assert [len(each.barrier) for each in found] == [0, 0, 1, 2, 1, 3]


# --- numbers that a stranger used --------------------------------------------------------------------------


def forged(net: testing.Network, *sequences: int) -> None:
    """A stranger offers messages in the name of `a`, of its first life."""
    mallory = Attacker(net)
    mallory.meet("a", "news")
    for sequence in sequences:
        mallory.give("a", message(Identity.plain(NodeId("a")), incarnation=1, sequence=sequence), sequence)
        net.advance(1)
    assert net.host("a").overview().refused["own-message"] == len(sequences)


def test_a_number_that_a_stranger_used_is_passed_over() -> None:
    with testing.network("a", "b", seed=1) as net:
        for node in "ab":
            net.subscribe(node, "news")
        forged(net, 1, 2, 4)
        net.link("a", "b")
        made = [net.publish("a", "news", str(number).encode()) for number in range(3)]
        assert made == [b"a:1:3", b"a:1:5", b"a:1:6"]
        net.advance(5)
        assert sorted(each.payload for each in net.deliveries("b")) == [b"0", b"1", b"2"]


def test_a_stranger_that_uses_the_number_of_a_draft_does_not_keep_it_from_being_sent() -> None:
    with testing.network("a", seed=1) as net:
        net.subscribe("a", "news")
        number, _ = net.host("a").draft(0, Draft("news", b"x"), 0)
        forged(net, 1)
        (sent,) = net.host("a").perform(UnitOfWork(1, (number,)), round(net.now * 1e6))
        assert sent.id == b"a:1:1"


# --- in emulation ------------------------------------------------------------------------------------------


def watched(net: testing.Network) -> list[Event]:
    told: list[Event] = []
    net.watch(lambda _seconds, _node, event: told.append(event))
    return told


def withdrawn(net: testing.Network) -> None:
    """Withdraw a message of the node, which its host has still to report."""
    message = net.publish("a", "news", b"x", label="old")
    net.advance(1)
    net.host("a").discard(message, Reason.WITHDRAWN, round(net.now * 1e6))


@pytest.mark.parametrize("ordering", [each.text for each in Ordering])
def test_a_network_tells_a_publication_before_everything_else_of_that_instant(ordering: str) -> None:
    record = testing.Record()
    with testing.network("a", record=record) as net:
        net.subscribe("a", "forum")
        told = watched(net)
        withdrawn(net)
        net.publish("a", "forum", b"x", label="new", ordering=ordering)
    assert kinds(told) == [Published, Stored, Published, Dropped, Stored, Delivered, Confirmed]
    rows = [(row["kind"], row["message"]) for row in record.rows() if row["message"]]
    assert rows == [("publish", "old"), ("publish", "new"), ("drop", "old"), ("deliver", "new")]


def test_what_is_published_at_a_host_directly_is_in_the_record() -> None:
    record = testing.Record()
    with testing.network("a", record=record, security="signed", lifetime_s_default=60, lifetime_s_max=60) as net:
        net.subscribe("a", "news")
        net.host("a").publish("news", b"x", now=0, label="m")
        net.advance(1)
    rows = [(row["kind"], row["node"], row["source"]) for row in record.rows() if row["message"] == "m"]
    assert rows == [("publish", "a", "a"), ("deliver", "a", "a")]


def test_a_publication_inside_an_event_is_told_at_once_and_the_rest_in_order() -> None:
    record = testing.Record()
    with testing.network("a", record=record) as net:
        net.subscribe("a", "questions")
        told = watched(net)

        def answer(_seconds: float, _node: str, event: Event) -> None:
            if isinstance(event, Stored) and len(told) == 2:
                net.publish("a", "answers", b"yes", label="answer")

        net.watch(answer)
        net.publish("a", "questions", b"is it?", label="question")
    assert kinds(told) == [Published, Stored, Published, Delivered, Stored, Confirmed]
    rows = [(row["kind"], row["message"]) for row in record.rows() if row["message"]]
    assert rows == [("publish", "question"), ("publish", "answer"), ("deliver", "question")]


def test_an_application_may_crash_its_node_when_it_hears_of_a_publication() -> None:
    with testing.network("a") as net:
        withdrawn(net)
        told = watched(net)
        net.watch(lambda _seconds, node, event: net.kill(node) if isinstance(event, Published) else None)
        net.host("a").publish("news", b"x", now=round(net.now * 1e6))
        net.publish("a", "news", b"x")
        net.restart("a")
        net.advance(60)
        # The dead host had more to tell. It never became durable, so that it did not happen to the next one.
        assert kinds(told) == [Published]
        assert net.host("a").copies == 1


@pytest.mark.parametrize(
    ("mode", "disk_delay_s", "expected"),
    [
        ("faithful", 0, "publish a2, deliver a2, publish a3, drop a1, deliver a3, publish b1, deliver b1"),
        # All that is published at one instant is published before anybody answers, and each is a batch of its own.
        ("ideal", 0, "publish a2, publish a3, publish b1, deliver a2, drop a1, deliver a3, deliver b1"),
        ("ideal", 0.5, "publish a2, publish a3, publish b1, drop a1"),
    ],
    ids=["faithful", "ideal", "ideal with a slow disk"],
)
def test_a_run_records_a_publication_before_what_it_sets_off(
    tmp_path: Path, mode: str, disk_delay_s: float, expected: str
) -> None:
    tables = (
        emulated.contacts(tmp_path, "a,b,90,95"),
        emulated.script(tmp_path, "10,a,a1,1,", "20,a,a2,1,", "20,a,a3,1,", "20,b,b1,1,"),
        "[settings]\ncache_messages_max = 2\n",
    )
    found = emulated.rows(emulated.scenario(tmp_path, *tables, mode=mode, top=f"disk_delay_s = {disk_delay_s}"))
    told = [f"{row['kind']} {row['message']}" for row in found if row["t"] == 20 and row["message"]]
    assert ", ".join(told) == expected
