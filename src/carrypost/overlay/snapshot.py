"""Snapshots: the state of a seat as it travels, as the payload of a message.

A checkpoint of a seat has one for its consumer, `State` one for the broker that the seat moves to, and `Attach` one for
the broker that takes over a seat whose home is lost. The last one also names the events that the consumer accepted
since its checkpoint, in their order, for the new home to process again without results.

The one invariant: a payload that breaks a bound, or contradicts itself, is refused as a whole (`snapshot`).
"""
# Snapshots come from other brokers, or by way of the consumer, so that their size and contents are
# a stranger's. Names of producers are listed once and referred to by place: a consumer of many
# producers has each of them in cursors and runs. The digest of the modulator is compared before its
# state is used, as a state means nothing to another modulator.

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Annotated

import msgspec

from carrypost.errors import DecodeError, LimitError
from carrypost.gossip.wire.pieces import Blank
from carrypost.model.headers import DESTINATION_MAX
from carrypost.model.ids import is_node_id
from carrypost.model.times import TIME_US_MAX

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from carrypost.config import Limits
    from carrypost.overlay.modulators.modulator import Modulator

_DIGEST_BYTES = 8
_HEAD_BYTES, _RUN_BYTES = 128, 32
"""Upper bounds of the bytes around a state, and of a run."""
_Count = Annotated[int, msgspec.Meta(ge=0, le=TIME_US_MAX)]
_Name = Annotated[str, msgspec.Meta(min_length=1, max_length=DESTINATION_MAX)]
Run = tuple[str, int, int]
"""Events of one producer that were processed one after the other: producer, number before the first, and of the last.
"""


class Snapshot(msgspec.Struct, frozen=True):
    """The state of a seat between two events."""

    epoch: int
    number: int
    """Number of its last result."""
    cursors: Mapping[str, int]
    """Number of the last event that it processed, by producer."""
    state: bytes = b""
    """State of the modulator after these events."""
    modulator: bytes = b""
    """Digest of the state's modulator (`digest`); empty: there is no state."""
    runs: Sequence[Run] = ()
    """Events since the last result, in the order of processing, which `cursors` and `state` include; a run without
    events says where a gap begins."""
    repeats: Sequence[Run] = ()
    """Events after these, in the order in which the consumer accepted their results."""
    discarded: int = 0
    """Number of results of the events in `runs` that the modulator refused to keep."""
    lacks: Mapping[str, int] = {}
    """Number of events, by producer, that a new home could not process again, so that the state lacks them since the
    last checkpoint. The consumer has their results."""
    since_us: int = 0
    """Time from which on events of other producers count; 0: since the consumer subscribed."""


