"""Words of a line as numbers and times, a column at a time; and the faults of words that are neither.

Times become microseconds here, rounded once. A `Clock` knows how a file writes them: as numbers in some unit, as dates,
which are recognised, or as times of day, for which the user has to give the day.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from carrypost.arrays import Floats, Ints
from carrypost.errors import LocalError
from carrypost.model.times import MICROSECONDS
from carrypost.security.identity import Identity
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
