"""Calibration: the two delays of population mode, measured in the record of a faithful run.

Neighbours have found each other when both sides say so (rows `up`); a contact at whose start both still believed in the
one before is found at once. Contacts that end first are *censored*: all that is known is that they were too short. The
hop delay is the median over receptions from a neighbour that got or published the message after they had found each
other. Not the mean: most messages are pushed at once, and the few that are offered later would make all of them late.
"""

from __future__ import annotations

import bisect
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import numpy as np
import pyarrow as pa

from carrypost.emu.engine.world import Progress
from carrypost.emu.population.delays import CONTACTS_MIN, NEVER_US, Calibration, fingerprint, quantiles
from carrypost.emu.records.log import Log, log_of
from carrypost.emu.runs import run
from carrypost.emu.scenario.scenario import Scenario
from carrypost.errors import LocalError
from carrypost.model.times import MICROSECONDS
from carrypost.record import Kind
from carrypost.version import __version__

Signs = Mapping[tuple[int, int], list[tuple[int, bool]]]
"""By host and neighbour, when one was found or given up, in order."""
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
    signs = _signs(log)
    delay_us, censored = _found(log, signs)
    if (contacts := len(delay_us) + len(censored)) < CONTACTS_MIN or not delay_us:
        told = f"{contacts:,} contacts, of which {len(delay_us):,} were found: {CONTACTS_MIN} are the least"
        raise LocalError(f"{scenario.name}: this run says too little about delays, with {told}; calibrate a longer one")
    hops_us = list(_hops(log, signs))
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


def _found(log: Log, signs: Signs) -> tuple[list[int], list[int]]:
    """Return how long neighbours took to find each other, and how long the contacts were in which they did not."""
    delay_us: list[int] = []
    censored: list[int] = []
    end_us = log.attr_us("end")
    for row in log.rows(Kind.CONTACT).tolist():
        a, b, start_us, until_us = (int(column[row]) for column in (log.node, log.peer, log.t_us, end_us))
        both = [_up_us(signs.get(pair, []), start_us, until_us) for pair in ((a, b), (b, a))]
        found = [each for each in both if each is not None]
        if len(found) == len(both):
            delay_us.append(max(found) - start_us)
        else:
            censored.append(until_us - start_us)
    return delay_us, censored


def _up_us(told: list[tuple[int, bool]], start_us: int, until_us: int) -> int | None:
    """Return when a host had found its neighbour, in a contact of this time; None: not in this contact."""
    after = bisect.bisect_right(told, (start_us, True))
    if after and told[after - 1][1]:
        return start_us
    return next((t_us for t_us, up in told[after:] if up and t_us < until_us), None)


def _hops(log: Log, signs: Signs) -> Iterator[int]:
    """Yield how long messages took from neighbour to neighbour, within contacts in which they had found each other."""
    contacts: defaultdict[tuple[int, int], list[tuple[int, int]]] = defaultdict(list)
    end_us = log.attr_us("end")
    for row in log.rows(Kind.CONTACT).tolist():
        contacts[int(log.node[row]), int(log.peer[row])].append((int(log.t_us[row]), int(end_us[row])))
    met = defaultdict(list, {pair: spans for (a, b), spans in contacts.items() for pair in ((a, b), (b, a))})
    gained: dict[tuple[int, int], int] = {}
    for row in log.rows(Kind.PUBLISH, Kind.RECEIVE).tolist():
        node, peer, message, t_us = (int(column[row]) for column in (log.node, log.peer, log.message, log.t_us))
        gained[node, message] = t_us
        since_us = gained.get((peer, message), t_us)
        at = bisect.bisect_right(met[node, peer], (since_us, NEVER_US)) - 1
        if at < 0 or met[node, peer][at][1] <= t_us:
            continue  # It was carried from one contact to the next.
        if all(_was_up(signs.get(pair, []), since_us) for pair in ((node, peer), (peer, node))):
            yield t_us - since_us


def _was_up(told: list[tuple[int, bool]], t_us: int) -> bool:
    before = bisect.bisect_left(told, (t_us, False))
    return before > 0 and told[before - 1][1]
