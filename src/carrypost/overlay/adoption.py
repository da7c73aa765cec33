"""Adoption: a broker takes over the seat of a consumer whose home is lost, with the state that the consumer sends.

`Attach` announced that a state will come, and the seat waits for it (`Seat.awaits_state`). `Adopt` has it as its
payload, which the driver reads. The consumer is answered once the seat is durable, and again whenever it asks again.

The one invariant: a state counts if its author is the consumer, and its epoch is the one that `Attach` named.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from carrypost.overlay.items import Adopt, Homed, Role
from carrypost.overlay.snapshot import Snapshot, unpacked

if TYPE_CHECKING:
    from carrypost.gossip.holdings.copies import Copy
    from carrypost.gossip.transfers.host_context import HostContext
    from carrypost.gossip.wire.pieces import Blank
    from carrypost.model.ids import NodeId
    from carrypost.overlay.clients import ClientManager
    from carrypost.overlay.inbox import Reader
    from carrypost.overlay.items import ItemOutbox
    from carrypost.overlay.lanes import Seat
    from carrypost.overlay.seats import Seats


class Adoptions:
    """States of seats that consumers send to one broker."""

    def __init__(self, context: HostContext, clients: ClientManager, seats: Seats, outbox: ItemOutbox) -> None:
        self._limits, self._signed = context.limits, context.identity.signed
        self._clients, self._seats, self._outbox = clients, seats, outbox

    def receive(self, item: Adopt, copy: Copy, _now: int) -> bool | Reader:
        """Return a function that reads the state of a seat that waits for it; confirm again if a seat has it.

        Returns False for a state that no seat expects.
        """
        consumer = copy.descriptor.node
        seat = self._expecting(item, consumer)
        if seat is None:
            return False
        if seat.awaits_state:
            return partial(self._read, item, consumer)
        self._answer(item, consumer)
        return True

    def _read(self, item: Adopt, consumer: NodeId, payload: bytes | Blank) -> bool:
        snapshot = unpacked(payload, self._limits, signed=self._signed)
        fits = snapshot.epoch == item.epoch and not snapshot.runs
        if not fits or not self.adopt(item, consumer, snapshot):
            return False
        self._answer(item, consumer)
        return True

    def adopt(self, item: Adopt, consumer: NodeId, snapshot: Snapshot) -> bool:
        """Begin the seat of a consumer with a state; return False if it does not expect that."""
        seat = self._expecting(item, consumer)
        if seat is not None:
            self._seats.adopt(seat.client, snapshot)
        return seat is not None

    def _expecting(self, item: Adopt, consumer: NodeId) -> Seat | None:
        """Return the seat whose consumer announced this state."""
        client = self._clients.table.at(consumer, Role.CONSUMER, item.channel, item.subscription)
        expects = client is not None and client.item.adopts and client.item.epoch == item.epoch
        return None if client is None or not expects else self._seats.find(client)

    def _answer(self, item: Adopt, consumer: NodeId) -> None:
        self._outbox.add(consumer, Homed(Role.CONSUMER, item.channel, item.subscription, epoch=item.epoch))
