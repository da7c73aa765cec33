"""Random scenarios for the search for rare faults: a seed in, the files of a small scenario out.

They are made of times that meet, spans that touch, and keys that are set now and then. Every key of a table has a
stream of chance of its own: one more kind of hazard leaves the others as they were.

The usual scenario (`draw`) lasts a minute or two and has a handful of nodes, so that thousands can be tried. Much is
unlikely on purpose: contacts that touch, begin together or last no time, presences that end on the edge of a contact,
caches that hold two messages, disks that are slow or full, clocks that jump. One in four is ideal and free of all that:
there the flood bound must be reached exactly.

With recipients (`draw_addressed`) presences, contacts, faults and scarce settings are those that the same seed draws
without. Messages get recipients, modes and priorities; buffers are small, and hosts carry what is for others.

In the search for faults of order (`draw_ordered`) hours pass, and few beacons: so messages that live for seconds and
such that live for a day belong to one group, expire while others wait for them, and are depended on all the same.
Conversations make long chains of dependence; nodes come and go, crash, lose their stores, have slow, full or small
disks and caches and clocks that are wrong by minutes. One in eight is ideal and free of all that: there the flood bound
must be reached. In three more nothing happens to nodes: there nothing may wait in vain, however bad the radio is.

In the search for faults of channels (`draw_channels`) a few brokers, producers and consumers, of which some are several
of these, meet at random and go through faults. Then all are connected and nothing goes wrong but losses, so that
everything has to arrive, unless stores were lost, clocks were wrong or events died meanwhile (`Drawn.exact`).
"""

from __future__ import annotations

import math
import random
import tomllib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import combinations, pairwise
from pathlib import Path
from typing import Any

from carrypost.chance import stream
from carrypost.config.document import toml
from carrypost.emu.scenario_tables import FAULTS

SCENARIO = "scenario.toml"
PLAIN, ORDER, MESSAGING, ADDRESSED, CHANNELS = "soak", "order", "messaging", "addressed", "channels"
"""Families of drawn scenarios. Nodes of `MESSAGING` have programs that use it (`carrypost.emu.verify.programs`)."""
LIKELY, RARE = 0.3, 0.15
Span = tuple[float, float]
Meeting = tuple[str, str, float, float]
"""Two nodes, and from when to when they are in contact."""
Scripted = tuple[float, str, str, int, object]
"""A time, the node that publishes, the message, its size and its lifetime; empty text: without end."""
Table = dict[str, Any]
Draw = Callable[[random.Random], object]


@dataclass(frozen=True, slots=True)
class Drawn:
    """One random scenario."""

    seed: int
    files: dict[str, str]
    """Texts by name; `SCENARIO` is the scenario itself."""
    exact: bool
    """Nothing goes wrong and links are ideal: the flood bound must be reached. Of channels: all events must arrive."""
    family: str = PLAIN
    """Kind of search that it belongs to."""

    def write(self, folder: Path) -> Path:
        """Write the files; returns the path of the scenario."""
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in self.files.items():
            (folder / name).write_text(text, encoding="utf-8")
        return folder / SCENARIO


def nodes_csv(presences: dict[str, list[Span]], end_s: float) -> str:
    """Return the text of a file of nodes; a node that is present at the end does not leave."""
    spans = [(node, *span) for node, mine in presences.items() for span in mine]
    return csv("node,join,leave", [(node, join, "" if leave >= end_s else leave) for node, join, leave in spans])


def csv(header: str, rows: Iterable[tuple[object, ...]]) -> str:
    """Return the text of a CSV file."""
    return "".join(f"{line}\n" for line in (header, *(",".join(map(str, row)) for row in rows)))


def time_of(chance: random.Random, grid_s: float, end_s: float) -> float:
    """Draw a moment on the grid."""
    return round(chance.randrange(int(end_s / grid_s) + 1) * grid_s, 6)


def spans_of(chance: random.Random, grid_s: float, end_s: float, most: int) -> list[Span]:
    """Spans in order, none over another; some touch, some are empty."""
    edges = sorted(time_of(chance, grid_s, end_s) for _ in range(chance.randrange(2, 2 * most + 1)))
    if chance.random() < LIKELY:
        return [(start, end) for start, end in pairwise(edges) if start < end]
    return list(zip(edges[::2], edges[1::2], strict=False))


