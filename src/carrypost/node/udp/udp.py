"""Real datagrams: a node's sockets on all interfaces, by all means, as they come and go.

Announcements leave by every means on every interface and to every static peer, because it is not known in advance which
of them work: access points drop multicast, drivers lose broadcasts, machines have no IPv6. Datagrams that arrive show
which means work; other broadcasts use as few means as reach every node heard lately.

This module joins the others: `sockets` makes sockets and reads from them, `channels` plans them and sends through them,
`intake` decides what is accepted and which addresses are the same node. No fault of a datagram, an interface or
a peer raises once the node runs: it is counted, shown by `status` and logged once.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import socket
import time
from collections.abc import Callable, Iterable, Mapping, Sequence

from carrypost.errors import ConfigError, NodeError
from carrypost.node.settings import UdpSettings
from carrypost.node.udp import channels, sockets
from carrypost.node.udp.channels import LATELY_S, Channel, ChannelPlan, Interface, Means, Outlet, Target, UdpTraffic
from carrypost.node.udp.intake import Intake
from carrypost.node.udp.sockets import (
    RESOLVE_S,
    RETRY_S,
    Raw,
    SocketAddress,
    StaticPeers,
    address_text,
    family,
    read,
    socket_address,
)
from carrypost.security import packets
from carrypost.security.packets import Packets

Received = Callable[[list[tuple[str, bytes]]], None]
"""Function that receives a batch of datagrams, each with the peer that it came from."""
TARGETS_MAX = 1_024
"""Peers whose socket address is kept."""
_COVER_S = 1.0
"""Time for which the choice of needed channels is kept."""
SHUNNED_MAX = 64
"""Number of addresses whose datagrams the system drops; a longer list would cost every datagram too much."""
_UNSHUN_SLACK_S = 0.05
"""Timers of the loop may fire a little early."""
_LOOK_S = 1.0
"""Shortest interval between two looks at the own addresses, which datagrams from this node's own port cause."""
_log = logging.getLogger("carrypost.udp")


