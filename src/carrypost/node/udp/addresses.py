"""Link addresses: text for the host and for people, tuples for sockets.

``10.0.0.5:40001`` and ``[fe80::1%eth0]:40001``. An IPv6 address of the link says on which interface it is meant; its
name stands in the text, its number in the tuple, because numbers change when interfaces come and go.
"""

from __future__ import annotations

import socket
from collections.abc import Mapping

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
