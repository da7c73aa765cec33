"""Messages as the bytes that STOMP clients are written, less what differs between them.

A message is mapped and encoded once for all clients of a node that get it at about the same time: what a copy has of
its own, its subscription, comes before the rest. The last 1 MiB is kept.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from carrypost.daemon.stomp.codec import Frame, Version, encode
from carrypost.daemon.stomp.mapping import received

if TYPE_CHECKING:
    from carrypost.events import Handed
    from carrypost.jms.provider import Provider
    from carrypost.model.descriptor import Descriptor
    from carrypost.model.ids import MessageId

_BYTES_MAX = 1024 * 1024
_COMMAND = b"MESSAGE\n"


def beginning(subscription: str, version: Version) -> bytes:
    """Return what each MESSAGE of a subscription begins with."""
    return encode(Frame("MESSAGE", {"subscription": subscription}), version).removesuffix(b"\n\0")


class Copies:
    """Ends of MESSAGE frames, behind their first headers, of what clients of one node got lately."""

    def __init__(self, provider: Provider) -> None:
        self._provider = provider
        self._kept: dict[tuple[MessageId, Version], bytes] = {}
        self._bytes = 0

    async def rest(self, handed: Handed, body: bytes | None, version: Version) -> bytes | None:
        """Return what follows; None if the message is gone. Without a `body` the provider has it."""
        descriptor = handed.descriptor
        kept = self._kept.get((descriptor.id, version))
        if kept is not None:
            return kept
        if body is None:
            body = await self._provider.payload(descriptor)
        return None if body is None else self._keep(descriptor, body, version)

    def _keep(self, descriptor: Descriptor, body: bytes, version: Version) -> bytes:
        made = encode(received(descriptor.original, body), version).removeprefix(_COMMAND)
        if len(made) <= _BYTES_MAX and (descriptor.id, version) not in self._kept:
            self._kept[descriptor.id, version] = made
            self._bytes += len(made)
            while self._bytes > _BYTES_MAX:
                self._bytes -= len(self._kept.pop(next(iter(self._kept))))
        return made
