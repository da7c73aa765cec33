"""How messages spread: recipients reached (EMMA), hops, one message's way and throughput (JOMS).

A recipient is a node other than the author that was there at any moment of a message's life. Of a message whose id was
given anew after a crash, the life is from the first publication to the last deadline.
"""

from __future__ import annotations

import pyarrow as pa
from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

from carrypost.lab.metrics import flood as bound
from carrypost.lab.metrics.copies import US, code, seconds, t_us
from carrypost.lab.metrics.families import (
    BARRIERS,
    DELIVERY,
    DELIVERY_RATIO,
    FLOOD,
    HOP_COUNTS,
    HOPS,
    SPREAD,
    THROUGHPUT,
)

_ALWAYS_US = (1 << 62) - 1


def barriers(messages: DataFrame) -> DataFrame:
    """Table BARRIERS out of MESSAGES."""
    ordered = messages.where(F.col("entries").isNotNull())
    return BARRIERS.conform(
        ordered.groupBy(F.col("run_name").alias("run"), "entries").agg(F.count("*").alias("messages"))
    )


def hops(copies: DataFrame, nodes: DataFrame) -> DataFrame:
    """Table HOPS out of COPIES and NODES; receptions of which hops are not known are left out."""
    found = (
        copies.where(F.col("received_us").isNotNull() & F.col("hops").isNotNull())
        .groupBy("node")
        .agg(
            F.count("*").alias("received"),
            F.count(F.when(F.col("hops") == 1, 1)).alias("direct"),
            F.avg("hops").alias("mean"),
            F.max("hops").alias("max"),
        )
    )
    named = found.join(F.broadcast(nodes.drop("run")), on="node", how="inner")
    return HOPS.conform(named.withColumns({"run": F.col("run_name"), "node": F.col("node_name")}))


def flood(messages: DataFrame, activity: DataFrame, contacts: DataFrame) -> DataFrame:
    """Table FLOOD out of MESSAGES, ACTIVITY and contacts; the few rows of a run that count go to one task."""
    deadline = F.when(F.col("deadline_us") < _ALWAYS_US, F.col("deadline_us"))
    sent = lives(messages).select(
        F.col("run_name").alias("run"), F.lit(bound.MESSAGE).alias("what"), F.col("name").alias("a"),
        F.col("source").alias("b"), F.col("published_us").alias("start_us"), deadline.alias("end_us"),
    )  # fmt: skip
    times = (t_us("start").alias("start_us"), t_us("end").alias("end_us"))
    node = (F.col("node").alias("a"), F.lit("").alias("b"))
    there = activity.select("run", F.lit(bound.STAY).alias("what"), *node, *times)
    met = contacts.select("run", F.lit(bound.CONTACT).alias("what"), "a", "b", *times)

    def table(key: tuple[pa.Scalar], rows: pa.Table) -> pa.Table:
        columns = bound.flood_of_rows(rows)
        return pa.table({"run": pa.repeat(key[0], len(columns["share"])), **columns}).cast(FLOOD.arrow)

    rows = sent.unionByName(there).unionByName(met)
    return FLOOD.conform(rows.groupBy("run").applyInArrow(table, FLOOD.spark))


def hop_counts(copies: DataFrame, runs: DataFrame) -> DataFrame:
    """Table HOP_COUNTS out of COPIES; receptions of which hops are not known are left out."""
    known = copies.where(F.col("received_us").isNotNull() & F.col("hops").isNotNull())
    found = known.groupBy("run", "hops").agg(F.count("*").alias("copies"))
    named = found.join(F.broadcast(runs), on="run", how="inner")
    return HOP_COUNTS.conform(named.withColumn("run", F.col("run_name")))


def throughput(copies: DataFrame, runs: DataFrame) -> DataFrame:
    """Table THROUGHPUT out of COPIES; what came in no time at all has none."""
    delay_us = F.col("received_us") - F.col("published_us")
    rate = F.when(delay_us > 0, F.col("size") * US / delay_us)
    found = (
        copies.where(_of_others() & F.col("size").isNotNull() & F.col("published_us").isNotNull())
        .groupBy("run", "size")
        .agg(F.count("*").alias("copies"), F.avg(rate).alias("bytes_per_s"))
    )
    named = found.join(F.broadcast(runs), on="run", how="inner")
    return THROUGHPUT.conform(named.withColumn("run", F.col("run_name")))


