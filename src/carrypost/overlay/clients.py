"""Clients of this broker: producers and consumers that chose it as their home (OVERLAY §3.3, client manager).

`Attach` is signed by the client's node, so no node attaches or leaves for another one; of several the newest counts. A
client that does not attach again within its lease is forgotten. Clients are stored, and listed in this broker's roster,
by which other brokers know where events of a channel come from and where they are wanted. The numbers of producers'
last events are here, too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import msgspec

from carrypost.errors import LocalError
from carrypost.model.ids import node_prefix
from carrypost.model.times import NEVER
from carrypost.overlay.items import DETAIL_MAX, Attached, Role, Sent, cursor_pages
from carrypost.overlay.tables import Client, Clients, Served, channel_hash

if TYPE_CHECKING:
    from carrypost.application.ledger import Ledger
    from carrypost.gossip.transfers.link import HostContext
    from carrypost.model.ids import NodeId
    from carrypost.overlay.items import Outbox
    from carrypost.overlay.processing import Processing
    from carrypost.overlay.seats import Seats
    from carrypost.overlay.topology import Topology

# --- last events -------------------------------------------------------------------------------------------

# Numbers of the last events of producers: of those attached here, and as other brokers report them.
#
# A seat notices that an event is missing when a later one comes. For the last event of a producer
# it would not: the home may have passed it on before it knew of the seat, as after a restart. So
# the home of producers sends the numbers of their last events (`Sent`) to a broker with seats of a
# channel, when its roster may show new ones, and to all of them whenever a producer attaches or
# attaches again, unless it only changed to a nearer home. Seats ask producers for what they lack.


_WAITING_MAX = 8
"""Number of reports of one broker that wait for its roster."""


class LastEvents:
    """Last events of the producers of one broker."""

    def __init__(self, topology: Topology, clients: Clients) -> None:
        self._topology, self._clients = topology, clients
        self._last: dict[tuple[NodeId, str], int] = {}
        """By producer and channel; of those that are attached."""
        self._unseen: set[str] = set()
        """Channels of which a producer attached, or attached again, and has sent events."""

    def passed(self, producer: NodeId, channel: str, number: int) -> None:
        """Note that an event was passed on."""
        key = producer, channel
        # Events of producers that are attached elsewhere pass here, too, and their homes report
        # them.
        if key in self._last:
            self._last[key] = max(self._last[key], number)

    def attached(self, producer: NodeId, channel: str, number: int, *, passed_on: bool = False) -> None:
        """Note the last event of a producer that attached, or attached again; `passed_on`: another home sent it."""
        key = producer, channel
        # A producer that only moved to a nearer home has left no gap, and seats need no news of it.
        if number and not passed_on:
            self._unseen.add(channel)
        self._last[key] = max(self._last.get(key, 0), number)

    def of(self, channel: str) -> list[tuple[NodeId, int]]:
        """Return the producers of a channel that are attached, and the numbers of their last events."""
        return self._of_channels().get(channel, [])

    def report(self, outbox: Outbox) -> None:
        """Inform brokers with seats, if rosters or producers changed."""
        rosters, unseen = self._topology.rosters, self._unseen
        if not rosters.news and not unseen:
            return
        news, rosters.news, self._unseen = rosters.news, set(), set()
        last = self._of_channels()
        hashes = {channel: channel_hash(channel) for channel in last}
        fresh = {channel: each for channel, each in hashes.items() if channel in unseen}
        for roster in rosters.table:
            for channel, each in (hashes if roster.prefix in news else fresh).items():
                served = roster.channels.get(each)
                node = self._topology.node_of(roster.prefix)
                if served is not None and served.seats and node is not None:
                    for page in cursor_pages(last[channel]):
                        outbox.add(node, Sent(channel, page))

    def _of_channels(self) -> dict[str, list[tuple[NodeId, int]]]:
        """Return the last events of producers that are attached, by channel, and forget those of others."""
        attached = {(each.node, each.item.channel) for each in self._clients if each.produces}
        self._last = {key: number for key, number in self._last.items() if key in attached}
        found: dict[str, list[tuple[NodeId, int]]] = {}
        for (producer, channel), number in sorted(self._last.items()):
            if number:
                found.setdefault(channel, []).append((producer, number))
        return found


class Reports:
    """Reports about events for the seats of one broker: answers of producers, and numbers of last events (`Sent`).

    A broker can report of as many producers as its roster lists for the channel. Rosters travel from broker to broker,
    so that a report may be faster: it waits for the roster, at most `gap_s`.
    """

    def __init__(self, context: HostContext, topology: Topology, seats: Seats) -> None:
        self._node, self._outputs = context.node, context.outputs
        self._topology, self._seats = topology, seats
        self._all, self._gap_us = context.limits.clients_max, round(context.settings.overlay.gap_s * 1e6)
        self._waiting: dict[tuple[NodeId, Sent], int] = {}
        """Reports that wait for the rosters of their authors, and until when; a few of each known broker."""
        self._version = 0
        """Version of all rosters when they were last compared with the reports that wait."""

    def handle_item(self, item: Sent, author: NodeId, now: int) -> None:
        """Process what producers, and homes of producers, report about their events."""
        listed = self._listed(item.channel, author)
        self._seats.handle_item(item, author, listed=listed)
        others = sum(producer != author for producer, _ in item.last)
        if others > listed and author in self._topology.brokers:
            waiting = sum(each == author for each, _ in self._waiting)
            if waiting < _WAITING_MAX:
                self._waiting[author, item] = now + self._gap_us
            else:
                self._outputs.refuse("lanes", author)

    def _listed(self, channel: str, author: NodeId) -> int:
        """Return the number of producers of a channel that a broker lists; 0 for a node that is not a known broker."""
        if author == self._node:
            return self._all
        served = self._topology.rosters.serving(channel).get(node_prefix(author))
        return 0 if served is None or author not in self._topology.brokers else served.producers

    def work(self, now: int) -> None:
        """Process reports whose authors' rosters have come."""
        if not self._waiting or self._version == self._topology.rosters.table.version:
            return
        self._version = self._topology.rosters.table.version
        waiting, self._waiting = self._waiting, {}
        for (author, item), until_us in waiting.items():
            if until_us > now:
                self.handle_item(item, author, now)
                if (author, item) in self._waiting:
                    self._waiting[author, item] = until_us
            else:
                self._outputs.refuse("lanes", author)


