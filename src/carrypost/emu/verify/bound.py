"""The flood bound: receptions that were possible, had every transfer been instantaneous and every cache endless.

It owes nothing to the protocol: contacts, publications and presences are swept in order of time, and whatever is new
to a node comes to all that are connected with it then. What a node holds is one whole number with a bit per message,
so a step costs one operation per node that gains something, however many messages it gains.

Edges are exact, in whole microseconds. Presences and contacts are half open; a message is alive while the time is
before its deadline. At one instant contacts end first, then messages die, then contacts begin, then messages are
published. So a message passes over a contact that begins when it is published, not over one that ends then, nor over
one that begins at its deadline. A node that is away neither receives nor relays, and keeps what it has.

The emulator's order of things at one instant is that of DESIGN §8: down, leave, expiry, join, up, publish.
"""
# Why a flood is the yardstick. With no limits on bandwidth or memory, giving every message to every
# node at every contact is the best that any protocol can do: a message that a flood does not bring
# cannot be brought. So the bound serves twice, as the denominator of delivery ratios, and as an
# invariant, as a reception beyond it is a fault of the emulator.
#
# The obvious way, a breadth-first search per message, costs messages times contacts. Here all
# messages move at once, as bits of one whole number per node. What must hold after every step:
# nodes that are connected hold the same messages, of those that are alive. Then a new contact needs
# only the difference of its two ends, and a spread stops at the border of the connected component.
#
# The order of steps at one instant is the emulator's. Tests compare the bound with a search that
# looks at each instant anew.

from __future__ import annotations

import bisect
import enum
import math
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from numbers import Real

from carrypost.errors import LocalError
from carrypost.model.times import MICROSECONDS

Span = tuple[int, int]
"""Microseconds, half open."""
Contact = tuple[str, str, float, float]
"""Two nodes, in either order, start and end in seconds."""
Message = tuple[str, str, float, float | None]
"""The message, its source, when it was published, and its lifetime, in seconds; None: endless."""
Presence = tuple[str, float, float | None]
"""A node, when it joined and left, in seconds; None: it stayed. Several of one node: it came back."""

ContactUs = tuple[str, str, int, int]
"""A contact in microseconds."""
MessageUs = tuple[str, str, int, int | None]
"""A message in microseconds, with its deadline in place of its lifetime."""
PresenceUs = tuple[str, int, int | None]
"""A presence in microseconds."""
_FOREVER_US = 2**62


class _SweepStep(enum.IntEnum):
    """The order of steps at one instant. Joining and leaving are in the contacts, which are clipped to presences."""

    DOWN = 0
    EXPIRY = 1
    UP = 2
    PUBLISH = 3


@dataclass(frozen=True, slots=True)
class Flood:
    """The reach of a flood. Bit i of a number stands for message i."""

    messages: tuple[str, ...]
    """In order of publication."""
    reached: dict[str, int]
    """By node, what it could have received; its own messages are not among them. Every node is here."""

    def __len__(self) -> int:
        """Return the number of receptions."""
        return sum(bits.bit_count() for bits in self.reached.values())

    def __iter__(self) -> Iterator[tuple[str, str]]:
        """Yield every reception, as (message, node)."""
        for node, bits in self.reached.items():
            for index in _indices(bits):
                yield self.messages[index], node


def flood_bound(
    contacts: Iterable[Contact], messages: Iterable[Message], nodes: Iterable[Presence] | None = None
) -> set[tuple[str, str]]:
    """Return every (message, node) that a flood reaches, the source excluded.

    Without `nodes`, all that contacts and messages name are present throughout. Overlapping contacts of one pair
    count as one. A message of a node that is absent when it is published is an error.
    """
    return set(flood(contacts, messages, nodes))


def flood(contacts: Iterable[Contact], messages: Iterable[Message], nodes: Iterable[Presence] | None = None) -> Flood:
    """Return the bound as bits, where `flood_bound` returns a set."""
    contacts_us = [
        (a, b, _us(start, f"start of contact {a}–{b}"), _us(end, f"end of contact {a}–{b}"))
        for a, b, start, end in contacts
    ]
    messages_us = [
        (name, source, at_us, None if lifetime is None else at_us + _us(lifetime, f"lifetime of message {name}"))
        for name, source, t, lifetime in messages
        for at_us in (_us(t, f"time of message {name}"),)
    ]
    presences_us = None if nodes is None else [
        (node, _us(join, f"join of {node}"), None if leave is None else _us(leave, f"leave of {node}"))
        for node, join, leave in nodes
    ]  # fmt: skip
    return flood_us(contacts_us, messages_us, presences_us)


