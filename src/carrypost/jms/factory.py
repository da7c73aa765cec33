"""`ConnectionFactory`: where a program on a real node begins."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from carrypost.errors import IllegalArgumentException, JMSSecurityException
from carrypost.jms.calling import Caller
from carrypost.jms.connection import Connection
from carrypost.jms.context import Context
from carrypost.jms.destinations import named
from carrypost.jms.embedded import EmbeddedNode
from carrypost.jms.modes import SessionMode
from carrypost.node.settings import NodeSettings, load

if TYPE_CHECKING:
    from carrypost.model.privilege import Privilege


class ConnectionFactory:
    """Makes contexts on the node of one folder, which runs in this program while any of them is open.

    `config` is the node's settings file (TOML), the same as for ``carrypost node``; further keywords are settings that
    win over it: ``ConnectionFactory(data="my-node", altruistic=True)``, and those of a table as a dict,
    ``udp={"port": 4000}``. Without any, the node is that of this user. `client_id` is the program's name for durable
    subscriptions. `privilege` is a function that says which of two messages matters more, where not all can be kept.
    Factories of one folder share its node. There are no users and passwords: giving one raises `JMSSecurityException`.
    """

    _callers: ClassVar[type[Caller]] = Caller
    """Calls the functions of its programs; `carrypost.sync` has another."""

    def __init__(
        self,
        config: str | os.PathLike[str] | None = None,
        *,
        client_id: str | None = None,
        privilege: Privilege | None = None,
        user: str | None = None,
        password: str | None = None,
        **settings: object,
    ) -> None:
        _check_anonymous(user, password)
        if isinstance(config, str) and "://" in config:
            raise IllegalArgumentException(
                f"there is no server at {config!r} to connect to: a factory stands for a node in a folder of this "
                "machine, ConnectionFactory(data=FOLDER), which finds other nodes by itself"
            )
        if privilege is not None and not callable(privilege):
            raise IllegalArgumentException(f"privilege is a function of a message, not {privilege!r}"[:200])
        self._client_id = "" if client_id is None else named(client_id, "a client id")
        keywords = {
            _PLACES.get(name, name): os.fspath(value) if isinstance(value, os.PathLike) else value
            for name, value in settings.items()
        }
        if config is not None and Path(config).is_dir():
            raise IllegalArgumentException(
                f"{config} is a folder, not a settings file: give it as data={str(config)!r}"
            )
        self._settings = load(None if config is None else Path(config), os.environ, keywords)
        self._privilege = privilege

    def __repr__(self) -> str:
        return f"<ConnectionFactory of the node in {self._settings.data}>"

    @property
    def settings(self) -> NodeSettings:
        """How its node is set up."""
        return self._settings

    def create_context(
        self,
        mode: SessionMode = SessionMode.AUTO_ACKNOWLEDGE,
        *,
        user: str | None = None,
        password: str | None = None,
    ) -> Context:
        """A context on a connection of its own, to be opened by ``async with``, or by awaiting it."""
        _check_anonymous(user, password)
        node = EmbeddedNode(self._settings, self._privilege)
        return Context(Connection(node, self._client_id, self._callers), mode)


def _check_anonymous(user: object, password: object) -> None:
    if user is not None or password is not None:
        raise JMSSecurityException(
            "nodes have no users and no passwords: who may read the node's folder may use it, and messages are signed "
            "with its key. Leave both out"
        )


_PLACES = {name: f"node.{name}" for name in ("data", "control", "name")}
"""Keywords that are plain here, and in a table of the file."""
