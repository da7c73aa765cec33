"""The metrics of OVERLAY §4.1: lengths of paths between brokers, and what keeping the overlay costs."""

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
    """Bytes that each broker told others, and the time of its last sample."""
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