FAMILY = b"A"
"""First byte of the names of rows."""
_AGAIN_US = 5_000_000
"""Interval at which clients that wait for their modules are checked, if nothing happens."""
STATE = "state"
"""Refusal of a consumer whose seat is not here any more: the consumer has to send its state along."""
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Client).decode


class Refusal(NamedTuple):
    """Reason why this broker does not accept a client."""

    reason: str
    """Reason in one word; empty if the client is accepted."""
    detail: str = ""
    """Details, for people."""


ACCEPTED, _WAITS = Refusal(""), Refusal("waits")
NO_ROOM = frozenset({"broker", "channels", "clients", "seats"})
"""Reasons that also hold for other clients of the same role."""


class ClientManager:
    """The clients of one broker."""

    def __init__(self, context: HostContext, topology: Topology, ledger: Ledger, seats: Seats, outbox: Outbox) -> None:
        self._broker, self._outputs = context.settings.overlay.broker, context.outputs
        self._in_reach, self._seats_max = context.links.in_reach, context.limits.seats_per_client_max
        self._node, self._topology, self._ledger, self._seats = context.node, topology, ledger, seats
        self._outbox = outbox
        self.table = Clients(context.limits.clients_max, context.limits.seats_max)
        self._waiting: dict[tuple[NodeId, Role, str, int], Client] = {}
        """Clients whose modules have to come, or to be compiled, first."""
        self._waiting_max, self.again_us = context.limits.clients_max, NEVER
        self.last_events = LastEvents(topology, self.table)

    def restore(self, _: bytes, row: bytes) -> None:
        """Restore a client after a restart."""
        client = _decode(row)
        self.table.put(client, ())
        if client.active:
            self._entered(client, self._restored(client))

    def _restored(self, client: Client) -> Processing | None:
        """Return the modulator of a restored consumer; None without one, or if it does not run here."""
        modulator = client.item.modulator
        if not client.seated:
            return None
        if modulator is not None and modulator.digest:
            return self._seats.absent(client)
        try:
            return self._seats.prepare(client, 0)
        except LocalError:  # This process has not loaded the module that registers it.
            self._outputs.refuse("modulator", client.node)
            return None

    def start(self, now: int) -> None:
        """Announce restored clients to other brokers, and resume the work for them."""
        self._seats.start()
        self.update_roster(now)
        self.again_us = now

    def is_news(self, client: Client) -> bool:
        """Return True if no later request of the client is known."""
        before = self.table.get(client)
        if before is None:
            return client.order >= self._waiting.get(client.key, client).order
        return client.order > before.order

    def attach(self, client: Client, now: int) -> Refusal | None:
        """Enter a client, or let it leave; return the refusal (`ACCEPTED`: there is none).

        Returns None if there is no answer: the request is a repetition, or its module has to be fetched or compiled
        first.
        """
        news = self.is_news(client)
        self._waiting.pop(client.key, None)
        if self._broker and not news:
            self._outputs.refuse("overlay-old", client.node)
            return None
        # A client that is not here may leave as often as it likes, and gets no row for it.
        if not client.active and self.table.get(client) is None:
            return ACCEPTED
        # A new seat would go on with the numbers, but with an empty state: results would be wrong
        # without any sign of it. So the consumer sends its checkpoint along.
        if client.seated and self._seats.lacks_state(client):
            return Refusal(STATE)
        refusal, processing = self._enter(client, now)
        if refusal is _WAITS:
            self._waiting[client.key] = client
            self.again_us = min(self.again_us, now + _AGAIN_US)
            return None
        if refusal.reason:
            return refusal
        if client.active:
            self._entered(client, processing)
        elif client.item.role is Role.CONSUMER:
            self._seats.close(client)
        self.keep(client)
        self.update_roster(now)
        return ACCEPTED

    def _enter(self, client: Client, now: int) -> tuple[Refusal, Processing | None]:
        """Enter a client in the table; return the refusal or the reason to wait; else the modulator of a consumer."""
        refusal, processing = self._refusal(client, self.table.get(client)), None
        if not refusal.reason and client.seated:
            try:
                processing = self._seats.prepare(client, now)
            except LocalError as error:
                refusal = Refusal("modulator", str(error)[:DETAIL_MAX])
            else:
                if processing is None and len(self._waiting) < self._waiting_max:
                    return _WAITS, None
                # Bounded: each client that waits may name another module that never comes.
                refusal = ACCEPTED if processing is not None else Refusal("clients")
        entered, displaced = (False, None) if refusal.reason else self.table.put(client, {*self._in_reach, self._node})
        if not entered:
            refusal = refusal if refusal.reason else Refusal("seats" if client.seated else "clients")
            self._outputs.refuse("modulator" if refusal.reason == "modulator" else "clients", client.node)
        if displaced is not None:
            self._forget(displaced)
            self.answer(displaced, Refusal("seats" if displaced.seated else "clients"))  # It looks for another home.
        return refusal, processing

    def answer(self, client: Client, refusal: Refusal) -> None:
        """Inform a client whether this broker accepts it; one that sends its state is informed on its arrival."""
        item = client.item
        if item.active and (refusal.reason or not item.adopts):
            answer = Attached(item.role, item.channel, item.subscription, refusal.reason, detail=refusal.detail)
            self._outbox.add(client.node, answer)

    def expect(self, client: Client, now: int) -> Refusal | None:
        """List a client whose seat moves here; return the refusal (`ACCEPTED`: there is none).

        Returns None if its module has to be fetched or compiled first.
        """
        refusal, processing = self._enter(client, now)
        if refusal is _WAITS:
            return None
        if not refusal.reason and processing is not None:
            self._seats.expect(client, processing)
            self.update_roster(now)
        return refusal

    def keep(self, client: Client) -> None:
        """Write a client to the store."""
        self._ledger.put(FAMILY + client.digest, _encode(client))

    def forget(self, client: Client, now: int) -> None:
        """Forget a client and its seat, which is elsewhere."""
        self.table.remove(client)
        self._forget(client)
        self.update_roster(now)

    def attach_again(self, now: int) -> None:
        """Answer clients that waited for their modules, and complete restored seats."""
        lacking = self._lacks_modules(now)
        for client in list(self._waiting.values()):
            if (refusal := self.attach(client, now)) is not None:
                self.answer(client, refusal)
        self.again_us = now + _AGAIN_US if lacking or self._waiting else NEVER

    def _lacks_modules(self, now: int) -> bool:
        """Give restored seats the modules that are here, and ask for others; return True if some are missing.

        A consumer that cannot be reached attaches anew when it is back, since this broker was started again.
        """
        lacking = [each for each in self.table if each.seated and self._seats.lacks_module(each)]
        for client in lacking:
            if client.node == self._node or client.node in self._in_reach:
                try:
                    processing = self._seats.prepare(client, now)
                except LocalError:  # The consumer is told when it attaches anew.
                    continue
                if processing is not None:
                    self._seats.open(client, processing)
        return any(map(self._seats.lacks_module, lacking))

    def _refusal(self, client: Client, before: Client | None) -> Refusal:
        """Return the refusal of a client, apart from lack of room."""
        item = client.item
        if not self._broker:
            return Refusal("broker")
        if not item.active:
            return ACCEPTED
        if not self._topology.rosters.has_room(item.channel):
            return Refusal("channels")
        # The limit applies to new seats only. A consumer that renews its lease keeps its seat, even
        # if the limit was lowered since.
        fresh = client.seated and (before is None or not before.seated)
        has = sum(each.node == client.node and each.seated for each in self.table) if fresh else 0
        return Refusal("seats") if fresh and has >= self._seats_max else ACCEPTED

    def expire(self, now: int) -> None:
        """Forget clients whose leases are over."""
        over = self.table.expire(now)
        for each in over:
            self._forget(each)
        if over:
            self.update_roster(now)

    def _entered(self, client: Client, processing: Processing | None) -> None:
        if processing is not None:
            self._seats.open(client, processing)
        elif client.item.role is Role.PRODUCER:
            item = client.item
            self.last_events.attached(client.node, item.channel, item.number, passed_on=item.passed_on)

    def _forget(self, client: Client) -> None:
        self._ledger.delete(FAMILY + client.digest)
        if client.item.role is Role.CONSUMER:
            self._seats.close(client)

    def update_roster(self, now: int) -> None:
        """Update the roster: the channels with clients here. Seats that moved away are not among them.

        It counts producers, and says whether there are seats: their number changes whenever one moves, and would be
        sent to all brokers although it makes no difference to them.
        """
        producers: dict[str, int] = {}
        seats: dict[str, int] = {}
        for each in self.table:
            seat = self._seats.at(each) if each.seated else None
            if not each.active or (seat is not None and seat.suspended):
                continue
            if each.item.role is Role.PRODUCER:
                producers[each.item.channel] = producers.get(each.item.channel, 0) + 1
            else:
                seats[each.item.channel] = 1
        served = {name: Served(producers.get(name, 0), seats.get(name, 0)) for name in producers | seats}
        self._topology.serve(served, now)
