"""Inputs of a run, from a scenario's files, its mobility and its seed: nodes, contacts and publications.

They are read once, before the run. The SHA-256 of every file goes into the record, and its text if it is short: with
the scenario they are all that is needed to repeat the run.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

from carrypost.chance import stream
from carrypost.config import Settings
from carrypost.config.rules import changed
from carrypost.emu.engine import applications
from carrypost.emu.scenario import CHANNEL, MOBILITY, Channel, Group, Scenario, channel_of
from carrypost.emu.scenario_tables import DIRECT, FROM_CONTACTS, RANDOM
from carrypost.errors import ConfigError, LocalError
from carrypost.log.files import refusing
from carrypost.mobility import names as counted
from carrypost.model.times import MICROSECONDS
from carrypost.security.identity import Identity
from carrypost.traces.contacts import Contact, Presence, read_presences
from carrypost.traces.csvfiles import Line

if TYPE_CHECKING:
    from carrypost.traces.encounters import Encounters

TEXT_BYTES_MAX = 65_536
"""A longer file is known in the record by its hash only."""


@dataclass(frozen=True, slots=True)
class Inputs:
    """The data that are known before the run begins."""

    presences: list[Presence]
    contacts: list[Contact]
    """Contacts, not clipped yet; empty in a population, which takes `columns`."""
    scripts: dict[int, list[applications.Publication]]
    """Publications by number of the workload, from a file or drawn."""
    settings: dict[str, Settings] = field(default_factory=dict)
    """Of the nodes that are in a group, by name; others have those of the scenario."""
    channels: dict[int, Channel] = field(default_factory=dict)
    """By number of the workload: clients of channels."""
    queues: dict[int, dict[str, str]] = field(default_factory=dict)
    """By number of the workload: the manager of each node's queue."""
    files: dict[str, str] = field(default_factory=dict)
    """Hashes and texts of the files that were read, for the record."""
    columns: Encounters | None = None
    """The same contacts by columns; None: no input gives any."""
    ignored_events: int = 0
    """Connection events in the file of contacts that change nothing: an `up` of a connected pair, for example."""


def read_inputs(scenario: Scenario, seed: int | str) -> Inputs:
    """Read everything that the scenario names."""
    scripts = {
        index: applications.read_script(scenario.path(each.file))
        for index, each in enumerate(scenario.workloads)
        if each.kind == "script"
    }
    _check_labels(scenario, scripts)
    given = _given(scenario, seed)
    presences, met = given.presences, given.contacts
    if presences is None:
        published = [each for script in scripts.values() for each in script]
        named = {name for each in published for name in (each.node, *each.recipients)}
        named.update(() if met is None else met.nodes)
        presences = [Presence(name, 0, None) for name in sorted(named)]
    if not presences:
        raise ConfigError(
            f"{scenario.name}: there are no nodes; name them by [nodes], [contacts], [mobility] or a script"
        )
    there = _by_node(presences)
    for index, script in scripts.items():
        path = scenario.path(scenario.workloads[index].file)
        due = [each for each in script if each.t_us < scenario.duration_us]
        applications.check_script(path, due, there, scenario.settings.limits)
        _check_order(scenario, index, script)
        _check_recipients(scenario, index, due)
    _check_names(scenario, there)
    limits = scenario.settings.limits
    drawn = {
        index: applications.addressed(each, f"workload.{index}", there, limits, seed, end_us=scenario.duration_us)
        for index, each in enumerate(scenario.workloads)
        if each.kind == "addressed"
    }
    queues = {
        index: applications.managers(sorted(there), each, f"workload.{index}", seed)
        for index, each in enumerate(scenario.workloads)
        if each.queue != "none"
    }
    drawn |= {
        index: applications.random_messages(
            each, f"workload.{index}", _by_node(given.active or presences), queues.get(index, {}), seed,
            end_us=scenario.duration_us,
        )
        for index, each in enumerate(scenario.workloads)
        if each.kind == RANDOM
    }  # fmt: skip
    members = members_of(scenario, sorted(there), seed)
    settings = settings_of(scenario, members)
    _check_lifetimes(scenario, scripts, {node: settings.get(node, scenario.settings) for node in there})
    channels = _channels(scenario, members, settings)
    if scenario.of_population and given.one_way:
        raise ConfigError(
            f'{scenario.name}: population mode does not model contacts that work one way; mode = "faithful" does'
        )
    contacts = [] if met is None or scenario.of_population else met.contacts()
    if given.one_way:
        contacts = [each._replace(heard=given.one_way.get(each[:3], "")) for each in contacts]
    ignored = given.ignored_events
    return Inputs(presences, contacts, scripts | drawn, settings, channels, queues, _files(scenario), met, ignored)


