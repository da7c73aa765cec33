"""Exact ranks of many values, by counting: how often each value occurs, and how many are not above it.

The percentile rule is that of the nearest rank: the least value that at least this share of all is not above. Values
are whole numbers. They are counted in broad steps first; which steps hold a rank that is wanted is known from that, and
only what falls into these is counted value by value. So nothing is sorted that nobody asked for, and the result is the
same as if everything was.
"""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

MILLISECOND_US = 1_000
STEPS = 16_384


def milliseconds(us: Column) -> Column:
    """Whole milliseconds, rounded half to even."""
    return F.rint(us / MILLISECOND_US).cast("long")


def thinned_counts(
    values: DataFrame, keys: Sequence[str], ranks: int, *, steps: int = STEPS, limits: DataFrame | None = None
) -> DataFrame:
    """Of the column `value`: every one that reaches another of so many equal shares of all, and the least one.

    Gives the keys and ``value``, ``count`` (how many have it), ``cumulative`` (this or less), ``total``. `limits` has
    the keys, ``least`` and ``most``, for whoever knows these already.
    """
    known = limits if limits is not None else values.groupBy(*keys).agg(
        F.min("value").alias("least"), F.max("value").alias("most")
    )  # fmt: skip
    width = F.floor((F.col("most") - F.col("least")) / steps) + 1
    step = known.select(*keys, "least", width.alias("width"))
    stepped = values.join(F.broadcast(step), on=list(keys), how="inner").withColumn(
        "step", F.floor((F.col("value") - F.col("least")) / F.col("width")).cast("int")
    )
    wanted = _wanted(stepped.groupBy(*keys, "step").count(), keys, ranks)
    counted = (
        stepped.join(F.broadcast(wanted), on=[*keys, "step"], how="inner")
        .groupBy(*keys, "step", "value")
        .agg(F.count("*").alias("count"), F.first("below").alias("below"), F.first("total").alias("total"))
    )
    running = Window.partitionBy(*keys, "step").orderBy("value").rowsBetween(Window.unboundedPreceding, 0)
    ranked = counted.withColumn("cumulative", F.col("below") + F.sum("count").over(running))
    before = F.col("cumulative") - F.col("count")
    return ranked.where(_reaches(before, F.col("cumulative"), ranks) | (before == 0)).select(
        *keys, "value", "count", "cumulative", "total"
    )


def _wanted(counts: DataFrame, keys: Sequence[str], ranks: int) -> DataFrame:
    """The steps in which another share is reached, and how many values are below them."""
    of_keys = Window.partitionBy(*keys)
    running = of_keys.orderBy("step").rowsBetween(Window.unboundedPreceding, 0)
    ranked = counts.withColumns({"total": F.sum("count").over(of_keys), "cumulative": F.sum("count").over(running)})
    below = F.col("cumulative") - F.col("count")
    return ranked.where(_reaches(below, F.col("cumulative"), ranks) | (below == 0)).select(
        *keys, "step", below.alias("below"), "total"
    )


def _reaches(before: Column, now: Column, ranks: int) -> Column:
    """Whether another of so many equal shares of `total` is reached from one number to the next."""
    # One division of whole numbers, whose floor is exact: a share such as 0.3 is none that a computer has.
    return F.floor(now * ranks / F.col("total")) > F.floor(before * ranks / F.col("total"))


def percentile(share: int) -> Column:
    """Out of rows of `thinned_counts` that have ranks at every hundredth: an aggregate, the value of one percentile."""
    return F.min(F.when(F.col("cumulative") * 100 >= F.col("total") * share, F.col("value")))
