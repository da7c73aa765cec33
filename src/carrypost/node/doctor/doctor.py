"""Finds out whether this machine's interfaces really carry what a node needs.

On every interface, for every means, a probe with a random token is sent as a node would send it, and listened for as a
node would listen; meanwhile announcements of other nodes, and probes of other doctors, are counted. The shared port is
used with address reuse, so nodes that run here are not disturbed; to others a probe is a datagram that is not theirs.
In a closed network a probe looks like a protected datagram under an unknown key, so it says no more than those of a
node. Datagrams of closed networks, which the doctor cannot read, show that their senders are heard.
`carrypost.node.doctor.diagnosis` says what follows.
"""

from __future__ import annotations

import asyncio
import errno
import functools
import secrets
import socket
from collections.abc import Callable
from pathlib import Path

import psutil

from carrypost.config import Limits
from carrypost.errors import NodeError
from carrypost.gossip.wire import codec
from carrypost.gossip.wire.frames import Announce
from carrypost.node.doctor.diagnosis import (
    NO_IPV6,
    Finding,
    Trial,
    diagnose,
    down,
    heard_nodes,
    no_interface,
    of_disk,
    port_taken,
    too_long,
)
from carrypost.node.settings import UdpSettings
from carrypost.node.store.schema import free_bytes
from carrypost.node.udp import channels, interfaces, sockets
from carrypost.node.udp.addresses import address_text
from carrypost.node.udp.channels import ChannelPlan, Means, Target
from carrypost.node.udp.interfaces import Interface
from carrypost.node.udp.outlet import Outlet, UdpTraffic
from carrypost.node.udp.readers import Raw, read
from carrypost.security.packets import HEAD

__all__ = ["Finding", "examine", "examine_disk"]

PROBE = b"carrypost doctor\n"
"""First bytes of a probe: no node takes it for a datagram."""
_RANDOM_BYTES, _PROTECTED_BYTES = 16, 79
"""Random bytes of a probe, by which its own doctor knows it; and in a closed network, where it is as long as a bare
announcement."""
_PROBES = 4
"""Each may be lost."""
_OTHERS_MAX = 64
_READ_BYTES = 65_536
"""Longer than any datagram, so that the length of datagrams that a node would refuse is known."""


async def examine(
    settings: UdpSettings,
    interface: str | None = None,
    *,
    timeout_s: float = 1.0,
    limits: Limits | None = None,
    own: str = "",
    closed: bool = False,
) -> list[Finding]:
    """Return what works on this interface, or on all that a node would use; takes `timeout_s`.

    `limits` are those of the node: what it would refuse is named. `own` is the node itself, if it runs: it does not
    count as another one. `closed`: the network is closed, so that nothing plain is sent.
    Nodes announce themselves every 1 to 5 seconds: to hear others, listen for longer than that.
    """
    there = interfaces.snapshot()
    chosen = [each for each in there if each.name == interface]
    if interface is None:
        chosen = interfaces.selected(there, settings.interfaces, usable=False)
    if not chosen:
        return [no_interface(interface or "", [each.name for each in there])]
    findings = _port(settings) + [down(each.name) for each in chosen if not each.up]
    probe = HEAD + secrets.token_bytes(_PROTECTED_BYTES) if closed else PROBE + secrets.token_bytes(_RANDOM_BYTES)
    doctor = _Doctor(settings, there, timeout_s, limits or Limits(), own=own, probe=probe)
    try:
        await doctor.try_out([each for each in chosen if each.up])
    finally:
        doctor.close()
    return findings + doctor.findings()


def examine_disk(folder: Path, failure: str | None) -> list[Finding]:
    """Return a finding if the disk of a node's folder is full; `failure` is the node's own, if it runs."""
    there = next(each for each in (folder, *folder.parents) if each.is_dir() or each == each.parent)
    return of_disk(folder, free_bytes(there / folder.name), failure)


def _port(settings: UdpSettings) -> list[Finding]:
    """Return findings about the shared port."""
    try:
        sockets.check_shared_port(settings.group_v4, settings.port)
    except NodeError as error:
        return [port_taken(str(error), _holder(settings.port))]
    return []


def _holder(port: int) -> str:
    """Return the programs that have the port, as far as this user may know."""
    try:
        holders = {each.pid for each in psutil.net_connections("udp") if each.laddr and each.laddr[1] == port}
        return ", ".join(f"{psutil.Process(pid).name()} (process {pid})" for pid in sorted(filter(None, holders)))
    except (psutil.Error, OSError):
        return ""


