"""Topology of the overlay: known brokers, neighbours, and the exchange between brokers (OVERLAY §2.3)."""

# A broker announces itself to all nodes. Every `update_s` it looks: its neighbours are the nearest
# brokers that it knows, by the island's hops. The result is its *entry*, which it alone writes. It
# sends its neighbours the entries that changed since it last sent them, its own and others', so
# that each entry goes one broker further in each period. A broker that no other lists as a
# neighbour gets them from those that it lists. In its first period a broker sends what it learns at
# once. Then every broker knows the whole overlay before movement begins to matter.
#
# Why not flood every change, as the island does? Brokers are few and far apart, and each item
# between them is a message of its own that travels several hops. Passing entries on once per period
# costs a bounded number of messages, and paths that are one period old are only a little longer.
#
# Losses and partitions. The same message has a digest of all entries and rosters
# (`overlay.tables`). Brokers whose digests differ although nothing changes, or which differed for
# long, exchange the versions that they have, and send what the other lacks.
#
# Lies. Entries are not signed, because a signature of 64 bytes would make an entry of 40 bytes 2.6
# times as long. A broker may receive an entry of its own that is later than the one it wrote, after
# a crash or from a broker that lies. It then writes a still later one; versions wrap around, so that
# none is the last. Entries of brokers that cannot be reached are dropped, and sent again when these
# can be reached.

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import msgspec

