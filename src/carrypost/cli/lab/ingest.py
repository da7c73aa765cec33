"""`carrypost lab ingest`."""

from __future__ import annotations


def ingest() -> None:
    """Not there yet."""
    raise NotImplementedError
