"""Modes that JMS gives numbers to."""

from __future__ import annotations

import enum

from carrypost.errors import IllegalArgumentException


class DeliveryMode(enum.IntEnum):
    """How much a message matters; the numbers are those of JMS."""

    NON_PERSISTENT = 1
    """It may be lost when the node fails, and gives way first where a cache is full."""
    PERSISTENT = 2
    """It is on disk when `send` returns, and by default carriers keep it rather than others."""

    def __str__(self) -> str:
        return self.name


class SessionMode(enum.IntEnum):
    """When a message that a program got counts as consumed; the numbers are those of JMS, but for the last."""

    SESSION_TRANSACTED = 0
    """By `commit`, together with what was sent."""
    AUTO_ACKNOWLEDGE = 1
    """When `receive` returns it, or its listener returns."""
    CLIENT_ACKNOWLEDGE = 2
    """By `acknowledge`, with all that the context was given before."""
    DUPS_OK_ACKNOWLEDGE = 3
    """As the first, but noted in groups: after a crash more of them may come again."""
    INDIVIDUAL_ACKNOWLEDGE = 101
    """By the `acknowledge` of that message alone."""

    def __str__(self) -> str:
        return self.name


def session_mode(given: object) -> SessionMode:
    """Return a mode of sessions, or the one of this number; callers are not all checked."""
    try:
        return SessionMode(given)  # type: ignore[arg-type]  # whatever it is
    except ValueError:
        raise IllegalArgumentException(f"the mode of a context is one of SessionMode, not {given!r}"[:200]) from None
