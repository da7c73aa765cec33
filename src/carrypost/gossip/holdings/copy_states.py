"""The life of a copy: the states of one message on a host, and the moves between them.

The table is complete: a test drives the cache through every state and finds exactly these moves, and the diagram in the
protocol document is generated from it. The cache itself keeps the states as bitsets; `state_of` reads them.
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


class CopyInput(enum.Enum):
    """The inputs that change the state of a copy."""

    FIRST_PIECE = "first of several pieces"
    ONLY_PIECE = "only piece"
    LAST_PIECE = "last piece"
    PUBLISHED = "published here"
    PUBLISHED_WITHHELD = "published here, withheld"
    DURABLE = "durable"
    NO_ROOM = "no room"
    HELD_BACK = "held back"
    TURNED_AWAY = "too many held back"
    UNWANTED = "wanted no more"
    DELIVERED = "delivered"
    CONFIRMED = "confirmed"
    EVICTED = "evicted"
    WITHDRAWN = "withdrawn"
    ROOM_AGAIN = "room again"
    DEADLINE = "deadline"


COPY_TABLE: dict[tuple[CopyState, CopyInput], CopyState] = {
    (CopyState.UNKNOWN, CopyInput.FIRST_PIECE): CopyState.PARTIAL,
    (CopyState.UNKNOWN, CopyInput.ONLY_PIECE): CopyState.WHOLE,
    (CopyState.UNKNOWN, CopyInput.NO_ROOM): CopyState.DECLINED,
    (CopyState.UNKNOWN, CopyInput.PUBLISHED): CopyState.FINISHED,
    (CopyState.UNKNOWN, CopyInput.PUBLISHED_WITHHELD): CopyState.UNSENT,
    (CopyState.PARTIAL, CopyInput.LAST_PIECE): CopyState.WHOLE,
    (CopyState.PARTIAL, CopyInput.EVICTED): CopyState.DECLINED,
    (CopyState.PARTIAL, CopyInput.WITHDRAWN): CopyState.DONE,
    (CopyState.PARTIAL, CopyInput.DEADLINE): CopyState.UNKNOWN,
    (CopyState.WHOLE, CopyInput.DELIVERED): CopyState.PINNED,
    (CopyState.WHOLE, CopyInput.HELD_BACK): CopyState.WAITING,
    (CopyState.WHOLE, CopyInput.TURNED_AWAY): CopyState.DECLINED,
    (CopyState.WHOLE, CopyInput.EVICTED): CopyState.DECLINED,
    (CopyState.WHOLE, CopyInput.WITHDRAWN): CopyState.DONE,
    (CopyState.WHOLE, CopyInput.DEADLINE): CopyState.UNKNOWN,
    (CopyState.WAITING, CopyInput.DELIVERED): CopyState.PINNED,
    (CopyState.WAITING, CopyInput.UNWANTED): CopyState.WHOLE,
    (CopyState.WAITING, CopyInput.WITHDRAWN): CopyState.DONE,
    (CopyState.WAITING, CopyInput.DEADLINE): CopyState.UNKNOWN,
    (CopyState.UNSENT, CopyInput.DELIVERED): CopyState.PINNED,
    (CopyState.UNSENT, CopyInput.DURABLE): CopyState.FINISHED,
    (CopyState.UNSENT, CopyInput.WITHDRAWN): CopyState.DONE,
    (CopyState.UNSENT, CopyInput.DEADLINE): CopyState.UNKNOWN,
    (CopyState.PINNED, CopyInput.CONFIRMED): CopyState.FINISHED,
    (CopyState.PINNED, CopyInput.WITHDRAWN): CopyState.DONE,
    (CopyState.PINNED, CopyInput.DEADLINE): CopyState.UNKNOWN,
    (CopyState.FINISHED, CopyInput.DELIVERED): CopyState.PINNED,
    (CopyState.FINISHED, CopyInput.EVICTED): CopyState.DONE,
    (CopyState.FINISHED, CopyInput.WITHDRAWN): CopyState.DONE,
    (CopyState.FINISHED, CopyInput.DEADLINE): CopyState.UNKNOWN,
    (CopyState.DONE, CopyInput.DEADLINE): CopyState.UNKNOWN,
    (CopyState.DECLINED, CopyInput.ROOM_AGAIN): CopyState.UNKNOWN,
    (CopyState.DECLINED, CopyInput.WITHDRAWN): CopyState.DONE,
    (CopyState.DECLINED, CopyInput.DEADLINE): CopyState.UNKNOWN,
}


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
