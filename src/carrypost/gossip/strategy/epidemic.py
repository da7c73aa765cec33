"""Epidemic routing: every host that comes gets a copy (Vahdat and Becker, 2000).

As in The ONE, nothing tells hosts that a message has arrived, and the copy that came first is evicted first. EMMA's
`anti-entropy` differs in both: acknowledgements purge copies, and the oldest message is evicted first.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from carrypost.gossip.strategy.exchange import Routed

if TYPE_CHECKING:
    from collections.abc import Sequence

    from carrypost.gossip.strategy.exchange_contact import ExchangeContact
    from carrypost.gossip.transfers.arrivals_and_removals import Arrival


class Epidemic(Routed):
    """The strategy that copies every message to every host."""

    def relay(self, contact: ExchangeContact, mask: int, now: int) -> int:  # noqa: ARG002 - as others have it
        """Choose everything."""
        return mask

    def gained(self, now: int, *, fresh: Sequence[Arrival] = (), own: bool = False, partial: bool = False) -> None:
        """Offer new messages soon; half-received ones are not offered, and change nothing about the others."""
        if not partial:
            super().gained(now, fresh=fresh, own=own)
