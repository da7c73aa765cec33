"""Profiles that are being learnt: matched against all copies, a part at a time.

A stranger's profile may cost milliseconds per message, within all bounds of its patterns and selectors, and a full
cache has tens of thousands: done at once, that would occupy a host for a minute. So as much is done as takes a moment,
which is enough for most profiles, and the rest later. Until it is done the profile counts as unknown.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from carrypost.gossip.slots import bits

if TYPE_CHECKING:
    from collections.abc import Iterable

    from carrypost.gossip.interest.matcher import Slotted
    from carrypost.gossip.interest.views import View

_AT_ONCE, _AT_ONCE_CHEAP = 8, 1_024
"""Number of messages between two checks of the time spent, and where they are only looked up."""
_LOOK_US = 3
"""CPU time for a message, whatever the profile: descriptors of remembered messages have to be decoded."""


class Learning:
    """A view that was not matched against all copies yet. It is informed of new messages like any other view."""

    __slots__ = ("_copies", "_gone", "_left", "free", "view")

    def __init__(self, view: View, copies: Iterable[Slotted | None]) -> None:
        self.view = view
        self.free = True
        """True if the neighbour that has the profile is not charged for learning it."""
        self._copies: Iterable[Slotted | None] | None = copies
        """Copies to match, if that has not begun. There may be a million, so they are listed only then."""
        self._left: list[Slotted | None] = []
        self._gone: set[int] = set()
        """Slots that were freed meanwhile."""

    def finish(self) -> None:
        """Match all messages that are left, however long that takes."""
        self._begin()
        self._look_at(len(self._left))

    def go_on(self, within_us: int) -> bool:
        """Match more messages for about this long; return True when none is left."""
        self._begin()
        matcher, left = self.view.matcher, self._left
        at_once = _AT_ONCE_CHEAP if matcher.is_cheap else _AT_ONCE
        end_us = matcher.spent_us + within_us
        while left and matcher.spent_us < end_us:
            end_us -= _LOOK_US * min(at_once, len(left))
            self._look_at(at_once)
        return not left

    def _begin(self) -> None:
        if self._copies is not None:
            self._left, self._copies = list(self._copies), None

    def _look_at(self, count: int) -> None:
        """Match some of the messages that are left, the latest first."""
        left, gone = self._left, self._gone
        some, left[-count:] = left[-count:], ()
        self.view.look_at_all([copy for copy in some if copy is not None and copy.slot not in gone])

    def release(self, mask: int) -> None:
        """Forget freed slots."""
        self._gone.update(bits(mask))
        self.view.clear(~mask)
