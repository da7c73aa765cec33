"""Campaigns: many runs of the emulator, each a task of Spark, wherever that runs.

A run is one task and one partition, and so is a window of a population's run; its record is the same wherever, and
beside whatever, it was made. A failure is a row of the table `failures` and ends nothing. A campaign that is begun
again does what is missing, failed or changed; what exists of these runs is removed before they start, so that all
records are of the present campaign. The driver reads the progress from the folder, so tasks send no reports and do not
wait.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from carrypost.errors import LocalError
from carrypost.lab import folders
from carrypost.lab.campaign import states, windows
from carrypost.lab.campaign.bundle import contents
from carrypost.lab.campaign.grid import CampaignRun, Grid
from carrypost.lab.campaign.objects import CampaignObjects
from carrypost.lab.campaign.states import DONE, FAILED, CampaignFolder, CampaignPlan, State, plan
from carrypost.lab.campaign.task import Held, TaskContext, play
from carrypost.lab.campaign.visible import check
from carrypost.lab.engines import Engine, SparkEngine
from carrypost.lab.objects import ObjectFolder
from carrypost.lab.schemas import RECORDS
from carrypost.lab.spark import java

if TYPE_CHECKING:
    from pyspark import Broadcast
    from pyspark.sql import SparkSession


class CampaignProgress(NamedTuple):
    """The progress of a campaign."""

    done: int
    failed: int
    todo: int
    """Number of runs that were to be done when it began."""
    windows: int = 0
    """Number of windows that are done, of runs that are done window by window."""
    windows_todo: int = 0
    """Number of windows in all."""


Watch = Callable[[CampaignProgress], None]


class Found(NamedTuple):
    """The existing results of a campaign."""

    done: list[State]
    """States of the runs that are done; those that have to be done again do not count."""
    failed: list[State]
    new: int
    """Number of runs that ended in this campaign, well or not."""

    @property
    def rows(self) -> int:
        """Number of rows of all records."""
        return sum(state.rows or 0 for state in self.done)

    @property
    def cpu_s(self) -> float:
        """CPU time of all runs."""
        return sum(state.cpu_s or 0.0 for state in self.done)


@dataclass(slots=True)
class Campaign:
    """A campaign in its folder, held against others."""

    grid: Grid
    place: CampaignFolder
    token: str
    plan: CampaignPlan
    began: bool = False
    """True if runs were started."""
    ended: list[State] = field(default_factory=list)
    """States in which runs of this campaign ended, also where the folder does not show it."""

    @property
    def todo(self) -> list[CampaignRun]:
        """Runs that are to be done."""
        return [run for run in self.grid.runs if run.name in self.plan.todo]

    def conduct(self, engine: Engine, watch: Watch = lambda _: None) -> list[State]:
        """Do the runs that are due, and return their states. Ctrl-C leaves what is done by then."""
        runs = self.todo
        if not runs:
            return self.ended
        spark = engine.start() if isinstance(engine, SparkEngine) else None
        if spark is not None and not isinstance(self.place, CampaignObjects):  # There, each task looks for itself.
            check(spark, self.place, self.token)
        with _contents(spark, runs) as held:
            self.begin()
            task = TaskContext(self.place, self.token, held)
            whole = [run for run in runs if not run.cut]
            found = engine.each("campaign", partial(play, task), whole, self._looking(runs, watch))
            cut = [run for run in runs if run.cut]
            found += windows.conduct(engine, task, cut, self._looking(runs, watch, windowed=True))
        ended = {state.run: state for state in found}
        self.ended = [ended[run.name] for run in runs]
        for run, state in zip(runs, self.ended, strict=True):
            if not state.kept:
                with suppress(OSError):
                    self.place.drop_record(run)
                    self.place.keep(run, msgspec.structs.replace(state, kept=True))
        return self.ended

    def _looking(
        self, runs: Sequence[CampaignRun], watch: Watch, *, windowed: bool = False
    ) -> Callable[[int, int], None]:
        """Return a function that reports the progress of these runs: it reads the folder, and is called for windows."""
        pending = {run.name: run for run in runs}
        counts = {DONE: 0, FAILED: 0}

        def look(done: int, todo: int) -> None:
            there = self.place.ended()
            for name, run in list(pending.items()):
                if run.stem in there and (state := self.place.state_of(run)) is not None and state.token == self.token:
                    del pending[name]
                    counts[state.status] += 1
            watch(CampaignProgress(counts[DONE], counts[FAILED], len(runs), *((done, todo) if windowed else ())))

        return look

    def begin(self) -> None:
        """Remove what exists of the runs that are to be done, so that old and new never mix."""
        self.began = True
        for run in self.todo:
            self.place.forget(
                run.stem, state=self.plan.todo[run.name] != FAILED
            )  # Failures are reported until they are mended.
        for stem in self.plan.outdated:
            self.place.forget(stem)

    def close(self) -> None:
        """Remove unfinished files, and write the tables of finished runs, if there are any."""
        self.place.clear()
        if not self.began and not self.place.states_there():
            return
        states.write_tables(self.place, self.grid.runs, [state for state in self.ended if not state.kept])
        found = self.found()
        facts = {
            "campaign": self.grid.path.name,
            "scenarios": list(self.grid.scenarios),
            "settings": {each.name: _plain(each.overrides) for each in self.grid.settings},
            "seeds": list(self.grid.seeds),
            "runs": len(self.grid.runs),
            "done": len(found.done),
            "failed": len(found.failed),
            "rows": found.rows,
        }
        folders.note(self.place.root, RECORDS, facts)
        self.place.publish()

    def found(self) -> Found:
        """Return the existing results of this campaign."""
        known = self.place.states_there()
        unkept = {state.run: state for state in self.ended if not state.kept}
        there = [unkept.get(run.name) or known.get(run.stem) for run in self.grid.runs]
        mine = [state for run, state in zip(self.grid.runs, there, strict=True) if state and state.run == run.name]
        return Found(
            [state for state in mine if state.status == DONE and self._holds(state)],
            [state for state in mine if state.status == FAILED],
            sum(state.token == self.token for state in mine),
        )

    def _holds(self, state: State) -> bool:
        return state.run not in self.plan.todo or state.token == self.token


def _plain(overrides: dict[str, object]) -> dict[str, object]:
    """Return the overrides as JSON has them, since TOML has dates and times of day."""
    return {
        key: value if isinstance(value, int | float | str | list) else str(value) for key, value in overrides.items()
    }


def needs_java(out: Path) -> None:
    """Raise if there is no Java, before any folder is made, where all is still to be done by Spark."""
    from pyspark.sql import SparkSession  # noqa: PLC0415 - loaded only where Spark is used

    place = CampaignFolder(out.absolute())
    if place.states in place.missing and SparkSession.getActiveSession() is None:
        with tempfile.TemporaryDirectory(prefix="carrypost-") as scratch:
            java.java_home(Path(scratch))


@contextmanager
def placed(out: Path | ObjectFolder) -> Iterator[CampaignFolder]:
    """Yield the folder of a campaign; one of objects has a folder of this process for its tables meanwhile."""
    if isinstance(out, Path):
        yield CampaignFolder(out.absolute())
        return
    with tempfile.TemporaryDirectory(prefix="carrypost-campaign-") as scratch:
        yield CampaignObjects(Path(scratch), out)


@contextmanager
def begun(grid: Grid, out: Path | ObjectFolder) -> Iterator[Campaign]:
    """Yield a campaign in this folder, which is locked meanwhile; at the end its tables are made.

    One that could not begin leaves no folder behind.
    """
    with placed(out) as place, _begun(grid, place) as campaign:
        yield campaign


@contextmanager
def _begun(grid: Grid, place: CampaignFolder) -> Iterator[Campaign]:
    missing = place.missing
    try:
        place.make()
    except LocalError:
        folders.leave(missing)
        raise
    with place.locked() as token:
        place.clear()
        campaign = Campaign(grid, place, token, plan(grid.runs, place))
        try:
            yield campaign
        finally:
            campaign.close()
            if not campaign.began and not place.states_there():
                if place.states in missing:
                    place.unlock()
                folders.leave(missing)


@contextmanager
def _contents(
    spark: SparkSession | None, runs: Sequence[CampaignRun]
) -> Iterator[Mapping[str, Broadcast[bytes] | Held]]:
    """Yield the files that runs need: distributed by Spark to its executors, or without Spark here."""
    files = {(named.path, named.digest): named for run in runs for named in run.files}
    found = contents(list(files.values()))
    if spark is None:
        yield {digest: Held(content) for digest, content in found}
        return
    sent = {digest: spark.sparkContext.broadcast(content) for digest, content in found}
    try:
        yield sent
    finally:
        for broadcast in sent.values():
            with suppress(Exception):  # Spark may be gone.
                broadcast.destroy()
