"""Hashes of the records of many emulated runs, to show that a change of structure keeps the behaviour.

    python tools/records.py                         run them all and print a hash for each
    python tools/records.py --write before.txt      and keep them
    python tools/records.py --against before.txt    compare; exit code 1 if anything differs
    python tools/records.py --only faults waypoint  those whose name contains one of these

The record of a run is a pure function of scenario and seed, so a change that is meant to change nothing keeps every
hash. The runs cover both modes, every ordering, signed and unsigned messages, lossy and slow links, small caches,
churn, crashes, full disks and wrong clocks; the shipped scenarios are shortened. `drawn` are whole ranges of the random
scenarios that `carrypost emu soak` searches. `messaging` are those of `carrypost emu soak --messaging`; their hashes
also cover every event that a host gave to the programs on it, answers to their commands included.

The first row of a record has the versions and all settings; it is left out of the hash, so that a setting that is only
added changes nothing. `--keep FOLDER` keeps the records as Parquet, to look at what differs.
"""

from __future__ import annotations

import argparse
import hashlib
import re
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from carrypost.emu import run
from carrypost.emu.engine.driver import EmulatedDriver
from carrypost.emu.verify.programs import Programs
from carrypost.emu.verify.random_scenarios import MESSAGING, ORDER, PLAIN
from carrypost.emu.verify.soak import DRAWS, Watched
from carrypost.log.events import Event

SCENARIOS: Final = Path(__file__).resolve().parents[1] / "scenarios"
SEEDS: Final = (1, 2, 3)
DRAWN: Final = 20
"""Random scenarios in one range."""
_WALK: Final = """
duration_s = 300
[radio]
range_m = 60
loss = 0.05
duplicate = 0.02
reorder = 0.1
delay_s = 0.02
[mobility]
model = "random-waypoint"
count = 16
nodes_per_km2 = 200
speed_min_m_per_s = 0.5
speed_max_m_per_s = 3.0
[[workload]]
kind = "broadcast"
first_s = 5
period_s = 30
size = 2000
"""
_FAULTS: Final = {
    "faults.crash_per_h": 60,
    "faults.away_per_h": 30,
    "faults.suspend_per_h": 30,
    "faults.disk_full_per_h": 30,
    "faults.disk_full_s": 10,
    "faults.clock_skew_s": 2,
    "faults.clock_step_per_h": 20,
    "faults.store_lost": 0.2,
    "disk_delay_s": 0.01,
}
_SIGNED: Final = {
    "settings.security": "signed", "settings.lifetime_s_default": 600, "settings.lifetime_s_max": 3600,
    "duration_s": 120,
}  # fmt: skip
_SPOILED: Final = {"faults.corrupt": 0.03, "faults.truncate": 0.03}


@dataclass(frozen=True)
class Case:
    """One scenario: a shipped one by name, or a text, and the changes to it."""

    scenario: str
    changes: Mapping[str, object] = field(default_factory=dict)


def _order(ordering: str) -> dict[str, object]:
    return {"workload.0.ordering": ordering}


CASES: Final[dict[str, Case]] = {
    "city_bus-causal": Case("city_bus", {"duration_s": 9000} | _order("causal")),
    "city_bus-none": Case("city_bus", {"duration_s": 3600} | _order("none")),
    "city_bus-ideal": Case("city_bus", {"duration_s": 3600, "mode": "ideal"} | _order("causal")),
    "ostermalm-delta": Case("ostermalm", {"duration_s": 900} | _order("delta-causal")),
    "ostermalm-none": Case("ostermalm", {"duration_s": 300, "mode": "ideal"} | _order("none")),
    "waypoint": Case(_WALK),
    "waypoint-ideal-delta": Case(
        _WALK, {"mode": "ideal", "workload.0.lifetime_s": 90, "radio.loss": 0.0, "radio.duplicate": 0.0,
                "radio.reorder": 0.0, "radio.delay_s": 0.0} | _order("delta-causal"),
    ),
    "waypoint-large": Case(
        _WALK, {"workload.0.size": 120_000, "workload.0.period_s": 60, "radio.rate_bytes_per_s": 200_000}
    ),
    "waypoint-slow": Case(_WALK, {"radio.rate_bytes_per_s": 8_000, "radio.delay_s": 0.3, "radio.airtime": "shared"}),
    "waypoint-small-cache": Case(_WALK, {"settings.cache_messages_max": 12, "workload.0.lifetime_s": 120}),
    "waypoint-horizon": Case(_WALK, {"settings.horizon_hops": 3, "settings.altruistic": True}),
    "waypoint-paper": Case(_WALK, {"settings.paper_mode": True}),
    "signed": Case(_WALK, _SIGNED),
    "signed-spoiled-causal": Case(_WALK, _SIGNED | _SPOILED | _order("causal")),
    "faults": Case(_WALK, _FAULTS),
    "faults-causal": Case(_WALK, _FAULTS | _order("causal")),
    "faults-delta": Case(_WALK, _FAULTS | {"workload.0.lifetime_s": 60} | _order("delta-causal")),
}  # fmt: skip
_UNSAID: Final = re.compile(
    r", (recipients=\(\)|origin=b''|connected=False|event=0|home=None|covers=None|seal=b''|path=\(\))"
)
"""Texts of headers and fields of events that were added later, where they say nothing: they change no hash."""
FAMILIES: Final = {"drawn": PLAIN, "drawn-ordered": ORDER, "messaging": MESSAGING}


