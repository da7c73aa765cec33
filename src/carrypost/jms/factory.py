"""`ConnectionFactory`: the entry of a program on a real node, attached to a running one or with one of its own.

Nodes inside programs are shared: one for each folder, for all users in one event loop, while there are any.
"""

from __future__ import annotations

import asyncio
import logging
import math
import os
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Final, Literal, TypeVar

from carrypost.attach.provider import AttachedNode, SharedNode
from carrypost.classic import connections
from carrypost.config.rules import nearest
from carrypost.errors import (
    CarrypostError,
    ConfigError,
    IllegalArgumentException,
    IllegalStateException,
    JMSException,
    JMSSecurityException,
    NodeError,
    NoNodeError,
    RunningError,
    StateError,
)
from carrypost.java_names import JavaNamed
from carrypost.jms.connection import Connection
from carrypost.jms.context import Context
from carrypost.jms.destinations import named
from carrypost.jms.durations import Duration, seconds
from carrypost.jms.listener_calls import Caller
from carrypost.jms.modes import SessionMode
from carrypost.node.folder import NodeFolder
from carrypost.node.settings import NodeSettings, load

if TYPE_CHECKING:
    from carrypost.attach.served_node import ServedNode
    from carrypost.jms.provider import Provider
    from carrypost.model.descriptor_values import Privilege


class EmbeddedNode(SharedNode["ServedNode"]):
    """Source from which contexts get a node in this process."""

    def __init__(self, settings: NodeSettings, given: Privilege | None) -> None:
        super().__init__(settings.data.absolute(), (settings, given))
        self._settings, self._privilege = settings, given

    async def _present(self, opened: ServedNode | None) -> ServedNode:
        # Loaded here, as programs that attach to a node do without it, and start in half the time.
        from carrypost.attach.served_node import ServedNode  # noqa: PLC0415

        try:
            return opened or await ServedNode.start(self._settings, self._privilege)
        except StateError as error:
            raise IllegalStateException(f"{error}; inside testing.run, net.context(NAME) makes contexts") from error
        except CarrypostError as error:
            raise JMSException(f"the node cannot start: {error}") from error

    def _provider(self, opened: ServedNode) -> Provider:
        if opened.provider is None:
            raise JMSException("messaging is switched off on this node: set messaging.enabled = true")
        return opened.provider

    async def _close(self, opened: ServedNode) -> None:
        await opened.stop()


_log = logging.getLogger("carrypost.jms")
Mode = Literal["attached", "embedded"]
_Node = TypeVar("_Node", AttachedNode, EmbeddedNode)
_AT_SOCKET = "unix:"
_START_S = 30.0
"""Time within which a node whose folder is in use answers at its socket. A large store on a slow disk takes long to
read."""
_NOTICE_S = 2.0
"""Time after which the log says that a program waits for a node."""
_AGAIN_S = 0.05


