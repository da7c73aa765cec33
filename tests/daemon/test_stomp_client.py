"""STOMP clients of a node, in virtual time: their frames in, frames out."""

from __future__ import annotations

import asyncio

import pytest
from tests.support.jms_encoded import EncodedNetwork
from tests.support.jms_scenes import SOON_S, got, scene
from tests.support.stomp_wire import Wire

from carrypost import Queue, testing
from carrypost.daemon import client as transactions
from carrypost.daemon.stomp import server
from carrypost.daemon.stomp.codec import Frame, Version

V1_0, V1_1, V1_2 = Version


@pytest.fixture(params=["direct", "encoded"])
def _ways(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Once more with everything encoded that a program and a node say to each other."""
    if request.param == "encoded":
        monkeypatch.setattr(testing, "Network", EncodedNetwork)


# --- connecting ------------------------------------------------------------------------------------------------


@scene("a")
async def test_a_client_connects_with_the_highest_version_and_the_slower_beats(net: testing.Network) -> None:
    wire = Wire(net, "a", heart_beat_ms=10_000)
    await wire.feed("CONNECT\naccept-version:1.0,1.1,1.2\nheart-beat:20000,5000\n\n^")
    headers = wire.take("CONNECTED").headers
    assert headers["version"] == "1.2"
    assert headers["heart-beat"] == "10000,10000"
    assert wire.client.beats_ms == (10_000, 20_000)
    old = Wire(net, "a")
    await old.feed("CONNECT\nlogin: me\n\n^")
    assert "heart-beat" not in old.take("CONNECTED").headers
    assert old.client.version is V1_0
    assert old.client.beats_ms == (0, 0)


@scene("a")
async def test_who_may_not_connect_is_told_why(net: testing.Network) -> None:
    wire = Wire(net, "a", token="secret")  # noqa: S106 - no secret
    await wire.error("CONNECT\naccept-version:1.2\npasscode:wrong\n\n^", "stomp.token")
    wire = Wire(net, "a", token="secret")  # noqa: S106 - likewise
    await wire.connect(more="passcode:secret\n")
    wire = Wire(net, "a")
    await wire.feed("CONNECT\naccept-version:2.0\n\n^")
    assert wire.take("ERROR").headers["version"] == "1.0,1.1,1.2"
    assert wire.client.closed
    await Wire(net, "a").error(
        "SEND\ndestination:/topic/a\n\n^", "'SEND' is not a command of the beginning of a connection"
    )
    first, second = Wire(net, "a"), Wire(net, "a")
    await first.connect(more="client-id:me\n")
    await second.error("CONNECT\naccept-version:1.2\nclient-id:me\n\n^", "me")


# --- messages --------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("_ways")
@scene("a", "b")
async def test_messages_go_between_clients_of_two_nodes_and_programs_of_jms(net: testing.Network) -> None:
    one, other = Wire(net, "a"), Wire(net, "b")
    await one.connect()
    await other.connect("1.1")
    async with net.context("b") as program:
        inbox = await program.create_consumer("topic/news")
        await other.feed("SUBSCRIBE\nid:7\ndestination:/topic/news\nselector:level > 2\nreceipt:r\n\n^")
        assert other.take("RECEIPT").headers == {"receipt-id": "r"}
        await net.run(SOON_S)
        for level in (1, 3):
            await one.feed(f"SEND\ndestination:/topic/news\nlevel:{level}\ncarrypost-types:level=int\n\nat {level}^")
        found = await other.message()
        assert (found.headers["subscription"], found.body) == ("7", b"at 3")
        assert found.headers["carrypost-types"] == "level=int"
        assert [(await got(inbox)).get_int_property("level") for _ in range(2)] == [1, 3]
        await program.send("topic/news", {"level": 5}, properties={"level": 5})
        found = await other.message()
        assert (found.headers["carrypost-body"], found.body) == ("map", b'{"level":5}')


@pytest.mark.usefixtures("_ways")
@scene("a", "b")
async def test_a_queue_is_declared_by_its_first_subscriber_and_each_message_goes_to_one(net: testing.Network) -> None:
    home, away = Wire(net, "a"), Wire(net, "b")
    await home.connect()
    await away.connect()
    await home.feed("SUBSCRIBE\nid:1\ndestination:/queue/jobs\nack:client-individual\n\n^")
    await net.run(SOON_S)
    await away.feed("SUBSCRIBE\nid:1\ndestination:/queue/jobs\nack:client-individual\n\n^")
    await net.run(SOON_S)
    for number in range(6):
        await away.feed(f"SEND\ndestination:/queue/jobs\npersistent:true\nreceipt:{number}\n\n{number}^")
    await net.run(SOON_S)
    bodies = [frame.body for wire in (home, away) for frame in wire.frames if frame.command == "MESSAGE"]
    assert sorted(bodies) == [b"%d" % number for number in range(6)]
    assert {frame.headers["destination"] for frame in home.frames} == {"/queue/jobs@a"}
    assert [frame.headers["receipt-id"] for frame in away.frames if frame.command == "RECEIPT"] == list("012345")
    await Wire(net, "b").connect()
    lost = Wire(net, "b")
    await lost.connect()
    await lost.error("SEND\ndestination:/queue/job\nreceipt:x\n\n^", "near it: 'jobs@a'")


@scene("a")
async def test_a_receipt_of_a_persistent_send_waits_for_the_disk_and_a_full_one_is_an_error(
    net: testing.Network,
) -> None:
    wire = Wire(net, "a")
    await wire.connect()
    net.fill_disk("a")
    await wire.feed("SEND\ndestination:/topic/a\npersistent:true\nreceipt:1\n\nx^")
    await wire.until(lambda: bool(wire.frames))
    assert wire.take("ERROR").headers["receipt-id"] == "1"
    assert wire.client.closed


# --- subscriptions ---------------------------------------------------------------------------------------------


@scene("a")
async def test_a_durable_subscription_collects_until_it_is_ended_by_its_name(net: testing.Network) -> None:
    durable = "SUBSCRIBE\nid:s\ndestination:/topic/t\nactivemq.subscriptionName:mine\n\n^"
    for bodies in ([], [b"0"], [b"1"]):
        wire = Wire(net, "a")
        await wire.connect(more="client-id:me\n")
        await wire.feed(durable)
        await net.run(SOON_S)
        assert [frame.body for frame in wire.frames] == bodies
        await wire.feed("DISCONNECT\nreceipt:end\n\n^")
        assert wire.frames[-1] == Frame("RECEIPT", {"receipt-id": "end"})
        other = Wire(net, "a")
        await other.connect()
        await other.feed(f"SEND\ndestination:/topic/t\npersistent:true\n\n{len(bodies) and int(bodies[0]) + 1}^")
        await other.feed("DISCONNECT\n\n^")
    wire = Wire(net, "a")
    await wire.connect(more="client-id:me\n")
    await wire.feed("UNSUBSCRIBE\nid:s\ndurable-subscription-name:mine\nreceipt:1\n\n^")
    assert wire.take("RECEIPT")
    overview = net.host("a").messaging.overview()
    assert overview is not None
    assert overview.durable == 0


@pytest.mark.usefixtures("_ways")
@scene("a", "b")
async def test_a_temporary_queue_takes_replies_as_long_as_its_client_is_there(net: testing.Network) -> None:
    wire = Wire(net, "a")
    await wire.connect()
    await wire.feed("SUBSCRIBE\nid:r\ndestination:/temp-queue/answers\n\n^")
    async with net.context("b") as program:
        program.responder("topic/ask")(lambda question: f"{question.get_body(str)}!")
        await program.start()
        await net.run(SOON_S)
        await wire.feed("SEND\ndestination:/topic/ask\nreply-to:/temp-queue/answers\ncorrelation-id:9\n\nwhy^")
        found = await wire.message()
        assert (found.body, found.headers["correlation-id"]) == (b"why!", "9")
        address = found.headers["destination"]
        await wire.feed("DISCONNECT\n\n^")
        assert address.endswith("@a")
        overview = net.host("a").messaging.overview()
        assert overview is not None
        assert overview.queues == 0


@scene("a")
async def test_an_ended_subscription_gives_back_what_was_not_written(net: testing.Network) -> None:
    wire = Wire(net, "a")
    await wire.connect()
    await wire.feed("SUBSCRIBE\nid:s\ndestination:/queue/q\nack:client\n\n^")
    wire.reads.clear()
    for number in range(3):
        await wire.feed(f"SEND\ndestination:/queue/q\n\n{number}^")
    await net.run(1)
    assert len(wire.frames) == 1
    await wire.feed("UNSUBSCRIBE\nid:s\n\n^")
    wire.reads.set()
    async with net.context("a") as program:
        inbox = await program.create_consumer(Queue("q@a"))
        flags = [(message.get_body(str), message.jms_redelivered) async for message in inbox.messages(timeout=5)]
        assert flags == [("0", True), ("1", False), ("2", False)]


# --- what goes wrong -------------------------------------------------------------------------------------------

SUBSCRIBE = "SUBSCRIBE\nid:s\ndestination:/topic/t\nack:client\n"
FAULTS: list[tuple[str, str]] = [
    ("SEND\ndestination:nowhere\nreceipt:x\n\n^", "a destination must be /topic/NAME"),
    ("SEND\ndestination:/topic/a.>\nreceipt:x\n\n^", "contains wildcards"),
    ("SEND\ndestination:/topic/a b\nreceipt:x\n\n^", "Did you mean 'a.b'?"),
    ("SUBSCRIBE\nid:s\ndestination:/topic/a.\nreceipt:x\n\n^", "'a.' cannot be the name of a topic"),
    ("SUBSCRIBE\nid:s\ndestination:/queue/a.*\nreceipt:x\n\n^", "a queue must be named without wildcards"),
    ("SEND\ndestination:/topic/a\na b:c\nreceipt:x\n\n^", "cannot be the name of a property"),
    ("SEND\ndestination:/topic/a\ntransaction:none\nreceipt:x\n\n^", "there is no transaction 'none'"),
    ("SUBSCRIBE\nid:s\ndestination:/topic/a\nselector:a =\nreceipt:x\n\n^", "character 4"),
    (
        "SUBSCRIBE\nid:s\ndestination:/topic/a\nack:never\nreceipt:x\n\n^",
        "ack must be auto, client or client-individual",
    ),
    (
        "SUBSCRIBE\nid:s\ndestination:/topic/a\nprefetch-count:0\nreceipt:x\n\n^",
        "prefetch-count must be a number from 1",
    ),
    ("SUBSCRIBE\nid:s\ndestination:/queue/$mine\nreceipt:x\n\n^", "are reserved"),
    ("SUBSCRIBE\nid:s\ndestination:/topic/a\ndurable-subscription-name:d\nreceipt:x\n\n^", "CONNECT with a client-id"),
    ("SEND\ndestination:/queue/none\nreceipt:x\n\n^", "`carrypost bind queue/NAME`, declares a queue on this node"),
    (SUBSCRIBE + "\n^" + SUBSCRIBE + "receipt:x\n\n^", "there is a subscription 's' already"),
    ("UNSUBSCRIBE\nid:none\nreceipt:x\n\n^", "there is no subscription 'none'"),
    ("ACK\nid:1\nreceipt:x\n\n^", "there is no message '1' to acknowledge"),
    ("ACK\nid:one\nreceipt:x\n\n^", "there is no message 'one' to acknowledge"),
    ("BEGIN\ntransaction:t\n\n^BEGIN\ntransaction:t\nreceipt:x\n\n^", "has begun already"),
    ("COMMIT\ntransaction:t\nreceipt:x\n\n^", "there is no transaction 't'"),
    ("ABORT\ntransaction:t\nreceipt:x\n\n^", "there is no transaction 't'"),
    ("ACK\nreceipt:x\n\n^", "ACK needs the header 'id'"),
]


@pytest.mark.parametrize(("text", "expected"), FAULTS)
def test_a_fault_is_one_error_with_the_receipt_and_the_end_and_the_next_client_is_served(
    text: str, expected: str
) -> None:
    @scene("a")
    async def play(net: testing.Network) -> None:
        wire = Wire(net, "a")
        await wire.connect()
        assert (await wire.error(text, expected)).headers["receipt-id"] == "x"
        await wire.feed("SEND\ndestination:/topic/a\n\n^")
        assert wire.frames == []
        await wire.client.close()
        await Wire(net, "a").connect()

    play()


@scene("a", lifetime_s_max=3_600.0)
async def test_a_message_that_would_expire_too_late_is_refused_with_the_limit(net: testing.Network) -> None:
    wire = Wire(net, "a")
    await wire.connect()
    await wire.feed(f"SEND\ndestination:/topic/a\nexpires:{round(net.now * 1_000) + 3_600_000}\nreceipt:in time\n\n^")
    assert wire.take("RECEIPT").headers["receipt-id"] == "in time"
    late = f"SEND\ndestination:/topic/a\nexpires:{round(net.now * 1_000) + 7_200_000}\nreceipt:x\n\n^"
    await wire.error(late, "at most 1 hour on this node (lifetime_s_max), not 2 hours")


@scene("a")
async def test_a_message_of_another_subscription_cannot_be_acknowledged(net: testing.Network) -> None:
    wire, other = Wire(net, "a"), Wire(net, "a")
    for each in (wire, other):
        await each.connect("1.1")
        await each.feed(f"SUBSCRIBE\nid:{'s' if each is wire else 'o'}\ndestination:/topic/t\nack:client\n\n^")
    await net.run(1)
    await wire.feed("SEND\ndestination:/topic/t\n\nx^")
    found = await wire.message()
    await other.message()
    await other.error(
        f"ACK\nmessage-id:{found.headers['message-id']}\nsubscription:s\n\n^", "there is no subscription 's'"
    )


@scene("a")
async def test_what_a_client_may_have_open_is_bounded(net: testing.Network) -> None:
    wire = Wire(net, "a")
    await wire.connect()
    for number in range(server.SUBSCRIPTIONS_MAX):
        await wire.feed(f"SUBSCRIBE\nid:{number}\ndestination:/topic/t\n\n^")
    await wire.error("SUBSCRIBE\nid:x\ndestination:/topic/t\n\n^", "at most 100 subscriptions")
    wire = Wire(net, "a")
    await wire.connect()
    for number in range(transactions.TRANSACTIONS_MAX):
        await wire.feed(f"BEGIN\ntransaction:{number}\n\n^")
    await wire.error("BEGIN\ntransaction:x\n\n^", "at most 16 transactions")


@scene("a")
async def test_a_node_that_ends_is_told(net: testing.Network) -> None:
    wire = Wire(net, "a")
    await wire.connect()
    net.kill("a")
    await asyncio.sleep(0)
    assert wire.take("ERROR").headers["message"]
    assert wire.client.closed
    await wire.client.close()
