"""How messages spread: recipients reached (EMMA), hops, one message's way and throughput (JOMS).

A recipient is a node other than the author that was there at any moment of a message's life. Of a message whose id was
given anew after a crash, the life is from the first publication to the last deadline.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from carrypost.emu.arrays import Flags, Ints
from carrypost.emu.traces.formats.words import numbers
from carrypost.emu.verify.bound import flood_ages_us
from carrypost.lab.metrics.copies import ENDLESS, NEVER, Copies
from carrypost.lab.metrics.distribution import RANKS, Columns, Counts, cdf, dominated, milliseconds, summed
from carrypost.lab.metrics.parts import Slice, Tally, ratio
from carrypost.lab.metrics.presence import Presence
from carrypost.lab.metrics.statistics import coded
from carrypost.model.times import MICROSECONDS

_ENTRIES_MAX = 1 << 53


def barriers_part(of: Slice) -> Tally:
    """Publications counted by the entries of their barriers; one without an order has none."""
    entries = numbers(of.rows.texts("detail", of.copies.publications.row))
    whole = entries[np.isfinite(entries) & (np.abs(entries) < _ENTRIES_MAX)].astype(np.int64)
    return Tally.of({"entries": whole, "messages": np.ones(len(whole), np.int64)}, ["entries"], messages="sum")


def hops_part(of: Slice) -> Tally:
    """Receptions and their hops, by node; those of which hops are not known are left out."""
    copies, nodes = of.copies, of.rows.nodes
    known = np.flatnonzero((copies.received_us != NEVER) & (copies.hops > 0))
    node, hops = copies.node[known], copies.hops[known]
    most = np.zeros(len(nodes), np.int32)
    np.maximum.at(most, node, hops)
    received, total = np.bincount(node, minlength=len(nodes)), np.bincount(node, hops, len(nodes)).astype(np.int64)
    direct = np.bincount(node[hops == 1], minlength=len(nodes))
    there = received > 0
    columns = {
        "node": nodes.filter(pa.array(there)),
        "received": received[there],
        "direct": direct[there],
        "total": total[there],
        "max": most[there],
    }
    return Tally.of(columns, ["node"], received="sum", direct="sum", total="sum", max="max")


def hops(part: Tally) -> Columns:
    """Table HOPS."""
    columns = part.columns()
    return {**columns, "mean": columns["total"].to_numpy() / columns["received"].to_numpy()}


def hop_counts_part(of: Slice) -> Tally:
    """Receptions by their hops; those of which hops are not known are left out."""
    copies = of.copies
    hops, counts = np.unique(copies.hops[(copies.received_us != NEVER) & (copies.hops > 0)], return_counts=True)
    return Tally.of({"hops": hops, "copies": counts}, ["hops"], copies="sum")


def throughput_part(of: Slice) -> Tally:
    """Receptions by size of messages, and their rates added up; what came in no time at all has none."""
    copies = of.copies
    known = np.flatnonzero(_came(copies) & (copies.size >= 0))
    size, delay_us = copies.size[known], copies.received_us[known] - copies.published_us[known]
    sizes, place = np.unique(size, return_inverse=True)
    timed = delay_us > 0
    rates = np.divide(size * float(MICROSECONDS), delay_us, out=np.zeros(len(size)), where=timed)
    columns = {
        "size": sizes,
        "copies": np.bincount(place, minlength=len(sizes)),
        "timed": np.bincount(place[timed], minlength=len(sizes)),
        "rates": np.bincount(place, rates, len(sizes)),
    }
    return Tally.of(columns, ["size"], copies="sum", timed="sum", rates="sum")


def throughput(part: Tally) -> Columns:
    """Table THROUGHPUT."""
    columns = part.columns()
    return {**columns, "bytes_per_s": ratio(columns["rates"].to_numpy(), columns["timed"].to_numpy())}


@dataclass(frozen=True, eq=False)
class Spread:
    """How the message that most nodes got came to them."""

    message: str | None
    """None: nothing came to anybody."""
    published_us: int
    after_us: Ints

    @classmethod
    def of(cls, of: Slice) -> Spread:
        """Of the messages of a slice the one that most nodes got, the first of these."""
        copies, rows = of.copies, of.rows
        known = np.flatnonzero(_came(copies))
        if not len(known):
            return cls(None, 0, np.zeros(0, np.int64))
        counts = np.bincount(copies.message[known], minlength=len(rows.messages))
        first_us = np.zeros(len(rows.messages), np.int64)
        publications = copies.publications
        first_us[publications.message[publications.first]] = publications.t_us[publications.first]
        most = np.flatnonzero(counts == counts.max())
        first = most[first_us[most] == first_us[most].min()]
        name, message = min((rows.messages[int(code)].as_py(), int(code)) for code in first)
        mine = known[copies.message[known] == message]
        mine = mine[np.argsort(copies.received_us[mine], kind="stable")]
        return cls(name, int(first_us[message]), copies.received_us[mine] - copies.published_us[mine])

    def joined(self, other: Spread) -> Spread:
        """The one that more nodes got."""
        return min(self, other, key=lambda each: (-len(each.after_us), each.published_us, each.message or ""))


def spread(part: Spread) -> Columns:
    """Table SPREAD."""
    count = len(part.after_us)
    return {
        "message": pa.repeat(part.message or "", count),
        "reached": np.arange(1, count + 1),
        "after_s": part.after_us / MICROSECONDS,
    }


def _came(copies: Copies) -> Flags:
    """Which copies came from elsewhere, and are of a publication that is known."""
    found: Flags = ~copies.own & copies.published & (copies.received_us != NEVER)
    return found


# --- who got it of those who could ----------------------------------------------------------------------------
@dataclass(frozen=True, eq=False)
class Delivered:
    """Of each message its life and how many others got it meanwhile; and who was there when."""

    lives: pa.Table
    presence: Presence

    @classmethod
    def of(cls, of: Slice) -> Delivered:
        """Of the messages of a slice."""
        copies, rows, publications = of.copies, of.rows, of.copies.publications
        first = publications.first
        message = publications.message[first]
        deadline_us = np.maximum.reduceat(publications.deadline_us, first) if len(first) else publications.deadline_us
        ends_us = np.full(len(rows.messages), NEVER)
        ends_us[message] = deadline_us
        got = ~copies.own & (copies.delivered_us != NEVER)
        got[got] = copies.delivered_us[got] < ends_us[copies.message[got]]
        columns = {
            "message": rows.messages.take(pa.array(message)),
            "source": rows.nodes.take(pa.array(publications.author[first])),
            "published_us": publications.t_us[first],
            "deadline_us": deadline_us,
            "delivered": np.bincount(copies.message[got], minlength=len(rows.messages))[message],
        }
        return cls(pa.table(columns), Presence.of(of))

    def joined(self, other: Delivered) -> Delivered:
        """Of both: they have no message in common."""
        return Delivered(pa.concat_tables([self.lives, other.lives]), self.presence.joined(other.presence))


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
    }


def delivery_ratio(part: Delivered) -> Columns:
    """Table DELIVERY_RATIO."""
    ratios = delivery(part)["ratio"]
    counts = [len(ratios) - ratios.null_count] if len(ratios) else []
    return {"messages": pa.array(counts, pa.int64()), "ratio": pa.array([pc.mean(ratios).as_py()][: len(counts)])}


def flood(part: Delivered) -> Columns:
    """Table FLOOD: how soon a flood would have brought what was published; nothing where no contacts are known.

    Deadlines are those that authors tell, by the true time. A message whose author was not there is left out, and so
    are contacts of a node that nobody knows to have been there.
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
    found = chain.from_iterable(flood_ages_us(between, sent, known) if between else ())
    age_us, nodes = np.fromiter(found, np.int64).reshape(-1, 2).T
    value_ms, counts = summed(milliseconds(age_us), nodes)
    return cdf(Counts(value_ms[counts > 0], counts[counts > 0]), RANKS)


def _recipients(lives: pa.Table, presence: Presence) -> Ints:
    """By message, nodes other than its author that were there while it lived.

    Of each node the stay counts that is the first to end after the publication, if it begins before the deadline: so
    a node that comes back counts once. Those that begin before the deadline are counted, then those taken away that
    had ended by the publication, and those that are not their node's first by then.
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
    """By message, 1 where its author was there while it lived."""
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
