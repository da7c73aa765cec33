"""Who on this machine gets what the host delivers.

The host delivers a message once, to the node. Here it goes to every consumer that has a matching subscription, and is
confirmed to the host when all of them have it. A message that nobody confirmed before all went away is passed on to
whoever has a matching subscription by now, or makes one later, marked as redelivered; after a restart of the node the
host does the same.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

import msgspec

from carrypost.config import Limits
from carrypost.errors import LocalError
from carrypost.events import Delivery
from carrypost.gossip.holdings.destinations import Destinations
from carrypost.gossip.holdings.lives import CopyState
from carrypost.gossip.interest.matcher import Matcher
from carrypost.host import Host
from carrypost.model.descriptor import Descriptor
from carrypost.model.ids import MessageId
from carrypost.model.pattern import entry

Pattern = str | Mapping[str, str]
"""What destinations match, or what attributes do, by name."""


class Consumer(Protocol):
    """A program on this machine that has subscriptions."""

    def take(self, delivery: Delivery) -> None:
        """Take a message, which is to be confirmed."""


@dataclasses.dataclass(slots=True)
class _Handed:
    """A message that was delivered by the host and not confirmed to it yet."""

    delivery: Delivery
    number: int
    """Its place in the order of deliveries."""
    holders: set[Consumer] = dataclasses.field(default_factory=set)
    """Who has to confirm it."""
    tried: bool = False
    """It was given to somebody, who may have seen it."""
    confirmed: bool = False
    """At least one holder confirmed it."""


class Consumers:
    """The consumers of one node."""

    def __init__(self, host: Host, limits: Limits) -> None:
        self._host = host
        self._limits = limits
        self._subscriptions: dict[int, Consumer] = {}
        self._handed: dict[MessageId, _Handed] = {}
        self._delivered = 0
        self._left = Destinations[MessageId]()
        """Delivered messages that no consumer holds, by destination."""

    @property
    def subscriptions(self) -> int:
        """How many subscriptions there are."""
        return len(self._subscriptions)

    def subscribe(
        self, consumer: Consumer, pattern: Pattern, selector: str | None, now: int, *, ordered: bool = False
    ) -> int:
        """Add a subscription; returns its number. What it matches of that which no consumer holds is handed over."""
        wanted = (entry(pattern, selector, limits=self._limits),)
        number = self._host.subscribe(pattern, selector, ordered=ordered, now=now)
        self._subscriptions[number] = consumer
        left = [self._handed[message] for message in self._left.candidates(wanted)]
        if left:
            matcher = Matcher(wanted, self._limits, own=True)
            for handed in sorted(left, key=lambda each: each.number):
                if matcher.matches(handed.delivery.descriptor):
                    self._give(handed, {consumer: [number]})
        return number

    def unsubscribe(self, consumer: Consumer, number: int, now: int) -> None:
        """End a subscription; what was handed over for it can still be confirmed."""
        if self._subscriptions.get(number) is not consumer:
            raise LocalError(f"this program has no subscription {number}")
        del self._subscriptions[number]
        self._host.unsubscribe(number, now)

    def leave(self, consumer: Consumer, now: int) -> None:
        """End the subscriptions of a consumer that is gone, and pass on what it did not confirm."""
        gone = [number for number, each in self._subscriptions.items() if each is consumer]
        for number in gone:
            del self._subscriptions[number]
        if gone:
            self._host.unsubscribe(gone, now)
        done = []
        for message, handed in self._handed.items():
            if consumer in handed.holders:
                handed.holders.remove(consumer)
                if handed.confirmed and not handed.holders:
                    done.append(message)
                elif not handed.holders:
                    self._give(handed, self._asking(handed))
        self._finish(done, now)

    def deliver(self, deliveries: Iterable[Delivery]) -> None:
        """Hand over what the host delivers to everybody who asked for it; what only messaging claims is its affair."""
        for delivery in deliveries:
            if not delivery.subscriptions:
                continue
            self._delivered += 1
            handed = self._handed[delivery.message] = _Handed(delivery, self._delivered)
            # They may have left while the host waited for its disk.
            self._give(handed, self._takers(delivery.subscriptions) or self._asking(handed))

    def _asking(self, handed: _Handed) -> dict[Consumer, list[int]]:
        """Who wants a message now that nobody has."""
        return self._takers(self._host.asking(handed.delivery.descriptor))

    def _takers(self, numbers: Iterable[int]) -> dict[Consumer, list[int]]:
        """The consumers whose subscriptions these are, each with its own."""
        takers: dict[Consumer, list[int]] = {}
        for number in numbers:
            if (consumer := self._subscriptions.get(number)) is not None:
                takers.setdefault(consumer, []).append(number)
        return takers

    def _give(self, handed: _Handed, takers: Mapping[Consumer, Sequence[int]]) -> None:
        """Hand a message over to consumers, each for the subscriptions of its that match."""
        descriptor = handed.delivery.descriptor
        if not takers:
            self._left.add(descriptor.destination, descriptor.id)
            return
        self._left.discard(descriptor.destination, descriptor.id)
        again = handed.tried or handed.delivery.redelivered
        handed.holders.update(takers)
        handed.tried = True
        for consumer, numbers in takers.items():
            consumer.take(msgspec.structs.replace(handed.delivery, subscriptions=tuple(numbers), redelivered=again))

    def confirm(self, consumer: Consumer, messages: Iterable[MessageId], now: int) -> tuple[MessageId, ...]:
        """Note that a consumer has these. Returns those that all who wanted them have: the host confirms them."""
        done = []
        for message in messages:
            handed = self._handed.get(message)
            if handed is None:
                if self._host.state_of(message) is CopyState.DONE:
                    done.append(message)  # The copy gave way meanwhile; without a note it would come again one day.
            elif consumer in handed.holders:
                handed.holders.remove(consumer)
                handed.confirmed = True
                if not handed.holders:
                    done.append(message)
        self._finish(done, now)
        return tuple(done)

    def waits(self, message: MessageId) -> bool:
        """Whether a message that was handed over is still here, and not confirmed by all."""
        return message in self._handed

    def forget(self, descriptors: Iterable[Descriptor]) -> None:
        """Forget messages whose copies have left the cache."""
        for descriptor in descriptors:
            if self._handed.pop(descriptor.id, None) is not None:
                self._left.discard(descriptor.destination, descriptor.id)

    def _finish(self, messages: list[MessageId], now: int) -> None:
        for message in messages:
            self._handed.pop(message, None)
        if messages:
            self._host.confirm(messages, now)
