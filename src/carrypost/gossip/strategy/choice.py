"""Choice of a host's strategy by its settings."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from carrypost.gossip.strategy.antientropy import AntiEntropy
from carrypost.gossip.strategy.exchange import Exchange
from carrypost.gossip.strategy.paper import Paper

if TYPE_CHECKING:
    from carrypost.config import Settings
    from carrypost.gossip.strategy.strategy import Strategy

STRATEGIES: dict[str, type[Strategy[Any]]] = {"exchange": Exchange, "anti-entropy": AntiEntropy, "paper": Paper}
"""Strategies by the name that settings use."""


def choose_strategy(settings: Settings) -> type[Strategy[Any]]:
    """Return the strategy that the settings ask for."""
    return STRATEGIES["paper" if settings.paper_mode else settings.strategy]
