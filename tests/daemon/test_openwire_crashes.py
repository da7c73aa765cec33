"""Crashes of nodes and of clients of OpenWire: nothing confirmed is lost, nothing acknowledged comes again."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from tests.support.java_programs import process
from tests.support.nodes import scene
from tests.support.openwire_wire import Raw
from tests.support.stomp_clients import free_port

from carrypost.daemon.openwire import codec
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


class Work:
    """A client that sends, consumes and acknowledges until it or the node is killed, and knows what it was told.

    It says one command at a time. A life ends before its command `limit`, or right behind it: then the command was
    said, and its response not read.
    """

    def __init__(self) -> None:
        self.sent: list[str] = []
        self.confirmed = set[str]()
        """Messages whose send was answered, alone or in a transaction."""
        self.said = set[str]()
        """Messages whose acknowledgement was said; the node may have processed it."""
        self.done = set[str]()
        """Messages whose acknowledgement was answered."""

    async def live(self, client: Raw, limit: int, *, says: bool) -> bool:
        """Do the commands before `limit`; with `says` that one is said, too. Return True if there is none."""
        number = 0
        async for command in self._steps(client):
            number += 1
            if number == limit and says:
                command.command, command.answered = 10_000 + number, True
                await client.say(command)
            if number == limit:
                return False
            await client.ask(command)
        return True

    async def _steps(self, client: Raw) -> AsyncIterator[Any]:
        """Yield commands; what follows a `yield` is done when the command was answered."""
        consumer, connection = wire.ConsumerId(client.name, 1, 1), wire.ConnectionId(client.name)
        yield wire.ConsumerInfo(consumer=consumer, destination=JOBS, prefetch=1)
        first = len(self.sent)
        for number in (first, first + 1):  # One by one.
            self.sent.append(str(number))
            yield client.text(JOBS, str(number), 100 + number)
            self.confirmed.add(str(number))
        transaction = wire.LocalTransactionId(first, connection)
        yield wire.TransactionInfo(connection=connection, transaction=transaction, kind=0)
        texts = [str(first + 2), str(first + 3)]
        self.sent += texts
        for text in texts:
            message = client.text(JOBS, text, 100 + int(text))
            message.transaction = transaction
            yield message
        taken, found = await self._taken(client, consumer)
        found.transaction = transaction
        yield found
        self.said.add(taken)
        yield wire.TransactionInfo(connection=connection, transaction=transaction, kind=2)
        self.confirmed.update(texts)
        self.done.add(taken)
        taken, found = await self._taken(client, consumer)
        self.said.add(taken)
        yield found
        self.done.add(taken)

    async def _taken(self, client: Raw, consumer: wire.ConsumerId) -> tuple[str, wire.MessageAck]:
        """Return the next message, and its acknowledgement."""
        found = (await client.dispatched()).message
        assert found is not None
        text = codec.long_text(found.content) or ""
        assert text not in self.done, "what was acknowledged came again"
        return text, wire.MessageAck(consumer=consumer, kind=2, last=found.id, count=1)

    def check(self, left: list[str]) -> None:
        """Compare what was told with what is left in the queue at last."""
        assert len(set(left)) == len(left)
        assert self.confirmed - self.said <= set(left) <= set(self.sent) - self.done


STEPS = 9
"""Commands of a life that nothing cuts short."""


async def _die(folder: Path, points: list[int], *, of_node: bool, says: bool) -> None:
    """Kill the client or the node at each of these commands in turn; then look at what is left.

    After every second of these lives comes a whole one: what is received again and again becomes a dead letter.
    """
    port, work, life = free_port(), Work(), 0
    points = [each for at, point in enumerate(points) for each in ((point, STEPS + 1) if at % 2 else (point,))]

    async def lives(limits: list[int]) -> None:
        nonlocal life
        for limit in limits:
            life += 1
            client = await Raw.reach(port, f"ID:life-{life}")
            await client.connect()
            assert await work.live(client, limit, says=says) == (limit > STEPS)
            client.close()  # As by a kill: it says nothing.

    if of_node:
        for limit in points:
            with process(folder, port):
                await lives([limit])
        points = []
    with process(folder, port):
        await lives(points)
        client = await Raw.reach(port, "ID:last")
        await client.connect()
        left = list[str]()
        async for text in client.receive(JOBS, 10_000, acknowledge=True):
            if text == "end":
                break
            left.append(text)
            if set(left) >= work.confirmed - work.said and "end" not in work.sent:
                # What a client held whose end the node had to notice may come behind all others.
                work.sent.append("end")
                await client.ask(client.text(JOBS, "end", 1))
        client.close()
    work.check(left)
    assert work.confirmed
    assert work.done


@scene
async def test_a_node_killed_at_some_commands_loses_nothing_confirmed(tmp_path: Path) -> None:
    await _die(tmp_path, [7, 8], of_node=True, says=True)


@scene
async def test_a_client_killed_at_any_command_loses_nothing_confirmed(tmp_path: Path) -> None:
    await _die(tmp_path, list(range(STEPS, 1, -1)), of_node=False, says=True)


@pytest.mark.soak
@pytest.mark.parametrize("says", [True, False])
@pytest.mark.parametrize("of_node", [True, False])
@scene
async def test_kills_between_any_two_commands_lose_nothing_confirmed_and_repeat_nothing_acknowledged(
    tmp_path: Path,
    of_node: bool,
    says: bool,
) -> None:
    every = list(range(STEPS, 0, -1))
    await _die(tmp_path, every + every[::2], of_node=of_node, says=says)
