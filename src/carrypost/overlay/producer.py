"""Producers: this node's events, their numbers, and the log from which brokers get missing events again."""

# An event is a message to `channel/NAME`. It gets its number (`Headers.event`) when it is sent:
# dense for each channel, across crashes and full disks, because the batch that stores the event has
# the number, too. If the batch is lost, the event fails, and so do those that were sent since;
# their numbers are assigned again. A gap in the numbers would look like a lost event to every seat,
# for ever.
#
# An event names the producer's home (`Headers.home`), and goes there itself, as a message for that
# node alone, when it is on disk. The home passes it on by legs. An event that is sent while no home
# is known stays here, and goes to the home as a leg once there is one. The node's own copies are the
# log: pinned until they expire, or all consumers are past them, as far as they fit into `share_log`
# of the cache. So a broker needs no log of its own, and a broker that vanishes takes no event with
# it. What needs not be sent any more is kept from all other nodes (`Holdings.keep_event`).

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from itertools import pairwise
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from carrypost.errors import LocalError
from carrypost.gossip.holdings.cache import LOG
from carrypost.log.events import Reason
from carrypost.model.address import channel_of
from carrypost.model.ids import NodeId, node_prefix
from carrypost.overlay.items import CURSORS_MAX, Progress, Replay, Role, Sent, cursor_pages, event_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from carrypost.application.ledger import Ledger
    from carrypost.gossip.holdings.copies import Copy
    from carrypost.gossip.outputs import Journal
    from carrypost.gossip.transfers.link import HostContext
    from carrypost.model.ids import MessageId
    from carrypost.overlay.clients import ClientManager
    from carrypost.overlay.consumers import Consumers
    from carrypost.overlay.homes import Homes
    from carrypost.overlay.items import Outbox
    from carrypost.overlay.legs import Legs
    from carrypost.overlay.topology import Topology

# --- numbers -----------------------------------------------------------------------------------------------

# Numbers of this node's events, dense for each channel, across crashes and full disks.
#
# The row of a channel has the number of the last event, and marks: numbers and times of some
# events, by which a producer counts those sent since a time although they are gone. The newest
# marks stay. Of older events ever fewer marks stay: between two of them are at most half as many
# events as follow, so that their number grows as the logarithm of the events. If marks leave open
# which event was the first one since a time, the earliest possible counts: a consumer may then be
# notified of more events than it lost, never of fewer.


NUMBERS = b"P"
"""First byte of the names of rows, by channel."""
_NUMBER_BYTES = 8
_THIN_EVERY = 16
"""Events after which marks are thinned."""
_NEWEST = 16
"""Number of newest events that all keep their marks."""
_SHARE = 2
"""Between two marks lie at most one event per this many later ones, the newest not counted."""


class EventTime(NamedTuple):
    """Number and time of an event."""

    number: int
    created_us: int


def thinned(marks: Sequence[EventTime]) -> list[EventTime]:
    """Return ascending marks without those that lie closer together than their age requires."""
    kept: list[EventTime] = []
    for mark in marks:
        after = marks[-1].number - mark.number - _NEWEST
        while len(kept) > 1 and _SHARE * (mark.number - kept[-2].number) <= after:
            kept.pop()
        kept.append(mark)
    return kept


def before(marks: Iterable[EventTime], since_us: int, last: int) -> int:
    """Return the number of the last event before a time, or a lower one; `last`: the number of the last event of all.

    Events older than all marks count as before that time.
    """
    known = sorted(mark for mark in marks if mark.number <= last)
    first = min((mark.number for mark in known if mark.created_us >= since_us), default=last + 1)
    least = known[0].number - 1 if known else last
    return max([mark.number for mark in known if mark.number < first], default=least)


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(list[EventTime]).decode


class EventNumbers:
    """The number of the last event of this node to each channel."""

    def __init__(self, journal: Journal, ledger: Ledger) -> None:
        self._journal, self._ledger = journal, ledger
        self._last: dict[str, int] = {}
        self._times: dict[str, list[EventTime]] = {}
        self._written: dict[str, int] = {}
        """Numbers on disk, by channel: other nodes learn only of these."""

    def restore(self, name: bytes, row: bytes) -> None:
        """Restore a number after a restart."""
        channel = name[len(NUMBERS) :].decode()
        self._last[channel] = self._written[channel] = int.from_bytes(row[:_NUMBER_BYTES], "big")
        self._times[channel] = _decode(row[_NUMBER_BYTES:]) if row[_NUMBER_BYTES:] else []

    @property
    def total(self) -> int:
        """Number of all events so far."""
        return sum(self._last.values())

    def last(self, channel: str) -> int:
        """Return the number of the last event to a channel; 0 if there is none."""
        return self._last.get(channel, 0)

    def written(self, channel: str) -> int:
        """Return the number of the last event to a channel that is on disk; 0 if there is none."""
        return self._written.get(channel, 0)

    def times(self, channel: str) -> list[EventTime]:
        """Return the times of some events to a channel, with those that are not on disk yet."""
        return self._times.get(channel, [])

    def published(self, channel: str, event: EventTime) -> None:
        """Note the number of an event that was admitted."""
        number = self._last[channel] = event.number
        marks = self._times.setdefault(channel, [])
        marks.append(event)
        if not number % _THIN_EVERY:
            marks = self._times[channel] = thinned(marks)
        self._ledger.put(NUMBERS + channel.encode(), packed(number) + _encode(marks))
        self._journal.when_durable(self._written.__setitem__, channel, number)