class Udp:
    """The datagrams of one node. `received` is called on the loop's thread.

    Datagrams that do not begin with `magic` (two bytes) need not be received at all. In a closed network `protection`
    opens those that arrive, before anything is concluded from their source, and protects those that leave: each copy by
    itself, so that only bytes which a replayer repeats are equal.
    """

    def __init__(
        self, settings: UdpSettings, received: Received, *, magic: bytes = b"", datagram_bytes_max: int = 65_507
    ) -> None:
        self.settings = settings
        self.protection: Packets | None = None
        """The keys of the closed network; None: this node is in none."""
        self._magic = magic
        self._read_bytes = datagram_bytes_max + 1  # One more shows that it is too long.
        self._shunned: dict[str, tuple[float, list[SocketAddress]]] = {}
        """By peer: the time until which the system drops datagrams from its addresses."""
        self._received = received
        self._traffic = UdpTraffic()
        self.intake = Intake(self._traffic, settings.hear, self._look_again)
        self._statics = StaticPeers((), self._traffic.errors)
        self._own: dict[socket.AddressFamily, socket.socket] = {}
        self._own_ports: dict[socket.AddressFamily, int] = {}
        self._outlets: dict[socket.AddressFamily, Outlet] = {}
        self._closes: list[Callable[[], None]] = []
        self._all: list[Interface] = []
        self._used: list[Interface] = []
        self._channels: dict[tuple[int, Means], Channel] = {}
        self._refused: dict[tuple[int, Means], str] = {}
        self._retry = False
        self._needed: list[Channel] = []
        self._needed_until_s = 0.0
        self._looked_s = 0.0
        self._targets: dict[str, Target] = {}
        self._chores: list[asyncio.Task[None]] = []
        self._resolving: asyncio.Task[None] | None = None
        self._reported_unused = False

    def protect(self, protection: Packets) -> None:
        """Belong to a closed network from now on."""
        self.protection = protection

    # --- open and close ----------------------------------------------------------------------------------------

    async def open(self) -> None:
        """Bind the ports and begin to listen; raises `NodeError` or `ConfigError`.

        Having no interface is not an error.
        """
        settings, loop = self.settings, asyncio.get_running_loop()
        means = channels.enabled(settings)
        self._statics = StaticPeers(settings.peers, self._traffic.errors)
        self._check(self._statics)
        try:
            if means:
                sockets.check_shared_port(settings.group_v4, settings.port)
            self._own = sockets.own_sockets(
                settings.unicast_port,
                shared_port=settings.port,
                v4=bool(settings.peers) or any(each is not Means.IPV6_MULTICAST for each in means),
                v6=bool(settings.peers) or Means.IPV6_MULTICAST in means,
            )
            for kind, made in self._own.items():
                self._own_ports[kind] = made.getsockname()[1]
                self._outlets[kind] = Outlet(made, self._traffic, loop)
                self._closes += [self._outlets[kind].close, await self._read(made, None)]
            self._all = channels.snapshot()
            await self._refresh()
        except BaseException as error:
            await self.close()
            if isinstance(error, OSError):
                raise NodeError(f"no UDP sockets: {error.strerror or error}; see `carrypost doctor`") from error
            raise
        self._chores = [asyncio.create_task(self._poll())]
        if settings.peers:
            self._resolving = asyncio.create_task(self._resolve())

    async def close(self) -> None:
        """Close all sockets. Idempotent, and allowed after an `open` that failed."""
        chores, self._chores = [*self._chores, *filter(None, [self._resolving])], []
        self._resolving = None
        for chore in chores:
            chore.cancel()
        await asyncio.gather(*chores, return_exceptions=True)
        for close in (*(channel.close for channel in self._channels.values()), *self._closes):
            close()
        self._outlets.clear()
        self._channels.clear()
        self._closes.clear()
        sockets.close_all(self._own)
        self._needed, self._used = [], []

    def name_peers(self, texts: Iterable[str]) -> None:
        """Replace the static peers; raises `ConfigError`, and then nothing changes."""
        statics = StaticPeers(texts, self._traffic.errors, self._statics.peers)
        self._check(statics)
        self._statics = statics
        self._know_own()
        if self._resolving is not None:
            self._resolving.cancel()
        self._resolving = asyncio.create_task(self._resolve())

    def _check(self, statics: StaticPeers) -> None:
        if not channels.enabled(self.settings) and not statics.peers:
            raise ConfigError(
                "udp: all means of discovery are off and there are no peers: switch one on, or name peers in udp.peers"
            )

    # --- what others ask -----------------------------------------------------------------------------------

    @property
    def addresses(self) -> list[str]:
        """The unicast addresses of this node, as others see them."""
        names = {each.index: each.name for each in self._used}
        v4, v6 = (self._own_ports.get(family) for family in (socket.AF_INET, socket.AF_INET6))
        return [address_text((each.ipv4, v4), names) for each in self._used if v4 and each.ipv4] + [
            address_text((each.link_local, v6, 0, each.index), names) for each in self._used if v6 and each.link_local
        ]

    @property
    def datagram_bytes(self) -> int:
        """The longest datagram that reaches all nodes in one packet; 0: not known, as for peers behind routers."""
        return 0 if self.settings.peers else channels.datagram_bytes(self._used)

    def status(self) -> dict[str, object]:
        """Return interfaces with their means and what was heard on each, and counters, as JSON values."""
        now_s = time.monotonic()
        return {
            "addresses": self.addresses,
            "interfaces": [
                {
                    "name": each.name,
                    "index": each.index,
                    "mtu_bytes": each.mtu_bytes,
                    "addresses": list(each.addresses),
                    "means": [self._means_status(each, means, now_s) for means in channels.enabled(self.settings)],
                }
                for each in self._used
            ],
            "counters": {**self._traffic.counters, "errors": dict(self._traffic.errors)},
        }

    def _means_status(self, interface: Interface, means: Means, now_s: float) -> dict[str, object]:
        key = interface.index, means
        channel = self._channels.get(key)
        error = self._refused.get(key, "not opened") if channel is None else channel.send_error
        heard_s = [] if channel is None else channel.peers.values()
        return {
            "means": str(means),
            "usable": not error,
            "error": error or None,
            "heard": 0 if channel is None else channel.heard,
            "peers": sum(now_s - each_s <= LATELY_S for each_s in heard_s),
        }

    # --- sending -------------------------------------------------------------------------------------------

    def send(self, datagrams: Sequence[bytes], to: str | None, *, announcing: bool, node: bytes = b"") -> None:
        """Send datagrams to one peer, or to all nodes in range. Never waits and never raises.

        `node`: the prefix of the node at the peer's address, for which protected datagrams are meant.
        """
        key = b""
        if to is not None:
            to, key = packets.parted(to) if self.protection is not None else (to, b"")
            if to or not key:
                self._send_to(datagrams, to, key, node)
                return
            announcing = True  # Under an older key only announcements are sent to all.
        now_s = time.monotonic()
        # Announcements test the means. If they left only by those that are known to work, a means
        # that begins to work would never be found out.
        for channel in list(self._channels.values()) if announcing else self._covering(now_s):
            outlet = self._outlets.get(channel.target.family)
            if outlet is not None:
                channel.send_error = outlet.send(self._sealed(datagrams, key), channel.target)
        for address, peer in self.intake.statics.items():
            if announcing or (now_s - peer.heard_s <= LATELY_S and not self._on_link(self.intake.text(address), now_s)):
                self._deliver(self._sealed(datagrams, key), Target(address))

    def _sealed(self, datagrams: Sequence[bytes], key: bytes, node: bytes = b"") -> Sequence[bytes]:
        return datagrams if self.protection is None else self.protection.seal(datagrams, key, node)

    def _send_to(self, datagrams: Sequence[bytes], peer: str, key: bytes, node: bytes) -> None:
        aliases = self.intake.aliases
        datagrams = self._sealed(datagrams, key, node)
        failure = self._deliver(datagrams, self._target(aliases.destination(peer)))
        # The address that answered last may be gone with its interface. Another alias of the same
        # node is tried at once; EMSGSIZE would fail there just as well.
        if failure and failure != "EMSGSIZE" and aliases.failed(peer, time.monotonic()):
            self._deliver(datagrams, self._target(aliases.destination(peer)))

    def _deliver(self, datagrams: Sequence[bytes], target: Target | None) -> str:
        outlet = None if target is None else self._outlets.get(target.family)
        if target is None or outlet is None:
            self._traffic.errors["address"] += 1
            return "address"
        return outlet.send(datagrams, target)

    def _target(self, address: str) -> Target | None:
        target = self._targets.get(address)
        if target is None:
            try:
                target = Target(socket_address(address))
            except (OSError, ValueError):
                return None
            # Cleared as a whole: strangers choose the addresses, and whichever entry were evicted
            # they could make it the useful one.
            if len(self._targets) >= TARGETS_MAX:
                self._targets.clear()
            self._targets[address] = target
        return target

    def _on_link(self, address: str, now_s: float) -> bool:
        """Return True if a static peer is also heard on an interface, so that broadcasts reach it anyway."""
        name, never = self.intake.aliases.name(address), -LATELY_S - 1
        return any(now_s - each.peers.get(name, never) <= LATELY_S for each in self._channels.values())

    def _covering(self, now_s: float) -> list[Channel]:
        """Return the fewest channels that reach every node heard lately."""
        if now_s >= self._needed_until_s:
            by_interface: dict[int, list[Channel]] = {}
            for channel in self._channels.values():
                channel.forget(now_s)
                by_interface.setdefault(channel.plan.index, []).append(channel)
            self._needed = [each for own in by_interface.values() for each in channels.cover(own)]
            self._needed_until_s = now_s + _COVER_S
        return self._needed

    # --- receiving -----------------------------------------------------------------------------------------

    async def _read(self, made: socket.socket, key: tuple[int, Means] | None) -> Callable[[], None]:
        """Prepare a socket and read it: of a channel or, without a key, of this node's own port."""
        wanted, granted = self.settings.receive_buffer_bytes, sockets.enlarge(made, self.settings.receive_buffer_bytes)
        if granted < wanted:
            _log.debug("receive buffer of %d bytes instead of %d", granted, wanted)
        self._filter(made)
        return await read(made, self._read_bytes, functools.partial(self._receive, key), self._traffic.failed)

    def _receive(self, key: tuple[int, Means] | None, raw: Raw) -> None:
        channel = None if key is None else self._channels.get(key)
        if channel is None and key is not None:
            return
        # Where the own port is the shared one, broadcasts come there, too.
        to_all = channel is not None or self.settings.unicast_port == self.settings.port
        for under, opened in (("", raw),) if self.protection is None else self._opened(raw, self.protection):
            batch, met = self.intake.accept(opened, time.monotonic(), channel, to_all=to_all)
            if met:
                self._needed_until_s = 0.0
                self._rename()
            if batch:
                self._received([(peer + under, datagram) for peer, datagram in batch] if under else batch)

    @staticmethod
    def _opened(raw: Raw, protection: Packets) -> Iterable[tuple[str, Raw]]:
        """Return what members of a closed network sent, by the text that the peers of each key are called by."""
        by_key: dict[str, list[tuple[bytes, SocketAddress]]] = {}
        for datagram, address in raw:
            if (found := protection.open(datagram)) is not None:
                plain, key = found
                by_key.setdefault(packets.under("", key) if key else "", []).append((plain, address))
        return by_key.items()

    def _rename(self) -> None:
        """Rename the peers of every channel: addresses may have turned out to be one peer, or not to be."""
        for channel in self._channels.values():
            channel.peers = {self.intake.aliases.name(peer): heard_s for peer, heard_s in channel.peers.items()}

    # --- interfaces ----------------------------------------------------------------------------------------

    async def _poll(self) -> None:
        while True:
            await asyncio.sleep(self.settings.poll_s)
            try:
                await self._look()
            except OSError as error:
                self._traffic.failed(error)
                self._retry = True
            except Exception:  # noqa: BLE001 - Whatever is odd about an interface now, it may be gone next time.
                self._traffic.errors["interfaces"] += 1
                if not self._retry:
                    _log.exception("the interfaces cannot be looked at; trying again")
                self._retry = True

    async def _look(self) -> None:
        """Forget nodes that were not heard for long, and update the interfaces."""
        now_s = time.monotonic()
        self.intake.aliases.expire(now_s)
        self._rename()
        for channel in self._channels.values():
            channel.forget(now_s)
        found = channels.snapshot()
        if found != self._all or self._retry:
            self._all = found
            await self._refresh()

    async def _refresh(self) -> None:
        """Close the channels of interfaces that vanished or changed, and open those of new ones."""
        used = channels.selected(self._all, self.settings.interfaces)
        plans = [
            ((each.index, means), channels.plan(means, each, self.settings))
            for each in used
            for means in channels.enabled(self.settings)
        ]
        wanted = dict(plans)
        for key, channel in list(self._channels.items()):
            if wanted.get(key) != channel.plan:
                channel.close()
                del self._channels[key]
        self._log_changes(used)
        self._used = used
        self._know_own()
        refused, self._refused, self._retry = self._refused, {}, False
        for key, plan in wanted.items():
            if not isinstance(plan, ChannelPlan):
                self._refused[key] = plan
            elif key not in self._channels:
                await self._open_channel(key, plan, refused.get(key, ""))
        self._needed_until_s = 0.0

    async def _open_channel(self, key: tuple[int, Means], plan: ChannelPlan, reported: str) -> None:
        if plan.target().family not in self._own:
            self._refused[key] = "this machine has no IPv6"
            return
        try:
            ear = plan.listen()
        # A cable that is being plugged in has an interface before it has an address. The next look
        # tries again, and only a new reason is logged.
        except OSError as error:
            self._refused[key] = reason = error.strerror or str(error)
            self._retry = True
            if reason != reported:
                self._traffic.failed(error)
                _log.warning("%s cannot be used for %s: %s", plan.interface, plan.means, reason)
            return
        try:
            close = await self._read(ear, key)
        except BaseException:
            ear.close()
            raise
        self._channels[key] = Channel(plan, ear, close)

    def _log_changes(self, used: Sequence[Interface]) -> None:
        before, after = {each.name for each in self._used}, {each.name for each in used}
        if before - after:
            _log.info("no longer used: %s", ", ".join(sorted(before - after)))
        if after - before:
            _log.info("used: %s", ", ".join(sorted(after - before)))
        if not used and not self._reported_unused and channels.enabled(self.settings):
            there = ", ".join(each.name for each in self._all) or "none"
            wanted = f" called {' or '.join(self.settings.interfaces)}" if self.settings.interfaces else ""
            _log.warning("no usable interface%s; waiting for one; there are: %s", wanted, there)
        self._reported_unused = not used

    def _look_again(self) -> None:
        """Check at once whether an own address is new, because another node seems to have this node's port."""
        now_s = time.monotonic()
        if now_s - self._looked_s >= _LOOK_S:
            self._looked_s = now_s
            with contextlib.suppress(OSError, ValueError):
                self._know_own(channels.snapshot())

    def _know_own(self, found: Iterable[Interface] | None = None) -> None:
        everywhere = list(self._all if found is None else found)
        own = [
            (address, port)
            for each in everywhere
            for address in each.addresses
            if (port := self._own_ports.get(socket.AF_INET6 if ":" in address else socket.AF_INET))
        ]
        self.intake.look(own, {each.index: each.name for each in everywhere}, self._statics.known)
        self._targets.clear()  # The numbers of interfaces may have changed.

    def _filter(self, made: socket.socket) -> None:
        found = [each for _, addresses in self._shunned.values() for each in addresses if family(each) == made.family]
        sockets.attach_filter(made, self._magic, found[:SHUNNED_MAX])

    def _filter_all(self) -> None:
        for made in (*self._own.values(), *(channel.socket for channel in self._channels.values())):
            self._filter(made)

    def shun(self, peers: Mapping[str, float]) -> None:
        """Let the system drop datagrams from peers for some seconds, if it can: then even a flood costs nothing.

        All at once: to give every socket another filter takes longer than to read some datagrams.
        """
        now_s, loop = time.monotonic(), asyncio.get_running_loop()
        for peer, for_s in peers.items():
            self._shunned[peer] = now_s + for_s, self.intake.addresses(peer)
        self._filter_all()
        for for_s in set(peers.values()):
            loop.call_later(for_s, self._unshun)

    def _unshun(self) -> None:
        now_s = time.monotonic() + _UNSHUN_SLACK_S
        left = {peer: until for peer, until in self._shunned.items() if until[0] > now_s}
        if len(left) < len(self._shunned):
            self._shunned = left
            self._filter_all()

    async def _resolve(self) -> None:
        """Keep the addresses of static peers up to date."""
        while True:
            whole = await self._statics.resolve(self._own, self._know_own)
            await asyncio.sleep(RESOLVE_S if whole else RETRY_S)
