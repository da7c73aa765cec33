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

    __slots__ = ("_left", "view")

    def __init__(self, view: View, copies: Iterable[Slotted]) -> None:
        self.view = view
        self._left = {copy.slot: copy for copy in copies}

    def finish(self) -> None:
        """Match all messages that are left, however long that takes."""
        self.view.look_at_all(self._left.values())
        self._left.clear()

    def go_on(self, within_us: int) -> bool:
        """Match more messages for about this long; return True when none is left."""
        matcher, left = self.view.matcher, self._left
        at_once = _AT_ONCE_CHEAP if matcher.is_cheap else _AT_ONCE
        end_us = matcher.spent_us + within_us
        while left and matcher.spent_us < end_us:
            some = [left.popitem()[1] for _ in range(min(at_once, len(left)))]
            self.view.look_at_all(some)
            end_us -= _LOOK_US * len(some)
        return not left

    def release(self, mask: int) -> None:
        """Forget freed slots."""
        for slot in bits(mask):
            self._left.pop(slot, None)
        self.view.clear(~mask)
