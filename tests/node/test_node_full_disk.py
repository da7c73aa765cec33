"""A real node on a real disk that is full: sends fail with a reason, carried copies are evicted, no promise is broken.

The virtual counterpart, with a disk that fills up on command, is `test_full_disk`.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.support.loopback import apart
from tests.support.nodes import PATIENCE_S, Node, Nodes, Program, scene, until

from carrypost import ConnectionFactory, Context, SessionMode
from carrypost.errors import CarrypostError, JMSException, ResourceAllocationException

MIB = 1024 * 1024
DISK_BYTES = 8 * MIB
SIZE = 60_000
CARRIED = 20
STATUS_S_MAX = 2.0

_chance = random.Random(1)


@pytest.fixture
def disk(small_disk: Callable[[int], Path]) -> Path:
    """A folder that is a small disk of its own."""
    return small_disk(DISK_BYTES)


def free_bytes(disk: Path) -> int:
    """Return the room that is left on a disk."""
    found = os.statvfs(disk)
    return found.f_bavail * found.f_frsize


def noise(size: int = SIZE) -> bytes:
    """Return a payload that cannot be compressed."""
    return _chance.randbytes(size)


def fill(disk: Path) -> Path:
    """Fill the disk to the last byte, as another program would."""
    file = disk / "foreign"
    with file.open("ab", buffering=0) as out:
        for size in (MIB, 4_096, 1):
            with contextlib.suppress(OSError):
                while out.write(bytes(size)) == size:
                    pass
    assert os.statvfs(disk).f_bavail == 0
    return file


async def refused(program: Program, most: int = 1_000) -> tuple[ResourceAllocationException, dict[str, bytes]]:
    """Send until the node refuses; return the refusal, and the messages accepted before."""
    sent: dict[str, bytes] = {}
    for _ in range(most):
        payload = noise()
        try:
            sent[await program.send("mine", payload, persistent=True)] = payload
        except ResourceAllocationException as error:
            return error, sent
    raise AssertionError(f"{most} messages were taken")


async def refuses(node: Node) -> None:
    """Check that it refuses a message, and says why."""
    with pytest.raises(ResourceAllocationException, match="the disk is full"):
        await node.program.send("mine", noise(), persistent=True)


async def sent_at_last(program: Program) -> tuple[str, bytes]:
    """Send until it is taken; id and payload."""
    payload = noise()

    async def taken() -> str | None:
        with contextlib.suppress(CarrypostError):
            return await program.send("mine", payload, persistent=True)
        return None

    return await until(taken), payload


async def held(node: Node, topic: str, count: int) -> dict[str, bytes]:
    """Return `count` messages that the node holds, as handed to a program that subscribes and acknowledges nothing."""
    async with await Program.connect(node.control) as program:
        await program.subscribe(topic)
        found = [await program.receive(timeout_s=PATIENCE_S) for _ in range(count)]
        return {each.id: each.body for each in found}


async def status(node: Node) -> dict[str, dict[str, int]]:
    """Return its status, which must come soon."""
    return await asyncio.wait_for(node.client.status(), STATUS_S_MAX)


KEYS = 2
"""Entries with the sealing keys of both nodes, which each of them has beside the messages of a test."""


async def holds(node: Node, count: int) -> None:
    """Wait until a node holds this many messages, all of them on its disk."""

    async def done() -> bool:
        found = await status(node)
        return found["cache"]["messages"] == count + KEYS and not found["store"]["unanswered"]

    await until(done)


@scene
async def test_on_a_disk_that_messages_fill_carried_copies_give_way_by_privilege_and_then_sends_are_refused(
    disk: Path, tmp_path: Path
) -> None:
    async with Nodes(tmp_path, udp=apart()) as nodes:
        (author,) = await nodes.start("author")
        (carrier,) = await nodes.start("carrier", altruistic=["topic/news"], node={"data": str(disk)})
        priorities = {await author.program.send("news", noise(), priority=n % 10): n % 10 for n in range(CARRIED)}
        await holds(carrier, CARRIED)
        await author.end()

        sent: dict[str, bytes] = {}
        while (left := (await status(carrier))["cache"]["messages"] - len(sent) - KEYS) > CARRIED // 2:
            payload = noise()
            sent[await carrier.program.send("mine", payload, persistent=True)] = payload
        kept = [priorities.pop(message) for message in await held(carrier, "news", left)]
        assert min(kept) >= max(priorities.values())
        assert await held(carrier, "mine", len(sent)) == sent

        await nodes.start("author")
        await carrier.program.subscribe("for.carrier", durable=True)
        await nodes["author"].program.send("for.carrier", b"hello")
        assert (await carrier.receive()).body == b"hello"

        # The log of the store may just have given room back: somebody else takes that, so that the disk is full again.
        (disk / "taken").write_bytes(bytes(max(0, free_bytes(disk) - MIB + 4_096)))
        assert free_bytes(disk) < MIB
        await carrier.end(signal.SIGKILL)
        (carrier,) = await nodes.start("carrier", altruistic=["topic/news"], node={"data": str(disk)})
        assert await held(carrier, "mine", len(sent)) == sent
        await carrier.program.subscribe("for.carrier", durable=True)
        await nodes["author"].program.send("for.carrier", b"again")
        assert (await carrier.receive()).body == b"again"  # not what was confirmed

        error, more = await refused(carrier.program)  # When nothing is left that gives way.
        assert "the disk is full" in str(error)
        assert await held(carrier, "mine", len(sent | more)) == sent | more


@scene
async def test_a_disk_that_somebody_else_fills_is_used_again_when_it_has_room(disk: Path, tmp_path: Path) -> None:
    async with Nodes(tmp_path, udp=apart()) as nodes:
        (author,) = await nodes.start("author")
        (victim,) = await nodes.start("victim", altruistic=["topic/old"], node={"data": str(disk)})
        for _ in range(CARRIED):
            await author.program.send("old", noise())
        await holds(victim, CARRIED)
        await victim.program.subscribe("news", durable=True)
        await author.program.send("news", b"before")
        before = await victim.program.receive(timeout_s=PATIENCE_S)
        message, payload = await sent_at_last(victim.program)

        file = fill(disk)
        error, sent = await refused(victim.program)
        sent[message] = payload
        assert "the disk is full" in str(error)
        await author.program.send("news", noise(), label="meanwhile")
        # Notes of what was delivered and confirmed take little, and have the reserve.
        assert await held(victim, "mine", len(sent)) == sent
        await asyncio.wait_for(victim.program.acknowledge(before), PATIENCE_S)

        file.unlink()
        assert (await victim.receive()).label == "meanwhile"
        message, sent[message] = await sent_at_last(victim.program)
        await author.program.send("news", b"after")
        assert (await victim.receive()).body == b"after"
        await until(lambda: _reserve(victim))
        assert (await status(victim))["store"]["failure"] is None
        assert await held(victim, "mine", len(sent)) == sent

        async def is_over() -> bool:
            return "can be written again, and messages are accepted again" in victim.said

        await until(is_over)
        told, over = [line for line in victim.said.splitlines() if "the store" in line]  # Once each, not for each send.
        assert "WARNING carrypost.node: the disk is full: the store" in told
        assert "free some space; until then sends fail, and messages carried for others are evicted" in told
        assert str(disk) in over


async def _reserve(node: Node) -> bool:
    return bool((await status(node))["store"]["reserve"])


@scene
async def test_a_node_that_is_killed_on_a_full_disk_starts_again_and_has_what_it_had(
    disk: Path, tmp_path: Path
) -> None:
    async with Nodes(tmp_path, udp=apart()) as nodes:
        author, victim = await nodes.start("author") + await nodes.start("victim", node={"data": str(disk)})
        await victim.program.subscribe("news", durable=True)
        for text in (b"confirmed", b"left"):
            await author.program.send("news", text)
        deliveries = [await victim.program.receive(timeout_s=PATIENCE_S) for _ in range(2)]
        (left,) = [each for each in deliveries if each.body == b"left"]
        sent = dict([await sent_at_last(victim.program)])

        file = fill(disk)
        await refuses(victim)
        # That takes little, and has the reserve.
        await asyncio.wait_for(
            victim.program.acknowledge(*(each for each in deliveries if each is not left)), PATIENCE_S
        )
        for taken in (False, True):
            await refuses(victim)  # What the reserve gave up is not for payloads.
            await victim.end(signal.SIGKILL)
            if taken:  # Now somebody else has even that.
                fill(disk)
            (victim,) = await nodes.start("victim", node={"data": str(disk)})
            assert await held(victim, "mine", len(sent)) == sent

        await victim.program.subscribe("news", durable=True)
        again = await victim.program.receive(timeout_s=PATIENCE_S)
        assert (again.id, again.redelivered) == (left.id, True)
        file.unlink()
        await sent_at_last(victim.program)
        await author.program.send("news", b"after")
        assert (await victim.receive()).body == b"after"


async def goes_on(ctx: Context, store: Path, process: Callable[[], bool]) -> None:
    """Check a program whose node cannot write for a while: calls raise, and then it goes on from what is stored."""
    queue, away = await ctx.declare_queue("jobs"), store.with_name("away")
    producer = ctx.create_producer()
    async with ctx.create_consumer(queue) as consumer:
        for text in ("kept", "lost"):
            await producer.send(queue, text)
            if text == "kept":
                await ctx.commit()
        kept = await consumer.receive(timeout=PATIENCE_S)
        assert kept is not None
        store.rename(away)  # noqa: ASYNC240 - at once
        with pytest.raises(JMSException, match=r"the store .* is gone: restore it"):
            await ctx.commit()
        away.rename(store)
        again = await consumer.receive(timeout=PATIENCE_S)
        assert again is not None
        assert (again.get_body(str), again.jms_redelivered) == ("kept", True)
        await producer.send(queue, "after")
        await ctx.commit()
        after = await consumer.receive(timeout=PATIENCE_S)
        assert after is not None
        assert after.get_body(str) == "after"  # Nothing was done of the unit of work that was lost.
        await ctx.commit()
        assert await consumer.receive_no_wait() is None
    assert process()


@scene
async def test_programs_attached_to_a_node_whose_disk_fails_go_on_from_what_is_stored(tmp_path: Path) -> None:
    async with Nodes(tmp_path, udp=apart()) as nodes:
        (node,) = await nodes.start("node")
        factory = ConnectionFactory(f"unix:{node.control}")
        async with factory.create_context(SessionMode.SESSION_TRANSACTED) as ctx:
            await goes_on(ctx, node.folder / "data" / "store.sqlite", lambda: node.process.poll() is None)
        assert "is gone: restore it, or restart the node; the node goes on from what is stored" in node.said


@scene
async def test_a_program_with_a_node_inside_goes_on_when_its_disk_failed(tmp_path: Path) -> None:
    factory = ConnectionFactory(data=tmp_path / "node", udp=apart())
    async with factory.create_context(SessionMode.SESSION_TRANSACTED) as ctx:
        await goes_on(ctx, tmp_path / "node" / "store.sqlite", lambda: factory.mode == "embedded")
