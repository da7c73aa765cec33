"""Homes: the broker that each client of this node is attached to (OVERLAY §2.2, home broker).

A client is a producer or a consumer of a channel. Its home is the nearest broker, this node itself if that is one; of
equally near ones that with the lower id. Brokers that can be reached come first. The client asks with `Attach`, again
after growing delays until the broker answers, and then before its lease ends. It asks another one if the broker has no
room, or is not known as a broker any more; and asks anew when its home has been started again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from carrypost.errors import LocalError, ResourceAllocationException
from carrypost.model.ids import NodeId
from carrypost.model.times import NEVER
from carrypost.overlay.clients import LEASE_US
from carrypost.overlay.items import ITEMS, Attach, Homed, Role

if TYPE_CHECKING:
    from carrypost.gossip.layer import Draft
    from carrypost.gossip.transfers.ground import Ground
    from carrypost.island.island import Island
    from carrypost.overlay.clients import ClientManager
    from carrypost.overlay.tables import BrokerInfo
    from carrypost.overlay.topology import Topology

_FIRST_US, _LAST_US = 1_000_000, 60_000_000
"""Shortest and longest time after which a broker that did not answer is asked again."""
_REFUSED_US = 60_000_000
"""A broker that had no room is not asked again for so long."""
_FAR = 1 << 16
"""Hops to a broker that cannot be reached, beside those that its announcement took."""

Key = tuple[Role, str, int]
"""Role, channel and subscription of a client of this node."""


class _Client(msgspec.Struct, eq=False):
    """A client of this node."""

    key: Key
    broker: NodeId | None = None
    """Broker that it asked to be its home."""
    boot: int = 0
    """Life of that broker."""
    homed: bool = False
    """True once that broker said that it is."""
    due_us: int = 0
    """Time at which it asks, or asks again."""
    delay_us: int = _FIRST_US


class Homes:
    """The clients of one node, and their home brokers."""

    def __init__(self, ground: Ground, island: Island, topology: Topology, manager: ClientManager) -> None:
        self._node, self._broker = ground.node, ground.settings.overlay.broker
        self._most, self._outputs, self._in_reach = ground.limits.clients_max, ground.outputs, ground.links.in_reach
        self._island, self._topology, self._manager = island, topology, manager
        self._clients: dict[Key, _Client] = {}
        self._refused: dict[NodeId, int] = {}
        """Brokers that had no room, and until when they are not asked again; at most as many as are known."""
        self._said: list[Draft] = []
        self._incarnation = 0

    @property
    def due_us(self) -> int:
        """Time at which `expire` has something to do."""
        if not self._incarnation:
            return NEVER
        return min([each.due_us for each in self._clients.values()], default=NEVER)

    def start(self, incarnation: int) -> None:
        """Begin to ask brokers."""
        self._incarnation = incarnation

    def drafts(self) -> list[Draft]:
        """Take the messages that are to be published."""
        said, self._said = self._said, []
        return said

    def of_channels(self) -> dict[str, NodeId]:
        """Return the homes of this node's clients, by channel."""
        return {
            each.key[1]: each.broker
            for _, each in sorted(self._clients.items())
            if each.homed and each.broker is not None
        }

    # --- clients -------------------------------------------------------------------------------------------

    def attach(self, role: Role, channel: str, subscription: int = 0) -> None:
        """Look for a home of one more client; raises `LocalError` if there cannot be one."""
        if not ITEMS.is_readable(Attach(role, channel, subscription)):
            raise LocalError(f"a channel has a name of 1 to 256 characters, not {channel!r}"[:200])
        key = (role, channel, subscription)
        if key not in self._clients:
            if len(self._clients) >= self._most:
                raise ResourceAllocationException(
                    f"this node has {self._most:,} clients of channels (limits.clients_max): end some, or raise it"
                )
            self._clients[key] = _Client(key)

    def detach(self, role: Role, channel: str, subscription: int, now: int) -> None:
        """Let a client leave its home; idempotent."""
        found = self._clients.pop((role, channel, subscription), None)
        if found is not None and found.broker is not None:
            self._say(found, found.broker, now, active=False)

    def homed(self, item: Homed, author: NodeId, now: int) -> bool:
        """Take the answer of a broker; returns False if nobody asked it."""
        found = self._clients.get((item.role, item.channel, item.subscription))
        if found is None or found.broker != author:
            return False
        if item.accepted:
            found.homed, found.delay_us, found.due_us = True, _FIRST_US, now + LEASE_US // 2
        else:
            self._refused[author] = now + _REFUSED_US
            found.broker, found.homed = None, False
            found.due_us = now + found.delay_us
            found.delay_us = min(2 * found.delay_us, _LAST_US)
        return True

    def announced(self, info: BrokerInfo, now: int) -> None:
        """Ask anew where a home has been started again, and where there was no broker."""
        for each in self._clients.values():
            if each.broker is None or (each.broker == info.node and each.boot < info.boot):
                each.due_us = min(each.due_us, now)
                each.homed = False

    def lost(self, broker: NodeId, now: int) -> None:
        """Look for other homes than a broker that is not known as one any more."""
        self._refused.pop(broker, None)
        for each in self._clients.values():
            if each.broker == broker and broker not in self._topology.brokers:
                each.broker, each.homed, each.due_us = None, False, now

    # --- asking --------------------------------------------------------------------------------------------

    def expire(self, now: int) -> None:
        """Ask brokers for those clients that are due."""
        due = [each for _, each in sorted(self._clients.items()) if each.due_us <= now]
        nearest = self._nearest(now) if due else None
        for each in due:
            self._ask(each, nearest, now)

    def _ask(self, client: _Client, nearest: NodeId | None, now: int) -> None:
        before = client.broker
        if not client.homed:
            client.broker = nearest
        if before is not None and before != client.broker:
            self._say(client, before, now, active=False)
        client.due_us = now + client.delay_us
        client.delay_us = min(2 * client.delay_us, _LAST_US)
        if client.broker is None:
            client.due_us = NEVER  # Until a broker announces itself.
        else:
            info = self._topology.brokers.get(client.broker)
            client.boot = 0 if info is None else info.boot
            self._say(client, client.broker, now)

    def _say(self, client: _Client, broker: NodeId, now: int, *, active: bool = True) -> None:
        role, channel, subscription = client.key
        item = Attach(role, channel, subscription, active)
        if broker != self._node:
            self._said.append(ITEMS.draft(broker, [item], LEASE_US))
            return
        accepted = self._manager.attach(item, self._node, (self._incarnation, now), now + LEASE_US, now)
        if active:
            self.homed(Homed(role, channel, subscription, accepted is not False), self._node, now)

    def _nearest(self, now: int) -> NodeId | None:
        """Return the nearest broker that is known, this node itself included; None if there is none."""
        self._refused = {node: until_us for node, until_us in self._refused.items() if until_us > now}
        reach = self._island.reach()
        found = [
            (reach[each.node] if each.node in reach else _FAR + each.hops, each.node)
            for each in self._topology.brokers
            if each.node not in self._refused
        ]
        if self._broker and self._node not in self._refused:
            found.append((0, self._node))
        return min(found)[1] if found else None
