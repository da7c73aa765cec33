"""Ten times as much takes about ten times as many steps, counted and not timed; and the benchmark of it runs."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from types import FrameType
from typing import TYPE_CHECKING

import pytest

from benchmarks import _growth_core, growth
from carrypost.gossip.holdings.copies import Copy
from carrypost.gossip.strategy import offers
from carrypost.gossip.strategy.exchange_contact import Candidates

if TYPE_CHECKING:
    from _typeshed import TraceFunction

SIZES = {"messages offered and sent": 100, "open requests and their replies": 8}
SIZE = 20


def steps(work: growth.Work) -> int:
    """Return the number of lines that are run, one for each turn of a comprehension."""
    count = 0

    def trace(_frame: FrameType, event: str, _argument: object) -> TraceFunction:
        nonlocal count
        count += event == "line"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        work()
    finally:
        sys.settrace(before)
    return count


@pytest.mark.parametrize("load", growth.LOADS, ids=lambda load: load.what)
def test_ten_times_as_much_takes_at_most_twelve_times_as_many_steps(
    load: growth.Load, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "carrypost.messaging.namespace._BESIDE", SIZE // 5
    )  # So that there are more names than are compared.
    size = SIZES.get(load.what, SIZE)
    few, many = steps(load.make(size)), steps(load.make(growth.TIMES * size))
    assert few > size
    assert many <= growth.GOAL * few


def test_a_message_is_ranked_once_or_twice_however_many_pages_of_offers_there_are(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    size, ranked = 1_000, 0
    rank = Candidates.rank

    def counted(self: Candidates, mask: int, wanted: int, copies: Sequence[Copy | None]) -> None:
        nonlocal ranked
        ranked += mask.bit_count()
        rank(self, mask, wanted, copies)

    monkeypatch.setattr(Candidates, "rank", counted)
    monkeypatch.setattr(offers, "OPEN_PAGES_MAX", 1)
    _growth_core.offering(size)()
    assert size <= ranked <= 2 * size


def test_the_table_has_a_row_for_each_load(capsys: pytest.CaptureFixture[str]) -> None:
    assert growth.main(["--quick", "--json"]) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [row["load"] for row in rows] == [load.what for load in growth.LOADS]
    for row in rows:
        assert row["table"] == "Growth"
        assert row["times"] == pytest.approx(row["ten times as much, CPU ms"] / row["CPU ms"])
        assert (row["goal"], row["met"]) == (12, None)


def test_one_load_alone_is_measured_and_a_missed_goal_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def slow(size: int) -> growth.Work:
        def work() -> None:
            assert sum(1 for _ in range(size**3)) == size**3

        return work

    monkeypatch.setattr(growth, "LOADS", (growth.Load("slow", 5, slow),))
    assert growth.main(["--repeats", "1", "--strict", "--json"]) == 1
    assert growth.main(["--repeats", "1", "--json"]) == 0


@pytest.mark.parametrize("arguments", [("--only", "nothing of this name"), ("--repeats", "0")])
def test_what_makes_no_sense_is_a_usage_error(arguments: tuple[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        growth.main(arguments)
    assert arguments[0] in capsys.readouterr().err
