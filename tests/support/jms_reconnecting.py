"""Contexts in virtual time that are attached to their node by a socket, and outlive its restarts."""

from __future__ import annotations

import asyncio

from tests.support.jms_attached import AttachedNetwork, VirtuallyAttached

from carrypost.errors import JMSException, NoNodeError
from carrypost.jms.provider import News, NodeInfo, Program, Provider
from carrypost.jms.provider.reconnecting import ReconnectingProvider
from carrypost.log.events import Handed
from carrypost.testing import Network


class Attachment(VirtuallyAttached):
    """A provider over a virtual line, which tells the time also when its node is gone."""

    last_us = 0

    def now_us(self) -> int:
        if not self.is_over:
            self.last_us = self.inner.now_us()
        return self.last_us


class Deaf(Program):
    """A program that ignores everything."""

    def deliver(self, handed: Handed, body: bytes | None = None) -> None: ...

    def note(self, news: News) -> None: ...

    def node_ended(self, reason: str) -> None: ...


class ReconnectingNetwork(AttachedNetwork):
    """A network whose contexts wait for a node that was killed; `kill` cuts their lines off, as SIGKILL does."""

    limit_s = float("inf")
    """Time for which they wait."""
    refusal: JMSException | None = None
    """Error that nodes answer new programs with."""
    answered: NodeInfo | None = None
    """Description that nodes give of themselves, if not their own."""
    attached: asyncio.Event
    """Set when a program reached a node since the last kill."""
    taken_client = ""
    """Client id that another program takes when the node is back."""
    attempts: tuple[float, ...] = ()
    """Times at which programs tried to reach a node."""
    _lasting: dict[str, ReconnectingProvider] | None = None
    _lines: dict[str, Attachment] | None = None
    _down: frozenset[str] = frozenset()

    def provider(self, node: str) -> Provider:
        if self._lasting is None:
            self._lasting, self._lines = {}, {}
            self.attached = asyncio.Event()
        found = self._lasting.get(node)
        if found is None or found.is_over:
            found = self._lasting[node] = ReconnectingProvider(
                self._attached_to(node), lambda: self._reach(node), node, self.limit_s
            )
        return found

    async def _reach(self, node: str) -> Attachment:
        self.attempts += (asyncio.get_running_loop().time(),)
        if node in self._down:
            raise NoNodeError(f"no node answers at {node}")
        if self.refusal is not None:
            raise self.refusal
        made = self._attached_to(node)
        self.attached.set()
        if self.taken_client:
            await made.inner.connect(self.taken_client, Deaf())
            self.taken_client = ""
        return made

    def _attached_to(self, node: str) -> Attachment:
        made = Attachment.to(Network.provider(self, node))
        assert isinstance(made, Attachment)
        assert self._lines is not None
        self._lines[node] = made
        self._all += (made,)
        if self.answered is not None:
            made._node_info = self.answered  # noqa: SLF001 - as if another node had said it
        return made

    def kill(self, node: str) -> None:
        self._down |= {node}
        self.attached.clear()
        if node in (self._lines or {}):
            self.cut(node)
        super().kill(node)

    def stop(self, node: str) -> None:
        """End a node in order: its programs are informed before their lines end."""
        self._down |= {node}
        super().kill(node)

    def restart(self, node: str) -> None:
        super().restart(node)
        self._down -= {node}

    async def close_program(self, node: str) -> None:
        """Leave a node, as after the last context."""
        await (self._lasting or {})[node].close()

    def consumers(self, node: str) -> int:
        """Return the number of consumers of topics that are open on a node."""
        seen = self.host(node).messaging.overview()
        return 0 if seen is None else seen.consumers

    def cut(self, node: str) -> None:
        """Cut off the programs of a node, which goes on."""
        for each in (self._lines or {})[node].transports:
            each.abort()
