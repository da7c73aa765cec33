"""Lines of text in blocks, by columns: what every format of traces is read with.

A block of bytes is cut at its line ends into an Arrow array; lines are trimmed, and blank ones and comments (#) left
out, with the numbers of the others kept. `Cells` splits them into words and turns those into numbers, times and names,
a column at a time; a line of which one cannot be used is marked in `wrong`, with a reason, and never stops the others.
No loop here goes over the lines of a block.
"""

from __future__ import annotations

import csv
from collections.abc import Callable
from contextlib import suppress
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from carrypost.arrays import Flags, Floats, Ints
from carrypost.model.times import MICROSECONDS
from carrypost.security.identity import PLAIN_NAME_BYTES_MAX
from carrypost.traces.csvfiles import TIME_S_MAX
from carrypost.traces.formats.words import MAC, SECONDS, Clock, no_name, no_number, numbers, out_of_bounds, whole

_NAME_WITHOUT = r"[\p{C}\x{FFFD}]"
_RESPELT = "[:-]"
"""Characters that are replaced in names, so that two names may become equal."""
_BLANKS = " \r\n\v\f"
"""Blanks that are trimmed. A tab at either end of a line may stand beside an empty cell."""
_BOM = b"\xef\xbb\xbf"
_LINE_END = 10
_UNIT = "\x1f"
"""Stands between the cells of lines with quotes."""


class Lines(NamedTuple):
    """Lines with contents, trimmed, and their numbers in the file."""

    text: pa.Array
    number: Ints

    def where(self, kept: Flags) -> Lines:
        """Return only these lines."""
        return self if kept.all() else Lines(self.text.filter(pa.array(kept)), self.number[kept])


def cut(data: bytes, first: int = 1) -> Lines:
    """Cut a block into lines, of which the first has this number in its file."""
    if first == 1:
        data = data.removeprefix(_BOM)
    if not data.isascii():
        data = data.decode("utf-8", "replace").encode()
    ends = np.flatnonzero(np.frombuffer(data, np.uint8) == _LINE_END) + 1
    if len(data) and (not len(ends) or ends[-1] != len(data)):
        ends = np.append(ends, len(data))
    offsets = np.concatenate(([0], ends)).astype(np.int32)
    made = pa.StringArray.from_buffers(len(ends), pa.py_buffer(offsets), pa.py_buffer(data))
    text = pc.ascii_trim(made, _BLANKS)
    bare = pc.ascii_ltrim_whitespace(text)
    filled = flags(pc.greater(pc.binary_length(bare), 0)) & ~flags(pc.starts_with(bare, "#"))
    return Lines(text, np.arange(first, first + len(text), dtype=np.int64)).where(filled)


def flags(array: pa.Array) -> Flags:
    """Return an Arrow array of truths for numpy; none counts as false."""
    return np.asarray(pc.fill_null(array, False).to_numpy(zero_copy_only=False), dtype=np.bool_)


def words_of(line: str, separator: str | None) -> list[str]:
    """Return the cells of one line, without quotes."""
    if '"' in line:
        with suppress(csv.Error):  # A line end within quotes, or a cell without end: then quotes mean nothing.
            cells = next(csv.reader([line], delimiter=separator or " ", skipinitialspace=True))
            return [cell.strip() for cell in cells]
    return line.split() if separator is None else [cell.strip() for cell in line.split(separator)]


def separator_of(line: str) -> str | None:
    """Return the separator of the cells of this line; None: white space."""
    return next((each for each in ("\t", ";", ",") if each in line.strip()), None)


class Checks:
    """The wrong lines, and the reasons: of several the first that was found."""

    def __init__(self, lines: Lines) -> None:
        self.lines = lines
        self.respelt: list[tuple[list[str], Ints]] = []
        """For each column of names: those with a colon or a hyphen, as the file has them, and of each line which of
        them it has; -1: none."""
        self.wrong: Flags = np.zeros(len(lines.number), np.bool_)
        self._reasons: list[tuple[Flags, Callable[[int], str]]] = []

    def mark(self, wrong: Flags, why: Callable[[int], str]) -> None:
        """Mark lines as wrong; `why` returns the reason for one of them, by its position."""
        if wrong.any():
            self.wrong |= wrong
            self._reasons.append((wrong, why))

    def require(self, right: Flags, form: str) -> None:
        """Mark lines that do not read like `form`."""
        self.mark(~right, lambda row: self.misread(row, form))

    def misread(self, row: int, form: str) -> str:
        """Tell that a line should read like `form`."""
        return f"must read {form}, not {self.shown(row)!r}"

    def shown(self, row: int) -> str:
        """Return a line as it is quoted in errors."""
        return str(self.lines.text[row].as_py()).strip()

    def why(self, row: int) -> str:
        """Return the reason why a line is wrong."""
        return next(why(row) for wrong, why in self._reasons if wrong[row])


