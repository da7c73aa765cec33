"""An oracle of causal order without barriers: happens-before, rebuilt from publications and deliveries."""

from __future__ import annotations

from collections import defaultdict


class History:
    """Publications and deliveries in the order in which they took place; `faults` lists violations of causal order.

    A message follows every message that its author had published or was delivered before, transitively. Sets of
    messages are ints with one bit per message, so that a search over long histories is fast.
    """

    def __init__(self) -> None:
        self.faults: list[str] = []
        self.orders: dict[str, list[str]] = defaultdict(list)
        """Deliveries of each host, in order."""
        self._bits: dict[str, int] = {}
        self._pasts: dict[str, int] = {}
        self._known: dict[str, int] = defaultdict(int)  # host: published or delivered there, and all before that
        self._delivered: dict[str, int] = defaultdict(int)
        self._overtaken: dict[str, int] = defaultdict(int)  # host: all that comes before what was delivered there

    def publish(self, host: str, message: str) -> None:
        """The application of `host` broadcasts."""
        assert message not in self._bits, "a name stands for one message"
        bit = self._bits[message] = 1 << len(self._bits)
        self._pasts[message] = self._known[host]
        self._known[host] |= bit

    def deliver(self, host: str, message: str) -> None:
        """The application of `host` is given a message."""
        bit, past = self._bits[message], self._pasts[message]
        if self._delivered[host] & bit:
            self.faults.append("duplicate")
        elif self._overtaken[host] & bit:
            self.faults.append("inversion")
        self.orders[host].append(message)
        self._delivered[host] |= bit
        self._overtaken[host] |= past
        self._known[host] |= bit | past

    def delivered(self, host: str, message: str) -> bool:
        """Return True if `host` was given it."""
        return bool(self._delivered[host] & self._bits[message])

    def before(self, earlier: str, later: str) -> bool:
        """Return True if the first message happens before the second."""
        return bool(self._pasts[later] & self._bits[earlier])

    def missing(self, host: str, message: str) -> list[str]:
        """Return the messages before `message` that were not delivered at `host`."""
        lacking = self._pasts[message] & ~self._delivered[host]
        return [name for name, bit in self._bits.items() if lacking & bit] if lacking else []
