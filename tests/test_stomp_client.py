"""STOMP clients of a node, in virtual time: their frames in, frames out."""

from __future__ import annotations

import asyncio
import tracemalloc
from collections.abc import Callable
from typing import Any

import pytest
from tests.jms_encoded import EncodedNetwork
from tests.jms_scenes import SOON_S, got, scene

from carrypost import Queue, testing
from carrypost.daemon.stomp import subscriptions, transactions
from carrypost.daemon.stomp.client import Client, Options
from carrypost.daemon.stomp.codec import SERVER, Decoder, Frame, StompError, Version
from carrypost.daemon.stomp.copies import Copies

V1_0, V1_1, V1_2 = Version


class Wire:
    """A client of a node, and the bytes between them."""

    def __init__(self, net: testing.Network, node: str, **options: Any) -> None:  # noqa: ANN401 - as `Options` has them
        self.net = net
        self._written = Decoder(10**8, version=V1_2, commands=SERVER)
        self._read = Decoder(10**6)
        provider = net.provider(node)
        self.client = Client(provider, self, Options(**options), Copies(provider))
        self.frames: list[Frame] = []
        self.ended = False
        self.reads = asyncio.Event()
        """Cleared: the client reads nothing."""
        self.reads.set()

    # --- an output -----------------------------------------------------------------------------------------

    def admit(self) -> str:
        return ""

    def write(self, data: bytes) -> None:
        self._written.feed(data)
        while (frame := self._written.next()) is not None:
            self.frames.append(frame)

    @property
    def is_full(self) -> bool:
        return not self.reads.is_set()

    async def drained(self) -> None:
        await self.reads.wait()

    def end(self) -> None:
        self.ended = True

    # --- a client ------------------------------------------------------------------------------------------

    async def feed(self, text: str | bytes) -> None:
        """Send frames: lines, an empty line, a body; ^ is NUL."""
        self._read.feed(text if isinstance(text, bytes) else text.replace("^", "\0").encode())
        try:
            while (frame := self._read.next()) is not None:
                await self.client.carry_out(frame)
                self._read.version = self.client.version
        except StompError as error:
            self.client.fail(error)

    async def connect(self, version: str = "1.2", more: str = "") -> None:
        await self.feed(f"CONNECT\naccept-version:{version}\nhost:x\n{more}\n^")
        self._written.version = self.client.version
        assert self.take("CONNECTED").headers["version"] == version

    def take(self, command: str) -> Frame:
        """Return the next frame, which must be one of these commands."""
        assert self.frames, f"no {command} came"
        assert self.frames[0].command == command, self.frames[0]
        return self.frames.pop(0)

    async def message(self) -> Frame:
        """Return the next MESSAGE, which has to come."""
        await self.until(lambda: bool(self.frames))
        return self.take("MESSAGE")

    async def until(self, condition: Callable[[], bool]) -> None:
        for _ in range(600):
            if condition():
                return
            await self.net.run(0.1)
        raise AssertionError("it did not happen")

    async def error(self, text: str, expected: str) -> Frame:
        """Send frames that end the connection."""
        await self.feed(text)
        await self.until(lambda: bool(self.frames))
        found = self.take("ERROR")
        assert expected in found.headers["message"]
        assert self.client.closed
        assert self.ended
        return found


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


# --- acknowledging ---------------------------------------------------------------------------------------------

ACKS = [
    (V1_0, "client", lambda frame: f"message-id:{frame.headers['message-id']}"),
    (V1_1, "client", lambda frame: f"message-id:{frame.headers['message-id']}\nsubscription:s"),
    (V1_2, "client", lambda frame: f"id:{frame.headers['ack']}"),
    (V1_1, "client-individual", lambda frame: f"message-id:{frame.headers['message-id']}\nsubscription:s"),
    (V1_2, "client-individual", lambda frame: f"id:{frame.headers['ack']}"),
]


