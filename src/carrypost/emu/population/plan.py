"""The plan of a population run, by columns: presences of nodes, contacts between them, and publications.

Made of a scenario and a seed by the same code that prepares runs of hosts, so both modes have the same nodes, contacts
and publications.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from carrypost.arrays import Codes, Ints
from carrypost.emu.engine.faults import LEAVE, Stay, plan
from carrypost.emu.engine.workload import Publication
from carrypost.emu.engine.world import run_attributes
from carrypost.emu.population.delays import NEVER_US
from carrypost.emu.scenario.inputs import Inputs, read_inputs
from carrypost.emu.scenario.scenario import Scenario
from carrypost.errors import ConfigError
from carrypost.model.times import MICROSECONDS
from carrypost.traces.csvfiles import Line
from carrypost.traces.encounters import Encounters


@dataclass(frozen=True, slots=True, eq=False)
class Stays:
    """The stays of nodes, by columns, sorted by start and node."""

    node: Codes
    start_us: Ints
    end_us: Ints
    end: tuple[str, ...]
    """Why each ends, as rows say it; empty: the node just leaves, or the run ends."""


@dataclass(frozen=True, slots=True, eq=False)
class Messages:
    """Publications by columns, in order of time, author and workload; bit i of a set is message i of its part."""

    names: tuple[str, ...]
    t_us: Ints
    source: Codes
    deadline_us: Ints
    """`NEVER_US`: it lives without end."""
    size: Ints
    workload: Codes
    persistent: Codes
    priority: Codes

    def __len__(self) -> int:
        return len(self.names)


@dataclass(frozen=True, slots=True, eq=False)
class Plan:
    """Everything that happens in a run from outside."""

    end_us: int
    attrs: Mapping[str, str]
    """The first row of the record."""
    stays: Stays
    contacts: Encounters
    """Clipped to stays; its nodes are all nodes, sorted by name."""
    messages: Messages

    @property
    def nodes(self) -> tuple[str, ...]:
        """Names of all nodes."""
        return self.contacts.nodes

    @property
    def taking_part(self) -> int:
        """Number of nodes that are ever there."""
        return len(np.unique(self.stays.node))


def planned(scenario: Scenario, seed: int | str, calibration: str) -> Plan:
    """Return the plan of a scenario; all mistakes show here. `calibration` names the delays in the first row."""
    inputs = read_inputs(scenario, seed)
    _check_scripts(scenario, inputs)
    found = plan(scenario.faults, inputs.presences, seed, scenario.duration_us).stays
    nodes = tuple(sorted({presence.node for presence in inputs.presences}))
    place = {name: code for code, name in enumerate(nodes)}
    stays = Stays(
        np.array([place[stay.node] for stay in found], np.int32),
        np.array([stay.start_us for stay in found], np.int64),
        np.array([stay.end_us for stay in found], np.int64),
        tuple("" if stay.end == LEAVE else stay.end for stay in found),
    )
    attrs = run_attributes(scenario, seed, inputs) | {"calibration": calibration}
    contacts = _clipped(_known(inputs.columns, nodes, place), stays, scenario.duration_us)
    return Plan(scenario.duration_us, attrs, stays, contacts, _published(scenario, inputs, found, stays, place))


def _check_scripts(scenario: Scenario, inputs: Inputs) -> None:
    for index, script in inputs.scripts.items():
        for each in script:
            if each.recipients:
                line = Line(str(scenario.path(scenario.workloads[index].file)), each.line)
                raise line.error('recipients: population mode does not model them; mode = "faithful" does')


def _known(columns: Encounters | None, nodes: tuple[str, ...], place: Mapping[str, int]) -> Encounters:
    """Return contacts with the numbers of nodes in the plan; a node in no list of nodes is never present."""
    if columns is None:
        nobody, never = np.zeros(0, np.int32), np.zeros(0, np.int64)
        return Encounters(nodes, nobody, nobody, never, never)
    codes = np.array([place.get(name, -1) for name in columns.nodes], np.int32)
    a, b = codes[columns.a], codes[columns.b]
    found = Encounters(nodes, np.minimum(a, b), np.maximum(a, b), columns.start_us, columns.end_us)
    return found.select(found.a >= 0)


def _clipped(contacts: Encounters, stays: Stays, end_us: int) -> Encounters:
    """Return the parts of contacts in which both nodes are there, in order."""
    order = np.lexsort((stays.start_us, stays.node))
    first = np.searchsorted(stays.node[order], np.arange(len(contacts.nodes) + 1))
    since_us, until_us = stays.start_us[order], np.minimum(stays.end_us, end_us)[order]
    for side in ("a", "b"):
        node = getattr(contacts, side)
        many = np.diff(first)[node]
        row = np.repeat(np.arange(len(node)), many)
        stay = np.arange(len(row)) + np.repeat(first[node] - np.cumsum(many) + many, many)
        met = contacts.select(row)
        start, end = np.maximum(met.start_us, since_us[stay]), np.minimum(met.end_us, until_us[stay])
        contacts = Encounters(contacts.nodes, met.a, met.b, start, end).select(start < end)
    return contacts.ordered()


def _published(
    scenario: Scenario, inputs: Inputs, found: Sequence[Stay], stays: Stays, place: Mapping[str, int]
) -> Messages:
    there: defaultdict[str, list[tuple[int, int]]] = defaultdict(list)
    for stay in found:
        there[stay.node].append((stay.start_us, stay.end_us))
    nodes = list(place)
    publications = [(index, each) for index, workload in enumerate(scenario.workloads) if workload.kind == "broadcast"
            for each in _broadcasts(scenario, index, stays, nodes)]  # fmt: skip
    publications += [(index, each) for index, script in inputs.scripts.items() for each in script
             if each.t_us < scenario.duration_us and _is_there(each, there)]  # fmt: skip
    publications.sort(key=lambda row: (row[1].t_us, row[1].node, row[0]))
    sent: Counter[str] = Counter()
    names: list[str] = []
    for _, each in publications:
        sent[each.node] += 1  # As hosts call their messages: by author, incarnation and sequence.
        names.append(each.message or f"{each.node}:1:{sent[each.node]}")
    return Messages(
        names=tuple(names),
        t_us=np.array([each.t_us for _, each in publications], np.int64),
        source=np.array([place[each.node] for _, each in publications], np.int32),
        deadline_us=np.array(
            [NEVER_US if each.lifetime_us is None else each.t_us + each.lifetime_us for _, each in publications],
            np.int64,
        ),
        size=np.array([each.size for _, each in publications], np.int64),
        workload=np.array([index for index, _ in publications], np.int32),
        persistent=np.array([each.persistent for _, each in publications], np.int32),
        priority=np.array([each.priority for _, each in publications], np.int32),
    )


def _broadcasts(scenario: Scenario, index: int, stays: Stays, nodes: Sequence[str]) -> Iterator[Publication]:
    workload = scenario.workloads[index]
    lifetime_us = None if workload.lifetime_s is None else round(workload.lifetime_s * MICROSECONDS)
    first_us, period_us = round(workload.first_s * MICROSECONDS), max(1, round(workload.period_s * MICROSECONDS))
    columns = zip(stays.node.tolist(), stays.start_us.tolist(), stays.end_us.tolist(), strict=True)
    for node, start_us, end_us in columns:
        for t_us in range(start_us + first_us, end_us, period_us):
            yield Publication(t_us, nodes[node], "", workload.sizes[0], lifetime_us)


def _is_there(each: Publication, there: Mapping[str, Sequence[tuple[int, int]]]) -> bool:
    """Return False if a fault has stopped the node: then its application cannot publish."""
    return any(start_us <= each.t_us < end_us for start_us, end_us in there.get(each.node, ()))


def check_sizes(messages: Messages, size_max: int | None) -> None:
    """Refuse messages that are larger than those that delays were measured with."""
    if size_max is not None and len(messages) and (largest := int(messages.size.max())) > size_max:
        raise ConfigError(
            f"population.delays: calibrated with messages of up to {size_max:,} bytes, and here is one of {largest:,} "
            "bytes; calibrate with messages of that size"
        )
