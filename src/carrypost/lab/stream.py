"""Live telemetry: Structured Streaming over the records that real nodes write, and the live tables that it fills.

Rows of `timeline` and `nodes` come with their present values, so merging is replacing, and a repeated batch changes
nothing. Delays come as counts of what is new; the progress of counting is written with them, in one file, and a batch
that was counted is not counted again. So a stream that is killed at any moment goes on without loss or repetition.

Spark's streams need a folder for their state. With objects it is a temporary one of the driver, with copies of the
records, and tables are put where they belong. So executors must be on the driver's machine, and a stream that is
started again reads all records again: it comes to the same tables.
"""

# Nodes write their records as JSON lines, in files that are complete once they have their name.
# Three queries read them: the events of each window, the totals of each node so far, and delays, by
# joining publications with receptions and deliveries elsewhere. A row that comes later than the
# watermark is not counted in windows; a message that arrives more than the horizon after its
# publication is not in the delays. All nodes together are one run, because a message is published
# at one and received at others.
#
# Why unbelievable rows are dropped before the watermark. Spark's watermark follows the latest time
# that it sees, of any node. A single clock that is a year ahead would advance it by a year, and
# every other node's rows would be late for ever. So rows that cannot be true, or whose clock is far
# ahead, are counted and skipped: one line, or one clock, must not silence all others.
#
# Every query has a checkpoint, and `Live` merges their results: a stream that was killed goes on
# where it was.

from __future__ import annotations

import contextlib
import itertools
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.errors import PySparkException
from pyspark.sql import Column as SparkColumn
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

from carrypost.errors import LocalError
from carrypost.lab import folders
from carrypost.lab.folders import Folder
from carrypost.lab.metrics.families import CODLVDELAY, DELAY_CDF, DELAY_SPREAD, LTCY, PERCENTILES, TDELAY, TIMELINE
from carrypost.lab.metrics.parts import Counts, cdf, table_of
from carrypost.lab.metrics.records import SIZE_MAX
from carrypost.lab.schemas import RECORDS, Column, Table
from carrypost.log.files import refused
from carrypost.log.record import AGAIN, REDELIVERED, Kind
from carrypost.model.times import MICROSECONDS
from carrypost.traces.csvfiles import TIME_S_MAX

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery


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


_RECORD = ".jsonl"


@dataclass(frozen=True)
class Copies:
    """The folders of the driver that a stream works with, and the places that they stand for."""

    records: Folder
    tables: Folder
    source: Path
    out: Path
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def refresh(self) -> None:
        """Copy records that are new: an object is complete, and never changes."""
        if isinstance(self.records, Path):
            return
        for name in self.records.names("", deep=True):
            target = self.source / name
            if name.endswith(_RECORD) and not target.exists():
                self.records.fetch(name, target.with_name(f".{target.name}.partial")).replace(target)

    def publish(self) -> None:
        """Put tables that are there, each file whole, and the manifest."""
        if isinstance(self.tables, Path):
            return
        with self._lock:
            for part in (NODES.name, METRICS):
                found = (path for path in (self.out / part).rglob("*.parquet") if ".partial" not in str(path))
                self.tables.replace(part, {path.relative_to(self.out / part).as_posix(): path for path in found})
            text = (self.out / folders.MANIFEST).read_text(encoding="utf-8")
            text = text.replace(str(self.source.resolve()), str(self.records))
            self.tables.write(folders.MANIFEST, text.encode())


@contextmanager
def copies(records: Folder, tables: Folder) -> Iterator[Copies]:
    """Yield folders of the driver for a stream; a path stands for itself."""
    with TemporaryDirectory(prefix="carrypost-stream-") as scratch:
        source, out = Path(scratch) / "records", Path(scratch) / "tables"
        source.mkdir()
        found = Copies(
            records,
            tables,
            records if isinstance(records, Path) else source,
            tables if isinstance(tables, Path) else out,
        )
        found.refresh()
        yield found


