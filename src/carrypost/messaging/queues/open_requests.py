"""Requests whose replies a program waits for: each has a row until its reply was received, or its deadline.

A request may take hours, and its program may restart meanwhile. The row records that the request was made, so that a
program that knows its correlation id can continue to wait. The reply itself is an ordinary message to a queue of this
node, which accepts only replies that a program waits for: others would fill it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from carrypost.application.tables import Deadlines
from carrypost.errors import IllegalStateException, ResourceAllocationException
from carrypost.messaging.commands import OpenRequest
from carrypost.model import address

if TYPE_CHECKING:
    from carrypost.messaging.context import MessagingContext
    from carrypost.model.descriptor import Descriptor

REPLIES = "$replies"
"""The queue for replies; a program that makes a request declares it."""
CALLS_MAX = 10_000
"""Number of open requests; a program that never receives replies gets an exception."""


class OpenRequests(Deadlines):
    """The open requests of one node, by correlation id."""

    def __init__(self, context: MessagingContext) -> None:
        super().__init__(context.ledger, b"P")
        self._replies = address.queue(REPLIES, context.node)

    def all_open(self) -> tuple[OpenRequest, ...]:
        """Return the calls without a reply whose time is not over."""
        return tuple(OpenRequest(correlation, due_us) for correlation, due_us in self._until_us.items())

    def refusal(self, descriptor: Descriptor) -> str:
        """Return the reason to reject a message to this node's queue of replies; empty if there is none."""
        if descriptor.destination != self._replies:
            return ""
        correlation = None if descriptor.headers is None else descriptor.headers.correlation
        return "" if correlation in self._until_us else "nobody waits for this reply"

    def remember(self, correlation: str, deadline_us: int) -> None:
        """Open a request that is about to be sent."""
        if correlation in self._until_us:
            raise IllegalStateException(
                f"a request with the correlation id {correlation!r} is open on this node: choose another"
            )
        if len(self._until_us) >= CALLS_MAX:
            raise ResourceAllocationException(
                f"{len(self._until_us):,} requests are open on this node: receive their replies first"
            )
        self._put(correlation, deadline_us)
