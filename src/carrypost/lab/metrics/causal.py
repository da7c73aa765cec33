"""The metrics of CAUSAL §VI-A d: what became of messages, and how long it took.

What they are is said in `carrypost.emu.records.causal`, here they are counted on Spark: transmission delay (tdelay),
co-delivery latency (ltcy) and co-delivery delay. Messages without an order are counted too: they are delivered as they
come.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

from carrypost.emu.records import causal
from carrypost.lab.metrics.copies import seconds
from carrypost.lab.metrics.families import (
    CODLVDELAY,
    DELAY_CDF,
    DELAY_GRID,
    DELAY_SPREAD,
    DELAYS,
    LTCY,
    PERCENTILES,
    PROCESSING,
    PROCESSING_BY_NODE,
    TDELAY,
)
from carrypost.lab.metrics.percentiles import milliseconds, percentile, thinned_counts

RANKS = 1_000
"""Points of a distribution that are kept."""
CELLS = 60
"""Of a grid, either way, at least a third of it."""
_CELL_US_MIN = 1_000.0
_NICE = (1, 2, 5, 10)


def processing(copies: DataFrame, runs: DataFrame) -> DataFrame:
    """Table PROCESSING out of COPIES and the names of runs; a run without messages is there too."""
    return PROCESSING.conform(_counted(copies, ["run"], runs))


def processing_by_node(copies: DataFrame, nodes: DataFrame) -> DataFrame:
    """Table PROCESSING_BY_NODE out of COPIES and NODES."""
    named = nodes.where(F.col("node_name") != "").select("node", "run_name", "node_name")
    found = _counted(copies, ["node"], named)
    return PROCESSING_BY_NODE.conform(found.withColumn("node", F.col("node_name")))


def _counted(copies: DataFrame, keys: list[str], names: DataFrame) -> DataFrame:
    counts = copies.groupBy(*keys).agg(*counts_of_copies())
    filled = names.join(counts, on=keys, how="left").fillna(0, ["bcast", "rcvd", "codlvd", "expd", "left"])
    return filled.withColumns(
        {
            "run": F.col("run_name"),
            "codlvratio": causal.co_delivery_ratio(F.col("bcast"), F.col("rcvd"), F.col("codlvd"), F.try_divide),
            "expratio": causal.expiry_ratio(F.col("rcvd"), F.col("expd"), F.try_divide),
        }
    )


def counts_of_copies() -> list[Column]:
    """Aggregates over rows of COPIES."""
    left = causal.left(F.col("delivered_us").isNotNull(), F.col("expired_us").isNotNull())
    return [
        F.sum("broadcasts").alias("bcast"),
        F.count("received_us").alias("rcvd"),
        F.count("delivered_us").alias("codlvd"),
        F.count("expired_us").alias("expd"),
        F.count(F.when(F.col("received_us").isNotNull() & left, 1)).alias("left"),
    ]


def delay_columns() -> dict[str, Column]:
    """The three delays of a row of COPIES in microseconds; none at authors, or where something is not known."""
    published_us, received_us, delivered_us = map(F.col, ("published_us", "received_us", "delivered_us"))
    tdelay = F.when(~F.col("own"), causal.transmission_delay(published_us, received_us))
    ltcy = F.when(~F.col("own"), causal.co_delivery_latency(received_us, delivered_us))
    return {TDELAY: tdelay, LTCY: ltcy, CODLVDELAY: causal.co_delivery_delay(tdelay, ltcy)}


def values(copies: DataFrame, metrics: Sequence[str] = DELAYS) -> DataFrame:
    """Run, metric (by its place among the three) and delay of every copy that has it."""
    columns = delay_columns()
    each = [F.struct(F.lit(DELAYS.index(name)).alias("metric"), columns[name].alias("us")) for name in metrics]
    found = copies.where(F.col("received_us").isNotNull()).select("run", F.inline(F.array(*each)))
    return found.where(F.col("us").isNotNull()).withColumn("value", milliseconds(F.col("us")))


def spreads(copies: DataFrame) -> DataFrame:
    """Count, least, most, mean and deviation of the three delays, which are told as in `values`."""
    figures = {"count": F.count, "min": F.min, "max": F.max, "avg": F.avg, "stdev": F.stddev_pop}
    known = copies.select("run", *(column.alias(name) for name, column in delay_columns().items()))
    # All of a run in one row first: three rows for each copy would be three times the work.
    wide = known.groupBy("run").agg(
        *(make(name).alias(f"{name}_{figure}") for name in DELAYS for figure, make in figures.items())
    )
    each = [
        F.struct(F.lit(number).alias("metric"), *(F.col(f"{name}_{figure}").alias(figure) for figure in figures))
        for number, name in enumerate(DELAYS)
    ]
    return wide.select("run", F.inline(F.array(*each))).where(F.col("count") > 0)


def distribution(values: DataFrame, spreads: DataFrame) -> DataFrame:
    """How `values` are distributed, at a thousand points each; their `spreads` are known."""
    return thinned_counts(values, ["run", "metric"], RANKS, limits=limits(spreads))


def limits(spreads: DataFrame) -> DataFrame:
    """Least and most in whole milliseconds, for `thinned_counts`."""
    least, most = (milliseconds(F.col(name)) for name in ("min", "max"))
    return spreads.select("run", "metric", least.alias("least"), most.alias("most"))


def delays(spreads: DataFrame, distribution: DataFrame, runs: DataFrame) -> DataFrame:
    """Table DELAY_SPREAD out of `spreads` and `distribution`."""
    shares = distribution.groupBy("run", "metric").agg(
        *((percentile(share) / 1_000).alias(f"p{share}_s") for share in PERCENTILES)
    )
    joined = spreads.join(shares, on=["run", "metric"], how="left")
    in_s = {f"{name}_s": seconds(F.col(name)) for name in ("min", "max", "avg", "stdev")}
    return DELAY_SPREAD.conform(_named(joined.withColumns(in_s), runs))


def delay_cdf(distribution: DataFrame, runs: DataFrame) -> DataFrame:
    """Table DELAY_CDF out of `distribution`."""
    share = F.col("cumulative") / F.col("total")
    return DELAY_CDF.conform(
        _named(distribution.withColumns({"value_ms": F.col("value"), "share": share}), runs).orderBy(
            "run", "metric", "value_ms"
        )
    )


def _named(frame: DataFrame, runs: DataFrame) -> DataFrame:
    """Names in place of numbers of runs and metrics."""
    metrics = F.element_at(F.array(*(F.lit(name) for name in DELAYS)), F.col("metric") + 1)
    joined = frame.join(F.broadcast(runs), on="run", how="inner")
    return joined.withColumns({"run": F.col("run_name"), "metric": metrics})


def delay_grid(copies: DataFrame, spreads: DataFrame, runs: DataFrame) -> DataFrame:
    """Table DELAY_GRID out of COPIES: 20 to 60 cells either way, whose edges are round numbers of seconds."""
    most = spreads.groupBy("run").agg(
        *(F.max(F.when(F.col("metric") == number, F.col("max"))).alias(f"{name}_most") for number, name in _AXES)
    )
    columns = delay_columns()
    known = copies.select("run", *(columns[name].alias(name) for _, name in _AXES)).dropna()
    sized = known.join(F.broadcast(most), on="run", how="inner")
    cells = {name: F.floor(F.col(name) / _cell_us(F.col(f"{name}_most"))) for _, name in _AXES}
    widths = {f"{name}_width": _cell_us(F.col(f"{name}_most")) for _, name in _AXES}
    keys = ["run", *cells, *widths]
    found = sized.withColumns(widths).withColumns(cells).groupBy(*keys).agg(F.count("*").alias("copies"))
    edges = {f"{name}_s": F.col(name) * F.col(f"{name}_width") / 1e6 for _, name in _AXES}
    in_s = {f"{name}_width_s": F.col(f"{name}_width") / 1e6 for _, name in _AXES}
    named = found.withColumns(edges | in_s).join(F.broadcast(runs), on="run", how="inner")
    return DELAY_GRID.conform(named.withColumn("run", F.col("run_name")))


_AXES = ((0, TDELAY), (1, LTCY))


def _cell_us(most_us: Column) -> Column:
    """The least of 1, 2, 5, 10 and so on that makes at most so many cells of it, in microseconds."""
    wanted = F.greatest(most_us / CELLS, F.lit(_CELL_US_MIN))
    power = F.pow(F.lit(10.0), F.floor(F.log10(wanted)))
    return functools.reduce(
        lambda other, nice: F.when(power * nice >= wanted, power * nice).otherwise(other),
        reversed(_NICE),
        power * _NICE[-1],
    )
