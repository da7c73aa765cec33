"""Acknowledgements, refusals and transactions of STOMP clients, in virtual time."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable

import pytest
from tests.support.jms_encoded import EncodedNetwork
from tests.support.jms_scenes import SOON_S, got, scene
from tests.support.stomp_wire import Wire

from carrypost import Queue, testing
from carrypost.daemon import client as transactions
from carrypost.daemon.stomp.codec import Frame, Version

V1_0, V1_1, V1_2 = Version


@pytest.fixture(params=["direct", "encoded"])
def _ways(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Once more with everything encoded that a program and a node say to each other."""
    if request.param == "encoded":
        monkeypatch.setattr(testing, "Network", EncodedNetwork)


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


PAUSES = [0.0, 0.5, 1.0, 2.0, 4.0, 8.0]
"""Times before the tries of a message that a client refuses each time, as of a program that fails with it."""


async def next_try(wire: Wire, pause_s: float, count: int) -> list[Frame]:
    """Return the messages that come together after a pause, which is seen a little late."""
    since_s = wire.net.now
    await wire.until(lambda: bool(wire.frames))
    assert pause_s <= wire.net.now - since_s <= pause_s + 0.2
    assert len(wire.frames) == count
    return [wire.take("MESSAGE") for _ in range(count)]


@pytest.mark.usefixtures("_ways")
@pytest.mark.parametrize("mode", ["client", "client-individual"])
@scene("a")
async def test_what_is_refused_comes_again_after_longer_and_longer_pauses(net: testing.Network, mode: str) -> None:
    wire = Wire(net, "a")
    await wire.connect()
    await wire.feed(f"SUBSCRIBE\nid:s\ndestination:/queue/q\nack:{mode}\n\n^")
    for number in range(50):
        await wire.feed(f"SEND\ndestination:/queue/q\n\n{number}^")
    for pause_s in PAUSES:
        frames = await next_try(wire, pause_s, 50)
        assert {frame.body for frame in frames} == {b"%d" % number for number in range(50)}
        for frame in frames if mode == "client-individual" else frames[-1:]:
            await wire.feed(f"NACK\nid:{frame.headers['ack']}\n\n^")
    await net.run(60)
    assert wire.frames == []
    async with net.context("a") as program:
        assert len([each async for each in program.create_browser(Queue("DLQ.q@a"))]) == 50


@scene("a")
async def test_a_pause_holds_up_nothing_else_of_its_client_and_ends_with_its_subscription(net: testing.Network) -> None:
    wire, other = Wire(net, "a"), Wire(net, "a")
    for each in (wire, other):
        await each.connect()
    for name in ("one", "two"):
        await wire.feed(f"SUBSCRIBE\nid:{name}\ndestination:/queue/{name}\nack:client-individual\n\n^")
    for word in ("UNSUBSCRIBE\nid:one", "DISCONNECT"):
        await wire.feed("SEND\ndestination:/queue/one\n\nbad^SEND\ndestination:/queue/one\n\ngood^")
        bad, good = await wire.message(), await wire.message()
        since_s = net.now
        await wire.feed(f"NACK\nid:{bad.headers['ack']}\nreceipt:n\n\n^")
        assert wire.take("RECEIPT").headers["receipt-id"] == "n"
        await wire.feed(f"ACK\nid:{good.headers['ack']}\nreceipt:a\n\n^SEND\ndestination:/queue/two\n\nmore^")
        await wire.until(lambda: len(wire.frames) == 2)
        assert {frame.command for frame in wire.frames} == {"RECEIPT", "MESSAGE"}
        wire.frames.clear()
        await wire.feed(f"{word}\n\n^")
        await other.feed("SUBSCRIBE\nid:s\ndestination:/queue/one\n\n^")
        again = await other.message()
        assert (again.body, again.headers["redelivered"]) == (b"bad", "true")
        assert net.now - since_s < 0.5
        await other.feed("UNSUBSCRIBE\nid:s\n\n^")
        if word != "DISCONNECT":
            await wire.feed("SUBSCRIBE\nid:one\ndestination:/queue/one\nack:client-individual\n\n^")
    await net.run(5)
    assert other.frames == []


@scene("a")
async def test_refused_messages_that_wait_count_towards_the_prefetch(net: testing.Network) -> None:
    wire = Wire(net, "a")
    await wire.connect()
    await wire.feed("SUBSCRIBE\nid:s\ndestination:/queue/q\nack:client\nprefetch-count:1\n\n^")
    await wire.feed("SEND\ndestination:/queue/q\n\nbad^SEND\ndestination:/queue/q\n\ngood^")
    for pause_s in PAUSES:
        (frame,) = await next_try(wire, pause_s, 1)
        assert frame.body == b"bad", "order stays"
        await wire.feed(f"NACK\nid:{frame.headers['ack']}\n\n^")
    assert (await wire.message()).body == b"good"


@scene("a", messaging={"redelivery_delay_s": 0.0})
async def test_without_a_delay_what_is_refused_comes_again_at_once(net: testing.Network) -> None:
    wire = Wire(net, "a")
    await wire.connect()
    await wire.feed("SUBSCRIBE\nid:s\ndestination:/queue/q\nack:client\n\n^SEND\ndestination:/queue/q\n\nbad^")
    for _ in PAUSES:
        await wire.feed(f"NACK\nid:{(await wire.message()).headers['ack']}\n\n^")
    assert net.now < 1


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


@scene("a", messaging={"redelivery_delay_s": 0.0})
async def test_a_doubtful_message_that_comes_again_is_alone_for_another_second(net: testing.Network) -> None:
    wires = {}
    for life in range(2):
        for queue in "xyz":
            wire = wires[queue] = Wire(net, "a")
            await wire.connect()
            await wire.feed(f"SUBSCRIBE\nid:s\ndestination:/queue/{queue}\nack:client\n\n^")
            for body in () if life else "12":
                await wire.feed(f"SEND\ndestination:/queue/{queue}\npersistent:true\n\n{body}^")
        await net.run(0.9)
        for wire in wires.values():
            assert len(wire.frames) == (1 if life else 2)
            if not life:
                await wire.client.close()
    await wires["x"].feed(f"NACK\nid:{wires['x'].take('MESSAGE').headers['ack']}\n\n^")
    await net.run(0.5)
    assert [len(wire.frames) for wire in wires.values()] == [1, 2, 2]
    await net.run(0.6)
    assert [len(wire.frames) for wire in wires.values()] == [2, 2, 2]


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
        assert [each.text async for each in bills.messages(timeout=SOON_S)] == ["bill"]


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
