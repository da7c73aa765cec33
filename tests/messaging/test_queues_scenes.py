"""Queues over carriers and long disconnections, in virtual time: absent nodes, competing receivers, and full caches."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.examples import examples
from tests.support.programs import Program, declare

from carrypost import testing
from carrypost.gossip.draft import Draft
from carrypost.log.events import Assigned, Event, Receipt, SendState
from carrypost.messaging.commands import Redelivery, UnitOfWork

HOUR_S = 3_600.0
LEASE_S = 2 * HOUR_S
_numbers = count(1_000_000)
LEASED = {"redelivery": Redelivery.AFTER_LEASE, "lease_us": round(LEASE_S * 1e6)}


@contextmanager
def network(*names: str, seed: int = 1, **settings: object) -> Iterator[testing.Network]:
    """Nodes with messaging awake, out of reach of each other; announcements are seldom, as days pass."""
    settings = {"announce_s_min": 5.0, "announce_s_max": 20.0} | settings
    with testing.network(*names, seed=seed, **settings) as net:  # type: ignore[arg-type]
        net.open_messaging()
        yield net


def meet(net: testing.Network, *nodes: str, after_s: float = HOUR_S, for_s: float = 120.0) -> None:
    """Let each node meet the next one for a short time, one pair after the other, after a long time alone."""
    for a, b in pairwise(nodes):
        net.advance(after_s)
        net.link(a, b)
        net.advance(for_s)
        net.unlink(a, b)


def there_and_back(net: testing.Network, *nodes: str) -> None:
    meet(net, *nodes)
    meet(net, *nodes[::-1])


def entries(net: testing.Network, node: str) -> int:
    overview = net.host(node).messaging.overview()
    assert overview is not None
    return overview.entries


class Receipts:
    """The progress of one node's sends."""

    def __init__(self, net: testing.Network, node: str) -> None:
        self.states: dict[bytes, list[SendState]] = {}
        self._node = node
        net.watch(self._take)

    def _take(self, _: float, node: str, event: Event) -> None:
        if node == self._node and isinstance(event, Receipt):
            self.states.setdefault(event.message, []).append(event.state)


def send(net: testing.Network, node: str, queue: str, *texts: str) -> list[bytes]:
    """Send PERSISTENT messages in one unit of work, as a program does."""
    drafts = tuple(Draft(queue, text.encode(), persistent=True) for text in texts)
    return [each.id for each in net.host(node).perform(UnitOfWork(next(_numbers), drafts), round(net.now * 1e6))]


def test_private_texts_between_phones_that_meet_only_through_others() -> None:
    with network("anna", "ben", "cleo", "dora", security="signed") as net:
        inbox = {name: declare(net, name, "texts") for name in ("anna", "dora")}
        programs = {name: Program(net, name, queue) for name, queue in inbox.items()}
        receipts = Receipts(net, "anna")
        (question,) = send(net, "anna", inbox["dora"], "shall we meet?")
        there_and_back(net, "anna", "ben", "cleo", "dora")
        send(net, "dora", inbox["anna"], "at noon")
        there_and_back(net, "dora", "cleo", "ben", "anna")
        assert programs["dora"].texts == ["shall we meet?"]
        assert programs["anna"].texts == ["at noon"]
        states = receipts.states[question]
        assert states == sorted(states)
        assert states[-1] is SendState.DELIVERED


@pytest.mark.parametrize("off", ["while they are sent", "while they are asked for", "while they are acknowledged"])
def test_a_manager_that_is_off_for_hours_holds_nothing_up_for_good(off: str) -> None:
    """Sender, manager and reader never meet: everything goes by the carrier."""
    with network("sender", "carrier", "manager", "reader") as net:
        queue = declare(net, "manager", "jobs")
        net.advance(60)
        if off == "while they are sent":
            net.kill("manager")
        send(net, "sender", queue, "one", "two")
        meet(net, "sender", "carrier", "manager")
        if off == "while they are asked for":
            net.kill("manager")
        reader = Program(net, "reader", queue)
        meet(net, "reader", "carrier", "manager")
        if off != "while they are acknowledged":
            net.advance(5 * HOUR_S)
            net.restart("manager")
        there_and_back(net, "carrier", "manager")
        if off == "while they are acknowledged":
            net.kill("manager")
        there_and_back(net, "manager", "carrier", "reader")
        assert sorted(reader.texts) == ["one", "two"]
        if off == "while they are acknowledged":
            net.advance(5 * HOUR_S)
            net.restart("manager")
        there_and_back(net, "reader", "carrier", "manager")
        assert entries(net, "manager") == 0
        assert {each.count for each in reader.got} == {1}
        assert len(reader.got) == 2


