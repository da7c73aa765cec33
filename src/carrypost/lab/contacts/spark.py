"""Contacts from positions on Spark: exact on piecewise-linear motion, bit for bit the same as in one process."""

# The problem. Finding contacts is a join of all samples with all samples by time and place.
# Sampling the positions every second and comparing them, as trace tools do, misses short contacts
# and depends on the phase of the samples.
#
# The way chosen. A node moves in a straight line between two samples, so the times at which a pair
# is within range are roots of a quadratic: exact. Time is divided into slabs, samples are
# sent to the slabs that they belong to, once, and each slab is searched by the emulator's own
# kernel. Parts of contacts that touch at the edges of slabs are joined again, then over the gap
# that does not count, and contacts that are then too short are left out. `search.found_here`
# does it in one process.
#
# What must hold: slabs and partitions change the cost, never the result. Both engines count time in
# integer microseconds, handle each scenario separately, and refuse the same input.
#
# Positions are rows of POSITIONS in any order. A node is at its samples, and moves between two of
# them in a straight line unless they are further apart than the longest gap; a node with one sample
# has no contacts.

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql import Window
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it
from pyspark.sql.pandas.types import from_arrow_schema

from carrypost.emu.rows import microseconds
from carrypost.lab.contacts import search
from carrypost.lab.schemas import CONTACTS, POSITIONS
from carrypost.traces.encounters import Rules

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

_TASKS = 64
"""Least number of tasks, if there are as many slabs; more samples give more."""
_STAYS_MAX = 5_000_000
"""Number of stays of nodes in slabs up to which they are broadcast to all tasks, rather than all samples moved."""
_FOREVER_US = 2**62
_BY_PAIR = ("scenario", "a", "b")


