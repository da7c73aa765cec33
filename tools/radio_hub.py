"""A hub that forwards frames between the ports of a switch by rules: a radio, in user space.

For each ordered pair of ports a rule says whether the second hears the first, and what is lost, repeated or late on the
way; so links can work one way, and chains and cliques need one interface per node. Rules change while it runs. Each
pair has a random generator of its own, made from the seed: what happens to its n-th frame does not depend on the
others. Frames travel with the kernel's header for unfinished checksums (`PACKET_VNET_HDR`), else the receiver would
drop them. A frame for one receiver goes to that one only, once its address is known.

`Radio` starts the hub in a `Net` and talks to it. The program reads commands as JSON lines from standard input, answers
each by one line, and ends with its input::

    {"rule": {"heard": true, "loss": 0.2, "duplicate": 0.1, "delay_s": [0.02, 0.05]}, "from": "a", "to": "*"}
    {"counters": true}
"""

from __future__ import annotations

import argparse
import heapq
import json
import os
import random
import selectors
import socket
import struct
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:  # The program runs alone; only its handle knows namespaces.
    from tools.netns import Net

EVERY: Final = "*"
_SOL_PACKET, _IGNORE_OUTGOING, _VNET_HDR, _STATISTICS, _ETH_P_ALL = 263, 23, 15, 6, 3
_HEADER_BYTES: Final = 10
_MAC_BYTES: Final = 6
_FRAME_BYTES_MAX: Final = 66_000
_BUFFER_BYTES: Final = 8 << 20
_BATCH_FRAMES: Final = 64
_SO_RCVBUFFORCE: Final = 33


@dataclass(frozen=True)
class Rule:
    """The fate of frames from one port on their way to another."""

    heard: bool = False
    loss: float = 0.0
    duplicate: float = 0.0
    delay_s: tuple[float, float] = (0.0, 0.0)
    """Each copy is late by its own time between these two; so it may overtake."""


class Way:
    """An ordered pair of ports: its rule, its random generator and its counters."""

    def __init__(self, seed: str) -> None:
        self.rule = Rule()
        self.counters: Counter[str] = Counter()
        self._random = random.Random(seed)

    def delays_s(self) -> list[float]:
        """Return the delay of each copy of the next frame; no copy: lost."""
        rule = self.rule
        if not rule.heard:
            self.counters["unheard"] += 1
            return []
        # As many draws for each frame, whatever the rule, so that a change of the rule does not shift the chance.
        lost, again, *lates = (self._random.random() for _ in range(4))
        if lost < rule.loss:
            self.counters["lost"] += 1
            return []
        copies = 2 if again < rule.duplicate else 1
        self.counters["forwarded"] += 1
        self.counters["duplicated"] += copies - 1
        low_s, high_s = rule.delay_s
        return [low_s + late * (high_s - low_s) for late in lates[:copies]]


class Hub:
    """The ports, and the frames that are under way between them."""

    def __init__(self, ports: Mapping[str, str], seed: str) -> None:
        self._ports = {name: _port(interface) for name, interface in ports.items()}
        self._ways = {
            (source, target): Way(f"{seed}/{source}/{target}")
            for source in ports
            for target in ports
            if source != target
        }
        self._places: dict[bytes, str] = {}
        self._late: list[tuple[float, int, str, bytes]] = []
        self._serial = 0
        self._unsent: Counter[str] = Counter()
        self._buffer = memoryview(bytearray(_FRAME_BYTES_MAX))

    def run(self) -> None:
        """Forward until standard input ends."""
        selector = selectors.DefaultSelector()
        for name, port in self._ports.items():
            selector.register(port, selectors.EVENT_READ, name)
        selector.register(sys.stdin, selectors.EVENT_READ, None)
        said = b""
        while True:
            wait_s = max(0.0, self._late[0][0] - time.monotonic()) if self._late else None
            for key, _ in selector.select(wait_s):
                if key.data is not None:
                    self._drain(key.data)
                    continue
                heard = os.read(sys.stdin.fileno(), 65_536)
                if not heard:
                    return
                *lines, said = (said + heard).split(b"\n")
                for line in lines:
                    print(json.dumps(self._command(json.loads(line))), flush=True)
            self._deliver_late(time.monotonic())

    def _drain(self, source: str) -> None:
        port = self._ports[source]
        for _ in range(_BATCH_FRAMES):
            try:
                length = port.recv_into(self._buffer)
            except BlockingIOError:
                return
            except OSError as error:  # The interface went down; it may come back.
                self._unsent[error.__class__.__name__] += 1
                return
            self._forward(source, bytes(self._buffer[:length]))

    def _forward(self, source: str, frame: bytes) -> None:
        target_at = _HEADER_BYTES + _MAC_BYTES
        target, origin = frame[_HEADER_BYTES:target_at], frame[target_at : target_at + _MAC_BYTES]
        if len(self._places) < 1_024:
            self._places[origin] = source
        known = self._places.get(target)
        for name in (known,) if known is not None else self._ports:
            if name == source:
                continue
            for late_s in self._ways[source, name].delays_s():
                if late_s <= 0:
                    self._send(name, frame)
                    continue
                self._serial += 1
                heapq.heappush(self._late, (time.monotonic() + late_s, self._serial, name, frame))

    def _deliver_late(self, now_s: float) -> None:
        while self._late and self._late[0][0] <= now_s:
            _, _, name, frame = heapq.heappop(self._late)
            self._send(name, frame)

    def _send(self, target: str, frame: bytes) -> None:
        try:
            self._ports[target].send(frame)
        except OSError as error:
            self._unsent[error.__class__.__name__] += 1

    def _command(self, command: Mapping[str, object]) -> dict[str, object]:
        if "counters" in command:
            return self._counters()
        given = command["rule"]
        assert isinstance(given, dict)
        rule = Rule(**given)
        for (source, target), way in self._ways.items():
            if command["from"] in {source, EVERY} and command["to"] in {target, EVERY}:
                way.rule = rule
        return {"ok": True}

    def _counters(self) -> dict[str, object]:
        """Per pair, and what the hub itself could not take or send."""
        for port in self._ports.values():  # Reading them sets them to zero.
            _, dropped = struct.unpack("II", port.getsockopt(_SOL_PACKET, _STATISTICS, 8))
            self._unsent["overrun"] += dropped
        pairs: dict[str, object] = {
            f"{source}>{target}": dict(way.counters) for (source, target), way in self._ways.items()
        }
        return pairs | {"hub": dict(self._unsent)}


