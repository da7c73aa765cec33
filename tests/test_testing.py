"""`carrypost.testing` at the level of hosts: networks in memory and in virtual time."""

from __future__ import annotations

import asyncio
import math
import subprocess
import sys
import time
from typing import Any

import pytest
from tests.support.programs import Program

import carrypost
from carrypost import testing
from carrypost.application import publishing
from carrypost.errors import ConfigError, LocalError, ResourceAllocationException, StateError
from carrypost.gossip.holdings.cache import CopyState
from carrypost.gossip.wire.frames import Ack
from carrypost.gossip.wire.pieces import Packed, hash_of, pack, root_of
from carrypost.log.events import Confirmed, Delivered, Event, NeighbourUp, Received, Refused, Stored
from carrypost.model.descriptor import Descriptor, PayloadCodec
from carrypost.model.ids import MessageId, NodeId


def payloads(net: testing.Network, node: str) -> list[bytes]:
    return [delivery.payload for delivery in net.deliveries(node)]


def carried(net: testing.Network, payload: bytes = b"hello") -> MessageId:
    """Send a message from a over b to c, which are never all linked."""
    net.subscribe("c", "news")
    net.link("a", "b")
    message = net.publish("a", "news", payload, label="m1", attributes={"language": "English"})
    net.advance(30)
    net.unlink("a", "b")
    net.link("b", "c")
    net.advance(30)
    return message


def test_a_message_is_carried_from_host_to_host() -> None:
    with testing.network("a", "b", "c", seed=1, altruistic=True) as net:
        message = carried(net)
        assert net.deliveries("a") == net.deliveries("b") == []
        (delivery,) = net.deliveries("c")
        assert (delivery.message, delivery.payload) == (message, b"hello")
        assert delivery.descriptor.destination == "news"
        assert delivery.descriptor.attributes == {"language": "English"}
        assert delivery.descriptor.label == "m1"
        assert not delivery.redelivered
        assert 30 < delivery.time < 60 == net.now


def test_the_scene_of_the_manual_runs_in_virtual_time() -> None:
    async def scene() -> list[bytes]:
        async with testing.network("a", "b", "c", seed=1, altruistic=True) as net:
            net.subscribe("c", "news")
            net.link("a", "b")
            net.publish("a", "news", b"hello")
            await net.run(60)
            net.unlink("a", "b")
            net.kill("b")
            net.restart("b")
            net.link("b", "c")
            await net.run(60)
            assert net.now == 120 == asyncio.get_running_loop().time()
            return payloads(net, "c")

    began = time.monotonic()
    assert testing.run(scene) == [b"hello"]
    assert time.monotonic() - began < 5


def test_a_network_advances_in_step_with_the_tasks_around_it() -> None:
    async def scene() -> None:
        await asyncio.sleep(100)
        async with testing.network("a", "b") as net, testing.network("x") as other:
            net.subscribe("b", "news")
            net.link("a", "b")
            net.publish("a", "news", b"hello")
            arrived = asyncio.Event()
            times: list[float] = []

            def notice(t: float, _node: str, event: Event) -> None:
                if isinstance(event, Delivered):
                    times.append(t)
                    arrived.set()

            net.watch(notice)
            await arrived.wait()
            assert net.now == other.now == times[0] == pytest.approx(asyncio.get_running_loop().time() - 100)
            await asyncio.sleep(50)
            assert net.now == pytest.approx(times[0] + 50)
            with pytest.raises(StateError, match="`await net"):
                net.advance(1)

    testing.run(scene)


def test_under_an_ordinary_event_loop_time_passes_by_run_only() -> None:
    async def scene() -> None:
        async with testing.network("a", "b") as net:
            net.subscribe("b", "news")
            net.link("a", "b")
            net.publish("a", "news", b"hello")
            turns: list[float] = []

            async def bystander() -> None:
                while not net.deliveries("b"):
                    turns.append(net.now)
                    await asyncio.sleep(0)

            task = asyncio.create_task(bystander())
            await net.run(60)
            await task
            assert net.now == 60
            assert len(set(turns)) > 1
            net.advance(1)
            assert net.now == 61

    asyncio.run(scene())


