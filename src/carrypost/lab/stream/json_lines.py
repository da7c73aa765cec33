"""Records as lines of JSON, as real nodes write them: read by Spark, whatever stands in them.

A line that is no row of a record (no JSON, a column of another type, a kind that there is not, a time or a size that no
node has) is marked and kept apart, so that whoever reads can count it and go on.
"""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

from carrypost.emu.scenario.csvfiles import TIME_S_MAX
from carrypost.lab.schemas import RECORDS
from carrypost.record import Kind

READABLE = "readable"
_UNREADABLE = "_unreadable"
_SIZE_MAX = 1 << 53

SCHEMA = f"{RECORDS.ddl}, `{_UNREADABLE}` string"
"""Of the lines, as they are read."""
OPTIONS = {"columnNameOfCorruptRecord": _UNREADABLE, "mode": "PERMISSIVE"}
"""For Spark's reader of JSON."""


def judged(lines: DataFrame) -> DataFrame:
    """Lines, with whether each is a row of a record."""
    readable = F.col(_UNREADABLE).isNull() & F.col("node").isNotNull() & F.col("kind").isin(*map(str, Kind))
    readable &= F.col("run").isNotNull() & F.col("t").between(-TIME_S_MAX, TIME_S_MAX)  # What is no number is not.
    readable &= F.coalesce(F.col("size").between(-_SIZE_MAX, _SIZE_MAX), F.lit(True))
    return lines.withColumn(READABLE, F.coalesce(readable, F.lit(False))).drop(_UNREADABLE)