def test_two_readers_on_different_nodes_compete_and_each_message_goes_to_one() -> None:
    with network("sender", "manager", "left", "right") as net:
        queue = declare(net, "manager", "jobs")
        readers = [Program(net, name, queue, prefetch=5) for name in ("left", "right")]
        for name in ("left", "right", "sender"):
            net.link("manager", name)
        net.advance(30)
        texts = [f"{number:02}" for number in range(40)]
        send(net, "sender", queue, *texts)
        net.advance(120)
        got = Counter(text for reader in readers for text in reader.texts)
        assert got == Counter(texts)
        assert sorted(len(reader.got) for reader in readers) == [20, 20]
        assert entries(net, "manager") == 0


@pytest.mark.parametrize("reader", ["manager", "reader"])
@pytest.mark.parametrize("options", [{}, LEASED], ids=["never", "after_lease"])
def test_a_reader_that_dies_with_what_it_did_not_acknowledge(options: dict[str, object], reader: str) -> None:
    """Check that its node has it for good, or until the lease is over.

    The next receiver hears that it is not the first.
    """
    with network("manager", "reader", "other") as net:
        queue = declare(net, "manager", "jobs", **options)
        net.link("manager", "reader")
        net.link("manager", "other")
        first = Program(net, reader, queue, acknowledges=False)
        net.advance(60)
        send(net, "manager", queue, "one")
        net.advance(60)
        assert first.texts == ["one"]
        net.kill(reader)
        net.advance(60)
        if reader == "manager":
            net.restart("manager")
            net.advance(60)
        other = Program(net, "other", queue)
        net.advance(HOUR_S)
        assert other.texts == [], "the first one may come back"
        net.advance(LEASE_S)
        if options:
            assert [(each.text, each.count) for each in other.got] == [("one", 2)]
        if reader != "manager":
            net.restart(reader)
            net.advance(60)
        again = Program(net, reader, queue)
        net.advance(60)
        assert [(each.text, each.count) for each in again.got] == ([] if options else [("one", 2)])
        assert len(other.got) == bool(options)
        assert entries(net, "manager") == 0


@pytest.mark.parametrize("count", [300, pytest.param(1_000, marks=pytest.mark.soak)])
def test_many_messages_of_one_sender_by_a_carrier_that_has_room_for_fifty(count: int) -> None:
    with network("sender", "manager") as net:
        net.add("carrier", cache_messages_max=50)
        queue = declare(net, "manager", "jobs")
        reader = Program(net, "manager", queue)
        texts = [f"{number:04}" for number in range(count)]
        send(net, "sender", queue, *texts)
        trips = 0
        while len(reader.got) < len(texts):
            before = len(reader.got)
            meet(net, "sender", "carrier", "manager", after_s=600.0, for_s=60.0)
            trips += 1
            assert len(reader.got) > before or trips < 3, f"nothing comes any more after {len(reader.got)} messages"
        assert Counter(reader.texts) == Counter(texts)
        assert {each.count for each in reader.got} == {1}
        assert trips < 0.12 * count, "a quarter of its room is for queues"