def packed(number: int) -> bytes:
    """Return a number as it is stored."""
    return number.to_bytes(_NUMBER_BYTES, "big")


# --- producer ----------------------------------------------------------------------------------------------


PASSED = b"Q"
"""First byte of the names of rows: numbers of the last events that are home, or on their way as legs, by channel."""
_PAUSE_US = 500_000
"""Delay before a broker is answered again about the same channel."""
_OVERDUE_SHARE = 4
"""An event is on its way for one part in this many of `gap_s`. A seat asks for it again before that is over."""


class Producer:
    """The events of one node."""

    def __init__(
        self, context: HostContext, topology: Topology, legs: Legs, homes: Homes,
        *, numbers: EventNumbers, ledger: Ledger, outbox: Outbox,
    ) -> None:  # fmt: skip
        self._node, self._holdings, self._outputs = context.node, context.holdings, context.outputs
        self._cache, self._brokers = context.holdings.cache, topology.brokers
        self._legs, self._homes, self._ledger, self._outbox = legs, homes, ledger, outbox
        limits, settings = context.limits, context.settings
        self._replay_max, self._askers_max = limits.replay_events_max, limits.overlay_brokers_max
        self._most = round(settings.cache_messages_max * limits.share_log)
        self._bytes_max = round(settings.cache_bytes_max * limits.share_log)
        self._young_us = round(settings.overlay.gap_s * 1e6)
        self.numbers = numbers
        self._log: dict[str, dict[int, Copy]] = {}
        """Events that are here, by channel and number."""
        self._pinned: dict[MessageId, Copy] = {}
        self._pinned_bytes = 0
        self._waiting: dict[str, deque[int]] = {}
        """Events without a home that have to leave for that of the producer, ascending."""
        self._going: dict[str, deque[int]] = {}
        """Events on their way to the home that they name, ascending."""
        self._passed: dict[str, int] = {}
        """By channel: up to this number all events are home, on their way as legs, or gone."""
        self._settled: dict[str, set[int]] = {}
        """Later events of which this is true, out of turn."""
        self._answered: dict[tuple[NodeId, str], int] = {}
        """Brokers that were answered, by channel, and when they may ask again. Channels without events of this node
        count as one, so that a broker that invents channels is answered no more often, and needs no more room."""

    # --- an earlier incarnation ----------------------------------------------------------------------------

    def restore(self, name: bytes, row: bytes) -> None:
        """Restore a row after a restart."""
        if name.startswith(NUMBERS):
            self.numbers.restore(name, row)
        else:
            self._passed[name[len(PASSED) :].decode()] = int.from_bytes(row, "big")

    def start(self, copies: Iterable[Copy]) -> None:
        """Restore the events of the log after a restart, and send those that had not left."""
        own = [copy for copy in copies if copy.own and copy.here and event_of(copy.descriptor)]
        for copy in sorted(own, key=lambda each: event_of(each.descriptor)):
            if (channel := channel_of(copy.descriptor.destination)) is not None:
                self._enter(channel, event_of(copy.descriptor), copy)
        for channel in self._log:
            self._homes.attach(Role.PRODUCER, channel)

    # --- events --------------------------------------------------------------------------------------------

    def published(self, copies: Sequence[Copy]) -> None:
        """Number events that were admitted, add them to the log, and look for a home for their channels."""
        for copy in copies:
            number = event_of(copy.descriptor)
            if number and (channel := channel_of(copy.descriptor.destination)) is not None:
                self.numbers.published(channel, EventTime(number, copy.descriptor.created_us))
                self._note_arrived(channel)
                self._homes.attach(Role.PRODUCER, channel)
                self._enter(channel, number, copy)

    def _note_arrived(self, channel: str) -> None:
        """Note events that came to their home, in the batch of the next one: none is made for it alone."""
        going, log = self._going.get(channel), self._log.get(channel, {})
        while going and ((copy := log.get(going[0])) is None or self._holdings.is_kept_event(copy)):
            self._settle(channel, going.popleft())

    def _enter(self, channel: str, number: int, copy: Copy) -> None:
        self._log.setdefault(channel, {})[number] = copy
        passed = number <= self._passed.get(channel, 0)
        if passed or copy.descriptor.home is None:
            self._holdings.keep_event(copy)
        if not passed:
            leaving = self._waiting if copy.descriptor.home is None else self._going
            leaving.setdefault(channel, deque()).append(number)
        self._cache.pin((copy,), LOG)
        self._pinned[copy.id] = copy
        self._pinned_bytes += copy.descriptor.length
        while len(self._pinned) > self._most or self._pinned_bytes > self._bytes_max:
            self._unpin(next(iter(self._pinned.values())))

    def _unpin(self, copy: Copy) -> None:
        if self._pinned.pop(copy.id, None) is not None:
            self._pinned_bytes -= copy.descriptor.length
            self._cache.unpin((copy,), LOG)

    def left(self, copies: Sequence[Copy], reason: Reason) -> None:
        """Forget events that are gone; send those again whose legs were evicted before they arrived."""
        for copy in copies if self._log else ():
            event = copy.descriptor.original
            channel, number = channel_of(event.destination), event_of(event)
            if channel is None or not number or not copy.own or event.node != self._node:
                continue
            log = self._log.get(channel, {})
            if log.get(number) is copy:
                self._unpin(copy)
                del log[number]
                self._settle(channel, number)
            elif reason is Reason.EVICTED and number in log:
                self._waiting.setdefault(channel, deque()).append(number)

    def work(self) -> None:
        """Send events to the homes of their channels, as far as these are known."""
        for channel, numbers in list(self._waiting.items()) if self._waiting else ():
            home = self._homes.home(Role.PRODUCER, channel)
            if home is None:
                continue
            del self._waiting[channel]
            for number in numbers:
                if (copy := self._log[channel].get(number)) is not None:
                    try:
                        self._legs.send(copy, [home], channel, spread=True)
                    except LocalError:  # The home is not known as a broker any more: another one is looked for.
                        self._waiting.setdefault(channel, deque()).append(number)

    def passed(self, copy: Copy) -> None:
        """Note that an event is on its way to its home as a leg."""
        if (channel := channel_of(copy.descriptor.destination)) is not None and copy.own:
            self._settle(channel, event_of(copy.descriptor))

    def _settle(self, channel: str, number: int) -> None:
        upto = before = self._passed.get(channel, 0)
        settled = self._settled.setdefault(channel, set())
        if number > upto:
            settled.add(number)
        while upto + 1 in settled:
            upto += 1
            settled.discard(upto)
        if upto > before:
            self._passed[channel] = upto
            self._ledger.put(PASSED + channel.encode(), packed(upto))

    def home(self, channel: str) -> NodeId | None:
        """Return the broker that the next event to a channel goes to first; None if no other one is known."""
        home = self._homes.home(Role.PRODUCER, channel)
        return home if home in self._brokers else None

    def release(self, item: Progress, author: NodeId, now: int) -> bool:
        """Release events that all consumers are past; return False if the author is not this producer's home.

        Young events may have consumers that brokers have not heard of yet.
        """
        upto = dict(item.cursors).get(self._node, 0)
        if self._homes.home(Role.PRODUCER, item.channel) != author or not upto:
            return False
        before_us = self._holdings.date_of(now) - self._young_us
        for number, copy in self._log.get(item.channel, {}).items():
            if number <= upto and copy.descriptor.created_us <= before_us:
                self._unpin(copy)
        return True

    # --- replays -------------------------------------------------------------------------------------------

    def replay(self, item: Replay, broker: NodeId, now: int) -> None:
        """Send missing events to a broker again, as many as it may get at a time; report which are gone.

        Events that left for the broker lately are not sent twice: where paths are full, replays would add to the queue
        that they are meant to shorten.
        """
        log, last = self._log.get(item.channel, {}), self.numbers.written(item.channel)
        asker = broker, item.channel if last else ""
        if self._answered.get(asker, 0) > now:
            self._outputs.refuse("replays", broker)
            return
        if len(self._answered) >= self._askers_max:
            self._answered = {each: until_us for each, until_us in self._answered.items() if until_us > now}
        self._answered[asker] = now + _PAUSE_US
        after, upto = item.after, min(item.upto, last)
        known = ((self._node, last),) if item.upto > last else ()
        if item.since_us:
            logged = [EventTime(number, copy.descriptor.created_us) for number, copy in log.items()]
            after, upto = before([*logged, *self.numbers.times(item.channel)], item.since_us, last), last
        wanted = sorted(number for number in log if after < number <= upto)[: self._replay_max]
        gone = _between([after, *wanted] if wanted else [after, upto + 1])[:CURSORS_MAX]
        if known or item.since_us or gone:
            start = (item.since_us, after) if item.since_us else (0, 0)
            self._outbox.add(broker, Sent(item.channel, known, *start, tuple(gone)))
        # A broker that knows where events begin has looked for them at its other seats. What left long ago it has lost,
        # or the acknowledgement was lost on its way here, and neither comes again.
        since_us = 0 if item.since_us else self._holdings.date_of(now) - self._young_us // _OVERDUE_SHARE
        on_way = self._legs.on_way(broker, since_us) if wanted else set()
        for number in [each for each in wanted if log[each].descriptor.wire not in on_way]:
            try:
                self._legs.send(log[number], [broker], item.channel)
            except LocalError:
                return  # It is not known as a broker any more.


