"""Messages that wait for their order: when they may expire, and how long they may wait."""

from __future__ import annotations

import pytest
from tests.support.order_records import DEFAULTS, S, Story

from carrypost.emu.verify.invariants import check
from carrypost.log.record import Kind, Record


def told(record: Record, rule: str) -> list[str]:
    return [each.text for each in check(record, bound=False) if each.rule == rule]


def chain(*, until_p: float | None = None, until_q: float | None = None, ordering: str = "delta-causal") -> Story:
    """q waits at b for p, which only a has."""
    story = Story("abc", ordering=ordering)
    story.publish(1, "a", "p", until=until_p)
    story.get(2, "c", "p")
    story.publish(3, "c", "q", until=until_q)
    story.receive(4, "b", "q")
    return story


# --- what expires ---------------------------------------------------------------------------------------------------


def test_what_waits_may_expire_at_its_deadline_and_is_then_gone() -> None:
    story = chain(until_q=10)
    story.expire(10, "b", "q")
    story.drop(10, "c", "q")
    assert check(story.end(20)) == []


@pytest.mark.parametrize("ordering", ["causal", "delta-causal"])
def test_what_expires_before_its_deadline_is_told(ordering: str) -> None:
    story = chain(until_p=10, until_q=15, ordering=ordering)
    story.expire(10, "b", "q")
    assert told(story.end(14), "expired while it waited") == ["b: q at 10.000000 s: expired before its deadline"]


def test_what_expired_early_and_is_never_dropped_is_still_here() -> None:
    story = chain(until_p=10, until_q=15, ordering="causal")
    for node in "ac":
        story.drop(10, node, "p")
    story.expire(10, "b", "q")
    story.drop(15, "c", "q")
    assert told(story.end(20), "every end has a reason") == [
        "b: q at 4.000000 s: still here after its deadline, and no row `drop` explains it"
    ]


def test_what_expired_early_counts_as_held_until_it_is_dropped() -> None:
    story = chain(until_p=10, until_q=15, ordering="causal")
    story.expire(10, "b", "q")
    story.receive(12, "b", "q")
    assert told(story.end(14), "received once") == ["b: q at 12.000000 s: received twice"]


def test_by_the_clock_of_its_node_an_expiry_may_be_the_end_of_a_copy() -> None:
    """b is five minutes ahead: what expires there comes again from others, were it not refused."""
    story = chain(until_q=310)
    story.expire(11, "b", "q", clock=311.0)
    story.receive(12, "b", "q")
    assert told(story.end(14), "received once") == []


@pytest.mark.parametrize(
    ("said", "what"),
    [
        ("b: p at 5.000000 s: expired where it is not", [("expire", 5, "b", "p")]),
        ("c: q at 5.000000 s: expired where it is not", [("expire", 5, "c", "q")]),
        ("c: p at 5.000000 s: expired, and was delivered before", [("expire", 5, "c", "p")]),
        ("b: q at 7.000000 s: expired twice", [("expire", 6, "b", "q"), ("expire", 7, "b", "q")]),
        ("b: q at 8.000000 s: delivered after it expired", [("expire", 7, "b", "q"), ("deliver", 8, "b", "q")]),
        ("b: q at 9.000000 s: expired before its deadline", [("expire", 9, "b", "q")]),
        (
            "b: q at 10.000000 s: dropped at its deadline, and it waited for its order: that is an expiry",
            [("drop", 10, "b", "q")],
        ),
    ],
)
def test_what_must_not_expire(said: str, what: list[tuple[str, float, str, str]]) -> None:
    story = chain(until_q=10)
    for kind, t, node, message in what:
        getattr(story, kind)(t, node, message)
    assert said in told(story.end(20), "expired while it waited")


def test_only_what_has_an_order_expires() -> None:
    story = chain(ordering="none", until_q=10)
    story.expire(10, "b", "q")
    assert "b: q at 10.000000 s: expired, and its topic has no order to wait for" in told(
        story.end(20), "expired while it waited"
    )


def test_after_a_crash_it_may_be_told_a_second_time() -> None:
    story = chain(until_q=10, ordering="causal")
    story.expire(10, "b", "q")
    story.leave(11, "b", "crash")
    story.join(12, "b")
    story.expire(12, "b", "q")
    assert told(story.end(20), "expired while it waited") == []


def test_what_was_dropped_may_be_back_after_a_crash_and_expire_again() -> None:
    for detail, wrong in (("crash", 0), ("away", 1)):
        story = chain(until_q=10, ordering="causal")
        story.expire(10, "b", "q")
        story.drop(11, "b", "q", "evicted")
        story.leave(11.5, "b", detail)
        story.join(12, "b")
        story.expire(12, "b", "q")
        assert len(told(story.end(20), "expired while it waited")) == wrong


def test_the_clock_of_a_group_may_be_some_microseconds_ahead() -> None:
    story = chain(until_q=10)
    story.expire(10 - 2e-6, "b", "q")
    assert told(story.end(20), "expired while it waited") == []


# --- what waits -----------------------------------------------------------------------------------------------------


def vain(record: Record) -> list[str]:
    return told(record, "nothing waits in vain")


def test_who_waits_for_something_that_lives_waits_rightly() -> None:
    assert vain(chain().end(900)) == []


