"""Channels of a scenario: which groups of nodes emit and consume their events, and with which modulator."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from carrypost.config import Limits, Settings
from carrypost.config.rules import nearest
from carrypost.emu.scenario.tables import WorkloadTable
from carrypost.errors import ConfigError, LocalError
from carrypost.overlay.modulators.modulator import Instance, Modulator

CHANNEL = "channel"
_GROUPS = ("producers", "consumers")
_OWN = (*_GROUPS, "modulator", "params", "spread")
"""Keys of a workload that are for channels only."""


class Channel(NamedTuple):
    """One channel, with its clients by name."""

    name: str
    producers: frozenset[str]
    consumers: frozenset[str]
    modulator: Modulator | None
    spread_s: float = 0.0
    """Time over which the first events of producers are spread."""

    def delay_s(self, producer: str) -> float:
        """Return how much later than others a producer begins to emit events."""
        return self.spread_s * sorted(self.producers).index(producer) / len(self.producers) if self.spread_s else 0.0


def mistakes(workload: WorkloadTable, groups: Collection[str], limits: Limits) -> Iterator[tuple[str, str]]:
    """Yield keys of a workload that are wrong, and why, as far as they are about channels."""
    if workload.kind != CHANNEL:
        yield from ((key, f'requires kind = "{CHANNEL}"') for key in _OWN if getattr(workload, key))
        return
    for key in _GROUPS:
        if not (named := getattr(workload, key)):
            yield key, "is missing: a channel must name the groups of its producers and consumers"
        elif named not in groups:
            yield key, f"must name a group of nodes, and there is no group {named!r}{nearest(named, groups)}"
    if workload.ordering != "none":
        yield (
            "ordering",
            "a channel has no ordering, since the events of each producer are always in order; leave it out",
        )
    if workload.params and not workload.modulator:
        yield "params", "requires a modulator"
    if workload.modulator:
        try:
            Instance(modulator_of(workload), limits, limits.modulator_state_bytes_max)
        except (LocalError, TypeError) as error:
            yield "modulator", str(error)


def modulator_of(workload: WorkloadTable) -> Modulator:
    """Return the modulator that a workload names; raises `LocalError` if it is not registered."""
    parameters: Any = workload.params
    return Modulator.named(workload.modulator, **parameters)


def channel_of(
    workload: WorkloadTable, place: str, members: Mapping[str, Sequence[str]], settings: Mapping[str, Settings]
) -> Channel:
    """Return the channel of a workload; `place` is its place in the scenario, `members` are those of groups.

    `settings` are those of nodes. Raises `ConfigError` for a client without the overlay.
    """
    for key in _GROUPS:
        for node in members[getattr(workload, key)]:
            if not settings[node].overlay.enabled:
                needs = "clients of channels need settings.overlay.enabled = true"
                raise ConfigError(f"{place}.{key}: {needs}, which the node {node!r} of the group lacks")
    producers, consumers = (frozenset(members[getattr(workload, key)]) for key in _GROUPS)
    modulator = modulator_of(workload) if workload.modulator else None
    return Channel(workload.topic, producers, consumers, modulator, workload.period_s if workload.spread else 0.0)
