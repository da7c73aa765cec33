"""Queues that other nodes manage: chosen by receive counts, asked, accepted and declined."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import msgspec
import pytest
from tests.support.jms_encoded import EncodedNetwork
from tests.support.jms_scenes import SOON_S, got, scene
from tests.support.named_node import NamedNode

from carrypost import (
    ConfigError,
    Context,
    DeliveryTimeoutException,
    IllegalArgumentException,
    JMSException,
    Queue,
    ResourceAllocationException,
    here,
    most_receiving,
    testing,
)
from carrypost.messaging import control
from carrypost.messaging.commands import AskToManage, Declare, PlaceAnswered
from carrypost.messaging.control import Tally
from carrypost.messaging.directory import Advert, encode_advert
from carrypost.model import address
from carrypost.model.headers import CONTROL_BYTES_MAX, Headers
from carrypost.model.ids import NodeId
from carrypost.naming import InitialContext

ADVERT_S = 30.0
MANAGE = {"manage": True, "advert_s": ADVERT_S}
Counts = Mapping[NodeId, int]


@pytest.fixture(params=["direct", "encoded"])
def _ways(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Once more with everything encoded that programs and node say to each other."""
    if request.param == "encoded":
        monkeypatch.setattr(testing, "Network", EncodedNetwork)


async def consume(context: Context, queue: Queue, count: int) -> None:
    async with context.create_consumer(queue) as inbox:
        for number in range(count):
            await context.send(queue, f"{number}")
            await got(inbox)


def queues_of(net: testing.Network, name: str) -> int:
    found = net.host(name).messaging.overview()
    return 0 if found is None else found.queues


def refused(net: testing.Network, name: str) -> int:
    return net.host(name).overview().refused.get("placement", 0)


# --- where a queue goes ----------------------------------------------------------------------------------------


@pytest.mark.usefixtures("_ways")
@scene("asker", "manager", "busy", "idle", messaging=MANAGE)
async def test_a_queue_is_placed_on_its_busiest_receiver(net: testing.Network) -> None:
    async with net.context("asker") as asker, net.context("manager") as manager, net.context("busy") as busy:
        orders = await manager.declare_queue("orders")
        await consume(busy, orders, 5)
        await consume(asker, orders, 2)
        await consume(manager, orders, 1)
        await net.run(ADVERT_S)
        seen: list[Counts] = []

        def note(counts: Counts, node: NodeId) -> NodeId:
            seen.append(dict(counts))
            return most_receiving(counts, node)

        placed = await asker.declare_queue("orders", placement=note)
        assert (placed, seen) == (Queue("orders@busy"), [{"busy": 5, "asker": 2, "manager": 1}])
        await asker.send(placed, "to its new place")
        assert (await got(await busy.create_consumer(placed))).get_body(str) == "to its new place"
        await net.run(SOON_S)
        assert await InitialContext(asker).list() == ["orders@busy", "orders@manager"], "the accepting manager's id"


@scene("asker", "first", "second", messaging=MANAGE)
async def test_a_node_that_declines_is_left_out_of_the_next_choice(net: testing.Network) -> None:
    net.add("proud", messaging={"manage": ["mine/.*"], "advert_s": ADVERT_S})
    net.link("asker", "proud")
    async with net.context("asker") as asker, net.context("first") as first, net.context("proud") as proud:
        jobs = await asker.declare_queue("jobs")
        await net.run(SOON_S)
        await consume(proud, jobs, 3)
        await consume(first, jobs, 2)
        await net.run(SOON_S)
        assert await asker.declare_queue("jobs", placement=most_receiving) == Queue("jobs@first")
        assert [queues_of(net, name) for name in ("asker", "first", "second", "proud")] == [1, 1, 0, 0]


@pytest.mark.usefixtures("_ways")
@scene("asker", "one", "two")
async def test_refused_by_all_says_who_and_why(net: testing.Network) -> None:
    async with net.context("asker") as asker, net.context("one") as one, net.context("two") as two:
        jobs = await asker.declare_queue("jobs")
        await net.run(SOON_S)
        await consume(one, jobs, 2)
        await consume(two, jobs, 1)
        await net.run(SOON_S)
        with pytest.raises(JMSException, match=r"'jobs'; one declined \(.*messaging.manage.*; two declined \(.*"):
            await asker.declare_queue("jobs", placement=most_receiving)
        calls: list[Counts] = []

        def stubborn(counts: Counts, _: NodeId) -> NodeId:
            calls.append(counts)
            return NodeId("one")

        with pytest.raises(JMSException, match=r"no node manages the queue 'new'; one declined") as error:
            await asker.declare_queue("new", placement=stubborn)
        assert "two" not in str(error.value)
        assert calls == [{}, {}], "it named a node that had declined"
        assert queues_of(net, "asker") == 1


