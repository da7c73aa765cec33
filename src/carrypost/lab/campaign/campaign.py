"""Campaigns: many runs of the emulator, each a task of Spark, and checks that executors can do them.

A run is one task and one partition, and so is a window of a population's run; its record is the same wherever, and
beside whatever, it was made. A failure is a row of the table `failures` and ends nothing. A campaign that is begun
again does what is missing, failed or changed; what exists of these runs is removed before they start, so that all
records are of the present campaign. The driver reads the progress from the folder, so tasks send no reports and do not
wait.

Executors of a cluster must see the folder, be able to write there, and have the code. A path that looks right to the
driver may be another folder elsewhere, or none. So the driver leaves a token there, executors look for it and answer by
a file with the same token, and the driver looks for that. As an executor may join later, every run looks for the token
again.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import msgspec

import carrypost
from carrypost.errors import LabError, LocalError
from carrypost.lab import folders
from carrypost.lab.campaign import tasks
from carrypost.lab.campaign.folder import (
    DONE,
    FAILED,
    CampaignFolder,
    CampaignObjects,
    CampaignPlan,
    State,
    plan,
    write_tables,
)
from carrypost.lab.campaign.grid import CampaignRun, Grid, contents
from carrypost.lab.campaign.tasks import Held, TaskContext, play
from carrypost.lab.engines import Engine, SparkEngine
from carrypost.lab.folders import ObjectFolder
from carrypost.lab.schemas import RECORDS
from carrypost.lab.spark import java

if TYPE_CHECKING:
    from pyspark import Broadcast
    from pyspark.sql import SparkSession


_ANSWER = "seen-"


class Answer(NamedTuple):
    """The finding of one process of an executor."""

    host: str
    python: str
    missing: str
    """Fault of the code there; empty: none."""
    refused: str
    """Why it cannot write to the folder; empty: it can, or does not see it."""
    file: str
    """File that is its answer; empty: it does not see the folder."""


def check_executors(spark: SparkSession, place: CampaignFolder, token: str) -> None:
    """Refuse what cannot work."""
    context = spark.sparkContext
    count = max(1, context.defaultParallelism)  # One for each processor: tasks are dealt out to all of them.
    try:
        answers = context.parallelize(range(count), count).mapPartitions(_probe(str(place.states), token)).collect()
        for row in answers:
            answer = Answer(*row)
            _judge(answer, place)
            if not _answered(place, answer, token):
                raise LocalError(_unseen(place, answer.host))
    finally:
        for left in place.states.glob(f"{_ANSWER}*"):
            left.unlink(missing_ok=True)


def _judge(answer: Answer, place: CampaignFolder) -> None:
    if answer.missing:
        raise LabError(
            f"the executor on {answer.host} cannot run carrypost {carrypost.__version__} ({answer.missing}; "
            f"Python {answer.python}): install 'carrypost[lab]' there, or ship an environment with --conf "
            "spark.archives"
        )
    if answer.refused:
        raise LocalError(f"the executor on {answer.host} cannot write to {place.root}: {answer.refused}")
    if not answer.file:
        raise LocalError(_unseen(place, answer.host))


def _answered(place: CampaignFolder, answer: Answer, token: str) -> bool:
    try:
        return (place.states / answer.file).read_text(encoding="ascii") == token
    except (OSError, UnicodeDecodeError):
        return False


def _unseen(place: CampaignFolder, host: str) -> str:
    return (
        f"the executor on {host} does not see {place.root}: all machines of the cluster must share the "
        "folder of a campaign under the same path"
    )


def _probe(folder: str, token: str) -> Callable[[Iterable[int]], Iterator[tuple[str, ...]]]:
    """Return the function that executors run: sent as it is, as it has to work where our package does not."""
    version = carrypost.__version__

    def probe(_: Iterable[int]) -> Iterator[tuple[str, ...]]:
        import os  # noqa: PLC0415 - nothing of this module is there where this runs
        import platform  # noqa: PLC0415
        import uuid  # noqa: PLC0415

        about = (platform.node(), platform.python_version())
        try:
            import carrypost as there  # noqa: PLC0415
            import carrypost.lab.campaign.tasks  # noqa: PLC0415 - with all that it needs

            missing = "" if there.__version__ == version else f"it has carrypost {there.__version__}"
        except ImportError as error:
            missing = str(error)
        refused = file = ""
        try:
            with open(f"{folder}/lock", encoding="utf-8") as lock:  # noqa: PTH123 - no class of ours
                seen = token in lock.read()
        except OSError:
            seen = False
        if seen:
            file = f"seen-{uuid.uuid4().hex}"
            try:
                with open(f"{folder}/{file}", "x", encoding="ascii") as answer:  # noqa: PTH123
                    answer.write(token)
            except OSError as error:
                refused = os.strerror(error.errno or 0)
        yield (*about, missing, refused, file)

    return probe


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
            check_executors(spark, self.place, self.token)
        with _contents(spark, runs) as held:
            self.begin()
            task = TaskContext(self.place, self.token, held)
            whole = [run for run in runs if not run.cut]
            found = engine.each("campaign", partial(play, task), whole, self._looking(runs, watch))
            cut = [run for run in runs if run.cut]
            found += tasks.conduct(engine, task, cut, self._looking(runs, watch, windowed=True))
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
        write_tables(self.place, self.grid.runs, [state for state in self.ended if not state.kept])
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
        done = [state for state in mine if state.status == DONE]
        return Found(
            [state for state in done if state.run not in self.plan.todo or state.token == self.token],
            [state for state in mine if state.status == FAILED],
            sum(state.token == self.token for state in mine),
        )


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
