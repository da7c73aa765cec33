"""Keys of a scenario that population mode refuses, because sets of messages cannot express what they ask for.

Population mode has two delays and nothing else: it knows no bytes, so nothing that depends on a rate, on the room in a
cache or on the state of a host. Settings that only change how soon hosts find each other, and how soon they pass a
message on, are in the calibration. All others are refused, new ones included.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

from carrypost.emu.scenario import tables

CALIBRATED = frozenset({
    "announce_s_min", "announce_s_max", "coalesce_s", "compress", "mtu_bytes", "offer_s_min", "push_bytes_max",
    "security",
})  # fmt: skip
"""Settings whose effect is in the calibrated delays."""
ABSENCES = ("away", "suspend")
"""Faults that are modelled: the node is absent, and keeps its messages."""
_FAULTS = (
    "crash_per_h", "disk_full_per_h", "clock_skew_s", "clock_drift_ppm", "clock_step_per_h", "corrupt", "truncate",
)  # fmt: skip


class ScenarioTables(Protocol):
    """The tables of a scenario that are looked at."""

    @property
    def groups(self) -> Sequence[object]:
        """Nodes with settings of their own."""

    @property
    def radio(self) -> tables.RadioTable:
        """Links."""

    @property
    def workloads(self) -> Sequence[tables.WorkloadTable]:
        """Publications."""

    @property
    def faults(self) -> tables.FaultsTable:
        """Faults by chance."""


def unmodelled(made: ScenarioTables, settings: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the keys that population mode refuses, and why; `settings` are those that the scenario sets."""
    if made.groups:
        yield "nodes.group", "population mode does not model nodes with settings of their own"
    yield from _of_radio(made)
    for name, value in settings.items():
        for key in [f"{name}.{each}" for each in value] if isinstance(value, Mapping) else [name]:
            if key not in CALIBRATED:
                yield f"settings.{key}", "population mode does not model this setting"
    for index, workload in enumerate(made.workloads):
        if workload.ordering != "none":
            yield f"workload.{index}.ordering", "population mode does not model the order of deliveries"
        if workload.kind == "addressed":
            yield f"workload.{index}.kind", "population mode does not model messages for some of the nodes"
        if workload.kind == "channel":
            yield f"workload.{index}.kind", "population mode does not model channels"
    faults = [f"faults.{name}" for name in _FAULTS if getattr(made.faults, name)]
    faults += [
        f"faults.event.{index}.kind" for index, each in enumerate(made.faults.event) if each.kind not in ABSENCES
    ]
    yield from ((key, "population mode models no failure but absence") for key in faults)


def _of_radio(made: ScenarioTables) -> Iterator[tuple[str, str]]:
    if made.radio.rate_bytes_per_s is not None:
        yield "radio.rate_bytes_per_s", "population mode does not model limits of rate"
    if made.radio.asymmetric:
        yield "radio.asymmetric", "population mode does not model contacts that work one way"
    for index in range(len(made.radio.link)):
        yield f"radio.link.{index}", "population mode does not model links that differ from the others"
