"""Messages of a run: copies, with when and from whom each node had them, and reasons why a node had none.

An event and its legs and results are different messages, and so are a publication and its notices; the attribute
`origin` ties them. A chosen message includes all that descend from it.

To find why a message did not reach a node (`Inquiry`), its earliest journey is found over the contacts of the record
(in records of real nodes: over the neighbours that they saw), as if transfers took no time and no copy ever ended. A
contact is half open: a message passes over one that begins when it comes, not over one that ends then. If the journey
arrives before the deadline, the message might have arrived, and the journey is followed up to the last node that had a
copy: there it stopped, and the record says what happened between that node and the next one.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from typing import Any, Literal, NamedTuple

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from carrypost.arrays import Codes, Floats, Ints
from carrypost.emu.rows import MISSING, Log, encoded
from carrypost.log.record import Kind
from carrypost.web.run_files import Names, Scan, Spans, number
from carrypost.web.run_rows import Filter, matches, table

CONTROL = ("control/", "directory/", "overlay/", "module/")
"""Destinations of messages that are not of programs."""
_ATTRS = ("destination", "deadline", "recipients", "origin", "label")
_TEXT_MAX = 500
_RECIPIENTS_MAX = 1_000
_KINDS = (Kind.PUBLISH, Kind.RECEIVE, Kind.DELIVER, Kind.DROP, Kind.EXPIRE, Kind.RECEIPT)


class Message(msgspec.Struct, frozen=True):
    """A publication."""

    message: str
    source: str
    t: float
    size: int
    destination: str
    deadline: float | None
    recipients: list[str]
    origin: str | None
    label: str | None


class Messages:
    """The publications of a run, in order."""

    def __init__(self, scan: Scan) -> None:
        self._scan = scan
        self.names = Names()
        """Ids of messages, by place."""
        self.source: list[int] = []
        self.t: list[float] = []
        self.size: list[int] = []
        self.attrs: dict[str, list[str | None]] = {name: [] for name in _ATTRS}
        for group in scan.groups_with(Kind.PUBLISH):
            self._take(scan.source.read(group, "t", "kind", "node", "message", "size", "attrs"))

    def _take(self, rows: pa.Table) -> None:
        rows = rows.filter(pc.equal(rows["kind"].cast(pa.string()), Kind.PUBLISH.value))
        log = Log(rows)
        every = np.arange(len(rows))
        attrs = {name: log.attribute(name, every).to_pylist() for name in _ATTRS}
        texts = (rows[name].cast(pa.string()).to_pylist() for name in ("message", "node"))
        columns = zip(*texts, rows["t"].to_pylist(), rows["size"].to_pylist(), strict=True)
        for row, (message, node, t, size) in enumerate(columns):
            # After a crash an id may be assigned again: the first publication is listed.
            if message is None or self.names.add(message) < len(self.t):
                continue
            self.source.append(self._scan.names.known(node))
            self.t.append(t)
            self.size.append(size or 0)
            for name, column in attrs.items():
                self.attrs[name].append(column[row])

    def __len__(self) -> int:
        return len(self.t)

    @cached_property
    def clocks_s(self) -> float:
        """Time by which the earliest reception precedes its publication: clocks of nodes differ by that at least."""
        found, t = 0.0, np.array([*self.t, -math.inf])
        for group in self._scan.groups_with(Kind.RECEIVE):
            rows = self._scan.source.read(group, "t", "kind", "message")
            rows = rows.filter(pc.equal(rows["kind"].cast(pa.string()), Kind.RECEIVE.value))
            (codes,), names = encoded(rows["message"])
            of = np.array([*map(self.names.known, names.to_pylist()), MISSING])[codes]
            found = max(found, float((t[of] - rows["t"].to_numpy()).max(initial=0.0)))
        return found

    def is_programs(self, place: int) -> bool:
        """Return True if a program published the message itself."""
        return self.attrs["origin"][place] is None and not (self.attrs["destination"][place] or "").startswith(CONTROL)

    def shown(self, place: int) -> Message:
        """Return a message as pages show it."""
        attrs = {name: column[place] for name, column in self.attrs.items()}
        listed = (attrs["recipients"] or "").split()[:_RECIPIENTS_MAX]
        deadline = number(attrs["deadline"], math.nan)
        return Message(
            self.names.shown[place], self._scan.names.shown[self.source[place]], self.t[place], self.size[place],
            (attrs["destination"] or "")[:_TEXT_MAX], deadline if math.isfinite(deadline) else None,
            [each[:_TEXT_MAX] for each in listed], attrs["origin"] and attrs["origin"][:_TEXT_MAX],
            attrs["label"] and attrs["label"][:_TEXT_MAX],
        )  # fmt: skip

    def found(self, query: str, *, control: bool) -> Ints:
        """Return the messages whose id, label, author or destination has a text in it, in order of publication."""
        words = query.casefold()
        nodes = self._scan.names.texts

        def matches(place: int) -> bool:
            texts = (self.names.texts[place], nodes[self.source[place]], self.attrs["destination"][place],
                     self.attrs["label"][place])  # fmt: skip
            return any(words in text.casefold() for text in texts if text)

        places = (place for place in range(len(self)) if control or self.is_programs(place))
        return np.array([place for place in places if not words or matches(place)], np.int64)

    @cached_property
    def _children(self) -> dict[str, list[str]]:
        found: dict[str, list[str]] = {}
        for message, origin in zip(self.names.texts, self.attrs["origin"], strict=True):
            if origin is not None:
                found.setdefault(origin, []).append(message)
        return found

    def family(self, message: str) -> list[str]:
        """Return a message and all that descend from it."""
        found = {message: None}
        for each in (queue := [message]):
            fresh = [child for child in self._children.get(each, ()) if child not in found]
            found |= dict.fromkeys(fresh)
            queue += fresh
        return list(found)

    def place(self, message: str) -> int:
        """Return the place of a message, by the name that is shown; raises `NotFoundError`."""
        return self.names.find(message, "message")

    @property
    def first(self) -> str | None:
        """The first message of a program; None: there is none."""
        return next((self.names.shown[place] for place in range(len(self)) if self.is_programs(place)), None)


@dataclass(slots=True)
class Copy:
    """A message at a node, from its reception to its end."""

    node: int
    peer: int
    message: int
    received: float
    delivered: float = math.nan
    acknowledged: float = math.nan
    ended: float = math.nan
    reason: str | None = None
    hops: int = MISSING
    path: str | None = None


def rows_of(scan: Scan, messages: Messages, family: list[str]) -> Iterator[dict[str, Any]]:
    """Yield the rows of some messages, in order; only groups that have any are read."""
    ids = pa.array(family, pa.string())
    first = min((messages.t[place] for each in family if (place := messages.names.known(each)) >= 0), default=-math.inf)
    columns = ("t", "kind", "node", "peer", "hops", "detail", "attrs")
    for group, about in enumerate(scan.source.groups):
        if scan.source.follows or about.end >= first:
            (codes,), names = encoded(scan.source.read(group, "message")["message"])
            wanted = pc.is_in(names, ids).to_numpy(zero_copy_only=False)
            if not wanted.any():
                continue
            rows = np.flatnonzero(np.append(wanted, False)[codes])
            found = scan.source.read(group, *columns).take(pa.array(rows))
            texts = names.take(pa.array(codes[rows])).to_pylist()
            for row, message in zip(found.to_pylist(), texts, strict=True):
                yield row | {"message": message}


class _Copies:
    """Makes copies of rows."""

    def __init__(self, scan: Scan, family: list[str]) -> None:
        self.found: list[Copy] = []
        self._known = scan.names.known
        self._numbers = {each: place for place, each in enumerate(family)}
        self._here: dict[tuple[int, str], Copy] = {}
        """The last copy of each message at each node."""

    def take(self, row: dict[str, Any]) -> None:
        """Take a row."""
        kind, message = row["kind"], row["message"]
        # Of a receipt the author hears; the copy is the recipient's.
        node = self._known((row["peer"] if kind == Kind.RECEIPT else None) or row["node"])
        copy = self._here.get((node, message))
        if kind in {Kind.PUBLISH, Kind.RECEIVE}:
            if copy is None or not math.isnan(copy.ended):
                self._begin(row, node)
        elif kind == Kind.DELIVER:
            copy = copy or self._begin(row, node)
            copy.delivered = row["t"] if math.isnan(copy.delivered) else copy.delivered
        elif copy is None:
            return
        elif kind == Kind.RECEIPT:
            copy.acknowledged = row["t"] if math.isnan(copy.acknowledged) else copy.acknowledged
        elif math.isnan(copy.ended):
            copy.ended = row["t"]
            copy.reason = (row["detail"] or "")[:_TEXT_MAX] if kind == Kind.DROP else "expired"

    def _begin(self, row: dict[str, Any], node: int) -> Copy:
        peer = self._known(row["peer"]) if row["kind"] == Kind.RECEIVE else MISSING
        hops = 0 if row["kind"] == Kind.PUBLISH else MISSING if row["hops"] is None else row["hops"]
        copy = Copy(node, peer, self._numbers[row["message"]], row["t"], hops=hops)
        copy.path = dict(row["attrs"] or ()).get("path")
        self._here[node, row["message"]] = copy
        self.found.append(copy)
        return copy


def copies(scan: Scan, messages: Messages, message: str) -> list[Copy]:
    """Return all copies of a message and of those that descend from it, in order of reception."""
    family = messages.family(messages.names.texts[messages.place(message)])
    made = _Copies(scan, family)
    for row in rows_of(scan, messages, family):
        if row["kind"] in _KINDS:
            made.take(row)
    return made.found


def copies_table(scan: Scan, messages: Messages, message: str) -> pa.Table:
    """Return the copies of a message as columns, with what is known of it."""
    found, place = copies(scan, messages, message), messages.place(message)
    reasons, family = Names(), messages.family(messages.names.texts[place])
    columns = {
        name: np.array([getattr(copy, name) for copy in found], np.int32 if name in {"node", "peer", "message", "hops"}
                       else np.float64)
        for name in ("node", "peer", "message", "received", "delivered", "acknowledged", "ended", "hops")
    }  # fmt: skip
    columns["reason"] = np.array(
        [MISSING if each.reason is None else reasons.add(each.reason) for each in found], np.int32
    )
    about = messages.shown(place)
    known = scan.names.known
    paths = {str(at): [known(name) for name in each.path.split()] for at, each in enumerate(found) if each.path}
    recipients = [known(name) for name in (messages.attrs["recipients"][place] or "").split()]
    metadata = {
        "messages": [each[:_TEXT_MAX] for each in family[:_RECIPIENTS_MAX]], "reasons": reasons.shown, "paths": paths,
        "recipients": recipients, "source": messages.source[place], "published": about.t, "deadline": about.deadline,
    }  # fmt: skip
    return table(columns, metadata)


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
