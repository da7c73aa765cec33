"""Consumers of queues: each is a demand at the queue's manager, here or elsewhere."""

from __future__ import annotations

from typing import TYPE_CHECKING

from carrypost.application.control_outbox import Subject
from carrypost.gossip.interest.matcher import Matcher
from carrypost.messaging import control
from carrypost.messaging.queues.gaps import HeardNumbers
from carrypost.messaging.state import Claimant
from carrypost.model import address, pattern

if TYPE_CHECKING:
    from carrypost.application.keyring import Keyring
    from carrypost.config import Limits
    from carrypost.messaging.commands import Receive
    from carrypost.messaging.control import Item
    from carrypost.messaging.queues.groups import Demand
    from carrypost.messaging.queues.queue import Queue
    from carrypost.messaging.state import Tenure
    from carrypost.model.descriptor import Descriptor
    from carrypost.model.ids import NodeId


class Returned:
    """Messages that consumers of queues missed or gave back, until the receiver processes them."""

    __slots__ = ("late", "tenures", "unserved")

    def __init__(self) -> None:
        self.unserved: list[QueueConsumer] = []
        """Consumers that missed a message, and take another one instead."""
        self.tenures: list[Tenure] = []
        """Messages that sessions gave back."""
        self.late: list[QueueConsumer] = []
        """Consumers whose programs answered after a lease: they live, and their managers take them for silent."""


class QueueConsumer(Claimant, Subject):
    """A consumer of a queue: its demand, and the messages that wait for it."""

    __slots__ = (
        "_keyring", "_matcher", "_returned", "asking", "credit", "deadline_us", "heard", "local", "manager", "queue",
        "selector",
    )  # fmt: skip

    def __init__(
        self, number: int, asked: Receive, manager: NodeId, limits: Limits, returned: Returned, *, keyring: Keyring
    ) -> None:
        super().__init__(number, asked.destination, address.name_of(asked.destination) or asked.destination)
        found = address.address(asked.destination)
        assert found is not None  # A program named it, and it was found to be a queue.
        self.queue, self.manager = found.name, manager
        """The name of its queue, and the node that manages it."""
        self.selector = asked.selector or ""
        # Dead letters keep the destination that they were sent to.
        self._matcher = Matcher((pattern.entry(".*", asked.selector, limits=limits),), limits, own=True)
        self._returned, self._keyring = returned, keyring
        self.credit = 0
        """Total number of messages that it takes."""
        self.heard = HeardNumbers()
        self.deadline_us = 0
        """Time until which its demand was last extended."""
        self.asking = False
        """True if an item to the manager is on its way to the post."""
        self.local: tuple[Queue, Demand] | None = None
        """Demand of the consumer, if this node is the manager."""

    @property
    def destination(self) -> str:
        """The address of its queue."""
        return self.pattern

    def selects(self, descriptor: Descriptor) -> bool:
        """Return True for a message of its queue that it takes."""
        return not self.selector or self._matcher.matches(descriptor)

    def miss(self) -> None:
        """Note that the consumer does not get a message that was assigned to it."""
        self._returned.unserved.append(self)

    def answer_late(self) -> None:
        """Note that its program acknowledged or returned a message after its lease."""
        self._returned.late.append(self)

    def give_back(self, tenure: Tenure) -> None:
        """Return a message that none of its sessions has any more."""
        self._returned.tenures.append(tenure)

    def item(self) -> Item | None:
        """Return the demand to send to the manager; None if the consumer is closed."""
        self.asking = False
        if self.ended:
            return None
        return control.Ask(
            self.queue, self.number, self.credit, self.deadline_us, self.selector, self.heard.through,
            self._keyring.public,
        )  # fmt: skip
