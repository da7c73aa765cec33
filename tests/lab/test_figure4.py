"""OVERLAY figure 4 as a script: a consumer moves away from its home, and its seat follows it to a nearer broker (O4).

The home of the consumer X is C at first. Then node 6 moves away from X and 5. The home becomes B, and the path from the
producer P has 6 hops between nodes, where that of the static overlay has 8.
"""

from __future__ import annotations

from pathlib import Path

from tests.support.emulated import BROKERS, contacts, nodes

from carrypost.emu import Scenario, run
from carrypost.lab.metrics import families, tables

THROUGHOUT = "PA A1 1B A2 2C C4 4B B3 35 5X C6"
AT_FIRST = "6X 65"
MOVED_S, END_S = 60, 180
SCENARIO = f"""
sample_s = 10{BROKERS}
discovery_s = 5
[[nodes.group]]
name = "producer"
names = ["P"]
[[nodes.group]]
name = "consumer"
names = ["X"]
[[workload]]
kind = "channel"
producers = "producer"
consumers = "consumer"
first_s = 10
period_s = 7
"""


def played(folder: Path, homing: str) -> tuple[dict[float, float], list[str], int]:
    """Return the hops from P to X by time, the homes of X, and the number of results that it got."""
    rows = [f"{pair[0]},{pair[1]},0,{END_S}" for pair in THROUGHOUT.split()]
    rows += [f"{pair[0]},{pair[1]},0,{MOVED_S}" for pair in AT_FIRST.split()]
    contacts(folder, *rows)
    # X comes when the brokers know each other, so that its first home is the nearest one.
    nodes(folder, *(f"{node},{5 if node == 'X' else 0}," for node in "PABCX123456"))
    changes = {"duration_s": END_S, "settings.overlay.homing": homing}
    records = run(Scenario.parse(SCENARIO, folder, overrides=changes), 1).table
    lengths = tables("figure", records, [families.PATH_LENGTHS])["path_lengths"].to_pylist()
    told = records.to_pylist()
    homes = [row["peer"] for row in told if (row["kind"], row["node"]) == ("home", "X")]
    delivered = sum(row["kind"] == "deliver" for row in told)
    return {row["t"]: row["hops"] for row in lengths if row["path"] == "delivery"}, homes, delivered


def test_the_path_follows_the_consumer_in_6_hops_and_not_8(tmp_path: Path) -> None:
    hops, homes, delivered = played(tmp_path, "adaptive")
    static, kept, unmoved = played(tmp_path, "static")
    assert (homes, kept) == (["C", "B"], ["C"])
    assert (hops[MOVED_S - 10], static[MOVED_S - 10]) == (5, 5)
    last = max(hops)
    assert (hops[last], static[last]) == (6, 8)
    assert delivered == unmoved == 25
