"""Small campaigns for tests, written into a folder, and played there without Spark."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.support.emulated import csv

from carrypost.lab.campaign import tasks
from carrypost.lab.campaign.campaign import Campaign, begun
from carrypost.lab.campaign.grid import CampaignRun, contents, load

THREE = """
name = "three"
duration_s = 60
[nodes]
file = "nodes.csv"
[contacts]
file = "../shared/contacts.csv"
[[workload]]
kind = "script"
file = "publish.csv"
[[workload]]
kind = "broadcast"
first_s = 5
period_s = 20
size = 1000
lifetime_s = 60
"""
"""With `duration_s` above 90 its script publishes from a node that has left."""
TWO_SETTINGS = """
[[settings]]
name = "usual"

[[settings]]
name = "30 s"
set = {"workload.1.lifetime_s" = 30, radio.loss = 0.2}
"""
FAILING = """
[[settings]]
name = "too long"
set = {duration_s = 100}
"""


def three(folder: Path, text: str = THREE, name: str = "three.toml") -> Path:
    """Write a scenario of three nodes, one of which carries, with files beside it, above it and elsewhere."""
    home = folder / "scenarios"
    (folder / "shared").mkdir(parents=True, exist_ok=True)
    home.mkdir(exist_ok=True)
    csv(folder / "shared", "contacts.csv", "a,b,start,end", ["a,b,10,30", "b,c,35,55"])
    csv(home, "nodes.csv", "node,join,leave", ["a,0,", "b,0,", "c,0,80"])
    csv(home, "publish.csv", "t,node,message,size,lifetime", ["5,a,hello,1000,", "90,c,late,10,"])
    (home / name).write_text(text, encoding="utf-8")
    return home / name


def campaign(folder: Path, *tables: str, seeds: str = "[1, 2]", scenarios: str = '["scenarios/three.toml"]') -> Path:
    path = folder / "campaign.toml"
    path.write_text(f"scenarios = {scenarios}\nseeds = {seeds}\n" + "\n".join(tables), encoding="utf-8")
    return path


def records(out: Path) -> dict[str, bytes]:
    """Return everything in the folder of records, hidden files included."""
    return {path.name: path.read_bytes() for path in sorted((out / "records").iterdir())}


def states(out: Path) -> dict[str, dict[str, Any]]:
    """Return the state of each run, by its name."""
    found = (json.loads(path.read_text(encoding="utf-8")) for path in sorted((out / ".runs").glob("*.json")))
    return {state["run"]: state for state in found}


class Broadcast:
    """The part of a broadcast that a task needs."""

    def __init__(self, value: bytes) -> None:
        self.value = value


def sent(runs: Sequence[CampaignRun]) -> dict[str, Any]:
    """Return the files of runs, as tasks get them."""
    return {digest: Broadcast(content) for digest, content in contents([each for run in runs for each in run.files])}


def context_of(running: Campaign, runs: Sequence[CampaignRun]) -> tasks.TaskContext:
    return tasks.TaskContext(running.place, running.token, sent(runs))


@contextmanager
def played(path: Path, out: Path) -> Iterator[Campaign]:
    """Yield a campaign whose runs were done in this process, one after the other."""
    with begun(load(path), out) as running:
        shared = context_of(running, running.todo)
        yield running
        running.ended = [tasks.play(shared, run) for run in running.todo]
