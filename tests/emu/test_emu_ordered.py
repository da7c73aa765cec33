"""The metrics of ordered runs: every figure by a record made by hand, and what people read."""

from __future__ import annotations

import json

from tests.support.order_records import Story

from carrypost.emu.summary import EntryCounts, Spread, summarise
from carrypost.log.record import Record


def told() -> Record:
    """Return a record: a and c publish; b gets one message late and one never, drops one, and leaves with one."""
    story = Story("abc")
    story.publish(1, "a", "p", barrier=0)
    story.get(2, "c", "p")
    story.publish(3, "c", "q", barrier=1)
    story.publish(4, "c", "r", until=20, barrier=1)
    story.publish(5, "a", "s", barrier=4)
    story.publish(6, "a", "t", barrier=4)
    story.receive(10, "b", "q")
    story.receive(10, "b", "r")
    story.receive(11, "b", "s")
    story.size(12, "a", "pending", 0)
    story.size(12, "b", "pending", 3)
    story.get(12, "b", "p")
    story.deliver(12, "b", "q")
    story.expire(20, "b", "r")
    story.receive(25, "b", "t")
    story.drop(26, "b", "t", "evicted")
    story.size(30, "b", "pending", 5, at="leave")
    story.leave(30, "b", "away")
    story.receive(31, "c", "s")
    return story.end(999)


def test_every_figure_of_the_paper_is_counted_from_the_rows() -> None:
    found = summarise(told(), bound=False).ordered
    assert found is not None
    assert found.groups == {"x": "delta-causal"}
    assert (found.broadcast, found.received, found.co_delivered, found.expired) == (5, 7, 8, 1)
    assert found.co_delivery_ratio == 8 / 12
    assert found.expiry_ratio == 1 / 7
    assert (found.left_by_leaving, found.left_by_drop, found.left_at_end) == (1, 1, 1)
    assert found.received == found.co_delivered - found.broadcast + found.expired + 3
    # Receptions: p after 1 and 11, q 7, r 6, s 6 and 26, t 19.
    assert found.transmission_delay == Spread(1.0, 26.0, 10.857143, 8.060992)
    assert found.co_delivery_latency == Spread(0.0, 2.0, 0.666667, 0.942809)
    assert found.co_delivery_delay == Spread(1.0, 11.0, 7.0, 4.320494)
    assert found.barrier == EntryCounts(2.0, 4)
    assert found.registries == {"cache": EntryCounts(0.0, 0), "pending": EntryCounts(1.5, 5)}


def test_people_read_them_below_the_others() -> None:
    lines = summarise(told(), bound=False).text().splitlines()
    at = next(number for number, line in enumerate(lines) if line.startswith("  order"))
    assert lines[at:] == [
        "  order                x delta-causal",
        "  co-delivered         8 of 5 broadcast and 7 received, 66.67%",
        "  expired              1, 14.29% of those received",
        "  left                 1 as their nodes left, 1 dropped, 1 at the end",
        "  transmission delay   least 1.000 s, most 26.000 s, mean 10.857 s, deviation 8.061 s",
        "  co-delivery latency  least 0.000 s, most 2.000 s, mean 0.667 s, deviation 0.943 s",
        "  co-delivery delay    least 1.000 s, most 11.000 s, mean 7.000 s, deviation 4.320 s",
        "  barrier              2.00 on average, at most 4 entries",
        "  cache                0.00 on average, at most 0",
        "  pending              1.50 on average, at most 5",
    ]


def test_the_line_of_json_has_them_too() -> None:
    found = json.loads(summarise(told(), bound=False).json())["ordered"]
    assert (found["broadcast"], found["co_delivery_ratio"], found["expiry_ratio"]) == (5, 8 / 12, 1 / 7)
    assert found["co_delivery_latency"] == {"min_s": 0.0, "max_s": 2.0, "mean_s": 0.666667, "stdev_s": 0.942809}
    assert found["registries"]["pending"] == {"mean": 1.5, "max": 5}


def test_what_comes_again_after_a_crash_counts_once() -> None:
    story = Story("ab")
    story.publish(1, "a", "p")
    story.get(2, "b", "p")
    story.leave(3, "b", "crash")
    story.join(4, "b")
    story.receive(5, "b", "p", detail="again")
    story.deliver(5, "b", "p", detail="redelivered")
    found = summarise(story.end(9), bound=False).ordered
    assert found is not None
    assert (found.received, found.co_delivered, found.left_at_end) == (1, 2, 0)
    assert found.co_delivery_delay == Spread(1.0, 1.0, 1.0, 0.0)


def test_a_run_without_order_says_nothing_of_it() -> None:
    story = Story("ab", ordering="none")
    story.publish(1, "a", "p")
    found = summarise(story.end(9), bound=False)
    assert found.ordered is None
    assert "order" not in found.text()
    assert json.loads(found.json())["ordered"] is None


def test_an_order_in_which_nothing_was_received_has_no_delays() -> None:
    story = Story("ab", ordering="causal")
    story.publish(1, "a", "p")
    found = summarise(story.end(9), bound=False)
    assert found.ordered is not None
    assert (found.ordered.transmission_delay, found.ordered.expiry_ratio) == (None, None)
    assert "  transmission delay   –" in found.text()


def test_only_messages_that_have_an_order_count() -> None:
    story = Story("ab", ordering="none", destination="plain")
    story.publish(1, "a", "p")
    story.get(2, "b", "p")
    story.ordering, story.destination = "causal", "forum"
    story.publish(3, "a", "q")
    found = summarise(story.end(9), bound=False).ordered
    assert found is not None
    assert (found.groups, found.broadcast, found.received, found.co_delivered) == ({"forum": "causal"}, 1, 0, 1)
