"""Recipients that are done with a message: each is struck off, and the copy is dropped once none is left.

Every node with a copy of such a message drops it and never wants it again, whether the message was its own or carried
for others. The word of a node counts only for messages that it is a recipient of (`model.recipients`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from carrypost.log.events import Reason
from carrypost.model.recipients import is_for

if TYPE_CHECKING:
    from collections.abc import Iterable

    from carrypost.gossip.holdings.copies import Copy
    from carrypost.gossip.transfers.host_context import HostContext
    from carrypost.model.ids import MessageId, NodeId


def strike(context: HostContext, messages: Iterable[MessageId], node: NodeId, until_us: int) -> None:
    """Strike this node off these messages, as it asked for under its signature, until `until_us`.

    Messages without any recipient left are dropped at once if they are here, and refused when they come. Unknown
    messages are remembered with the node. Messages of which the node is no recipient are counted, and stay.
    """
    holdings = context.holdings
    cache, now = holdings.cache, holdings.date_us
    if until_us <= now:
        return
    here: list[Copy] = []
    gone: list[Copy] = []
    unknown: list[MessageId] = []
    others = 0
    for message in dict.fromkeys(messages):  # One may be named twice.
        copy = cache.get(message)
        if copy is None:
            unknown.append(message)
        # Without this check any node could purge other nodes' messages from all caches by
        # acknowledging them.
        elif not is_for(copy.descriptor, node):
            others += 1
        elif holdings.strike(copy, node):
            if copy.here and copy.descriptor.listed and (copy.pins or copy in holdings.lingering):
                holdings.linger(copy)  # Another subscription of this host has still to get it.
            else:
                (here if copy.here else gone).append(copy)
    cache.mark_done(gone)
    if here:
        cache.throw_out(here, Reason.PURGED)
    if unknown:
        holdings.purged.add(unknown, node, until_us, now)
    if others:
        context.outputs.refuse("purge-authority", node, count=others)
