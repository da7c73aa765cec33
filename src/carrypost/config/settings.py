"""Settings of a node and the limits on what it takes from others.

`Settings` and `Limits` are frozen values; every field is checked when the value is made, so its users need not check
again. `parse` reads text, never files: TOML, then the environment over it, then keywords over both. A mistake raises
`ConfigError`, which names the field, says what is allowed and what was found, and for an unknown name the nearest right
one.

Every collection in the core that a peer can fill names the limit that bounds it. The bounds are ours; the papers ask
only that resources per device be adjustable.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal

from carrypost.config.document import Document
from carrypost.config.rules import (
    DAY_S,
    HOUR_S,
    KIB,
    MIB,
    UNBOUNDED,
    YEAR_S,
    Fields,
    changed,
    lifetime,
    number,
    patterns,
    size,
    table,
    text,
    texts,
    whole,
)
from carrypost.errors import ConfigError

MTU_BYTES_MIN: Final = 576
ROUTING: Final = frozenset({"direct", "epidemic", "first-contact", "spray-and-wait", "prophet"})
"""Strategies for emulation, whose state is not stored."""
PACKET_BYTES: Final = 32
"""Bytes that a closed network adds to each datagram."""
TRIES_MAX: Final = 10_000
"""Number of deliveries that a queue may allow."""
DATAGRAM_BYTES: Final = 1_200
"""The longest datagram that every path is taken to carry."""


@table("limits")
class Limits:
    """Bounds on everything that a peer can make this node keep, hold or do."""

    datagram_bytes_max: int = size(9 * KIB, 576, 65_507)
    """Longest datagram accepted; a longer one is refused unread."""
    frames_max: int = whole(512, 1, 65_536)
    """Frames in one datagram."""
    descriptor_bytes_max: int = size(8 * KIB, 256, MIB)
    """Encoded descriptor."""
    recipients_max: int = whole(128, 1, 1_024)
    """Recipients that one message lists."""
    attributes_max: int = whole(64, 0, 4_096)
    """Attributes of one descriptor."""
    attribute_bytes_max: int = size(KIB, 1, 64 * KIB)
    """An attribute's name, or its value if that is text."""
    destination_bytes_max: int = size(256, 1, 64 * KIB)
    """A destination's name."""
    label_bytes_max: int = size(256, 0, 64 * KIB)
    """A message's label."""
    message_bytes_max: int = size(16 * MIB, 1, UNBOUNDED)
    """Payload as sent, and after decompression."""
    offer_entries_max: int = whole(512, 1, 65_536)
    """Entries of one offer frame."""
    request_handles_max: int = whole(512, 1, 65_536)
    """Handles in one request frame."""
    heard_max: int = whole(168, 1, 16_384)
    """Nodes in the heard-list of one announcement. Own lists have as many as fit into `mtu_bytes`, if that is fewer."""
    digest_members_max: int = whole(2_048, 64, 65_536)
    """Numbers of all kinds in one digest frame, and fingerprints in one list of acknowledgements."""
    profile_bytes_max: int = size(64 * KIB, 64, 16 * MIB)
    """Encoded interest profile."""
    profile_entries_max: int = whole(2_048, 1, 65_536)
    """Entries of one interest profile."""
    pattern_bytes_max: int = size(256, 1, 64 * KIB)
    """Text of one pattern."""
    selector_bytes_max: int = size(KIB, 1, 64 * KIB)
    """Text of one selector."""
    profiles_max: int = whole(256, 1, 65_536)
    """Distinct profiles kept."""
    pattern_memory_bytes_max: int = size(8 * MIB, 64 * KIB, UNBOUNDED)
    """Compiled patterns of one profile."""
    neighbours_max: int = whole(256, 1, 65_536)
    """Neighbours at the same time. Those found by announcements are at most as many as fit into this node's own
    heard-list.
    """
    offers_open_max: int = whole(4_096, 1, UNBOUNDED)
    """Per neighbour: wanted messages that it offered and that have not arrived; counted separately, those for which
    there was no room.
    """
    offers_all_max: int = whole(65_536, 2, UNBOUNDED)
    """Wanted messages that all neighbours, and hosts at the ends of routes, offered and that have not arrived; counted
    separately, those for which there was no room, and those that are not wanted any more. Half is common, the rest is
    shared equally.
    """
    partials_max: int = whole(256, 1, UNBOUNDED)
    """Partially received messages."""
    fragment_buffer_bytes_max: int = size(4 * MIB, 16 * KIB, UNBOUNDED)
    """Fragments whose piece is incomplete and not yet verified; at least one piece fits."""
    descriptor_buffer_bytes_max: int = size(256 * KIB, 1 * KIB, UNBOUNDED)
    """Parts of incomplete descriptors, profiles and hash lists."""
    seen_max: int = whole(1_000_000, 1, UNBOUNDED)
    """Ids remembered without a copy. While ids of delivered messages fill it, no wanted message is admitted."""
    seen_bytes_max: int = size(128 * MIB, 1, UNBOUNDED)
    """Descriptors of ids remembered without a copy. While those of delivered messages fill it, no wanted message is
    admitted."""
    unconfirmed_max: int = whole(10_000, 1, UNBOUNDED)
    """Deliveries that the application has not confirmed, never more than half of the cache; their copies are pinned."""
    unconfirmed_bytes_max: int = size(64 * MIB, 1, UNBOUNDED)
    """Payload of unconfirmed deliveries, never more than half of the cache."""
    encounters_max: int = whole(4_096, 1, 16_384)
    """Nodes in the table of encounters of `prophet`, and in that of a neighbour."""
    acked_max: int = whole(1_000, 4, 65_536)
    """Records of acknowledgements that are kept and forwarded; for messages unknown here, a quarter of that."""
    island_nodes_max: int = whole(512, 2, 65_536)
    """Hosts whose links are known."""
    groups_max: int = whole(4_096, 1, UNBOUNDED)
    """Order groups."""
    barrier_entries_max: int = whole(200, 2, 65_536)
    """Direct predecessors of one message; if there are more, messages without content join them."""
    pending_max: int = whole(10_000, 1, UNBOUNDED)
    """Messages that wait for their predecessors, never more than half of the cache; their copies are pinned."""
    pending_bytes_max: int = size(64 * MIB, 1, UNBOUNDED)
    """Payload of messages that wait for their predecessors, never more than half of the cache."""
    share_author: float = number(0.25, 0.001, 1.0)
    """Share that one author may have of a full cache, of the messages that wait for predecessors, of order groups, and
    of queues of this node that are more than half full.
    """
    share_neighbour: float = number(0.5, 0.001, 1.0)
    """Share of a full cache that messages from one neighbour may have."""
    share_queues: float = number(0.25, 0.001, 1.0)
    """Share of a full cache for messages to queues and held topics of other nodes, with their control messages; also
    the share of any cache for the messages in this node's queues, and for legs of others' messages.
    """
    holder_subscribers_max: int = whole(1_000, 1, 65_536)
    """Subscribers of one topic that this node holds, including remembered ones that have left."""
    queue_messages_max: int = whole(10_000, 1, UNBOUNDED)
    """Messages in a queue of this node. Their copies are pinned; further messages stay with their carriers."""
    queue_bytes_max: int = size(64 * MIB, 1, UNBOUNDED)
    """Payload of the messages in a queue of this node. Further messages stay with their carriers."""
    overlay_brokers_max: int = whole(256, 1, 65_536)
    """Known brokers; also brokers whose neighbours are known, and brokers whose rosters are known."""
    overlay_channels_max: int = whole(256, 1, 425)
    """Channels of which one broker has clients."""
    clients_max: int = whole(512, 1, 65_536)
    """Clients of channels whose home is this broker, including those that left recently, and those of one node; also
    producers of which one seat has events or cursors."""
    seats_max: int = whole(256, 1, 65_536)
    """Seats of consumers at a broker."""
    seats_per_client_max: int = whole(8, 1, 65_536)
    """Seats of consumers of one node at a broker."""
    handoffs_max: int = whole(64, 1, 65_536)
    """Seats that leave a broker at the same time; also seats that it expects, and relocations for which it detours
    events."""
    lane_events_max: int = whole(256, 1, 65_536)
    """Events of one producer that a seat keeps until the missing ones before them arrive."""
    lane_bytes_max: int = size(4 * MIB, 1, UNBOUNDED)
    """Payload of the events of one producer that a seat keeps. All seats of a broker together keep at most 16 times as
    much; one event is always allowed."""
    modulator_state_bytes_max: int = size(256 * KIB, 0, UNBOUNDED)
    """State of one modulator. An event that makes it larger is dropped."""
    module_bytes_max: int = size(32 * KIB, 1, UNBOUNDED)
    """A WebAssembly module at the broker that runs it."""
    modules_max: int = whole(64, 1, 65_536)
    """Modules that a broker has compiled, is compiling, waits for or remembers as refused."""
    modulator_memory_bytes_max: int = size(4 * MIB, 64 * KIB, 4_096 * MIB)
    """Memory of one WebAssembly modulator."""
    modules_memory_bytes_max: int = size(512 * MIB, 64 * KIB, UNBOUNDED)
    """Memory of all WebAssembly modulators of a broker, each of which counts with `modulator_memory_bytes_max`."""
    fuel_per_event: int = whole(750_000, 1_000, UNBOUNDED)
    """Fuel of a WebAssembly modulator for one event, about one unit per instruction."""
    fuel_per_s: int = whole(100_000_000, 1_000, UNBOUNDED)
    """Fuel per second of the WebAssembly modulators of one node where time is not measured: 1,000 count as a
    microsecond."""
    replay_events_max: int = whole(64, 1, 65_536)
    """Events that a producer sends again to one broker at the same time."""
    runs_max: int = whole(1_024, 1, 65_536)
    """Runs of events in the state of a moving seat: those since its last result, or since a checkpoint."""
    share_log: float = number(0.25, 0.001, 1.0)
    """Share of the cache for this node's own events, which it keeps for brokers that lack them until they expire or all
    consumers are past them."""
    link_relay_bytes_per_s: int = size(8 * MIB, KIB, UNBOUNDED)
    """Bytes relayed for one neighbour to hosts that it does not reach itself."""
    link_waste_per_s: int = whole(15_000, 1, UNBOUNDED)
    """CPU time, in microseconds per second, that useless frames of one neighbour may cost; beyond it, its datagrams are
    dropped."""
    waste_per_s: int = whole(20_000, 1, UNBOUNDED)
    """CPU time, in microseconds per second, that useless frames of all neighbours and strangers together may cost."""
    refusals_max: int = whole(1_000, 1, UNBOUNDED)
    """Refusals that wait to be reported to the driver; further ones are only counted."""

    def replace(self, **changes: object) -> Limits:
        """Return these limits with some changed."""
        return changed(self, FIELDS.check({"limits": changes}), "limits.")

    def __post_init__(self) -> None:
        largest = max(self.descriptor_bytes_max, self.profile_bytes_max)
        if self.descriptor_buffer_bytes_max < largest:
            raise ConfigError(
                "limits.descriptor_buffer_bytes_max must hold the largest descriptor and profile "
                f"({largest:,}), not {self.descriptor_buffer_bytes_max:,}"
            )


