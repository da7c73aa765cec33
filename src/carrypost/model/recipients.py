"""Recipients: the nodes that a message is for, unless it is for all subscribers.

A message to a topic may list them; its author signs the list with the rest. A message to a queue, or from node to node,
is for the one node in its destination. A list says which nodes want a message and may deliver it. It does not say which
nodes may carry it, and it keeps nothing secret.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from carrypost.model.address import addressee

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


def may_have(descriptor: Descriptor, node: NodeId) -> bool:
    """Return True if the node's subscriptions may get it: it lists no recipients, or the node among them."""
    headers = descriptor.headers
    return headers is None or not headers.recipients or node in descriptor.listed
