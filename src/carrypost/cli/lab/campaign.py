"""`carrypost lab campaign`."""

from __future__ import annotations


def campaign() -> None:
    """Not there yet."""
    raise NotImplementedError
