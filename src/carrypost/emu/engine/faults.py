"""Faults of a run, drawn from the seed before it begins.

Every kind of fault of every node has a stream of its own, so one more node, or one more kind, leaves the others alone.
Because all is known beforehand, a node's times of absence, whatever their cause, are one list of stays; contacts are
clipped to them like to any presence, and so the record shows correctly which nodes could hear each other. A node that
lost its store is a new node: its later stays have the name NAME.2, and so on.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Container, Iterable, Iterator, Sequence
from itertools import count
from typing import NamedTuple

from carrypost.chance import stream
from carrypost.emu.engine.clock import EmulatedClock
from carrypost.emu.scenario.tables import FaultsTable
from carrypost.model.times import MICROSECONDS
from carrypost.traces.contacts import Contact, Presence

HOUR_US = 3_600 * MICROSECONDS
LEAVE, AWAY, SUSPEND, CRASH, CRASH_LOST = "leave", "away", "suspend", "crash", "crash-lost"
DISK_FULL, CLOCK_STEP = "disk-full", "clock-step"


class NodeFault(NamedTuple):
    """Something that goes wrong with one node."""

    t_us: int
    node: str
    kind: str
    duration_us: int
    step_us: int = 0


class Stay(NamedTuple):
    """A node takes part in [start, end)."""

    node: str
    """Name of the node in this stay."""
    place: str
    """Name of the node in the scenario."""
    start_us: int
    end_us: int
    end: str
    """Why it ends; empty at the end of the run."""
    last: bool
    """True if no node of this name comes back."""


class FaultPlan(NamedTuple):
    """The faults of a run."""

    stays: list[Stay]
    """By start, then by name."""
    others: list[NodeFault]
    """Full disks and clocks that are set, by time; `node` is what the scenario calls it."""

    def contacts(self, contacts: Iterable[Contact]) -> list[Contact]:
        """Return the contacts, repeated for every name that a node has in the run; still to be clipped."""
        names: dict[str, list[str]] = {}
        for stay in self.stays:
            known = names.setdefault(stay.place, [])
            if stay.node not in known:
                known.append(stay.node)
        if all(known == [place] for place, known in names.items()):
            return list(contacts)
        return [
            contact._replace(a=min(a, b), b=max(a, b), heard={contact.a: a, contact.b: b}.get(contact.heard, ""))
            for contact in contacts
            for a in names.get(contact.a, ())
            for b in names.get(contact.b, ())
        ]

    def presences(self) -> list[Presence]:
        """Return the stays as presences."""
        return [Presence(stay.node, stay.start_us, stay.end_us) for stay in self.stays]


def plan(faults: FaultsTable, presences: Iterable[Presence], seed: int | str, end_us: int) -> FaultPlan:
    """Draw the faults of a run: when each node takes part, and what else goes wrong with it."""
    there: dict[str, list[tuple[int, int]]] = defaultdict(list)
    for presence in presences:
        leave_us = end_us if presence.leave_us is None else min(presence.leave_us, end_us)
        if presence.join_us < leave_us:
            there[presence.node].append((presence.join_us, leave_us))
    listed: dict[str, list[NodeFault]] = defaultdict(list)
    for event in faults.event:
        assert event.t is not None, "checked by the scenario"
        t_us, *lasts_us = (round(each * MICROSECONDS) for each in (event.t, event.duration_s, event.step_s))
        listed[event.node].append(NodeFault(t_us, event.node, event.kind, *lasts_us))
    stays: list[Stay] = []
    others: list[NodeFault] = []
    for node in sorted(there):
        found = sorted([*_drawn(node, faults, seed, end_us), *listed[node]])
        stays += _stays(node, _further(node, there), sorted(there[node]), found, end_us)
        others += [fault for fault in found if fault.kind in {DISK_FULL, CLOCK_STEP} and fault.t_us < end_us]
    return FaultPlan(sorted(stays, key=lambda stay: (stay.start_us, stay.node)), sorted(others))


def clock(faults: FaultsTable, seed: int | str, node: str) -> EmulatedClock:
    """Return the clock of a node when it starts."""
    skew_s = drift_ppm = 0.0
    if faults.clock_skew_s:
        # A clock that is behind when the run begins would stand still until it has caught up with 0.
        skew_s = (1 + stream(seed, node, "clock skew").uniform(-1, 1)) * faults.clock_skew_s
    if faults.clock_drift_ppm:
        drift_ppm = stream(seed, node, "clock drift").uniform(-1, 1) * faults.clock_drift_ppm
    return EmulatedClock(round(skew_s * MICROSECONDS), drift_ppm)


def _drawn(node: str, faults: FaultsTable, seed: int | str, end_us: int) -> list[NodeFault]:
    found: list[NodeFault] = []
    for kind, per_h, mean_s in (
        (AWAY, faults.away_per_h, faults.away_s),
        (SUSPEND, faults.suspend_per_h, faults.suspend_s),
        (CRASH, faults.crash_per_h, faults.restart_s),
        (DISK_FULL, faults.disk_full_per_h, faults.disk_full_s),
        (CLOCK_STEP, faults.clock_step_per_h, 0.0),
    ):
        if not per_h:
            continue
        chance = stream(seed, node, "fault", kind)
        t_us = _gap(chance, per_h)
        while t_us < end_us:
            duration_us = max(1, round(chance.expovariate(1 / mean_s) * MICROSECONDS)) if mean_s else 0
            what, step_us = kind, 0
            if kind == CRASH and chance.random() < faults.store_lost:
                what = CRASH_LOST
            if kind == CLOCK_STEP:
                step_us = round(chance.uniform(-1, 1) * faults.clock_step_s * MICROSECONDS)
            found.append(NodeFault(t_us, node, what, duration_us, step_us))
            t_us += _gap(chance, per_h)
    return found


def _gap(chance: random.Random, per_h: float) -> int:
    return max(1, round(chance.expovariate(per_h) * HOUR_US))


def _further(node: str, taken: Container[str]) -> Iterator[str]:
    """Return further names of a node, without end; none of them is taken."""
    for number in count(2):
        if (name := f"{node}.{number}") not in taken:
            yield name


def _stays(
    place: str, names: Iterator[str], there: Sequence[tuple[int, int]], faults: Iterable[NodeFault], end_us: int
) -> list[Stay]:
    """Return the stays of one node; `names` has its later names. A fault of an absent node has no effect."""
    outages = [fault for fault in faults if fault.kind in {AWAY, SUSPEND, CRASH, CRASH_LOST}]
    found: list[Stay] = []
    name, back_us = place, 0
    for join_us, leave_us in there:
        start_us = max(join_us, back_us)
        for fault in outages:
            if start_us < fault.t_us < leave_us:
                found.append(Stay(name, place, start_us, fault.t_us, fault.kind, last=False))
                if fault.kind == CRASH_LOST:
                    name = next(names)
                start_us = back_us = fault.t_us + fault.duration_us
        if start_us < leave_us:
            end = LEAVE if leave_us < end_us else ""
            found.append(Stay(name, place, start_us, leave_us, end, last=False))
    final = {stay.node: index for index, stay in enumerate(found)}
    return [stay._replace(last=final[stay.node] == index) for index, stay in enumerate(found)]
