"""Accounts of subscriptions: what each may and must be handed, kept beside the hosts, from their events.

An account knows the promises of messaging and nothing of their implementation. A message whose acknowledgement is
durable never comes again, neither to that subscription nor to a later one. A message that comes again has a higher
count. No consumer is handed more than it has credit for. A message that was reported as a delivery while a subscription
existed is handed to that subscription, unless the message expires before.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from carrypost.log.events import Handed
from carrypost.model.descriptor import Descriptor
from carrypost.model.ids import MessageId, shown


@dataclass(slots=True)
class Account:
    """The account of one subscription; of a durable one, through all lives of its node."""

    topic: str
    strange: frozenset[MessageId] = frozenset()
    """Acknowledged on this node before it was made: it has no claim to these."""
    counts: dict[MessageId, int] = field(default_factory=dict)
    """Number of times that it was handed each message."""
    acknowledged: set[MessageId] = field(default_factory=set)
    """For good."""
    owed: dict[MessageId, Descriptor] = field(default_factory=dict)
    """Delivered to the node while it stood, and not handed over yet."""
    doubtful: bool = False
    """True if only the host knows whether there is such a subscription."""

    def delivered(self, descriptor: Descriptor) -> None:
        """Note a delivery to the node, which may have handed the message over already.

        A subscription that may not exist has no claim: others may acknowledge the message before the subscription is
        made.
        """
        if not self.doubtful and descriptor.destination == self.topic and descriptor.id not in self.counts:
            self.owed[descriptor.id] = descriptor

    def handed(self, event: Handed) -> list[str]:
        """Check a message that is handed over; returns what is wrong with it."""
        message, name = event.message, shown(event.message)
        self.owed.pop(message, None)
        found = []
        if event.descriptor.destination != self.topic:
            found.append(f"{name} is of {event.descriptor.destination}, not of {self.topic}")
        if message in self.acknowledged:
            found.append(f"{name} was acknowledged, and is delivered again")
        if message in self.strange:
            found.append(f"{name} was acknowledged before the subscription was made, and is delivered nevertheless")
        before = self.counts.get(message, 0)
        # A crash counts against the first doubtful message of a program: the others repeat their counts.
        if event.count < before or (event.count == before and not event.alone):
            found.append(f"{name} comes with count {event.count}, as it did before")
        self.counts[message] = event.count
        return found

    def start_anew(self) -> None:
        """Note a crash before the answer to making or ending the subscription: it may be another one now."""
        self.doubtful = True
        self.strange = frozenset()
        self.counts.clear()
        self.owed.clear()

    def unread(self, message: MessageId) -> None:
        """Note that it was given back, and no program saw it."""
        if message in self.counts:
            self.counts[message] -= 1

    def forget(self, messages: Iterable[MessageId], *, forgetful: bool) -> None:
        """Copies are gone: what is received anew counts anew. A forgetful host does not know what was acknowledged."""
        for message in messages:
            self.owed.pop(message, None)
            self.counts.pop(message, None)
            if forgetful:
                self.acknowledged.discard(message)

    def overdue(self, now: int) -> list[str]:
        """Return the messages that a consumer with credit should have had by now."""
        return [
            f"{each.shown} was delivered, is alive, and was not handed over"
            for each in self.owed.values()
            if each.alive(now) and each.due_us < now
        ]
