"""Owners that protect a copy from eviction, from being offered or from being admitted.

Each undoes only its own mark.
"""

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
"""A subscription of messaging has a claim to the copy."""
QUEUES: Final = 16
"""The copy is an entry of a queue that this node manages, or was assigned to this node by another manager."""
RECIPIENTS: Final = 32
"""The message is for this node alone, of all recipients that it had."""
ISLAND: Final = 64
"""The message goes straight to its recipients, or may not be carried by others."""
PASSING: Final = 128
"""A message of this node with the same payload is being made."""
DELIVERED_IN_ORDER: Final = 512
"""The copy was delivered in its order, and that is not durable: programs do not have it yet, but what follows it."""
LOG: Final = 256
"""The copy is an event of this node, which brokers may request again."""
