"""Ingest by Spark: blocks of files are read in parallel, rows brought together by node or pair, and assembled there.

Tasks read their ranges of bytes themselves, so all executors must see the files, and the output folder, into which what
was packed is unpacked first. Line ends are counted block by block before, so that every task knows its lines' numbers.
What a task finds besides rows goes along with them, as a text in the column `note`.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from functools import reduce
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Self, TypeVar

import msgspec
import pyarrow as pa
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it
from pyspark.sql.pandas.types import from_arrow_schema

from carrypost.errors import LocalError
from carrypost.lab import folders
from carrypost.lab.folders import Folder, ObjectFolder
from carrypost.lab.ingest import inputs
from carrypost.lab.ingest.inputs import IngestRequest
from carrypost.lab.ingest.local import Ingested, Work, checked, facts_of, gathered, other_way, usable
from carrypost.lab.spark.session import watched
from carrypost.traces.formats import FORMATS, Options
from carrypost.traces.formats.assembly import MEETINGS, PLACES, resting
from carrypost.traces.formats.lines import cut
from carrypost.traces.formats.rules import ROWS, FileFault, Sum, only

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ROWS_A_PARTITION = 250_000
"""Fewer are not worth a task and a file of their own."""
_ROWS_A_PARTITION_MAX = 2_000_000
_Batches = Iterable[pa.RecordBatch]
_T = TypeVar("_T")


def _noted(schema: pa.Schema) -> pa.Schema:
    return schema.append(pa.field("note", pa.string()))


class _Block(NamedTuple):
    """A range of bytes of a file."""

    file: int
    path: Folder
    start: int
    end: int


def ingest(spark: SparkSession, work: Work) -> Ingested:
    """Read, assemble and write."""
    request = work.request
    with _Scratch(request) as scratch, ExitStack() as ending:

        def keep(frame: DataFrame) -> DataFrame:
            ending.callback(frame.persist().unpersist)
            return frame

        work.report("unpacking", 0.0)
        plain = [inputs.unpacked(path, scratch.folder) for path in request.paths]
        seen = [scratch.seen(path) for path in plain]
        blocks = [
            _Block(file, seen[file], start, end)
            for file, path in enumerate(plain)
            for start, end in inputs.ranges(path, request.block_bytes)
        ]
        read = keep(_read(spark, blocks, _first_lines(spark, blocks, work, scratch.hidden), work))
        notes = _watched(spark, work, "reading", lambda: _notes(read))
        found = reduce(Sum.join, (msgspec.json.decode(note, type=Sum) for note in notes), Sum())
        options = checked(found, request, work.rules[0])

        def assemble(options: Options) -> tuple[DataFrame, Ingested, list[FileFault]]:
            assembled = keep(_assembled(read, found.made, request.name, options))
            notes = [json.loads(note) for note in _watched(spark, work, "assembling", lambda: _notes(assembled))]
            faults = [FileFault(*each) for note in notes for each in note["faults"]]
            return assembled, gathered(found, options, notes), faults

        assembled, made, faults = assemble(options)
        if (other := other_way(request.form, options, made.counts)) is not None:
            assembled, made, faults = assemble(other)
        usable(request.names, faults, made)
        _write(spark, work, assembled, made)
        return made


class _Scratch:
    """A folder for unpacked files: hidden in the output folder, which executors see too, or objects in it."""

    def __init__(self, request: IngestRequest) -> None:
        self._request = request
        self._put: list[ObjectFolder] = []
        self.folder = Path()

    @property
    def hidden(self) -> str:
        """Folder that executors have to see; empty: none."""
        return "" if isinstance(self._request.out, ObjectFolder) else str(self.folder.absolute())

    def __enter__(self) -> Self:
        out = self._request.out
        if isinstance(out, ObjectFolder):
            self.folder = Path(tempfile.mkdtemp(prefix="carrypost-unpacked-"))
            return self
        target = out / "unpacked"
        self.folder = target.with_name(f".unpacked.{os.getpid()}.partial")
        with folders.errors_naming(target):
            out.mkdir(parents=True, exist_ok=True)
            folders.clear(target)
            self.folder.mkdir()
        return self

    def __exit__(self, *_: object) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)
        for each in self._put:
            each.delete("")

    def seen(self, path: Path) -> Folder:
        """Return the place at which executors read a plain file: the object that it is a copy of, or one put now."""
        out, copies = self._request.out, self._request.copies_of
        if isinstance(found := copies.get(path, path), ObjectFolder):
            return found
        if isinstance(out, ObjectFolder) and not self._request.spark.in_process:
            self._put.append(out / f".unpacked/{secrets.token_hex(8)}")
            self._put[-1].put("", path)
            return self._put[-1]
        return path.absolute()


def _notes(frame: DataFrame) -> list[str]:
    return [row.note for row in frame.where(F.col("note").isNotNull()).select("note").collect()]


def _rows(frame: DataFrame) -> DataFrame:
    return frame.where(F.col("note").isNull()).drop("note")


# ------------------------------------------------------------------------------------------------------- reading
def _first_lines(spark: SparkSession, blocks: list[_Block], work: Work, hidden: str) -> list[int]:
    """Yield the number of the first line of each block."""
    folder = str(work.request.out)

    def count(batches: _Batches) -> Iterator[pa.RecordBatch]:
        if hidden and not Path(hidden).is_dir():
            raise LocalError(f"{folder}: all executors must see this folder under the same path; one does not")
        for batch in batches:
            for index in batch.column(0).to_pylist():
                block = blocks[index]
                ends = inputs.part(block.path, block.start, block.end).count(b"\n")
                yield pa.RecordBatch.from_pydict({"block": [index], "ends": [ends]})

    frame = _range(spark, blocks, work.request.block_bytes).mapInArrow(count, "block bigint, ends bigint")
    counted = dict(_watched(spark, work, "counting lines", lambda: [tuple(row) for row in frame.collect()]))
    numbers: list[int] = []
    for file in sorted({block.file for block in blocks}):
        ends = [counted[index] for index, block in enumerate(blocks) if block.file == file]
        numbers += list(accumulate(ends[:-1], initial=1))
    return numbers


def _range(spark: SparkSession, blocks: list[_Block], block_bytes: int) -> DataFrame:
    """Return the numbers of blocks, in parts of about this many bytes: of many small files a task reads several."""
    total = sum(block.end - block.start for block in blocks)
    parts = max(spark.sparkContext.defaultParallelism, -(-total // block_bytes))
    return spark.range(0, len(blocks), 1, max(1, min(parts, len(blocks))))


def _used(name: str) -> pa.Schema:
    """Columns of rows that are worth their way."""
    return pa.schema([each for each in ROWS if each.name in FORMATS[name].uses])


def _read(spark: SparkSession, blocks: list[_Block], numbers: list[int], work: Work) -> DataFrame:
    """Return the rows of all blocks, and a note of each."""
    used = _used(work.request.name)
    schema, rules, nodes = _noted(used), list(work.rules), work.request.options.nodes

    def parse(batches: _Batches) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for index in batch.column(0).to_pylist():
                block = blocks[index]
                data = inputs.part(block.path, block.start, block.end)
                parsed = only(rules[block.file].parse(cut(data, numbers[index]), block.file), nodes)
                note = msgspec.json.encode(Sum().join(parsed)).decode()
                yield from _batches(parsed.rows.select(used.names), schema, note)

    return _range(spark, blocks, work.request.block_bytes).mapInArrow(parse, from_arrow_schema(schema))


def _batches(rows: pa.Table, schema: pa.Schema, note: str) -> Iterator[pa.RecordBatch]:
    """Yield the rows, then the note."""
    yield from rows.append_column("note", pa.nulls(rows.num_rows, pa.string())).cast(schema).to_batches()
    nothing = [pa.nulls(1, each.type) for each in schema][:-1]
    yield pa.RecordBatch.from_arrays([*nothing, pa.array([note])], schema=schema)


# ------------------------------------------------------------------------------------------------------ assembling
def _assembled(read: DataFrame, rows: int, name: str, options: Options) -> DataFrame:
    """Places by ranges of nodes, or contacts, and notes."""
    placed = FORMATS[name].gives == "positions"
    schema = _noted(PLACES if placed else MEETINGS)

    def assemble(batches: _Batches) -> Iterator[pa.RecordBatch]:
        table = pa.Table.from_batches(batches, _used(name))
        if table.num_rows:
            found = FORMATS[name].assemble(table, options)
            yield from _batches(found.rows, schema, json.dumps(facts_of(found)))

    # A cluster's number of partitions is for large tables: a small one would become as many files.
    shuffles = int(read.sparkSession.conf.get("spark.sql.shuffle.partitions") or 1)
    parts = max(1, -(-rows // _ROWS_A_PARTITION_MAX), min(shuffles, -(-rows // ROWS_A_PARTITION)))
    together = _rows(read).repartitionByRange(parts, "a") if placed else _rows(read).repartition(parts, "a", "b")
    return together.mapInArrow(assemble, from_arrow_schema(schema))


def _write(spark: SparkSession, work: Work, assembled: DataFrame, made: Ingested) -> None:
    """Write the table, and note how many nodes and rows it has where tasks could not tell that."""
    request, rows = work.request, _rows(assembled)
    if request.form.stays:
        rows = rows.mapInArrow(_stander(made.last_us), from_arrow_schema(PLACES))
    timed = [name for name in rows.columns if name.endswith("_us")]
    renamed = [
        (F.col(name).cast("double") / F.lit(1e6)).alias(name.removesuffix("_us")) if name in timed else F.col(name)
        for name in rows.columns
    ]
    table = rows.select(F.lit(request.scenario).alias("scenario"), *renamed)
    if request.form.gives == "contacts":
        table = table.orderBy("start", "a", "b")
        names = rows.select(F.explode(F.array("a", "b")).alias("node")).agg(F.count_distinct("node"))
        made.nodes = _watched(spark, work, "counting", lambda: names.collect()[0][0])
    elif request.form.stays:
        made.written = _watched(spark, work, "counting", rows.count)
    elif request.name == "kth":
        # What walkers are called when they come back need not stand where they first do.
        table = table.orderBy("node", "t")
    _watched(spark, work, "writing", lambda: folders.write(table, request.out, request.table))


def _stander(end_us: int) -> Callable[[_Batches], Iterator[pa.RecordBatch]]:
    def stand(batches: _Batches) -> Iterator[pa.RecordBatch]:
        table = pa.Table.from_batches(batches, PLACES)
        if table.num_rows:
            yield from resting(table, end_us).to_batches()

    return stand


# ------------------------------------------------------------------------------------------------------ progress
def _watched(spark: SparkSession, work: Work, what: str, action: Callable[[], _T]) -> _T:
    """Return the result of Spark, with reports of how many of its tasks are done."""
    work.report(what, 0.0)
    return watched(spark, what, action, lambda done, tasks: work.report(what, done / max(1, tasks)))
