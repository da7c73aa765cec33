"""How often what happened, by time: one function for finished runs and for live streams.

A stream brings the column `time`, which its watermark follows; of finished runs it is made here. Nothing in it needs
more than one row at a time, so a stream can be asked as well.
"""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

from carrypost.lab.metrics.families import TIMELINE

TIME = "time"
"""`t` as Spark's own type, which windows and watermarks want."""
_US = 1_000_000


def with_time(records: DataFrame) -> DataFrame:
    """Rows of a record with the column `time`."""
    return records.withColumn(TIME, F.timestamp_micros(F.rint(F.col("t") * _US).cast("long")))


def timeline(records: DataFrame, window_s: float) -> DataFrame:
    """Rows and their sizes by run, window and kind: the table `timeline`."""
    rows = records if TIME in records.columns else with_time(records)
    window = F.window(TIME, f"{round(window_s * _US)} microseconds")
    found = rows.groupBy("run", window, "kind").agg(F.count("*").alias("count"), F.try_sum("size").alias("size"))
    return TIMELINE.conform(found.withColumn("t", F.unix_micros("window.start") / _US))
