"""Static peers: nodes that are named in the settings and reached by unicast, wherever they are.

Names are resolved by a thread, at intervals, because a node that moves from network to network finds other addresses
behind them. A failure is logged once and retried; until then the last address is used, because a network without a name
server may still have the node. Of several addresses the one that answers is kept.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable
from concurrent.futures import Future

from carrypost.errors import ConfigError
from carrypost.node.udp.addresses import SocketAddress, family, literal, split

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
