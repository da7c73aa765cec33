"""Population mode beside faithful mode: its delays, measured in a faithful run, and a comparison of the two modes.

Messages are what is measured (`calibrate`). One that one node of a contact has and the other lacks is *seen* to pass if
the other receives it from the first; otherwise it is *censored*: when the contact or its life ends, or when it comes
from elsewhere, all that is known is that it would have taken longer. So contacts count by what they have to pass on,
and transfers that short contacts cut off count as well.

What a node had before the two found each other (rows `up` of both) is measured from the start of the contact: that is
the discovery. What it gains after the first of that has passed is measured from the gain: that is a hop. Hops of own
messages are measured apart, and so are those to neighbours that the giver of the gain has found, too.

The modes are compared on the same scenario and seed (`compared`): how far off population mode is, and what it saves.
Delays are those from publication to reception. The distance of their distributions is that of Kolmogorov and Smirnov:
the largest difference between the shares of receptions that came within any time. Processor time is that of the runs
alone; what both modes do before (moving nodes, finding contacts) is not counted. Short runs are repeated, and the least
time counts.
"""

from __future__ import annotations

import bisect
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from carrypost.arrays import Codes, Flags, Floats, Ints
from carrypost.emu.engine.world import Progress
from carrypost.emu.population.delays import CONTACTS_MIN, NEVER_US, Calibration, Delays, fingerprint, quantiles
from carrypost.emu.records import Records
from carrypost.emu.rows import TDELAY, Copies, Log, log_of
from carrypost.emu.runs import prepare, run
from carrypost.emu.scenario import Scenario
from carrypost.errors import LocalError
from carrypost.log.record import Kind
from carrypost.model.times import MICROSECONDS
from carrypost.version import __version__

Pair = tuple[int, int]
Signs = Mapping[Pair, list[tuple[int, bool]]]
"""By host and neighbour, when one was found or given up, in order."""
OVERRIDES = {"mode": "population", "population.delays": "zero"}
"""Read a scenario so, and what population mode does not model is refused before anything runs."""
HOPS_MIN = 100
"""Hops of a kind that are seen, at least, for a table of their own."""


def calibrate(
    path: Path, seed: int | str, duration_s: float, changes: Mapping[str, object],
    watch: Callable[[Progress], None] | None = None,
) -> Calibration:  # fmt: skip
    """Run a scenario in faithful mode for this time, and measure its delays."""
    changes = {**changes, "duration_s": duration_s}
    Scenario.load(path, {**changes, **OVERRIDES})
    scenario = Scenario.load(path, {**changes, "mode": "faithful"})
    return measured(scenario, seed, run(scenario, seed, watch=watch).table)


def measured(scenario: Scenario, seed: int | str, record: pa.Table) -> Calibration:
    """Return the delays in a record of this scenario; a record with too few events is refused."""
    log = log_of(record)
    contacts, copies = _contacts(log), _Gains(log)
    stock, opened_us = _stock(contacts, copies)
    hops = _hops(contacts, opened_us, copies)
    found = sum(contact.up_us < NEVER_US for contact in contacts)
    together = _together(hops)
    old, fresh = int(stock.seen.sum()), int(together.seen.sum())
    if len(contacts) < CONTACTS_MIN or not old or not fresh:
        text = (
            f"{len(contacts):,} contacts, of which {found:,} were found, {old:,} messages in them and {fresh:,} hops; "
        )
        text += f"at least {CONTACTS_MIN} contacts, a message and a hop are required: calibrate a longer run"
        raise LocalError(f"{scenario.name}: this run has too few events to measure delays: {text}")
    tables = [quantiles(*(each if each.seen.sum() >= HOPS_MIN else together)) for each in hops]
    return Calibration(
        discovery_s=quantiles(*stock),
        published_s=tables[0],
        relayed_s=tables[1],
        awaited_s=tables[2],
        scenario=scenario.name,
        seed=str(seed),
        duration_s=scenario.duration_us / MICROSECONDS,
        version=__version__,
        contacts=len(contacts),
        censored=len(contacts) - found,
        hops=fresh,
        size_max=int(log.size[log.of(Kind.PUBLISH)].max(initial=0)),
        fingerprint=fingerprint(scenario),
    )


class _Contact(NamedTuple):
    """A contact of the record."""

    a: int
    b: int
    start_us: int
    end_us: int
    up_us: int
    """Time at which both had found each other; `NEVER_US`: they did not."""


