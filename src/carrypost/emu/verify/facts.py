"""Facts of a record, from its rows taken together: presence of nodes, copies, deadlines.

`Facts` reads a log (`carrypost.emu.rows`) and nothing else. Copies are numbered by node and message; questions
of the kind "what happened last to this copy before row 17" are answered for all rows at once.
"""
# Facts are computed when they are first asked for and kept, as most records need few of them:
# without crashes, orders or wrong clocks the rules return early.
#
# Where checkers stand alone. With summaries and metrics they share how a record is read, and with
# the emulator only the names of rows, reasons and settings. No rule uses code that moves messages:
# neither that of engine and hosts nor the sweep of population mode. The reach of a flood (`bound`),
# orders (`order`) and the lives of copies are reckoned here on their own. A
# contract of the imports (pyproject.toml) holds that line.

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from carrypost.arrays import Codes, Flags, Ints
from carrypost.emu.rows import KIND, Before, Log
from carrypost.emu.verify.bound import Flood, flood_us
from carrypost.log.record import REDELIVERED, Kind
from carrypost.model.times import MICROSECONDS

CRASHES = ("crash", "crash-lost")
"""Details of a `leave` after which something may be missing without a word."""
_CLOCK_FAULTS = ("clock_skew_s", "clock_drift_ppm", "clock_step_per_h")
NEVER_US = int(np.iinfo(np.int64).max)
"""A deadline that never comes."""
Found = Iterator[tuple[int, str]]
"""The findings of a rule: rows, and what is wrong with them."""


