"""Scenes of modules: an event beside a bare call, arithmetic beside Python, compiling beside other work, many seats."""

from __future__ import annotations

import asyncio
import ctypes
import random
import statistics
import threading
import time
from array import array
from collections.abc import Callable, Iterator
from pathlib import Path

from benchmarks._line import DESTINATION, Line
from examples.modulators.runoff import Runoff, packed

from benchmarks import _report
from carrypost import testing
from carrypost.config import Limits, Settings
from carrypost.node.modules import Compiler
from carrypost.overlay.modulators import programs
from carrypost.overlay.modulators.modulator import Instance, Modulator
from carrypost.overlay.modulators.registry import Event

EXAMPLES = Path(__file__).resolve().parents[1] / "examples" / "modulators"
EVENT_GOAL, RUNOFF_GOAL, COMPILING_GOAL, SEATS_GOAL = 1.6, 15.0, 1.5, 1.3
_PAYLOAD = 100
_ECHO = """(module (memory (export "memory") 1)
  (data (i32.const 0) "\\01\\00\\00\\00\\ff\\ff\\ff\\ff\\64\\00\\00\\00")
  (func (export "abi") (result i32) (i32.const 1))
  (func (export "alloc") (param i32) (result i32) (i32.const 4096))
  (func (export "open") (param i32 i32) (result i32) (i32.const 0))
  (func (export "process") (param $at i32) (param $size i32) (result i64)
    (memory.copy (i32.const 12) (i32.sub (i32.add (local.get $at) (local.get $size)) (i32.const 100)) (i32.const 100))
    (i64.const 112)))"""
"""A module whose result is the payload, of 100 bytes, copied."""


def started(modulator: Modulator) -> Instance:
    """Return a module at work."""
    limits = Limits()
    code, refusal = programs.compiled(modulator.module, limits)
    assert not refusal, refusal
    return Instance(modulator, limits, limits.modulator_state_bytes_max, program=programs.program(code, limits))


def each_us(run: Callable[[], object], count: int) -> float:
    """Return the CPU microseconds of one call."""
    began = time.process_time()
    for _ in range(count):
        run()
    return (time.process_time() - began) / count * 1e6


def event(repeats: int, events: int = 2_000) -> dict[str, object]:
    """Return what an event of 100 bytes takes beside a bare call of wasmtime with the same bytes in and out."""
    import wasmtime  # noqa: PLC0415 - need not be installed

    modulator = Modulator.wat(_ECHO)
    at_work, sample = started(modulator), Event(bytes(_PAYLOAD), {"n": 1})
    config = wasmtime.Config()
    config.consume_fuel = True
    engine = wasmtime.Engine(config)
    store = wasmtime.Store(engine)
    store.set_fuel(10**6)
    exports = wasmtime.Instance(store, wasmtime.Module(engine, modulator.module), []).exports(store)
    process, memory = exports["process"], exports["memory"]
    assert isinstance(process, wasmtime.Func)
    assert isinstance(memory, wasmtime.Memory)
    base, packed = ctypes.addressof(memory.data_ptr(store).contents), bytes(_PAYLOAD + 8)

    def bare() -> bytes:
        store.set_fuel(10**6)
        ctypes.memmove(base + 4_096, packed, len(packed))
        process(store, 4_096, len(packed))
        return ctypes.string_at(base, _PAYLOAD + 12)

    rounds = [(each_us(lambda: at_work.process(sample), events), each_us(bare, events)) for _ in range(repeats)]
    ours, theirs = (statistics.median(column) for column in zip(*rounds, strict=True))
    assert not at_work.faults
    times = ours / theirs
    return {
        "events": events, "bytes": _PAYLOAD, "event µs": ours, "bare µs": theirs, "times": times, "goal": EVENT_GOAL,
        "met": times <= EVENT_GOAL,
    }  # fmt: skip


def runoff(repeats: int, events: int = 20) -> dict[str, object]:
    """Return what the runoff of 100 × 100 cells takes as a module and in Python, which give the same bytes."""
    rng = random.Random(1)
    sample = Event(array("d", [3 * rng.random() for _ in range(10_000)]).tobytes())
    text = (EXAMPLES / "runoff.wat").read_text(encoding="utf-8")
    module = started(Modulator.wat(text, packed(0.5, 100, [10, 10, 42, 42])))
    plain = Runoff(0.5, 100, [10, 10, 42, 42])
    assert module.process(sample) == tuple(plain.process(sample))
    rounds = [
        (each_us(lambda: module.process(sample), 10 * events), each_us(lambda: plain.process(sample), events))
        for _ in range(repeats)
    ]
    ours, theirs = (statistics.median(column) for column in zip(*rounds, strict=True))
    return {
        "events": events, "module µs": ours, "python µs": theirs, "fuel": module.spent, "times": theirs / ours,
        "goal": RUNOFF_GOAL, "met": theirs / ours >= RUNOFF_GOAL,
    }  # fmt: skip


