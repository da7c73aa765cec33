"""The metrics of OVERLAY §4.1: lengths of paths, what keeping the overlay costs, loads, homes and seats that move."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from carrypost.emu.engine.overlays import TOPOLOGY
from carrypost.emu.traces.formats.words import numbers
from carrypost.lab.metrics.distribution import Columns
from carrypost.lab.metrics.parts import Slice, Tally, ratio
from carrypost.model.times import MICROSECONDS
from carrypost.record import Kind

_BITS = 8
_THOUSANDTHS = 1_000


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
