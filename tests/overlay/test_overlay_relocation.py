"""Relocation: every (state, input) of both tables, the variants, timers, and authors that have no part in it."""

from __future__ import annotations

from itertools import product

import pytest

from carrypost.config.settings import Overlay
from carrypost.model.ids import NodeId
from carrypost.model.times import NEVER
from carrypost.overlay.relocation import (
    DESTINATION_TABLE,
    SHORT_SOURCE_TABLE,
    SOURCE_TABLE,
    VARIANTS,
    Action,
    Destination,
    DestinationInput,
    DestinationState,
    HandoffId,
    Source,
    SourceInput,
    SourceState,
)

A, B, H, H2, P, Q = map(NodeId, ("A", "B", "H", "H2", "P", "Q"))
NAME = HandoffId(A, 4, 1)
SECOND = 1_000_000


SETTINGS = Overlay(handoff_s=10.0, gap_s=60.0)


# As in the reference: state, input, actions, next state. What is not listed changes nothing.
SOURCE = """
SEATED     MIGRATE           HANDOFF                    OFFERED
SEATED     RESTART           -                          SEATED
OFFERED    READY             MOVING,DETOUR              DETOURING
OFFERED    REFUSED           NOTE_REFUSAL               SEATED
OFFERED    DESTINATION_LOST  NOTE_REFUSAL               SEATED
OFFERED    TIMEOUT           NOTE_REFUSAL               SEATED
OFFERED    RESTART           -                          SEATED
DETOURING  DETOURED          -                          DETOURING
DETOURING  ALL_DETOURED      STOP_AT_LAST               DRAINING
DETOURING  DESTINATION_LOST  DETOUR_BACK                SEATED
DETOURING  TIMEOUT           STOP_AT_LAST               DRAINING
DETOURING  RESTART           -                          SEATED
DRAINING   DRAINED           STATE,SUSPEND              MOVED
DRAINING   TIMEOUT           STATE,SUSPEND              MOVED
DRAINING   DESTINATION_LOST  DETOUR_BACK                SEATED
DRAINING   RESTART           -                          SEATED
MOVED      ELSEWHERE         FORGET                     GONE
MOVED      TIMEOUT           FORGET                     GONE
MOVED      RESTART           STATE                      MOVED
"""
SHORT = """
SEATED     MIGRATE           HANDOFF                        OFFERED
SEATED     RESTART           -                              SEATED
OFFERED    READY             MOVING,STATE,SUSPEND           MOVED
OFFERED    REFUSED           NOTE_REFUSAL                   SEATED
OFFERED    DESTINATION_LOST  NOTE_REFUSAL                   SEATED
OFFERED    TIMEOUT           NOTE_REFUSAL                   SEATED
OFFERED    RESTART           -                              SEATED
MOVED      ELSEWHERE         FORGET                         GONE
MOVED      TIMEOUT           FORGET                         GONE
MOVED      RESTART           STATE                          MOVED
"""
DESTINATION = """
ABSENT     HANDOFF           READY                      EXPECTING
EXPECTING  HANDOFF           READY                      EXPECTING
EXPECTING  STATE             LOAD,ATTACHED                 SEATED
EXPECTING  DETOUR_BACK       FORGET                     ABSENT
EXPECTING  ELSEWHERE         FORGET                     ABSENT
EXPECTING  TIMEOUT           FORGET                     ABSENT
EXPECTING  RESTART           FORGET                     ABSENT
SEATED     STATE             -                          SEATED
SEATED     CONFIRMED         -                          CONFIRMED
SEATED     ELSEWHERE         -                          ABSENT
SEATED     RESTART           ATTACHED                      SEATED
"""


def read(text: str) -> dict[tuple[str, str], tuple[tuple[Action, ...], str]]:
    rows = [line.split() for line in text.strip().splitlines()]
    named = {row[2]: tuple(Action[each] for each in row[2].split(",") if each != "-") for row in rows}
    return {(state, what): (named[actions], after) for state, what, actions, after in rows}