@pytest.mark.usefixtures("_ways")
@scene("asker", "off", messaging=MANAGE)
async def test_a_node_that_does_not_answer_is_waited_for_as_long_as_asked_and_may_accept_later(
    net: testing.Network,
) -> None:
    net.unlink("asker", "off")

    def off(_: Counts, __: NodeId) -> NodeId:
        return NodeId("off")

    async with net.context("asker") as asker, net.context("off") as there:
        with pytest.raises(
            DeliveryTimeoutException, match=r"off did not answer in time .* queue 'jobs'.* has accepted meanwhile"
        ):
            await asker.declare_queue("jobs", placement=off, timeout=20)
        assert net.now == pytest.approx(20, abs=1)
        net.link("asker", "off")
        await net.run(SOON_S)
        assert queues_of(net, "off") == 0, "a question ends with its timeout"
        net._driver("off").disk.delay_us = 25_000_000  # noqa: SLF001 - there is no other way to make a disk slow
        with pytest.raises(DeliveryTimeoutException):
            await asker.declare_queue("jobs", placement=off, timeout=20)
        await net.run(100)
        assert queues_of(net, "off") == 1, "it accepted too late, and no program was told"
        placed = await asker.declare_queue("jobs", placement=off)
        await asker.send(placed, "x")
        assert (await got(await there.create_consumer(placed))).get_body(str) == "x"
        assert queues_of(net, "off") == 1


@scene("a", "b", "c", messaging=MANAGE)
async def test_two_that_place_the_same_name_get_one_queue_or_two_that_are_told_apart(net: testing.Network) -> None:
    def on(node: str) -> object:
        return lambda _, __: NodeId(node)

    async with net.context("a") as a, net.context("b") as b, net.context("c") as c:
        await net.run(SOON_S)
        assert await a.declare_queue("jobs", placement=on("c")) == Queue("jobs@c")  # type: ignore[arg-type]
        assert await b.declare_queue("jobs", placement=on("c")) == Queue("jobs@c")  # type: ignore[arg-type]
        assert await c.declare_queue("jobs") == Queue("jobs@c")
        assert queues_of(net, "c") == 1
        with pytest.raises(JMSException, match=r"c declined \(the queue 'jobs' exists with other options"):
            await b.declare_queue("jobs", redelivery="after_lease", placement=on("c"))  # type: ignore[arg-type]
        assert await a.declare_queue("jobs", placement=on("b")) == Queue("jobs@b")  # type: ignore[arg-type]
        await net.run(SOON_S)
        with pytest.raises(JMSException, match=r"ambiguous: use one of 'jobs@b', 'jobs@c'"):
            await a.send("queue/jobs", "x")
        await InitialContext(c).bind("tasks", "topic/tasks")
        with pytest.raises(JMSException, match=r"c declined \('tasks' is bound to 'topic/tasks' on this node"):
            await a.declare_queue("tasks", placement=on("c"))  # type: ignore[arg-type]
        assert queues_of(net, "c") == 1


@pytest.mark.usefixtures("_ways")
@scene("a", "b", messaging=MANAGE)
async def test_here_declares_as_without_a_placement_and_so_does_most_receiving_where_nothing_was_received(
    net: testing.Network,
) -> None:
    async with net.context("a") as a:
        assert await a.declare_queue("x", placement=here) == await a.declare_queue("x") == Queue("x@a")
        assert await a.declare_queue("y", placement=most_receiving) == Queue("y@a")


