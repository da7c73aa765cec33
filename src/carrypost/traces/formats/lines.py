"""Lines of text in blocks, by columns, and their words as numbers, times and names: what all formats are read with.

A block of bytes is cut at its line ends into an Arrow array; lines are trimmed, and blank ones and comments (#) left
out, with the numbers of the others kept. `Cells` splits them into words and turns those into numbers, times and names,
a column at a time; a line of which one cannot be used is marked in `wrong`, with a reason, and never stops the others.
No loop here goes over the lines of a block.

Times become microseconds here, rounded once. A `Clock` knows how a file writes them: as numbers in some unit, as dates,
which are recognised, or as times of day, for which the user has to give the day.
"""

from __future__ import annotations

import csv
import math
import re
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from carrypost.arrays import Flags, Floats, Ints
from carrypost.errors import LocalError
from carrypost.model.times import MICROSECONDS
from carrypost.security.identity import PLAIN_NAME_BYTES_MAX, Identity
from carrypost.traces.csvfiles import TIME_S_MAX

NUMBER = r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?"
_NUMBER = f"^{NUMBER}$"
_DATE = (
    r"^(?P<there>\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d(?:\.\d{1,6})?) ?"
    r"(?:[Zz]|UTC|(?P<zone>[-+](?:[01]\d|2[0-3])(?::?[0-5]\d)?))?$"
)
_TIME_OF_DAY = r"^(?P<h>\d{1,3}):(?P<m>[0-5]\d)(?::(?P<s>[0-5]\d(?:\.\d{1,9})?))?$"
"""Hours go on after midnight, as in timetables."""


class Unit(NamedTuple):
    """A unit of time."""

    us: float
    """The number of microseconds."""
    called: tuple[str, ...]
    """By headers; the first for people."""


UNITS = {
    "s": Unit(1e6, ("seconds", "second", "secs", "sec", "s")),
    "ms": Unit(1e3, ("milliseconds", "millisecond", "millis", "msec", "ms")),
    "us": Unit(1.0, ("microseconds", "microsecond", "micros", "usec", "us", "µs", "μs")),
    "ns": Unit(1e-3, ("nanoseconds", "nanosecond", "nanos", "nsec", "ns")),
    "min": Unit(60e6, ("minutes", "minute", "mins", "min")),
    "h": Unit(3_600e6, ("hours", "hour", "hrs", "h")),
}
_FINER = {"ms": 1e11, "us": 1e14, "ns": 1e17}
"""A time that would be more seconds than that was probably meant in the finer unit."""


@dataclass(frozen=True, slots=True)
class Clock:
    """The format of times in a file."""

    unit: str = "s"
    """Unit of numbers, by its name in `UNITS`."""
    date: str = ""
    """The day that times of day are of, as 2014-06-03; empty: there are none."""
    dates: bool = False
    """True if dates are times, too."""
    optional: bool = False
    """True if users may choose otherwise; errors then tell them how."""

    def microseconds(self, text: pa.Array) -> Floats:
        """Times as microseconds that may have a fraction; nan where they are none."""
        if self.date:
            midnight = datetime.fromisoformat(self.date).replace(tzinfo=UTC)
            return (_of_day(text) + midnight.timestamp()) * MICROSECONDS
        found = numbers(text) * UNITS[self.unit].us
        if self.dates and (left := np.isnan(found)).any():
            found[left] = _dates(text.filter(pa.array(left)))
        return found

    def wrong(self, word: str, what: str, least_s: float) -> str:
        """Why a word is no time that can be used."""
        if not word:
            return f"{what} must not be empty"
        if self.date:
            return f"{what} must be a time of day such as 08:15:30, because of --date, not {word!r}"
        if self.optional and is_time_of_day(word):
            return f"{what} is a time of day, {word}: give its day with --date, such as 2014-06-03"
        a_second = MICROSECONDS / UNITS[self.unit].us
        text = out_of_bounds(word, what, least_s * a_second, TIME_S_MAX * a_second, self.unit)
        return text + ("" if no_number(word, what) else self._finer(float(word) / a_second))

    def _finer(self, seconds: float) -> str:
        """Return a question about another unit, if that unit is plausible."""
        unit = next((each for each, more_s in reversed(_FINER.items()) if seconds > more_s), "")
        if not unit or self.unit != "s":
            return ""
        return f"; are these {UNITS[unit].called[0]}?{f' Then --time-unit {unit}' if self.optional else ''}"