def test_messages_beyond_the_room_of_a_queue_are_declined_and_come_when_there_is_room() -> None:
    with network("sender", "carrier") as net:
        net.add("manager", limits={"queue_messages_max": 10, "share_author": 1.0})
        queue = declare(net, "manager", "jobs")
        texts = [f"{number:02}" for number in range(35)]
        send(net, "sender", queue, *texts)
        net.link("sender", "carrier")
        net.link("carrier", "manager")
        net.advance(300)
        assert entries(net, "manager") == 10
        reader = Program(net, "manager", queue, prefetch=5, acknowledges=False)
        net.advance(300)
        assert (len(reader.got), entries(net, "manager")) == (5, 10)
        reader.close()
        reader = Program(net, "manager", queue)
        net.advance(600)
        assert sorted(reader.texts) == texts
        assert entries(net, "manager") == 0


def test_a_message_to_a_queue_that_is_not_there_is_dropped_and_its_author_hears_that_it_failed() -> None:
    with network("sender", "carrier", "manager") as net:
        receipts = Receipts(net, "sender")
        (sent,) = send(net, "sender", "queue/manager/nothing", "hello?")
        there_and_back(net, "sender", "carrier", "manager")
        assert receipts.states[sent][-1] is SendState.FAILED
        assert declare(net, "manager", "nothing") == "queue/manager/nothing"
        reader = Program(net, "manager", "queue/manager/nothing")
        there_and_back(net, "sender", "carrier", "manager")
        assert reader.texts == [], "it was told as failed"


# --- order and fairness -------------------------------------------------------------------------------------


def assignments(net: testing.Network) -> list[tuple[int, int]]:
    """Number and property of every message, as the manager assigns them."""
    found: list[tuple[int, int]] = []

    def take(_: float, node: str, event: Event) -> None:
        if node == "manager" and isinstance(event, Assigned):
            attributes = event.descriptor.attributes
            found.append((int(attributes["n"]), int(attributes["k"])))

    net.watch(take)
    return found


SENDS = st.lists(
    st.tuples(st.sampled_from(("manager", "sender")), st.integers(0, 9), st.integers(0, 2)), min_size=1, max_size=12
)


@examples(12)
@given(sends=SENDS, where=st.sampled_from(("manager", "reader")), credit=st.integers(1, 3), chosen=st.booleans())
def test_what_waits_is_assigned_by_priority_then_by_age(
    sends: list[tuple[str, int, int]], where: str, credit: int, chosen: bool
) -> None:
    with network("manager", "sender", "reader") as net:
        queue = declare(net, "manager", "jobs")
        net.link("manager", "sender")
        net.link("manager", "reader")
        net.advance(30)
        ranks: dict[int, tuple[int, float]] = {}
        for n, (node, priority, k) in enumerate(sends):
            net.publish(node, queue, b"x", attributes={"n": n, "k": k}, priority=priority)
            ranks[n] = (-priority, net.now)
            net.advance(0.001)
        net.advance(60)
        assigned = assignments(net)
        Program(net, where, queue, "k > 0" if chosen else None, prefetch=credit)
        net.advance(120)
        wanted = [n for n, (_, _, k) in enumerate(sends) if k or not chosen]
        assert [n for n, _ in assigned] == sorted(wanted, key=lambda n: ranks[n])


@examples(8)
@given(
    nodes=st.lists(st.sampled_from(("manager", "left", "right")), min_size=1, max_size=5),
    messages=st.integers(1, 25),
    seed=st.integers(0, 9),
    at_once=st.booleans(),
)
def test_what_nodes_get_differs_by_one_at_most_and_what_readers_of_one_node_get_likewise(
    nodes: list[str], messages: int, seed: int, at_once: bool
) -> None:
    with network("manager", "left", "right", seed=seed) as net:
        queue = declare(net, "manager", "jobs")
        for name in ("left", "right"):
            net.link("manager", name)
        readers = [Program(net, node, queue) for node in nodes]
        net.advance(60)
        for number in range(messages):
            net.publish("left", queue, f"{number}".encode())
            if not at_once:
                net.advance(5)
        net.advance(120)
        got = {node: [len(each.got) for each in readers if each.node == node] for node in nodes}
        whole = [sum(each) for each in got.values()]
        assert sum(whole) == messages
        assert max(whole) - min(whole) <= 1
        assert all(max(each) - min(each) <= 1 for each in got.values())
