"""Programs on a node in their own process, and the same attached to a `carrypost node`: the cost of a message.

CPU time is that of all processes: the node's, and that of every program. In the end of every measurement a PERSISTENT
message is sent: when that is on disk, so is everything before it.

Run as a program, this receives: ``python -m benchmarks._attached_programs FOLDER MESSAGES`` prints that it is ready,
and then the CPU time, in seconds, that it used for that number of messages.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec
from benchmarks._jms_programs import BODY, TOPIC, send, settle
from benchmarks._processes import BenchmarkError, cpu_s

from benchmarks import _jms_programs as programs
from carrypost import ConnectionFactory, Context, DeliveryMode
from carrypost.cli._settings import NodeCommand

PERSISTENT, NON_PERSISTENT = DeliveryMode.PERSISTENT, DeliveryMode.NON_PERSISTENT
PROGRAMS: Final = 20
FILM_BYTES: Final = 10_000_000
_WARM: Final = 20


@contextmanager
def node(folder: Path, messages: int, *more: str) -> Iterator[int]:
    """Run a node with the settings of `programs.factory`, and `more` settings; returns its process id."""
    changes = (
        f"cache_messages_max={2 * messages + 1_000}", 'udp.interfaces=["lo"]', f"limits.unconfirmed_max={2 * messages}",
        "limits.share_queues=1.0", "security=signed", *more,
    )  # fmt: skip
    order = msgspec.json.encode(NodeCommand(None, str(folder), changes, json=True, verbose=False)).decode()
    command = [sys.executable, "-P", "-m", "carrypost.cli._process", order]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:  # noqa: S603 - our own command
        try:
            if process.stdout is None or json.loads(process.stdout.readline() or "{}").get("event") != "ready":
                raise BenchmarkError("the node did not start")
            yield process.pid
        finally:
            process.terminate()


class Meter:
    """Weighs this process and others while messages pass."""

    def __init__(self, *others: int) -> None:
        gc.collect()
        self._others = others
        self._begun_s = self._used_s()

    def _used_s(self) -> float:
        return time.process_time() + sum(map(cpu_s, self._others))

    def cost_us(self, messages: int, more_s: float = 0.0) -> float:
        """CPU time of a message since this was made, with `more_s` that was used elsewhere."""
        return (self._used_s() - self._begun_s + more_s) / messages * 1e6


Program = Callable[[Context, int, Callable[[], Meter]], Coroutine[Any, Any, float]]


async def _sending(ctx: Context, messages: int, meter: Callable[[], Meter], *, tasks: int, mode: DeliveryMode) -> float:
    await send(ctx, _WARM, 1, mode)
    await settle(ctx)
    weighed = meter()
    await send(ctx, messages, tasks, mode)
    await settle(ctx)
    return weighed.cost_us(messages)


async def _receiving(ctx: Context, messages: int, meter: Callable[[], Meter]) -> float:
    await send(ctx, messages, 10, NON_PERSISTENT)
    await settle(ctx)
    weighed = meter()
    async with ctx.create_consumer(TOPIC) as consumer:
        for _ in range(messages):
            await consumer.receive()
    await settle(ctx)
    return weighed.cost_us(messages)


def embedded(program: Program, folder: Path, messages: int) -> float:
    """Return what a message costs a program that has its node inside."""

    async def run() -> float:
        async with programs.factory(folder, "signed", messages).create_context() as ctx:
            return await program(ctx, messages, Meter)

    return asyncio.run(run())


def attached(program: Program, folder: Path, messages: int) -> float:
    """Return what a message costs a program and the node to which it is attached."""

    async def run(pid: int) -> float:
        async with ConnectionFactory(data=folder, attach=True).create_context() as ctx:
            return await program(ctx, messages, partial(Meter, pid))

    with node(folder, messages) as pid:
        return asyncio.run(run(pid))


# --- fan-out --------------------------------------------------------------------------------------------------


def fan_out_embedded(folder: Path, messages: int) -> float:
    """Return the cost of a copy if as many contexts are in one program with the node."""
    made = programs.factory(folder, "signed", messages)
    return asyncio.run(programs.fan_out(made, messages, PROGRAMS, together=False)).cpu_us / PROGRAMS


def fan_out_attached(folder: Path, messages: int) -> float:
    """Return what a copy costs if each receiver is a process."""

    async def run(pid: int) -> float:
        async with (
            ConnectionFactory(data=folder, attach=True).create_context() as ctx,
            _receivers(folder, messages) as all_,
        ):
            meter = Meter(pid)
            await send(ctx, messages, 1, NON_PERSISTENT)
            used_s = [float(await each.stdout.readline()) for each in all_ if each.stdout is not None]
            await settle(ctx)
            return meter.cost_us(messages * PROGRAMS, sum(used_s))

    with node(folder, messages * PROGRAMS) as pid:  # The sender may be far ahead of the others.
        return asyncio.run(run(pid))


@asynccontextmanager
async def _receivers(folder: Path, messages: int) -> AsyncIterator[list[asyncio.subprocess.Process]]:
    command = [sys.executable, "-m", "benchmarks._attached_programs", str(folder), str(messages)]
    root = Path(__file__).parents[1]
    started = [
        await asyncio.create_subprocess_exec(*command, stdout=subprocess.PIPE, cwd=root) for _ in range(PROGRAMS)
    ]
    try:
        for each in started:
            if each.stdout is None or (await each.stdout.readline()).strip() != b"ready":
                raise BenchmarkError("a receiver did not start")
        yield started
    finally:
        for each in started:
            with contextlib.suppress(ProcessLookupError):
                each.kill()
            await each.wait()


async def receive(folder: str, messages: int) -> None:
    """Receive, and say what that took."""
    made = ConnectionFactory(data=folder, attach=True)
    async with made.create_context() as ctx, ctx.create_consumer(TOPIC) as consumer:
        print("ready", flush=True)
        begun_s = time.process_time()
        for _ in range(messages):
            await consumer.receive()
        print(time.process_time() - begun_s, flush=True)


# --- beside long bodies ---------------------------------------------------------------------------------------


async def _beside_films(films: Context, small: Context, seconds: float) -> float:
    """Return the small messages that one program sends per second while another sends long ones continuously."""

    async def send_films() -> None:
        body = bytes(FILM_BYTES)
        while True:
            await films.send("topic/film", body, delivery_mode=NON_PERSISTENT, time_to_live=5)

    sending, sent = asyncio.ensure_future(send_films()), 0
    try:
        until_s = time.monotonic() + seconds
        while time.monotonic() < until_s:
            await small.send(TOPIC, BODY, delivery_mode=NON_PERSISTENT)
            sent += 1
    finally:
        sending.cancel()
    return sent / seconds


def beside_films(folder: Path, seconds: float, *, attach: bool) -> float:
    """Return small sends a second beside a sender of long bodies, both embedded or both attached."""

    async def run(films: ConnectionFactory, small: ConnectionFactory) -> float:
        async with films.create_context() as one, small.create_context() as other:
            return await _beside_films(one, other, seconds)

    if not attach:
        made = programs.factory(folder, "signed", 10_000)
        return asyncio.run(run(made, made))
    with node(folder, 10_000), tempfile.TemporaryDirectory() as short:
        paths = ConnectionFactory(data=folder).settings.control, Path(short) / "other.sock"
        paths[1].symlink_to(paths[0])  # Another path is another connection.
        return asyncio.run(run(*(ConnectionFactory(f"unix:{path}") for path in paths)))


class Case(NamedTuple):
    """A program, and how much more of it may cost attached."""

    what: str
    goal: float
    share: int
    """One in this many messages of a round is sent."""
    embedded: Callable[[Path, int], float]
    attached: Callable[[Path, int], float]


def _case(what: str, goal: float, share: int, program: Program) -> Case:
    return Case(what, goal, share, partial(embedded, program), partial(attached, program))


CASES: Final = (
    _case("PERSISTENT, 1 coroutine", 1.4, 4, partial(_sending, tasks=1, mode=PERSISTENT)),
    _case("PERSISTENT, 10 coroutines", 1.5, 1, partial(_sending, tasks=10, mode=PERSISTENT)),
    _case("NON_PERSISTENT, 10 coroutines", 1.6, 1, partial(_sending, tasks=10, mode=NON_PERSISTENT)),
    _case("receiving, 1 program", 1.6, 1, _receiving),
    Case(f"fan-out to {PROGRAMS} programs, a copy", 2.0, 4, fan_out_embedded, fan_out_attached),
)

if __name__ == "__main__":
    asyncio.run(receive(sys.argv[1], int(sys.argv[2])))
