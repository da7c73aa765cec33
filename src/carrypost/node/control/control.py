"""The node's control socket: programs on this machine ask it things, send and receive through it.

Each connection is one consumer. Deliveries wait as descriptors; a payload is read from the store when it is written to
the socket, so that a slow program costs no memory.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import os
import socket
import stat
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, get_args

import msgspec

from carrypost.errors import CarrypostError, LocalError, NodeError, RunningError
from carrypost.events import Delivery
from carrypost.gossip.holdings.lives import CopyState
from carrypost.model.descriptor import Ordering
from carrypost.model.ids import MessageId, shown
from carrypost.model.times import MICROSECONDS
from carrypost.node.carrying import Carrying
from carrypost.node.control import calls
from carrypost.node.runtime import Node
from carrypost.version import __version__

_log = logging.getLogger("carrypost.control")
_SOCKET_MODE = 0o177
"""Mask that leaves the socket to its owner alone."""
_TIDY_MIN = 4_096
"""Deliveries of one program that are kept before it is looked which of them are over."""
_TURN = 16
"""Deliveries that are handed out before others have their turn."""


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
        self._waiting: dict[MessageId, Delivery] = {}
        self._news = asyncio.Event()
        """Set when a delivery waits to be handed out."""
        self._handed: dict[str, MessageId] = {}
        self._tidy_at = _TIDY_MIN
        self._tasks: set[asyncio.Task[None]] = set()
        # Each call is done by the method that is called as its tag is.
        self._does: dict[type, Callable[[Any], Awaitable[object]]] = {
            kind: getattr(self, f"_{kind.__struct_config__.tag}") for kind in get_args(calls.AnyCall)
        }

    def take(self, delivery: Delivery) -> None:
        """Queue a message for the program."""
        self._waiting[delivery.message] = delivery
        self._news.set()
        if len(self._waiting) + len(self._handed) > self._tidy_at:
            self._tidy()

    def _tidy(self) -> None:
        """A program that neither reads nor confirms is not to fill the memory: forget what is over."""
        consumers, host = self._node.consumers, self._node.host
        self._waiting = {message: each for message, each in self._waiting.items() if consumers.waits(message)}
        # What gave way can still be confirmed, as long as the host remembers it.
        self._handed = {
            name: message
            for name, message in self._handed.items()
            if consumers.waits(message) or host.state_of(message) is not CopyState.UNKNOWN
        }
        self._tidy_at = max(_TIDY_MIN, 2 * (len(self._waiting) + len(self._handed)))

    def close(self) -> None:
        """Hang up, also on a program that does not listen."""
        transport = self._writer.transport
        if transport.get_write_buffer_size():
            transport.abort()
        else:
            transport.close()

    async def converse(self, reader: asyncio.StreamReader) -> None:
        """Answer calls until the program hangs up."""
        bytes_max = self._node.settings.core.limits.message_bytes_max
        self._begin(self._hand_out())
        try:
            while True:
                call = await calls.read_call(reader, bytes_max)
                if isinstance(call, calls.RefusalReply):
                    self._say(call)
                else:
                    if isinstance(call, calls.Publish):
                        await self._node.room()
                    self._begin(self._answer(call))
                await self._writer.drain()
        except (EOFError, ConnectionError):
            pass
        except LocalError as error:
            with contextlib.suppress(OSError):
                self._say(calls.RefusalReply(calls.UNKNOWN, type(error).__name__, str(error)))
                self._writer.write_eof()
                await calls.skip(reader)  # Who is cut short in the middle of a call does not see why.
        finally:
            for task in self._tasks:
                task.cancel()
            self._node.leave(self)
            self._writer.close()
            with contextlib.suppress(ConnectionError):
                await self._writer.wait_closed()

    def _begin(self, work: Any) -> None:  # noqa: ANN401 - any coroutine
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _say(self, reply: calls.AnyReply) -> None:
        if not self._writer.is_closing():
            self._writer.write(calls.packed(reply))

    async def _answer(self, call: calls.AnyCall) -> None:
        try:
            value = await self._does[type(call)](call)
        except CarrypostError as error:
            self._say(calls.RefusalReply(call.number, type(error).__name__, str(error)))
        except Exception as error:  # noqa: BLE001 - A mistake of ours in one call must not end the others.
            _log.exception("the call %s failed", type(call).__name__)
            self._say(calls.RefusalReply(call.number, "CarrypostError", f"the node failed: {error!r}"))
        else:
            self._say(calls.AnswerReply(call.number, value))

    async def _hand_out(self) -> None:
        try:
            await self._hand_out_all()
        except ConnectionError:
            pass
        except Exception:  # noqa: BLE001 - A program that is deaf and does not know it would wait for ever.
            _log.exception("a delivery could not be handed out; hanging up")
            self.close()

    async def _hand_out_all(self) -> None:
        for number in itertools.count(1):
            if not number % _TURN:
                await asyncio.sleep(0)  # A socket that takes everything at once would keep the loop from all else.
            while not self._waiting:
                self._news.clear()
                await self._news.wait()
            delivery = self._waiting.pop(next(iter(self._waiting)))
            descriptor = delivery.descriptor
            if not self._node.consumers.waits(descriptor.id):
                continue  # It expired, or gave way, while the program was busy.
            payload = self._node.payload(descriptor)
            if payload is None:
                continue
            name = shown(descriptor.id)
            self._handed[name] = descriptor.id
            self._say(
                calls.DeliveryReply(
                    message=name,
                    destination=descriptor.destination,
                    source=descriptor.node,
                    payload=payload,
                    attributes=dict(descriptor.attributes),
                    label=descriptor.label,
                    persistent=descriptor.persistent,
                    priority=descriptor.priority,
                    created_us=descriptor.created_us,
                    deadline_us=descriptor.deadline_us,
                    hops=delivery.hops,
                    redelivered=delivery.redelivered,
                    subscriptions=delivery.subscriptions,
                )
            )
            await self._writer.drain()

    # --- calls ---------------------------------------------------------------------------------------------

    async def _status(self, _call: calls.Status) -> object:
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
            "cache": {"messages": seen.messages, "bytes": seen.bytes, "unconfirmed": seen.unconfirmed},
            "subscriptions": node.consumers.subscriptions,
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

    async def _peers(self, _call: calls.Peers) -> object:
        now = self._node.driver.now()
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

    async def _publish(self, call: calls.Publish) -> object:
        message = await self._node.publish(
            call.destination, call.payload, attributes=call.attributes, lifetime_s=call.lifetime_s, label=call.label,
            persistent=call.persistent, priority=call.priority, ordering=Ordering.named(call.ordering),
        )  # fmt: skip
        return shown(message)

    async def _subscribe(self, call: calls.Subscribe) -> object:
        return self._node.subscribe(self, call.pattern, call.selector, ordered=call.ordered)

    async def _unsubscribe(self, call: calls.Unsubscribe) -> None:
        self._node.unsubscribe(self, call.subscription)

    async def _confirm(self, call: calls.Confirm) -> None:
        names = dict.fromkeys(call.messages)
        unknown = [name for name in names if name not in self._handed]
        if unknown:
            raise LocalError(f"{unknown[0]} was not handed to this program, or was confirmed already")
        await self._node.confirm(self, [self._handed.pop(name) for name in names])

    async def _gate(self, call: calls.Gate) -> None:
        self._node.udp.intake.gate = None if call.hear is None else frozenset(call.hear)

    async def _stop(self, _call: calls.Stop) -> None:
        self._stopping.set()
