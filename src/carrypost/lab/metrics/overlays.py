"""The metrics of OVERLAY §4: paths, what keeping the overlay costs, loads, homes and seats that move, and latencies.

A latency is the time from an event to the delivery of its result (§4.3). The event of a result is the one that it
passes on or, if a modulator made it, the last one that it covers. Events and results are different messages, and may be
in different slices of a run. They are joined when the table is made.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from carrypost.emu.engine.samples import TOPOLOGY
from carrypost.emu.rows import MISSING, Log
from carrypost.lab.metrics.parts import Columns, Counts, Slice, Tally, milliseconds, ratio, window_us
from carrypost.log.record import REDELIVERED, Kind
from carrypost.model.times import MICROSECONDS
from carrypost.traces.formats.lines import numbers

_BITS = 8
_THOUSANDTHS = 1_000
_EVENTS = pa.schema([("message", pa.string()), ("producer", pa.string()), ("number", pa.int64()), ("t_us", pa.int64())])
_RESULTS = pa.schema([
    ("origin", pa.string()), ("producer", pa.string()), ("number", pa.int64()), ("delivered_us", pa.int64()),
])  # fmt: skip


def paths_part(of: Slice) -> Tally:
    """Hops and pairs of all brokers, by time and kind of path."""
    rows, at = of.rows, of.rows.of(Kind.PATH)
    pairs = numbers(rows.attribute("pairs", at))
    known = np.isfinite(pairs) & rows.whole("size", at).is_valid().to_numpy(zero_copy_only=False)
    at = at[known]
    columns = {
        "t_us": rows.t_us[at],
        "path": rows.texts("detail", at),
        "pairs": pairs[known].astype(np.int64),
        "total": rows.whole("size", at),
    }
    return Tally.of(columns, ["t_us", "path"], pairs="sum", total="sum")


def path_lengths(part: Tally) -> Columns:
    """Table PATH_LENGTHS."""
    columns = part.columns()
    hops = ratio(columns["total"].to_numpy(), columns["pairs"].to_numpy())
    return {**columns, "t": columns["t_us"].to_numpy() / MICROSECONDS, "hops": hops}


def told_part(of: Slice) -> Tally:
    """Return the bytes that each broker sent to other brokers, and the time of its last sample."""
    rows, at = of.rows, of.rows.of(Kind.REGISTRY)
    at = at[rows.is_detail(at, TOPOLOGY) & rows.whole("size", at).is_valid().to_numpy(zero_copy_only=False)]
    columns = {"node": rows.texts("node", at), "bytes": rows.whole("size", at), "last_us": rows.t_us[at]}
    return Tally.of(columns, ["node"], bytes="sum", last_us="max")


def broker_traffic(part: Tally) -> Columns:
    """Table BROKER_TRAFFIC."""
    columns = part.columns()
    last_us, nbytes = columns["last_us"].to_numpy(), columns["bytes"].to_numpy()
    bits = pa.array(nbytes * _BITS * MICROSECONDS / np.maximum(last_us, 1), mask=last_us == 0)
    return {**columns, "bits_per_s": bits}


def load_part(of: Slice) -> Tally:
    """Loads of all brokers, by time."""
    rows, at = of.rows, of.rows.of(Kind.LOAD)
    at = at[rows.whole("size", at).is_valid().to_numpy(zero_copy_only=False)]
    size = rows.whole("size", at)
    columns = {"t_us": rows.t_us[at], "brokers": np.ones(len(at), np.int64), "total": size, "most": size}
    return Tally.of(columns, ["t_us"], brokers="sum", total="sum", most="max")


def load(part: Tally) -> Columns:
    """Table LOAD."""
    columns = part.columns()
    brokers, total, most = (columns[name].to_numpy() for name in ("brokers", "total", "most"))
    mean = total / np.maximum(brokers, 1) / _THOUSANDTHS
    return {**columns, "t": columns["t_us"].to_numpy() / MICROSECONDS, "mean": mean, "max": most / _THOUSANDTHS}


def relocations_part(of: Slice) -> Tally:
    """Homes and seats by reason, with the bytes and pauses of seats."""
    rows, at = of.rows, of.rows.of(Kind.HOME, Kind.RELOCATE)
    pause_s = numbers(rows.attribute("pause_s", at))
    known = np.isfinite(pause_s)
    columns = {
        "what": rows.texts("kind", at),
        "reason": rows.texts("detail", at),
        "count": np.ones(len(at), np.int64),
        "bytes": rows.whole("size", at),
        "paused": known.astype(np.int64),
        "pause_us": np.where(known, np.rint(np.where(known, pause_s, 0) * MICROSECONDS), 0).astype(np.int64),
    }
    columns["most_us"] = columns["pause_us"]
    sums = dict.fromkeys(("count", "bytes", "paused", "pause_us"), "sum")
    return Tally.of(columns, ["what", "reason"], **sums, most_us="max")


def relocations(part: Tally) -> Columns:
    """Table RELOCATIONS."""
    columns = part.columns()
    paused = columns["paused"].to_numpy()
    total_s, most_s = (columns[name].to_numpy() / MICROSECONDS for name in ("pause_us", "most_us"))
    return {
        **columns,
        "pause_avg_s": pa.array(total_s / np.maximum(paused, 1), mask=paused == 0),
        "pause_max_s": pa.array(most_s, mask=paused == 0),
    }


@dataclass(frozen=True, eq=False)
class Latencies:
    """Events of some rows of a run, and results that consumers were given."""

    events: pa.Table
    results: pa.Table
    window_us: int

    @classmethod
    def of(cls, of: Slice) -> Latencies:
        """Collect the messages of a slice."""
        rows, at = of.rows, of.rows.of(Kind.PUBLISH)
        number, covers = numbers(rows.attribute("event", at)), rows.attribute("covers", at)
        event, result = np.isfinite(number), covers.is_valid().to_numpy(zero_copy_only=False)
        events = [
            rows.texts("message", at[event]), rows.texts("node", at[event]),
            pa.array(number[event].astype(np.int64)), pa.array(rows.t_us[at[event]]),
        ]  # fmt: skip
        return cls(pa.table(events, schema=_EVENTS), _given(rows, at[result]), window_us(of.window_s))

    def merge(self, other: Latencies) -> Latencies:
        """Return the latencies of this part and another."""
        events, results = (
            pa.concat_tables(each) for each in ((self.events, other.events), (self.results, other.results))
        )
        return Latencies(events, results, self.window_us)

    def columns(self) -> Columns:
        """Table EVENT_LATENCY."""
        emitted_us, latency_us = self._latencies()
        window = emitted_us // self.window_us
        windows = np.unique(window)
        mine = [np.sort(latency_us[window == each]) for each in windows]
        shares = [Counts.of(milliseconds(each)).percentiles_s((50, 95)) for each in mine]
        return {
            "t": windows * self.window_us / MICROSECONDS,
            "results": pa.array([len(each) for each in mine], pa.int64()),
            "avg_s": pa.array([int(each.sum()) / len(each) / MICROSECONDS for each in mine], pa.float64()),
            "p50_s": pa.array([each["p50_s"] for each in shares], pa.float64()),
            "p95_s": pa.array([each["p95_s"] for each in shares], pa.float64()),
            "max_s": pa.array([int(each[-1]) / MICROSECONDS for each in mine], pa.float64()),
        }

    def _latencies(self) -> tuple[np.ndarray, np.ndarray]:
        """Return, for each result whose event is known, when the event was emitted, and how long it took."""
        rows = list(zip(*(self.events[name].to_pylist() for name in _EVENTS.names), strict=True))
        by_message = {message: t_us for message, _, _, t_us in rows}
        by_number: dict[tuple[str, int], int | None] = {}
        for _, producer, number, t_us in rows:  # None: there are several channels.
            by_number[producer, number] = None if (producer, number) in by_number else t_us
        found = []
        for origin, producer, number, delivered_us in zip(
            *(self.results[name].to_pylist() for name in _RESULTS.names), strict=True
        ):
            t_us = by_message.get(origin) if origin is not None else by_number.get((producer, number))
            if t_us is not None:
                found.append((t_us, delivered_us - t_us))
        made = np.array(found, np.int64).reshape(-1, 2)
        return made[:, 0], made[:, 1]


def _given(rows: Log, published: np.ndarray) -> pa.Table:
    """Return the results of these publications that consumers were given, once for each."""
    at = rows.of(Kind.DELIVER)
    at = at[~rows.is_detail(at, REDELIVERED) & np.isin(rows.message[at], rows.message[published])]
    _, first = np.unique(
        rows.message[at].astype(np.int64) * (len(rows.names("node")) + 1) + rows.node[at], return_index=True
    )
    at = at[np.sort(first)]
    place = np.full(len(rows.names("message")) + 1, MISSING, np.int64)
    place[rows.message[published]] = np.arange(len(published))
    of = pa.array(place[rows.message[at]])
    last = [_last(*each) for each in zip(
        rows.attribute("covers", published).to_pylist(), rows.attribute("producers", published).to_pylist(), strict=True
    )]  # fmt: skip
    producer, number = (
        pa.array([each[0] for each in last], pa.string()),
        pa.array([each[1] for each in last], pa.int64()),
    )
    columns = [
        rows.attribute("origin", published).take(of),
        producer.take(of),
        number.take(of),
        pa.array(rows.t_us[at]),
    ]
    return pa.table(columns, schema=_RESULTS)


def _last(covers: str, producers: str | None) -> tuple[str | None, int | None]:
    """Return producer and number of the last event that a result covers."""
    _, _, *runs = covers.split(" ")
    if not runs or producers is None:
        return None, None
    at, _, span = runs[-1].partition(":")
    return producers.split(" ")[int(at)], int(span.partition("-")[2])