def _port(interface: str) -> socket.socket:
    port = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
    port.setsockopt(_SOL_PACKET, _IGNORE_OUTGOING, 1)
    port.setsockopt(_SOL_PACKET, _VNET_HDR, 1)
    port.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _BUFFER_BYTES)
    with suppress(OSError):  # More than the system's bound, where we may.
        port.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, _BUFFER_BYTES)
    port.setblocking(False)
    port.bind((interface, _ETH_P_ALL))
    return port


class Radio:
    """A hub that runs in a `Net`, and commands to change its rules; at first no port hears any other."""

    def __init__(self, net: Net, *names: str, seed: str = "radio", v4: bool = True, v6: bool = True) -> None:
        self.lan = net.switch(*names, v4=v4, v6=v6, bridge=False)
        ports = [f"{name}={self.lan.ports[name].interface}" for name in names]
        self._program = net.popen(
            self.lan.namespace,
            [sys.executable, str(Path(__file__).resolve()), "--seed", seed, *ports],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        self.counters()  # It answers, so it runs.

    def hear(self, target: str, source: str, rule: Rule | None = None) -> None:
        """Let `target` hear `source` from now on, by this rule; `EVERY` stands for all."""
        self._set(source, target, Rule(heard=True) if rule is None else rule)

    def deafen(self, target: str, source: str) -> None:
        """From now on `target` does not hear `source`."""
        self._set(source, target, Rule())

    def link(self, one: str, other: str, rule: Rule | None = None) -> None:
        """Let both hear each other, by this rule."""
        self.hear(one, other, rule)
        self.hear(other, one, rule)

    def unlink(self, one: str, other: str) -> None:
        """Keep both from hearing each other; with `EVERY` twice no port hears any other."""
        self.deafen(one, other)
        self.deafen(other, one)

    def counters(self) -> dict[str, dict[str, int]]:
        """Return counters: for "a>b" frames forwarded (with duplicates), lost and unheard; for "hub" its failures."""
        answer: dict[str, dict[str, int]] = self._ask({"counters": True})
        return answer

    def _set(self, source: str, target: str, rule: Rule) -> None:
        self._ask({"rule": vars(rule), "from": source, "to": target})

    def _ask(self, command: Mapping[str, object]) -> dict[str, dict[str, int]]:
        assert self._program.stdin is not None
        assert self._program.stdout is not None
        self._program.stdin.write(json.dumps(command).encode() + b"\n")
        self._program.stdin.flush()
        line = self._program.stdout.readline()
        if not line:
            raise RuntimeError(f"the hub ended with exit code {self._program.wait()}")
        answer: dict[str, dict[str, int]] = json.loads(line)
        return answer


def main(argv: Sequence[str]) -> None:
    """Run a hub on interfaces that are here: NAME=INTERFACE ..."""
    parser = argparse.ArgumentParser(description="a radio between the ports of a switch")
    parser.add_argument("--seed", default="radio")
    parser.add_argument("ports", nargs="+", metavar="NAME=INTERFACE")
    options = parser.parse_args(argv)
    Hub(dict(port.split("=", 1) for port in options.ports), options.seed).run()


if __name__ == "__main__":
    main(sys.argv[1:])