@dataclass(frozen=True)
class Facts:
    """A log, and what several rules want to know of it."""

    log: Log

    def copy(self, rows: Ints, nodes: Codes | None = None) -> Ints:
        """Return a number for the copy of the row's message at the row's node, or at another one."""
        of = self.log.node[rows] if nodes is None else nodes
        return of * np.int64(len(self.log.messages) + 1) + self.log.message[rows]

    def before(self, rows: Ints) -> Before:
        """Return an index of these rows by copy."""
        return Before(self.copy(rows), rows, len(self.log))

    def are(self, rows: Ints, kind: Kind) -> Flags:
        """Return flags of those of these rows, as `Before` finds them, that are there and of this kind."""
        return np.asarray((rows >= 0) & (self.log.kind[np.maximum(rows, 0)] == KIND[kind]), np.bool_)

    def there(self, rows: Ints) -> Flags:
        """Return whether the node of each row was there just before it."""
        return self.are(self.comings.find(self.log.node[rows], rows), Kind.JOIN)

    def there_at_end(self, rows: Ints) -> Flags:
        """Return whether the node of each row is there when the record ends."""
        return self.are(self.comings.last(self.log.node[rows]), Kind.JOIN)

    def once(self, rows: Ints) -> Ints:
        """Return the first of these rows for each copy."""
        _, first = np.unique(self.copy(rows), return_index=True)
        return rows[np.sort(first)]

    @cached_property
    def deliveries(self) -> Ints:
        """Rows of deliveries, without those that a crash repeated."""
        rows = self.log.of(Kind.DELIVER)
        return rows[~self.log.is_detail(rows, REDELIVERED)]

    @cached_property
    def _publications(self) -> Before:
        """Rows of publications, by message."""
        rows = self.log.of(Kind.PUBLISH)
        return Before(self.log.message[rows], rows, len(self.log))

    def origin(self, rows: Ints) -> Ints:
        """Return the publication of each row's message that came last before it, or -1."""
        return self._publications.find(self.log.message[rows], rows)

    def publication(self, rows: Ints) -> Ints:
        """Return the publication that each row is about: itself, or the last one of its message before it, or -1."""
        return np.where(self.log.kind[rows] == KIND[Kind.PUBLISH], rows, self.origin(rows))

    def deadline_us(self, rows: Ints) -> Ints:
        """Return the deadline of each row's message, by its author's clock; `NEVER_US` where it has none."""
        origin = self.publication(rows)
        known = self._told_us[np.maximum(origin, 0)]
        return np.where((origin >= 0) & (known >= 0), known, NEVER_US)

    @cached_property
    def _told_us(self) -> Ints:
        return self.log.attr_us("deadline")

    @cached_property
    def groups(self) -> list[tuple[str, str]]:
        """The order groups: destination and ordering."""
        return sorted(set(self._ordered.values()))

    @cached_property
    def group(self) -> Ints:
        """By row, the order group of its message, as a position in `groups`; -1 where it has none."""
        found = np.full(len(self.log), -1, np.int64)
        number = {group: place for place, group in enumerate(self.groups)}
        for row, group in self._ordered.items():
            found[row] = number[group]
        rows = self.log.of(Kind.RECEIVE, Kind.DELIVER, Kind.DROP, Kind.EXPIRE) if number else found[:0]
        origin = self.origin(rows)
        found[rows] = np.where(origin >= 0, found[np.maximum(origin, 0)], -1)
        return found

    def place(self, rows: Ints) -> Ints:
        """Return a number for the node of a row in the order group of its message."""
        return self.group[rows] * np.int64(len(self.log.nodes)) + self.log.node[rows]

    def happenings(self, rows: Ints) -> Iterator[tuple[int, ...]]:
        """Yield row, time, kind, node, place, publication and deadline of rows about ordered messages, in order."""
        log = self.log
        columns = rows, log.t_us[rows], log.kind[rows], log.node[rows], self.place(rows), self.publication(rows)
        return zip(*(each.tolist() for each in (*columns, self.deadline_us(rows))), strict=True)

    @cached_property
    def joining(self) -> Ints:
        """Publications that only join others."""
        return np.array(list(self.log.attr("joins")), np.int64)

    @cached_property
    def _ordered(self) -> dict[int, tuple[str, str]]:
        """By publication that has an order, its group."""
        destination = self.log.attr("destination")
        return {row: (destination.get(row, ""), ordering) for row, ordering in self.log.attr("ordering").items()}

    def copies(self, *begin: Kind) -> Ints:
        """Return the rows at which copies begin, by these kinds, or end: drops, and expiries at their deadline.

        A copy that waited in vain expires earlier, and is carried on.
        """
        rows = self.log.of(*begin, Kind.DROP, Kind.EXPIRE)
        early = (self.log.kind[rows] == KIND[Kind.EXPIRE]) & (self.shown_us(rows) < self.deadline_us(rows))
        found: Ints = rows[~early]
        return found

    def shown_us(self, rows: Ints) -> Ints:
        """Return the times that the clock of each row's node showed."""
        return np.where(self.clock_us[rows] >= 0, self.clock_us[rows], self.log.t_us[rows])

    @cached_property
    def clock_us(self) -> Ints:
        """The time that the node's clock showed at each row, if that clock was wrong; else -1."""
        return self.log.attr_us("clock")

    @cached_property
    def wrong_clocks(self) -> Flags:
        """Flags of nodes whose clock may be wrong: the scenario or some row says so."""
        found = np.full(len(self.log.nodes), self._faulty("clock-step", *_CLOCK_FAULTS), np.bool_)
        found[self.log.node[self.clock_us >= 0]] = True
        return found

    @cached_property
    def comings(self) -> Before:
        """Rows of joining and leaving, by node."""
        rows = self.log.of(Kind.JOIN, Kind.LEAVE)
        return Before(self.log.node[rows], rows, len(self.log))

    @cached_property
    def crashes(self) -> Before:
        """Rows of crashes, by node."""
        return Before(self.log.node[self._crashes], self._crashes, len(self.log))

    @property
    def crashed(self) -> bool:
        """True if any node crashed."""
        return len(self._crashes) > 0

    @cached_property
    def _crashes(self) -> Ints:
        """Indices of crashes. In a record that is not the emulator's, any node that leaves may have crashed."""
        log = self.log
        rows = log.of(Kind.LEAVE)
        if not self.emulated:
            return rows
        known = [log.details.index(each) for each in CRASHES if each in log.details]
        return rows[np.isin(log.detail[rows], known)]

    @cached_property
    def emulated(self) -> bool:
        """True if the record has the true contacts, which only the emulator knows."""
        return "scenario" in self.log.run_attrs() or len(self.log.of(Kind.CONTACT)) > 0

    def limit(self, name: str) -> int | None:
        """Return a number of the nodes' settings, if the record has it."""
        value = self.in_force.get("settings", {}).get(name, self.log.run_attrs().get(name))
        return int(value) if isinstance(value, int) or (isinstance(value, str) and value.isdecimal()) else None

    @cached_property
    def in_force(self) -> dict[str, Any]:
        """The keys of the scenario, defaults included; empty in records of real nodes."""
        try:
            return tomllib.loads(self.log.run_attrs().get("defaults", ""))
        except tomllib.TOMLDecodeError:
            return {}

    @property
    def full_disks(self) -> bool:
        """True if disks may be full at times."""
        return self._faulty("disk-full", "disk_full_per_h")

    def _faulty(self, event: str, *keys: str) -> bool:
        """Return True if the scenario has such an event, or any of these faults at all."""
        faults = self.in_force.get("faults", {})
        return any(each.get("kind") == event for each in faults.get("event", ())) or any(map(faults.get, keys))

    def blamed(self, rows: Ints, text: str) -> Found:
        """Yield each of these rows, with the same text about it."""
        for row in rows.tolist():
            yield row, f"{self.shown(row)}: {text}"

    def shown(self, row: int) -> str:
        """Return the node and the message of a row, as text."""
        log = self.log
        message = log.messages[log.message[row]] if log.message[row] >= 0 else "?"
        return f"{log.nodes[log.node[row]]}: {message} at {log.t_us[row] / MICROSECONDS:.6f} s"

    @cached_property
    def presences(self) -> list[tuple[str, int, int | None]]:
        """The times at which each node joined and left, in microseconds; None: it stayed to the end."""
        log, since = self.log, dict[int, int]()
        found: list[tuple[str, int, int | None]] = []
        for row in log.of(Kind.JOIN, Kind.LEAVE).tolist():
            node, t_us = int(log.node[row]), int(log.t_us[row])
            if log.kind[row] == KIND[Kind.JOIN]:
                since.setdefault(node, t_us)
            elif node in since:
                found.append((log.nodes[node], since.pop(node), t_us))
        return found + [(log.nodes[node], t_us, None) for node, t_us in since.items()]

    @cached_property
    def contacts(self) -> list[tuple[str, str, int, int]]:
        """The contacts, in microseconds."""
        log, end_us = self.log, self.log.attr_us("end")
        return [
            (log.nodes[log.node[row]], log.nodes[log.peer[row]], int(log.t_us[row]), int(end_us[row]))
            for row in log.of(Kind.CONTACT).tolist()
        ]

    @cached_property
    def passable(self) -> list[tuple[str, str, int, int]]:
        """Contacts between nodes that joined at some time."""
        known = {node for node, *_ in self.presences}
        return [each for each in self.contacts if {*each[:2]} <= known and each[2] <= each[3]]

    @cached_property
    def bound(self) -> Flood:
        """The reach of a flood over these contacts. Where clocks are wrong, messages count as living without end."""
        log, endless = self.log, bool(self.wrong_clocks.any())
        rows = log.of(Kind.PUBLISH)
        rows = rows[self.there(rows)]
        deadlines = self.deadline_us(rows)
        messages: dict[int, tuple[str, str, int, int | None]] = {}
        for row, deadline_us in zip(rows.tolist(), deadlines.tolist(), strict=True):
            message, t_us = int(log.message[row]), int(log.t_us[row])
            end_us = None if endless or deadline_us == NEVER_US else max(deadline_us, t_us)
            if (first := messages.get(message)) is not None:  # The id of what a crash took was given anew.
                t_us = first[2]
                end_us = None if end_us is None or first[3] is None else max(end_us, first[3])
            messages[message] = (log.messages[message], log.nodes[log.node[row]], t_us, end_us)
        return flood_us(self.passable, list(messages.values()), self.presences)
