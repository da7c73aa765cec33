"""Queues of clients: temporary ones, and those that a consumer declares by using them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from carrypost.errors import InvalidDestinationException, ResourceAllocationException
from carrypost.jms.destinations import TEMPORARY, Destination, NamedQueue, Queue, resolved
from carrypost.jms.queue_declaration import ANYONE, declare, declared
from carrypost.messaging.commands import Declare
from carrypost.messaging.program_commands import DeclareQueue

if TYPE_CHECKING:
    from carrypost.jms.provider import Provider

TEMPORARIES_MAX = 100
"""Temporary destinations that one client may have."""


async def consumed(provider: Provider, meant: Destination, *, declares: bool) -> Destination:
    """Return the destination of a consumer: an unknown queue is declared here, if that is allowed."""
    try:
        return await resolved(provider, meant)
    except InvalidDestinationException:
        if not (isinstance(meant, NamedQueue) and declares):
            raise
        asked = declared(provider.node_info.node, meant.queue_name, "never", None, "fair", receivers=ANYONE)
        return await declare(provider, asked, advertise=True)


async def temporary_queue(provider: Provider, connection: int, number: int) -> Queue:
    """Return a new queue that ends with a connection, of this number among those of the connection."""
    name = temporary_name(provider, connection, number)
    await provider.execute(DeclareQueue(Declare(name, connection=connection)))
    return Queue(f"{name}@{provider.node_info.node}")


def temporary_name(provider: Provider, connection: int, number: int) -> str:
    """Return a name that no other incarnation of the node gives, and no other connection."""
    if number > TEMPORARIES_MAX:
        raise ResourceAllocationException(f"a client has at most {TEMPORARIES_MAX} temporary destinations")
    return f"{TEMPORARY}{provider.now_us():x}-{connection}-{number}"