def test_waiting_for_a_message_that_never_comes_ends_at_the_limit() -> None:
    async def scene() -> None:
        async with testing.network("a", "b"):
            await asyncio.Event().wait()

    with pytest.raises(testing.TimeLimitError, match="not finished after 50 virtual seconds"):
        testing.run(scene, limit_s=50)


def test_the_same_seed_gives_the_same_run_and_one_more_node_changes_nothing() -> None:
    def log(*names: str, seed: int = 3) -> list[tuple[float, str, str]]:
        seen: list[tuple[float, str, str]] = []
        with testing.network(*names, seed=seed, altruistic=True, loss=0.2, reorder=0.2, duplicate=0.1) as net:
            net.watch(lambda t, node, event: seen.append((t, node, repr(event))))
            carried(net, bytes(range(256)) * 100)
        return [entry for entry in seen if entry[1] in "abc"]

    first = log("a", "b", "c")
    assert first == log("a", "b", "c")
    assert first == log("a", "b", "c", "d", "e")
    assert first != log("a", "b", "c", seed=4)


@pytest.mark.parametrize("security", ["off", "signed"])
def test_frames_that_go_through_their_bytes_give_the_identical_record(security: str) -> None:
    def rows(*, encoded: bool) -> list[str]:
        record = testing.Record("one")
        with testing.network(
            "a", "b", "c", altruistic=True, loss=0.1, encoded=encoded, record=record, security=security
        ) as net:
            carried(net, b"some text " * 5_000)
            assert payloads(net, "c") == [b"some text " * 5_000]
        return list(record.json_lines())

    assert rows(encoded=False) == rows(encoded=True)


@pytest.mark.parametrize("security", ["off", "signed"])
def test_the_record_tells_the_whole_story_by_the_names_of_the_nodes(security: str) -> None:
    record = testing.Record("one")
    with testing.network("a", "b", "c", altruistic=True, record=record, security=security) as net:
        carried(net)
    rows = [row for row in record.rows() if row["kind"] in ("join", "publish", "receive", "deliver")]
    told = [(row["kind"], row["node"], row["peer"], row["message"], row["source"], row["hops"]) for row in rows]
    assert told == [
        ("join", "a", None, None, None, None),
        ("join", "b", None, None, None, None),
        ("join", "c", None, None, None, None),
        ("publish", "a", None, "m1", "a", None),
        ("receive", "b", "a", "m1", "a", 1),
        ("receive", "c", "b", "m1", "a", 2),
        ("deliver", "c", None, "m1", "a", None),
    ]
    assert {row["peer"] for row in record.rows() if row["kind"] == "up"} == {"a", "b", "c"}


def test_a_big_payload_survives_a_bad_link() -> None:
    payload = bytes(n * n % 251 for n in range(100_000))
    with testing.network("a", "b", loss=0.2, duplicate=0.1, reorder=0.2) as net:
        net.subscribe("b", "news")
        net.publish("a", "news", payload)
        net.link("a", "b")
        net.advance(120)
        assert payloads(net, "b") == [payload]
        assert net.traffic("a", "b").lost > 0


def test_blank_payloads_are_counted_and_never_made() -> None:
    with testing.network("a", "b") as net:
        net.subscribe("b", "news")
        net.publish("a", "news", testing.Blank(50_000))
        net.link("a", "b")
        net.advance(60)
        (delivery,) = net.deliveries("b")
        assert delivery.descriptor.size == 50_000
        assert delivery.payload == bytes(50_000)
        assert net.sent("a").frame_bytes["Data"] > 50_000


def test_an_empty_payload_is_delivered_empty() -> None:
    with testing.network("a", "b") as net:
        net.subscribe("b", "news")
        net.publish("a", "news")
        net.link("a", "b")
        net.advance(60)
        assert payloads(net, "b") == [b""]