class ConnectionFactory(JavaNamed):
    """Makes contexts, or connections of the classic API, on the node of one folder.

    Where a node runs in that folder they are attached to it. Else one runs in this program while any of them is open,
    and others may attach to that. `attach` True or False allows one of the two alone, and `mode` shows which one is in
    use.

    `config` is the node's settings file (TOML), the same as for ``carrypost node``; further keywords are settings that
    win over it: ``ConnectionFactory(data="my-node", altruistic=True)``, and those of a table as a dict,
    ``udp={"port": 4000}``. Without any, the node is that of this user. ``"unix:PATH"`` in place of a file attaches to
    the node at that socket. `client_id` is the program's name for durable subscriptions.

    `reconnect` is for programs that are attached. By default their contexts outlive a restart of the node: they wait
    for it, and go on. A number of seconds, or a `timedelta`, limits that wait. With False, the end of the node ends
    its contexts.

    `privilege` is a function that says which of two messages matters more, where not all can be kept.
    Factories of one folder share its node. There are no users and passwords: giving one raises `JMSSecurityException`.
    """

    _callers: ClassVar[type[Caller]] = Caller
    """Calls the functions of its programs; `carrypost.sync` has another."""

    def __init__(
        self,
        config: str | os.PathLike[str] | None = None,
        *,
        attach: bool | None = None,
        reconnect: bool | Duration = True,
        client_id: str | None = None,
        privilege: Privilege | None = None,
        user: str | None = None,
        password: str | None = None,
        **settings: object,
    ) -> None:
        _check_anonymous(user, password)
        if isinstance(config, str) and "://" in config:
            raise IllegalArgumentException(
                f"{config!r} is not supported, since there is no server to connect to: name the folder of a node "
                "on this machine, ConnectionFactory(data=FOLDER); the node finds other nodes by itself"
            )
        if privilege is not None and not callable(privilege):
            raise IllegalArgumentException(f"privilege must be a function of a message, not {privilege!r}"[:200])
        self._client_id = "" if client_id is None else named(client_id, "a client id")
        for name in settings:
            if "." not in name and name not in _PLACES and (hint := nearest(name, _ARGUMENTS, cutoff=_NEAR)):
                raise ConfigError(f"{name} is not a setting{hint}")  # Else a setting would be named that is less near.
        keywords = {
            _PLACES.get(name, name): os.fspath(value) if isinstance(value, os.PathLike) else value
            for name, value in settings.items()
        }
        socket = config[len(_AT_SOCKET) :] if isinstance(config, str) and config.startswith(_AT_SOCKET) else None
        if socket is not None:
            if not socket:
                raise IllegalArgumentException("unix: must be followed by the path of a node's socket, unix:PATH")
            if attach is False:
                raise IllegalArgumentException(
                    "unix:PATH already says to attach to the node at that socket: leave attach out"
                )
            config, attach, keywords["node.control"] = None, True, str(Path(socket).absolute())
        elif config is not None and Path(config).is_dir():
            raise IllegalArgumentException(
                f"{config} is a folder, not a settings file: give it as data={str(config)!r}"
            )
        self._settings = load(None if config is None else Path(config), os.environ, keywords)
        self._joining = _Joining(self._settings, privilege, attach, waits=socket is None)
        self._joining.reconnect_s = _reconnect_s(reconnect)
        self._joining.unheeded = sorted(set(settings) - {*_PLACES})

    def __repr__(self) -> str:
        return f"<ConnectionFactory of the node in {self._settings.data}>"

    @property
    def settings(self) -> NodeSettings:
        """The settings of its node."""
        return self._settings

    @property
    def mode(self) -> Mode | None:
        """The way in which its last context reached its node: "attached" or "embedded"; None before the first."""
        return self._joining.mode

    def create_context(
        self,
        mode: SessionMode = SessionMode.AUTO_ACKNOWLEDGE,
        *,
        user: str | None = None,
        password: str | None = None,
    ) -> Context:
        """Return a context on a connection of its own, to be opened by ``async with``, or by awaiting it."""
        return Context(self._connection(user, password), mode)

    def create_connection(self, user: str | None = None, password: str | None = None) -> connections.Connection:
        """Return a connection of the classic API, to be opened by ``async with``, or by awaiting it."""
        return connections.Connection(self._connection(user, password))

    def _connection(self, user: str | None, password: str | None) -> Connection:
        _check_anonymous(user, password)
        return Connection(_Joined(self._joining), self._client_id, self._callers)


