"""What becomes of messages that an addressee says it is done with.

Whoever is told so by a notice throws its copies away and never wants them again, be they its own or carried for others.
That counts only for what is addressed to the node whose notice it is: `queue/NODE/…` and `control/NODE`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from carrypost.events import Reason
from carrypost.model.address import addressee

if TYPE_CHECKING:
    from collections.abc import Iterable

    from carrypost.gossip.holdings.copies import Copy
    from carrypost.gossip.transfers.ground import Ground
    from carrypost.model.ids import MessageId, NodeId


def purge(ground: Ground, messages: Iterable[MessageId], node: NodeId, until_us: int) -> None:
    """A notice of this node names these messages, and counts until then; it has to be vouched for by its signature.

    What is here goes at once, what is not is refused when it comes. Those of other addressees are counted, and stay.
    """
    holdings = ground.holdings
    cache, now = holdings.cache, holdings.now_us
    if until_us <= now:
        return
    here: list[Copy] = []
    gone: list[Copy] = []
    unknown: list[MessageId] = []
    others = 0
    for message in dict.fromkeys(messages):  # A notice may name one twice.
        copy = cache.get(message)
        if copy is None:
            unknown.append(message)
        elif addressee(copy.descriptor.destination) != node:
            others += 1
        else:
            (here if copy.here else gone).append(copy)
    cache.mark_done(gone)
    if here:
        cache.throw_out(here, Reason.PURGED)
    if unknown:
        holdings.purged.add(unknown, node, until_us, now)
    if others:
        ground.outputs.refuse("purge-authority", node, count=others)
