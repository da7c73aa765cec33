"""The papers' experiments: their scenarios, choices of settings, and the small version of each (X1 to X3, X7 to X9).

An experiment is a scenario and a list of named settings. Those of CAUSAL differ by the lifetime of messages, as in its
Tables II and V. Those of EMMA differ by the strategy of hosts, by load, buffer and number of hosts (§4); its experiment
is there a second time with islands, where messages go straight to recipients that are connected.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from carrypost.config.document import toml
from carrypost.lab.report.times import lifetime

_LIFETIME = "workload.0.lifetime_s"


@dataclass(frozen=True, slots=True)
class NamedSettings:
    """Keys of a scenario that some runs change, and the name of this choice in records."""

    name: str
    changes: Mapping[str, object]
    label: str
    """The choice in a plan."""
    scenario: str = ""
    """Scenario that it is for; empty: that of the experiment."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """One experiment."""

    name: str
    scenario: str
    varied: str
    """Difference of the settings, in words."""
    settings: tuple[NamedSettings, ...]
    quick: tuple[str, ...]
    """Names of the settings that the small version runs."""
    quick_s: int | None
    """Seconds of each run that the small version has; None: all of it."""
    cpu_s: tuple[float, float]
    """Processor time of the runs of one seed, as measured: all of it, and the small version."""
    metrics_cpu_s: tuple[float, float]
    """The same of its metrics and page."""
    files: tuple[str, ...] = ()
    """Files beside the scenario that it needs."""

    def selected_settings(self, *, quick: bool) -> tuple[NamedSettings, ...]:
        """Return the settings that are run, with what the small version changes."""
        if not quick:
            return self.settings
        shorter = {} if self.quick_s is None else {"duration_s": self.quick_s}
        return tuple(
            replace(each, changes={**each.changes, **shorter}) for each in self.settings if each.name in self.quick
        )

    def campaign(self, seeds: tuple[int, ...], *, quick: bool) -> str:
        """Return the experiment as the file of a campaign."""
        settings = [
            {"name": each.name, "set": dict(each.changes)}
            | ({"scenarios": [f"{self.scenario_of(each)}.toml"]} if len(self.scenarios) > 1 else {})
            for each in self.selected_settings(quick=quick)
        ]
        scenarios = [f"{each}.toml" for each in self.scenarios]
        return toml({"scenarios": scenarios, "seeds": list(seeds), "settings": settings})

    @property
    def scenarios(self) -> tuple[str, ...]:
        """Names of all scenarios of the experiment."""
        return tuple(dict.fromkeys(map(self.scenario_of, self.settings)))

    def scenario_of(self, settings: NamedSettings) -> str:
        """Return the scenario that a choice of settings is for."""
        return settings.scenario or self.scenario


def _lifetimes(
    lifetimes_s: tuple[int | None, ...], usual: Mapping[str, object], bounded: Mapping[str, object]
) -> tuple[NamedSettings, ...]:
    """Return settings that differ by the lifetime of messages; None: endless ones, in plain causal order.

    `usual` are keys that all have, `bounded` those of messages with a lifetime.
    """
    return tuple(
        NamedSettings(
            "none" if each is None else f"{each // 60}min",
            {**usual, **({} if each is None else {**bounded, _LIFETIME: each})},
            lifetime(each),
        )
        for each in lifetimes_s
    )


BUS = Recipe(
    name="bus",
    scenario="city_bus",
    varied="lifetimes",
    settings=_lifetimes((None, 7_200, 3_600, 2_400, 1_200, 600), {}, {"workload.0.ordering": "delta-causal"}),
    quick=("none", "20min"),
    quick_s=7_200,
    cpu_s=(201, 12),
    metrics_cpu_s=(6, 3),
)
OSTERMALM = Recipe(
    name="ostermalm",
    scenario="ostermalm",
    varied="lifetimes",
    # Figure 11 shows five minutes. It changes nothing but samples.
    settings=_lifetimes((1_200, 900, 600, 300), {"sample_s": 5}, {}),
    quick=("20min", "5min"),
    quick_s=1_800,
    cpu_s=(470, 25),
    metrics_cpu_s=(15, 4),
)

_BUFFERS = (25, 50, 100, 150, 200)
_BUFFER, _HOSTS, _HOSTS_MOST = 100, (16, 24), 32
_RECEIVER: Mapping[str, object] = {}
_PRIORITIES = {"workload.0.messages": 300, "workload.0.persistent": 1, "workload.0.priorities": 3}
_TOPIC = {"workload.0.recipients": 0.8}
STRATEGIES: Mapping[str, Mapping[str, object]] = {
    each: {"settings.strategy": each} for each in ("anti-entropy", "exchange")
}
"""Strategies of hosts that EMMA's loads are run with, and the keys that choose them."""


def _emma(load: str, buffer: int, hosts: int = _HOSTS_MOST) -> list[NamedSettings]:
    """Return the settings of one load with each strategy, as `exchange-topic-100` and, with fewer hosts, `…-of-16`."""
    loads = {"receiver": _RECEIVER, "priorities": _PRIORITIES, "topic": _TOPIC}
    fewer = {} if hosts == _HOSTS_MOST else {"mobility.count": hosts}
    of = f"-of-{hosts}" if fewer else ""
    keys = {**loads[load], "settings.cache_messages_max": buffer, **fewer}
    return [
        NamedSettings(f"{strategy}-{load}-{buffer}{of}", {**chosen, **keys}, strategy)
        for strategy, chosen in STRATEGIES.items()
    ]