@scene("a", "b", messaging=MANAGE)
async def test_a_policy_may_be_any_function(net: testing.Network) -> None:
    async def waits(_: Counts, __: NodeId) -> NodeId:
        await net.run(1)
        return NodeId("b")

    def chosen(node: object, _: Counts, __: NodeId) -> NodeId:
        return node  # type: ignore[return-value]  # whatever it is

    def fails(_: Counts, __: NodeId) -> NodeId:
        raise ZeroDivisionError

    async with net.context("a") as a:
        assert await a.declare_queue("x", placement=waits) == Queue("x@b")
        with pytest.raises(ZeroDivisionError):
            await a.declare_queue("y", placement=fails)
        for wrong in (None, "", 3, "x" * 65):
            with pytest.raises(IllegalArgumentException, match=r"must return the id of a node, not "):
                await a.declare_queue("y", placement=partial(chosen, wrong))
        assert queues_of(net, "a") == 0


@scene("a", "b", security="signed", messaging=MANAGE)
async def test_where_nodes_have_keys_a_policy_returns_their_ids(net: testing.Network) -> None:
    async with net.context("a") as a, net.context("b") as b:
        with pytest.raises(IllegalArgumentException, match="not 'b'"):
            await a.declare_queue("x", placement=lambda _, __: NodeId("b"))
        assert await a.declare_queue("x", placement=lambda _, __: b.node_id) == Queue(f"x@{b.node_id}")


@scene("a", "b", "c", messaging=MANAGE)
async def test_a_placed_queue_is_as_it_was_declared(net: testing.Network) -> None:
    async with net.context("a") as a, net.context("b") as b, net.context("c") as c:
        options = {"redelivery": "after_lease", "lease_s": 5, "receivers": ["a", "b"], "policy": "first"}
        box = await a.declare_queue("box", advertise=False, placement=lambda _, __: NodeId("b"), **options)  # type: ignore[arg-type]
        assert await b.declare_queue("box", **options) == box  # type: ignore[arg-type]
        await net.run(SOON_S)
        assert await InitialContext(c).list() == []
        stranger = await c.create_consumer(box)
        await c.send(box, "x")
        assert (await got(await a.create_consumer(box))).get_body(str) == "x"
        assert await stranger.receive_no_wait() is None
        net.kill("b")
        net.restart("b")
        await net.run(SOON_S)
        assert queues_of(net, "b") == 1


PLACES: list[tuple[object, str, bool]] = [
    (False, "jobs", False),
    (True, "jobs", True),
    (["jobs", "x"], "jobs", True),
    (["jobs"], "jobs2", False),
    (["job.*"], "jobs2", True),
    ([], "jobs", False),
]


@pytest.mark.parametrize(("manage", "name", "accepted"), PLACES)
def test_the_settings_decide_what_a_node_manages_for_others(manage: object, name: str, accepted: bool) -> None:
    @scene("a", "b", messaging={"manage": manage})
    async def play(net: testing.Network) -> None:
        async with net.context("a") as a:
            try:
                assert await a.declare_queue(name, placement=lambda _, __: NodeId("b")) == Queue(f"{name}@b")
            except JMSException as error:
                assert not accepted
                assert "messaging.manage" in str(error)  # noqa: PT017 - of those that are declined
            assert queues_of(net, "b") == accepted

    play()


def test_a_pattern_that_is_none_is_an_error_of_the_settings() -> None:
    with pytest.raises(ConfigError, match=r"messaging\.manage: the pattern '\('"):
        NamedNode(manage=["("])


# --- counts ----------------------------------------------------------------------------------------------------


@scene("a", "b", messaging=MANAGE)
async def test_counts_outlive_the_manager_as_far_as_they_were_advertised(net: testing.Network) -> None:
    async with net.context("a") as a, net.context("b") as b:
        jobs = await a.declare_queue("jobs")
        await net.run(SOON_S)
        await consume(b, jobs, 3)
        await net.run(ADVERT_S)
    net.kill("a")
    net.restart("a")
    async with net.context("a") as a, net.context("b") as b:
        await consume(b, jobs, 1)
        await net.run(SOON_S)
        seen: list[Counts] = []

        def note(counts: Counts, node: NodeId) -> NodeId:
            seen.append(counts)
            return node

        await a.declare_queue("jobs", placement=note)
        assert seen == [{"b": 4}]


def test_a_tally_keeps_those_that_consume_most_whatever_number_of_keys_there_are() -> None:
    counts = Tally()
    for number in range(1_000):
        counts.add(NodeId(f"stranger {number}"))
        if number % 4 == 0:
            counts.add(NodeId("busy"))
    told = dict(counts.most())
    assert len(told) == control.COUNTS_TOLD_MAX
    assert next(iter(told)) == "busy"
    assert told[NodeId("busy")] >= 250
    counts.restore([(NodeId("busy"), 1_000)])
    assert counts.most()[0] == ("busy", 1_000)


