"""Times of the core: whole microseconds, rounded once, where seconds come in."""

from __future__ import annotations

MICROSECONDS = 1_000_000
"""In a second."""
NEVER = 2**62
"""A time that does not come; so that the earliest of several is a plain `min`."""