def _between(numbers: Sequence[int]) -> list[tuple[int, int]]:
    """Return the gaps between ascending numbers as runs: the number before the first one, and the last one."""
    return [(one, other - 1) for one, other in pairwise(numbers) if other > one + 1]


# --- consumer progress -------------------------------------------------------------------------------------

# Progress of consumers, by which producers know which events of their logs are not needed any more.
#
# A seat that another broker adopts needs the events since the consumer's last checkpoint; without a
# state, those after the last result that it accepted. So a consumer reports its progress to its
# home (`Progress`), every `EVERY` results: to a new home, or one that was restarted, that of all
# producers, else of those whose events came since. The home reports the least of all its seats to
# the homes of producers. These report to each producer the least of all brokers that have
# seats of the channel, by their rosters. A broker that has not reported holds up the rest. Nothing
# of this is stored: after a restart less is known, and events are kept longer.


EVERY = 16
"""Number of results, or of events of one producer, after which progress is reported again."""
Cursors = dict[str, int]
"""Number of the last event that is not needed any more, by producer."""


class _LastReport(NamedTuple):
    """The last report of a subscription."""

    number: int = 0
    """Number of the last result before it."""
    home: NodeId | None = None
    incarnation: int = 0
    """Incarnation of the home, which does not remember reports to an earlier one."""
    cursors: Mapping[str, int] = MappingProxyType({})


