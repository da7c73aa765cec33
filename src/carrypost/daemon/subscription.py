"""The consumer of a client: what the node handed it, and what the client has not acknowledged.

It is a session of the node with one consumer. The node hands over as much as the client may have unacknowledged: what
the client is done with makes room.
"""

from __future__ import annotations

from itertools import takewhile
from typing import TYPE_CHECKING

from carrypost.errors import JMSException
from carrypost.messaging.commands import Ack, Late, Receive, Subscribe
from carrypost.messaging.program_commands import CloseSession, Consume, Credit, OpenSession
from carrypost.model import address

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from carrypost.jms.provider import Provider
    from carrypost.log.events import Handed


class Subscription:
    """An open consumer of a client."""

    def __init__(self, session: int, consumer: int, prefetch: int) -> None:
        self.session, self.consumer, self._prefetch = session, consumer, prefetch
        self._held: dict[int, Handed] = {}
        """Messages that were handed over and not acknowledged, by number; numbers rise."""
        self.unread: dict[int, None] = {}
        """Numbers of those that were not written to the client."""

    def begin(self, provider: Provider) -> None:
        """Let the node hand over as much as the client may have."""
        self.grant(provider, self._prefetch, provider.node_info.settings.prefetch_bytes)

    def grant(self, provider: Provider, messages: int, nbytes: int) -> None:
        """Let the node hand over this much more."""
        provider.tell(Credit(self.consumer, messages, nbytes))

    def hand(self, handed: Handed) -> None:
        """Note what the node hands over."""
        self._held[handed.number] = handed
        self.unread[handed.number] = None

    def holds(self, number: int) -> bool:
        """Return True if a message was not acknowledged, and is still the client's."""
        return number in self._held

    def through(self, number: int) -> list[Handed]:
        """Return the messages up to this number."""
        return list(takewhile(lambda each: each.number <= number, self._held.values()))

    def ack(self, handed: Iterable[Handed], *, late: Late = Late.REFUSE) -> Ack:
        """Return an acknowledgement of these messages."""
        return Ack(self.session, tuple(each.number for each in handed), late=late)

    def release(self, provider: Provider, handed: Iterable[Handed]) -> None:
        """Make room for more: the client is done with these."""
        self.make_room(provider, self.withdraw(handed))

    def withdraw(self, handed: Iterable[Handed]) -> list[Handed]:
        """Return those of these messages that the client still had; it has them no longer."""
        found = [each for each in handed if self._held.pop(each.number, None) is not None]
        for each in found:
            self.unread.pop(each.number, None)
        return found

    def make_room(self, provider: Provider, withdrawn: Collection[Handed]) -> None:
        """Let the node hand over as many messages as were withdrawn."""
        if withdrawn:
            self.grant(provider, len(withdrawn), sum(each.descriptor.length for each in withdrawn))


async def opened(provider: Provider, connection: int, wanted: Subscribe | Receive) -> tuple[int, int]:
    """Open a session of a connection, with one consumer; return both numbers."""
    session = await provider.execute(OpenSession(connection))
    try:
        return session, await provider.execute(Consume(session, wanted))
    except JMSException:
        await provider.execute(CloseSession(session))
        raise


def remote_prefetch(provider: Provider, wanted: Subscribe | Receive) -> int | None:
    """Return how many messages a consumer of another node's queue takes along; None for other consumers."""
    info = provider.node_info
    if not isinstance(wanted, Receive) or address.addressee(wanted.destination) == info.node:
        return None
    return max(info.settings.prefetch_remote, 1)
