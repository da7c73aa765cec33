"""The movement files of KTH's walkers (CRAWDAD), to which ``ostermalm_001_1`` belongs: people who come, walk and go.

Each line is an event: ``6.0 create 2 628.2 1812.1 0.0`` (time, node, x, y, z), ``6.0 setdest 1 818.0 1453.0 0.0 0.8
6.6`` (likewise, then speed and time of arrival; the speed follows from the rest and is not looked at) and ``132.6
destroy 4``. Between its ways a node stands still; an order that comes before it arrived ends the one before. A node is
there from its creation to its destruction, or to where its last way ends. Heights are ignored.

We do not have those files. The form is taken from public programs that read them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from carrypost.emu.csvfiles import Line

CREATE, SETDEST, DESTROY = "create", "setdest", "destroy"
_FORMS = {
    CREATE: "TIME create NODE X Y Z",
    SETDEST: "TIME setdest NODE X Y Z SPEED ARRIVAL",
    DESTROY: "TIME destroy NODE",
}
_NODE = 2

Place = tuple[str, float, float, float, int]
"""Node, seconds, x, y, and the line that says so."""


class _Way(NamedTuple):
    """From one place to another; both are the same while a node stands still."""

    start_s: float
    start: tuple[float, float]
    end_s: float
    end: tuple[float, float]
    line: int

    def at(self, t_s: float) -> tuple[float, float]:
        if t_s >= self.end_s:
            return self.end
        part = (t_s - self.start_s) / (self.end_s - self.start_s)
        (x0, y0), (x1, y1) = self.start, self.end
        return x0 + part * (x1 - x0), y0 + part * (y1 - y0)


def is_event(line: str) -> bool:
    """Whether this is how a line of such a file looks."""
    return line.split()[1:2] in ([CREATE], [SETDEST], [DESTROY])


def places(content: str, name: str) -> Iterator[Place]:
    """Where nodes are; in between they move in straight lines. `name` is what errors call the file."""
    under_way: dict[str, _Way] = {}
    gone: set[str] = set()
    for number, text in enumerate(content.splitlines(), 1):
        if not text.strip():
            continue
        line = Line(name, number)
        kind, node, (t_s, *rest) = _event(line, text)
        if kind == CREATE:
            if node in under_way or node in gone:
                raise line.error(f"node {node} is created a second time")
            here = (rest[0], rest[1])
            under_way[node] = _Way(t_s, here, t_s, here, number)
            yield node, t_s, *here, number
            continue
        if (way := under_way.get(node)) is None:
            raise line.error(f"there is no node {node} at this time")
        if t_s < way.start_s:
            raise line.error(f"node {node} is told at {t_s:g} s what to do, after it was told at {way.start_s:g} s")
        yield from _ended(node, way, t_s, number)
        if kind == DESTROY:
            del under_way[node]
            gone.add(node)
            continue
        x, y, _, _, arrival_s = rest
        if arrival_s < t_s:
            raise line.error(f"node {node} arrives at {arrival_s:g} s, before it starts at {t_s:g} s")
        under_way[node] = _Way(t_s, way.at(t_s), arrival_s, (x, y), number)
    for node, way in under_way.items():
        yield node, way.end_s, *way.end, way.line


def _ended(node: str, way: _Way, t_s: float, number: int) -> Iterator[Place]:
    """The end of a way that was under way, or of the rest after it."""
    if way.start_s < way.end_s < t_s:
        yield node, way.end_s, *way.end, way.line
    yield node, t_s, *way.at(t_s), number


def _event(line: Line, text: str) -> tuple[str, str, list[float]]:
    """What happens, to whom, and the numbers: first the time."""
    words = text.split()
    kind = words[1] if len(words) > 1 else ""
    if kind not in _FORMS or len(words) != len(_FORMS[kind].split()):
        wanted = f"read {_FORMS[kind]}" if kind in _FORMS else "be an event: create, setdest or destroy"
        raise line.error(f"must {wanted}, not {text.strip()!r}")
    names = _FORMS[kind].split()
    numbers = [line.number_of(words[0], "the time")]
    numbers += [line.number_of(words[index], names[index]) for index in range(_NODE + 1, len(words))]
    return kind, words[_NODE], numbers
