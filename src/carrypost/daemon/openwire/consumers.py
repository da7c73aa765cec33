"""The consumers of one OpenWire client: their credit, and what acknowledgements mean."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

from carrypost.daemon import subscription
from carrypost.daemon.openwire import codec
from carrypost.daemon.openwire import commands as wire
from carrypost.daemon.openwire.commands import AckKind
from carrypost.errors import IllegalStateException

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Collection

    from carrypost.daemon.openwire.mapping import Copy
    from carrypost.jms.provider import Provider
    from carrypost.log.events import Handed

_HEAD = struct.pack(">bi?", wire.MessageDispatch.number, 0, False)
_PLACE, _COUNT, _LENGTH = struct.Struct(">q"), struct.Struct(">i"), struct.Struct(">i")
UNKNOWN = -2
"""The number of the last message that programs got, where a client does not know it."""


class Consumer(subscription.Subscription):
    """An open consumer."""

    def __init__(self, info: wire.ConsumerInfo, session: int, consumer: int, prefetch: int, version: int) -> None:
        super().__init__(session, consumer, prefetch)
        self.info, self.prefetch = info, prefetch
        self._head = _HEAD + codec.nested(info.consumer or wire.ConsumerId(), version)
        given = info.destination
        own = isinstance(given, wire.QueueName | wire.TemporaryTopicName)
        self._destination = codec.nested(given, version) if own and given is not None else b""
        """The destination as the client names it; empty for topics, of which there may be many."""
        self._delivered: set[int] = set()
        """Numbers of messages that a program has, and that made room before they are acknowledged."""
        self.pulls = self._pulled = False
        """Flags: the client waits for one message; the node may hand one over."""
        self.timer: asyncio.TimerHandle | None = None

    def dispatch(self, copy: Copy, handed: Handed) -> bytes:
        """Return a message as bytes."""
        to = self._destination or copy.destination
        data = b"".join((
            self._head, to, copy.begin, to, copy.middle, _PLACE.pack(handed.number), copy.end,
            _COUNT.pack(handed.count - 1),
        ))  # fmt: skip
        return _LENGTH.pack(len(data)) + data

    # --- credit --------------------------------------------------------------------------------------------

    def pull(self, provider: Provider) -> None:
        """Let the node hand over one message, if the client has no credit of its own."""
        self.pulls = True
        if not self._pulled:
            self._pulled = True
            self.grant(provider, 1, 0)

    def stop_pulling(self) -> None:
        """Note that the client waits no longer."""
        self.pulls = False
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None

    def came(self) -> bool:
        """Note a message that was handed over; return False if the client does not wait for one."""
        if self.prefetch:
            return True
        self._pulled, waited = False, self.pulls
        self.stop_pulling()
        return waited

    def widen(self, provider: Provider, prefetch: int) -> None:
        """Let the client have more messages than before."""
        if prefetch > self.prefetch:
            self.grant(provider, prefetch - self.prefetch, 0)
            self.prefetch = prefetch

    def deliver(self, provider: Provider, number: int) -> None:
        """Make room for as many messages as a program has, up to this number."""
        fresh = [each for each in self.through(number) if each.number not in self._delivered]
        self.make_room(provider, fresh)
        self._delivered.update(each.number for each in fresh)

    def make_room(self, provider: Provider, withdrawn: Collection[Handed]) -> None:
        """Let the node hand over as many messages as were withdrawn, unless they made room before."""
        fresh = [each for each in withdrawn if each.number not in self._delivered]
        self._delivered.difference_update(each.number for each in withdrawn)
        if fresh:
            self.grant(provider, len(fresh) if self.prefetch else 0, sum(each.descriptor.length for each in fresh))

    # --- acknowledgements ----------------------------------------------------------------------------------

    def meant(self, ack: wire.MessageAck) -> list[Handed]:
        """Return the messages that an acknowledgement covers; raises `IllegalStateException` if it has not the last."""
        last = self._named(ack.last)
        if ack.kind == AckKind.INDIVIDUAL and ack.count <= 1:
            return [self._held[last]]
        if ack.kind in (AckKind.STANDARD, AckKind.DELIVERED, AckKind.REDELIVERED):
            first = 0
        else:
            first = last if ack.first is None or ack.count <= 1 else self._named(ack.first)
        return [each for each in self.through(last) if each.number >= first]

    def _named(self, given: wire.MessageId | None) -> int:
        place, producer = (0, None) if given is None else (given.place, given.producer)
        held = self._held.get(place)
        # Numbers begin anew with each life of a node, so the message is compared, too.
        if held is None or producer is None or producer.connection != held.descriptor.original.id_text:
            raise IllegalStateException(
                "there is no such message to acknowledge: it was acknowledged, is being redelivered, expired, or "
                "belongs to another consumer"
            )
        return place

    def unread_after(self, delivered: int) -> list[int]:
        """Return the numbers of messages that no program saw, if it got all up to `delivered`."""
        if delivered == UNKNOWN:
            return list(self.unread)
        return [number for number in self._held if number > delivered and number not in self._delivered]