@pytest.mark.parametrize(("version", "mode", "named"), ACKS)
def test_acknowledged_is_acknowledged_and_the_rest_comes_again(
    version: Version, mode: str, named: Callable[[Frame], str]
) -> None:
    @scene("a")
    async def play(net: testing.Network) -> None:
        wire = Wire(net, "a")
        await wire.connect(version)
        await wire.feed(f"SUBSCRIBE\nid:s\ndestination:/queue/q\nack:{mode}\nprefetch-count:3\n\n^")
        for number in range(5):
            await wire.feed(f"SEND\ndestination:/queue/q\npersistent:true\n\n{number}^")
        await net.run(SOON_S)
        frames = [await wire.message() for _ in range(3)]
        assert not wire.frames, "no more than were asked for"
        await wire.feed(f"ACK\n{named(frames[1])}\nreceipt:1\n\n^")
        await net.run(SOON_S)
        assert wire.take("RECEIPT").headers["receipt-id"] == "1"
        more = [wire.take("MESSAGE").body for _ in range(len(wire.frames))]
        assert more == ([b"3"] if mode == "client-individual" else [b"3", b"4"])
        await wire.client.close()
        again = Wire(net, "a")
        await again.connect(version)
        await again.feed("SUBSCRIBE\nid:s\ndestination:/queue/q\n\n^")
        await net.run(SOON_S)
        bodies = sorted(frame.body for frame in again.frames)
        assert bodies == ([b"0", b"2", b"3", b"4"] if mode == "client-individual" else [b"2", b"3", b"4"])

    play()


@scene("a")
async def test_what_is_refused_comes_again_until_it_came_too_often(net: testing.Network) -> None:
    wire = Wire(net, "a")
    await wire.connect()
    await wire.feed("SUBSCRIBE\nid:s\ndestination:/queue/q\nack:client\nprefetch-count:1\n\n^")
    await wire.feed("SEND\ndestination:/queue/q\n\nbad^")
    for number in range(6):
        found = await wire.message()
        assert ("redelivered" in found.headers) is (number > 0)
        await wire.feed(f"NACK\nid:{found.headers['ack']}\n\n^")
    await net.run(SOON_S)
    assert wire.frames == []
    await wire.feed("SEND\ndestination:/queue/q\n\nworse^")
    found = await wire.message()
    await wire.feed(f"NACK\nid:{found.headers['ack']}\nrequeue:false\n\n^")
    await wire.feed("SUBSCRIBE\nid:dead\ndestination:/queue/DLQ.q@a\n\n^")
    assert sorted([(await wire.message()).body, (await wire.message()).body]) == [b"bad", b"worse"]


@scene("a")
async def test_a_client_that_reads_nothing_is_written_no_more_than_its_prefetch(net: testing.Network) -> None:
    slow, quick = Wire(net, "a"), Wire(net, "a")
    for wire in (slow, quick):
        await wire.connect()
        await wire.feed("SUBSCRIBE\nid:s\ndestination:/topic/t\nprefetch-count:5\n\n^")
    slow.reads.clear()
    await net.run(1)
    for number in range(50):
        await quick.feed(f"SEND\ndestination:/topic/t\n\n{number}^")
    await quick.until(lambda: len(quick.frames) == 50)
    assert len(slow.frames) == 1
    slow.reads.set()
    await slow.until(lambda: len(slow.frames) == 50)
    assert [frame.body for frame in slow.frames] == [b"%d" % number for number in range(50)]


@scene("a")
async def test_a_client_that_acknowledges_in_groups_gets_what_it_had_before_its_connection_ended(
    net: testing.Network,
) -> None:
    subscribe = "SUBSCRIBE\nid:s\ndestination:/queue/jobs\nack:client\n\n^"
    first = Wire(net, "a")
    await first.connect()
    await first.feed(subscribe)
    for number in range(5):
        await first.feed(f"SEND\ndestination:/queue/jobs\npersistent:true\n\n{number}^")
    for number in range(5):
        assert (await first.message()).body == b"%d" % number
    await first.client.close()
    second = Wire(net, "a")
    await second.connect()
    await second.feed(subscribe)
    ack = ""
    for number in range(5):
        frame = await second.message()
        assert (frame.body, frame.headers["redelivered"]) == (b"%d" % number, "true")
        ack = frame.headers["ack"]
    await second.feed(f"ACK\nid:{ack}\nreceipt:x\n\n^")
    await net.run(1)
    assert second.take("RECEIPT").headers["receipt-id"] == "x"


