"""Live tables of a stream of records: small tables that batches are merged into.

Rows of `timeline` and `nodes` come with their present values, so merging is replacing, and a repeated batch changes
nothing. Delays come as counts of what is new; the progress of counting is written with them, in one file, and a batch
that was counted is not counted again. So a stream that is killed at any moment goes on without loss or repetition.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from carrypost.lab import folders
from carrypost.lab.metrics.distribution import Counts, cdf
from carrypost.lab.metrics.families import DELAY_CDF, DELAY_SPREAD, PERCENTILES, TIMELINE
from carrypost.lab.metrics.parts import table_of
from carrypost.lab.schemas import Column, Table
from carrypost.log.files import refused
from carrypost.model.times import MICROSECONDS

NOBODY = "?"
"""The node to which lines belong that are no rows."""
LIVE = "live"
"""The run that all nodes of a stream belong to."""
STATE = "state"
METRICS = "metrics"
_BATCH = b"batch"

NODES = Table.of(
    "nodes",
    "counts of each node so far",
    Column("node", "string", "id of the node"),
    Column("last", "float64", "time of its last row, in seconds"),
    Column("published", "int64", "messages"),
    Column("received", "int64", "messages of other nodes"),
    Column("delivered", "int64", "messages, including its own"),
    Column("expired", "int64", "messages that expired while they waited for their predecessors"),
    Column("dropped", "int64", "copies that ended for another reason"),
    Column("refused", "int64", "messages and frames refused on receipt"),
    Column("bytes_sent", "int64", "by frames and datagrams"),
    Column(
        "ahead", "int64", "rows with times in the future, because its clock is wrong; left out of windows and delays"
    ),
    Column("unreadable", "int64", "lines that are not rows of a record; all of them at the node `?`"),
)
COUNTS = Table.of(
    "delays",
    "delays in whole milliseconds, counted",
    Column("metric", "string", "`tdelay`, `ltcy` or `codlvdelay`"),
    Column("value_ms", "int64", "milliseconds"),
    Column("count", "int64", "how many"),
    Column("sum_us", "float64", "of whole microseconds"),
    Column("squares_us2", "float64", "likewise"),
    Column("min_us", "int64", "least"),
    Column("max_us", "int64", "most"),
)


class Live:
    """The tables of one stream, in memory and in a folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._lock = threading.Lock()
        self.timeline = _read(folder / METRICS, TIMELINE)
        self.nodes = _read(folder, NODES)
        self._counts, self._batch = _counted(folder / STATE / "delays.parquet")
        if self._counts.num_rows:  # A killed process may have written the counts, and not yet the table.
            self._write_delays()

    def update_timeline(self, rows: pa.Table) -> None:
        """Windows as they are by now."""
        with self._lock:
            self.timeline = _replaced(self.timeline, rows, TIMELINE, ["run", "t", "kind"])
            folders.write_arrow(self.timeline, self._folder / METRICS, TIMELINE)

    def update_nodes(self, rows: pa.Table) -> None:
        """Nodes as they are by now."""
        with self._lock:
            self.nodes = _replaced(self.nodes, rows, NODES, ["node"])
            folders.write_arrow(self.nodes, self._folder, NODES)

    def update_delays(self, rows: pa.Table, batch: int) -> None:
        """Add counts of what is new; those of a batch that was added before are skipped."""
        if batch <= self._batch or not rows.num_rows:
            return
        with self._lock:
            counts = _added(self._counts, rows)
            with folders.staged(self._folder / STATE / "delays.parquet") as partial:
                pq.write_table(counts.replace_schema_metadata({_BATCH: str(batch)}), partial)
            self._counts, self._batch = counts, batch
            self._write_delays()

    def _write_delays(self) -> None:
        folders.write_arrow(self.delay_cdf(), self._folder / METRICS, DELAY_CDF)
        folders.write_arrow(self.delays(), self._folder / METRICS, DELAY_SPREAD)

    def delay_cdf(self) -> pa.Table:
        """Return the distribution of delays."""
        parts = [DELAY_CDF.arrow.empty_table()]
        for metric, rows in self._by_metric():
            columns = {"metric": pa.repeat(metric, rows.num_rows), **cdf(_values(rows))}
            parts.append(table_of(DELAY_CDF, LIVE, columns))
        return pa.concat_tables(parts)

    def delays(self) -> pa.Table:
        """Least, most, mean, deviation and percentiles."""
        found = []
        for metric, rows in self._by_metric():
            count = pc.sum(rows["count"]).as_py()
            mean = pc.sum(rows["sum_us"]).as_py() / count
            variance = max(0.0, pc.sum(rows["squares_us2"]).as_py() / count - mean * mean)
            found.append(
                {
                    "run": LIVE,
                    "metric": metric,
                    "count": count,
                    "min_s": pc.min(rows["min_us"]).as_py() / MICROSECONDS,
                    "max_s": pc.max(rows["max_us"]).as_py() / MICROSECONDS,
                    "avg_s": round(mean) / MICROSECONDS,
                    "stdev_s": round(variance**0.5) / MICROSECONDS,
                    **_values(rows).percentiles_s(PERCENTILES),
                }
            )
        return pa.Table.from_pylist(found, DELAY_SPREAD.arrow)

    def _by_metric(self) -> Iterator[tuple[str, pa.Table]]:
        for metric in pc.unique(self._counts["metric"]).to_pylist():
            rows = self._counts.filter(pc.equal(self._counts["metric"], metric))
            yield metric, rows.sort_by("value_ms")


def _values(rows: pa.Table) -> Counts:
    """Return the delays of a metric, and how often each occurs."""
    return Counts(rows["value_ms"].to_numpy(), rows["count"].to_numpy())


def _read(folder: Path, table: Table) -> pa.Table:
    """Return the table of an earlier stream; empty where a stream begins."""
    folders.clear(folder / table.name)
    return folders.read_arrow(folder, table) if (folder / table.name).is_dir() else table.arrow.empty_table()


def _counted(path: Path) -> tuple[pa.Table, int]:
    if not path.exists():
        return COUNTS.arrow.empty_table(), -1
    try:
        found = pq.read_table(path)
        return found.cast(COUNTS.arrow), int(found.schema.metadata[_BATCH])
    except (OSError, pa.ArrowException, KeyError, TypeError, ValueError) as error:
        raise refused(
            f"{path} cannot be read", error, advice="; to begin the stream again, remove its folder"
        ) from None


def _replaced(old: pa.Table, new: pa.Table, table: Table, keys: list[str]) -> pa.Table:
    """Return new rows, and those old ones that they do not replace."""
    new = new.select(table.names).cast(table.arrow)
    kept = old.join(new.select(keys), keys=keys, join_type="left anti") if old.num_rows else old
    joined = pa.concat_tables([kept.select(table.names).cast(table.arrow), new])
    return joined.sort_by([(key, "ascending") for key in keys])


def _added(old: pa.Table, new: pa.Table) -> pa.Table:
    joined = pa.concat_tables([old, new.select(COUNTS.names).cast(COUNTS.arrow)])
    sums = [(name, "sum") for name in ("count", "sum_us", "squares_us2")]
    summed = joined.group_by(["metric", "value_ms"]).aggregate([*sums, ("min_us", "min"), ("max_us", "max")])
    names = [name.removesuffix("_sum").removesuffix("_min").removesuffix("_max") for name in summed.column_names]
    return summed.rename_columns(names).select(COUNTS.names).cast(COUNTS.arrow).sort_by("value_ms")
