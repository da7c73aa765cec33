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

_AT_ONCE = 8
"""Number of messages between two checks of the time spent."""


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
        if matcher.is_cheap:
            self.finish()
            return True
        end_us = matcher.spent_us + within_us
        while left and matcher.spent_us < end_us:
            self.view.look_at_all([left.popitem()[1] for _ in range(min(_AT_ONCE, len(left)))])
        return not left

    def release(self, mask: int) -> None:
        """Forget freed slots."""
        for slot in bits(mask):
            self._left.pop(slot, None)
        self.view.clear(~mask)
