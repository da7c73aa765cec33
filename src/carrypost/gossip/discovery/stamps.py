"""Stamps: values by which announcements of one node are recognized as a series that nobody else can continue.

The hash of each stamp is the stamp of the announcement before it. Stamps are made from the last to the first, and sent
from the first to the last. So a node that heard one stamp can check all later ones, and cannot make any.
"""

# Why not a signature. Announcements are not signed: a signature of 64 bytes and a check for each
# beacon of each neighbour would be most of the traffic and of the work of an idle node. A stamp has
# 8 bytes and takes one hash to check. It does not tell who the sender is, but that it is the one
# whose announcements were heard before.
#
# A series ends after `SERIES` announcements. The next one begins with a stamp that continues
# nothing, like that of a node that restarted: neighbours ask for a proof, once (`Neighbours._doubt`).

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, NamedTuple

from carrypost.gossip.wire.fields import TOKEN_BYTES
from carrypost.model.ids import NodeId

if TYPE_CHECKING:
    from random import Random

    from carrypost.gossip.wire.frames import Announce

SERIES = 256
"""Number of stamps in a series. A longer series takes more time to make, and a shorter one needs proofs more often."""
MISSED_MAX = 32
"""Number of announcements that may be lost in a row before a proof is needed: checking takes a hash for each."""


def stamp_before(stamp: bytes, steps: int = 1) -> bytes:
    """Return the stamp of the announcement that many places before the one that has this stamp."""
    for _ in range(steps):
        stamp = hashlib.sha256(stamp).digest()[:TOKEN_BYTES]
    return stamp


class Series(NamedTuple):
    """The last announcement that was heard of a node, which the next one has to continue."""

    node: NodeId
    incarnation: int
    counter: int
    stamp: bytes

    def goes_on(self, frame: Announce) -> bool:
        """Return True if the sender of an announcement made the last one, too."""
        missed = frame.counter - self.counter
        return (
            frame.incarnation == self.incarnation
            and frame.node == self.node
            and 0 < missed <= MISSED_MAX
            and stamp_before(frame.stamp, missed) == self.stamp
        )


class Stamps:
    """The stamps of one host in one incarnation."""

    def __init__(self, rng: Random) -> None:
        self._rng = rng
        self._series: tuple[int, list[bytes]] = (-1, [])
        """The number of the current series, and its stamps."""

    def stamp(self, counter: int) -> bytes:
        """Return the stamp of the announcement with this number. Numbers only increase."""
        number, place = divmod(counter, SERIES)
        if number != self._series[0]:
            stamp, sha256 = self._rng.randbytes(TOKEN_BYTES), hashlib.sha256
            stamps = [stamp]
            for _ in range(SERIES - 1):  # Without a call of `stamp_before` for each, this takes half the time.
                stamp = sha256(stamp).digest()[:TOKEN_BYTES]
                stamps.append(stamp)
            self._series = number, stamps[::-1]
        return self._series[1][place]
