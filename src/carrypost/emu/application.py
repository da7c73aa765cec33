"""The emulated application: subscribes, takes what is delivered, confirms.

It subscribes again whenever its node restarts, and confirms at once unless told otherwise. What it was
given is kept over crashes, because whoever runs the emulation wants to see all of it; the payload is taken
out of the store before the confirmation, after which the host may let it go.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from carrypost.emu.driver import Driver
from carrypost.errors import LocalError, RemoteError, StoreError
from carrypost.events import Delivered, Event
from carrypost.model.descriptor import Descriptor, PayloadCodec
from carrypost.model.ids import MessageId

MICROSECONDS = 1_000_000
Pattern = str | Mapping[str, str]
Watch = Callable[[Driver, Event], None]


@dataclass(frozen=True, slots=True)
class Delivery:
    """One message as the application got it."""

    descriptor: Descriptor
    redelivered: bool
    """It was delivered before a crash, and not confirmed."""
    time: float
    """Virtual seconds."""
    stored: bytes | None
    """The payload as published; None for a blank one, which is made only when asked for."""

    @property
    def message(self) -> MessageId:
        """The message's id, as `publish` returned it."""
        return self.descriptor.id

    @property
    def payload(self) -> bytes:
        """The payload as published."""
        return bytes(self.descriptor.size) if self.stored is None else self.stored


class Inbox:
    """The application of one node."""

    def __init__(self, *, confirm: bool = True, watch: Watch | None = None) -> None:
        self.deliveries: list[Delivery] = []
        self._confirm = confirm
        self._watch = watch
        self._wanted: dict[int, tuple[Pattern, str | None]] = {}
        self._subscriptions: dict[int, int] = {}
        self._number = 0

    def started(self, driver: Driver) -> None:
        """The host is new: subscribe to everything again."""
        for number, (pattern, selector) in self._wanted.items():
            self._subscriptions[number] = driver.host.subscribe(pattern, selector, now=driver.now)

    def subscribe(self, driver: Driver, pattern: Pattern, selector: str | None = None) -> int:
        """Want what matches; the number that comes back stays valid over restarts."""
        subscription = driver.command().subscribe(pattern, selector, now=driver.now)
        self._number += 1
        self._wanted[self._number] = pattern, selector
        self._subscriptions[self._number] = subscription
        driver.settle()
        return self._number

    def unsubscribe(self, driver: Driver, number: int) -> None:
        """No longer want it."""
        host = driver.command()
        if self._wanted.pop(number, None) is None:
            raise LocalError(f"node {driver.name!r} has no subscription {number}")
        host.unsubscribe(self._subscriptions.pop(number), driver.now)
        driver.settle()

    def take(self, driver: Driver, event: Event) -> None:
        """Something that the host tells."""
        if isinstance(event, Delivered):
            gone: set[MessageId] = set()
            for delivery in event.deliveries:
                descriptor = delivery.descriptor
                blank = descriptor.codec == PayloadCodec.BLANK
                try:
                    payload = None if blank else driver.store.payload(descriptor, driver.settings.limits)
                except RemoteError as error:
                    driver.host.unreadable(delivery.message, error.reason, driver.now)
                    continue
                except StoreError:
                    # The batch with one of its pieces was lost, and the host fell before it could say so.
                    driver.host.payload_gone(delivery.message, driver.now)
                    gone.add(delivery.message)
                    continue
                time = driver.now / MICROSECONDS
                self.deliveries.append(Delivery(descriptor, delivery.redelivered, time, payload))
            if gone:
                event = Delivered(tuple(each for each in event.deliveries if each.message not in gone))
            if self._confirm:
                driver.host.confirm([delivery.message for delivery in event.deliveries], driver.now)
        if self._watch is not None:
            self._watch(driver, event)
