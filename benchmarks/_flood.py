"""A process that is one linked stranger, or several, and sends useless datagrams to a node as fast as it can.

Run by `bench hostile`, with orders as JSON lines on standard input: ``{"attack": NAME or null for all in turn,
"strangers": 10, "s": 3.0}``; each is answered by one line. Its strangers have a port each at 127.0.0.1, introduce
themselves, give the answers that keep the victim talking, and then send from a pool of prepared datagrams. With `sink`
the flood goes elsewhere, and costs only what any process on this machine costs its neighbours.
"""

from __future__ import annotations

import json
import signal
import socket
import sys
import time
from pathlib import Path
from typing import Final

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks._strangers import ATTACKS, Stranger

from carrypost.config import Limits
from carrypost.gossip.wire import codec
from carrypost.model.ids import NodeId

BURST: Final = 32
"""Datagrams between two looks at the clock."""
POOL: Final = 16
"""Different datagrams of each attack, of each stranger."""
INTRODUCTION_S: Final = 1.5
"""Time for which each stranger talks to its victim before the flood, until it is a neighbour and gets offers."""
REMIND_S: Final = 0.5
_LIMITS: Final = Limits()


class Caller:
    """A stranger and its socket."""

    def __init__(self, number: int, victim: NodeId, address: tuple[str, int]) -> None:
        self.stranger = Stranger(number, victim, now_us=time.time_ns() // 1_000)
        self.socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.socket.bind(("127.0.0.1", 0))
        self.socket.setblocking(False)
        self._address = address
        self._remind_s = 0.0

    def talk(self) -> None:
        """Announce itself now and then, and answer requests."""
        if time.monotonic() >= self._remind_s:
            self._remind_s = time.monotonic() + REMIND_S
            self._send(self.stranger.introduction())
        for _ in range(BURST):
            try:
                datagram = self.socket.recv(65_536)
            except OSError:
                return
            self._send(self.stranger.hear(codec.decode(datagram, _LIMITS).frames))

    def _send(self, datagrams: list[bytes]) -> None:
        for datagram in datagrams:
            try:
                self.socket.sendto(datagram, self._address)
            except OSError:
                return

    def pool(self, attack: str | None) -> list[bytes]:
        """Return the datagrams that it will send."""
        makers = list(ATTACKS.values()) if attack is None else [ATTACKS[attack]]
        return [make(self.stranger) for make in makers for _ in range(POOL)]


def flood(callers: list[Caller], pools: list[list[bytes]], target: tuple[str, int], for_s: float) -> dict[str, float]:
    """Send as fast as it goes; how many that were."""
    sent = number = 0
    began_s = time.monotonic()
    while (took_s := time.monotonic() - began_s) < for_s:
        for caller, pool in zip(callers, pools, strict=True):
            caller.talk()
            for _ in range(BURST):
                number += 1
                try:
                    caller.socket.sendto(pool[number % len(pool)], target)
                    sent += 1
                except OSError:
                    continue
    return {"sent": sent, "per_s": sent / took_s}


def main() -> None:
    """Take orders until there are no more."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the business of whoever gives the orders.
    sink = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    sink.bind(("127.0.0.1", 0))
    known: dict[int, Caller] = {}
    for line in sys.stdin:
        order = json.loads(line)
        victim = order["host"], order["port"]
        for number in range(order["strangers"]):
            known.setdefault(number, Caller(number + 1, NodeId(order["node"]), victim))
        callers = [known[number] for number in range(order["strangers"])]
        until_s = time.monotonic() + INTRODUCTION_S
        while time.monotonic() < until_s:
            for caller in callers:
                caller.talk()
            time.sleep(0.01)
        pools = [caller.pool(order["attack"]) for caller in callers]
        handles = min((len(caller.stranger.handles) for caller in callers), default=0)
        print(json.dumps({"ready": True, "handles": handles}), flush=True)
        target = sink.getsockname() if order["sink"] else victim
        print(json.dumps(flood(callers, pools, target, order["s"])), flush=True)


if __name__ == "__main__":
    main()
