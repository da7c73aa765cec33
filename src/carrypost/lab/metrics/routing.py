"""The figures of The ONE's `MessageStatsReport`, from records of messages with recipients.

A message for several recipients counts once for each of them; messages for all subscribers are left out. A reception of
a whole message is a relayed copy, also the one at a recipient. Hosts of The ONE keep no copy of what is for them: so
what becomes of a copy at its recipient, after the delivery, is not counted here.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from carrypost.arrays import Flags, Ints
from carrypost.emu.records.log import Before, Log
from carrypost.lab.metrics.distribution import Columns
from carrypost.lab.metrics.families import ONE
from carrypost.lab.metrics.parts import Slice, listed
from carrypost.log.events import Reason
from carrypost.log.record import AGAIN, Kind
from carrypost.model.times import MICROSECONDS

_REMOVED = (Reason.FORWARDED, Reason.PURGED, Reason.WITHDRAWN)
"""Reasons for which The ONE would call a copy removed, and not dropped."""


@dataclass(frozen=True, eq=False)
class OneFigures:
    """Counts of a slice, and the times and hops that medians are taken of."""

    created: int
    relayed: int
    dropped: int
    removed: int
    latency_us: Ints
    hops: Ints
    buffered_us: Ints

    @classmethod
    def of(cls, of: Slice) -> OneFigures:
        """Count the messages with recipients in a slice."""
        rows, copies = of.rows, of.copies
        first = copies.publications[copies.first]
        lists = dict(zip(rows.message[first].tolist(), rows.attribute("recipients", first).to_pylist(), strict=True))
        named = {message: text.split() for message, text in lists.items() if text}
        refusals = rows.attribute("recipients", rows.of(Kind.REFUSE)).drop_null().to_pylist()
        has_recipients = np.zeros(len(rows.names("message")) + 1, np.bool_)
        has_recipients[list(named)] = True
        received = _of(rows, rows.of(Kind.RECEIVE), has_recipients)
        received = received[~rows.is_detail(received, AGAIN)]
        mine = has_recipients[copies.message] & ~copies.own & (copies.delivered >= 0)
        left = _dropped(rows, _of(rows, rows.of(Kind.DROP), has_recipients), copies.delivered[mine])
        held = _held_us(rows, left)
        counts = held >= 0  # Only some pieces of the others had arrived.
        removed = np.isin(rows.texts("detail", left).to_numpy(zero_copy_only=False), _REMOVED)
        return cls(
            sum(map(len, named.values())) + sum(len(text.split()) for text in refusals),
            len(received),
            int(np.count_nonzero(counts & ~removed)),
            int(np.count_nonzero(counts & removed)),
            (copies.delivered_us - copies.published_us)[mine],
            copies.hops[mine],
            held[counts],
        )

    def merge(self, other: OneFigures) -> OneFigures:
        """Return the figures of this part and another, which have no message in common."""
        return OneFigures(
            self.created + other.created,
            self.relayed + other.relayed,
            self.dropped + other.dropped,
            self.removed + other.removed,
            np.concatenate((self.latency_us, other.latency_us)),
            np.concatenate((self.hops, other.hops)),
            np.concatenate((self.buffered_us, other.buffered_us)),
        )


def one(part: OneFigures) -> Columns:
    """Table ONE."""
    delivered = len(part.latency_us)
    latency, hops, buffered = (_middle(each) for each in (part.latency_us, part.hops, part.buffered_us))
    row = {
        "created": part.created,
        "relayed": part.relayed,
        "dropped": part.dropped,
        "removed": part.removed,
        "delivered": delivered,
        "delivery_prob": delivered / part.created if part.created else None,
        "overhead_ratio": (part.relayed - delivered) / delivered if delivered else None,
        "latency_avg": _seconds(latency[0]),
        "latency_med": _seconds(latency[1]),
        "hopcount_avg": hops[0],
        "hopcount_med": None if hops[1] is None else int(hops[1]),
        "buffertime_avg": _seconds(buffered[0]),
        "buffertime_med": _seconds(buffered[1]),
    }
    return listed(ONE, [row])


def _middle(values: Ints) -> tuple[float | None, float | None]:
    """Return mean and median; of an even number of values The ONE takes the upper one of the two in the middle."""
    if not len(values):
        return None, None
    return float(values.mean()), float(np.sort(values)[len(values) // 2])


def _seconds(us: float | None) -> float | None:
    return None if us is None else us / MICROSECONDS


def _of(rows: Log, at: Ints, messages: Flags) -> Ints:
    """Return those of these rows that are about these messages."""
    return at[messages[rows.message[at]]]


def _pair(rows: Log, at: Ints) -> Ints:
    """Return node and message of rows as one number."""
    return rows.node[at].astype(np.int64) * (len(rows.names("message")) + 1) + rows.message[at]


def _dropped(rows: Log, at: Ints, deliveries: Ints) -> Ints:
    """Return those of these ends of copies that are not at a recipient which was given the message."""
    return at[~np.isin(_pair(rows, at), _pair(rows, deliveries))]


def _held_us(rows: Log, left: Ints) -> Ints:
    """Return the times for which hosts had whole copies before these rows; -1 for copies that were never whole."""
    came = rows.of(Kind.PUBLISH, Kind.RECEIVE)
    came = came[rows.message[came] >= 0]
    last = Before(_pair(rows, came), came, len(rows)).find(_pair(rows, left), left)
    return np.where(last >= 0, rows.t_us[left] - rows.t_us[last], np.int64(-1))
