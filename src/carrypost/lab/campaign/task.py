"""One run of a campaign, as an executor does it.

`play` never raises: an error becomes the state of the run. It returns the state, too, for a driver that does not find
it in the folder. A record is written where nothing else writes, and gets its name if the campaign still has the folder
by then. A process is used for many runs, one after the other, and nothing of one is left for the next.
"""

from __future__ import annotations

import gc
import os
import platform
import sys
import time
import traceback
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import pyarrow as pa

from carrypost.emu.runs import prepare
from carrypost.emu.scenario.scenario import Scenario
from carrypost.errors import CarrypostError
from carrypost.lab.campaign.bundle import Unpacked, unpacked
from carrypost.lab.campaign.grid import CampaignRun
from carrypost.lab.campaign.states import DONE, CampaignFolder, State, done, failed

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
