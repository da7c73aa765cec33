"""Recipients, and which of them a message reached: delivery ratios and the flood bound (EMMA), and The ONE's figures.

The recipients of a message are the nodes that its publication lists or, if it lists none, all nodes other than the
author that were there at any moment of its life. Of a message whose id was given anew after a crash, the life is from
the first publication to the last deadline. A class is a delivery mode and a priority.

The figures of The ONE's `MessageStatsReport` are of messages that list recipients. A message for several recipients
counts once for each of them; messages for all subscribers are left out. A reception of a whole message is a relayed
copy, also the one at a recipient. Hosts of The ONE keep no copy of what is for them: so what becomes of a copy at its
recipient, after the delivery, is not counted here.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from carrypost.arrays import Codes, Flags, Ints
from carrypost.emu.rows import NEVER, Before, Copies, Log, microseconds
from carrypost.emu.verify.bound import flood_ages_us
from carrypost.lab.metrics.families import ONE
from carrypost.lab.metrics.parts import (
    RANKS,
    Columns,
    Counts,
    Fields,
    Slice,
    Tally,
    cdf,
    counted,
    dominated,
    listed,
    milliseconds,
    ratio,
    summed,
)
from carrypost.lab.metrics.presence import Presence, coded
from carrypost.log.events import Reason
from carrypost.log.record import AGAIN, Kind
from carrypost.model.address import Kind as AddressKind
from carrypost.model.times import MICROSECONDS
from carrypost.traces.formats.lines import numbers

ENDLESS = (1 << 62) - 1
"""The deadline of messages that have none."""
_CONSUMER = "?"
"""Recipient of a message to a queue: the node of its consumer."""
_UNKNOWN = "unknown"
"""The mode of a message whose publication has none."""


@dataclass(frozen=True, eq=False)
class Delivered(Fields):
    """Of each message its class, its life and the number of others that got it meanwhile; and the presence of nodes."""

    lives: pa.Table
    ages: Tally
    """Deliveries by mode of the message and by its age in milliseconds."""
    presence: Presence

    @classmethod
    def of(cls, of: Slice) -> Delivered:
        """Collect the messages of a slice."""
        copies, rows, messages = of.copies, of.rows, of.rows.names("message")
        at = copies.publications[copies.first]
        message = rows.message[at]
        deadline_us = _deadlines_us(rows, copies)
        ends_us = np.full(len(messages), NEVER)
        ends_us[message] = deadline_us
        got = ~copies.own & (copies.delivered >= 0)
        got[got] = copies.delivered_us[got] < ends_us[copies.message[got]]
        mode = pc.fill_null(rows.attribute("mode", at), _UNKNOWN)
        columns = {
            "message": messages.take(pa.array(message)),
            "source": rows.texts("node", at),
            "published_us": rows.t_us[at],
            "deadline_us": deadline_us,
            "delivered": np.bincount(copies.message[got], minlength=len(messages))[message],
            "mode": mode,
            "priority": _whole(rows.attribute("priority", at)),
            "listed": _listed(rows, at),
        }
        return cls(pa.table(columns), _ages(copies, got, message, mode), Presence.of(of))


def _listed(rows: Log, at: Ints) -> pa.Array:
    """Return the recipients that publications list. A message to a queue has one, which its author does not know."""
    queue = pc.fill_null(pc.starts_with(rows.attribute("destination", at), f"{AddressKind.QUEUE}/"), False)
    return pc.if_else(queue, _CONSUMER, rows.attribute("recipients", at))


def _deadlines_us(rows: Log, copies: Copies) -> Ints:
    """Return the last deadline of each message."""
    seconds = numbers(rows.attribute("deadline", copies.publications))
    ends = np.isfinite(seconds)
    found = np.where(ends, microseconds(np.where(ends, seconds, 0.0)), ENDLESS)
    return np.maximum.reduceat(found, copies.first) if len(found) else found


def _whole(texts: pa.Array) -> pa.Array:
    """Return the whole numbers in texts; null for a text without one."""
    found = numbers(texts)
    finite = np.isfinite(found)
    return pa.array(np.where(finite, found, 0).astype(np.int64), mask=~finite)


def _ages(copies: Copies, got: Flags, message: Codes, mode: pa.Array) -> Tally:
    """Count these deliveries by mode and age; `mode` is that of each message of these codes."""
    encoded = mode.dictionary_encode()
    modes = np.zeros(int(message.max(initial=0)) + 1, np.int64)
    modes[message] = encoded.indices.to_numpy()
    age_ms = np.maximum(milliseconds(copies.delivered_us[got] - copies.published_us[got]), 0)
    span = int(age_ms.max(initial=0)) + 1
    keys, count = counted(modes[copies.message[got]] * span + age_ms)
    which, value_ms = np.divmod(keys, span)
    columns = {"mode": encoded.dictionary.take(pa.array(which)), "value_ms": value_ms, "count": count}
    return Tally.of(columns, ["mode", "value_ms"], count="sum")


def delivery(part: Delivered) -> Columns:
    """Table DELIVERY, by time of publication."""
    lives = part.lives.sort_by([("published_us", "ascending"), ("message", "ascending")])
    recipients, delivered = _recipients(lives, part.presence), lives["delivered"].to_numpy()
    return {
        "message": lives["message"],
        "source": lives["source"],
        "published": lives["published_us"].to_numpy() / MICROSECONDS,
        "recipients": recipients,
        "delivered": delivered,
        "ratio": ratio(delivered, recipients),
        "mode": lives["mode"],
        "priority": lives["priority"],
    }


def delivery_ratio(part: Delivered) -> Columns:
    """Table DELIVERY_RATIO."""
    ratios = delivery(part)["ratio"]
    counts = [len(ratios) - ratios.null_count] if len(ratios) else []
    return {"messages": pa.array(counts, pa.int64()), "ratio": pa.array([pc.mean(ratios).as_py()][: len(counts)])}


def classes(part: Delivered) -> Columns:
    """Table CLASSES."""
    found = pa.table(dict(delivery(part))).group_by(["mode", "priority"]).aggregate(
        [("message", "count"), ("recipients", "sum"), ("delivered", "sum"), ("ratio", "mean")]
    ).sort_by([("mode", "ascending"), ("priority", "ascending")])  # fmt: skip
    return {
        "mode": found["mode"],
        "priority": found["priority"],
        "messages": found["message_count"],
        "recipients": found["recipients_sum"],
        "delivered": found["delivered_sum"],
        "ratio": found["ratio_mean"],
    }


def mode_delays(part: Delivered) -> Columns:
    """Table MODE_DELAYS: shares are of all recipients, so that the last one of a mode is what it reached."""
    recipients = pa.table(dict(delivery(part))).group_by("mode").aggregate([("recipients", "sum")])
    ages = part.ages.columns()
    made: list[dict[str, Any]] = []
    for mode, many in sorted(zip(*(recipients[name].to_pylist() for name in ("mode", "recipients_sum")), strict=True)):
        mine = pc.equal(ages["mode"], mode)
        counts = Counts(*(ages[name].filter(mine).to_numpy() for name in ("value_ms", "count")))
        points = dict(cdf(counts, RANKS))
        made.append(
            {"mode": pa.repeat(mode, len(points["count"])), **points, "share": points["cumulative"] / max(many, 1)}
        )
    names = ("mode", "value_ms", "count", "cumulative", "share")
    return {name: np.concatenate([np.asarray(each[name]) for each in made]) if made else [] for name in names}


def flood(part: Delivered) -> Columns:
    """Table FLOOD: how soon a flood would have brought what was published; nothing where no contacts are known.

    Deadlines are those that authors state, by the true time. A message whose author was not there is left out, and so
    are contacts of a node that is not known to have been there. Of a message that lists recipients only these count.
    """
    stays, met = part.presence.stays(), part.presence.meetings
    known = list(zip(stays.node.to_pylist(), stays.start_us.tolist(), stays.end_us.tolist(), strict=True))
    there: dict[str, list[tuple[int, int]]] = {}
    for node, start_us, end_us in known:
        there.setdefault(node, []).append((start_us, end_us))
    contacts = zip(met.a.to_pylist(), met.b.to_pylist(), met.start_us.tolist(), met.end_us.tolist(), strict=True)
    between = [each for each in contacts if each[0] in there and each[1] in there]
    names = ("message", "source", "published_us", "deadline_us")
    sent = [
        (name, source, at_us, None if deadline_us >= ENDLESS else max(at_us, deadline_us))
        for name, source, at_us, deadline_us in zip(*(part.lives[each].to_pylist() for each in names), strict=True)
        if any(start_us <= at_us < end_us for start_us, end_us in there.get(source, ()))
    ]
    listed = {
        name: recipients.split()
        for name, recipients in zip(part.lives["message"].to_pylist(), part.lives["listed"].to_pylist(), strict=True)
        if recipients is not None
    }
    found = chain.from_iterable(flood_ages_us(between, sent, known, listed) if between else ())
    age_us, nodes = np.fromiter(found, np.int64).reshape(-1, 2).T
    value_ms, counts = summed(milliseconds(age_us), nodes)
    return cdf(Counts(value_ms[counts > 0], counts[counts > 0]), RANKS)


def _recipients(lives: pa.Table, presence: Presence) -> Ints:
    """Return, by message, the number of recipients: those that it lists, else the nodes that could have got it."""
    listed = pc.list_value_length(pc.utf8_split_whitespace(lives["listed"])).to_numpy()
    if not lives["listed"].null_count:
        found: Ints = listed.astype(np.int64)
        return found
    return np.where(np.isnan(listed), _there(lives, presence), np.nan_to_num(listed)).astype(np.int64)


def _there(lives: pa.Table, presence: Presence) -> Ints:
    """Return, by message, the number of nodes other than its author that were present while it lived.

    Of each node the stay counts that is the first to end after the publication, if it begins before the deadline: so a
    node that comes back counts once. Stays that begin before the deadline are counted, less those that had ended by the
    publication, and those that are not their node's first by then.
    """
    stays = presence.stays()
    (node, author), _ = coded(stays.node, lives["source"])
    born_us = lives["published_us"].to_numpy()
    dead_us = np.maximum(lives["deadline_us"].to_numpy(), born_us)
    order = np.lexsort((stays.start_us, node))
    node, start_us, end_us = node[order], stays.start_us[order], stays.end_us[order]
    again = np.flatnonzero(np.diff(node, prepend=-1) == 0)
    before_us = np.full(len(node), NEVER)
    before_us[again] = end_us[again - 1]
    begun = np.searchsorted(np.sort(start_us), dead_us)
    over = np.searchsorted(np.sort(end_us), born_us, side="right")
    later = dominated(before_us[again], start_us[again], born_us, dead_us)
    found: Ints = begun - over - later - _authors_there(author, born_us, dead_us, (node, start_us, end_us))
    return found


def _authors_there(author: Ints, born_us: Ints, dead_us: Ints, stays: tuple[Ints, Ints, Ints]) -> Ints:
    """Return, by message, 1 if its author was present while it lived."""
    node, start_us, end_us = stays
    if not len(node):
        return np.zeros(len(author), np.int64)
    times_us = np.unique(np.concatenate([end_us, born_us]))
    span = len(times_us) + 1
    keys = node * span + np.searchsorted(times_us, end_us)
    place = np.searchsorted(keys, author * span + np.searchsorted(times_us, born_us), side="right")
    place = np.minimum(place, len(node) - 1)
    there = (node[place] == author) & (end_us[place] > born_us) & (start_us[place] < dead_us)
    found: Ints = there.astype(np.int64)
    return found


_REMOVED = (Reason.FORWARDED, Reason.PURGED, Reason.WITHDRAWN)
"""Reasons for which The ONE would call a copy removed, and not dropped."""


@dataclass(frozen=True, eq=False)
class OneFigures(Fields):
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
        drops = _of(rows, rows.of(Kind.DROP), has_recipients)
        left = drops[~np.isin(_pair(rows, drops), _pair(rows, copies.delivered[mine]))]  # Not where it was delivered.
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


def _held_us(rows: Log, left: Ints) -> Ints:
    """Return the times for which hosts had whole copies before these rows; -1 for copies that were never whole."""
    came = rows.of(Kind.PUBLISH, Kind.RECEIVE)
    came = came[rows.message[came] >= 0]
    last = Before(_pair(rows, came), came, len(rows)).find(_pair(rows, left), left)
    return np.where(last >= 0, rows.t_us[left] - rows.t_us[last], np.int64(-1))
