"""Random scenarios for the search for rare faults: a seed in, the files of a small scenario out.

A drawn scenario lasts a minute or two and has a handful of nodes, so that thousands can be tried. Much is unlikely on
purpose: contacts that touch, begin together or last no time, presences that end on the edge of a contact, caches that
hold two messages, disks that are slow or full, clocks that jump. One in four is ideal and free of all that: there the
flood bound must be reached exactly.

With recipients (`draw_addressed`) presences, contacts, faults and scarce settings are those that the same seed draws
without. Messages get recipients, modes and priorities; buffers are small, and hosts carry what is for others.
"""

from __future__ import annotations

import random
import tomllib
from dataclasses import replace
from itertools import combinations

from carrypost.chance import stream
from carrypost.config.document import toml
from carrypost.emu.verify import drawing
from carrypost.emu.verify.drawing import Draw, Drawn, Meeting, Scripted, Span, Table, event_of, of, some, time_of

_EXACT_OF = 4
_IDEAL_OF = 8
_SIZES = (0, 1, 100, 1_000, 1_000, 5_000, 20_000, 70_000, 150_000)


def draw(seed: int) -> Drawn:
    """Return the scenario that belongs to a seed."""
    kind = stream(seed, "soak", "kind").randrange(_IDEAL_OF)
    exact, ideal = kind % _EXACT_OF == 0, kind % _EXACT_OF <= 1 and kind <= _EXACT_OF
    chance = stream(seed, "soak", "plot")
    # Times on a grid coincide; times off it show whether any code relies on that.
    grid_s = chance.choice((0.5, 1.0, 5.0, 1e-6))
    end_s = float(chance.randrange(20, 120))
    names = [f"n{number}" for number in range(chance.randrange(3, 13))]
    presences = {name: drawing.presences_of(chance, grid_s, end_s) for name in names}
    contacts = _contacts(chance, names, grid_s, end_s)
    edges = [edge for _, _, start, end in contacts for edge in (start, end)]
    script = _script(chance, presences, edges, grid_s)
    content: Table = {"name": f"soak-{seed}", "duration_s": end_s, "mode": "ideal" if exact or ideal else "faithful"}
    content["sample_s"] = chance.choice((1.0, 7.0, 60.0))
    content["nodes"] = {"file": "nodes.csv"}
    files = {"nodes.csv": drawing.nodes_csv(presences, end_s)}
    if contacts:
        content["contacts"] = {"file": "contacts.csv"}
        files["contacts.csv"] = drawing.csv("a,b,start,end", contacts)
    content["workload"] = _workloads(chance, with_script=bool(script))
    if script:
        files["publish.csv"] = drawing.csv("t,node,message,size,lifetime", script)
    if not exact:
        content |= _hazards(seed, names, end_s)
    files[drawing.SCENARIO] = toml(content)
    return Drawn(seed, files, exact)


def _contacts(chance: random.Random, names: list[str], grid_s: float, end_s: float) -> list[Meeting]:
    pairs = list(combinations(names, 2))
    chance.shuffle(pairs)
    found: list[Meeting] = []
    shared = drawing.spans_of(chance, grid_s, end_s, 3)
    for a, b in pairs[: chance.randrange(1, 2 * len(names))]:
        first, second = (a, b) if chance.random() < 0.5 else (b, a)  # noqa: PLR2004 - either way
        # Some pairs meet at the very same times.
        spans = shared if chance.random() < drawing.LIKELY else drawing.spans_of(chance, grid_s, end_s, 4)
        found += [(first, second, start, end) for start, end in spans]
    chance.shuffle(found)
    return found


def _script(
    chance: random.Random, presences: dict[str, list[Span]], edges: list[float], grid_s: float
) -> list[Scripted]:
    found: list[Scripted] = []
    for number in range(chance.randrange(12)):
        node = chance.choice(list(presences))
        join, leave = chance.choice(presences[node])
        t = chance.choice((join, time_of(chance, grid_s, leave), *(edge for edge in edges[:4] if join <= edge < leave)))
        t = min(max(join, t), round(leave - 1e-6, 6))
        ends = [round(edge - t, 6) for edge in edges if edge > t]
        lifetime: object = chance.choice(("", chance.choice(ends) if ends else "", round(chance.uniform(0.5, 40), 6)))
        found.append((t, node, f"m{number}", chance.choice(_SIZES), lifetime))
    return found


def _workloads(chance: random.Random, *, with_script: bool) -> list[Table]:
    found: list[Table] = [{"kind": "script", "file": "publish.csv"}] if with_script else []
    for _ in range(chance.randrange(0 if with_script else 1, 3)):
        table: Table = {"kind": "broadcast", "first_s": chance.choice((0.0, 1.0, 7.5))}
        table |= {"period_s": chance.choice((5.0, 9.7, 30.0)), "size": chance.choice(_SIZES)}
        if chance.random() < 0.5:  # noqa: PLR2004 - half of them end
            table["lifetime_s"] = chance.choice((2.0, 5.0, 20.0))
        found.append(table)
    return found


