"""Real nodes with their messaging and their socket: `carrypost node` runs one, and programs have them inside.

At the socket programs on this machine query the node, stop it, and use its messaging. Every connection begins with a
greeting. Plain calls are answered here, such as `cache` and `trace` about the messages that the node holds and knows;
those of messaging go to its server (`Programs`). Programs that are attached to a node are informed when it ends. A node
that runs inside a program ends with it, and cannot be stopped at its socket.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import os
import socket
import stat
import time
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, get_args

import msgspec

from carrypost.attach import calls
from carrypost.attach.line import UNWRITTEN_BYTES_MAX, Line
from carrypost.attach.service import SocketProgram, SocketService
from carrypost.errors import CarrypostError, LocalError, NodeError, NoNodeError, RunningError, StateError
from carrypost.host.overview import HeldCopy
from carrypost.jms.provider.local import LocalProvider
from carrypost.jms.provider.reconnecting import ReconnectingProvider
from carrypost.model import ids
from carrypost.model.descriptor_values import Privilege, privilege
from carrypost.model.times import MICROSECONDS
from carrypost.node.modules import load_plugins
from carrypost.node.runtime import Node
from carrypost.node.settings import Carrying
from carrypost.version import __version__

if TYPE_CHECKING:
    from carrypost.node.settings import NodeSettings


_PAGE = 500
"""Copies of one answer."""


def _is_asked_for(copy: HeldCopy, call: calls.Cache) -> bool:
    queue, topic = copy.destination.rpartition("@")[0], copy.destination.rpartition("?")[0]
    return (not call.destination or call.destination in (copy.destination, queue, topic)) and (
        not call.foreign or copy.role == "carried"
    )


def _row(copy: HeldCopy) -> dict[str, Any]:
    """Return a copy as a row, in which times are seconds since 1970."""
    row, expires_us = msgspec.structs.asdict(copy), copy.deadline_us
    del row["id"], row["received_us"], row["deadline_us"]
    expires = None if expires_us is None else expires_us / MICROSECONDS
    return row | {"received": copy.received_us / MICROSECONDS, "expires": expires}


_log = logging.getLogger("carrypost.control")
_SOCKET_MODE = 0o177
"""Mask that leaves the socket to its owner alone."""
_PROGRAMS_MAX = 1_000
_HANG_UP_S = 1.0
"""Time to wait for a program that does not read when the node ends."""


class Service(Protocol):
    """Another service by which programs reach the node."""

    def status(self) -> object:
        """Return the status of the node, as a value that can be encoded."""

    def leave(self) -> None:
        """Accept no further program, because the node is about to end."""

    async def close(self) -> None:
        """End, after the node has ended and programs were informed."""


class Control:
    """The socket of one node; `stopping` is set when a program asks the node to end, None: that is not allowed."""

    def __init__(
        self, node: Node, programs: SocketService | None = None, *, stopping: asyncio.Event | None = None
    ) -> None:
        self.node, self.programs, self.stopping = node, programs, stopping
        self._path = node.settings.control
        self._server: asyncio.Server | None = None
        self.lines: set[Program] = set()
        """The programs that are connected."""
        self.services: dict[str, Service] = {}
        """Other services for programs, by name."""
        self._all_gone = asyncio.Event()

    async def open(self) -> None:
        """Listen; raises `NodeError`."""
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            _clear(self._path)
            loop = asyncio.get_running_loop()
            # Known before it serves, so that a program cancelled meanwhile can leave.
            self._server = await loop.create_unix_server(
                lambda: Program(self), sock=_listening(self._path), start_serving=False
            )
            await self._server.start_serving()
        except (OSError, NotImplementedError, AttributeError) as error:
            none = "this system has no Unix sockets"
            reason = error.strerror or str(error) if isinstance(error, OSError) else none
            raise NodeError(
                f"cannot open the control socket {self._path}: {reason}; choose another path in [node] control"
            ) from None

    def leave(self) -> None:
        """Accept no further program, and remove the socket; connected programs stay."""
        if self._server is not None:
            self._server.close()
            self._server = None
            with contextlib.suppress(OSError):
                self._path.unlink()
        if self.programs is not None:
            self.programs.settle()

    async def close(self, reason: str = "the node has ended") -> None:
        """End all connections, each with the reason, and remove the socket."""
        self.leave()
        for program in list(self.lines):
            program.hang_up(calls.Ended(reason))
        with contextlib.suppress(TimeoutError):
            # Programs get a moment to read why their calls fail. One that is stopped, or hangs,
            # must not keep the node from ending.
            async with asyncio.timeout(_HANG_UP_S):
                while self.lines:
                    self._all_gone.clear()
                    await self._all_gone.wait()
        for program in list(self.lines):
            program.cut_off()

    def status(self, *, quick: bool = False) -> dict[str, Any]:
        """Return the state of the node and of its services, as values that can be encoded.

        `quick`: without the counts of recipients that lack messages, for which all copies are read.
        """
        node = self.node
        seen, messaging = node.host.overview(), node.host.messaging.overview()
        return {
            "node": seen.node,
            "version": __version__,
            "pid": os.getpid(),
            "uptime_s": node.uptime_s,
            "security": node.settings.core.security,
            "incarnation": seen.incarnation,
            "data": str(node.folder.folder),
            "clock_ahead_s": node.clock.ahead_us / MICROSECONDS,
            "clock_set_back_s": node.clock.lead_us / MICROSECONDS,
            "addresses": node.udp.addresses,
            "neighbours": sum(each.state == "linked" for each in seen.neighbours),
            "heard": len(seen.neighbours),
            "places": seen.places,
            "waiting": seen.waiting,
            "datagram_bytes": seen.datagram_bytes,
            "closed": seen.closed,
            "strategy": node.settings.core.strategy,
            "cache": {"messages": seen.messages, "bytes": seen.bytes},
            "recipients": {"acknowledgements": seen.acknowledgements, **({} if quick else _recipients_left(node))},
            "island": None if seen.island is None else seen.island._asdict(),
            "overlay": None if seen.overlay is None else msgspec.to_builtins(seen.overlay),
            "messaging": None if messaging is None else messaging._asdict(),
            "carries": msgspec.to_builtins(Carrying.of(node.settings.core)),
            "dropped": dict(seen.dropped),
            "refused": dict(seen.refused),
            "payloads_gone": node.driver.gone,
            "overrun": node.driver.overrun,
            "unread": node.driver.unread,
            "failed": node.driver.failed,
            "record_rows_lost": node.chronicle.archive.lost if node.chronicle else 0,
            "store": node.store.status(),
            "udp": node.udp.status(),
            "services": {name: service.status() for name, service in self.services.items()},
        }

    def gone(self, program: Program) -> None:
        """Remove a program that is not connected any more."""
        self.lines.discard(program)
        self._all_gone.set()


def _recipients_left(node: Node) -> dict[str, int]:
    awaited = node.host.awaited()
    return {"messages": len(awaited), "left": sum(map(len, awaited.values()))}


def _clear(path: Path) -> None:
    """Remove the socket that a killed node left; nothing else."""
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return
    # A path that was mistyped in the settings must not lead to the removal of a user's file.
    if not stat.S_ISSOCK(mode):
        raise NodeError(f"{path} is not a socket, and was left unchanged; choose another path in [node] control")
    # A node that was killed leaves its socket behind. Only a connection shows whether one listens
    # there.
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            probe.connect(str(path))
        except OSError:
            path.unlink(missing_ok=True)
            return
    raise RunningError(f"another node answers at {path}; choose another path in [node] control")


def _listening(path: Path) -> socket.socket:
    made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    # By the mask, and not by `chmod` afterwards: in between, other users could connect.
    mask = os.umask(_SOCKET_MODE)
    try:
        made.bind(str(path))
    except BaseException:
        made.close()
        raise
    finally:
        os.umask(mask)
    return made


class Program(Line):
    """One program at the other end of the socket."""

    def __init__(self, control: Control) -> None:
        super().__init__(calls.decode_call, calls.ReplyPart)
        self._control, self._node = control, control.node
        self._greeted = False
        self._guest: SocketProgram | None = None
        # Each plain call is done by the method that is called as its tag is.
        self._does: dict[type, Callable[[Any], object]] = {
            kind: getattr(self, f"_{kind.__struct_config__.tag}") for kind in get_args(calls.PlainCall)
        }

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Accept a program, unless there are too many."""
        super().connection_made(transport)
        lines = self._control.lines
        lines.add(self)
        if len(lines) > _PROGRAMS_MAX:
            self.wrong(LocalError(f"{_PROGRAMS_MAX:,} programs are connected to this node: close some of them first"))

    def lost(self) -> None:
        """Forget the program."""
        self._control.gone(self)
        if self._guest is not None:
            self._guest.leave()

    def resumed(self) -> None:
        """Go on with what had to wait."""
        if self._guest is not None:
            self._guest.read_on()
        else:
            self.read(True)

    def wrong(self, error: LocalError) -> None:
        """Report what is wrong, and hang up."""
        self.hang_up(calls.Refusal.of(calls.UNKNOWN, error), linger=True)

    def receive(self, frame: calls.AnyCall | calls.Refusal) -> None:
        """Answer a frame."""
        if not self._greeted:
            self._greet(frame)
        elif isinstance(frame, calls.Call):
            if self._guest is None:
                self._guest = self._join()
            self._guest.receive(frame)
        elif isinstance(frame, calls.Refusal):
            self.write(frame)
        elif isinstance(frame, calls.Hello | calls.CallPart):
            raise LocalError("a program must send hello once, before all other calls")
        else:
            self.write(self._answer(frame))
            # A program that asks and does not read would let answers pile up in the node: its next
            # calls are not read before it has read these (`resumed`).
            if self.unwritten_bytes > UNWRITTEN_BYTES_MAX:
                self.read(False)

    def _greet(self, frame: object) -> None:
        if not isinstance(frame, calls.Hello):
            raise LocalError(
                f"a program must send hello first: this node runs carrypost {__version__}, use the same version "
                "for its commands"
            )
        if calls.VERSION not in frame.versions:
            raise LocalError(
                f"this node, carrypost {__version__}, speaks version {calls.VERSION} of the protocol, and "
                f"{frame.program[:80] or 'the program'} does not: use the same version of carrypost for both"
            )
        self._greeted = True
        programs = self._control.programs
        place = calls.NOTHING if programs is None else msgspec.Raw(programs.place)
        now_us, system_us = self._node.driver.date, time.time_ns() // 1_000
        self.write(calls.Welcome(calls.VERSION, __version__, place, now_us, system_us))

    def _join(self) -> SocketProgram:
        programs = self._control.programs
        if programs is None:
            raise LocalError("messaging is switched off on this node: set messaging.enabled = true")
        self.parts.bytes_max = programs.parts_bytes_max
        return programs.join(self)

    def _answer(self, call: calls.PlainCall) -> calls.AnyReply:
        try:
            value = self._does[type(call)](call)
            return calls.Answer(call.number, msgspec.Raw(calls.encode_value(value)))
        except CarrypostError as error:
            return calls.Refusal.of(call.number, error)
        except Exception as error:  # noqa: BLE001 - A mistake of ours in one call must not end the others.
            _log.exception("the call %s failed", type(call).__name__)
            return calls.Refusal.of(call.number, CarrypostError(f"the node failed: {error!r}"))

    # --- calls ---------------------------------------------------------------------------------------------

    def _status(self, _call: calls.Status) -> object:
        return self._control.status()

    def _peers(self, _call: calls.Peers) -> object:
        now = self._node.driver.now
        try:
            names = self._node.folder.pet_names()
        except NodeError as error:
            _log.warning("%s", error)
            names = {}
        host = self._node.host
        neighbours = [
            {
                "node": each.node,
                "name": names.get(each.node, ""),
                "address": each.address,
                "state": each.state,
                "since_s": (now - each.since_us) / MICROSECONDS,
                "heard_s": (now - each.heard_us) / MICROSECONDS,
                "queued": each.queued,
                "wanted": each.wanted,
            }
            for each in host.overview().neighbours
        ]
        relayed = [
            {
                "node": node,
                "name": names.get(node, ""),
                "state": "relayed",
                "hops": len(path),
                "next": path[0],
                "next_name": names.get(path[0], ""),
            }
            for node, path in sorted(host.paths().items(), key=lambda each: (len(each[1]), each[0]))
            if len(path) > 1
        ]
        return [*neighbours, *relayed]

    def _gate(self, call: calls.Gate) -> None:
        self._node.udp.intake.gate = None if call.hear is None else frozenset(call.hear)

    def _cache(self, call: calls.Cache) -> list[dict[str, Any]]:
        """Return the next copies that are asked for, after throwing away those that are to be."""
        names = ids.spellings(call.message) if call.message else ()
        held = self._node.host.holding(after=call.after, names=names)
        page = list(islice((each for each in held if _is_asked_for(each, call)), _PAGE))
        purged = {each.id for each in page if call.purge and (call.force or not each.owed)}
        if purged:
            driver = self._node.driver
            driver.host.purge(purged, driver.now)
            driver.drain()
        return [_row(each) | {"purged": each.id in purged} for each in page]

    def _trace(self, call: calls.Trace) -> dict[str, Any]:
        """Return the rows of a message, what is held, followed and queued of it now, and whether rows are kept."""
        traces = self._node.traces
        if not call.message:  # As their label most messages have none.
            return {"kept": traces is not None, "rows": [], "held": [], "sends": [], "entries": []}
        rows = [] if traces is None else traces.find(call.message)
        names = ids.spellings(call.message) | {row["message"] for row in rows}
        host = self._node.host
        held, views = list(islice(host.holding(names=names), _PAGE)), host.messaging.views()
        return {
            "kept": traces is not None,
            "rows": rows,
            "held": list(map(_row, held)),
            "sends": [] if views is None else views.sends_named(names),
            "entries": [] if views is None else [entry for each in held for entry in views.entries_of(each.id)],
        }

    def _messaging(self, _call: calls.Messaging) -> object:
        host = self._node.host
        views, overlay = host.messaging.views(), self._node.settings.core.overlay.enabled
        return {
            "messaging": None if views is None else views.everything(),
            "channels": host.overlay.channels() if overlay else None,
        }

    def _stop(self, _call: calls.Stop) -> None:
        if self._control.stopping is None:
            raise StateError(f"this node runs inside a program and stops with it: stop the process {os.getpid()}")
        self._control.stopping.set()


