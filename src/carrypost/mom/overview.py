"""Overview of messaging on one node."""

from __future__ import annotations

from typing import NamedTuple

NAMES_TOLD = 10
"""Number of names of one kind that are shown."""


class MessagingOverview(NamedTuple):
    """The state of messaging, for people."""

    subscriptions: int
    durable: int
    consumers: int
    claims: int
    pinned: int
    """Number of copies pinned for claims."""
    lost: int
    """Claims whose copies left before they were acknowledged or dead."""
    queues: int = 0
    """Number of queues that this node manages."""
    entries: int = 0
    """Messages in those queues, assigned ones included."""
    receiving: int = 0
    """Number of consumers of queues, here and elsewhere."""
    unattended: tuple[str, ...] = ()
    """Queues of this node in which messages wait without a receiver; not all, if there are many."""
    lapsing: tuple[tuple[str, int], ...] = ()
    """Unused durable subscriptions and the ends of their leases; the first of them."""