def flood_us(
    contacts: Sequence[ContactUs], messages: Sequence[MessageUs], presences: Iterable[PresenceUs] | None = None
) -> Flood:
    """Return the same as `flood`, for times in whole microseconds and deadlines in place of lifetimes."""
    ordered, numbers, steps = _laid_out(contacts, messages, presences)
    sweep = _Sweep(len(numbers))
    for _, step, first, second in steps:
        sweep.step(step, first, second)
    held = sweep.held
    for index, message in enumerate(ordered):
        held[numbers[message[1]]] &= ~(1 << index)
    return Flood(tuple(message[0] for message in ordered), {name: held[number] for name, number in numbers.items()})


def flood_ages_us(
    contacts: Sequence[ContactUs], messages: Sequence[MessageUs], presences: Iterable[PresenceUs] | None = None,
    recipients: Mapping[str, Collection[str]] | None = None,
) -> Iterator[tuple[int, int]]:  # fmt: skip
    """Yield how old messages are when a flood brings them, and to how many nodes it brings one; in no order.

    Of a message that has `recipients` only these are counted.
    """
    ordered, numbers, steps = _laid_out(contacts, messages, presences)
    listed = recipients or {}
    wanted = {
        index: {numbers[name] for name in listed[message[0]] if name in numbers}
        for index, message in enumerate(ordered)
        if message[0] in listed
    }
    sweep = _Sweep(len(numbers))
    for t_us, step, first, second in steps:
        for new, nodes in sweep.step(step, first, second):
            for index in _indices(new):
                many = len(wanted[index].intersection(nodes)) if index in wanted else len(nodes)
                yield t_us - ordered[index][2], many


def arrivals_us(
    contacts: Sequence[ContactUs], messages: Sequence[MessageUs], presences: Iterable[PresenceUs] | None = None
) -> dict[tuple[str, str], int]:
    """Return the times at which a flood first brings each message to each node that it reaches.

    The source is included, with the time of publication.
    """
    ordered, numbers, steps = _laid_out(contacts, messages, presences)
    names = list(numbers)
    found = {(message[0], message[1]): message[2] for message in ordered}
    sweep = _Sweep(len(numbers))
    for t_us, step, first, second in steps:
        for new, nodes in sweep.step(step, first, second):
            for index in _indices(new):
                found |= {(ordered[index][0], names[node]): t_us for node in nodes}
    return found


def _laid_out(
    contacts: Sequence[ContactUs], messages: Sequence[MessageUs], presences: Iterable[PresenceUs] | None
) -> tuple[list[MessageUs], dict[str, int], list[tuple[int, _SweepStep, int, int]]]:
    """Return messages in order of publication, the numbers of nodes, and all steps; refuse what is impossible."""
    repeated = [name for name, count in Counter(message[0] for message in messages).items() if count > 1]
    if repeated:
        raise LocalError(f"message {repeated[0]!r} is published twice")
    known = None if presences is None else _by_node(presences)
    for name, source, at_us, _ in messages:
        _check_present(name, source, at_us, known)
    ordered = sorted(messages, key=lambda message: message[2])
    named = {name: None for a, b, _, _ in contacts for name in (a, b)} | {each[1]: None for each in ordered}
    numbers = {name: number for number, name in enumerate(named if known is None else known)}
    return ordered, numbers, _steps(contacts, ordered, known, numbers)


class _Sweep:
    """Holds what each node has, and closes it under the open contacts after every step."""

    def __init__(self, nodes: int) -> None:
        self.held = [0] * nodes
        self._near: list[Counter[int]] = [Counter() for _ in range(nodes)]
        """Number of open contacts of each pair: more than one where they overlap."""
        self._alive = 0

    def step(self, step: _SweepStep, first: int, second: int) -> list[tuple[int, Sequence[int]]]:
        """Take one step; `first` and `second` are nodes, or a message and its source.

        Returns which messages came to which nodes by this step.
        """
        held, gained = self.held, list[tuple[int, Sequence[int]]]()
        if step is _SweepStep.UP:
            alive = self._alive
            # Both directions are computed before the contact is open: what one end just got must
            # not flow back over it.
            for giver, taker in ((first, second), (second, first)):
                new = held[giver] & alive & ~held[taker]
                gained.append((new, self._spread(taker, new)))
            self._near[first][second] += 1
            self._near[second][first] += 1
        elif step is _SweepStep.DOWN:
            for here, there in ((first, second), (second, first)):
                self._near[here][there] -= 1
                if not self._near[here][there]:
                    del self._near[here][there]
        elif step is _SweepStep.EXPIRY:
            self._alive &= ~(1 << first)
        else:
            self._alive |= 1 << first
            gained.append((1 << first, self._spread(second, 1 << first)[1:]))  # Its source has it already.
        return gained

    def _spread(self, node: int, new: int) -> Sequence[int]:
        """Give new messages to all nodes connected with `node`, none of which has them; return the nodes, `node` first.

        Every step keeps this up: connected nodes hold the same messages, of those that are alive.
        """
        if not new:
            return ()
        near = self._near
        connected = {node}
        waiting = [node]
        for here in waiting:
            fresh = near[here].keys() - connected
            connected |= fresh
            waiting.extend(fresh)
        held = self.held
        for each in waiting:
            held[each] |= new
        return waiting


