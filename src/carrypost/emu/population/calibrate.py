"""Calibration: the two delays of population mode, measured in the record of a faithful run.

Neighbours have found each other when both sides say so (rows `up`); a contact at whose start both still believed in the
one before is found at once. If one of them then gets what the other had before, the median of these receptions counts:
on lossy links the exchange takes longer than the discovery. Contacts that end before they are found are *censored*: all
that is known is that they were too short. The hop delay is the median over messages that authors publish while a
neighbour is found. Not the mean: most are pushed at once, and the few that are lost would make all of them late.
"""

from __future__ import annotations

import bisect
from collections import defaultdict
from collections.abc import Callable, Mapping
from pathlib import Path
from statistics import median

import numpy as np
import pyarrow as pa

from carrypost.emu.engine.world import Progress
from carrypost.emu.population.delays import CONTACTS_MIN, Calibration, fingerprint, quantiles
from carrypost.emu.records.log import Log, log_of
from carrypost.emu.runs import run
from carrypost.emu.scenario.scenario import Scenario
from carrypost.errors import LocalError
from carrypost.model.times import MICROSECONDS
from carrypost.record import Kind
from carrypost.version import __version__

Pair = tuple[int, int]
Signs = Mapping[Pair, list[tuple[int, bool]]]
"""By host and neighbour, when one was found or given up, in order."""
Passed = Mapping[Pair, list[tuple[int, int, bool]]]
"""By pair, lower node first, what passed between them: when, since when the giver had it, and if it was the author."""
OVERRIDES = {"mode": "population", "population.delays": "zero"}
"""Read a scenario so, and what population mode does not model is refused before anything runs."""


def calibrate(
    path: Path, seed: int | str, duration_s: float, changes: Mapping[str, object],
    watch: Callable[[Progress], None] | None = None,
) -> Calibration:  # fmt: skip
    """Run a scenario in faithful mode for so long, and measure its delays."""
    changes = {**changes, "duration_s": duration_s}
    Scenario.load(path, {**changes, **OVERRIDES})
    scenario = Scenario.load(path, {**changes, "mode": "faithful"})
    return measured(scenario, seed, run(scenario, seed, watch=watch).table)


def measured(scenario: Scenario, seed: int | str, record: pa.Table) -> Calibration:
    """Return the delays that a record of this scenario tells; one with too few contacts is refused."""
    log = log_of(record)
    signs, passed = _signs(log), _passed(log)
    delay_us, censored, hops_us = _measured(log, signs, passed)
    if (contacts := len(delay_us) + len(censored)) < CONTACTS_MIN or not delay_us:
        told = f"{contacts:,} contacts, of which {len(delay_us):,} were found: {CONTACTS_MIN} are the least"
        raise LocalError(f"{scenario.name}: this run says too little about delays, with {told}; calibrate a longer one")
    sizes = log.size[log.rows(Kind.PUBLISH)]
    return Calibration(
        discovery_s=quantiles(np.array(delay_us, np.int64), np.array(censored, np.int64)),
        hop_s=round(float(np.median(hops_us))) / MICROSECONDS if hops_us else 0.0,
        scenario=scenario.name,
        seed=str(seed),
        duration_s=scenario.duration_us / MICROSECONDS,
        version=__version__,
        contacts=contacts,
        censored=len(censored),
        hops=len(hops_us),
        size_max=int(sizes.max(initial=0)),
        fingerprint=fingerprint(scenario),
    )


def _signs(log: Log) -> Signs:
    found: defaultdict[tuple[int, int], list[tuple[int, bool]]] = defaultdict(list)
    up = set(log.rows(Kind.UP).tolist())
    for row in log.rows(Kind.UP, Kind.DOWN).tolist():
        found[int(log.node[row]), int(log.peer[row])].append((int(log.t_us[row]), row in up))
    return found


def _passed(log: Log) -> Passed:
    found: defaultdict[Pair, list[tuple[int, int, bool]]] = defaultdict(list)
    gained: dict[tuple[int, int], int] = {}
    for row in log.rows(Kind.PUBLISH, Kind.RECEIVE).tolist():
        node, peer, message, t_us = (int(column[row]) for column in (log.node, log.peer, log.message, log.t_us))
        gained[node, message] = t_us
        if (since_us := gained.get((peer, message))) is not None:
            found[min(node, peer), max(node, peer)].append((t_us, since_us, int(log.hops[row]) == 1))
    return found


def _measured(log: Log, signs: Signs, passed: Passed) -> tuple[list[int], list[int], list[int]]:
    """Return how long neighbours took to find each other, how long contacts were in which they did not, and hops."""
    delay_us: list[int] = []
    censored: list[int] = []
    hops_us: list[int] = []
    end_us = log.attr_us("end")
    for row in log.rows(Kind.CONTACT).tolist():
        a, b, start_us, until_us = (int(column[row]) for column in (log.node, log.peer, log.t_us, end_us))
        both = [_up_us(signs.get(pair, []), start_us, until_us) for pair in ((a, b), (b, a))]
        up = [each for each in both if each is not None]
        if len(up) < len(both):
            censored.append(until_us - start_us)
            continue
        told = passed.get((min(a, b), max(a, b)), [])
        there = told[bisect.bisect_left(told, (start_us,)) : bisect.bisect_left(told, (until_us,))]
        old_us = [t_us for t_us, since_us, _ in there if since_us < max(up)]
        hops_us += [t_us - since_us for t_us, since_us, fresh in there if fresh and since_us > max(up)]
        delay_us.append((round(median(old_us)) if old_us else max(up)) - start_us)
    return delay_us, censored, hops_us


def _up_us(told: list[tuple[int, bool]], start_us: int, until_us: int) -> int | None:
    """Return when a host had found its neighbour, in a contact of this time; None: not in this contact."""
    after = bisect.bisect_right(told, (start_us, True))
    if after and told[after - 1][1]:
        return start_us
    return next((t_us for t_us, up in told[after:] if up and t_us < until_us), None)