class _Joining:
    """The ways in which the contexts of one factory reach their node."""

    def __init__(
        self, settings: NodeSettings, privilege: Privilege | None, attach: bool | None, *, waits: bool
    ) -> None:
        self._settings, self._privilege, self._attach, self._waits = settings, privilege, attach, waits
        self.mode: Mode | None = None
        self.reconnect_s = 0.0
        """Time for which attached contexts wait for a node that is gone."""
        self.unheeded: list[str] = []
        """Settings that the program gave, and that only a node of its own would use."""

    async def join(self) -> tuple[AttachedNode | EmbeddedNode, Provider]:
        """Return a node, and its provider; raise a `JMSException` whose cause says why there is none."""
        embedded, starting = EmbeddedNode(self._settings, self._privilege), _Starting(self._settings)
        while True:
            try:
                if self._attach is False or (self._attach is None and embedded.in_use):
                    return self._joined("embedded", embedded, await embedded.acquire())
                return await self._join_running()
            except NoNodeError as error:
                if self._attach and not (self._waits and starting.process):
                    raise JMSException(str(error)) from error
                missing: NodeError = error
            if not self._attach:
                try:
                    return self._joined("embedded", embedded, await embedded.acquire())
                except JMSException as error:
                    if not isinstance(error.__cause__, RunningError):
                        raise
                    missing = error.__cause__
            await starting.wait(missing)

    async def _join_running(self) -> tuple[AttachedNode, Provider]:
        """Attach to a node that runs; raise `NoNodeError` if none does."""
        running = AttachedNode(self._settings.control, self.reconnect_s)
        provider = await running.acquire()
        if self._privilege is not None:
            await running.release()
            raise IllegalStateException(
                "privilege works only in an embedded node, and this program would attach to one that is running: "
                "put the function into a module, and list it in that node's [node] plugins"
            )
        if self.unheeded and self.mode != "attached":
            _log.warning(
                "attached to the node at %s, which has its own settings; ignoring these: %s",
                self._settings.control, ", ".join(self.unheeded),
            )  # fmt: skip
        return self._joined("attached", running, provider)

    def _joined(self, mode: Mode, node: _Node, provider: Provider) -> tuple[_Node, Provider]:
        self.mode = mode
        return node, provider


class _Starting:
    """The wait for a node whose process has the folder, and that does not answer at its socket yet."""

    def __init__(self, settings: NodeSettings) -> None:
        self._folder, self._socket = NodeFolder(settings), settings.control
        self._began_s = asyncio.get_running_loop().time()
        self._noticed = False

    @property
    def process(self) -> int | None:
        """The process that has the folder; None if there is none."""
        return self._folder.process

    async def wait(self, missing: NodeError) -> None:
        """Wait a moment; after the time that a node may take to start, raise a `JMSException` with this cause."""
        waited_s = asyncio.get_running_loop().time() - self._began_s
        if waited_s >= _START_S:
            process = f"process {self.process}" if self.process else "another process"
            raise JMSException(
                f"{process} uses the folder {self._folder.folder}, and no node answered at {self._socket} within "
                f"{_START_S:.0f} s: try again later, or end that process"
            ) from missing
        if waited_s >= _NOTICE_S and not self._noticed:
            self._noticed = True
            _log.warning("the node in %s is starting; trying again, up to %.0f s", self._folder.folder, _START_S)
        await asyncio.sleep(_AGAIN_S)


class _Joined:
    """Source from which one connection gets its provider."""

    def __init__(self, joining: _Joining) -> None:
        self._joining = joining
        self._node: AttachedNode | EmbeddedNode | None = None

    async def acquire(self) -> Provider:
        """Return the provider of the node."""
        self._node, provider = await self._joining.join()
        return provider

    async def release(self) -> None:
        """Leave the node."""
        node, self._node = self._node, None
        if node is not None:
            await node.release()

    def unhandled(self, error: JMSException) -> None:
        """Ignore the error, which the log has already."""


def _reconnect_s(given: bool | Duration) -> float:
    """Return the time for which programs wait for a node that is gone."""
    if isinstance(given, bool):
        return math.inf if given else 0.0
    return seconds(given, "reconnect")


def _check_anonymous(user: object, password: object) -> None:
    if user is not None or password is not None:
        raise JMSSecurityException(
            "nodes have no users and no passwords: access is governed by the permissions of the node's "
            "folder. Leave both out"
        )


_PLACES = {name: f"node.{name}" for name in ("data", "control", "name")}
"""Keywords that are plain here, and in a table of the file."""
_ARGUMENTS: Final = ("attach", "reconnect", "client_id", "privilege", "user", "password", *_PLACES)
_NEAR: Final = 0.75
"""Likeness of a mistyped argument; no setting is as near to one."""
