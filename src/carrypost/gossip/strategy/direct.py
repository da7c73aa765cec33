"""Direct delivery: an author keeps its message until it meets the recipient. The least that routing can cost."""

from __future__ import annotations

from carrypost.gossip.strategy.exchange import Routed


class Direct(Routed):
    """The strategy in which no host carries messages for others."""
