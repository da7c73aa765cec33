"""Programs of the API on a real node that a test has in its own process."""

from __future__ import annotations

from carrypost import Context, SessionMode
from carrypost.errors import JMSException
from carrypost.jms.connection import Connection
from carrypost.jms.provider import Provider
from carrypost.jms.provider.local import LocalProvider
from carrypost.node.runtime import Node


class Programs:
    """The programs on one node."""

    def __init__(self, node: Node) -> None:
        self.provider = LocalProvider(node.driver)
        node.attach(self.provider.handlers)

    def context(self, client_id: str = "", mode: SessionMode = SessionMode.INDIVIDUAL_ACKNOWLEDGE) -> Context:
        """Return a context as a factory makes one."""
        return Context(Connection(self, client_id), mode)

    async def acquire(self) -> Provider:
        """Return the provider; its node runs already."""
        return self.provider

    async def release(self) -> None:
        """Let it run on."""

    def unhandled(self, error: JMSException) -> None:
        """The test finds out."""
