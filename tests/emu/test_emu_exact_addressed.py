"""Messages to selected hosts over ideal links: their receivers, and the copies that acknowledgements purge.

Floods determine both: one that each message begins, and one that each recipient begins when the message is delivered to
it.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from itertools import combinations
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tests.support.examples import examples
from tests.support.schedules import END_S, Schedule, schedules, there, times, touching, write

from carrypost.emu import flood_bound, run
from carrypost.emu.verify.invariants import check

SETTINGS = ("altruistic = true", 'strategy = "anti-entropy"')
Class = tuple[bool, int]
"""Mode and priority of a message."""


@st.composite
def addressed(draw: st.DrawFn) -> tuple[Schedule, dict[str, list[str]]]:
    """Return a schedule with a contact and a message at least, and the recipients of each message, not its author."""
    schedule = draw(schedules(nodes_max=6).filter(lambda found: found.contacts and found.messages))
    names = sorted({name for name, _, _ in schedule.presences})
    lists = {
        message: draw(st.lists(st.sampled_from([name for name in names if name != author]), min_size=1, unique=True))
        for message, author, _, _ in schedule.messages
    }
    return schedule, lists


def played(
    schedule: Schedule, lists: dict[str, list[str]], size: int, settings: str, classes: Mapping[str, Class] = {}
) -> pa.Table:
    more = {
        message: (" ".join(names), str(persistent).lower(), priority)
        for message, names in lists.items()
        for persistent, priority in [classes.get(message, (False, 4))]
    }
    columns = ("recipients", "persistent", "priority")
    with tempfile.TemporaryDirectory() as name:
        return run(write(schedule, Path(name), size=size, settings=settings, columns=columns, more=more), 1).table


def deliveries(table: pa.Table) -> list[tuple[str, str]]:
    """Messages and nodes, in the order of delivery."""
    columns = (table[name].to_pylist() for name in ("kind", "message", "node"))
    return [(message, node) for kind, message, node in zip(*columns, strict=True) if kind == "deliver"]


@pytest.mark.parametrize("settings", SETTINGS)
@given(addressed(), st.sampled_from((0, 100, 3_000, 70_000)))
@examples(15)
def test_exactly_the_recipients_that_a_flood_reaches_are_given_a_message(
    settings: str, drawn: tuple[Schedule, dict[str, list[str]]], size: int
) -> None:
    schedule, lists = drawn
    table = played(schedule, lists, size, settings)
    bound = flood_bound(schedule.contacts, schedule.messages, schedule.presences)
    assert sorted(deliveries(table)) == sorted((message, node) for message, node in bound if node in lists[message])
    assert check(table) == []


# --- acknowledgements ----------------------------------------------------------------------------------------------


def parts(schedule: Schedule, t: float) -> list[set[str]]:
    """Nodes that are connected then, over each other."""
    found = [{name} for name in {name for name, _, _ in schedule.presences} if there(schedule.presences, name, t)]
    for a, b, start, end in schedule.contacts:
        if start <= t < end:
            joined = [part for part in found if a in part or b in part]
            if {a, b} <= set().union(*joined):
                found = [part for part in found if part not in joined] + [set().union(*joined)]
    return found


def spread(known: set[str], connected: list[set[str]]) -> None:
    """Spread knowledge to all nodes that are connected with one that has it."""
    for part in connected:
        if known & part:
            known |= part


def acknowledged(schedule: Schedule, lists: dict[str, list[str]]) -> set[tuple[str, str]]:
    """(message, node) wherever word of all recipients comes before the message's deadline."""
    having = {message: set[str]() for message in lists}
    told = {message: {recipient: set[str]() for recipient in names} for message, names in lists.items()}
    for t in (half / 2 for half in range(2 * END_S)):
        connected = parts(schedule, t)
        for message, author, published, life in schedule.messages:
            if published <= t and (life is None or t < published + life):
                having[message].add(author)
                spread(having[message], connected)
                for recipient, known in told[message].items():
                    known.update({recipient} & having[message])
                    spread(known, connected)
    return {(message, node) for message, each in told.items() for node in set.intersection(*each.values())}


