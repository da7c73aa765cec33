"""`run`: a scenario and a seed in, a record out; the same in, the same out, to the byte.

A run is prepared first, which reads all files and finds all mistakes, and then played. Rows leave the memory as they
come. An interrupted run leaves the rows up to that moment. Runs of population mode are `carrypost.emu.population`.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from carrypost.emu.arguments import check_seed, seed_of
from carrypost.emu.engine.world import Emulation, MakeApplication, Progress, run_attributes
from carrypost.emu.inputs import read_inputs
from carrypost.emu.population.run import PopulationRun
from carrypost.emu.records import ROWS_MAX, Records, Sink
from carrypost.emu.scenario import Scenario
from carrypost.errors import LocalError
from carrypost.log.record import Kind, Record
from carrypost.traces.contacts import Contact

Watch = Callable[[Progress], None]
_STEPS_MIN = 200
_STEP_US_MAX = 60_000_000
_COLLECT_EVERY = 1_000_000
_COLLECT_SELDOM = 100_000
"""A program whose threshold is this high looks after its garbage itself."""


def run(
    scenario: str | Path | Scenario,
    seed: int | str = 1,
    *,
    overrides: Sequence[str] | Mapping[str, object] = (),
    settings: str = "default",
    out: str | Path | None = None,
    encoded: bool = False,
    watch: Watch | None = None,
    application: MakeApplication | None = None,
) -> Records:
    """Emulate a scenario, given as a file or as a value.

    `overrides` change single keys of a file (``{"workload.0.lifetime_s": 600}``, or texts ``KEY=VALUE``). `settings` is
    what this choice of keys is called in the column `run`: name/settings/seed. With `out` the record is written as it
    comes, and not kept in memory. `encoded`: every frame goes through its bytes, which changes nothing but the time
    that it takes. `watch` is called with the progress of the run. `application` makes what runs on the nodes. After
    Ctrl-C the record as far as it came is in `out`.
    """
    if not isinstance(scenario, Scenario):
        scenario = Scenario.load(scenario, overrides)
    elif overrides:
        raise LocalError("overrides apply to a scenario's file: pass them to Scenario.load or Scenario.parse")
    prepared = prepare(scenario, seed, settings=settings, encoded=encoded, application=application)
    return prepared.run(None if out is None else Path(out), watch)


class Prepared:
    """A run whose files are read and checked; it can be played once."""

    def __init__(self, emulation: Emulation, record: Record, ignored_events: int = 0) -> None:
        self.name = record.run
        self.ignored_events = ignored_events
        """Connection events in the file of contacts that change nothing."""
        self.emulation = emulation
        """Emulation that is played."""
        self._record = record
        self._receptions = 0

    @property
    def nodes(self) -> int:
        """Number of nodes that take part; one that comes back without its store counts again."""
        return self.emulation.nodes

    @property
    def crowded(self) -> int:
        """Number of nodes that had more nodes in range than places for neighbours, so far."""
        return self.emulation.crowded

    def contacts(self) -> Iterator[Contact]:
        """Yield the contacts that are played."""
        yield from self.emulation.contacts

    def run(self, out: Path | None = None, watch: Watch | None = None, *, keep: bool = True) -> Records:
        """Let the time of the scenario pass. Without `out` and `keep` rows are counted and forgotten."""
        record, emulation = self._record, self.emulation
        end_us = emulation.scenario.duration_us
        steps = max(_STEPS_MIN, -(-end_us // _STEP_US_MAX))
        with _collecting_seldom(), Sink(out, keep=keep) as sink:
            try:
                for step in range(1, steps + 1):
                    emulation.run_until(-(-end_us * step // steps))
                    if len(record) >= ROWS_MAX:
                        self._flush(sink)
                    if watch is not None:
                        watch(self._progress(sink.rows, end_us))
            except KeyboardInterrupt:
                self._flush(sink)
                raise
            self._flush(sink)
            return sink.close()

    def _flush(self, sink: Sink) -> None:
        self._receptions += self._record.kind.count(Kind.RECEIVE.value)
        sink.write(self._record)

    def _progress(self, rows: int, end_us: int) -> Progress:
        receptions = self._receptions + self._record.kind.count(Kind.RECEIVE.value)
        emulation = self.emulation
        return Progress(emulation.now, end_us, emulation.contacts_begun, receptions, rows + len(self._record))


@contextmanager
def _collecting_seldom() -> Iterator[None]:
    """Collect garbage rarely during a run, which makes millions of objects and hardly a cycle.

    The usual frequency takes a tenth of the run. Objects from before the run are frozen meanwhile, so that they are not
    examined. If the program has frozen objects itself, nothing is frozen or thawed here, because thawing affects all. A
    program that already collects rarely is left alone: a collection before each of many short runs would take as long
    as the runs.
    """
    before = gc.get_threshold()
    if before[0] >= _COLLECT_SELDOM:
        yield
        return
    frozen = gc.get_freeze_count()
    gc.collect()
    if not frozen:
        gc.freeze()
    gc.set_threshold(_COLLECT_EVERY, *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)
        if not frozen:
            gc.unfreeze()


def prepare(
    scenario: Scenario, seed: int | str = 1, *, settings: str = "default", encoded: bool = False,
    application: MakeApplication | None = None,
) -> Prepared | PopulationRun:  # fmt: skip
    """Read what the scenario names, and make everything ready; all mistakes show here."""
    check_seed(seed)
    seed = seed_of(seed) if isinstance(seed, str) else seed
    if scenario.of_population:
        if encoded or application is not None:
            raise LocalError('population mode has no frames and no applications; mode = "faithful" has both')
        return PopulationRun(scenario, seed, settings)
    inputs = read_inputs(scenario, seed)
    record = Record(f"{scenario.name}/{settings}/{seed}")
    record.add(Kind.RUN, 0, "", attrs=run_attributes(scenario, seed, inputs))
    emulation = Emulation(scenario, seed, inputs, record, encoded=encoded, application=application)
    return Prepared(emulation, record, inputs.ignored_events)
