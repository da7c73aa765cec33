"""Clients of this broker: producers and consumers that took it as their home (OVERLAY §3.3, client manager).

`Attach` is signed by the client's node, so nobody attaches or leaves for another one; of several the newest counts. A
client that does not attach again within its lease is forgotten. What this broker knows of clients is in the store, and
in its roster, by which other brokers know where events of a channel come from and where they are wanted.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from carrypost.overlay.items import Attach, Role
from carrypost.overlay.rosters import Served
from carrypost.overlay.tables import Client, Clients
from carrypost.overlay.tails import Tails

if TYPE_CHECKING:
    from collections.abc import Iterable

    from carrypost.gossip.transfers.ground import Ground
    from carrypost.local.ledger import Ledger
    from carrypost.model.ids import NodeId
    from carrypost.overlay.seat import Seats
    from carrypost.overlay.topology import Topology

LEASE_US = 600_000_000
"""Time for which a client is attached. It attaches again after half of it."""
FAMILY = b"A"
"""First byte of the names of rows."""
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Client).decode


class ClientManager:
    """The clients of one broker."""

    def __init__(self, ground: Ground, topology: Topology, ledger: Ledger, seats: Seats) -> None:
        self._broker, self._outputs = ground.settings.overlay.broker, ground.outputs
        self._in_reach, self._seats_max = ground.links.in_reach, ground.limits.seats_per_client_max
        self._node, self._topology, self._ledger, self._seats = ground.node, topology, ledger, seats
        self.table = Clients(ground.limits.clients_max, ground.limits.seats_max)
        self.tails = Tails(ground.node, topology, self.table)

    @property
    def due_us(self) -> int:
        """Time at which `expire` has something to do."""
        return self.table.due_us

    def restore(self, rows: Iterable[bytes]) -> None:
        """Take in clients of an earlier life."""
        for row in rows:
            client = _decode(row)
            self.table.put(client, ())
            if client.active:
                self._entered(client)

    def start(self, now: int) -> None:
        """Tell other brokers of the clients of an earlier life."""
        self._tell(now)

    def attach(self, item: Attach, client: NodeId, order: tuple[int, int], until_us: int, now: int) -> str | None:
        """Enter a client, or let it leave. Returns why it is refused, an empty text if not; None: it said so before."""
        row = Client(client, item, order, min(until_us, now + LEASE_US))
        before = self.table.get(row)
        if self._broker and before is not None and order <= before.order:
            self._outputs.refuse("overlay-old", client)
            return None
        if before is None and not item.active:
            return ""
        refusal = self._refusal(row, before)
        entered, displaced = (False, None) if refusal else self.table.put(row, {*self._in_reach, self._node})
        if not entered:
            refusal = refusal or ("seats" if row.seated else "clients")
            self._outputs.refuse("modulator" if refusal == "modulator" else "clients", client)
            return refusal
        if displaced is not None:
            self._forget(displaced)
        if item.active:
            self._entered(row)
        elif item.role is Role.CONSUMER:
            self._seats.close(row)
        self._ledger.put(FAMILY + row.digest, _encode(row))
        self._tell(now)
        return ""

    def _refusal(self, client: Client, before: Client | None) -> str:
        """Return why a client cannot be one of this broker, whatever room there is; an empty text if it can."""
        item = client.item
        if not self._broker:
            return "broker"
        if not item.active:
            return ""
        if not self._seats.runs(item.modulator):
            return "modulator"
        if not self._topology.rosters.has_room(item.channel):
            return "channels"
        fresh = client.seated and (before is None or not before.seated)
        return "seats" if fresh and self._seats_of(client.node) >= self._seats_max else ""

    def expire(self, now: int) -> None:
        """Forget clients whose leases are over."""
        over = self.table.expire(now)
        for each in over:
            self._forget(each)
        if over:
            self._tell(now)

    def _entered(self, client: Client) -> None:
        if client.item.role is Role.CONSUMER and self._seats.runs(client.item.modulator):
            self._seats.open(client)
        elif client.item.role is Role.CONSUMER:  # After a restart without the module that registers it.
            self._outputs.refuse("modulator", client.node)
        else:
            self.tails.attached(client.node, client.item.channel, client.item.number)

    def _forget(self, client: Client) -> None:
        self._ledger.delete(FAMILY + client.digest)
        if client.item.role is Role.CONSUMER:
            self._seats.close(client)

    def _seats_of(self, node: NodeId) -> int:
        """Return the number of seats that consumers of a node have."""
        return sum(each.node == node and each.seated for each in self.table)

    def _tell(self, now: int) -> None:
        """Let the roster say which channels have clients here."""
        producers: dict[str, int] = {}
        seats: dict[str, int] = {}
        for each in self.table:
            if each.active:
                counts = producers if each.item.role is Role.PRODUCER else seats
                counts[each.item.channel] = counts.get(each.item.channel, 0) + 1
        served = {name: Served(producers.get(name, 0), seats.get(name, 0)) for name in producers | seats}
        self._topology.serve(served, now)
