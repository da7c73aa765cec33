"""Runs that are too large for one task, cut into slices by the time of publication."""

# The problem. A metric needs all rows about a message together, and they are spread over the whole
# record: published in the first hour, received in the last. A shuffle by message would move every
# row of the record.
#
# The way chosen. All rows about a message are in the slice in which it was first published; every
# other row is in the slice of its time. A first pass over times and messages alone finds, message
# by message, the span in which it occurs, so a slice knows which row groups it needs, whatever the
# clocks of nodes, and skips the others by their statistics of `t`. If messages live so long that
# slices would read most of the file again and again, the rows are written out once instead, by
# slice.

from __future__ import annotations

import pickle
import shutil
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import reduce
from pathlib import Path

import numpy as np
import pyarrow as pa

from carrypost.arrays import Codes, Flags, Ints
from carrypost.emu.rows import MISSING, TOLD, encoded, microseconds
from carrypost.lab.folders import errors_naming
from carrypost.lab.metrics import families_of, finished, merge, parts, records
from carrypost.lab.metrics.parts import Part
from carrypost.lab.metrics.plugins import Plugin, families_with
from carrypost.lab.metrics.records import TEXTS, Known, RowGroup, RunFiles, origin_of
from carrypost.log.files import staged
from carrypost.log.record import Kind

SLICE_ROWS = 5_000_000
"""Number of rows of a slice; a task needs about 1 GB for them."""
AGAIN_MAX = 2.0
"""Number of times that each row may be read, on average, before rows are written out by slice."""
_BATCH_ROWS = 1_000_000
_MESSAGES, _TEXTS, _ROWS = "messages.arrow", "texts.arrow", "rows"
_LEAST, _MOST = np.iinfo(np.int64).min, np.iinfo(np.int64).max


@dataclass(frozen=True, slots=True)
class Order:
    """A task: the tables of a run."""

    of: RunFiles
    digest: str
    families: tuple[str, ...]
    window_s: float
    target: str
    """Folder of the tables."""
    slices: int
    """More than one: it is too large for one task."""
    plugins: tuple[Plugin, ...] = ()
    """Files that these families are from, besides ours."""
    work: str = ""
    """Folder for intermediate results, and for rows that are written out; empty: beside the tables."""
    spill: bool = False
    """True if rows are always written out by slice, as tasks need that do not see the record."""

    @property
    def folder(self) -> Path:
        """Folder for intermediate results, and for rows that are written out."""
        return Path(self.work or f"{self.target}.slices")


@dataclass(frozen=True, slots=True)
class SliceOrder:
    """A task: the parts of one slice."""

    whole: Order
    """The run that it is of."""
    number: int
    from_us: int
    """Time from which on it has rows that are not about messages."""
    before_us: int
    groups: tuple[RowGroup, ...]
    """Row groups that it reads; none: its rows were written out."""


def cut(order: Order) -> list[SliceOrder]:
    """Look through a run; its slices."""
    known, folder = _Messages.found(order), order.folder
    with errors_naming(folder):
        folder.mkdir(parents=True, exist_ok=True)
    records.write(folder / _MESSAGES, {_MESSAGES: pa.table({"message": known.names, "slice": known.slice})})
    made = list(known.slices(order))
    read = sum(group.rows for each in made for group in each.groups)
    if order.spill or read > AGAIN_MAX * sum(known.rows.tolist()):
        _spill(order, made)
        made = [replace(each, groups=()) for each in made]
    return made


def measured(order: SliceOrder) -> None:
    """Write the parts of a slice to a file, as a task."""
    rows = _slice_rows(order) if order.groups else _spilled(order)
    among = families_with(order.whole.plugins)
    found = parts(rows, families_of(order.whole.families, among), window_s=order.whole.window_s, among=among)
    with staged(order.whole.folder / parts_file(order.number)) as written:
        written.write_bytes(pickle.dumps(found))


def finish(order: Order) -> None:
    """Join the parts of all slices of a run, and write its tables to their folder, as a task."""
    among = families_with(order.plugins)
    chosen = families_of(order.families, among)
    found = reduce(merge, map(_read_parts, (order.folder / parts_file(number) for number in range(order.slices))))
    with records.appending(Path(order.target), chosen) as append:
        made = finished(order.of.run, found, chosen, among=among)
        append(order.of.run, Known(order.digest, origin_of(order.of)), made)
    shutil.rmtree(order.folder, ignore_errors=True)


