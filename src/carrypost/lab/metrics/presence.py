"""Who was there when, who was in range of whom, and what nodes told of themselves: sizes of registries, bytes sent.

All of it is made from the few rows of a record that are not about copies of messages.
"""

from __future__ import annotations

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

from carrypost.emu.engine.samples import AT, AT_LEAVE, CACHE
from carrypost.emu.engine.samples import REGISTRIES as ORDERED
from carrypost.lab.metrics.copies import seconds
from carrypost.lab.metrics.families import ACTIVITY, REGISTRIES, REGISTRY_SIZES, TRAFFIC
from carrypost.record import Kind

_DURATION = r"(?m)^duration_s *= *([0-9.eE+-]+)"
"""In the text of a scenario, whose own keys stand before those of its tables."""


def ends(rest: DataFrame, nodes: DataFrame) -> DataFrame:
    """By run, when it ended: as its scenario says, or its last row."""
    last = nodes.groupBy(F.col("run_name").alias("run")).agg(seconds(F.max("until_us")).alias("last"))
    told = (
        rest.where(F.col("kind") == Kind.RUN.value)
        .select("run", F.regexp_extract(F.expr("attrs['defaults']"), _DURATION, 1).alias("text"))
        .groupBy("run")
        .agg(F.max(F.expr("try_cast(nullif(text, '') AS double)")).alias("told"))
    )
    return last.join(told, on="run", how="left").select("run", F.coalesce("told", "last").alias("until"))


def activity(rest: DataFrame, nodes: DataFrame) -> DataFrame:
    """Table ACTIVITY out of rows `join` and `leave`; whoever does not leave is there to the end."""
    rows = rest.where(F.col("kind").isin(Kind.JOIN.value, Kind.LEAVE.value)).select("run", "node", "t", "kind")
    leaves = F.when(F.col("kind") == Kind.LEAVE.value, F.col("t"))
    # At one instant nodes leave before they come.
    in_order = Window.partitionBy("run", "node").orderBy("t", F.desc("kind"))
    told = rows.withColumns(
        {
            "before": F.coalesce(F.lag("kind").over(in_order), F.lit(Kind.LEAVE.value)),
            "left": F.min(leaves).over(in_order.rowsBetween(1, Window.unboundedFollowing)),
        }
    ).where((F.col("kind") == Kind.JOIN.value) & (F.col("before") == Kind.LEAVE.value))
    found = told.join(F.broadcast(ends(rest, nodes)), on="run", how="inner").select(
        "run", "node", F.col("t").alias("start"), F.coalesce("left", F.greatest("until", "t")).alias("end")
    )
    return ACTIVITY.conform(found.where(F.col("start") < F.col("end")))


def contacts(rest: DataFrame) -> DataFrame:
    """Who was in range of whom, out of rows `contact`: run, a, b, start, end."""
    found = rest.where(F.col("kind") == Kind.CONTACT.value).select(
        "run",
        F.col("node").alias("a"),
        F.col("peer").alias("b"),
        F.col("t").alias("start"),
        F.expr("try_cast(attrs['end'] AS double)").alias("end"),
    )
    return found.dropna().where(F.col("start") < F.col("end"))


def registries(rest: DataFrame) -> DataFrame:
    """Table REGISTRIES; sizes of all order groups of a node together."""
    rows = _samples(rest)
    sizes = (F.sum(F.when(F.col("registry") == name, F.col("size"))).alias(name) for name in (*ORDERED, CACHE))
    return REGISTRIES.conform(rows.groupBy("run", "node", "t", "leaving").agg(*sizes))


def registry_sizes(rest: DataFrame) -> DataFrame:
    """Table REGISTRY_SIZES; each order group of a node is a sample."""
    regular = F.when(~F.col("leaving"), F.col("size"))
    found = _samples(rest).groupBy("run", "registry")
    return REGISTRY_SIZES.conform(
        found.agg(F.count(regular).alias("samples"), F.avg(regular).alias("mean"), F.max("size").alias("max"))
    )


def _samples(rest: DataFrame) -> DataFrame:
    leaving = F.coalesce(F.expr(f"attrs['{AT}']") == AT_LEAVE, F.lit(False))
    rows = rest.where((F.col("kind") == Kind.REGISTRY.value) & F.col("detail").isNotNull() & F.col("size").isNotNull())
    return rows.select("run", "node", "t", leaving.alias("leaving"), F.col("detail").alias("registry"), "size")


def traffic(rest: DataFrame) -> DataFrame:
    """Table TRAFFIC."""
    rows = rest.where((F.col("kind") == Kind.TRAFFIC.value) & F.col("size").isNotNull())
    found = rows.groupBy("run", "node", F.coalesce("detail", F.lit("?")).alias("frame"))
    return TRAFFIC.conform(found.agg(F.sum("size").alias("bytes")))
