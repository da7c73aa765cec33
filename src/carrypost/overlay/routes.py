"""Routes of legs: the brokers that are still to be passed, by four bytes each.

The one invariant: no route passes a broker twice.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from carrypost.model.ids import PREFIX_BYTES

ROUTE_BROKERS_MAX = 32
"""Brokers of one route; honest paths are shorter by far."""
ROUTES_MAX = 64
"""Routes of one leg."""
ROUTES_BYTES_MAX = 4 * 1024
"""Bytes of the routes of one leg, whose descriptor also contains the descriptor that it passes on."""
_ROUTE_BYTES = 2
"""Bytes that precede each route in the encoded leg."""


def route_of(prefixes: Sequence[bytes]) -> bytes:
    """Return a route as it travels."""
    return b"".join(prefixes)


def pages(routes: Iterable[bytes]) -> list[tuple[bytes, ...]]:
    """Return routes cut into as many parts as legs are needed for them."""
    found: list[list[bytes]] = []
    room = 0
    for route in routes:
        room -= len(route) + _ROUTE_BYTES
        if room < 0 or len(found[-1]) == ROUTES_MAX:
            found.append([])
            room = ROUTES_BYTES_MAX - len(route) - _ROUTE_BYTES
        found[-1].append(route)
    return [tuple(page) for page in found]


def brokers_of(route: bytes, own: bytes) -> list[bytes]:
    """Return the brokers of a route, in order; raises `ValueError` for one that is cut short or comes back."""
    if len(route) % PREFIX_BYTES:
        raise ValueError("a route is cut short")
    found = [route[at : at + PREFIX_BYTES] for at in range(0, len(route), PREFIX_BYTES)]
    if len(set(found)) < len(found) or own in found:
        raise ValueError("a route passes a broker twice")
    return found
