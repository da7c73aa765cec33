"""The part of a strategy that offers ask: which messages may go to which neighbour (`gossip.strategy.strategy`)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from carrypost.gossip.strategy.exchange_contact import ExchangeContact


class Choosing(Protocol):
    """A strategy, as its offers and sessions see it."""

    @property
    def chooses(self) -> bool:
        """True if `choose` is to be asked."""

    @property
    def unicast(self) -> bool:
        """True if each message is offered to one neighbour at a time."""

    def choose(self, contact: ExchangeContact, mask: int, now: int) -> int:
        """Return those of the slots in `mask` whose messages may go to this neighbour."""