def test_counts_are_told_as_far_as_there_is_room_and_not_at_all_where_there_are_none() -> None:
    receivers = tuple(NodeId(f"{number:060}") for number in range(64))
    many = tuple((NodeId(f"{number:0256}"), 1) for number in range(control.COUNTS_TOLD_MAX))
    encoded = encode_advert(Advert("queue/a/b", receivers=receivers, counts=many))
    assert len(encoded) <= CONTROL_BYTES_MAX
    said = msgspec.msgpack.decode(encoded, type=Advert)
    assert 0 < len(said.counts) < control.COUNTS_TOLD_MAX
    assert said.counts == many[: len(said.counts)]
    assert len(msgspec.msgpack.decode(encode_advert(Advert("topic/x")))) == 3, "as earlier versions say it"


@pytest.mark.parametrize("counts", [[["x", -1]], [["", 1]], [["x"]], [["x", 1]] * 17, "xx", [["x" * 300, 1]]])
def test_counts_that_cannot_be_are_refused_with_their_advertisement(counts: object) -> None:
    node = NamedNode()
    said = msgspec.msgpack.encode(["queue/x/jobs", 0, None, counts])
    node.hear_of("x", "jobs", "", 1, headers=Headers(control=said))
    node.write()
    assert (node.meaning("jobs"), node.refused()["directory"]) == (None, 1)


# --- those who say what is not theirs to say -------------------------------------------------------------------


class Asked(NamedNode):
    """A node that others ask, and that asks others."""

    def __init__(self) -> None:
        super().__init__(manage=True)
        self.sequence = 0

    def say(self, author: str, *items: control.Item) -> None:
        self.sequence += 1
        said = Headers(control=msgspec.msgpack.encode(items))
        self.hear_of(author, "x", "", self.sequence, destination=address.control(self.host.node), headers=said)

    def place(self, to: str, until_s: float = 60) -> int:
        number = self.next_number()
        self.host.messaging.execute(AskToManage(Declare("jobs"), NodeId(to), round(until_s * 1e6)), self.now, number)
        self.write()
        return number

    def said(self, to: str, kind: type[control.Item]) -> list[control.Item]:
        """Return what it told a node."""
        return [each for each in self.told_control(to) if isinstance(each, kind)]

    def placed(self) -> list[PlaceAnswered]:
        return [each for each in self.events if isinstance(each, PlaceAnswered)]


def asked(node: Asked, name: str = "jobs", number: int = 1, **more: object) -> control.Place:
    return control.Place(name, number, node.now + 60_000_000, **more)  # type: ignore[arg-type]


def test_an_answer_counts_from_the_node_that_was_asked_and_once() -> None:
    node = Asked()
    number = node.place("b")
    (question,) = node.said("b", control.Place)
    assert isinstance(question, control.Place)
    node.say("mallory", control.Placed(question.number, accepted=True))
    node.say("b", control.Placed(question.number + 1, accepted=True))
    assert (node.placed(), node.refused()["placement"]) == ([], 2)
    node.say("b", control.Placed(question.number, accepted=True))
    node.say("b", control.Placed(question.number, accepted=False, reason="no"))
    assert (node.placed(), node.refused()["placement"]) == ([PlaceAnswered(number, accepted=True)], 3)


def test_an_answer_to_an_earlier_life_is_none_to_this_one() -> None:
    node = Asked()
    node.place("b")
    (question,) = node.said("b", control.Place)
    assert isinstance(question, control.Place)
    node.now += 1_000
    node.crash()
    node.place("b")
    node.say("b", control.Placed(question.number, accepted=True))
    assert node.placed() == []


def test_a_question_without_an_answer_ends_with_its_time() -> None:
    node = Asked()
    first, second = node.place("b", 10), node.place("b", 20)
    node.pass_time(15)
    assert node.placed() == [PlaceAnswered(first)]
    node.pass_time(5)
    assert node.placed() == [PlaceAnswered(first), PlaceAnswered(second)]


