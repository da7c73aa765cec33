"""Placement: which broker is the home of a client, and when another one is better (OVERLAY §2.4, §3.4, §3.5).

A client attaches to the nearest broker. Every `discovery_s` its `Monitor` compares the distances of brokers, that of a
producer also when its home moves away. A producer changes to a nearer home by itself. A consumer has its seat there, so
it reports brokers as near as its home, and the home decides: only a broker knows loads and paths from producers.

`choose_home` is the one rule for where a seat belongs: at the broker with the fewest hops from producers plus the share
of the hops to the consumer, among those that are not overloaded. The share is 1, unless the seat shortens events: then
hops after it count by the part of the bytes that travel them, which draws the seat towards producers (*upstream*).
`HomeBrokerAdaptor` applies the rule to the seats of one broker. Before that come adaptors in general.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

from carrypost.errors import LocalError
from carrypost.model.ids import NodeId, node_prefix
from carrypost.overlay.events import DOWNSTREAM, LOAD, NEARER, UPSTREAM
from carrypost.overlay.items import REPORTED_MAX
from carrypost.overlay.load import DIGITS

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from carrypost.gossip.outputs import Outputs
    from carrypost.gossip.transfers.link import HostContext
    from carrypost.overlay.handoffs import Handoffs
    from carrypost.overlay.items import MoveReason
    from carrypost.overlay.lanes import Seat
    from carrypost.overlay.legs import Legs
    from carrypost.overlay.load import Load
    from carrypost.overlay.seats import Seats
    from carrypost.overlay.topology import Topology

# --- adaptors ----------------------------------------------------------------------------------------------

# Adaptors: the overlay's reactions to changes, apart from the parts that notice them (OVERLAY
# §3.5).
#
# Parts of the overlay emit notices to an internal *system channel*. An adaptor subscribes to kinds
# of notices, and processes those by calling the parts. `TopologyAdaptor` keeps the overlay like the
# network below it, and `HomeBrokerAdaptor` the seats of consumers near these. Programs
# add their own with `host.overlay.add`.


class Timer(NamedTuple):
    """The time has come to look for neighbours and better places."""

    now_us: int


class Propagated(NamedTuple):
    """Another broker sent news of the overlay."""

    broker: NodeId
    now_us: int


class BrokerLost(NamedTuple):
    """A broker cannot be reached any more, or did not announce itself again."""

    broker: NodeId


class NearestBroker(NamedTuple):
    """A consumer of this broker is as near to other brokers as to this one, or nearer."""

    consumer: tuple[NodeId, str, int]
    """Node, channel and subscription."""
    brokers: tuple[tuple[NodeId, int], ...]
    """The other brokers, and the hops from the consumer to each; the nearest first."""
    now_us: int
    placed: bool = False
    """True if the seat moved here upstream (`overlay.placement`)."""


class LoadChanged(NamedTuple):
    """The load of this broker changed, or is too high."""

    load: float
    """Load as it will be, with seats that come and without those that leave (`Load.predicted`)."""
    now_us: int


Notice = Timer | Propagated | BrokerLost | NearestBroker | LoadChanged
NOTICES: tuple[type[Notice], ...] = (Timer, Propagated, BrokerLost, NearestBroker, LoadChanged)


class Adaptor(Protocol):
    """A reaction of the overlay to some kinds of notices."""

    def subscribe(self) -> Collection[type[Notice]]:
        """Return the kinds of notices that this adaptor processes."""

    def process(self, notice: Notice) -> None:
        """Act upon a notice."""


class SystemChannel:
    """The channel by which parts of one node's overlay inform its adaptors."""

    def __init__(self, outputs: Outputs) -> None:
        self._outputs = outputs
        self._adaptors: dict[type[Notice], list[Adaptor]] = {kind: [] for kind in NOTICES}

    def add(self, adaptor: Adaptor) -> None:
        """Add an adaptor, which gets the notices that it subscribes to."""
        kinds = list(adaptor.subscribe())
        strange = [kind for kind in kinds if kind not in self._adaptors]
        if strange or not kinds:
            names = ", ".join(kind.__name__ for kind in NOTICES)
            raise LocalError(f"an adaptor subscribes to one or more kinds of notices ({names}), not to {kinds!r}")
        for kind in kinds:
            self._adaptors[kind].append(adaptor)

    def publish(self, notice: Notice) -> None:
        """Let all adaptors process a notice. One that fails is counted, and does not affect the others."""
        for adaptor in self._adaptors[type(notice)]:
            try:
                adaptor.process(notice)
            except Exception:  # noqa: BLE001 - A program's code, which must not stop the host in the middle of a step.
                self._outputs.refuse("adaptor", type(adaptor).__name__)


