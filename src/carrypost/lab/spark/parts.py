"""Tables of a folder of objects on Spark: tasks read the files and put them, by `pyarrow.fs`.

Executors need no folder that they share, and Spark no connector of its own for the store. A task writes its part of a
table to a file of its machine and puts it as one object. A repeated task puts the same object again.
"""

from __future__ import annotations

import secrets
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq

from carrypost.lab.objects import ObjectFolder, readable
from carrypost.lab.schemas import Table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_Batches = Iterable[pa.RecordBatch]


def read(spark: SparkSession, files: Sequence[ObjectFolder], table: Table) -> DataFrame:
    """Return files of a table as a frame; a task reads a group of rows."""
    groups = []
    for file in files:
        with readable(file) as content:
            groups += [(file, number) for number in range(pq.ParquetFile(content).num_row_groups)]
    names, schema = table.names, table.arrow

    def rows(batches: _Batches) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for index in batch.column(0).to_pylist():
                file, number = groups[index]
                with readable(file) as content:
                    found = pq.ParquetFile(content).read_row_group(number, columns=names)
                yield from found.select(names).cast(schema).to_batches()

    return spark.range(0, len(groups), 1, max(1, len(groups))).mapInArrow(rows, table.spark)


def put(frame: DataFrame, folder: ObjectFolder, table: Table) -> set[str]:
    """Put the partitions of a frame as objects of a table, in their order; return the names of the objects."""
    schema, token = table.arrow, secrets.token_hex(8)

    def parts(batches: _Batches) -> Iterator[pa.RecordBatch]:
        from pyspark import TaskContext  # noqa: PLC0415 - of the executor

        context = TaskContext.get()
        assert context is not None, "it runs as a task"
        name = f"{table.name}/part-{context.partitionId():05d}-{token}.parquet"
        with tempfile.TemporaryDirectory(prefix="carrypost-part-") as scratch:
            made = Path(scratch) / "part.parquet"
            with pq.ParquetWriter(made, schema, compression="zstd") as writer:
                for batch in batches:
                    writer.write_table(pa.Table.from_batches([batch]).cast(schema))
            if pq.read_metadata(made).num_rows:
                folder.put(name, made)
                yield pa.RecordBatch.from_pydict({"name": [name]})

    return {row.name for row in frame.mapInArrow(parts, "name string").collect()}