def test_a_restarted_node_has_its_messages_and_subscriptions_again() -> None:
    with testing.network("a", "b", "c", altruistic=True) as net:
        net.subscribe("b", "news")
        net.link("a", "b")
        net.publish("a", "news", b"one")
        net.advance(30)
        net.kill("b")
        net.publish("a", "news", b"two")
        net.advance(30)
        assert payloads(net, "b") == [b"one"]
        net.restart("b")
        net.advance(30)
        assert payloads(net, "b") == [b"one", b"two"]
        net.unlink("a", "b")
        net.subscribe("c", "news")
        net.link("b", "c")
        net.advance(60)
        assert sorted(payloads(net, "c")) == [b"one", b"two"]


def test_an_ended_subscription_is_not_made_again() -> None:
    with testing.network("a", "b") as net:
        first = net.subscribe("b", "news")
        net.subscribe("b", "sport")
        net.kill("b")
        net.restart("b")
        net.unsubscribe("b", first)
        with pytest.raises(LocalError, match="no subscription"):
            net.unsubscribe("b", first)
        net.kill("b")
        net.restart("b")
        net.publish("a", "news", b"unwanted")
        net.publish("a", "sport", b"wanted")
        net.link("a", "b")
        net.advance(60)
        assert payloads(net, "b") == [b"wanted"]


def test_an_unconfirmed_delivery_comes_again_after_a_crash_and_a_confirmed_one_does_not() -> None:
    with testing.network("a", "b", confirm=False) as net:
        net.subscribe("b", "news")
        net.link("a", "b")
        first = net.publish("a", "news", b"one")
        second = net.publish("a", "news", b"two")
        net.advance(30)
        net.confirm("b", [first])
        net.kill("b")
        net.restart("b")
        net.advance(30)
        again = net.deliveries("b")[2:]
        assert [(delivery.message, delivery.redelivered, delivery.payload) for delivery in again] == [
            (second, True, b"two")
        ]


def test_a_crash_loses_what_was_not_durable_yet() -> None:
    with testing.network("a", "b", disk_delay_s=1.0) as net:
        net.subscribe("b", "news")
        net.advance(5)
        net.publish("a", "news", b"durable", persistent=True)
        net.advance(2)
        net.publish("a", "news", b"too late", persistent=True)
        net.advance(0.5)
        net.kill("a")
        net.advance(5)
        net.restart("a")
        net.link("a", "b")
        net.advance(60)
        assert payloads(net, "b") == [b"durable"]


def test_a_persistent_send_is_complete_once_the_disk_has_answered() -> None:
    seen: list[float] = []
    with testing.network("a", disk_delay_s=0.25) as net:
        net.watch(lambda t, _node, event: seen.append(t) if isinstance(event, Stored) else None)
        net.advance(10)
        net.publish("a", "news", b"x", persistent=True)
        net.advance(10)
    assert seen == [10.25]


def test_a_full_disk_fails_the_send_and_nothing_else() -> None:
    with testing.network("a", "b") as net:
        net.subscribe("b", "news")
        net.publish("a", "news", b"before", persistent=True)
        net.fill_disk("a")
        with pytest.raises(ResourceAllocationException, match="the disk is full: it takes 0 bytes of messages, not 8"):
            net.publish("a", "news", b"too much", persistent=True)
        net.fill_disk("a", full=False)
        net.publish("a", "news", b"after", persistent=True)
        net.link("a", "b")
        net.advance(60)
        assert sorted(payloads(net, "b")) == [b"after", b"before"]


def test_a_suspended_node_stands_still_and_goes_on_where_it_was() -> None:
    with testing.network("a", "b") as net:
        net.subscribe("b", "news")
        net.link("a", "b")
        net.advance(10)
        net.suspend("b")
        net.publish("a", "news", b"hello")
        sent = net.sent("b").datagrams
        net.advance(60)
        assert (net.sent("b").datagrams, payloads(net, "b")) == (sent, [])
        with pytest.raises(StateError, match="'b' is suspended: resume it first"):
            net.publish("b", "news")
        net.resume("b")
        net.advance(30)
        assert payloads(net, "b") == [b"hello"]


