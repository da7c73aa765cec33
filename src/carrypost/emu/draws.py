"""Random scenarios for the search for rare faults: a seed in, the files of a small scenario out.

A drawn scenario lasts a minute or two and has a handful of nodes, so that thousands can be tried. Much is unlikely on
purpose: contacts that touch, begin together or last no time, lives that end on the edge of a contact, caches that hold
two messages, disks that are slow or full, clocks that jump. One in four is ideal and free of all that: there the flood
bound must be reached exactly.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import combinations, pairwise
from pathlib import Path
from typing import Any

from carrypost.emu.chance import stream
from carrypost.emu.overrides import toml

SCENARIO = "scenario.toml"
_EXACT_OF = 4
_IDEAL_OF = 8
_LIKELY, _RARE = 0.3, 0.15
_SIZES = (0, 1, 100, 1_000, 1_000, 5_000, 20_000, 70_000, 150_000)
Span = tuple[float, float]
Table = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Drawn:
    """One random scenario."""

    seed: int
    files: dict[str, str]
    """Texts by name; `SCENARIO` is the scenario itself."""
    exact: bool
    """Nothing goes wrong and links are ideal: the flood bound must be reached."""

    def write(self, folder: Path) -> Path:
        """Write the files; where the scenario is."""
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in self.files.items():
            (folder / name).write_text(text, encoding="utf-8")
        return folder / SCENARIO


def draw(seed: int) -> Drawn:
    """The scenario that belongs to a seed."""
    kind = stream(seed, "soak", "kind").randrange(_IDEAL_OF)
    exact, ideal = kind % _EXACT_OF == 0, kind % _EXACT_OF <= 1 and kind <= _EXACT_OF
    chance = stream(seed, "soak", "plot")
    # Times on a grid meet; times off it show whether anybody relies on that.
    grid_s = chance.choice((0.5, 1.0, 5.0, 1e-6))
    end_s = float(chance.randrange(20, 120))
    names = [f"n{number}" for number in range(chance.randrange(3, 13))]
    lives = {name: _lives(chance, grid_s, end_s) for name in names}
    contacts = _contacts(chance, names, grid_s, end_s)
    edges = [edge for _, _, start, end in contacts for edge in (start, end)]
    script = _script(chance, lives, edges, grid_s)
    content: Table = {"name": f"soak-{seed}", "duration_s": end_s, "mode": "ideal" if exact or ideal else "faithful"}
    content["sample_s"] = chance.choice((1.0, 7.0, 60.0))
    files: dict[str, str] = {}
    content["nodes"] = {"file": "nodes.csv"}
    rows = [(name, join, "" if leave >= end_s else leave) for name in names for join, leave in lives[name]]
    files["nodes.csv"] = _csv("node,join,leave", rows)
    if contacts:
        content["contacts"] = {"file": "contacts.csv"}
        files["contacts.csv"] = _csv("a,b,start,end", contacts)
    content["workload"] = _workloads(chance, with_script=bool(script))
    if script:
        files["publish.csv"] = _csv("t,node,message,size,lifetime", script)
    if not exact:
        content |= _hazards(seed, names, end_s)
    files[SCENARIO] = toml(content)
    return Drawn(seed, files, exact)


def _csv(header: str, rows: Iterable[tuple[object, ...]]) -> str:
    return "".join(f"{line}\n" for line in (header, *(",".join(map(str, row)) for row in rows)))


def _time(chance: random.Random, grid_s: float, end_s: float) -> float:
    return round(chance.randrange(int(end_s / grid_s) + 1) * grid_s, 6)


def _spans(chance: random.Random, grid_s: float, end_s: float, most: int) -> list[Span]:
    """Spans in order, none over another; some touch, some are empty."""
    edges = sorted(_time(chance, grid_s, end_s) for _ in range(chance.randrange(2, 2 * most + 1)))
    if chance.random() < _LIKELY:
        return [(start, end) for start, end in pairwise(edges) if start < end]
    return list(zip(edges[::2], edges[1::2], strict=False))


def _lives(chance: random.Random, grid_s: float, end_s: float) -> list[Span]:
    if chance.random() >= _LIKELY:
        return [(0.0, end_s)]
    found = [(join, leave) for join, leave in _spans(chance, grid_s, end_s, 3) if join < leave]
    return found or [(0.0, end_s)]


def _contacts(
    chance: random.Random, names: list[str], grid_s: float, end_s: float
) -> list[tuple[str, str, float, float]]:
    pairs = list(combinations(names, 2))
    chance.shuffle(pairs)
    found: list[tuple[str, str, float, float]] = []
    shared = _spans(chance, grid_s, end_s, 3)
    for a, b in pairs[: chance.randrange(1, 2 * len(names))]:
        first, second = (a, b) if chance.random() < 0.5 else (b, a)  # noqa: PLR2004 - either way
        # Some pairs meet at the very same times.
        spans = shared if chance.random() < _LIKELY else _spans(chance, grid_s, end_s, 4)
        found += [(first, second, start, end) for start, end in spans]
    chance.shuffle(found)
    return found


def _script(
    chance: random.Random, lives: dict[str, list[Span]], edges: list[float], grid_s: float
) -> list[tuple[float, str, str, int, object]]:
    found: list[tuple[float, str, str, int, object]] = []
    for number in range(chance.randrange(12)):
        node = chance.choice(list(lives))
        join, leave = chance.choice(lives[node])
        t = chance.choice((join, _time(chance, grid_s, leave), *(edge for edge in edges[:4] if join <= edge < leave)))
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


Draw = Callable[[random.Random], object]


def _some(seed: int, table: str, choices: dict[str, Draw], likely: float = _RARE) -> Table:
    """Some keys of a table, each with a stream of its own: one more kind of hazard leaves the others alone."""
    found: Table = {}
    for key, value in choices.items():
        chance = stream(seed, "soak", table, key)
        if chance.random() < likely:
            found[key] = value(chance)
    return found


def _of(*values: object) -> Draw:
    return lambda chance: chance.choice(values)


def _hazards(seed: int, names: list[str], end_s: float) -> Table:
    """What goes wrong, and what is scarce."""
    limits = _some(seed, "limits", _LIMITS, _RARE / 2)
    settings = _some(seed, "settings", _SETTINGS) | ({"limits": limits} if limits else {})
    radio, faults = _some(seed, "radio", _RADIO), _some(seed, "faults", _FAULTS)
    if "airtime" in radio:
        radio.setdefault("rate_bytes_per_s", 50_000)  # Air that is shared has a rate.
    chance = stream(seed, "soak", "events")
    if chance.random() < _LIKELY:
        kinds = ("away", "suspend", "crash", "crash-lost", "disk-full", "clock-step")
        faults["event"] = [
            {
                "t": round(chance.uniform(0, end_s), 6),
                "node": chance.choice(names),
                "kind": chance.choice(kinds),
                "duration_s": chance.choice((0.001, 1.0, 10.0, 1e6)),
                "step_s": chance.choice((-30.0, -1.0, 1.0, 30.0)),
            }
            for _ in range(chance.randrange(1, 5))
        ]
    found: Table = {"disk_delay_s": chance.choice((0.001, 0.3, 5.0))} if chance.random() < _LIKELY else {}
    if stream(seed, "soak", "crashes").random() < _RARE:
        # What is lost by a crash comes again only if disks are slow and nodes meet again: rare unless it is arranged.
        found["disk_delay_s"] = chance.choice((0.3, 2.0))
        faults |= {"crash_per_h": 300, "restart_s": 0.5, "store_lost": 0.0}
    tables = (("radio", radio), ("settings", settings), ("faults", faults))
    return found | {name: table for name, table in tables if table}


_RADIO: dict[str, Draw] = {
    "delay_s": _of(0.0, 0.02, 0.5),
    "loss": _of(0.01, 0.1, 0.4),
    "duplicate": _of(0.05, 0.5),
    "reorder": _of(0.05, 0.5),
    "rate_bytes_per_s": _of(2_000, 20_000, 200_000),
    "airtime": _of("shared"),
    "asymmetric": _of(0.1, 0.5),
    "gather_s": _of(0.005, 0.3),
}
_SETTINGS: dict[str, Draw] = {
    "altruistic": _of(True),
    "horizon_hops": _of(2, 3),
    "paper_mode": _of(True),
    "cache_messages_max": _of(1, 2, 5, 20),
    "cache_bytes_max": _of(500, 5_000, 200_000),
    "shares": _of(False),
    "security": _of("signed"),
    "mtu_bytes": _of(576, 9_000),
    "coalesce_s": _of(0.0, 1.0),
    "digest_every": _of(1, 3),
    "window_bytes_max": _of(1_024, 8_192),
    "skew_s_max": _of(0.0, 5.0),
    "announce_s_min": _of(0.2, 3.0),
}
_LIMITS: dict[str, Draw] = {
    "partials_max": _of(1, 2),
    "offers_open_max": _of(1, 4),
    "neighbours_max": _of(1, 3),
    "unconfirmed_max": _of(1, 3),
    "seen_max": _of(1, 10),
    "link_frames_per_s": _of(10, 100),
    "offer_entries_max": _of(1, 4),
}
_FAULTS: dict[str, Draw] = {
    "away_per_h": _of(30, 300),
    "away_s": _of(1.0, 20.0),
    "suspend_per_h": _of(30, 300),
    "suspend_s": _of(0.5, 20.0),
    "crash_per_h": _of(60, 300),
    "restart_s": _of(0.001, 5.0),
    "store_lost": _of(0.3, 1.0),
    "disk_full_per_h": _of(60, 300),
    "disk_full_s": _of(1.0, 20.0),
    "clock_skew_s": _of(0.5, 5.0, 100.0),
    "clock_drift_ppm": _of(100, 10_000),
    "clock_step_per_h": _of(60, 300),
    "clock_step_s": _of(0.5, 30.0),
    "corrupt": _of(0.01, 0.1),
    "truncate": _of(0.01, 0.1),
}
