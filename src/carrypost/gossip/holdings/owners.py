"""Owners that keep a copy from being evicted, offered or admitted. Each undoes only its own mark."""

from __future__ import annotations

from typing import Final

# Bits rather than members of an enumeration, whose operators cost ten times as much: pins come with every message.
DELIVERIES: Final = 1
"""The copy was delivered and is not confirmed."""
ORDER: Final = 2
"""The copy waits for messages that it depends on."""
PUBLISHING: Final = 4
"""The copy was published here and may leave only once that is durable."""
CLAIMS: Final = 8
"""A subscription of messaging has a claim to it."""
QUEUES: Final = 16
"""The copy is an entry of a queue that this node manages, or was assigned to this node by another manager."""
RECIPIENTS: Final = 32
"""Owner of messages that are for this node alone, of all that they were for."""
ISLAND: Final = 64
"""Owner of messages that go straight to their recipients, and of those that nobody else may have."""
PASSING: Final = 128
"""A message of this node is being made that has the same payload."""
LOG: Final = 256
"""Keeps an event of this node, which brokers may ask for again."""
