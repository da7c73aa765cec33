"""One run of a scenario: nodes that come and go, contacts, publications and faults, in virtual time.

Things at one instant happen in the order of `scheduler.Phase`. Contacts were clipped beforehand to the stays of both
nodes, so that linked nodes are present. In faithful mode hosts are not notified of contacts. In ideal mode both hosts
are, and of the things at one instant all of one kind are reported before any host answers; what such hosts know of
links between others comes from `KnownLinks`. A node that is away stands still: on its return it first does what fell
due, and then its links come up.

Faults are drawn from the seed before the run begins. Every kind of fault of every node has a stream of its own, so one
more node, or one more kind, leaves the others alone. Because all is known beforehand, a node's times of absence,
whatever their cause, are one list of stays; contacts are clipped to them like to any presence, and so the record shows
correctly which nodes could hear each other. A node that lost its store is a new node: its later stays have the name
NAME.2, and so on.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable, Collection, Container, Iterable, Iterator, Mapping, Sequence
from itertools import count
from typing import Final, NamedTuple

from carrypost.chance import stream
from carrypost.emu.engine.applications import EmulatedQueue, Publication, QueueConsumers, WorkloadApplication
from carrypost.emu.engine.driver import Application, Disk, EmulatedClock, EmulatedDriver, Environment, NodeState
from carrypost.emu.engine.radio import LinkModel, Radio
from carrypost.emu.engine.recorder import Recorder
from carrypost.emu.engine.samples import DeliveryPaths, OverlaySampler, Sampler
from carrypost.emu.engine.scheduler import Phase, Scheduler
from carrypost.emu.inputs import Inputs
from carrypost.emu.scenario import Scenario
from carrypost.emu.scenario_tables import FaultsTable
from carrypost.errors import OrderError, StateError
from carrypost.extensions import BUILD
from carrypost.gossip.wire.pieces import Blank
from carrypost.island.links import distances, names
from carrypost.log.events import Event, Reason
from carrypost.log.record import Kind, Record
from carrypost.model.descriptor import Ordering
from carrypost.model.ids import NodeId
from carrypost.model.times import MICROSECONDS
from carrypost.overlay.modulators.modulator import Modulator
from carrypost.security.identity import Identity
from carrypost.traces.contacts import Contact, Presence, clipped
from carrypost.traces.csvfiles import HEARD
from carrypost.version import __version__

HOUR_US: Final = 3_600 * MICROSECONDS
LEAVE, AWAY, SUSPEND, CRASH, CRASH_LOST = "leave", "away", "suspend", "crash", "crash-lost"
DISK_FULL, CLOCK_STEP = "disk-full", "clock-step"


class NodeFault(NamedTuple):
    """Something that goes wrong with one node."""

    t_us: int
    node: str
    kind: str
    duration_us: int
    step_us: int = 0


class Stay(NamedTuple):
    """A node takes part in [start, end)."""

    node: str
    """Name of the node in this stay."""
    place: str
    """Name of the node in the scenario."""
    start_us: int
    end_us: int
    end: str
    """Why it ends; empty at the end of the run."""
    last: bool
    """True if no node of this name comes back."""


class FaultPlan(NamedTuple):
    """The faults of a run."""

    stays: list[Stay]
    """By start, then by name."""
    others: list[NodeFault]
    """Full disks and clocks that are set, by time; `node` is what the scenario calls it."""

    def contacts(self, contacts: Iterable[Contact]) -> list[Contact]:
        """Return the contacts, repeated for every name that a node has in the run; still to be clipped."""
        names: dict[str, list[str]] = {}
        for stay in self.stays:
            known = names.setdefault(stay.place, [])
            if stay.node not in known:
                known.append(stay.node)
        if all(known == [place] for place, known in names.items()):
            return list(contacts)
        return [
            contact._replace(a=min(a, b), b=max(a, b), heard={contact.a: a, contact.b: b}.get(contact.heard, ""))
            for contact in contacts
            for a in names.get(contact.a, ())
            for b in names.get(contact.b, ())
        ]

    def presences(self) -> list[Presence]:
        """Return the stays as presences."""
        return [Presence(stay.node, stay.start_us, stay.end_us) for stay in self.stays]


def plan(faults: FaultsTable, presences: Iterable[Presence], seed: int | str, end_us: int) -> FaultPlan:
    """Draw the faults of a run: when each node takes part, and what else goes wrong with it."""
    there: dict[str, list[tuple[int, int]]] = defaultdict(list)
    for presence in presences:
        leave_us = end_us if presence.leave_us is None else min(presence.leave_us, end_us)
        if presence.join_us < leave_us:
            there[presence.node].append((presence.join_us, leave_us))
    listed: dict[str, list[NodeFault]] = defaultdict(list)
    for event in faults.event:
        assert event.t is not None, "checked by the scenario"
        t_us, *lasts_us = (round(each * MICROSECONDS) for each in (event.t, event.duration_s, event.step_s))
        listed[event.node].append(NodeFault(t_us, event.node, event.kind, *lasts_us))
    stays: list[Stay] = []
    others: list[NodeFault] = []
    for node in sorted(there):
        found = sorted([*_drawn(node, faults, seed, end_us), *listed[node]])
        stays += _stays(node, _further(node, there), sorted(there[node]), found, end_us)
        others += [fault for fault in found if fault.kind in {DISK_FULL, CLOCK_STEP} and fault.t_us < end_us]
    return FaultPlan(sorted(stays, key=lambda stay: (stay.start_us, stay.node)), sorted(others))


def clock(faults: FaultsTable, seed: int | str, node: str) -> EmulatedClock:
    """Return the clock of a node when it starts."""
    skew_s = drift_ppm = 0.0
    if faults.clock_skew_s:
        # A clock that is behind when the run begins would stand still until it has caught up with 0.
        skew_s = (1 + stream(seed, node, "clock skew").uniform(-1, 1)) * faults.clock_skew_s
    if faults.clock_drift_ppm:
        drift_ppm = stream(seed, node, "clock drift").uniform(-1, 1) * faults.clock_drift_ppm
    return EmulatedClock(round(skew_s * MICROSECONDS), drift_ppm)


def _drawn(node: str, faults: FaultsTable, seed: int | str, end_us: int) -> list[NodeFault]:
    found: list[NodeFault] = []
    for kind, per_h, mean_s in (
        (AWAY, faults.away_per_h, faults.away_s),
        (SUSPEND, faults.suspend_per_h, faults.suspend_s),
        (CRASH, faults.crash_per_h, faults.restart_s),
        (DISK_FULL, faults.disk_full_per_h, faults.disk_full_s),
        (CLOCK_STEP, faults.clock_step_per_h, 0.0),
    ):
        if not per_h:
            continue
        chance = stream(seed, node, "fault", kind)
        t_us = _gap(chance, per_h)
        while t_us < end_us:
            duration_us = max(1, round(chance.expovariate(1 / mean_s) * MICROSECONDS)) if mean_s else 0
            what, step_us = kind, 0
            if kind == CRASH and chance.random() < faults.store_lost:
                what = CRASH_LOST
            if kind == CLOCK_STEP:
                step_us = round(chance.uniform(-1, 1) * faults.clock_step_s * MICROSECONDS)
            found.append(NodeFault(t_us, node, what, duration_us, step_us))
            t_us += _gap(chance, per_h)
    return found


def _gap(chance: random.Random, per_h: float) -> int:
    return max(1, round(chance.expovariate(per_h) * HOUR_US))


def _further(node: str, taken: Container[str]) -> Iterator[str]:
    """Return further names of a node, without end; none of them is taken."""
    for number in count(2):
        if (name := f"{node}.{number}") not in taken:
            yield name


def _stays(
    place: str, names: Iterator[str], there: Sequence[tuple[int, int]], faults: Iterable[NodeFault], end_us: int
) -> list[Stay]:
    """Return the stays of one node; `names` has its later names. A fault of an absent node has no effect."""
    outages = [fault for fault in faults if fault.kind in {AWAY, SUSPEND, CRASH, CRASH_LOST}]
    found: list[Stay] = []
    name, back_us = place, 0
    for join_us, leave_us in there:
        start_us = max(join_us, back_us)
        for fault in outages:
            if start_us < fault.t_us < leave_us:
                found.append(Stay(name, place, start_us, fault.t_us, fault.kind, last=False))
                if fault.kind == CRASH_LOST:
                    name = next(names)
                start_us = back_us = fault.t_us + fault.duration_us
        if start_us < leave_us:
            end = LEAVE if leave_us < end_us else ""
            found.append(Stay(name, place, start_us, leave_us, end, last=False))
    final = {stay.node: index for index, stay in enumerate(found)}
    return [stay._replace(last=final[stay.node] == index) for index, stay in enumerate(found)]


_NONE: set[NodeId] = set()


class KnownLinks:
    """The links of all hosts, by their ids (`island.links.Graph`)."""

    def __init__(self) -> None:
        self.version = 0
        self._links: dict[NodeId, set[NodeId]] = {}
        self._names: dict[NodeId, Mapping[bytes, NodeId | None]] = {}
        """Reachable hosts by their four bytes, for each host, until the links change."""

    def change(self, one: NodeId, other: NodeId, *, up: bool) -> set[NodeId]:
        """Note that a link begins or ends; return the hosts that can reach more or fewer hosts than before."""
        apart = self._apart(one, other) if up else None
        self.version += 1
        for here, there in ((one, other), (other, one)):
            links = self._links.setdefault(here, set())
            (links.add if up else links.discard)(there)
        changed = (self._apart(one, other) if apart is None else apart) or set()
        if changed:
            self._names = {}
        return changed

    def _apart(self, one: NodeId, other: NodeId) -> set[NodeId] | None:
        """Return all hosts that are connected with either of two hosts, if these are not connected; else None."""
        links = self._links
        if not links.get(one, _NONE).isdisjoint(links.get(other, _NONE)):
            return None  # As of nearly all pairs whose links change where there are many.
        reached = {one, *distances(self, one)}
        return None if other in reached else reached | {other, *distances(self, other)}

    def neighbours_of(self, node: NodeId) -> Collection[NodeId]:
        """Return the other ends of a host's links."""
        return self._links.get(node, ())

    def names(self, origin: NodeId) -> Mapping[bytes, NodeId | None]:
        """Return all hosts that are connected with one by their four bytes; they share what was found for another."""
        if origin not in self._names:
            found = names(self, origin)
            self._names.update(dict.fromkeys((origin, *distances(self, origin)), found))
        return self._names[origin]


