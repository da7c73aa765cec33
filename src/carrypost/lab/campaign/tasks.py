"""Tasks of a campaign, as executors do them: a run, or in population mode a window of a run.

No task raises: an error becomes the state of the run, also one in a single window. `play` returns the state, too, for a
driver that does not find it in the folder. A record is written where nothing else writes, and gets its name if the
campaign still has the folder by then. A process is used for many runs, one after the other, and nothing of one is left
for the next.

Runs of population mode have three stages. A task for each run finds its contacts and cuts it; a task for each window
plays it; a task for each run joins its windows to the record, by time, kind, hops, node and message. Intermediate
results are in a hidden folder beside the states, which is removed with the run. In an object store they are objects,
which tasks fetch and put.
"""

from __future__ import annotations

import gc
import os
import platform
import sys
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import msgspec
import pyarrow as pa

from carrypost.emu.population.run import PLAN_FILES, Model, load_part, load_plan, save_part, save_plan, write
from carrypost.emu.population.sweep import parts
from carrypost.emu.records import Sink
from carrypost.emu.runs import prepare
from carrypost.emu.scenario import Scenario
from carrypost.errors import CarrypostError
from carrypost.lab.campaign.folder import DONE, CampaignFolder, State, done, failed
from carrypost.lab.campaign.grid import CampaignRun, Unpacked, unpacked
from carrypost.lab.engines import Engine
from carrypost.lab.folders import Folder, remove, working

if TYPE_CHECKING:
    from pyspark import Broadcast


ATTEMPTS_MAX = 2
"""Number of processes that may die of one run; Spark gives up a whole job after more."""
_TRACEBACK_MAX = 20_000


@dataclass(frozen=True, slots=True)
class Held:
    """The bytes of a file, for runs in the process that read it."""

    value: bytes


@dataclass(frozen=True, slots=True)
class TaskContext:
    """The data that all runs of a campaign share."""

    place: CampaignFolder
    token: str
    contents: Mapping[str, Broadcast[bytes] | Held]
    """Of files, by hash."""

    def fetch(self, digest: str) -> bytes:
        """Return the bytes of a file; Spark is not to keep them in this process."""
        broadcast = self.contents[digest]
        content = broadcast.value
        if not isinstance(broadcast, Held) and not hasattr(broadcast, "_sc"):  # On executors, which can load it again.
            vars(broadcast).pop("_value", None)
        return content


def play(context: TaskContext, run: CampaignRun) -> State:
    """Do a run; how it ended."""
    place = context.place
    attempt = attempts()
    if not belongs(place, context.token):
        return failed(run, context.token, unseen(context), kept=False)
    if attempt:
        state = place.state_of(run)
        if state is not None and state.token == context.token:
            return state  # It had ended, and only the answer was lost.
    if attempt >= ATTEMPTS_MAX:
        text = f"{attempt} processes that ran it died, the last before this one on {platform.node()}: out of memory?"
        return kept(context, place, run, failed(run, context.token, text))
    written = place.partial(run, context.token)
    try:
        state = kept(context, place, run, _played(context, place, run, written), written)
    finally:
        with suppress(OSError):
            place.discard(written)
    gc.collect()
    pa.default_memory_pool().release_unused()
    return state


def belongs(place: CampaignFolder, token: str) -> bool:
    """Return True if this is the folder of that campaign, and the campaign not over."""
    holder = place.holder()
    return holder is not None and holder.token == token


def unseen(context: TaskContext) -> str:
    """Say why an executor has nothing to do with a campaign."""
    return f"the executor on {platform.node()} does not see {context.place}, or the campaign is over"


def attempts() -> int:
    """Return the number of earlier attempts at this task, whose processes ended abnormally."""
    if sys.modules.get("pyspark") is None:  # The engine is this process, and Spark may not even be installed.
        return 0
    from pyspark import TaskContext  # noqa: PLC0415 - loaded by every worker of Spark

    context = TaskContext.get()
    return 0 if context is None else context.attemptNumber()


def _played(context: TaskContext, place: CampaignFolder, run: CampaignRun, written: Path) -> State:
    begun_s, begun_cpu_s = time.monotonic(), time.process_time()
    record = place.record(run)
    moved = {str(written): place.shown_record(run)}
    try:
        there = scenario_of(context, run)
        moved |= {str(there.places[each.name]): each.path for each in run.files}
        prepared = prepare(there, run.seed, settings=run.settings)
        assert prepared.name == run.name
        rows = len(prepared.run(written, keep=False))
        state = done(run, context.token, record.name, rows=rows, written=written)
    except Exception as error:  # noqa: BLE001 - whatever it is, the campaign goes on
        state = failure(context, run, error, moved)
    cpu_s, elapsed_s = time.process_time() - begun_cpu_s, time.monotonic() - begun_s
    return msgspec.structs.replace(state, cpu_s=round(cpu_s, 3), elapsed_s=round(elapsed_s, 3))


def scenario_of(context: TaskContext, run: CampaignRun) -> Unpacked:
    """Return the scenario of a run, with its files on this machine."""
    return unpacked(Scenario.parse(run.text, overrides=run.overrides, file=run.file), run.files, context.fetch)


def failure(context: TaskContext, run: CampaignRun, error: Exception, moved: Mapping[str, str]) -> State:
    """Return the state of a failed run, with the names of files that the driver knows."""
    text = str(error) if isinstance(error, CarrypostError) else f"{type(error).__name__}: {error}"
    trace = "".join(traceback.format_exception(error))[-_TRACEBACK_MAX:]
    for place, path in moved.items():
        text, trace = text.replace(place, path), trace.replace(place, path)
    return failed(run, context.token, text, traceback=trace)


