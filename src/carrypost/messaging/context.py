"""Context of the parts of messaging: parts of the host, and the shared ledger and post."""

from __future__ import annotations

from typing import TYPE_CHECKING

from carrypost.application.control_outbox import ControlOutbox
from carrypost.application.ledger import Ledger
from carrypost.log.journal import MOM
from carrypost.messaging.channels import Channels
from carrypost.messaging.control import CONTROL

if TYPE_CHECKING:
    from carrypost.application.circles import Circles
    from carrypost.application.deliveries import Deliveries
    from carrypost.config import Limits, Settings
    from carrypost.gossip.holdings.holdings import Holdings
    from carrypost.gossip.interest.own_interests import OwnInterests
    from carrypost.gossip.outputs import Outputs
    from carrypost.gossip.transfers.host_context import HostContext
    from carrypost.log.journal import Journal
    from carrypost.messaging.channels import Overlay
    from carrypost.model.ids import NodeId


class MessagingContext:
    """Messaging on one host, in one incarnation of it."""

    def __init__(
        self,
        host_context: HostContext,
        deliveries: Deliveries,
        circles: Circles,
        incarnation: int,
        overlay: Overlay | None,
    ) -> None:
        self.host_context, self.deliveries, self.incarnation = host_context, deliveries, incarnation
        self.circles, self.keyring = circles, circles.keyring
        self.node: NodeId = host_context.node
        self.settings: Settings = host_context.settings
        self.limits: Limits = host_context.limits
        self.holdings: Holdings = host_context.holdings
        self.outputs: Outputs = host_context.outputs
        self.interests: OwnInterests = host_context.interests
        self.journal: Journal = host_context.outputs.journal
        self.ledger: Ledger = Ledger(self.journal, MOM)
        self.outbox: ControlOutbox = ControlOutbox(host_context, CONTROL)
        self.channels: Channels = Channels(host_context.outputs, overlay)