@table("messaging")
class Messaging:
    """Topics and queues of the programs on this node."""

    enabled: bool = True
    """Offer topics and queues to programs. The node then also carries messages for queues of others. Without messaging
    it carries only what `altruistic` selects."""
    non_durable: Literal["live", "as_durable", "reject", "connected"] = "live"
    """Treatment of subscriptions that are not durable: they last as long as their consumers (`live`), are kept like
    durable ones (`as_durable`), are refused (`reject`), or are refused unless a node holds the topic (`connected`). A
    subscription to a held topic is served as long as there is a path to its holder, unless subscriptions are kept or
    refused."""
    subscription_lease_s: float | None = lifetime(30 * DAY_S)
    """Time after which an unused durable subscription ends."""
    prefetch: int = whole(100, 1, UNBOUNDED)
    """Messages that a consumer holds ahead of its program, unless it is created with its own `prefetch`."""
    prefetch_remote: int = whole(10, 0, UNBOUNDED)
    """Messages that a consumer of a queue on another node holds ahead of its program. Keep it low: messages on a
    device that never returns are not delivered to another one. 0: one message is requested, and only while the program
    waits."""
    prefetch_bytes: int = size(MIB, 1, UNBOUNDED)
    """Payload of the messages that a consumer holds ahead of its program; one message is always allowed."""
    advert_s: float = number(7 * DAY_S, 1.0, YEAR_S)
    """Time for which a remote name is kept after each use; also the lifetime of advertisements of own names, which are
    renewed after a third to a half of it. With the default, nodes that meet every third day keep each other's
    names, and an unbound name is forgotten after a week. At most `lifetime_s_max`.
    """
    directory: Literal["use", "lease"] = "use"
    """The rule by which names of others are kept. "use": using their destination extends them. "lease", as in EMMA:
    only their advertisements do; own names are then advertised for `directory_lease_s` at a time instead of
    `advert_s`.
    """
    directory_lease_s: float = number(600.0, 1.0, YEAR_S)
    """The lease of this node's names on other nodes if `directory` is "lease". It is renewed after a third to a half of
    it. At most `lifetime_s_max`.
    """
    manage: bool | tuple[str, ...] = patterns()
    """Manage queues that other nodes place here: never, always, or if the name of the queue matches one of these."""
    tries: int = whole(6, 1, TRIES_MAX)
    """Number of deliveries without an acknowledgement after which a message becomes a dead letter."""
    redelivery_delay_s: float = number(0.5, 0.0, DAY_S)
    """Pause of a session after a rollback or a failure of a listener, and of a message after a STOMP client's NACK. It
    doubles with each repetition, up to a minute. 0: no pause.
    """
    draft_bytes_max: int = size(64 * MIB, KIB, UNBOUNDED)
    """Payload of messages that one session sent and has not committed."""
    receipt_s: float = number(7 * DAY_S, 0.0, YEAR_S)
    """Time after the deadline of a message for which its receipts are still carried and waited for."""


