"""Queues that a program declares: what the program says of one is checked, and its node becomes the manager."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Final

from carrypost.errors import (
    IllegalArgumentException,
    InvalidDestinationException,
    JMSException,
    NameAlreadyBoundException,
)
from carrypost.jms.destinations import RESERVED, Queue, named
from carrypost.jms.durations import Duration, microseconds
from carrypost.model import address
from carrypost.model.ids import NodeId, is_node_id
from carrypost.mom.admission import RECEIVERS_MAX
from carrypost.mom.commands import Declare, Redelivery
from carrypost.mom.letters import DEAD_LETTERS, room_for
from carrypost.mom.names.namespace import Bind

if TYPE_CHECKING:
    from carrypost.jms.provider import Provider

ANYONE: Final = "anyone"
"""Receivers of a queue that names none."""
_PLAIN_MAX = 64
"""Characters of a plain name of a node, where security is off, so that all receivers fit into an advertisement."""
_LEASE_S = 3_600.0
"""Time that a receiver has for a message, unless the queue says otherwise."""


async def declare(provider: Provider, asked: Declare, *, advertise: bool) -> Queue:
    """Declare a queue, and bind it to its name, unless that stands for something: then it was, or the program knows."""
    destination = address.queue(asked.name, provider.place.node)
    bind = Bind(asked.name, destination, advertise=advertise, receivers=asked.receivers)
    try:
        await provider.bind(bind)
        new = True
    except NameAlreadyBoundException:
        new = False
    try:
        found = await provider.declare(asked)
    except JMSException:
        if new:
            await provider.unbind(asked.name, context=False)
        raise
    return Queue(address.name_of(found) or found)


def declared(
    node: NodeId, name: object, redelivery: object, lease_s: Duration | None, policy: object, *, receivers: object
) -> Declare:
    """Return the queue that a program wants its node to manage; callers are not all checked."""
    found = named(name, "the name of a queue")
    if "@" in found:
        raise InvalidDestinationException(
            f"a queue is managed where it is declared, and has its node added: declare {found.partition('@')[0]!r}"
        )
    if found.startswith((RESERVED, DEAD_LETTERS)):
        raise InvalidDestinationException(
            f"names that begin with {RESERVED!r} or {DEAD_LETTERS!r} are given by nodes themselves, not to {found!r}"
        )
    room = room_for(node)
    if len(found) > room:
        raise InvalidDestinationException(f"the name of a queue has at most {room} characters here, not {len(found)}")
    try:
        again = Redelivery(redelivery)  # type: ignore[arg-type]  # whatever it is
    except ValueError:
        raise IllegalArgumentException(f'redelivery is "never" or "after_lease", not {redelivery!r}'[:200]) from None
    if again is Redelivery.NEVER and lease_s is not None:
        raise IllegalArgumentException('a lease_s is for redelivery="after_lease": otherwise nothing ends')
    lease_us = 0 if again is Redelivery.NEVER else _lease_us(lease_s)
    return Declare(found, again, lease_us, named(policy, "a policy"), receivers=_receivers(receivers, node))


def _receivers(receivers: object, node: NodeId) -> tuple[NodeId, ...] | None:
    """Return the nodes that may receive from a queue of this node, each once and in order; None: anyone."""
    if receivers == ANYONE:
        return None
    if not isinstance(receivers, Collection) or isinstance(receivers, str | bytes):
        raise IllegalArgumentException(f'receivers is "{ANYONE}", or a list of ids of nodes, not {receivers!r}'[:200])
    for each in receivers:
        plain = isinstance(each, str) and not is_node_id(node) and 0 < len(each) <= _PLAIN_MAX
        if not plain and not (isinstance(each, str) and is_node_id(each)):
            raise IllegalArgumentException(f"receivers has the ids of nodes, and {each!r} is none"[:200])
    found = {NodeId(each) for each in receivers} - {node}
    if len(found) > RECEIVERS_MAX:
        raise IllegalArgumentException(f"a queue names at most {RECEIVERS_MAX} receivers, not {len(found):,}")
    return tuple(sorted(found))


def _lease_us(lease_s: Duration | None) -> int:
    lease_us = microseconds(_LEASE_S if lease_s is None else lease_s, "lease_s")
    if not lease_us:
        raise IllegalArgumentException("lease_s is more than 0: nobody could consume anything in no time")
    return lease_us