def _read_parts(file: Path) -> list[Part]:
    found: list[Part] = pickle.loads(file.read_bytes())  # noqa: S301 - of our own tasks
    return found


def parts_file(number: int) -> str:
    """Return the name of the file with the parts of a slice."""
    return f"{number}.parts"


def rows_files(number: int) -> tuple[str, str]:
    """Return the names of the files that a slice is read from if its rows were written out."""
    return f"{number}.arrow", _TEXTS


# --- which message is in which slice --------------------------------------------------------------------------


@dataclass(eq=False)
class _Messages:
    """Of each message: rows, the span in which it occurs, and its publication."""

    names: list[str]
    rows: Ints
    first_us: Ints
    last_us: Ints
    published_us: Ints
    groups: list[RowGroup]
    slice: Ints
    cuts: Ints
    """Times at which slices begin."""

    @classmethod
    def found(cls, order: Order) -> _Messages:
        """Return the contents of the columns of kind, message and time."""
        groups = order.of.groups()
        number: dict[str, int] = {}
        figures = np.zeros((4, 0), np.int64)
        for batch in _batches(groups):
            table = order.of.rows(batch, ("t", "kind", "message"))
            mentions, published, code, names = _message_rows(table)
            mine = np.array([number.setdefault(name, len(number)) for name in names.to_pylist()], np.int64)
            if more := len(number) - figures.shape[1]:
                figures = np.concatenate([figures, np.repeat([[0], [_MOST], [_LEAST], [_MOST]], more, axis=1)], axis=1)
            at, t_us = mine[code[mentions]], microseconds(table["t"].to_numpy())
            figures[0] += np.bincount(at, minlength=len(number))
            np.minimum.at(figures[1], at, t_us[mentions])
            np.maximum.at(figures[2], at, t_us[mentions])
            np.minimum.at(figures[3], mine[code[published]], t_us[published])
        rows, first_us, last_us, published_us = figures
        published_us = np.where(published_us == _MOST, first_us, published_us)  # One whose publication is not known.
        by_time = np.argsort(published_us, kind="stable")
        place = np.zeros(len(rows), np.int64)
        before = np.cumsum(rows[by_time]) - rows[by_time]
        place[by_time] = np.minimum(before * order.slices // max(1, int(rows.sum())), order.slices - 1)
        cuts = np.full(order.slices, _MOST)
        np.minimum.at(cuts, place, published_us)
        cuts = np.minimum.accumulate(cuts[::-1])[::-1]  # A slice without a message has no time of its own.
        cuts[0] = _LEAST
        return cls(list(number), rows, first_us, last_us, published_us, groups, place, cuts)

    def slices(self, order: Order) -> Iterator[SliceOrder]:
        """Yield the input of each slice."""
        ends = np.append(self.cuts[1:], _MOST)
        for number, (from_us, before_us) in enumerate(zip(self.cuts.tolist(), ends.tolist(), strict=True)):
            mine = np.flatnonzero((self.slice == number) & (self.rows > 0))
            span = (int(self.first_us[mine].min()), int(self.last_us[mine].max())) if len(mine) else (_MOST, _LEAST)
            groups = [each for each in self.groups if each.touches(*span) or (each.touches(from_us, before_us - 1))]
            yield SliceOrder(order, number, from_us, before_us, tuple(groups))


def _message_rows(table: pa.Table) -> tuple[Flags, Flags, Codes, pa.Array]:
    """Return the rows about messages, those of them that are publications, and the message of each."""
    (kind,), kinds = encoded(table["kind"])
    (code,), names = encoded(table["message"])
    wanted = np.array([name in TOLD for name in kinds.to_pylist()] or [False], np.bool_)
    publish = np.array([name == Kind.PUBLISH for name in kinds.to_pylist()] or [False], np.bool_)
    mentions: Flags = wanted[kind] & (code != MISSING)
    return mentions, mentions & publish[kind], code, names


def _batches(groups: Sequence[RowGroup]) -> Iterator[list[RowGroup]]:
    """Yield row groups, in portions of about a million rows."""
    batch: list[RowGroup] = []
    for group in groups:
        batch.append(group)
        if sum(each.rows for each in batch) >= _BATCH_ROWS:
            yield batch
            batch = []
    if batch:
        yield batch


# --- the rows of a slice --------------------------------------------------------------------------------------


def _places(table: pa.Table, slice_of: dict[str, int], cuts: Ints) -> Ints:
    """Return the slice of each row."""
    mentions, _, code, names = _message_rows(table)
    known = np.array([slice_of.get(name, 0) for name in names.to_pylist()] or [0], np.int64)
    by_time = np.searchsorted(cuts, microseconds(table["t"].to_numpy()), side="right") - 1
    found: Ints = np.where(mentions, known[np.maximum(code, 0)], by_time)
    return found


def _slice_rows(order: SliceOrder) -> pa.Table:
    """Return the rows of one slice out of the row groups that it needs."""
    known = records.read(order.whole.folder / _MESSAGES)[_MESSAGES]
    mine = known.filter(pa.array(known["slice"].to_numpy() == order.number))
    slice_of = dict.fromkeys(mine["message"].to_pylist(), 1)
    # Two cuts: before, in, and after this slice; of messages, those of this one and the others.
    cuts = np.array([_LEAST, order.from_us, order.before_us])
    cuts[1] = max(cuts[1], _LEAST + 1)
    found = []
    for batch in _batches(order.groups):
        table = order.whole.of.rows(batch)
        found.append(table.filter(pa.array(_places(table, slice_of, cuts) == 1)))
    return pa.concat_tables(found)


def _spill(order: Order, slices: Sequence[SliceOrder]) -> None:
    """Write rows out, each to the file of its slice; texts as numbers that are the same in all of them."""
    folder = order.folder
    known = records.read(folder / _MESSAGES)[_MESSAGES]
    slice_of = dict(zip(known["message"].to_pylist(), known["slice"].to_pylist(), strict=True))
    cuts = np.array([each.from_us for each in slices])
    numbers: dict[str, dict[str, int]] = {name: {} for name in TEXTS}
    with ExitStack() as ending:
        writers: list[pa.ipc.RecordBatchStreamWriter] = []
        for batch in _batches(order.of.groups()):
            table = order.of.rows(batch)
            place = _places(table, slice_of, cuts)
            by_slice = np.argsort(place.astype(np.int16), kind="stable")
            table = _numbered(table, numbers).take(pa.array(by_slice))
            edges = np.searchsorted(place[by_slice], np.arange(len(slices) + 1)).tolist()
            with errors_naming(folder):
                for each in slices[len(writers) :]:
                    stream = pa.ipc.new_stream(str(folder / rows_files(each.number)[0]), records.named(table, _ROWS))
                    writers.append(ending.enter_context(stream))
                for writer, first, end in zip(writers, edges[:-1], edges[1:], strict=True):
                    writer.write_table(table.slice(first, end - first))
    records.write(
        folder / _TEXTS, {name: pa.table({name: pa.array(texts, pa.string())}) for name, texts in numbers.items()}
    )


def _numbered(table: pa.Table, numbers: dict[str, dict[str, int]]) -> pa.Table:
    """Return rows with numbers in place of texts, new ones for those that have none yet."""
    for name, known in numbers.items():
        (codes,), names = encoded(table[name])
        mine = [known.setdefault(text, len(known)) for text in names.to_pylist()]
        place = table.column_names.index(name)
        table = table.set_column(place, name, pa.array(np.array([*mine, MISSING], np.int32)[codes]))
    return table


def _spilled(order: SliceOrder) -> pa.Table:
    """Return the rows of one slice that were written out."""
    folder = order.whole.folder
    table = records.read(folder / rows_files(order.number)[0])[_ROWS]
    for name, texts in records.read(folder / _TEXTS).items():
        codes = table[name].to_numpy()
        column = pa.DictionaryArray.from_arrays(pa.array(codes, mask=codes == MISSING), texts[name].combine_chunks())
        table = table.set_column(table.column_names.index(name), name, column)
    return table
