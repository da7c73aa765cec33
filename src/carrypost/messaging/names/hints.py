"""Suggestions for a name that was looked up and does not exist.

Strangers decide how many names there are, and how long they are. So only a few are compared with the requested name:
its neighbours in the alphabet, sorted by beginnings and by ends. A name with one wrong letter has one of these right.
"""

from __future__ import annotations

from bisect import bisect_left
from difflib import get_close_matches
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

_NEAREST = 3
"""Number of suggestions."""
_BESIDE = 16
"""Number of names compared on either side."""


class Hints:
    """All names, in order."""

    def __init__(self, names: Iterable[str]) -> None:
        self.names = sorted(names)
        self._reversed = sorted(name[::-1] for name in self.names)

    def near(self, name: str) -> list[str]:
        """Return the names that are most like this one, if any is like it."""
        known = self.names
        if len(known) > 4 * _BESIDE:
            ends = [each[::-1] for each in _beside(self._reversed, name[::-1])]
            known = sorted({*_beside(known, name), *ends})
        return get_close_matches(name, known, n=_NEAREST)


def _beside(names: Sequence[str], name: str) -> Sequence[str]:
    at = bisect_left(names, name)
    return names[max(0, at - _BESIDE) : at + _BESIDE]
