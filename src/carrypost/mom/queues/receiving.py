"""What one consumer of a queue asks for: a request at the queue's manager, here or elsewhere."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from carrypost.gossip.interest.matcher import Matcher
from carrypost.model import address, pattern
from carrypost.mom import control
from carrypost.mom.commands import Subscribe
from carrypost.mom.queues.gaps import Heard
from carrypost.mom.state import Subscription

if TYPE_CHECKING:
    from carrypost.config import Limits
    from carrypost.model.descriptor import Descriptor
    from carrypost.model.ids import NodeId
    from carrypost.mom.commands import Receive
    from carrypost.mom.control import Item
    from carrypost.mom.queues.groups import Standing
    from carrypost.mom.queues.queue import Queue

ASK: Final = 1
WITHDRAW: Final = 2
"""The matters on which the manager is told something."""


class Receiving(Subscription):
    """What one consumer of a queue asks for, and what waits for it."""

    __slots__ = (
        "asking", "closed", "credit", "deadline_us", "destination", "heard", "local", "manager", "request", "selector",
    )  # fmt: skip

    def __init__(self, number: int, asked: Receive, connection: int, manager: NodeId, limits: Limits) -> None:
        entry = pattern.entry(address.exactly(asked.destination), asked.selector, limits=limits)
        super().__init__(0, Subscribe(entry), connection, "", limits)
        self.destination = asked.destination
        self.manager = manager
        self.request = number
        self.selector = asked.selector or ""
        self._narrower = Matcher((pattern.entry(".*", asked.selector, limits=limits),), limits, own=True)
        self.credit = 0
        """How many it takes in all."""
        self.heard = Heard()
        self.deadline_us = 0
        """Until when its manager was asked."""
        self.asking = False
        """Whether a note to the manager is on its way to the post."""
        self.local: tuple[Queue, Standing] | None = None
        """Its request, if this node is the manager."""
        self.closed = False

    @property
    def name(self) -> str:
        """The name of its queue."""
        return address.name_of(self.destination) or self.destination

    def selects(self, descriptor: Descriptor) -> bool:
        """Whether it takes a message of its queue."""
        return not self.selector or self._narrower is None or self._narrower.matches(descriptor)

    def item(self, matter: int, to: NodeId | None) -> Item | None:  # noqa: ARG002 - only the manager is told anything
        """What the manager is told."""
        found = address.address(self.destination)
        assert found is not None  # A program named it, and it was found to be a queue.
        if matter == WITHDRAW:
            return control.Withdraw(found.name, self.request)
        self.asking = False
        if self.closed:
            return None
        return control.Request(
            found.name, self.request, self.credit, self.deadline_us, self.selector, self.heard.through
        )

    def said(self, matter: int) -> None:
        """It is on its way."""

    def unsaid(self, matter: int, to: NodeId | None) -> None:
        """It is said again."""
