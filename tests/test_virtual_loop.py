"""`testing.run`: asyncio in virtual time."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from carrypost import testing
from carrypost.errors import CarrypostError, LocalError, StateError


def test_sleeping_takes_no_real_time() -> None:
    async def scene() -> float:
        loop = asyncio.get_running_loop()
        start = loop.time()
        await asyncio.sleep(80_000)
        return loop.time() - start

    began = time.monotonic()
    assert testing.run(scene) == 80_000
    assert time.monotonic() - began < 1


def test_tasks_wake_in_the_order_of_their_times() -> None:
    seen: list[tuple[float, str]] = []

    async def sleeper(name: str, *times: float) -> None:
        for seconds in times:
            await asyncio.sleep(seconds)
            seen.append((asyncio.get_running_loop().time(), name))

    async def scene() -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(sleeper("a", 3, 0.000_001, 4))
            group.create_task(sleeper("b", 1, 1, 1.5))

    testing.run(scene)
    assert seen == [(1, "b"), (2, "b"), (3, "a"), (3.000_001, "a"), (3.5, "b"), (7.000_001, "a")]


def test_the_result_and_the_exceptions_of_a_scene_come_out() -> None:
    async def good() -> str:
        return "done"

    async def bad() -> None:
        raise ZeroDivisionError

    assert testing.run(good) == "done"
    with pytest.raises(ZeroDivisionError):
        testing.run(bad)


def test_timeouts_work_in_virtual_time() -> None:
    async def scene() -> float:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(3_600):
                await asyncio.Event().wait()
        return asyncio.get_running_loop().time()

    assert testing.run(scene) == 3_600


def test_a_scene_that_waits_for_what_cannot_happen_is_a_deadlock_that_says_where() -> None:
    async def forgetful() -> None:
        await asyncio.Event().wait()

    async def scene() -> None:
        await asyncio.create_task(forgetful(), name="the forgetful one")

    with pytest.raises(testing.DeadlockError, match=r"the forgetful one: .*test_virtual_loop\.py:\d+ in .*forgetful"):
        testing.run(scene)


def test_past_its_limit_a_scene_raises_and_is_told_to_end() -> None:
    ended: list[str] = []

    async def scene() -> None:
        try:
            for _ in range(20):
                await asyncio.sleep(10)
        finally:
            await asyncio.sleep(5)
            ended.append("cleanly")

    with pytest.raises(
        testing.TimeLimitError, match=r"(?s)not finished after 100 virtual seconds; .*in .*scene"
    ) as caught:
        testing.run(scene, limit_s=100)
    assert isinstance(caught.value, TimeoutError)
    assert isinstance(caught.value, CarrypostError)
    assert ended == ["cleanly"]


def test_a_scene_that_ends_exactly_at_its_limit_is_in_time() -> None:
    async def scene() -> None:
        await asyncio.sleep(100)

    testing.run(scene, limit_s=100)


def test_tasks_that_spin_while_time_stands_still_are_stopped_with_where_they_spin() -> None:
    async def patient() -> None:
        await asyncio.Event().wait()

    async def scene() -> None:
        async with testing.network("a", "b") as net:
            waiting = asyncio.create_task(patient(), name="the patient one")
            while not net.deliveries("b"):  # noqa: ASYNC110 (the mistake in question)
                await asyncio.sleep(0)
            await waiting

    text = r"(?s)virtual time does not advance at 0 s.*await net\.run.*test_virtual_loop\.py:\d+ in .*scene"
    with pytest.raises(testing.RunawayError, match=text) as caught:
        testing.run(scene, limit_s=10)
    assert "the patient one" not in str(caught.value)


def test_tasks_may_take_many_turns_as_long_as_time_goes_on() -> None:
    async def scene() -> None:
        for _ in range(3):
            for _ in range(40_000):
                await asyncio.sleep(0)
            await asyncio.sleep(1)

    testing.run(scene)


def test_a_scene_is_a_function_that_was_not_called() -> None:
    async def scene() -> None:
        pytest.fail("it ran")

    mistakes: list[Any] = [scene(), None]
    for wrong in mistakes:
        with pytest.raises(LocalError, match="takes an async function without calling it"):
            testing.run(wrong)


def test_a_limit_is_more_than_nothing() -> None:
    async def scene() -> None:
        pytest.fail("it ran")

    wrong: list[Any] = [0, -1, float("nan"), float("inf"), "10", None]
    for limit_s in wrong:
        with pytest.raises(LocalError, match="limit_s must be a number of seconds greater than 0"):
            testing.run(scene, limit_s=limit_s)


async def _connect() -> None:
    await asyncio.open_connection("127.0.0.1", 9)


async def _serve() -> None:
    await asyncio.start_server(lambda _reader, _writer: None, "127.0.0.1", 0)


async def _datagrams() -> None:
    loop = asyncio.get_running_loop()
    await loop.create_datagram_endpoint(asyncio.DatagramProtocol, local_addr=("127.0.0.1", 0))


async def _look_up() -> None:
    await asyncio.get_running_loop().getaddrinfo("localhost", 80)


async def _process() -> None:
    await asyncio.create_subprocess_exec("true")


@pytest.mark.parametrize("act", [_connect, _serve, _datagrams, _look_up, _process])
def test_real_io_is_refused(act: Callable[[], Awaitable[None]]) -> None:
    async def scene() -> None:
        with pytest.raises(
            StateError, match="real I/O, which waits in real time: this is not possible in virtual time"
        ):
            await act()

    testing.run(scene)


def test_threads_are_refused() -> None:
    async def scene() -> None:
        with pytest.raises(StateError, match="run_in_executor needs a thread"):
            await asyncio.to_thread(time.monotonic)

    testing.run(scene)


def test_a_thread_cannot_call_into_the_loop() -> None:
    refusals: list[BaseException] = []

    async def scene() -> None:
        loop = asyncio.get_running_loop()

        def call() -> None:
            try:
                loop.call_soon_threadsafe(str)
            except StateError as error:
                refusals.append(error)

        thread = threading.Thread(target=call)
        thread.start()
        thread.join()

    testing.run(scene)
    assert "call_soon_threadsafe needs a thread" in str(refusals[0])
