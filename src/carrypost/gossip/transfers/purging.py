"""Messages that a recipient says it is done with: it is struck off, and once nobody is left the copy goes.

Whoever has a copy of such a message throws it away and never wants it again, be it its own or carried for others. That
one is done counts only for messages that it is a recipient of: `model.recipients` says whose.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from carrypost.events import Reason
from carrypost.model.recipients import is_for

if TYPE_CHECKING:
    from collections.abc import Iterable

    from carrypost.gossip.holdings.copies import Copy
    from carrypost.gossip.transfers.ground import Ground
    from carrypost.model.ids import MessageId, NodeId


def strike(ground: Ground, messages: Iterable[MessageId], node: NodeId, until_us: int) -> None:
    """Strike this node off these messages: it says so, vouched for by its signature, and that counts until then.

    What nobody is left of goes at once if it is here, and is refused when it comes. What is not known is remembered
    with the node. Messages that the node is no recipient of are counted, and stay.
    """
    holdings = ground.holdings
    cache, now = holdings.cache, holdings.now_us
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
        ground.outputs.refuse("purge-authority", node, count=others)
