"""Times of the core: integer microseconds, rounded once, where seconds come in."""

from __future__ import annotations

MICROSECONDS = 1_000_000
"""Microseconds in a second."""
TIME_US_MAX = 2**53
"""The year 2255; every format that we use keeps integers up to this exactly."""
NEVER = 2**62
"""A time that never comes, so that the earliest of several is a plain `min`."""
