"""Leases: how long a client is attached to its home, and how long a broker that announced itself is known."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from carrypost.config import Settings

_SHORTEST_S = 600.0
REPEATS = 10
"""Number of messages of one sender and purpose that may be under way: one is repeated after this part of the lease."""


def lease_us(settings: Settings) -> int:
    """Return the lease of this node's clients, and the lifetime of its announcements: those of events, or 600 s.

    A seat that ended before its events, or a broker that was forgotten before them, would stop a channel in a
    partition, although carriers bring the events. Both are renewed after half of this time.
    """
    life_s = max(_SHORTEST_S, settings.overlay.event_lifetime_s)
    if settings.lifetime_s_max is not None:
        life_s = min(life_s, settings.lifetime_s_max)
    return round(life_s * 1e6)
