"""Campaigns: many runs of the emulator, each a task of Spark, wherever that runs.

A run is one task and one partition; its record is the same wherever, and beside whatever, it was made. What fails is a
row of the table `failures` and ends nothing. A campaign that is begun again does what is missing, failed or changed;
what there is of these runs goes before they start, so that all records are of the campaign as it is now. The driver
looks into the folder to tell how far it is, so the tasks have nobody to report to and none waits.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from carrypost.errors import LocalError
from carrypost.lab import folders
from carrypost.lab.campaign import states
from carrypost.lab.campaign.bundle import contents
from carrypost.lab.campaign.grid import CampaignRun, Grid
from carrypost.lab.campaign.lock import locked, remove
from carrypost.lab.campaign.states import DONE, FAILED, CampaignPlan, Place, State, plan
from carrypost.lab.campaign.task import Held, TaskContext, play
from carrypost.lab.campaign.visible import check
from carrypost.lab.engines import LocalEngine
from carrypost.lab.schemas import RECORDS
from carrypost.lab.spark import java
from carrypost.lab.spark.explain import explained
from carrypost.lab.spark.jobs import collected

if TYPE_CHECKING:
    from pyspark import Broadcast
    from pyspark.sql import SparkSession


class CampaignProgress(NamedTuple):
    """How far a campaign is."""

    done: int
    failed: int
    todo: int
    """Of all that were to be done when it began."""


Watch = Callable[[CampaignProgress], None]


class Found(NamedTuple):
    """What there is of a campaign."""

    done: list[State]
    """As it is now: what is still to be done again does not count."""
    failed: list[State]
    new: int
    """How many ended in this campaign, well or not."""

    @property
    def rows(self) -> int:
        """Of all records."""
        return sum(state.rows or 0 for state in self.done)

    @property
    def cpu_s(self) -> float:
        """Of all runs."""
        return sum(state.cpu_s or 0.0 for state in self.done)


@dataclass(slots=True)
class Campaign:
    """A campaign in its folder, held against others."""

    grid: Grid
    place: Place
    token: str
    plan: CampaignPlan
    began: bool = False
    """Whether runs were started."""
    ended: list[State] = field(default_factory=list)
    """How runs of this campaign ended, also where the folder does not show it."""

    @property
    def todo(self) -> list[CampaignRun]:
        """Runs that are to be done."""
        return [run for run in self.grid.runs if run.name in self.plan.todo]

    def conduct(self, spark: SparkSession | None, watch: Watch | None = None) -> list[State]:
        """Do what is to be done; how these runs ended. Ctrl-C leaves what is done by then. Without Spark: here."""
        runs = self.todo
        if not runs:
            return self.ended
        if spark is None:
            files = {(named.path, named.digest): named for run in runs for named in run.files}
            held = {digest: Held(content) for digest, content in contents(list(files.values()))}
            self.begin()
            job = _Job(None, self.place, TaskContext(str(self.place.root), self.token, held), runs)
            self.ended = job.wait(watch)
        else:
            with explained():
                check(spark, self.place, self.token)
                with _sent(spark, runs) as sent:
                    self.begin()
                    task = TaskContext(str(self.place.root), self.token, sent)
                    self.ended = _Job(spark, self.place, task, runs).wait(watch)
        for run, state in zip(runs, self.ended, strict=True):
            if not state.kept:
                with suppress(OSError):
                    self.place.record(run).unlink(missing_ok=True)
                    self.place.keep(run, msgspec.structs.replace(state, kept=True))
        return self.ended

    def begin(self) -> None:
        """Everything is ready: what there is of runs that are to be done goes, so that old and new never mix."""
        self.began = True
        for run in self.todo:
            self.place.forget(run.stem, state=self.plan.todo[run.name] != FAILED)  # Failures are told until mended.
        for stem in self.plan.outdated:
            self.place.forget(stem)

    def close(self) -> None:
        """Remove what was not finished, and make the tables of what was, if there is anything."""
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

    def found(self) -> Found:
        """What there is of this campaign."""
        there = {run.name: state for run, state in states.of(self.grid.runs, self.place)}
        there |= {state.run: state for state in self.ended if not state.kept}
        mine = [there[run.name] for run in self.grid.runs if run.name in there]
        return Found(
            [state for state in mine if state.status == DONE and self._holds(state)],
            [state for state in mine if state.status == FAILED],
            sum(state.token == self.token for state in mine),
        )

    def _holds(self, state: State) -> bool:
        return state.run not in self.plan.todo or state.token == self.token


def _plain(overrides: dict[str, object]) -> dict[str, object]:
    """As JSON has it: TOML knows days and times of day."""
    return {
        key: value if isinstance(value, int | float | str | list) else str(value) for key, value in overrides.items()
    }


def needs_java(out: Path) -> None:
    """Where everything is still to be done Spark is needed: say that there is no Java before there is any folder."""
    from pyspark.sql import SparkSession  # noqa: PLC0415 - loaded only where Spark is used

    place = Place(out.absolute())
    if place.states in place.missing and SparkSession.getActiveSession() is None:
        with tempfile.TemporaryDirectory(prefix="carrypost-") as scratch:
            java.java_home(Path(scratch))


@contextmanager
def begun(grid: Grid, out: Path) -> Iterator[Campaign]:
    """A campaign in this folder, which nobody else has meanwhile; at the end its tables are made.

    One that could not begin leaves no folder behind.
    """
    place = Place(out.absolute())
    missing = place.missing
    try:
        place.make()
    except LocalError:
        _leave(missing)
        raise
    with locked(place.states) as token:
        place.clear()
        campaign = Campaign(grid, place, token, plan(grid.runs, place))
        try:
            yield campaign
        finally:
            campaign.close()
            if not campaign.began and not place.states_there():
                if place.states in missing:
                    remove(place.states)
                _leave(missing)


def _leave(made: Sequence[Path]) -> None:
    for folder in made:
        with suppress(OSError):  # Somebody else has put something into it.
            folder.rmdir()


def run(grid: Grid, out: Path, spark: SparkSession, watch: Watch | None = None) -> list[State]:
    """Do what a campaign still has to do in this folder, and make its tables; how its runs ended."""
    with begun(grid, out) as campaign:
        return campaign.conduct(spark, watch)


@contextmanager
def _sent(spark: SparkSession, runs: Sequence[CampaignRun]) -> Iterator[dict[str, Broadcast[bytes]]]:
    """The files that runs need, on their way to whoever asks for them."""
    files = {(named.path, named.digest): named for run in runs for named in run.files}
    sent = {digest: spark.sparkContext.broadcast(content) for digest, content in contents(list(files.values()))}
    try:
        yield sent
    finally:
        for broadcast in sent.values():
            with suppress(Exception):  # Spark may be gone.
                broadcast.destroy()


class _Job:
    """The runs as a job of Spark, or one after the other here; the folder tells how far it is."""

    def __init__(
        self, spark: SparkSession | None, place: Place, task: TaskContext, runs: Sequence[CampaignRun]
    ) -> None:
        self._spark = spark
        self._place = place
        self._task = task
        self._runs = runs
        self._pending = {run.name: place.state(run) for run in runs}
        self._counts = {DONE: 0, FAILED: 0}

    def wait(self, watch: Watch | None) -> list[State]:
        """Until all runs have ended; Ctrl-C ends those that have not."""

        def look(_: int) -> None:
            if watch is not None:
                watch(self._look())

        if self._spark is not None:
            return collected(self._spark, "campaign", partial(play, self._task), self._runs, look)
        return LocalEngine().each("campaign", partial(play, self._task), self._runs, lambda done, _: look(done))

    def _look(self) -> CampaignProgress:
        there = {entry.name for entry in os.scandir(self._place.states)}
        for run, path in list(self._pending.items()):
            if path.name in there and (state := states.read(path)) is not None and state.token == self._task.token:
                del self._pending[run]
                self._counts[state.status] += 1
        return CampaignProgress(self._counts[DONE], self._counts[FAILED], len(self._runs))
