"""A run of population mode, the rows of its record by columns, and its plan and parts as files.

A run is planned first, which finds all mistakes, and then played part by part. Its record has those rows of a run of
hosts that population mode knows: presences, contacts, publications, receptions and deliveries. It ends with counts and
histograms, and with `rows = "none"` has only those.

Rows are made from gains (when, giver, taker, set). A row is a few whole numbers until it is written: nodes and messages
are their places in the plan. Rows are in order of (t, kind, hops, node, message); so parts of a run that are joined
give the rows of the run in one piece. Hops come before nodes so that no copy is received before the one that it comes
from. The hops of a reception are those of the giver and one more. They are looked up in a table that has a line for
each message that lives and a column for each node.

Counts are what stays of a run without rows, and what its record ends with (`Tally`). Those of parts add up to those of
the run. Delays are counted by whole seconds; their sum is exact.

Files of plans and parts are for the tasks of a campaign: columns, and a few notes beside them.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from carrypost.arrays import Codes, Ints
from carrypost.emu.engine.world import Progress
from carrypost.emu.population import sweep
from carrypost.emu.population.delays import NEVER_US, Delays
from carrypost.emu.records import ROWS_MAX, Records, Sink, encoded_batch
from carrypost.emu.scenario import Scenario
from carrypost.log.files import refusing, staged
from carrypost.log.record import Kind, Record
from carrypost.model.times import MICROSECONDS
from carrypost.traces.contacts import Contact
from carrypost.traces.encounters import Encounters


def _nothing() -> Ints:
    return np.zeros(0, np.int64)


@dataclass(slots=True)
class Tally:
    """Counts of a part, or of a run."""

    counts: Counter[str] = field(default_factory=Counter)
    delays: Ints = field(default_factory=_nothing)
    """Receptions by whole seconds since publication."""
    hops: Ints = field(default_factory=_nothing)
    """Receptions by hops."""

    def add(self, other: Tally) -> None:
        """Add the counts of another part."""
        self.counts.update(other.counts)
        self.delays, self.hops = _sum(self.delays, other.delays), _sum(self.hops, other.hops)

    def met(self, contacts: Encounters, until_us: int, published: int) -> None:
        """Count the contacts that begin before this time, and publications."""
        begun = contacts.start_us < until_us
        self.counts["contact"] += int(begun.sum())
        self.counts["contact_us"] += int((contacts.end_us - contacts.start_us)[begun].sum())
        self.counts["publish"] += published

    def received(self, delay_us: Ints, hops: Ints) -> None:
        """Count receptions, of each of which the delay since its publication and the hops are given."""
        counts = Counter({"receive": len(delay_us), "delay_us": int(delay_us.sum())})
        self.add(Tally(counts, np.bincount(delay_us // MICROSECONDS), np.bincount(hops)))

    def record(self, record: Record, t_us: int) -> None:
        """Append the counts as rows."""
        for name, count in sorted(self.counts.items()):
            record.add(Kind.TALLY, t_us, "", size=count, detail=name)
        for since_s in np.flatnonzero(self.delays).tolist():
            attrs = {"from_s": str(since_s), "to_s": str(since_s + 1)}
            record.add(Kind.TALLY, t_us, "", size=int(self.delays[since_s]), detail="delay", attrs=attrs)
        for hops in np.flatnonzero(self.hops).tolist():
            record.add(Kind.TALLY, t_us, "", hops=hops, size=int(self.hops[hops]), detail="hops")


def _sum(one: Ints, other: Ints) -> Ints:
    """Return the sum of two histograms, of which one may be shorter."""
    longer, shorter = (one, other) if len(one) > len(other) else (other, one)
    found = longer.copy()
    found[: len(shorter)] += shorter
    return found


KINDS = (Kind.LEAVE, Kind.JOIN, Kind.CONTACT, Kind.PUBLISH, Kind.RECEIVE, Kind.DELIVER)
"""The order of rows at one instant."""
_PLACE = {kind: place for place, kind in enumerate(KINDS)}
_WORD = 64
_KEY_MAX = 2**63


class Rows(NamedTuple):
    """Rows by columns; -1 where there is nothing."""

    t_us: Ints
    kind: Ints
    """Place in `KINDS`."""
    node: Ints
    peer: Ints
    message: Ints
    """Place among all messages of the run."""
    hops: Ints
    value: Ints
    """Of a contact its end in microseconds; of a leave the stay that it ends."""

    def select(self, which: slice | Ints) -> Rows:
        """Return the selected rows."""
        return Rows(*(column[which] for column in self))

    @classmethod
    def none(cls) -> Rows:
        """Return an empty set of rows."""
        return cls(*(np.zeros(0, np.int64) for _ in cls._fields))

    def delivered(self) -> Rows:
        """Return the deliveries of receptions: at once."""
        return Rows.of(Kind.DELIVER, self.t_us, self.node, message=self.message)

    @classmethod
    def of(cls, kind: Kind, t_us: Ints, node: Codes | Ints, **columns: Codes | Ints) -> Rows:
        """Return rows of one kind."""
        none = np.full(len(t_us), -1, np.int64)
        rest = [columns.get(name, none).astype(np.int64, copy=False) for name in cls._fields[3:]]
        return cls(t_us, np.full(len(t_us), _PLACE[kind], np.int64), node.astype(np.int64, copy=False), *rest)


def concatenate(parts: Sequence[Rows]) -> Rows:
    """Return the rows of all parts, in order."""
    rows = Rows(*(np.concatenate(column) for column in zip(*parts, strict=True)))
    if not len(rows.t_us):
        return rows
    about = np.where(rows.kind == _PLACE[Kind.CONTACT], rows.peer, rows.message)
    columns = (rows.t_us - rows.t_us.min(), rows.kind, rows.hops + 1, rows.node, about + 1)
    counts = [int(column.max()) + 1 for column in columns]
    if math.prod(counts) >= _KEY_MAX:
        return rows.select(np.lexsort(columns[::-1]))
    key, *others = columns  # One key is sorted in a fraction of the time that five take.
    for column, count in zip(others, counts[1:], strict=True):
        key = key * count + column
    return rows.select(np.argsort(key))


def rows_known_before(plan: sweep.Plan, part: sweep.Part, contacts: Encounters) -> Rows:
    """Return the rows of a part that are known beforehand: arrivals and departures, contacts, and publications."""
    stays, messages = plan.stays, plan.messages
    comes = np.flatnonzero((stays.start_us >= part.since_us) & (stays.start_us < part.until_us))
    goes = np.flatnonzero((stays.end_us >= part.since_us) & (stays.end_us < part.until_us))
    met = contacts.select((contacts.start_us >= part.since_us) & (contacts.start_us < part.until_us))
    number: Ints = np.arange(part.first, part.last)
    t_us, source = messages.t_us[number], messages.source[number]
    return concatenate([
        Rows.of(Kind.LEAVE, stays.end_us[goes], stays.node[goes], value=goes),
        Rows.of(Kind.JOIN, stays.start_us[comes], stays.node[comes]),
        Rows.of(Kind.CONTACT, met.start_us, met.a, peer=met.b, value=met.end_us),
        Rows.of(Kind.PUBLISH, t_us, source, message=number),
        Rows.of(Kind.DELIVER, t_us, source, message=number),
    ])  # fmt: skip


# --- receptions ----------------------------------------------------------------------------------------------


class Receptions:
    """Takes the gains of a part, in order of time, and makes receptions of them."""

    def __init__(self, plan: sweep.Plan, part: sweep.Part) -> None:
        chosen = slice(part.first, part.last)
        self.tally = Tally()
        self._first = part.first
        self._t_us = plan.messages.t_us[chosen]
        self._deadline_us = plan.messages.deadline_us[chosen]
        self._source = plan.messages.source[chosen]
        self._published = 0
        self._line: Ints = np.full(len(self._t_us), -1, np.int64)
        """By message, its line in the table of hops."""
        self._table: NDArray[np.uint16] = np.zeros((0, len(plan.nodes)), np.uint16)
        """By line and node: 1 the author, 2 got it from the author, and so on; 0 does not have it."""
        self._free: list[int] = []

    def receive(self, gains: list[sweep.Gain]) -> Rows:
        """Return the receptions that these gains are, in order, and count them."""
        if not gains:
            return Rows.none()
        *columns, sets = zip(*gains, strict=True)
        self._advance(gains[0][0], gains[-1][0])
        oldest = int(np.argmax(self._line >= 0))
        row, message = _members(sets, oldest, self._published)
        t_us, giver, taker = (np.array(column, np.int64).take(row) for column in columns)
        hops = self._hops(self._line.take(message), giver, taker)
        self.tally.received(t_us - self._t_us.take(message), hops)
        return Rows.of(Kind.RECEIVE, t_us, taker, peer=giver, message=message + self._first, hops=hops)

    def _advance(self, first_us: int, last_us: int) -> None:
        """Give lines to what is published by the end of a batch, and take them from what was dead when it began."""
        before, self._published = self._published, int(np.searchsorted(self._t_us, last_us, side="right"))
        dead = np.flatnonzero((self._line >= 0) & (self._deadline_us <= first_us))
        self._table[self._line[dead]] = 0
        self._free += self._line[dead].tolist()
        self._line[dead] = -1
        new: Ints = np.arange(before, self._published)
        if (lacking := len(new) - len(self._free)) > 0:
            lines, nodes = self._table.shape
            more = max(lacking, lines // 4)
            self._table.resize((lines + more, nodes), refcheck=False)  # Large blocks are not copied.
            self._free += range(lines, lines + more)
        self._line[new] = self._free[: len(new)]
        del self._free[: len(new)]
        self._table[self._line[new], self._source[new]] = 1

    def _hops(self, line: Ints, giver: Ints, taker: Ints) -> Ints:
        """Return the hops of receptions. A giver may have got its copy in the same batch: those are looked at again."""
        table, nodes = self._table.reshape(-1), self._table.shape[1]
        gives, there = line * nodes + giver, line * nodes + taker
        subscribed = there
        while len(subscribed):  # `receive` is twice as fast as to index.
            hops = table.take(gives)
            known = hops != 0
            done, left = np.flatnonzero(known), np.flatnonzero(~known)
            table[subscribed.take(done)] = hops.take(done) + np.uint16(1)
            gives, subscribed = gives.take(left), subscribed.take(left)
        found: Ints = table.take(there).astype(np.int64)
        return found - 1


def _members(sets: Sequence[int], first: int, last: int) -> tuple[Ints, Ints]:
    """Return the members of sets within [first, last): by member the place of its set, and which it is."""
    first -= first % _WORD
    words = -(-(last - first) // _WORD)
    table = np.frombuffer(b"".join([(each >> first).to_bytes(words * 8, "little") for each in sets]), "<u8")
    word = np.flatnonzero(table)
    bit = np.flatnonzero(np.unpackbits(table[word].view(np.uint8), bitorder="little").view(np.bool_))
    place = word.take(bit >> 6)
    row = place // words
    return row, first + (place - row * words) * _WORD + (bit & 63)


# --- for the record ------------------------------------------------------------------------------------------


class Batches:
    """Makes batches of equal length for the record out of rows that come in order."""

    def __init__(self, plan: sweep.Plan, run: str, topics: Sequence[str]) -> None:
        self._plan = plan
        self._run = run
        self._topics = topics
        self._nodes = pa.array(plan.nodes, pa.string())
        self._messages = pa.array(plan.messages.names, pa.string())
        self._waiting: list[Rows] = []
        self._count = 0

    def add(self, rows: Rows, *, last: bool = False) -> Iterator[pa.RecordBatch]:
        """Yield the batches that are full, and at the end the rest."""
        self._waiting.append(rows)
        self._count += len(rows.t_us)
        if self._count < ROWS_MAX and not last:
            return
        together = Rows(*(np.concatenate(column) for column in zip(*self._waiting, strict=True)))
        whole = self._count if last else self._count - self._count % ROWS_MAX
        for start in range(0, whole, ROWS_MAX):
            yield self._batch(together.select(slice(start, min(start + ROWS_MAX, whole))))
        self._waiting, self._count = [together.select(slice(whole, None))], self._count - whole

    def _batch(self, rows: Rows) -> pa.RecordBatch:
        messages = self._plan.messages
        about = rows.message >= 0
        source = np.where(about, messages.source[rows.message], -1) if len(messages) else rows.message
        size = np.where(about, messages.size[rows.message], -1) if len(messages) else rows.message
        kinds = pa.array([kind.value for kind in KINDS])
        columns = {
            "kind": (rows.kind, kinds), "node": (rows.node, self._nodes), "peer": (rows.peer, self._nodes),
            "message": (rows.message, self._messages), "source": (source, self._nodes),
        }  # fmt: skip
        return encoded_batch(
            self._run, rows.t_us, columns, {"hops": rows.hops, "size": size},
            details=self._details(rows), attrs=self._attrs(rows),
        )  # fmt: skip

    def _details(self, rows: Rows) -> dict[int, str]:
        """Return the reason for which a node leaves, by row, if it has one."""
        leaves = np.flatnonzero(rows.kind == _PLACE[Kind.LEAVE])
        found = zip(leaves.tolist(), rows.value[leaves].tolist(), strict=True)
        return {place: why for place, stay in found if (why := self._plan.stays.end[stay])}

    def _attrs(self, rows: Rows) -> dict[int, dict[str, str]]:
        """Return further attributes of contacts and publications, by row."""
        contacts, publications = (np.flatnonzero(rows.kind == _PLACE[kind]) for kind in (Kind.CONTACT, Kind.PUBLISH))
        ends = zip(contacts.tolist(), rows.value[contacts].tolist(), strict=True)
        published = zip(publications.tolist(), rows.message[publications].tolist(), strict=True)
        found = {place: {"end": repr(end_us / MICROSECONDS)} for place, end_us in ends}
        return dict(sorted((found | {place: self._published(message) for place, message in published}).items()))

    def _published(self, message: int) -> dict[str, str]:
        """Attributes of a message, as `Record.published` has them."""
        messages = self._plan.messages
        mode = "persistent" if messages.persistent[message] else "non-persistent"
        attrs = {
            "destination": self._topics[messages.workload[message]],
            "mode": mode,
            "priority": str(messages.priority[message]),
        }
        if (deadline_us := int(messages.deadline_us[message])) < NEVER_US:
            attrs["deadline"] = repr(deadline_us / MICROSECONDS)
        return attrs


# --- plans and parts as files --------------------------------------------------------------------------------

_NOTES = b"notes"
PLAN_FILES = ("contacts", "stays", "messages")
"""Files of a plan."""


def save_plan(folder: Path, plan: sweep.Plan) -> None:
    """Write a plan to a folder."""
    with refusing(f"{folder} cannot be written"):
        folder.mkdir(parents=True, exist_ok=True)
    for name in PLAN_FILES:
        part = getattr(plan, name)
        columns = {each: getattr(part, each) for each in part.__slots__ if each != "nodes"}
        _write(folder / name, columns, [plan.nodes, plan.end_us, dict(plan.attrs)] if name == "contacts" else None)


def load_plan(folder: Path) -> sweep.Plan:
    """Return a plan that was saved; contacts are mapped into memory, and read as they are needed."""
    (contacts, notes), (stays, _), (messages, _) = (_read(folder / name) for name in PLAN_FILES)
    nodes, end_us, attrs = notes
    return sweep.Plan(
        end_us, attrs, sweep.Stays(**stays), Encounters(tuple(nodes), **contacts), sweep.Messages(**messages)
    )


def save_part(path: Path, rows: Rows, tally: Tally) -> None:
    """Write the rows and counts of a part."""
    _write(path, rows._asdict(), [tally.counts, tally.delays.tolist(), tally.hops.tolist()])


def load_part(path: Path) -> tuple[Rows, Tally]:
    """Return what `save_part` wrote."""
    rows, (counts, *histograms) = _read(path)
    return Rows(**rows), Tally(Counter(counts), *(np.array(each, np.int64) for each in histograms))


def _write(path: Path, columns: Mapping[str, Any], notes: object) -> None:
    """Write columns of numbers or texts; the file is there whole, or not at all."""
    found = {name: pa.array(each, pa.string()) if isinstance(each, tuple) else each for name, each in columns.items()}
    table = pa.table(found).replace_schema_metadata({_NOTES: json.dumps(notes)})
    with staged(path) as partial, pa.OSFile(str(partial), "wb") as file, pa.ipc.new_file(file, table.schema) as out:
        out.write_table(table)


def _read(path: Path) -> tuple[dict[str, Any], Any]:
    with refusing(f"{path} cannot be read", pa.ArrowException):
        table = pa.ipc.open_file(pa.memory_map(str(path))).read_all()
    columns = {
        name: tuple(each.to_pylist()) if pa.types.is_string(each.type) else each.to_numpy()
        for name, each in zip(table.column_names, table.columns, strict=True)
    }
    return columns, json.loads(table.schema.metadata[_NOTES])


# --- runs ----------------------------------------------------------------------------------------------------

Watch = Callable[[Progress], None]


class Model(NamedTuple):
    """A run that can be played."""

    delays: Delays
    seed: int | str
    keep_rows: bool
    window_us: int | None

    @classmethod
    def of(cls, scenario: Scenario, seed: int | str) -> Model:
        """Return the model of a scenario; its file of delays is read and checked."""
        table = scenario.population
        window_us = None if table.window_s is None else round(table.window_s * MICROSECONDS)
        return cls(Delays.of(scenario), seed, table.rows == "all", window_us)

    def planned(self, scenario: Scenario) -> sweep.Plan:
        """Return the plan of a scenario."""
        plan = sweep.planned(scenario, self.seed, self.delays.name)
        sweep.check_sizes(plan.messages, self.delays.size_max)
        return plan

    def play(
        self, plan: sweep.Plan, part: sweep.Part, watch: Callable[[int, Tally], None] = lambda _, __: None
    ) -> tuple[Rows, Tally]:
        """Play the messages of a part; return its rows, none of them if rows are not kept, and its counts.

        `watch` is called with the time that has been reached, and the counts so far.
        """
        contacts = sweep.contacts_of(plan, part)
        receptions = Receptions(plan, part)
        found = [rows_known_before(plan, part, contacts)] if self.keep_rows else []
        receptions.tally.met(contacts.select(contacts.start_us >= part.since_us), part.until_us, part.last - part.first)
        steps = sweep.steps_of(plan, part, contacts, self.delays, self.seed)
        for gains in sweep.flow(steps, self.delays.hops(plan.nodes, self.seed), part.horizon_us):
            came = receptions.receive(gains)
            if self.keep_rows:
                found += [came, came.delivered()]
            if gains:
                watch(gains[-1][0], receptions.tally)
        return concatenate(found) if self.keep_rows else Rows.none(), receptions.tally


class Joining:
    """Joins the parts of a run, which come in order, to the rows of the run."""

    def __init__(self) -> None:
        self._waiting = Rows.none()

    def join(self, rows: Rows, until_us: int) -> Rows:
        """Return the rows before this time; no later part has any of those."""
        together = concatenate([self._waiting, rows])
        at = int(np.searchsorted(together.t_us, until_us))
        self._waiting = together.select(slice(at, None))
        return together.select(slice(at))


class PopulationRun:
    """A run whose files are read and checked; it can be played once."""

    crowded = 0
    """Number of nodes with more others around than places for neighbours: none, since there are no places."""

    def __init__(self, scenario: Scenario, seed: int | str, settings: str) -> None:
        self.name = f"{scenario.name}/{settings}/{seed}"
        self._scenario = scenario
        self._model = Model.of(scenario, seed)
        self._plan = self._model.planned(scenario)

    @property
    def ignored_events(self) -> int:
        """Connection events in the file of contacts that change nothing."""
        return int(self._plan.attrs.get("ignored_events", 0))

    @property
    def nodes(self) -> int:
        """Number of nodes that take part."""
        return self._plan.taking_part

    def contacts(self) -> Iterator[Contact]:
        """Yield the contacts that are played."""
        yield from self._plan.contacts.contacts()

    def run(self, out: Path | None = None, watch: Watch | None = None, *, keep: bool = True) -> Records:
        """Play all parts. Without `out` and `keep` rows are counted and forgotten."""
        plan, end_us = self._plan, self._plan.end_us

        before = Tally()

        def played(part: sweep.Part) -> tuple[Rows, Tally]:
            def report(t_us: int, tally: Tally) -> None:
                contacts, receptions = (before.counts[name] + tally.counts[name] for name in ("contact", "receive"))
                # A part goes on after its window, until its last message has died.
                share = (t_us - part.since_us) / (part.horizon_us - part.since_us)
                now_us = part.since_us + round(share * (part.until_us - part.since_us))
                if watch is not None:
                    watch(Progress(now_us, end_us, contacts, receptions, 2 * receptions))

            found = self._model.play(plan, part, report)
            report(part.horizon_us, found[1])
            before.add(found[1])
            return found

        cut = sweep.parts(plan, self._model.window_us)
        with Sink(out, keep=keep) as sink:
            write(sink, plan, self.name, self._scenario, zip(cut, map(played, cut), strict=True))
            return sink.close()


def write(
    sink: Sink, plan: sweep.Plan, name: str, scenario: Scenario, played: Iterator[tuple[sweep.Part, tuple[Rows, Tally]]]
) -> None:
    """Write the record of a run out of its parts, in order."""
    record = Record(name)
    record.add(Kind.RUN, 0, "", attrs=plan.attrs)
    sink.write(record)
    topics = [each.topic for each in scenario.workloads]
    batches, joining, total = Batches(plan, name, topics), Joining(), Tally()
    total.counts["join"] = plan.taking_part
    for part, (rows, tally) in played:
        total.add(tally)
        for batch in batches.add(joining.join(rows, part.until_us), last=part.until_us == plan.end_us):
            sink.write_batch(batch)
    total.record(record, plan.end_us - 1)
    sink.write(record)
