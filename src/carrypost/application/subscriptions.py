"""Subscriptions of one host's applications.

Their common interest is in `gossip.interest.own_interests`. This module has what concerns only one of them: a
subscription to ordered messages accepts all messages of a destination, and the rest of its pattern is applied at
delivery.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from carrypost.gossip.interest.matcher import Matcher

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from carrypost.config import Limits
    from carrypost.gossip.interest.own_interests import OwnInterests
    from carrypost.model.descriptor import Descriptor
    from carrypost.model.pattern import Entry


class Subscriptions:
    """The subscriptions of one host, by number."""

    __slots__ = ("_lent", "_limits", "_narrower", "_interests", "confirmed")

    def __init__(self, own: OwnInterests, limits: Limits) -> None:
        self._interests = own
        self._limits = limits
        self._narrower: dict[int, Matcher] = {}
        """Of subscriptions applied at delivery: their conditions besides the destination."""
        self._lent: set[int] = set()
        """Numbers of interests that belong to layers, and not to the application."""
        self.confirmed: set[int] = set()
        """Numbers of subscriptions whose deliveries confirm themselves."""

    def __len__(self) -> int:
        return len(self._interests) - len(self._lent)

    def lend(self, entry: Entry, *, advertised: bool = True) -> int:
        """Return a number for a layer's own interest; without `advertised` the profile leaves it out."""
        number = self._interests.add(entry, advertised=advertised)
        self._lent.add(number)
        return number

    def add(
        self, entry: Entry, narrower: Entry | None = None, *, confirmed: bool = False, advertised: bool = True
    ) -> int:  # fmt: skip
        """Add a subscription that at delivery accepts only what matches `narrower` as well; return its number.

        `confirmed`: its deliveries confirm themselves. `advertised`: the profile has it.
        """
        number = self._interests.add(entry, advertised=advertised)
        if confirmed:
            self.confirmed.add(number)
        if narrower is not None:
            self._narrower[number] = Matcher((narrower,), self._limits, own=True)
        return number

    def remove(self, numbers: Collection[int]) -> list[Entry]:
        """Remove all of these, or none if one does not exist; return their entries."""
        gone = self._interests.remove(numbers)
        for number in numbers:
            self._narrower.pop(number, None)
            self._lent.discard(number)
            self.confirmed.discard(number)
        return gone

    def asked(self, number: int) -> Entry:
        """Return the entry of a subscription, with the conditions applied at delivery."""
        narrower = self._narrower.get(number)
        return self._interests[number] if narrower is None else narrower.entries[0]

    @property
    def asking(self) -> Callable[[Descriptor], tuple[int, ...]]:
        """A function that returns the numbers of the subscriptions to a message, ascending."""
        if not len(self):  # A node whose programs use messaging has interests of layers alone.
            return _none
        return self._narrowed if self._narrower or self._lent else self._interests.which

    def _narrowed(self, descriptor: Descriptor) -> tuple[int, ...]:
        narrower, lent = self._narrower, self._lent
        return tuple([
            number for number in self._interests.which(descriptor)
            if number not in lent and ((own := narrower.get(number)) is None or own.matches(descriptor))
        ])  # fmt: skip


def _none(_: Descriptor) -> tuple[int, ...]:
    return ()
