"""Commands about a node on this machine: run and stop it, ask how things stand, and check what its network allows.

`status --messaging` shows all of messaging: queues, held topics, subscriptions, channels and sends.
"""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from carrypost.cli._exit import Exit, wrapped
from carrypost.cli._options import Json, Node, Place, StreamJson, option, path_option
from carrypost.cli._output import clock, duration, line, pairs, say, size, styled, table
from carrypost.errors import LocalError, NodeError, NoNodeError, RunningError
from carrypost.model.times import MICROSECONDS
from carrypost.printing import many

if TYPE_CHECKING:
    from carrypost.attach.client import Client
    from carrypost.node.diagnosis import Finding
    from carrypost.node.settings import NodeSettings


_END_S = 60.0
"""Within this a node ends: it has to write what it has accepted, on any disk."""
_LOOK_S = 0.05
_TROUBLES = {"removed": "this node was removed", "key": "secret missing", "overdue": "no charter for 30 days"}
"""Faults of circles, by their words in the overview."""
_SEATS_TOLD = 6
"""Consumers with seats here that `status` names."""


def node(
    at: Node,
    *,
    record: Annotated[Path | None, path_option("--record", "Write the event log into this folder.", "FOLDER")] = None,
    log: Annotated[
        str | None,
        option(
            "--log",
            "Level of the log on stderr: debug, info, warning or error.",
            "LEVEL",
            show_default="node.log, or warning",
        ),
    ] = None,
    verbose: Annotated[bool, option("--verbose -v", "The same as --log info.")] = False,
    json: StreamJson = False,
) -> None:
    """Run a node until Ctrl-C: it finds other nodes, and stores, carries and forwards messages.

    All settings have defaults. The node keeps everything in its folder.

    By default a node does not relay: it carries only what its own programs publish and subscribe to. Set
    altruistic=true on a node that is to carry messages between nodes that never meet. At its start, the node prints
    what it carries, for which nodes, and until when.

    For example:

    * `carrypost node`

    * `carrypost node --data ~/second --set altruistic=true` carries for everybody

    * `carrypost node --log info` logs more

    * `carrypost node --config node.toml --record records` also writes what happens, as JSON lines
    """
    from carrypost.cli import _process  # noqa: PLC0415 - needed by this command only
    from carrypost.cli._settings import NodeCommand, absolute  # noqa: PLC0415

    extra = [*at.changes, *([f"record.folder={absolute(record)}"] if record is not None else [])]
    extra += [f"node.log={log}"] if log else []
    config, data = (None if path is None else str(path) for path in (at.config, at.data))
    command = NodeCommand(config, data, tuple(extra), json, verbose)
    command.settings()  # Mistakes in them are reported before anything else happens.
    raise typer.Exit(_process.become(command))


def stop(at: Place) -> None:
    """End the node of a folder, as Ctrl-C does, and wait until its process is gone.

    What the node has accepted is written first, and programs that are attached to it learn of the end. A node inside a
    program ends with that program, and is not stopped.

    For example: `carrypost stop`, `carrypost stop --data ~/second`
    """
    import asyncio  # noqa: PLC0415 - keeps --help quick

    settings = at.settings()
    deadline_s = time.monotonic() + _END_S
    process = asyncio.run(_stop(settings))
    while _runs(process):  # It has released its folder, and only the interpreter has yet to end.
        if time.monotonic() > deadline_s:
            raise TimeoutError(f"process {process} released {settings.data}, but did not end within {_END_S:.0f} s")
        time.sleep(_LOOK_S)
    typer.echo(f"the node in {settings.data} has ended (process {process})")


async def _stop(settings: NodeSettings) -> int:
    """Tell the node at the control socket of these settings to end; return its process when it has hung up."""
    import asyncio  # noqa: PLC0415 - keeps --help quick

    try:
        async with asyncio.timeout(_END_S), await _reached(settings) as client:
            process: int = (await client.status())["pid"]
            await client.stop()
    except TimeoutError:
        raise TimeoutError(f"the node at {settings.control} did not end within {_END_S:.0f} s") from None
    return process


