"""The node's control socket: programs on this machine ask the node how things stand, and tell it to end."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

import msgspec

from carrypost.errors import CarrypostError, LocalError, NodeError, RunningError
from carrypost.model.times import MICROSECONDS
from carrypost.node.carrying import Carrying
from carrypost.node.control import calls
from carrypost.node.runtime import Node
from carrypost.version import __version__

_log = logging.getLogger("carrypost.control")
_SOCKET_MODE = 0o177
"""Mask that leaves the socket to its owner alone."""


class Control:
    """Serves the control socket of one node."""

    def __init__(self, node: Node, stopping: asyncio.Event | None = None) -> None:
        self._node = node
        self._path = node.settings.control
        self._server: asyncio.Server | None = None
        self._programs: dict[Program, asyncio.Task[None] | None] = {}
        self._closing = False
        self.stopping = stopping or asyncio.Event()
        """Set when somebody asks the node to end."""

    async def open(self) -> None:
        """Listen; raises `NodeError`."""
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            _clear(self._path)
            self._server = await asyncio.start_unix_server(self._serve, sock=_listening(self._path))
        except (OSError, NotImplementedError, AttributeError) as error:
            none = "this system has no Unix sockets"
            reason = error.strerror or str(error) if isinstance(error, OSError) else none
            raise NodeError(
                f"cannot open the control socket {self._path}: {reason}; choose another path in [node] control"
            ) from None

    async def close(self) -> None:
        """End all connections and remove the socket."""
        if self._server is None:
            return
        self._closing = True
        self._server.close()
        for program in self._programs:
            program.close()
        if talks := [talk for talk in self._programs.values() if talk is not None]:
            await asyncio.wait(talks)
        await self._server.wait_closed()
        with contextlib.suppress(OSError):
            self._path.unlink()
        self._server = None

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._closing:  # It was let in just before, and nobody would wait for it to end.
            writer.close()
            return
        program = Program(self._node, writer, self.stopping)
        self._programs[program] = asyncio.current_task()
        try:
            await program.converse(reader)
        finally:
            del self._programs[program]


def _clear(path: Path) -> None:
    """Remove the socket that a killed node left; nothing else."""
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        raise NodeError(f"{path} is no socket: it was left as it is; choose another path in [node] control")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            probe.connect(str(path))
        except OSError:
            path.unlink(missing_ok=True)
            return
    raise RunningError(f"another node answers at {path}; choose another path in [node] control")


def _listening(path: Path) -> socket.socket:
    made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    mask = os.umask(_SOCKET_MODE)
    try:
        made.bind(str(path))
    except BaseException:
        made.close()
        raise
    finally:
        os.umask(mask)
    return made


class Program:
    """One program at the other end of the control socket."""

    def __init__(self, node: Node, writer: asyncio.StreamWriter, stopping: asyncio.Event) -> None:
        self._node = node
        self._writer = writer
        self._stopping = stopping
        # Each call is done by the method that is called as its tag is.
        self._does: dict[type, Callable[[Any], object]] = {
            kind: getattr(self, f"_{kind.__struct_config__.tag}") for kind in get_args(calls.AnyCall)
        }

    def close(self) -> None:
        """Hang up, also on a program that does not listen."""
        transport = self._writer.transport
        if transport.get_write_buffer_size():
            transport.abort()
        else:
            transport.close()

    async def converse(self, reader: asyncio.StreamReader) -> None:
        """Answer calls until the program hangs up."""
        try:
            while True:
                call = await calls.read_call(reader)
                self._say(call if isinstance(call, calls.RefusalReply) else self._answer(call))
                await self._writer.drain()
        except (EOFError, ConnectionError):
            pass
        except LocalError as error:
            with contextlib.suppress(OSError):
                self._say(calls.RefusalReply(calls.UNKNOWN, type(error).__name__, str(error)))
                self._writer.write_eof()
                await calls.skip(reader)  # Who is cut short in the middle of a call does not see why.
        finally:
            self._writer.close()
            with contextlib.suppress(ConnectionError):
                await self._writer.wait_closed()

    def _say(self, reply: calls.AnyReply) -> None:
        if not self._writer.is_closing():
            self._writer.write(calls.packed(reply))

    def _answer(self, call: calls.AnyCall) -> calls.AnyReply:
        try:
            return calls.AnswerReply(call.number, self._does[type(call)](call))
        except CarrypostError as error:
            return calls.RefusalReply(call.number, type(error).__name__, str(error))
        except Exception as error:  # noqa: BLE001 - A mistake of ours in one call must not end the others.
            _log.exception("the call %s failed", type(call).__name__)
            return calls.RefusalReply(call.number, "CarrypostError", f"the node failed: {error!r}")

    # --- calls ---------------------------------------------------------------------------------------------

    def _status(self, _call: calls.Status) -> object:
        node = self._node
        seen, messaging = node.host.overview(), node.host.messaging.overview()
        return {
            "node": seen.node,
            "version": __version__,
            "pid": os.getpid(),
            "uptime_s": node.uptime_s,
            "security": node.settings.core.security,
            "incarnation": seen.incarnation,
            "data": str(node.home.folder),
            "clock_ahead_s": node.clock.ahead_us / MICROSECONDS,
            "addresses": node.udp.addresses,
            "neighbours": sum(each.state == "linked" for each in seen.neighbours),
            "heard": len(seen.neighbours),
            "places": seen.places,
            "waiting": seen.waiting,
            "cache": {"messages": seen.messages, "bytes": seen.bytes},
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
        }

    def _peers(self, _call: calls.Peers) -> object:
        now = self._node.driver.now
        try:
            names = self._node.home.pet_names()
        except NodeError as error:
            _log.warning("%s", error)
            names = {}
        return [
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
            for each in self._node.host.overview().neighbours
        ]

    def _gate(self, call: calls.Gate) -> None:
        self._node.udp.intake.gate = None if call.hear is None else frozenset(call.hear)

    def _stop(self, _call: calls.Stop) -> None:
        self._stopping.set()
