"""Choice of relays: the few neighbours that together reach all nodes two hops away (multipoint relays, RFC 3626, 8.3).

A choice is kept as long as it covers all of them: where links come and go, a smaller set for the moment would make
records change all the time. Everything here is in terms of four-byte prefixes of node ids, as in heard-lists.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping


def two_hops(own: bytes, heard: Mapping[bytes, frozenset[bytes]]) -> dict[bytes, set[bytes]]:
    """Return the nodes two hops away, with the neighbours that reach each; `heard`: of each neighbour its own."""
    found: dict[bytes, set[bytes]] = {}
    for neighbour, others in heard.items():
        for each in others:
            if each != own and each not in heard:
                found.setdefault(each, set()).add(neighbour)
    return found


def choose(own: bytes, heard: Mapping[bytes, frozenset[bytes]], kept: Collection[bytes] = ()) -> frozenset[bytes]:
    """Return neighbours that reach every node two hops away: those kept from before, if these still do.

    Otherwise a greedy choice adds as few as it needs, and superfluous ones are removed.
    """
    reached_by = two_hops(own, heard)
    chosen = {each for each in kept if each in heard}
    missing = {node for node, by in reached_by.items() if chosen.isdisjoint(by)}
    if not missing:
        return frozenset(chosen)
    for node in missing:
        if len(by := reached_by[node]) == 1:
            chosen |= by
    missing = {node for node in missing if chosen.isdisjoint(reached_by[node])}
    while missing:
        best = max(heard, key=lambda each: (len(missing & heard[each]), len(heard[each]), each))
        chosen.add(best)
        missing -= heard[best]
    return frozenset(chosen - _superfluous(chosen, heard, reached_by))


def _superfluous(
    chosen: set[bytes], heard: Mapping[bytes, frozenset[bytes]], reached_by: Mapping[bytes, set[bytes]]
) -> set[bytes]:
    """Return those of the chosen that can be removed one after another; the least useful are tried first."""
    left = set(chosen)
    for each in sorted(chosen, key=lambda relay: (len(heard[relay]), relay)):
        if all(by & left != {each} for by in reached_by.values()):
            left.discard(each)
    return chosen - left
