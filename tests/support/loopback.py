"""Nodes of one test on this machine's loopback interface, separate from the nodes of every other test."""

from __future__ import annotations

import os
import random
import socket

_PORTS = range(20_000, 32_000)
"""Below those that the system gives away by itself."""


def apart() -> dict[str, object]:
    """Return settings `udp` for the nodes of one test: loopback only, and a shared port that no other test uses."""
    chance = random.Random(os.urandom(8))
    while True:
        port = chance.choice(_PORTS)
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            try:
                probe.bind(("", port))
            except OSError:
                continue
        return {"interfaces": ["lo"], "port": port}
