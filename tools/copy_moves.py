"""The moves between the states of a copy, for the diagram in the protocol document.

The table is complete: a test drives the cache through every state and finds exactly these moves.
"""

from __future__ import annotations

import enum

from carrypost.gossip.holdings.cache import CopyState


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
