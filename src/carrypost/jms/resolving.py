"""Queues that are named without their node: the directory of this node knows where they are."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from carrypost.errors import NameNotFoundException
from carrypost.jms.destinations import NamedQueue, Queue

if TYPE_CHECKING:
    from carrypost.jms.provider import Provider


T = TypeVar("T")


async def resolved(provider: Provider, destination: T) -> T | Queue:
    """The destination itself; of a short name, the queue, which is found when it is used first."""
    if not isinstance(destination, NamedQueue):
        return destination
    if destination.found is None:
        destination.found = await _looked_up(provider, destination.queue_name)
    return destination.found


async def _looked_up(_: Provider, name: str) -> Queue:
    raise NameNotFoundException(f"no queue is known here by the name {name!r}: give its full name, {name}@NODE")