def kept(
    context: TaskContext, place: CampaignFolder, run: CampaignRun, state: State, written: Path | None = None
) -> State:
    """Name the record and write the state; a run whose record or state cannot be kept has failed.

    A failed run has no record, not even an old one.
    """
    if not belongs(place, context.token):  # Another campaign may have begun meanwhile: what is there is that one's.
        return failed(run, context.token, unseen(context), kept=False)
    if state.status == DONE and written is not None:
        try:
            place.commit(run, written, state)
        except OSError as error:
            reason = os.strerror(error.errno) if error.errno else str(error)
            why = f"{place.shown_record(run)}, or its state, cannot be written: {reason}"
            state = failed(run, context.token, why)
        else:
            return state
    with suppress(OSError, CarrypostError):
        place.drop_record(run)
    try:
        place.keep(run, state)
    except OSError:
        return msgspec.structs.replace(state, kept=False)
    return state


Watch = Callable[[int, int], None]
_Answer = TypeVar("_Answer")


@dataclass(frozen=True, slots=True)
class Window:
    """A part of a run."""

    run: CampaignRun
    number: int


@dataclass(frozen=True, slots=True)
class Windows:
    """A run of which all windows are done, or one of them failed."""

    run: CampaignRun
    count: int
    cpu_s: float
    begun_s: float
    state: State | None = None
    """State of a run that failed; None if it did not."""


def conduct(engine: Engine, context: TaskContext, runs: Sequence[CampaignRun], watch: Watch) -> list[State]:
    """Do runs window by window; how they ended."""
    if not runs:
        return []
    begun_s = time.time()
    cut = engine.each("contacts of populations", partial(_guarded, context, _cut), runs)
    pieces = [
        Window(run, number)
        for run, found in zip(runs, cut, strict=True)
        if not isinstance(found, State)
        for number in range(found[0])
    ]
    played = engine.each("windows", partial(_guarded_window, context), pieces, watch)
    orders = []
    for run, found in zip(runs, cut, strict=True):
        answers = [answer for piece, answer in zip(pieces, played, strict=True) if piece.run.name == run.name]
        wrong = [each for each in (found, *answers) if isinstance(each, State)]
        cpu_s = sum(each for each in answers if not isinstance(each, State))
        count, before_s = (0, 0.0) if isinstance(found, State) else found
        orders.append(Windows(run, count, cpu_s + before_s, begun_s, wrong[0] if wrong else None))
    return engine.each("joining windows", partial(_ended, context), orders)


def _guarded(
    context: TaskContext, do: Callable[[Unpacked, CampaignRun, Folder], _Answer], run: CampaignRun
) -> tuple[_Answer, float] | State:
    """Do something for a run, in its folder; return its result and processor time, or the failed state."""
    place, begun_s = context.place, time.process_time()
    if not belongs(place, context.token):
        return failed(run, context.token, unseen(context), kept=False)
    if (died := attempts()) >= ATTEMPTS_MAX:
        return failed(run, context.token, f"{died} processes that worked on it died: out of memory?")
    moved: dict[str, str] = {}
    try:
        there = scenario_of(context, run)
        moved = {str(there.places[each.name]): each.path for each in run.files}
        return do(there, run, place.parts(run, context.token)), time.process_time() - begun_s
    except Exception as error:  # noqa: BLE001 - whatever it is, the campaign goes on
        return failure(context, run, error, moved)


def _cut(scenario: Unpacked, run: CampaignRun, folder: Folder) -> int:
    """Write the plan of a run; how many windows it has."""
    model = Model.of(scenario, run.seed)
    plan = model.planned(scenario)
    with working(folder) as here:
        save_plan(here, plan)
    return len(parts(plan, model.window_us))


def _guarded_window(context: TaskContext, window: Window) -> float | State:
    found = _guarded(context, partial(_play, window.number), window.run)
    return found if isinstance(found, State) else found[1]


def _play(number: int, scenario: Unpacked, run: CampaignRun, folder: Folder) -> None:
    with working(folder, PLAN_FILES) as here:
        model, plan = Model.of(scenario, run.seed), load_plan(here)
        save_part(here / _name(number), *model.play(plan, parts(plan, model.window_us)[number]))


def _ended(context: TaskContext, windows: Windows) -> State:
    """Join the windows of a run to its record, and keep that; how the run ended."""
    place, run = context.place, windows.run
    if attempts() and (before := place.state_of(run)) is not None and before.token == context.token:
        return before  # It had ended, and only the answer was lost.
    written = place.partial(run, context.token)
    state, cpu_s = windows.state, windows.cpu_s
    try:
        if state is None:
            found = _guarded(context, partial(_join, context, written), run)
            state, cpu_s = (found, cpu_s) if isinstance(found, State) else (found[0], cpu_s + found[1])
        elapsed_s = time.time() - windows.begun_s
        state = msgspec.structs.replace(state, cpu_s=round(cpu_s, 3), elapsed_s=round(elapsed_s, 3))
        return kept(context, place, run, state, written) if state.kept else state
    finally:
        place.discard(written)
        remove(place.parts(run, context.token))


def _join(context: TaskContext, written: Path, scenario: Unpacked, run: CampaignRun, folder: Folder) -> State:
    with working(folder, PLAN_FILES) as here:
        plan = load_plan(here)
        cut = parts(plan, Model.of(scenario, run.seed).window_us)
        names = [_name(number) for number in range(len(cut))]
        with working(folder, names) as there, Sink(written) as sink:
            write(sink, plan, run.name, scenario, zip(cut, (load_part(there / name) for name in names), strict=True))
            rows = len(sink.close())
    return done(run, context.token, context.place.record(run).name, rows=rows, written=written)


def _name(number: int) -> str:
    return f"part-{number}.arrow"
