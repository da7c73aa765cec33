"""Population mode's plan of a run, its division into windows, and the sweep of sets of messages over contacts.

A plan has presences of nodes, contacts between them, and publications, by columns. It is made of a scenario and a seed
by the same code that prepares runs of hosts, so both modes have the same nodes, contacts and publications.

Windows are the parts of a run that can be processed separately, exactly, because messages never influence each other. A
part has the messages that are published in [T, T + w), and the contacts that overlap [T, T + w + lifetime). If messages
live without end, a part has its share of the messages by number, and the contacts from its first message on. Rows that
are about no message (presences, contacts) are in the part of their time, so each is in one part.

In the sweep (`flow`) sets of messages pass over contacts, in order of time.
"""

# Population mode answers what a flood with measured delays would reach among 100,000 nodes, where
# emulating each host is out of the question. A node is one integer with a bit for each message.
# When two nodes find each other, each gains what the other has and it lacks. A gain is passed on to
# each neighbour one hop delay later, and only that gain. The delay depends on the two nodes, on the
# time of the gain and on its giver, but not on its contents. So the fate of one message never
# depends on another one, and messages can be split over several sweeps (`parts`): that is what
# makes the mode parallel, and exact.
#
# At one instant contacts end first, then messages expire, then contacts open, then messages are
# published; gains are passed on last, all that are due at that time before any of them goes
# further. Neighbours are served in the order in which their contacts opened, and gains in the order
# in which they came. Without delays all connected nodes hold the same live messages after every
# instant, which is the flood bound: a test compares the two.

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from heapq import heappop, heappush
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from carrypost.arrays import Codes, Ints
from carrypost.emu.engine.applications import Publication
from carrypost.emu.engine.world import LEAVE, Stay, plan, run_attributes
from carrypost.emu.inputs import Inputs, read_inputs, wrong_line
from carrypost.emu.population.delays import NEVER_US, SHIFT, SPREAD, WORD, Delays, Hops
from carrypost.emu.scenario import Scenario
from carrypost.errors import ConfigError
from carrypost.model.times import MICROSECONDS
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
                text = 'recipients: population mode does not model them; mode = "faithful" does'
                raise wrong_line(scenario, index, each, text)


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
             if each.t_us < scenario.duration_us
            # Where a fault has stopped the node, its application cannot publish.
            and any(start_us <= each.t_us < end_us for start_us, end_us in there.get(each.node, ()))]  # fmt: skip
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


def check_sizes(messages: Messages, size_max: int | None) -> None:
    """Refuse messages that are larger than those that delays were measured with."""
    if size_max is not None and len(messages) and (largest := int(messages.size.max())) > size_max:
        raise ConfigError(
            f"population.delays: calibrated with messages of up to {size_max:,} bytes, and here is one of {largest:,} "
            "bytes; calibrate with messages of that size"
        )


Gain = tuple[int, int, int, int]
"""A time, the giving node, the receiving node, and the set of messages."""
_Hop = tuple[int, int, int, int, int]
"""A time, a place in the order, the giving node, the receiving node, and the set of messages."""
_NOBODY = -1
"""The giver of a publication: the last of a list."""
_END = -1
GAINS_MAX = 2_048
"""Approximate number of gains that are handed over at a time."""
_STEPS_AT_ONCE = 1 << 16


class Step(IntEnum):
    """The order of steps at one instant."""

    CLOSE = 0
    EXPIRE = 1
    OPEN = 2
    PUBLISH = 3


class Steps(NamedTuple):
    """Changes of a network from outside, by columns, in order."""

    t_us: Ints
    step: NDArray[np.int8]
    first: Codes
    """A node; of an expiry or a publication, the message."""
    second: Codes
    """The other node, or the author."""

    @classmethod
    def of(cls, *parts: tuple[Step, Ints, Codes, Codes]) -> Steps:
        """Sort parts: of each its step, times, first and second. Equal ones stay in the order of their part."""
        step = np.concatenate([np.full(len(t_us), kind.value, np.int8) for kind, t_us, _, _ in parts])
        t_us = np.concatenate([part[1] for part in parts])
        first, second = (np.concatenate([part[2] for part in parts]), np.concatenate([part[3] for part in parts]))
        order = np.lexsort((step, t_us))
        return cls(t_us[order], step[order], first[order], second[order])

    def rows(self) -> Iterator[tuple[int, int, int, int]]:
        """Yield every step: time, kind, first and second."""
        for start in range(0, len(self.t_us), _STEPS_AT_ONCE):
            part = slice(start, start + _STEPS_AT_ONCE)
            yield from zip(
                self.t_us[part].tolist(), self.step[part].tolist(), self.first[part].tolist(),
                self.second[part].tolist(), strict=True,
            )  # fmt: skip


