"""What the metrics of CAUSAL §VI-A d are, stated once for whatever reckons with them.

`carrypost emu show` applies these definitions to arrays of one run, without Spark; the laboratory applies them to
columns of many runs, on Spark. So each function takes numbers, arrays of numpy or columns of Spark alike, all of one
kind, and gives that kind back.

Times are microseconds: when a message was published, when a copy of it was received, and when that was delivered.
Authors do not receive what they publish, and have none of the three delays. What a crash brought a second time
(`carrypost.record.AGAIN`, `REDELIVERED`) is left out before anything is counted.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

_Q = TypeVar("_Q", bound=Any)
"""A quantity, or a condition. No common type says what numpy and Spark can both do with it."""
_R = TypeVar("_R")


def transmission_delay(published_us: _Q, received_us: _Q) -> _Q:
    """From publication to reception."""
    delay_us: _Q = received_us - published_us
    return delay_us


def co_delivery_latency(received_us: _Q, delivered_us: _Q) -> _Q:
    """From reception to delivery: how long a copy waited for its predecessors."""
    latency_us: _Q = delivered_us - received_us
    return latency_us


def co_delivery_delay(transmission_us: _Q, latency_us: _Q) -> _Q:
    """From publication to delivery: both together."""
    delay_us: _Q = transmission_us + latency_us
    return delay_us


def left(delivered: _Q, expired: _Q) -> _Q:
    """Which of the copies received are left: neither delivered nor expired."""
    found: _Q = ~(delivered | expired)
    return found


def co_delivery_ratio(broadcast: _Q, received: _Q, co_delivered: _Q, divide: Callable[[_Q, _Q], _R]) -> _R:
    """Deliveries, own ones included, by what was broadcast or received; `divide` says what a share of nothing is."""
    return divide(co_delivered, broadcast + received)


def expiry_ratio(received: _Q, expired: _Q, divide: Callable[[_Q, _Q], _R]) -> _R:
    """What expired while it waited, by what was received."""
    return divide(expired, received)
