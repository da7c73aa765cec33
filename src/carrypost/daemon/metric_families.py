"""Metrics of a node in the OpenMetrics format, made of what `carrypost status` shows.

A table says which value of the status becomes which metric. Names end with their unit (`_bytes`, `_seconds`), those of
counters with `_total`. Labels have few values, which no other node can choose: reasons, errors, interfaces and means.
Parts of the node that are switched off have no metrics.

Nothing else imports prometheus_client.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any, Final, NamedTuple

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily, Metric
from prometheus_client.openmetrics.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.registry import Collector

CONTENT_TYPE: Final = CONTENT_TYPE_LATEST
_PREFIX = "carrypost_"
_UNITS = ("bytes", "seconds")
_INTERFACES_MAX = 32
"""Interfaces that have metrics: machines with containers may have hundreds."""
_INFO = ("node", "version", "security", "strategy")
"""Texts of the status that are labels of `carrypost_node_info`."""


class Reading(NamedTuple):
    """One metric: the place of its value in the status, its name, and a sentence about it.

    A number or a flag is the value itself, of a list its length counts, and of a text whether there is one. With a
    label, the value is a mapping with one number for each value of the label.
    """

    path: str
    name: str
    meaning: str
    label: str = ""
    scale: float = 1

    @property
    def is_counter(self) -> bool:
        """True if the value only grows while the node runs."""
        return self.name.endswith("_total")


READINGS: Final = (
    Reading("uptime_s", "uptime_seconds", "Time since the node was started."),
    Reading("incarnation", "incarnation", "Incarnation of the node: one more with each start."),
    Reading("clock_ahead_s", "clock_ahead_seconds", "Time by which the system's clock is behind the node's store."),
    Reading("clock_set_back_s", "clock_set_back_seconds", "Time by which the clock was set back since the start."),
    Reading("neighbours", "neighbours", "Neighbours with which messages are exchanged."),
    Reading("heard", "neighbours_heard", "Neighbours that are heard, including those that do not hear this node."),
    Reading("places", "neighbours_max", "Places for neighbours."),
    Reading("waiting", "neighbours_waiting", "Nodes that wait for a place."),
    Reading("datagram_bytes", "datagram_max_bytes", "Longest datagram to neighbours."),
    Reading("cache.messages", "cache_messages", "Messages in the cache."),
    Reading("cache.bytes", "cache_bytes", "Payload of the messages in the cache."),
    Reading("carries.messages_max", "cache_messages_max", "Messages that the cache may hold."),
    Reading("carries.bytes_max", "cache_max_bytes", "Payload that the cache may hold."),
    Reading("dropped", "messages_dropped_total", "Copies that left the cache or were not admitted.", "reason"),
    Reading("refused", "refusals_total", "Things of other nodes that were refused.", "reason"),
    Reading("payloads_gone", "payloads_gone_total", "Payloads that the store did not have any more."),
    Reading("overrun", "datagrams_overrun_total", "Datagrams dropped because the disk had too much to write."),
    Reading("unread", "datagrams_unread_total", "Datagrams of senders that caused too much useless work."),
    Reading("failed", "failures_total", "Internal errors on input from other nodes."),
    Reading("record_rows_lost", "record_rows_lost_total", "Rows of the record that could not be written."),
    Reading("recipients.acknowledgements", "acknowledgement_records", "Records of acknowledgements that are known."),
    # The store.
    Reading("store.bytes", "store_bytes", "Size of the store's files."),
    Reading("store.free_bytes", "store_free_bytes", "Free space of the disk."),
    Reading("store.names", "store_names", "Names of destinations and nodes in the store."),
    Reading("store.reserve", "store_reserve_intact", "1 while the reserve for a full disk is there."),
    Reading("store.reserve_given_up", "store_reserve_released_total", "Times that the reserve had to be released."),
    Reading("store.unanswered", "store_pending_batches", "Batches that are not written yet."),
    Reading("store.unanswered_bytes", "store_pending_bytes", "Size of the batches that are not written yet."),
    Reading("store.recent_bytes", "store_recent_bytes", "Recent payloads that are kept in memory."),
    Reading("store.unreadable", "store_unreadable_total", "Rows of the store that could not be read."),
    Reading("store.commits", "store_commits_total", "Transactions that were committed."),
    Reading("store.commits_full", "store_syncs_total", "Transactions that were flushed to the disk."),
    Reading("store.batches", "store_batches_total", "Batches that were written."),
    Reading("store.lost", "store_batches_lost_total", "Batches that could not be written."),
    Reading("store.failure", "store_failing", "1 while the store cannot be written."),
    # The network.
    Reading("udp.counters.received", "udp_received_datagrams_total", "Datagrams received."),
    Reading("udp.counters.received_bytes", "udp_received_bytes_total", "Size of the datagrams received."),
    Reading("udp.counters.sent", "udp_sent_datagrams_total", "Datagrams sent."),
    Reading("udp.counters.sent_bytes", "udp_sent_bytes_total", "Size of the datagrams sent."),
    Reading("udp.counters.echoes", "udp_echoes_total", "Own datagrams that came back."),
    Reading("udp.counters.duplicates", "udp_duplicates_total", "Datagrams that were received by several means."),
    Reading("udp.counters.gated", "udp_gated_total", "Datagrams that udp.hear excludes."),
    Reading("udp.counters.send_queue_dropped", "udp_send_dropped_total", "Datagrams that could not be sent."),
    Reading("udp.counters.errors", "udp_errors_total", "Errors of the network.", "error"),
    # Messaging.
    Reading("messaging.subscriptions", "subscriptions", "Subscriptions."),
    Reading("messaging.durable", "subscriptions_durable", "Durable subscriptions."),
    Reading("messaging.circles", "circles", "Circles of this node."),
    Reading("messaging.lapsing", "subscriptions_lapsing", "Unused durable subscriptions, up to 10."),
    Reading("messaging.consumers", "consumers", "Consumers of topics."),
    Reading("messaging.claims", "messages_to_deliver", "Messages to be delivered, counted for each subscription."),
    Reading("messaging.pinned", "messages_pinned", "Copies that are kept for deliveries."),
    Reading("messaging.lost", "messages_lost_total", "Messages lost before a subscription could get them."),
    Reading("messaging.queues", "queues", "Queues that this node manages."),
    Reading("messaging.entries", "queue_messages", "Messages in these queues."),
    Reading("messaging.receiving", "queue_consumers", "Consumers of queues, here and on other nodes."),
    Reading("messaging.unattended", "queues_unattended", "Queues with messages and without consumers, up to 10."),
    Reading("services.stomp.clients", "stomp_clients", "STOMP clients."),
    Reading("services.stomp.slow", "stomp_clients_slow", "STOMP clients that do not read."),
    Reading("services.openwire.clients", "openwire_clients", "OpenWire clients."),
    Reading("services.openwire.slow", "openwire_clients_slow", "OpenWire clients that do not read."),
    # The island.
    Reading("island.hosts", "island_hosts", "Nodes that can be reached over other nodes."),
    Reading("island.records", "island_records", "Nodes whose links are known."),
    Reading("island.routes", "island_routes", "Nodes with which messages are exchanged over other nodes."),
    Reading("island.relayed_bytes", "island_relayed_bytes_total", "Bytes passed on for others."),
    Reading("island.withheld", "island_messages_withheld", "Messages that only their recipients are sent."),
    # The overlay. What counts for the seats or subscriptions of the moment can become smaller.
    Reading("overlay.broker", "overlay_broker", "1 if this node is a broker."),
    Reading("overlay.brokers", "overlay_brokers", "Other brokers that are known."),
    Reading("overlay.neighbours", "overlay_neighbours", "Neighbours in the overlay."),
    Reading("overlay.paths", "overlay_paths", "Brokers to which there is a path."),
    Reading("overlay.load", "overlay_load_ratio", "Work of modulators as a share of what this broker can do."),
    Reading("overlay.topology_bytes", "overlay_topology_bytes_total", "Bytes sent to inform other brokers."),
    Reading("overlay.legs", "overlay_legs_total", "Legs passed on."),
    Reading("overlay.arrived", "overlay_arrived_total", "Messages whose route along the overlay ended here."),
    Reading("overlay.repaired", "overlay_routes_changed_total", "Routes changed because a broker was unreachable."),
    Reading("overlay.homes", "overlay_homes", "Event channels of programs here that have a home broker."),
    Reading("overlay.clients", "overlay_clients", "Clients whose home broker is this node."),
    Reading("overlay.channels", "overlay_channels", "Event channels of these clients."),
    Reading("overlay.rosters", "overlay_rosters", "Brokers whose rosters are known."),
    Reading("overlay.seats", "overlay_seats", "Seats of consumers."),
    Reading("overlay.faults", "overlay_modulator_faults", "Events with which modulators of these seats failed."),
    Reading("overlay.busy_us", "overlay_modulator_seconds", "Execution time of modulators of these seats.", "", 1e-6),
    Reading("overlay.failed", "overlay_seats_failed_total", "Seats closed because of an error."),
    Reading("overlay.emitted", "overlay_events_emitted_total", "Events sent."),
    Reading("overlay.consumed", "overlay_events_consumed", "Events that open subscriptions were delivered."),
    Reading("overlay.lost", "overlay_events_lost_total", "Events missing for subscriptions."),
    Reading("overlay.discarded", "overlay_results_discarded", "Results for open subscriptions that were discarded."),
)  # fmt: skip
MEANS: Final = (
    Reading("usable", "udp_means_usable", "1 if nodes can be announced to by this means."),
    Reading("heard", "udp_means_heard_total", "Datagrams received by this means."),
    Reading("peers", "udp_means_peers", "Nodes heard lately by this means."),
)
"""Metrics of each means on each interface."""


class Families(Collector):
    """The metrics of one status, as prometheus_client collects them."""

    def __init__(self, status: Mapping[str, Any]) -> None:
        self._status = status

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics of all parts that are switched on."""
        yield InfoMetricFamily(f"{_PREFIX}node", "This node.", {name: str(self._status[name]) for name in _INFO})
        for reading in READINGS:
            path, _, name = reading.path.rpartition(".")
            if (part := _part(self._status, path)) is not None:
                value = part[name]
                samples = [([each], count) for each, count in value.items()] if reading.label else [([], value)]
                yield _family(reading, [reading.label] if reading.label else [], samples)
        for reading in MEANS:
            samples = [
                ([interface["name"], means["means"]], means[reading.path])
                for interface in self._status["udp"]["interfaces"][:_INTERFACES_MAX]
                for means in interface["means"]
            ]
            yield _family(reading, ["interface", "means"], samples)


