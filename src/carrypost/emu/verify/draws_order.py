"""Random scenarios for the search for faults of order: a seed in, the files of a small scenario out.

Hours pass, and few beacons: so messages that live for seconds and such that live for a day belong to one group, expire
while others wait for them, and are depended on all the same. Conversations make long chains of dependence; nodes come
and go, crash, lose their stores, have slow, full or small disks and caches and clocks that are wrong by minutes. One in
eight is ideal and free of all that: there the flood bound must be reached. In three more nothing happens to nodes:
there nothing may wait in vain, however bad the radio is.
"""

from __future__ import annotations

import math
import random
from itertools import combinations

from carrypost.chance import stream
from carrypost.config.document import toml
from carrypost.emu.verify import drawing
from carrypost.emu.verify.drawing import Draw, Drawn, Meeting, Scripted, Span, Table, event_of, of, some, time_of

_KINDS = (
    "exact", "calm ideal", "calm ideal", "calm faithful", "rough ideal", "rough ideal", "rough faithful",
    "rough faithful",
)  # fmt: skip
"""Nothing goes wrong; the radio is bad and room is scarce; and everything else goes wrong, too."""
_HOUR_S, _DAY_S = 3_600.0, 86_400.0
_SIZES = (0, 100, 1_000, 1_000, 5_000, 30_000)
_RARE, _LIMIT_RARE = 0.12, 0.06
_STEPS = 60
"""Steps of the grid on which contacts begin and end."""


def draw_ordered(seed: int) -> Drawn:
    """Return the scenario that belongs to a seed."""
    kind = stream(seed, drawing.ORDER, "kind").choice(_KINDS)
    chance = stream(seed, drawing.ORDER, "plot")
    # Two kinds of faults are found only where much happens within minutes: clocks that differ by as much as messages
    # live, and crashes before a disk has taken what left already.
    tight = kind.startswith("rough") and stream(seed, drawing.ORDER, "tight").choice(("", "", "skewed", "crashing"))
    end_s = chance.choice((0.5, 2.0, 6.0, 26.0)) * _HOUR_S if not tight else _HOUR_S / 2
    grid_s = end_s / _STEPS if chance.random() < 0.5 else 1.0  # noqa: PLR2004 - times that meet, and such that do not
    names = [f"n{number}" for number in range(chance.randrange(2, 13))]
    presences = {name: drawing.presences_of(chance, grid_s, end_s) for name in names}
    contacts = _contacts(chance, names, grid_s, end_s)
    script = _script(chance, presences, contacts, end_s)
    if tight == "skewed":
        lifetimes = stream(seed, drawing.ORDER, "lifetimes")
        script = [(*each[:-1], _minutes(lifetimes)) for each in script]
    content: Table = {"name": f"{drawing.ORDER}-{seed}", "duration_s": end_s, "sample_s": end_s / 5}
    content["mode"] = "faithful" if kind.endswith("faithful") else "ideal"
    content["nodes"] = {"file": "nodes.csv"}
    content["contacts"] = {"file": "contacts.csv"}
    files = {"nodes.csv": drawing.nodes_csv(presences, end_s)}
    files["contacts.csv"] = drawing.csv("a,b,start,end", contacts)
    files["publish.csv"] = drawing.csv("t,node,message,size,lifetime", script)
    content["workload"] = _workloads(chance, end_s)
    if kind != "exact":
        content |= _hazards(seed)
    if kind.startswith("rough"):
        content |= _faults(seed, names, end_s)
    if tight == "skewed":
        content["workload"][0]["ordering"] = "delta-causal"
        content.setdefault("faults", {})["clock_skew_s"] = stream(seed, drawing.ORDER, "skew").choice((60.0, 300.0))
    elif tight == "crashing":
        content["disk_delay_s"] = 60.0
        content.setdefault("faults", {})["event"] = _after_words(stream(seed, drawing.ORDER, "words"), script)
    if kind.endswith("faithful"):
        # A beacon costs as much as a reception, and there is an hour to fill.
        settings = content.setdefault("settings", {})
        settings |= {"announce_s_min": end_s / 400, "announce_s_max": end_s / 120}
    files[drawing.SCENARIO] = toml(content)
    return Drawn(seed, files, kind == "exact", drawing.ORDER)


def _contacts(chance: random.Random, names: list[str], grid_s: float, end_s: float) -> list[Meeting]:
    pairs = list(combinations(names, 2))
    chance.shuffle(pairs)
    found: list[Meeting] = []
    most = chance.choice((4, 8, 16))
    shared = drawing.spans_of(chance, grid_s, end_s, 3)
    for a, b in pairs[: chance.randrange(len(names) - 1, 3 * len(names) + 1)]:
        # Some pairs meet at the very same times.
        spans = shared if chance.random() < drawing.LIKELY else drawing.spans_of(chance, grid_s, end_s, most)
        found += [(a, b, start, end) for start, end in spans]
    return found


def _script(
    chance: random.Random, presences: dict[str, list[Span]], contacts: list[Meeting], end_s: float
) -> list[Scripted]:
    """Draw publications: all over the day, or in conversations that begin when nodes meet or just met."""
    edges = [edge for *_, start, end in contacts for edge in (start, end)] or [0.0]
    lifetime = chance.choice((_endless, _alike(chance, end_s), _minutes, _mixed, _mixed_or_endless))
    size = chance.choice((of(100), of(*_SIZES)))
    found: list[Scripted] = []
    begin_s = 0.0
    for number in range(chance.randrange(4, 60)):
        if chance.random() < drawing.LIKELY or not number:
            begin_s = chance.choice(edges) if chance.random() < 0.5 else time_of(chance, 1.0, end_s)  # noqa: PLR2004
        begin_s += chance.choice((0.0, 0.0, 1.0, 10.0, end_s / 100))
        node = chance.choice(list(presences))
        there = [span for span in presences[node] if span[0] <= begin_s < span[1]]
        join, leave = chance.choice(there or presences[node])
        t = min(max(join, begin_s), round(leave - 1e-6, 6))
        found.append((round(t, 6), node, f"m{number}", size(chance), lifetime(chance)))  # type: ignore[arg-type]
    return found


