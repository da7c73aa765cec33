"""A run of population mode: planned first, which finds all mistakes, then played part by part.

Its record has those rows of a run of hosts that population mode knows: presences, contacts, publications, receptions
and deliveries. It ends with counts and histograms, and with `rows = "none"` has only those.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

from carrypost.emu.engine.world import Progress
from carrypost.emu.population.delays import Delays
from carrypost.emu.population.flow import flow
from carrypost.emu.population.plan import Plan, check_sizes, planned
from carrypost.emu.population.rows import Batches, Receptions, Rows, Tally, concatenate, rows_known_before
from carrypost.emu.population.windows import Part, contacts_of, parts, steps_of
from carrypost.emu.records.files import Records, Sink
from carrypost.emu.scenario.scenario import Scenario
from carrypost.log.record import Kind, Record
from carrypost.model.times import MICROSECONDS
from carrypost.traces.contacts import Contact

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

    def planned(self, scenario: Scenario) -> Plan:
        """Return the plan of a scenario."""
        plan = planned(scenario, self.seed, self.delays.name)
        check_sizes(plan.messages, self.delays.size_max)
        return plan

    def play(
        self, plan: Plan, part: Part, watch: Callable[[int, Tally], None] = lambda _, __: None
    ) -> tuple[Rows, Tally]:
        """Play the messages of a part; return its rows, none of them if rows are not kept, and its counts.

        `watch` is called with the time that has been reached, and the counts so far.
        """
        contacts = contacts_of(plan, part)
        receptions = Receptions(plan, part)
        found = [rows_known_before(plan, part, contacts)] if self.keep_rows else []
        receptions.tally.met(contacts.select(contacts.start_us >= part.since_us), part.until_us, part.last - part.first)
        steps = steps_of(plan, part, contacts, self.delays, self.seed)
        for gains in flow(steps, self.delays.hops(plan.nodes, self.seed), part.horizon_us):
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

        def played(part: Part) -> tuple[Rows, Tally]:
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

        cut = parts(plan, self._model.window_us)
        with Sink(out, keep=keep) as sink:
            write(sink, plan, self.name, self._scenario, zip(cut, map(played, cut), strict=True))
            return sink.close()


def write(
    sink: Sink, plan: Plan, name: str, scenario: Scenario, played: Iterator[tuple[Part, tuple[Rows, Tally]]]
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
