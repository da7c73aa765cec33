"""`Sent`: what a program knows of a message that it sent."""

from __future__ import annotations

from carrypost.events import SendState
from carrypost.model import visible
from carrypost.model.descriptor import Descriptor
from carrypost.model.times import MICROSECONDS


class Sent:
    """A message that was sent."""

    __slots__ = ("descriptor", "state")

    def __init__(self, descriptor: Descriptor | None, state: SendState = SendState.DRAFTED) -> None:
        self.descriptor = descriptor
        """What the network knows of it; None while it waits for a commit, if its topic has an order."""
        self.state = state
        """How far it has come, as this node knows."""

    @property
    def message_id(self) -> str | None:
        """JMSMessageID, the same wherever the message goes; None as long as `descriptor` is."""
        return None if self.descriptor is None else visible.message_id(self.descriptor)

    @property
    def expiration(self) -> float | None:
        """When it ends, in seconds since 1970; None if it does not."""
        deadline_us = None if self.descriptor is None else self.descriptor.deadline_us
        return None if deadline_us is None else deadline_us / MICROSECONDS

    def __repr__(self) -> str:
        return f"<Sent {self.message_id or 'without an id yet'}, {self.state.name}>"
