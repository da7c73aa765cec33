"""Static peers: nodes that are named in the settings and reached by unicast, wherever they are.

Names are resolved by a thread, now and again, because a node that moves from network to network finds other addresses
behind them. What cannot be resolved is said once and tried again.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections import Counter
from collections.abc import Collection, Iterable

from carrypost.errors import ConfigError
from carrypost.node.addresses import SocketAddress, family, literal, split

RESOLVE_S = 60.0
"""How often names are resolved again."""
RETRY_S = 10.0
"""How soon where that failed."""
PEERS_MAX = 256
_log = logging.getLogger("carrypost.udp")


class StaticPeer:
    """One of them."""

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
        """When it last sent something to this node."""
        self.troubled = False
        """It has been said that it cannot be resolved."""


class StaticPeers:
    """All of them. Raises `ConfigError` for a text that is no address."""

    def __init__(self, texts: Iterable[str], errors: Counter[str]) -> None:
        self.peers = [StaticPeer(text) for text in dict.fromkeys(texts)]
        if len(self.peers) > PEERS_MAX:
            raise ConfigError(f"udp.peers: at most {PEERS_MAX} peers, not {len(self.peers)}")
        self._errors = errors

    @property
    def known(self) -> dict[SocketAddress, StaticPeer]:
        """Those whose address is known."""
        return {peer.address: peer for peer in self.peers if peer.address is not None}

    async def resolve(self, families: Collection[int]) -> bool:
        """Find out the addresses; whether all are known now."""
        for peer in self.peers:
            try:
                peer.address = await self._found(peer, families)
                peer.troubled = False
            except (OSError, ValueError) as error:  # ValueError: what cannot be a name at all
                peer.address = None
                self._errors["resolve"] += 1
                if not peer.troubled:
                    _log.warning("static peer %s cannot be found, trying again: %s", peer.text, error)
                    peer.troubled = True
        return not any(peer.troubled for peer in self.peers)

    @staticmethod
    async def _found(peer: StaticPeer, families: Collection[int]) -> SocketAddress:
        address = literal(peer.host, peer.port)
        if address is not None:
            if family(address) not in families:
                raise OSError("this machine does not speak that version of IP")
            return address
        loop = asyncio.get_running_loop()
        for kind, _, _, _, found in await loop.getaddrinfo(peer.host, peer.port, type=socket.SOCK_DGRAM):
            if kind in families:
                host, *rest = found
                return (str(host), peer.port, 0, int(rest[2])) if kind == socket.AF_INET6 else (str(host), peer.port)
        raise OSError("no address that this machine could reach")