def _steps(
    contacts: Iterable[ContactUs],
    messages: Sequence[MessageUs],
    known: dict[str, list[Span]] | None,
    numbers: dict[str, int],
) -> list[tuple[int, _SweepStep, int, int]]:
    """Return everything that happens, in order."""
    steps: list[tuple[int, _SweepStep, int, int]] = []
    for a, b, start_us, end_us in contacts:
        if a == b:
            raise LocalError(f"a contact must be between two nodes, not {a!r} and itself")
        if end_us < start_us:
            raise LocalError(f"contact {a}–{b} ends at {_s(end_us)} s, before it starts at {_s(start_us)} s")
        spans = [(start_us, end_us)] if known is None else _together(a, b, (start_us, end_us), known)
        for begin_us, finish_us in spans:
            if begin_us < finish_us:
                steps.append((begin_us, _SweepStep.UP, numbers[a], numbers[b]))
                steps.append((finish_us, _SweepStep.DOWN, numbers[a], numbers[b]))
    for index, (name, source, at_us, deadline_us) in enumerate(messages):
        if deadline_us is not None and deadline_us <= at_us:
            if deadline_us < at_us:
                raise LocalError(f"the deadline of message {name!r} is before its publication")
            continue  # It is never alive.
        steps.append((at_us, _SweepStep.PUBLISH, index, numbers[source]))
        if deadline_us is not None:
            steps.append((deadline_us, _SweepStep.EXPIRY, index, 0))
    steps.sort()
    return steps


def _by_node(presences: Iterable[PresenceUs]) -> dict[str, list[Span]]:
    """Return the presences of each node, in order."""
    found: dict[str, list[Span]] = {}
    for node, join_us, leave_us in presences:
        span = (join_us, _FOREVER_US if leave_us is None else leave_us)
        if span[1] < span[0]:
            raise LocalError(f"node {node!r} leaves at {_s(span[1])} s, before it joins at {_s(span[0])} s")
        found.setdefault(node, []).append(span)
    for node, spans in found.items():
        spans.sort()
        for (_, leave_us), (join_us, _) in pairwise(spans):
            if join_us < leave_us:
                raise LocalError(f"node {node!r} joins at {_s(join_us)} s while it is there until {_s(leave_us)} s")
    return found


def _together(a: str, b: str, contact: Span, known: dict[str, list[Span]]) -> list[Span]:
    """Return the parts of a contact during which both are there."""
    for node in (a, b):
        if node not in known:
            raise LocalError(f"contact {a}–{b} names node {node!r}, which is not among the nodes")
    return _clipped(_clipped([contact], known[a]), known[b])


def _clipped(spans: Sequence[Span], presences: Sequence[Span]) -> list[Span]:
    """Return the intersection of spans and presences."""
    found: list[Span] = []
    for start_us, end_us in spans:
        first = max(0, bisect.bisect_right(presences, (start_us, _FOREVER_US)) - 1)
        for join_us, leave_us in presences[first:]:
            if join_us >= end_us:
                break
            if max(start_us, join_us) < min(end_us, leave_us):
                found.append((max(start_us, join_us), min(end_us, leave_us)))
    return found


def _check_present(message: str, source: str, at_us: int, known: dict[str, list[Span]] | None) -> None:
    if known is None:
        return
    if source not in known:
        raise LocalError(f"message {message!r} is published by {source!r}, which is not among the nodes")
    if not _clipped([(at_us, at_us + 1)], known[source]):
        raise LocalError(f"message {message!r} is published at {_s(at_us)} s by {source!r}, which is not there then")


def _indices(bits: int) -> Iterator[int]:
    # Searching the text of the number takes one pass; shifting a number of 100,000 bits bit by bit
    # is quadratic.
    """Yield the positions of the ones in a whole number."""
    digits = f"{bits:b}"[::-1]
    found = digits.find("1")
    while found >= 0:
        yield found
        found = digits.find("1", found + 1)


def _us(seconds: object, what: str) -> int:
    """Return seconds as whole microseconds."""
    if isinstance(seconds, bool) or not isinstance(seconds, Real) or not 0 <= float(seconds) < math.inf:
        raise LocalError(f"the {what} must be a number of seconds, 0 or more, not {seconds!r}")
    return round(float(seconds) * MICROSECONDS)


def _s(us: int) -> str:
    return f"{us / MICROSECONDS:.6f}".rstrip("0").rstrip(".")