def presences_of(chance: random.Random, grid_s: float, end_s: float) -> list[Span]:
    """Draw when a node is there: mostly throughout."""
    if chance.random() >= LIKELY:
        return [(0.0, end_s)]
    found = [(join, leave) for join, leave in spans_of(chance, grid_s, end_s, 3) if join < leave]
    return found or [(0.0, end_s)]


def event_of(
    chance: random.Random, names: list[str], end_s: float, durations_s: Sequence[float], steps_s: Sequence[float]
) -> Table:
    """Return one fault at one moment; how long it lasts, and by how much a clock is set, is one of these."""
    return {
        "t": round(chance.uniform(0, end_s), 6),
        "node": chance.choice(names),
        "kind": chance.choice(FAULTS),
        "duration_s": chance.choice(durations_s),
        "step_s": chance.choice(steps_s),
    }


def some(seed: int, table: str, choices: dict[str, Draw], likely: float = RARE, family: str = PLAIN) -> Table:
    """Return some keys of a table, each with a stream of its own: one more kind of hazard leaves the others alone."""
    found: Table = {}
    for key, value in choices.items():
        chance = stream(seed, family, table, key)
        if chance.random() < likely:
            found[key] = value(chance)
    return found


def of(*values: object) -> Draw:
    """Draws one of these values."""
    return lambda chance: chance.choice(values)


RADIO: dict[str, Draw] = {
    "delay_s": of(0.0, 0.02, 0.5),
    "loss": of(0.01, 0.1, 0.4),
    "duplicate": of(0.05, 0.5),
    "reorder": of(0.05, 0.5),
    "reorder_s": of(0.02, 20.0),
    "rate_bytes_per_s": of(2_000, 20_000, 200_000),
    "airtime": of("shared"),
    "asymmetric": of(0.1, 0.5),
    "gather_s": of(0.005, 0.3),
}
"""Keys that both families of scenarios draw; each leaves out, adds and changes a few."""
SETTINGS: dict[str, Draw] = {
    "paper_mode": of(True),
    "cache_messages_max": of(2, 5, 20),
    "cache_bytes_max": of(2_000, 20_000, 200_000),
    "shares": of(False),
    "security": of("signed"),
    "mtu_bytes": of(576, 9_000),
    "coalesce_s": of(0.0, 1.0),
    "digest_every": of(1, 3),
    "window_bytes_max": of(1_024, 8_192),
    "skew_s_max": of(5.0, 60.0),
}
LIMITS: dict[str, Draw] = {
    "partials_max": of(1, 2),
    "offers_open_max": of(1, 4),
    "neighbours_max": of(1, 3),
    "unconfirmed_max": of(1, 3),
    "seen_max": of(1, 10),
    "offer_entries_max": of(1, 4),
}


def without(choices: dict[str, Draw], left_out: str) -> dict[str, Draw]:
    """Return all of these but one."""
    return {key: value for key, value in choices.items() if key != left_out}


# --- without recipients ---------------------------------------------------------------------------------------

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
    presences = {name: presences_of(chance, grid_s, end_s) for name in names}
    contacts = _contacts(chance, names, grid_s, end_s)
    edges = [edge for _, _, start, end in contacts for edge in (start, end)]
    script = _script(chance, presences, edges, grid_s)
    content: Table = {"name": f"soak-{seed}", "duration_s": end_s, "mode": "ideal" if exact or ideal else "faithful"}
    content["sample_s"] = chance.choice((1.0, 7.0, 60.0))
    content["nodes"] = {"file": "nodes.csv"}
    files = {"nodes.csv": nodes_csv(presences, end_s)}
    if contacts:
        content["contacts"] = {"file": "contacts.csv"}
        files["contacts.csv"] = csv("a,b,start,end", contacts)
    content["workload"] = _workloads(chance, with_script=bool(script))
    if script:
        files["publish.csv"] = csv("t,node,message,size,lifetime", script)
    if not exact:
        content |= _hazards(seed, names, end_s)
    files[SCENARIO] = toml(content)
    return Drawn(seed, files, exact)


