"""Reasons for which a message did not reach a node.

The earliest journey of a message is found over the contacts of the record (in records of real nodes: over the
neighbours that they saw), as if transfers took no time and no copy ever ended. A contact is half open: a message passes
over one that begins when it comes, not over one that ends then. If the journey arrives before the deadline, the message
might have arrived, and the journey is followed up to the last node that had a copy: there it stopped, and the record
says what happened between that node and the next one.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Literal, NamedTuple

import msgspec
import numpy as np

from carrypost.arrays import Codes, Floats, Ints
from carrypost.log.record import Kind
from carrypost.web.replay.copies import Copy, Messages, copies
from carrypost.web.replay.inspect import Filter, matches
from carrypost.web.replay.scan import Scan, Spans

_ROWS_MAX = 200
_EPOCH = 1e8
Verdict = Literal["arrived", "no-path", "dropped", "late", "unnoticed", "refused", "stopped"]


class Leg(NamedTuple):
    """A contact by which a journey goes on."""

    a: int
    b: int
    t: float
    """Time at which a message would pass."""
    start: float
    end: float


class Answer(msgspec.Struct):
    """The reason, as a sentence and in parts; nodes are numbers."""

    verdict: Verdict
    sentence: str
    arrives: float | None = None
    """Time at which the message arrived, or could have arrived."""
    journey: list[Leg] = []
    stop: Leg | None = None
    """Contact at which the message did not pass."""
    rows: int = 0
    """Number of rows of both nodes of `stop` during it."""


class Meetings:
    """Contacts by the node from which a message may leave."""

    def __init__(self, spans: Spans, nodes: int) -> None:
        both = spans.label < 0
        self._a: Codes = np.concatenate([spans.a, spans.b[both]])
        order = np.argsort(self._a, kind="stable")
        self._first = np.searchsorted(self._a[order], np.arange(nodes + 1))
        self._b = np.concatenate([spans.b, spans.a[both]])[order]
        self._start = np.concatenate([spans.start, spans.start[both]])[order]
        self._end = np.concatenate([spans.end, spans.end[both]])[order]

    def journey(self, source: int, target: int, t: float) -> list[Leg] | None:
        """Return the earliest journey, without legs if it is at its end; None: there is none."""
        nodes = len(self._first) - 1
        arrival: Floats = np.full(nodes, math.inf)
        came: Ints = np.full(nodes, -1)
        done = np.zeros(nodes, np.bool_)
        arrival[source] = t
        queue = [(t, source)]
        while queue:
            now, node = heapq.heappop(queue)
            if node == target:
                return self._legs(source, target, arrival, came)
            if done[node]:
                continue
            done[node] = True
            part = slice(self._first[node], self._first[node + 1])
            there = np.maximum(self._start[part], now)
            b = self._b[part]
            # Of several contacts with one node the first that is left is enough: the earlier ones come first.
            useful = np.flatnonzero((self._end[part] > there) & (there < arrival[b]))
            for row in useful.tolist():
                at, to = float(there[row]), int(b[row])
                if at < arrival[to]:
                    arrival[to], came[to] = at, row + part.start
                    heapq.heappush(queue, (at, to))
        return None

    def _legs(self, source: int, target: int, arrival: Floats, came: Ints) -> list[Leg]:
        found = []
        while target != source:
            row = int(came[target])
            before = int(np.searchsorted(self._first, row, side="right")) - 1
            span = float(self._start[row]), float(self._end[row])
            found.append(Leg(before, target, float(arrival[target]), *span))
            target = before
        return found[::-1]


def meetings(scan: Scan) -> Meetings:
    """Return the contacts of a run by which messages may travel."""
    return Meetings(scan.spans["contact"] if len(scan.spans["contact"]) else scan.spans["seen"], len(scan.names))


class Inquiry:
    """The question why a message is not at a node."""

    def __init__(self, scan: Scan, messages: Messages, met: Meetings, names: Mapping[str, str]) -> None:
        self._scan, self._messages, self._met, self._names = scan, messages, met, names

    def answer(self, message: str, node: int) -> Answer:
        """Return the reason for which a message did not come to a node, or when it came."""
        place = self._messages.place(message)
        about = self._messages.shown(place)
        found = copies(self._scan, self._messages, message)
        here = [copy for copy in found if copy.node == node]
        if here:
            return self._arrived(here[0])
        source = self._name(self._messages.source[place])
        legs = self._met.journey(self._messages.source[place], node, about.t)
        deadline = math.inf if about.deadline is None else about.deadline
        if not legs:
            text = f"There is no chain of contacts from {source} to {self._name(node)} after {_time(about.t)}."
            return Answer("no-path", text)
        if (arrives := legs[-1].t) >= deadline:
            text = (
                f"There is no chain of contacts from {source} to {self._name(node)} before the deadline at "
                f"{_time(deadline)}; the message could have come at {_time(arrives)}."
            )
            return Answer("no-path", text, arrives, legs)
        return self._stopped(about.message, found, legs)

    def _name(self, node: int) -> str:
        shown = self._scan.names.shown[node]
        return self._names.get(shown, shown)

    def _arrived(self, copy: Copy) -> Answer:
        text = f"It arrived at {_time(copy.received)}"
        if not math.isnan(copy.delivered):
            text += f" and was delivered at {_time(copy.delivered)}"
        return Answer("arrived", text + ".", copy.received)

    def _stopped(self, message: str, found: list[Copy], legs: list[Leg]) -> Answer:
        """Return what happened between the last node of the journey that had a copy, and the next one."""
        having: dict[int, list[Copy]] = {}
        for copy in found:
            having.setdefault(copy.node, []).append(copy)
        at = max((place for place, leg in enumerate(legs) if leg.a in having), default=0)
        leg, last = legs[at], having.get(legs[at].a, [])
        answer = Answer("stopped", "", legs[-1].t, legs, leg)
        could, a, b = f"It could have arrived at {_time(legs[-1].t)}; ", self._name(leg.a), self._name(leg.b)
        ended = [copy for copy in last if copy.ended <= leg.t]
        if last and len(ended) == len(last):
            answer.verdict = "dropped"
            lost = f"lost its copy ({ended[-1].reason or 'no reason'})"
            words = {"evicted": "evicted its copy", "expired": "its copy expired", "purged": "purged its copy"}
            did = words.get(ended[-1].reason or "", lost)
            answer.sentence = f"{could}{a} would have met {b}, but {did} at {_time(ended[-1].ended)}."
        elif last and min(copy.received for copy in last) >= leg.end:
            answer.verdict = "late"
            came = min(copy.received for copy in last)
            answer.sentence = (
                f"{could}{a} met {b} until {_time(leg.end)}, but had the message only from {_time(came)} on."
            )
        elif self._unnoticed(leg):
            answer.verdict = "unnoticed"
            answer.sentence = f"{could}{a} and {b} were in contact at {_time(leg.t)}, but did not notice each other."
        else:
            self._between(message, leg, answer, could)
        return answer

    def _unnoticed(self, leg: Leg) -> bool:
        """Return True if the record has rows of neighbours, and none of these two during the contact."""
        seen = self._scan.spans["seen"]
        if not len(seen) or not len(self._scan.spans["contact"]):
            return False
        rows = seen.overlapping(leg.t, leg.end, leg.a)
        there = ((seen.a[rows] == leg.b) | (seen.b[rows] == leg.b)) & (seen.label[rows] < 0)
        return not there.any()

    def _between(self, message: str, leg: Leg, answer: Answer, could: str) -> None:
        a, b = self._name(leg.a), self._name(leg.b)
        wanted = Filter(leg.t, leg.end, node=self._scan.names.texts[leg.b])
        refused: str | None = None
        for group, rows in matches(self._scan, wanted):
            part = self._scan.source.read(group, "kind", "node", "peer", "message", "detail").take(rows)
            for row in part.to_pylist():
                both = {row["node"], row["peer"]} == {self._scan.names.texts[leg.a], self._scan.names.texts[leg.b]}
                answer.rows += both
                if row["kind"] == Kind.REFUSE and (row["message"] == message or (both and row["message"] is None)):
                    refused = refused or (row["detail"] or "no reason")[:_ROWS_MAX]
        until = f"from {_time(leg.t)} to {_time(leg.end)}"
        if refused is not None:
            answer.verdict = "refused"
            answer.sentence = f"{could}{a} met {b} {until}, but {b} refused it ({refused})."
        else:
            answer.sentence = f"{could}{a} met {b} {until}, but it did not pass; {answer.rows:,} rows are of both then."


def _time(t: float) -> str:
    if math.isinf(t):
        return "the end"
    # Times of real nodes are seconds since 1970.
    return f"{t:,.1f} s" if t < _EPOCH else f"{datetime.fromtimestamp(t, UTC):%H:%M:%S.%f}"[:-5]
