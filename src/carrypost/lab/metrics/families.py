"""Families of metrics: the tables that `lab metrics` writes, one folder each under ``metrics``.

The names bcast, rcvd, codlvd, expd, scb, sdlv, tdelay, ltcy and codlvdelay are those of CAUSAL §VI-A d; hops, spread,
neighbours and throughput those of JOMS; delivery ratios those of EMMA. Families of systems that are still to come have
their place here, and get their functions with those systems.

Percentiles are of the nearest rank: the least value such that at least that share of all values is not above it. Delays
are counted in whole milliseconds for it, rounded half to even, so that equal values can be counted; least, most, mean
and deviation are of whole microseconds. Deviations are those of all values, not of a sample.
"""

from __future__ import annotations

from carrypost.emu import rows
from carrypost.lab.schemas import Column, Table

DELAYS = TDELAY, LTCY, CODLVDELAY = rows.DELAYS
DELAY_WORDS = {TDELAY: "transmission_delay", LTCY: "ordering_delay", CODLVDELAY: "delivery_delay"}
"""Names of delays in summaries, for readers who do not know the paper's."""
COUNT_WORDS = {
    "bcast": "published", "rcvd": "received", "codlvd": "delivered", "expd": "expired", "left": "undelivered"
}  # fmt: skip
"""The same of counts of messages."""
PERCENTILES = (50, 80, 90, 95, 99)

_RUN = Column("run", "string", "scenario/settings/seed")
_NODE = Column("node", "string", "name of the node")
_TIME = Column("t", "float64", "time in seconds")
_WINDOW = Column("t", "float64", "start of the window, in seconds")
_METRIC = Column("metric", "string", "`tdelay`, `ltcy` or `codlvdelay`")
_MESSAGE = Column("message", "string", "label or id")
_MODE = Column("mode", "string", "`persistent` or `non-persistent`; `unknown` if the record does not say")
_PRIORITY = Column("priority", "int64", "0 to 9", nullable=True)
_RECEPTIONS = Column("copies", "int64", "number of receptions")
_COUNTS = (
    Column("bcast", "int64", "messages broadcast"),
    Column("rcvd", "int64", "messages received from other nodes"),
    Column("codlvd", "int64", "messages (co-)delivered, including own ones"),
    Column("expd", "int64", "messages that expired while they waited for their predecessors"),
    Column("left", "int64", "messages received, neither delivered nor expired"),
    Column("codlvratio", "float64", "codlvd / (bcast + rcvd)", nullable=True),
    Column("expratio", "float64", "expd / rcvd", nullable=True),
)
_SPREAD = (
    Column("min_s", "float64", "minimum", nullable=True),
    Column("max_s", "float64", "maximum", nullable=True),
    Column("avg_s", "float64", "mean", nullable=True),
    Column("stdev_s", "float64", "standard deviation", nullable=True),
)
_CUMULATIVE = (
    Column("value_ms", "int64", "value in milliseconds"),
    Column("count", "int64", "number of values equal to this one"),
    Column("cumulative", "int64", "number of values up to this one"),
    Column("share", "float64", "share of all values up to this one"),
)


def _family(name: str, meaning: str, *columns: Column) -> Table:
    """Make a family; its tables begin with the run."""
    return Table(name, meaning, (_RUN, *columns))