def source(variant: str = "strict", state: SourceState = SourceState.SEATED) -> Source:
    found = Source(NAME, B, VARIANTS[variant], SETTINGS, 0)
    if state is not SourceState.SEATED:
        found._enter(state, 0)  # noqa: SLF001 - states that this variant never reaches are tried, too.
    return found


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize(("state", "what"), list(product(SourceState, SourceInput)))
def test_every_state_and_input_of_a_source(variant: str, state: SourceState, what: SourceInput) -> None:
    at = source(variant, state)
    listed = read(SOURCE if VARIANTS[variant].detours else SHORT).get((state.name, what.name))
    before_us = at.due_us
    actions = at.handle(what, 5 * SECOND)
    if listed is None:
        assert (actions, at.state, at.due_us) == (None, state, before_us)
    else:
        assert (actions, at.state.name) == listed
        assert at.due_us == before_us or at.state is not state


@pytest.mark.parametrize(("state", "what"), list(product(DestinationState, DestinationInput)))
def test_every_state_and_input_of_a_destination(state: DestinationState, what: DestinationInput) -> None:
    at = Destination(NAME, SETTINGS, 0)
    at._enter(state, 0)  # noqa: SLF001 - as above
    listed = read(DESTINATION).get((state.name, what.name))
    before_us = at.due_us
    actions = at.handle(what, 5 * SECOND)
    if listed is None:
        assert (actions, at.state, at.due_us) == (None, state, before_us)
    else:
        assert (actions, at.state.name) == listed


def test_the_tables_have_no_more_rows_than_are_tried() -> None:
    assert len(SOURCE_TABLE) == len(read(SOURCE))
    assert len(SHORT_SOURCE_TABLE) == len(read(SHORT))
    assert len(DESTINATION_TABLE) == len(read(DESTINATION))


# --- the source --------------------------------------------------------------------------------------------


def brought(to: SourceState) -> Source:
    """Return a source that offered its seat, and went on as far as a state."""
    at = source()
    at.handle(SourceInput.MIGRATE, 0)
    if to is not SourceState.OFFERED:
        at.ready(B, (H, H2), 0)
    if to in {SourceState.DRAINING, SourceState.MOVED}:
        at.detoured(H, {P: 7}, 0)
        at.detoured(H2, {Q: 3}, 0)
    if to is SourceState.MOVED:
        at.worked({P: 7, Q: 3}, 0)
    assert at.state is to
    return at


def test_a_source_waits_for_all_homes_and_for_all_lanes() -> None:
    at = brought(SourceState.DETOURING)
    assert at.homes == at.waiting == {H, H2}
    assert at.worked({P: 99, Q: 99}, 0) == ()
    assert at.detoured(H, {P: 7}, 0) == ()
    assert at.detoured(H, {P: 9}, 0) == ()  # An answer that came twice counts once.
    assert (at.last, at.waiting) == ({P: 7}, {H2})
    assert at.detoured(H2, {Q: 3}, 0) == (Action.STOP_AT_LAST,)
    assert at.worked({P: 7}, 0) == at.worked({P: 6, Q: 3}, 0) == ()
    assert at.worked({P: 8, Q: 3}, 0) == (Action.STATE, Action.SUSPEND)
    assert at.worked({P: 9, Q: 9}, 0) == ()
    assert not at.is_over
    assert at.handle(SourceInput.ELSEWHERE, 0) == (Action.FORGET,)
    assert at.is_over


def test_a_lost_home_holds_up_nothing() -> None:
    at = brought(SourceState.DETOURING)
    assert at.lost(H, 0) == ()
    assert at.lost(NodeId("other"), 0) == ()
    assert at.detoured(H2, {Q: 3}, 0) == (Action.STOP_AT_LAST,)
    assert at.worked({Q: 3}, 0)  # Of producers of the lost home, what is here.
    at = brought(SourceState.DETOURING)
    at.detoured(H, {P: 7}, 0)
    assert at.lost(H2, 0) == (Action.STOP_AT_LAST,)


def test_a_channel_without_producers_moves_at_once() -> None:
    at = brought(SourceState.OFFERED)
    assert at.ready(B, (), 0) == (Action.MOVING, Action.DETOUR, Action.STOP_AT_LAST)
    assert at.worked({}, 0) == (Action.STATE, Action.SUSPEND)


def test_homes_are_not_asked_if_the_destination_gets_events_already() -> None:
    at = brought(SourceState.OFFERED)
    assert at.ready(B, (H, H2), 0, {P: 4}) == (Action.MOVING, Action.DETOUR, Action.STOP_AT_LAST)
    assert (at.homes, at.waiting, at.last) == (frozenset(), set(), {P: 4})
    assert at.worked({P: 3}, 0) == ()
    assert at.worked({P: 4}, 0) == (Action.STATE, Action.SUSPEND)


