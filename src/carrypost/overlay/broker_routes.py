"""The routes of a broker, BRT (OVERLAY §3.3): paths to other brokers, which follow from its tables.

They are built anew when they are read and the tables changed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping

    from carrypost.overlay.entries import Entry
    from carrypost.overlay.tables import Brokers, TopologyTable
    from carrypost.overlay.vicinity import Vicinity


class Way(NamedTuple):
    """A row of the BRT: the path to one broker."""

    hops: int
    """Hops between nodes along the path, as brokers report them."""
    path: tuple[bytes, ...]
    """Brokers from this one, exclusive, to that one, inclusive, by four bytes each."""


class Routes:
    """The BRT: to every broker the path over the fewest brokers, of those the one with the fewest hops."""

    def __init__(
        self, own: bytes, table: TopologyTable[Entry], brokers: Brokers, vicinity: Vicinity | None = None
    ) -> None:
        """Make the routes of a broker; without a vicinity, those of legs are the same as the BRT."""
        self._own, self._table, self._brokers, self._vicinity = own, table, brokers, vicinity
        self._built: dict[Vicinity | None, tuple[tuple[int, int, int], dict[bytes, Way]]] = {}
        """Ways of legs by the vicinity, and the BRT by None, with the versions of the tables that they are built from.
        """
        self._others: tuple[tuple[int, int], dict[bytes, Mapping[bytes, int]]] = (-1, -1), {}
        """Versions of the tables, and the distances from known brokers that were asked for since."""

    def way(self, prefix: bytes) -> Way | None:
        """Return the way to a broker by the BTT alone."""
        return self._ways(None).get(prefix)

    def leg_way(self, prefix: bytes, *, but: bytes | None = None) -> Way | None:
        """Return the way of a leg that leaves now; `but`: one that does not begin with this neighbour.

        Links of other brokers are as they reported them, those of this broker as they are now.
        """
        vicinity = None if self._table.get(self._own) is None else self._vicinity
        # Ways around a neighbour are not kept: they are needed only when that neighbour is lost.
        if but is not None:
            return self._search(self._links(vicinity), self._own, but).get(prefix)
        return self._ways(vicinity).get(prefix)

    def _ways(self, vicinity: Vicinity | None) -> dict[bytes, Way]:
        built = (self._table.version, self._brokers.version, 0 if vicinity is None else vicinity.version)
        before, ways = self._built.get(vicinity, (None, {}))
        if built != before:
            ways = self._search(self._links(vicinity), self._own)
            self._built[vicinity] = built, ways
        return ways

    def distances(self, prefix: bytes) -> Mapping[bytes, int]:
        """Return the hops from a broker along the overlay to all that it reaches, itself included."""
        built = (self._table.version, self._brokers.version)
        if self._others[0] != built:
            self._others = built, {}
        kept = self._others[1]
        if (found := kept.get(prefix)) is None:
            ways = self._search(self._links(None), prefix)
            found = {prefix: 0} | {each: way.hops for each, way in ways.items()}
            if prefix == self._own or self._brokers.at(prefix) is not None:
                kept[prefix] = found
        return found

    def _search(
        self, links: Mapping[bytes, Mapping[bytes, int]], start: bytes, but: bytes | None = None
    ) -> dict[bytes, Way]:
        """Return the ways from a broker along links, not beginning with the neighbour `but`."""
        ways: dict[bytes, Way] = {}
        # Breadth first over brokers, not over hops. Every broker on a path makes and signs a
        # message of its own, which costs far more than one more hop of the network below. Hops,
        # then prefixes, break ties, so that two brokers with the same tables find the same paths.
        edge = {start: Way(0, ())}
        while edge:
            beyond: dict[bytes, Way] = {}
            for broker, way in edge.items():
                for other, hops in links.get(broker, {}).items():
                    if other in ways or other == start or (broker == start and other == but):
                        continue
                    found = Way(way.hops + hops, (*way.path, other))
                    if other not in beyond or found < beyond[other]:
                        beyond[other] = found
            ways |= beyond
            edge = beyond
        return ways

    def _links(self, vicinity: Vicinity | None) -> Mapping[bytes, Mapping[bytes, int]]:
        """Return the neighbours of every broker that is known. A link counts if either end lists it.

        With a vicinity, this broker has links to the nearest brokers, too, and its links have the hops of this moment.
        """
        # One end suffices, since the entry of the other may be old or lost. Both ends must have
        # announced themselves as brokers: announcements are signed and entries are not, so a liar
        # can add links, but no brokers.
        links: dict[bytes, dict[bytes, int]] = {}
        known = {each.prefix for each in self._brokers} | {self._own}
        for entry in self._table:
            for other, hops in entry.neighbours if entry.prefix in known else ():
                if other in known:
                    for here, there in ((entry.prefix, other), (other, entry.prefix)):
                        of = links.setdefault(here, {})
                        of[there] = min(of.get(there, hops), hops)
        if vicinity is not None:
            links[self._own] = vicinity.links(links.get(self._own, ()))
        return links
