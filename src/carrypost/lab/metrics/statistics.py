"""What contacts and presences tell by themselves: counts, durations, times between, neighbours, activity.

Frames go in and tables of `lab.metrics.families` come out, each key `run` on its own; where a trace is looked at rather
than a run, the name of its scenario stands there. Contacts have the columns run, a, b, start, end, and those of a pair
do not overlap; activity is ACTIVITY, and a node's intervals do not overlap. Both are half open.

All sums are of whole microseconds, so nothing depends on the order of work. Means over time are by events: +1 where
something begins and -1 where it ends, summed up; never by looking every so often. Neighbours are counted only while a
node is there, whatever contacts say.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

from carrypost.errors import LocalError
from carrypost.lab.metrics.families import (
    ACTIVITY,
    ACTIVITY_SUMMARY,
    CONTACT_CDF,
    CONTACT_SUMMARY,
    INTER_CONTACT_CDF,
    NEIGHBOURS,
    NEIGHBOURS_TIMELINE,
)
from carrypost.lab.schemas import CONTACTS, POSITIONS, Table

if TYPE_CHECKING:
    from pyspark.sql import Column

WINDOW_S = 60.0
_SECOND = 1e6
_BY_PAIR = ("run", "a", "b")
_MEANS = ("active", "neighbours")
"""What timelines are of."""


# ----------------------------------------------------------------------------------------------------- contacts
def of_trace(contacts: DataFrame) -> DataFrame:
    """CONTACTS of traces, with scenarios as runs."""
    return CONTACTS.conform(contacts).withColumnRenamed("scenario", "run")


def contact_summary(contacts: DataFrame) -> DataFrame:
    """How many contacts, of whom, and how long they are."""
    lasting = _times(contacts).withColumn("value_us", F.col("end_us") - F.col("start_us"))
    pairs = lasting.groupBy(*_BY_PAIR).agg(F.lit(1).alias("one")).groupBy("run").agg(F.count("one").alias("pairs"))
    nodes = _sides(lasting).select("run", "node").distinct().groupBy("run").agg(F.count("node").alias("nodes"))
    spread = lasting.groupBy("run").agg(F.count(F.lit(1)).alias("contacts"), *_spread("value_us"))
    return CONTACT_SUMMARY.conform(spread.join(pairs, "run", "inner").join(nodes, "run", "inner"))


def contact_cdf(contacts: DataFrame) -> DataFrame:
    """How durations of contacts are distributed."""
    lasting = _times(contacts).withColumn("value_us", F.col("end_us") - F.col("start_us"))
    return _distribution(lasting, CONTACT_CDF)


def inter_contact_cdf(contacts: DataFrame) -> DataFrame:
    """How times between contacts of a pair are distributed; before the first and after the last there is none."""
    along = Window.partitionBy(*_BY_PAIR).orderBy("start_us")
    between = _times(contacts).withColumn("value_us", F.col("start_us") - F.lag("end_us").over(along))
    return _distribution(between.where(F.col("value_us").isNotNull()), INTER_CONTACT_CDF)


# --------------------------------------------------------------------------------------------------- neighbours
def neighbours(contacts: DataFrame, activity: DataFrame) -> DataFrame:
    """How long nodes had so many neighbours, while they were there."""
    counted = _levels(contacts, activity).groupBy("run", "neighbours")
    lasting = counted.agg(F.sum(F.col("end_us") - F.col("start_us")).alias("node_us"))
    upto = Window.partitionBy("run").orderBy("neighbours").rowsBetween(Window.unboundedPreceding, Window.currentRow)
    share = F.sum("node_us").over(upto) / F.sum("node_us").over(Window.partitionBy("run"))
    made = lasting.select("run", "neighbours", (F.col("node_us") / _SECOND).alias("node_s"), share.alias("share"))
    return NEIGHBOURS.conform(made).orderBy("run", "neighbours")


def neighbours_timeline(contacts: DataFrame, activity: DataFrame, window_s: float = WINDOW_S) -> DataFrame:
    """How many were there and how many neighbours they had, as means over windows of time.

    Windows begin at whole multiples of their length, the first where somebody is there first; one that reaches beyond
    the time when anybody is there is a window like the others.
    """
    window_us = round(window_s * _SECOND)
    if window_us < 1:
        raise LocalError(f"a window must be at least 1 µs long, not {window_s!r} s")
    by_window = _filled(_by_window(_levels(contacts, activity), window_us), window_us)
    made = by_window.select(
        "run",
        (F.col("number") * F.lit(window_us) / _SECOND).alias("t"),
        (F.col("active") / F.lit(window_us)).alias("active"),
        F.when(F.col("active") > 0, F.col("neighbours") / F.col("active")).alias("neighbours"),
    )
    return NEIGHBOURS_TIMELINE.conform(made).orderBy("run", "t")


def _by_window(levels: DataFrame, window_us: int) -> DataFrame:
    """Of each window in which something changes: node-microseconds there, with neighbours, and what is so at its end.

    What lasts through a window counts its whole length, what changes in it counts from there on.
    """
    width = F.lit(window_us)
    changes = _changes(levels, ("run",), active=F.lit(1), neighbours=F.col("neighbours"))
    late = F.col("t_us") - F.col("number") * width
    summed = (
        changes.withColumn("number", F.floor(F.col("t_us") / width))
        .groupBy("run", "number")
        .agg(
            *(F.sum(name).alias(f"{name}_more") for name in _MEANS),
            *(F.sum(F.col(name) * late).alias(f"{name}_late") for name in _MEANS),
        )
    )
    upto = Window.partitionBy("run").orderBy("number").rowsBetween(Window.unboundedPreceding, Window.currentRow)
    known = summed.select(
        "run", "number", *(F.sum(f"{name}_more").over(upto).alias(f"{name}_then") for name in _MEANS),
        *(f"{name}_late" for name in _MEANS),
    )  # fmt: skip
    return known.select(
        "run",
        "number",
        *(f"{name}_then" for name in _MEANS),
        *((F.col(f"{name}_then") * width - F.col(f"{name}_late")).alias(name) for name in _MEANS),
    )


def _filled(by_window: DataFrame, window_us: int) -> DataFrame:
    """With the windows between, in which nothing changes; without one at the end in which nobody is there any more."""
    following = F.lead("number").over(Window.partitionBy("run").orderBy("number"))
    ranged = by_window.withColumn("following", following)
    ended = F.col("following").isNull() & (F.col("active") == 0)
    until = F.coalesce(F.col("following") - 1, F.col("number"))
    every = ranged.where(~ended).withColumn("at", F.explode(F.sequence("number", until)))
    changed = F.col("at") == F.col("number")
    means = (
        F.when(changed, F.col(name)).otherwise(F.col(f"{name}_then") * F.lit(window_us)).alias(name) for name in _MEANS
    )
    return every.select("run", F.col("at").alias("number"), *means)


def _levels(contacts: DataFrame, activity: DataFrame) -> DataFrame:
    """Of each node that is there, from when to when it has how many neighbours."""
    met = _sides(_times(contacts)).select("run", "node", "start_us", "end_us", F.lit(0).alias("there"))
    there = _times(ACTIVITY.conform(activity)).select("run", "node", "start_us", "end_us", F.lit(1).alias("there"))
    changes = _changes(
        there.unionAll(met), ("run", "node"), active=F.col("there"), neighbours=F.lit(1) - F.col("there")
    )
    net = changes.groupBy("run", "node", "t_us").agg(*(F.sum(name).alias(name) for name in _MEANS))
    along = Window.partitionBy("run", "node").orderBy("t_us")
    upto = along.rowsBetween(Window.unboundedPreceding, Window.currentRow)
    return net.select(
        "run",
        "node",
        F.col("t_us").alias("start_us"),
        F.lead("t_us").over(along).alias("end_us"),
        *(F.sum(name).over(upto).alias(name) for name in _MEANS),
    ).where((F.col("active") > 0) & F.col("end_us").isNotNull())


# ----------------------------------------------------------------------------------------------------- activity
def activity_summary(activity: DataFrame) -> DataFrame:
    """How many nodes there were, how many at a time, and how long each was there in all."""
    there = _times(ACTIVITY.conform(activity))
    each = there.groupBy("run", "node").agg(F.sum(F.col("end_us") - F.col("start_us")).alias("value_us"))
    spread = each.groupBy("run").agg(F.count("node").alias("nodes"), *_spread("value_us"))
    net = _changes(there, ("run",), active=F.lit(1)).groupBy("run", "t_us").agg(F.sum("active").alias("active"))
    upto = Window.partitionBy("run").orderBy("t_us").rowsBetween(Window.unboundedPreceding, Window.currentRow)
    levels = net.select("run", F.sum("active").over(upto).alias("active"))
    most = levels.groupBy("run").agg(F.max("active").alias("active_max"))
    return ACTIVITY_SUMMARY.conform(spread.join(most, "run", "inner"))


def activity_of_positions(positions: DataFrame, max_gap_us: int | None) -> DataFrame:
    """When the nodes of traces were there: from a first sample to a last, broken where samples are too far apart."""
    samples = POSITIONS.conform(positions).select(
        F.col("scenario").alias("run"), "node", F.rint(F.col("t") * _SECOND).cast("bigint").alias("t_us")
    )
    by_node = ("run", "node")
    if max_gap_us is None:
        islands = samples.groupBy(*by_node)
    else:
        along = Window.partitionBy(*by_node).orderBy("t_us")
        apart = F.coalesce(F.col("t_us") - F.lag("t_us").over(along) > F.lit(max_gap_us), F.lit(True))
        begun = samples.withColumn("begins", apart.cast("int"))
        islands = begun.withColumn("which", F.sum("begins").over(along)).groupBy(*by_node, "which")
    made = islands.agg((F.min("t_us") / _SECOND).alias("start"), (F.max("t_us") / _SECOND).alias("end"))
    return ACTIVITY.conform(made)


def activity_of_contacts(contacts: DataFrame) -> DataFrame:
    """When nodes were there, as far as contacts alone tell: from a node's first contact to the end of its last."""
    made = (
        _sides(_times(contacts))
        .groupBy("run", "node")
        .agg((F.min("start_us") / _SECOND).alias("start"), (F.max("end_us") / _SECOND).alias("end"))
    )
    return ACTIVITY.conform(made)


