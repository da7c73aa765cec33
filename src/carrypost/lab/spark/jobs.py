"""Jobs of Spark that can be watched and ended, and explanations of Spark's failures.

Jobs run in a thread of their own, so that Ctrl-C comes through at once: the tasks are then cancelled.

Spark reports a failure as pages of two languages' stack traces. Nearly always one line among them is what people need:
a full disk, a file that is not Parquet, an error of our own code in an executor. `explained` finds it.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, TypeVar

from carrypost.errors import CarrypostError, LabError, LocalError

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

Answer = TypeVar("Answer")
Watch = Callable[[int, int], None]
"""Function that is called at intervals with the number of tasks done, and of all."""
_LOOK_S = 0.25


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


@contextmanager
def described(spark: SparkSession, name: str) -> Iterator[None]:
    """Give the jobs of a block this name, where Spark shows them."""
    context, key = spark.sparkContext, "spark.job.description"
    before = context.getLocalProperty(key)
    context.setJobDescription(f"carrypost: {name}")
    try:
        yield
    finally:
        with suppress(Exception):  # Spark may be gone.
            context.setLocalProperty(key, before or "")


def _done(context: SparkContext, group: str) -> tuple[int, int]:
    """Return how many tasks of the group's jobs are over, and how many there are so far."""
    tracker = context.statusTracker()
    jobs = [tracker.getJobInfo(job) for job in tracker.getJobIdsForGroup(group)]
    found = [tracker.getStageInfo(stage) for job in jobs if job is not None for stage in job.stageIds]
    stages = [stage for stage in found if stage is not None]
    return sum(stage.numCompletedTasks for stage in stages), sum(stage.numTasks for stage in stages)


# --- Spark's failures in a sentence ---------------------------------------------------------------------------
_OURS = re.compile(r"carrypost\.errors\.(?:Local|Config)Error: (.+)")
_FILE = re.compile(r"(?:file:(?://)?)(/[^\s,;'\"]*[^\s,;'\".])")
_SENTENCES = (
    (re.compile(r"No space left on device|Disk quota exceeded"), "the disk is full"),
    (re.compile(r"Permission denied"), "permission denied"),
    (re.compile(r"is not a Parquet file|Could not read footer|CANNOT_READ_FILE_FOOTER"), "it is not a Parquet file"),
    (re.compile(r"FAILED_READ_FILE|can not read class|ParquetDecodingException|could not read page"), "it is damaged"),
    (re.compile(r"java\.lang\.OutOfMemoryError"), "Spark ran out of memory; give it more with --memory"),
)
_FIRST_MAX = 500
_TRACEBACK = "Traceback (most recent call last):"


@contextmanager
def explained() -> Iterator[None]:
    """Turn failures of Spark into one of our errors."""
    from py4j.protocol import Py4JError, Py4JNetworkError  # noqa: PLC0415 - loaded only where Spark is
    from pyspark.errors import PySparkException  # noqa: PLC0415

    try:
        yield
    except CarrypostError:
        raise
    except (Py4JNetworkError, ConnectionError) as error:
        _raise_interrupt(error)
        raise LabError(f"Spark's driver is gone: {_first(str(error))}") from error
    except (Py4JError, PySparkException) as error:
        raise _known_cause(str(error), cause_of(error)) from error


def _raise_interrupt(error: BaseException) -> None:
    """Raise the Ctrl-C, if there was one, after which PySpark tidied up over a connection that it had broken."""
    while (earlier := error.__context__) is not None:
        if isinstance(earlier, KeyboardInterrupt):
            raise earlier from None
        error = earlier


def cause_of(error: BaseException) -> str:
    """Return the sentence at the bottom of a failure: of the innermost exception, in the JVM or here."""
    found = getattr(error, "java_exception", None) or getattr(error, "_origin", None)
    with suppress(Exception):  # The JVM may be gone, or have nothing to say.
        while found is not None and (inner := found.getCause()) is not None:
            found = inner
        if found is not None and (text := found.getMessage()):
            return _last_of_python(str(text))
    with suppress(Exception):
        return _last_of_python(str(error))
    return type(error).__name__


def _last_of_python(text: str) -> str:
    """Return the exception in a traceback of Python, without the traceback; else the first line."""
    if _TRACEBACK not in text:
        return _first(text)
    lines = text[text.rindex(_TRACEBACK) :].splitlines()[1:]
    return next((line.strip() for line in lines if line and not line.startswith(" ")), _first(text))[:_FIRST_MAX]


def _known_cause(text: str, cause: str) -> CarrypostError:
    if ours := _OURS.search(text):
        return LocalError(ours[1].strip())
    for pattern, sentence in _SENTENCES:
        if pattern.search(text):
            file = _FILE.search(text)
            return LabError(f"{file[1]}: {sentence}" if file else f"Spark failed: {sentence}")
    return LabError(f"Spark failed: {cause}")


def _first(text: str) -> str:
    """Return the first line that says something."""
    return next((line.strip() for line in text.splitlines() if line.strip()), "no reason given")[:_FIRST_MAX]
