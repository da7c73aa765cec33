"""Network namespaces for tests and benchmarks: machines, cables and switches that are made and removed by a program.

Everything lives inside the namespaces (mounts and network; without root also users) of one child process, the holder.
So names are private to a `Net`, nothing can be sent on an interface of the real machine, and all of it is gone when the
holder ends. It ends with its parent, however that ends, and so do the programs that run inside.

::

    with Net() as net:
        net.add("a", "b", "c")
        link = net.cable("a", "b")                    # point to point; each end is an `End`
        lan = net.switch("b", "c", v6=False)          # a bridge; lan.ends are the nodes' sides, lan.ports the bridge's
        link.reach(False)                             # out of reach: the interfaces stay up, nothing comes across
        lan.ends["c"].loss(0.2)                       # c misses a fifth of what it would hear
        program = net.popen("a", [sys.executable, "-c", "..."])

Losses are drawn by the kernel (classic BPF at `clsact`), because not every kernel has netem. Delay, reordering,
duplication and links that work one way are the business of `tools/radio_hub.py`. To look inside while it runs:
``nsenter --target HOLDER --mount --net ip netns exec NAME sh``.
"""

from __future__ import annotations

import ctypes
import functools
import os
import shutil
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import IO, Final, Self

_PROGRAMS: Final = ("ip", "tc", "bridge", "unshare", "nsenter", "mount", "sh", "cat")
# Names of namespaces go into a private folder; `ip` expects it below /run, which may be ours to write only this way.
_HOLD: Final = (
    "if test -d /run/netns; then mount -t tmpfs netns /run/netns; else mount -t tmpfs netns /run; fi"
    " && ip link set lo up && echo ready && exec cat > /dev/null"
)
# Entering the holder's mounts changes the working directory. A program dies with whoever started it.
_ENTER: Final = (
    'cd "$0" && if command -v setpriv > /dev/null; then exec setpriv --pdeathsig KILL -- "$@"; fi; exec "$@"'
)
_DROP_ALL: Final = "1,6 0 0 2"
_DROP_SOME: Final = "4,32 0 0 4294963256,53 0 1 {},6 0 0 0,6 0 0 2"
"""Load a random number, compare, pass or drop."""
_NETWORKS_MAX: Final = 250
_PR_SET_PDEATHSIG: Final = 1


class NetError(RuntimeError):
    """Raised if a namespace, a link or a rule could not be made; names the attempt and the system's answer."""


@dataclass(frozen=True)
class End:
    """One end of a link: an interface in a namespace."""

    net: Net = field(repr=False)
    namespace: str
    interface: str
    addresses: tuple[str, ...] = ()
    """With prefix length, IPv4 first; empty on the ports of a switch."""

    def set(self, *, up: bool) -> None:
        """Switch the interface on or off, as its owner would; the other end loses its carrier with it."""
        lines = [f"link set {self.interface} {'up' if up else 'down'}"]
        if up:  # The kernel forgets IPv6 addresses of an interface that was off.
            lines += self._address_lines()
        self.net.ip(self.namespace, lines)

    def loss(self, probability: float) -> None:
        """Lose this share of incoming packets from now on: 0 none, 1 all."""
        device = ("dev", self.interface)
        if (self.namespace, self.interface) not in self.net.with_clsact:
            self.net.tc(self.namespace, "qdisc", "add", *device, "clsact")
            self.net.with_clsact.add((self.namespace, self.interface))
        else:
            self.net.tc(self.namespace, "filter", "del", *device, "ingress")
        if probability > 0:
            some = _DROP_SOME.format(min(int(probability * 2**32), 2**32 - 1))
            program = _DROP_ALL if probability >= 1 else some
            self.net.tc(self.namespace, "filter", "add", *device, "ingress", "bpf", "da", "bytecode", program)

    def rate(self, bits_per_s: int, *, burst_bytes: int = 16_384, queue_s: float = 0.1) -> None:
        """Limit the outgoing rate from now on; packets wait up to `queue_s`, and are lost beyond that."""
        limit = ("rate", f"{bits_per_s}bit", "burst", str(burst_bytes), "latency", f"{round(queue_s * 1e6)}us")
        self.net.tc(self.namespace, "qdisc", "replace", "dev", self.interface, "root", "tbf", *limit)

    def mtu(self, nbytes: int) -> None:
        """Set the largest packet that the interface carries; longer ones from the other end are lost."""
        self.net.ip(self.namespace, [f"link set {self.interface} mtu {nbytes}"])

    def isolate(self, isolated: bool) -> None:
        """Isolate a port of a switch: isolated ports do not reach each other, but all others."""
        setting = ("isolated", "on" if isolated else "off")
        self.net.call("bridge", "-n", self.namespace, "link", "set", "dev", self.interface, *setting)

    def _address_lines(self) -> list[str]:
        """IPv6 without the second in which the kernel would look for others with the same address."""
        return [
            f"address replace {address} dev {self.interface} {'nodad' if ':' in address else 'brd +'}"
            for address in self.addresses
        ]


