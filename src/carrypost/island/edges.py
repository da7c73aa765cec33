"""The graph of links between hosts, kept up to date edge by edge as hosts claim and deny links.

Hosts stand here as the four-byte prefixes of their ids. An edge counts while one end claims it and the other does not
deny it. Edges of the own host are the links in use, whatever others say of them.

A change looks only at the edges that it names: where hosts move, records come many times a second, and almost all
links are the same as before.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from collections.abc import Set as AbstractSet

_NOBODY: frozenset[bytes] = frozenset()


class Edges:
    """The edges that count between known hosts."""

    def __init__(self, own: bytes) -> None:
        self._own = own
        self._ends: dict[bytes, set[bytes]] = {own: set()}
        """By known host: the other ends of its edges."""
        self._claims: dict[bytes, tuple[frozenset[bytes], frozenset[bytes]]] = {}
        """By host: the neighbours that it claims in its record, and those that it denies."""
        self._heard: dict[bytes, frozenset[bytes]] = {}
        """By neighbour of this host: those that it says it hears, and is heard by."""
        self.claimants: set[bytes] = set()
        """Hosts whose records claim a link with this host."""
        self.version = 0
        """Number that grows with each change of an edge that counts."""
        self._changed: set[bytes] = set()
        """Known hosts with such a change since `pop_changed`."""

    def of(self, host: bytes) -> AbstractSet[bytes]:
        """Return the other ends of the edges of a host."""
        return self._ends.get(host, _NOBODY)

    def pop_changed(self) -> set[bytes]:
        """Return the hosts whose edges changed since this was asked last."""
        changed, self._changed = self._changed, set()
        return changed

    def know(self, host: bytes) -> None:
        """Let the edges of a host count from now on, as far as any host claims them."""
        if host not in self._ends:
            self._ends[host] = set()
            claiming = [each for each, (claimed, _) in self._claims.items() if host in claimed]
            hearing = [each for each, heard in self._heard.items() if host in heard]
            self._update(host, {*claiming, *hearing, *self._claimed(host)})

    def forget(self, host: bytes) -> None:
        """Let no edge of a host count, and forget its record."""
        self._claims.pop(host, None)
        self.claimants.discard(host)
        ends = self._ends.pop(host)
        for other in ends:
            self._ends[other].discard(host)
            self.version += 1
        self._changed = (self._changed | ends) - {host}

    def set_claims(self, host: bytes, claimed: frozenset[bytes], denied: frozenset[bytes]) -> None:
        """Replace what a known host says in its record."""
        before = self._claims.get(host, (_NOBODY, _NOBODY))
        self._claims[host] = claimed, denied
        (set.add if self._own in claimed else set.discard)(self.claimants, host)
        self._update(host, (before[0] ^ claimed) | (before[1] ^ denied))

    def set_heard(self, heard: Mapping[bytes, frozenset[bytes]]) -> None:
        """Replace the neighbours of this host, which are known, and those that each of them has."""
        before, self._heard = self._heard, dict(heard)
        self._update(self._own, before.keys() ^ heard.keys())
        for host in before.keys() | heard.keys():
            if (change := before.get(host, _NOBODY) ^ heard.get(host, _NOBODY)) and host in self._ends:
                self._update(host, change)

    def _claimed(self, host: bytes) -> frozenset[bytes]:
        return self._claims.get(host, (_NOBODY, _NOBODY))[0] | self._heard.get(host, _NOBODY)

    def _denied(self, host: bytes) -> frozenset[bytes]:
        return self._claims.get(host, (_NOBODY, _NOBODY))[1]

    def _counts(self, one: bytes, other: bytes) -> bool:
        if self._own in (one, other):
            return (other if one == self._own else one) in self._heard
        if other in self._denied(one) or one in self._denied(other):
            return False
        return other in self._claimed(one) or one in self._claimed(other)

    def _update(self, host: bytes, others: Iterable[bytes]) -> None:
        """Update the edges between a known host and hosts about which claims changed."""
        ends = self._ends[host]
        for other in others:
            if other in self._ends and other != host and (other in ends) is not self._counts(host, other):
                change = set.discard if other in ends else set.add
                change(ends, other)
                change(self._ends[other], host)
                self._changed |= {host, other}
                self.version += 1
