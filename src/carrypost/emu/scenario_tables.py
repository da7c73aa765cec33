"""The tables of a scenario file: every key, its default and what it may hold.

Each table is a frozen settings class, checked when it is made (`carrypost.config.rules`); the document of the emulator
is made from these docstrings. Reading files, and what the tables mean together, is for
`carrypost.emu.scenario`. Times are seconds here and microseconds everywhere else.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final, Literal

from carrypost.config import DAY_S, HOUR_S, UNBOUNDED, YEAR_S
from carrypost.config.rules import (
    number,
    number_or_range,
    rows,
    size,
    table,
    text,
    texts,
    values,
    whole,
    whole_or_range,
)

FAITHFUL: Final = "faithful"
IDEAL: Final = "ideal"
POPULATION: Final = "population"
DIRECT: Final = "direct"
"""Strategy that takes messages to their recipients only."""
ZERO = "zero"
"""Value that means no delays, instead of a file."""
RANDOM: Final = "random"
"""Kind of workload."""
FROM_CONTACTS: Final = "contacts"
FAULTS = ("away", "suspend", "crash", "crash-lost", "disk-full", "clock-step")
MESSAGES_MAX = 1_000_000
"""Of one workload of the kind `addressed`."""
_NODES_MAX = 1_000_000
_RATE_PER_H_MAX = 3_600.0


@table("workload")
class WorkloadTable:
    """The publications: one topic, to which every node subscribes from its first join; one channel; or queues."""

    kind: Literal["broadcast", "script", "addressed", "random", "channel"] = "broadcast"
    """Broadcast: every node publishes periodically. Script: a file lists the publications. Addressed: hosts publish at
    random times, each message for some of the others. Random: nodes publish at random times while they are present.
    Channel: producers emit events of a channel periodically. Required."""
    topic: str = text("", "a destination")
    """Name of the topic or channel; empty: workload-0 for the first workload, and so on."""
    producers: str = text("", "the name of a group")
    """Channel: the group of nodes that emit events. Required."""
    consumers: str = text("", "the name of a group")
    """Channel: the group of nodes that subscribe, each from its first join on. Required."""
    modulator: str = text("", "the name of a modulator")
    """Channel: the modulator of all consumers; empty: none, so that consumers get every event."""
    params: Mapping[str, object] = values("a table of parameters")
    """Channel: the parameters of the modulator, by name."""
    ordering: Literal["none", "causal", "delta-causal"] = "none"
    """Order in which messages of this topic are delivered."""
    first_s: float = number(0.0, 0.0, YEAR_S)
    """Broadcast, channel: time from each join of a node to its first publication. Addressed: start of publishing."""
    period_s: float = number(60.0, 1e-6, YEAR_S)
    """Broadcast, channel: time from one publication of a node to its next."""
    spread: bool = False
    """Channel: true if producers emit at moments spread evenly over `period_s`, not at the same moment."""
    size: int | tuple[int, int] = whole_or_range(1_000, 0, UNBOUNDED)
    """Broadcast, addressed, random, channel: payload bytes. They are counted, not generated. Addressed, random: `[LOW,
    HIGH]` draws each size evenly."""
    lifetime_s: float | None = number(None, 1e-6, 100 * YEAR_S)
    """Broadcast, addressed, random, channel: lifetime of a message; if left out, unlimited for messages, and
    `settings.overlay.event_lifetime_s` for events."""
    messages: int = whole(100, 1, MESSAGES_MAX)
    """Addressed, random: total number of messages."""
    queue: Literal["none", "recipient", "third"] = "none"
    """Random: every node has a queue, each message goes to that of another node, and the node consumes it at once. The
    queue is managed by its consumer ("recipient"), or by a node that neither sends to it nor consumes ("third")."""
    within_s: float = number(20.0, 1e-6, YEAR_S)
    """Addressed: time within which messages are published, as a Poisson process with a known number of events."""
    every_s: float | tuple[float, float] | None = number_or_range(0.001, YEAR_S)
    """Addressed: instead of `messages` and `within_s`, the time from one message to the next, until the end of the run;
    `[LOW, HIGH]` draws each time evenly."""
    recipients: float = number(1.0, 1e-6, 1_024.0)
    """Addressed: number of recipients of a message; below 1: share of all hosts that are recipients."""
    persistent: float = number(0.5, 0.0, 1.0)
    """Addressed: probability that a message is persistent."""
    priorities: int = whole(10, 1, 10)
    """Addressed: priorities are drawn evenly from 0 up to this, exclusive."""
    file: str = text("", "a CSV file")
    """Script: CSV `t,node,message,size` and optionally `lifetime` (empty: unlimited), `recipients` (names separated by
    spaces), `persistent` (`true`, `false`) and `priority` (0 to 9)."""

    @property
    def sizes(self) -> tuple[int, int]:
        """The least and the largest payload."""
        return (self.size, self.size) if isinstance(self.size, int) else self.size

    @property
    def intervals_s(self) -> tuple[float, float] | None:
        """The shortest and the longest time from one message to the next; None: `messages` and `within_s` count."""
        return (self.every_s, self.every_s) if isinstance(self.every_s, float) else self.every_s


@table()
class RunTable:
    """The options of the whole run."""

    name: str = text("", "a name")
    """Name of the run in its record; empty: the name of the file."""
    duration_s: float | None = number(None, 1e-6, 100 * YEAR_S)
    """Length of the run; required. The run goes from 0 to this time, exclusive."""
    mode: Literal["faithful", "ideal", "population"] = FAITHFUL
    """Faithful: beacons find contacts, and links cost time. Ideal: contacts are reported, and links cost nothing.
    Population: there are no hosts, and sets of messages pass over contacts after two calibrated delays."""
    sample_s: float = number(60.0, 0.001, YEAR_S)
    """Interval at which traffic and sizes are recorded."""
    disk_delay_s: float = number(0.0, 0.0, HOUR_S)
    """Time that a batch takes to become durable."""
    workload: tuple[WorkloadTable, ...] = rows(WorkloadTable, "kind")
    """Publications."""

    def __post_init__(self) -> None:
        named = (replace(each, topic=each.topic or f"workload-{index}") for index, each in enumerate(self.workload))
        object.__setattr__(self, "workload", tuple(named))


@table("nodes.group")
class GroupTable:
    """Nodes with their own settings. Later groups override earlier ones."""

    name: str = text("", "a name")
    """Name of the group; required."""
    names: tuple[str, ...] = texts("a list of names of nodes")
    """The nodes of the group."""
    count: int | None = whole(None, 1, _NODES_MAX)
    """Number of nodes, drawn by the seed, instead of `names`."""
    of: str = text("", "the name of a group")
    """Earlier group from which they are drawn; empty: all nodes."""
    settings: Mapping[str, object] = values("a table of settings")
    """Settings of these nodes that differ from `[settings]`."""


@table("nodes")
class NodesTable:
    """The nodes and their presence.

    Without this table: those that contacts or scripts name, as `contacts.presence` says.
    """

    file: str = text("", "a CSV file")
    """CSV `node,join,leave`. A node with several rows returns with its cache. An empty `leave` is the end of the
    run."""
    count: int | None = whole(None, 1, _NODES_MAX)
    """Number of nodes, instead of a file: n0001, n0002 and so on, present for the whole run."""
    group: tuple[GroupTable, ...] = rows(GroupTable, "name")
    """Nodes with their own settings."""


@table("contacts")
class ContactsTable:
    """The contacts of a scenario without mobility."""

    file: str = text("", "a file")
    """File of contacts: CSV `a,b,start,end`, half open, and optionally `heard`; The ONE's connection events, `t CONN a
    b up`; or a table of the laboratory."""
    model: str = text("", "a model of contacts")
    """Instead of a file, a model that draws contacts and presences from the seed. The other keys are then those of the
    model."""
    start_s: float = number(0.0, 0.0, 100 * YEAR_S)
    """Time in the file at which the run begins."""
    presence: Literal["throughout", "contacts"] = "throughout"
    """Without `[nodes]`: nodes are present for the whole run, or each from its first contact in the file to its
    last."""
    overlaps: bool = False
    """Join contacts of a pair that overlap, which is an error otherwise. In The ONE's events a contact then lasts until
    there is a `down` for each `up`; otherwise the `up` of a connected pair and the `down` of an unconnected one are
    ignored."""


@table("radio.link")
class LinkTable:
    """The link of one pair of nodes, if it differs from others; keys left out are as in `[radio]`."""

    a: str = text("", "the name of a node")
    """One node of the pair; with `one_way`, the only one that is heard. Required."""
    b: str = text("", "the name of a node")
    """The other node of the pair. Required."""
    one_way: bool = False
    """True if only `b` hears `a`."""
    rate_bytes_per_s: int | None = size(None, 1, UNBOUNDED)
    """As in `[radio]`."""
    delay_s: float | None = number(None, 0.0, HOUR_S)
    """As in `[radio]`."""
    loss: float | None = number(None, 0.0, 1.0)
    """As in `[radio]`."""
    duplicate: float | None = number(None, 0.0, 1.0)
    """As in `[radio]`."""
    reorder: float | None = number(None, 0.0, 1.0)
    """As in `[radio]`."""


@table("radio")
class RadioTable:
    """Links, and what happens to datagrams on them. In ideal mode only the keys given in the file have an effect."""

    range_m: float = number(50.0, 0.001, 1e6)
    """With mobility: greatest distance at which nodes hear each other."""
    merge_gap_s: float = number(0.0, 0.0, YEAR_S)
    """With mobility: contacts of a pair with at most this gap between them count as one."""
    min_duration_s: float = number(0.0, 0.0, YEAR_S)
    """With mobility: shorter contacts are left out."""
    rate_bytes_per_s: int | None = size(None, 1, UNBOUNDED)
    """Rate at which a link, or the shared air, sends queued datagrams; "none": no limit."""
    airtime: Literal["private", "paired", "shared"] = "private"
    """Private: each direction of a link has the rate to itself. Paired: a node sends to, or hears, one other at a time.
    Shared: all nodes that hear each other share it."""
    delay_s: float | None = number(None, 0.0, HOUR_S)
    """Time from sending to arrival of a datagram; "none": 0.001 in faithful mode, 0 in ideal mode."""
    gather_s: float = number(0.0, 0.0, 1.0)
    """Datagrams of one transmission that arrive within this time are delivered together with the last of them, which
    makes runs faster."""
    loss: float = number(0.0, 0.0, 1.0)
    """Probability that a datagram does not arrive."""
    duplicate: float = number(0.0, 0.0, 1.0)
    """Probability that a datagram arrives twice."""
    reorder: float = number(0.0, 0.0, 1.0)
    """Probability that a datagram is delayed, so that later ones overtake it."""
    reorder_s: float = number(0.02, 1e-6, HOUR_S)
    """Longest such delay."""
    asymmetric: float = number(0.0, 0.0, 1.0)
    """Probability that a contact works in one direction only."""
    routes: Literal["found", "told"] = "found"
    """With `settings.island`: hosts find out the links between others ("found") or, in ideal mode, get them from the
    emulator ("told")."""
    link: tuple[LinkTable, ...] = rows(LinkTable, "a", "b")
    """Links that differ from others."""


@table("population")
class PopulationTable:
    """Options of population mode; ignored in other modes."""

    delays: str = text("", "a file of delays")
    """File written by `carrypost emu calibrate`, or "zero": no delays, which gives the flood bound. Required."""
    window_s: float | None = number(None, 1.0, 100 * YEAR_S)
    """Messages published in a window of this length are spread together: one window after the other or, in a campaign,
    in separate tasks; "none": all at once. It affects the cost, never the result."""
    rows: Literal["all", "none"] = "all"
    """Rows of the record: every reception and delivery ("all"), or only counts and histograms ("none")."""


@table("faults.event")
class EventTable:
    """One failure to inject at a given time, in addition to random ones."""

    t: float | None = number(None, 0.0, 100 * YEAR_S)
    """Time in seconds; required."""
    node: str = text("", "the name of a node")
    """Node that fails; required."""
    kind: Literal["away", "suspend", "crash", "crash-lost", "disk-full", "clock-step"] = "crash"
    """Kind of the failure; after `crash-lost` the store is gone. Required."""
    duration_s: float = number(60.0, 1e-6, 100 * YEAR_S)
    """Duration of the failure; no effect on `clock-step`, after which the clock stays as set."""
    step_s: float = number(1.0, -YEAR_S, YEAR_S)
    """Step of the clock: forward, or backward if below 0."""


@table("faults")
class FaultsTable:
    """Failures to inject, drawn from the seed for each node independently. Rates are per hour of a node's presence."""

    away_per_h: float = number(0.0, 0.0, _RATE_PER_H_MAX)
    """Churn: rate at which a node leaves; its cache is kept."""
    away_s: float = number(600.0, 1e-6, YEAR_S)
    """Churn: mean time until it returns."""
    suspend_per_h: float = number(0.0, 0.0, _RATE_PER_H_MAX)
    """Rate at which a device is suspended."""
    suspend_s: float = number(60.0, 1e-6, YEAR_S)
    """Mean duration of a suspension."""
    crash_per_h: float = number(0.0, 0.0, _RATE_PER_H_MAX)
    """Rate at which a node crashes and loses everything that is not on its disk."""
    restart_s: float = number(10.0, 1e-6, YEAR_S)
    """Mean time until it restarts."""
    store_lost: float = number(0.0, 0.0, 1.0)
    """Probability that a crash destroys the store too; the node returns as NAME.2."""
    disk_full_per_h: float = number(0.0, 0.0, _RATE_PER_H_MAX)
    """Rate at which a disk becomes full, so that nothing can be written."""
    disk_full_s: float = number(60.0, 1e-6, YEAR_S)
    """Mean time until there is space again."""
    clock_skew_s: float = number(0.0, 0.0, YEAR_S)
    """Largest error of a clock in either direction. Emulated clocks are ahead by up to twice this, which makes the same
    difference between clocks."""
    clock_drift_ppm: float = number(0.0, 0.0, 10_000.0)
    """Largest deviation of a clock's speed in either direction, in millionths."""
    clock_step_per_h: float = number(0.0, 0.0, _RATE_PER_H_MAX)
    """Rate at which a clock is set."""
    clock_step_s: float = number(1.0, 0.0, DAY_S)
    """Largest step of a clock, in either direction."""
    corrupt: float = number(0.0, 0.0, 1.0)
    """Probability that a byte of a datagram is changed in transit."""
    truncate: float = number(0.0, 0.0, 1.0)
    """Probability that a datagram arrives truncated."""
    event: tuple[EventTable, ...] = rows(EventTable, "t", "node", "kind")
    """Failures at given times."""