class TopologyAdaptor:
    """An adaptor that keeps the overlay like the network below it: dynamic broker networks (OVERLAY §2.3)."""

    def __init__(self, topology: Topology, legs: Legs, channel: SystemChannel) -> None:
        self._topology, self._legs, self._channel = topology, legs, channel
        self._asks = True
        """True until the first look: a new broker asks others for all entries."""

    def subscribe(self) -> Collection[type[Notice]]:
        """Subscribe to looks, to news from other brokers, and to lost brokers."""
        return (Timer, Propagated, BrokerLost)

    def process(self, notice: Notice) -> None:
        """Determine the neighbours and send them what changed; in the first period, pass on news at once.

        Legs on their way to a lost broker are sent along another path.
        """
        topology = self._topology
        if isinstance(notice, Timer):
            lost = topology.look(notice.now_us)
            topology.propagate(asking=self._asks)
            self._asks = not topology.neighbours
            for broker in lost:
                self._channel.publish(BrokerLost(broker))
        elif isinstance(notice, BrokerLost):
            self._legs.reroute(notice.broker)
        elif isinstance(notice, Propagated) and topology.is_learning(notice.now_us):
            topology.propagate_soon(notice.now_us)


class Distance(NamedTuple):
    """The distance from a client to a broker. Brokers without a route come after all that have one."""

    unreachable: bool
    """True if the island has no route to it."""
    hops: int
    """Hops of the route. Without one: 1 for a neighbour, else the hops that its announcement took."""


LOOKS = 6
"""Number of looks after which the same brokers are reported again: the report was lost, or they had no room."""
FAR = Distance(True, 255)
"""The distance of a broker that is not known any more."""
LOADED_GAIN = 0.9
"""Hops by which paths must become shorter if a consumer is not nearer to its new home, which has more work."""
_RETURNING = 1.01
"""Share of a seat that moved upstream and passes on most bytes now: of two equal paths it prefers the one that has
it nearer to the consumer."""
_WEIGHT_MAX = 64
"""Producers of one home that count in the mean length of paths."""


# --- clients -----------------------------------------------------------------------------------------------


def nearest(distances: Mapping[NodeId, Distance], *, without: NodeId | None = None) -> NodeId | None:
    """Return the nearest broker, except one; the lower id of two that are as near; None if there is none."""
    found = min(((distance, node) for node, distance in distances.items() if node != without), default=None)
    return None if found is None else found[1]


class Monitor:
    """The monitor of one client, which looks for nearer brokers."""

    def __init__(self) -> None:
        self._reported: tuple[object, ...] = ()
        """The home that got the last report, its distance, and the nearest broker in that report."""
        self._looks = 0
        """Number of looks since the last report."""
        self._home = FAR
        """Distance of the home of a producer after its last look; `FAR` if that is not known."""

    def look_for_producer(self, home: NodeId, distances: Mapping[NodeId, Distance]) -> NodeId | None:
        """Return a broker that is nearer than the home of a producer; None if there is none."""
        candidate, current = nearest(distances, without=home), distances.get(home, FAR)
        nearer = candidate is not None and distances[candidate] < current
        # A home out of reach is replaced after a while. Until then it cannot move farther away.
        self._home = FAR if current.unreachable else min(distances.values())
        return candidate if nearer else None

    def home_moved(self, distance: Distance) -> bool:
        """Return True if the home of a producer is farther away than after the last look, so that it has to look now.

        Consumers wait for their looks, since a change of their homes is a relocation.
        """
        before, self._home = self._home, min(self._home, distance)
        # Else it is new, or out of reach and waited for; or it is as near as before.
        return not before.unreachable and distance > before

    def look_for_consumer(self, home: NodeId, distances: Mapping[NodeId, Distance]) -> list[tuple[NodeId, int]]:
        """Return brokers as near as the home of a consumer or nearer, with hops; none if the home knows that.

        One that is as near can be on shorter paths from producers, as in the second topology of the testbed (§4.3). The
        nearest one may have too much work.
        """
        self._looks += 1
        current = distances.get(home, FAR)
        near = sorted((distance, node) for node, distance in distances.items() if node != home and distance <= current)
        reported = (home, current.hops, near[0][0].hops, near[0][1]) if near else ()
        # A change of the nearest one is reported at once, but the same report only after `LOOKS`
        # looks: each one costs a message.
        if not near or (self._reported == reported and self._looks < LOOKS):
            self._reported = reported
            return []
        self._reported, self._looks = reported, 0
        return [(node, distance.hops) for distance, node in near[:REPORTED_MAX]]