_LAST: Final = "\U0010ffff"
"""Sorts behind the name of every node."""
_INSTANT_STEPS_MAX: Final = 10_000_000


MakeApplication = Callable[[Sequence[str], Callable[[EmulatedDriver, Event], None]], Application]
"""Function that makes the application of all nodes, from the topics and an observer of all events of hosts."""


class Progress(NamedTuple):
    """The progress of a run."""

    t_us: int
    end_us: int
    contacts: int
    receptions: int
    rows: int


class Emulation:
    """All nodes of one run, and what will happen to them."""

    def __init__(
        self, scenario: Scenario, seed: int | str, inputs: Inputs, record: Record, *, encoded: bool,
        application: MakeApplication | None = None,
    ) -> None:  # fmt: skip
        self.scenario = scenario
        self.record = record
        self.contacts_begun = 0
        self._seed = seed
        self._inputs = inputs
        self._end_us = scenario.duration_us
        self._plan = plan(scenario.faults, inputs.presences, seed, self._end_us)
        self.contacts = clipped(self._plan.contacts(inputs.contacts), self._plan.presences(), self._end_us)
        """Contacts as they are played: clipped to the stays of both nodes."""
        # A node that lost its store comes back as NAME.2. Its longer name may exceed what a node
        # may be called, and that is better found out before the run than after an hour of it.
        for name in sorted({stay.node for stay in self._plan.stays if stay.node != stay.place}):
            Identity.plain(name)  # A node that returns as NAME.2 has a longer name.
        self._model, self._models = _models(scenario)
        self._one_way = {(each.a, each.b): each for each in scenario.radio.link if each.one_way}
        self._scheduler = Scheduler(instant_steps_max=_INSTANT_STEPS_MAX)
        self._radio = Radio(
            self._scheduler, seed, model=self._model, encoded=encoded, airtime=scenario.radio.airtime,
            limits=scenario.settings.limits, by_link=False, checked=scenario.settings.security == "off",
        )  # fmt: skip
        self._environment = Environment(self._scheduler, self._radio, seed)
        crashing = {stay.node for stay in self._plan.stays if stay.end == CRASH}
        self._recorder = Recorder(record, self._environment.name, sorted(crashing))
        self._topics = [each.topic for each in scenario.workloads]
        self._place = {stay.node: stay.place for stay in self._plan.stays}
        """Name of each node in the scenario."""
        self._places: dict[str, str] = {}
        """Present name of the node of each place."""
        self._ids: dict[str, NodeId] = {}
        """Ids of signed recipients, by name."""
        self._queues: dict[tuple[int, str], str] = {}
        """Destinations of queues, by the number of the workload and the node that consumes."""
        observe, topics = self._recorder.observe, self._subscribed()
        self._application = (
            WorkloadApplication(topics, observe, not crashing, self._consumed(), self._consumers())
            if application is None
            else application(topics, observe)
        )
        self._orderings = [Ordering.named(each.ordering) for each in scenario.workloads]
        self._drivers: dict[str, EmulatedDriver] = {}
        self._known_links = KnownLinks() if scenario.radio.routes == "told" else None
        """All links, if hosts get them from the emulator."""
        self._full_until: dict[str, int] = {}
        self._touched: dict[str, EmulatedDriver] = {}
        self._samples = Sampler(record, self._radio, self._drivers)
        deliveries = DeliveryPaths([each for _, each in sorted(inputs.channels.items())], self._places, self._drivers)
        self._overlays = OverlaySampler(record, self._radio, self._drivers, deliveries)
        self._schedule()

    @property
    def nodes(self) -> int:
        """The number of nodes; one that comes back without its store counts again."""
        return len({stay.node for stay in self._plan.stays})

    @property
    def crowded(self) -> int:
        """The number of nodes that had more nodes in range than places for neighbours, so far."""
        return len(self._recorder.crowded)

    @property
    def now(self) -> int:
        """Virtual microseconds."""
        return self._scheduler.now

    def run_until(self, t_us: int) -> None:
        """Advance to `t_us`, or to the end of the run; that instant is not part of it."""
        if t_us < self._end_us:
            self._scheduler.run_until(max(t_us - 1, self.now))
            return
        self._scheduler.run_until(self._end_us - 1)
        self._sample_all()

    def _subscribed(self) -> list[str]:
        """Return the topics that every node subscribes to."""
        others = {*self._inputs.channels, *self._inputs.queues}
        return [each for index, each in enumerate(self._topics) if index not in others]

    def _consumed(self) -> dict[str, list[tuple[str, Modulator | None]]]:
        """Return the channels that nodes consume, by the name of the node."""
        channels = [each for _, each in sorted(self._inputs.channels.items())]
        return {
            node: consumed
            for node, place in self._place.items()
            if (consumed := [(each.name, each.modulator) for each in channels if place in each.consumers])
        }

    def _consumers(self) -> QueueConsumers | None:
        """Return the consumers of queues; None if there are no queues."""
        found = {
            (index, node): EmulatedQueue(f"{self._topics[index]}-{node}", node, manager, self._node(manager))
            for index, queues in self._inputs.queues.items()
            for node, manager in queues.items()
        }
        self._queues = {key: queue.destination for key, queue in found.items()}
        return QueueConsumers(found.values()) if found else None

    # --- what is to happen ---------------------------------------------------------------------------------

    def _schedule(self) -> None:
        post = self._scheduler.post
        sample_us = max(1, round(self.scenario.run.sample_s * MICROSECONDS))
        post(sample_us, Phase.DOWN, "", self._sample, sample_us)
        for stay in self._plan.stays:
            post(stay.start_us, Phase.JOIN, stay.node, self._join, stay)
        # Contacts are posted one after the other, each by the one before. All of them at once would
        # be millions of entries in the heap of a long run.
        self._next_contact(0)
        for fault in self._plan.others:
            post(fault.t_us, Phase.LEAVE, fault.node, self._fault, fault)
        for index, script in self._inputs.scripts.items():
            for each in script:
                if each.t_us < self._end_us:
                    post(each.t_us, Phase.PUBLISH, each.node, self._scripted, index, each)

    def _sample(self, sample_us: int) -> None:
        self._sample_all()
        self._scheduler.post(self.now + sample_us, Phase.DOWN, "", self._sample, sample_us)

    def _sample_all(self) -> None:
        self._samples.sample(self.now)
        self._overlays.sample(self.now)

    def _next_contact(self, index: int) -> None:
        if index < len(self.contacts):
            contact = self.contacts[index]
            self._scheduler.post(contact.start_us, Phase.UP, contact.a, self._up, index)

    # --- nodes ---------------------------------------------------------------------------------------------

    def _join(self, stay: Stay) -> None:
        known = self._drivers.get(stay.node)
        driver = known or self._make(stay)
        self._places[stay.place] = stay.node
        crashed = known is not None and known.state is NodeState.DOWN
        self.record.add(Kind.JOIN, self.now, stay.node, detail="restart" if crashed else None)
        if driver.state is NodeState.DOWN:
            driver.boot()
        else:
            driver.resume()
        self._share_links(driver, Phase.JOIN)
        if stay.end:
            self._scheduler.post(stay.end_us, Phase.LEAVE, stay.node, self._leave, stay)
        for index, workload in enumerate(self.scenario.workloads):
            channel = self._inputs.channels.get(index)
            if workload.kind == "broadcast" or (channel is not None and stay.place in channel.producers):
                first_s = workload.first_s + (0.0 if channel is None else channel.delay_s(stay.place))
                self._broadcast_at(stay.start_us + round(first_s * MICROSECONDS), stay, index)

    def _make(self, stay: Stay) -> EmulatedDriver:
        skewed = clock(self.scenario.faults, self._seed, stay.node)
        settings = self._inputs.settings.get(stay.place, self.scenario.settings)
        driver = EmulatedDriver(stay.node, settings, self._environment, self._application, clock=skewed)
        driver.disk.delay_us = round(self.scenario.run.disk_delay_s * MICROSECONDS)
        self._drivers[stay.node] = driver
        return driver

    def _leave(self, stay: Stay) -> None:
        driver = self._drivers[stay.node]
        self._samples.sample_leaving(driver, self.now)
        self.record.add(Kind.LEAVE, self.now, stay.node, detail=None if stay.end == LEAVE else stay.end)
        if stay.last or stay.end in {CRASH, CRASH_LOST}:
            driver.crash()
        else:
            driver.suspend()
        if stay.last:
            self._forget(driver)

    def _forget(self, driver: EmulatedDriver) -> None:
        # Ended for good: the record has everything, and thousands of caches would not fit into
        # memory.
        """Drop a node that left for good: thousands of caches would fill the memory."""
        del self._drivers[driver.name]
        self._radio.remove(driver.name)
        self._samples.forget(driver.name)
        driver.disk = Disk()

    def _fault(self, fault: NodeFault) -> None:
        driver = self._drivers.get(self._places.get(fault.node, ""))
        if driver is None:
            return
        if fault.kind == CLOCK_STEP:
            driver.step_clock(fault.step_us)
            return
        driver.fill_disk(full=True)
        # Another fault may fill it again before: then the longer one counts.
        free_us = self._full_until[driver.name] = max(
            self._full_until.get(driver.name, 0), self.now + fault.duration_us
        )
        self._scheduler.post(free_us, Phase.LEAVE, fault.node, self._disk_free, driver)

    def _disk_free(self, driver: EmulatedDriver) -> None:
        if self._full_until[driver.name] <= self.now:
            driver.fill_disk(full=False)

    # --- contacts ------------------------------------------------------------------------------------------

    def _up(self, index: int) -> None:
        contact = self.contacts[index]
        a, b = contact.a, contact.b
        self.contacts_begun += 1
        ways = self._ways(contact)
        attrs = {"end": repr(contact.end_us / MICROSECONDS)}
        if len(ways) == 1:
            attrs[HEARD] = ways[0][0]
        self.record.add(Kind.CONTACT, self.now, a, peer=b, attrs=attrs)
        model = self._models.get(self._pair(contact), self._model) if self._models else self._model
        if len(ways) == 1:
            self._radio.link(*ways[0], one_way=True, model=model, until_us=contact.end_us)
        else:
            self._radio.link(a, b, model=model, until_us=contact.end_us)
            if self.scenario.ideal:
                self._report_contact(a, b, up=True)
        if contact.end_us < self._end_us:
            self._scheduler.post(contact.end_us, Phase.DOWN, a, self._down, a, b, len(ways))
        self._next_contact(index + 1)

    def _down(self, a: str, b: str, ways: int) -> None:
        self._radio.unlink(a, b)
        if ways > 1 and self.scenario.ideal:
            self._report_contact(a, b, up=False)

    def _report_contact(self, a: str, b: str, *, up: bool) -> None:
        for here, there in ((a, b), (b, a)):
            driver = self._drivers[here]
            driver.host.link(there, up, driver.now)
            self._answer(driver, Phase.UP if up else Phase.DOWN)
        if self._known_links is not None:
            changed = self._known_links.change(*[self._drivers[name].identity.node for name in (a, b)], up=up)
            for _, driver in sorted(self._drivers.items()) if changed else ():
                if driver.identity.node in changed:
                    self._share_links(driver, Phase.UP if up else Phase.DOWN)

    def _share_links(self, driver: EmulatedDriver, phase: Phase) -> None:
        """Inform a host of all links between hosts, if it is present."""
        if self._known_links is not None and driver.state is NodeState.RUNNING and driver.settings.island:
            driver.host.set_links(self._known_links, driver.now)
            self._answer(driver, phase)

    def _ways(self, contact: Contact) -> Sequence[tuple[str, str]]:
        """Return the directions in which a contact works, as (node that is heard, node that hears)."""
        a, b = contact.a, contact.b
        if contact.heard:
            return ((a, b) if contact.heard == a else (b, a),)
        for pair in ((a, b), (b, a)) if self._one_way else ():
            if (self._place[pair[0]], self._place[pair[1]]) in self._one_way:
                return (pair,)
        if self.scenario.radio.asymmetric:
            # Drawn from the pair and the start of the contact, not from a common stream: one more
            # contact elsewhere must not change which of the others are one-way.
            chance = stream(self._seed, a, b, "asymmetric", contact.start_us)
            if chance.random() < self.scenario.radio.asymmetric:
                return ((a, b) if chance.random() < 0.5 else (b, a),)  # noqa: PLR2004 - either way
        return (a, b), (b, a)

    def _pair(self, contact: Contact) -> tuple[str, str]:
        """Return the names of the two in the scenario. One that lost its store has another name, and the same links."""
        a, b = sorted((self._place[contact.a], self._place[contact.b]))
        return a, b

    # --- publications --------------------------------------------------------------------------------------

    def _broadcast_at(self, t_us: int, stay: Stay, index: int) -> None:
        if t_us < stay.end_us:
            self._scheduler.post(t_us, Phase.PUBLISH, stay.node, self._broadcast, stay, index)

    def _broadcast(self, stay: Stay, index: int) -> None:
        workload = self.scenario.workloads[index]
        lifetime_us = None if workload.lifetime_s is None else round(workload.lifetime_s * MICROSECONDS)
        self._publish(
            self._drivers[stay.node], index, Publication(self.now, stay.place, "", workload.sizes[0], lifetime_us)
        )
        self._broadcast_at(self.now + max(1, round(workload.period_s * MICROSECONDS)), stay, index)

    def _scripted(self, index: int, what: Publication) -> None:
        driver = self._drivers.get(self._places.get(what.node, ""))
        # A fault may have taken the node away: then its application cannot publish.
        if driver is not None and driver.state is NodeState.RUNNING:
            self._publish(driver, index, what)

    def _publish(self, driver: EmulatedDriver, index: int, what: Publication) -> None:
        label = what.message
        payload: bytes | Blank = Blank(what.size)
        if driver.identity.signed:
            # Signed payloads are hashed, so they need bytes; the others are counted only. The
            # stream is named by everything that distinguishes the message, so that a run can be cut
            # anywhere.
            payload = stream(self._seed, driver.name, "payload", index, self.now, label).randbytes(what.size)
        try:
            if index in self._inputs.channels:
                driver.host.overlay.emit(self._topics[index], payload, driver.now, lifetime_us=what.lifetime_us)
            else:
                driver.host.publish(
                    self._queues[index, what.queue] if what.queue else self._topics[index], payload, now=driver.now,
                    lifetime_us=what.lifetime_us, label=label,
                    persistent=what.persistent, priority=what.priority, ordering=self._orderings[index],
                    recipients=[self._node(name) for name in what.recipients] or None,
                )  # fmt: skip
        except StateError as error:
            # The cache is full of what may not give way, or there are too many order groups: it was not published, and
            # the application knows.
            reason = "groups" if isinstance(error, OrderError) else Reason.NO_ROOM.value
            attrs = {"recipients": " ".join(what.recipients)} if what.recipients else None
            self.record.add(Kind.REFUSE, self.now, driver.name, message=label or None, detail=reason, attrs=attrs)
        else:
            driver.report_published()
            # Also in ideal mode, where the host answers later: each of several publications of one instant is a batch
            # of its own, as on a real node, and not all of them together.
            driver.write()
        self._answer(driver, Phase.PUBLISH)

    def _node(self, place: str) -> NodeId:
        """Return the id of the present or future node of a place: a recipient may join after the publication."""
        name = self._places.get(place, place)
        if self.scenario.settings.security != "signed":
            return NodeId(name)
        if name not in self._ids:
            self._ids[name] = Identity.derived(self._seed, name).node
            self._environment.names[self._ids[name]] = name
        return self._ids[name]

    def _answer(self, driver: EmulatedDriver, phase: Phase) -> None:
        """Let the host answer: at once or, in ideal mode, after everything in this phase of this instant."""
        if not self.scenario.ideal:
            driver.drain()
            return
        if not self._touched:
            self._scheduler.post(self.now, phase, _LAST, self._answer_all)
        self._touched[driver.name] = driver

    def _answer_all(self) -> None:
        touched, self._touched = self._touched, {}
        for _, driver in sorted(touched.items()):
            driver.drain()