@dataclass(frozen=True)
class Cable:
    """A link of two ends."""

    ends: tuple[End, End]

    def reach(self, reachable: bool) -> None:
        """Let traffic across, or not; the interfaces notice nothing, as with radio."""
        for end in self.ends:
            end.loss(0 if reachable else 1)

    def rate(self, bits_per_s: int) -> None:
        """Limit both directions."""
        for end in self.ends:
            end.rate(bits_per_s)


@dataclass(frozen=True)
class Lan:
    """A network of several: the nodes' interfaces, and their counterparts in the namespace of the switch."""

    namespace: str
    ends: Mapping[str, End]
    ports: Mapping[str, End]


class Net:
    """Namespaces and what joins them; a context manager. Programs that still run inside are ended with it."""

    def __init__(self) -> None:
        self.with_clsact: set[tuple[str, str]] = set()
        self._programs: list[subprocess.Popen[bytes]] = []
        self._interfaces: Counter[str] = Counter()
        self._networks = 0
        rootless = os.geteuid() != 0
        self._enter: tuple[str, ...] = ()
        self._holder = subprocess.Popen(  # noqa: S603 - fixed arguments
            ["unshare", *(["--user", "--map-root-user"] if rootless else []), "--mount", "--net", "sh", "-c", _HOLD],  # noqa: S607
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        assert self._holder.stdout is not None
        if self._holder.stdout.readline() != b"ready\n":
            _, said = self._holder.communicate()
            raise NetError(f"no namespaces here: {said.decode(errors='replace').strip() or 'unshare failed'}")
        users = ("--user", "--preserve-credentials") if rootless else ()
        self._enter = ("nsenter", "--target", str(self._holder.pid), *users, "--mount", "--net")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the programs inside and remove everything; may be called twice."""
        for program in self._programs:
            program.kill()
        for program in self._programs:
            program.wait()
            for stream in (program.stdin, program.stdout, program.stderr):
                if stream is not None:
                    with suppress(BrokenPipeError):  # What was not sent cannot be.
                        stream.close()
        self._programs.clear()
        if self._holder.poll() is None:
            self._holder.communicate()

    # --- making ----------------------------------------------------------------------------------------------------

    def add(self, *names: str) -> None:
        """Make namespaces with nothing in them but loopback."""
        for name in names:
            self.call("ip", "netns", "add", name)
            self.ip(name, ["link set lo up"])

    def cable(self, one: str, other: str, *, v4: bool = True, v6: bool = True) -> Cable:
        """Join two namespaces by a link of their own."""
        network = self._network()
        names = (self._interface(one), self._interface(other))
        self._veth(one, names[0], other, names[1])
        addresses = [_addresses(network, host, v4=v4, v6=v6) for host in (1, 2)]
        ends = (End(self, one, names[0], addresses[0]), End(self, other, names[1], addresses[1]))
        for end in ends:
            self._start(end)
        return Cable(ends)

    def switch(self, *names: str, v4: bool = True, v6: bool = True, bridge: bool = True) -> Lan:
        """Join namespaces by a switch, in a namespace of its own; without `bridge` its ports are left to a program."""
        network = self._network()
        namespace = f"switch{network}"
        self.call("ip", "netns", "add", namespace)
        if bridge:
            self.ip(namespace, ["link add bridge type bridge mcast_snooping 0", "link set bridge up"])
        lan = Lan(namespace, ends := {}, ports := {})
        for host, name in enumerate(names, 1):
            end = End(self, name, self._interface(name), _addresses(network, host, v4=v4, v6=v6))
            port = End(self, namespace, f"port{host}")
            ends[name], ports[name] = end, port
            self._veth(name, end.interface, namespace, port.interface)
            master = " master bridge" if bridge else ""
            self.ip(namespace, [f"link set {port.interface} addrgenmode none up{master}"])
            self._start(end)
        return lan

    def _network(self) -> int:
        self._networks += 1
        assert self._networks < _NETWORKS_MAX
        return self._networks

    def _interface(self, namespace: str) -> str:
        self._interfaces[namespace] += 1
        return f"eth{self._interfaces[namespace] - 1}"

    def _veth(self, namespace: str, interface: str, other: str, peer: str) -> None:
        ends = (f"{interface} netns {namespace}", f"{peer} netns {other}")
        self.call("ip", *f"link add {ends[0]} type veth peer name {ends[1]}".split())

    def _start(self, end: End) -> None:
        self.ip(end.namespace, [f"link set {end.interface} addrgenmode none"])
        end.set(up=True)

    # --- running ---------------------------------------------------------------------------------------------------

    def popen(
        self,
        namespace: str,
        arguments: Sequence[str],
        *,
        stdin: int | IO[bytes] | None = subprocess.DEVNULL,
        stdout: int | IO[bytes] | None = None,
        stderr: int | IO[bytes] | None = None,
        env: Mapping[str, str] | None = None,
    ) -> subprocess.Popen[bytes]:
        """Start a program inside; its process id is that of the program. It ends with the thread that started it."""
        inside = ("ip", "netns", "exec", namespace, "sh", "-c", _ENTER, str(Path.cwd()))
        program = subprocess.Popen(  # noqa: S603 - the caller's own program
            [*self._enter, *inside, *arguments], stdin=stdin, stdout=stdout, stderr=stderr, env=env
        )
        self._programs.append(program)
        return program

    def entrance(self, namespace: str) -> Callable[[], None]:
        """Return a function that moves its process inside, which must have one thread and ends with its parent."""
        users = () if os.geteuid() == 0 else ("user",)
        kinds = [Path(f"/proc/{self._holder.pid}/ns/{kind}") for kind in (*users, "mnt")]
        return functools.partial(_enter, [*kinds, Path("/run/netns", namespace)], Path.cwd())

    def adopt(self, program: subprocess.Popen[bytes]) -> None:
        """End this program, which runs inside, with the others."""
        self._programs.append(program)

    def run(self, namespace: str, *arguments: str) -> str:
        """Return the output of a short program inside."""
        return self.call("ip", "netns", "exec", namespace, *arguments)

    def ip(self, namespace: str, lines: Iterable[str]) -> str:
        """Run these commands of `ip` inside, the first that fails ends it."""
        return self.call("ip", "-n", namespace, "-batch", "-", text="\n".join(lines) + "\n")

    def tc(self, namespace: str, *arguments: str) -> str:
        """Run a command of `tc` inside."""
        return self.call("tc", "-n", namespace, *arguments)

    def call(self, *arguments: str, text: str = "") -> str:
        """Run a program beside the namespaces; return its output."""
        done = subprocess.run(  # noqa: S603 - our own commands
            [*self._enter, *arguments], input=text, capture_output=True, text=True, check=False
        )
        if done.returncode:
            asked = " ".join(arguments) + (f" <<< {text!r}" if text else "")
            raise NetError(f"{asked}: {done.stderr.strip() or f'exit code {done.returncode}'}")
        return done.stdout


def _enter(namespaces: Iterable[Path], folder: Path) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    for namespace in namespaces:
        with namespace.open("rb") as file:
            if libc.setns(file.fileno(), 0):
                raise OSError(ctypes.get_errno(), "cannot enter the namespace", str(namespace))
    os.chdir(folder)  # Entering the holder's mounts changes it.


def _addresses(network: int, host: int, *, v4: bool, v6: bool) -> tuple[str, ...]:
    """Addresses that no other host has, on any network."""
    return (*([f"10.77.{network}.{host}/24"] if v4 else []), *([f"fe80::{network:x}:{host:x}/64"] if v6 else []))


@functools.cache
def available() -> str:
    """Empty where namespaces can be made; else why they cannot."""
    if sys.platform != "linux":
        return f"network namespaces are a thing of Linux, this is {sys.platform}"
    if missing := [name for name in _PROGRAMS if shutil.which(name) is None]:
        return f"not installed: {', '.join(missing)}"
    try:
        with Net() as net:
            net.add("a", "b")
            net.cable("a", "b").reach(False)
            net.switch("a", "b")
    except (NetError, OSError) as error:
        return str(error)
    return ""
