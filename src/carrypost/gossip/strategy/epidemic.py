"""Epidemic routing: every host that comes gets a copy (Vahdat and Becker, 2000).

As in The ONE, nothing tells hosts that a message has arrived, and the copy that came first is evicted first. EMMA's
`anti-entropy` differs in both: acknowledgements purge copies, and the oldest message is evicted first.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from carrypost.gossip.strategy.exchange import Routed

if TYPE_CHECKING:
    from carrypost.gossip.strategy.exchange_contact import ExchangeContact


class Epidemic(Routed):
    """The strategy that copies every message to every host."""

    def relay(self, contact: ExchangeContact, mask: int, now: int) -> int:  # noqa: ARG002 - as others have it
        """Choose everything."""
        return mask
