"""Messages of a run, and the copies of one of them: which nodes had it, from when until when, and from whom.

An event and its legs and results are different messages, and so are a publication and its notices; the attribute
`origin` ties them. A chosen message includes all that descend from it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from carrypost.arrays import Ints
from carrypost.emu.records.log import MISSING, Log, encoded
from carrypost.log.record import Kind
from carrypost.web.arrow import table
from carrypost.web.replay.scan import Names, Scan, number

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
