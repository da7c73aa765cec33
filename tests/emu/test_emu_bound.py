"""The flood bound: every edge by a table, everything else against a search that looks at each instant anew."""

from __future__ import annotations

import subprocess
import sys
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.examples import examples
from tests.support.schedules import END_S, Schedule, schedules, there

from carrypost.emu.verify.bound import Contact, Message, Presence, flood, flood_ages_us, flood_bound
from carrypost.errors import LocalError

STAY: list[Presence] = [("a", 0, None), ("b", 0, None), ("c", 0, None)]

AT_1: list[Message] = [("m", "a", 1, None)]
AT_5: list[Message] = [("m", "a", 5, None)]
NONE: set[tuple[str, str]] = set()
B, C = {("m", "b")}, {("m", "c")}

EDGES: list[tuple[str, list[Contact], list[Message], list[Presence] | None, set[tuple[str, str]]]] = [
    ("a contact passes it on", [("a", "b", 0, 10)], AT_5, None, B),
    ("in both directions", [("b", "a", 0, 10)], AT_5, None, B),
    ("nobody is met", [], AT_5, None, NONE),
    ("published when a contact begins", [("a", "b", 5, 9)], AT_5, None, B),
    ("published when a contact ends", [("a", "b", 0, 5)], AT_5, None, NONE),
    ("published a microsecond before", [("a", "b", 0, 5)], [("m", "a", 4.999999, None)], None, B),
    ("less than a microsecond before is not before", [("a", "b", 0, 5)], [("m", "a", 4.9999999, None)], None, NONE),
    ("carried to a later contact", [("a", "b", 6, 9)], AT_5, None, B),
    ("touching contacts", [("a", "b", 0, 5), ("a", "b", 5, 9)], AT_5, None, B),
    ("overlapping ones count as one", [("a", "b", 0, 9), ("b", "a", 2, 4)], AT_5, None, B),
    ("an empty contact is none", [("a", "b", 5, 5)], AT_5, None, NONE),
    ("deadline when a contact begins", [("a", "b", 7, 9)], [("m", "a", 5, 2)], None, NONE),
    ("deadline just after", [("a", "b", 7, 9)], [("m", "a", 5, 2.000001)], None, B),
    ("a lifetime of nothing", [("a", "b", 0, 9)], [("m", "a", 5, 0)], None, NONE),
    ("a path in one instant", [("a", "b", 0, 9), ("b", "c", 5, 6)], AT_5, None, B | C),
    ("a contact that ended before is no path", [("a", "b", 5, 9), ("b", "c", 0, 5)], AT_5, None, B),
    ("one ends when the next begins", [("a", "b", 0, 5), ("b", "c", 5, 9)], AT_1, None, B | C),
    ("but not what is published then", [("a", "b", 0, 5), ("b", "c", 5, 9)], AT_5, None, NONE),
    ("the relay's deadline", [("a", "b", 0, 5), ("b", "c", 5, 9)], [("m", "a", 1, 4)], None, B),
    ("what comes back is not received", [("a", "b", 0, 5), ("a", "b", 6, 9)], AT_1, None, B),
    ("one who leaves receives nothing", [("a", "b", 0, 9)], AT_5, [("a", 0, None), ("b", 0, 5)], NONE),
    ("one who joins then does", [("a", "b", 0, 9)], AT_5, [("a", 0, None), ("b", 5, None)], B),
    ("one who joins later gets everything", [("a", "b", 0, 9)], AT_5, [("a", 0, 9), ("b", 7, 8)], B),
    ("one who joins at the end gets nothing", [("a", "b", 0, 9)], AT_5, [("a", 0, 9), ("b", 9, 12)], NONE),
    ("one who joins at the deadline", [("a", "b", 0, 9)], [("m", "a", 5, 2)], [("a", 0, None), ("b", 7, None)], NONE),
    (
        "one who is away relays nothing",
        [("a", "b", 0, 2), ("b", "c", 4, 6)],
        AT_1,
        [("a", 0, None), ("b", 0, 3), ("c", 0, None)],
        B,
    ),
    (
        "one who comes back has kept it",
        [("a", "b", 0, 2), ("b", "c", 4, 6)],
        AT_1,
        [("a", 0, None), ("b", 0, 3), ("c", 0, None), ("b", 5, None)],
        B | C,
    ),
    (
        "leaving and joining at once",
        [("a", "b", 0, 9)],
        AT_5,
        [("a", 0, None), ("b", 5, 8), ("b", 0, 5)],
        B,
    ),
    ("one whom nobody meets", [("a", "b", 0, 9)], AT_5, STAY, B),
    ("a life of nothing", [("a", "b", 0, 9)], AT_5, [("a", 0, None), ("b", 6, 6)], NONE),
]


