"""Progress of consumers, by which producers know which events of their logs are not needed any more.

A seat that another broker adopts needs the events since the consumer's last checkpoint; without a state, those after
the last result that it accepted. So a consumer reports its progress to its home (`Progress`), every `EVERY` results:
to a new home, or one that was restarted, that of all producers, else of those whose events came since.
The home reports the least of all its seats to the homes of producers (`Past`). These report to each producer the least
of all brokers that have seats of the channel, by their rosters. A broker that has not reported holds up the rest.
Nothing of this is stored: after a restart less is known, and events are kept longer.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

from carrypost.model.ids import NodeId, node_prefix
from carrypost.overlay.items import CURSORS_MAX, Past, Progress, Role

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from carrypost.gossip.transfers.host_context import HostContext
    from carrypost.overlay.clients import ClientManager
    from carrypost.overlay.consumers import Consumers
    from carrypost.overlay.item_outbox import ItemOutbox
    from carrypost.overlay.producer import Producer
    from carrypost.overlay.topology import Topology

EVERY = 16
"""Number of results, or of events of one producer, after which progress is reported again."""
Cursors = dict[str, int]
"""Number of the last event that is not needed any more, by producer."""


class _Report(NamedTuple):
    """The last report of a subscription."""

    number: int = 0
    """Number of the last result before it."""
    home: NodeId | None = None
    boot: int = 0
    """Life of the home, which does not remember reports of an earlier one."""
    cursors: Mapping[str, int] = MappingProxyType({})


_NOTHING = _Report()


class ConsumerProgress:
    """The progress of consumers as one node knows it, and its reports."""

    def __init__(
        self,
        context: HostContext,
        topology: Topology,
        clients: ClientManager,
        outbox: ItemOutbox,
        *,
        consumers: Consumers,
        producer: Producer,
    ) -> None:
        self._rosters, self._brokers = topology.rosters, topology.brokers
        self._node, self._most = context.node, context.limits.clients_max
        self._clients, self._outbox, self._consumers, self._producer = clients, outbox, consumers, producer
        self._reports: dict[str, _Report] = {}
        """Last reports of this node's subscriptions, by destination."""
        self._of_clients: dict[bytes, Cursors] = {}
        """Progress of consumers that have seats here, by their digests."""
        self._of_brokers: dict[str, dict[bytes, Cursors]] = {}
        """Least progress of the seats of brokers, by channel with producers here, and by broker."""
        self._reported: dict[str, Cursors] = {}
        """By channel: least progress of the seats here, as homes of producers know it."""
        self._freed: dict[str, Cursors] = {}
        """By channel: progress that was last reported to producers."""

    def work(self) -> None:
        """Report the progress of this node's subscriptions to their homes."""
        for each in self._consumers:
            home, number, report = each.row.home, each.row.number, self._reports.get(each.destination, _NOTHING)
            if home is not None and number - report.number >= EVERY:
                open_now = {other.destination for other in self._consumers}
                self._reports = {to: last for to, last in self._reports.items() if to in open_now}
                info, cursors = self._brokers.get(home), dict(self._consumers.kept.needed_after(each))
                now = self._reports[each.destination] = _Report(number, home, 0 if info is None else info.boot, cursors)
                known = report.cursors if (report.home, report.boot) == (now.home, now.boot) else {}
                for page in _pages({to: last for to, last in cursors.items() if known.get(to) != last}):
                    self._outbox.add(home, Progress(each.row.channel, each.number, page))

    def progress(self, item: Progress, author: NodeId, _now: int) -> bool:
        """Process the progress of a consumer; return False if it has no seat here."""
        client = self._clients.table.at(author, Role.CONSUMER, item.channel, item.subscription)
        if client is None or not client.seated:
            return False
        seats = [each for each in self._clients.table if each.seated and each.item.channel == item.channel]
        known = {each.digest for each in self._clients.table}
        self._of_clients = {digest: cursors for digest, cursors in self._of_clients.items() if digest in known}
        self._merge(self._of_clients.setdefault(client.digest, {}), item.cursors)
        least = _least([self._of_clients.get(each.digest, {}) for each in seats])
        if news := self._news(self._reported, item.channel, least):
            homes = [prefix for prefix, served in self._rosters.serving(item.channel).items() if served.producers]
            for home in filter(None, map(self._broker, homes)):
                for page in _pages(news):
                    self._outbox.add(home, Past(item.channel, page))
        return True

    def past(self, item: Past, author: NodeId, now: int) -> bool:
        """Process the least progress of a broker's seats, or of all; return False if the author may not report it."""
        freed = self._producer.past(item, author, now)
        serving = self._rosters.serving(item.channel)
        served = serving.get(node_prefix(author))
        producers = [
            each.node
            for each in self._clients.table
            if each.active and each.item.role is Role.PRODUCER and each.item.channel == item.channel
        ]  # fmt: skip
        if served is None or not served.seats or not producers:
            return freed
        of = self._of_brokers.setdefault(item.channel, {})
        self._merge(of.setdefault(node_prefix(author), {}), item.cursors)
        with_seats = [prefix for prefix, each in serving.items() if each.seats]
        self._of_brokers[item.channel] = {prefix: of[prefix] for prefix in with_seats if prefix in of}
        least = _least([of.get(prefix, {}) for prefix in with_seats])
        own = {str(producer): least[producer] for producer in producers if producer in least}
        for producer, number in self._news(self._freed, item.channel, own).items():
            self._outbox.add(NodeId(producer), Past(item.channel, ((producer, number),)))
        return True

    def _news(self, reported: dict[str, Cursors], channel: str, now: Mapping[str, int]) -> Cursors:
        """Return the progress of a channel that has to be reported, and record it as reported."""
        before = reported.get(channel, {})
        news = {producer: number for producer, number in now.items() if number - before.get(producer, 0) >= EVERY}
        channels = {each.item.channel for each in self._clients.table}
        reported[channel] = {producer: news.get(producer, before.get(producer, 0)) for producer in now}
        for each in [each for each in reported if each not in channels]:
            del reported[each]
        return news

    def _merge(self, cursors: Cursors, reported: Iterable[tuple[str, int]]) -> None:
        for producer, number in reported:
            # A consumer could name ever more producers. Those that find no room hold nothing up but
            # the release of their own events.
            if producer in cursors or len(cursors) < self._most:
                cursors[producer] = max(number, cursors.get(producer, 0))

    def _broker(self, prefix: bytes) -> NodeId | None:
        if prefix == node_prefix(self._node):
            return self._node
        info = self._brokers.at(prefix)
        return None if info is None else info.node


def _least(all_of: list[Cursors]) -> Cursors:
    """Return, for each producer that all of them know, the least number."""
    if not all_of:
        return {}
    first, *others = all_of
    return {
        producer: min([number, *(each[producer] for each in others)])
        for producer, number in first.items()
        if all(producer in each for each in others)
    }


def _pages(cursors: Mapping[str, int]) -> Iterator[tuple[tuple[str, int], ...]]:
    """Return cursors cut into as many parts as items are needed for them."""
    rows = list(cursors.items())
    for at in range(0, len(rows), CURSORS_MAX):
        yield tuple(rows[at : at + CURSORS_MAX])