def found(
    positions: DataFrame, rules: Rules, *, slab_us: int | None = None, partitions: int | None = None
) -> DataFrame:
    """Return CONTACTS from POSITIONS, sorted by scenario, start, a, b.

    The positions are read at once to find out which nodes are present and when; the search itself runs when the result
    is used. `slab_us` and `partitions` (of the search) change the cost, never the result.
    """
    samples = POSITIONS.conform(positions)
    plan = search.planned(_lives(samples), slab_us)
    if not plan.nodes:
        return samples.sparkSession.createDataFrame([], CONTACTS.spark)
    tasks = partitions or min(len(plan.slabs), max(_TASKS, plan.samples // search.SAMPLES_PER_SLAB))
    sent = _sent(_placed(samples, plan), rules, small=plan.stays <= _STAYS_MAX).repartitionById(
        tasks, F.col("slab") % F.lit(tasks)
    )
    # Parts are joined, and short ones left out, once those of all slabs are there.
    parts = Rules(range_m=rules.range_m, max_gap_us=rules.max_gap_us)
    searching = search.Search(tuple(span.node for span in plan.nodes), plan.slabs, parts)
    return _merge_touching(sent.mapInArrow(searching, from_arrow_schema(search.PIECES)), rules)


def _lives(samples: DataFrame) -> list[search.SampleSpan]:
    """Return the number of samples of each node, the first and the last; refuse times that cannot be counted."""
    counted = samples.groupBy("scenario", "node").agg(
        F.count(F.lit(1)).alias("rows"),
        F.count("t").alias("count"),
        F.min("t").alias("first"),
        F.max("t").alias("last"),
    )
    spans = counted.toArrow()
    search.nameless(spans)
    first, last = (spans[name].to_numpy() for name in ("first", "last"))
    # Written so that nan, the greatest number to Spark, fails too.
    wrong = ~((first >= -search.SECONDS_MAX) & (last <= search.SECONDS_MAX)) | (
        spans["count"].to_numpy() < spans["rows"].to_numpy()
    )
    search.timeless(spans, wrong)
    columns = (spans[name].to_pylist() for name in ("scenario", "node", "count"))
    return [
        search.SampleSpan(*row)
        for row in zip(*columns, *(microseconds(each).tolist() for each in (first, last)), strict=True)
    ]


def _placed(samples: DataFrame, plan: search.SlabPlan) -> DataFrame:
    """Samples by codes of nodes, in whole microseconds, and the slab that each is in."""
    spark = samples.sparkSession
    cells = {each.scenario: each for each in plan.cells}
    codes = pa.table(
        {
            "scenario": [span.scenario for span in plan.nodes],
            "node": [span.node for span in plan.nodes],
            "code": pa.array(range(len(plan.nodes)), pa.int32()),
            "start_us": [cells[span.scenario].start_us for span in plan.nodes],
            "cell_us": [cells[span.scenario].cell_us for span in plan.nodes],
            "first": pa.array([cells[span.scenario].first for span in plan.nodes], pa.int32()),
        }
    )
    t_us = F.rint(F.col("t") * F.lit(1e6)).cast("bigint")
    slabs = F.from_json(F.lit(str(list(plan.slab_of))), "array<int>")
    cell = F.col("first") + F.expr("(t_us - start_us) div cell_us").cast("int")
    return (
        samples.withColumn("t_us", t_us)
        .join(F.broadcast(spark.createDataFrame(codes)), ["scenario", "node"], "inner")
        .select("code", "t_us", "x", "y", F.get(slabs, cell).alias("slab"))
    )


def _sent(placed: DataFrame, rules: Rules, *, small: bool) -> DataFrame:
    """Samples with the slabs that need them: their own, and those that the segments before and after them reach into.

    Only the first and the last samples of a node in a slab have a segment that leaves it.
    """
    there = placed.groupBy("code", "slab").agg(F.min("t_us").alias("first_us"), F.max("t_us").alias("last_us"))
    along = Window.partitionBy("code").orderBy("slab")
    before_us = F.col("first_us") - F.lag("last_us").over(along)
    after_us = F.lead("first_us").over(along) - F.col("last_us")
    gap_us = F.lit(rules.max_gap_us if rules.max_gap_us is not None else _FOREVER_US)
    reach = there.select(
        "code",
        "slab",
        "first_us",
        "last_us",
        F.when(before_us <= gap_us, F.lag("slab").over(along)).alias("from_slab"),
        F.when(after_us <= gap_us, F.lead("slab").over(along)).alias("to_slab"),
    ).where(F.col("from_slab").isNotNull() | F.col("to_slab").isNotNull())
    slabs = F.sequence(_slab("first_us", "from_slab"), _slab("last_us", "to_slab"))
    sent = placed.join(F.broadcast(reach) if small else reach, ["code", "slab"], "left")
    return sent.select(F.explode(slabs).alias("slab"), "code", "t_us", "x", "y")


def _slab(edge: str, beyond: str) -> Column:
    """Return the slab of a sample; of one at this edge of its stay there, the slab beyond, if the node is in it."""
    return F.when(F.col("t_us") == F.col(edge), F.coalesce(beyond, "slab")).otherwise(F.col("slab"))


def _merge_touching(pieces: DataFrame, rules: Rules) -> DataFrame:
    """Join parts of contacts that touch, or are near enough; a pair's parts are disjoint."""
    along = Window.partitionBy(*_BY_PAIR).orderBy("start_us")
    apart = F.col("start_us") - F.lag("end_us").over(along) > F.lit(rules.merge_gap_us)
    begun = pieces.withColumn("begins", F.coalesce(apart, F.lit(True)).cast("int"))
    whole = (
        begun.withColumn("which", F.sum("begins").over(along))
        .groupBy(*_BY_PAIR, "which")
        .agg(F.min("start_us").alias("start_us"), F.max("end_us").alias("end_us"))
        .where(F.col("end_us") - F.col("start_us") >= F.lit(rules.min_duration_us))
    )
    seconds = (F.col(name) / F.lit(1e6) for name in ("start_us", "end_us"))
    made = whole.select(*_BY_PAIR, *(each.alias(name) for each, name in zip(seconds, ("start", "end"), strict=True)))
    return CONTACTS.conform(made).orderBy("scenario", "start", "a", "b")
