"""Modes that JMS gives numbers to."""

from __future__ import annotations

import enum
from typing import Literal

from carrypost.config.rules import nearest
from carrypost.errors import IllegalArgumentException


class DeliveryMode(enum.IntEnum):
    """The importance of a message; the numbers are those of JMS."""

    NON_PERSISTENT = 1
    """The message may be lost when the node fails, and is evicted first where a cache is full."""
    PERSISTENT = 2
    """The message is on disk when `send` returns, and by default carriers prefer to keep it."""

    def __str__(self) -> str:
        return self.name


class SessionMode(enum.IntEnum):
    """The moment at which a received message counts as consumed; the numbers are those of JMS, except for the last."""

    SESSION_TRANSACTED = 0
    """By `commit`, together with what was sent."""
    AUTO_ACKNOWLEDGE = 1
    """The message is acknowledged when `receive` returns it, or its listener returns."""
    CLIENT_ACKNOWLEDGE = 2
    """By `acknowledge`, with all that the context was given before."""
    DUPS_OK_ACKNOWLEDGE = 3
    """As AUTO_ACKNOWLEDGE, but written in groups: after a crash more messages may be redelivered."""
    INDIVIDUAL_ACKNOWLEDGE = 101
    """By the `acknowledge` of that message alone."""

    def __str__(self) -> str:
        return self.name


def session_mode(given: object) -> SessionMode:
    """Return a mode of sessions, or the one of this number; callers are not all checked."""
    try:
        return SessionMode(given)  # type: ignore[arg-type]  # whatever it is
    except ValueError:
        raise IllegalArgumentException(f"the mode of a session must be a SessionMode, not {given!r}"[:200]) from None


Acknowledge = Literal["auto", "client", "dups-ok", "individual"]
"""The mode of one consumer, as the option `acknowledge` names it."""
_BY_TEXT = {
    "auto": SessionMode.AUTO_ACKNOWLEDGE,
    "client": SessionMode.CLIENT_ACKNOWLEDGE,
    "dups-ok": SessionMode.DUPS_OK_ACKNOWLEDGE,
    "individual": SessionMode.INDIVIDUAL_ACKNOWLEDGE,
}


def acknowledge_mode(given: object) -> SessionMode:
    """Return the mode of a consumer that is named so; callers are not all checked."""
    found = _BY_TEXT.get(given) if isinstance(given, str) else None
    if found is None:
        hint = nearest(given, _BY_TEXT) if isinstance(given, str) else ""
        raise IllegalArgumentException(
            f"acknowledge must be one of {', '.join(map(repr, _BY_TEXT))}, not {given!r}{hint}"[:200]
        )
    return found
