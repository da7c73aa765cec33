"""Recipients: the nodes that a message is for, unless it is for all subscribers.

A message to a topic may list them; its author signs the list with the rest. A message to a queue, or from node to node,
is for the one node in its destination. A list says which nodes want a message and may deliver it. It does not say which
nodes may carry it, and it keeps nothing secret.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from carrypost.model.address import BETWEEN_OVERLAYS, addressee

if TYPE_CHECKING:
    from carrypost.model.descriptor import Descriptor
    from carrypost.model.ids import NodeId


def recipients(descriptor: Descriptor) -> tuple[NodeId, ...]:
    """Return the nodes that a message is for; none: it is for all subscribers."""
    headers = descriptor.headers
    if headers is not None and headers.recipients:
        return descriptor.listed
    node = addressee(descriptor.destination)
    return () if node is None else (node,)


def is_for(descriptor: Descriptor, node: NodeId) -> bool:
    """Return True if this node is one of the recipients."""
    headers = descriptor.headers
    if headers is not None and headers.recipients:
        return node in descriptor.listed
    return addressee(descriptor.destination) == node


def is_private(descriptor: Descriptor) -> bool:
    """Return True if only the author and the one node that the destination names ever have the message."""
    headers = descriptor.headers
    return headers is not None and headers.connected and not headers.recipients


def is_between_overlays(descriptor: Descriptor) -> bool:
    """Return True if a message goes from the overlay of one node to that of another."""
    return descriptor.destination.startswith(BETWEEN_OVERLAYS)


def is_momentary(descriptor: Descriptor) -> bool:
    """Return True if a message is private, between overlays, and has no payload.

    It is of use only now, and is repeated if it gets no answer. So it is neither stored nor acknowledged.
    """
    return not descriptor.size and is_private(descriptor) and is_between_overlays(descriptor)


def may_have(descriptor: Descriptor, node: NodeId) -> bool:
    """Return True if the node's subscriptions may get it: it lists no recipients, or the node among them."""
    headers = descriptor.headers
    return headers is None or not headers.recipients or node in descriptor.listed