# --- transactions ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("nodes", ["aa", "ab", "ba"], ids="-".join)
@scene("a", "b")
async def test_of_two_clients_with_the_same_message_one_commits(net: testing.Network, nodes: str) -> None:
    async with net.context("a") as here:
        await here.declare_queue("orders", redelivery="after_lease", lease_s=100)
        await here.declare_queue("bills")
        await here.send("queue/orders", "order")
        bills = await here.create_consumer("queue/bills")
        slow, quick = Wire(net, nodes[0]), Wire(net, nodes[1])
        for wire in (slow, quick):
            await wire.connect()
            await wire.feed("SUBSCRIBE\nid:s\ndestination:/queue/orders@a\nack:client-individual\n\n^")
            number = (await wire.message()).headers["ack"]
            await wire.feed(f"BEGIN\ntransaction:t\n\n^ACK\nid:{number}\ntransaction:t\n\n^")
            await wire.feed("SEND\ndestination:/queue/bills@a\ntransaction:t\n\nbill^")
            await net.run(101 if wire is slow else 1)
        await quick.feed("COMMIT\ntransaction:t\nreceipt:x\n\n^")
        await net.run(SOON_S)
        assert quick.take("RECEIPT").headers["receipt-id"] == "x"
        await slow.error("COMMIT\ntransaction:t\nreceipt:x\n\n^", "the lease of the message is over")
        assert [each.text async for each in bills.messages(timeout=SOON_S)] == ["bill"]  # type: ignore[attr-defined]


@scene("a")
async def test_what_waits_for_a_client_that_does_not_read_is_not_written_after_its_lease(net: testing.Network) -> None:
    async with net.context("a") as here:
        await here.declare_queue("orders", redelivery="after_lease", lease_s=100)
        for body in "xy":
            await here.send("queue/orders", body)
        wire = Wire(net, "a")
        await wire.connect()
        wire.reads.clear()
        await wire.feed("SUBSCRIBE\nid:s\ndestination:/queue/orders\nack:client\n\n^")
        await net.run(101)
        assert (await wire.message()).body == b"x"
        async with net.context("a") as other:
            inbox = await other.create_consumer("queue/orders")
            wire.reads.set()
            await net.run(SOON_S)
            assert (wire.frames, {(await got(inbox)).get_body(str) for _ in "xy"}) == ([], {"x", "y"})


@pytest.mark.usefixtures("_ways")
@scene("a")
async def test_a_transaction_sends_and_acknowledges_all_or_nothing(net: testing.Network) -> None:
    wire = Wire(net, "a")
    await wire.connect()
    for name in ("one", "two"):
        await wire.feed(f"SUBSCRIBE\nid:{name}\ndestination:/queue/{name}\nack:client\n\n^")
        await wire.feed(f"SEND\ndestination:/queue/{name}\n\n{name}^")
    await wire.feed("SUBSCRIBE\nid:out\ndestination:/queue/out\n\n^")
    await net.run(1)
    first, second = sorted([wire.take("MESSAGE"), wire.take("MESSAGE")], key=lambda frame: frame.body)
    ends: list[str] = []
    for end in ("ABORT", "COMMIT"):
        await wire.feed("BEGIN\ntransaction:t\n\n^")
        for frame in (first, second):
            await wire.feed(f"ACK\nid:{frame.headers['ack']}\ntransaction:t\n\n^")
        await wire.feed("SEND\ndestination:/queue/out\ntransaction:t\n\nboth^")
        await net.run(1)
        assert wire.frames == []
        await wire.feed(f"{end}\ntransaction:t\nreceipt:{end}\n\n^")
        await net.run(SOON_S)
        ends += sorted(frame.command for frame in wire.frames)
        wire.frames.clear()
    assert ends == ["RECEIPT", "MESSAGE", "RECEIPT"]
    await wire.client.close()
    async with net.context("a") as program:
        for name in ("one", "two"):
            assert [each async for each in program.create_browser(f"queue/{name}")] == []