def _hazards(seed: int, names: list[str], end_s: float) -> Table:
    """Draw faults and scarce resources."""
    limits = some(seed, "limits", drawing.LIMITS, drawing.RARE / 2)
    settings = some(seed, "settings", _SETTINGS) | ({"limits": limits} if limits else {})
    radio, faults = some(seed, "radio", _RADIO), some(seed, "faults", _FAULTS)
    if "airtime" in radio:
        radio.setdefault("rate_bytes_per_s", 50_000)  # Air that is shared has a rate.
    chance = stream(seed, "soak", "events")
    if chance.random() < drawing.LIKELY:
        durations_s, steps_s = (0.001, 1.0, 10.0, 1e6), (-30.0, -1.0, 1.0, 30.0)
        faults["event"] = [event_of(chance, names, end_s, durations_s, steps_s) for _ in range(chance.randrange(1, 5))]
    found: Table = {"disk_delay_s": chance.choice((0.001, 0.3, 5.0))} if chance.random() < drawing.LIKELY else {}
    if stream(seed, "soak", "crashes").random() < drawing.RARE:
        # What is lost by a crash comes again only if disks are slow and nodes meet again: rare unless it is arranged.
        found["disk_delay_s"] = chance.choice((0.3, 2.0))
        faults |= {"crash_per_h": 300, "restart_s": 0.5, "store_lost": 0.0}
    tables = (("radio", radio), ("settings", settings), ("faults", faults))
    return found | {name: table for name, table in tables if table}


_RADIO = drawing.without(drawing.RADIO, "reorder_s")
_SETTINGS: dict[str, Draw] = {"altruistic": of(True), "horizon_hops": of(2, 3)} | drawing.SETTINGS | {
    "cache_messages_max": of(1, 2, 5, 20),
    "cache_bytes_max": of(500, 5_000, 200_000),
    "skew_s_max": of(0.0, 5.0),
    "announce_s_min": of(0.2, 3.0),
}  # fmt: skip
_FAULTS: dict[str, Draw] = {
    "away_per_h": of(30, 300),
    "away_s": of(1.0, 20.0),
    "suspend_per_h": of(30, 300),
    "suspend_s": of(0.5, 20.0),
    "crash_per_h": of(60, 300),
    "restart_s": of(0.001, 5.0),
    "store_lost": of(0.3, 1.0),
    "disk_full_per_h": of(60, 300),
    "disk_full_s": of(1.0, 20.0),
    "clock_skew_s": of(0.5, 5.0, 100.0),
    "clock_drift_ppm": of(100, 10_000),
    "clock_step_per_h": of(60, 300),
    "clock_step_s": of(0.5, 30.0),
    "corrupt": of(0.01, 0.1),
    "truncate": of(0.01, 0.1),
}

# --- with recipients ------------------------------------------------------------------------------------------
_LISTED = 0.8
"""Share of messages that list their recipients; the others are for all subscribers."""
_ISLANDS = 0.5
"""Share of scenarios with islands. Scenarios in which all nodes must get everything have none, since islands withhold
messages from others."""
_OF_ADDRESSED = {"altruistic": of(True), "shares": of(False), "acked_s": of(0.0, 1.0, 30.0)}
_STRATEGY = {"strategy": of("anti-entropy")}
_SCARCE = {"cache_messages_max": of(2, 3, 5, 10)}


def draw_addressed(seed: int) -> Drawn:
    """Return the scenario that belongs to a seed."""
    drawn = draw(seed)
    content: Table = tomllib.loads(drawn.files[drawing.SCENARIO])
    content["name"] = f"{drawing.ADDRESSED}-{seed}"
    names = sorted({line.split(",")[0] for line in drawn.files["nodes.csv"].splitlines()[1:]})
    files = dict(drawn.files)
    if "publish.csv" in files:
        files["publish.csv"] = _listed(files["publish.csv"], names, stream(seed, drawing.ADDRESSED, "script"))
    if _there_throughout(files["nodes.csv"]):
        content["workload"].append(_workload(stream(seed, drawing.ADDRESSED, "workload"), content["duration_s"]))
    settings = content.setdefault("settings", {})
    if not drawn.exact and stream(seed, drawing.ADDRESSED, "island").random() < _ISLANDS:
        settings |= {"island": True}
        if content.get("mode") == "ideal":
            content.setdefault("radio", {})["routes"] = "told"
    settings |= some(seed, "settings", _OF_ADDRESSED, 0.5, drawing.ADDRESSED)
    if not settings.get("paper_mode"):
        settings |= some(seed, "strategy", _STRATEGY, 0.5, drawing.ADDRESSED)
    if drawn.exact:
        settings |= {"altruistic": True, "acked_s": 0.0}
    else:
        settings |= some(seed, "scarce", _SCARCE, 0.5, drawing.ADDRESSED)
    return replace(drawn, files=files | {drawing.SCENARIO: toml(content)}, family=drawing.ADDRESSED)


def _listed(script: str, names: list[str], chance: random.Random) -> str:
    """Give messages of a script recipients, modes and priorities."""
    header, *lines = script.splitlines()
    made = [f"{header},recipients,persistent,priority"]
    for line in lines:
        others = [name for name in names if name != line.split(",")[1]]
        many = chance.randrange(1, len(others) + 1) if chance.random() < _LISTED else 0
        recipients = " ".join(chance.sample(others, many))
        made.append(f"{line},{recipients},{chance.choice(('true', 'false', ''))},{chance.choice((0, 4, 5, 9))}")
    return "".join(f"{line}\n" for line in made)


def _there_throughout(nodes: str) -> bool:
    """Return True if a node is always present, so that it can publish."""
    return any(line.split(",")[1:] == ["0.0", ""] for line in nodes.splitlines())


def _workload(chance: random.Random, end_s: float) -> Table:
    return {
        "kind": "addressed", "topic": "addressed", "messages": chance.randrange(1, 20),
        "within_s": chance.choice((0.001, 5.0, end_s)), "recipients": chance.choice((1, 2, 0.3, 0.8)),
        "persistent": chance.choice((0.0, 0.5, 1.0)), "priorities": chance.choice((1, 3, 10)),
        "size": chance.choice((0, 100, 1_000, 20_000)), "lifetime_s": chance.choice((2.0, 10.0, 40.0, "none")),
    }  # fmt: skip
