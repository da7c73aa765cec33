"""The driver of a node under a flood: how much it decodes at once, and which addresses the system drops."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from carrypost.config import Settings
from carrypost.gossip.wire import codec
from carrypost.gossip.wire.frames import Frame, ProfileRequest
from carrypost.node.driver import NodeDriver

SECOND_US = 1_000_000
(SHORT,) = codec.datagrams([ProfileRequest(bytes(8))], 1_200)


class Machine:
    """A host that is asked nothing but what a flood asks, and a socket that notes which addresses are shunned."""

    def __init__(self, read_us: int = 0) -> None:
        self.read_us = read_us
        self.us = 0
        self.muted: dict[str, int] = {}
        self.given: list[tuple[str, int]] = []
        """Peer and number of frames of each step."""
        self.shunned: list[dict[str, float]] = []

    def clock_us(self) -> int:
        """Advance with each reading: one lies before each datagram, and one behind it."""
        self.us += self.read_us
        return self.us

    def listens(self, peer: str, now: int) -> bool:
        return self.muted.get(peer, 0) <= now

    def muted_until(self, peer: str) -> int:
        return self.muted.get(peer, 0)

    def receive(self, frames: Sequence[Frame], peer: str, _now: int, *, nbytes: int, read_us: int) -> None:
        assert nbytes == len(frames) * len(SHORT)
        assert read_us == len(frames) * self.read_us
        self.given.append((peer, len(frames)))

    def shun(self, peers: Mapping[str, float]) -> None:
        self.shunned.append(dict(peers))


def decode(machine: Machine, folder: Path, *batches: list[tuple[str, bytes]]) -> None:
    """Have a driver decode batches of datagrams."""

    async def play() -> None:
        made: Any = machine
        parts: Any = SimpleNamespace(path=folder)
        driver = NodeDriver(lambda: made, Settings(), print, clock=parts, store=parts, udp=made)
        for batch in batches:
            driver._decode(batch, 0)  # noqa: SLF001 - without a clock, a store and sockets

    asyncio.run(play())


@pytest.mark.parametrize(("read_us", "steps"), [(100, [12]), (600, [4, 4, 4]), (3_000, [1] * 12)])
def test_what_takes_long_to_decode_is_given_to_the_host_before_more_is_decoded(
    tmp_path: Path, read_us: int, steps: list[int]
) -> None:
    machine = Machine(read_us)
    decode(machine, tmp_path, [("a", SHORT)] * 12)
    assert machine.given == [("a", count) for count in steps]


def test_addresses_that_send_much_unread_are_shunned_together(tmp_path: Path) -> None:
    machine = Machine()
    machine.muted = dict.fromkeys(("many", "some", "few"), 2 * SECOND_US)
    batch = [("many", SHORT)] * 64 + [("some", SHORT)] * 20 + [("few", SHORT)] * 2 + [("honest", SHORT)]
    decode(machine, tmp_path, batch)
    assert machine.shunned == []
    decode(machine, tmp_path, batch, batch)
    assert machine.shunned == [{"many": 2.0, "some": 2.0}]
