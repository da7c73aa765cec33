"""Sockets as a node needs them, the addresses of links, and static peers, which are reached by unicast.

Addresses are text for the host and for people, and tuples for sockets: ``10.0.0.5:40001`` and ``[fe80::1%eth0]:40001``.
An IPv6 address of the link says on which interface it is meant; its name stands in the text, its number in the tuple,
because numbers change when interfaces come and go.

The names of static peers are resolved by a thread, at intervals, because a node that moves from network to network
finds other addresses behind them. A failure is logged once and retried; until then the last address is used, because a
network without a name server may still have the node. Of several addresses the one that answers is kept.

A node has one *own* socket per address family: it sends everything, so the source of an announcement is where unicast
is received. It is bound to a port of its own, which it does not share. And it has one *listening* socket per interface
and means, bound to the group or broadcast address and to the port that all nodes of a link share, with address reuse:
several nodes can run on one machine.

asyncio's own datagram endpoints read one datagram per turn of the loop into a buffer of 256 KiB and lose most of a
burst. Here the loop only signals that a socket is readable; then up to `BATCH` datagrams are read at once, about as
fast as a dedicated thread would. Loops that cannot watch sockets get an endpoint on the same socket.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import errno
import logging
import socket
import struct
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future

from carrypost.errors import ConfigError, NodeError

SocketAddress = tuple[str, int] | tuple[str, int, int, int]
"""An address as sockets take and give it."""
PORT_MAX = 65_535


def address_text(address: SocketAddress, interface_names: Mapping[int, str]) -> str:
    """Return the address as the host and people see it."""
    if len(address) == 2:  # noqa: PLR2004 - IPv4 has two parts
        return f"{address[0]}:{address[1]}"
    host, port, _, scope = address
    if scope:
        return f"[{host}%{interface_names.get(scope, scope)}]:{port}"
    return f"[{host}]:{port}"


def split(text: str) -> tuple[str, int]:
    """Host and port of ``host:port``; raises `ValueError` for anything else."""
    host, colon, port = text.rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        colon = ""  # An IPv6 address without brackets: which colon is before the port?
    if not (colon and host and port.isascii() and port.isdigit() and 0 < int(port) <= PORT_MAX):
        raise ValueError(f"not an address such as 10.0.0.5:17232 or [fe80::1%eth0]:17232: {text!r}")
    return host, int(port)


def literal(host: str, port: int) -> SocketAddress | None:
    """Return the address, if the host is written as a number; None if it is a name.

    Raises `OSError` if it is meant on an interface that is not there.
    """
    number, _, zone = host.partition("%")
    if not zone and (plain := _plain(socket.AF_INET, number)):
        return plain, port
    if plain := _plain(socket.AF_INET6, number):
        return plain, port, 0, _scope(zone) if zone else 0
    return None


def socket_address(text: str) -> SocketAddress:
    """Return the address of a numeric text; raises `ValueError` if it is not one, `OSError` as `literal` does."""
    address = literal(*split(text))
    if address is None:
        raise ValueError(f"a name, not a number: {text!r}")
    return address


def family(address: SocketAddress) -> socket.AddressFamily:
    """Return the address family: IPv4 or IPv6."""
    return socket.AF_INET if len(address) == 2 else socket.AF_INET6  # noqa: PLR2004 - IPv4 has two parts


def _scope(zone: str) -> int:
    number = int(zone) if zone.isascii() and zone.isdigit() else socket.if_nametoindex(zone)
    if number >= 1 << 32:
        raise OSError("no interface has that number")
    return number


def _plain(kind: socket.AddressFamily, number: str) -> str:
    """Return the number as the system writes it; empty if it is none."""
    try:
        return socket.inet_ntop(kind, socket.inet_pton(kind, number))
    except (OSError, ValueError):
        return ""


RESOLVE_S = 60.0
"""Interval at which names are resolved again."""
RETRY_S = 10.0
"""Delay before they are resolved again after a failure."""
PEERS_MAX = 256
_log = logging.getLogger("carrypost.udp")


class StaticPeer:
    """A node that the settings name."""

    __slots__ = ("address", "heard_s", "host", "port", "text", "troubled")

    def __init__(self, text: str) -> None:
        try:
            self.host, self.port = split(text)
        except ValueError as error:
            raise ConfigError(f"udp.peers: {error}") from None
        self.text = text
        self.address: SocketAddress | None = None
        """None: not known yet."""
        self.heard_s = float("-inf")
        """Time at which it last sent something to this node."""
        self.troubled = False
        """True if it was logged that it cannot be resolved."""


class StaticPeers:
    """All nodes that the settings name; raises `ConfigError` for a text that is no address."""

    def __init__(self, texts: Iterable[str], errors: Counter[str], known: Iterable[StaticPeer] = ()) -> None:
        before = {peer.text: peer for peer in known}
        self.peers = [before.get(text) or StaticPeer(text) for text in dict.fromkeys(texts)]
        if len(self.peers) > PEERS_MAX:
            raise ConfigError(f"udp.peers: at most {PEERS_MAX} peers, not {len(self.peers)}")
        self._errors = errors

    @property
    def known(self) -> dict[SocketAddress, StaticPeer]:
        """Static peers whose address is known."""
        return {peer.address: peer for peer in self.peers if peer.address is not None}

    async def resolve(self, families: Collection[int], changed: Callable[[], None]) -> bool:
        """Resolve all names at once, and call `changed` for each new address; return True if all are known now."""
        await asyncio.gather(*(self._resolve(peer, families, changed) for peer in self.peers))
        return not any(peer.troubled for peer in self.peers)

    async def _resolve(self, peer: StaticPeer, families: Collection[int], changed: Callable[[], None]) -> None:
        before = peer.address
        try:
            peer.address = _written(peer, families) or await _named(peer, families)
            peer.troubled = False
        except (OSError, ValueError) as error:  # ValueError: what cannot be a name at all
            self._errors["resolve"] += 1
            if not peer.troubled:
                _log.warning("static peer %s cannot be resolved, trying again: %s", peer.text, error)
                peer.troubled = True
        if peer.address != before:
            changed()


def _written(peer: StaticPeer, families: Collection[int]) -> SocketAddress | None:
    """Return the address, if it is written as a number."""
    address = literal(peer.host, peer.port)
    if address is not None and family(address) not in families:
        raise OSError("this machine does not support that version of IP")
    return address


async def _named(peer: StaticPeer, families: Collection[int]) -> SocketAddress:
    """Return one of the addresses behind the name: the same as before, unless nothing was heard from there."""
    found = [address for address in await _looked_up(peer.host, peer.port) if family(address) in families]
    if not found:
        raise OSError("no address that this machine could reach")
    if peer.address not in found:
        return found[0]
    silent = time.monotonic() - peer.heard_s > RESOLVE_S
    return found[(found.index(peer.address) + silent) % len(found)]


async def _looked_up(host: str, port: int) -> list[SocketAddress]:
    """Return the system's addresses for a name.

    In a thread that nothing waits for at the end: without a name server it may take a minute, and the loop's own
    threads would keep the process alive for so long.
    """
    answer: Future[list[SocketAddress]] = Future()
    answer.set_running_or_notify_cancel()  # The caller may give up; the thread goes on, and its answer is dropped.

    def ask() -> None:
        try:
            answer.set_result(_addresses(host, port))
        except (OSError, ValueError) as error:
            answer.set_exception(error)

    threading.Thread(target=ask, name="carrypost-names", daemon=True).start()
    return await asyncio.wrap_future(answer)


def _addresses(host: str, port: int) -> list[SocketAddress]:
    found: list[SocketAddress] = []
    for kind, _, _, _, (number, *rest) in socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM):
        if kind == socket.AF_INET6:
            found.append((str(number), port, 0, int(rest[2])))
        elif kind == socket.AF_INET:
            found.append((str(number), port))
    return found


LINUX = sys.platform == "linux"
# Numbers of Linux that Python does not have, or not in every version.
_IP_PKTINFO, _IP_MULTICAST_ALL, _IPV6_MULTICAST_ALL = 8, 49, 29
_SO_RCVBUFFORCE, _SO_ATTACH_FILTER = 33, 26
_BPF_LOAD_WORD, _BPF_LOAD_HALF, _BPF_JUMP_IF_EQUAL, _BPF_RETURN = 0x20, 0x28, 0x15, 0x06
_BPF_NETWORK_HEADER = 0xFFF0_0000
"""Offsets from here on are into the IP header."""
_SOURCE_V4, _SOURCE_V6 = 12, 8
"""Index of the source in it."""
_UDP_HEADER_BYTES = 8
_HOPS = 1
"""Multicast stays on the link."""
_SEND_BUFFER_BYTES = 1 << 20
_PORT_ATTEMPTS = 8
"""Number of attempts to find a port that is free in both families."""
_PRIVILEGED_PORT_MAX = 1_023
_Instruction = tuple[int, int, int, int]
"""Of the kernel's filter: code, where to go on if it is so and if not, and a number."""
Control = list[tuple[int, int, bytes]]
"""Ancillary data that says by which interface a datagram leaves."""


