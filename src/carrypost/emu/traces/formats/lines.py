"""Lines of text in blocks, by columns: what every format of traces is read with.

A block of bytes is cut at its line ends into an Arrow array; lines are trimmed, and blank ones and comments (#) left
out, with the numbers of the others kept. `Cells` splits them into words and turns those into numbers, times and names,
a column at a time; a line of which one cannot be used is marked in `wrong`, with a reason, and never stops the others.
No loop here goes over the lines of a block.
"""

from __future__ import annotations

import csv
import math
import re
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from carrypost.emu.arrays import Flags, Floats, Ints
from carrypost.emu.scenario.csvfiles import TIME_S_MAX
from carrypost.errors import LocalError
from carrypost.model.times import MICROSECONDS
from carrypost.security.identity import PLAIN_NAME_BYTES_MAX, Identity

NUMBER = r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?"
_NUMBER = f"^{NUMBER}$"
_MILLISECONDS = 1e11
"""A time in seconds that is larger was probably meant in milliseconds."""
_DATE = (
    r"^(?P<there>\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d(?:\.\d{1,6})?) ?"
    r"(?:[Zz]|UTC|(?P<zone>[-+](?:[01]\d|2[0-3])(?::?[0-5]\d)?))?$"
)
_TIME_OF_DAY = r"^(?P<h>\d{1,2}):(?P<m>[0-5]\d)(?::(?P<s>[0-5]\d(?:\.\d{1,6})?))?$"
_NAME_WITHOUT = r"[:\p{C}\x{FFFD}]"
_BOM = b"\xef\xbb\xbf"
_LINE_END = 10
_UNIT = "\x1f"
"""Stands between the cells of lines with quotes."""


class Lines(NamedTuple):
    """Lines that say something, trimmed, and where in the file they stand."""

    text: pa.Array
    number: Ints

    def where(self, kept: Flags) -> Lines:
        """Only these lines."""
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
    text = pc.ascii_trim_whitespace(made)
    says = flags(pc.greater(pc.binary_length(text), 0)) & ~flags(pc.starts_with(text, "#"))
    return Lines(text, np.arange(first, first + len(text), dtype=np.int64)).where(says)


def flags(array: pa.Array) -> Flags:
    """An Arrow array of truths for numpy; none counts as false."""
    return np.asarray(pc.fill_null(array, False).to_numpy(zero_copy_only=False), dtype=np.bool_)


def words_of(line: str, separator: str | None) -> list[str]:
    """The cells of one line, without quotes."""
    if '"' in line:
        with suppress(csv.Error):  # A line end within quotes, or a cell without end: then quotes mean nothing.
            cells = next(csv.reader([line], delimiter=separator or " ", skipinitialspace=True))
            return [cell.strip() for cell in cells]
    return line.split() if separator is None else [cell.strip() for cell in line.split(separator)]


def separator_of(line: str) -> str | None:
    """What stands between the cells of this line; None: white space."""
    return next((each for each in ("\t", ";", ",") if each in line), None)


class Checks:
    """Which lines are wrong, and why: of several reasons the first that was found."""

    def __init__(self, lines: Lines) -> None:
        self.lines = lines
        self.wrong: Flags = np.zeros(len(lines.number), np.bool_)
        self.renamed = 0
        """Cells with names that were rewritten."""
        self._reasons: list[tuple[Flags, Callable[[int], str]]] = []

    def mark(self, wrong: Flags, why: Callable[[int], str]) -> None:
        """These lines are wrong; `why` tells of one of them, by its position, what is wrong with it."""
        if wrong.any():
            self.wrong |= wrong
            self._reasons.append((wrong, why))

    def require(self, right: Flags, form: str) -> None:
        """Mark lines that do not read like `form`."""
        self.mark(~right, lambda row: self.misread(row, form))

    def misread(self, row: int, form: str) -> str:
        """Tell that a line should read like `form`."""
        return f"must read {form}, not {self.lines.text[row].as_py()!r}"

    def why(self, row: int) -> str:
        """What is wrong with a line."""
        return next(why(row) for wrong, why in self._reasons if wrong[row])


