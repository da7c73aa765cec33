"""The conformance table of modulators: events, and the results, states and faults that must follow.

`play` runs a row in one instance, or moves the state to a new instance after each event. Both runs must agree, for
every kind of modulator.
"""

from __future__ import annotations

import functools
import struct
from collections.abc import Sequence
from typing import NamedTuple

from carrypost.config import Limits
from carrypost.errors import LocalError
from carrypost.gossip.wire.pieces import Blank
from carrypost.overlay.modulators import programs, registry
from carrypost.overlay.modulators.modulator import Instance, Modulator, Results
from carrypost.overlay.modulators.registry import Event, Result, modulator

STATE_BYTES_MAX = 64
LIMITS = Limits()


@modulator("every-nth", cost_us=7)
class EveryNth:
    """Pass on every n-th event, with its number; fail with events that say so."""

    def __init__(self, n: int) -> None:
        self.count, self.n = 0, n

    def process(self, event: Event) -> list[Event | Result]:
        self.count += 1
        if event.payload == b"fail":
            raise RuntimeError("as told")
        return [] if self.count % self.n else [event, Result(str(self.count).encode(), {"count": self.count})]

    def save(self) -> bytes:
        return self.count.to_bytes(4, "little")

    def load(self, state: bytes) -> None:
        self.count = int.from_bytes(state, "little")

    def keep(self, result: Event | Result, age_us: int) -> bool:
        return result.payload != b"3" or age_us < 100


@modulator("hoard")
class Hoard:
    """Keep all payloads; its state can grow beyond any bound."""

    def __init__(self) -> None:
        self.all = b""

    def process(self, event: Event) -> list[Event | Result]:
        assert isinstance(event.payload, bytes)
        self.all += event.payload
        return [Result(self.all, {})]

    def save(self) -> bytes:
        return self.all

    def load(self, state: bytes) -> None:
        self.all = state


class Row(NamedTuple):
    """Events, and the answers of a modulator to them."""

    name: str
    modulator: Modulator
    events: Sequence[Event]
    results: Sequence[Results | None]
    """Of each event; None: a fault."""
    state: bytes = b""
    """In the end."""
    cost_us: int = 0
    """Declared, of all events."""


def grid(columns: int, rows: int) -> bytes:
    return struct.pack(f"<{columns * rows}d", *range(columns * rows))


def doubles(*values: int) -> bytes:
    return struct.pack(f"<{len(values)}d", *values)


named = Modulator.named
RED, BLUE, PLAIN = Event(b"r", {"colour": "red"}), Event(b"b", {"colour": "blue"}), Event(b"")
URGENT = Event(b"u", {"colour": "blue"}, {"colour": "blue", "JMSPriority": 9})
SQUARE, FLAT = Event(grid(4, 4), {"t": 1}), Event(grid(6, 2), {"columns": 6})
FLOOD = Event(Blank(80_000))
TEXT = Event(b"abcdefgh")
FAIL = Event(b"fail")
A, B, C = Event(b"a"), Event(b"b"), Event(b"c")
TABLE = [
    Row("selector", named("selector", text="colour = 'red'"), [RED, BLUE, PLAIN], [(RED,), (), ()], cost_us=15),
    Row("selector fields", named("selector", text="JMSPriority > 4"), [RED, URGENT], [(), (URGENT,)], cost_us=10),
    Row("selector blank", named("selector", text=" "), [PLAIN], [(PLAIN,)], cost_us=5),
    Row(
        "box inside", named("box", area=[1, 2, 3, 4]), [SQUARE],
        [(Result(doubles(9, 10, 13, 14), {"t": 1, "columns": 2, "column": 1, "row": 2}),)], cost_us=20,
    ),
    Row(
        "box clipped", named("box", area=[4, 1, 9, 9]), [FLAT, SQUARE],
        [(Result(doubles(10, 11), {"columns": 2, "column": 4, "row": 1}),), ()], cost_us=40,
    ),
    Row("box of all", named("box", area=[0, 0, 9, 9]), [SQUARE, FLAT], [(SQUARE,), (FLAT,)], cost_us=40),
    Row("box of nothing", named("box", area=[0, 0, 9, 9]), [Event(b""), Event(b"", {"columns": 3})], [(), ()],
        cost_us=40),
    Row(
        "box of no array", named("box", area=[0, 0, 1, 1]),
        [Event(b"seven!!"), Event(grid(2, 1), {"columns": 0}), Event(grid(3, 1)), Event(grid(2, 1), {"columns": "2"}),
         Event(grid(5, 1), {"columns": 2}), Event(grid(2, 1), {"columns": True})],
        [None] * 6, cost_us=120,
    ),
    Row(
        "box of the flood watch, emulated", named("box", area=[10, 10, 42, 42]), [FLOOD],
        [(Result(Blank(8_192), {"columns": 32, "column": 10, "row": 10}),)], cost_us=20,
    ),
    Row("synthetic", named("synthetic", cost_us=300), [TEXT, FLOOD], [(TEXT,), (FLOOD,)], cost_us=600),
    Row("synthetic, less", named("synthetic", ratio=0.5), [TEXT], [(Result(b"abcd"),)]),
    Row("synthetic, less, emulated", named("synthetic", ratio=0.5), [FLOOD], [(Result(Blank(40_000)),)]),
    Row("synthetic, more", named("synthetic", ratio=1.25), [TEXT], [(Result(b"abcdefghab"),)]),
    Row("synthetic, none", named("synthetic", ratio=0), [TEXT, FLOOD], [(), ()]),
    Row(
        "state", named("every-nth", n=2), [A, FAIL, B, C, FAIL, FAIL, A],
        [(), None, (B, Result(b"2", {"count": 2})), (), None, None, (A, Result(b"4", {"count": 4}))],
        state=b"\4\0\0\0", cost_us=49,
    ),
    Row("state that grows", named("hoard"), [A, B], [(Result(b"a", {}),), (Result(b"ab", {}),)], state=b"ab"),
]  # fmt: skip


@functools.cache
def _program(module: bytes) -> registry.Program:
    code, refusal = programs.compiled(module, LIMITS)
    if refusal:
        raise LocalError(refusal)
    return programs.program(code, LIMITS)


def instance(modulator: Modulator) -> Instance:
    program = _program(modulator.module) if modulator.module else None
    return Instance(modulator, LIMITS, STATE_BYTES_MAX, program=program)


def play(row: Row, *, carried: bool) -> tuple[list[Results | None], bytes | None, int, int]:
    """Return results, state, faults and execution time. `carried`: in a new instance for each event."""
    at_work, results, faults, busy_us = instance(row.modulator), [], 0, 0
    checkpoint = b""
    since: list[Event] = []
    for event in row.events:
        found = at_work.process(event)
        results.append(found)
        if found is None:
            assert at_work.rebuild(checkpoint, since)
        else:
            since.append(event)
        if carried:
            state = at_work.save()
            assert state is not None
            checkpoint, since = state, []
            faults, busy_us = faults + at_work.faults, busy_us + at_work.busy_us
            at_work = instance(row.modulator)
            assert at_work.rebuild(checkpoint)
    return results, at_work.save(), faults + at_work.faults, busy_us + at_work.busy_us
