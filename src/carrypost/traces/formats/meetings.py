"""Contacts from rows: events up and down, sightings, plans for each direction, and complete contacts.

Every function takes all rows of some pairs and returns ``a, b, start_us, end_us``, sorted by start, a and b. Contacts
are half open, those that last no time are dropped and counted, and those of one pair never overlap.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from carrypost.arrays import Flags, Ints
from carrypost.model.times import MICROSECONDS
from carrypost.traces.csvfiles import brief
from carrypost.traces.formats.events import BACK, FORTH, UP
from carrypost.traces.formats.keys import Assembled, Pairs, begins, column, merge_intervals
from carrypost.traces.formats.lines import flags
from carrypost.traces.formats.rules import FileFault, Options

MEETINGS = pa.schema([("a", pa.string()), ("b", pa.string()), ("start_us", pa.int64()), ("end_us", pa.int64())])


def _assembled(
    pairs: Pairs, intervals: tuple[Ints, Ints, Ints], faults: list[FileFault], counts: dict[str, int]
) -> Assembled:
    key, start_us, end_us = intervals
    lasting = end_us > start_us
    counts = {**counts, "empty_contacts": int((~lasting).sum())}
    key, start_us, end_us = key[lasting], start_us[lasting], end_us[lasting]
    counts |= {"pairs": len(np.unique(key)), "lasting_us": int((end_us - start_us).sum())}
    order = np.lexsort((key, start_us))
    key = key[order]
    made = pa.table([*pairs.names(key), start_us[order], end_us[order]], schema=MEETINGS)
    return Assembled(made, faults, counts, [])


def merged(rows: pa.Table, options: Options) -> Assembled:  # noqa: ARG001 - as all formats
    """Return contacts from sightings: those that overlap or touch are joined."""
    return _merged(rows, merge_intervals)


def sampled(rows: pa.Table, options: Options) -> Assembled:
    """Return contacts from samples: successive rows are joined, and overlapping ones only if that is requested."""
    return _merged(rows, merge_intervals if options.overlaps else _consecutive)


def _merged(rows: pa.Table, join: Callable[[Ints, Ints, Ints], tuple[Ints, Ints, Ints]]) -> Assembled:
    """Return merged contacts; contacts of a node with itself, which some files have, are counted and left out."""
    pairs = Pairs.of(rows)
    key, start_us, end_us = join(pairs.key, column(rows, "t_us"), column(rows, "until_us"))
    itself = flags(pc.equal(*pairs.names(key)))
    others = (key[~itself], start_us[~itself], end_us[~itself])
    union = merge_intervals(pairs.key, column(rows, "t_us"), column(rows, "until_us"))[0]
    counts = {
        "self_contacts": int(itself.sum()),
        "merged_contacts": len(key),
        "merged_pairs": len(np.unique(key)),
        "overlapping_contacts": len(key) - len(union),
    }
    return _assembled(pairs, others, [], counts)


def _consecutive(key: Ints, start_us: Ints, end_us: Ints) -> tuple[Ints, Ints, Ints]:
    """Return intervals as `merge_intervals`, but merge rows only if one begins exactly at the end of another."""
    order = np.lexsort((end_us, key))
    key, start_us, end_us = key[order], start_us[order], end_us[order]
    again = np.append(False, (key[1:] == key[:-1]) & (end_us[1:] == end_us[:-1]))[: len(key)]
    key, start_us, end_us = key[~again], start_us[~again], end_us[~again]
    fresh = begins(key)
    inner = ~fresh
    previous = np.append(0, end_us[:-1])[: len(key)]
    fresh |= start_us != previous
    # One that begins within the one before is cut: those of one pair never overlap.
    start_us = np.where(inner, np.maximum(start_us, previous), start_us)
    first = np.flatnonzero(fresh)
    last = np.append(first[1:], len(key))[: len(first)] - 1
    return key[first], start_us[first], end_us[last]


def exact(rows: pa.Table, options: Options) -> Assembled:
    """Return the rows as contacts; two of a pair that overlap are an error, unless they are to be joined."""
    pairs = Pairs.of(rows)
    key, at = pairs.key, column(rows, "at")
    start_us, end_us = column(rows, "t_us"), column(rows, "until_us")
    order = np.flatnonzero(end_us > start_us)
    empty = len(key) - len(order)
    order = order[np.lexsort((end_us[order], start_us[order], key[order]))]
    key, at, start_us, end_us = key[order], at[order], start_us[order], end_us[order]
    if options.overlaps:
        found = merge_intervals(key, start_us, end_us, touching=False)
        made = _assembled(pairs, found, [], {"joined_rows": len(key) - len(found[0])})
    else:
        made = _assembled(pairs, (key, start_us, end_us), _overlap(pairs, (key, start_us, end_us), at), {})
    made.counts["empty_contacts"] = empty
    return made


def _overlap(pairs: Pairs, intervals: tuple[Ints, Ints, Ints], at: Ints) -> list[FileFault]:
    """Return the first line whose contact overlaps another of its pair; they are sorted by pair and start."""
    key, start_us, end_us = intervals
    over = np.flatnonzero((key[1:] == key[:-1]) & (start_us[1:] < end_us[:-1]))
    later = np.where(at[over + 1] > at[over], over + 1, over)
    for index in np.argsort(at[later])[:1]:
        one, two = later[index], 2 * over[index] + 1 - later[index]
        times = f"[{brief(int(start_us[two]))}, {brief(int(end_us[two]))}) s of {{other}}"
        message = f"this contact of {pairs.label(int(key[one]))} overlaps {times}; to merge them: --overlaps"
        return [FileFault(int(at[one]), message, int(at[two]))]
    return []


def events(rows: pa.Table, options: Options) -> Assembled:
    """Return contacts from links that come up and go down; a link that does not go down lasts to the end.

    As in The ONE, the `up` of a connected pair and the `down` of an unconnected one are ignored. With `overlaps` they
    are counted: the pair is connected while it has had more of the former than of the latter.
    """
    pairs = Pairs.of(rows)
    at, t_us = column(rows, "at"), column(rows, "t_us")
    order = np.lexsort((at, t_us, pairs.key)) if options.unsorted else np.lexsort((at, pairs.key))
    key, at, t_us, up = pairs.key[order], at[order], t_us[order], column(rows, "kind")[order] == UP
    ups = _ups(begins(key), up) if options.overlaps else up.astype(np.int64)
    before = np.append(0, ups[:-1])[: len(ups)] * ~begins(key)
    changes = np.flatnonzero((ups > 0) != (before > 0))
    useless = {"ignored_downs": ~up & (before == 0), "ignored_ups": up & (before > 0) & (not options.overlaps)}
    counts = {name: int(each.sum()) for name, each in useless.items()}
    key, t_us, up = key[changes], t_us[changes], up[changes]
    started = np.flatnonzero(up)
    after = np.append(t_us[1:], options.end_us)[started]
    last = np.append(begins(key)[1:], True)[: len(key)][started]
    end_us = np.where(last, options.end_us, after)
    counts["open_contacts"] = int(last.sum())
    return _assembled(pairs, (key[started], t_us[started], end_us), [], counts)


def _ups(first: Flags, up: Flags) -> Ints:
    """Return the ups of a pair that have no down yet, after each event; a down without an up changes nothing.

    `first`: flags of the first events of pairs.
    """
    total = np.cumsum(np.where(up, 1, -1))
    number = np.cumsum(first) - 1
    start = np.flatnonzero(first)
    total -= (total[start] - np.where(up[start], 1, -1))[number] if len(up) else 0
    # The least so far of each pair: every pair begins lower than all before it can end.
    lower = number * (2 * len(up) + 1)
    least = np.minimum.accumulate(np.minimum(total, 0) - lower) + lower
    found: Ints = total - least
    return found


def plan(rows: pa.Table, options: Options) -> Assembled:
    """Return contacts while both directions are up: two nodes are in contact only then."""
    if options.both_ways:
        return merged(rows, options)
    pairs = Pairs.of(rows)
    kind, start, end = column(rows, "kind"), column(rows, "t_us"), column(rows, "until_us")
    ways = [merge_intervals(pairs.key[those], start[those], end[those]) for those in (kind == FORTH, kind == BACK)]
    key, start, end = (np.concatenate(each) for each in zip(*ways, strict=True))
    # Every way is there once at most at a time: both are there where two are.
    t_us = np.concatenate((start, end))
    both = np.concatenate((key, key))
    order = np.lexsort((t_us, both))
    t_us, both = t_us[order], both[order]
    number = np.cumsum(np.repeat([1, -1], len(key))[order])
    kept = np.append((both[1:] != both[:-1]) | (t_us[1:] != t_us[:-1]), True)[: len(both)]
    t_us, both, number = t_us[kept], both[kept], number[kept]
    since = np.flatnonzero(number == len(ways))
    found = merge_intervals(both[since], t_us[since], t_us[since + 1])
    total_us = int((end - start).sum())
    shared_us = int((found[2] - found[1]).sum())
    counts = {
        "two_way_pairs": len(np.intersect1d(ways[0][0], ways[1][0])),
        "one_way_contacts": len(key) - _met((key, start, end), found),
        "one_way_s": (total_us - 2 * shared_us) // MICROSECONDS,
    }
    return _assembled(pairs, found, [], counts)


def _met(ways: tuple[Ints, Ints, Ints], found: tuple[Ints, Ints, Ints]) -> int:
    """Return the number of these intervals in which one of the others begins, of the same key."""
    keys, key = np.unique(np.concatenate((ways[0], found[0])), return_inverse=True)
    times, t_us = np.unique(np.concatenate((ways[1], ways[2], found[1])), return_inverse=True)
    assert len(keys) * len(times) < np.iinfo(np.int64).max
    count = len(ways[0])
    own = key[:count] * len(times)
    others = np.sort(key[count:] * len(times) + t_us[2 * count :])
    before = (np.searchsorted(others, own + each) for each in (t_us[:count], t_us[count : 2 * count]))
    since, until = before
    return int((until > since).sum())
