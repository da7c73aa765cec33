"""Groups of nodes with their own settings, and the rows about the overlay of runs with brokers."""

from __future__ import annotations

import tomllib
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pytest

from carrypost.config import Settings
from carrypost.emu import Scenario, run
from carrypost.emu.inputs import members_of, settings_of
from carrypost.errors import ConfigError
from carrypost.lab.metrics import families, tables

WALK = """
duration_s = 40
mode = "ideal"
sample_s = 10
[mobility]
model = "random-waypoint"
count = 24
side_m = 500
speed_min_m_per_s = 5
speed_max_m_per_s = 20
pause_max_s = 0
[radio]
range_m = 160
routes = "told"
[settings]
island = true
acked_s = 3600
[settings.overlay]
enabled = true
update_s = 5
[[nodes.group]]
name = "brokers"
count = 8
[nodes.group.settings.overlay]
broker = true
"""
GROUPS = """
duration_s = 1
[nodes]
count = 9
[settings]
cache_messages_max = 100
[[nodes.group]]
name = "small"
names = ["n0001", "n0002", "n0003"]
[nodes.group.settings]
cache_messages_max = 5
compress = false
[[nodes.group]]
name = "smaller"
count = 2
of = "small"
[nodes.group.settings.limits]
partials_max = 7
[[nodes.group]]
name = "any"
count = 4
[nodes.group.settings]
cache_messages_max = 6
"""
NAMES = [f"n000{number}" for number in range(1, 10)]


def settings(scenario: Scenario, seed: int, names: Sequence[str] = NAMES) -> dict[str, Settings]:
    return settings_of(scenario, members_of(scenario, names, seed))


def test_nodes_of_groups_have_their_settings_and_later_groups_win() -> None:
    scenario = Scenario.parse(GROUPS)
    found = settings(scenario, 1)
    caches = {node: its.cache_messages_max for node, its in found.items()}
    assert sum(cache == 6 for cache in caches.values()) == 4
    assert all(caches[node] in (5, 6) and not found[node].compress for node in NAMES[:3])
    few = [node for node, its in found.items() if its.limits.partials_max == 7]
    assert len(few) == 2
    assert set(few) < set(NAMES[:3])
    assert settings(scenario, 1) == found
    assert any(settings(scenario, seed) != found for seed in range(2, 9))
    again = Scenario.parse(scenario.in_force())
    assert settings(again, 1) == found, "what is in force can be run again"


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({"nodes.group.0.names": ["n0001", "bert"]}, "no node 'bert'"),
        ({"nodes.group.2.count": 10}, "needs 10 nodes, and there are only 9"),
        ({"nodes.group.1.count": 4}, "needs 4 nodes, and there are only 3"),
        ({"nodes.group.1.of": "any"}, "an earlier group"),
        ({"nodes.group.0.of": "small"}, "an earlier group"),
        ({"nodes.group.1.names": ["n0001"]}, "names or a count"),
        ({"nodes.group.1.name": "small"}, "the name 'small' of another group"),
        ({"nodes.group.0.settings": 3}, "must be a table"),
        ({"nodes.group.0.settings.cache": 3}, "cache"),
        ({"nodes.group.0.settings.cache_messages_max": 0}, "cache_messages_max must be"),
        ({"nodes.group.0.settings.overlay.broker": True}, "requires overlay.enabled"),
    ],
)
def test_groups_that_mean_nothing_are_refused(changes: dict[str, object], fault: str) -> None:
    with pytest.raises(ConfigError, match=fault):
        settings(Scenario.parse(GROUPS, overrides=changes), 1)


def lengths(rows: list[dict[str, Any]]) -> dict[str, float]:
    """Return the mean hops of all pairs, by detail."""
    sums: dict[str, list[int]] = defaultdict(lambda: [0, 0])
    for row in rows:
        if row["kind"] == "path":
            sums[row["detail"]][0] += row["size"]
            sums[row["detail"]][1] += int(dict(row["attrs"])["pairs"])
    return {detail: size / pairs for detail, (size, pairs) in sums.items()}


def check_metrics(records: pa.Table, rows: list[dict[str, Any]]) -> None:
    """Check the families of the laboratory against the rows; messages of brokers do not count as messages."""
    wanted = [families.PATH_LENGTHS, families.BROKER_TRAFFIC, families.PROCESSING, families.REGISTRY_SIZES]
    made = {name: table.to_pylist() for name, table in tables("x", records, wanted).items()}
    for detail, mean in lengths(rows).items():
        mine = [row for row in made["path_lengths"] if row["path"] == detail]
        assert sum(row["hops"] * row["pairs"] for row in mine) / sum(row["pairs"] for row in mine) == pytest.approx(
            mean
        )
    told = sum(row["size"] for row in rows if (row["kind"], row["detail"]) == ("registry", "topology"))
    assert sum(row["bytes"] for row in made["broker_traffic"]) == told
    assert (made["processing"][0]["bcast"], made["processing"][0]["rcvd"]) == (0, 0)
    assert {row["registry"] for row in made["registry_sizes"]} == {"cache"}


def test_brokers_among_walkers_have_shorter_paths_if_they_adapt() -> None:
    found = {}
    for topology in ("adaptive", "static"):
        scenario = Scenario.parse(WALK, overrides={"settings.overlay.topology": topology})
        records = run(scenario, 3).table
        rows = records.to_pylist()
        found[topology] = lengths(rows)
        brokers = {row["node"] for row in rows if row["kind"] == "path"}
        assert len(brokers) == 8
        told = [row["size"] for row in rows if (row["kind"], row["detail"]) == ("registry", "topology")]
        assert sum(told) > 0
        assert len(told) == 8 * 4
        check_metrics(records, rows)
    assert found["adaptive"]["network"] == found["static"]["network"]
    assert found["adaptive"]["network"] < found["adaptive"]["overlay"] < found["static"]["overlay"]


def test_the_shipped_scenario_has_40_brokers() -> None:
    scenario = Scenario.load("scenarios/overlay.toml")
    names = [f"n{number:04}" for number in range(1, 101)]
    found = settings(scenario, 1, names)
    assert sum(its.overlay.broker for its in found.values()) == 40
    assert tomllib.loads(scenario.text)["mode"] == "ideal"
