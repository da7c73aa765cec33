"""The metrics of the papers, as tables made from records.

Every metric is made of parts of one run's rows, without Spark (`carrypost.lab.metrics.parts`); `FAMILIES` defines how.
`tables` makes those of one run, `carrypost.lab.metrics.making` those of many, each a task of its own. Percentiles use
the nearest rank. Repetitions after a crash are never counted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING

from carrypost.emu.rows import Log
from carrypost.errors import LocalError
from carrypost.lab.metrics import copies, delivered, overlays, presence
from carrypost.lab.metrics import families as f
from carrypost.lab.metrics.copies import Delays, Spread
from carrypost.lab.metrics.delivered import Delivered, OneFigures
from carrypost.lab.metrics.overlays import Latencies
from carrypost.lab.metrics.parts import Family, Part, Slice, Tally, table_of
from carrypost.lab.metrics.presence import Presence, Sightings

if TYPE_CHECKING:
    import pyarrow as pa

    from carrypost.lab.schemas import Table

__all__ = ["FAMILIES", "WINDOW_S", "families_of", "finished", "merge", "parts", "tables"]

WINDOW_S = 60.0

FAMILIES: Mapping[Table, Family] = MappingProxyType(
    {
        f.PROCESSING: Family(copies.processing_part, copies.processing),
        f.OUTCOMES: Family(copies.outcomes_part, copies.outcomes),
        f.PROCESSING_BY_NODE: Family(copies.processing_part, copies.processing_by_node),
        f.DELAY_SPREAD: Family(Delays.of, copies.delays),
        f.DELAY_CDF: Family(Delays.of, copies.delay_cdf),
        f.DELIVERY_CDF: Family(copies.Deliveries.of, copies.delivery_cdf),
        f.DELAY_GRID: Family(Delays.of, copies.delay_grid),
        f.REGISTRIES: Family(presence.registries_part, presence.timed),
        f.REGISTRY_SIZES: Family(presence.registry_sizes_part, presence.registry_sizes),
        f.BARRIERS: Family(copies.barriers_part, Tally.columns),
        f.DELIVERY: Family(Delivered.of, delivered.delivery),
        f.DELIVERY_RATIO: Family(Delivered.of, delivered.delivery_ratio),
        f.CLASSES: Family(Delivered.of, delivered.classes),
        f.MODE_DELAYS: Family(Delivered.of, delivered.mode_delays),
        f.FLOOD: Family(Delivered.of, delivered.flood),
        f.ONE: Family(OneFigures.of, delivered.one),
        f.HOPS: Family(copies.hops_part, copies.hops),
        f.HOP_COUNTS: Family(copies.hop_counts_part, Tally.columns),
        f.SPREAD: Family(Spread.of, copies.spread),
        f.THROUGHPUT: Family(copies.throughput_part, copies.throughput),
        f.TRAFFIC: Family(presence.traffic_part, Tally.columns),
        f.TIMELINE: Family(presence.timeline_part, presence.timed),
        f.CONTACT_SUMMARY: Family(Presence.of, lambda part: presence.contact_summary(part.meetings)),
        f.CONTACT_VIEWS: Family(Sightings.of, presence.contact_views),
        f.SEEN_CONTACT_CDF: Family(Sightings.of, presence.seen_contact_cdf),
        f.CONTACT_CDF: Family(Presence.of, lambda part: presence.contact_cdf(part.meetings)),
        f.INTER_CONTACT_CDF: Family(Presence.of, lambda part: presence.inter_contact_cdf(part.meetings)),
        f.NEIGHBOURS: Family(Presence.of, lambda part: presence.neighbours(part.meetings, part.stays())),
        f.NEIGHBOURS_TIMELINE: Family(
            Presence.of, lambda part: presence.neighbours_timeline(part.meetings, part.stays(), part.window_us)
        ),
        f.ACTIVITY: Family(Presence.of, lambda part: presence.activity(part.stays())),
        f.ACTIVITY_SUMMARY: Family(Presence.of, lambda part: presence.activity_summary(part.stays())),
        f.PATH_LENGTHS: Family(overlays.paths_part, overlays.path_lengths),
        f.BROKER_TRAFFIC: Family(overlays.told_part, overlays.broker_traffic),
        f.LOAD: Family(overlays.load_part, overlays.load),
        f.RELOCATIONS: Family(overlays.relocations_part, overlays.relocations),
        f.EVENT_LATENCY: Family(Latencies.of, Latencies.columns),
    }
)
"""Families and their functions: all of them, in the order of documents and commands."""


def families_of(names: Sequence[str], among: Mapping[Table, Family] = FAMILIES) -> list[Table]:
    """Return the families of these names; all of them if there is none."""
    known = {table.name: table for table in among}
    if unknown := [name for name in names if name not in known]:
        raise LocalError(f"there is no family {unknown[0]!r}; there are {', '.join(known)}")
    return [known[name] for name in names] if names else list(among)


def parts(
    rows: pa.Table, wanted: Iterable[Table], *, window_s: float = WINDOW_S, among: Mapping[Table, Family] = FAMILIES
) -> list[Part]:
    """Return the results of these rows of a run, for each part that these families are made of."""
    these = Slice(Log.in_order(rows), window_s=window_s)
    return [part(these) for part in _needed(wanted, among)]


def merge(one: Sequence[Part], other: Sequence[Part]) -> list[Part]:
    """Join the results of two slices of a run."""
    return [mine.merge(yours) for mine, yours in zip(one, other, strict=True)]


def finished(
    run: str, found: Sequence[Part], wanted: Sequence[Table], *, among: Mapping[Table, Family] = FAMILIES
) -> dict[str, pa.Table]:
    """Return the tables of a run by name, from the parts of all its slices."""
    known = dict(zip(_needed(wanted, among), found, strict=True))
    return {table.name: table_of(table, run, among[table].rows(known[among[table].part])) for table in wanted}


def tables(
    run: str, rows: pa.Table, wanted: Iterable[Table], *, window_s: float = WINDOW_S,
    among: Mapping[Table, Family] = FAMILIES,
) -> dict[str, pa.Table]:  # fmt: skip
    """Return the tables of one run from its rows, by name; `among`: all families that there are."""
    chosen = list(wanted)
    return finished(run, parts(rows, chosen, window_s=window_s, among=among), chosen, among=among)


def _needed(wanted: Iterable[Table], among: Mapping[Table, Family]) -> list[Callable[[Slice], Part]]:
    """Return the functions that make parts, each once."""
    return list(dict.fromkeys(among[table].part for table in wanted))