# --- seats -------------------------------------------------------------------------------------------------


class Home(NamedTuple):
    """A broker as the home of one consumer."""

    broker: NodeId
    load: float
    """Share of its capacity that is in use; with the consumer's own work, if that is not counted in it yet."""
    hops: int
    """Hops from it to the consumer."""
    producer_hops: float = 0.0
    """Mean hops to it from the homes of producers; of the same producers for all homes that are compared."""
    share: float = 1.0
    """Part of the bytes that goes on from it to the consumer, if the seat shortens events."""

    @property
    def path(self) -> float:
        """Mean length of the paths from producers' homes through it to the consumer; hops after it count by `share`."""
        return self.producer_hops + self.share * self.hops


def choose_home(current: Home, candidates: Collection[Home], load_max: float) -> Home:
    """Return the broker that should be the home of a consumer.

    The four rules of step 2: an overloaded home is left for one that is not, on the shortest mean path; if all are
    overloaded, for the one with the lightest load; if the home is not overloaded, it is left for a shorter path. The
    paper's rule 1, to look at both loads, is the caller's part. A candidate that has more work than the home, and is
    not nearer to the consumer, needs a path shorter by `LOADED_GAIN`, in hops to the consumer.
    """
    free = [each for each in candidates if each.load <= load_max]
    if current.load > load_max:
        return min(free, key=_rank) if free else min([current, *candidates], key=lambda each: each.load)

    def needed(candidate: Home) -> float:
        # Otherwise the broker in the middle of the network would become the home of most consumers.
        central = candidate.hops >= current.hops and candidate.load > current.load
        return candidate.path + (LOADED_GAIN * candidate.share if central else 0)

    return min((each for each in free if needed(each) < current.path), key=_rank, default=current)


def _rank(home: Home) -> tuple[float, int, float, NodeId]:
    return home.path, home.hops, home.load, home.broker


def mean_hops(distances: Mapping[bytes, int], producers: Mapping[bytes, int]) -> float:
    """Return the mean distance of producers, by the number of them at each home; 0 if there are none."""
    # Weighted, since producers that rosters of strangers list would make every comparison slow one by one.
    number = sum(producers.values())
    return sum(distances[home] * each for home, each in producers.items()) / number if number else 0.0


def share_of(ratio: float | None, most: float | None, *, placed: bool) -> float:
    """Return the weight of hops after a seat that sends `ratio` bytes for each byte that it gets, if that is known.

    It is the ratio up to `most`; else 1. For a seat that moved upstream (`placed`) it is the ratio up to the mean of
    `most` and 1; a higher one lets it come back.
    """
    if ratio is None or most is None:
        return 1.0
    # Two limits, so that a seat whose ratio varies around one of them does not move to and fro.
    if ratio <= ((1 + most) / 2 if placed else most):
        return ratio
    return _RETURNING if placed else 1.0