class Cells(Checks):
    """Lines as cells; `form` is how a line reads, where a word that is no number makes it look like something else."""

    def __init__(self, lines: Lines, separator: str | None, form: str = "") -> None:
        super().__init__(lines)
        self._separator = separator
        self._form = form
        words = self._split(lines.text)
        self.count: Ints = np.diff(words.offsets.to_numpy()).astype(np.int64)
        self._first = words.offsets.to_numpy()[:-1].astype(np.int64)
        self._cells = words.values

    def _split(self, text: pa.Array) -> pa.Array:
        if self._separator is None:
            text = pc.ascii_trim_whitespace(text)
        if flags(pc.match_substring(text, '"')).any():
            return pc.split_pattern(self._unquoted(text), _UNIT)
        if self._separator is None:
            return pc.ascii_split_whitespace(text)
        return pc.split_pattern(text, self._separator)

    def _unquoted(self, text: pa.Array) -> pa.Array:
        inside = self._separator or " "
        text = pc.replace_substring(text, _UNIT, " ")
        plain = pc.replace_substring_regex(text, f'"([^"{inside}]*)"', r"\1")
        left = flags(pc.match_substring(plain, '"'))
        if self._separator is None:
            joined = pc.replace_substring_regex(plain, r"\s+", _UNIT)
        else:
            joined = pc.replace_substring(plain, self._separator, _UNIT)
        if not left.any():
            return joined
        # Few have a separator within quotes.
        kept = [_UNIT.join(words_of(each, self._separator)) for each in text.filter(pa.array(left)).to_pylist()]
        return pc.replace_with_mask(joined, pa.array(left), pa.array(kept, pa.string()))

    def text(self, index: int) -> pa.Array:
        """Return a column; none where a line is too short."""
        short = self.count <= index
        taken = np.where(short, 0, self._first + index)
        if len(self._cells) == 0:
            return pa.nulls(len(taken), pa.string())
        found = self._cells.take(pa.array(taken, mask=short))
        return found if self._separator is None else pc.ascii_trim_whitespace(found)

    def miscounted(self, wrong: Flags, text: str) -> None:
        """Mark lines with too few or too many cells; {} in `text` stands for their number."""
        self.mark(wrong, lambda row: text.format(self.count[row]))

    def word(self, index: int, row: int) -> str:
        """Return one cell; empty if the line is too short."""
        return self.text(index)[row].as_py() or ""

    def number(
        self, index: int, what: str, most: float = np.inf, unit: str = "", *, where: Flags | bool = True
    ) -> Floats:
        """Return a column of finite numbers, with magnitudes up to `most`; only lines `where` are looked at."""
        found = numbers(self.text(index))
        wrong = ~(np.abs(found) <= min(most, np.finfo(np.float64).max)) & where
        self._no_number(wrong, index, what, lambda word: out_of_bounds(word, what, -most, most, unit))
        return found

    def times(
        self, index: int, what: str, least_s: float = 0.0, *, clock: Clock = SECONDS, where: Flags | bool = True
    ) -> Ints:
        """Return a column of times as whole microseconds."""
        t_us = clock.microseconds(self.text(index))
        wrong = ~((t_us >= least_s * MICROSECONDS) & (t_us <= TIME_S_MAX * MICROSECONDS)) & where
        self._no_number(wrong, index, what, lambda word: clock.wrong(word, what, least_s))
        return whole(t_us)

    def _no_number(self, wrong: Flags, index: int, what: str, why: Callable[[str], str]) -> None:
        """Mark lines whose cell is no number, or an impossible one; `why` returns the reason for the latter."""

        def text(row: int) -> str:
            word = self.word(index, row)
            return self.misread(row, self._form) if self._form and no_number(word, what) else why(word)

        self.mark(wrong, text)

    def name(self, index: int, what: str) -> pa.Array:
        """Return a column of names that nodes can have, as `plain_name` makes them."""
        found = self.text(index)
        encoded = found.dictionary_encode()
        each = encoded.dictionary
        length = pc.binary_length(each)
        fits = flags(pc.and_(pc.greater(length, 0), pc.less_equal(length, PLAIN_NAME_BYTES_MAX)))
        fits &= ~flags(pc.match_substring_regex(each, _NAME_WITHOUT))
        codes = encoded.indices.fill_null(len(each)).to_numpy(zero_copy_only=False)
        if not fits.all() or found.null_count:
            self.mark(~np.append(fits, False)[codes], lambda row: no_name(self.word(index, row), what))
        some = flags(pc.match_substring_regex(each, _RESPELT))
        if not some.any():
            return found
        which = np.append(np.where(some, np.cumsum(some) - 1, -1), -1)
        self.respelt.append((each.filter(pa.array(some)).to_pylist(), which[codes]))
        return plain_names(each).take(encoded.indices)

    def named(self, name: str) -> pa.Array:
        """Return the same name for all lines."""
        self.respelt.append(([name], np.zeros(len(self.lines.number), np.int64)))
        return plain_names(pa.array([name] * len(self.lines.number), pa.string()))


def plain_names(names: pa.Array) -> pa.Array:
    """Return names that nodes can have, made as `plain_name` makes one."""
    plain = pc.replace_substring(names, ":", "-")
    return pc.if_else(pc.match_substring_regex(names, MAC), pc.utf8_lower(plain), plain)
