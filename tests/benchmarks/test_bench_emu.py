"""The benchmark of the emulator runs, its figures can be true, and it leaves nothing behind. Speed is not tested."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from pathlib import Path

import pytest
from tests.support.benches import COMMAND, Bench, Tables

BENCH = Bench("emu")


def workload(folder: Path) -> Path:
    """Write a scenario with a bus that carries two messages from one node to another; one expires on the way."""
    home = folder / "workloads" / "bus"
    home.mkdir(parents=True)
    (home / "nodes.csv").write_text("node,start,end\n0,0,200\n1,0,200\n2,50,200\n", encoding="utf-8")
    (home / "contacts.csv").write_text("start,end,a,b\n20,60,0,1\n100,140,1,2\n", encoding="utf-8")
    (home / "messages.csv").write_text(
        "t,id,src,dst,size,ttl\n10,M0,0,2,1000,-1\n11,M1,0,2,1000,60\n", encoding="utf-8"
    )
    return home.parent


@pytest.fixture
def scratch(tmp_path: Path) -> Path:
    folder = tmp_path / "scratch"
    folder.mkdir()
    return folder


@pytest.fixture(scope="module")
def bus(tmp_path_factory: pytest.TempPathFactory) -> Tables:
    """Return the tables of a run of the workload."""
    scratch, folder = (tmp_path_factory.mktemp(name) for name in ("scratch", "bus"))
    return BENCH.tables(scratch, "--only", "neutral-bus", "--workloads", str(workload(folder)), "--repeats", "1")


def test_a_workload_of_files_is_run_and_its_goal_is_judged(bus: Tables) -> None:
    shown = bus
    assert list(shown) == ["Runs", "Areas", "Goals"]
    (run,), (areas,), (goal,) = shown["Runs"], shown["Areas"], shown["Goals"]
    told = [run[name] for name in ("case", "nodes", "contacts", "messages", "receptions", "share of bound %")]
    assert told == ["neutral-bus", 3, 2, 2, 3, 100]
    assert run["receptions/CPU s"] == pytest.approx(3 / run["CPU s"])
    assert run["times bound"] == pytest.approx(run["CPU s"] * 1e3 / run["bound CPU ms"])
    assert run["peak MB"] > 10
    assert areas["build s"] + areas["run s"] + areas["record s"] == pytest.approx(run["CPU s"])
    assert areas["build %"] + areas["run %"] + areas["record %"] == pytest.approx(100)
    assert min(areas["build s"], areas["run s"], areas["record s"], areas["record MB"]) > 0
    assert (goal["measured"], goal["goal"], goal["met"]) == (run["CPU s"], "at most 4", run["CPU s"] <= 4)


def test_steps_add_up_to_the_run_and_a_run_is_compared_with_an_earlier_one(
    bus: Tables, tmp_path: Path, scratch: Path
) -> None:
    before = tmp_path / "before.json"
    lines = (json.dumps({"table": table, **row}) for table, rows in bus.items() for row in rows)
    before.write_text("\n".join(lines) + "\n", encoding="utf-8")
    given = ("--only", "neutral-bus", "--workloads", str(workload(tmp_path)), "--repeats", "1", "--json")
    shown = BENCH.tables(scratch, *given, "--steps", "--against", str(before))
    (run,), (areas,), steps = shown["Runs"], shown["Areas"], shown["Steps"]
    assert {"announcement", "Offer, Request, Ack", "timer"} <= {row["step"] for row in steps}
    for row in steps[:-1]:
        assert row["times"] * row["µs each"] == pytest.approx(row["µs"])
    assert 0 < sum(row["µs"] for row in steps) <= areas["run s"] / run["receptions"] * 1e6
    ratios = {row["what"]: row["ratio"] for row in shown["Ratios"]}
    assert ratios.keys() == {"CPU a reception", "MB sent", "receptions"}
    assert ratios["receptions"] == ratios["MB sent"] == 1


def test_what_a_run_is_compared_with_has_to_be_an_output_of_the_benchmark(tmp_path: Path) -> None:
    wrong = tmp_path / "before.json"
    wrong.write_text("hello\n", encoding="utf-8")
    outcome = BENCH.here("--only", "neutral-bus", "--workloads", str(workload(tmp_path)), "--against", str(wrong))
    assert (outcome.returncode, outcome.stdout) == (1, "")
    assert f"{wrong} must be an output of" in outcome.stderr


@pytest.mark.soak
def test_short_parts_of_shipped_and_random_cases_run_and_meet_no_goal(scratch: Path) -> None:
    shown = BENCH.tables(scratch, "--quick", "--only", "city_bus", "waypoint-100", "--json")
    buses, walkers = shown["Runs"]
    assert (buses["case"], walkers["case"], walkers["nodes"]) == ("city_bus", "waypoint-100", 100)
    assert walkers["messages"] == 11  # One every 5 s of a minute, the first after 5 s.
    for run in (buses, walkers):
        assert run["contacts"] > 0
        assert 0 < run["share of bound %"] <= 100
    assert [(row["case"], row["met"]) for row in shown["Goals"]] == [("city_bus", None)]


@pytest.mark.soak
def test_the_seed_decides_what_is_run(scratch: Path) -> None:
    columns = ("nodes", "contacts", "messages", "receptions", "share of bound %")
    found = [
        [run[name] for run in BENCH.tables(scratch, "--quick", "--only", "waypoint-100", "--seed", seed)["Runs"]
         for name in columns]
        for seed in ("1", "1", "2")
    ]  # fmt: skip
    assert found[0] == found[1] != found[2]


def test_workloads_that_are_not_given_are_left_out_with_a_word() -> None:
    outcome = BENCH.here("--quick", "--only", "neutral-bus", "neutral-rwp-100")
    assert (outcome.returncode, outcome.stdout) == (1, "")
    assert "neutral-rwp-100 is left out: --workloads" in outcome.stderr
    assert "no case is left" in outcome.stderr


def test_a_workload_that_lacks_a_file_is_left_out_with_its_name(tmp_path: Path) -> None:
    folder = workload(tmp_path)
    (folder / "bus" / "messages.csv").unlink()
    outcome = BENCH.here("--only", "neutral-bus", "--workloads", str(folder))
    assert (outcome.returncode, outcome.stdout) == (1, "")
    assert f"there is no {folder / 'bus' / 'messages.csv'}" in outcome.stderr


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("start,end,a\n20,60,0\n", "a row has no b"),
        ("start,end,a,b\n20,later,0,1\n", "could not convert string to float: 'later'"),
        ("start,end,a,b\n20,60,0,9\n", "line 2: there is no node 9"),
    ],
)
def test_a_workload_that_cannot_be_read_is_no_traceback(
    tmp_path: Path, text: str, said: str, capfd: pytest.CaptureFixture[str]
) -> None:
    folder = workload(tmp_path)
    (folder / "bus" / "contacts.csv").write_text(text, encoding="utf-8")
    outcome = BENCH.here("--only", "neutral-bus", "--workloads", str(folder))
    assert (outcome.returncode, outcome.stdout) == (1, "")
    told = outcome.stderr + capfd.readouterr().err  # The run itself is in a process of its own.
    assert said in told
    assert "Traceback" not in told


@pytest.mark.parametrize("arguments", [("--only", "city"), ("--repeats", "0"), ("--seed", "x")])
def test_what_makes_no_sense_is_a_usage_error(arguments: tuple[str, ...]) -> None:
    outcome = BENCH.here(*arguments)
    assert (outcome.returncode, outcome.stdout) == (2, "")
    assert arguments[0] in outcome.stderr


def test_help_gives_an_example() -> None:
    outcome = BENCH.here("--help")
    assert outcome.returncode == 0
    assert "carrypost bench emu --" in " ".join(outcome.stdout.split("For example:")[1].split())


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_benchmark_that_is_stopped_leaves_nothing_behind(number: int, scratch: Path) -> None:
    running = subprocess.Popen(  # noqa: S603 - our own command
        [COMMAND, "bench", "emu", "--only", "waypoint-5000"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, env={**os.environ, "TMPDIR": str(scratch)},
    )  # fmt: skip
    assert running.stderr is not None
    assert b"waypoint-5000" in running.stderr.readline()
    running.send_signal(number)
    running.communicate(timeout=120)
    assert running.returncode not in {0, None}
    # To find the folder, the standard library writes a file of four bytes; a signal in that instant leaves it.
    assert [each for each in scratch.iterdir() if each.is_dir() or each.read_bytes() not in {b"", b"blat"}] == []
