"""Families of metrics: the tables that `lab metrics` writes, one folder each under ``metrics``.

The names bcast, rcvd, codlvd, expd, scb, sdlv, tdelay, ltcy and codlvdelay are those of CAUSAL §VI-A d; hops, spread,
neighbours and throughput those of JOMS; delivery ratios those of EMMA. Families of systems that are still to come have
their place here, and get their functions with those systems.

Percentiles are of the nearest rank: the least value such that at least that share of all values is not above it. Delays
are counted in whole milliseconds for it, rounded half to even, so that equal values can be counted; least, most, mean
and deviation are of whole microseconds. Deviations are those of all values, not of a sample.
"""

from __future__ import annotations

from carrypost.lab.schemas import Column, Table

TDELAY, LTCY, CODLVDELAY = "tdelay", "ltcy", "codlvdelay"
DELAYS = (TDELAY, LTCY, CODLVDELAY)
PERCENTILES = (50, 80, 90, 95, 99)

_RUN = Column("run", "string", "scenario/settings/seed")
_NODE = Column("node", "string", "who")
_TIME = Column("t", "float64", "when, in seconds")
_WINDOW = Column("t", "float64", "begin of the window, in seconds")
_METRIC = Column("metric", "string", "`tdelay`, `ltcy` or `codlvdelay`")
_MESSAGE = Column("message", "string", "label or id")
_MODE = Column("mode", "string", "`persistent` or `non-persistent`; `unknown` where it is not told")
_PRIORITY = Column("priority", "int64", "0 to 9", nullable=True)
_RECEPTIONS = Column("copies", "int64", "receptions")
_COUNTS = (
    Column("bcast", "int64", "messages broadcast"),
    Column("rcvd", "int64", "messages received, own ones never"),
    Column("codlvd", "int64", "messages (co-)delivered, own ones included"),
    Column("expd", "int64", "messages that expired while they waited for their turn"),
    Column("left", "int64", "messages received, neither delivered nor expired"),
    Column("codlvratio", "float64", "codlvd / (bcast + rcvd)", nullable=True),
    Column("expratio", "float64", "expd / rcvd", nullable=True),
)
_SPREAD = (
    Column("min_s", "float64", "least", nullable=True),
    Column("max_s", "float64", "most", nullable=True),
    Column("avg_s", "float64", "mean", nullable=True),
    Column("stdev_s", "float64", "standard deviation", nullable=True),
)
_CUMULATIVE = (
    Column("value_ms", "int64", "milliseconds"),
    Column("count", "int64", "how many have this value"),
    Column("cumulative", "int64", "how many have this or less"),
    Column("share", "float64", "of all, this or less"),
)


def _family(name: str, meaning: str, *columns: Column) -> Table:
    """Make a family; its tables begin with the run."""
    return Table(name, meaning, (_RUN, *columns))