SECONDS = Clock()
"""Seconds and nothing else, as formats have them whose rules say so."""


def numbers(text: pa.Array) -> Floats:
    """Texts as numbers, nan where they are none."""
    try:
        made = pc.cast(text, pa.float64())
    except pa.ArrowInvalid:
        fits = pc.match_substring_regex(text, _NUMBER)
        made = pc.cast(pc.if_else(fits, text, pa.scalar(None, pa.string())), pa.float64())
    return np.array(made.to_numpy(zero_copy_only=False), dtype=np.float64)


def _of_day(text: pa.Array) -> Floats:
    """Seconds since midnight."""
    read = pc.extract_regex(text, _TIME_OF_DAY)
    hours, minutes = (numbers(read.field(each)) for each in "hm")
    # What stands after a colon is there, or empty where the seconds are left out.
    seconds = numbers(pc.if_else(pc.equal(read.field("s"), ""), "0", read.field("s")))
    return np.where(read.is_valid().to_numpy(zero_copy_only=False), hours * 3600 + minutes * 60 + seconds, np.nan)


def _dates(text: pa.Array) -> Floats:
    """Microseconds since 1970."""
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
    return found


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
    return whole(seconds * MICROSECONDS)


def whole(t_us: Floats) -> Ints:
    """Whole microseconds; 0 for those that are no time."""
    with np.errstate(invalid="ignore"):
        return np.where(np.abs(t_us) <= TIME_S_MAX * MICROSECONDS, np.rint(t_us), 0).astype(np.int64)


# ------------------------------------------------------------------------------------- what is wrong with a word
def is_number(word: str) -> bool:
    """Return True if a word is written as a number."""
    return re.fullmatch(NUMBER, word) is not None


def is_time(word: str) -> bool:
    """Return True if a word looks like a number, a date or a time of day: a header has none of them."""
    return is_number(word) or word[:4].isdecimal() or is_time_of_day(word)


def is_time_of_day(word: str) -> bool:
    """Return True if a word is written as a time of day."""
    return re.match(_TIME_OF_DAY, word, re.ASCII) is not None


def no_number(word: str, what: str) -> str:
    """Return the reason why a word is no number at all; empty if it is one, finite or not."""
    if not word:
        return f"{what} must not be empty"
    return "" if is_number(word) or word.lower() in {"nan", "inf", "-inf"} else f"{what} must be a number, not {word!r}"


def out_of_bounds(word: str, what: str, least: float, most: float, unit: str) -> str:
    """Why a word is not a number within these bounds."""
    if math.isinf(most) or no_number(word, what):
        return no_number(word, what) or f"{what} must be a number, not {word!r}"
    return f"{what} must be a number from {least:,.0f} to {most:,.0f} {unit}, not {float(word):g}"


MAC = r"^[0-9A-Fa-f]{2}([:-][0-9A-Fa-f]{2}){5}$"
"""A MAC address, of which programs write the digits as they like."""


def plain_name(name: str) -> str:
    """Return a name as a node can have it: without colons, and MAC addresses in lower case."""
    plain = name.replace(":", "-")
    return plain.lower() if is_mac(name) else plain


def is_mac(name: str) -> bool:
    """Return True if this is a MAC address."""
    return re.match(MAC, name) is not None


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


# --------------------------------------------------------------------------------------------------------- lines

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
