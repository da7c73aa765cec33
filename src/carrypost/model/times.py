"""Times of the core: integer microseconds, rounded once, where seconds come in."""

from __future__ import annotations

from typing import Final

MICROSECONDS: Final = 1_000_000
"""Microseconds in a second."""
TIME_US_MAX: Final = 2**53
"""The year 2255; every format that we use keeps integers up to this exactly."""
NEVER: Final = 2**62 - 1
"""A time that never comes, so that the earliest of several is a plain `min`. No larger number is a machine word in
compiled code."""
