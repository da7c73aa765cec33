"""Homes: the broker that each client of this node is attached to (OVERLAY §2.2, home broker).

A client is a producer or a consumer of a channel. Its home is the nearest broker (`overlay.placement`), this node
itself if it is one. The client asks with `Attach`, again after growing delays until the broker answers, and then before
its lease ends. It asks another one if the broker refuses, or is not known as a broker any more; and asks anew when
its home has been restarted.

Every `discovery_s` a client checks which brokers are near. A producer changes to a nearer one by itself. A home that
cannot be reached for `orphan_s` is replaced by one that can be. With `homing = "static"` the first home stays.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

import msgspec

from carrypost.errors import LocalError, ResourceAllocationException
from carrypost.model.ids import NodeId
from carrypost.model.times import NEVER
from carrypost.overlay import events
from carrypost.overlay.clients import NO_ROOM, STATE
from carrypost.overlay.items import HOPS_MAX, ITEMS, Attach, Attached, Moving, Report, Role
from carrypost.overlay.placement import FAR, Distance, Monitor, nearest
from carrypost.overlay.relocation import packed
from carrypost.overlay.tables import REPEATS

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    from carrypost.gossip.transfers.link import HostContext
    from carrypost.island.island import Island
    from carrypost.overlay.consumers import Consumers
    from carrypost.overlay.items import Outbox
    from carrypost.overlay.tables import BrokerInfo
    from carrypost.overlay.topology import Topology

_FIRST_US = 1_000_000
"""Shortest delay before a broker that did not answer is asked again."""
_BROUGHT_US = 10_000_000
"""Lifetime of the state of a seat on its way, beside the time until it is sent again."""
_WATCH_US = 1_000_000
"""Time between checks of how far the homes of producers are."""
_REFUSED_US = 60_000_000
"""Time for which a client does not ask a broker again that refused it, or had no room for such clients."""

Key = tuple[Role, str, int]
"""Role, channel and subscription of a client of this node."""


class _Client(msgspec.Struct, eq=False):
    """A client of this node."""

    key: Key
    look_us: int
    """Time at which it looks for brokers."""
    monitor: Monitor = msgspec.field(default_factory=Monitor)
    broker: NodeId | None = None
    """Broker that it asked to be its home."""
    incarnation: int = 0
    """Incarnation of that broker."""
    homed: bool = False
    """True once that broker confirmed that it is the home."""
    epoch: int = 0
    """Epoch of the seat that the home of a consumer confirmed last."""
    due_us: int = 0
    """Time at which it asks, or asks again."""
    delay_us: int = _FIRST_US
    lost_us: int = NEVER
    """Time since which that broker cannot be reached."""
    reported: NodeId | None = None
    """The home that was last reported to the program."""
    since_us: int = NEVER
    """Time at which that one was reported; NEVER: in an earlier incarnation."""
    reason: str = events.FIRST
    """Reason for choosing that broker."""
    moves_for: str = events.NEARER
    """Reason for which the seat of a consumer moves, as its home reported last."""
    refusal: str = ""
    """Reason why the broker that answered last refused; empty if it did not."""
    detail: str = ""
    """Details of that refusal, for people."""


class Homes:
    """The clients of one node, and their home brokers."""

    def __init__(
        self, context: HostContext, island: Island, topology: Topology, outbox: Outbox,
        *, consumers: Consumers, last_event: Callable[[str], int],
    ) -> None:  # fmt: skip
        settings = context.settings.overlay
        self._node, self._broker, self._static = context.node, settings.broker, settings.homing == "static"
        self._discovery_us, self._orphan_us = round(settings.discovery_s * 1e6), round(settings.orphan_s * 1e6)
        self._most, self._holdings, self._lease_us = context.limits.clients_max, context.holdings, topology.lease_us
        self._outputs, self._island, self._topology, self._outbox = context.outputs, island, topology, outbox
        self._consumers, self._last_event = consumers, last_event
        self._clients: dict[Key, _Client] = {}
        self.watch_us = NEVER
        """Time of the next check of how far the homes of producers are; NEVER if there are no producers."""
        self._refused: dict[tuple[Key | Role, NodeId], int] = {}
        """Brokers that refused a client, or had no room for clients of a role, and until when they are not asked again;
        for each one at most as many brokers as are known."""
        self._started = False

    @property
    def due_us(self) -> int:
        """Time at which `expire` has something to do."""
        due_us = NEVER
        for each in self._clients.values() if self._started else ():
            due_us = min(due_us, each.due_us, each.look_us)
        return due_us

    def start(self) -> None:
        """Begin to ask brokers."""
        self._started = True

    def home(self, role: Role, channel: str, subscription: int = 0) -> NodeId | None:
        """Return the home of a client; None while it has none."""
        found = self._clients.get((role, channel, subscription))
        return found.broker if found is not None and found.homed else None

    def clients(self) -> list[tuple[Key, NodeId | None, int]]:
        """Return the clients of this node with their homes, None where there is none, and the times since then."""
        return [(key, each.broker if each.homed else None, each.since_us) for key, each in self._clients.items()]

    def refusal(self, role: Role, channel: str, subscription: int = 0) -> tuple[str, str]:
        """Return the last refusal of a client by a broker, in a word and in full; empty if there was none."""
        found = self._clients.get((role, channel, subscription))
        return ("", "") if found is None else (found.refusal, found.detail)

    def of_channels(self, *roles: Role) -> dict[str, NodeId]:
        """Return the homes of this node's clients, or of those in some roles, by channel."""
        clients = [each for key, each in sorted(self._clients.items()) if not roles or key[0] in roles]
        return {each.key[1]: each.broker for each in clients if each.homed and each.broker is not None}

    # --- clients -------------------------------------------------------------------------------------------

    def attach(self, role: Role, channel: str, subscription: int = 0, broker: NodeId | None = None) -> None:
        """Look for a home of one more client, or resume with `broker` after a restart. Idempotent.

        Raises `LocalError` if there cannot be one.
        """
        key = (role, channel, subscription)
        # Called for each event that a producer publishes, so that a known client must cost no more
        # than a look.
        if key in self._clients:
            return
        check_channel(channel)
        self._check_room(1)
        self.watch_us = 0
        self._clients[key] = _Client(key, self._holdings.now_us, broker=broker, reported=broker)

    def check_producers(self, channels: Collection[str]) -> None:
        """Raise `LocalError` unless this node is a producer of these channels, or may become one."""
        new = [each for each in channels if (Role.PRODUCER, each, 0) not in self._clients]
        for each in new:
            check_channel(each)
        self._check_room(len(new))

    def _check_room(self, clients: int) -> None:
        if clients and len(self._clients) + clients > self._most:
            raise ResourceAllocationException(
                f"this node has {len(self._clients):,} clients of channels, and may have {self._most:,} "
                "(limits.clients_max): end some, or raise it"
            )

    def detach(self, role: Role, channel: str, subscription: int) -> None:
        """Let a client leave its home; idempotent."""
        key = (role, channel, subscription)
        self._refused = {each: until_us for each, until_us in self._refused.items() if each[0] != key}
        found = self._clients.pop(key, None)
        if found is not None and found.broker is not None:
            self._leave(found, found.broker)

    def attach_again(self, key: Key, now: int) -> None:
        """Send the home of a client something new at once."""
        if (found := self._clients.get(key)) is not None:
            found.due_us, found.delay_us = now, _FIRST_US

    def attached(self, item: Attached, author: NodeId, now: int) -> bool:
        """Process the answer of a broker, or of one that a seat moved to; return False if it was not asked."""
        found = self._clients.get((item.role, item.channel, item.subscription))
        if found is not None and item.epoch:
            return self._relocated(found, item, author, now)
        if found is None or found.broker != author:
            return False
        subscription = self._consumers.at(item.subscription)
        if item.refusal == STATE and subscription is not None:
            self._consumers.begin_epoch(subscription)
            self.attach_again(found.key, now)
            return True
        found.refusal, found.detail = item.refusal, item.detail
        if not item.refusal:
            if subscription is None or not subscription.row.adopting:
                self._settle(found, author, now)
        else:
            # Only this client waits, unless the broker has no room for more of its kind. A program
            # with a faulty module must not keep the producers of its node from their home.
            who = item.role if item.refusal in NO_ROOM else found.key
            self._refused[who, author] = now + _REFUSED_US
            found.homed, found.due_us, found.look_us = False, NEVER, now
            self._outputs.emit(events.HomeRefused(*found.key, author, item.refusal, item.detail))
        return True

    def moving(self, item: Moving, author: NodeId, now: int) -> bool:
        """Note where a seat moves; return False if its home does not say so. Ask the home again if nothing comes."""
        found = self._clients.get((Role.CONSUMER, item.channel, item.subscription))
        if found is None or not self._consumers.moving(item, author):
            return False
        found.due_us = min(found.due_us, now + self._orphan_us)
        found.moves_for = item.reason
        return True

    def _settle(self, client: _Client, broker: NodeId, now: int) -> None:
        client.homed, client.delay_us, client.due_us = True, _FIRST_US, now + self._lease_us // 2
        client.epoch = self._epoch(client)
        self._report_home(client, broker)

    def _relocated(self, client: _Client, item: Attached, author: NodeId, now: int) -> bool:
        """Change the home to the broker that a seat moved to, or that adopted it; leave the old one, and confirm.

        A broker that a seat moved to repeats `Attached` until it gets the confirmation, and does not answer it. A seat
        that does not count may end.
        """
        found = self._consumers.at(item.subscription)
        if found is None or not self._consumers.moved(found, author, item.epoch):
            if found is not None and found.disowns(item.epoch):
                self._leave(client, author)
            return False
        self._consumers.adopted(found, item.epoch)
        if client.broker != author:
            self._move(client, author, now, client.moves_for)
        client.homed, client.epoch = True, item.epoch
        self._ask(client, now)
        self._settle(client, author, now)
        return True

    def _report_home(self, client: _Client, broker: NodeId) -> None:
        if client.reported != broker:
            client.reported, client.since_us = broker, self._holdings.now_us
            self._outputs.emit(events.Homed(*client.key, broker, client.reason))

    def announced(self, info: BrokerInfo, now: int) -> None:
        """Ask anew if a home has been restarted, and if there was no broker."""
        for each in self._clients.values():
            if each.broker is None:
                each.look_us = now
            elif each.broker == info.node and each.incarnation < info.incarnation:
                each.homed, each.due_us, each.delay_us = False, now, _FIRST_US

    def lost(self, broker: NodeId, now: int) -> None:
        """Look for other homes than a broker that is not known as one any more."""
        self._refused = {each: until_us for each, until_us in self._refused.items() if each[1] != broker}
        for each in self._clients.values():
            if each.broker == broker:
                each.look_us = now

    # --- looking and asking --------------------------------------------------------------------------------

    def watch(self, now: int) -> bool:
        """Bring forward looks of producers whose homes moved away; return True if there are any.

        Called with the first step of the host after `watch_us`. No timer wakes the host for it.
        """
        producers = [each for (role, _, _), each in self._clients.items() if role is Role.PRODUCER]
        self.watch_us = now + _WATCH_US if producers and not self._static else NEVER
        reach = self._island.reach()
        moved = [
            each for each in producers
            if each.homed and each.broker not in {None, self._node}
            and each.monitor.home_moved(Distance(False, reach[each.broker]) if each.broker in reach else FAR)
        ]  # fmt: skip
        for each in moved:
            each.look_us = now
        return bool(moved)

    def expire(self, now: int) -> None:
        """Look for brokers, and ask them, for clients that are due."""
        due = [each for _, each in sorted(self._clients.items()) if min(each.due_us, each.look_us) <= now]
        distances = self._distances() if due else {}
        self._refused = {each: until_us for each, until_us in self._refused.items() if until_us > now}
        for each in due:
            if each.look_us <= now or each.broker is None:
                self._look(each, distances, now)
            if each.due_us <= now:
                self._ask(each, now)

    def _look(self, client: _Client, distances: Mapping[NodeId, Distance], now: int) -> None:
        """Change the home of a client, if the present one is gone, or farther away."""
        role = client.key[0]
        closed = {node for who, node in self._refused if who in (role, client.key)}
        home = client.broker if client.broker not in closed or client.homed else None
        open_to = {node: each for node, each in distances.items() if node == home or node not in closed}
        nearer = None
        if home is not None and role is Role.PRODUCER and not self._static:
            nearer = client.monitor.look_for_producer(home, open_to)
        elif home is not None and client.homed and not self._static:
            self._report(client, home, open_to)
        client.look_us = now + self._discovery_us
        best = nearest(open_to)
        if home is None or (home not in distances and not (self._static and client.homed)):
            self._move(client, best, now, events.ORPHAN)
        elif home not in distances:
            return  # It is kept until it is known again.
        elif not distances[home].unreachable:
            client.lost_us = NEVER
            if nearer is not None and client.homed:
                self._move(client, nearer, now, events.NEARER)
        else:
            found = self._consumers.at(client.key[2])
            client.lost_us = max(min(client.lost_us, now), 0 if found is None else found.heard_us)
            orphaned = now - client.lost_us >= self._orphan_us or not client.homed
            if orphaned and best is not None and not distances[best].unreachable and not self._static:
                self._move(client, best, now, events.ORPHAN)

    def _report(self, client: _Client, home: NodeId, distances: Mapping[NodeId, Distance]) -> None:
        """Inform the home of a consumer of brokers that are as near, or nearer."""
        unreachable = home not in distances or distances[home].unreachable
        found = [] if unreachable else client.monitor.look_for_consumer(home, distances)
        if found and home != self._node:
            brokers = tuple((node, min(hops, HOPS_MAX)) for node, hops in found)
            self._outbox.add(home, Report(*client.key[1:], brokers, client.reason == events.UPSTREAM))

    def _move(self, client: _Client, broker: NodeId | None, now: int, reason: str) -> None:
        """Let a client ask another broker, and leave the one that it asked before."""
        before, client.broker = client.broker, broker
        if before is not None and before != broker:
            self._leave(client, before)
        client.homed, client.delay_us, client.lost_us = False, _FIRST_US, NEVER
        client.due_us = NEVER if broker is None else now
        client.reason = events.FIRST if client.reported is None else reason

    def _ask(self, client: _Client, now: int) -> None:
        if client.broker is None:
            client.due_us = NEVER  # Until a broker announces itself.
            return
        client.due_us = now + client.delay_us
        client.delay_us = min(2 * client.delay_us, self._lease_us // REPEATS)
        info = self._topology.brokers.get(client.broker)
        client.incarnation = 0 if info is None else info.incarnation
        role, channel, number = client.key
        if (found := self._consumers.at(number)) is None:
            nearer = client.reason == events.NEARER and client.reported != client.broker
            item = Attach(role, channel, number=self._last_event(channel), passed_on=nearer)
            self._outbox.add(client.broker, item)
            return
        self._consumers.ask(found, client.broker)
        item = found.attach(renews=client.homed and client.epoch == found.row.epoch)
        if item.adopts:  # It is sent again after about half of this time.
            payload, lifetime_us = packed(self._consumers.kept.adoption(found)), client.delay_us + _BROUGHT_US
            self._outbox.add(client.broker, item, payload=payload, lifetime_us=lifetime_us)
        else:
            self._outbox.add(client.broker, item)

    def _leave(self, client: _Client, broker: NodeId) -> None:
        self._outbox.add(broker, Attach(*client.key, active=False, epoch=self._epoch(client)))

    def _epoch(self, client: _Client) -> int:
        """Return the epoch of the seat of a consumer; 0 for a producer, and if it is closed."""
        found = self._consumers.at(client.key[2])
        return 0 if found is None else found.row.epoch

    def _distances(self) -> dict[NodeId, Distance]:
        """Return the distances of the brokers that are known, this node itself included."""
        reach = self._island.reach()
        found = {
            each.node: Distance(each.node not in reach, reach.get(each.node, each.hops))
            for each in self._topology.brokers
        }
        if self._broker:
            found[self._node] = Distance(False, 0)
        return found


@functools.lru_cache(256)  # Called for each event.
def check_channel(channel: str) -> None:
    """Raise `LocalError` unless a text can be the name of a channel."""
    if not ITEMS.is_readable(Attach(Role.PRODUCER, channel)):
        raise LocalError(f"a channel has a name of 1 to 256 characters, not {channel!r}"[:200])
