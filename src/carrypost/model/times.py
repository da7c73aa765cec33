"""Times of the core: whole microseconds, rounded once, where seconds come in."""

from __future__ import annotations

MICROSECONDS = 1_000_000
"""In a second."""
TIME_US_MAX = 2**53
"""The year 2255; every format we speak keeps whole numbers up to this exactly."""
NEVER = 2**62
"""A time that does not come; so that the earliest of several is a plain `min`."""
