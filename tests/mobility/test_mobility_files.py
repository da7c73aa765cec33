"""Movement is read from files of The ONE, ns-2 and CSV; every mistake is reported with its line."""

from __future__ import annotations

import gzip
import random
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from carrypost.errors import ConfigError, LocalError
from carrypost.mobility.traces import Trace
from carrypost.traces.contacts import Contact, Presence
from carrypost.traces.encounters import Rules, encounters
from carrypost.traces.tracks import Movement

SECOND = 1_000_000
Samples = dict[str, list[tuple[float, float, float]]]

ONE = """# a comment
100 200 10 30 -5 5

100 p1 10 0
100 p2 30.5 5
110 p1 20 0
120 p1 20 -5
"""
CSV = """t,y,node,x
10,0,p1,10
0,0,p1,0
0,10,p2,20.5
20,-5,p1,10
"""
NS2 = """#
# nodes: 2, pause: 2.00, max speed: 20.00
#
set god_ [God instance]
$node_(0) set X_ 0.0
$node_(0) set Y_ 0.0
$node_(0) set Z_ 0.000000000000
$node_(1) set X_ 100
$node_(1) set Y_ 0
$god_ set-dist 0 1 1
$ns_ at 10.0 "$node_(0) setdest 40.0 30.0 5.0"
$ns_ at 12.0 "$god_ set-dist 0 1 16777215"
  $ns_ at 30.0 "$node_(1) setdest 0.0 0.0 1.0"
$ns_ at 40.0 "$node_(1) setdest 90.0 10.0 2.0"
$ns_ at 43.0 "$node_(1) setdest 0.0 0.0 0.0"
$ns_ initial_node_pos $node_(0) 20
"""


def parsed(text: str, duration_s: float = 50, **options: object) -> Movement:
    return Trace(file="movement", **options).parse(text, round(duration_s * SECOND))  # type: ignore[arg-type]


def samples(movement: Movement) -> Samples:
    """In seconds, by node."""
    found: Samples = {}
    tracks = movement.tracks
    for index, t_us, x, y in zip(tracks.node, tracks.t_us, tracks.x, tracks.y, strict=True):
        found.setdefault(tracks.nodes[index], []).append((t_us / SECOND, float(x), float(y)))
    return found


def test_places_of_the_one_are_counted_from_its_header_and_nodes_stand_at_the_last() -> None:
    movement = parsed(ONE)
    assert samples(movement) == {
        "p1": [(0, 0, 5), (10, 10, 5), (20, 10, 0), (50, 10, 0)],
        "p2": [(0, 20.5, 10), (50, 20.5, 10)],
    }
    assert movement.presences == [Presence("p1", 0, None), Presence("p2", 0, None)]


def test_nodes_of_a_csv_file_are_there_from_their_first_place_to_their_last() -> None:
    movement = parsed(CSV)
    assert samples(movement) == {"p1": [(0, 0, 0), (10, 10, 0), (20, 10, -5)], "p2": [(0, 20.5, 10)]}
    assert movement.presences == [Presence("p1", 0, 20 * SECOND)], "one place at one instant is no presence"


def test_nodes_of_ns_2_do_as_they_are_told() -> None:
    movement = parsed(NS2)
    found = samples(movement)
    assert found["0"] == [(0, 0, 0), (10, 0, 0), (20, 40, 30), (50, 40, 30)]
    # Told anew on its way at 40 s, and to stop at 43 s, both times short of where it went.
    assert found["1"] == [
        (0, 100, 0),
        (30, 100, 0),
        (40, 90, 0),
        (43, 90, pytest.approx(6)),
        (50, 90, pytest.approx(6)),
    ]
    assert movement.presences == [Presence("0", 0, None), Presence("1", 0, None)]


def test_a_trace_meets_by_the_search_for_encounters() -> None:
    movement = parsed("node,t,x,y\na,0,0,0\na,100,0,0\nb,0,-50,3\nb,100,50,3\n", duration_s=100)
    assert encounters(movement.tracks, Rules(range_m=5.0)).contacts() == [Contact("a", "b", 46 * SECOND, 54 * SECOND)]


def test_only_what_concerns_the_run_is_kept() -> None:
    text = "node,t,x,y\n" + "".join(f"a,{t},{t},0\n" for t in range(0, 100, 10))
    movement = parsed(text, duration_s=20, start_s=35)
    assert samples(movement) == {"a": [(-5, 30, 0), (5, 40, 0), (15, 50, 0), (25, 60, 0)]}
    assert movement.presences == [Presence("a", 0, None)]
    assert parsed(text, duration_s=20, start_s=200).presences == []
    assert parsed(text, duration_s=20, start_s=-50).presences == []
    assert parsed(text, duration_s=20, start_s=-10).presences == [Presence("a", 10 * SECOND, None)]
    assert parsed(text, duration_s=20, start_s=85).presences == [Presence("a", 0, 5 * SECOND)]


def test_a_gap_is_left_to_the_search_for_encounters() -> None:
    trace = Trace(file="m", max_gap_s=15)
    assert trace.max_gap_us == 15 * SECOND
    assert Trace(file="m").max_gap_us is None
    movement = trace.parse(ONE, 50 * SECOND)
    assert samples(movement)["p1"][-1] == (20, 10, 0), "nobody stands where nothing says so"
    with pytest.raises(ConfigError, match=r"mobility.max_gap_s cannot be used with files of ns-2"):
        trace.parse(NS2, SECOND)