_ENDED = "the node has ended"
_JOIN_S = 2.0
"""Time in which a program can found or join the circle of a closed network before it is warned."""
_node_log = logging.getLogger("carrypost.node")


class ServedNode:
    """A node that runs, with its messaging and its socket."""

    def __init__(self, node: Node, provider: ReconnectingProvider | None, control: Control) -> None:
        self.node, self.provider = node, provider
        """Without a provider, messaging is switched off."""
        self._control = control
        self._reminder: asyncio.TimerHandle | None = None

    def add(self, name: str, service: Service) -> None:
        """Add a further service for programs while the node runs; `carrypost status` shows it by name."""
        self._control.services[name] = service

    def status(self, *, quick: bool = False) -> dict[str, Any]:
        """Return what `carrypost status` shows; `quick`: without what takes longer the more messages there are."""
        return self._control.status(quick=quick)

    @classmethod
    async def start(
        cls, settings: NodeSettings, given: Privilege | None = None, *, stopping: asyncio.Event | None = None
    ) -> ServedNode:
        """Start a node; raises as `Node.start` does.

        `stopping` is set when a client asks the node to end. Without `stopping` the node is inside a program: no client
        can end it, and a socket that cannot be opened does not keep it from running.
        """
        node = Node(settings, privilege=_privilege(settings.place.plugins, given))
        await node.start()
        if (outside := node.outside) and stopping is not None:
            await node.stop()
            raise NodeError(outside)
        provider = _provider(node) if settings.core.messaging.enabled else None
        control = Control(node, None if provider is None else SocketService(provider), stopping=stopping)
        try:
            await control.open()
        except NodeError as error:
            if stopping is not None or isinstance(error, RunningError):
                await node.stop()
                raise
            _node_log.warning("other programs cannot use this node: %s", error)
        except BaseException:
            control.leave()
            await node.stop()
            raise
        made = cls(node, provider, control)
        if outside:
            made._reminder = asyncio.get_running_loop().call_later(_JOIN_S, made._remind)
        return made

    def _remind(self) -> None:
        """Warn that the node is outside of its closed network, unless its program has joined that meanwhile."""
        if outside := self.node.outside:
            _node_log.warning("%s", outside)

    async def stop(self, reason: str = _ENDED) -> None:
        """End it: what was begun is written, and answered, before programs are informed of the end."""
        services = self._control.services.values()
        if self._reminder is not None:
            self._reminder.cancel()
        self._control.leave()
        for service in services:
            service.leave()
        try:
            await self.node.stop()
        finally:
            why = self.node.store.failure
            reason = f"{reason}, and could not store its last changes: {why}" if why else reason
            if self.provider is not None:
                self.provider.end(reason)
            await asyncio.gather(self._control.close(reason), *(service.close() for service in services))


def _provider(node: Node) -> ReconnectingProvider:
    """Return the messaging of a node, over all lives of its host."""

    async def attach() -> LocalProvider:
        if not node.is_present:
            raise NoNodeError("the host of the node is being restored")
        node.detach()
        return begin()

    def begin() -> LocalProvider:
        made = LocalProvider(node.driver)
        node.attach(made.handlers)
        return made

    return ReconnectingProvider(begin(), attach, str(node.settings.data), math.inf)


def _privilege(plugins: tuple[str, ...], given: Privilege | None) -> Privilege:
    """Load modules that register what is theirs; return the rule that was given, or that one of them has."""
    found = given
    for module in load_plugins(plugins):
        found = found or getattr(module, "privilege", None)
    return found or privilege