def _contacts(chance: random.Random, names: list[str], grid_s: float, end_s: float) -> list[Meeting]:
    pairs = list(combinations(names, 2))
    chance.shuffle(pairs)
    found: list[Meeting] = []
    shared = spans_of(chance, grid_s, end_s, 3)
    for a, b in pairs[: chance.randrange(1, 2 * len(names))]:
        first, second = (a, b) if chance.random() < 0.5 else (b, a)  # noqa: PLR2004 - either way
        # Some pairs meet at the very same times.
        spans = shared if chance.random() < LIKELY else spans_of(chance, grid_s, end_s, 4)
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
    limits = some(seed, "limits", LIMITS, RARE / 2)
    settings = some(seed, "settings", _SETTINGS) | ({"limits": limits} if limits else {})
    radio, faults = some(seed, "radio", _RADIO), some(seed, "faults", _FAULTS)
    if "airtime" in radio:
        radio.setdefault("rate_bytes_per_s", 50_000)  # Air that is shared has a rate.
    chance = stream(seed, "soak", "events")
    if chance.random() < LIKELY:
        durations_s, steps_s = (0.001, 1.0, 10.0, 1e6), (-30.0, -1.0, 1.0, 30.0)
        faults["event"] = [event_of(chance, names, end_s, durations_s, steps_s) for _ in range(chance.randrange(1, 5))]
    found: Table = {"disk_delay_s": chance.choice((0.001, 0.3, 5.0))} if chance.random() < LIKELY else {}
    if stream(seed, "soak", "crashes").random() < RARE:
        # What is lost by a crash comes again only if disks are slow and nodes meet again: rare unless it is arranged.
        found["disk_delay_s"] = chance.choice((0.3, 2.0))
        faults |= {"crash_per_h": 300, "restart_s": 0.5, "store_lost": 0.0}
    tables = (("radio", radio), ("settings", settings), ("faults", faults))
    return found | {name: table for name, table in tables if table}


