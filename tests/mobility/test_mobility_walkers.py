"""Files of KTH's walkers: their contents, and that the original of the shipped scenario could replace it."""

from __future__ import annotations

import gzip
from itertools import pairwise
from pathlib import Path

import pytest

from carrypost.emu.scenario import Scenario
from carrypost.errors import LocalError
from carrypost.mobility.streets import Streets
from carrypost.mobility.traces import Trace
from carrypost.traces.contacts import Presence
from carrypost.traces.encounters import Rules, encounters
from carrypost.traces.tracks import Movement
from tools import calibration

SECOND = 1_000_000
MINUTE = 60 * SECOND


def parse(text: str, duration_us: int = MINUTE) -> Movement:
    return Trace(file="walkers.tr").parse(text, duration_us)


def samples(movement: Movement) -> list[tuple[str, float, float, float]]:
    tracks = movement.tracks
    rows = zip(tracks.node.tolist(), tracks.t_us.tolist(), tracks.x.tolist(), tracks.y.tolist(), strict=True)
    return [(tracks.nodes[node], t_us / SECOND, x, y) for node, t_us, x, y in rows]


def written(movement: Movement) -> str:
    """Return the movement as such a file."""
    tracks = movement.tracks
    rows = list(
        zip(tracks.node.tolist(), (tracks.t_us / SECOND).tolist(), tracks.x.tolist(), tracks.y.tolist(), strict=True)
    )
    events = [(rows[0][1], f"create {rows[0][0]} {rows[0][2]} {rows[0][3]} 0.0")]
    for (one, t0_s, _, _), (two, t1_s, x, y) in pairwise(rows):
        if one == two:
            events.append((t0_s, f"setdest {two} {x} {y} 0.0 1.3 {t1_s}"))
        else:
            events += [(t0_s, f"destroy {one}"), (t1_s, f"create {two} {x} {y} 0.0")]
    events.append((rows[-1][1], f"destroy {rows[-1][0]}"))
    return "".join(f"{t_s} {event}\n" for t_s, event in sorted(events, key=lambda event: event[0]))


def test_walker_comes_walks_and_goes() -> None:
    found = parse("6.0 create 2 628.2 1812.1 0.0\n6.0 setdest 2 629.0 1812.1 0.0 0.8 7.0\n9.5 destroy 2\n")
    assert samples(found) == [("2", 6, 628.2, 1812.1), ("2", 7, 629, 1812.1), ("2", 9.5, 629, 1812.1)]
    assert found.presences == [Presence("2", 6 * SECOND, 9 * SECOND + SECOND // 2)]


def test_walker_stands_still_between_its_ways() -> None:
    found = parse("0 create 1 0 0 0\n0 setdest 1 10 0 0 1 10\n30 setdest 1 10 5 0 1 35\n")
    assert samples(found) == [("1", 0, 0, 0), ("1", 10, 10, 0), ("1", 30, 10, 0), ("1", 35, 10, 5)]


def test_new_order_ends_the_one_before() -> None:
    found = parse("0 create 1 0 0 0\n0 setdest 1 10 0 0 1 10\n5 setdest 1 5 9 0 3 8\n8 destroy 1\n")
    assert samples(found) == [("1", 0, 0, 0), ("1", 5, 5, 0), ("1", 8, 5, 9)]


def test_walker_that_is_never_destroyed_is_there_until_its_last_way_ends() -> None:
    found = parse("0 create 1 0 0 0\n0 setdest 1 10 0 0 1 10\n")
    assert found.presences == [Presence("1", 0, 10 * SECOND)]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("0 create 1 0 0\n", "line 1: must read TIME create NODE X Y Z, not '0 create 1 0 0'"),
        ("0 create 1 0 0 0\n1 jump 1\n", "line 2: must be an event: create, setdest or destroy, not '1 jump 1'"),
        ("0 create 1 0 north 0\n", "line 1: Y must be a number, not 'north'"),
        ("zero create 1 0 0 0\n", "line 1: the time must be a number, not 'zero'"),
        ("0 create 1 0 0 0\n\n1 create 1 0 0 0\n", "line 3: node 1 is created a second time"),
        ("0 create 1 0 0 0\n1 destroy 1\n2 create 1 0 0 0\n", "line 3: node 1 is created a second time"),
        ("0 create 1 0 0 0\n1 destroy 2\n", "line 2: there is no node 2 at this time"),
        ("0 create 1 0 0 0\n1 destroy 1\n2 setdest 1 0 0 0 1 3\n", "line 3: there is no node 1 at this time"),
        ("0 create 1 0 0 0\n1 setdest 1 0 0 0 1 0.5\n", "line 2: node 1 arrives at 0.5 s, before it starts at 1 s"),
        ("5 create 1 0 0 0\n4 destroy 1\n", "line 2: node 1 has a command at 4 s after one at 5 s"),
    ],
)
def test_wrong_event_is_named_by_file_and_line(text: str, message: str) -> None:
    with pytest.raises(LocalError) as error:
        parse(text)
    assert str(error.value).startswith(f"walkers.tr, {message}")


def test_movement_comes_back_from_a_file_with_the_same_contacts() -> None:
    streets = Streets(pause=0.3).move(1, 20 * MINUTE)
    again = parse(written(streets), 20 * MINUTE)
    ours, theirs = (encounters(movement.tracks, Rules(range_m=50.0)) for movement in (streets, again))
    assert len(ours) > 500
    # The file calls nodes by their indices.
    columns = (ours.a.tolist(), ours.b.tolist(), ours.start_us.tolist(), ours.end_us.tolist())
    expected = {(frozenset((str(a), str(b))), start, end) for a, b, start, end in zip(*columns, strict=True)}
    assert {(frozenset((a, b)), start, end) for a, b, start, end, _ in theirs.contacts()} == expected


def test_original_file_takes_the_place_of_the_shipped_mobility(tmp_path: Path) -> None:
    shipped = (calibration.SCENARIOS / "ostermalm.toml").read_text(encoding="utf-8")
    before, rest = shipped.split('[mobility]\nmodel = "streets"')
    after = rest[rest.index("[[workload]]") :]
    replaced = f'{before}[mobility]\nmodel = "trace"\nfile = "ostermalm_001_1.tr.gz"\n\n{after}'
    movement = Streets().move(1, 30 * MINUTE)
    (tmp_path / "ostermalm_001_1.tr.gz").write_bytes(gzip.compress(written(movement).encode()))
    found = calibration.statistics(Scenario.parse(replaced, tmp_path), 1)
    assert found["nodes"] == len(movement.presences)
    assert found["broadcasts"] > 0
