"""Messages as the bytes that clients of one protocol are written, less what differs between them.

A message is mapped and encoded once for all clients of a node that get it at about the same time. The last 1 MiB is
kept.
"""

from __future__ import annotations

from collections.abc import Callable, Sized
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from carrypost.jms.provider import Provider
    from carrypost.log.events import Handed
    from carrypost.model.descriptor import Descriptor
    from carrypost.model.ids import MessageId

V = TypeVar("V")
B = TypeVar("B", bound=Sized)
_BYTES_MAX = 1024 * 1024


class Copies(Generic[V, B]):
    """Messages that clients of one node got lately, by message and version of the protocol."""

    def __init__(self, provider: Provider, encode: Callable[[Descriptor, bytes, V], B]) -> None:
        self._provider, self._encode = provider, encode
        self._kept: dict[tuple[MessageId, V], B] = {}
        self._bytes = 0

    async def rest(self, handed: Handed, body: bytes | None, version: V) -> B | None:
        """Return a message's bytes; None if the message is gone. Without a `body` the provider has it."""
        descriptor = handed.descriptor
        kept = self._kept.get((descriptor.id, version))
        if kept is not None:
            return kept
        if body is None:
            body = await self._provider.payload(descriptor)
        return None if body is None else self._keep(descriptor, body, version)

    def _keep(self, descriptor: Descriptor, body: bytes, version: V) -> B:
        made = self._encode(descriptor.original, body, version)
        if len(made) <= _BYTES_MAX and (descriptor.id, version) not in self._kept:
            self._kept[descriptor.id, version] = made
            self._bytes += len(made)
            while self._bytes > _BYTES_MAX:
                self._bytes -= len(self._kept.pop(next(iter(self._kept))))
        return made
