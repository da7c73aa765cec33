"""Classes of service: how hosts pass a message on, store it and acknowledge it, by its destination and its headers.

Gossip knows only the class. What a destination is for, and which layers use it, is known here and above.
"""

from __future__ import annotations

from typing import NamedTuple

from carrypost.model.address import BETWEEN_OVERLAYS
from carrypost.model.headers import Headers


class Service(NamedTuple):
    """The class of service of one message."""

    direct: bool = False
    """True if it mostly goes from its author straight to the one node in its destination. Neighbours of the two do not
    miss it, and its author is informed of its arrival before others are."""
    private: bool = False
    """True if only its author and the one node in its destination ever have it."""
    momentary: bool = False
    """True if it is of use only now, and its author repeats it until there is an answer. So it is neither stored nor
    acknowledged."""


_USUAL = Service()
_DIRECT, _PRIVATE = Service(direct=True), Service(private=True)
_DIRECT_PRIVATE, _MOMENTARY = Service(direct=True, private=True), Service(direct=True, private=True, momentary=True)


def service_of(destination: str, headers: Headers | None, size: int) -> Service:
    """Return the class of service of a message with a payload of this size."""
    private = headers is not None and headers.connected and not headers.recipients
    if not destination.startswith(BETWEEN_OVERLAYS):
        return _PRIVATE if private else _USUAL
    if not private:
        return _DIRECT
    return _DIRECT_PRIVATE if size else _MOMENTARY
