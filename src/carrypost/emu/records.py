"""The record of an emulated run as Arrow tables and Parquet files.

Rows come in columns of Python values (`log.record.Record`) and leave, some hundred thousand at a time, as Arrow
batches: into memory, or into a file that has a temporary name until it is whole. Texts are dictionary-encoded, which is
what keeps millions of rows small and quick to write; readers see plain texts, as the schema says. The same rows give
the same bytes.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import Any, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from carrypost import __version__
from carrypost.arrays import Ints
from carrypost.errors import FileError, LocalError
from carrypost.log.files import clear, partial, refused, refusing
from carrypost.log.record import SCHEMA, Record
from carrypost.model.times import MICROSECONDS

ROWS_MAX = 100_000
"""Rows that are kept as Python values."""
ATTRS = pa.map_(pa.string(), pa.string())
_TYPES = {"float64": pa.float64(), "int32": pa.int32(), "int64": pa.int64()}
CODES = pa.dictionary(pa.int32(), pa.string())


def _schema(texts: pa.DataType) -> pa.Schema:
    types = _TYPES | {"string": texts}
    return pa.schema([pa.field(each.name, types.get(each.type, ATTRS), each.nullable) for each in SCHEMA])


ARROW_SCHEMA = _schema(pa.string())
"""The schema of the record, as readers see it."""
ENCODED_SCHEMA = _schema(CODES)
"""The same, with numbers for texts."""
_STATISTICS = ["run", "t", "kind"]
"""Columns with statistics, by which readers skip row groups, and know the run of a file; so does the footer."""


class Records:
    """The record of one run, whole or as far as it got."""

    def __init__(self, batches: list[pa.RecordBatch] | None = None, path: Path | None = None, rows: int = 0) -> None:
        self._batches = batches
        self.path = path
        """File to which it was written as it came; None: it is in memory."""
        self._rows = rows

    def __len__(self) -> int:
        return self._rows

    @property
    def table(self) -> pa.Table:
        """All rows, in order of happening."""
        if self._batches is not None:
            return _table(self._batches)
        assert self.path is not None
        return read(self.path)

    def write(self, path: str | Path) -> None:
        """Write a file, completely or not at all: JSON lines if its name ends in .jsonl, else Parquet."""
        batches = self.table.to_batches() if self._batches is None else self._batches
        with Sink(Path(path)) as sink:
            for record in _records_of(batches):
                sink.write(record)


def read(path: str | Path) -> pa.Table:
    """Return the record that a file holds."""
    path = Path(path)
    with reading(path):
        table = _read_lines(path) if _is_lines(path) else _read_parquet(path)
        if not table.num_rows:
            raise FileError("it is empty")
    return table


def reading(path: Path) -> AbstractContextManager[None]:
    """Raise a sentence for a file that is damaged or cannot be read."""
    what = f"{path} cannot be read as a record"
    return refusing(what, pa.ArrowException, FileError, missing=f"{what}: there is no such file")


def check_columns(path: Path, there: Sequence[str]) -> None:
    """Raise an error unless a file has the columns of a record."""
    if missing := [each.name for each in SCHEMA if each.name not in there]:
        known = ", ".join(each.name for each in SCHEMA)
        raise LocalError(f"{path} cannot be read as a record: it has no column {missing[0]!r}; a record has {known}")


def texts_in(file: pq.ParquetFile, column: str) -> list[str]:
    """Return the texts of a column of a Parquet file, each once; of most groups of rows its statistics tell."""
    place, found = file.schema_arrow.get_field_index(column), dict[str, None]()
    for group in range(file.num_row_groups):
        known = file.metadata.row_group(group).column(place).statistics
        if known is not None and known.has_min_max and known.min == known.max:
            found[known.min] = None
        else:
            found |= dict.fromkeys(pc.unique(file.read_row_group(group, [column])[column]).to_pylist())
    return list(found)


def _read_lines(path: Path) -> pa.Table:
    try:
        with path.open("rb") as file:
            record = Record.from_json_lines(file)
    except LocalError as error:  # A line that is none.
        raise FileError(str(error)) from None
    return table_of(record)


def _read_parquet(path: Path) -> pa.Table:
    with path.open("rb"):  # A folder would be read as a record of many files.
        check_columns(path, pq.read_schema(path).names)
    return pq.read_table(path, schema=ARROW_SCHEMA)


class _LinesWriter:
    """Writes rows as lines of JSON."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("w", encoding="utf-8", newline="\n")
        self.close = self._file.close

    def record(self, record: Record) -> None:
        self._file.writelines(f"{line}\n" for line in record.json_lines())

    def batch(self, batch: pa.RecordBatch) -> None:
        for record in _records_of([batch]):
            self.record(record)


