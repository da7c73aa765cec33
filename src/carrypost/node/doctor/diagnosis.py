"""From what was tried to what people should know: plain words about one means on one interface.

What a machine can show alone is that its own sockets, memberships, routes and firewall let a datagram out and in. Only
another machine can show that the datagram also crosses the air or the wire. A finding keeps the two apart and says
which it has.
"""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from carrypost.config import MTU_BYTES_MIN, Limits, Settings
from carrypost.config.units import DAY_S, HOUR_S, MIB
from carrypost.model.times import MICROSECONDS
from carrypost.node.udp.channels import Means, Obstacle
from carrypost.node.udp.interfaces import HEADERS_BYTES, Interface
from carrypost.printing import many

NO_IPV6 = "this machine has no IPv6"
_NAMES_SHOWN = 3
_ADVICE = {
    Obstacle.DOWN: "Switch it on, plug the cable in or join a network. A running node notices the change by itself.",
    Obstacle.NO_IPV4: "Give it an address (by DHCP, or `ip address add 10.77.0.1/24 brd + dev {interface}`); each "
    "machine needs a different one of the same network. Not needed if IPv6 multicast works.",
    Obstacle.NO_IPV6: "Switch IPv6 on (`sysctl net.ipv6.conf.{interface}.disable_ipv6=0`) and take the interface down "
    "and up again. Not needed if IPv4 works.",
    Obstacle.NO_MULTICAST: "Switch it on (`ip link set {interface} multicast on`), or rely on broadcast or on static "
    "peers (udp.peers).",
    Obstacle.NO_BROADCAST: "Networks of one or two addresses have no broadcast address: use multicast or "
    "static peers (udp.peers).",
}
_LOOPBACK = "The loopback interface does not support it, and does not need it: IPv4 is enough there."
_LISTEN_ADVICE = {
    "EADDRINUSE": "A program has UDP port {port} open exclusively: end it, or set another udp.port on all nodes of "
    "this network.",
    "EACCES": "Set udp.port to 1024 or more, the same on all nodes of this network.",
    "EPERM": "The system forbids it: ask the administrator, and check containers and security modules.",
    "ENOBUFS": "This machine has joined too many multicast groups: raise net.ipv4.igmp_max_memberships.",
    "ENOMEM": "This machine has joined too many multicast groups: raise net.ipv4.igmp_max_memberships.",
}
_NO_ROUTE = {
    Means.IPV4_MULTICAST: "Add a route: `ip route add 224.0.0.0/4 dev {interface}`.",
    Means.IPV6_MULTICAST: "Add the route that every interface should have: "
    "`ip -6 route add multicast ff00::/8 dev {interface} table local`.",
    Means.IPV4_BROADCAST: "The route to its own network is missing: take the interface down and up again.",
}
_SEND_ADVICE = {
    "EPERM": "A firewall on this machine blocks outgoing datagrams: allow UDP port {port}.",
    "EACCES": "A route or a firewall on this machine forbids it: check `ip route`, and allow UDP port {port}.",
    "EADDRNOTAVAIL": "The address is not ready: wait a few seconds. If that does not help, another machine has the "
    "same address.",
    "ENETDOWN": "The interface has just gone down.",
}
_FIREWALL = (
    "A firewall on this machine blocks incoming datagrams: allow UDP port {port} "
    "(`ufw allow {port}/udp`, or `firewall-cmd --add-port={port}/udp`)."
)
_FILTERED = {
    Means.IPV4_MULTICAST: "The access point or switch filters it: switch off IGMP snooping, multicast filtering and "
    "similar there, or use the means that work.",
    Means.IPV6_MULTICAST: "The access point or switch filters it: switch off MLD snooping, multicast filtering and "
    "similar there, or use the means that work.",
    Means.IPV4_BROADCAST: "The access point or switch filters it, or the machines are not in the same network: compare "
    "their addresses and netmasks, or use the means that work.",
}
_NOBODY = (
    "Either there is no other node, or the access point isolates its clients or filters such datagrams. Run "
    "`carrypost doctor` on another machine at the same time; if neither hears the other, name them as static peers of "
    "each other (udp.peers)."
)

_CROWDED = (
    "Neighbours with which messages are exchanged keep their places, and the others take turns, so messages take "
    "longer. If the network carries larger datagrams, make room for more neighbours: raise mtu_bytes and "
    "limits.heard_max (six bytes for each neighbour) to the same values on all nodes."
)
_FORGETFUL = (
    "Messages that wait for subscriptions are protected from eviction up to limits.unconfirmed_max messages and "
    "limits.unconfirmed_bytes_max bytes in all, and half of the cache. Let programs consume sooner, end unused durable "
    "subscriptions, or raise these limits and the cache (cache_messages_max, cache_bytes_max)."
)