def test_a_one_way_link_carries_no_message() -> None:
    with testing.network("a", "b") as net:
        net.subscribe("b", "news")
        net.publish("a", "news", b"hello")
        net.link("a", "b", one_way=True)
        net.advance(60)
        assert payloads(net, "b") == []
        net.link("b", "a", one_way=True)
        net.advance(60)
        assert payloads(net, "b") == [b"hello"]


def test_links_may_have_models_of_their_own() -> None:
    with testing.network("a", "b", "c", loss=1.0) as net:
        for node in "bc":
            net.subscribe(node, "news")
        net.publish("a", "news", b"hello")
        net.link("a", "b")
        net.link("a", "c", loss=0.0, delay_s=0.5)
        net.advance(60)
        assert (payloads(net, "b"), payloads(net, "c")) == ([], [b"hello"])


def test_a_node_may_differ_from_the_others_and_come_later() -> None:
    with testing.network("a", "c") as net:
        net.advance(10)
        net.add("b", altruistic=True)
        carried(net)
        assert payloads(net, "c") == [b"hello"]


def test_an_application_may_publish_inside_a_delivery() -> None:
    with testing.network("a", "b") as net:
        net.subscribe("a", "answers")
        net.subscribe("b", "questions")

        def answer(_t: float, node: str, event: Event) -> None:
            if node == "b" and isinstance(event, Delivered):
                net.publish("b", "answers", b"yes")

        net.watch(answer)
        net.link("a", "b")
        net.publish("a", "questions", b"is it?")
        net.advance(60)
        assert payloads(net, "a") == [b"yes"]


def test_an_application_may_crash_its_node_inside_a_delivery() -> None:
    with testing.network("a", "b") as net:
        net.subscribe("b", "news")

        def crash(_t: float, node: str, event: Event) -> None:
            if isinstance(event, Delivered) and len(net.deliveries(node)) == 1:
                net.kill(node)
                net.restart(node)

        net.watch(crash)
        net.link("a", "b")
        net.publish("a", "news", b"hello")
        net.advance(60)
        assert [delivery.redelivered for delivery in net.deliveries("b")] == [False, True]


def test_traffic_is_counted_by_kind() -> None:
    with testing.network("a", "b") as net:
        net.link("a", "b")
        net.advance(60)
        traffic = net.traffic("a", "b")
        assert traffic.frames["Announce"] >= 12
        assert traffic.bytes > traffic.frame_bytes["Announce"] > 0


def test_nonsense_from_a_stranger_harms_nobody() -> None:
    with testing.network("a", "b") as net:
        net.inject("a", [Ack(5, b"\xff" * 10)], "a stranger")
        net.subscribe("b", "news")
        net.link("a", "b")
        net.publish("a", "news", b"hello")
        net.advance(60)
        assert payloads(net, "b") == [b"hello"]


def test_signed_networks_have_keys_from_the_seed_and_are_seen_by_name() -> None:
    def ids() -> set[NodeId]:
        seen: set[NodeId] = set()

        def notice(_t: float, _node: str, event: Event) -> None:
            if isinstance(event, NeighbourUp):
                seen.add(event.node)

        with testing.network("a", "b", security="signed", seed=7) as net:
            net.watch(notice)
            net.link("a", "b")
            net.advance(30)
            assert {net.name(node) for node in seen} == {"a", "b"}
        return seen

    assert ids() == ids() != {"a", "b"}


def test_unknown_nodes_are_named_with_the_nearest_right_one() -> None:
    with testing.network("alan", "berta") as net:
        with pytest.raises(LocalError, match="no node 'alen' in this network; did you mean 'alan'"):
            net.link("alen", "berta")
        with pytest.raises(LocalError, match="no node 'x' in this network; there are alan, berta"):
            net.deliveries("x")