def own_sockets(port: int, *, shared_port: int, v4: bool, v6: bool) -> dict[socket.AddressFamily, socket.socket]:
    """Return the node's own sockets, on the same port in both families if that can be had; raises `NodeError`."""
    for attempt in range(_PORT_ATTEMPTS):
        made: dict[socket.AddressFamily, socket.socket] = {}
        try:
            if v4:
                made[socket.AF_INET] = _own(socket.AF_INET, port, shared=port == shared_port)
            wanted = made[socket.AF_INET].getsockname()[1] if v4 else port
            if v6 and socket.has_ipv6:
                made[socket.AF_INET6] = _own(socket.AF_INET6, wanted, shared=port == shared_port)
        except OSError as error:
            if socket.AF_INET in made and error.errno in {errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL}:
                return made  # A machine without IPv6.
            close_all(made)
            if error.errno == errno.EADDRINUSE and port == 0 and attempt < _PORT_ATTEMPTS - 1:
                continue  # Another program has that port in the other family.
            raise _refused(error, port, "unicast_port") from None
        return made
    raise AssertionError


def close_all(sockets: dict[socket.AddressFamily, socket.socket]) -> None:
    """Close them and forget them."""
    for each in sockets.values():
        each.close()
    sockets.clear()


def check_shared_port(group: str, port: int) -> None:
    """Raise `NodeError` if this port cannot be shared with other listeners."""
    try:
        _listening(socket.AF_INET, (_bindable(group), port)).close()
    except OSError as error:
        raise _refused(error, port, "port") from None