def flow(steps: Steps, hops: Hops, end_us: int) -> Iterator[list[Gain]]:
    """Yield the gains of nodes up to the end of the run, in order of time."""
    nodes, alive = len(hops.leaving), 0
    held = [0] * nodes
    near: list[dict[int, None]] = [{} for _ in range(nodes + 1)]  # The last one is `_NOBODY`, which has no neighbours.
    due: list[_Hop] = []
    gains: list[Gain] = []
    came: list[Gain] = []
    pass_on = _passing(held, near, due, hops, end_us)
    opens, closes, expires, publishes = (step.value for step in (Step.OPEN, Step.CLOSE, Step.EXPIRE, Step.PUBLISH))
    for t_us, step, first, second in itertools.chain(steps.rows(), [(end_us, _END, 0, 0)]):
        if came or (due and due[0][0] < t_us):
            gains += pass_on(came, alive, t_us)
            came = []
        if step == opens:
            near[first][second] = near[second][first] = None
            if differ := (held[first] ^ held[second]) & alive:
                both = (t_us, first, second, differ & held[first]), (t_us, second, first, differ & held[second])
                came = [gain for gain in both if gain[3]]
                held[first] |= differ
                held[second] |= differ
                gains += came
        elif step == closes:
            del near[first][second], near[second][first]
        elif step == expires:
            alive &= ~(1 << first)
        elif step == publishes:
            alive |= 1 << first
            held[second] |= 1 << first
            came = [(t_us, _NOBODY, second, 1 << first)]
        if len(gains) >= GAINS_MAX:
            yield gains
            gains = []
    yield gains


def _passing(
    held: list[int], near: list[dict[int, None]], due: list[_Hop], hops: Hops, end_us: int
) -> Callable[[list[Gain], int, int], list[Gain]]:
    """Return the function that passes gains on: these, and all that are due before a time. It returns further gains.

    One function, and no methods: it takes most of the time of a run, and calls and attributes would add a sixth to it.
    """
    published_us, relayed_us, awaited_us, leaving, arriving = hops
    number = itertools.count()

    def pass_on(came: list[Gain], alive: int, until_us: int) -> list[Gain]:
        gains: list[Gain] = []
        while True:
            for t_us, giver, node, gain in came:
                given, word = near[giver], t_us & WORD ^ leaving[node]
                direct_us = published_us if giver == _NOBODY else relayed_us
                for other in near[node]:
                    if gain & held[other] != gain:
                        table = awaited_us if other in given else direct_us
                        due_us = t_us + table[((word ^ arriving[other]) * SPREAD & WORD) >> SHIFT]
                        if due_us < end_us:
                            heappush(due, (due_us, next(number), node, other, gain))
            if not due or (now_us := due[0][0]) >= until_us:
                return gains
            came = []
            # All that is due now before any of it goes on: what comes to many at once need not go between them.
            while due and due[0][0] == now_us:
                _, _, giver, node, gain = heappop(due)
                gain &= alive
                # Not `gain & ~held`: a complement is a negative number, and takes three times as long.
                if node in near[giver] and (known := gain & held[node]) != gain:
                    held[node] |= gain
                    came.append((now_us, giver, node, gain ^ known))
            gains += came

    return pass_on


PARTS_MAX = 100_000


class Part(NamedTuple):
    """Messages of a run that are processed together."""

    first: int
    """Number of its first message, counted over the run."""
    last: int
    """The first message of the next part."""
    since_us: int
    until_us: int
    """Time whose rows about no message belong to this part; the parts of a run cover all of it."""
    horizon_us: int
    """End of the longest-lived of its messages."""


def parts(plan: Plan, window_us: int | None) -> list[Part]:
    """Cut a run into parts, in order; without a window it is one."""
    messages, end_us = plan.messages, plan.end_us
    count = 1 if window_us is None else -(-end_us // window_us)
    if count > PARTS_MAX:
        raise ConfigError(f"population.window_s divides this run into {count:,} parts; the maximum is {PARTS_MAX:,}")
    if window_us is None or not (messages.deadline_us == NEVER_US).any():
        edges_us = np.arange(count) * (window_us or end_us)
        firsts = np.searchsorted(messages.t_us, edges_us)
    else:
        firsts = np.unique(np.arange(count) * len(messages) // count)
        edges_us = np.where(firsts, messages.t_us[firsts], 0)
    starts, sinces = [*firsts.tolist(), len(messages)], [*edges_us.tolist(), end_us]
    found = []
    for first, last, since_us, until_us in zip(starts, starts[1:], sinces, sinces[1:], strict=False):
        lived_us = int(messages.deadline_us[first:last].max(initial=0))
        found.append(Part(first, last, since_us, until_us, min(end_us, max(until_us, lived_us))))
    return found


def contacts_of(plan: Plan, part: Part) -> Encounters:
    """Return the contacts that overlap the time of a part."""
    contacts = plan.contacts
    begun = int(np.searchsorted(contacts.start_us, part.horizon_us))
    return contacts.select(np.flatnonzero(contacts.end_us[:begun] > part.since_us))


def steps_of(plan: Plan, part: Part, contacts: Encounters, delays: Delays, seed: int | str) -> Steps:
    """Return the steps of a part for the sweep: message 0 is the first of the part."""
    open_us = delays.opened_us(contacts, seed)
    found = np.flatnonzero(open_us < np.minimum(contacts.end_us, part.horizon_us))
    a, b, open_us, end_us = contacts.a[found], contacts.b[found], open_us[found], contacts.end_us[found]
    ends = end_us < part.horizon_us
    chosen = slice(part.first, part.last)
    messages = plan.messages
    number: Codes = np.arange(part.last - part.first, dtype=np.int32)
    dies = messages.deadline_us[chosen] < part.horizon_us
    return Steps.of(
        (Step.CLOSE, end_us[ends], a[ends], b[ends]),
        (Step.EXPIRE, messages.deadline_us[chosen][dies], number[dies], number[dies]),
        (Step.OPEN, open_us, a, b),
        (Step.PUBLISH, messages.t_us[chosen], number, messages.source[chosen]),
    )