class _ParquetWriter:
    """Writes rows as Parquet, every time a row group."""

    def __init__(self, path: Path) -> None:
        self._writer = pq.ParquetWriter(
            path,
            ENCODED_SCHEMA,
            compression="zstd",
            compression_level=1,
            store_schema=False,
            write_statistics=_STATISTICS,
        )
        self._runs: dict[str, None] = {}

    def record(self, record: Record) -> None:
        self.batch(_batch(record))

    def batch(self, batch: pa.RecordBatch) -> None:
        self._runs |= dict.fromkeys(batch.column("run").dictionary.to_pylist())
        self._writer.write_batch(batch)

    def close(self) -> None:
        metadata = {"carrypost.run": ", ".join(self._runs), "carrypost.version": __version__}
        self._writer.add_key_value_metadata(metadata)
        self._writer.close()


class _Memory:
    """Keeps rows, or only lets them pass."""

    def __init__(self, batches: list[pa.RecordBatch] | None) -> None:
        self._batches = batches

    def record(self, record: Record) -> None:
        if self._batches is not None:
            self._batches.append(_batch(record))

    def batch(self, batch: pa.RecordBatch) -> None:
        if self._batches is not None:
            self._batches.append(batch)

    def close(self) -> None:
        """Do nothing."""


class Sink:
    """Takes rows, to keep them in memory or to write them to a file that gets its name when it is closed."""

    def __init__(self, path: Path | None = None, *, keep: bool = True) -> None:
        self.rows = 0
        self._path = path
        self._partial: Path | None = None
        self._batches: list[pa.RecordBatch] = []
        self._writer: _Memory | _LinesWriter | _ParquetWriter | None = None
        if path is None:
            self._writer = _Memory(self._batches if keep else None)
            return
        # A file that is there is replaced when the run is over; a folder cannot be, and a device must not be.
        if path.exists() and not path.is_file():
            raise LocalError(f"the record {path} cannot be written: it is not a regular file")

    def __enter__(self) -> Self:
        try:
            if self._path is not None:
                self._partial = partial(self._path)
                with self._explained(), _undisturbed():
                    clear(self._path)
                    self._writer = (_LinesWriter if _is_lines(self._path) else _ParquetWriter)(self._partial)
            return self  # noqa: TRY300 - a signal that comes at this line leaves nothing behind either
        except BaseException as error:
            self.__exit__(type(error), error, None)
            raise

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        """Keep what there is after Ctrl-C; leave no file after any other failure."""
        try:
            if error is None or isinstance(error, KeyboardInterrupt):
                self.close()
            elif self._writer is not None:
                with suppress(OSError):  # The disk may be full, and something in a buffer.
                    self._writer.close()
        finally:
            self._give_up()

    def write(self, record: Record) -> None:
        """Take all rows out of a record."""
        if count := _even(record):
            with self._explained(), _undisturbed():
                self._open.record(record)
                self.rows += count
                record.clear()

    def write_batch(self, batch: pa.RecordBatch) -> None:
        """Take rows that are a batch already, as `encoded_batch` makes it."""
        with self._explained(), _undisturbed():
            self._open.batch(batch)
            self.rows += len(batch)

    @property
    def _open(self) -> _Memory | _LinesWriter | _ParquetWriter:
        assert self._writer is not None, "rows can be added only inside the `with` statement"
        return self._writer

    def close(self) -> Records:
        """End the record and return its rows; a file gets its final name."""
        if self._path is None:
            return Records(self._batches, rows=self.rows)
        if self._partial is not None and self._writer is not None:
            with self._explained(), _undisturbed():
                self._writer.close()
                self._partial.replace(self._path)
                self._partial = None
        return Records(path=self._path, rows=self.rows)

    @contextmanager
    def _explained(self) -> Iterator[None]:
        """Raise a sentence for what the system refuses, and leave nothing half-written."""
        try:
            yield
        except OSError as error:
            self._give_up()
            raise refused(f"the record {self._path} cannot be written", error) from None

    def _give_up(self) -> None:
        if self._partial is not None:
            self._partial.unlink(missing_ok=True)
            self._partial = None


@contextmanager
def _undisturbed() -> Iterator[None]:
    """Ctrl-C waits: rows that were written are not written again, and a file that is whole gets its name."""
    if threading.current_thread() is not threading.main_thread():
        yield  # Ctrl-C comes to the main thread only.
        return
    came: list[int] = []
    usual = signal.signal(signal.SIGINT, lambda number, _: came.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, usual)
    if came:
        raise KeyboardInterrupt


