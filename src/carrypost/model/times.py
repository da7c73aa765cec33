"""Times of the core: whole microseconds."""

from __future__ import annotations

NEVER = 2**62
"""A time that does not come; so that the earliest of several is a plain `min`."""
