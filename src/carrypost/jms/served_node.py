"""Real nodes with their messaging and their socket: `carrypost node` runs one, and programs have them inside.

Programs that are attached to such a node are informed when it ends.
"""

from __future__ import annotations

import asyncio
import logging
import math
from typing import TYPE_CHECKING, Any

from carrypost.attach.control import Control, Service
from carrypost.attach.service import SocketService
from carrypost.errors import NodeError, NoNodeError, RunningError
from carrypost.jms.local import LocalProvider
from carrypost.jms.reconnecting import ReconnectingProvider
from carrypost.model.privilege import Privilege, privilege
from carrypost.node.plugins import load
from carrypost.node.runtime import Node

if TYPE_CHECKING:
    from carrypost.node.settings import NodeSettings


_ENDED = "the node has ended"
_JOIN_S = 2.0
"""Time in which a program can found or join the circle of a closed network before it is warned."""
_log = logging.getLogger("carrypost.node")


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
            _log.warning("other programs cannot use this node: %s", error)
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
            _log.warning("%s", outside)

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
    for module in load(plugins):
        found = found or getattr(module, "privilege", None)
    return found or privilege
