"""Models of routing where links cost nothing, without code of the hosts: messages move instantly over contacts."""

from __future__ import annotations

from itertools import permutations

from tests.support.schedules import END_S, Message, Schedule


def together(schedule: Schedule, a: str, b: str) -> list[tuple[float, float]]:
    """Return the spans in which two nodes are in contact and both are present."""
    stays = {
        node: [(join, END_S if leave is None else leave) for name, join, leave in schedule.presences if name == node]
        for node in (a, b)
    }
    return [
        (max(start, mine[0], theirs[0]), min(end, mine[1], theirs[1], END_S))
        for one, other, start, end in schedule.contacts
        for mine in stays[a]
        for theirs in stays[b]
        if {one, other} == {a, b}
    ]


def direct(schedule: Schedule, message: Message, recipients: list[str]) -> set[str]:
    """Return the recipients that get a message from its author, or from each other, while it lives."""
    _, author, published, lifetime = message
    ends = END_S if lifetime is None else min(END_S, published + lifetime)
    since = {author: published}
    changed = True
    while changed:
        changed = False
        for giver, taker in permutations((author, *recipients), 2):
            spans = together(schedule, giver, taker) if giver in since else []
            met = [max(start, since[giver]) for start, end in spans if max(start, since[giver]) < min(end, ends)]
            if met and min(met) < since.get(taker, ends):
                since[taker], changed = min(met), True
    return set(since) - {author}