_BEHIND = "Set the system's clock. The node follows it as soon as it is set, forward or back."
_SET_BACK = (
    "The node follows it. Other nodes refuse messages that this node sent meanwhile, and those that it sends to topics "
    "with an ordering, until these dates have come. Check the battery of the clock, its time zone and the time service."
)
_UNATTENDED = (
    "Start the program that receives them, show them with `carrypost browse`, or delete them with "
    "`carrypost cache purge --to QUEUE --force`."
)
_LAPSING = "Start their programs: using a subscription renews its lease (messaging.subscription_lease_s)."
_SLOW = (
    "Nothing is lost: messages wait at the node, within the credit of the clients' subscriptions. Check whether these "
    "programs hang, or end them, so that other consumers get their messages."
)
_FULL = "Make room on that disk. A node without room refuses new messages, and carries fewer for others."
_SCARCE_BYTES = 16 * MIB
"""A store whose disk has less room than this begins to save it."""
_SOON_S = 2 * DAY_S


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """The result for one means on one interface."""

    interface: str = ""
    """Empty: about the machine."""
    means: str
    """One of `Means`; "interface" or "port" where no means could be tried; "nodes" that were heard; "disk" of the
    folder; "neighbours", "messaging", "queues", "subscriptions" or "STOMP" of a node that runs here."""
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
        advice = _LISTEN_ADVICE.get(trial.listen_error, "Take the interface down and up again.")
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
    detail, advice = f"{Obstacle.DOWN.capitalize()}.", _ADVICE[Obstacle.DOWN]
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
    return [Finding(means="disk", detail=detail, advice=_FULL)]


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
        found.append(Finding(means="neighbours", detail=f"{detail}.", advice=_CROWDED))
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
        found.append(Finding(means="messaging", detail=detail, advice=_FORGETFUL))
    return found + _of_clock(status) + _of_consumers(status)


def _of_clock(status: Mapping[str, Any]) -> list[Finding]:
    """Return what is, or was, wrong with the system's clock."""
    if (ahead_s := status["clock_ahead_s"]) >= 1:
        detail = f"The system's clock is {ahead_s:,.0f} s behind the dates in the node's store, so it is not believed."
        return [Finding(means="clock", detail=detail, advice=_BEHIND)]
    if (back_s := status["clock_set_back_s"]) >= 1:
        detail = f"The system's clock was {back_s:,.0f} s ahead while the node was running, and was set back."
        return [Finding(means="clock", detail=detail, advice=_SET_BACK)]
    return []


def _of_consumers(status: Mapping[str, Any]) -> list[Finding]:
    """Return what is wrong with those that should receive messages."""
    found = []
    messaging = status["messaging"] or {}
    if queues := messaging.get("unattended"):
        detail = f"Messages wait in queues without consumers: {', '.join(queues)}."
        found.append(Finding(means="queues", detail=detail, advice=_UNATTENDED))
    now_s = time.time() + status["clock_ahead_s"]
    ends = [(name, end_us / MICROSECONDS - now_s) for name, end_us in messaging.get("lapsing", ())]
    if soon := [f"{name} in {max(0, left_s) / HOUR_S:.0f} h" for name, left_s in ends if left_s < _SOON_S]:
        detail = f"Unused durable subscriptions end soon, and lose the messages that wait for them: {', '.join(soon)}."
        found.append(Finding(means="subscriptions", detail=detail, advice=_LAPSING))
    if slow := status["services"].get("stomp", {}).get("slow"):
        clients = many(slow, "STOMP client has", "STOMP clients have")
        detail = f"{clients} not read for a while, although the node has written."
        found.append(Finding(means="STOMP", detail=detail, advice=_SLOW))
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
            trial, False, f"{words} was sent, but {window} it did not come back to this machine.", _FIREWALL
        )
    if heard_otherwise:
        detail = (
            f"{words} works on this machine, but not on the link: {window} {_names(heard_otherwise)} "
            "was heard by other means and not by this one (or has this one switched off)."
        )
        return _finding(trial, False, detail, _FILTERED[trial.means])
    if trial.loopback:
        count = f"; {many(len(trial.nodes_here), 'other was', 'others were')} heard" if trial.nodes_here else ""
        return _finding(trial, True, f"{words} works between nodes on this machine{count}.", "")
    silence = "no other machine was heard" + (", only a node on this one" if trial.nodes_here else "")
    detail = f"{words} works on this machine: datagrams came back. It is not known whether others receive them: "
    return _finding(trial, True, f"{detail}{window} {silence}.", _NOBODY)


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
    return _LOOPBACK if trial.loopback else _ADVICE[Obstacle(trial.obstacle)]


def _send_advice(trial: Trial) -> str:
    return _SEND_ADVICE.get(trial.send_error, _NO_ROUTE[trial.means])


def _error_text(name: str) -> str:
    """Return an error as people know it, with the system's name for it."""
    number = getattr(errno, name, None)
    return name if number is None else f"{os.strerror(number)} ({name})"


def _names(addresses: dict[str, int] | set[str]) -> str:
    shown = sorted(addresses)[:_NAMES_SHOWN]
    more = len(addresses) - len(shown)
    return ", ".join(shown) + (f" and {more} more" if more else "")