def test_no_more_nodes_are_asked_than_may_be_waited_for() -> None:
    node = Asked()
    for _ in range(control.PLACES_MAX):
        node.place("b", 10)
    with pytest.raises(ResourceAllocationException, match="64 nodes are being asked"):
        node.place("b", 10)
    node.pass_time(11)
    node.place("b", 10)


@pytest.mark.parametrize(
    ("node", "wanted"),
    [
        ("", Declare("jobs")),
        ("b" * 249, Declare("jobs")),
        ("b", Declare("")),
        ("b", Declare("x" * 257)),
        ("b", Declare("jobs", lease_us=-1)),
        ("b", Declare("jobs", receivers=(NodeId("x" * 256),) * 60)),
        ("b", Declare("jobs", policy="")),
    ],
)
def test_what_no_node_could_read_is_not_asked(node: str, wanted: Declare) -> None:
    asking = Asked()
    with pytest.raises(IllegalArgumentException, match="cannot be asked to manage"):
        asking.host.messaging.execute(AskToManage(wanted, NodeId(node), 60_000_000 - 0), 0, 1)
    asking.pass_time(60)
    assert asking.placed() == []


NONSENSE: dict[str, control.Place] = {
    "a reserved name": control.Place("$replies", 1, 10**9),
    "a queue of dead letters": control.Place("DLQ.x", 1, 10**9),
    "a full name": control.Place("jobs@x", 1, 10**9),
    "a name with a space": control.Place("my jobs", 1, 10**9),
    "a name that is none": control.Place("a//b", 1, 10**9),
    "a name in a context that is not there": control.Place("a/b", 1, 10**9),
    "a name that is too long": control.Place("x" * 256, 1, 10**9),
    "an unknown policy": control.Place("jobs", 1, 10**9, policy="mine"),
}


@pytest.mark.parametrize("what", NONSENSE)
def test_what_cannot_be_managed_is_declined_and_leaves_nothing(what: str) -> None:
    node = Asked()
    node.say("x", NONSENSE[what])
    node.write()
    (answer,) = node.said("x", control.Placed)
    assert isinstance(answer, control.Placed)
    assert (answer.number, answer.accepted, bool(answer.reason)) == (1, False, True)
    assert (node.queues(), node.listed(), node.rows()) == (0, [], [])


def test_a_question_that_nobody_waits_for_any_more_is_passed_over() -> None:
    node = Asked()
    node.now = 100_000_000
    node.say("x", control.Place("jobs", 1, node.now))
    node.write()
    assert (node.queues(), node.said("x", control.Placed)) == (0, [])


def test_a_node_is_answered_once_a_second_and_all_together_ten_times() -> None:
    node = Asked()
    for number in range(30):
        node.say("flood", asked(node, f"q{number}", number))
    assert node.queues() == 10
    assert node.refused()["placement"] == 20
    node.pass_time(1)
    node.say("flood", asked(node, "more"))
    assert node.queues() == 11
    node.pass_time(60)
    for number in range(150):
        node.say(f"key {number}", asked(node, f"r{number}"))
    assert node.refused()["placement"] == 70


def test_others_use_up_half_of_the_names_of_a_node_at_most() -> None:
    node = Asked()
    for number in range(control.PLACED_NAMES_MAX - 1):
        node.bind(f"own {number}", "topic/x")
    node.say("x", asked(node, "last", 1), asked(node, "more", 2), asked(node, "last", 3))
    node.write()
    answers = {
        each.number: each.accepted for each in node.said("x", control.Placed) if isinstance(each, control.Placed)
    }
    assert answers == {1: True, 2: False, 3: True}
    node.bind("own", "topic/x")


# --- disks -----------------------------------------------------------------------------------------------------


def test_an_acceptance_leaves_once_the_queue_and_its_name_are_on_disk() -> None:
    node = Asked()
    node.say("x", asked(node))
    assert node.batches
    assert node.said("x", control.Placed) == []
    node.write()
    assert [each.accepted for each in node.said("x", control.Placed) if isinstance(each, control.Placed)] == [True]
    node.crash()
    assert (node.queues(), node.meaning("jobs")) == (1, "queue/n/jobs")
    assert node.advertised() == {"jobs": "queue/n/jobs"}


def test_a_crash_before_that_leaves_nothing() -> None:
    node = Asked()
    node.say("x", asked(node))
    node.crash()
    assert (node.queues(), node.meaning("jobs")) == (0, None)
