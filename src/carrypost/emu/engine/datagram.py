"""Datagrams of the emulated network."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

import msgspec

from carrypost.gossip.wire.frames import Frame

_UNTOUCHED: Mapping[str, int] = MappingProxyType({})


class Datagram(msgspec.Struct, frozen=True, gc=False):
    """A datagram: frames that arrive, or get lost, together."""

    frames: tuple[Frame, ...]
    size: int
    refused: Mapping[str, int] = _UNTOUCHED
    """Number of parts that could not be read, by reason."""
    key: bytes = b""
    """Id of the key that it is protected by, in a closed network."""


Burst = Sequence[Datagram]
"""Datagrams that arrive together, in order."""
