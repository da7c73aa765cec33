"""Names of queues as programs give them, and the queues that they stand for."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from carrypost.errors import InvalidDestinationException, NamingException
from carrypost.jms.destinations import NamedQueue, Queue
from carrypost.model import address
from carrypost.model.address import Kind

if TYPE_CHECKING:
    from carrypost.jms.provider import Provider

T = TypeVar("T")


async def resolved(provider: Provider, destination: T) -> T | Queue:
    """The destination itself; of a short name, the queue, which is found when it is used first."""
    if not isinstance(destination, NamedQueue):
        return destination
    if destination.found is None:
        found = await resolve_queue(provider, destination.queue_name)
        destination.found = Queue(address.name_of(found) or found)
    return destination.found


async def resolve_queue(provider: Provider, name: str) -> str:
    """The destination of the queue with this name.

    A full name, ``Alan@NODE``, is the address itself, and the directory is not asked. A bare one, ``Alan``, is looked
    up on this device, among queues only. Raises `InvalidDestinationException`, with what is there, where none or
    several are called so.
    """
    if "@" in name:
        return address.queue_named(name)
    try:
        return (await provider.lookup(name, 0.0, Kind.QUEUE)).destination
    except NamingException as error:
        raise InvalidDestinationException(
            f"{error}. To make this node its manager: `await ctx.declare_queue({name!r})`. To wait until another node "
            f"advertises it: `await InitialContext(ctx).lookup({name!r}, timeout=SECONDS)`. A full name, NAME@NODE, "
            "needs no directory"
        ) from error