OUT_OF_RANGE = Schedule(
    (("n0", "n1", 0.0, 9.0), ("n0", "n2", 0.0, 2.0), ("n1", "n2", 1.0, 9.0)),
    (("m0", "n1", 3.0, None),),
    (("n0", 0.0, None), ("n1", 0.0, None), ("n2", 0.0, None)),
)
"""The carrier n0 left the range of the recipient n2, which had reported to n1 that it hears n0."""


@pytest.mark.parametrize("settings", SETTINGS)
@given(addressed(), st.sampled_from((0, 100, 3_000, 70_000)))
@example((OUT_OF_RANGE, {"m0": ["n2"]}), 0)
@examples(12)
def test_exactly_those_copies_are_purged_that_acknowledgements_of_all_recipients_reach(
    settings: str, drawn: tuple[Schedule, dict[str, list[str]]], size: int
) -> None:
    schedule, lists = drawn
    table = played(schedule, lists, size, settings)
    columns = (table[name].to_pylist() for name in ("kind", "detail", "message", "node"))
    copies, purged = set[tuple[str, str]](), list[tuple[str, str]]()
    for kind, detail, message, node in zip(*columns, strict=True):
        if kind in {"publish", "receive"}:
            copies.add((message, node))
        elif kind == "drop" and detail == "purged":
            purged.append((message, node))
    reached = acknowledged(schedule, lists)
    assert len(purged) == len(set(purged))
    assert (
        copies & reached <= set(purged) <= reached
    )  # Copies may go before they are whole, and were not received then.


# --- small buffers -------------------------------------------------------------------------------------------------


def best_in_parts(schedule: Schedule, classes: Mapping[str, Class], room: int) -> set[tuple[str, str]]:
    """Return (message, node) if every connected part of the network holds the best messages of its hosts.

    The order is by mode, priority and date.
    """
    ranks = {message: (*classes[message], t) for message, _, t, _ in schedule.messages}
    held: dict[str, set[str]] = {name: set() for name, _, _ in schedule.presences}
    given_to: set[tuple[str, str]] = set()
    changes = {t for _, _, start, end in schedule.contacts for t in (start, end)}
    published = {t: (message, node) for message, node, t, _ in schedule.messages}
    for t in sorted(changes | set(published)):
        if t in published:
            message, node = published[t]
            if len(held[node]) < room or ranks[message] > min(ranks[each] for each in held[node]):
                held[node].add(message)
        for part in parts(schedule, t):
            union = set().union(*(held[node] for node in part))
            kept = set(sorted(union, key=ranks.__getitem__, reverse=True)[:room])
            held |= {node: set(kept) for node in part}
            given_to |= {(message, node) for message in kept for node in part}
    return given_to


@st.composite
def crowded(draw: st.DrawFn) -> tuple[Schedule, dict[str, list[str]], dict[str, Class]]:
    """Draw hosts that are always present, and messages of different classes and dates that do not expire."""
    names = [f"n{number}" for number in range(draw(st.integers(2, 5)))]
    contacts = [(a, b, start, end) for a, b in combinations(names, 2) for start, end in draw(touching(4))]
    if not contacts:
        contacts = [(names[0], names[1], 1.0, 2.0)]
    sources = draw(st.lists(st.tuples(st.sampled_from(names), times(0, END_S - 1)), min_size=1, max_size=14))
    messages = [(f"m{at}", node, t + 0.01 * (at + 1), None) for at, (node, t) in enumerate(sources)]
    lists = {
        message: draw(st.lists(st.sampled_from([name for name in names if name != author]), min_size=1, unique=True))
        for message, author, _, _ in messages
    }
    classes = {message: (draw(st.booleans()), draw(st.sampled_from((0, 4, 9)))) for message, *_ in messages}
    return Schedule(tuple(contacts), tuple(messages), tuple((name, 0.0, None) for name in names)), lists, classes


@given(crowded(), st.integers(1, 5))
@examples(25)
def test_with_small_buffers_at_least_the_best_of_every_connected_part_is_delivered(
    drawn: tuple[Schedule, dict[str, list[str]], dict[str, Class]], room: int
) -> None:
    schedule, lists, classes = drawn
    settings = f'strategy = "anti-entropy"\nshares = false\ncache_messages_max = {room}'
    table = played(schedule, lists, 100, settings, classes)
    given_to = {(message, node) for message, node in best_in_parts(schedule, classes, room) if node in lists[message]}
    assert given_to <= set(deliveries(table))
    assert check(table) == []
