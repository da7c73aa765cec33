"""`carrypost reproduce`."""

from __future__ import annotations


def reproduce() -> None:
    """Not there yet."""
    raise NotImplementedError