def spread(copies: DataFrame, messages: DataFrame) -> DataFrame:
    """Table SPREAD out of COPIES and MESSAGES."""
    known = copies.where(_of_others() & F.col("published_us").isNotNull())
    counts = known.groupBy("run", "message").agg(F.count("*").alias("nodes"))
    first = lives(messages)
    best = Window.partitionBy("run").orderBy(F.desc("nodes"), "published_us", "name")
    chosen = (
        counts.join(first.select("message", "run_name", "name", "published_us"), on="message", how="inner")
        .withColumn("place", F.row_number().over(best))
        .where(F.col("place") == 1)
        .select("message", "run_name", "name")
    )
    one = known.join(F.broadcast(chosen), on="message", how="inner")
    in_order = Window.partitionBy("message").orderBy("received_us", "node")
    return SPREAD.conform(
        one.select(
            F.col("run_name").alias("run"),
            F.col("name").alias("message"),
            F.row_number().over(in_order).alias("reached"),
            seconds(F.col("received_us") - F.col("published_us")).alias("after_s"),
        )
    )


def lives(messages: DataFrame) -> DataFrame:
    """Every message once: from its first publication to its last deadline."""
    deadline = F.max(F.coalesce("deadline_us", F.lit(_ALWAYS_US)))
    return messages.groupBy("run", "message").agg(
        *(F.first(name).alias(name) for name in ("run_name", "name", "author", "source")),
        F.min("published_us").alias("published_us"),
        deadline.alias("deadline_us"),
    )


def delivery(copies: DataFrame, messages: DataFrame, activity: DataFrame) -> DataFrame:
    """Table DELIVERY out of COPIES, MESSAGES and ACTIVITY."""
    living = lives(messages)
    got = (
        copies.where(~F.col("own") & F.col("delivered_us").isNotNull())
        .join(living.select("message", "deadline_us"), on="message", how="inner")
        .where(F.col("delivered_us") < F.col("deadline_us"))
        .groupBy("message")
        .agg(F.count("*").alias("delivered"))
    )
    found = (
        living.join(_recipients(living, activity), on="message", how="left")
        .join(got, on="message", how="left")
        .fillna(0, ["recipients", "delivered"])
    )
    return DELIVERY.conform(
        found.select(
            F.col("run_name").alias("run"),
            F.col("name").alias("message"),
            "source",
            seconds(F.col("published_us")).alias("published"),
            "recipients",
            "delivered",
            F.try_divide("delivered", "recipients").alias("ratio"),
        )
    )


def _recipients(living: DataFrame, activity: DataFrame) -> DataFrame:
    """By message, nodes that were there while it lived."""
    before = F.lag("end_us").over(Window.partitionBy("node").orderBy("start_us"))
    there = (
        activity.select(
            code("run").alias("run"), code("run", "node").alias("node"), t_us("start").alias("start_us"),
            t_us("end").alias("end_us"),
        ).withColumn("before_us", F.coalesce(before, F.lit(-_ALWAYS_US)))
    )  # fmt: skip
    return (
        living.alias("of")
        .join(F.broadcast(there).alias("there"), on=_first_in_life(), how="inner")
        .groupBy("of.message")
        .agg(F.count("*").alias("recipients"))
    )


def _first_in_life() -> Column:
    """Whether a stay is the first of its node that a message's life touches: so a node that comes back counts once."""
    return (
        (F.col("of.run") == F.col("there.run"))
        & (F.col("of.author") != F.col("there.node"))
        & (F.col("there.start_us") < F.col("of.deadline_us"))
        & (F.col("there.end_us") > F.col("of.published_us"))
        & (F.col("there.before_us") <= F.col("of.published_us"))
    )


def delivery_ratio(delivery: DataFrame) -> DataFrame:
    """Table DELIVERY_RATIO out of DELIVERY."""
    return DELIVERY_RATIO.conform(
        delivery.groupBy("run").agg(F.count("ratio").alias("messages"), F.avg("ratio").alias("ratio"))
    )


def _of_others() -> Column:
    return ~F.col("own") & F.col("received_us").isNotNull()