class _Doctor:
    def __init__(
        self, settings: UdpSettings, there: list[Interface], timeout_s: float, limits: Limits, *, own: str, probe: bytes
    ) -> None:
        self._settings = settings
        self._own_node = own
        self._timeout_s = timeout_s
        self._probe = probe
        self._local = {address for each in there for address in each.addresses}
        self._names = {each.index: each.name for each in there}
        self._limits = limits
        self._too_long: dict[str, int] = {}
        """Senders of datagrams that are longer than a node here accepts, and their lengths."""
        self._traffic = UdpTraffic()
        self._own: dict[socket.AddressFamily, socket.socket] = {}
        self._closes: list[Callable[[], None]] = []
        self._trials: list[Trial] = []

    async def try_out(self, chosen: list[Interface]) -> None:
        """Send and listen on these, all at once."""
        loop = asyncio.get_running_loop()
        self._own = sockets.own_sockets(0, shared_port=self._settings.port, v4=True, v6=True)
        outlets = {family: Outlet(made, self._traffic, loop) for family, made in self._own.items()}
        self._closes += [outlet.close for outlet in outlets.values()]
        sending = []
        for each in chosen:
            for means in Means:
                trial = self._trial(each, means)
                if target := await self._listen(trial, channels.plan(means, each, self._settings)):
                    sending.append((trial, target))
        for number in range(_PROBES):
            for trial, target in sending:
                if failure := outlets[target.family].send([self._probe], target):
                    trial.send_error = failure
            # The last pause is longer: what others send by several means arrives on all of them.
            await asyncio.sleep(self._timeout_s / (_PROBES + 1) * (2 if number == _PROBES - 1 else 1))

    def _trial(self, interface: Interface, means: Means) -> Trial:
        trial = Trial(
            interface=interface.name,
            means=means,
            port=self._settings.port,
            timeout_s=self._timeout_s,
            enabled=means in channels.enabled(self._settings),
            loopback=interface.loopback,
        )
        self._trials.append(trial)
        return trial

    async def _listen(self, trial: Trial, plan: ChannelPlan | channels.Obstacle) -> Target | None:
        """Return the destination of probes, if their answers can be listened for."""
        if not isinstance(plan, ChannelPlan):
            trial.obstacle = plan
        elif (target := plan.target()).family not in self._own:
            trial.obstacle = NO_IPV6
        else:
            try:
                ear = plan.listen()
            except OSError as error:
                trial.listen_error = errno.errorcode.get(error.errno or 0, str(error))
            else:
                take = functools.partial(self._hear, trial)
                self._closes.append(await read(ear, _READ_BYTES, take, self._traffic.failed))
                return target
        return None

    def _hear(self, trial: Trial, raw: Raw) -> None:
        for datagram, address in raw:
            if len(datagram) > self._limits.datagram_bytes_max and datagram.startswith(codec.MAGIC):
                name = address_text(address, self._names)
                if name in self._too_long or len(self._too_long) < _OTHERS_MAX:
                    self._too_long[name] = max(len(datagram), self._too_long.get(name, 0))
            if datagram == self._probe:
                trial.came_back = True
                continue
            announced = self._announced(datagram)
            here = address[0] in self._local
            nodes = trial.nodes_here if here else trial.nodes_elsewhere
            if len(nodes) < _OTHERS_MAX:
                nodes |= announced - {self._own_node}
            if not here and len(trial.others) < _OTHERS_MAX and (announced or datagram.startswith((PROBE, HEAD))):
                name = address_text(address, self._names)
                trial.others[name] = trial.others.get(name, 0) + 1

    def _announced(self, datagram: bytes) -> set[str]:
        """Return the nodes that announce themselves in a datagram."""
        return {frame.node for frame in codec.decode(datagram, self._limits).frames if isinstance(frame, Announce)}

    def findings(self) -> list[Finding]:
        """Return all findings."""
        found = []
        for trial in self._trials:
            beside = [each for each in self._trials if each.interface == trial.interface and each is not trial]
            found.append(diagnose(trial, {name for each in beside for name in each.others}))
        found += heard_nodes(self._trials, self._timeout_s)
        if self._too_long:
            found.append(too_long(self._too_long, self._limits.datagram_bytes_max))
        return found

    def close(self) -> None:
        """Close all sockets."""
        for close in self._closes:
            close()
        sockets.close_all(self._own)
