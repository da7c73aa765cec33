"""Rules about messages with recipients: sound records pass, and each rule finds the record that breaks it."""

from __future__ import annotations

from pathlib import Path

import pytest

from carrypost.emu.records.log import log_of
from carrypost.emu.runs import run
from carrypost.emu.verify import soak as search
from carrypost.emu.verify.addressed import displaced_by_a_higher_rank, purged_once_all_could_say_so
from carrypost.emu.verify.drawing import ADDRESSED
from carrypost.emu.verify.draws_addressed import draw_addressed
from carrypost.emu.verify.facts import Facts
from carrypost.emu.verify.soak import attempt, soak
from carrypost.record import Kind, Record

S = 1_000_000
SEEDS = range(1, 51)
_DEFAULTS = "[settings]\nshares = false\n"


def begun(defaults: str = _DEFAULTS) -> Record:
    """Nodes a to d; a meets b until 10 s, b meets c from 5 s on, and c meets d from 20 s on."""
    record = Record("x/default/1")
    record.add(Kind.RUN, 0, "", attrs={"scenario": "", "defaults": defaults})
    for node in "abcd":
        record.add(Kind.JOIN, 0, node)
    record.add(Kind.CONTACT, 0, "a", peer="b", attrs={"end": "10.0"})
    return record


def publish(
    record: Record, t: float, message: str, recipients: str, *, mode: str = "persistent", priority: int = 4
) -> None:
    attrs = {"mode": mode, "priority": str(priority), "recipients": recipients}
    record.add(Kind.PUBLISH, round(t * S), "a", message=message, source="a", size=1, attrs=attrs)


def come(record: Record, t: float, node: str, message: str, kind: Kind = Kind.RECEIVE) -> None:
    peer, hops = ("a", 1) if kind is Kind.RECEIVE else (None, None)
    record.add(kind, round(t * S), node, peer=peer, message=message, source="a", hops=hops, size=1)


def drop(record: Record, t: float, node: str, message: str, reason: str) -> None:
    record.add(Kind.DROP, round(t * S), node, message=message, source="a", size=1, detail=reason)


def purged_at(node: str, t: float) -> list[str]:
    """Return what is said of a purge at this node, of a message that b is given at 2 s and c at 6 s."""
    record = begun()
    publish(record, 1, "m", "b c")
    come(record, 2, "b", "m", Kind.DELIVER)
    record.add(Kind.CONTACT, 5 * S, "b", peer="c", attrs={"end": "30.0"})
    if t < 6:
        drop(record, t, node, "m", "purged")
    come(record, 6, "c", "m", Kind.DELIVER)
    if t > 20:
        record.add(Kind.CONTACT, 20 * S, "c", peer="d", attrs={"end": "30.0"})
    if t >= 6:
        drop(record, t, node, "m", "purged")
    return [text for _, text in purged_once_all_could_say_so(Facts(log_of(record)))]


@pytest.mark.parametrize(("node", "t"), [("a", 6), ("b", 6), ("c", 7), ("d", 21)])
def test_a_copy_may_go_where_all_recipients_could_be_heard_of(node: str, t: float) -> None:
    assert purged_at(node, t) == []


def test_a_copy_that_goes_earlier_is_found() -> None:
    could = "purged, and {} could {} have been heard of"
    assert purged_at("d", 19) == ["d: m at 19.000000 s: " + could.format("b", "never")]
    assert purged_at("a", 5.9) == ["a: m at 5.900000 s: " + could.format("c", "not before 6.000000 s")]
    assert purged_at("b", 5.9) == ["b: m at 5.900000 s: " + could.format("c", "not before 6.000000 s")]


def displaced(evicted: str, *, defaults: str = _DEFAULTS) -> list[str]:
    """Return what is said if b, which holds three messages for d and one for itself, lets one of them go."""
    record = begun(defaults)
    publish(record, 1, "low", "d", mode="non-persistent", priority=9)
    publish(record, 1.5, "old", "d", priority=4)
    publish(record, 2, "new", "d", priority=4)
    publish(record, 2, "own", "b", mode="non-persistent", priority=0)
    for message in ("low", "old", "new", "own"):
        come(record, 3, "b", message)
    drop(record, 4, "b", evicted, "evicted")
    return [text for _, text in displaced_by_a_higher_rank(Facts(log_of(record)))]


def test_the_lowest_rank_gives_way() -> None:
    assert displaced("low") == []
    assert displaced("old") == ["b: old at 4.000000 s: evicted, and low stayed, which ranks lower"]
    assert displaced("new") == ["b: new at 4.000000 s: evicted, and low stayed, which ranks lower"]
    assert displaced("own") == []  # What is for the node itself is not compared by this rule, if it ranks lowest.


def test_where_something_else_may_be_the_reason_nothing_is_said() -> None:
    assert displaced("new", defaults="[settings]\nshares = true\n") == []
    assert displaced("new", defaults=_DEFAULTS + "[faults]\ndisk_full_per_h = 1\n") == []
    assert displaced("new", defaults=_DEFAULTS + "[faults]\nclock_skew_s = 1\n") == []


def test_draws_have_recipients_purges_and_evictions_that_are_judged(tmp_path: Path) -> None:
    seen: dict[str, int] = {}
    for seed in range(1, 8):
        table = run(draw_addressed(seed).write(tmp_path / str(seed)), seed).table
        for kind, detail in zip(table["kind"].to_pylist(), table["detail"].to_pylist(), strict=True):
            if kind == "drop":
                seen[detail] = seen.get(detail, 0) + 1
        recipients = log_of(table).attr("recipients")
        seen["recipients"] = seen.get("recipients", 0) + len(recipients)
    assert min(seen["recipients"], seen["purged"], seen["evicted"]) > 5, seen


def test_random_scenarios_with_recipients_break_no_rule() -> None:
    failed = [outcome for outcome in soak(SEEDS, ADDRESSED) if outcome.problems]
    assert not failed, "\n".join(f"{search.replay(each.seed, ADDRESSED)}: {each.problems[0]}" for each in failed)


@pytest.mark.soak
def test_many_random_scenarios_with_recipients_break_no_rule() -> None:
    failed = [outcome for outcome in soak(range(1, 2_001), ADDRESSED, jobs=2) if outcome.problems]
    assert not failed, "\n".join(f"{search.replay(each.seed, ADDRESSED)}: {each.problems[0]}" for each in failed)


def test_a_seed_draws_the_same_scenario_and_can_be_repeated() -> None:
    assert draw_addressed(5) == draw_addressed(5)
    assert search.replay(5, ADDRESSED) == "carrypost emu soak --first 5 --seeds 1 --addressed"
    assert attempt(5, ADDRESSED) == attempt(5, ADDRESSED)
