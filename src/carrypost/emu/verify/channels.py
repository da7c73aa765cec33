"""Rules about channels: each consumer gets the events of each producer once, by their numbers, and hears of lost ones.

They are judged by the results that a consumer was given, in that order, by what those cover (`attrs.covers`), and by
the rows `failure` with the detail `events-lost`. A result without content, because its events gave none, is received
and not delivered; it counts if its number is before that of a result that was delivered.
"""
# Why results carry what they cover. A modulator may make one result of many events, or none. From
# the results alone neither the consumer nor this check could distinguish an event that gave no
# result from one that was lost. So each result names the runs of events that it stands for. A gap
# between two runs is either covered by a result that came and had nothing for the program
# (`muted`), or has to be reported as lost. Losses are counted, not named: rows have their number.

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from carrypost.emu.records.log import KIND, Log
from carrypost.emu.verify.facts import Facts, Found
from carrypost.log.record import Kind
from carrypost.model.address import channel_of
from carrypost.overlay.events import EVENTS_LOST

_DELIVER, _FAILURE = KIND[Kind.DELIVER], KIND[Kind.FAILURE]


class Run(NamedTuple):
    """Events of a producer that a result stands for: those after one number, up to another."""

    producer: str
    after: int
    upto: int


class Result(NamedTuple):
    """A result, from the row of its publication."""

    destination: str
    number: int
    runs: tuple[Run, ...]
    origin: str | None
    """The event that it passes on."""


class Emitted(NamedTuple):
    """An event."""

    producer: str
    channel: str
    number: int
    t_us: int


@dataclass
class _Account:
    """The results of one subscription, and its reported losses."""

    number: int = 0
    """Of the last result that was delivered."""
    here: dict[int, list[Result]] = field(default_factory=dict)
    """Results that came, by number."""
    cursors: dict[str, int] = field(default_factory=dict)
    """Number of the last event of each producer that was covered by a delivered result."""
    missing: dict[str, int] = field(default_factory=dict)
    """Events of each producer that nothing covers."""
    reported: dict[str, int] = field(default_factory=dict)
    """Events of each producer that were reported lost."""

    def muted(self, producer: str, upto: int) -> set[int]:
        """Return the events of a producer that are covered by results between two that were delivered."""
        between = [each for number in range(self.number + 1, upto) for each in self.here.get(number, ())]
        runs = [run for each in between for run in each.runs if run.producer == producer]
        return {number for run in runs for number in range(run.after + 1, run.upto + 1)}


def results_of(log: Log) -> dict[int, Result]:
    """Return all results of a record, by the code of their message."""
    producers, destinations, origins = (log.attr(name) for name in ("producers", "destination", "origin"))
    found = {}
    for row, text in log.attr("covers").items():
        _, number, *runs = text.split(" ")
        named = producers.get(row, "").split(" ")
        covered = [Run(named[int(at)], int(after), int(upto)) for at, after, upto in map(_parts, runs)]
        made = Result(destinations.get(row, ""), int(number), tuple(covered), origins.get(row))
        found[int(log.message[row])] = made
    return found


def _parts(run: str) -> tuple[str, str, str]:
    at, _, span = run.partition(":")
    after, _, upto = span.partition("-")
    return at, after, upto


def events_of(log: Log) -> dict[str, Emitted]:
    """Return all events of a record, by message."""
    destinations = log.attr("destination")
    return {
        log.messages[log.message[row]]: Emitted(
            log.nodes[log.node[row]], channel_of(destinations[row]) or "", int(number), int(log.t_us[row])
        )
        for row, number in log.attr("event").items()
    }


def events_once_and_in_order(facts: Facts) -> Found:
    """Check that results come by their numbers, cover each event once, and miss none without telling the consumer."""
    log = facts.log
    if not (results := results_of(log)):
        return
    accounts: dict[tuple[int, str], _Account] = {}
    for row, result in _happened(facts, results, accounts):
        account = accounts.setdefault((int(log.node[row]), result.destination), _Account())
        if log.kind[row] != _DELIVER:
            account.here.setdefault(result.number, []).append(result)
            continue
        if result.number <= account.number:
            yield row, f"{facts.shown(row)}: result {result.number} comes after {account.number}"
        for text in _faults(account, result):
            yield row, f"{facts.shown(row)}: {text}"
        account.number = max(account.number, result.number)


