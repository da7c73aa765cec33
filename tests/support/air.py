"""A radio with ears, for the tests of the radio."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from carrypost.emu.engine.radio import Airtime, Burst, LinkModel, Radio
from carrypost.emu.engine.scheduler import Scheduler
from carrypost.gossip.wire import codec
from carrypost.gossip.wire.frames import Announce, BlankData, Data, Frame
from carrypost.model.ids import NodeId

MTU = 1_200


@dataclass
class Air:
    """A radio with ears at every node."""

    names: str = "abc"
    seed: int = 1
    model: LinkModel = field(default_factory=LinkModel)
    encoded: bool = False
    airtime: Airtime = "private"
    by_link: bool = True
    checked: bool = True

    def __post_init__(self) -> None:
        self.scheduler = Scheduler()
        self.radio = Radio(
            self.scheduler, self.seed, model=self.model, encoded=self.encoded, airtime=self.airtime,
            by_link=self.by_link, checked=self.checked,
        )  # fmt: skip
        self.heard: dict[str, list[tuple[int, str, tuple[Frame, ...]]]] = {}
        self.bursts: dict[str, list[tuple[int, Burst]]] = {}
        for name in self.names:
            self.add(name)

    def add(self, name: str) -> None:
        heard = self.heard[name] = []
        bursts = self.bursts[name] = []

        def receive(burst: Burst, peer: str) -> None:
            bursts.append((self.scheduler.now, burst))
            heard.extend((self.scheduler.now, peer, datagram.frames) for datagram in burst)

        self.radio.add(name, receive)

    def send(self, sender: str, *frames: Frame, to: str | None = None) -> None:
        self.radio.send(sender, frames, to, MTU)

    def run(self, t_us: int = 1_000_000) -> None:
        self.scheduler.run_until(self.scheduler.now + t_us)

    def numbers(self, node: str) -> list[int]:
        """Serials of the data that `node` heard, in order."""
        return [
            frame.serial for _, _, frames in self.heard[node] for frame in frames if isinstance(frame, Data | BlankData)
        ]


def datagram_sizes(frames: Iterable[Frame], mtu_bytes: int) -> list[int]:
    """Return the lengths of what `codec.datagrams` would make, as the radio counts them."""
    return [size for _, _, size in codec.runs(codec.wire_sizes(list(frames)), mtu_bytes)]


def hello(name: str = "a") -> Announce:
    return Announce(NodeId(name), 1, 1, 1_000, b"12345678")


def data(serial: int, nbytes: int = 1_000) -> Data:
    return Data(1, serial, serial, last=False, body=bytes(nbytes))
