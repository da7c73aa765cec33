"""Results of the checks, as `tools/check.py` shows them: the table, the dearest tests, and costs for the next time."""

from __future__ import annotations

import json
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tools.jobs import Result
from tools.meter import Cost

from tools import lanes

DEAREST = 10
_RECORDED_S = 1.0
"""Files that take less are not worth a line."""
_COUNT = re.compile(r"(\d+) (failed|passed|skipped|deselected|xfailed|xpassed|warnings?|errors?)\b")
_KINDS = ("failed", "errors", "passed", "skipped", "deselected", "xfailed", "xpassed", "warnings")


@dataclass(frozen=True)
class Outcome:
    """The result of one check."""

    name: str
    code: int
    cpu_s: float
    took_s: float
    last_line: str

    @classmethod
    def of(cls, name: str, results: Sequence[Result]) -> Outcome:
        """Sum up its parts."""
        return cls(
            name,
            next((each.code for each in results if each.code), 0),
            sum(each.cpu_s for each in results),
            max(each.ended_s for each in results) - min(each.began_s for each in results),
            summed([each.said for each in results]),
        )

    def row(self) -> str:
        """Return the row in the table."""
        outcome = "failed" if self.code else "passed"
        return f"{self.name:<12}{outcome:<8}{self.cpu_s:>8.1f}{self.took_s:>8.1f}  {self.last_line}".rstrip()


def summed(outputs: Sequence[str]) -> str:
    """Return the last line of a check's output; the counts of all parts, if it had several."""
    if len(outputs) == 1:
        return outputs[0].rstrip().rpartition("\n")[2]
    counts: Counter[str] = Counter()
    for output in outputs:
        # Libraries may say something after the line with the counts, while the process ends.
        last = next((line for line in reversed(output.splitlines()) if _COUNT.search(line)), "")
        for number, kind in _COUNT.findall(last):
            counts[kind if kind.endswith(("ed", "s")) else f"{kind}s"] += int(number)
    return ", ".join(f"{counts[kind]} {kind}" for kind in _KINDS if counts[kind]) + f" in {len(outputs)} parts"


def table(outcomes: Sequence[Outcome], took_s: float) -> str:
    """Return all checks, and the sum of them."""
    code = int(any(each.code for each in outcomes))
    total = Outcome("all", code, sum(each.cpu_s for each in outcomes), took_s, "")
    head = f"{'check':<12}{'outcome':<8}{'CPU s':>8}{'seconds':>8}  last line"
    return "\n".join([head, *(each.row() for each in (*outcomes, total))])


def dearest(costs: Iterable[Cost]) -> str:
    """Return the tests that took most CPU time; a paragraph of its own, or nothing where there were none."""
    found = sorted(costs, key=lambda cost: -cost.cpu_s)[:DEAREST]
    lines = [f"{cost.cpu_s:>8.1f}{cost.took_s:>8.1f}  {cost.test}" for cost in found]
    return "\n".join([f"{'CPU s':>8}{'seconds':>8}  the dearest tests", *lines, ""]) if lines else ""


def record(costs: Iterable[Cost], waiting: str) -> None:
    """Write down what files took; of those in the lane `waiting` their time, of the others CPU time."""
    apart = set(lanes.files(waiting))
    by_file: defaultdict[str, float] = defaultdict(float)
    for cost in costs:
        by_file[cost.file] += cost.took_s if cost.file in apart else cost.cpu_s
    kept = lanes.recorded() | {file: round(took_s, 1) for file, took_s in by_file.items()}
    kept = {
        file: took_s for file, took_s in sorted(kept.items()) if took_s >= _RECORDED_S and (lanes.ROOT / file).exists()
    }
    lanes.COSTS.write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")