# ------------------------------------------------------------------------------------------------- what all need
def _times(frame: DataFrame) -> DataFrame:
    """The same with start and end in whole microseconds."""
    return frame.withColumns(
        {f"{name}_us": F.rint(F.col(name) * _SECOND).cast("bigint") for name in ("start", "end")}
    ).drop("start", "end")


def _changes(intervals: DataFrame, keys: tuple[str, ...], **amounts: Column) -> DataFrame:
    """Amounts that are there from start to end, as what is more or less at an instant."""
    begun, ended = (
        intervals.select(
            *keys, F.col(at).alias("t_us"), *((F.lit(sign) * each).alias(name) for name, each in amounts.items())
        )
        for at, sign in (("start_us", 1), ("end_us", -1))
    )
    return begun.unionAll(ended)


def _sides(contacts: DataFrame) -> DataFrame:
    """Contacts twice: seen from either node."""
    return contacts.withColumn("node", F.explode(F.array("a", "b")))


def _spread(value_us: str) -> list[Column]:
    seconds = {
        "min_s": F.min(value_us),
        "max_s": F.max(value_us),
        "avg_s": F.avg(value_us),
        "stdev_s": F.stddev_pop(value_us),
    }
    return [(value / _SECOND).alias(name) for name, value in seconds.items()]


def _distribution(values: DataFrame, table: Table) -> DataFrame:
    """How often each value is there, in whole milliseconds, and how often it or a lesser one."""
    counted = (
        values.select("run", F.rint(F.col("value_us") / F.lit(1_000)).cast("bigint").alias("value_ms"))
        .groupBy("run", "value_ms")
        .agg(F.count(F.lit(1)).alias("count"))
    )
    upto = Window.partitionBy("run").orderBy("value_ms").rowsBetween(Window.unboundedPreceding, Window.currentRow)
    summed = counted.withColumn("cumulative", F.sum("count").over(upto))
    total = F.sum("count").over(Window.partitionBy("run"))
    return table.conform(summed.withColumn("share", F.col("cumulative") / total)).orderBy("run", "value_ms")