def test_what_cannot_be_is_refused() -> None:
    with testing.network("a", "b") as net:
        net.link("a", "b")
        with pytest.raises(StateError, match="linked already"):
            net.link("b", "a")
        with pytest.raises(LocalError, match="to itself"):
            net.link("a", "a")
        with pytest.raises(StateError, match="'a' is running already"):
            net.restart("a")
        net.kill("a")
        for act in (net.kill, net.host, lambda node: net.publish(node, "news")):
            with pytest.raises(StateError, match="'a' is down"):
                act("a")
        with pytest.raises(LocalError, match="a node 'b' already"):
            net.add("b")
        with pytest.raises(LocalError, match="0 s or more"):
            net.advance(-1)
    with pytest.raises(LocalError, match="a node 'a' already"):
        testing.network("a", "a")
    with pytest.raises(ConfigError, match="altruistic"):
        testing.network("a", altruistik=True)


def test_a_network_is_used_while_it_is_open_and_may_be_read_afterwards() -> None:
    net = testing.network("a", "b", "c", altruistic=True)
    with pytest.raises(StateError, match="not open yet: use it in a `with` statement"):
        net.link("a", "b")
    with net:
        carried(net)
    assert payloads(net, "c") == [b"hello"]
    assert net.now == 60
    assert net.traffic("a", "b").datagrams
    for act in (lambda: net.advance(1), lambda: net.publish("a", "news"), lambda: net.unlink("b", "c")):
        with pytest.raises(StateError, match="this network is closed"):
            act()


def test_neither_numpy_nor_pyarrow_is_needed() -> None:
    program = (
        "import sys; sys.modules.update(dict.fromkeys(('numpy', 'pyarrow', 'pandas', 'pyspark')));"
        "from carrypost import testing;"
        "net = testing.network('a', 'b').__enter__(); net.link('a', 'b'); net.advance(10)"
    )
    subprocess.run([sys.executable, "-c", program], check=True)  # noqa: S603 (our own text)


def test_a_payload_that_cannot_be_read_is_neither_delivered_nor_confirmed(monkeypatch: pytest.MonkeyPatch) -> None:
    bad = b"x" * 50
    packed = Packed(PayloadCodec.ZSTD, 100, 50, (bad,), hash_of(bad), root_of(hash_of(bad)))
    monkeypatch.setattr(publishing, "pack", lambda payload, **how: packed if payload == b"q" else pack(payload, **how))
    record = testing.Record("one")
    told: list[Event] = []
    with testing.network("a", "b", security="signed", record=record) as net:
        net.watch(lambda _t, node, event: told.append(event) if node == "b" else None)
        net.subscribe("b", "news")
        net.publish("a", "news", b"q", label="bad")
        fine = net.publish("a", "news", b"fine", label="fine")
        net.link("a", "b")
        net.advance(30)
        assert payloads(net, "b") == [b"fine"]
    delivered = [each.message for event in told if isinstance(event, Delivered) for each in event.deliveries]
    confirmed = [message for event in told if isinstance(event, Confirmed) for message in event.messages]
    assert delivered == confirmed == [fine]
    rows = [(row["kind"], row["message"]) for row in record.rows() if row["node"] == "b"]
    assert ("deliver", "fine") in rows
    assert ("deliver", "bad") not in rows
    assert [event.reason for event in told if isinstance(event, testing.Dropped)] == ["unreadable"]
    assert any(isinstance(event, Refused) and event.message == "bad" for event in told)


def receptions(record: testing.Record) -> list[tuple[str | None, str | None]]:
    return [(row["message"], row["detail"]) for row in record.rows() if row["kind"] == "receive"]


def test_messages_with_one_label_are_different_messages_to_the_record() -> None:
    record = testing.Record()
    with testing.network("a", "b", record=record) as net:
        net.subscribe("b", "news")
        net.link("a", "b")
        for payload in (b"one", b"two"):
            net.publish("a", "news", payload, label="m")
            net.advance(10)
    assert receptions(record) == [("m", None), ("m", None)]


