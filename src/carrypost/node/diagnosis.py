"""Finds out whether this machine's interfaces carry what a node needs, and says in plain words what follows.

On every interface, for every means, a probe with a random token is sent as a node would send it, and listened for as a
node would listen; meanwhile announcements of other nodes, and probes of other doctors, are counted. The shared port is
used with address reuse, so nodes that run here are not disturbed; to others a probe is a datagram that is not theirs.
In a closed network a probe looks like a protected datagram under an unknown key, so it says no more than those of a
node. Datagrams of closed networks, which the doctor cannot read, show that their senders are heard.

What a machine can show alone is that its own sockets, memberships, routes and firewall let a datagram out and in. Only
another machine can show that the datagram also crosses the air or the wire. A `Finding` keeps the two apart and says
which it has.
"""

from __future__ import annotations

import asyncio
import errno
import functools
import os
import secrets
import socket
import time
import tomllib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import psutil

from carrypost.config import MTU_BYTES_MIN, Limits, Settings
from carrypost.config.rules import DAY_S, HOUR_S, MIB
from carrypost.errors import NodeError
from carrypost.gossip.wire import codec
from carrypost.gossip.wire.frames import Announce
from carrypost.model.times import MICROSECONDS
from carrypost.node.settings import UdpSettings
from carrypost.node.store.tables import free_bytes
from carrypost.node.udp import channels, sockets
from carrypost.node.udp.channels import (
    HEADERS_BYTES,
    ChannelPlan,
    Interface,
    Means,
    Obstacle,
    Outlet,
    Target,
    UdpTraffic,
)
from carrypost.node.udp.sockets import Raw, address_text, read
from carrypost.printing import many
from carrypost.security.packets import HEAD

NO_IPV6 = "this machine has no IPv6"
_NAMES_SHOWN = 3
_ADVICE: Mapping[str, Mapping[str, str]] = tomllib.loads(
    Path(__file__).with_name("advice.toml").read_text(encoding="utf-8")
)
"""Advice by what went wrong, and where."""
_OF_MACHINE, _OF_NODE = _ADVICE["machine"], _ADVICE["node"]
_SCARCE_BYTES = 16 * MIB
"""A store whose disk has less room than this begins to save it."""
_SOON_S = 2 * DAY_S
_CIRCLES: Mapping[str, str] = {
    "removed": "an owner removed this node from it",
    "key": "the secret of its present epoch is not known here, so nothing can be sent or read",
    "overdue": "no charter of the last 30 days came here, so removals may be unknown",
}
"""Faults of a circle for people, by the word of its overview."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """The result for one means on one interface."""

    interface: str = ""
    """Empty: about the machine."""
    means: str
    """One of `Means`; "interface" or "port" where no means could be tried; "nodes" that were heard; "disk" of the
    folder; "neighbours", "messaging", "queues", "subscriptions", "circles", "STOMP" or "OpenWire" of a node that runs
    here."""
    works: bool = False
    """True if the trial found no problem; `heard` lists the nodes that confirm it."""
    detail: str
    """Description of the trial and its result."""
    advice: str = ""
    """Advice to the user; empty: none."""
    heard: tuple[str, ...] = ()
    """Other nodes that were heard by this means."""
    remark: str = ""
    """Word in place of "works" or "fails" if nothing is wrong and nothing was tried: "unused", "heard"."""


@dataclass(slots=True, kw_only=True)
class Trial:
    """A trial and its result."""

    interface: str
    means: Means
    port: int
    timeout_s: float
    enabled: bool = True
    """True if the settings let a node use it."""
    loopback: bool = False
    obstacle: str = ""
    """Reason why it could not be tried."""
    listen_error: str = ""
    """The system's name of the error of listening."""
    send_error: str = ""
    """The system's name of the error of sending."""
    came_back: bool = False
    """True if this machine heard what it sent."""
    others: dict[str, int] = field(default_factory=dict)
    """Datagrams from each other machine."""
    nodes_here: set[str] = field(default_factory=set)
    """Nodes on this machine that were heard."""
    nodes_elsewhere: set[str] = field(default_factory=set)
    """Nodes on other machines that were heard."""

    @property
    def words(self) -> str:
        """The means, for people."""
        return self.means.replace("ip", "IP").replace("-", " ")


