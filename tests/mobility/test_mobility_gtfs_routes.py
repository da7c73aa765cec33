"""Routes of a timetable that are driven: by type, in words or by GTFS's numbers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from tests.mobility.test_mobility_gtfs import FEED

from carrypost.cli.app import run
from carrypost.emu.scenario import Scenario
from carrypost.errors import ConfigError, LocalError
from carrypost.lab import folders
from carrypost.lab.schemas import POSITIONS
from carrypost.mobility.gtfs import Gtfs

Write = Callable[..., Path]
TRIPS = "route_id,service_id,trip_id\nr1,week,out\nr1,week,home\nr2,week,picnic\n"
ROUTES = "route_id,route_short_name,route_type\nr1,1,3\nr2,Quay,1000\nr3,9,0\n"


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def written(routes: str | None = ROUTES, trips: str = TRIPS) -> Path:
        for name, content in (FEED | {"trips": trips, "routes": routes or ""}).items():
            if content:
                (tmp_path / f"{name}.txt").write_text(content)
        return tmp_path

    return written


def _driven(file: Path, *types: str) -> list[str]:
    return sorted(each.name for each in Gtfs(file=str(file), day="2024-01-02", route_types=types).drive().vehicles)


@pytest.mark.parametrize(
    ("types", "nodes"),
    [
        ((), ["1-1", "Quay-1"]),
        (("bus",), ["1-1"]),
        (("ferry",), ["Quay-1"]),
        (("1000",), ["Quay-1"]),
        (("3", "ferry"), ["1-1", "Quay-1"]),
        (("bus", "tram"), ["1-1"]),
    ],
)
def test_only_routes_of_the_types_asked_for_are_driven(write: Write, types: tuple[str, ...], nodes: list[str]) -> None:
    assert _driven(write(), *types) == nodes


def test_a_number_is_itself_and_not_its_kind(write: Write) -> None:
    with pytest.raises(LocalError) as error:
        _driven(write(), "4")
    assert str(error.value).endswith(": no trip of 2024-01-02 is by 4; trips by type: bus (3) 2, ferry (1000) 1")


@pytest.mark.parametrize(
    ("routes", "message"),
    [
        (ROUTES.replace("Quay,1000", "Quay,boat"), "routes.txt, line 3: route_type must be a number of GTFS such as 3"),
        ("route_id\nr1\nr2\n", "routes.txt, line 2: route_type must be a number of GTFS such as 3, not ''"),
        ("route_id,route_type\nr1,3\n", "trips.txt, line 4: there is no route 'r2' in routes.txt"),
        (None, "trips.txt, line 2: there is no route 'r1' in routes.txt"),
    ],
)
def test_types_that_a_feed_does_not_tell_are_told_with_file_and_line(
    write: Write, routes: str | None, message: str
) -> None:
    file = write(routes)
    assert _driven(file), "which nobody misses who asks for no type"
    with pytest.raises(LocalError, match=message):
        _driven(file, "bus")


def test_a_type_that_there_is_not_is_refused_by_the_name_of_who_asked(write: Write, tmp_path: Path) -> None:
    text = f"duration_s = 1\n[mobility]\nmodel = 'gtfs'\nfile = '{write()}'\nday = 2024-01-02\nroute_types = ['boat']\n"
    with pytest.raises(ConfigError, match=r"mobility.route_types must be one of tram, subway, .* not 'boat'"):
        Scenario.parse(text, tmp_path)


def test_the_command_takes_types_and_tells_them_in_the_manifest(
    write: Write, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    order = [
        "lab",
        "ingest",
        str(write()),
        "--format",
        "gtfs",
        "--day",
        "2024-01-02",
        "--scenario",
        "s",
        "--out",
        str(out),
    ]
    assert run([*order, "--route-type", "ferry, 0", "--json"]) == 0
    assert '"route_types":["ferry","0"]' in capsys.readouterr().out
    assert set(folders.read_arrow(out, POSITIONS)["node"].to_pylist()) == {"Quay-1"}
    assert run([*order, "--route-type", "boat"]) == 2
    assert "--route-type must be one of tram, subway" in capsys.readouterr().err
