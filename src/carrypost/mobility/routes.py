"""Types of routes in GTFS: the numbers that a word such as bus stands for, and the routes of a feed that have them.

A feed gives each route a number, of the basic list (3 is a bus) or of the extended one (700 is a bus service, 715 one
on demand). A word stands for the basic number and all extended ones of its kind, a number for itself alone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from carrypost.errors import ConfigError

_KINDS: dict[str, tuple[range, ...]] = {
    "tram": (range(1), range(900, 1000)),
    "subway": (range(1, 2), range(400, 405), range(500, 700)),
    "rail": (range(2, 3), range(100, 200), range(300, 400)),
    "bus": (range(3, 4), range(200, 300), range(700, 800)),
    "ferry": (range(4, 5), range(1000, 1100), range(1200, 1300)),
    "cable-tram": (range(5, 6),),
    "aerial-lift": (range(6, 7), range(1300, 1400)),
    "funicular": (range(7, 8), range(1400, 1500)),
    "trolleybus": (range(11, 12), range(800, 900)),
    "monorail": (range(12, 13), range(405, 406)),
}
_TYPE_MAX = 1_702
"""The last number of the extended list."""


class RouteTypes:
    """The types of routes that are meant; without any all are."""

    def __init__(self, words: Sequence[str], what: str) -> None:
        self.words = tuple(words)
        self._meant: set[int] = set()
        for word in words:
            if word in _KINDS:
                self._meant.update(*_KINDS[word])
            elif word.isascii() and word.isdecimal() and int(word) <= _TYPE_MAX:
                self._meant.add(int(word))
            else:
                kinds = ", ".join(_KINDS)
                raise ConfigError(f"{what} must be one of {kinds}, or a number of GTFS such as 700, not {word!r}")

    def __bool__(self) -> bool:
        return bool(self.words)

    def __contains__(self, number: int) -> bool:
        return number in self._meant


def described(types: Iterable[int]) -> str:
    """Return the types for people, with the number of routes of each: bus (3) 622."""
    found = []
    for number, count in sorted(Counter(types).items()):
        kind = next((name for name, ranges in _KINDS.items() if any(number in each for each in ranges)), "other")
        found.append(f"{kind} ({number}) {count:,}")
    return ", ".join(found)
