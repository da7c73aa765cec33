"""The probabilities with which one host expects to meet others, after PRoPHET (Lindgren et al., 2003).

    encounter:    P(a,b) <- P(a,b) + (1 - P(a,b)) * prophet_p_init
    ageing:       P(a,b) <- P(a,b) * prophet_gamma ^ (time / prophet_unit_s)
    transitivity: P(a,c) <- P(a,c) + (1 - P(a,c)) * P(a,b) * P(b,c) * prophet_beta

An entry is a probability and the time for which it holds. It ages whenever it is read, and reading changes nothing.
"""

from __future__ import annotations

import functools
import hashlib
import heapq
from math import exp, log
from typing import TYPE_CHECKING

from carrypost.gossip.wire.routing_frames import CERTAIN, KEY_BYTES
from carrypost.model.times import MICROSECONDS

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from carrypost.config import Settings
    from carrypost.model.ids import NodeId


@functools.lru_cache(maxsize=65_536)
def node_key(node: NodeId) -> bytes:
    """Return the bytes that name a node in tables."""
    return hashlib.sha256(node.encode()).digest()[:KEY_BYTES]


def hash_of(keys: Sequence[bytes]) -> bytes:
    """Return the hash of the keys of a table."""
    return hashlib.sha256(b"".join(keys)).digest()[:KEY_BYTES]


class EncounterTable:
    """The table of one host; at most `limits.encounters_max` nodes, those that it is likeliest to meet."""

    def __init__(self, settings: Settings, own: bytes = b"") -> None:
        """`own`: the key of the host itself."""
        self._p_init, self._beta = settings.prophet_p_init, settings.prophet_beta
        self._rate = log(settings.prophet_gamma) / (settings.prophet_unit_s * MICROSECONDS)
        """Ageing in a microsecond, as an exponent."""
        self._most = settings.limits.encounters_max
        self._known: dict[bytes, tuple[float, int]] = {}
        self._own, self._keys, self._names = own, [own], b""
        """The own key; those of all nodes known here, itself among them, ascending; and the hash of these."""

    def __len__(self) -> int:
        return len(self._known)

    def ageing(self, elapsed_us: int) -> float:
        """Return the factor by which probabilities fall in this time."""
        return exp(self._rate * elapsed_us)

    def at(self, key: bytes, now: int) -> float:
        """Return the probability of a node."""
        probability, since_us = self._known.get(key, (0.0, now))
        return probability * self.ageing(now - since_us)

    def units(self, key: bytes, now: int) -> int:
        """Return the probability of a node as tables on the wire have it."""
        return round(self.at(key, now) * CERTAIN)

    def met(self, key: bytes, now: int) -> None:
        """Count an encounter with a node."""
        probability = self.at(key, now)
        self._known[key] = probability + (1 - probability) * self._p_init, now
        self._trim(now)

    def learn(self, key: bytes, table: Mapping[bytes, int], now: int) -> None:
        """Raise the probabilities of nodes that a node in reach, `key`, is likely to meet."""
        through, known, rate = self.at(key, now) * self._beta / CERTAIN, self._known, self._rate
        for other, units in table.items():
            probability, since_us = known.get(other, (0.0, now))
            probability *= exp(rate * (now - since_us))
            known[other] = probability + (1 - probability) * through * units, now
        self._trim(now)

    def _trim(self, now: int) -> None:
        if len(self._known) > self._most:
            kept = heapq.nlargest(self._most, self._known, key=lambda key: self.at(key, now))
            self._known = {key: self._known[key] for key in kept}
            self._keys = []

    def names(self) -> bytes:
        """Return the hash of the keys of all nodes known here, this one among them."""
        if len(self._keys) != len(self._known) + 1 or not self._names:
            self._keys = sorted([self._own, *self._known])
            self._names = hash_of(self._keys)
        return self._names

    def levels(self, now: int) -> list[int]:
        """Return the probabilities of all nodes in `names`, in the order of their keys; 0 of this one."""
        found = dict(self.entries(now))
        self.names()
        return [found.get(key, 0) for key in self._keys]

    def keys(self) -> list[bytes]:
        """Return the keys of all nodes known here, this one among them, ascending. The list does not change."""
        self.names()
        return self._keys

    def gain(self, units: int, through: int, theirs: int) -> int:
        """Return by how much a node raises a probability, by that of another one (`through`) and by its entry."""
        return round((CERTAIN - units) * through * theirs * self._beta / CERTAIN**2)

    def entries(self, now: int) -> list[tuple[bytes, int]]:
        """Return the entries to send, without those that are nothing on the wire."""
        rate = self._rate
        found = [(key, round(each * exp(rate * (now - since)) * CERTAIN)) for key, (each, since) in self._known.items()]
        return sorted([each for each in found if each[1]])