def diagnose(trial: Trial, heard_otherwise: set[str]) -> Finding:
    """Return the finding of a trial; `heard_otherwise`: nodes that were heard on the same interface by other means."""
    if trial.obstacle:
        detail = f"{trial.words} is not possible: {trial.obstacle}."
        finding = _finding(trial, False, detail, _obstacle_advice(trial))
        return replace(finding, remark="unused") if trial.loopback else finding
    if trial.listen_error:
        advice = _ADVICE["listen"].get(trial.listen_error, _ADVICE["listen"]["other"])
        return _finding(trial, False, f"Listening for {trial.words} failed: {_error_text(trial.listen_error)}.", advice)
    if trial.others:
        return _proven(trial)
    if trial.send_error:
        return _finding(
            trial, False, f"Sending {trial.words} failed: {_error_text(trial.send_error)}.", _send_advice(trial)
        )
    return _unproven(trial, heard_otherwise)


def no_interface(name: str, there: list[str]) -> Finding:
    """Return the finding that there is no interface of that name, or none that could be used."""
    if name:
        detail, advice = f"There is no interface {name}.", f"Available: {', '.join(there)}."
    else:
        detail = "No interface of this machine is allowed by udp.interfaces."
        advice = f"Change udp.interfaces; available: {', '.join(there)}."
    return Finding(interface=name, means="interface", detail=detail, advice=advice)


def down(interface: str) -> Finding:
    """Return the finding that the interface is not up."""
    detail, advice = f"{Obstacle.DOWN.capitalize()}.", _ADVICE["obstacle"]["DOWN"]
    return Finding(interface=interface, means="interface", detail=detail, advice=advice)


def port_taken(error: str, holder: str) -> Finding:
    """Return the finding that the shared port is taken."""
    advice = f"The port is held by {holder}." if holder else "If a program has it open, `ss -ulpn` shows which one."
    return Finding(means="port", detail=f"{error[:1].upper()}{error[1:]}.", advice=advice)


def too_long(sizes: dict[str, int], bytes_max: int) -> Finding:
    """Return the finding that others send datagrams that a node here refuses."""
    detail = (
        f"{_names(sizes)} sends datagrams of up to {max(sizes.values()):,} bytes; nodes here drop datagrams of more "
        f"than {bytes_max:,} bytes."
    )
    advice = "Raise limits.datagram_bytes_max here, or lower mtu_bytes there; more than 1,500 gains little."
    return Finding(means="datagrams", detail=detail, advice=advice, heard=tuple(sorted(sizes)))


def heard_nodes(trials: Iterable[Trial], timeout_s: float) -> list[Finding]:
    """Return a finding about the number of other nodes that were heard, if there were any."""
    here: set[str] = set()
    elsewhere: set[str] = set()
    for trial in trials:
        here |= trial.nodes_here
        elsewhere |= trial.nodes_elsewhere
    heard = here | elsewhere
    if not heard:
        return []
    places = f"{len(here):,} on this machine, {len(heard - here):,} on others"
    detail = f"{many(len(heard), 'other node was', 'other nodes were')} heard in {timeout_s:g} s: {places}."
    return [Finding(means="nodes", works=True, detail=detail, heard=tuple(sorted(heard)), remark="heard")]


def of_disk(folder: Path, free_bytes: int, failure: str | None) -> list[Finding]:
    """Return the finding that the disk of a node's folder is full, or that the node could not write."""
    if failure:
        detail = f"The node on this machine could not store its last changes: {failure}."
    elif free_bytes < _SCARCE_BYTES:
        detail = f"The disk of {folder} is full, or nearly: {free_bytes / MIB:,.1f} MiB are free."
    else:
        return []
    return [Finding(means="disk", detail=detail, advice=_OF_MACHINE["full"])]


def of_settings(settings: Settings) -> list[Finding]:
    """Return the findings against these settings: others refuse what a node here would send."""
    usual_bytes, sent_bytes = Limits().datagram_bytes_max, settings.datagram_bytes
    if sent_bytes <= usual_bytes:
        return []
    detail = f"mtu_bytes is {sent_bytes:,} here; by default nodes drop datagrams of more than {usual_bytes:,} bytes."
    advice = "Lower mtu_bytes, or raise limits.datagram_bytes_max on every node of this network."
    return [Finding(means="datagrams", detail=detail, advice=advice)]