def test_once_all_before_it_is_delivered_it_has_to_be_delivered_at_that_instant() -> None:
    for late, wrong in ((0.0, []), (1e-6, ["b: q at 4.000000 s: received, and not delivered at 7.000000 s"])):
        story = chain()
        story.get(7, "b", "p")
        story.deliver(7 + late, "b", "q")
        assert [each.partition(", when all")[0] for each in vain(story.end(900))] == wrong


def test_a_message_that_has_nothing_before_it_does_not_wait() -> None:
    story = Story("ab")
    story.publish(1, "a", "p")
    story.receive(2, "b", "p")
    assert len(vain(story.end(900))) == 1


def test_once_all_before_it_is_dead_it_has_to_be_delivered_at_that_instant() -> None:
    for t, wrong in ((10.0, []), (10.000001, ["10.000000"]), (900.0, ["10.000000"])):
        story = chain(until_p=10)
        if t < 900:
            story.deliver(t, "b", "q")
        found = vain(story.end(900))
        assert [each.partition("not delivered at ")[2][:9] for each in found] == wrong


@pytest.mark.parametrize("ordering", ["causal", "delta-causal"])
def test_it_has_to_be_delivered_when_what_it_waits_for_dies(ordering: str) -> None:
    for t, wrong in ((10.0, 0), (11.0, 1)):
        story = chain(until_p=10, ordering=ordering)
        story.deliver(t, "b", "q")
        assert len(vain(story.end(900))) == wrong


def test_what_waits_for_something_that_expired_here_waits_in_vain() -> None:
    story = chain(until_p=10, ordering="causal")
    story.get(4, "a", "q")
    story.publish(5, "a", "r")
    story.receive(6, "b", "r")
    story.expire(10, "b", "q")
    assert [each[:4] for each in vain(story.end(900))] == ["b: r"]


def test_who_is_away_does_on_return_what_fell_due() -> None:
    for t, wrong in ((20.0, 0), (21.0, 1)):
        story = chain(until_p=10)
        story.leave(9, "b", "away")
        story.join(20, "b")
        story.deliver(t, "b", "q")
        assert len(vain(story.end(900))) == wrong


def test_what_was_dropped_waits_no_more_until_it_comes_again() -> None:
    story = chain()
    story.drop(5, "b", "q", "evicted")
    story.get(7, "b", "p")
    assert vain(story.end(8)) == []
    story.receive(10, "b", "q")
    assert [each[:4] for each in vain(story.end(900))] == ["b: q"]


def test_who_leaves_for_good_waits_no_more() -> None:
    story = chain(until_p=10)
    story.leave(10, "b")
    assert vain(story.end(900)) == []


@pytest.mark.parametrize(
    "disturbance",
    [
        DEFAULTS + "[faults]\nclock_skew_s = 1.0\n",
        DEFAULTS + "[faults]\ndisk_full_per_h = 1.0\n",
        "disk_delay_s = 0.1\n" + DEFAULTS,
        DEFAULTS + '[[faults.event]]\nkind = "disk-full"\n',
        "",
        "crash",
    ],
)
def test_nothing_is_said_where_rows_do_not_tell_all(disturbance: str) -> None:
    defaults = disturbance if "=" in disturbance or not disturbance else DEFAULTS
    story = Story("abc", defaults=defaults)
    story.publish(1, "a", "p")
    story.receive(2, "b", "p")
    if disturbance == "crash":
        story.leave(3, "c", "crash")
    assert vain(story.end(900)) == []


def test_a_whole_day_is_looked_at_in_no_time() -> None:
    """Check 300 messages, each of which waits at 20 nodes for the one before it, which comes an hour later."""
    nodes = [f"n{number}" for number in range(20)]
    record = Record("day")
    record.add(Kind.RUN, 0, "", attrs={"scenario": "", "defaults": DEFAULTS})
    for node in ["author", *nodes]:
        record.add(Kind.JOIN, 0, node)
    attrs = {"destination": "x", "ordering": "causal"}
    message = {"source": "author", "size": 1}
    for number in range(300):
        name = f"m{number}"
        record.add(Kind.PUBLISH, number * S, "author", message=name, attrs=attrs, **message)  # type: ignore[arg-type]
        record.add(Kind.DELIVER, number * S, "author", message=name, **message)  # type: ignore[arg-type]
    for number in reversed(range(300)):
        for node in nodes:
            at = (1_000 - number) * S
            columns = {"message": f"m{number}", "peer": "author", "hops": 1, **message}
            record.add(Kind.RECEIVE, at, node, **columns)  # type: ignore[arg-type]
    assert len(vain(record)) == 20  # m0 came, and should have set off all


# --- what does not wait long enough -----------------------------------------------------------------------------------


def hurried(record: Record) -> list[str]:
    return told(record, "nothing is hurried")


@pytest.mark.parametrize("ordering", ["causal", "delta-causal"])
def test_who_is_given_something_was_given_what_is_before_it_and_alive_even_if_that_never_comes(ordering: str) -> None:
    for t, wrong in ((4.0, 1), (10.0, 0)):
        story = chain(until_p=10, ordering=ordering)
        story.deliver(t, "b", "q")
        story.publish(t, "b", "r")  # What is missing is told once.
        assert [each[:4] for each in hurried(story.end(900))] == ["b: q"] * wrong


def test_what_waits_may_expire_in_causal_order_with_everything_before_it_alive() -> None:
    story = chain(until_q=10, ordering="causal")
    story.expire(10, "b", "q")
    assert hurried(story.end(900)) == []
