"""Rules about channels: sound records pass, and each rule finds the record that breaks it."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from carrypost.emu.rows import Log, log_of
from carrypost.emu.scenario import Scenario
from carrypost.emu.verify import soak as search
from carrypost.emu.verify.facts import Facts
from carrypost.emu.verify.order import events_once_and_in_order, results_of_their_events, undelivered
from carrypost.emu.verify.random_scenarios import CHANNELS, draw_channels
from carrypost.emu.verify.soak import attempt, soak
from carrypost.log.record import Kind, Record

S = 1_000_000
SEEDS = (5, 9)
"""Tried in every run of the tests; `carrypost emu soak --channels --seeds 500` tries more."""
TO = "results/c/1"


class Story:
    """A producer p that emitted five events, and a consumer c whose home is b."""

    def __init__(self, events: int = 5) -> None:
        self.record = Record("x/default/1")
        self.record.add(Kind.RUN, 0, "", attrs={"scenario": "", "defaults": ""})
        for node in "pbc":
            self.record.add(Kind.JOIN, 0, node)
        attrs = {"channel": "flood", "role": "consumer", "subscription": "1"}
        self.record.add(Kind.HOME, 0, "c", peer="b", detail="first", attrs=attrs)
        for number in range(1, events + 1):
            attrs = {"destination": "channel/flood", "event": str(number)}
            self.record.add(Kind.PUBLISH, number * S, "p", message=f"e{number}", source="p", size=1, attrs=attrs)
        self.t_us = 10 * S

    def result(self, number: int, run: str, *, origin: str = "", delivered: bool = True) -> Story:
        """Let the consumer get a result that covers a run AFTER-UPTO of events."""
        self.t_us += S
        attrs = {"destination": TO, "covers": f"1 {number} 0:{run}", "producers": "p"}
        attrs |= {"origin": origin} if origin else {}
        about = {"message": f"r{number} {run}", "source": "b", "size": 1}
        self.record.add(Kind.PUBLISH, self.t_us, "b", attrs=attrs, **about)  # type: ignore[arg-type]
        self.record.add(Kind.RECEIVE, self.t_us, "c", peer="b", hops=1, **about)  # type: ignore[arg-type]
        if delivered:
            self.record.add(Kind.DELIVER, self.t_us, "c", **about)  # type: ignore[arg-type]
        return self

    def lost(self, events: int) -> Story:
        """Tell the consumer that events are lost."""
        attrs = {"destination": TO}
        self.record.add(Kind.FAILURE, self.t_us, "c", peer="p", size=events, detail="events-lost", attrs=attrs)
        return self

    @property
    def facts(self) -> Facts:
        return Facts(log_of(self.record))

    def faults(self) -> list[str]:
        return [text.partition(" s: ")[2] for _, text in events_once_and_in_order(self.facts)]


def test_events_that_come_one_by_one_pass() -> None:
    assert Story().result(1, "0-1").result(2, "1-2").result(3, "2-5").faults() == []


def test_a_consumer_may_begin_with_any_event() -> None:
    assert Story().result(1, "3-4").result(2, "4-5").faults() == []


def test_an_event_that_comes_twice_is_found() -> None:
    assert Story().result(1, "0-2").result(2, "1-3").faults() == ["events 2 to 3 of p after 2"]


def test_events_out_of_order_are_found() -> None:
    assert Story().result(1, "2-3").result(2, "1-2").faults() == ["events 2 to 2 of p after 3"]


def test_results_out_of_order_are_found() -> None:
    assert Story().result(2, "0-1").result(1, "1-2").faults() == ["result 1 comes after 2"]


def test_missing_events_are_found_unless_the_consumer_is_told() -> None:
    assert Story().result(1, "0-1").result(2, "3-4").faults() == [
        "events 2 to 3 of p are missing, and 0 were reported lost"
    ]
    assert Story().result(1, "0-1").result(2, "3-4").lost(1).faults()
    assert Story().result(1, "0-1").result(2, "3-4").lost(2).faults() == []


def test_events_that_gave_no_result_are_not_missing() -> None:
    assert Story().result(1, "0-1").result(2, "1-3", delivered=False).result(3, "3-4").faults() == []
    late = Story().result(1, "0-1").result(4, "1-3", delivered=False).result(2, "3-4")
    assert late.faults(), "a result that comes after it covers nothing before it"


def test_a_result_passes_on_the_event_that_it_covers() -> None:
    assert list(results_of_their_events(Story().result(1, "0-1", origin="e1").facts)) == []
    assert list(results_of_their_events(Story().result(1, "0-1", origin="e2").facts))
    assert list(results_of_their_events(Story().result(1, "0-1", origin="e9").facts))


def test_events_that_never_arrive_are_found() -> None:
    assert undelivered(Story().result(1, "0-5").facts, 9 * S) == []
    story = Story().result(1, "0-3")
    assert undelivered(story.facts, 9 * S) == ["c did not get the events [4, 5] of p, and 0 were reported lost"]
    assert undelivered(story.facts, 4 * S) == [], "later ones may be on their way"
    assert undelivered(story.lost(2).facts, 9 * S) == []


def test_random_channels_break_no_rule() -> None:
    failed = [outcome for outcome in soak(SEEDS, CHANNELS) if outcome.problems]
    assert not failed, "\n".join(f"{search.replay(each.seed, CHANNELS)}: {each.problems[0]}" for each in failed)


@pytest.mark.soak
def test_many_random_channels_break_no_rule() -> None:
    failed = [outcome for outcome in soak(range(1, 501), CHANNELS, jobs=2) if outcome.problems]
    assert not failed, "\n".join(f"{search.replay(each.seed, CHANNELS)}: {each.problems[0]}" for each in failed)


def test_the_draws_have_clients_faults_and_both_modes() -> None:
    drawn = [draw_channels(seed) for seed in range(60)]
    assert draw_channels(5) == drawn[5]
    scenarios = [Scenario.parse(each.files["scenario.toml"]) for each in drawn]
    assert {each.run.mode for each in scenarios} == {"ideal", "faithful"}
    assert {each.workloads[0].modulator for each in scenarios} == {"", "synthetic"}
    assert {event.kind for each in scenarios for event in each.faults.event} >= {"crash", "away", "disk-full"}
    assert 20 < sum(each.exact for each in drawn) < 55


def test_missing_an_event_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    seed = next(seed for seed in SEEDS if draw_channels(seed).exact)

    def fewer(table: pa.Table) -> Log:
        return log_of(table.filter(pc.invert(pc.is_in(table["kind"], pa.array([Kind.RECEIVE, Kind.DELIVER])))))

    monkeypatch.setattr(search, "log_of", fewer)
    assert any("did not get the events" in problem for problem in attempt(seed, CHANNELS).problems)
