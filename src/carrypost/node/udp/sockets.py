"""Sockets as a node needs them, and sentences for people if the system refuses one.

A node has one *own* socket per address family: it sends everything, so the source of an announcement is where unicast
is received. It is bound to a port of its own, which it does not share. And it has one *listening* socket per interface
and means, bound to the group or broadcast address and to the port that all nodes of a link share, with address reuse:
several nodes can run on one machine.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import socket
import struct
import sys
from collections.abc import Iterator, Sequence

from carrypost.errors import NodeError
from carrypost.node.udp.addresses import SocketAddress

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