def exposition(status: Mapping[str, Any]) -> bytes:
    """Return the metrics of a node and of its process in the OpenMetrics format."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(Families(status))
    ProcessCollector(registry=registry)
    text: bytes = generate_latest(registry)  # type: ignore[no-untyped-call]  # it has no types
    return text


def _part(status: Mapping[str, Any], path: str) -> Mapping[str, Any] | None:
    """Return a part of the status; None if that part of the node is switched off."""
    found: Mapping[str, Any] | None = status
    for name in filter(None, path.split(".")):
        if found is None:
            return None
        found = found.get(name)
    return found


def _family(reading: Reading, labels: list[str], samples: Iterable[tuple[list[str], Any]]) -> Metric:
    kind = CounterMetricFamily if reading.is_counter else GaugeMetricFamily
    name = reading.name.removesuffix("_total")
    unit = next((each for each in _UNITS if name.endswith(f"_{each}")), "")
    family = kind(f"{_PREFIX}{name}", reading.meaning, labels=labels, unit=unit)
    for values, value in samples:
        family.add_metric(values, _number(value) * reading.scale)
    return family


def _number(value: float | str | Collection[object] | None) -> float:
    if isinstance(value, int | float):
        return value
    return bool(value) if value is None or isinstance(value, str) else len(value)
