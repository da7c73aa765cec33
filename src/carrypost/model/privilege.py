"""Privilege: the importance of a message, relative to others (JOMS-15 §2.4, EMMA §3.2).

Persistent before non-persistent, then priority 9 to 0; among equals the older one is dropped first. The function is
pure, is evaluated when a message enters, and may be replaced by the application's own.
"""

from __future__ import annotations

from collections.abc import Callable

from carrypost.model.address import is_control_of_node
from carrypost.model.descriptor import Descriptor

PRIVILEGE_MAX = 255
Privilege = Callable[[Descriptor], int]
"""Maps a descriptor to 0..255; a larger value is dropped later and sent earlier."""


def privilege(descriptor: Descriptor) -> int:
    """Return the privilege by the papers' rule: persistent first, then priority. Control messages count as persistent.

    Otherwise all messages of a queue would go before the few control messages that let any of them be consumed.
    """
    return (10 if descriptor.persistent or is_control_of_node(descriptor.destination) else 0) + descriptor.priority


def bounded(rule: Privilege) -> Privilege:
    """Return a rule whose values are clamped to 0..255: an application's own may exceed them."""
    return rule if rule is privilege else lambda descriptor: min(PRIVILEGE_MAX, max(0, int(rule(descriptor))))
