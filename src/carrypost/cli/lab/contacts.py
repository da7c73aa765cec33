"""`carrypost lab contacts`."""

from __future__ import annotations


def contacts() -> None:
    """Not there yet."""
    raise NotImplementedError