class _Wire(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    epoch: _Count
    number: _Count
    producers: tuple[_Name, ...]
    """Ids of nodes; the other fields refer to them by index."""
    cursors: tuple[tuple[_Count, _Count], ...]
    runs: tuple[tuple[_Count, _Count, _Count], ...]
    repeats: tuple[tuple[_Count, _Count, _Count], ...]
    modulator: Annotated[bytes, msgspec.Meta(max_length=_DIGEST_BYTES)]
    state: bytes
    discarded: _Count = 0
    lacks: tuple[tuple[_Count, _Count], ...] = ()
    since_us: _Count = 0


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(_Wire).decode


def digest(modulator: Modulator | None) -> bytes:
    """Return bytes that identify a modulator, its version and its parameters; empty without a modulator."""
    if modulator is None:
        return b""
    return hashlib.blake2b(_encode(modulator.reference), digest_size=_DIGEST_BYTES).digest()


def extended(runs: list[Run], run: Run) -> list[Run]:
    """Return runs with one more event, or run of events, after them."""
    if runs and runs[-1][0] == run[0] and runs[-1][2] == run[1]:
        return [*runs[:-1], (run[0], runs[-1][1], run[2])]
    return [*runs, run]


def packed(snapshot: Snapshot) -> bytes:
    """Return a snapshot as it travels."""
    names = [*snapshot.cursors, *(run[0] for run in (*snapshot.runs, *snapshot.repeats)), *snapshot.lacks]
    places = {name: at for at, name in enumerate(dict.fromkeys(names))}
    runs, repeats = (
        tuple([(places[producer], after, upto) for producer, after, upto in each])
        for each in (snapshot.runs, snapshot.repeats)
    )
    cursors = tuple([(places[producer], number) for producer, number in snapshot.cursors.items()])
    return _encode(
        _Wire(
            snapshot.epoch,
            snapshot.number,
            tuple(places),
            cursors,
            runs,
            repeats,
            snapshot.modulator,
            snapshot.state,
            snapshot.discarded,
            tuple([(places[producer], number) for producer, number in snapshot.lacks.items()]),
            snapshot.since_us,
        )
    )


def bytes_max(limits: Limits) -> int:
    """Return the length of the longest snapshot that is read."""
    around = limits.clients_max * (DESTINATION_MAX + _RUN_BYTES) + limits.runs_max * _RUN_BYTES + _HEAD_BYTES
    return limits.modulator_state_bytes_max + around


def unpacked(payload: bytes | Blank, limits: Limits, *, signed: bool) -> Snapshot:
    """Return a snapshot that came from another node; raises `RemoteError` for anything else.

    `signed`: nodes have keys, so that producers are named by ids.
    """
    if isinstance(payload, Blank) or len(payload) > bytes_max(limits):
        raise LimitError("snapshot", "a snapshot is longer than any seat's state")
    try:
        wire = _decode(payload)
    except (msgspec.DecodeError, ValueError) as error:
        raise DecodeError("snapshot", f"not a snapshot: {error}") from error
    runs = len(wire.runs) + len(wire.repeats)
    if len(wire.producers) > limits.clients_max or runs > limits.runs_max:
        raise LimitError("snapshot", "a snapshot has more producers or runs than a seat may have")
    if len(wire.state) > limits.modulator_state_bytes_max:
        raise LimitError("snapshot", "a snapshot has a larger state than a modulator may have")
    if signed and not all(map(is_node_id, wire.producers)):
        raise DecodeError("snapshot", "a snapshot names a producer by a text that is not the id of a node")
    return _checked(wire)


def _checked(wire: _Wire) -> Snapshot:
    """Return the snapshot; raises `DecodeError` if its parts contradict each other."""
    if len(set(wire.producers)) < len(wire.producers):
        raise DecodeError("snapshot", "a snapshot names a producer twice")
    places = [at for at, *_ in (*wire.cursors, *wire.runs, *wire.repeats, *wire.lacks)]
    if any(at >= len(wire.producers) for at in places):
        raise DecodeError("snapshot", "a snapshot refers to a producer that it does not name")
    cursors, lacks = ({wire.producers[at]: number for at, number in each} for each in (wire.cursors, wire.lacks))
    if len(cursors) < len(wire.cursors) or len(lacks) < len(wire.lacks):
        raise DecodeError("snapshot", "a snapshot has two cursors, or two numbers of lacking events, of one producer")
    runs, repeats = (
        tuple([(wire.producers[at], after, upto) for at, after, upto in each]) for each in (wire.runs, wire.repeats)
    )
    last = _last(runs, {}, empty=True)
    if any(number > cursors.get(producer, 0) for producer, number in last.items()):
        raise DecodeError("snapshot", "a snapshot has events that its cursors do not include")
    _last(repeats, cursors)
    return Snapshot(
        wire.epoch, wire.number, cursors, wire.state, wire.modulator, runs, repeats, wire.discarded, lacks,
        wire.since_us,
    )  # fmt: skip


def _last(runs: Sequence[Run], cursors: Mapping[str, int], *, empty: bool = False) -> dict[str, int]:
    """Return where producers are after some runs; raises `DecodeError` if their numbers do not rise.

    `empty`: there may be runs without events.
    """
    found = dict(cursors)
    for producer, after, upto in runs:
        if not found.get(producer, 0) <= after < upto + empty:
            raise DecodeError("snapshot", "the numbers of a snapshot's events do not rise")
        found[producer] = upto
    return found