def narrow(interface: Interface, settings: Settings) -> list[Finding]:
    """Return a finding if an interface cuts datagrams of these settings into pieces."""
    whole_bytes = interface.mtu_bytes - HEADERS_BYTES
    if not interface.mtu_bytes or whole_bytes >= settings.datagram_bytes:
        return []
    detail = (
        f"Its MTU is {interface.mtu_bytes:,} bytes: datagrams of {settings.datagram_bytes:,} are fragmented, "
        "and lost if one fragment is lost."
    )
    advice = f"Set mtu_bytes to {whole_bytes} on every node of this network, or raise the MTU of the interface."
    if whole_bytes < MTU_BYTES_MIN:
        advice = f"Raise the MTU of the interface to {MTU_BYTES_MIN + HEADERS_BYTES} at least."
    return [Finding(interface=interface.name, means="datagrams", detail=detail, advice=advice)]


def of_node(status: Mapping[str, Any], limits: Limits) -> list[Finding]:
    """Return findings about a node that runs here, from its status (`Client.status`)."""
    found = []
    if status["heard"] >= status["places"]:
        detail = f"The node on this machine has none of its {many(status['places'], 'place')} for neighbours left"
        if waiting := status["waiting"]:
            detail += f", and {many(waiting, 'other waits', 'others wait')} for a turn"
        found.append(Finding(means="neighbours", detail=f"{detail}.", advice=_OF_NODE["crowded"]))
    if refused := status["refused"].get("oversize"):
        detail = f"The node on this machine refused {many(refused, 'datagram')} of more than "
        detail += f"{limits.datagram_bytes_max:,} bytes."
        advice = "A neighbour with a larger mtu_bytes is not heard: lower it there, or raise "
        advice += "limits.datagram_bytes_max here."
        found.append(Finding(means="datagrams", detail=detail, advice=advice))
    if (messaging := status["messaging"]) and messaging["lost"]:
        detail = (
            f"Subscriptions at the node on this machine lost {many(messaging['lost'], 'message')}, by eviction before "
            f"consumption. The node has {many(messaging['subscriptions'], 'subscription')} ({messaging['durable']:,} "
            f"durable) with {many(messaging['consumers'], 'consumer')}, {many(messaging['claims'], 'message')} to be "
            f"delivered, and {many(messaging['pinned'], 'copy', 'copies')} that eviction spares."
        )
        found.append(Finding(means="messaging", detail=detail, advice=_OF_NODE["forgetful"]))
    return found + _of_clock(status) + _of_consumers(status)


def _of_clock(status: Mapping[str, Any]) -> list[Finding]:
    """Return what is, or was, wrong with the system's clock."""
    if (ahead_s := status["clock_ahead_s"]) >= 1:
        detail = f"The system's clock is {ahead_s:,.0f} s behind the dates in the node's store, so it is not believed."
        return [Finding(means="clock", detail=detail, advice=_OF_NODE["behind"])]
    if (back_s := status["clock_set_back_s"]) >= 1:
        detail = f"The system's clock was {back_s:,.0f} s ahead while the node was running, and was set back."
        return [Finding(means="clock", detail=detail, advice=_OF_NODE["set_back"])]
    return []


