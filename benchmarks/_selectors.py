"""Selectors beside Python: a condition of six parts, read and evaluated.

Both sides get the same condition. Reading is `Selector(text)`, checks and closures included, beside `compile`;
evaluation is `matches` beside a lambda that looks the same properties up. All six parts are evaluated: the message is
selected, or fails in the last. The lambda knows that every property is there and of the right type; a selector has to
find that out.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from carrypost import Selector

PARSE_GOAL, EVALUATE_GOAL = 3.0, 8.0
_ROUND_S = 0.02
"""Least CPU time of one figure."""
SELECTOR = (
    "price > 3 AND colour = 'red' AND country IN ('UK', 'US') AND age BETWEEN 15 AND 19 AND phone LIKE '12%' "
    "AND size IS NOT NULL"
)
PYTHON = (
    "price > 3 and colour == 'red' and country in ('UK', 'US') and 15 <= age <= 19 and phone.startswith('12') "
    "and size is not None"
)
MESSAGES: dict[str, dict[str, int | str | None]] = {
    "selected": {"price": 5, "colour": "red", "country": "US", "age": 17, "phone": "12993", "size": 1},
    "not selected": {"price": 5, "colour": "red", "country": "US", "age": 17, "phone": "12993", "size": None},
}


@dataclass(frozen=True, slots=True)
class Figure:
    """One line of the table."""

    work: str
    selector_us: float
    python_us: float
    goal: float

    @property
    def times(self) -> float:
        """Ratio of the time with the selector to that without."""
        return self.selector_us / self.python_us

    @property
    def met(self) -> bool:
        """True if that is short enough."""
        return self.times <= self.goal


_IN_PYTHON: Callable[[Mapping[str, Any]], bool] = lambda message: (  # noqa: E731 - what is compared is a lambda
    message["price"] > 3
    and message["colour"] == "red"
    and message["country"] in ("UK", "US")
    and 15 <= message["age"] <= 19
    and message["phone"].startswith("12")
    and message["size"] is not None
)


def measure(repeats: int) -> list[Figure]:
    """Return medians; raises `AssertionError` if selector and lambda select different messages."""
    figures = [_compared("parse", PARSE_GOAL, repeats, (Selector, SELECTOR), (_compile, PYTHON))]
    matches = Selector(SELECTOR).matches
    for name, message in MESSAGES.items():
        assert matches(message) is _IN_PYTHON(message) is (name == "selected")
        work = f"evaluate, {name}"
        figures.append(_compared(work, EVALUATE_GOAL, repeats, (matches, message), (_IN_PYTHON, message)))
    return figures


def _compile(text: str) -> object:
    return compile(text, "bench", "eval")


_Call = tuple[Callable[[Any], object], object]
"""A function and its argument."""


def _compared(work: str, goal: float, repeats: int, ours: _Call, theirs: _Call) -> Figure:
    """Measure both in turn, so that disturbances by the machine affect both."""
    figures = [(_cpu_us(*ours), _cpu_us(*theirs)) for _ in range(repeats)]
    selector_us, python_us = (statistics.median(column) for column in zip(*figures, strict=True))
    return Figure(work, selector_us, python_us, goal)


def _cpu_us(function: Callable[[Any], object], argument: object) -> float:
    calls, spent_s = 1, 0.0
    while spent_s < _ROUND_S:
        calls *= 2
        begun_s = time.process_time()
        for _ in range(calls):
            function(argument)
        spent_s = time.process_time() - begun_s
    return spent_s / calls * 1e6