PROCESSING = _family("processing", "what became of messages (CAUSAL, Tables II and V)", *_COUNTS)
PROCESSING_BY_NODE = _family("processing_by_node", "the same for each node", _NODE, *_COUNTS)
DELAY_SPREAD = _family(
    "delays",
    "transmission delay, co-delivery latency and both together (CAUSAL, Tables III and VI)",
    _METRIC,
    Column("count", "int64", "copies"),
    *_SPREAD,
    *(Column(f"p{share}_s", "float64", f"{share} % are not above", nullable=True) for share in PERCENTILES),
)
DELAY_CDF = _family(
    "delay_cdf",
    "how delays are distributed (CAUSAL, figures 5 and 10): the least, and every value that another thousandth reaches",
    _METRIC,
    *_CUMULATIVE,
)
DELAY_GRID = _family(
    "delay_grid",
    "latency against transmission delay, counted in cells (CAUSAL, figures 4 and 9)",
    Column("tdelay_s", "float64", "lower edge of the cell"),
    Column("ltcy_s", "float64", "lower edge of the cell"),
    Column("tdelay_width_s", "float64", "width of the cell"),
    Column("ltcy_width_s", "float64", "height of the cell"),
    Column("copies", "int64", "how many are in it"),
)
REGISTRIES = _family(
    "registries",
    "sizes of registries over time (CAUSAL, figures 6 and 11)",
    _NODE,
    _TIME,
    Column("leaving", "bool", "whether the node was about to leave: no part of means over time"),
    Column("c_barrier", "int64", "entries of the causal barrier", nullable=True),
    Column("co_delivered", "int64", "sources of which something was delivered (sdlv)", nullable=True),
    Column("pending", "int64", "messages that wait", nullable=True),
    Column("cache", "int64", "messages held", nullable=True),
)
REGISTRY_SIZES = _family(
    "registry_sizes",
    "sizes of registries over all nodes and times",
    Column("registry", "string", "which"),
    Column("samples", "int64", "regular samples"),
    Column("mean", "float64", "of regular samples", nullable=True),
    Column("max", "int64", "of all samples"),
)
BARRIERS = _family(
    "barriers",
    "entries in the barriers of messages (scb)",
    Column("entries", "int64", "predecessors named"),
    Column("messages", "int64", "how many name so many"),
)
DELIVERY = _family(
    "delivery",
    "for each message, the share of its recipients that got it: the nodes that it lists or, if it "
    "lists none, all nodes other than its author that were present during its lifetime",
    _MESSAGE,
    Column("source", "string", "author"),
    Column("published", "float64", "when"),
    Column("recipients", "int64", "nodes that it lists, or that were there while it lived"),
    Column("delivered", "int64", "of these, those that got it while it lived"),
    Column("ratio", "float64", "delivered / recipients", nullable=True),
    _MODE,
    _PRIORITY,
)
DELIVERY_RATIO = _family(
    "delivery_ratio",
    "mean share of recipients that a message was delivered to (EMMA)",
    Column("messages", "int64", "with a recipient"),
    Column("ratio", "float64", "mean", nullable=True),
)
CLASSES = _family(
    "classes",
    "the same by class of messages (EMMA, figures 1, 3, 5 and 6)",
    _MODE,
    _PRIORITY,
    Column("messages", "int64", "how many"),
    Column("recipients", "int64", "of all of them"),
    Column("delivered", "int64", "to recipients while they lived"),
    Column("ratio", "float64", "mean of the messages that have a recipient", nullable=True),
)
MODE_DELAYS = _family(
    "mode_delays",
    "how long messages of a mode take to be delivered (EMMA, figure 2): as in `delay_cdf`, but shares are of all "
    "recipients",
    _MODE,
    *_CUMULATIVE[:-1],
    Column("share", "float64", "of all recipients of messages of this mode, delivered in this or less"),
)
FLOOD = _family(
    "flood",
    "how old messages are when a flood brings them, the most that any protocol could deliver: as in `delay_cdf`; none "
    "where contacts are not known",
    *_CUMULATIVE,
)
HOPS = _family(
    "hops",
    "hops of messages to each node (JOMS)",
    _NODE,
    Column("received", "int64", "messages"),
    Column("direct", "int64", "of these, from their author"),
    Column("mean", "float64", "hops"),
    Column("max", "int32", "hops"),
)
HOP_COUNTS = _family(
    "hop_counts",
    "receptions by their hops",
    Column("hops", "int32", "1: from the author"),
    _RECEPTIONS,
)
SPREAD = _family(
    "spread",
    "how one message spread (JOMS): of each run the one that most nodes got, the first of these",
    _MESSAGE,
    Column("reached", "int64", "nodes that have got it by then, its author not counted"),
    Column("after_s", "float64", "since it was published"),
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
    Column("bytes", "int64", "sent"),
)
TIMELINE = _family(
    "timeline",
    "number of events of each kind, over time",
    _WINDOW,
    Column("kind", "string", "kind of row in the record"),
    Column("count", "int64", "rows"),
    Column("size", "int64", "their sizes together", nullable=True),
)
CONTACT_SUMMARY = _family(
    "contact_summary",
    "contacts and their durations (CAUSAL, Tables I and IV)",
    Column("contacts", "int64", "how many"),
    Column("pairs", "int64", "of nodes that met"),
    Column("nodes", "int64", "that met anybody"),
    *_SPREAD,
)
CONTACT_CDF = _family("contact_cdf", "how durations of contacts are distributed", *_CUMULATIVE)
INTER_CONTACT_CDF = _family(
    "inter_contact_cdf",
    "how times between the end of a pair's contact and its next one are distributed",
    *_CUMULATIVE,
)
NEIGHBOURS = _family(
    "neighbours",
    "how long nodes had so many neighbours, while they were there (JOMS)",
    Column("neighbours", "int64", "how many at a time"),
    Column("node_s", "float64", "node-seconds"),
    Column("share", "float64", "of all, with so many or fewer"),
)
NEIGHBOURS_TIMELINE = _family(
    "neighbours_timeline",
    "number of nodes present, and of their neighbours, over time (JOMS)",
    _WINDOW,
    Column("active", "float64", "mean number of nodes that were there"),
    Column("neighbours", "float64", "mean number of neighbours of a node that was there", nullable=True),
)
ACTIVITY = _family(
    "activity",
    "times at which nodes were present (CAUSAL, figures 3 and 8)",
    _NODE,
    Column("start", "float64", "first instant, in seconds"),
    Column("end", "float64", "first instant after, in seconds"),
)
PATH_LENGTHS = _family(
    "path_lengths",
    "mean hops between brokers of the overlay, and from producers to consumers of channels, by time (OVERLAY, figures "
    "7, 8 and 10 to 12); none where there are no brokers",
    _TIME,
    Column(
        "path",
        "string",
        "between brokers `network`: shortest paths; `overlay`: paths from broker to broker, as each knows them; to "
        "consumers `delivery`: paths of events; `best`: those of an overlay that knows the network as it is",
    ),
    Column("pairs", "int64", "of nodes that are connected"),
    Column("hops", "float64", "mean of all pairs", nullable=True),
)
BROKER_TRAFFIC = _family(
    "broker_traffic",
    "control traffic of brokers to maintain the overlay (OVERLAY, figure 9)",
    _NODE,
    Column("bytes", "int64", "of messages: descriptors and signatures"),
    Column("bits_per_s", "float64", "mean over the run, up to the last sample", nullable=True),
)
LOAD = _family(
    "load",
    "work of brokers as a share of what they can do, by time (OVERLAY, figure 13)",
    Column("t", "float64", "when, in seconds"),
    Column("brokers", "int64", "that were there"),
    Column("mean", "float64", "mean load of all; 1: all that they can do"),
    Column("max", "float64", "of the broker with the highest load"),
)
RELOCATIONS = _family(
    "relocations",
    "new homes of clients of channels, and seats of consumers that moved from one broker to another (OVERLAY §2.4)",
    Column("what", "string", "`home` or `relocate`"),
    Column("reason", "string", "for a home; of a seat the operation", nullable=True),
    Column("count", "int64", "how many"),
    Column("bytes", "int64", "of the states that moved, together", nullable=True),
    Column(
        "pause_avg_s",
        "float64",
        "time from the last result of the old seat until the new one works, mean",
        nullable=True,
    ),
    Column("pause_max_s", "float64", "the longest", nullable=True),
)
EVENT_LATENCY = _family(
    "event_latency",
    "time from an event to its result at a consumer, by time of the event (OVERLAY, figures 16 and 17); of a producer "
    "with several channels only of events that come unchanged",
    _WINDOW,
    Column("results", "int64", "that consumers were given of events in the window"),
    Column("avg_s", "float64", "mean"),
    Column("p50_s", "float64", "half of them are not above"),
    Column("p95_s", "float64", "95 % are not above"),
    Column("max_s", "float64", "most"),
)
ACTIVITY_SUMMARY = _family(
    "activity_summary",
    "total time that nodes were present (CAUSAL, Tables I and IV)",
    Column("nodes", "int64", "that were ever there"),
    Column("active_max", "int64", "at most at the same time"),
    *_SPREAD,
)
