"""One emulated run in a program of its own: its costs, and those of a flood over the same contacts.

Run by benchmarks/emu.py and benchmarks/causal.py with one argument, JSON: the scenario's file, changes to it, the seed,
the path of the record, and whether to time each step. Answers by one line of JSON. Only whole parts of a run are timed,
which costs next to nothing, unless steps are. Memory is read right after the run, before anything else is done. The
bound is computed after that, from the record.
"""

from __future__ import annotations

import functools
import gc
import json
import signal
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from benchmarks._steps import Steps

from carrypost.emu import records, runs
from carrypost.emu.scenario import Scenario
from carrypost.emu.summary import summarise
from carrypost.emu.verify.bound import flood_us
from carrypost.errors import CarrypostError
from carrypost.log.record import Kind
from carrypost.model.times import MICROSECONDS
from carrypost.traces.contacts import Contact

BOUND_ROUNDS = 3


class Clock:
    """CPU seconds that some methods took."""

    def __init__(self, owner: type, *names: str) -> None:
        self.spent_s = 0.0
        for name in names:
            setattr(owner, name, self._clocked(getattr(owner, name)))

    def _clocked(self, method: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(method)
        def clocked(*args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - whatever it is
            began_s = time.process_time()
            try:
                return method(*args, **kwargs)
            finally:
                self.spent_s += time.process_time() - began_s

        return clocked


def measured(scenario: Path, overrides: dict[str, object], seed: int, out: Path, *, clocked: bool) -> dict[str, Any]:
    """Return the run, then the bound; `clocked`: and what its steps took."""
    writing = Clock(records.Sink, "write", "close")
    steps = Steps() if clocked else None
    start_s = time.process_time()
    prepared = runs.prepare(Scenario.load(scenario, overrides), seed)
    built_s = time.process_time()
    prepared.run(out)
    ended_s = time.process_time()
    found: dict[str, Any] = {
        "start_s": start_s,
        "build_s": built_s - start_s,
        "run_s": ended_s - built_s - writing.spent_s,
        "record_s": writing.spent_s,
        "cpu_s": ended_s - start_s,
        "peak_bytes": _peak_bytes(),
        "record_bytes": out.stat().st_size,
        "nodes": prepared.nodes,
    }
    contacts = list(prepared.contacts())
    del prepared
    found |= _beside(contacts, records.read(out))
    found["steps"] = steps.rows(found["receptions"], found["run_s"]) if steps is not None else []
    return found


def _beside(contacts: list[Contact], table: pa.Table) -> dict[str, Any]:
    """Return the figures of the record, and those of a flood."""
    found = summarise(table, bound=False)
    order = found.ordered
    messages = [
        (row["message"], row["node"], _us(row["t"]), _us(float(end)) if (end := row["attrs"].get("deadline")) else None)
        for row in _rows(table, Kind.PUBLISH)
    ]
    presences = _presences(table)
    passable = [each[:4] for each in contacts]
    gc.collect()
    took_s, reached = [], 0
    for _ in range(BOUND_ROUNDS):
        began_s = time.process_time()
        reached = len(flood_us(passable, messages, presences))
        took_s.append(time.process_time() - began_s)
    return {
        "rows": found.rows,
        "contacts": found.contacts,
        "messages": found.published,
        "receptions": found.received,
        "sent_bytes": (found.control_bytes or 0) + (found.data_bytes or 0),
        "deliveries": found.delivered + found.delivered_own,
        "co_delivery_ratio": order.co_delivery_ratio if order else None,
        "barrier_entries": order.barrier.mean if order and order.barrier else None,
        "bound": reached,
        "bound_s": statistics.median(took_s),
    }


def _presences(table: pa.Table) -> list[tuple[str, int, int | None]]:
    """Return the presence of each node as (node, from, to)."""
    since: dict[str, int] = {}
    found: list[tuple[str, int, int | None]] = []
    for row in _rows(table, Kind.JOIN, Kind.LEAVE):
        if row["kind"] == Kind.JOIN:
            since[row["node"]] = _us(row["t"])
        else:
            found.append((row["node"], since.pop(row["node"]), _us(row["t"])))
    return [*found, *((node, join_us, None) for node, join_us in since.items())]


def _rows(table: pa.Table, *kinds: Kind) -> list[dict[str, Any]]:
    chosen = table.filter(pc.is_in(table["kind"], pa.array([kind.value for kind in kinds])))
    return [row | {"attrs": dict(row["attrs"] or ())} for row in chosen.to_pylist()]


def _us(seconds: float) -> int:
    return round(seconds * MICROSECONDS)


def _peak_bytes() -> int:
    """Return the most memory that this program had; `getrusage` would include that of its parent."""
    status = Path("/proc/self/status").read_text(encoding="utf-8")
    return next(int(line.split()[1]) * 1024 for line in status.splitlines() if line.startswith("VmHWM:"))


def main() -> int:
    """Do what the argument says."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the business of whoever started this.
    order = json.loads(sys.argv[1])
    try:
        found = measured(
            Path(order["scenario"]), order["overrides"], order["seed"], Path(order["out"]), clocked=order["steps"]
        )
    except CarrypostError as error:
        print(f"carrypost bench: {error}", file=sys.stderr)
        return 1
    print(json.dumps(found), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
