"""The states of one message on a host. The cache keeps them as bitsets; `state_of` reads them.

`tools/copy_moves.py` has the moves between them, which a test finds by driving the cache through every state.
"""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING

from carrypost.gossip.holdings import owners

if TYPE_CHECKING:
    from carrypost.gossip.holdings.cache import Cache
    from carrypost.model.ids import MessageId


class CopyState(enum.Enum):
    """The state of a message on a host."""

    UNKNOWN = "unknown"
    """The host has no copy and remembers nothing. If the message is offered, it is a *want*: recorded, requested, then
    a buffer of fragments."""
    PARTIAL = "partial"
    """The host has some pieces, and offers them."""
    WHOLE = "whole"
    """The host has all pieces, and no program here was given the message."""
    WAITING = "waiting"
    """Whole, and held back until the messages that it depends on were delivered; not evicted."""
    PINNED = "pinned"
    """Whole, delivered, not confirmed; not evicted."""
    UNSENT = "unsent"
    """Published here, and not offered before it is durable, because it has an order or the program required that; not
    evicted."""
    FINISHED = "finished"
    """Whole, and never wanted again: confirmed, or published here. Still offered to others."""
    DONE = "done"
    """No copy, and never wanted again."""
    DECLINED = "declined"
    """No copy, for lack of room; not requested until there is room."""


_HELD_BY = (
    (owners.PUBLISHING, CopyState.UNSENT),
    (owners.ORDER, CopyState.WAITING),
    (owners.DELIVERIES, CopyState.PINNED),
    (owners.CLAIMS, CopyState.PINNED),
)
"""States of a copy by the owner of its pin. An own message that is delivered here is handed over when it may be
sent."""


def state_of(cache: Cache, message: MessageId) -> CopyState:
    """Return the state of one message."""
    copy = cache.get(message)
    if copy is None:
        return CopyState.UNKNOWN
    if not copy.here:
        return CopyState.DONE if cache.done >> copy.slot & 1 else CopyState.DECLINED
    if not copy.whole:
        return CopyState.PARTIAL
    for owner, state in _HELD_BY:
        if copy.pins & owner:
            return state
    return CopyState.FINISHED if copy.finished else CopyState.WHOLE
