"""Work that strangers can cause for nothing: CPU time, and the delay of honest messages meanwhile.

*Datagrams*: for every kind of frame, the most expensive useless datagram of at most `datagram_bytes_max`, and the CPU
time that a host needs for it if no address is muted (no sockets, one process). *Profiles*: the worst patterns and the
worst selectors, the time to read each and to match one message. *States*: ten linked strangers that use what a host has
gathered, such as 200,000 remembered ids (`_states`). *Floods*: two real nodes in their own processes on
loopback; one publishes a message at a time, the other, the victim, delivers it. Beside them one process is one linked
stranger, then ten, and sends these datagrams as fast as it can. CPU time is the additional time of the victim's
process, all threads, in user and kernel mode. Latency is that of the honest messages, beside its value while the same
flood goes to another port on this machine, so that a busy machine is not taken for a fault.

Run: carrypost bench hostile [--quick] [--json] [--seconds 3] [--attack "Request: unknown handles"]
     carrypost bench hostile --states
"""

from __future__ import annotations

import contextlib
import socket
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

from benchmarks._processes import BenchmarkError, Row, Worker, say, scratch, settings_file, start
from benchmarks._strangers import ATTACKS, Stranger
from benchmarks._victim import Victim

from benchmarks import _report, _states, _worst
from carrypost.config import UNBOUNDED
from carrypost.gossip.wire import codec

GOAL_CPU: Final = _states.GOAL_CPU
GOAL_LATENCY: Final = 2.0
CROWDS: Final = (1, 10)
NAMES: Final = ("victim", "friend")
HELD: Final = 2_000
"""Messages that the victim has."""
REPEATS: Final = 20
MESSAGE_BYTES: Final = 100
PACE_S: Final = 0.02
"""Between two honest messages."""


# --- one datagram, one host ------------------------------------------------------------------------------------------


def datagram_row(name: str, held: int, repeats: int) -> Row:
    """Return the cost of one kind of datagram."""
    victim = Victim(held, message_bytes=MESSAGE_BYTES, link_waste_per_s=UNBOUNDED, waste_per_s=UNBOUNDED)
    stranger = Stranger(1, victim.host.node, now_us=victim.now)
    victim.meet(stranger)
    datagrams = [ATTACKS[name](stranger) for _ in range(repeats)]
    frames = len(codec.decode(datagrams[0], victim.settings.limits).frames)
    spent = []
    for datagram in datagrams:
        victim.wait(0.001)
        victim.drain()
        began = time.process_time()
        victim.take(datagram)
        spent.append(time.process_time() - began)
    return {
        "datagram": name,
        "bytes": len(datagrams[0]),
        "frames": frames,
        "CPU µs": statistics.fmean(spent) * 1e6,
        "µs a kB": statistics.fmean(spent) * 1e9 / len(datagrams[0]),
    }


# --- floods of real nodes --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Talk:
    """Honest messages over some time, and what the victim spent meanwhile."""

    latencies_s: list[float]
    cpu_share: float
    per_s: float
    """Datagrams that the strangers sent."""
    unread: int

    @property
    def median_s(self) -> float:
        """The median latency."""
        return statistics.median(self.latencies_s)


class Scene:
    """Two honest nodes, and a process of strangers."""

    def __init__(self, victim: Worker, friend: Worker, flood: Worker) -> None:
        self._victim, self._friend, self._flood = victim, friend, flood
        victim.ask("subscribe", pattern="news")
        for each in (victim, friend):
            each.ask("linked", count=1)
        status = victim.ask("status")
        self._node = status["node"]
        host, _, port = next(each for each in status["addresses"] if not each.startswith("[")).rpartition(":")
        self._address = {"host": host, "port": int(port)}

    def talk(self, for_s: float, strangers: int = 0, attack: str | None = None, *, sink: bool = False) -> Talk:
        """Send honest messages one at a time while strangers flood the victim, or another port (`sink`)."""
        if strangers:
            self._flood.order("flood", node=self._node, strangers=strangers, attack=attack, s=for_s, sink=sink,
                              **self._address)  # fmt: skip
            self._flood.answer()
        unread, cpu_s, began_s = self._unread(), self._victim.cpu_s, time.monotonic()
        latencies: list[float] = []
        while time.monotonic() - began_s < for_s:
            published = self._friend.ask("publish", size=MESSAGE_BYTES, count=1, destination="news")
            arrivals = self._victim.ask("await", count=1)["arrivals"]
            latencies.append(arrivals[0][0] - published["began_s"])
            time.sleep(PACE_S)
        share = (self._victim.cpu_s - cpu_s) / (time.monotonic() - began_s)
        per_s = self._flood.answer()["per_s"] if strangers else 0.0
        return Talk(latencies, share, per_s, self._unread() - unread)

    def _unread(self) -> int:
        return int(self._victim.ask("status")["unread"])