@table("sealing")
class Sealing:
    """Messages that only their readers can read."""

    letters: Literal["if_known", "always", "never"] = "if_known"
    """Seal messages to queues and to listed recipients: if the keys of all readers are known, always, or never. With
    `always`, a message for a node whose key is not known is refused. A program can decide otherwise for each message.
    Without security nothing is sealed."""
    closed: str = text("", "the name of a circle of this node")
    """Exchange datagrams with members of this circle alone, protected by its secret; empty: with all nodes. This node
    has to be a member. Requires security, messaging and the strategy `exchange`."""


@table("overlay")
class Overlay:
    """Brokers, and the overlay that they make."""

    enabled: bool = False
    """Take part in the overlay: know brokers, and carry the messages of overlays. Requires `island`."""
    broker: bool = False
    """Act as a broker."""
    brokers: tuple[str, ...] = texts("a list of node ids")
    """Ids of the nodes that may be brokers; none: any node may."""
    neighbours_max: int = whole(6, 1, 64)
    """Brokers that a broker has as neighbours: the nearest ones."""
    vicinity_hops: int = whole(8, 1, 64)
    """Longest path from a broker to a neighbour, in hops between nodes."""
    update_s: float = number(10.0, 0.1, HOUR_S)
    """Interval at which a broker checks which brokers are near, and sends its neighbours the changes."""
    topology: Literal["adaptive", "static"] = "adaptive"
    """"adaptive": brokers choose their neighbours anew every `update_s`. "static": they keep those found in the first
    `update_s`.
    """
    paths: Literal["brokers", "direct"] = "brokers"
    """"brokers": a message to another broker goes from broker to broker. "direct": it goes directly to the last one."""
    homing: Literal["adaptive", "static"] = "adaptive"
    """"adaptive": clients look for nearer home brokers every `discovery_s`. "static": they keep the first one."""
    discovery_s: float = number(5.0, 0.1, HOUR_S)
    """Interval at which a client checks which brokers are near."""
    orphan_s: float = number(15.0, 0.1, DAY_S)
    """Time after which an unreachable home broker is replaced, if another one can be reached. Also the time that a
    consumer waits for a missing result after later ones have arrived; then it asks its home to restart after the last
    result that it has."""
    gap_s: float = number(60.0, 0.1, DAY_S)
    """Time after which a seat skips missing events, and reports their number to the consumer."""
    checkpoint_s: float = number(5.0, 0.1, DAY_S)
    """Time between two checkpoints, which give a consumer the state of its modulator. A seat whose modulator gave no
    result for this long reports its progress to the consumer."""
    checkpoint_share: float = number(0.05, 0.0, 1.0)
    """Largest size of checkpoints as a share of the bytes of results; 1 KiB is always allowed."""
    event_lifetime_s: float = number(600.0, 0.1, YEAR_S)
    """Lifetime of an event that has none of its own. Its producer keeps it for this long, for brokers that lack it.
    Brokers and clients that are out of reach are remembered for as long, at least 600 s: set it alike on all nodes, to
    more than the longest partition."""
    modulators: Literal["named", "trusted", "any"] = "named"
    """Modulators that a broker runs: registered ones ("named"); also WebAssembly modules of `authors` ("trusted"); also
    modules of any node ("any")."""
    authors: tuple[str, ...] = texts("a list of node ids")
    """Ids of the nodes whose modules a broker runs, if `modulators` is "trusted"."""
    compile_share: float = number(0.1, 0.001, 1.0)
    """Share of a processor that a broker spends on compiling modules."""
    placement: bool = True
    """Move seats that send little of what they receive towards producers, and back when they send more."""
    placement_ratio: float = number(0.5, 0.0, 1.0)
    """Largest ratio of sent to received bytes at which a seat moves towards producers."""
    capacity: float = number(0.5, 0.01, 1_024.0)
    """Number of processors that all modulators of a broker may use together. A broker's load is the share of them in
    use."""
    load_max: float = number(0.9, 0.01, 1e6)
    """Load above which a broker is overloaded: clients then choose other brokers with less load as their homes."""
    load_window_s: float = number(5.0, 0.1, HOUR_S)
    """Time over which load is measured: the work that arrived in it, divided by what the broker can do in it."""
    speed: float = number(1.0, 0.001, 1_000.0)
    """Speed of the processor in emulation: an event takes the declared cost of its modulator divided by this."""
    handoff_s: float = number(10.0, 0.1, HOUR_S)
    """Lifetime of short-lived messages between brokers; also the time that each has to answer while a seat moves."""