def listen_multicast_v4(group: str, port: int, index: int, address: str) -> socket.socket:
    """Return a socket that hears an IPv4 group on one interface; raises `OSError`."""
    made = _listening(socket.AF_INET, (_bindable(group), port))
    with _ready(made):
        if LINUX:
            made.setsockopt(socket.IPPROTO_IP, _IP_MULTICAST_ALL, 0)  # Otherwise it hears what any program has joined.
            request = struct.pack("=4s4si", socket.inet_aton(group), bytes(4), index)
        else:
            request = struct.pack("=4s4s", socket.inet_aton(group), socket.inet_aton(address))
        made.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, request)
    return made


def listen_multicast_v6(group: str, port: int, index: int) -> socket.socket:
    """Return a socket that hears an IPv6 group on one interface; raises `OSError`."""
    made = _listening(socket.AF_INET6, (_bindable(group, "::"), port, 0, index))
    with _ready(made):
        if LINUX:
            made.setsockopt(socket.IPPROTO_IPV6, _IPV6_MULTICAST_ALL, 0)
        request = struct.pack("=16sI", socket.inet_pton(socket.AF_INET6, group), index)
        made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_JOIN_GROUP, request)
    return made


def listen_broadcast(broadcast: str, port: int, interface: str) -> socket.socket:
    """Return a socket that hears what is broadcast to one network; raises `OSError`."""
    made = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    # Two interfaces may be in one network: each has its own ears. Before Linux 5.7 they hear the same.
    with _ready(made), contextlib.suppress(PermissionError):
        if LINUX:
            made.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, interface.encode() + b"\0")
    return _bound_together(made, (_bindable(broadcast), port))


