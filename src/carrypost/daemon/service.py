"""A node as a service of the system: its log, reloading of settings, and notifications for the service manager.

On SIGHUP a node without a terminal reads its settings again. The contact gate, static peers, the level of the log and
the passcodes of clients change at once, and each change is logged. Other changed settings are named: they need a
restart. If anything is wrong with the settings, all of them stay as they are. The manager is notified by the protocol
of `sd_notify`: datagrams to the socket that NOTIFY_SOCKET names.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import os
import socket
import sys
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from carrypost.errors import CarrypostError
from carrypost.node.settings import NodeSettings, differences
from carrypost.printing import paragraph

if TYPE_CHECKING:
    from carrypost.daemon.server import Server
    from carrypost.node.runtime import Node

_log = logging.getLogger("carrypost.service")
_APPLIED = ("node.log", "udp.hear", "udp.peers")


class LogFormatter(logging.Formatter):
    """The form of log entries, which may contain text of other nodes: a terminal shows it, and only as one entry."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the text of an entry."""
        return paragraph(super().format(record))


def begin_log(level: str) -> None:
    """Log to stderr from now on."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(LogFormatter("%(asctime)s %(levelname)s %(name)s: %(message)s", "%H:%M:%S"))
    logging.basicConfig(level=level.upper(), handlers=[handler])
    _log.setLevel(logging.INFO)  # The result of changed settings is logged at every level.


def has_terminal() -> bool:
    """Return True if this process belongs to a terminal, which sends SIGHUP when it is closed."""
    try:
        os.close(os.open("/dev/tty", os.O_RDONLY | getattr(os, "O_NOCTTY", 0)))
    except OSError:
        return False
    return True


def notify(*states: str) -> None:
    """Notify the service manager, if one started this process and asks for it."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address:
        return
    if address.startswith("@"):
        address = f"\0{address[1:]}"
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as made:
        made.sendto("\n".join(states).encode(), address)


def notify_ready() -> None:
    """Notify the manager that the node runs, with its settings."""
    notify("READY=1", f"STATUS=process {os.getpid()} runs a node")


class Service:
    """The settings of a running node, and the file that they come from."""

    def __init__(self, node: Node, servers: Sequence[Server], load: Callable[[], NodeSettings]) -> None:
        self._node, self._servers, self._load = node, servers, load
        self._settings = node.settings
        """Settings in effect."""

    def reload(self) -> None:
        """Read the settings again, and apply those that can be; a mistake is logged, and changes nothing."""
        notify("RELOADING=1", f"MONOTONIC_USEC={time.monotonic_ns() // 1_000}")
        try:
            self._apply(self._load())
        except CarrypostError as error:
            _log.error("the settings were not changed: %s", error)
        notify_ready()

    def _apply(self, loaded: NodeSettings) -> None:
        changed = differences(loaded, self._settings)
        udp, log = loaded.udp, loaded.place.log
        if "udp.peers" in changed:
            self._node.udp.name_peers(udp.peers)  # First, because it may raise.
        if "udp.hear" in changed:
            self._node.udp.intake.gate = None if udp.hear is None else frozenset(udp.hear)
        logging.getLogger().setLevel(log.upper())
        self._settings = dataclasses.replace(
            self._settings,
            udp=dataclasses.replace(self._settings.udp, hear=udp.hear, peers=udp.peers),
            place=dataclasses.replace(self._settings.place, log=log),
        )
        if udp.hear is None and "udp.hear" in changed:
            changed["udp.hear"] = "all"  # As it is written in the file.
        for name in _APPLIED:
            if name in changed:
                _log.info("%s is now %s", name, changed.pop(name))
        for each in self._servers:
            _read_passcode(each)
        if changed:
            _log.warning("needs a restart: %s", ", ".join(changed))
        _log.info("the settings were reloaded")


def _read_passcode(server: Server) -> None:
    before = server.token
    try:
        server.reload()
    except CarrypostError as error:
        _log.error("the passcode of %s clients was not changed: %s", server.name, error)
    if server.token != before:
        _log.info("the passcode of %s clients was changed, for new connections", server.name)
