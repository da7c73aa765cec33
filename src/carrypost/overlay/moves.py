"""Moves: relocations and adoptions of seats from this broker and to it, and the clients whose seats these are.

`Attach` of a consumer is more than a request: an active one confirms the seat that it names by its epoch, and one by
which it leaves ends a seat that does not count any more. So requests of clients pass here on their way to the table.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from carrypost.overlay import destinations, sources
from carrypost.overlay.adoption import Adoptions
from carrypost.overlay.clients import ACCEPTED
from carrypost.overlay.destinations import Destinations
from carrypost.overlay.items import Abort, Detour, Detoured, Homed, ItemOutbox, MoveReason, Ready, Role, Seated
from carrypost.overlay.sources import Sources

if TYPE_CHECKING:
    from collections.abc import Iterable

    from carrypost.gossip.transfers.host_context import HostContext
    from carrypost.local.ledger import Ledger
    from carrypost.model.ids import NodeId
    from carrypost.overlay.clients import ClientManager, Refusal
    from carrypost.overlay.detours import Detours
    from carrypost.overlay.exchanges import Exchanges
    from carrypost.overlay.rows import RevertingRows
    from carrypost.overlay.seats import Seats
    from carrypost.overlay.tables import Client
    from carrypost.overlay.topology import Topology

FAMILIES = (sources.FAMILY, sources.GONE, destinations.FAMILY)
"""First bytes of the names of rows."""
FAULT = "fault"
"""Refusal of a broker that closed the seat after an error."""


class Moves:
    """The relocations that one broker has a part in."""

    def __init__(
        self,
        context: HostContext,
        topology: Topology,
        clients: ClientManager,
        seats: Seats,
        detours: Detours,
        *,
        exchanges: Exchanges,
        rows: RevertingRows,
        ledger: Ledger,
    ) -> None:
        self._clients, self._seats, self._detours, self._holdings = clients, seats, detours, context.holdings
        self.outbox = ItemOutbox(context)
        self.sources = Sources(context, topology, clients, seats, self.outbox, rows=rows, ledger=ledger)
        self.destinations = Destinations(
            context, clients, seats, self.sources, self.outbox, exchanges=exchanges, rows=rows
        )
        self.adoptions = Adoptions(context, clients, seats, self.outbox)

    @property
    def due_us(self) -> int:
        """Time at which `expire` has something to do."""
        return min(self.sources.due_us, self.destinations.due_us)

    def expire(self, now: int) -> None:
        """End relocations that lasted too long, and repeat unanswered items."""
        self.sources.expire(now)
        self.destinations.expire(now)

    def restore(self, rows: Iterable[tuple[bytes, bytes]]) -> None:
        """Restore rows after a restart; clients and seats are restored already."""
        for name, value in rows:
            part = self.destinations if name.startswith(destinations.FAMILY) else self.sources
            part.restore(name, value, self._holdings.now_us)

    def start(self, incarnation: int, now: int) -> None:
        """Resume relocations that a restart interrupted."""
        self.sources.start(incarnation, now)
        self.destinations.start(now)

    def attach(self, client: Client, now: int) -> Refusal | None:
        """Enter a client, or let it leave, as `ClientManager.attach`; one whose seat moved away is sent its place."""
        confirms = False
        if client.item.role is Role.CONSUMER and self._clients.is_news(client):
            if self.sources.has_moved(client, now):
                return None
            self.sources.attached(client, now)
            confirms = self.destinations.attached(client, now)
        refusal = self._clients.attach(client, now)
        return None if confirms and refusal is ACCEPTED else refusal

    def migrate(
        self, consumer: tuple[NodeId, str, int], to: NodeId, reason: MoveReason, now: int, gain: float = 0.0
    ) -> bool:
        """Begin to move the seat of a consumer (node, channel, subscription). Returns False if it stays for now.

        `gain`: hops by which paths would become shorter, if the other broker has to make room (`overlay.exchanges`).
        """
        node, channel, subscription = consumer
        client = self._clients.table.at(node, Role.CONSUMER, channel, subscription)
        return client is not None and client.seated and self.destinations.send_on(client, to, reason, now, gain)

    def forget_failed(self) -> None:
        """Forget the clients of seats that failed, and inform them: they attach elsewhere, or again."""
        for client, fault in self._seats.pop_failures():
            item = client.item
            self.sources.forget(client)
            self.destinations.forget(client)
            self._clients.forget(client, self._holdings.now_us)
            self.outbox.add(client.node, Homed(item.role, item.channel, item.subscription, FAULT, detail=fault))

    def lost(self, broker: NodeId) -> None:
        """Note that a broker cannot be reached any more."""
        self.sources.lost(broker, self._holdings.now_us)

    def handle_item(self, item: Ready | Detour | Detoured | Seated | Abort, author: NodeId, now: int) -> bool:
        """Process an item of a relocation. Returns False if it does not count."""
        if isinstance(item, Detour):
            answers = self._detours.asked(item, author, self._clients.last_events.of(item.channel), now)
            for answer in answers or ():
                self.outbox.add(author, answer)
            return answers is not None
        if isinstance(item, Abort):
            return self.destinations.aborted(item, author, now)
        return self.sources.handle_item(item, author, now)