def leaving_by(index: int, address: str) -> Control:
    """Return ancillary data for a datagram that leaves by this interface, from this address; Linux only."""
    return [(socket.IPPROTO_IP, _IP_PKTINFO, struct.pack("=i4s4s", index, socket.inet_aton(address), bytes(4)))]


def enlarge(made: socket.socket, receive_bytes: int) -> int:
    """Request a receive buffer; return the size that was granted."""
    made.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BUFFER_BYTES)
    size = min(receive_bytes, 2**31 - 1)
    try:
        made.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE if LINUX else socket.SO_RCVBUF, size)
    except PermissionError:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, size)
    granted = made.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF)
    return granted // 2 if LINUX else granted  # Linux counts its own overhead in.


def attach_filter(made: socket.socket, magic: bytes, shunned: Sequence[SocketAddress] = ()) -> None:
    """Let the system drop datagrams that do not begin with these two bytes, or come from one of these addresses.

    A flood of either is then free. Replaces the previous request. If the system cannot do it, the node drops the same
    itself, at the cost of reading it. Linux: a small program for the kernel; a datagram begins with the UDP header for
    it, and the IP header can be read as well.
    """
    if not LINUX:
        return
    program: list[_Instruction] = []
    if magic:
        program += [(_BPF_LOAD_HALF, 0, 0, _UDP_HEADER_BYTES), (_BPF_JUMP_IF_EQUAL, 1, 0, int.from_bytes(magic, "big"))]
        program.append((_BPF_RETURN, 0, 0, 0))
    for host, port, *_ in shunned:
        program += _unless_from(made.family, host, port)
    program.append((_BPF_RETURN, 0, 0, 0xFFFF_FFFF))
    packed = b"".join(struct.pack("=HBBI", *instruction) for instruction in program)
    held = ctypes.create_string_buffer(packed, len(packed))
    with contextlib.suppress(OSError):
        made.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, struct.pack("@HP", len(program), ctypes.addressof(held)))


def _unless_from(family: socket.AddressFamily, host: str, port: int) -> list[_Instruction]:
    """Return instructions that drop datagrams from there, and continue with all others."""
    source = socket.inet_pton(family, host)
    begin = _BPF_NETWORK_HEADER + (_SOURCE_V4 if family == socket.AF_INET else _SOURCE_V6)
    words = [(begin + at, int.from_bytes(source[at : at + 4], "big")) for at in range(0, len(source), 4)]
    # Each comparison that fails jumps behind all that is left of this address: its own comparisons, and the return.
    program: list[_Instruction] = [(_BPF_LOAD_HALF, 0, 0, 0), (_BPF_JUMP_IF_EQUAL, 0, 2 * len(words) + 1, port)]
    for number, (offset, word) in enumerate(words):
        behind = 2 * (len(words) - number - 1) + 1
        program += [(_BPF_LOAD_WORD, 0, 0, offset), (_BPF_JUMP_IF_EQUAL, 0, behind, word)]
    return [*program, (_BPF_RETURN, 0, 0, 0)]


@contextlib.contextmanager
def _ready(made: socket.socket) -> Iterator[None]:
    """Close a socket if it cannot be made ready."""
    try:
        yield
    except OSError:
        made.close()
        raise


def _own(kind: socket.AddressFamily, port: int, *, shared: bool) -> socket.socket:
    made = socket.socket(kind, socket.SOCK_DGRAM)
    with _ready(made):
        if kind == socket.AF_INET:
            made.setsockopt(socket.SOL_SOCKET, socket.SO_BROADCAST, 1)
            made.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_TTL, _HOPS)
            made.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_LOOP, 1)
            if LINUX:
                made.setsockopt(socket.IPPROTO_IP, _IP_MULTICAST_ALL, 0)
            made.bind(("", port))
        else:
            made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_MULTICAST_HOPS, _HOPS)
            made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_MULTICAST_LOOP, 1)
            if LINUX:
                made.setsockopt(socket.IPPROTO_IPV6, _IPV6_MULTICAST_ALL, 0)
            made.bind(("::", port))
        if shared:  # It was free, so it is ours; now let the listening sockets in, this node's and others'.
            made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    made.setblocking(False)
    return made