def _endless(_: random.Random) -> object:
    return ""


def _mixed(chance: random.Random) -> object:
    """Draw a lifetime from ten seconds to a day, all orders of magnitude equally likely."""
    return round(math.exp(chance.uniform(math.log(10), math.log(_DAY_S))), 6)


def _minutes(chance: random.Random) -> object:
    return round(math.exp(chance.uniform(math.log(60), math.log(1_200))), 6)


def _mixed_or_endless(chance: random.Random) -> object:
    return _mixed(chance) if chance.random() < 0.7 else ""  # noqa: PLR2004 - mostly


def _alike(chance: random.Random, end_s: float) -> Draw:
    return of(round(end_s * chance.choice((0.02, 0.1, 0.3)), 6))


def _workloads(chance: random.Random, end_s: float) -> list[Table]:
    ordering = chance.choice(("causal", "delta-causal", "delta-causal"))
    found: list[Table] = [{"kind": "script", "file": "publish.csv", "ordering": ordering}]
    if chance.random() < drawing.LIKELY:
        other = chance.choice(("none", "causal", "delta-causal"))
        found.append({"kind": "broadcast", "ordering": other, "first_s": 20.0, "period_s": end_s / 5})
        if chance.random() < 0.7:  # noqa: PLR2004 - mostly
            found[-1]["lifetime_s"] = end_s / 10
    return found


def _hazards(seed: int) -> Table:
    """Draw losses, delays and scarce resources, which make messages wait."""
    limits = some(seed, "limits", _LIMITS, _LIMIT_RARE, drawing.ORDER)
    settings = some(seed, "settings", drawing.SETTINGS, _RARE, drawing.ORDER) | ({"limits": limits} if limits else {})
    radio = some(seed, "radio", _RADIO, drawing.LIKELY, drawing.ORDER)
    return {name: table for name, table in (("radio", radio), ("settings", settings)) if table}


def _faults(seed: int, names: list[str], end_s: float) -> Table:
    """Draw faults of nodes."""
    once_per_h = _HOUR_S / end_s
    faults = some(seed, "faults", _FAULTS, _RARE, drawing.ORDER)
    for key in faults:
        if key.endswith("_per_h"):
            faults[key] = round(faults[key] * once_per_h, 6)
        elif key in _SHARES:
            faults[key] = round(faults[key] * end_s, 6)
    found: Table = {}
    chance = stream(seed, drawing.ORDER, "disk")
    if chance.random() < drawing.LIKELY:
        found["disk_delay_s"] = chance.choice((0.001, 0.3, 5.0, 60.0))
    if stream(seed, drawing.ORDER, "crashes").random() < _RARE:
        # What a crash may take is seldom on its way to the disk, unless that is arranged.
        found["disk_delay_s"] = chance.choice((5.0, 60.0))
        faults |= {"crash_per_h": round(8 * once_per_h, 6), "restart_s": 5.0, "store_lost": 0.0}
    if events := _events(stream(seed, drawing.ORDER, "events"), names, end_s):
        faults["event"] = events
    return found | ({"faults": faults} if faults else {})


def _events(chance: random.Random, names: list[str], end_s: float) -> list[Table]:
    if chance.random() >= drawing.LIKELY:
        return []
    durations_s, steps_s = (0.001, 10.0, end_s / 10, 1e6), (-300.0, -30.0, 30.0, 300.0)
    return [event_of(chance, names, end_s, durations_s, steps_s) for _ in range(chance.randrange(1, 6))]


def _after_words(chance: random.Random, script: list[Scripted]) -> list[Table]:
    """Authors crash soon after they published, and are back at once."""
    return [
        {"t": round(t + chance.uniform(1, 59), 6), "node": node, "kind": "crash", "duration_s": 1.0, "step_s": 1.0}
        for t, node, *_ in script
        if chance.random() < drawing.LIKELY
    ]


_RADIO = drawing.without(drawing.RADIO, "airtime")
_LIMITS = {
    "pending_max": of(1, 3, 10),
    "pending_bytes_max": of(1_000, 20_000),
    "barrier_entries_max": of(2, 5),
    "groups_max": of(1),
    "share_author": of(0.001, 0.5),
    **drawing.LIMITS,
}
_FAULTS = {
    "away_per_h": of(1.0, 5.0),
    "away_s": of(0.01, 0.1),
    "suspend_per_h": of(1.0, 5.0),
    "suspend_s": of(0.01, 0.1),
    "crash_per_h": of(1.0, 5.0),
    "restart_s": of(0.0001, 0.02),
    "store_lost": of(0.3, 1.0),
    "disk_full_per_h": of(1.0, 5.0),
    "disk_full_s": of(5.0, 120.0),
    "clock_skew_s": of(1.0, 60.0, 300.0),
    "clock_drift_ppm": of(100, 10_000),
    "clock_step_per_h": of(1.0, 5.0),
    "clock_step_s": of(30.0, 300.0),
    "corrupt": of(0.01, 0.1),
    "truncate": of(0.01, 0.1),
}
"""Things happen to a node so often during the run, and last for such a share of it; disks and clocks in seconds."""
_SHARES = ("away_s", "suspend_s", "restart_s")
