"""What draws of random scenarios are made of: times that meet, spans that touch, keys that are set now and then.

Every key of a table has a stream of chance of its own: one more kind of hazard leaves the others as they were.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from carrypost.emu.engine.chance import stream
from carrypost.emu.scenario.tables import FAULTS

SCENARIO = "scenario.toml"
LIKELY, RARE = 0.3, 0.15
Span = tuple[float, float]
Table = dict[str, Any]
Draw = Callable[[random.Random], object]


@dataclass(frozen=True, slots=True)
class Drawn:
    """One random scenario."""

    seed: int
    files: dict[str, str]
    """Texts by name; `SCENARIO` is the scenario itself."""
    exact: bool
    """Nothing goes wrong and links are ideal: the flood bound must be reached."""
    family: str = "soak"
    """Which kind of search it belongs to."""
    messaging: bool = False
    """Programs on the nodes use messaging (`carrypost.emu.verify.programs`)."""

    def write(self, folder: Path) -> Path:
        """Write the files; where the scenario is."""
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in self.files.items():
            (folder / name).write_text(text, encoding="utf-8")
        return folder / SCENARIO


def csv(header: str, rows: Iterable[tuple[object, ...]]) -> str:
    """The text of a file."""
    return "".join(f"{line}\n" for line in (header, *(",".join(map(str, row)) for row in rows)))


def time_of(chance: random.Random, grid_s: float, end_s: float) -> float:
    """A moment on the grid."""
    return round(chance.randrange(int(end_s / grid_s) + 1) * grid_s, 6)


def spans_of(chance: random.Random, grid_s: float, end_s: float, most: int) -> list[Span]:
    """Spans in order, none over another; some touch, some are empty."""
    edges = sorted(time_of(chance, grid_s, end_s) for _ in range(chance.randrange(2, 2 * most + 1)))
    if chance.random() < LIKELY:
        return [(start, end) for start, end in pairwise(edges) if start < end]
    return list(zip(edges[::2], edges[1::2], strict=False))


def lives_of(chance: random.Random, grid_s: float, end_s: float) -> list[Span]:
    """When a node is there: mostly throughout."""
    if chance.random() >= LIKELY:
        return [(0.0, end_s)]
    found = [(join, leave) for join, leave in spans_of(chance, grid_s, end_s, 3) if join < leave]
    return found or [(0.0, end_s)]


def event_of(
    chance: random.Random, names: list[str], end_s: float, durations_s: Sequence[float], steps_s: Sequence[float]
) -> Table:
    """One fault at one moment; how long it lasts, and by how much a clock is set, is one of these."""
    return {
        "t": round(chance.uniform(0, end_s), 6),
        "node": chance.choice(names),
        "kind": chance.choice(FAULTS),
        "duration_s": chance.choice(durations_s),
        "step_s": chance.choice(steps_s),
    }


def some(seed: int, table: str, choices: dict[str, Draw], likely: float = RARE, family: str = "soak") -> Table:
    """Some keys of a table, each with a stream of its own: one more kind of hazard leaves the others alone."""
    found: Table = {}
    for key, value in choices.items():
        chance = stream(seed, family, table, key)
        if chance.random() < likely:
            found[key] = value(chance)
    return found


def of(*values: object) -> Draw:
    """One of these."""
    return lambda chance: chance.choice(values)
