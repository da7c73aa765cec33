"""Parts of random scenarios: times that meet, spans that touch, keys that are set now and then.

Every key of a table has a stream of chance of its own: one more kind of hazard leaves the others as they were.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from carrypost.chance import stream
from carrypost.emu.scenario.tables import FAULTS

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
