"""Real nodes with their messaging and their socket: `carrypost node` runs one, and programs have them inside.

A program has one for each folder. It is shared by all who use it from one event loop, and open while anybody does.
Programs that are attached to it are told when it ends.
"""

from __future__ import annotations

import asyncio
import importlib
import logging
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from carrypost.errors import CarrypostError, IllegalStateException, JMSException, NodeError, RunningError, StateError
from carrypost.jms.local import LocalProvider
from carrypost.jms.native import Native
from carrypost.model.privilege import Privilege, privilege
from carrypost.node.control.control import Control, Service
from carrypost.node.runtime import Node

if TYPE_CHECKING:
    from carrypost.jms.provider import Provider
    from carrypost.node.settings import NodeSettings


_ENDED = "the node has ended"
_log = logging.getLogger("carrypost.node")


class ServedNode:
    """A node that runs, with its messaging and its socket."""

    def __init__(self, node: Node, provider: LocalProvider | None, control: Control) -> None:
        self.node, self.provider = node, provider
        """Without a provider, messaging is switched off."""
        self._control = control

    def add(self, name: str, service: Service) -> None:
        """Let something else serve programs, too, as long as the node runs; `carrypost status` tells of it by name."""
        self._control.services[name] = service

    @classmethod
    async def start(
        cls, settings: NodeSettings, given: Privilege | None = None, *, stopping: asyncio.Event | None = None
    ) -> ServedNode:
        """Start a node; raises as `Node.start` does.

        `stopping` is set when somebody asks it to end. Without that it is inside a program: nobody can, and a socket
        that cannot be opened does not keep it from running.
        """
        node = Node(settings, privilege=_privilege(settings.place.plugins, given))
        await node.start()
        provider = LocalProvider(node.driver) if settings.core.messaging.enabled else None
        control = Control(node, None if provider is None else Native(provider), stopping=stopping)
        if provider is not None:
            node.attach(provider.handlers)
        try:
            await control.open()
        except NodeError as error:
            if stopping is not None or isinstance(error, RunningError):
                await node.stop()
                raise
            _log.warning("other programs cannot use this node: %s", error)
        except BaseException:
            await node.stop()
            raise
        return cls(node, provider, control)

    async def stop(self, reason: str = _ENDED) -> None:
        """End it: what was begun is written, and answered, before programs are told that it has ended."""
        services = self._control.services.values()
        self._control.leave()
        for service in services:
            service.leave()
        try:
            await self.node.stop()
        finally:
            why = self.node.store.failure
            reason = f"{reason}, and could not keep its last changes: {why}" if why else reason
            if self.provider is not None:
                self.provider.end(reason)
            await asyncio.gather(self._control.close(reason), *(service.close() for service in services))


def _privilege(plugins: tuple[str, ...], given: Privilege | None) -> Privilege:
    """Load modules that register what is theirs; return the rule that was given, or that one of them has."""
    found = given
    for name in plugins:
        try:
            module = importlib.import_module(name)
        except Exception as error:
            raise NodeError(f"[node] plugins: the module {name!r} cannot be loaded: {error!r}") from error
        found = found or getattr(module, "privilege", None)
    return found or privilege


@dataclass(slots=True)
class _Running:
    """A node that somebody uses."""

    settings: NodeSettings
    privilege: Privilege | None
    served: ServedNode | None = None
    users: int = 0
    busy: asyncio.Lock = field(default_factory=asyncio.Lock)


_running: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[Path, _Running]] = WeakKeyDictionary()


class EmbeddedNode:
    """Where the contexts of one factory get their node from."""

    def __init__(self, settings: NodeSettings, given: Privilege | None) -> None:
        self._settings = settings
        self._privilege = given
        self._folder = settings.data.absolute()

    @property
    def runs_here(self) -> bool:
        """True if somebody uses it from this event loop."""
        return self._folder in _running.get(asyncio.get_running_loop(), {})

    async def acquire(self) -> Provider:
        """The node's provider. The first who asks starts the node."""
        nodes = _running.setdefault(asyncio.get_running_loop(), {})
        found = nodes.get(self._folder)
        if found is None:
            found = nodes[self._folder] = _Running(self._settings, self._privilege)
        elif found.settings != self._settings or found.privilege is not self._privilege:
            raise IllegalStateException(
                f"this program uses the node in {self._folder} with other settings: give both factories the same"
            )
        found.users += 1
        try:
            async with found.busy:
                if found.served is None:
                    found.served = await _start(found)
                return _messaging(found.served)
        except BaseException:
            await self.release()
            raise

    def unheard(self, error: JMSException) -> None:
        """The log has it."""

    async def release(self) -> None:
        """One user fewer. With the last one the node stops: what was sent is on disk by then."""
        nodes = _running[asyncio.get_running_loop()]
        found = nodes[self._folder]
        found.users -= 1
        async with found.busy:
            if found.users:
                return  # Somebody came meanwhile.
            served, found.served = found.served, None
            if served is not None:
                await served.stop()
            if not found.users:  # Who came while it stopped waits for the lock, and starts it again.
                nodes.pop(self._folder, None)


def _messaging(served: ServedNode) -> LocalProvider:
    if served.provider is None:
        raise JMSException("messaging is switched off on this node: set messaging.enabled = true")
    return served.provider


async def _start(found: _Running) -> ServedNode:
    try:
        return await ServedNode.start(found.settings, found.privilege)
    except StateError as error:
        raise IllegalStateException(f"{error}; inside testing.run, net.context(NAME) makes contexts") from error
    except CarrypostError as error:
        raise JMSException(f"the node cannot start: {error}") from error
