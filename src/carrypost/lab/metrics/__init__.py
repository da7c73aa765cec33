"""The metrics of the papers, as tables that are made from records.

Every metric is a function from frames to a frame, with the tables stated at both ends
(`carrypost.lab.metrics.families`); `FAMILIES` says which function makes which family out of what. Percentiles are of
the nearest rank. What a crash brought a second time is never counted.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING

from carrypost.lab.metrics import causal, dissemination, presence, statistics, timeline
from carrypost.lab.metrics import families as f
from carrypost.lab.metrics.material import Material, material

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from carrypost.lab.schemas import Table

__all__ = ["FAMILIES", "Material", "material"]


FAMILIES: Mapping[Table, Callable[[Material], DataFrame]] = MappingProxyType(
    {
        f.PROCESSING: lambda of: causal.processing(of.copies, of.runs),
        f.PROCESSING_BY_NODE: lambda of: causal.processing_by_node(of.copies, of.nodes),
        f.DELAY_SPREAD: lambda of: causal.delays(of.spreads, of.distribution, of.runs),
        f.DELAY_CDF: lambda of: causal.delay_cdf(of.distribution, of.runs),
        f.DELAY_GRID: lambda of: causal.delay_grid(of.copies, of.spreads, of.runs),
        f.REGISTRIES: lambda of: presence.registries(of.rest),
        f.REGISTRY_SIZES: lambda of: presence.registry_sizes(of.rest),
        f.BARRIERS: lambda of: dissemination.barriers(of.messages),
        f.DELIVERY: lambda of: of.delivery,
        f.DELIVERY_RATIO: lambda of: dissemination.delivery_ratio(of.delivery),
        f.FLOOD: lambda of: dissemination.flood(of.messages, of.activity, of.contacts),
        f.HOPS: lambda of: dissemination.hops(of.copies, of.nodes),
        f.HOP_COUNTS: lambda of: dissemination.hop_counts(of.copies, of.runs),
        f.SPREAD: lambda of: dissemination.spread(of.copies, of.messages),
        f.THROUGHPUT: lambda of: dissemination.throughput(of.copies, of.runs),
        f.TRAFFIC: lambda of: presence.traffic(of.rest),
        f.TIMELINE: lambda of: timeline.timeline(of.records, of.window_s),
        f.CONTACT_SUMMARY: lambda of: statistics.contact_summary(of.contacts),
        f.CONTACT_CDF: lambda of: statistics.contact_cdf(of.contacts),
        f.INTER_CONTACT_CDF: lambda of: statistics.inter_contact_cdf(of.contacts),
        f.NEIGHBOURS: lambda of: statistics.neighbours(of.contacts, of.activity),
        f.NEIGHBOURS_TIMELINE: lambda of: statistics.neighbours_timeline(of.contacts, of.activity, of.window_s),
        f.ACTIVITY: lambda of: of.activity,
        f.ACTIVITY_SUMMARY: lambda of: statistics.activity_summary(of.activity),
    }
)
"""Families, and what makes them: all that there are, in the order in which documents and commands list them."""