def _happened(
    facts: Facts, results: dict[int, Result], accounts: dict[tuple[int, str], _Account]
) -> Iterator[tuple[int, Result]]:
    """Yield the rows about results, in order.

    A loss that is reported at the same instant as deliveries is counted before them.
    """
    log = facts.log
    lost = log.of(Kind.FAILURE)
    lost = lost[log.is_detail(lost, EVENTS_LOST)]
    destinations = log.attr("destination") if len(lost) else {}
    deliveries = set(facts.deliveries.tolist())
    rows = log.of(Kind.RECEIVE, Kind.PUBLISH, Kind.DELIVER)
    # A host reports lost events and delivers the results after them in one step, and the rows may
    # be in either order.
    for row in sorted(
        (*rows.tolist(), *lost.tolist()), key=lambda row: (log.t_us[row], log.kind[row] != _FAILURE, row)
    ):
        if log.kind[row] == _FAILURE:
            account = accounts.setdefault((int(log.node[row]), destinations.get(row, "")), _Account())
            producer = log.nodes[log.peer[row]]
            account.reported[producer] = account.reported.get(producer, 0) + int(log.size[row])
            continue
        result = results.get(int(log.message[row]))
        if result is not None and (log.kind[row] != _DELIVER or row in deliveries):
            yield row, result


def _faults(account: _Account, result: Result) -> Iterator[str]:
    """Yield what is wrong with the events of a result that is delivered, and count those that are missing."""
    for producer, after, upto in result.runs:
        cursor = account.cursors.get(producer, after)
        if after < cursor:
            yield f"events {after + 1} to {upto} of {producer} after {cursor}"
        if after > cursor:
            gap = set(range(cursor + 1, after + 1)) - account.muted(producer, result.number)
            account.missing[producer] = account.missing.get(producer, 0) + len(gap)
            reported = account.reported.get(producer, 0)
            if gap and account.missing[producer] > reported:
                yield f"events {min(gap)} to {max(gap)} of {producer} are missing, and {reported} were reported lost"
        account.cursors[producer] = max(cursor, upto)


def results_of_their_events(facts: Facts) -> Found:
    """Check that a result that passes on an event names one that its producer emitted, and covers it last."""
    log, events = facts.log, events_of(facts.log)
    results = results_of(log) if events else {}
    for row in log.of(Kind.DELIVER).tolist():
        result = results.get(int(log.message[row]))
        if result is None or result.origin is None:
            continue
        event, last = events.get(result.origin), result.runs[-1] if result.runs else None
        if event is None or last is None or (event.producer, event.number) != (last.producer, last.upto):
            yield row, f"{facts.shown(row)}: it passes on {result.origin}, and covers {last}"


def undelivered(facts: Facts, before_us: int) -> list[str]:
    """Return events before a time that some consumer neither got nor was notified of, where all should have come.

    Consumers are nodes with a home of that role, each of one subscription to a channel, from their first join on.
    """
    log = facts.log
    channels, joined = _consumed(log), {node: since_us for node, since_us, _ in reversed(facts.presences)}
    covered, reported = _covered(log), _losses_reported(log)
    missing: dict[tuple[str, str, str], set[int]] = {}
    for event in events_of(log).values():
        for (consumer, subscription), channel in channels.items():
            key = consumer, subscription, event.producer
            due = channel == event.channel and joined[consumer] < event.t_us < before_us
            if due and event.number not in covered.get(key, ()):
                missing.setdefault(key, set()).add(event.number)
    return [
        f"{key[0]} did not get the events {sorted(numbers)} of {key[2]}, and {reported.get(key, 0)} were reported lost"
        for key, numbers in sorted(missing.items())
        if len(numbers) > reported.get(key, 0)
    ]


def _consumed(log: Log) -> dict[tuple[str, str], str]:
    """Return the channels of all subscriptions, by consumer and number."""
    channels, subscriptions = log.attr("channel"), log.attr("subscription")
    return {
        (log.nodes[log.node[row]], subscriptions[row]): channels[row]
        for row in log.of(Kind.HOME).tolist()
        if row in subscriptions
    }


def _covered(log: Log) -> dict[tuple[str, str, str], set[int]]:
    """Return the events that results cover which came to a node, by node, number of the subscription and producer."""
    found: dict[tuple[str, str, str], set[int]] = {}
    results = results_of(log)
    for row in log.of(Kind.RECEIVE, Kind.PUBLISH, Kind.DELIVER).tolist():
        if (result := results.get(int(log.message[row]))) is not None:
            for producer, after, upto in result.runs:
                key = log.nodes[log.node[row]], result.destination.rpartition("/")[2], producer
                found.setdefault(key, set()).update(range(after + 1, upto + 1))
    return found


def _losses_reported(log: Log) -> dict[tuple[str, str, str], int]:
    """Return how many events are reported as lost, by node, number of the subscription and producer."""
    found: dict[tuple[str, str, str], int] = {}
    rows, destinations = log.of(Kind.FAILURE), log.attr("destination")
    for row in rows[log.is_detail(rows, EVENTS_LOST)].tolist():
        key = log.nodes[log.node[row]], destinations[row].rpartition("/")[2], log.nodes[log.peer[row]]
        found[key] = found.get(key, 0) + int(log.size[row])
    return found