@scene("a")
async def test_a_commit_after_the_end_of_a_subscription_tells_truly_what_was_done(net: testing.Network) -> None:
    for word, told in (("NACK", "RECEIPT"), ("ACK", "ERROR")):
        wire = Wire(net, "a")
        await wire.connect()
        await wire.feed(f"SUBSCRIBE\nid:s\ndestination:/queue/{word}\nack:client\n\n^")
        await wire.feed(f"SEND\ndestination:/queue/{word}\n\nm^")
        await net.run(1)
        number = wire.take("MESSAGE").headers["ack"]
        await wire.feed(f"BEGIN\ntransaction:t\n\n^{word}\nid:{number}\ntransaction:t\n\n^")
        await wire.feed(f"SEND\ndestination:/topic/{word}\ntransaction:t\n\nsent^UNSUBSCRIBE\nid:s\n\n^")
        await wire.feed("COMMIT\ntransaction:t\nreceipt:x\n\n^")
        await net.run(SOON_S)
        end = wire.take(told)
        assert (end.headers["receipt-id"], b"the transaction was not committed" in end.body) == ("x", word == "ACK")
        await wire.client.close()
    async with net.context("a") as program:
        for word, bodies in (("NACK", ["sent"]), ("ACK", [])):
            inbox = await program.create_consumer(f"topic/{word}")
            assert [each.get_body(str) async for each in inbox.messages(timeout=5)] == bodies
            waiting = await program.create_consumer(Queue(f"{word}@a"))
            assert [each.get_body(str) async for each in waiting.messages(timeout=5)] == ["m"]


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
    for number in range(subscriptions.SUBSCRIPTIONS_MAX):
        await wire.feed(f"SUBSCRIBE\nid:{number}\ndestination:/topic/t\n\n^")
    await wire.error("SUBSCRIBE\nid:x\ndestination:/topic/t\n\n^", "at most 100 subscriptions")
    wire = Wire(net, "a")
    await wire.connect()
    for number in range(transactions.TRANSACTIONS_MAX):
        await wire.feed(f"BEGIN\ntransaction:{number}\n\n^")
    await wire.error("BEGIN\ntransaction:x\n\n^", "at most 16 transactions")


@scene("a", messaging={"draft_bytes_max": 1_024})
async def test_a_transaction_is_bounded_in_bytes(net: testing.Network) -> None:
    for header, body in (("", "x" * 900), (f"note:{'x' * 900}\n", "")):
        wire = Wire(net, "a")
        await wire.connect()
        await wire.feed("BEGIN\ntransaction:t\n\n^")
        send = f"SEND\ndestination:/topic/a\ntransaction:t\n{header}\n{body}^"
        await wire.feed(send)
        await wire.error(send, "at most 1,024 bytes")


@scene("a")
async def test_a_transaction_keeps_each_message_once_however_often_it_is_refused(net: testing.Network) -> None:
    wire = Wire(net, "a")
    await wire.connect()
    await wire.feed("SUBSCRIBE\nid:s\ndestination:/queue/q\nack:client\nprefetch-count:100\n\n^")
    for number in range(100):
        await wire.feed(f"SEND\ndestination:/queue/q\n\n{number}^")
    await wire.until(lambda: len(wire.frames) == 100)
    last = wire.frames[-1].headers["ack"]
    await wire.feed("BEGIN\ntransaction:t\n\n^")
    tracemalloc.start()
    try:
        for _ in range(1_000):
            await wire.feed(f"NACK\nid:{last}\ntransaction:t\n\n^ACK\nid:{last}\ntransaction:t\n\n^")
        kept_bytes, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert kept_bytes < 100_000


@scene("a")
async def test_a_transaction_is_bounded_in_messages(net: testing.Network, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transactions, "MESSAGES_MAX", 3)
    for word in ("ACK", "NACK"):
        wire = Wire(net, "a")
        await wire.connect()
        await wire.feed(f"SUBSCRIBE\nid:s\ndestination:/queue/{word}\nack:client-individual\n\n^")
        for number in range(4):
            await wire.feed(f"SEND\ndestination:/queue/{word}\n\n{number}^")
        frames = [await wire.message() for _ in range(4)]
        await wire.feed("BEGIN\ntransaction:t\n\n^")
        for frame in frames[:3] * 2:
            await wire.feed(f"{word}\nid:{frame.headers['ack']}\ntransaction:t\n\n^")
        for number in range(3):
            await wire.feed(f"SEND\ndestination:/topic/x\ntransaction:t\n\n{number}^")
        told = "a transaction acknowledges or refuses at most 3 messages"
        await wire.error(f"{word}\nid:{frames[3].headers['ack']}\ntransaction:t\n\n^", told)


@scene("a")
async def test_a_node_that_ends_is_told(net: testing.Network) -> None:
    wire = Wire(net, "a")
    await wire.connect()
    net.kill("a")
    await asyncio.sleep(0)
    assert wire.take("ERROR").headers["message"]
    assert wire.client.closed
    await wire.client.close()
