"""A real broker and hostile clients, all signed, on loopback: an honest client has its results all the same."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack, suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.support.examples import soaked
from tests.support.loopback import apart
from tests.support.nodes import PATIENCE_S, QUICK, scene, until
from tests.support.overlay_agents import agent
from tests.support.wasm_modules import HOSTILE, example

from carrypost import ConnectionFactory, Consumer, Context, Modulator
from carrypost.config import Limits
from carrypost.overlay.modulators import wasm
from carrypost.overlay.modulators.registry import Event

pytest.importorskip("wasmtime", reason="WebAssembly modulators need the extra: pip install '.[wasm]'")

CHANNEL, EVENTS, PAUSE_S = "flood", 40, 0.05
TURN_S_MAX = 0.05
"""Longest turn in processor time: other work of the machine is not the broker's fault."""
TURN_EVENTS = 3
"""Longest turn in dearest events of these modules, where the machine is so slow that this is more."""
ROUNDS = 3
"""Rounds in which turns may be longer, as others use the processor's caches; turns that are too long are so in each."""
GROWTH_BYTES_MAX = 96 * 1024 * 1024


def waited_s(pid: int) -> float:
    """Return the time for which the main thread of a process has waited for a processor so far."""
    return int(Path(f"/proc/{pid}/schedstat").read_text(encoding="ascii").split()[1]) / 1e9


async def rate(broker: int, producer: Context, inbox: Consumer) -> float:
    """Emit events, and return how many per second had their result.

    Time in which the broker would have worked, but the machine did not let it, is left out.
    """
    channel = producer.create_topic(CHANNEL, model="channel")
    began_s, waited_before_s = time.monotonic(), waited_s(broker)
    for number in range(EVENTS):
        await producer.send(channel, str(number))
        await asyncio.sleep(max(0.0, began_s + (number + 1) * PAUSE_S - time.monotonic()))
    for _ in range(2 * EVENTS):  # Each event has two results: itself, and its number.
        assert await inbox.receive(timeout=PATIENCE_S) is not None
    took_s = time.monotonic() - began_s - (waited_s(broker) - waited_before_s)
    return EVENTS / max(took_s, EVENTS * PAUSE_S)


def dearest_s(texts: Sequence[str]) -> float:
    """Return the processor time that the dearest of some modules takes for one event, on this machine."""
    limits, found = Limits(), []
    for text in texts:
        code = wasm.compiled(wasm.translated(text), limits.modulator_memory_bytes_max)
        program = wasm.Program(code, limits.modulator_memory_bytes_max)
        began_s = time.process_time()
        with suppress(wasm.WasmFault):
            program.start(b"", limits, 1 << 20).process(Event(b"7"))
        found.append(time.process_time() - began_s)
    return max(found)


@pytest.mark.parametrize("hostile", [HOSTILE[1::4], *soaked([HOSTILE])], ids=len)
@scene
async def test_hostile_clients_do_not_keep_an_honest_one_from_its_results(
    tmp_path: Path, hostile: Sequence[str]
) -> None:
    turn_s_max = max(TURN_S_MAX, TURN_EVENTS * dearest_s(hostile))
    overlay = {"enabled": True, "compile_share": 1.0}
    settings: dict[str, Any] = {**QUICK, "island": True, "udp": apart()}
    broker_overlay = overlay | {"broker": True, "modulators": "any"}
    with agent(tmp_path / "broker", {**settings, "overlay": broker_overlay}, fresh=True) as broker:
        async with AsyncExitStack() as stack:

            async def client(name: str) -> Context:
                factory = ConnectionFactory(data=tmp_path / name, **settings, overlay=overlay)
                return await stack.enter_async_context(factory.create_context())

            async def consume(name: str, modulator: Modulator) -> Consumer:
                ctx = await client(name)
                return await ctx.create_consumer(ctx.create_topic(CHANNEL, model="channel"), modulator=modulator)

            producer, inbox = await client("producer"), await consume("honest", example("every_nth", b"\1"))

            async def settled(consumer: Consumer) -> bool:
                return consumer.overlay.home is not None or bool(consumer.overlay.refusal)

            await until(partial(settled, inbox))
            alone = await rate(broker.pid, producer, inbox)
            before = broker.tell()
            for number, text in enumerate(hostile):
                await until(partial(settled, await consume(f"hostile-{number}", Modulator.wat(text))))
            broker.tell()
            beside, after = await rate(broker.pid, producer, inbox), broker.tell()
            for _ in range(ROUNDS - 1):
                if after["turn_s"] >= turn_s_max:
                    beside, after = await rate(broker.pid, producer, inbox), broker.tell()
    assert beside >= 0.8 * alone
    assert after["turn_s"] < turn_s_max
    assert after["memory_bytes"] - before["memory_bytes"] < GROWTH_BYTES_MAX
