"""The compute budget: the share of a broker's time that clients' own code may use (OVERLAY §5 leaves it open)."""

# The attack. Fuel bounds the instructions of one event, but instructions differ by two orders of
# magnitude in time: 40 ns for the dearest. A module that stays within its fuel can still keep a
# broker busy for 40 ms per event.
#
# So the time that modules take is charged to their clients: measured on nodes, by fuel in
# emulation, where the same run has to give the same results on every machine. A client in debt
# waits. Clients whose events take less time come first, and a step begins no other event when it
# has worked for `STEP_US`. The pace delays results, and never changes them: what a modulator
# computes must not depend on how busy its broker was.

from __future__ import annotations

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
    """The debts of clients whose modules run at one broker."""

    def __init__(self, limits: Limits, capacity: float, meter: Meter | None = None) -> None:
        self._meter = meter
        self.spent_us = self.own_us = 0
        """Time that clients' own code took in this step, and registered modulators."""
        self._share, self._capacity = limits.fuel_per_s / FUEL_PER_US / 1e6, capacity
        self._clients_max = limits.clients_max
        self._paid_us: dict[NodeId, int] = {}
        """Time at which a client has no debt any more."""
        self._lately_us: dict[NodeId, int] = {}
        """Time that events of a client take: the last one, or a decaying mean of earlier ones."""

    def due_us(self, client: NodeId) -> int:
        """Return the time at which a client may work."""
        return self._paid_us.get(client, 0) - _BURST_US

    def lately_us(self, client: NodeId) -> int:
        """Return the estimated time of a client's next event."""
        return self._lately_us.get(client, 0)

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
        if len(self._paid_us) >= self._clients_max:
            self._paid_us = {node: until_us for node, until_us in self._paid_us.items() if until_us > now}
            self._lately_us = {node: self._lately_us[node] for node in self._paid_us}
        at_work = sum(until_us > now for node, until_us in self._paid_us.items() if node != client) + 1
        share = min(self._share, self._capacity / at_work)
        self._paid_us[client] = max(now, self._paid_us.get(client, 0)) + round(busy_us / share)
        self._lately_us[client] = max(busy_us, self._lately_us.get(client, 0) * 7 // 8)
