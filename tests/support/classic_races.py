"""Races of the classic API, in tasks or threads: each function plays one of them once, and says what must hold."""

# ruff: noqa: ANN401 - objects of either API

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from typing import Any

from tests.support.classic_world import AUTO, CLIENT, TRANSACTED, WITHIN_MS, Scene, World

from carrypost import IllegalStateException, JMSException

Race = Callable[[World, Scene, random.Random], Awaitable[None]]


async def attempt(call: Callable[[], Awaitable[Any]], *allowed: type[Exception]) -> Any:
    """Return the outcome of a call, or the exception that it may raise."""
    try:
        return await call()
    except JMSException as error:
        if not isinstance(error, allowed or IllegalStateException):
            raise
        return error


async def two_queues(scene: Scene) -> list[Any]:
    """Return two queues, which every race leaves empty: a node has few names."""
    if not scene.queues:
        scene.queues = [await scene.queue(), await scene.queue()]
    return scene.queues


async def moment(world: World, chance: random.Random) -> None:
    """Wait for a moment, or not."""
    if chance.random() < 0.7:
        await world.pause(chance.random() * 0.002)


async def drained(scene: Scene, queue: Any) -> list[tuple[str, bool]]:
    """Return what is left in a queue, with its flags."""
    found, session = [], await scene.session()
    inbox = await session.create_consumer(queue)
    await scene.settle()
    while (message := await inbox.receive_no_wait()) is not None:
        found.append((message.text, message.jms_redelivered))
    await session.close()
    return found


async def mixed(world: World, scene: Scene, chance: random.Random) -> None:
    """Set a listener while the session receives: one of both is refused, and no message is lost or given twice."""
    (queue, _), session, seen = await two_queues(scene), await scene.session(), list[str]()
    listening, receiving = await session.create_consumer(queue), await session.create_consumer(queue)
    await scene.send(queue, "a", "b")

    async def listen() -> Any:
        await moment(world, chance)

        async def set_listener() -> None:
            listening.set_message_listener(lambda message: seen.append(message.text))

        return await attempt(set_listener)

    async def receive() -> Any:
        await moment(world, chance)
        return await attempt(lambda: receiving.receive(5))

    ends = [world.begin(listen), world.begin(receive)]
    refused, got = [await end() for end in ends]
    assert not (isinstance(refused, Exception) and isinstance(got, Exception))
    await session.close()
    taken = [*seen, *([got.text] if got is not None and not isinstance(got, Exception) else [])]
    left = await drained(scene, queue)
    assert sorted([*taken, *(text for text, _ in left)]) == ["a", "b"]


async def ending_inside(world: World, scene: Scene, chance: random.Random) -> None:
    """Close and stop in a listener, while another task closes the connection: the listener is refused, none hangs."""
    connection, told = await world.connect(), list[str]()
    session, (queue, _) = await connection.create_session(), await two_queues(scene)
    inbox = await session.create_consumer(queue)
    calls = [chance.choice((session.close, connection.close, connection.stop)) for _ in range(2)]
    inbox.set_message_listener(trying(calls, told))
    await connection.start()
    await scene.send(queue, "x")
    if chance.random() < 0.5:
        await world.until(lambda: len(told) == 2)
    await moment(world, chance)
    await connection.close()
    assert len(told) in (0, 2)
    assert all("listener" in text or "is closed" in text for text in told), told
    assert [text for text, _ in await drained(scene, queue)] == ([] if told else ["x"])


def trying(calls: list[Any], told: list[str]) -> Any:
    """Return a listener that makes these calls, and notes what they raise."""
    if hasattr(calls[0], "blocking"):

        def listen(_: object) -> None:
            for call in calls:
                try:
                    call.blocking()
                except IllegalStateException as error:
                    told.append(str(error))

        return listen

    async def listen_awaited(_: object) -> None:
        told.extend([str(await attempt(call)) for call in calls])

    return listen_awaited


async def committing(world: World, scene: Scene, chance: random.Random) -> None:
    """Commit in another task while the session receives and sends: what was consumed and sent fits together."""
    (inward, outward), session = await two_queues(scene), await scene.session(TRANSACTED)
    inbox, producer = await session.create_consumer(inward), session.create_producer(outward)
    await scene.send(inward, "a", "b", "c")
    allowed = (IllegalStateException, JMSException)

    async def work() -> None:
        for _ in range(3):
            got = await attempt(lambda: inbox.receive(WITHIN_MS), *allowed)
            if got is not None and not isinstance(got, Exception):
                answer = session.create_text_message(f"{got.text}!")
                await attempt(lambda answer=answer: producer.send(answer), *allowed)  # type: ignore[misc]  # a lambda
            await moment(world, chance)

    async def end() -> None:
        for _ in range(2):
            await moment(world, chance)
            await attempt(session.commit, *allowed)

    for waits in [world.begin(work), world.begin(end)]:
        await waits()
    await attempt(session.commit, *allowed)
    await session.close()
    done, left = await drained(scene, outward), await drained(scene, inward)
    assert len({text for text, _ in done}) == len(done), done
    assert len({text for text, _ in left}) == len(left), left
    assert {"a", "b", "c"} >= {text for text, _ in left}
    assert {text.rstrip("!") for text, _ in done}.isdisjoint({text for text, _ in left if len(left) == 3})


async def closing(world: World, scene: Scene, chance: random.Random) -> None:
    """Close the connection while it sends, receives and calls a listener: each message is consumed once or left."""
    connection, queues = await world.connect(), await two_queues(scene)
    sends, receives, listens = [await connection.create_session(False, mode) for mode in (AUTO, CLIENT, AUTO)]
    inbox, heard, stored = await receives.create_consumer(queues[0]), list[str](), list[str]()
    (await listens.create_consumer(queues[1])).set_message_listener(lambda message: heard.append(message.text))
    await connection.start()
    await scene.send(queues[0], "r")
    await scene.send(queues[1], "x", "y")
    producer, got = sends.create_producer(queues[0]), list[str]()

    async def send() -> None:
        for number in range(3):
            message = scene.spare.create_text_message(str(number))
            sent = await attempt(lambda message=message: producer.send(message))  # type: ignore[misc]  # a lambda
            if isinstance(sent, Exception):
                return
            stored.append(str(number))

    async def receive() -> None:
        while (message := await attempt(inbox.receive)) is not None and not isinstance(message, Exception):
            if not isinstance(await attempt(message.acknowledge), Exception):
                got.append(message.text)

    ends = [world.begin(send), world.begin(receive)]
    await moment(world, chance)
    await connection.close()
    for end in ends:
        await end()
    left = [text for text, _ in await drained(scene, queues[0])]
    found = sorted([*left, *got])
    assert len(set(found)) == len(found), found
    assert {"r", *stored} <= set(found), (stored, found)
    assert sorted([*heard, *(text for text, _ in await drained(scene, queues[1]))]) == ["x", "y"]


RACES: dict[str, Race] = {
    "listener and receive": mixed,
    "close and stop in a listener": ending_inside,
    "commit in another task": committing,
    "close while everything runs": closing,
}
TIMES = 200