@pytest.mark.parametrize(("pause_s", "details"), [(0.5, [None, "again"]), (2.0, [None])])
def test_what_a_crash_lost_is_received_again_and_marked_so(pause_s: float, details: list[str | None]) -> None:
    record = testing.Record()
    with testing.network("a", "b", disk_delay_s=1.0, record=record) as net:

        def killed(t: float, node: str, event: Event) -> None:
            if node == "b" and isinstance(event, Received) and not times:
                times.append(t)

        times: list[float] = []
        net.watch(killed)
        net.subscribe("b", "news")
        net.link("a", "b")
        net.advance(10)
        net.publish("a", "news", b"hello")
        while not times:
            net.advance(0.01)
        net.advance(pause_s)
        net.kill("b")
        net.restart("b")
        net.advance(60)
        assert payloads(net, "b")[0] == b"hello"
    assert [detail for _, detail in receptions(record)] == details


def test_the_first_row_tells_how_the_run_was_made() -> None:
    record = testing.Record("mine")
    limits = {"neighbours_max": 7}
    with testing.network(
        "a", seed=5, altruistic=True, limits=limits, loss=0.25, disk_delay_s=0.5, confirm=False, record=record
    ):
        pass
    first = next(iter(record.rows()))
    assert (first["run"], first["t"], first["kind"]) == ("mine", 0.0, "run")
    assert first["attrs"] == {
        "seed": "5",
        "version": carrypost.__version__,
        "altruistic": "true",
        "limits.neighbours_max": "7",
        "loss": "0.25",
        "disk_delay_s": "0.5",
        "confirm": "false",
    }
    assert [row["kind"] for row in record.rows()].count("run") == 1


def test_a_delivery_is_shown_without_its_payload() -> None:
    with testing.network("a") as net:
        net.subscribe("a", "news")
        net.publish("a", "news", b"secret" * 9)
        (delivery,) = net.deliveries("a")
    assert repr(delivery) == "Delivery(message=a:1:1, destination='news', size=54, redelivered=False, time=0.0)"


def test_the_application_may_say_which_messages_matter_more() -> None:
    def kept(net: testing.Network, node: str) -> list[str]:
        for label in ("first", "second", "third"):
            net.publish(node, "news", b"x", label=label)
            net.advance(1)
        net.link(node, "b")
        net.advance(30)
        return sorted(delivery.descriptor.label for delivery in net.deliveries("b"))

    def first_matters(descriptor: Descriptor) -> int:
        return 9 if descriptor.label == "first" else 1

    with testing.network("b") as net:
        net.subscribe("b", "news")
        net.add("a", cache_messages_max=2)
        assert kept(net, "a") == ["second", "third"]
    with testing.network("b") as net:
        net.subscribe("b", "news")
        net.add("a", privilege=first_matters, cache_messages_max=2)
        assert kept(net, "a") == ["first", "third"]
    with testing.network("b", privilege=first_matters) as net:
        net.subscribe("b", "news")
        net.add("a", cache_messages_max=2)
        assert kept(net, "a") == ["first", "third"]


