"""What families are made from, each part made once, when it is first asked for, and kept while the work lasts.

Records are read twice: for the few rows that are not about copies, and for copies. Everything else is made from these
two, which Spark keeps in memory, or on disk where that is too small.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property

from pyspark import StorageLevel
from pyspark.sql import DataFrame

from carrypost.lab.metrics import causal, dissemination, presence
from carrypost.lab.metrics import copies as gathering
from carrypost.lab.schemas import RECORDS

WINDOW_S = 60.0


class Material:
    """Records, and what is made of them."""

    def __init__(self, records: DataFrame, *, window_s: float = WINDOW_S) -> None:
        self.records = RECORDS.conform(records)
        self.window_s = window_s
        self._kept: list[DataFrame] = []

    @cached_property
    def rest(self) -> DataFrame:
        """Rows that are not about copies."""
        return self._keep(gathering.rest(self.records))

    @cached_property
    def nodes(self) -> DataFrame:
        """Table NODES."""
        return self._keep(gathering.nodes(self.records))

    @cached_property
    def runs(self) -> DataFrame:
        """Numbers of runs and their names."""
        return self._keep(gathering.runs(self.nodes))

    @cached_property
    def messages(self) -> DataFrame:
        """Table MESSAGES."""
        return self._keep(gathering.messages(self.rest))

    @cached_property
    def copies(self) -> DataFrame:
        """Table COPIES."""
        few = self.messages.count() <= gathering.BROADCAST_MAX
        return self._keep(gathering.copies(self.records, self.nodes, self.messages, broadcast=few))

    @cached_property
    def spreads(self) -> DataFrame:
        """Count, least, most, mean and deviation of delays."""
        return self._keep(causal.spreads(self.copies))

    @cached_property
    def distribution(self) -> DataFrame:
        """How delays are distributed."""
        return self._keep(causal.distribution(causal.values(self.copies), self.spreads))

    @cached_property
    def activity(self) -> DataFrame:
        """Table ACTIVITY."""
        return self._keep(presence.activity(self.rest, self.nodes))

    @cached_property
    def contacts(self) -> DataFrame:
        """Who was in range of whom."""
        return self._keep(presence.contacts(self.rest))

    @cached_property
    def delivery(self) -> DataFrame:
        """Table DELIVERY."""
        return self._keep(dissemination.delivery(self.copies, self.messages, self.activity))

    def _keep(self, frame: DataFrame) -> DataFrame:
        self._kept.append(frame.persist(StorageLevel.MEMORY_AND_DISK))
        return self._kept[-1]

    def release(self) -> None:
        """Give back the memory."""
        while self._kept:
            self._kept.pop().unpersist()


@contextmanager
def material(records: DataFrame, *, window_s: float = WINDOW_S) -> Iterator[Material]:
    """What families of these records are made from, while the block lasts."""
    made = Material(records, window_s=window_s)
    try:
        yield made
    finally:
        made.release()