CHECKPOINT = "checkpoint"
READABLE = "readable"
AHEAD = "ahead"
TIME = "time"
"""`t` as Spark's own type, which windows and watermarks want."""
_UNREADABLE = "_unreadable"
STREAM = Table("stream", "options of a stream; entered in the manifest", ())
_LOOK_S = 1


class _Query(NamedTuple):
    """A query of the rows, and the function for a batch of answers and its number."""

    name: str
    frame: DataFrame
    mode: str
    merge: Callable[[DataFrame, int], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamOptions:
    """The options of a stream; one that is resumed has the options that it began with."""

    window_s: float = 60.0
    """Length of a window."""
    watermark_s: float = 120.0
    """Rows that come later than this, by their own time, are not counted in windows."""
    horizon_s: float = 3_600.0
    """Messages that come later than this after their publication are not counted among delays."""
    skew_s: float = 60.0
    """Largest difference of nodes' clocks: a reception may seem to be this much before its publication."""

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            if not 0 < value < float("inf") and not (name == "skew_s" and value == 0):
                raise LocalError(f"--{name.replace('_', '-')} must be a number of seconds above 0, not {value}")


def follow(
    spark: SparkSession,
    source: Path,
    out: Path,
    options: StreamOptions,
    *,
    every_s: float | None,
    on_news: Callable[[Live], None],
    refresh: Callable[[], None] = lambda: None,
) -> None:
    """Read what is there and, unless `every_s` is None, look for more every `every_s` seconds until interrupted.

    `on_news` is called whenever there is something new, and `refresh` again and again meanwhile.
    """
    begin(source, out, options)
    live = Live(out)
    failures: list[Exception] = []
    started: list[StreamingQuery] = []

    def merging(query: _Query) -> Callable[[DataFrame, int], None]:
        def merge(batch: DataFrame, number: int) -> None:
            try:
                query.merge(batch, number)
                on_news(live)
            except Exception as error:  # Spark would show it as stack traces of two languages.
                failures.append(error)
                raise

        return merge

    try:
        for query in _queries(lines(spark, source, options), options, live):
            writer = query.frame.writeStream.outputMode(query.mode).foreachBatch(merging(query))
            writer = writer.option("checkpointLocation", str(out.absolute() / CHECKPOINT / query.name))
            once = every_s is None
            writer = writer.trigger(availableNow=True) if once else writer.trigger(processingTime=f"{every_s} seconds")
            started.append(writer.queryName(query.name).start())
        _wait(started, failures, refresh)
    finally:
        for each in started:
            with contextlib.suppress(Exception):  # One that failed cannot be stopped.
                each.stop()


def _wait(queries: list[StreamingQuery], failures: list[Exception], refresh: Callable[[], None]) -> None:
    """Wait until all are done, or one failed."""
    for query in itertools.cycle(queries):
        if all(not each.isActive for each in queries):
            break
        refresh()
        try:
            query.awaitTermination(_LOOK_S)
        except PySparkException:
            if failures:
                raise failures[0] from None
            raise
    for query in queries:
        if (error := query.exception()) is not None:
            raise failures[0] if failures else error


def lines(spark: SparkSession, source: Path, options: StreamOptions) -> DataFrame:
    """Return the rows of all records in a folder and its subfolders, as a stream, each with its treatment."""
    read = spark.readStream.schema(RECORDS.spark.add(_UNREADABLE, "string"))
    read = read.options(columnNameOfCorruptRecord=_UNREADABLE, mode="PERMISSIVE")
    read = read.option("recursiveFileLookup", "true").option("pathGlobFilter", "*.jsonl")
    read = read.option("ignoreMissingFiles", "true")  # Nodes remove their oldest files.
    return judged(read.json(str(source.absolute())), options)


def judged(frame: DataFrame, options: StreamOptions) -> DataFrame:
    """Mark the lines that are rows of a record (`readable`), and those whose time is still to come (`ahead`).

    A line is none that is no JSON, or has a column of another type, a kind that there is not, a time or a size that no
    node has.
    """
    readable = F.col(_UNREADABLE).isNull() & F.col("node").isNotNull() & F.col("kind").isin(*map(str, Kind))
    readable &= F.col("run").isNotNull() & F.col("t").between(-TIME_S_MAX, TIME_S_MAX)  # What is no number is not.
    readable &= F.coalesce(F.col("size").between(-SIZE_MAX, SIZE_MAX), F.lit(True))
    on_news = frame.withColumn(READABLE, F.coalesce(readable, F.lit(False))).drop(_UNREADABLE)
    latest_s = F.unix_micros(F.current_timestamp()) / MICROSECONDS + options.skew_s
    return on_news.withColumn(AHEAD, F.col(READABLE) & (F.col("t") > latest_s))


def rows_of(frame: DataFrame, watermark_s: float) -> DataFrame:
    """Return the rows of a record, all of one run, with the time that a watermark follows."""
    on_news = frame.where(F.col(READABLE) & ~F.col(AHEAD)).withColumn("run", F.lit(LIVE))
    time = F.timestamp_micros(F.rint(F.col("t") * MICROSECONDS).cast("long"))
    return on_news.withColumn(TIME, time).withWatermark(TIME, f"{watermark_s} seconds")


def timeline(rows: DataFrame, window_s: float) -> DataFrame:
    """Return rows and their sizes by run, window and kind: the table `timeline`."""
    window = F.window(TIME, f"{round(window_s * MICROSECONDS)} microseconds")
    found = rows.groupBy("run", window, "kind").agg(F.count("*").alias("count"), F.try_sum("size").alias("size"))
    return TIMELINE.conform(found.withColumn("t", F.unix_micros("window.start") / MICROSECONDS))


def by_node(frame: DataFrame) -> DataFrame:
    """Return the reports of each node: the table `nodes`."""

    def rows(kind: Kind) -> SparkColumn:
        return F.count_if(F.col(READABLE) & (F.col("kind") == kind.value))

    def messages(kind: Kind, but: str) -> SparkColumn:
        # A message that is evicted may come again: it counts once, as in finished runs. Hashes are kept, not names.
        mine = F.col(READABLE) & (F.col("kind") == kind.value) & ~F.col("detail").eqNullSafe(but)
        return F.size(F.collect_set(F.when(mine, F.xxhash64("message")))).cast("long")

    count = F.coalesce(F.try_element_at("attrs", F.lit("count")).try_cast("int"), F.lit(1))
    refused = F.when(F.col(READABLE) & (F.col("kind") == Kind.REFUSE.value), count)
    sent = F.when(F.col(READABLE) & (F.col("kind") == Kind.TRAFFIC.value), F.col("size"))
    there = F.when(F.col(READABLE) & ~F.col(AHEAD), F.col("t"))
    return frame.groupBy(F.when(F.col(READABLE), F.col("node")).otherwise(NOBODY).alias("node")).agg(
        F.coalesce(F.max(there), F.lit(0.0)).alias("last"),
        rows(Kind.PUBLISH).alias("published"),
        messages(Kind.RECEIVE, AGAIN).alias("received"),
        messages(Kind.DELIVER, REDELIVERED).alias("delivered"),
        rows(Kind.EXPIRE).alias("expired"),
        rows(Kind.DROP).alias("dropped"),
        F.coalesce(F.try_sum(refused), F.lit(0)).alias("refused"),
        F.coalesce(F.try_sum(sent), F.lit(0)).alias("bytes_sent"),
        F.count_if(F.col(AHEAD)).alias("ahead"),
        F.count_if(~F.col(READABLE)).alias("unreadable"),
    )


def delays(rows: DataFrame, options: StreamOptions) -> DataFrame:
    """Delays of messages at nodes other than their author's: metric and whole microseconds."""
    elsewhere = rows.where(F.col("node") != F.col("source"))
    published = _moments(rows, Kind.PUBLISH, "")
    received = _moments(elsewhere, Kind.RECEIVE, AGAIN)
    delivered = _moments(elsewhere, Kind.DELIVER, REDELIVERED)
    across, here = ["message"], ["message", "node"]
    skew_s, horizon_s = options.skew_s, options.horizon_s
    found = [
        _between(TDELAY, published, received, across, (-skew_s, horizon_s)),
        _between(CODLVDELAY, published, delivered, across, (-skew_s, horizon_s)),
        _between(LTCY, received, delivered, here, (0.0, horizon_s)),
    ]
    return found[0].unionByName(found[1]).unionByName(found[2])


def _moments(rows: DataFrame, kind: Kind, but: str) -> DataFrame:
    """Return the time of each message at each node, once, by rows of a kind without those of a detail.

    What comes a second time within the watermark is the same message again.
    """
    chosen = rows.where((F.col("kind") == kind.value) & ~F.col("detail").eqNullSafe(but))
    return chosen.select("message", "node", TIME).dropDuplicatesWithinWatermark(["message", "node"])


def _between(
    metric: str, first: DataFrame, second: DataFrame, keys: list[str], within_s: tuple[float, float]
) -> DataFrame:
    """Times from the first to the second of two moments of a message."""
    one = first.select(*(F.col(key).alias(f"one_{key}") for key in keys), F.col(TIME).alias("one"))
    two = second.select(*(F.col(key).alias(f"two_{key}") for key in keys), F.col(TIME).alias("two"))
    least_s, most_s = within_s
    matches = F.expr(f"two >= one + INTERVAL {least_s} SECONDS AND two <= one + INTERVAL {most_s} SECONDS")
    for key in keys:
        matches &= F.col(f"one_{key}") == F.col(f"two_{key}")
    joined = one.join(two, matches, "inner")
    return joined.select(F.lit(metric).alias("metric"), (F.unix_micros("two") - F.unix_micros("one")).alias("us"))


def counted(values: DataFrame) -> DataFrame:
    """Delays, counted by whole milliseconds: the table of counts."""
    us = F.col("us").cast("double")
    return values.groupBy("metric", F.rint(us / 1_000).cast("long").alias("value_ms")).agg(
        F.count("*").alias("count"),
        F.sum(us).alias("sum_us"),
        F.sum(us * us).alias("squares_us2"),
        F.min("us").alias("min_us"),
        F.max("us").alias("max_us"),
    )


def _queries(frame: DataFrame, options: StreamOptions, live: Live) -> Iterator[_Query]:
    rows = rows_of(frame, options.watermark_s)
    yield _Query("nodes", by_node(frame), "update", lambda batch, _: live.update_nodes(NODES.conform(batch).toArrow()))
    yield _Query(
        "timeline",
        timeline(rows, options.window_s),
        "update",
        lambda batch, _: live.update_timeline(TIMELINE.conform(batch).toArrow()),
    )
    # A node that was away reports old receptions: publications are kept for as long as the horizon.
    patient = rows_of(frame, max(options.watermark_s, options.horizon_s))
    yield _Query(
        "delays",
        delays(patient, options),
        "append",
        lambda batch, number: live.update_delays(COUNTS.conform(counted(batch)).toArrow(), number),
    )


def begin(source: Path, out: Path, options: StreamOptions) -> None:
    """Check that a stream continues with the folder and the options that it began with, which its state depends on."""
    if not source.is_dir():
        raise LocalError(f"{source}: there is no such folder; nodes write their records to it, see record.folder")
    facts = {"source": str(source.resolve()), **asdict(options)}
    before = folders.manifest(out).get(STREAM.name)
    if before is not None:
        for name, value in facts.items():
            if before.get(name) != value:
                option = "the records in" if name == "source" else f"--{name.replace('_', '-')}"
                raise LocalError(
                    f"{out} was started with {option} {before.get(name)}; continue with the same, or choose another "
                    "--out"
                )
    elif (out / CHECKPOINT).exists():
        raise LocalError(f"{out} has a checkpoint and no manifest: remove it to begin again")
    else:
        folders.note(out, STREAM, facts)