def test_lighter_variants_go_along_the_short_way() -> None:
    for name in ("lossy", "light"):
        at = source(name)
        at.handle(SourceInput.MIGRATE, 0)
        assert at.ready(B, (H,), 0) == (Action.MOVING, Action.STATE, Action.SUSPEND)
        assert (at.state, at.homes) == (SourceState.MOVED, frozenset())
        assert at.detoured(H, {P: 1}, 0) is None
    assert [name for name, each in VARIANTS.items() if each.state] == ["strict", "lossy"]


@pytest.mark.parametrize("state", [state for state in SourceState if state is not SourceState.GONE])
def test_a_source_heeds_nobody_that_has_no_part_in_it(state: SourceState) -> None:
    at = source() if state is SourceState.SEATED else brought(state)
    last, waiting = dict(at.last), set(at.waiting)
    for author in (A, H, NodeId("stranger")):
        assert at.ready(author, (H,), 0) is None
        assert at.answered(author, SourceInput.REFUSED, 0) is None
    assert at.detoured(NodeId("stranger"), {P: 1}, 0) is None
    assert at.detoured(B, {P: 1}, 0) is None
    assert (at.state, at.last, at.waiting) == (state, last, waiting)


def test_a_source_that_moved_is_still_that_after_a_restart() -> None:
    at = Source(NAME, B, VARIANTS["strict"], SETTINGS, 0, moved=True)
    assert at.handle(SourceInput.RESTART, 0) == (Action.STATE,)
    assert at.lost(B, 0) is None  # The state may have come; the consumer tells.
    assert at.handle(SourceInput.ELSEWHERE, 0) == (Action.FORGET,)


# --- time --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("state", "repeated", "end_s", "actions"),
    [
        (SourceState.OFFERED, Action.HANDOFF, 10, (Action.NOTE_REFUSAL,)),
        (SourceState.DETOURING, Action.DETOUR, 10, (Action.STOP_AT_LAST,)),
        (SourceState.DRAINING, None, 60, (Action.STATE, Action.SUSPEND)),
        (SourceState.MOVED, Action.STATE, 20, (Action.FORGET,)),
    ],
)
def test_a_source_repeats_with_doubling_delays_until_the_state_ends(
    state: SourceState, repeated: Action | None, end_s: int, actions: tuple[Action, ...]
) -> None:
    at, found = brought(state), []
    assert at.expire(at.due_us - 1) == ()
    while at.state is state:
        now = at.due_us
        found.append((now // SECOND, at.expire(now)))
    repeats = [each for each in (1, 3, 7, 15) if repeated is not None and each < end_s]
    assert found == [*((each, (repeated,)) for each in repeats), (end_s, actions)]


def test_a_destination_forgets_what_never_came() -> None:
    at = Destination(NAME, SETTINGS, 0)
    assert at.due_us == NEVER
    assert at.handle_source(B, DestinationInput.HANDOFF, 0) is None
    assert at.handle_source(A, DestinationInput.HANDOFF, 3 * SECOND) == (Action.READY,)
    assert at.handle_source(A, DestinationInput.HANDOFF, 4 * SECOND) == (Action.READY,)
    assert at.handle_source(B, DestinationInput.STATE, 4 * SECOND) is None
    assert at.handle_source(B, DestinationInput.DETOUR_BACK, 4 * SECOND) is None
    assert at.due_us == 83 * SECOND
    assert at.expire(83 * SECOND) == (Action.FORGET,)
    assert (at.state, at.due_us) == (DestinationState.ABSENT, NEVER)


def test_a_destination_tells_the_consumer_until_that_confirms() -> None:
    at = Destination(NAME, SETTINGS, 0)
    at.handle_source(A, DestinationInput.HANDOFF, 0)
    assert at.handle_source(A, DestinationInput.STATE, 0) == (Action.LOAD, Action.ATTACHED)
    assert not at.is_over
    for now_s in (1, 3, 7, 15, 31):
        assert at.due_us == now_s * SECOND
        assert at.expire(at.due_us) == (Action.ATTACHED,)
    assert at.handle(DestinationInput.CONFIRMED, 40 * SECOND) == ()
    assert (at.due_us, at.is_over) == (NEVER, True)
