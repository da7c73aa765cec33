"""Detours at the home of producers: the same question gets the same answer, within bounds that finished ones free."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

from carrypost.config import Settings
from carrypost.gossip.transfers.link import HostContext
from carrypost.model.ids import NodeId, node_prefix
from carrypost.overlay.items import Detour
from carrypost.overlay.legs import Detours
from carrypost.overlay.relocation import HandoffId
from carrypost.overlay.tables import Served
from carrypost.overlay.topology import Topology

S = 1_000_000


class Home:
    """A home of producers that knows which brokers have seats."""

    def __init__(self, *seated: str, handoffs_max: int = 8) -> None:
        settings = Settings.emulated(limits={"handoffs_max": handoffs_max})
        self.seated = set(seated)
        rosters = SimpleNamespace(serving=lambda _: {node_prefix(NodeId(each)): Served(0, 1) for each in self.seated})
        context = SimpleNamespace(settings=settings, limits=settings.limits)
        self.detours = Detours(cast("HostContext", context), cast("Topology", SimpleNamespace(rosters=rosters)))

    def ask(self, source: str, counter: int, to: str, last: int = 1) -> int | None:
        """Return the number of the last event that the answer names; None if there is no answer."""
        asked = Detour(HandoffId(NodeId(source), 1, counter), "flood", NodeId(to))
        answers = self.detours.asked(asked, NodeId(source), [(NodeId("p"), last)], 5 * S)
        return None if answers is None else answers[0].last[0][1]


def test_the_same_question_gets_the_same_answer() -> None:
    home = Home("A")
    assert home.ask("A", 1, "B", last=3) == 3
    assert home.ask("A", 1, "B", last=7) == 3


def test_a_source_has_a_share_of_the_room() -> None:
    home = Home("A", "B")
    assert [home.ask("A", counter, "C") for counter in range(4)] == [1, 1, None, None]
    assert home.ask("B", 1, "C") == 1


def test_detours_to_brokers_that_have_seats_by_now_make_room() -> None:
    home = Home("A")
    assert [home.ask("A", counter, "C") for counter in range(3)] == [1, 1, None]
    home.seated.add("C")
    assert [home.ask("A", counter, "D") for counter in range(3, 6)] == [1, 1, None]
    assert home.detours.of("flood", 5 * S) == {node_prefix(NodeId("D"))}
