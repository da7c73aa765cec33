"""What waits for the consumers of one subscription."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from carrypost.mom.claims import Claim


class Backlog:
    """The claims of one subscription that wait, in the order of their places."""

    __slots__ = ("_fresh", "_returned")

    def __init__(self) -> None:
        self._fresh: dict[int, Claim] = {}
        self._returned: dict[int, Claim] = {}
        """Those that come again: earlier than any that was never handed over."""

    def __len__(self) -> int:
        return len(self._fresh) + len(self._returned)

    def __iter__(self) -> Iterator[Claim]:
        yield from self._returned.values()
        yield from self._fresh.values()

    def add(self, claim: Claim) -> None:
        """One more, at the end."""
        self._fresh[claim.place] = claim

    def put_back(self, claims: Iterable[Claim]) -> None:
        """Some that were handed over wait again, where they were."""
        self._returned |= {claim.place: claim for claim in claims}
        self._returned = dict(sorted(self._returned.items()))

    def discard(self, claim: Claim) -> None:
        """One ended while it waited."""
        if self._fresh.pop(claim.place, None) is None:
            self._returned.pop(claim.place, None)

    @property
    def first(self) -> Claim:
        """The one that is next."""
        return next(iter(self))

    def next(self) -> Claim:
        """The first one, which waits no more."""
        waiting = self._returned or self._fresh
        return waiting.pop(next(iter(waiting)))