PROCESSING = _family(
    "processing", "numbers of messages published, received, delivered and expired (CAUSAL, Tables II and V)", *_COUNTS
)
OUTCOMES = _family(
    "outcomes",
    "messages that programs created, and copies of them in all",
    Column("created", "int64", "messages published, and those that the cache of their author refused"),
    Column("refused", "int64", "of these, the refused ones"),
    Column("listed", "int64", "messages that list their recipients"),
    Column("relayed", "int64", "copies that came to other nodes than their authors"),
    Column("dropped", "int64", "copies that nodes dropped before their deadline"),
)
PROCESSING_BY_NODE = _family("processing_by_node", "the same numbers for each node", _NODE, *_COUNTS)
DELAY_SPREAD = _family(
    "delays",
    "transmission delay, co-delivery latency and both together (CAUSAL, Tables III and VI)",
    _METRIC,
    Column("count", "int64", "number of copies"),
    *_SPREAD,
    *(Column(f"p{share}_s", "float64", f"{share}th percentile", nullable=True) for share in PERCENTILES),
)
DELAY_CDF = _family(
    "delay_cdf",
    "distribution of delays (CAUSAL, figures 5 and 10): the minimum, and each value that reaches a further thousandth",
    _METRIC,
    *_CUMULATIVE,
)
DELIVERY_CDF = _family(
    "delivery_cdf",
    "distribution of times from publication to delivery, by destination: as in `delay_cdf`, but shares are of all "
    "deliveries of this kind",
    Column("destination", "string", "`topic`, `queue` or another kind of destination"),
    *_CUMULATIVE,
)
DELAY_GRID = _family(
    "delay_grid",
    "latency against transmission delay, counted in cells (CAUSAL, figures 4 and 9)",
    Column("tdelay_s", "float64", "lower edge of the cell"),
    Column("ltcy_s", "float64", "lower edge of the cell"),
    Column("tdelay_width_s", "float64", "width of the cell"),
    Column("ltcy_width_s", "float64", "height of the cell"),
    Column("copies", "int64", "number of copies in the cell"),
)
REGISTRIES = _family(
    "registries",
    "sizes of registries over time (CAUSAL, figures 6 and 11)",
    _NODE,
    _TIME,
    Column("leaving", "bool", "true if the node was about to leave; not included in means over time"),
    Column("c_barrier", "int64", "entries of the causal barrier", nullable=True),
    Column("co_delivered", "int64", "sources of which a message was delivered (sdlv)", nullable=True),
    Column("pending", "int64", "messages that wait for predecessors", nullable=True),
    Column("cache", "int64", "messages in the cache", nullable=True),
)
REGISTRY_SIZES = _family(
    "registry_sizes",
    "sizes of registries over all nodes and times",
    Column("registry", "string", "name of the registry"),
    Column("samples", "int64", "number of regular samples"),
    Column("mean", "float64", "mean of regular samples", nullable=True),
    Column("max", "int64", "maximum of all samples"),
)
BARRIERS = _family(
    "barriers",
    "entries in the barriers of messages (scb)",
    Column("entries", "int64", "number of predecessors"),
    Column("messages", "int64", "number of messages with so many predecessors"),
)
DELIVERY = _family(
    "delivery",
    "for each message, the share of its recipients that got it: the nodes that it lists or, if it "
    "lists none, all nodes other than its author that were present during its lifetime",
    _MESSAGE,
    Column("source", "string", "author of the message"),
    Column("published", "float64", "time of publication, in seconds"),
    Column("recipients", "int64", "nodes that it lists, or that were present during its lifetime"),
    Column("delivered", "int64", "of these, those that got it during its lifetime"),
    Column("ratio", "float64", "delivered / recipients", nullable=True),
    _MODE,
    _PRIORITY,
)
DELIVERY_RATIO = _family(
    "delivery_ratio",
    "mean share of recipients that a message was delivered to (EMMA)",
    Column("messages", "int64", "number of messages with a recipient"),
    Column("ratio", "float64", "mean", nullable=True),
)
CLASSES = _family(
    "classes",
    "the same by class of messages (EMMA, figures 1, 3, 5 and 6)",
    _MODE,
    _PRIORITY,
    Column("messages", "int64", "number of messages"),
    Column("recipients", "int64", "number of recipients of all of them"),
    Column("delivered", "int64", "deliveries to recipients during the lifetime"),
    Column("ratio", "float64", "mean over the messages with a recipient", nullable=True),
)
MODE_DELAYS = _family(
    "mode_delays",
    "distribution of the delivery times of messages of a mode (EMMA, figure 2): as in `delay_cdf`, but shares are of "
    "all recipients",
    _MODE,
    *_CUMULATIVE[:-1],
    Column("share", "float64", "share of all recipients of messages of this mode, delivered within this time"),
)
FLOOD = _family(
    "flood",
    "distribution of the ages of messages when an ideal flood delivers them, the best that any protocol could do: as "
    "in `delay_cdf`; empty if contacts are not known",
    *_CUMULATIVE,
)
ONE = _family(
    "one",
    "figures of The ONE's `MessageStatsReport`, for messages with recipients; a message for several counts for each",
    Column("created", "int64", "messages published, or refused because a buffer was full"),
    Column("relayed", "int64", "receptions of whole messages"),
    Column("dropped", "int64", "copies that expired or were evicted"),
    Column("removed", "int64", "copies that were handed over, or dropped because the recipient has the message"),
    Column("delivered", "int64", "messages delivered to their recipient"),
    Column("delivery_prob", "float64", "delivered / created", nullable=True),
    Column("overhead_ratio", "float64", "(relayed - delivered) / delivered", nullable=True),
    Column("latency_avg", "float64", "mean time to delivery, in seconds", nullable=True),
    Column("latency_med", "float64", "median of it", nullable=True),
    Column("hopcount_avg", "float64", "mean number of hops of delivered messages", nullable=True),
    Column("hopcount_med", "int64", "median of it", nullable=True),
    Column("buffertime_avg", "float64", "mean time for which dropped and removed copies were held", nullable=True),
    Column("buffertime_med", "float64", "median of it", nullable=True),
)
HOPS = _family(
    "hops",
    "hops of messages to each node (JOMS)",
    _NODE,
    Column("received", "int64", "messages received"),
    Column("direct", "int64", "of these, received from their author"),
    Column("mean", "float64", "hops"),
    Column("max", "int32", "hops"),
)
HOP_COUNTS = _family(
    "hop_counts",
    "receptions by their hops",
    Column("hops", "int32", "number of hops; 1: directly from the author"),
    _RECEPTIONS,
)
SPREAD = _family(
    "spread",
    "spread of one message per run (JOMS, figure 8b): of those that reached the most nodes, the one whose last node "
    "got it latest within its day, which is 24 hours of the run; without such a message, the latest of all",
    _MESSAGE,
    Column("source", "string", "author of the message"),
    Column("node", "string", "node that received it"),
    Column("peer", "string", "node that it received it from", nullable=True),
    Column("reached", "int64", "nodes that have it by then, without its author"),
    Column("after_s", "float64", "time since publication, in seconds"),
)
THROUGHPUT = _family(
    "throughput",
    "payload by time from publication to reception, by size of messages (JOMS)",
    Column("size", "int64", "payload bytes"),
    _RECEPTIONS,
    Column("bytes_per_s", "float64", "mean of size / transmission delay", nullable=True),
)
TRAFFIC = _family(
    "traffic",
    "bytes sent, by node and kind of frame",
    _NODE,
    Column("frame", "string", "kind of frame"),
    Column("bytes", "int64", "bytes sent"),
)
TIMELINE = _family(
    "timeline",
    "number of events of each kind, over time",
    _WINDOW,
    Column("kind", "string", "kind of row in the record"),
    Column("count", "int64", "number of rows"),
    Column("size", "int64", "sum of their sizes", nullable=True),
)
CONTACT_SUMMARY = _family(
    "contact_summary",
    "contacts and their durations (CAUSAL, Tables I and IV)",
    Column("contacts", "int64", "number of contacts"),
    Column("pairs", "int64", "pairs of nodes that met"),
    Column("nodes", "int64", "nodes that met another node"),
    *_SPREAD,
)
CONTACT_VIEWS = _family(
    "contact_views",
    "contacts that there were, and contacts as hosts saw them: from `up` to `down`, or to the moment at which they "
    "leave (JOMS)",
    Column("view", "string", "`true` or `hosts`"),
    Column("contacts", "float64", "number of contacts; those that hosts saw are half of both sides together"),
    Column("one_way", "int64", "contacts that worked one way, or the number of times that hosts reported one"),
    Column("short", "float64", "share of contacts of less than a minute"),
    *_SPREAD,
)
SEEN_CONTACT_CDF = _family(
    "seen_contact_cdf", "distribution of the durations of contacts as hosts saw them, each side by itself", *_CUMULATIVE
)
CONTACT_CDF = _family("contact_cdf", "distribution of the durations of contacts", *_CUMULATIVE)
INTER_CONTACT_CDF = _family(
    "inter_contact_cdf",
    "distribution of the times between the end of a pair's contact and the start of its next one",
    *_CUMULATIVE,
)
NEIGHBOURS = _family(
    "neighbours",
    "time for which nodes had each number of neighbours while they were present (JOMS)",
    Column("neighbours", "int64", "number of neighbours at the same time"),
    Column("node_s", "float64", "node-seconds"),
    Column("share", "float64", "share of all node-seconds with so many neighbours or fewer"),
)
NEIGHBOURS_TIMELINE = _family(
    "neighbours_timeline",
    "number of nodes present, and of their neighbours, over time (JOMS)",
    _WINDOW,
    Column("active", "float64", "mean number of nodes present"),
    Column("neighbours", "float64", "mean number of neighbours of a node that was present", nullable=True),
)
ACTIVITY = _family(
    "activity",
    "times at which nodes were present (CAUSAL, figures 3 and 8)",
    _NODE,
    Column("start", "float64", "start in seconds"),
    Column("end", "float64", "end in seconds, exclusive"),
)
PATH_LENGTHS = _family(
    "path_lengths",
    "mean hops between brokers of the overlay, and from producers to consumers of channels, over time (OVERLAY, "
    "figures 7, 8 and 10 to 12); empty if there are no brokers",
    _TIME,
    Column(
        "path",
        "string",
        "between brokers: `network` (shortest paths) or `overlay` (paths from broker to broker, as each broker knows "
        "them); to consumers: `delivery` (paths of events) or `best` (paths of an overlay with perfect knowledge of "
        "the network)",
    ),
    Column("pairs", "int64", "number of connected pairs"),
    Column("hops", "float64", "mean over all pairs", nullable=True),
)
BROKER_TRAFFIC = _family(
    "broker_traffic",
    "control traffic of brokers to maintain the overlay (OVERLAY, figure 9)",
    _NODE,
    Column("bytes", "int64", "bytes of messages: descriptors and signatures"),
    Column("bits_per_s", "float64", "mean over the run, up to the last sample", nullable=True),
)
LOAD = _family(
    "load",
    "load of brokers as a share of their capacity, over time (OVERLAY, figure 13)",
    _TIME,
    Column("brokers", "int64", "number of brokers present"),
    Column("mean", "float64", "mean load of all brokers; 1: their full capacity"),
    Column("max", "float64", "load of the broker with the highest load"),
)
RELOCATIONS = _family(
    "relocations",
    "new homes of clients of channels, and seats of consumers that moved from one broker to another (OVERLAY §2.4)",
    Column("what", "string", "`home` or `relocate`"),
    Column("reason", "string", "reason for a new home; for a seat, the operation", nullable=True),
    Column("count", "int64", "number of them"),
    Column("bytes", "int64", "total size of the states that moved", nullable=True),
    Column(
        "pause_avg_s",
        "float64",
        "mean time from the last result of the old seat until the new one works",
        nullable=True,
    ),
    Column("pause_max_s", "float64", "longest such time", nullable=True),
)
EVENT_LATENCY = _family(
    "event_latency",
    "time from an event to its result at a consumer, by time of the event (OVERLAY, figures 16 and 17); for a "
    "producer with several channels, only of events that arrive unchanged",
    _WINDOW,
    Column("results", "int64", "number of results, of events in the window, that consumers were given"),
    Column("avg_s", "float64", "mean"),
    Column("p50_s", "float64", "median"),
    Column("p95_s", "float64", "95th percentile"),
    Column("max_s", "float64", "maximum"),
)
ACTIVITY_SUMMARY = _family(
    "activity_summary",
    "total time that nodes were present (CAUSAL, Tables I and IV)",
    Column("nodes", "int64", "nodes that were ever present"),
    Column("active_max", "int64", "largest number present at the same time"),
    *_SPREAD,
)