def hashed(table: pa.Table) -> str:
    """Return the hash of all rows but the first."""
    digest = hashlib.sha256()
    with pa.BufferOutputStream() as made:
        with pa.ipc.new_stream(made, table.schema) as stream:
            stream.write_table(table.slice(1).combine_chunks())
        digest.update(made.getvalue())
    return digest.hexdigest()


def one(name: str, seed: int, keep: Path | None) -> tuple[str, str, int, float]:
    """Run a case; return its name, hash, rows and CPU seconds."""
    began_s = time.process_time()
    with tempfile.TemporaryDirectory(prefix="carrypost-records-") as folder:
        if name in FAMILIES:
            first = 1 + DRAWN * (seed - 1)
            runs = [_drawn(name, each, Path(folder)) for each in range(first, first + DRAWN)]
        else:
            runs = [(_emulated(CASES[name], seed, Path(folder)), "")]
    label = f"{name}/{seed}"
    tables = [table for table, _ in runs]
    digest = hashlib.sha256("".join(hashed(table) + events for table, events in runs).encode()).hexdigest()
    if keep is not None:
        for number, table in enumerate(tables):
            pq.write_table(table, keep / f"{name}-{seed}-{number}.parquet")
    return label, digest, sum(map(len, tables)), time.process_time() - began_s


def _emulated(case: Case, seed: int, folder: Path) -> pa.Table:
    file = SCENARIOS / f"{case.scenario}.toml"
    if "\n" in case.scenario:
        file = folder / "waypoint.toml"
        file.write_text(case.scenario, encoding="utf-8")
    return run(file, seed, overrides=case.changes).table


def _drawn(name: str, seed: int, folder: Path) -> tuple[pa.Table, str]:
    """Run a drawn scenario; return its record, and the hash of the events of its programs, if there are any."""
    drawn = DRAWS[FAMILIES[name]](seed)
    scenario = drawn.write(folder / str(seed))
    if drawn.family != MESSAGING:
        return run(scenario, seed).table, ""
    watched, digest = Watched(drawn, scenario), hashlib.sha256()

    def application(topics: Sequence[str], observe: Callable[[EmulatedDriver, Event], None]) -> Programs:
        def witness(driver: EmulatedDriver, event: Event) -> None:
            digest.update(_UNSAID.sub("", f"{driver.name} {driver.t_us} {event!r}\n").encode())
            observe(driver, event)

        return watched(topics, witness)

    table = run(scenario, seed, application=application).table
    digest.update(repr(watched.problems()).encode())
    return table, digest.hexdigest()


def main(argv: Sequence[str]) -> int:
    """Run the cases and print, keep or compare their hashes."""
    parser = argparse.ArgumentParser(description=str(__doc__), formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", type=Path, metavar="FILE", help="keep the hashes")
    parser.add_argument("--against", type=Path, metavar="FILE", help="compare with hashes that were kept")
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="also keep the records, to look at what differs")
    parser.add_argument(
        "--only", nargs="+", default=[""], metavar="TEXT", help="cases whose name contains one of these"
    )
    parser.add_argument("--jobs", type=int, default=2, metavar="N", help="processes")
    given = parser.parse_args(argv)
    before = _read(given.against) if given.against else {}
    names = [name for name in (*CASES, *FAMILIES) if any(text in name for text in given.only)]
    if not names:
        parser.error(f"no case has {' or '.join(given.only)} in its name; there are: {', '.join((*CASES, *FAMILIES))}")
    if given.keep:
        given.keep.mkdir(parents=True, exist_ok=True)
    work = [(name, seed) for seed in SEEDS for name in names]
    found: dict[str, str] = {}
    differing = 0
    with ProcessPoolExecutor(given.jobs, mp_context=get_context("spawn")) as pool:
        for label, digest, rows, cpu_s in pool.map(partial(_unpacked, keep=given.keep), work):
            found[label] = digest
            differs = label in before and before[label] != digest
            differing += differs
            print(
                f"{label:<28}{rows:>9,} rows {cpu_s:>6.1f} s  {digest[:16]}{'  DIFFERS' if differs else ''}", flush=True
            )
    if given.write:
        given.write.write_text("".join(f"{label} {digest}\n" for label, digest in found.items()), encoding="utf-8")
    if given.against:
        unknown = [label for label in found if label not in before]
        print(f"{len(found) - differing - len(unknown)} of {len(found)} records are the same" + (
            f"; not in {given.against}: {', '.join(unknown)}" if unknown else ""))  # fmt: skip
        return int(differing > 0 or bool(unknown))
    return 0


def _unpacked(work: tuple[str, int], keep: Path | None) -> tuple[str, str, int, float]:
    return one(*work, keep)


def _read(file: Path) -> dict[str, Any]:
    lines = file.read_text(encoding="utf-8").splitlines()
    return dict(line.split() for line in lines if line)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
