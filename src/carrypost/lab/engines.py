"""Engines for the work of a stage: Spark, with a task for each piece, or this process, one piece after the other.

Stages give an engine a function and its arguments, and get the results in order; so both engines do the same work, and
neither sees a row of it. The first carrypost error of a piece is raised. Spark is started when there is something to
do, and once for all stages that share an engine.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import TYPE_CHECKING, Literal, TypeVar

from carrypost.errors import CarrypostError
from carrypost.lab.spark.session import SparkOptions, needs_extra, session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

EngineName = Literal["spark", "local"]
Watch = Callable[[int, int], None]
"""Function that is called with the number of pieces done, and of all."""
Piece = TypeVar("Piece")
Answer = TypeVar("Answer")


class LocalEngine:
    """The engine that uses this process."""

    name: EngineName = "local"

    def each(
        self, name: str, do: Callable[[Piece], Answer], pieces: Sequence[Piece], watch: Watch = lambda _, __: None
    ) -> list[Answer]:
        """Return the results of a function for each piece, one after the other."""
        del name
        found = []
        for piece in pieces:
            found.append(do(piece))
            watch(len(found), len(pieces))
        return found


class SparkEngine:
    """Spark, from the first piece on; it ends with `ending`."""

    name: EngineName = "spark"

    def __init__(self, options: SparkOptions, ending: ExitStack) -> None:
        needs_extra()
        self._options = options
        self._ending = ending
        self._spark: SparkSession | None = None

    def start(self) -> SparkSession:
        """Return the session."""
        if self._spark is None:
            self._spark = self._ending.enter_context(session(self._options))
        return self._spark

    def each(
        self, name: str, do: Callable[[Piece], Answer], pieces: Sequence[Piece], watch: Watch = lambda _, __: None
    ) -> list[Answer]:
        """Return the results of a function for each piece, in order: one job called `name`, a task for each."""
        from carrypost.lab.spark.session import watched  # noqa: PLC0415 - loaded only where Spark is

        if not pieces:
            return []
        tasks, tried = self.start().sparkContext.parallelize(pieces, len(pieces)), partial(_tried, do)
        found: list[Answer] = []
        for answer in watched(
            self.start(), name, lambda: tasks.map(tried).collect(), lambda done, _: watch(done, len(pieces))
        ):
            if isinstance(answer, CarrypostError):
                raise answer
            found.append(answer)
        return found


def _tried(do: Callable[[Piece], Answer], piece: Piece) -> Answer | CarrypostError:
    """Return a result or an error. Runs as a task: Spark would wrap an exception in one of its own."""
    try:
        return do(piece)
    except CarrypostError as error:
        return error


Engine = LocalEngine | SparkEngine
"""Does pieces of work."""


@contextmanager
def opened(options: SparkOptions | None) -> Iterator[Engine]:
    """Yield an engine while the block lasts: Spark, or without options of Spark this process."""
    with ExitStack() as ending:
        yield LocalEngine() if options is None else SparkEngine(options, ending)
