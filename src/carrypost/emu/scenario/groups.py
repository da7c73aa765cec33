"""Groups of nodes that have settings of their own: which nodes are in them, and what holds for each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from carrypost.config import Settings
from carrypost.config.rules import changed
from carrypost.emu.engine.chance import stream
from carrypost.emu.scenario.scenario import Group, Scenario
from carrypost.errors import ConfigError


def members_of(scenario: Scenario, nodes: Sequence[str], seed: int | str) -> dict[str, Sequence[str]]:
    """Return the nodes of each group; `nodes`: the names of all, in order."""
    members: dict[str, Sequence[str]] = {"": nodes}
    for group in scenario.groups:
        members[group.table.name] = _members(group, members, seed)
    return members


def settings_of(scenario: Scenario, members: Mapping[str, Sequence[str]]) -> dict[str, Settings]:
    """Return the settings of each node that is in a group; `members`: the nodes of each group."""
    found: dict[str, Settings] = {}
    groups: dict[str, list[Group]] = {}
    for group in scenario.groups:
        for node in members[group.table.name]:
            groups.setdefault(node, []).append(group)
    for node, its in groups.items():
        settings = scenario.settings
        try:
            for group in its:
                settings = changed(settings, group.changes)
        except ConfigError as error:
            names = " and ".join(repr(group.table.name) for group in its)
            raise ConfigError(f"{scenario.name}: the settings of {node!r}, which is in {names}: {error}") from None
        found[node] = settings
    return found


def _members(group: Group, members: dict[str, Sequence[str]], seed: int | str) -> Sequence[str]:
    table, known = group.table, members[group.table.of]
    if table.count is None:
        if strange := sorted(set(table.names) - set(known)):
            raise ConfigError(f"nodes.group {table.name!r}: there is no node {strange[0]!r} in this scenario")
        return table.names
    if table.count > len(known):
        raise ConfigError(f"nodes.group {table.name!r} needs {table.count:,} nodes, and there are only {len(known):,}")
    return sorted(stream(seed, "group", table.name).sample(list(known), table.count))
