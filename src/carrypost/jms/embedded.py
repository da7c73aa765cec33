"""Nodes inside programs: one for each folder, shared by all users in one event loop, while there are any."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from carrypost.errors import CarrypostError, IllegalStateException, JMSException, StateError

if TYPE_CHECKING:
    from carrypost.jms.provider import Provider
    from carrypost.jms.served_node import ServedNode
    from carrypost.model.privilege import Privilege
    from carrypost.node.settings import NodeSettings


@dataclass(slots=True)
class _Running:
    """A node in use."""

    settings: NodeSettings
    privilege: Privilege | None
    served: ServedNode | None = None
    users: int = 0
    busy: asyncio.Lock = field(default_factory=asyncio.Lock)


_running: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[Path, _Running]] = WeakKeyDictionary()


class EmbeddedNode:
    """The source of the node for the contexts of one factory."""

    def __init__(self, settings: NodeSettings, given: Privilege | None) -> None:
        self._settings = settings
        self._privilege = given
        self._folder = settings.data.absolute()

    @property
    def runs_here(self) -> bool:
        """True if it is in use from this event loop."""
        return self._folder in _running.get(asyncio.get_running_loop(), {})

    async def acquire(self) -> Provider:
        """Return the node's provider. The first caller starts the node."""
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

    def unhandled(self, error: JMSException) -> None:
        """Ignore the error, which the log has already."""

    async def release(self) -> None:
        """Release the provider; the last user stops the node, and everything sent is on disk by then."""
        nodes = _running[asyncio.get_running_loop()]
        found = nodes[self._folder]
        found.users -= 1
        async with found.busy:
            if found.users:
                return  # Another user came meanwhile.
            served, found.served = found.served, None
            if served is not None:
                await served.stop()
            if not found.users:  # A user that came while it stopped waits for the lock, and starts it again.
                nodes.pop(self._folder, None)


def _messaging(served: ServedNode) -> Provider:
    if served.provider is None:
        raise JMSException("messaging is switched off on this node: set messaging.enabled = true")
    return served.provider


async def _start(found: _Running) -> ServedNode:
    # Loaded here, as programs that attach to a node do without it, and start in half the time.
    from carrypost.jms.served_node import ServedNode  # noqa: PLC0415

    try:
        return await ServedNode.start(found.settings, found.privilege)
    except StateError as error:
        raise IllegalStateException(f"{error}; inside testing.run, net.context(NAME) makes contexts") from error
    except CarrypostError as error:
        raise JMSException(f"the node cannot start: {error}") from error
