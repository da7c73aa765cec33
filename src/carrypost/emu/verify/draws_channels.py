"""Random scenarios for the search for faults of channels: a seed in, the files of a small scenario out.

A few brokers, producers and consumers, of which some are several of these, meet at random and go through faults. Then
all are connected and nothing goes wrong but losses, so that everything has to arrive, unless stores were lost, clocks
were wrong or events died meanwhile (`Drawn.exact`).
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import combinations

from carrypost.chance import stream
from carrypost.config.document import toml
from carrypost.emu.scenario.tables import FAULTS
from carrypost.emu.verify import drawing
from carrypost.emu.verify.drawing import CHANNELS, Drawn, Table, event_of, of, some

CALM_S = 160.0
"""Length of the time in which all are connected."""
SETTLED_S = 140.0
"""Time within which all earlier events must have arrived."""
_HARMLESS = tuple(each for each in FAULTS if each not in {"crash-lost", "clock-step"})
"""Faults after which nothing is missing."""
_MODULATORS: tuple[Table, ...] = (
    {},
    {},
    {"modulator": "synthetic", "params": {"ratio": 0.5}},
    {"modulator": "synthetic", "params": {"ratio": 0}},
)
_RADIO = {"loss": of(0.05, 0.3), "duplicate": of(0.1), "reorder": of(0.2), "delay_s": of(0.02, 0.2)}
_OVERLAY = {
    "neighbours_max": of(1, 2), "homing": of("static"), "topology": of("static"), "paths": of("direct"),
    "checkpoint_s": of(1.0, 60.0),
}  # fmt: skip
_SETTINGS = {"security": of("signed"), "coalesce_s": of(0.0), "compress": of(False)}
_LIMITS = {"lane_events_max": of(1, 3), "replay_events_max": of(1, 4)}


def draw_channels(seed: int) -> Drawn:
    """Return the scenario that belongs to a seed."""
    chance = stream(seed, CHANNELS, "plot")
    storm_s = float(chance.randrange(20, 120))
    names = [f"n{number}" for number in range(chance.randrange(4, 9))]
    ideal = chance.random() < drawing.LIKELY
    content: Table = {
        "name": f"{CHANNELS}-{seed}", "duration_s": storm_s + CALM_S, "mode": "ideal" if ideal else "faithful",
        "sample_s": 60.0, "disk_delay_s": chance.choice((0.0, 0.0, 0.05, 0.4)),
        "contacts": {"file": "contacts.csv"}, "nodes": {"file": "nodes.csv", "group": _groups(chance, names)},
    }  # fmt: skip
    # Large events at such losses and delays take longer than the time in which all are connected.
    sizes = (0, 100, 1_000, 20_000) if ideal else (0, 100, 1_000)
    content["workload"] = [_workload(chance, name, sizes) for name in ("flood", "rain")[: chance.choice((1, 1, 2))]]
    radio = {"routes": "told"} if ideal else some(seed, "radio", _RADIO, 0.4, CHANNELS)
    overlay = {"enabled": True, "update_s": 4.0, "discovery_s": 2.0, "orphan_s": 8.0, "gap_s": 40.0}
    limits = some(seed, "limits", _LIMITS, drawing.RARE, CHANNELS)
    content["settings"] = {
        "island": True, **({} if ideal else {"island_s_min": 0.2, "announce_s_max": 2.0}),
        **some(seed, "settings", _SETTINGS, drawing.RARE, CHANNELS),
        "overlay": overlay | some(seed, "overlay", _OVERLAY, drawing.RARE, CHANNELS), "limits": limits,
    }  # fmt: skip
    kinds = FAULTS if chance.random() < drawing.RARE else _HARMLESS
    faults = [_fault(chance, names, storm_s, kinds) for _ in range(chance.randrange(6))]
    content |= {"faults": {"event": faults}, "radio": radio}
    exact = all(each["kind"] in _HARMLESS for each in faults)
    exact &= all("lifetime_s" not in each for each in content["workload"])
    exact &= not {"homing", "topology"} & content["settings"]["overlay"].keys()  # What is static may be cut off.
    files = {
        "contacts.csv": drawing.csv("a,b,start,end", _contacts(chance, names, storm_s)),
        "nodes.csv": drawing.nodes_csv({name: [(0.0, storm_s + CALM_S)] for name in names}, storm_s + CALM_S),
        drawing.SCENARIO: toml(content),
    }
    return Drawn(seed, files, exact, CHANNELS)


def _groups(chance: random.Random, names: list[str]) -> list[Table]:
    brokers = sorted(chance.sample(names, chance.randrange(1, min(5, len(names)))))
    made: list[Table] = [{"name": "brokers", "names": brokers, "settings": {"overlay": {"broker": True}}}]
    clients = {group: sorted(chance.sample(names, chance.randrange(1, 4))) for group in ("producers", "consumers")}
    return made + [{"name": group, "names": chosen} for group, chosen in clients.items()]


def _workload(chance: random.Random, topic: str, sizes: Sequence[int]) -> Table:
    table: Table = {"kind": "channel", "topic": topic, "producers": "producers", "consumers": "consumers"}
    table |= {"first_s": chance.choice((0.0, 3.0, 12.5)), "period_s": chance.choice((5.0, 10.0, 20.0))}
    table |= {"size": chance.choice(sizes)} | chance.choice(_MODULATORS)
    if chance.random() < drawing.RARE:
        table["lifetime_s"] = chance.choice((5.0, 30.0))
    return table


def _fault(chance: random.Random, names: list[str], storm_s: float, kinds: Sequence[str]) -> Table:
    found = event_of(chance, names, storm_s * 0.8, (0.001, 1.0, 5.0), (-5.0, 5.0))
    return found | {"kind": chance.choice(kinds), "duration_s": min(found["duration_s"], storm_s * 0.2)}


def _contacts(chance: random.Random, names: list[str], storm_s: float) -> list[drawing.Meeting]:
    """Return meetings during the storm, and links of all with all, or of a random tree, after it."""
    found: list[drawing.Meeting] = []
    pairs = list(combinations(names, 2))
    for a, b in chance.sample(pairs, chance.randrange(1, len(pairs) + 1)):
        spans = drawing.spans_of(chance, 0.5, storm_s, 3)
        found += [(a, b, start, min(end, storm_s)) for start, end in spans]
    tree = [(chance.choice(names[:at]), name) for at, name in enumerate(names) if at]
    return found + [(*pair, storm_s, storm_s + CALM_S) for pair in tree]
