"""Attacks of strangers on managers and receivers of queues: bounded work, a bounded share, and no harm to others."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import count
from typing import TypeVar

import msgspec
import pytest
from tests.support.hostile import Attacker, message
from tests.support.programs import Program, declare

from carrypost import testing
from carrypost.log.events import Assigned, Browsed, Event, Published
from carrypost.log.journal import MOM
from carrypost.messaging import control
from carrypost.messaging.commands import Browse, Connect, Credit, OpenSession
from carrypost.messaging.control import INCARNATION_BITS, Item
from carrypost.messaging.queues.queues import RemoteBrowse, RemoteBrowses
from carrypost.model import address
from carrypost.model.descriptor import Descriptor
from carrypost.model.headers import Headers
from carrypost.model.ids import NodeId
from carrypost.security.identity import Identity

T = TypeVar("T")
US = 1_000_000
DAY_US = 86_400 * US
AT_ONCE = 100
"""Items in one control message."""


def pages(things: Sequence[T], size: int) -> list[Sequence[T]]:
    return [things[at : at + size] for at in range(0, len(things), size)]


class Scene:
    """A manager with a queue, a reader in contact with it, and Mallory, who is a neighbour of both."""

    def __init__(self, net: testing.Network, **options: object) -> None:
        self.net = net
        net.open_messaging()
        net.link("m", "r")
        self.mallory = Attacker(net)
        for victim in ("m", "r"):
            self.mallory.meet(victim, "nothing")
        net.advance(10)
        self.queue = declare(net, "m", "jobs", **options)
        net.advance(1)
        self.assigned: Counter[str] = Counter()
        self.published: list[int] = []
        """Bytes of the control messages of the manager."""
        net.watch(self._take)
        self._handles = count(1)

    def _take(self, _seconds: float, node: str, event: Event) -> None:
        if isinstance(event, Assigned):
            self.assigned[event.receiver] += 1
        elif isinstance(event, Published) and node == "m" and event.descriptor.destination.startswith("control/"):
            self.published.append(len(event.descriptor.wire))

    @property
    def now(self) -> int:
        return round(self.net.now * US)

    def say(self, to: str, *items: Item, author: str = "evil", apart_s: float = 0.2) -> None:
        """Give a node control messages of any author, each with as many items as fit."""
        for some in pages(items, AT_ONCE):
            given = message(
                Identity.plain(NodeId(author)), b"", destination=address.control(NodeId(to)), created_us=self.now,
                deadline_us=self.now + 30 * DAY_US, headers=Headers(control=msgspec.msgpack.encode(some)),
            )  # fmt: skip
            self.mallory.give(to, given, next(self._handles))
            self.net.advance(apart_s)

    def refused(self, node: str, reason: str) -> int:
        return self.net.host(node).overview().refused.get(reason, 0)

    def rows(self, node: str, family: str) -> int:
        stored = self.net._driver(node).store.state()  # noqa: SLF001 - what a restart would find
        return sum(1 for (kind, name, _), _ in stored if kind == MOM and name[:1] == family.encode())

    def sleep(self, node: str, seconds: float) -> None:
        """Turn all nodes off for this time; then start one again."""
        for each in ("m", "r"):
            self.net.kill(each)
        self.net.advance(seconds)
        self.net.restart(node)
        self.net.advance(5)

    def send(self, messages: int) -> None:
        for number in range(messages):
            self.net.publish("m", self.queue, f"{number}".encode())
        self.net.advance(5)


@contextmanager
def scene(**options: object) -> Iterator[Scene]:
    with testing.network("m", "r", seed=1) as net:
        yield Scene(net, **options)


def requests(numbers: Sequence[int], life: int = 1, selector: str = "", deadline_us: int = 2**53) -> list[Item]:
    return [control.Ask("jobs", life << INCARNATION_BITS | each, 10**9, deadline_us, selector) for each in numbers]


# --- looks -----------------------------------------------------------------------------------------------------------


def test_an_answer_to_a_look_that_claims_a_huge_total_costs_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    with scene() as here:
        told: list[Browsed] = []
        here.net.watch(lambda _s, _n, event: told.append(event) if isinstance(event, Browsed) else None)
        theirs = address.queue("box", NodeId("evil"))
        messaging = here.net.host("r").messaging
        session = messaging.execute(OpenSession(messaging.execute(Connect(), here.now)), here.now)
        looked = 0
        find = RemoteBrowses._descriptor  # noqa: SLF001 - every place of the answer that is looked at

        def counted(browsings: RemoteBrowses, look: RemoteBrowse, place: int) -> Descriptor | None:
            nonlocal looked
            looked += 1
            return find(browsings, look, place)

        monkeypatch.setattr(RemoteBrowses, "_descriptor", counted)
        number = messaging.execute(Browse(session, theirs, None), here.now).number
        here.say("r", control.Snapshot("box", number, here.now, 0, 2**53, (b"x:1:1",)))
        here.say("r", control.Snapshot("box", number, here.now, 2**52, 2**53, (b"x:1:1",) * 50))
        here.net.advance(30)
        assert [each.complete for each in told] == [True], "it was given up"
        assert looked <= 2 * control.SNAPSHOT_MAX


def test_four_hundred_looks_at_once_are_answered_one_by_one_and_not_all() -> None:
    with scene() as here:
        here.send(300)
        before = len(here.published)
        here.say("m", *(control.Browse("jobs", number) for number in range(1, 401)), apart_s=0)
        here.net.advance(0.5)
        assert sum(here.published[before:]) < 60_000
        assert here.refused("m", "looks") >= 400 - control.BROWSES_MAX - 5
        messaging = here.net.host("r").messaging
        told: list[Browsed] = []
        here.net.watch(lambda _s, _n, event: told.append(event) if isinstance(event, Browsed) else None)
        session = messaging.execute(OpenSession(messaging.execute(Connect(), here.now)), here.now)
        messaging.execute(Browse(session, here.queue, None), here.now)
        here.net.advance(3)
        assert sum(len(each.descriptors) for each in told) == 300, "somebody else is answered meanwhile"


def test_looks_of_one_honest_node_are_all_answered_soon() -> None:
    with scene() as here:
        here.send(50)
        told: list[Browsed] = []
        here.net.watch(lambda _s, _n, event: told.append(event) if isinstance(event, Browsed) else None)
        messaging = here.net.host("r").messaging
        session = messaging.execute(OpenSession(messaging.execute(Connect(), here.now)), here.now)
        for number in range(control.BROWSES_MAX):
            messaging.execute(Browse(session, here.queue, None if number % 2 else "k = 1"), here.now)
        here.net.advance(10)
        assert sum(each.complete for each in told) == control.BROWSES_MAX
        assert sum(len(each.descriptors) for each in told) == control.BROWSES_MAX // 2 * 50
        assert here.refused("m", "looks") == 0


# --- requests --------------------------------------------------------------------------------------------------------


@pytest.mark.soak
@pytest.mark.parametrize("prefetch", [100, 1_000_000])
def test_a_node_that_asks_for_all_in_many_requests_leaves_others_their_part(prefetch: int) -> None:
    with scene() as here:
        here.say("m", *requests(range(1, 151)), *requests(range(151, 155), selector="k IS NULL"))
        reader = Program(here.net, "r", here.queue, prefetch=prefetch)
        here.net.advance(5)
        here.send(1_000)
        here.net.advance(60)
        assert len(reader.got) >= 500
        assert here.assigned["evil"] <= 500


def test_one_receiver_alone_gets_as_much_as_it_asks_for_up_to_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("carrypost.messaging.queues.queue.HELD_MAX", 300)
    with scene() as here:
        reader = Program(here.net, "r", here.queue, acknowledges=False)
        here.net.advance(2)
        here.send(400)
        assert len(reader.got) == 300
        reader.acknowledge(*reader.numbers[:50])
        here.net.advance(5)
        assert len(reader.got) == 350, "what it acknowledged makes room, without a new request"


def test_whoever_is_left_alone_gets_what_was_kept_for_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("carrypost.messaging.queues.queue.HELD_MIN", 10)
    with scene() as here:
        idle = Program(here.net, "m", here.queue, prefetch=0)
        reader = Program(here.net, "r", here.queue, acknowledges=False)
        here.net.advance(2)
        here.send(40)
        assert len(reader.got) == 20
        idle.close()
        here.net.advance(2)
        assert len(reader.got) == 40


def test_a_request_stands_no_longer_than_a_day_and_what_was_withdrawn_is_forgotten_by_then() -> None:
    with scene() as here:
        here.say("m", *requests([1]), control.Withdraw("jobs", 1 << INCARNATION_BITS | 9))
        assert here.rows("m", "R") == 2
        here.sleep("m", 86_400 + 600 + 10)
        assert here.rows("m", "R") == 0


def test_a_node_that_opens_and_closes_consumers_all_day_is_never_shut_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("carrypost.messaging.control.REQUESTS_NODE_MAX", 20)
    with scene() as here:
        for _ in range(30):
            Program(here.net, "r", here.queue, prefetch=1).close()
            here.net.advance(0.05)
        reader = Program(here.net, "r", here.queue)
        here.send(3)
        assert len(reader.got) == 3
        assert here.refused("m", "requests") == 0


def test_twenty_keys_that_withdraw_what_they_never_asked_for_shut_nobody_out() -> None:
    with scene() as here:
        for author in range(20):
            lost = [control.Withdraw("jobs", 1 << INCARNATION_BITS | number) for number in range(1, 257)]
            here.say("m", *lost, author=f"evil{author}")
        assert here.rows("m", "R") <= control.REQUESTS_MAX
        reader = Program(here.net, "r", here.queue)
        here.net.advance(5)
        here.send(20)
        assert len(reader.got) == 20


def likes(terms: int) -> str:
    return " OR ".join(f"x LIKE '%{10 + each % 90}%'" for each in range(terms))


def test_eight_keys_with_the_dearest_selectors_shut_nobody_out() -> None:
    with scene() as here:
        for author in range(8):
            for number in range(1, 6):
                here.say("m", *requests([number], selector=likes(150)), author=f"evil{author}")
            for terms in (20, 5):
                here.say("m", *requests(range(50 - terms, 61 - terms), selector=likes(terms)), author=f"evil{author}")
        assert here.refused("m", "selector") >= 8, "each of them has as many as it may"
        reader = Program(here.net, "r", here.queue, f"{likes(50)} OR x IS NULL")
        here.net.advance(5)
        here.send(5)
        assert len(reader.got) == 5


def test_what_a_node_says_on_its_own_account_is_paid_for() -> None:
    accounts, now = control.Accounts(), US
    whole = round(control.UNITS_PER_S * control.SAVED_S)
    assert not accounts.pay(NodeId("a"), whole + 1, now)
    assert accounts.pay(NodeId("a"), whole, now)
    assert not accounts.pay(NodeId("a"), 1, now)
    assert accounts.pay(NodeId("b"), 1, now)
    assert accounts.pay(NodeId("a"), control.UNITS_PER_S, now + US)
    for number in range(3 * control.ACCOUNTS_MAX):
        assert accounts.pay(NodeId(str(number)), 1, now + US)
    assert not accounts.pay(NodeId("a"), control.UNITS_PER_S, now + US), "one that owes is remembered"
    assert len(accounts) <= control.ACCOUNTS_MAX


def test_an_honest_burst_of_answers_is_never_refused() -> None:
    """A carrier brings all acknowledgements of a long separation at once, and requests with them."""
    with scene() as here:
        reader = Program(here.net, "r", here.queue, acknowledges=False, prefetch=600)
        here.net.advance(2)
        here.send(600)
        assert len(reader.got) == 600
        here.net.unlink("m", "r")
        for some in pages(reader.numbers, 10):
            reader.acknowledge(*some)
            reader.messaging.execute(Credit(reader.consumer, 10, 1_000), reader.now)
            here.net.advance(0.2)
        here.net.link("m", "r")
        here.net.advance(30)
        assert here.net.host("m").messaging.overview().entries == 0  # type: ignore[union-attr]
        assert not {"requests", "control", "assignee", "receiver"} & set(here.net.host("m").overview().refused)


# --- assignments -----------------------------------------------------------------------------------------------------


def test_what_nobody_asked_for_is_not_assigned() -> None:
    with scene() as here:
        rows = here.rows("r", "A")
        receiver = here.net.host("r").messaging._messaging.queues.receiver  # type: ignore[union-attr] # noqa: SLF001
        for first in range(0, 400, AT_ONCE):
            here.say("r", *(control.Assign("jobs", b"x:1:%d" % n, n, 1) for n in range(first, first + AT_ONCE)))
        here.say("r", control.Assign("box", b"x:1:1", 0, 1), author="other")
        assert here.refused("r", "assignment") == 401
        assert here.rows("r", "A") == rows
        assert not receiver._interests, "it wants nothing for them, either"  # noqa: SLF001


def test_a_manager_that_was_asked_assigns_so_many_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("carrypost.messaging.queues.receiver.ASSIGNED_MAX", 150)
    with scene() as here:
        theirs = address.queue("box", NodeId("evil"))
        reader = Program(here.net, "r", theirs)
        number = 1 << INCARNATION_BITS | 1
        here.say("r", *(control.Assign("box", b"x:1:%d" % n, number, 1) for n in range(200)))
        assert here.rows("r", "A") == 150
        assert here.refused("r", "assignment") == 50
        reader.close()
        here.net.advance(5)
        here.say("r", *(control.Assign("box", b"y:1:%d" % n, number, 1) for n in range(200)))
        assert here.rows("r", "A") <= 150, "what was given back makes room, and is given back"


def test_a_manager_says_nothing_about_the_requests_that_others_were_made() -> None:
    with scene() as here:
        Program(here.net, "r", address.queue("box", NodeId("evil")), prefetch=0)
        reader = Program(here.net, "r", here.queue, prefetch=1, acknowledges=False)
        here.say(
            "r", *(control.Assign("box", b"x:1:%d" % n, 1 << INCARNATION_BITS | 2, 1, lease_us=1) for n in range(5))
        )
        assert here.refused("r", "assignment") == 5
        here.send(3)
        assert len(reader.got) == 1, "its credit is what its program gave it"


@pytest.mark.parametrize("closed", [False, True])
def test_what_was_assigned_to_an_earlier_life_is_taken_whichever_request_it_was(closed: bool) -> None:
    with scene() as here:
        reader = Program(here.net, "r", here.queue, prefetch=1)
        here.net.advance(5)
        here.net.unlink("m", "r")
        here.net.publish("m", here.queue, b"one")
        here.net.advance(5)
        assert here.assigned["r"] == 1
        if closed:
            reader.close()
        here.net.kill("r")
        here.net.restart("r")
        here.net.advance(5)
        here.net.link("m", "r")
        here.net.advance(10)
        other = Program(here.net, "m", here.queue)
        here.net.advance(90)
        assert other.texts == ["one"], "nobody asked for it there, so it was given back"
        assert here.refused("r", "assignment") == 0


def test_asked_queues_are_forgotten_after_a_month_and_when_there_are_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("carrypost.messaging.queues.received_assignments.ASKED_MAX", 3)
    with scene() as here:
        for name in "abcde":
            Program(here.net, "r", address.queue(name, NodeId("evil")), prefetch=1).close()
        here.net.advance(5)
        assert here.rows("r", "M") == 3
        here.say("r", control.Assign("a", b"x:1:1", 1 << INCARNATION_BITS | 1, 1))
        assert here.refused("r", "assignment") == 1
        here.sleep("r", 31 * 86_400)
        assert here.rows("r", "M") == 0


# --- receivers -------------------------------------------------------------------------------------------------------


def test_nodes_that_a_queue_names_find_room_whatever_strangers_ask_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("carrypost.messaging.control.REQUESTS_MAX", 30)
    with scene(receivers=(NodeId("r"),)) as here:
        declare(here.net, "m", "open")
        for author in range(40):
            here.say("m", control.Ask("open", 1, 1, 2**53), *requests([1]), author=f"evil{author}", apart_s=0)
        here.net.advance(5)
        assert here.refused("m", "requests") == 10
        assert here.refused("m", "receiver") == 40
        reader = Program(here.net, "r", here.queue)
        here.net.advance(5)
        here.send(5)
        assert len(reader.got) == 5
        assert set(here.assigned) == {"r"}
