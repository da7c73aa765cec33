"""The foundation of the parts of gossip: values and owners, each of which alone changes its own fields."""

from __future__ import annotations

from typing import NamedTuple

from carrypost.config import Limits, Settings
from carrypost.gossip.holdings.holdings import Holdings
from carrypost.gossip.interest.own_interests import OwnInterests
from carrypost.gossip.outputs import Outputs
from carrypost.gossip.transfers.link import Links
from carrypost.model.ids import NodeId, node_prefix
from carrypost.security.identity import Identity


class HostContext(NamedTuple):
    """One host's identity and settings, its holdings, interests and links, and the outputs of its parts."""

    identity: Identity
    settings: Settings
    holdings: Holdings
    outputs: Outputs
    interests: OwnInterests
    links: Links

    @property
    def node(self) -> NodeId:
        """The id of this node."""
        return self.identity.node

    @property
    def prefix(self) -> bytes:
        """The name of this node in heard-lists and requests."""
        return node_prefix(self.identity.node)

    @property
    def limits(self) -> Limits:
        """The bounds on what peers may make this host keep and do."""
        return self.settings.limits
