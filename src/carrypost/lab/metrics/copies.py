"""Copies of messages, out of the rows of records: one row for each message at each node that it reached.

What metrics count is decided here: the first reception that is not marked `again`, the first delivery that is not
marked `redelivered`, the first expiry (CAUSAL §VI-A d). The publication that a copy is of is the last one before it:
where a crash took a message before it was stored, its id is given anew.

Texts cost more than anything else in this, so runs, nodes and messages are numbers from the first step on, hashes of 64
bits; `nodes` and `messages` say what they stand for, and refuse two names that have one number.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

from carrypost.lab.metrics.families import COPIES, MESSAGES, NODES
from carrypost.lab.schemas import RECORDS
from carrypost.record import AGAIN, REDELIVERED, Kind

US = 1_000_000
BROADCAST_MAX = 2_000_000
"""Publications that every executor can keep in its memory."""
REST = (Kind.RUN, Kind.JOIN, Kind.LEAVE, Kind.CONTACT, Kind.PUBLISH, Kind.TRAFFIC, Kind.REGISTRY)
"""Kinds of rows that families need besides copies; few."""
REAL = "node"
"""What runs of real nodes begin with, before a stroke."""
_HOP_BITS = 12
_ALWAYS_US = (1 << 62) - 1


def t_us(name: str = "t") -> Column:
    """A column of seconds in whole microseconds."""
    return F.rint(F.col(name) * US).cast("long")


def seconds(us: Column) -> Column:
    """A column of microseconds in seconds."""
    return us / US


def code(*names: str) -> Column:
    """The number of what these columns name."""
    return F.xxhash64(*names)


def merged(records: DataFrame) -> DataFrame:
    """Records with all runs of real nodes taken as one, so that what one publishes and another receives meets."""
    real = F.when(F.col("run").startswith(f"{REAL}/"), F.lit(REAL)).otherwise(F.col("run"))
    return RECORDS.conform(records.withColumn("run", real))


def rest(records: DataFrame) -> DataFrame:
    """Rows that are not about copies."""
    return RECORDS.conform(records.where(F.col("kind").isin(*(kind.value for kind in REST))))


def nodes(records: DataFrame) -> DataFrame:
    """The table of names, and when each was heard of last."""
    found = records.groupBy(F.col("run").alias("run_name"), F.col("node").alias("node_name")).agg(
        F.max(t_us()).alias("until_us")
    )
    coded = found.withColumns({"run": code("run_name"), "node": code("run_name", "node_name")})
    alone = F.count("*").over(Window.partitionBy("node")) == 1
    return NODES.conform(coded.withColumn("run", _or_refuse(alone, F.col("run"))))


def runs(nodes: DataFrame) -> DataFrame:
    """Numbers of runs and their names."""
    return nodes.groupBy("run").agg(F.first("run_name").alias("run_name"))


def messages(rest: DataFrame) -> DataFrame:
    """The table of publications."""
    published = rest.where(F.col("kind") == Kind.PUBLISH.value).withColumns(
        {
            "run_name": F.col("run"),
            "name": F.col("message"),
            "author": code("run", "node"),
            "published_us": t_us(),
            "entries": F.expr("try_cast(detail AS bigint)"),
            "deadline_us": F.rint(F.expr("try_cast(attrs['deadline'] AS double)") * US).cast("long"),
            "source": F.col("node"),
        }
    )
    coded = published.withColumns({"message": code("run", "message"), "run": code("run")})
    of_message = Window.partitionBy("message")
    in_order = of_message.orderBy("published_us")
    first = F.row_number().over(in_order) == 1
    alone = F.min("name").over(of_message) == F.max("name").over(of_message)
    return MESSAGES.conform(
        coded.withColumns(
            {
                "since_us": F.when(first, -_ALWAYS_US).otherwise(F.col("published_us")),
                "before_us": F.coalesce(F.lead("published_us").over(in_order), F.lit(_ALWAYS_US)),
                "broadcasts": _or_refuse(alone, F.count("*").over(of_message)),
            }
        )
    )


def _or_refuse(alone: Column, value: Column) -> Column:
    """A value, where a number stands for one name only."""
    return F.when(alone, value).otherwise(F.raise_error(F.lit("two names have one number")))


def copies(records: DataFrame, nodes: DataFrame, messages: DataFrame, *, broadcast: bool = True) -> DataFrame:
    """The table of copies; `broadcast`: publications are few enough for the memory of every executor."""
    of_node = F.broadcast(nodes.select("node", "run"))
    of_message = messages.select(
        "message", "author", "size", "published_us", "since_us", "before_us", F.col("broadcasts").alias("times")
    )
    found = _gathered(records).join(of_node, on="node", how="inner")
    at = F.coalesce("received_us", "delivered_us", "expired_us", F.lit(_ALWAYS_US - 1))
    same = (F.col("copy.message") == F.col("of.message")) & (at >= F.col("since_us")) & (at < F.col("before_us"))
    small = F.broadcast(of_message) if broadcast else of_message
    own = F.coalesce(F.col("author") == F.col("node"), F.lit(False))
    joined = found.alias("copy").join(small.alias("of"), on=same, how="left")
    times = F.when(own, F.col("times")).otherwise(0)
    return COPIES.conform(
        joined.select(
            "run", "node", "copy.message", own.alias("own"), times.alias("broadcasts"), "size", "hops", "published_us",
            "received_us", "delivered_us", "expired_us",
        )
    )  # fmt: skip


def _gathered(records: DataFrame) -> DataFrame:
    """By node and message: hops, and when it was received, delivered and given up."""
    kind, detail = F.col("kind"), F.coalesce("detail", F.lit(""))
    told = ((kind == Kind.RECEIVE.value) & (detail != AGAIN)) | ((kind == Kind.DELIVER.value) & (detail != REDELIVERED))
    counted = told | kind.isin(Kind.PUBLISH.value, Kind.EXPIRE.value)
    # Time and hops in one number: the least has the hops of the first reception.
    hops = F.least(F.greatest(F.coalesce("hops", F.lit(0)), F.lit(0)), F.lit((1 << _HOP_BITS) - 1)).cast("long")
    rows = records.where(counted & F.col("message").isNotNull()).select(
        code("run", "node").alias("node"),
        code("run", "message").alias("message"),
        F.when(kind == Kind.RECEIVE.value, F.shiftleft(t_us(), _HOP_BITS) + hops).alias("came"),
        F.when(kind == Kind.DELIVER.value, t_us()).alias("delivered_us"),
        F.when(kind == Kind.EXPIRE.value, t_us()).alias("expired_us"),
    )
    found = rows.groupBy("node", "message").agg(
        *(F.min(name).alias(name) for name in ("came", "delivered_us", "expired_us"))
    )
    last = F.col("came").bitwiseAND(F.lit((1 << _HOP_BITS) - 1)).cast("int")
    return found.withColumns(
        {"received_us": F.shiftright("came", _HOP_BITS), "hops": F.when(last > 0, last)},
    )