@pytest.mark.parametrize(
    ("contacts", "messages", "nodes", "reached"), [edge[1:] for edge in EDGES], ids=[e[0] for e in EDGES]
)
def test_an_edge_of_a_contact_life_or_presence(
    contacts: list[Contact], messages: list[Message], nodes: list[Presence] | None, reached: set[tuple[str, str]]
) -> None:
    assert flood_bound(contacts, messages, nodes) == reached
    assert len(flood(contacts, messages, nodes)) == len(reached)


MISTAKES: list[tuple[list[Contact], list[Message], list[Presence] | None, str]] = [
    ([("a", "b", 5, 2)], [], None, "contact a–b ends at 2 s, before it starts at 5 s"),
    ([("a", "a", 0, 2)], [], None, "not 'a' and itself"),
    ([("a", "b", -1, 2)], [], None, "start of contact a–b must be a number of seconds, 0 or more, not -1"),
    ([("a", "b", 0, float("nan"))], [], None, "end of contact a–b .* not nan"),
    ([("a", "x", 0, 2)], [], STAY, "contact a–x names node 'x', which is not among the nodes"),
    ([], [("m", "a", 0, -3)], None, "lifetime of message m .* not -3"),
    ([], [("m", "a", 0, None), ("m", "b", 0, None)], None, "message 'm' is published twice"),
    ([], [("m", "x", 0, None)], STAY, "message 'm' is published by 'x', which is not among the nodes"),
    ([], [("m", "a", 5, None)], [("a", 0, 5)], "message 'm' is published at 5 s by 'a', which is not there then"),
    ([], [("m", "a", 4, None)], [("a", 0, 3), ("a", 4.5, None)], "at 4 s by 'a', which is not there then"),
    ([], [], [("a", 3, 1)], "node 'a' leaves at 1 s, before it joins at 3 s"),
    ([], [], [("a", 0, None), ("a", 4, 5)], "node 'a' joins at 4 s while it is there until"),
]


@pytest.mark.parametrize(("contacts", "messages", "nodes", "words"), MISTAKES)
def test_a_mistake_is_named(
    contacts: list[Contact], messages: list[Message], nodes: list[Presence] | None, words: str
) -> None:
    with pytest.raises(LocalError, match=words):
        flood_bound(contacts, messages, nodes)


def searched(schedule: Schedule, presences: tuple[Presence, ...]) -> set[tuple[str, str]]:
    """Return the bound found by a search at every instant, for one message after the other."""
    instants = sorted(
        {t for *_, start, end in schedule.contacts for t in (start, end)}
        | {t for _, join, leave in presences for t in (join, END_S if leave is None else leave)}
        | {message[2] for message in schedule.messages}
    )
    found: set[tuple[str, str]] = set()
    for name, source, published, lifetime in schedule.messages:
        holders = {source}
        for t in instants:
            if t < published or (lifetime is not None and t >= published + lifetime):
                continue
            grown = True
            while grown:
                near = {
                    other
                    for a, b, start, end in schedule.contacts
                    for here, other in ((a, b), (b, a))
                    if start <= t < end and here in holders and there(presences, a, t) and there(presences, b, t)
                }
                grown = not near <= holders
                holders |= near
        found |= {(name, node) for node in holders - {source}}
    return found