class _Delays(NamedTuple):
    """Delays by columns, as `quantiles` takes them."""

    since_us: Ints
    until_us: Ints
    seen: Flags

    def select(self, which: Flags, from_us: int | Ints) -> _Delays:
        """Return only these, measured from a time on."""
        return _Delays((self.since_us - from_us)[which], (self.until_us - from_us)[which], self.seen[which])


class _Gains:
    """Gains of all nodes, by columns, sorted by node and message."""

    def __init__(self, log: Log) -> None:
        copies = Copies.of(log)
        self._messages = len(log.messages)
        self._key = copies.node * self._messages + copies.message
        gained = np.where(copies.received >= 0, copies.received, copies.publication)  # Authors receive nothing.
        self._t_us, self._giver = log.t_us[gained], log.peer[gained]
        self._deadline_us = np.full(self._messages, NEVER_US)
        deadline_us = log.attr_us("deadline")[copies.publications]
        self._deadline_us[log.message[copies.publications]] = np.where(deadline_us < 0, NEVER_US, deadline_us)

    def passing(self, contact: _Contact, node: int, other: int) -> tuple[_Delays, Ints, Codes]:
        """Return the messages that a node has and another lacks in a contact: from when to when, gains and givers."""
        mine = slice(*np.searchsorted(self._key, (node * self._messages, (node + 1) * self._messages)).tolist())
        message, gain_us = self._key[mine] % self._messages, self._t_us[mine]
        wanted = other * self._messages + message
        place = np.minimum(np.searchsorted(self._key, wanted), len(self._key) - 1)
        got_us = np.where(self._key[place] == wanted, self._t_us[place], NEVER_US)
        end_us = np.minimum(contact.end_us, self._deadline_us[message])
        found = _Delays(
            np.maximum(gain_us, contact.start_us),
            np.minimum(got_us, end_us),
            (got_us < end_us) & (self._giver[place] == node),
        )
        lacking = found.since_us < found.until_us
        return found.select(lacking, 0), gain_us[lacking], self._giver[mine][lacking]


def _contacts(log: Log) -> list[_Contact]:
    signs: defaultdict[Pair, list[tuple[int, bool]]] = defaultdict(list)
    up = set(log.of(Kind.UP).tolist())
    for row in log.of(Kind.UP, Kind.DOWN).tolist():
        signs[int(log.node[row]), int(log.peer[row])].append((int(log.t_us[row]), row in up))
    end_us = log.attr_us("end")
    contacts = []
    for row in log.of(Kind.CONTACT).tolist():
        a, b, start_us, until_us = (int(column[row]) for column in (log.node, log.peer, log.t_us, end_us))
        up_us = max(_up_us(signs.get(pair, []), start_us, until_us) for pair in ((a, b), (b, a)))
        contacts.append(_Contact(a, b, start_us, until_us, up_us))
    return contacts


def _up_us(text: list[tuple[int, bool]], start_us: int, until_us: int) -> int:
    """Return when a host had found its neighbour, in a contact of this time; `NEVER_US`: not in this contact."""
    after = bisect.bisect_right(text, (start_us, True))
    if after and text[after - 1][1]:
        return start_us  # It still believed in the contact before.
    return next((t_us for t_us, up in text[after:] if up and t_us < until_us), NEVER_US)


def _stock(contacts: list[_Contact], copies: _Gains) -> tuple[_Delays, list[int]]:
    """Return the delays of what nodes had before they found each other, and when the first of it passed, by contact."""
    delays, opened_us = [], []
    for contact in contacts:
        first_us = NEVER_US
        for node, other in (contact[:2], contact[1::-1]):
            found, gain_us, _ = copies.passing(contact, node, other)
            old = gain_us < contact.up_us
            delays.append(found.select(old, contact.start_us))
            first_us = int(found.until_us[old & found.seen].min(initial=first_us))
        opened_us.append(first_us if first_us < NEVER_US else contact.up_us)
    return _together(delays), opened_us


def _hops(contacts: list[_Contact], opened_us: list[int], copies: _Gains) -> list[_Delays]:
    """Return the delays of hops to neighbours that are found, by kind: published, relayed and awaited."""
    spans: defaultdict[Pair, list[tuple[int, int]]] = defaultdict(list)
    for contact, since_us in zip(contacts, opened_us, strict=True):
        for pair in (contact[:2], contact[1::-1]):
            spans[pair].append((since_us, contact.end_us))

    def kind(giver: int, other: int, t_us: int) -> int:
        if giver < 0:
            return 0
        return 2 if any(since_us <= t_us < end_us for since_us, end_us in spans.get((giver, other), ())) else 1

    delays: list[list[_Delays]] = [[], [], []]
    for contact, since_us in zip(contacts, opened_us, strict=True):
        for node, other in (contact[:2], contact[1::-1]):
            found, gain_us, givers = copies.passing(contact, node, other)
            fresh = gain_us >= since_us
            found, gain_us, givers = found.select(fresh, gain_us), gain_us[fresh], givers[fresh]
            gains = zip(givers.tolist(), gain_us.tolist(), strict=True)
            kinds = np.array([kind(giver, other, t_us) for giver, t_us in gains], np.int64)
            for each, collected in enumerate(delays):
                collected.append(found.select(kinds == each, 0))
    return list(map(_together, delays))