class HomeBrokerAdaptor:
    """An adaptor that moves seats to better homes: opportunistic home brokers, placement and load balancing.

    It places a seat when its consumer reports brokers; again when brokers announce new loads, if the reported ones had
    too much work; and with each look of the broker, if the seat shortens events. While the broker is overloaded it
    moves seats to neighbours, first those whose paths grow least. Loads that other brokers announced may be old. So the
    broker adds the seats that it sent since; the other broker, which knows best, may refuse.
    """

    def __init__(self, context: HostContext, topology: Topology, load: Load, seats: Seats, handoffs: Handoffs) -> None:
        settings = context.settings.overlay
        self._topology, self._load, self._seats, self._handoffs = topology, load, seats, handoffs
        self._discovery_us = round(settings.discovery_s * 1e6)
        self._valid_us = (LOOKS + 1) * self._discovery_us
        """Time for which a report counts. A consumer repeats its report as long as it is true."""
        self._adaptive = settings.homing == "adaptive"
        self._share_max = settings.placement_ratio if settings.placement and self._adaptive else None
        self._reports: dict[bytes, NearestBroker] = {}
        """Latest reports of consumers, by the names of their seats, the oldest first; at most `seats_max`."""
        self._reports_max = context.limits.seats_max
        self._waiting: set[bytes] = set()
        """Names of seats with reports of brokers that had too much work."""
        self._sent: dict[bytes, tuple[int, float]] = {}
        """By broker: the version of its entry, and the load of the seats that were sent to it since that version."""

    def subscribe(self) -> Collection[type[Notice]]:
        """Subscribe to reports and lost brokers and, unless homes are static, to changes of loads and topology."""
        always: tuple[type[Notice], ...] = (NearestBroker, BrokerLost)
        return (*always, LoadChanged, Propagated, Timer) if self._adaptive else always

    def process(self, notice: Notice) -> None:
        """Move seats to better homes; end relocations that wait for a lost broker."""
        if isinstance(notice, BrokerLost):
            self._handoffs.lost(notice.broker)
        elif isinstance(notice, NearestBroker):
            self._receive(notice)
        elif isinstance(notice, Timer):
            for seat in list(self._seats) if self._share_max is not None else ():
                if self._share(seat, notice.now_us) != 1:
                    self._place(seat, notice.now_us)
        elif isinstance(notice, Propagated):
            for seat in [each for each in self._seats if each.name in self._waiting]:
                self._place(seat, notice.now_us)
        elif notice.load > self._load.load_max:
            self._relieve(notice.now_us)

    def _receive(self, report: NearestBroker) -> None:
        """Remember a report, and place the seat that it is about."""
        for seat in self._seats:
            if _consumer(seat) == report.consumer:
                name = seat.name
                # Removed first, so that the report moves to the end: the dict is in the order of times.
                self._reports.pop(name, None)
                self._reports[name] = report
                if len(self._reports) > self._reports_max:
                    oldest = next(iter(self._reports))
                    del self._reports[oldest]
                    self._waiting.discard(oldest)
                self._place(seat, report.now_us)
                return

    def _report(self, seat: Seat, now: int) -> NearestBroker | None:
        """Return the latest report of a consumer, if it still counts."""
        report = self._reports.get(seat.name)
        return report if report is not None and now - report.now_us < self._valid_us else None

    def _share(self, seat: Seat, now: int) -> float:
        report = self._report(seat, now)
        return share_of(seat.flow.ratio, self._share_max, placed=report is not None and report.placed)

    # --- moving --------------------------------------------------------------------------------------------

    def _place(self, seat: Seat, now: int) -> None:
        """Move a seat to the best of the brokers that its consumer reported, or of all if it shortens events."""
        report, name = self._report(seat, now), seat.name
        # By full hops, a seat of several producers would go back at once, and upstream again later.
        if report is not None and report.placed and seat.flow.ratio is None:
            return
        brokers = dict.fromkeys(node for node, _ in (() if report is None else report.brokers))
        if self._share(seat, now) != 1:
            brokers |= dict.fromkeys(each.node for each in self._topology.brokers)
        self._waiting.discard(name)
        homes = self._homes(seat, brokers, now)
        if homes and not self._move(seat, homes, now) and any(each.load > self._load.load_max for each in homes):
            self._waiting.add(name)

    def _relieve(self, now: int) -> None:
        """Move seats to neighbours until this broker is not overloaded, first those whose paths grow least."""
        options = []
        for seat in self._seats:
            if homes := self._homes(seat, self._topology.neighbours, now):
                options += [(each.path - homes[0].path, each.load, seat.name, each) for each in homes[1:]]
        for _, _, name, home in sorted(options):
            # Seats that began to move do not count any more, so that no more move than necessary.
            if self._load.predicted <= self._load.load_max:
                return
            seat = next(each for each in self._seats if each.name == name)
            self._move(seat, self._homes(seat, [home.broker], now), now)

    def _move(self, seat: Seat, homes: list[Home], now: int) -> bool:
        """Begin to move a seat from the first of these homes to the best one; return False if it stays.

        A seat that was just sent here because of load is not sent on for that reason before both brokers know their new
        loads: two busy brokers would pass it to and fro.
        """
        current, *others = homes
        overloaded = current.load > self._load.load_max
        if overloaded and now - self._load.since_us(seat.name) < self._discovery_us:
            return False
        while (best := choose_home(current, others, self._load.load_max)) is not current:
            others.remove(best)
            reason = _reason(current, best, overloaded=overloaded)
            if self._handoffs.migrate(_consumer(seat), best.broker, reason, now):
                self._note_sent(seat, node_prefix(best.broker))
                return True
        return False

    def _note_sent(self, seat: Seat, other: bytes) -> None:
        self._sent[other] = self._version(other), self._sent_since(other) + self._load_at(seat, other)
        self._sent = {prefix: each for prefix, each in self._sent.items() if self._version(prefix) == each[0]}

    # --- comparing -----------------------------------------------------------------------------------------

    def _homes(self, seat: Seat, brokers: Iterable[NodeId], now: int) -> list[Home]:
        """Return this broker and others that can be reached as homes of a consumer; none if it is out of reach."""
        topology, node = self._topology, seat.client.node
        home_hops = topology.hops(node)
        if home_hops is None:
            return []  # Where its results will have to go is not known.
        report = self._report(seat, now)
        known = {node_prefix(broker): hops for broker, hops in (() if report is None else report.brokers)}
        known[topology.prefix] = home_hops
        if node in topology.brokers:
            known[node_prefix(node)] = 0
        near = topology.routes.distances(topology.prefix)
        producers = {
            prefix: min(served.producers, _WEIGHT_MAX)
            for prefix, served in topology.rosters.serving(seat.client.item.channel).items()
            if prefix in near
        }
        share, mean = self._share(seat, now), mean_hops(near, producers)
        homes = [Home(topology.node, self._load.predicted, home_hops, mean, share)]
        for broker in brokers:
            prefix = node_prefix(broker)
            hops = self._hops(prefix, known)
            if hops is not None and broker in topology.brokers and topology.can_reach(broker):
                # A broker that no path leads to knows none of these producers: they decide nothing.
                far = mean_hops(topology.routes.distances(prefix), producers) if prefix in near else mean
                load = topology.load(prefix) + self._sent_since(prefix) + self._load_at(seat, prefix)
                homes.append(Home(broker, round(load, DIGITS), hops, far, share))
        return homes

    def _hops(self, prefix: bytes, known: Mapping[bytes, int]) -> int | None:
        """Return the hops from a consumer to a broker, at most: by another one whose distances to both are known."""
        if prefix in known:
            return known[prefix]
        distances = self._topology.routes.distances(prefix)
        return min((distances[each] + hops for each, hops in known.items() if each in distances), default=None)

    def _load_at(self, seat: Seat, other: bytes) -> float:
        """Return the load that a seat would be at another broker: its work is a larger share of a smaller broker."""
        info, work = self._topology.brokers.at(other), self._load.work(seat.name)
        return work / (self._load.power if info is None or not info.capacity else info.capacity)

    def _version(self, prefix: bytes) -> int:
        entry = self._topology.table.get(prefix)
        return 0 if entry is None else entry.version

    def _sent_since(self, prefix: bytes) -> float:
        version, load = self._sent.get(prefix, (0, 0.0))
        return load if version == self._version(prefix) else 0.0


def _consumer(seat: Seat) -> tuple[NodeId, str, int]:
    node, _, channel, subscription = seat.client.key
    return node, channel, subscription


def _reason(current: Home, new: Home, *, overloaded: bool) -> MoveReason:
    """Return the reason for a move."""
    if overloaded:
        return LOAD
    if new.share == 1:
        return NEARER
    return DOWNSTREAM if new.hops < current.hops else UPSTREAM