_RADIO = without(RADIO, "reorder_s")
_SETTINGS: dict[str, Draw] = {"altruistic": of(True), "horizon_hops": of(2, 3)} | SETTINGS | {
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
    content: Table = tomllib.loads(drawn.files[SCENARIO])
    content["name"] = f"{ADDRESSED}-{seed}"
    names = sorted({line.split(",")[0] for line in drawn.files["nodes.csv"].splitlines()[1:]})
    files = dict(drawn.files)
    if "publish.csv" in files:
        files["publish.csv"] = _listed(files["publish.csv"], names, stream(seed, ADDRESSED, "script"))
    if _there_throughout(files["nodes.csv"]):
        content["workload"].append(_workload(stream(seed, ADDRESSED, "workload"), content["duration_s"]))
    settings = content.setdefault("settings", {})
    if not drawn.exact and stream(seed, ADDRESSED, "island").random() < _ISLANDS:
        settings |= {"island": True}
        if content.get("mode") == "ideal":
            content.setdefault("radio", {})["routes"] = "told"
    settings |= some(seed, "settings", _OF_ADDRESSED, 0.5, ADDRESSED)
    if not settings.get("paper_mode"):
        settings |= some(seed, "strategy", _STRATEGY, 0.5, ADDRESSED)
    if drawn.exact:
        settings |= {"altruistic": True, "acked_s": 0.0}
    else:
        settings |= some(seed, "scarce", _SCARCE, 0.5, ADDRESSED)
    return replace(drawn, files=files | {SCENARIO: toml(content)}, family=ADDRESSED)


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


# --- for faults of order --------------------------------------------------------------------------------------

_ORDERED_KINDS = (
    "exact", "calm ideal", "calm ideal", "calm faithful", "rough ideal", "rough ideal", "rough faithful",
    "rough faithful",
)  # fmt: skip
"""Nothing goes wrong; the radio is bad and room is scarce; and everything else goes wrong, too."""
_HOUR_S, _DAY_S = 3_600.0, 86_400.0
_ORDERED_SIZES = (0, 100, 1_000, 1_000, 5_000, 30_000)
_RARE, _LIMIT_RARE = 0.12, 0.06
_STEPS = 60
"""Steps of the grid on which contacts begin and end."""


def draw_ordered(seed: int) -> Drawn:
    """Return the scenario that belongs to a seed."""
    kind = stream(seed, ORDER, "kind").choice(_ORDERED_KINDS)
    chance = stream(seed, ORDER, "plot")
    # Two kinds of faults are found only where much happens within minutes: clocks that differ by as much as messages
    # live, and crashes before a disk has taken what left already.
    tight = kind.startswith("rough") and stream(seed, ORDER, "tight").choice(("", "", "skewed", "crashing"))
    end_s = chance.choice((0.5, 2.0, 6.0, 26.0)) * _HOUR_S if not tight else _HOUR_S / 2
    grid_s = end_s / _STEPS if chance.random() < 0.5 else 1.0  # noqa: PLR2004 - times that meet, and such that do not
    names = [f"n{number}" for number in range(chance.randrange(2, 13))]
    presences = {name: presences_of(chance, grid_s, end_s) for name in names}
    contacts = _ordered_contacts(chance, names, grid_s, end_s)
    script = _ordered_script(chance, presences, contacts, end_s)
    if tight == "skewed":
        lifetimes = stream(seed, ORDER, "lifetimes")
        script = [(*each[:-1], _minutes(lifetimes)) for each in script]
    content: Table = {"name": f"{ORDER}-{seed}", "duration_s": end_s, "sample_s": end_s / 5}
    content["mode"] = "faithful" if kind.endswith("faithful") else "ideal"
    content["nodes"] = {"file": "nodes.csv"}
    content["contacts"] = {"file": "contacts.csv"}
    files = {"nodes.csv": nodes_csv(presences, end_s)}
    files["contacts.csv"] = csv("a,b,start,end", contacts)
    files["publish.csv"] = csv("t,node,message,size,lifetime", script)
    content["workload"] = _ordered_workloads(chance, end_s)
    if kind != "exact":
        content |= _ordered_hazards(seed)
    if kind.startswith("rough"):
        content |= _faults(seed, names, end_s)
    if tight == "skewed":
        content["workload"][0]["ordering"] = "delta-causal"
        content.setdefault("faults", {})["clock_skew_s"] = stream(seed, ORDER, "skew").choice((60.0, 300.0))
    elif tight == "crashing":
        content["disk_delay_s"] = 60.0
        content.setdefault("faults", {})["event"] = _after_words(stream(seed, ORDER, "words"), script)
    if kind.endswith("faithful"):
        # A beacon costs as much as a reception, and there is an hour to fill.
        settings = content.setdefault("settings", {})
        settings |= {"announce_s_min": end_s / 400, "announce_s_max": end_s / 120}
    files[SCENARIO] = toml(content)
    return Drawn(seed, files, kind == "exact", ORDER)


def _ordered_contacts(chance: random.Random, names: list[str], grid_s: float, end_s: float) -> list[Meeting]:
    pairs = list(combinations(names, 2))
    chance.shuffle(pairs)
    found: list[Meeting] = []
    most = chance.choice((4, 8, 16))
    shared = spans_of(chance, grid_s, end_s, 3)
    for a, b in pairs[: chance.randrange(len(names) - 1, 3 * len(names) + 1)]:
        # Some pairs meet at the very same times.
        spans = shared if chance.random() < LIKELY else spans_of(chance, grid_s, end_s, most)
        found += [(a, b, start, end) for start, end in spans]
    return found


def _ordered_script(
    chance: random.Random, presences: dict[str, list[Span]], contacts: list[Meeting], end_s: float
) -> list[Scripted]:
    """Draw publications: all over the day, or in conversations that begin when nodes meet or just met."""
    edges = [edge for *_, start, end in contacts for edge in (start, end)] or [0.0]
    lifetime = chance.choice((_endless, _alike(chance, end_s), _minutes, _mixed, _mixed_or_endless))
    size = chance.choice((of(100), of(*_ORDERED_SIZES)))
    found: list[Scripted] = []
    begin_s = 0.0
    for number in range(chance.randrange(4, 60)):
        if chance.random() < LIKELY or not number:
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


def _ordered_workloads(chance: random.Random, end_s: float) -> list[Table]:
    ordering = chance.choice(("causal", "delta-causal", "delta-causal"))
    found: list[Table] = [{"kind": "script", "file": "publish.csv", "ordering": ordering}]
    if chance.random() < LIKELY:
        other = chance.choice(("none", "causal", "delta-causal"))
        found.append({"kind": "broadcast", "ordering": other, "first_s": 20.0, "period_s": end_s / 5})
        if chance.random() < 0.7:  # noqa: PLR2004 - mostly
            found[-1]["lifetime_s"] = end_s / 10
    return found


def _ordered_hazards(seed: int) -> Table:
    """Draw losses, delays and scarce resources, which make messages wait."""
    limits = some(seed, "limits", _ORDERED_LIMITS, _LIMIT_RARE, ORDER)
    settings = some(seed, "settings", SETTINGS, _RARE, ORDER) | ({"limits": limits} if limits else {})
    radio = some(seed, "radio", _ORDERED_RADIO, LIKELY, ORDER)
    return {name: table for name, table in (("radio", radio), ("settings", settings)) if table}


def _faults(seed: int, names: list[str], end_s: float) -> Table:
    """Draw faults of nodes."""
    once_per_h = _HOUR_S / end_s
    faults = some(seed, "faults", _ORDERED_FAULTS, _RARE, ORDER)
    for key in faults:
        if key.endswith("_per_h"):
            faults[key] = round(faults[key] * once_per_h, 6)
        elif key in _SHARES:
            faults[key] = round(faults[key] * end_s, 6)
    found: Table = {}
    chance = stream(seed, ORDER, "disk")
    if chance.random() < LIKELY:
        found["disk_delay_s"] = chance.choice((0.001, 0.3, 5.0, 60.0))
    if stream(seed, ORDER, "crashes").random() < _RARE:
        # What a crash may take is seldom on its way to the disk, unless that is arranged.
        found["disk_delay_s"] = chance.choice((5.0, 60.0))
        faults |= {"crash_per_h": round(8 * once_per_h, 6), "restart_s": 5.0, "store_lost": 0.0}
    if events := _events(stream(seed, ORDER, "events"), names, end_s):
        faults["event"] = events
    return found | ({"faults": faults} if faults else {})


def _events(chance: random.Random, names: list[str], end_s: float) -> list[Table]:
    if chance.random() >= LIKELY:
        return []
    durations_s, steps_s = (0.001, 10.0, end_s / 10, 1e6), (-300.0, -30.0, 30.0, 300.0)
    return [event_of(chance, names, end_s, durations_s, steps_s) for _ in range(chance.randrange(1, 6))]


def _after_words(chance: random.Random, script: list[Scripted]) -> list[Table]:
    """Authors crash soon after they published, and are back at once."""
    return [
        {"t": round(t + chance.uniform(1, 59), 6), "node": node, "kind": "crash", "duration_s": 1.0, "step_s": 1.0}
        for t, node, *_ in script
        if chance.random() < LIKELY
    ]


_ORDERED_RADIO = without(RADIO, "airtime")
_ORDERED_LIMITS = {
    "pending_max": of(1, 3, 10),
    "pending_bytes_max": of(1_000, 20_000),
    "barrier_entries_max": of(2, 5),
    "groups_max": of(1),
    "share_author": of(0.001, 0.5),
    **LIMITS,
}
_ORDERED_FAULTS = {
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


# --- for faults of channels -----------------------------------------------------------------------------------

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
_CHANNEL_RADIO = {"loss": of(0.05, 0.3), "duplicate": of(0.1), "reorder": of(0.2), "delay_s": of(0.02, 0.2)}
_OVERLAY = {
    "neighbours_max": of(1, 2), "homing": of("static"), "topology": of("static"), "paths": of("direct"),
    "checkpoint_s": of(1.0, 60.0),
}  # fmt: skip
_CHANNEL_SETTINGS = {"security": of("signed"), "coalesce_s": of(0.0), "compress": of(False)}
_CHANNEL_LIMITS = {"lane_events_max": of(1, 3), "replay_events_max": of(1, 4)}


def draw_channels(seed: int) -> Drawn:
    """Return the scenario that belongs to a seed."""
    chance = stream(seed, CHANNELS, "plot")
    storm_s = float(chance.randrange(20, 120))
    names = [f"n{number}" for number in range(chance.randrange(4, 9))]
    ideal = chance.random() < LIKELY
    content: Table = {
        "name": f"{CHANNELS}-{seed}", "duration_s": storm_s + CALM_S, "mode": "ideal" if ideal else "faithful",
        "sample_s": 60.0, "disk_delay_s": chance.choice((0.0, 0.0, 0.05, 0.4)),
        "contacts": {"file": "contacts.csv"}, "nodes": {"file": "nodes.csv", "group": _groups(chance, names)},
    }  # fmt: skip
    # Large events at such losses and delays take longer than the time in which all are connected.
    sizes = (0, 100, 1_000, 20_000) if ideal else (0, 100, 1_000)
    content["workload"] = [
        _channel_workload(chance, name, sizes) for name in ("flood", "rain")[: chance.choice((1, 1, 2))]
    ]
    radio = {"routes": "told"} if ideal else some(seed, "radio", _CHANNEL_RADIO, 0.4, CHANNELS)
    overlay = {"enabled": True, "update_s": 4.0, "discovery_s": 2.0, "orphan_s": 8.0, "gap_s": 40.0}
    limits = some(seed, "limits", _CHANNEL_LIMITS, RARE, CHANNELS)
    content["settings"] = {
        "island": True, **({} if ideal else {"island_s_min": 0.2, "announce_s_max": 2.0}),
        **some(seed, "settings", _CHANNEL_SETTINGS, RARE, CHANNELS),
        "overlay": overlay | some(seed, "overlay", _OVERLAY, RARE, CHANNELS), "limits": limits,
    }  # fmt: skip
    kinds = FAULTS if chance.random() < RARE else _HARMLESS
    faults = [_fault(chance, names, storm_s, kinds) for _ in range(chance.randrange(6))]
    content |= {"faults": {"event": faults}, "radio": radio}
    exact = all(each["kind"] in _HARMLESS for each in faults)
    exact &= all("lifetime_s" not in each for each in content["workload"])
    exact &= not {"homing", "topology"} & content["settings"]["overlay"].keys()  # What is static may be cut off.
    files = {
        "contacts.csv": csv("a,b,start,end", _channel_contacts(chance, names, storm_s)),
        "nodes.csv": nodes_csv({name: [(0.0, storm_s + CALM_S)] for name in names}, storm_s + CALM_S),
        SCENARIO: toml(content),
    }
    return Drawn(seed, files, exact, CHANNELS)


def _groups(chance: random.Random, names: list[str]) -> list[Table]:
    brokers = sorted(chance.sample(names, chance.randrange(1, min(5, len(names)))))
    made: list[Table] = [{"name": "brokers", "names": brokers, "settings": {"overlay": {"broker": True}}}]
    clients = {group: sorted(chance.sample(names, chance.randrange(1, 4))) for group in ("producers", "consumers")}
    return made + [{"name": group, "names": chosen} for group, chosen in clients.items()]


def _channel_workload(chance: random.Random, topic: str, sizes: Sequence[int]) -> Table:
    table: Table = {"kind": "channel", "topic": topic, "producers": "producers", "consumers": "consumers"}
    table |= {"first_s": chance.choice((0.0, 3.0, 12.5)), "period_s": chance.choice((5.0, 10.0, 20.0))}
    table |= {"size": chance.choice(sizes)} | chance.choice(_MODULATORS)
    if chance.random() < RARE:
        table["lifetime_s"] = chance.choice((5.0, 30.0))
    return table


def _fault(chance: random.Random, names: list[str], storm_s: float, kinds: Sequence[str]) -> Table:
    found = event_of(chance, names, storm_s * 0.8, (0.001, 1.0, 5.0), (-5.0, 5.0))
    return found | {"kind": chance.choice(kinds), "duration_s": min(found["duration_s"], storm_s * 0.2)}


def _channel_contacts(chance: random.Random, names: list[str], storm_s: float) -> list[Meeting]:
    """Return meetings during the storm, and links of all with all, or of a random tree, after it."""
    found: list[Meeting] = []
    pairs = list(combinations(names, 2))
    for a, b in chance.sample(pairs, chance.randrange(1, len(pairs) + 1)):
        spans = spans_of(chance, 0.5, storm_s, 3)
        found += [(a, b, start, min(end, storm_s)) for start, end in spans]
    tree = [(chance.choice(names[:at]), name) for at, name in enumerate(names) if at]
    return found + [(*pair, storm_s, storm_s + CALM_S) for pair in tree]