def _emma_settings(buffers: tuple[int, ...], hosts: tuple[int, ...]) -> tuple[NamedSettings, ...]:
    made = [each for load in ("receiver", "priorities", "topic") for buffer in buffers for each in _emma(load, buffer)]
    return (*made, *(each for count in hosts for each in _emma("topic", _BUFFER, count)))


EMMA = Recipe(
    name="emma",
    scenario="emma",
    varied="strategies",
    settings=_emma_settings(_BUFFERS, _HOSTS),
    quick=tuple(each.name for each in _emma_settings((25, _BUFFER), _HOSTS[:1])),
    quick_s=None,
    cpu_s=(162, 74),
    metrics_cpu_s=(6, 4),
)
EMMA_ISLAND = replace(
    EMMA,
    name="emma-island",
    settings=tuple(replace(each, changes={**each.changes, "settings.island": True}) for each in EMMA.settings),
    cpu_s=(295, 116),
)
_UPDATE, _DISCOVERY = "settings.overlay.update_s", "settings.overlay.discovery_s"
_UPDATES_S, _DISCOVERIES_S, _SPEEDS = (10, 25, 50, 75, 100), (1, 10, 25, 50), (2, 10, 20)
_STATIC_TOPOLOGY = {"settings.overlay.topology": "static"}
_STATIC_HOMES = {"settings.overlay.homing": "static"}


def _overlay_settings() -> tuple[NamedSettings, ...]:
    """Return the settings of brokers with an update period, and of static ones."""
    adaptive = [NamedSettings(f"adaptive-{each}", {_UPDATE: each}, f"every {each} s") for each in _UPDATES_S]
    return (*adaptive, NamedSettings("static", _STATIC_TOPOLOGY, "static"))


def _client_settings() -> tuple[NamedSettings, ...]:
    """Return the settings with clients: three approaches, then ours by discovery period, and by speed."""
    approaches: dict[str, Mapping[str, object]] = {
        "clients-static": _STATIC_TOPOLOGY | _STATIC_HOMES,
        "clients-static-adaptive": _STATIC_TOPOLOGY,
        **{f"clients-adaptive-{each}": {_DISCOVERY: each} for each in _DISCOVERIES_S},
    }
    for speed in _SPEEDS:
        speeds = dict.fromkeys(("mobility.speed_min_m_per_s", "mobility.speed_max_m_per_s"), speed)
        for each in (_DISCOVERIES_S[1], _DISCOVERIES_S[-1]):
            approaches[f"clients-adaptive-{each}-at-{speed}"] = {_DISCOVERY: each, **speeds}
    return tuple(NamedSettings(name, keys, "with clients", "overlay_clients") for name, keys in approaches.items())


OVERLAY = Recipe(
    name="overlay",
    scenario="overlay",
    varied="brokers",
    settings=(*_overlay_settings(), *_client_settings()),
    quick=("adaptive-50", "static", "clients-static", "clients-adaptive-10"),
    quick_s=120,
    cpu_s=(1_800, 60),
    metrics_cpu_s=(20, 6),
)
_LOADS = tuple(range(10, 101, 10))
_FULL_COST_US = 1_000_000 / 6
"""Cost of an event by which the brokers of the scenario have all that they can do."""


def _balance_settings() -> tuple[NamedSettings, ...]:
    """Return the settings of brokers by mean load in percent, with and without control, and of static ones."""
    made = []
    for name, keys in (("control", {}), ("nearest", {"settings.overlay.load_max": 1_000})):
        for load in _LOADS:
            work = {"workload.0.params": {"cost_us": round(load / 100 * _FULL_COST_US), "ratio": 0.0}}
            made.append(NamedSettings(f"{name}-{load}", {**keys, **work}, f"{load} %"))
    return (*made, NamedSettings("static", _STATIC_TOPOLOGY | _STATIC_HOMES, "static"))


BALANCE = Recipe(
    name="balance",
    scenario="balance",
    varied="mean loads",
    settings=_balance_settings(),
    quick=("control-30", "nearest-30", "control-90", "nearest-90", "static"),
    quick_s=120,
    cpu_s=(700, 35),
    metrics_cpu_s=(10, 3),
)
_TOPOLOGIES = ("A-B-C", "A-B-C-A", "A-C-B", "B-A-C")


def _flood_settings() -> tuple[NamedSettings, ...]:
    """Return both approaches in four topologies: all data with room on the air and without, and a tenth of the area."""
    cases: dict[str, Mapping[str, object]] = {
        "all": {}, "full": {"workload.0.period_s": 1.9}, "box": {"workload.0.params": {"cost_us": 20_000, "ratio": 0.1}}
    }  # fmt: skip
    approaches: dict[str, Mapping[str, object]] = {"static": _STATIC_TOPOLOGY | _STATIC_HOMES, "adaptive": {}}
    return tuple(
        NamedSettings(f"{approach}-{case}-{topology}", {**keys, **changes, "contacts.file": _topology(topology)}, case)
        for case, keys in cases.items()
        for approach, changes in approaches.items()
        for topology in _TOPOLOGIES
    )


def _topology(name: str) -> str:
    """Return the file with the contacts of a topology."""
    return f"floodwatch_{name}.csv"


FLOODWATCH = Recipe(
    name="floodwatch",
    scenario="floodwatch",
    varied="data",
    settings=_flood_settings(),
    quick=tuple(each.name for each in _flood_settings() if each.label != "full"),
    quick_s=None,
    cpu_s=(50, 30),
    metrics_cpu_s=(5, 4),
    files=tuple(map(_topology, _TOPOLOGIES)),
)
RECIPES = {each.name: each for each in (BUS, OSTERMALM, EMMA, EMMA_ISLAND, OVERLAY, BALANCE, FLOODWATCH)}