@table()
class Settings:
    """The settings of one node. The defaults are those of a real node; `emulated` has those of emulation."""

    altruistic: bool | tuple[str, ...] = patterns()
    """Carry messages that no program here asked for: never, always, or if the destination matches one of these."""
    horizon_hops: int = whole(1, 1, 8)
    """Distance that an interest profile travels, in hops; 1: to direct neighbours."""
    announce_s_min: float = number(1.0, 0.01, HOUR_S)
    """Shortest period of announcements, after a change."""
    announce_s_max: float = number(5.0, 0.01, HOUR_S)
    """Longest period of announcements, without changes."""
    beacons: bool = True
    """Announce periodically; off if the driver reports every contact (ideal emulation)."""
    paper_mode: bool = False
    """Behave as in the papers: fixed period, full offers, stop-and-wait."""
    strategy: Literal[
        "exchange", "anti-entropy", "direct", "epidemic", "first-contact", "spray-and-wait", "prophet"
    ] = "exchange"
    """Start of a contact: compare sets and offer what the other wants (`exchange`); or, as in EMMA, list all messages,
    after which each host sends what the other lacks (`anti-entropy`). With `anti-entropy` this node carries
    everything. The others are routing strategies to compare with, for emulation only ([Strategies](strategies.md)).
    """
    send_order: Literal["rank", "random"] = "rank"
    """Order in which a neighbour is sent what it lacks: by privilege and then by age, the oldest first (`rank`); or by
    privilege and then in random order (`random`), so that of many messages no neighbour gets the same ones first.
    """
    spray_copies: int = whole(6, 1, 65_536)
    """`spray-and-wait`: number of hosts that may have a copy of a message at the same time, its recipients apart."""
    spray_binary: bool = True
    """`spray-and-wait`: give a neighbour half of the tickets of a message, and not one."""
    prophet_p_init: float = number(0.75, 0.0, 1.0)
    """`prophet`: part of what is missing to 1 by which an encounter raises the probability of another."""
    prophet_beta: float = number(0.25, 0.0, 1.0)
    """`prophet`: weight of what a neighbour says of third nodes."""
    prophet_gamma: float = number(0.98, 0.001, 1.0)
    """`prophet`: factor by which probabilities fall in `prophet_unit_s`."""
    prophet_unit_s: float = number(30.0, 0.001, YEAR_S)
    """`prophet`: unit of time of `prophet_gamma`."""
    keep_partials: bool = True
    """Keep the pieces of a half-received message when the contact ends; other neighbours may bring the rest."""
    cache_messages_max: int = whole(20_000, 1, UNBOUNDED)
    """Messages in the cache."""
    cache_bytes_max: int = size(256 * MIB, 1, UNBOUNDED)
    """Payload bytes in the cache."""
    lifetime_s_default: float | None = lifetime(DAY_S)
    """Lifetime of a message sent without one."""
    lifetime_s_max: float | None = lifetime(30 * DAY_S)
    """Longest lifetime of own messages; messages of others with a longer one are refused."""
    mtu_bytes: int | None = size(None, MTU_BYTES_MIN, 65_507, none="interface")
    """Longest datagram sent. "interface": up to 1,452, as the interfaces here and at the neighbours allow."""
    security: Literal["signed", "off"] = "signed"
    """Security level: `signed` signs messages and demands signatures, `off` does neither."""
    compress: bool = True
    """Compress payloads at publication if that makes them shorter."""
    coalesce_s: float = number(0.1, 0.0, 60.0)
    """Time for which new messages are collected before they are offered together."""
    offer_s_min: float = number(0.0, 0.0, 3_600.0)
    """Least time between two offers of new messages to one neighbour; a larger one saves datagrams and adds delay."""
    push_bytes_max: int = size(1_200, 0, 65_507)
    """Longest payload of a new message that is pushed to neighbours without an offer, if it fits into a datagram; 0:
    none.
    """
    acked_s: float = number(10.0, 0.0, HOUR_S)
    """Least time between two broadcasts of new acknowledgements; 0: each is broadcast at once."""
    island: bool = True
    """Find out which hosts can be reached over several hops, and help others to do so."""
    island_s_min: float = number(5.0, 0.0, HOUR_S)
    """Least time between two updates of this host's links to the island, after three at once; 0: no limit."""
    island_hops_max: int = whole(16, 1, 64)
    """Longest path to a recipient that can be reached."""
    island_patience_s: float = number(5.0, 0.1, HOUR_S)
    """Time without progress on its path after which a message is also spread epidemically."""
    routes_max: int = whole(64, 1, 4_096)
    """Hosts to which messages are sent over several hops at the same time."""
    digest_every: int = whole(12, 1, 100_000)
    """Number of announcement periods after which sets are compared again, since knowledge becomes stale."""
    shares: bool = True
    """Keep one author or neighbour from filling a full cache."""
    skew_s_max: float = number(600.0, 0.0, YEAR_S)
    """Longest time by which the date of a message may be ahead of the local clock."""
    window_bytes_max: int = size(256 * KIB, KIB, UNBOUNDED)
    """Bytes in flight to one neighbour without an acknowledgement."""
    messaging: Messaging = Messaging()
    """Topics and queues of the programs on this node."""
    sealing: Sealing = Sealing()
    """Messages that only their readers can read."""
    overlay: Overlay = Overlay()
    """Brokers, and the overlay that they make."""
    limits: Limits = Limits()
    """Bounds on what peers can make this node keep, hold or do."""

    @classmethod
    def emulated(cls, **changes: object) -> Settings:
        """Defaults of emulation and testing, with some fields changed: security off, no end to lifetimes, one size."""
        usual = cls(
            security="off", lifetime_s_default=None, lifetime_s_max=None, mtu_bytes=DATAGRAM_BYTES, island=False
        )  # fmt: skip
        return usual.replace(**changes)

    def replace(self, **changes: object) -> Settings:
        """Return these settings with some fields changed; `limits` may be a table of those limits that change."""
        return changed(self, FIELDS.check(changes))

    def __post_init__(self) -> None:
        if self.announce_s_min > self.announce_s_max:
            raise ConfigError(
                f"announce_s_min must be at most announce_s_max ({self.announce_s_max:,}), not {self.announce_s_min:,}"
            )
        if self.paper_mode and self.strategy != "exchange":
            raise ConfigError(
                f'strategy must be "exchange" where paper_mode is true, not "{self.strategy}": leave one of them out'
            )
        if self.send_order == "random" and self.strategy == "anti-entropy":
            raise ConfigError(
                'send_order must be "rank" with strategy = "anti-entropy", whose hosts have to agree on an order, '
                'not "random"'
            )
        if self.strategy in ROUTING and self.island:
            raise ConfigError(
                f'strategy = "{self.strategy}" requires island = false, which sends to connected hosts by itself: set '
                "both, or use another strategy"
            )
        if self.overlay.enabled and not self.island:
            raise ConfigError("overlay.enabled requires island = true, which finds paths between brokers: set both")
        if self.overlay.broker and not self.overlay.enabled:
            raise ConfigError("overlay.broker requires overlay.enabled = true: set both, or neither")
        if self.sealing.closed and (
            self.security == "off" or not self.messaging.enabled or self.paper_mode or self.strategy != "exchange"
        ):
            raise ConfigError(
                'sealing.closed requires security = "signed", messaging.enabled = true and strategy = "exchange", '
                "without paper_mode: set these, or leave sealing.closed out"
            )
        if self.datagram_bytes > self.limits.datagram_bytes_max:
            raise ConfigError(
                f"mtu_bytes must be at most limits.datagram_bytes_max ({self.limits.datagram_bytes_max:,}), "
                f"not {self.datagram_bytes:,}"
            )

    @property
    def pinned_max(self) -> tuple[int, int]:
        """Messages, and bytes, that are kept until they are confirmed: half of the cache at most."""
        limits = self.limits
        return (
            min(limits.unconfirmed_max, max(1, self.cache_messages_max // 2)),
            min(limits.unconfirmed_bytes_max, max(1, self.cache_bytes_max // 2)),
        )

    @property
    def datagram_bytes(self) -> int:
        """The longest datagram that is sent where nothing is known of an interface or of a neighbour."""
        whole_bytes = DATAGRAM_BYTES if self.mtu_bytes is None else self.mtu_bytes
        return whole_bytes - PACKET_BYTES if self.sealing.closed else whole_bytes


def parse(text: str = "", environment: Mapping[str, str] = {}, **keywords: object) -> Settings:
    """Return settings from TOML text, overridden by environment variables, and those by keywords.

    Top-level keys of the text are fields of `Settings`, the table ``[limits]`` has those of `Limits`. Variables are
    called ``CARRYPOST_<FIELD>`` and ``CARRYPOST_LIMITS_<FIELD>``; one with that prefix that names no field is an error,
    and all others are ignored.
    """
    # Built once, from all three: only the outcome has to be consistent.
    given = Document(text, "the settings").fields(FIELDS)
    return changed(Settings(), given | FIELDS.read_environment(environment) | FIELDS.check(keywords))


FIELDS: Final = Fields({"": Settings})
