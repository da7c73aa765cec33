"""A program below messaging on a real node: it publishes, subscribes and confirms as a driver of the host does."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from carrypost.log.events import Confirmed, Delivered, Delivery, Event, Stored
from carrypost.model.ids import MessageId, NodeId
from carrypost.node.runtime import Node


class Direct:
    """A program that uses the host of a node itself, and takes what that delivers."""

    def __init__(self, node: Node, take: Callable[[Sequence[Delivery]], None]) -> None:
        self._node = node
        self._take = take
        self._sends: dict[MessageId, asyncio.Future[None]] = {}
        self._confirmations: dict[MessageId, asyncio.Future[None]] = {}

    @property
    def handlers(self) -> dict[type[Event], Callable[[Any], None]]:
        """Handlers of the events that it needs, for `Node.attach`."""
        return {Delivered: self._deliver, Stored: self._stored, Confirmed: self._confirmed}

    def publish(
        self, destination: str, payload: bytes, *, label: str = "", recipients: Sequence[str] = ()
    ) -> asyncio.Future[None]:
        """Send; the future is done once the message is stored."""
        driver, future = self._node.driver, asyncio.get_running_loop().create_future()
        nodes = [NodeId(each) for each in recipients] or None
        sent = self._node.host.publish(destination, payload, now=driver.now, label=label, recipients=nodes)
        self._sends[sent] = future
        driver.drain()
        return future

    def subscribe(self, pattern: str) -> None:
        """Want what matches."""
        driver = self._node.driver
        self._node.host.subscribe(pattern, now=driver.now)
        driver.drain()

    def confirm(self, deliveries: Sequence[Delivery]) -> asyncio.Future[None]:
        """Confirm these; the future is done once that is durable."""
        driver, future = self._node.driver, asyncio.get_running_loop().create_future()
        messages = [delivery.message for delivery in deliveries]
        self._confirmations[messages[-1]] = future  # They leave the host together.
        self._node.host.confirm(messages, driver.now)
        driver.drain()
        return future

    def _deliver(self, event: Delivered) -> None:
        if wanted := [delivery for delivery in event.deliveries if delivery.subscriptions]:
            self._take(wanted)

    def _stored(self, event: Stored) -> None:
        if (future := self._sends.pop(event.message, None)) is not None:
            future.set_result(None)

    def _confirmed(self, event: Confirmed) -> None:
        for message in event.messages:
            if (future := self._confirmations.pop(message, None)) is not None:
                future.set_result(None)
