"""Clients of this broker: producers and consumers that took it as their home (OVERLAY §3.3, client manager).

`Attach` is signed by the client's node, so nobody attaches or leaves for another one; of several the newest counts. A
client that does not attach again within its lease is forgotten. What this broker knows of clients is in the store, and
in its roster, by which other brokers know where events of a channel come from and where they are wanted.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import msgspec

from carrypost.errors import LocalError
from carrypost.model.times import NEVER
from carrypost.overlay.items import DETAIL_MAX, Attach, Role
from carrypost.overlay.rosters import Served
from carrypost.overlay.tables import Client, Clients
from carrypost.overlay.tails import Tails

if TYPE_CHECKING:
    from collections.abc import Iterable

    from carrypost.gossip.transfers.ground import Ground
    from carrypost.local.ledger import Ledger
    from carrypost.model.ids import NodeId
    from carrypost.overlay.processing import Processing
    from carrypost.overlay.seat import Seats
    from carrypost.overlay.topology import Topology

LEASE_US = 600_000_000
"""Time for which a client is attached. It attaches again after half of it."""
FAMILY = b"A"
"""First byte of the names of rows."""
_AGAIN_US = 5_000_000
"""Time after which clients that wait for their modules are looked at again, if nothing happens."""
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Client).decode


class Refusal(NamedTuple):
    """Reason why a client is not one of this broker."""

    word: str
    """Empty: it is."""
    detail: str = ""
    """More, for people."""


ACCEPTED, _WAITS = Refusal(""), Refusal("waits")


class ClientManager:
    """The clients of one broker."""

    def __init__(self, ground: Ground, topology: Topology, ledger: Ledger, seats: Seats) -> None:
        self._broker, self._outputs = ground.settings.overlay.broker, ground.outputs
        self._in_reach, self._seats_max = ground.links.in_reach, ground.limits.seats_per_client_max
        self._node, self._topology, self._ledger, self._seats = ground.node, topology, ledger, seats
        self.table = Clients(ground.limits.clients_max, ground.limits.seats_max)
        self._waiting: dict[tuple[NodeId, Role, str, int], Client] = {}
        """Clients whose modules have to come, or to be compiled, first."""
        self._waiting_max, self.again_us = ground.limits.clients_max, NEVER
        self.tails = Tails(ground.node, topology, self.table)

    @property
    def due_us(self) -> int:
        """Time at which `expire` has something to do."""
        return min(self.table.due_us, self.again_us)

    def restore(self, rows: Iterable[bytes]) -> None:
        """Take in clients of an earlier life."""
        for row in rows:
            client = _decode(row)
            self.table.put(client, ())
            if client.active:
                self._entered(client, self._restored(client))

    def _restored(self, client: Client) -> Processing | None:
        """Return the modulator of a consumer of an earlier life; None without one, or if it does not run here.

        Modules do not outlive the process. The consumer attaches anew, because this broker was started again.
        """
        modulator = client.item.modulator
        if not client.seated or (modulator is not None and modulator.digest):
            return None
        try:
            return self._seats.prepare(client, 0)
        except LocalError:  # This process has not loaded the module that registers it.
            self._outputs.refuse("modulator", client.node)
            return None

    def start(self, now: int) -> None:
        """Tell other brokers of the clients of an earlier life."""
        self._tell(now)

    def attach(self, item: Attach, client: NodeId, order: tuple[int, int], until_us: int, now: int) -> Refusal | None:
        """Enter a client, or let it leave. Returns why it is refused (`ACCEPTED`: it is not).

        Returns None if there is no answer: it said so before, or its module has to come or to be compiled first.
        """
        row = Client(client, item, order, min(until_us, now + LEASE_US))
        before = self.table.get(row)
        waiting = self._waiting.pop(row.key, row)
        if self._broker and (order <= before.order if before is not None else order < waiting.order):
            self._outputs.refuse("overlay-old", client)
            return None
        if before is None and not item.active:
            return ACCEPTED
        refusal, processing = self._prepare(row, before, now)
        if refusal is _WAITS:
            self._waiting[row.key] = row
            self.again_us = min(self.again_us, now + _AGAIN_US)
            return None
        entered, displaced = (False, None) if refusal.word else self.table.put(row, {*self._in_reach, self._node})
        if not entered:
            refusal = refusal if refusal.word else Refusal("seats" if row.seated else "clients")
            self._outputs.refuse("modulator" if refusal.word == "modulator" else "clients", client)
            return refusal
        if displaced is not None:
            self._forget(displaced)
        if item.active:
            self._entered(row, processing)
        elif item.role is Role.CONSUMER:
            self._seats.close(row)
        self._ledger.put(FAMILY + row.digest, _encode(row))
        self._tell(now)
        return ACCEPTED

    def _prepare(self, client: Client, before: Client | None, now: int) -> tuple[Refusal, Processing | None]:
        """Return why a client is refused, or has to wait; for a consumer that is not, its modulator, made."""
        refusal, processing = self._refusal(client, before), None
        if not refusal.word and client.seated:
            try:
                processing = self._seats.prepare(client, now)
            except LocalError as error:
                refusal = Refusal("modulator", str(error)[:DETAIL_MAX])
            else:
                waits = len(self._waiting) < self._waiting_max
                refusal = ACCEPTED if processing is not None else _WAITS if waits else Refusal("clients")
        return refusal, processing

    def attach_again(self, now: int) -> list[tuple[Client, Refusal]]:
        """Return the answers to clients that waited for their modules."""
        self.again_us = NEVER
        found = []
        for row in list(self._waiting.values()):
            refusal = self.attach(row.item, row.node, row.order, row.until_us, now)
            if refusal is not None:
                found.append((row, refusal))
        if self._waiting:
            self.again_us = now + _AGAIN_US
        return found

    def _refusal(self, client: Client, before: Client | None) -> Refusal:
        """Return why a client cannot be one of this broker, whatever room there is."""
        item = client.item
        if not self._broker:
            return Refusal("broker")
        if not item.active:
            return ACCEPTED
        if not self._topology.rosters.has_room(item.channel):
            return Refusal("channels")
        fresh = client.seated and (before is None or not before.seated)
        return Refusal("seats") if fresh and self._seats_of(client.node) >= self._seats_max else ACCEPTED

    def expire(self, now: int) -> None:
        """Forget clients whose leases are over."""
        over = self.table.expire(now)
        for each in over:
            self._forget(each)
        if over:
            self._tell(now)

    def _entered(self, client: Client, processing: Processing | None) -> None:
        if processing is not None:
            self._seats.open(client, processing)
        elif client.item.role is Role.PRODUCER:
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