class Cells(Checks):
    """Lines as cells; `form` is how a line reads, where a word that is no number makes it look like something else."""

    def __init__(self, lines: Lines, separator: str | None, form: str = "", clock: Clock | None = None) -> None:
        super().__init__(lines)
        self._clock = clock or Clock()
        self._separator = separator
        self._form = form
        words = self._split(lines.text)
        self.count: Ints = np.diff(words.offsets.to_numpy()).astype(np.int64)
        self._first = words.offsets.to_numpy()[:-1].astype(np.int64)
        self._cells = words.values

    def _split(self, text: pa.Array) -> pa.Array:
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
        """A column; none where the line is too short."""
        short = self.count <= index
        taken = np.where(short, 0, self._first + index)
        if len(self._cells) == 0:
            return pa.nulls(len(taken), pa.string())
        found = self._cells.take(pa.array(taken, mask=short))
        return found if self._separator is None else pc.ascii_trim_whitespace(found)

    def miscounted(self, wrong: Flags, told: str) -> None:
        """Mark lines that have too few or too many cells; {} in `told` stands for how many they have."""
        self.mark(wrong, lambda row: told.format(self.count[row]))

    def word(self, index: int, row: int) -> str:
        """One cell; empty where the line is too short."""
        return self.text(index)[row].as_py() or ""

    def number(
        self, index: int, what: str, most: float = np.inf, unit: str = "", *, where: Flags | bool = True
    ) -> Floats:
        """A column of finite numbers, with magnitudes up to `most`; only lines `where` are looked at."""
        found = numbers(self.text(index))
        wrong = ~(np.abs(found) <= min(most, np.finfo(np.float64).max)) & where
        self.mark(wrong, lambda row: self._out_of_bounds(index, row, what, (-most, most, unit)))
        return found

    def times(
        self, index: int, what: str, least_s: float = 0.0, *, dates: bool = False, where: Flags | bool = True
    ) -> Ints:
        """A column of seconds as whole microseconds; with `dates` also as 2026-11-15 12:00:00+01:00 (else UTC)."""
        text = self.text(index)
        found = self._clock.seconds(text, dates=dates)
        wrong = ~((found >= least_s) & (found <= TIME_S_MAX)) & where
        self.mark(wrong, lambda row: self._out_of_bounds(index, row, what, (least_s, TIME_S_MAX, "s")))
        return microseconds(found)

    def _out_of_bounds(self, index: int, row: int, what: str, bounds: tuple[float, float, str]) -> str:
        word = self.word(index, row)
        if self._form and no_number(word, what):
            return self.misread(row, self._form)
        if bounds[2] == "s" and self._clock.date_s is None and re.fullmatch(_TIME_OF_DAY, word):
            return f"{what} is a time of day, {word!r}: of which day, --date tells"
        return out_of_bounds(word, what, *bounds)

    def name(self, index: int, what: str, *, colons: bool = False) -> pa.Array:
        """A column of names that nodes can have; `colons` are written as hyphens, and counted."""
        found = self.text(index)
        if colons and (odd := flags(pc.match_substring(found, ":"))).any():
            self.renamed += int(odd.sum())
            found = pc.replace_substring(found, ":", "-")
        encoded = found.dictionary_encode()
        each = encoded.dictionary
        length = pc.binary_length(each)
        fits = flags(pc.and_(pc.greater(length, 0), pc.less_equal(length, PLAIN_NAME_BYTES_MAX)))
        fits &= ~flags(pc.match_substring_regex(each, _NAME_WITHOUT))
        if not fits.all() or found.null_count:
            codes = encoded.indices.fill_null(len(each)).to_numpy(zero_copy_only=False)
            self.mark(~np.append(fits, False)[codes], lambda row: no_name(self.word(index, row), what))
        return found


@dataclass(frozen=True, slots=True)
class Clock:
    """How times are written."""

    unit: str = "s"
    """Of plain numbers."""
    date_s: float | None = None
    """When the day of times of day begins, in seconds since 1970."""

    def seconds(self, text: pa.Array, *, dates: bool) -> Floats:
        """Texts as seconds, nan where they are no times; also dates, and times of a day that is known."""
        # A division by a power of ten is exact where a product with one that no computer has is not.
        times, divided = TIME_UNITS[self.unit]
        found = numbers(text) * times / divided
        if dates and (left := np.isnan(found)).any():
            found[left] = _dates(text.filter(pa.array(left)))
        if self.date_s is not None and (left := np.isnan(found)).any():
            found[left] = self.date_s + _times_of_day(text.filter(pa.array(left)))
        return found


TIME_UNITS = {"s": (1.0, 1.0), "ms": (1.0, 1e3), "us": (1.0, 1e6), "min": (60.0, 1.0), "h": (3_600.0, 1.0)}
"""By name: how many seconds they are, as a factor and a divisor."""