def test_of_a_message_with_recipients_a_flood_counts_only_these() -> None:
    contacts = [("a", "b", 0, 100), ("b", "c", 50, 100), ("c", "d", 70, 100)]
    messages = [("m", "a", 10, None), ("n", "a", 20, 60)]
    recipients = {"m": ["d", "b", "nobody"]}
    found = sorted(flood_ages_us(contacts, messages, None, recipients))
    assert [each for each in found if each[1]] == [(0, 1), (0, 1), (30, 1), (60, 1)]


@given(schedules(), st.integers(1, END_S))
@examples(25)
def test_what_comes_before_an_age_is_what_a_flood_of_lives_so_short_reaches(schedule: Schedule, age_s: int) -> None:
    """Check that the flood of messages with a short lifetime reaches what a flood of all reaches before that age."""
    cut = [
        (name, source, t, float(age_s) if lifetime is None else min(lifetime, age_s))
        for name, source, t, lifetime in schedule.messages
    ]
    us = 1_000_000
    ages = list(
        flood_ages_us(
            [(a, b, round(start * us), round(end * us)) for a, b, start, end in schedule.contacts],
            [
                (name, source, round(t * us), None if lifetime is None else round((t + lifetime) * us))
                for name, source, t, lifetime in schedule.messages
            ],
            [
                (node, round(join * us), None if leave is None else round(leave * us))
                for node, join, leave in schedule.presences
            ],
        )
    )
    younger = sum(nodes for age_us, nodes in ages if age_us < age_s * us)
    assert younger == len(flood(schedule.contacts, cut, schedule.presences))
    assert sum(nodes for _, nodes in ages) == len(flood(schedule.contacts, schedule.messages, schedule.presences))


@given(schedules())
@examples(25)
def test_the_bound_is_what_a_search_of_every_instant_finds(schedule: Schedule) -> None:
    found = flood_bound(schedule.contacts, schedule.messages, schedule.presences)
    assert found == searched(schedule, schedule.presences)


@given(schedules())
@examples(25)
def test_without_nodes_everybody_is_there_throughout(schedule: Schedule) -> None:
    names = {name for a, b, _, _ in schedule.contacts for name in (a, b)} | {each[1] for each in schedule.messages}
    throughout: tuple[Presence, ...] = tuple((name, 0, None) for name in sorted(names))
    assert flood_bound(schedule.contacts, schedule.messages) == searched(schedule, throughout)


@given(schedules())
@examples(25)
def test_bits_tell_the_same_as_the_set(schedule: Schedule) -> None:
    bound = flood_bound(schedule.contacts, schedule.messages, schedule.presences)
    bits = flood(schedule.contacts, schedule.messages, schedule.presences)
    assert set(bits) == bound
    assert len(bits) == len(bound)
    published = {message[0]: message[2] for message in schedule.messages}
    assert all(published[a] <= published[b] for a, b in pairwise(bits.messages))


def test_a_long_chain_in_one_instant_is_followed_to_its_end() -> None:
    names = [f"n{number}" for number in range(500)]
    contacts: list[Contact] = [(a, b, 0, 1) for a, b in pairwise(names)]
    assert len(flood(contacts, [("m", "n0", 0.5, None)])) == 499


def test_the_bound_knows_nothing_of_the_protocol() -> None:
    code = (
        "import sys, carrypost.emu.verify.bound\n"
        "print([name for name in sys.modules if name.startswith('carrypost') and name.split('.')[1:2] in "
        "(['gossip'], ['host'], ['security'], ['events'])])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)  # noqa: S603
    assert done.stdout.strip() == "[]"
