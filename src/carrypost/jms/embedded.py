"""Real nodes in a program's own process: one for each folder, shared by all who use it, open while anybody does."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from carrypost.errors import CarrypostError, IllegalStateException, JMSException, StateError
from carrypost.jms.local import LocalProvider
from carrypost.model.privilege import Privilege, privilege
from carrypost.node.runtime import Node

if TYPE_CHECKING:
    from carrypost.jms.provider import Provider
    from carrypost.node.settings import NodeSettings


_ENDED = "the node has ended"


@dataclass(slots=True)
class _Running:
    """A node that somebody uses."""

    settings: NodeSettings
    privilege: Privilege
    node: Node | None = None
    provider: LocalProvider | None = None
    users: int = 0
    busy: asyncio.Lock = field(default_factory=asyncio.Lock)


_running: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[Path, _Running]] = WeakKeyDictionary()


class EmbeddedNode:
    """Where the contexts of one factory get their node from."""

    def __init__(self, settings: NodeSettings, given: Privilege | None) -> None:
        self._settings = settings
        self._privilege = given or privilege
        self._folder = settings.data.absolute()

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
                if found.provider is None:
                    await _start(found)
                assert found.provider is not None
                return found.provider
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
            node, provider = found.node, found.provider
            found.node = found.provider = None
            if node is not None and provider is not None:
                await node.stop()  # What was begun is written, and answered, before the provider ends.
                why = node.store.failure
                provider.end(f"the node has ended, and could not keep its last changes: {why}" if why else _ENDED)
            if not found.users:  # Who came while it stopped waits for the lock, and starts it again.
                nodes.pop(self._folder, None)


async def _start(found: _Running) -> None:
    node = Node(found.settings, privilege=found.privilege)
    try:
        await node.start()
    except StateError as error:
        raise IllegalStateException(f"{error}; inside testing.run, net.context(NAME) makes contexts") from error
    except CarrypostError as error:
        raise JMSException(f"the node cannot start: {error}") from error
    if not found.settings.core.messaging.enabled:
        await node.stop()
        raise JMSException("messaging is switched off on this node: set messaging.enabled = true")
    found.node, found.provider = node, LocalProvider(node.driver)
    node.attach(found.provider.handlers)
