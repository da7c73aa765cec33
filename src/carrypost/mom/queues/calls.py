"""Requests whose replies a program waits for: each has a row until its reply was taken, or its deadline.

A request may take hours, and its program may start again meanwhile. The row says that the request was made, so that
whoever knows its correlation id can go on waiting. The reply itself is an ordinary message to a queue of this node,
which takes only replies that somebody waits for: others would fill it.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from carrypost.errors import IllegalStateException, ResourceAllocationException
from carrypost.model import address
from carrypost.model.times import NEVER
from carrypost.mom.commands import OpenRequest

if TYPE_CHECKING:
    from collections.abc import Iterable

    from carrypost.gossip.transfers.ground import Ground
    from carrypost.model.descriptor import Descriptor
    from carrypost.mom.ledger import Ledger

FAMILY = b"P"
REPLIES = "$replies"
"""The queue that replies come to; whoever makes a request declares it."""
CALLS_MAX = 10_000
"""A program that makes requests in a loop and takes no replies would be told of it."""
_DEADLINE_BYTES = 8


class Calls:
    """The open requests of one node, by correlation id."""

    def __init__(self, ground: Ground, ledger: Ledger) -> None:
        self._ledger, self._undo = ledger, ground.outputs.undo
        self._replies = address.queue(REPLIES, ground.node)
        self._deadlines: dict[str, int] = {}
        self.due_us = NEVER

    def restore(self, rows: Iterable[tuple[bytes, bytes]]) -> None:
        """Take in the requests of an earlier life."""
        for name, value in rows:
            if name[:1] == FAMILY:
                self._open(name[1:].decode(), int.from_bytes(value, "big"))

    def all_open(self) -> tuple[OpenRequest, ...]:
        """Those that were not answered, and whose time is not over."""
        return tuple(OpenRequest(correlation, due_us) for correlation, due_us in self._deadlines.items())

    def refusal(self, descriptor: Descriptor) -> str:
        """Why a message to this node is not let into its queue; empty if it may be, as far as this knows."""
        if descriptor.destination != self._replies:
            return ""
        correlation = None if descriptor.headers is None else descriptor.headers.correlation
        return "" if correlation in self._deadlines else "nobody waits for this reply"

    def remember(self, correlation: str, deadline_us: int) -> None:
        """Open a request that is about to be sent."""
        if correlation in self._deadlines:
            raise IllegalStateException(
                f"a request with the correlation id {correlation!r} is open on this node: choose another"
            )
        if len(self._deadlines) >= CALLS_MAX:
            raise ResourceAllocationException(
                f"{len(self._deadlines):,} requests are open on this node: take their replies first"
            )
        self._open(correlation, deadline_us)
        self._undo.note(partial(self.forget, correlation))
        self._ledger.put(_row_name(correlation), deadline_us.to_bytes(_DEADLINE_BYTES, "big"))

    def _open(self, correlation: str, deadline_us: int) -> None:
        self._deadlines[correlation] = deadline_us
        self.due_us = min(self.due_us, deadline_us)

    def forget(self, correlation: str) -> None:
        """A request has its reply, or was never sent. One that is not open is forgotten already."""
        if self._deadlines.pop(correlation, None) is not None:
            self._ledger.delete(_row_name(correlation))

    def expire(self, now: int) -> None:
        """Forget those whose time is over."""
        if self.due_us > now:
            return
        for correlation in [each for each, due_us in self._deadlines.items() if due_us <= now]:
            self.forget(correlation)
        self.due_us = min(self._deadlines.values(), default=NEVER)


def _row_name(correlation: str) -> bytes:
    return FAMILY + correlation.encode()