def _listening(kind: socket.AddressFamily, address: SocketAddress) -> socket.socket:
    return _bound_together(socket.socket(kind, socket.SOCK_DGRAM), address)


def _bound_together(made: socket.socket, address: SocketAddress) -> socket.socket:
    """Bind to an address that others may be bound to, too."""
    with _ready(made):
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if not LINUX and hasattr(socket, "SO_REUSEPORT"):
            made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)  # What BSD calls what Linux calls REUSEADDR.
        if made.family == socket.AF_INET6:
            made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        made.bind(address)
    made.setblocking(False)
    return made


def _bindable(address: str, wildcard: str = "") -> str:
    """Return the address to bind to: Windows cannot bind to a group or a broadcast address."""
    return wildcard if sys.platform == "win32" else address


def _refused(error: OSError, port: int, setting: str) -> NodeError:
    """Return the sentence for people."""
    what = f"UDP port {port} (setting udp.{setting})"
    if error.errno in {errno.EACCES, errno.EPERM}:
        if port <= _PRIVILEGED_PORT_MAX:
            return NodeError(
                f"no permission for {what}: ports below 1024 are kept for the administrator; choose one from 1024 up"
            )
        return NodeError(f"no permission for {what}: {error.strerror}; choose another one, or ask the administrator")
    if error.errno == errno.EADDRINUSE and setting == "port":
        return NodeError(
            f"{what} is in use by a program that does not share it: stop that program, or give all nodes of "
            "this network another udp.port"
        )
    if error.errno == errno.EADDRINUSE:
        return NodeError(
            f"{what} is in use by another program or node: stop it, or choose another port; 0 takes any free one"
        )
    return NodeError(f"{what} cannot be opened: {error.strerror or error}; see `carrypost doctor`")


BATCH = 128
"""Number of datagrams that are read before other sockets have their turn."""
Raw = list[tuple[bytes, SocketAddress]]
"""Datagrams and where they came from."""
Deliver = Callable[[Raw], None]
Failed = Callable[[OSError], object]


async def read(made: socket.socket, nbytes: int, deliver: Deliver, failed: Failed) -> Callable[[], None]:
    """Pass on all datagrams that arrive from now on, each cut off after `nbytes` bytes.

    Returns a function that ends that and closes the socket.
    """
    loop = asyncio.get_running_loop()
    try:
        loop.add_reader(made, drain, made, nbytes, deliver, failed)
    except NotImplementedError:
        transport, _ = await loop.create_datagram_endpoint(lambda: _Collector(loop, deliver, failed), sock=made)
        return transport.close

    def close() -> None:
        loop.remove_reader(made)
        made.close()

    return close


def drain(made: socket.socket, nbytes: int, deliver: Deliver, failed: Failed) -> None:
    """Read what is there now, up to a batch."""
    receive, raw = made.recvfrom, []
    try:
        for _ in range(BATCH):
            raw.append(receive(nbytes))  # noqa: PERF401 - what was read before an error is kept
    except (BlockingIOError, InterruptedError):
        pass
    except OSError as error:
        failed(error)
    if raw:
        deliver(raw)


class _Collector(asyncio.DatagramProtocol):
    """Collects what comes in one turn of the loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop, deliver: Deliver, failed: Failed) -> None:
        self._loop = loop
        self._deliver = deliver
        self._failed = failed
        self._raw: Raw = []

    def datagram_received(self, data: bytes, addr: SocketAddress) -> None:
        if not self._raw:
            self._loop.call_soon(self._hand_over)
        self._raw.append((data, addr))

    def error_received(self, exc: Exception) -> None:
        if isinstance(exc, OSError):
            self._failed(exc)

    def _hand_over(self) -> None:
        raw, self._raw = self._raw, []
        self._deliver(raw)