def _even(record: Record) -> int:
    """Return the number of rows. An interruption may leave columns of different lengths: they are cut."""
    columns = [record.t_us, *(getattr(record, each.name) for each in SCHEMA if each.name not in {"run", "t"})]
    count = min(map(len, columns))
    for column in columns:
        del column[count:]
    return count


def _is_lines(path: Path) -> bool:
    return path.suffix in {".jsonl", ".ndjson"}


def table_of(record: Record) -> pa.Table:
    """Return the rows of a record."""
    return _table([_batch(record)])


def _table(batches: list[pa.RecordBatch]) -> pa.Table:
    return pa.Table.from_batches(batches, ENCODED_SCHEMA).cast(ARROW_SCHEMA)


def _batch(record: Record) -> pa.RecordBatch:
    count = len(record)
    run = pa.DictionaryArray.from_arrays(np.zeros(count, np.int32), [record.run])
    t = pa.array(np.fromiter(record.t_us, np.int64, count) / MICROSECONDS)
    rest = [encoded_column(field.type, getattr(record, field.name)) for field in list(ENCODED_SCHEMA)[2:]]
    return pa.RecordBatch.from_arrays([run, t, *rest], schema=ENCODED_SCHEMA)


def encoded_column(kind: pa.DataType, values: list[Any]) -> pa.Array:
    """Return Python values as a column of `ENCODED_SCHEMA`, which is of this type."""
    if kind == CODES:
        return pa.array(values, pa.string()).dictionary_encode()
    return _attrs(values) if kind == ATTRS else pa.array(values, kind)


def encoded_batch(
    run: str, t_us: Ints, texts: Mapping[str, tuple[Ints, pa.Array]], numbers: Mapping[str, Ints], *,
    details: Mapping[int, str], attrs: Mapping[int, Mapping[str, str]],
) -> pa.RecordBatch:  # fmt: skip
    """Return rows given as whole numbers, -1 where there is nothing; numbers of texts are positions among some names.

    `details` and `attrs` are by row, in order; few rows have any.
    """
    count = len(t_us)
    runs = pa.DictionaryArray.from_arrays(np.zeros(count, np.int32), [run])
    arrays = {"run": runs, "t": pa.array(t_us / MICROSECONDS), "attrs": _sparse_attrs(count, attrs)}
    arrays |= {name: _named(*found) for name, found in texts.items()}
    arrays |= {
        name: pa.array(found, ENCODED_SCHEMA.field(name).type, mask=found < 0) for name, found in numbers.items()
    }
    codes = np.full(count, -1, np.int64)
    codes[list(details)] = np.arange(len(details))
    arrays["detail"] = _named(codes, pa.array(details.values(), pa.string()))
    return pa.RecordBatch.from_arrays([arrays[field.name] for field in ENCODED_SCHEMA], schema=ENCODED_SCHEMA)


def _sparse_attrs(count: int, attrs: Mapping[int, Mapping[str, str]]) -> pa.Array:
    sizes = np.zeros(count + 1, np.int32)
    none = np.append(np.ones(count, np.bool_), False)
    for row, entries in attrs.items():
        sizes[row + 1], none[row] = len(entries), False
    offsets = pa.array(np.cumsum(sizes, dtype=np.int32), mask=none)
    keys = pa.array([key for entries in attrs.values() for key in entries], pa.string())
    items = pa.array([value for entries in attrs.values() for value in entries.values()], pa.string())
    return pa.MapArray.from_arrays(offsets, keys, items)


def _named(codes: Ints, names: pa.Array) -> pa.DictionaryArray:
    """Return texts as a dictionary array of those that occur."""
    used = np.zeros(len(names) + 1, np.bool_)
    used[codes] = True  # What is missing marks the last place.
    there = np.flatnonzero(used[:-1])
    place = (np.cumsum(used) - 1).astype(np.int32)
    indices = pa.array(place[codes], pa.int32(), mask=codes < 0)
    return pa.DictionaryArray.from_arrays(indices, names.take(pa.array(there)))


def _attrs(values: list[Any]) -> pa.Array:
    """Return the column of attributes; most records have hardly any."""
    if not any(values):
        return pa.nulls(len(values), ATTRS)
    return pa.array([None if each is None else list(each.items()) for each in values], ATTRS)


def _records_of(batches: Iterable[pa.RecordBatch]) -> Iterator[Record]:
    """Yield the rows of Arrow batches as records again."""
    for batch in batches:
        record = Record()
        columns = {name: batch.column(name).to_pylist() for name in batch.schema.names}
        columns["attrs"] = [None if each is None else dict(each) for each in columns["attrs"]]
        record.run = next(iter(columns.pop("run")), "")
        record.t_us = [round(t * MICROSECONDS) for t in columns.pop("t")]
        for name, column in columns.items():
            setattr(record, name, column)
        yield record
