"""Context of the parts of messaging: parts of the host, and the shared ledger and post."""

from __future__ import annotations

from typing import TYPE_CHECKING

from carrypost.journal import MOM
from carrypost.local.control_outbox import ControlOutbox
from carrypost.local.ledger import Ledger
from carrypost.mom.channels import Channels
from carrypost.mom.control import CONTROL

if TYPE_CHECKING:
    from carrypost.gossip.transfers.host_context import HostContext
    from carrypost.local.circles import Circles
    from carrypost.local.deliveries import Deliveries
    from carrypost.mom.channels import Overlay


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
        self.node, self.settings, self.limits = host_context.node, host_context.settings, host_context.limits
        self.holdings, self.outputs, self.interests = (
            host_context.holdings,
            host_context.outputs,
            host_context.interests,
        )
        self.journal = host_context.outputs.journal
        self.ledger = Ledger(self.journal, MOM)
        self.outbox = ControlOutbox(host_context, CONTROL)
        self.channels = Channels(host_context.outputs, overlay)
