"""Overview of messaging on one node."""

from __future__ import annotations

from typing import NamedTuple

NAMES_TOLD = 10
"""Names of one kind that are told."""


class MessagingOverview(NamedTuple):
    """The state of messaging, for people who ask."""

    subscriptions: int
    durable: int
    consumers: int
    claims: int
    pinned: int
    """Copies that stay because of claims."""
    lost: int
    """Claims whose copies left before they were acknowledged or dead."""
    queues: int = 0
    """Number of queues that this node manages."""
    entries: int = 0
    """Messages in those queues, assigned ones included."""
    receiving: int = 0
    """Consumers of queues, wherever those are."""
    unattended: tuple[str, ...] = ()
    """Queues of this node in which messages wait, and that nobody receives from; not all, if there are many."""
    lapsing: tuple[tuple[str, int], ...] = ()
    """Durable subscriptions that nobody uses and when their leases end; the first of them."""
