"""The causal metrics in `carrypost emu show`, which needs no Spark for them."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from tests.support.forked import forked
from tests.support.order_records import Story

from carrypost.log.record import Record


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

    code, shown, _ = forked(["emu", "show", str(path), "--json"], lack_spark)
    assert code == 0
    assert json.loads(shown)["ordered"]["co_delivery_ratio"] == 1.0
