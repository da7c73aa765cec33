"""Jobs of Spark that can be watched and ended, and one with a task for each piece of work.

They run in a thread of their own, so that Ctrl-C comes through at once: the tasks are then cancelled.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, TypeVar

from carrypost.lab.spark.explain import explained

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

Piece = TypeVar("Piece")
Answer = TypeVar("Answer")
Watch = Callable[[int, int], None]
"""Function that is called at intervals with the number of tasks done, and of all."""
_LOOK_S = 0.25


def collected(
    spark: SparkSession, name: str, do: Callable[[Piece], Answer], pieces: Sequence[Piece], watch: Watch
) -> list[Answer]:
    """Return the results of a function for each piece, in their order."""
    context = spark.sparkContext
    return watched(spark, name, lambda: context.parallelize(pieces, len(pieces)).map(do).collect(), watch)


def watched(spark: SparkSession, name: str, action: Callable[[], Answer], watch: Watch) -> Answer:
    """Return the result of an action that starts Spark jobs, which Spark shows under this name."""
    from pyspark import InheritableThread  # noqa: PLC0415 - loaded only where Spark is used

    context, group = spark.sparkContext, uuid.uuid4().hex
    found: list[Answer] = []
    failed: list[Exception] = []

    def work() -> None:
        try:
            context.setJobGroup(group, f"carrypost: {name}", interruptOnCancel=True)
            found.append(action())
        except Exception as error:  # noqa: BLE001 - raised by whoever waits
            failed.append(error)

    thread = InheritableThread(target=work, daemon=True)
    thread.start()
    try:
        while thread.is_alive():
            thread.join(_LOOK_S)
            watch(*_done(context, group))
    except BaseException:
        with suppress(Exception):  # Spark may be gone.
            context.cancelJobGroup(group)
        thread.join(_LOOK_S)
        raise
    if failed:
        with explained():
            raise failed[0]
    return found[0]


def _done(context: SparkContext, group: str) -> tuple[int, int]:
    """Return how many tasks of the group's jobs are over, and how many there are so far."""
    tracker = context.statusTracker()
    jobs = [tracker.getJobInfo(job) for job in tracker.getJobIdsForGroup(group)]
    found = [tracker.getStageInfo(stage) for job in jobs if job is not None for stage in job.stageIds]
    stages = [stage for stage in found if stage is not None]
    return sum(stage.numCompletedTasks for stage in stages), sum(stage.numTasks for stage in stages)