@contextlib.contextmanager
def scene(folder: Path) -> Iterator[Scene]:
    """Start them, and end them."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.bind(("", 0))
        port = probe.getsockname()[1]
    udp = {"port": port, "interfaces": ["lo"]}
    with contextlib.ExitStack() as exits:
        files = [settings_file(folder / name, altruistic=True, announce_s_max=2.0, udp=udp) for name in NAMES]
        victim, friend = (
            exits.enter_context(start(name, ["_worker.py", str(file)])) for name, file in zip(NAMES, files, strict=True)
        )
        for each in (victim, friend):
            each.answer()
        yield Scene(victim, friend, exits.enter_context(start("strangers", ["_flood.py"])))


def flood_rows(found: Scene, attacks: Sequence[str | None], for_s: float) -> list[Row]:
    """Return one row per attack and number of strangers."""
    rows: list[Row] = []
    for strangers in CROWDS:
        for attack in attacks:
            name = attack or "all in turn"
            quiet = found.talk(for_s)
            aside = found.talk(for_s, strangers, attack, sink=True)
            hit = found.talk(for_s, strangers, attack)
            cpu = (hit.cpu_share - quiet.cpu_share) * 100
            ratio = hit.median_s / aside.median_s
            rows.append({
                "strangers": strangers,
                "datagrams": name,
                "sent/s": hit.per_s,
                "unread": hit.unread,
                "CPU % of a core": cpu,
                "latency ms": hit.median_s * 1e3,
                "aside ms": aside.median_s * 1e3,
                "alone ms": quiet.median_s * 1e3,
                "times": ratio,
                "met": cpu <= GOAL_CPU and ratio <= GOAL_LATENCY,
            })  # fmt: skip
            say(f"{strangers} strangers, {name}: {cpu:.1f} % of a core, latency {ratio:.2f} times")
    return rows


def show_states(show: Callable[[str, Sequence[Row]], None], *, quick: bool) -> None:
    """Print the rows of strangers that use what a host has gathered."""
    for_s, scale = (1.0, 0.02) if quick else (_states.FOR_S, 1.0)
    show(
        f"States: {_states.STRANGERS} strangers for {for_s:g} s, in one process; goal: {GOAL_CPU:g} % of a core",
        [_states.row(name, for_s, scale) for name in _states.ATTACKS],
    )


def main(argv: Sequence[str]) -> int:
    """Print the tables."""
    parser = _report.parser("hostile", str(__doc__).split("\n\n", maxsplit=1)[0], '--attack "Digest: runs without end"')
    parser.add_argument("--quick", action="store_true", help="all kinds in turn for a second at most, in a few seconds")
    parser.add_argument("--seconds", type=float, default=3.0, metavar="S", help="how long each flood lasts")
    parser.add_argument("--attack", choices=list(ATTACKS), help="this kind of datagram alone")
    parser.add_argument("--states", action="store_true", help="only strangers that use what a host has gathered")
    given = parser.parse_args(argv)
    if given.seconds <= 0:
        parser.error("--seconds must be more than 0")
    show: Any = partial(_report.show, json=given.json)
    if given.states:
        show_states(show, quick=given.quick)
        return 0
    names = [given.attack] if given.attack else list(ATTACKS)
    held, repeats = (200, 3) if given.quick else (HELD, REPEATS)
    show(
        f"Datagrams: the dearest of each kind that lead to nothing, {held:,} messages held, nobody muted",
        [datagram_row(name, held, repeats) for name in names],
    )
    if given.attack is None or given.attack.startswith("Profile"):
        show("Profiles: the worst of a stranger, of patterns and of selectors", _worst.rows())
    if given.attack is None:
        show_states(show, quick=given.quick)
    attacks: list[str | None] = [given.attack] if given.attack else [None] if given.quick else [None, *ATTACKS]
    try:
        with scratch() as folder, scene(folder) as found:
            found.talk(0.5)
            rows = flood_rows(found, attacks, min(1.0, given.seconds) if given.quick else given.seconds)
    except BenchmarkError as error:
        say(f"carrypost bench hostile: {error}")
        return 1
    show(
        f"Floods: as fast as one process can send; goal: {GOAL_CPU:g} % of a core, {GOAL_LATENCY:g} times the latency",
        rows,
    )
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
