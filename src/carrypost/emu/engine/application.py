"""The emulated application: subscribes, takes what is delivered, confirms.

The application subscribes again whenever its node restarts, and confirms at once unless configured otherwise. Its
deliveries are kept over crashes, because the user of the emulation wants to see all of them. The payload is read from
the store before the confirmation, after which the host may drop it. Messaging is only kept awake here: messages that
are handed over to consumers are reported to the watchers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from mypy_extensions import mypyc_attr

from carrypost.emu.engine.driver import EmulatedDriver, NodeState
from carrypost.errors import LocalError
from carrypost.log import events
from carrypost.log.events import Delivered, Event
from carrypost.model.descriptor import Descriptor, PayloadCodec
from carrypost.model.ids import MessageId, shown
from carrypost.model.times import MICROSECONDS

Pattern = str | Mapping[str, str]
Watch = Callable[[EmulatedDriver, Event], None]


@dataclass(frozen=True, slots=True, repr=False)
class DeliveredMessage:
    """One message as the application got it."""

    descriptor: Descriptor
    redelivered: bool
    """True if it was delivered before a crash, and not confirmed."""
    time: float
    """Virtual seconds."""
    stored: bytes | None
    """The payload as published; None for a blank one, which is made only when asked for."""

    def __repr__(self) -> str:
        return (
            f"Delivery(message={shown(self.message)}, destination={self.descriptor.destination!r}, "
            f"size={self.descriptor.size}, redelivered={self.redelivered}, time={self.time!r})"
        )

    @property
    def message(self) -> MessageId:
        """The message's id, as `publish` returned it."""
        return self.descriptor.id

    @property
    def payload(self) -> bytes:
        """The payload as published."""
        return bytes(self.descriptor.size) if self.stored is None else self.stored


@mypyc_attr(allow_interpreted_subclasses=True)
class InboxApplication:
    """The application of one node."""

    def __init__(self, *, confirm: bool = True, watch: Watch | None = None) -> None:
        self.deliveries: list[DeliveredMessage] = []
        self._confirm = confirm
        self._watch = watch
        self._messaging = False
        """True if messaging is to be awake in every life of the node."""
        self._wanted: dict[int, tuple[Pattern, str | None, bool]] = {}
        self._subscriptions: dict[int, int] = {}
        self._number = 0

    def started(self, driver: EmulatedDriver) -> None:
        """Wake messaging on a new host, whose durable subscriptions are then announced, and subscribe again."""
        if self._messaging:
            driver.host.messaging.open(driver.now)
        for number, (pattern, selector, ordered) in self._wanted.items():
            self._subscriptions[number] = driver.host.subscribe(pattern, selector, ordered=ordered, now=driver.now)

    def open_messaging(self, driver: EmulatedDriver) -> None:
        """Wake messaging in this life and in every later one."""
        self._messaging = True
        if driver.state is not NodeState.DOWN:
            driver.host.messaging.open(driver.now)
            driver.drain()

    def subscribe(
        self, driver: EmulatedDriver, pattern: Pattern, selector: str | None = None, *, ordered: bool = False
    ) -> int:
        """Want what matches; the number that comes back stays valid over restarts."""
        subscription = driver.command().subscribe(pattern, selector, ordered=ordered, now=driver.now)
        self._number += 1
        self._wanted[self._number] = pattern, selector, ordered
        self._subscriptions[self._number] = subscription
        driver.drain()
        return self._number

    def unsubscribe(self, driver: EmulatedDriver, number: int) -> None:
        """End a subscription, known by the number that `subscribe` returned."""
        host = driver.command()
        if self._wanted.pop(number, None) is None:
            raise LocalError(f"node {driver.name!r} has no subscription {number}")
        host.unsubscribe(self._subscriptions.pop(number), driver.now)
        driver.drain()

    def handle_event(self, driver: EmulatedDriver, event: Event) -> None:
        """Handle an event of the host.

        A message without a readable payload is not delivered, even if the event reports it.
        """
        if type(event) is Delivered:
            readable = tuple([each for each in event.deliveries if self._got(driver, each)])
            if not readable:
                return
            if len(readable) < len(event.deliveries):
                event = Delivered(readable)
            mine = [delivery.message for delivery in event.deliveries if delivery.subscriptions]
            if self._confirm and mine:
                driver.host.confirm(mine, driver.now)
        if self._watch is not None:
            self._watch(driver, event)

    def _got(self, driver: EmulatedDriver, delivery: events.Delivery) -> bool:
        """Return True if the payload could be read from the store; if not, the host is informed of the reason."""
        descriptor = delivery.descriptor
        if not delivery.subscriptions:
            return True  # Messaging hands it over by itself.
        payload = None
        if descriptor.codec != PayloadCodec.BLANK and (payload := driver.payload(descriptor)) is None:
            return False
        self.deliveries.append(DeliveredMessage(descriptor, delivery.redelivered, driver.now / MICROSECONDS, payload))
        return True


def message_ids(messages: Iterable[MessageId | DeliveredMessage]) -> list[MessageId]:
    """Return the ids of deliveries, each given as a delivery or as an id."""
    allowed = "a list of message ids, as `publish` returns them, or of deliveries"
    if isinstance(messages, str | bytes | DeliveredMessage) or not isinstance(messages, Iterable):
        raise LocalError(f"confirm requires {allowed}, not {messages!r}")
    found = [each.message if isinstance(each, DeliveredMessage) else each for each in messages]
    for each in found:
        if not isinstance(each, bytes):
            raise LocalError(f"confirm requires {allowed}, not {each!r}")
    return found