def day_s(text: str) -> float:
    """When a day begins, in seconds since 1970."""
    try:
        return datetime.fromisoformat(f"{text}T00:00:00+00:00").timestamp()
    except ValueError:
        raise LocalError(f"--date must be a day such as 2014-06-03, not {text!r}") from None


def _times_of_day(text: pa.Array) -> Floats:
    """Seconds since midnight of 8:15 or 08:15:30.5, after the next one 25:10; nan where a text is no such time."""
    read = pc.extract_regex(text, _TIME_OF_DAY)
    parts = (pc.if_else(read.is_valid(), read.field(each), pa.scalar(None, pa.string())) for each in ("h", "m", "s"))
    hours, minutes, seconds = (numbers(pc.replace_with_mask(each, pc.equal(each, ""), "0")) for each in parts)
    found: Floats = hours * 3_600 + minutes * 60 + seconds
    return found


def numbers(text: pa.Array) -> Floats:
    """Texts as numbers, nan where they are none."""
    try:
        made = pc.cast(text, pa.float64())
    except pa.ArrowInvalid:
        fits = pc.match_substring_regex(text, _NUMBER)
        made = pc.cast(pc.if_else(fits, text, pa.scalar(None, pa.string())), pa.float64())
    return np.array(made.to_numpy(zero_copy_only=False), dtype=np.float64)


def _dates(text: pa.Array) -> Floats:
    read = pc.extract_regex(text, _DATE)
    bare = pc.if_else(read.is_valid(), read.field("there"), pa.scalar(None, pa.string()))
    try:
        made = pc.cast(bare, pa.timestamp("us"))
    except pa.ArrowInvalid:  # A day that is in no calendar: rare enough to look at them one by one.
        made = pa.array([_date(each) for each in bare.to_pylist()], pa.timestamp("us"))
    found: Floats = np.array(made.cast(pa.int64()).to_numpy(zero_copy_only=False), dtype=np.float64)
    zones = pc.fill_null(read.field("zone"), "").dictionary_encode()
    ahead_s = np.array([_ahead_s(each) for each in zones.dictionary.to_pylist()], dtype=np.float64)
    found -= ahead_s[zones.indices.to_numpy()] * MICROSECONDS
    return found / MICROSECONDS


def _ahead_s(zone: str) -> int:
    """Seconds by which clocks there are ahead of UTC: of +02:00, +0200 or +02."""
    digits = zone[1:].replace(":", "").ljust(4, "0")
    return (-1 if zone.startswith("-") else 1) * (int(digits[:2]) * 3600 + int(digits[2:]) * 60)


def _date(text: str | None) -> datetime | None:
    try:
        return None if text is None else datetime.fromisoformat(text)
    except ValueError:
        return None


def microseconds(seconds: Floats) -> Ints:
    """Seconds as whole microseconds; 0 for those that are no time."""
    with np.errstate(invalid="ignore"):
        return np.where(np.abs(seconds) <= TIME_S_MAX, np.rint(seconds * MICROSECONDS), 0).astype(np.int64)


# ------------------------------------------------------------------------------------- what is wrong with a word
def is_number(word: str) -> bool:
    """Whether this is how a number is written."""
    return re.fullmatch(NUMBER, word) is not None


def no_number(word: str, what: str) -> str:
    """Why a word is no number at all; nothing if it is one, finite or not."""
    if not word:
        return f"{what} must not be empty"
    return "" if is_number(word) or word.lower() in {"nan", "inf", "-inf"} else f"{what} must be a number, not {word!r}"


def out_of_bounds(word: str, what: str, least: float, most: float, unit: str) -> str:
    """Why a word is not a number within these bounds."""
    if math.isinf(most) or no_number(word, what):
        return no_number(word, what) or f"{what} must be a number, not {word!r}"
    hint = "; are these milliseconds?" if unit == "s" and float(word) > _MILLISECONDS else ""
    return f"{what} must be a number from {least:,.0f} to {most:,.0f} {unit}, not {float(word):g}{hint}"


def no_name(word: str, what: str) -> str:
    """Why a word is not the name of a node."""
    if not word:
        return f"{what} must not be empty"
    if not word.isprintable() or "\ufffd" in word:
        return f"{what} has characters that cannot be shown: {word!r}"
    try:
        Identity.plain(word)
    except LocalError as error:
        return str(error)
    return f"{what} cannot be {word!r}"
