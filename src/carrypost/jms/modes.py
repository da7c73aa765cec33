"""Modes that JMS gives numbers to."""

from __future__ import annotations

import enum


class DeliveryMode(enum.IntEnum):
    """How much a message matters; the numbers are those of JMS."""

    NON_PERSISTENT = 1
    """It may be lost when the node fails, and gives way first where a cache is full."""
    PERSISTENT = 2
    """It is on disk when `send` returns, and by default carriers keep it rather than others."""