def test_deliveries_are_confirmed_by_themselves_or_by_their_ids_and_by_nothing_else() -> None:
    with testing.network("bob", confirm=False) as net:
        net.subscribe("bob", "news")
        message = net.publish("bob", "news", b"x")
        mistakes: list[Any] = ["xyz", message, 3, ["xyz"], net.deliveries("bob")[0]]
        for mistake in mistakes:
            with pytest.raises(LocalError, match="confirm requires a list of message ids"):
                net.confirm("bob", mistake)
        net.confirm("bob", net.deliveries("bob"))
        net.kill("bob")
        net.restart("bob")
        assert len(net.deliveries("bob")) == 1


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"record": 5}, r"record takes a carrypost\.testing\.Record or the path of a file, not 5"),
    ({"contacts": "c.csv"}, r"c\.csv: there is no such file"),
    ({"duration_s": 5}, r"duration_s is an argument of `carrypost\.emu\.run`"),
    ({"seed": None}, "seed must be a whole number or text, not None"),
    ({"confirm": "no"}, "confirm must be True or False, not 'no'"),
    ({"encoded": 1}, "encoded must be True or False, not 1"),
    ({"privilege": 3}, "privilege must be a function, not 3"),
    ({"delay_s": "1"}, "delay_s must be a number of seconds, 0 s or more, not '1'"),
    ({"disk_delay_s": -1}, "disk_delay_s must be a number of seconds, 0 s or more, not -1"),
    ({"loss": "some"}, "loss must be a probability, from 0 to 1, not 'some'"),
    ({"loss": math.nan}, "loss must be a probability"),
    ({"rate_bytes_per_s": 1.5}, "rate_bytes_per_s must be a whole number, at least 1, or None, not 1.5"),
]


@pytest.mark.parametrize(("keywords", "text"), WRONG)
def test_a_network_says_what_is_wrong_with_its_options(keywords: dict[str, Any], text: str) -> None:
    with pytest.raises(LocalError, match=text):
        testing.network("a", **keywords)


@pytest.mark.parametrize("name", [3, "", None, b"a"])
def test_a_node_has_a_name_of_text(name: Any) -> None:  # noqa: ANN401 (wrong on purpose)
    with pytest.raises(LocalError, match="the name of a node must be text"):
        testing.network(name)
    with testing.network("a") as net, pytest.raises(LocalError, match="the name of a node must be text"):
        net.kill(name)


@pytest.mark.parametrize("seconds", ["3", -1, math.nan, math.inf, None, True])
def test_time_passes_by_seconds(seconds: Any) -> None:  # noqa: ANN401 (wrong on purpose)
    with testing.network("a") as net:
        with pytest.raises(LocalError, match="must be a number of seconds, 0 s or more, not "):
            net.advance(seconds)
        if seconds is not None:
            with pytest.raises(LocalError, match="lifetime_s must be a number of seconds"):
                net.publish("a", "news", lifetime_s=seconds)
        assert net.now == 0


def test_a_watcher_is_a_function() -> None:
    wrong: Any = "print"
    with testing.network("a") as net, pytest.raises(LocalError, match="a watcher must be a function, not 'print'"):
        net.watch(wrong)


def test_a_closed_network_is_not_opened_again() -> None:
    with testing.network("a") as net:
        pass
    with pytest.raises(StateError, match="closed and cannot be opened again"), net:
        pytest.fail("it opened")
    with pytest.raises(StateError, match="this network is closed"):
        net.add("b")


def test_messaging_sleeps_until_the_network_opens_it_and_is_awake_in_every_life_from_then_on() -> None:
    with testing.network("a", "b", "c", seed=1) as net:
        assert not any(net.host(name).messaging.is_open for name in "abc")
        net.kill("b")
        net.suspend("c")
        net.open_messaging()
        net.open_messaging()
        assert net.host("a").messaging.is_open
        net.restart("b")
        net.resume("c")
        net.add("d")
        net.kill("a")
        net.restart("a")
        assert all(net.host(name).messaging.is_open for name in "abcd")


def test_a_durable_subscription_is_announced_by_the_next_life_before_any_program_asks() -> None:
    with testing.network("a", "b", seed=1) as net:
        net.open_messaging()
        program = Program(net, "b", "news", client="me", name="mail", durable=True)
        net.advance(1)
        net.kill("b")
        message = net.publish("a", "news", b"hello")
        net.restart("b")
        net.link("a", "b")
        net.advance(30)
        assert net.host("b").state_of(message) is CopyState.PINNED
        assert net.host("b").messaging.overview().claims == 1  # type: ignore[union-attr]
        assert program.got == []
        again = Program(net, "b", "news", client="me", name="mail", durable=True)
        net.advance(1)
        assert again.texts == ["hello"]
        assert net.payload("b", again.got[0].descriptor) == b"hello"
