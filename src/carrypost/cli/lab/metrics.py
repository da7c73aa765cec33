"""`carrypost lab metrics`."""

from __future__ import annotations


def metrics() -> None:
    """Not there yet."""
    raise NotImplementedError