def test_a_file_may_be_packed_and_the_seed_has_no_say(tmp_path: Path) -> None:
    path = tmp_path / "movement.txt.gz"
    path.write_bytes(gzip.compress(ONE.encode()))
    trace = Trace(file=str(path))
    one, two = trace.move(1, 50 * SECOND), trace.move("two", 50 * SECOND)
    assert samples(one) == samples(two) == samples(parsed(ONE))


def test_the_format_can_be_given() -> None:
    assert samples(parsed(CSV, format="csv")) == samples(parsed(CSV))
    with pytest.raises(LocalError, match=r"movement, line 1: column node is missing"):
        parsed(ONE, format="csv")
    with pytest.raises(LocalError, match=r"movement, line 1: the header must be minTime maxTime"):
        parsed(CSV, format="one")
    with pytest.raises(LocalError, match=r"movement, line 1: the file names no nodes"):
        parsed(CSV, format="ns-2")
    with pytest.raises(ConfigError, match=r'mobility.format must be "auto" or "one"'):
        parsed(CSV, format="gpx")
    with pytest.raises(ConfigError, match=r"mobility.file must name"):
        Trace()


_HEADER = "0 9 0 9 0 9\n"
_PLACED = "$node_(0) set X_ 1\n$node_(0) set Y_ 1\n"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "movement, line 1: the file is empty"),
        ("# nothing\n\n", "movement, line 1: the file is empty"),
        ("\nlat lon\n", "movement, line 2: must be the header of The ONE .* not 'lat lon'"),
        ("node,t,x\na,1,2\n", "movement, line 1: must be the header of The ONE"),
        ("0 9 0 9 0\n", "movement, line 1: must be the header of The ONE"),
        ("0 9 0 9 0 nan\n", "movement, line 1: the header must be minTime maxTime minX maxX minY maxY, six numbers"),
        (_HEADER, "movement, line 1: the file names no nodes"),
        (_HEADER + "0 a 1\n", "movement, line 2: must read TIME NODE X Y, not '0 a 1'"),
        (_HEADER + "\n0 a 1 east\n", "movement, line 3: must read TIME NODE X Y, not '0 a 1 east'"),
        (_HEADER + "0 a 1 nan\n", "movement, line 2: y must be a number from -100,000,000 to 100,000,000 m, not nan"),
        (_HEADER + "1e12 a 1 1\n", "movement, line 2: the time must be a number from -9,000,000,000 to"),
        (
            _HEADER + "0 a 1 1\n5 a 1 1\n0 a 9 1\n",
            r"movement, line 4: node a is at \(9, 1\), but line 2 says \(1, 1\) for the same time",
        ),
        ("node,t,x,y\n", "movement, line 1: the file names no nodes"),
        ("node,t,x,y\na,0,1\n", "movement, line 2: y is missing: the row has 3 cells"),
        ("node,t,x,y\na,0,1,north\n", "movement, line 2: y must be a number, not 'north'"),
        ("node,t,x,y\n,0,1,1\n", "movement, line 2: node must not be empty"),
        ("node,t,x,y\na,0,1,2e8\n", "movement, line 2: y must be a number from -100,000,000"),
        ("$node_(0) set X_ 1\n", "movement, line 1: node 0 has no initial position: X_ and Y_ must both be set"),
        (
            _PLACED + '$ns_ at 1 "$node_(1) setdest 1 1 1"\n',
            "movement, line 3: node 1 has no initial position: X_ and Y_ must both be set",
        ),
        (
            _PLACED + '$ns_ at 1 "$node_(0) setdest 1 1"\n',
            r"movement, line 3: must read \$node_\(N\) set X_ NUMBER, or",
        ),
        (_PLACED + '$ns_ at 1 "$node_(0) setdest 1 x 1"\n', "movement, line 3: setdest's argument must be a number"),
        (_PLACED + '$ns_ at 1 "$node_(0) setdest 1 1 -1"\n', "movement, line 3: time and speed"),
        ("$node_(0) set X_ west\n", "movement, line 1: X_ must be a number, not 'west'"),
    ],
)
def test_a_mistake_in_a_movement_file_is_told_with_its_line(text: str, message: str) -> None:
    with pytest.raises(LocalError, match=f"^{message}"):
        parsed(text)


places = st.integers(-1000, 1000).map(lambda quarter: quarter / 4)
paths = st.dictionaries(
    st.sampled_from(["a", "b", "10", "9"]),
    st.dictionaries(st.integers(0, 60 * SECOND), st.tuples(places, places), min_size=1, max_size=6),
    min_size=1,
)


@given(paths, st.randoms(use_true_random=False))
def test_places_are_read_alike_from_both_tables_in_any_order(
    nodes: dict[str, dict[int, tuple[float, float]]], chance: random.Random
) -> None:
    found = [(t_us, node, x, y) for node, path in nodes.items() for t_us, (x, y) in path.items()]
    chance.shuffle(found)
    csv = "node,t,x,y\n" + "".join(f"{node},{t_us / SECOND},{x},{y}\n" for t_us, node, x, y in found)
    one = "0 60 0 0 0 0\n" + "".join(f"{t_us / SECOND} {node} {x} {y}\n" for t_us, node, x, y in found)
    expected = {
        node: [(t_us / SECOND, *place) for t_us, place in sorted(path.items())] for node, path in sorted(nodes.items())
    }
    assert samples(parsed(csv, duration_s=61)) == expected
    assert samples(parsed(one, duration_s=61, max_gap_s=100)) == expected