from carrypost.model.ids import node_prefix
from carrypost.model.times import NEVER
from carrypost.overlay import items
from carrypost.overlay.tables import (
    REPEATS,
    BrokerInfo,
    Brokers,
    Rosters,
    TopologyTable,
    lease_us,
    pack_rosters,
    unpack_rosters,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from collections.abc import Set as AbstractSet
    from random import Random

    from carrypost.config.settings import Overlay
    from carrypost.gossip.holdings.copies import Copy
    from carrypost.gossip.transfers.link import HostContext
    from carrypost.island.island import Island
    from carrypost.model.descriptor import Descriptor
    from carrypost.model.ids import NodeId
    from carrypost.overlay.items import Outbox
    from carrypost.overlay.load import Load
    from carrypost.overlay.tables import Roster, Served

_FIRST_US = 1_000_000
"""Delay of a broker's first look after its start."""
_SOON_US, _LATER_US = 500_000, 2_000_000
"""Delays of urgent changes, and of rosters without new seats, so that others learnt meanwhile go with them."""
_TOPOLOGY_HEAD = items.ITEMS.encode([items.Entries(bytes(items.DIGEST_BYTES))])[:4]
"""First bytes of the messages by which brokers exchange the topology."""
_CHANGE_PERCENT = 5
"""Change of its load, in percent of the capacity, that a broker reports to others."""
_ANSWER_US = 500_000
"""Delay before a broker that asks for what it lacks is answered again: the answer is longer than the question."""
PATIENCE = 16
"""Number of messages of one neighbour in a row with another digest, after which it is asked for what is lacking."""


class Vicinity:
    """The brokers that one broker can reach now."""

    def __init__(self, island: Island, brokers: Brokers, settings: Overlay) -> None:
        self._island, self._brokers = island, brokers
        self._most, self._furthest = settings.neighbours_max, settings.vicinity_hops
        self._seen: tuple[Mapping[NodeId, int], int] = {}, -1
        """Hosts in reach, and version of the brokers, that the hops were taken from."""
        self._hops: dict[NodeId, int] = {}
        self._version = 0

    @property
    def version(self) -> int:
        """Counter that grows when a distance changes."""
        self._look()
        return self._version

    def _look(self) -> None:
        reach, brokers = self._island.reach(), self._brokers.version
        before, version = self._seen
        if brokers != version or (reach is not before and reach != before):
            self._seen = reach, brokers
            hops = {each.node: reach[each.node] for each in self._brokers if each.node in reach}
            self._version += hops != self._hops
            self._hops = hops

    def nearest(self) -> dict[NodeId, int]:
        """Return the nearest brokers and their hops: those that are to be neighbours."""
        self._look()
        near = sorted((hops, node) for node, hops in self._hops.items())[: self._most]
        return {node: hops for hops, node in near if hops <= self._furthest}

    def links(self, listed: Iterable[bytes]) -> dict[bytes, int]:
        """Return the links of this broker with their hops now: to brokers listed as its neighbours, and to the nearest.

        Brokers that cannot be reached are left out.
        """
        nearest, also = self.nearest(), set(listed)
        found = [each for each in self._brokers if each.node in nearest or each.prefix in also]
        return {each.prefix: self._hops[each.node] for each in found if each.node in self._hops}


class Way(NamedTuple):
    """A row of the BRT: the path to one broker."""

    hops: int
    """Hops between nodes along the path, as brokers report them."""
    path: tuple[bytes, ...]
    """Brokers from this one, exclusive, to that one, inclusive, by four bytes each."""


class Routes:
    """The BRT: to every broker the path over the fewest brokers, of those the one with the fewest hops."""

    def __init__(
        self, own: bytes, table: TopologyTable[items.Entry], brokers: Brokers, vicinity: Vicinity | None = None
    ) -> None:
        """Make the routes of a broker; without a vicinity, those of legs are the same as the BRT."""
        self._own, self._table, self._brokers, self._vicinity = own, table, brokers, vicinity
        self._built: dict[Vicinity | None, tuple[tuple[int, int, int], dict[bytes, Way]]] = {}
        """Ways of legs by the vicinity, and the BRT by None, with the versions of the tables that they are built from.
        """
        self._others: tuple[tuple[int, int], dict[bytes, Mapping[bytes, int]]] = (-1, -1), {}
        """Versions of the tables, and the distances from known brokers that were asked for since."""

    def way(self, prefix: bytes) -> Way | None:
        """Return the way to a broker by the BTT alone."""
        return self._ways(None).get(prefix)

    def leg_way(self, prefix: bytes, *, avoiding: bytes | None = None) -> Way | None:
        """Return the way of a leg that leaves now; `avoiding`: one that does not begin with this neighbour.

        Links of other brokers are as they reported them, those of this broker as they are now.
        """
        vicinity = None if self._table.get(self._own) is None else self._vicinity
        # Ways around a neighbour are not kept: they are needed only when that neighbour is lost.
        if avoiding is not None:
            return self._search(self._links(vicinity), self._own, avoiding).get(prefix)
        return self._ways(vicinity).get(prefix)

    def _ways(self, vicinity: Vicinity | None) -> dict[bytes, Way]:
        built = (self._table.version, self._brokers.version, 0 if vicinity is None else vicinity.version)
        before, ways = self._built.get(vicinity, (None, {}))
        if built != before:
            ways = self._search(self._links(vicinity), self._own)
            self._built[vicinity] = built, ways
        return ways

    def distances(self, prefix: bytes) -> Mapping[bytes, int]:
        """Return the hops from a broker along the overlay to all that it reaches, itself included."""
        built = (self._table.version, self._brokers.version)
        if self._others[0] != built:
            self._others = built, {}
        kept = self._others[1]
        if (found := kept.get(prefix)) is None:
            ways = self._search(self._links(None), prefix)
            found = {prefix: 0} | {each: way.hops for each, way in ways.items()}
            if prefix == self._own or self._brokers.at(prefix) is not None:
                kept[prefix] = found
        return found

    def _search(
        self, links: Mapping[bytes, Mapping[bytes, int]], start: bytes, avoiding: bytes | None = None
    ) -> dict[bytes, Way]:
        """Return the ways from a broker along links, not beginning with the neighbour `avoiding`."""
        ways: dict[bytes, Way] = {}
        # Breadth first over brokers, not over hops. Every broker on a path makes and signs a
        # message of its own, which costs far more than one more hop of the network below. Hops,
        # then prefixes, break ties, so that two brokers with the same tables find the same paths.
        edge = {start: Way(0, ())}
        while edge:
            beyond: dict[bytes, Way] = {}
            for broker, way in edge.items():
                for other, hops in links[broker].items() if broker in links else ():
                    if other in ways or other == start or (broker == start and other == avoiding):
                        continue
                    found = Way(way.hops + hops, (*way.path, other))
                    if other not in beyond or found < beyond[other]:
                        beyond[other] = found
            ways |= beyond
            edge = beyond
        return ways

    def _links(self, vicinity: Vicinity | None) -> Mapping[bytes, Mapping[bytes, int]]:
        """Return the neighbours of every broker that is known. A link counts if either end lists it.

        With a vicinity, this broker has links to the nearest brokers, too, and its links have the hops of this moment.
        """
        # One end suffices, since the entry of the other may be old or lost. Both ends must have
        # announced themselves as brokers: announcements are signed and entries are not, so a liar
        # can add links, but no brokers.
        links: dict[bytes, dict[bytes, int]] = {each.prefix: {} for each in self._brokers}
        links[self._own] = {}
        for entry in self._table:
            for other, hops in entry.neighbours if entry.prefix in links else ():
                if other in links:
                    for one, two in ((entry.prefix, other), (other, entry.prefix)):
                        if two not in links[one] or hops < links[one][two]:
                            links[one][two] = hops
        if vicinity is not None:
            links[self._own] = vicinity.links(links[self._own])
        return links


class Topology:
    """The brokers that one node knows and, if it is a broker, its place among them."""

    def __init__(self, context: HostContext, island: Island, rng: Random, load: Load, outbox: Outbox) -> None:
        settings, most = context.settings.overlay, context.limits.overlay_brokers_max
        self.node, self.prefix = context.node, context.prefix
        self._outputs, self._holdings = context.outputs, context.holdings
        self._in_reach, self._island, self._settings = context.links.in_reach, island, settings
        self._rng, self._most, self._load, self._outbox = rng, most, load, outbox
        self._update_us = round(settings.update_s * 1e6)
        self.lease_us = lease_us(context.settings)
        """Lease of this node's clients, and lifetime of its announcements."""
        self.brokers = Brokers(context.node, most)
        self.table = TopologyTable[items.Entry](context.prefix, most)
        self.rosters = Rosters(
            context.prefix, self.brokers, context.outputs,
            brokers_max=most, channels_max=context.limits.overlay_channels_max,
        )  # fmt: skip
        self._vicinity = Vicinity(island, self.brokers, settings)
        vicinity = self._vicinity if settings.topology == "adaptive" else None
        self.routes = Routes(context.prefix, self.table, self.brokers, vicinity)
        self.neighbours: dict[NodeId, int] = {}
        """BNT: the neighbours, and the hops to each."""
        self._differing: dict[NodeId, int] = {}
        """Number of messages in a row whose digest was another one, by neighbour."""
        self._answered: dict[NodeId, int] = {}
        """Brokers that asked for what they lack, and when they may ask again; at most as many as are known."""
        self._absent: set[bytes] = set()
        """Entries of brokers that could not be reached at the last look."""
        self._seen: set[NodeId] = set()
        """Brokers that were in reach in the first period."""
        self._waiting: dict[NodeId, BrokerInfo] = {}
        """Brokers that announced themselves and found no room: the latest, as many as there may be of the others."""
        self._learning_us = 0
        """End of the first period."""
        self.topology_bytes = 0
        """Bytes of the messages by which this broker informed others of the overlay."""
        self._announce_us = self.look_us = self._propagate_us = self._rosters_us = NEVER
        self._announced_us = 0
        """Time of the last announcement."""
        self._named: AbstractSet[bytes] = frozenset()
        """Channels that had seats here at the last announcement."""

    @property
    def due_us(self) -> int:
        """Time at which `expire` has something to do, or a look is due."""
        return min(
            self._announce_us, self.look_us, self._propagate_us, self._rosters_us, self.rosters.due_us,
            self.brokers.due_us,
        )  # fmt: skip

    @property
    def digest(self) -> int:
        """XOR of the fingerprints of all entries and rosters."""
        return self.table.digest ^ self.rosters.table.digest

    def start(self, incarnation: int, now: int) -> None:
        """Begin to announce this node and to look for others, if it is a broker."""
        if self._settings.broker:
            self.table.start(incarnation)
            self.rosters.table.start(incarnation)
            self._announce_us, self.look_us = now, now + _FIRST_US
            self._learning_us = now + self._update_us

    def published(self, copies: Iterable[Copy]) -> None:
        """Count the bytes of messages between brokers."""
        for copy in copies:
            headers = copy.descriptor.headers
            if headers is not None and headers.connected and headers.control.startswith(_TOPOLOGY_HEAD):
                self.topology_bytes += copy.descriptor.wire_bytes

    def expire(self, now: int) -> list[NodeId]:
        """Announce this node again, send what waited, and return brokers that did not announce themselves again."""
        if self._announce_us <= now:
            self._announced_us, self._announce_us = now, now + self.lease_us // 2
            self._named = self.rosters.seated
            self._outbox.add(None, items.Broker(self._load.power, self.rosters.version))
        if self._propagate_us <= now:
            self.propagate(only_news=True)
        if self._rosters_us <= now:
            self.propagate(only_news=True, only_rosters=True)
        for node in self.rosters.asking(now, self._in_reach, now + self._update_us):
            self._send(node, (), asking=True)
        gone = self.brokers.expire(now) if self.brokers.due_us <= now else []
        for each in gone:
            self._forget(each.prefix, each.node)
        return [each.node for each in gone]

    def _forget(self, prefix: bytes, node: NodeId) -> None:
        self.table.remove(prefix)
        self.rosters.table.remove(prefix)
        self._differing.pop(node, None)
        self._answered.pop(node, None)
        self.neighbours.pop(node, None)

    # --- brokers -------------------------------------------------------------------------------------------

    def announced(self, item: items.Broker, descriptor: Descriptor, hops: int, now: int) -> None:
        """Note that a node is a broker; `hops`: the hops that its announcement took."""
        node = descriptor.node
        until_us = self._holdings.own_time(descriptor.ends_us)
        info = BrokerInfo(
            node, node_prefix(node), descriptor.incarnation, item.capacity, until_us, item.roster, hops
        )  # fmt: skip
        if self.brokers.put(info, self._in_reach):
            if self._settings.broker:
                self.rosters.announced(info, now + self._update_us)
        elif node not in self.brokers:
            self._outputs.refuse("brokers", node, descriptor.shown)
            self._waiting[node] = info
            if len(self._waiting) > self._most:
                del self._waiting[next(iter(self._waiting))]

    def _admit(self, now: int) -> None:
        """Enter brokers that can be reached and found no room before, if there is room now."""
        for node, info in list(self._waiting.items()):
            if info.until_us <= now or (node in self._in_reach and self.brokers.put(info, self._in_reach)):
                del self._waiting[node]

    # --- looking -------------------------------------------------------------------------------------------

    def look(self, now: int) -> list[NodeId]:
        """Determine the neighbours, and write this broker's entry if that changed; return brokers out of reach.

        Their entries are dropped if they were out of reach at the look before, too.
        """
        if self._waiting:
            self._admit(now)
        self.neighbours = self._vicinity.nearest()
        self._write()
        self.rosters.drop_strangers()
        self._schedule(now)
        return self._drop_absent(self._island.reach())

    def begin_look(self, now: int) -> bool:
        """Return True if a look that is due has to be taken; schedule the next one if it can be left out.

        In the first period one is taken if there was none, or if a broker that is new in reach belongs among the
        neighbours.
        """
        if now < self._learning_us:
            needed = self._is_someone_new() or self.table.get(self.prefix) is None
        else:
            needed = self._settings.topology == "adaptive"
        if not needed:
            self._schedule(now)
        return needed

    def _is_someone_new(self) -> bool:
        """Return True if brokers are in reach for the first time, and one of them is as near as neighbours are."""
        new = {each.node for each in self.brokers if each.node in self._in_reach} - self._seen
        if not new:
            return False
        self._seen |= new
        reach, furthest = self._island.reach(), self._settings.vicinity_hops
        if len(self.neighbours) >= self._settings.neighbours_max:
            furthest = max(self.neighbours.values())
        return any(reach.get(node, furthest + 1) <= furthest for node in new)

    def can_reach(self, node: NodeId) -> bool:
        """Return True if a node can be reached now, even if that was not reported yet."""
        return node in self._in_reach or node in self._island.reach() or node == self.node

    def node_of(self, prefix: bytes) -> NodeId | None:
        """Return the known broker that four bytes stand for, perhaps this one; None if there is none."""
        info = self.brokers.at(prefix)
        return info.node if info is not None else self.node if prefix == self.prefix else None

    def producing(self, channel: str) -> list[NodeId]:
        """Return the known brokers with producers of a channel, perhaps this one included."""
        having = [prefix for prefix, served in self.rosters.serving(channel).items() if served.producers]
        return [node for node in map(self.node_of, having) if node is not None]

    def hops(self, node: NodeId) -> int | None:
        """Return the hops to a node, as the island knows them; None if it cannot be reached."""
        return 0 if node == self.node else self._island.reach().get(node)

    def load(self, prefix: bytes) -> float:
        """Return the load that another broker reported; 1: all of its capacity is in use."""
        entry = self.table.get(prefix)
        return 0.0 if entry is None else entry.load / 100

    def is_learning(self, now: int) -> bool:
        """Return True in the first period."""
        return now < self._learning_us

    def _schedule(self, now: int) -> None:
        """Choose the time of the next look: every second in the first period, then every `update_s`.

        The first one after that period comes at random within the next, so that brokers do not all look at once.
        """
        if now + _FIRST_US < self._learning_us:
            self.look_us = now + _FIRST_US
        elif self._settings.topology == "static":
            self.look_us = NEVER
        elif now < self._learning_us:
            self.look_us = self._learning_us + round(self._update_us * self._rng.random())
        else:
            self.look_us = now + self._update_us

    def _write(self, *, again: bool = False) -> None:
        """Write this broker's entry, if its contents changed, or it has to be written again."""
        hops = {node_prefix(node): min(each, items.HOPS_MAX) for node, each in self.neighbours.items()}
        links, own = tuple(sorted(hops.items())), self.table.get(self.prefix)
        load = self._load.percent()
        if again or own is None or own.neighbours != links or abs(own.load - load) >= _CHANGE_PERCENT:
            self.table.write(lambda version: items.Entry(self.prefix, version, load, links), self.brokers)

    def _drop_absent(self, reach: Iterable[NodeId]) -> list[NodeId]:
        known = {self.prefix, *map(node_prefix, reach)}
        absent = {each.prefix for each in self.table} - known
        gone = [info.node for prefix in sorted(absent) if (info := self.brokers.at(prefix)) is not None]
        # Two looks in a row: a broker that is out of reach for a moment would otherwise take its
        # entry, and all paths over it, out of every table.
        for prefix in sorted(absent & self._absent):
            self.table.remove(prefix)
        self._absent = absent
        return gone

    # --- sending -------------------------------------------------------------------------------------------

    def _informed(self) -> list[NodeId]:
        """Return the brokers that get changes, and that can be reached: neighbours, which pass them on.

        A broker that lists this one and would not get them along neighbours of neighbours is included, too.
        """
        found, waiting = {self.prefix}, [self.prefix]
        while waiting:
            entry = self.table.get(waiting.pop())
            new = [prefix for prefix, _ in (() if entry is None else entry.neighbours) if prefix not in found]
            found.update(new)
            waiting += new
        listing = [
            info.node
            for entry in self.table
            if entry.prefix not in found
            and (info := self.brokers.at(entry.prefix)) is not None
            and self.prefix in dict(entry.neighbours)
        ]
        return sorted({*self.neighbours, *listing} & self._island.reach().keys())

    def propagate(self, *, asking: bool = False, only_news: bool = False, only_rosters: bool = False) -> None:
        """Send all neighbours changed entries and rosters, and a digest of all; `asking`: and ask for what is lacking.

        `only_news`: send nothing to neighbours that have all of them. `only_rosters`: send no entries.
        """
        for node in self._informed():
            prefix = node_prefix(node)
            fresh = [
                entry for entry in (() if only_rosters else self.table.changed_for({node}))
                # The author of an entry sends it to all brokers that it lists.
                if entry.prefix == self.prefix or prefix not in dict(entry.neighbours)
            ]  # fmt: skip
            changed = self._rosters_for(node)
            if fresh or changed or not only_news:
                self._send(node, fresh, changed, asking=asking)
        self._rosters_us, self.rosters.has_new_seats = NEVER, False
        self.rosters.table.mark_sent()
        if not only_rosters:
            self._propagate_us = NEVER
            self.table.mark_sent()

    def serve(self, channels: Mapping[str, Served], now: int) -> None:
        """Write this broker's roster; if its contents changed, inform others at once."""
        if self.rosters.write(channels):
            self._spread(now)

    def _spread(self, now: int) -> None:
        """Inform neighbours soon of changed rosters; announce this broker again if other channels have seats."""
        # Events wait for rosters that show new seats. Producers that came and went, and seats that left, do not matter
        # as soon, and they change whenever a client moves.
        delay_us = _SOON_US if self.rosters.has_new_seats else _LATER_US
        self._rosters_us = min(self._rosters_us, now + delay_us)
        # All nodes carry announcements: many at a time would cost more than what they repair. So
        # they do not follow producers, which come and go: no event waits for a roster that says so.
        again_us = self._announced_us + max(self._update_us, self.lease_us // REPEATS)
        if self._announce_us > max(again_us, now) and self.rosters.seated != self._named:
            self._announce_us = max(again_us, now)

    def _rosters_for(self, node: NodeId) -> list[Roster]:
        """Return changed rosters for a neighbour, except those that it got from the same broker as this one."""
        prefix = node_prefix(node)
        # Brokers that list it as their neighbour send it what they send to this one.
        listing = [self.node_of(entry.prefix) for entry in self.table if prefix in dict(entry.neighbours)]
        return self.rosters.table.changed_for({node, *(broker for broker in listing if broker is not None)})

    def _send(
        self, node: NodeId, entries: Iterable[items.Entry], changed: Iterable[Roster] = (), *, asking: bool = False
    ) -> None:
        """Send a broker entries and rosters, in one item if they fit; `asking`: and ask it for what is lacking."""
        digest = self.digest.to_bytes(items.DIGEST_BYTES, "big")
        parts, rosters = [items.Entries(digest, part) for part in items.pack(entries)], pack_rosters(changed)
        if asking:
            known, known_rosters = items.pack_stamps(self.table), items.pack_stamps(self.rosters.table)
            parts[0] = msgspec.structs.replace(parts[0], known=known, known_rosters=known_rosters)
        elif rosters and len(parts[-1].entries) + len(rosters[0]) <= items.ENTRIES_BYTES_MAX:
            parts[-1] = msgspec.structs.replace(parts[-1], rosters=rosters.pop(0))
        for item in (*parts, *(items.Entries(digest, rosters=part) for part in rosters)):
            self._outbox.add(node, item)

    def propagate_soon(self, now: int) -> None:
        """Send neighbours changes at once, and not with the next look."""
        self._propagate_us = min(self._propagate_us, now + _SOON_US)

    # --- receiving -------------------------------------------------------------------------------------------

    def receive(self, item: items.Entries, author: NodeId, now: int) -> bool:
        """Process what a broker sends; return True if this one learnt something new of the topology."""
        try:
            entries = items.unpack(item.entries)
            asked = None if item.known is None else items.unpack_stamps(item.known)
            sent_rosters = unpack_rosters(item.rosters)
            asked_rosters = None if item.known_rosters is None else items.unpack_stamps(item.known_rosters)
        except ValueError:
            self._outputs.refuse("topology", author)
            return False
        if not self._settings.broker:
            self._outputs.refuse("topology", author)
            return False
        new = [entry for entry in entries if self._enter(entry, author)]
        if [roster for roster in sent_rosters if self.rosters.enter(roster, author)]:
            self._spread(now)
        if asked is not None and self._answered.get(author, 0) > now:
            self._outputs.refuse("topology", author)
        elif asked is not None:
            self._answered[author] = now + _ANSWER_US
            later = self.table.later(asked)
            lacking = [] if asked_rosters is None else self.rosters.table.later(asked_rosters)
            if later or lacking:
                self._send(author, later, lacking)
            elif self._lacks(asked):
                self._send(author, (), asking=True)
        else:
            self._compare(item, author, quiet=not (entries or sent_rosters or self.table.changed_for(())))
        return bool(new)

    def _lacks(self, stamps: Mapping[bytes, int]) -> bool:
        """Return True if another broker's versions include later entries than here, or others."""
        return any(
            (entry := self.table.get(prefix)) is None or items.is_later(version, entry.version)
            for prefix, version in stamps.items()
        )

    def _enter(self, entry: items.Entry, author: NodeId) -> bool:
        """Process an entry that a broker sent, its own or another's; return True if it is news."""
        if entry.prefix == self.prefix:
            if not self.table.outbid(entry):
                return False
            self._write(again=True)
            return True
        if refusal := self.table.enter(entry, author, self.brokers):
            self._outputs.refuse(refusal, author)
        return refusal is None

    def _compare(self, item: items.Entries, author: NodeId, *, quiet: bool) -> None:
        """Ask a neighbour with another digest for what is lacking here, if that does not come by itself."""
        if int.from_bytes(item.digest, "big") == self.digest:
            self._differing.pop(author, None)
            return
        count = self._differing.get(author, 0) + 1
        if quiet or count >= PATIENCE:
            count = 0
            self._send(author, (), asking=True)
        self._differing[author] = count
