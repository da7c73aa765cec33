"""Crashes of nodes and of clients of OpenWire: nothing confirmed is lost, nothing acknowledged comes again."""

from __future__ import annotations

from pathlib import Path

from tests.java_programs import process
from tests.nodes import scene
from tests.openwire_wire import Raw
from tests.stomp_clients import free_port

from carrypost.daemon.openwire import commands as wire

JOBS = wire.QueueName("jobs")


async def _send_again(client: Raw, sent: list[wire.TextMessage], confirmed: set[int], limit: int) -> None:
    """Send what was not confirmed, as a client with failover does, until `limit` responses came or the node is gone."""
    for message in sent:
        if message.command not in confirmed:
            await client.say(message)
    while limit > 0 and len(confirmed) < len(sent):
        found = await client.next()
        if isinstance(found, wire.Response):
            assert not isinstance(found, wire.ExceptionResponse), found
            confirmed.add(found.to)
            limit -= 1


@scene
async def test_of_messages_sent_to_a_node_that_is_killed_again_and_again_each_is_stored_once(tmp_path: Path) -> None:
    port = free_port()
    count, confirmed = 24, set[int]()
    sent: list[wire.TextMessage] = []
    name = "ID:crash-1"
    for life in range(4):
        with process(tmp_path, port):
            client = await Raw.reach(port, name)
            await client.connect(reconnects=life > 0)
            await client.declare(JOBS)
            if not sent:
                sent = [client.text(JOBS, str(number), number + 1_000) for number in range(count)]
            await _send_again(client, sent, confirmed, 6 if life < 3 else count)
            client.close()
    assert len(confirmed) == count
    with process(tmp_path, port):
        client = await Raw.reach(port, "ID:crash-2")
        await client.connect()
        texts = [text async for text in client.receive(JOBS, count)]
        assert texts == [str(number) for number in range(count)]
        assert await client.quiet(JOBS)
        client.close()


@scene
async def test_what_was_acknowledged_before_a_kill_does_not_come_again_and_all_else_does(tmp_path: Path) -> None:
    port, acknowledged, came = free_port(), set[str](), list[str]()
    with process(tmp_path, port):
        client = await Raw.reach(port, "ID:a-1")
        await client.connect()
        await client.declare(JOBS)
        for number in range(12):
            await client.ask(client.text(JOBS, str(number), 100 + number))
        client.close()
    for life in range(4):
        with process(tmp_path, port):
            client = await Raw.reach(port, f"ID:b-{life}")
            await client.connect()
            async for text in client.receive(JOBS, 3, acknowledge=True):
                assert text not in acknowledged
                acknowledged.add(text)
            client.close()
    came = sorted(acknowledged, key=int)
    assert came == [str(number) for number in range(12)]