def _by_node(presences: Iterable[Presence]) -> dict[str, list[Presence]]:
    found: dict[str, list[Presence]] = {}
    for presence in presences:
        found.setdefault(presence.node, []).append(presence)
    return found


def _channels(
    scenario: Scenario, members: Mapping[str, Sequence[str]], settings: Mapping[str, Settings]
) -> dict[int, Channel]:
    own = {node: settings.get(node, scenario.settings) for node in members[""]}
    return {
        index: channel_of(each, f"workload.{index}", members, own)
        for index, each in enumerate(scenario.workloads)
        if each.kind == CHANNEL
    }


class _Given(NamedTuple):
    """Nodes and their contacts, as the inputs give them."""

    presences: list[Presence] | None
    """None: no input gives them."""
    contacts: Encounters | None
    """None: no input gives contacts."""
    active: list[Presence] | None = None
    """The times at which people use their devices; None: while their nodes are present."""
    one_way: Mapping[tuple[str, str, int], str] = MappingProxyType({})
    """The nodes that are heard in contacts that work one way, by a, b and start."""
    ignored_events: int = 0


def _given(scenario: Scenario, seed: int | str) -> _Given:
    """Read or draw nodes and contacts."""
    presences: list[Presence] | None = None
    if scenario.nodes.file:
        presences = read_presences(scenario.path(scenario.nodes.file))
    elif scenario.nodes.count is not None:
        presences = [Presence(name, 0, None) for name in counted(scenario.nodes.count)]
    if scenario.mobility is not None:
        return _Given(*_by_mobility(scenario, seed, presences))
    if not (scenario.contacts.file or scenario.contacts.model):
        return _Given(presences, None)
    from carrypost.traces import encounters as columns  # noqa: PLC0415 - needs numpy, and only here

    if scenario.contact_model is not None:
        drawn = scenario.contact_model.meet(seed, scenario.duration_us)
        met = columns.columns_of(drawn.contacts, {each.node for each in drawn.presences})
        return _Given(drawn.presences, met, drawn.active, columns.one_way_of(drawn.contacts))
    known = None if presences is None else {presence.node for presence in presences}
    table = scenario.contacts
    read = columns.read_columns(scenario.path(table.file), known, overlaps=table.overlaps)
    start_us = round(scenario.contacts.start_s * MICROSECONDS)
    found = read.contacts.shifted(-start_us)
    if scenario.contacts.presence == FROM_CONTACTS:
        # A node with contacts both before and after the start of the run is present from the start.
        presences = columns.stays_of(found, scenario.duration_us)
    coming = found.select(found.end_us > 0)
    if len(found):
        _check_time(scenario, int(coming.start_us.min()) if len(coming) else None)
    one_way = {(a, b, t_us - start_us): heard for (a, b, t_us), heard in read.one_way.items()}
    return _Given(presences, coming, None, one_way, read.ignored_events)


def _check_labels(scenario: Scenario, scripts: dict[int, list[applications.Publication]]) -> None:
    """Refuse a label that two scripts use: records and metrics know a message by it."""
    homes: dict[str, int] = {}
    for index, script in scripts.items():
        for each in script:
            if (first := homes.setdefault(each.message, index)) != index:
                text = f"message {each.message!r} is published by {scenario.workloads[first].file} already"
                raise wrong_line(scenario, index, each, text)


def wrong_line(scenario: Scenario, index: int, each: applications.Publication, message: str) -> LocalError:
    """Return the error about a line of the script of a workload."""
    return Line(str(scenario.path(scenario.workloads[index].file)), each.line).error(message)


def _check_order(scenario: Scenario, index: int, script: list[applications.Publication]) -> None:
    """Refuse recipients where messages have an order: all other nodes would wait for them in vain."""
    workload = scenario.workloads[index]
    if workload.ordering != "none" and (each := next((each for each in script if each.recipients), None)):
        ordering = f"workload.{index} has the ordering {workload.ordering!r}"
        text = f"message {each.message!r} has recipients, and {ordering}: leave out one of them"
        raise wrong_line(scenario, index, each, text)