_NOTHING = _LastReport()


class ConsumerProgress:
    """The progress of consumers as one node knows it, and its reports."""

    def __init__(
        self, context: HostContext, topology: Topology, clients: ClientManager, outbox: Outbox,
        *, consumers: Consumers, producer: Producer,
    ) -> None:  # fmt: skip
        self._topology, self._most = topology, context.limits.clients_max
        self._clients, self._outbox, self._consumers, self._producer = clients, outbox, consumers, producer
        self._reports: dict[str, _LastReport] = {}
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
        self._consumers.have_advanced = False
        for each in self._consumers:
            home, number, report = each.row.home, each.row.number, self._reports.get(each.destination, _NOTHING)
            if home is not None and number - report.number >= EVERY:
                open_now = {other.destination for other in self._consumers}
                self._reports = {to: last for to, last in self._reports.items() if to in open_now}
                info, cursors = self._topology.brokers.get(home), dict(self._consumers.kept.needed_after(each))
                now = self._reports[each.destination] = _LastReport(
                    number, home, 0 if info is None else info.incarnation, cursors
                )
                same = (report.home, report.incarnation) == (now.home, now.incarnation)
                known = report.cursors if same else {}
                for page in cursor_pages(each for each in cursors.items() if known.get(each[0]) != each[1]):
                    self._outbox.add(home, Progress(each.row.channel, page, each.number))

    def receive(self, item: Progress, author: NodeId, now: int) -> bool:
        """Process the progress of consumers; return False if the author may not report it."""
        return self._of_one(item, author) if item.subscription else self._of_all(item, author, now)

    def _of_one(self, item: Progress, author: NodeId) -> bool:
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
            for home in self._topology.producing(item.channel):
                for page in cursor_pages(news.items()):
                    self._outbox.add(home, Progress(item.channel, page))
        return True

    def _of_all(self, item: Progress, author: NodeId, now: int) -> bool:
        """Process the least progress of a broker's seats, or of all; return False if the author may not report it."""
        freed = self._producer.release(item, author, now)
        serving = self._topology.rosters.serving(item.channel)
        served = serving.get(node_prefix(author))
        producers = [each.node for each in self._clients.table if each.produces and each.item.channel == item.channel]
        if served is None or not served.seats or not producers:
            return freed
        of = self._of_brokers.setdefault(item.channel, {})
        self._merge(of.setdefault(node_prefix(author), {}), item.cursors)
        with_seats = [prefix for prefix, each in serving.items() if each.seats]
        self._of_brokers[item.channel] = {prefix: of[prefix] for prefix in with_seats if prefix in of}
        least = _least([of.get(prefix, {}) for prefix in with_seats])
        own = {str(producer): least[producer] for producer in producers if producer in least}
        for producer, number in self._news(self._freed, item.channel, own).items():
            self._outbox.add(NodeId(producer), Progress(item.channel, ((producer, number),)))
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
