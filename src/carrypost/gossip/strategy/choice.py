"""Choice of a host's strategy by its settings."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from carrypost.gossip.strategy.antientropy import AntiEntropy
from carrypost.gossip.strategy.direct import Direct
from carrypost.gossip.strategy.epidemic import Epidemic
from carrypost.gossip.strategy.exchange import Exchange
from carrypost.gossip.strategy.first_contact import FirstContact
from carrypost.gossip.strategy.paper import Paper
from carrypost.gossip.strategy.prophet import Prophet
from carrypost.gossip.strategy.spray_and_wait import SprayAndWait

if TYPE_CHECKING:
    from carrypost.config import Settings
    from carrypost.gossip.strategy.strategy import Strategy

STRATEGIES: dict[str, type[Strategy[Any]]] = {
    "exchange": Exchange, "anti-entropy": AntiEntropy, "paper": Paper, "direct": Direct, "epidemic": Epidemic,
    "first-contact": FirstContact, "spray-and-wait": SprayAndWait, "prophet": Prophet,
}  # fmt: skip
"""Strategies by the name that settings use."""


def choose_strategy(settings: Settings) -> type[Strategy[Any]]:
    """Return the strategy that the settings ask for."""
    return STRATEGIES["paper" if settings.paper_mode else settings.strategy]
