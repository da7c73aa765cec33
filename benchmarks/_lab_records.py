"""Records like those of a campaign over the paper's city quarter, of any length, made without running anything.

There are four runs, one for each lifetime of CAUSAL, Table V, one Parquet file each, as `lab campaign` writes them: row
groups of 100,000 rows in order of time, texts dictionary-encoded, zstd. Messages reach as many nodes as in the paper's
runs, after similar delays; a twentieth wait for their predecessors, some expire, some are left. Nearly all rows are
receptions and deliveries, as in real records.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from carrypost.emu.records import ARROW_SCHEMA

LIFETIMES_S = (300, 600, 900, 1_200)
COPIES = (50, 81, 110, 139)
"""Receptions of a message, on average, by lifetime."""
SPAN_S = 18_000
NODES = 2_092
PENDING, EXPIRED, LEFT = 0.05, 0.001, 0.002
"""Shares of copies that wait, that expire while they wait, and that are left without an end."""
LATENCY_S = 19.0
SIZE = 1_000
ROWS_PER_MESSAGE = 2 * sum(COPIES) / len(COPIES) + 2
_GROUP = 100_000
_CHUNK = 10_000_000
_PUBLISH, _RECEIVE, _DELIVER, _EXPIRE = range(4)
_KINDS = ("publish", "receive", "deliver", "expire")

Ints = NDArray[np.int64]


def written(rows: int, folder: Path) -> Path:
    """Write about this many rows, as `records` in a folder of their own; once."""
    home = folder / f"records-{rows}"
    for number, lifetime_s in enumerate(LIFETIMES_S):
        path = home / "records" / f"ostermalm-{lifetime_s}.parquet"
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            messages = round(rows / ROWS_PER_MESSAGE / len(LIFETIMES_S))
            _write(path, f"ostermalm/{lifetime_s}s/1", [_run(messages, COPIES[number], lifetime_s, number)])
    return home


def _run(messages: int, copies: int, lifetime_s: int, seed: int) -> dict[str, Ints]:
    """Kind, node, message, source, hops and time of every row of a run, in order of time."""
    rng = np.random.Generator(np.random.PCG64(seed))
    source = rng.integers(NODES, size=messages)
    published = np.sort(rng.integers(SPAN_S * 10**6, size=messages))
    counts = np.minimum(rng.poisson(copies, messages), NODES - 1)
    message = np.repeat(np.arange(messages), counts)
    ordinal = np.arange(len(message)) - np.repeat(np.cumsum(counts) - counts, counts)
    node = (source[message] + 1 + ordinal) % NODES
    delay_s = np.minimum(rng.exponential(0.45 * lifetime_s, len(message)), lifetime_s)
    received = published[message] + (delay_s * 1e6).astype(np.int64)
    latency_us = np.where(rng.random(len(message)) < PENDING, rng.exponential(LATENCY_S, len(message)) * 1e6, 0.0)
    ended = received + latency_us.astype(np.int64)
    fate = rng.random(len(message))
    expired, over = fate < EXPIRED, fate >= EXPIRED + LEFT
    hops = 1 + rng.poisson(2.0, len(message))
    parts = (
        (_PUBLISH, source, np.arange(messages), published, np.zeros(messages, np.int64)),
        (_DELIVER, source, np.arange(messages), published, np.zeros(messages, np.int64)),
        (_RECEIVE, node, message, received, hops),
        (_DELIVER, node[over], message[over], ended[over], 0 * hops[over]),
        (_EXPIRE, node[expired], message[expired], ended[expired], 0 * hops[expired]),
    )
    names = ("node", "message", "t_us", "hops")
    columns = {name: np.concatenate([part[at] for part in parts]) for at, name in enumerate(names, 1)}
    columns["kind"] = np.concatenate([np.full(len(part[1]), part[0]) for part in parts])
    order = np.argsort(columns["t_us"], kind="stable")
    found = {name: column[order] for name, column in columns.items()}
    return found | {"source": source[found["message"]]}


def one(rows: int, folder: Path) -> Path:
    """Write about this many rows of a single run, as `records` in its own folder; once, in portions."""
    home = folder / f"one-{rows}"
    path = home / "records" / "ostermalm.parquet"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        lifetime_s, copies = LIFETIMES_S[1], COPIES[1]
        messages = round(min(rows, _CHUNK) / (2 * copies + 2))
        chunks = max(1, round(rows / _CHUNK))
        _write(path, f"ostermalm/{lifetime_s}s/1", (_run(messages, copies, lifetime_s, at) for at in range(chunks)))
    return home


def _write(path: Path, run: str, chunks: Iterable[dict[str, Ints]]) -> None:
    """Write columns chunk by chunk; each begins when all messages of the previous one are over."""
    nodes = pa.array([f"walker{number:04}" for number in range(NODES)])
    kinds, runs, details = pa.array(_KINDS), pa.array([run]), pa.array(["2"])
    partial = path.with_name(f".{path.name}.partial")
    begin_us = known = 0
    with pq.ParquetWriter(partial, ARROW_SCHEMA, compression="zstd", compression_level=1) as writer:
        for columns in chunks:
            total = int(columns["message"].max()) + 1
            messages = pa.array([f"walker{each % NODES:04}-{each:06}" for each in range(known, known + total)])
            for at in range(0, len(columns["kind"]), _GROUP):
                part = {name: column[at : at + _GROUP] for name, column in columns.items()}
                count = len(part["kind"])
                received, published = part["kind"] == _RECEIVE, part["kind"] == _PUBLISH
                arrays = {
                    "run": _coded(np.zeros(count, np.int64), runs),
                    "t": pa.array((part["t_us"] + begin_us) / 1e6),
                    "kind": _coded(part["kind"], kinds),
                    "node": _coded(part["node"], nodes),
                    "peer": _coded(part["source"], nodes, ~received),
                    "message": _coded(part["message"], messages),
                    "source": _coded(part["source"], nodes),
                    "hops": pa.array(part["hops"].astype(np.int32), mask=~received),
                    "size": pa.array(np.full(count, SIZE)),
                    "detail": _coded(np.zeros(count, np.int64), details, ~published),
                    "attrs": pa.nulls(count, ARROW_SCHEMA.field("attrs").type),
                }
                writer.write_table(pa.table(arrays).cast(ARROW_SCHEMA))
            begin_us += int(columns["t_us"].max()) + 1
            known += total
    partial.replace(path)


def _coded(codes: Ints, names: pa.Array, missing: NDArray[np.bool_] | None = None) -> pa.DictionaryArray:
    return pa.DictionaryArray.from_arrays(pa.array(codes.astype(np.int32), mask=missing), names)