def run_attributes(scenario: Scenario, seed: int | str, inputs: Inputs) -> dict[str, str]:
    """Return the attributes of a record's first row."""
    return {
        "scenario": scenario.text,
        "seed": str(seed),
        "version": __version__,
        "build": BUILD,
        "mode": scenario.run.mode,
        "defaults": scenario.in_force(),
        **inputs.files,
        **({"ignored_events": str(inputs.ignored_events)} if inputs.ignored_events else {}),
    }


def _models(scenario: Scenario) -> tuple[LinkModel, dict[tuple[str, str], LinkModel]]:
    """Return the link models: the default, and those by pair."""
    radio = scenario.radio
    usual = LinkModel(
        delay_us=round(scenario.delay_s * MICROSECONDS),
        loss=radio.loss,
        duplicate=radio.duplicate,
        reorder=radio.reorder,
        reorder_us=max(1, round(radio.reorder_s * MICROSECONDS)),
        gather_us=round(radio.gather_s * MICROSECONDS),
        corrupt=scenario.faults.corrupt,
        truncate=scenario.faults.truncate,
        rate_bytes_per_s=radio.rate_bytes_per_s,
    )
    models: dict[tuple[str, str], LinkModel] = {}
    for link in scenario.radio.link:
        names = ("delay_s", "loss", "duplicate", "reorder", "rate_bytes_per_s")
        changes = {name: getattr(link, name) for name in names}
        models[min(link.a, link.b), max(link.a, link.b)] = usual.changed(**changes)
    return usual, models