def compiling(rounds: int, messages: int = 100) -> dict[str, object]:
    """Return the latency of messages between two hosts, with and without modules being compiled one after the other.

    Wall time: the compiler's process has the other processors of the machine, if there are any.
    """
    line = Line({name: Settings.emulated(security="off", altruistic=True) for name in "ab"})
    line.last.host.subscribe(DESTINATION, now=line.now)
    line.run(20.0)
    loops = functions_of_loops(4_000)
    quiet_ms: list[float] = []
    busy_ms: list[float] = []
    for _ in range(rounds):
        quiet_ms += _latencies_ms(line, messages)
        with _Compiling(loops):
            busy_ms += _latencies_ms(line, messages)
    quiet, busy = (statistics.quantiles(each, n=100)[98] for each in (quiet_ms, busy_ms))
    return {
        "messages": len(quiet_ms), "p99 ms": quiet, "p99 ms compiling": busy, "times": busy / quiet,
        "goal": COMPILING_GOAL, "met": busy / quiet <= COMPILING_GOAL,
    }  # fmt: skip


def functions_of_loops(depth: int) -> bytes:
    """Return a module that takes a second or so to compile."""
    body = b"\0" + b"\3\x40" * depth + b"\x0b" * depth + b"\x0b"
    size = bytes([len(body) & 0x7F | 0x80, len(body) >> 7 & 0x7F | 0x80, len(body) >> 14])
    content = b"\1" + size + body
    head = bytes([len(content) & 0x7F | 0x80, len(content) >> 7 & 0x7F | 0x80, len(content) >> 14])
    return b"\0asm\1\0\0\0\1\4\1\x60\0\0\3\2\1\0\x0a" + head + content


def _latencies_ms(line: Line, messages: int) -> Iterator[float]:
    for _ in range(messages):
        before, delivered = time.perf_counter(), line.last.delivered
        line.first.host.publish(DESTINATION, bytes(_PAYLOAD), now=line.now)
        line.run(5.0, until=delivered + 1)
        assert line.last.delivered > delivered
        yield (time.perf_counter() - before) * 1e3


class _Compiling:
    """Compiles a module again and again, in a thread of its own."""

    def __init__(self, module: bytes) -> None:
        self._module, self._begun, self._over = module, threading.Event(), threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()))

    async def _run(self) -> None:
        compiler = Compiler(Limits(), 1.0)
        while not self._over.is_set():
            await compiler.compile(self._module)
            self._begun.set()

    def __enter__(self) -> None:
        """Return once the first module is compiled, and the next one is being compiled."""
        self._thread.start()
        self._begun.wait()

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()


def seats(repeats: int, events: int = 50) -> dict[str, object]:
    """Return the CPU time of an event for one seat of a broker, alone and with 255 others that are idle."""
    rounds = [(_seat_us(0, events), _seat_us(255, events)) for _ in range(repeats)]
    alone, many = (statistics.median(column) for column in zip(*rounds, strict=True))
    return {
        "events": events, "seats": 256, "one seat µs": alone, "many seats µs": many, "times": many / alone,
        "goal": SEATS_GOAL, "met": many / alone <= SEATS_GOAL,
    }  # fmt: skip


def _seat_us(idle: int, events: int) -> float:
    overlay = {"enabled": True, "modulators": "any"}
    limits = {"seats_per_client_max": 256}
    with testing.network("p", "y", "z", seed=1, island=True, overlay=overlay, limits=limits, security="off") as net:
        net.add("A", overlay=overlay | {"broker": True})
        for each in "pyz":
            net.link("A", each)
        net.advance(20)
        net.consume("y", "flood", Modulator.wat(_ECHO))
        for _ in range(idle):
            net.consume("z", "idle", Modulator.wat(_ECHO))
        net.advance(20)
        net.emit("p", "flood", bytes(_PAYLOAD))
        net.advance(10)
        began = time.process_time()
        for _ in range(events):
            net.emit("p", "flood", bytes(_PAYLOAD))
            net.advance(0.2)
        spent_s = time.process_time() - began
        assert len(net.deliveries("y")) >= events
        return spent_s / events * 1e6


def show(repeats: int, *, quick: bool, json: bool) -> list[dict[str, object]]:
    """Print the tables; returns their rows. Quick: without what takes more than a few seconds."""
    scenes = {
        "Modules: an event of a module, and a bare call of wasmtime": event,
        "Runoff: 100 × 100 cells, as a module and in Python": runoff,
        "Compiling: the latency of messages meanwhile, and without": compiling,
        "Seats: a busy one, alone and beside 255 idle ones": seats,
    }
    rows = []
    for title, scene in list(scenes.items())[: 2 if quick else None]:
        rows.append(scene(repeats if quick else max(3, repeats)))
        _report.show(title, rows[-1:], json=json)
    return rows
