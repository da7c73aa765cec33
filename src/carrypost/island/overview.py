"""Figures of an island for people who ask."""

from __future__ import annotations

from typing import NamedTuple


class IslandOverview(NamedTuple):
    """The island of one host at one moment."""

    hosts: int
    """Hosts that can be reached."""
    records: int
    """Hosts whose links are known, this one included."""
    routes: int
    """Hosts that messages are exchanged with over relays."""
    relayed_bytes: int
    """Bytes that were passed on for others."""
    withheld: int
    """Messages that are sent straight to their recipients, and to no other node."""
