"""`carrypost lab stream`."""

from __future__ import annotations


def stream() -> None:
    """Not there yet."""
    raise NotImplementedError
