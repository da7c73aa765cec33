"""Errors of the core as those of JMS."""

from __future__ import annotations

from carrypost.errors import (
    CarrypostError,
    InvalidSelectorException,
    JMSException,
    MessageFormatException,
    PatternError,
    PayloadError,
    ResourceAllocationException,
    StateError,
)

_TRANSLATIONS: tuple[tuple[type[CarrypostError], type[JMSException]], ...] = (
    (PayloadError, MessageFormatException),
    (PatternError, InvalidSelectorException),
    (StateError, ResourceAllocationException),
    (CarrypostError, JMSException),
)


def translated(error: CarrypostError) -> JMSException:
    """Return an error of the core as the one of JMS that it is."""
    if isinstance(error, JMSException):
        return error
    kind = next(kind for known, kind in _TRANSLATIONS if isinstance(error, known))
    made = kind(str(error))
    made.__cause__ = error
    return made