def _runs(process: int) -> bool:
    import psutil  # noqa: PLC0415 - keeps --help quick

    try:
        return bool(psutil.Process(process).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


async def _reached(settings: NodeSettings) -> Client:
    """Return a connection to the node; raise `NoNodeError` if none runs, and `RunningError` if it does not answer."""
    from carrypost.attach.client import Client  # noqa: PLC0415 - keeps --help quick
    from carrypost.node.folder import NodeFolder  # noqa: PLC0415

    try:
        return await Client.connect(settings.control)
    except NoNodeError as error:
        process = NodeFolder(settings).process
        if process is not None:
            raise RunningError(
                f"process {process} uses the folder {settings.data}, and does not answer at {settings.control}: a node "
                "may be starting or ending there; try again"
            ) from None
        if isinstance(error.__context__, FileNotFoundError | ConnectionRefusedError | NotADirectoryError):
            raise NoNodeError(f"no node runs in {settings.data}: there is nothing to stop") from None
        raise  # It is another user's.


def status(
    at: Place,
    *,
    messaging: Annotated[
        bool, option("--messaging", "Show queues, held topics, subscriptions, channels and sends instead.")
    ] = False,
    json: Json = False,
) -> None:
    """Show the state of the node on this machine.

    What is not in use, or did not happen, is left out; `--json` has everything.

    For example: `carrypost status`, `carrypost status --data ~/second --json`, `carrypost status --messaging`
    """
    found = at.ask("messaging" if messaging else "status")
    if messaging:
        show_messaging(found, json=json)
        return
    if json:
        line(found)
        return
    pairs([(name, text) for name, text in _rows(found) if text])
    udp = found["udp"]
    means = [
        (each["name"], way["means"], "yes" if way["usable"] else f"no: {way['error']}", way["heard"], way["peers"])
        for each in udp["interfaces"]
        for way in each["means"]
    ]
    if means:
        table("\nInterfaces", ("interface", "means", "usable", "heard", "peers"), means, breakable=["usable"])
    else:
        typer.echo("\nNo usable interface; run `carrypost doctor` to find out why.")


def peers(at: Place, *, json: Json = False) -> None:
    """List the nodes in reach of the node on this machine.

    A peer is *linked* when both hear each other, and *heard* or *one-way* when only this node hears the peer. For each
    peer, the command prints how long it has been silent and how many messages are under way to it and from it.

    With `island`, nodes that are reached over several hops (*relayed*) follow, with the number of hops and the next
    peer on the way.

    If no node is in reach, stdout is empty, and a message is printed on stderr.

    For example: `carrypost peers`, `carrypost keys name NODE anna` to call one by a name
    """
    show_peers(at.ask("peers"), json=json)


def show_peers(found: Sequence[Mapping[str, Any]], *, json: bool) -> None:
    """Print the nodes in reach; without any, a sentence on stderr."""
    if not found:
        typer.echo("No other node is in reach; run `carrypost doctor` to find out why.", err=True)
        return
    if json:
        for each in found:
            line(each)
        return
    relayed = [each for each in found if each["state"] == "relayed"]
    found = [each for each in found if each["state"] != "relayed"]
    busy = any(each["queued"] or each["wanted"] for each in found)
    columns = ["name", "node", "state", "address", "silent", *(["to/from"] if busy else [])]
    rows = [
        [each["name"] or "-", each["node"], f"{each['state']} {duration(each['since_s'])}", each["address"],
         duration(each["heard_s"]), *([f"{each['queued']:,}/{each['wanted']:,}"] if busy else [])]
        for each in found
    ]  # fmt: skip
    table("", columns, rows, breakable=["name", "address"])
    if relayed:
        rows = [
            [each["name"] or "-", each["node"], each["hops"], each["next_name"] or each["next"]] for each in relayed
        ]
        table("\nReached over several hops", ["name", "node", "hops", "next hop"], rows, breakable=["name", "next hop"])


def _rows(found: Mapping[str, Any]) -> list[tuple[str, object]]:
    """Return names and texts about a node; an empty text is about something that is not in use, or did not happen."""
    from carrypost.config import Settings  # noqa: PLC0415 - keeps --help quick
    from carrypost.node.settings import Carrying  # noqa: PLC0415

    cache, store = found["cache"], found["store"]
    return [
        ("node", found["node"]),
        ("running for", f"{duration(found['uptime_s'])}, process {found['pid']}, carrypost {found['version']}"),
        ("folder", found["data"]),
        ("clock", _clock(found)),
        ("security", found["security"]),
        ("addresses", ", ".join(found["addresses"]) or "none"),
        ("neighbours", _neighbours(found)),
        ("strategy", "" if found["strategy"] == Settings().strategy else found["strategy"]),
        ("messages", f"{cache['messages']:,} ({size(cache['bytes'])})"),
        ("recipients", _recipients(found["recipients"])),
        ("island", _island(found["island"], found["neighbours"])),
        ("overlay", _overlay(found["overlay"])),
        ("messaging", _messaging(found["messaging"])),
        ("circles", _circles(found["messaging"])),
        ("closed network", _closed(found["closed"])),
        ("STOMP", _clients(found["services"].get("stomp"))),
        ("OpenWire", _clients(found["services"].get("openwire"))),
        ("metrics", found["services"].get("metrics", {}).get("url", "")),
        *Carrying.of(found["carries"]).sentences(),
        ("dropped", _counts(found["dropped"])),
        ("refused", _counts(found["refused"])),
        ("store", f"{size(store['bytes'])}, {size(store['free_bytes'])} free"),
        ("last failure", store["failure"]),
        ("datagrams", f"{_datagrams(found['udp']['counters'])}; of up to {found['datagram_bytes']:,} bytes"),
        *_troubles(found),
    ]


def _circles(messaging: Mapping[str, Any] | None) -> str:
    """Return the circles of the node, and what is wrong with them; empty without any."""
    circles = () if messaging is None else messaging.get("circles", ())
    return "; ".join(
        f"{name} ({many(members, 'member')}{f', {_TROUBLES[trouble]}' if trouble else ''})"
        for name, members, trouble in circles
    )


def _closed(found: Sequence[str] | None) -> str:
    """Return the closed network of the node, and the key of its datagrams; empty if the node is in none."""
    if found is None:
        return ""
    name, key = found
    return f"{name}, key {key}" if key else f"{name}, of which this node is no member: it hears nobody"


def _clock(found: Mapping[str, Any]) -> str:
    """Return what is, or was, wrong with the system's clock."""
    if found["clock_ahead_s"] >= 1:
        return f"the system's clock is {duration(found['clock_ahead_s'])} behind this node's"
    if found["clock_set_back_s"] >= 1:
        return f"set back by {duration(found['clock_set_back_s'])} since the node was started"
    return ""


def _troubles(found: Mapping[str, Any]) -> list[tuple[str, object]]:
    """Return names and texts about what should not happen; an empty text means that it did not."""
    unread, overrun, failed, lost = (found[name] for name in ("unread", "overrun", "failed", "record_rows_lost"))
    return [
        ("not read", unread and f"{many(unread, 'datagram')} of senders that caused too much useless work"),
        ("not taken", overrun and f"{many(overrun, 'datagram')}, because the disk had too much to write"),
        ("failed", failed and f"{many(failed, 'time')} on input from peers: please report this, with the node's log"),
        ("record", lost and f"{many(lost, 'row')} could not be written"),
    ]


def _neighbours(found: Mapping[str, Any]) -> str:
    """Return the number of neighbours, and whether there is a place for more."""
    linked = f"{found['neighbours']:,}"
    if found["heard"] < found["places"]:
        return linked
    waiting = f", and {many(found['waiting'], 'other waits', 'others wait')} for a turn" if found["waiting"] else ""
    return f"{linked}; none of {many(found['places'], 'place')} is left{waiting}"


def _recipients(found: Mapping[str, int]) -> str:
    """Return a text about recipients that lack messages of this node; empty if no message of it lists any."""
    listing = many(found["messages"], "own message that lists", "own messages that list")
    return f"{found['left']:,} left of {listing} them" if found["messages"] else ""


def _island(found: Mapping[str, int] | None, neighbours: int) -> str:
    """Return a text about nodes that can be reached over several hops, and the traffic to them; empty without any."""
    if found is None or not (found["hosts"] > neighbours or found["routes"] or found["relayed_bytes"]):
        return ""
    return (
        f"{many(found['hosts'], 'host')} can be reached, {many(found['routes'], 'route')} in use; "
        f"{many(found['withheld'], 'message')} withheld from others, {size(found['relayed_bytes'])} passed on"
    )


def _overlay(found: Mapping[str, Any] | None) -> str:
    """Tell which brokers are known, how far away they are, and what went along the overlay; empty if it is off."""
    if found is None:
        return ""
    text = f"{'a broker' if found['broker'] else 'no broker'}; {many(len(found['brokers']), 'other broker')} known"
    if found["broker"]:
        neighbours = ", ".join(f"{node} ({many(hops, 'hop')})" for node, hops in found["neighbours"].items())
        text += f", paths to {len(found['paths']):,} of them; neighbours in the overlay: {neighbours or 'none'}"
        text += f"; {many(found['legs'], 'leg')} passed on, {many(found['repaired'], 'route')} changed, "
        text += f"{found['arrived']:,} ended here"
        text += f"; home of {many(found['clients'], 'client')} of {many(found['channels'], 'channel')}"
    if found["seats"]:
        seats = Counter((node, channel) for node, channel, *_ in found["seats"])
        named = [f"{node} ({channel}{f', {n:,} times' if n > 1 else ''})" for (node, channel), n in seats.items()]
        more = f" and {len(named) - _SEATS_TOLD:,} more" if len(named) > _SEATS_TOLD else ""
        text += f"; seats of {', '.join(named[:_SEATS_TOLD])}{more}"
        text += f"; modulators worked {found['busy_us'] / 1e6:,.3f} s, with {many(found['faults'], 'fault')}"
        text += f"; load {found['load']:.0%}"
    if found["failed"]:
        text += f"; {many(found['failed'], 'seat')} closed after an error, the last: {found['last_fault']}"
    if found["homes"]:
        text += "; homes: " + ", ".join(f"{broker} ({channel})" for channel, broker in found["homes"].items())
    if found["emitted"] or found["consumed"] or found["lost"]:
        text += f"; {many(found['emitted'], 'event')} sent, {found['consumed']:,} received, {found['lost']:,} lost"
        text += f", {many(found['discarded'], 'result')} discarded" if found["discarded"] else ""
    return text


def _messaging(found: Mapping[str, int] | None) -> str:
    """Return the subscriptions, and what is owed to them."""
    if found is None:
        return "off (messaging.enabled)"
    text = f"{many(found['subscriptions'], 'subscription')} ({found['durable']:,} durable)"
    text += f", {many(found['consumers'], 'consumer')}; {many(found['claims'], 'message')} to be delivered"
    if found["queues"] or found["receiving"]:
        text += f"; {many(found['queues'], 'queue')} with {many(found['entries'], 'message')}"
        text += f", {many(found['receiving'], 'receiver')}"
    return f"{text}, {found['lost']:,} lost" if found["lost"] else text


def _clients(found: Mapping[str, Any] | None) -> str:
    """Return the address for clients of a protocol, and their number; empty if none are served."""
    if found is None:
        return ""
    slow = f", {many(found['slow'], 'of them does', 'of them do')} not read" if found["slow"] else ""
    return f"at {found['address']}, {many(found['clients'], 'client')}{slow}"


def _counts(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{value:,} {name}" for name, value in counts.items() if value)


def _datagrams(counters: Mapping[str, Any]) -> str:
    """Return the traffic, and what of it was out of the ordinary."""
    usual = [f"{counters[way]:,} {way} ({size(counters[way + '_bytes'])})" for way in ("sent", "received")]
    rest = {
        name.replace("_", " "): value
        for name, value in counters.items()
        if isinstance(value, int) and not name.startswith(("sent", "received"))
    }
    return ", ".join(filter(None, (*usual, _counts(rest), _counts(counters["errors"]))))


_Row = Mapping[str, Any]


def show_messaging(found: Mapping[str, Any], *, json: bool) -> None:
    """Print it: for programs a line for each, with its kind."""
    messaging, channels = found["messaging"], found["channels"]
    if messaging is None:
        say("messaging is off on this node (messaging.enabled)")
    listed = {name: (messaging or {}).get(name, ()) for name in ("queues", "held", "subscriptions", "sends")}
    listed["channels"] = channels or ()
    if json:
        for kind, rows in listed.items():
            for row in rows:
                line({"kind": kind, **row})
        return
    for kind, (title, columns, cells) in _TABLES.items():
        if rows := listed[kind]:
            count = (messaging or {}).get("counts", {}).get(kind, len(rows))
            more = f" (the first {len(rows):,} of {count:,})" if count > len(rows) else ""
            table(f"\n{title}{more}", columns, list(map(cells, rows)), breakable=columns[:1])
    if messaging is not None and not any(listed.values()):
        say("this node has no queues, held topics, subscriptions, channels or followed sends")


def _queue(row: _Row) -> Sequence[object]:
    assigned = sum(each["messages"] for each in row["assigned"])
    demands = ", ".join(f"{each['node']}{' (silent)' if each['silent'] else ''}" for each in row["demands"])
    room = f"{size(row['bytes'])} of {size(row['bytes_max'])}"
    oldest = "-" if row["oldest_us"] is None else clock(row["oldest_us"] / MICROSECONDS)
    return row["name"], row["waiting"], row["delayed"], row["handed"], assigned, room, demands or "none", oldest


def _subscription(row: _Row) -> Sequence[object]:
    return row["name"], row["waiting"], row["handed"], row["consumers"], _until(row["lease_us"])


def _channel(row: _Row) -> Sequence[object]:
    home = row["home"] or f"none{row['refusal'] and ': '}{row['refusal']}"
    since = "-" if row["since_us"] is None else clock(row["since_us"] / MICROSECONDS)
    who = row["role"] if row["role"] != "broker" else f"broker for {row['client']}"
    busy = duration(row["busy_us"] / MICROSECONDS)
    return row["channel"], who, home, since, row["modulator"] or "-", row["results"], row["lost"], row["faults"], busy


def _send(row: _Row) -> Sequence[object]:
    left = f"{row['acknowledged']:,} of {row['acknowledged'] + row['left']:,}" if row["left"] else "-"
    state = f"{row['state']}{row['reason'] and ': '}{row['reason']}"
    return row["label"] or row["message"], row["destination"], state, left, _until(row["expires_us"])


def _held(row: _Row) -> Sequence[object]:
    return row["name"], row["subscribers"], ", ".join(node for node, *_ in row["nodes"][:3]) or "-"


def _until(date_us: int | None) -> str:
    return "-" if date_us is None else clock(date_us / MICROSECONDS)


_TABLES: dict[str, tuple[str, Sequence[str], Callable[[_Row], Sequence[object]]]] = {
    "queues": (
        "Queues",
        ("queue", "waiting", "delayed", "handed", "assigned", "bytes", "consumers", "oldest"),
        _queue,
    ),
    "held": ("Held topics", ("topic", "subscribers", "first of them"), _held),
    "subscriptions": ("Subscriptions", ("subscription", "waiting", "handed", "consumers", "ends"), _subscription),
    "channels": (
        "Channels",
        ("channel", "role", "home", "since", "modulator", "results", "lost", "faults", "worked"),
        _channel,
    ),
    "sends": ("Sends", ("message", "destination", "state", "recipients", "expires"), _send),
}


_MARGIN = " " * 7


def doctor(
    *,
    interface: Annotated[
        str | None,
        option("--interface -i", "Check only this interface.", "NAME", show_default="all that a node would use"),
    ] = None,
    listen_s: Annotated[
        float, option("--listen-s", "How long to listen for other nodes; they announce every 1 to 5 s.", min=0.1)
    ] = 6.0,
    at: Node,
    json: Json = False,
) -> None:
    """Check on each interface whether multicast and broadcast work, and say what to do if not.

    Sends probes by every means, listens for them, and counts the other nodes that it hears. A full disk is reported. A
    node that runs here is not disturbed. It is asked whether it has more neighbours than places for them, whether
    subscriptions lost messages, and whether programs receive their messages. The exit code is 0 if at least one means
    works.

    For example:

    * `carrypost doctor`

    * `carrypost doctor --interface wlan0 --listen-s 20` while a node runs on the other machine
    """
    from carrypost.node.udp import channels  # noqa: PLC0415 - keeps --help quick

    there = [each.name for each in channels.snapshot()]
    if interface is not None and interface not in there:
        raise LocalError(f"there is no interface {interface}; there are: {', '.join(there)}")
    settings = at.settings()
    if not json:
        typer.echo(f"Listening for {listen_s:g} s …", err=True)
    status = None
    with contextlib.suppress(NodeError, TimeoutError):  # There is no node here.
        status = at.ask("status")
    findings = _findings(settings, interface, listen_s, status)
    for finding in findings:
        if json:
            line(dataclasses.asdict(finding))
        else:
            show_finding(finding)
    if not any(finding.works and not finding.remark for finding in findings):
        raise typer.Exit(Exit.FAILED)


def _findings(
    settings: NodeSettings, interface: str | None, listen_s: float, status: Mapping[str, Any] | None
) -> list[Finding]:
    """Return what was found out in `listen_s`; `status` is that of a node that runs here."""
    import asyncio  # noqa: PLC0415 - keeps --help quick

    from carrypost.node import diagnosis  # noqa: PLC0415
    from carrypost.node.diagnosis import examine, examine_disk  # noqa: PLC0415
    from carrypost.node.udp import channels  # noqa: PLC0415

    limits, own = settings.core.limits, status["node"] if status else ""
    closed = bool(settings.core.sealing.closed)
    found = asyncio.run(examine(settings.udp, interface, timeout_s=listen_s, limits=limits, own=own, closed=closed))
    found += diagnosis.of_settings(settings.core)
    chosen = settings.udp.interfaces if interface is None else (interface,)
    for each in channels.selected(channels.snapshot(), chosen):
        found += diagnosis.narrow(each, settings.core)
    found += examine_disk(settings.data, status["store"]["failure"] if status else None)
    return found + diagnosis.of_node(status, limits) if status else found


def show_finding(finding: Finding) -> None:
    """Show a finding to people; in colours, unless NO_COLOR is set."""
    mark, colour = ("works", "green") if finding.works else ("fails", "red")
    if finding.remark:
        mark, colour = finding.remark, ""
    head = " ".join(filter(None, (finding.interface, str(finding.means))))
    typer.echo(styled(f"{mark:6} ", fg=colour or None, bold=True) + styled(head, bold=True))
    for text in (finding.detail, finding.advice):
        if text:
            typer.echo(wrapped(styled(_MARGIN + text), _MARGIN))
