"""Temporary destinations: they live as long as a connection, and that connection alone consumes from them.

Any program that knows their address, as from JMSReplyTo, may send to them. A message that comes when they are gone is
dropped where it arrives, or expires on the way.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from carrypost.errors import IllegalStateException, InvalidDestinationException
from carrypost.jms.destinations import TEMPORARY, Destination, Queue, Topic, is_temporary
from carrypost.messaging.commands import Declare
from carrypost.messaging.program_commands import DeclareQueue, EndQueue
from carrypost.model import address

if TYPE_CHECKING:
    from carrypost.jms.caller import Kinds
    from carrypost.jms.intake import Intake
    from carrypost.jms.provider import Provider


class Temporary(Destination):
    """A destination of one connection."""

    __slots__ = ()
    _all: Temporaries

    async def delete(self) -> None:
        """End it, with all that waits in it; raises `IllegalStateException` while a consumer is open. Twice is once."""
        await self._all.end(self)


class TemporaryQueue(Temporary, Queue):
    """A queue of one connection; made by `Context.create_temporary_queue`."""

    __slots__ = ("_all",)

    def __init__(self, name: str, temporaries: Temporaries) -> None:
        Queue.__init__(self, name)
        self._all = temporaries


class TemporaryTopic(Temporary, Topic):
    """A topic of one connection; made by `Context.create_temporary_topic`."""

    __slots__ = ("_all",)

    def __init__(self, name: str, temporaries: Temporaries) -> None:
        Topic.__init__(self, name)
        self._all = temporaries


class Temporaries:
    """The temporary destinations of one connection."""

    def __init__(self, intakes: Mapping[int, Intake], kinds: Kinds) -> None:
        self._intakes = intakes
        """Open consumers of it."""
        self._queue: type[TemporaryQueue] = kinds.get(TemporaryQueue, TemporaryQueue)
        self._topic: type[TemporaryTopic] = kinds.get(TemporaryTopic, TemporaryTopic)
        self._alive: dict[str, Provider] = {}
        """By address, the messaging of the node that has it."""
        self._count = 0

    async def queue(self, provider: Provider, connection: int) -> TemporaryQueue:
        """Make one more queue, which the node ends with the connection of this number."""
        asked = Declare(self._name(provider, connection), connection=connection)
        destination = await provider.execute(DeclareQueue(asked))
        self._alive[destination] = provider
        return self._queue(address.name_of(destination) or destination, self)

    def topic(self, provider: Provider, connection: int) -> TemporaryTopic:
        """Make one more topic."""
        topic = self._topic(f"{self._name(provider, connection)}.{provider.node_info.node}", self)
        self._alive[topic.address] = provider
        return topic

    def _name(self, provider: Provider, connection: int) -> str:
        """Return a name that no other incarnation of the node gives, and no other connection."""
        self._count += 1
        return f"{TEMPORARY}{provider.now_us():x}-{connection}-{self._count}"

    async def end(self, destination: Destination) -> None:
        """End one of them; raises `IllegalStateException` if it is in use."""
        provider = self._alive.get(destination.address)
        if provider is None:
            return
        if any(each.wanted.destination == destination for each in self._intakes.values()):
            raise IllegalStateException(
                f"{destination!r} has a consumer: close the consumer before you delete the destination"
            )
        if isinstance(destination, Queue):
            await provider.execute(EndQueue(destination.address))
        self._alive.pop(destination.address, None)

    def end_all(self) -> None:
        """End all of them with their connection."""
        self._alive.clear()

    def check_consumer(self, destination: object) -> None:
        """Raise unless a consumer of this connection may be opened for it."""
        if not isinstance(destination, Destination) or destination.address in self._alive:
            return
        if is_temporary(destination):
            raise InvalidDestinationException(
                f"{destination!r} is temporary: only the connection that created it can consume from it"
            )

    def check_sender(self, destination: Destination) -> None:
        """Raise if it is one of this connection that was deleted."""
        mine = isinstance(destination, Temporary) and destination._all is self  # noqa: SLF001 - which makes them
        if mine and destination.address not in self._alive:
            raise InvalidDestinationException(f"{destination!r} was deleted")
