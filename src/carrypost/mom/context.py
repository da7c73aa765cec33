"""Context of the parts of messaging: parts of the host, and the shared ledger and post."""

from __future__ import annotations

from typing import TYPE_CHECKING

from carrypost.journal import MOM
from carrypost.local.ledger import Ledger
from carrypost.local.post import Post
from carrypost.mom.channels import Channels
from carrypost.mom.control import CONTROL

if TYPE_CHECKING:
    from carrypost.gossip.transfers.host_context import HostContext
    from carrypost.local.deliveries import Deliveries
    from carrypost.mom.channels import Overlay


class Context:
    """Messaging on one host, in one life of it."""

    def __init__(self, ground: HostContext, deliveries: Deliveries, incarnation: int, overlay: Overlay | None) -> None:
        self.ground, self.deliveries, self.incarnation = ground, deliveries, incarnation
        self.node, self.settings, self.limits = ground.node, ground.settings, ground.limits
        self.holdings, self.outputs, self.interests = ground.holdings, ground.outputs, ground.interests
        self.journal, self.undo = ground.outputs.journal, ground.outputs.undo
        self.ledger = Ledger(self.journal, MOM)
        self.post = Post(ground, CONTROL)
        self.channels = Channels(ground.outputs, overlay)