def _of_consumers(status: Mapping[str, Any]) -> list[Finding]:
    """Return what is wrong with those that should receive messages."""
    found = []
    messaging = status["messaging"] or {}
    if queues := messaging.get("unattended"):
        detail = f"Messages wait in queues without consumers: {', '.join(queues)}."
        found.append(Finding(means="queues", detail=detail, advice=_OF_NODE["unattended"]))
    now_s = time.time() + status["clock_ahead_s"]
    ends = [(name, end_us / MICROSECONDS - now_s) for name, end_us in messaging.get("lapsing", ())]
    if soon := [f"{name} in {max(0, left_s) / HOUR_S:.0f} h" for name, left_s in ends if left_s < _SOON_S]:
        detail = f"Unused durable subscriptions end soon, and lose the messages that wait for them: {', '.join(soon)}."
        found.append(Finding(means="subscriptions", detail=detail, advice=_OF_NODE["lapsing"]))
    if (closed := status.get("closed")) is not None and not closed[1]:
        detail = f"This node is in no circle {closed[0]!r}, to whose members its network is closed: it hears nobody."
        found.append(Finding(means="circles", detail=detail, advice=_OF_NODE["circle-none"]))
    for circle, _, trouble in messaging.get("circles", ()):
        if trouble:
            detail = f"The circle {circle!r}: {_CIRCLES[trouble]}."
            found.append(Finding(means="circles", detail=detail, advice=_OF_NODE[f"circle-{trouble}"]))
    for service, name in (("stomp", "STOMP"), ("openwire", "OpenWire")):
        if slow := status["services"].get(service, {}).get("slow"):
            clients = many(slow, f"{name} client has", f"{name} clients have")
            detail = f"{clients} not read for a while, although the node has written."
            found.append(Finding(means=name, detail=detail, advice=_OF_NODE["slow"]))
    return found


def _proven(trial: Trial) -> Finding:
    """Return the finding of a trial in which others were heard."""
    heard, names = tuple(sorted(trial.others)), _names(trial.others)
    if trial.send_error:
        detail = f"{trial.words} is received ({names} was heard), but cannot be sent: {_error_text(trial.send_error)}."
        return _finding(trial, False, detail, _send_advice(trial), heard)
    detail = f"{trial.words} works: {names} was heard."
    if not trial.came_back:
        detail += " The own datagrams did not come back, so nodes on this machine may not hear each other."
    return _finding(trial, True, detail, "", heard)


def _unproven(trial: Trial, heard_otherwise: set[str]) -> Finding:
    """Return the finding of a trial in which something was sent and no other node was heard."""
    words, window = trial.words, f"in {trial.timeout_s:g} s"
    if not trial.came_back:
        return _finding(
            trial,
            False,
            f"{words} was sent, but {window} it did not come back to this machine.",
            _OF_MACHINE["firewall"],
        )
    if heard_otherwise:
        detail = (
            f"{words} works on this machine, but not on the link: {window} {_names(heard_otherwise)} "
            "was heard by other means and not by this one (or has this one switched off)."
        )
        return _finding(trial, False, detail, _ADVICE["filtered"][trial.means.name])
    if trial.loopback:
        count = f"; {many(len(trial.nodes_here), 'other was', 'others were')} heard" if trial.nodes_here else ""
        return _finding(trial, True, f"{words} works between nodes on this machine{count}.", "")
    silence = "no other machine was heard" + (", only a node on this one" if trial.nodes_here else "")
    detail = f"{words} works on this machine: datagrams came back. It is not known whether others receive them: "
    return _finding(trial, True, f"{detail}{window} {silence}.", _OF_MACHINE["nobody"])


def _finding(trial: Trial, works: bool, detail: str, advice: str, heard: tuple[str, ...] = ()) -> Finding:
    if not trial.enabled:
        detail += f" The settings have it switched off (udp.{trial.means.setting})."
    return Finding(
        interface=trial.interface,
        means=str(trial.means),
        works=works,
        detail=detail,
        advice=advice.format(interface=trial.interface, port=trial.port),
        heard=heard,
    )


def _obstacle_advice(trial: Trial) -> str:
    if trial.obstacle == NO_IPV6:
        return "Not needed if IPv4 works."
    return _OF_MACHINE["loopback"] if trial.loopback else _ADVICE["obstacle"][Obstacle(trial.obstacle).name]


def _send_advice(trial: Trial) -> str:
    return _ADVICE["send"].get(trial.send_error, _ADVICE["route"][trial.means.name])


def _error_text(name: str) -> str:
    """Return an error as people know it, with the system's name for it."""
    number = getattr(errno, name, None)
    return name if number is None else f"{os.strerror(number)} ({name})"


def _names(addresses: dict[str, int] | set[str]) -> str:
    shown = sorted(addresses)[:_NAMES_SHOWN]
    more = len(addresses) - len(shown)
    return ", ".join(shown) + (f" and {more} more" if more else "")


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
    there = channels.snapshot()
    chosen = [each for each in there if each.name == interface]
    if interface is None:
        chosen = channels.selected(there, settings.interfaces, usable=False)
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
