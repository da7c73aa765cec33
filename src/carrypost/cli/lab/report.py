"""`carrypost lab report`."""

from __future__ import annotations


def report() -> None:
    """Not there yet."""
    raise NotImplementedError
