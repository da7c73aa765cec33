"""The definitions of the causal metrics, by numbers and by arrays; `carrypost emu show` needs no Spark for them."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
from tests.forked import forked
from tests.order_records import Story

from carrypost.emu.records import causal
from carrypost.record import Record


def share(part: int, whole: int) -> float | None:
    return part / whole if whole else None


def test_a_delay_is_the_way_and_the_wait_together() -> None:
    way, wait = causal.transmission_delay(10, 17), causal.co_delivery_latency(17, 20)
    assert (way, wait, causal.co_delivery_delay(way, wait)) == (7, 3, 10)


def test_arrays_are_reckoned_with_row_by_row() -> None:
    published, received, delivered = np.array([0, 5]), np.array([4, 6]), np.array([9, 6])
    way, wait = causal.transmission_delay(published, received), causal.co_delivery_latency(received, delivered)
    assert (way.tolist(), wait.tolist()) == ([4, 1], [5, 0])
    assert causal.co_delivery_delay(way, wait).tolist() == [9, 1]
    gone, dead = np.array([True, False, False]), np.array([False, True, False])
    assert causal.left(gone, dead).tolist() == [False, False, True]


def test_ratios_are_of_what_could_have_been_delivered_and_of_what_could_have_expired() -> None:
    assert causal.co_delivery_ratio(5, 7, 8, share) == 8 / 12
    assert causal.expiry_ratio(7, 1, share) == 1 / 7
    assert causal.co_delivery_ratio(0, 0, 0, share) is causal.expiry_ratio(0, 0, share) is None


def test_a_record_is_shown_with_them_where_there_is_no_spark(tmp_path: Path) -> None:
    story = Story("ab")
    story.publish(1, "a", "p", barrier=0)
    story.get(3, "b", "p")
    record: Record = story.end(9)
    path = tmp_path / "r.jsonl"
    path.write_text("\n".join(record.json_lines()), encoding="utf-8")

    def lack_spark() -> None:
        for name in {"pyspark", *sys.modules}:
            if name.partition(".")[0] == "pyspark":
                sys.modules[name] = None  # type: ignore[assignment]

    code, shown, _ = forked(["emu", "show", str(path)], lack_spark)
    assert code == 0
    assert json.loads(shown)["ordered"]["co_delivery_ratio"] == 1.0
