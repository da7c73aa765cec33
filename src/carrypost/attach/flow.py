"""Bounds of what waits for programs at a node's socket: the credit of their consumers, and bodies on their way.

A program may give its consumers any credit. The provider gets only so much of it that little more than `WAITING_MAX`
messages wait for the program, and the rest when some of them were written.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from carrypost.jms.provider import Provider
    from carrypost.model.descriptor import Descriptor
    from carrypost.model.ids import MessageId

WAITING_MAX = 10_000
_BODIES_BYTES = 1024 * 1024


class _Credit:
    """Credit of one consumer: `given` to the provider, and `owed` until some of that was written."""

    __slots__ = ("given", "owed", "session")

    def __init__(self, session: int) -> None:
        self.session, self.given, self.owed = session, 0, 0


class Credits:
    """Credit of all consumers of one program; `give` is the provider's `credit`."""

    def __init__(self, give: Callable[[int, int, int], None]) -> None:
        self._give = give
        self._consumers: dict[int, _Credit] = {}
        self._given = 0
        """Credit that the provider has, for all of them."""

    def __contains__(self, consumer: object) -> bool:
        return consumer in self._consumers

    def open(self, consumer: int, session: int) -> None:
        """Note one more consumer, without credit."""
        self._consumers[consumer] = _Credit(session)

    def close(self, consumer: int) -> None:
        """Forget a consumer."""
        credit = self._consumers.pop(consumer, None)
        if credit is not None:
            self._given -= credit.given

    def close_session(self, session: int) -> None:
        """Forget the consumers of a session."""
        for consumer in [number for number, credit in self._consumers.items() if credit.session == session]:
            self.close(consumer)

    def add(self, consumer: int, messages: int, nbytes: int) -> None:
        """Let a consumer take more; one that is closed takes nothing."""
        credit = self._consumers.get(consumer)
        if credit is not None:
            credit.owed += messages
            self._grant(consumer, credit, nbytes)

    def written(self, consumer: int, messages: int) -> None:
        """Note that this many messages of a consumer were written."""
        credit = self._consumers.get(consumer)
        if credit is not None:
            credit.given -= messages
            self._given -= messages
            self._grant(consumer, credit, 0)

    def _grant(self, consumer: int, credit: _Credit, nbytes: int) -> None:
        """Pass on credit that is owed, within the bounds; a consumer without any gets one message."""
        messages = min(credit.owed, max(WAITING_MAX - self._given, 0 if credit.given > 0 else 1))
        if messages or nbytes:
            credit.owed -= messages
            credit.given += messages
            self._given += messages
            self._give(consumer, messages, nbytes)


class Bodies:
    """Bodies as they are read from a provider, up to `bytes_max` each; the last ones are kept for other programs."""

    def __init__(self, provider: Provider, bytes_max: int) -> None:
        self._provider, self._bytes_max = provider, bytes_max
        self._kept: dict[MessageId, bytes] = {}
        self._bytes = 0

    def kept(self, descriptor: Descriptor) -> bytes | None:
        """Return the body of a message that was read lately."""
        return self._kept.get(descriptor.id)

    async def read(self, descriptor: Descriptor) -> bytes | None:
        """Return the body of a message if it is short enough to come along with it, and not gone."""
        if descriptor.size + len(descriptor.wire) > self._bytes_max:
            return None
        body = await self._provider.payload(descriptor)
        if body is not None and descriptor.id not in self._kept:
            self._kept[descriptor.id] = body
            self._bytes += len(body)
            while self._bytes > _BODIES_BYTES:
                self._bytes -= len(self._kept.pop(next(iter(self._kept))))
        return body
