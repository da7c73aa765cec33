"""Random contacts, presences and publications, for the flood bound and for runs that must reach it.

Times are on a coarse grid, so that contacts touch, begin together, and end when messages do.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, pairwise
from pathlib import Path

from hypothesis import strategies as st

END_S = 12
_TABLES = {"nodes": "[nodes]", "contacts": "[contacts]", "publish": '[[workload]]\nkind = "script"'}
FILES = {name: f'{table}\nfile = "{name}.csv"\n' for name, table in _TABLES.items()}
"""Tables of a scenario, by the files that have presences, contacts and publications."""
THROUGHOUT = [(0.0, float(END_S))]
Contact = tuple[str, str, float, float]
Message = tuple[str, str, float, float | None]
Presence = tuple[str, float, float | None]


@dataclass(frozen=True)
class Schedule:
    """Everything that happens to a network from outside, in seconds."""

    contacts: tuple[Contact, ...]
    messages: tuple[Message, ...]
    presences: tuple[Presence, ...]


def times(least: float = 0, most: float = END_S) -> st.SearchStrategy[float]:
    """Return times on a grid of half seconds."""
    return st.integers(int(least * 2), int(most * 2)).map(lambda half: half / 2)


def spans(most: int) -> st.SearchStrategy[list[tuple[float, float]]]:
    """Spans that do not overlap, in order; they may touch, and they may be empty."""
    return st.lists(times(), max_size=most).map(
        lambda found: [(a, b) for a, b in zip(sorted(found)[::2], sorted(found)[1::2], strict=False)]
    )


@st.composite
def touching(draw: st.DrawFn, most: int) -> list[tuple[float, float]]:
    """Draw intervals, some of which begin where the previous one ends."""
    edges = sorted(draw(st.lists(times(), max_size=most + 1, unique=True)))
    kept = draw(st.lists(st.booleans(), min_size=len(edges), max_size=len(edges)))
    return [(a, b) for (a, b), keep in zip(pairwise(edges), kept, strict=False) if keep]


def there(presences: Sequence[Presence], node: str, t: float) -> bool:
    """Return True if the node is present."""
    return any(join <= t < (END_S if leave is None else leave) for name, join, leave in presences if name == node)


@st.composite
def schedules(draw: st.DrawFn, *, nodes_max: int = 5, messages_max: int = 6) -> Schedule:
    """Return a few nodes that come and go, meet, and publish while they are there."""
    names = [f"n{number}" for number in range(draw(st.integers(2, nodes_max)))]
    presences: list[Presence] = []
    for name in names:
        lives = [span for span in draw(st.one_of(st.just(THROUGHOUT), touching(4), spans(4))) if span[0] < span[1]]
        stays = draw(st.booleans())
        for number, (join, leave) in enumerate(lives or THROUGHOUT, 1):
            presences.append((name, join, None if stays and number >= len(lives) else leave))
    contacts: list[Contact] = []
    for a, b in combinations(names, 2):
        first, second = (a, b) if draw(st.booleans()) else (b, a)
        contacts += [(first, second, start, end) for start, end in draw(st.one_of(touching(5), spans(6)))]
    messages: list[Message] = []
    for number in range(draw(st.integers(0, messages_max))):
        source, t = draw(st.sampled_from(names)), draw(times(0, END_S - 0.5))
        if there(presences, source, t):
            lifetime = draw(st.one_of(st.none(), times(0.5)))
            messages.append((f"m{number}", source, t, lifetime))
    order = draw(st.permutations(contacts))
    return Schedule(tuple(order), tuple(messages), tuple(presences))


def write(
    schedule: Schedule,
    folder: Path,
    *,
    mode: str = "ideal",
    size: int = 100,
    settings: str = "",
    columns: Sequence[str] = (),
    more: Mapping[str, Sequence[object]] = {},
) -> Path:
    """Write the schedule as a scenario with its files; `more`: contents of further columns, by message."""
    rows: dict[str, list[tuple[object, ...]]] = {
        "nodes": [("node", "join", "leave"), *schedule.presences],
        "contacts": [("a", "b", "start", "end"), *schedule.contacts],
        "publish": [
            ("t", "node", "message", "size", "lifetime", *columns),
            *((t, node, name, size, life, *more.get(name, ())) for name, node, t, life in schedule.messages),
        ],
    }
    scenario = f'name = "drawn"\nduration_s = {END_S}\nmode = "{mode}"\nsample_s = 5\n'
    for name, lines in rows.items():
        text = "\n".join([",".join("" if each is None else str(each) for each in line) for line in lines])
        (folder / f"{name}.csv").write_text(text + "\n")
        if len(lines) > 1:  # An empty file is an error.
            scenario += FILES[name]
    path = folder / "drawn.toml"
    path.write_text(f"{scenario}[settings]\n{settings}\n")
    return path