def _together(parts: list[_Delays]) -> _Delays:
    none = _Delays(np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0, np.bool_))
    return _Delays(*(np.concatenate(column) for column in zip(none, *parts, strict=True)))


FAITHFUL, IDEAL, POPULATION, COUNTED = "faithful", "ideal", "population", "population, no rows"
_REPEATS = 3
WatchModes = Callable[[str, Progress], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModeFigures:
    """One run of the table; distances and differences are to the faithful run of the same seed."""

    mode: str
    seed: int | str
    receptions: int
    delay_mean_s: float
    hops_mean: float
    ks: float | None
    """Distance of the distributions of delays; None where rows are not kept."""
    cpu_s: float

    def beside(self, faithful: ModeFigures) -> dict[str, object]:
        """Return the figures, and by how much they differ from those of a faithful run."""
        ratio = {
            f"{name}_off": getattr(self, name) / getattr(faithful, name) - 1 if getattr(faithful, name) else None
            for name in ("receptions", "delay_mean_s", "hops_mean")
        }
        return {**asdict(self), **ratio, "cpu_share": self.cpu_s / faithful.cpu_s}


def compared(
    path: Path, seed: int | str, delays: Path, changes: Mapping[str, object], *, ideal: bool = False,
    watch: WatchModes = lambda _, __: None,
) -> Iterator[ModeFigures]:  # fmt: skip
    """Yield the figures of a scenario in each mode, faithful first."""
    usual = {**changes, "population.delays": str(delays.absolute())}
    modes: dict[str, dict[str, object]] = {
        POPULATION: {"mode": "population"},
        COUNTED: {"mode": "population", "population.rows": "none"},
    }
    scenarios = {name: Scenario.load(path, {**usual, **mode}) for name, mode in modes.items()}
    Delays.of(scenarios[POPULATION])  # What is refused is refused before anything long.
    others = [FAITHFUL, IDEAL] if ideal else [FAITHFUL]
    scenarios = {name: Scenario.load(path, {**changes, "mode": name}) for name in others} | scenarios
    reference: Floats | None = None
    counted: ModeFigures | None = None
    for name, scenario in scenarios.items():
        repeats = _REPEATS if scenario.of_population else 1
        record, cpu_s = _timed(scenario, seed, repeats, partial(watch, name))
        if name == COUNTED and counted is not None:
            yield ModeFigures(**asdict(counted) | {"mode": COUNTED, "ks": None, "cpu_s": cpu_s})
            continue
        delay_s, hops = _received(record)
        reference = delay_s if reference is None else reference
        counted = ModeFigures(
            mode=name, seed=seed, receptions=len(hops), delay_mean_s=_mean(delay_s), hops_mean=_mean(hops),
            ks=distance(reference, delay_s), cpu_s=cpu_s,
        )  # fmt: skip
        yield counted


def distance(one: Floats, other: Floats) -> float:
    """Return the distance of Kolmogorov and Smirnov between two samples; 1 if one of them is empty."""
    if not len(one) or not len(other):
        return float(len(one) != len(other))
    values = np.concatenate([one, other])
    mine, yours = (np.searchsorted(np.sort(each), values, side="right") / len(each) for each in (one, other))
    return float(np.abs(mine - yours).max())


def _timed(
    scenario: Scenario, seed: int | str, repeats: int, watch: Callable[[Progress], None]
) -> tuple[Records, float]:
    found: list[tuple[float, Records]] = []
    for _ in range(repeats):
        prepared = prepare(scenario, seed)
        begun_s = time.process_time()
        record = prepared.run(watch=watch)
        found.append((time.process_time() - begun_s, record))
    return found[-1][1], min(cpu_s for cpu_s, _ in found)


def _received(record: Records) -> tuple[Floats, Ints]:
    """Return the delays of receptions in seconds, and their hops."""
    copies = Copies.of(log_of(record.table))
    known, delay_us = copies.delays[TDELAY]
    return delay_us[known] / MICROSECONDS, copies.hops[known]


def _mean(values: Floats | Ints) -> float:
    return float(values.mean()) if len(values) else 0.0
