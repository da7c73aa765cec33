"""The state machine of an exchange: every move of its table, alone and by real hosts, and none beside it."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from unittest import mock

import pytest

from carrypost import testing
from carrypost.errors import StateError
from carrypost.gossip.strategy.exchange_contact import (
    EXCHANGE_TABLE,
    ExchangeInput,
    ExchangeMachine,
    ExchangeState,
    ReviewRun,
)

Key = tuple[ExchangeState, ExchangeInput]
SHOWN_SLOTS = 0b101

MAKES: dict[ExchangeInput, Callable[[ExchangeMachine], None]] = {
    ExchangeInput.PROFILE_KNOWN: ExchangeMachine.profile_known,
    ExchangeInput.PROFILE_CHANGED: ExchangeMachine.profile_changed,
    ExchangeInput.BEGIN: lambda agreement: agreement.begin(ReviewRun(1, 0)),
    ExchangeInput.GIVE_WAY: ExchangeMachine.give_way,
    ExchangeInput.SHOWN: lambda agreement: agreement.shown(SHOWN_SLOTS),
    ExchangeInput.AGREE: ExchangeMachine.agree,
}


def paths() -> dict[ExchangeState, list[ExchangeInput]]:
    """Return the shortest way to every state that can be reached."""
    found: dict[ExchangeState, list[ExchangeInput]] = {ExchangeMachine().state: []}
    for state in (queue := list(found)):
        for (before, move), after in EXCHANGE_TABLE.items():
            if before is state and after not in found:
                found[after] = [*found[state], move]
                queue.append(after)
    return found


def brought_to(state: ExchangeState) -> ExchangeMachine:
    agreement = ExchangeMachine()
    for move in paths()[state]:
        MAKES[move](agreement)
    return agreement


def facts(agreement: ExchangeMachine) -> tuple[object, ...]:
    return tuple(getattr(agreement, name) for name in ExchangeMachine.__slots__)


def check(agreement: ExchangeMachine) -> None:
    """Check that the knowledge belongs to the state."""
    state = agreement.state
    assert (agreement.asking is not None) == (state in {ExchangeState.COMPARING, ExchangeState.REVIEWING})
    assert not agreement.peer_lacks or state is ExchangeState.HELPING


def test_every_state_is_reached_from_the_first() -> None:
    assert paths().keys() == set(ExchangeState)


@pytest.mark.parametrize(("state", "move"), list(product(ExchangeState, ExchangeInput)))
def test_a_move_leads_where_the_table_says_or_raises_and_changes_nothing(
    state: ExchangeState, move: ExchangeInput
) -> None:
    agreement = brought_to(state)
    assert agreement.state is state
    check(agreement)
    before = facts(agreement)
    after = EXCHANGE_TABLE.get((state, move))
    if after is not None:
        MAKES[move](agreement)
        assert agreement.state is after
        check(agreement)
    elif move is ExchangeInput.GIVE_WAY:
        MAKES[move](agreement)  # Who has begun no run has none to give up.
        assert facts(agreement) == before
    else:
        with pytest.raises(StateError, match=f"{state.value} has no move {move.name}"):
            MAKES[move](agreement)
        assert facts(agreement) == before


def test_what_the_neighbour_lacks_is_known_only_until_the_own_run_begins() -> None:
    agreement = brought_to(ExchangeState.HELPING)
    agreement.shown(0b10)
    assert agreement.peer_lacks == SHOWN_SLOTS | 0b10
    agreement.forget_slots(0b1)
    assert agreement.peer_lacks == 0b110
    agreement.begin(ReviewRun(1, 0))
    assert agreement.peer_lacks == 0


# ------------------------------------------------------------------------------------------- by real hosts


def contact(
    *, alike: bool, seed: int, size: int = 3_000, pace_s: float = 5, lifetime_s: float = 60, **link: float
) -> None:
    """Two hosts with much to give each other; the interests of either change now and then, unless they are alike."""
    with testing.network("a", "b", digest_every=2, seed=seed) as net:
        for name, other in (("a", "b"), ("b", "a")):
            net.subscribe(name, "news")
            if not alike:
                net.subscribe(name, f"for {name}")
            for _ in range(6 if size else 30):
                net.publish(name, "news", bytes(size), lifetime_s=lifetime_s)
                net.publish(name, f"for {other}", bytes(size), lifetime_s=lifetime_s)
        net.link("a", "b", **link)  # type: ignore[arg-type]
        for turn in range(40):
            net.advance(pace_s)
            if not alike:
                number = net.subscribe("ab"[turn % 2], f"topic {turn}")
                net.advance(pace_s)
                net.unsubscribe("ab"[turn % 2], number)


SORTS: tuple[Callable[[int], None], ...] = (
    lambda seed: contact(alike=True, seed=seed, delay_s=1.5),
    lambda seed: contact(alike=True, seed=seed, delay_s=0.5, loss=0.4),
    lambda seed: contact(alike=False, seed=seed, pace_s=0.6, loss=0.3),
    lambda seed: contact(alike=False, seed=seed, pace_s=1, loss=0.6, lifetime_s=8),
    lambda seed: contact(alike=False, seed=seed, pace_s=1, loss=0.5, size=0),
)


def test_hosts_make_every_move_of_the_table_and_no_other() -> None:
    seen: set[Key] = set()
    move = ExchangeMachine._move  # noqa: SLF001 - all moves go through it

    def seeing(agreement: ExchangeMachine, kind: ExchangeInput) -> None:
        before = agreement.state
        move(agreement, kind)
        seen.add((before, kind))

    with mock.patch.object(ExchangeMachine, "_move", seeing):
        rare = [(10, SORTS[3]), (25, SORTS[3])]  # Two moves are rare. Here they are known to happen.
        for seed, sort in [*product(range(2), SORTS), *rare, *product(range(2, 100), SORTS)]:
            if seen == EXCHANGE_TABLE.keys():
                break
            sort(seed)
    assert seen == EXCHANGE_TABLE.keys()
