"""The compute budget: the share of a broker's time that clients' own code may use (OVERLAY §5 leaves it open)."""

# The attack. Fuel bounds the instructions of one event, but instructions differ by two orders of
# magnitude in time: 40 ns for the dearest. A module that stays within its fuel can still keep a
# broker busy for 40 ms per event.
#
# So the time that modules take is charged to their clients: measured on nodes, by fuel in
# emulation, where the same run has to give the same results on every machine. A client in debt
# waits, and a step begins no other event when it has worked for `STEP_US`. The pace delays results,
# and never changes them: what a modulator computes must not depend on how busy its broker was.
#
# Debts are not enough. They bound the time of modules, but an event also costs the broker a step,
# and each result a signature and its transmission: sixteen results took ten times as long as the
# module that made them. And debts are paid off by the clock, also where other processes leave the
# broker half a processor. Ten hostile clients halved the rate of an honest one at 100 events/s.
#
# So events are processed in the order of start-time fair queueing (Goyal, Vin, Cheng, 1996), by the
# time that clients have used, publication of their results included. A client that needs little is
# served before all that used more, however busy the broker is. A client that had nothing to do
# continues with the least time of those that wait: it cannot save up time.

from __future__ import annotations

from collections import Counter
from contextlib import contextmanager
from typing import TYPE_CHECKING

from carrypost.overlay.programs import FUEL_PER_US

if TYPE_CHECKING:
    from collections.abc import Iterator

    from carrypost.config import Limits
    from carrypost.model.ids import NodeId
    from carrypost.overlay.modulator import Instance, Meter

STEP_US = 5_000
"""Time after which a step begins no other event of a module. An event may take 30 ms (`overlay.wasm`), also after one
that took little; together they must not keep a node from anything else for 50 ms."""
_OWN_STEP_US = 20_000
"""Time after which a step begins no other event of a registered modulator."""
_BURST_US = 100_000
"""Debt that a client may have and still work, in time that it takes to pay it off."""


class ComputeBudget:
    """The debts of clients whose modules run at one broker, and the time that each has used."""

    def __init__(self, limits: Limits, capacity: float, meter: Meter | None = None) -> None:
        self._meter = meter
        self.spent_us = self.own_us = 0
        """Time that clients' own code took in this step, and registered modulators."""
        self._share, self._capacity = limits.fuel_per_s / FUEL_PER_US / 1e6, capacity
        self._clients_max = limits.clients_max
        self._paid_us: dict[NodeId, int] = {}
        """Time at which a client has no debt any more."""
        self._used_us: dict[NodeId, int] = {}
        """Time that clients have used; those that are missing have used `_least_us`."""
        self._least_us = 0
        """Time that counts as used by a client that has used less: it had nothing to do meanwhile."""
        self._results: Counter[NodeId] = Counter()
        """Results of this step that are not published yet, by client."""
        self._results_us = 0
        """CPU time at which their publication began."""

    def due_us(self, client: NodeId) -> int:
        """Return the time at which a client may work."""
        return self._paid_us.get(client, 0) - _BURST_US

    def rank(self, client: NodeId) -> tuple[int, int]:
        """Return the time that a client has used, and `due_us`. Clients of the lowest rank come first."""
        return self._used(client), self.due_us(client)

    def _used(self, client: NodeId) -> int:
        return max(self._used_us.get(client, 0), self._least_us)

    def raise_least(self, used_us: int) -> None:
        """Note the least time that any client has used which has events to process."""
        self._least_us = max(self._least_us, used_us)

    @property
    def has_time(self) -> bool:
        """True if this step may begin another event of a module, however long that event takes."""
        return self.spent_us <= STEP_US

    @property
    def is_over(self) -> bool:
        """True if registered modulators took so much time that this step begins no other event of theirs."""
        return self.own_us >= _OWN_STEP_US

    @contextmanager
    def charged(self, client: NodeId | None, instance: Instance | None, now: int) -> Iterator[None]:
        """Count the time that a modulator takes, declared if nothing measures it; charge a client for its own code."""
        before_us = self._busy_us(instance)
        try:
            yield
        finally:
            took_us = self._busy_us(instance) - before_us
            if client is None:
                self.own_us += took_us
            else:
                self.spent_us += took_us
                self.charge(client, took_us, now)

    def _busy_us(self, instance: Instance | None) -> int:
        if self._meter is not None:
            return self._meter()
        return 0 if instance is None else instance.busy_us

    def charge(self, client: NodeId, busy_us: int, now: int) -> None:
        """Charge a client for work. All clients in debt share the capacity of the broker."""
        if busy_us <= 0:
            return
        self._use(client, busy_us)
        if len(self._paid_us) >= self._clients_max:
            self._paid_us = {node: until_us for node, until_us in self._paid_us.items() if until_us > now}
        at_work = sum(until_us > now for node, until_us in self._paid_us.items() if node != client) + 1
        share = min(self._share, self._capacity / at_work)
        self._paid_us[client] = max(now, self._paid_us.get(client, 0)) + round(busy_us / share)

    def _use(self, client: NodeId, busy_us: int) -> None:
        if client not in self._used_us and len(self._used_us) >= self._clients_max:
            self._used_us = {node: used_us for node, used_us in self._used_us.items() if used_us > self._least_us}
            if len(self._used_us) >= self._clients_max:  # Clients of earlier seats, perhaps made up for this.
                self._used_us.clear()
        self._used_us[client] = self._used(client) + busy_us

    def made(self, client: NodeId, results: int) -> None:
        """Note results of a client's code, which the host publishes next."""
        if results:
            self._results[client] += results
            self._results_us = self._busy_us(None)

    def published(self) -> None:
        """Count the time since `made` as used by the clients whose results were published, by their number."""
        if self._results:
            each_us = (self._busy_us(None) - self._results_us) / self._results.total()
            for client, results in self._results.items():
                self._use(client, round(results * each_us))
            self._results.clear()
