"""Times of day as timetables write them.

Hours go on after midnight: a bus that leaves at 24:30 belongs to the day before, as in GTFS.
"""

from __future__ import annotations

import re

from carrypost.errors import ConfigError

_CLOCK = re.compile(r"(\d{1,3}):([0-5]\d)(?::([0-5]\d))?", re.ASCII)


def clock_s(given: str, what: str = "a time") -> float:
    """Return the seconds since midnight of a time such as 05:30 or 05:30:00; `what` names the setting in errors."""
    if (found := _CLOCK.fullmatch(given.strip())) is None:
        raise ConfigError(f"{what} must be a time such as 05:30 or 05:30:00, not {given!r}")
    hours, minutes, seconds = (int(part or 0) for part in found.groups())
    return hours * 3_600.0 + minutes * 60.0 + seconds