def _check_recipients(scenario: Scenario, index: int, script: list[applications.Publication]) -> None:
    """Refuse messages for all subscribers where a strategy takes messages to their recipients only."""
    chosen = [scenario.settings.strategy, *(each.changes.get("strategy") for each in scenario.groups)]
    if DIRECT in chosen and (each := next((each for each in script if not each.recipients), None)):
        text = f"strategy = {DIRECT!r} takes messages to their recipients only: name them, or use another strategy"
        raise wrong_line(scenario, index, each, f"message {each.message!r} has no recipients, and {text}")


def _check_lifetimes(
    scenario: Scenario, scripts: Mapping[int, Sequence[applications.Publication]], settings: Mapping[str, Settings]
) -> None:
    """Refuse lifetimes that nodes would refuse, before the run begins; `settings`: those of each node."""
    most_s = {node: math.inf if each.lifetime_s_max is None else each.lifetime_s_max for node, each in settings.items()}
    least_s = min(most_s.values())
    for index, workload in enumerate(scenario.workloads):
        if (workload.lifetime_s or 0) > least_s:
            raise ConfigError(
                f"workload.{index}.lifetime_s must be at most {least_s:g} (lifetime_s_max), not {workload.lifetime_s:g}"
            )
        for each in scripts.get(index, ()):
            if (lifetime_s := (each.lifetime_us or 0) / MICROSECONDS) > most_s.get(each.node, math.inf):
                most = f"{most_s[each.node]:g} (lifetime_s_max of {each.node!r})"
                raise wrong_line(scenario, index, each, f"lifetime must be at most {most}, not {lifetime_s:g}")


def _check_time(scenario: Scenario, first_us: int | None) -> None:
    """Refuse contacts of another time: a trace in seconds since 1970, say, would not be played at all.

    `first_us` is the begin of the first contact that is not over at the start; None: all are over.
    """
    if first_us is not None and first_us < scenario.duration_us:
        return
    file, start_s = scenario.contacts.file, scenario.contacts.start_s
    text = f"{file} has no contact from {start_s:,.0f} s on"
    if first_us is not None:
        text = f"the first contact in {file} is at {first_us / MICROSECONDS + start_s:,.0f} s, after the end"
    raise ConfigError(f"{scenario.name}: {text}; set contacts.start_s to the time in the file at which the run begins")


def _by_mobility(
    scenario: Scenario, seed: int | str, presences: list[Presence] | None
) -> tuple[list[Presence], Encounters]:
    from carrypost.traces.encounters import Rules, encounters  # noqa: PLC0415 - needs numpy, and only here

    assert scenario.mobility is not None
    movement = scenario.mobility.move(seed, scenario.duration_us)
    if presences is None:
        presences = movement.presences
    elif unknown := set(movement.tracks.nodes) - {presence.node for presence in presences}:
        raise ConfigError(f"{scenario.name}: [mobility] moves {min(unknown)!r}, and there is no such node in [nodes]")
    radio = scenario.radio
    rules = Rules(
        range_m=radio.range_m,
        max_gap_us=getattr(scenario.mobility, "max_gap_us", None),
        merge_gap_us=round(radio.merge_gap_s * MICROSECONDS),
        min_duration_us=round(radio.min_duration_s * MICROSECONDS),
    )
    return presences, encounters(movement.tracks, rules)


def _check_names(scenario: Scenario, there: dict[str, list[Presence]]) -> None:
    """Refuse names that a host cannot have, and names in tables of the scenario that no node has."""
    for name in there:
        Identity.plain(name)
    named = [
        (f"radio.link.{index}", name) for index, each in enumerate(scenario.radio.link) for name in (each.a, each.b)
    ]
    named += [(f"faults.event.{index}", each.node) for index, each in enumerate(scenario.faults.event)]
    for where, name in named:
        if name not in there:
            raise ConfigError(f"{where}: there is no node {name!r} in this scenario")


def _files(scenario: Scenario) -> dict[str, str]:
    """Hashes, and texts of short files, by what the scenario calls them."""
    found: dict[str, str] = {}
    for key, called, path in scenario.files():
        name, content = path.name if key == MOBILITY else called, _content(path)
        found[f"sha256:{name}"] = hashlib.sha256(content).hexdigest()
        if len(content) <= TEXT_BYTES_MAX and path.is_file():
            found[f"text:{name}"] = content.decode("utf-8", "replace")
    return found


def _content(path: Path) -> bytes:
    """Return the bytes of a file, or of the files in a folder, by name."""
    with refusing(f"{path} cannot be read"):
        if path.is_file():
            return path.read_bytes()
        return b"".join(each.name.encode() + each.read_bytes() for each in sorted(path.iterdir()) if each.is_file())


# --- groups of nodes, drawn by the seed where only their number is given --------------------------------------
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
