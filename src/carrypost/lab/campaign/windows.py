"""Runs of population mode that are done window by window: a task is a (run, window).

There are three stages. A task for each run finds its contacts and cuts it; a task for each window plays it; a task for
each run joins its windows to the record, by time, kind, hops, node and message. Intermediate results are in a hidden
folder beside the states, which is removed with the run. In an object store they are objects, which tasks fetch and put.
No stage raises: an error in one window becomes the state of its run.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeVar

import msgspec

from carrypost.emu.population.run import Model, write
from carrypost.emu.population.saved import PLAN_FILES, load, load_plan, save, save_plan
from carrypost.emu.population.windows import parts
from carrypost.emu.records.files import Sink
from carrypost.lab.campaign.bundle import Unpacked
from carrypost.lab.campaign.grid import CampaignRun
from carrypost.lab.campaign.states import State, done, failed
from carrypost.lab.campaign.task import (
    ATTEMPTS_MAX,
    TaskContext,
    attempts,
    belongs,
    failure,
    kept,
    scenario_of,
    unseen,
)
from carrypost.lab.engines import Engine
from carrypost.lab.objects import Folder, remove, working

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
        save(here / _name(number), *model.play(plan, parts(plan, model.window_us)[number]))


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
            write(sink, plan, run.name, scenario, zip(cut, (load(there / name) for name in names), strict=True))
            rows = len(sink.close())
    return done(run, context.token, context.place.record(run).name, rows=rows, written=written)


def _name(number: int) -> str:
    return f"part-{number}.arrow"
