"""`Producer`: what is said of messages, once for all that it sends, and `send` with the options of one send.

A producer is cheap, has no state but what was set, and need not be closed. Its setters return it, so that they chain.

The options of one send are the keywords of `Context.send` and `Producer.send`. An option has the name of a producer's
setter: `Producer.set_delivery_delay` sets `delivery_delay` for all messages. Options that are header fields have the
names of the attributes of messages, such as `jms_type`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING, Self

import msgspec

from carrypost.errors import IllegalArgumentException
from carrypost.java_names import JavaNamed
from carrypost.jms import durations
from carrypost.jms.destinations import Destination
from carrypost.jms.durations import Duration, in_seconds, microseconds
from carrypost.jms.mapping import Sending
from carrypost.jms.messages import Message, headers_and_properties
from carrypost.jms.messages.headers_and_properties import Properties, PropertyValue
from carrypost.jms.modes import DeliveryMode
from carrypost.jms.sent import Sent
from carrypost.model.address import as_given
from carrypost.model.times import MICROSECONDS

if TYPE_CHECKING:
    from carrypost.jms.sent import CompletionListener
    from carrypost.jms.session import Session


def send_options(base: Sending, **given: object) -> Sending:
    """Return `base` with what was given in its place, by keyword; None is not given.

    Raises `IllegalArgumentException` for a value that is none of its kind.
    """
    changes = {}
    for keyword, value in given.items():
        if value is not None:
            field, check = _KEYWORDS[keyword]
            changes[field] = check(keyword, value)
    return msgspec.structs.replace(base, **changes)


def _properties(keyword: str, given: object) -> Mapping[str, object]:
    if not isinstance(given, Mapping):
        raise IllegalArgumentException(f"{keyword} must be a mapping of names to values, not {given!r}"[:200])
    made = Properties()
    made.update(given)
    return made.travelling()


def _duration_us(keyword: str, given: object) -> int:
    return microseconds(given, keyword)


def _limit_us(keyword: str, given: object) -> int | None:
    """Return a time to live or a timeout; None where it is 0: as long as the node's settings say, or without end."""
    return microseconds(given, keyword) or None


def _recipients(_keyword: str, given: object) -> tuple[str, ...]:
    return as_given(given)


_KEYWORDS: Mapping[str, tuple[str, Callable[[str, object], object]]] = {
    "properties": ("properties", _properties),
    "jms_correlation_id": ("correlation_id", headers_and_properties.correlation),
    "jms_reply_to": ("reply_to", headers_and_properties.destination),
    "jms_type": ("type", headers_and_properties.text_or_none),
    "priority": ("priority", headers_and_properties.priority),
    "time_to_live": ("lifetime_us", _limit_us),
    "delivery_delay": ("delay_us", _duration_us),
    "delivery_timeout": ("receipt_timeout_us", _limit_us),
    "delivery_mode": ("delivery_mode", headers_and_properties.mode),
    "request_receipt": ("receipt", headers_and_properties.flag),
    "label": ("label", headers_and_properties.text_or_none),
    "recipients": ("recipients", _recipients),
    "sealed": ("sealed", headers_and_properties.flag),
}
"""Of each keyword, the field of `Sending` and what checks the value."""


Body = Message | str | bytes | Mapping[str, object] | object | None
"""Everything that can be sent: a message, or a body whose type follows from its value."""


class Producer(JavaNamed):
    """Sends messages of one context; made by `Context.create_producer`."""

    def __repr__(self) -> str:
        return f"<Producer {self.delivery_mode.name}, priority {self.priority}>"

    def __init__(self, session: Session) -> None:
        self._session = session
        self._options = Sending()
        """The options of every message that it sends, but for their properties."""
        self._properties = Properties()
        self._listener: CompletionListener | None = None

    # --- sending -------------------------------------------------------------------------------------------

    async def send(
        self,
        destination: Destination | str,
        message: Body,
        *,
        delivery_mode: DeliveryMode | None = None,
        priority: int | None = None,
        time_to_live: Duration | None = None,
        request_receipt: bool | None = None,
        recipients: Collection[str] | None = None,
        sealed: bool | None = None,
    ) -> Sent:
        """Send a message, or a body: text, bytes, a dict, a list, an object of a registered class; None has no body.

        Returns when this node has the message; if it is PERSISTENT, when it is on disk. Delivery follows later, by
        nodes that carry the message. The keywords override the producer's settings. Raises `MessageFormatException` for
        a body that cannot be sent, `InvalidDestinationException` for what is no single topic and no queue, and
        `ResourceAllocationException` if the node has no room for it, on disk or in its cache. A send that is cancelled
        may have been done: the next call on the context waits until that is known. In a transaction a message waits for
        the commit.
        """
        base = msgspec.structs.replace(self._options, properties=self._properties.travelling())
        sending = send_options(
            base, delivery_mode=delivery_mode, priority=priority, time_to_live=time_to_live,
            request_receipt=request_receipt, recipients=recipients, sealed=sealed,
        )  # fmt: skip
        return await self._session.send(destination, message, sending, self._listener)

    def _set(self, field: str, value: object) -> Self:
        self._options = msgspec.structs.replace(self._options, **{field: value})
        return self

    # --- what holds for all its messages -------------------------------------------------------------------

    def set_delivery_mode(self, mode: DeliveryMode) -> Self:
        """Set the delivery mode: PERSISTENT, the default, or NON_PERSISTENT."""
        return self._set("delivery_mode", headers_and_properties.mode("the delivery mode", mode))

    @property
    def delivery_mode(self) -> DeliveryMode:
        """The delivery mode that was set."""
        return self._options.delivery_mode

    def set_priority(self, priority: int) -> Self:
        """Set the priority: 0 to 9; 4 is the default, and 9 the highest."""
        return self._set("priority", headers_and_properties.priority("the priority", priority))

    @property
    def priority(self) -> int:
        """The priority that was set."""
        return self._options.priority

    @in_seconds(1, "seconds", least=10_000, multiple=1_000)
    def set_time_to_live(
        self, duration: Duration = 0.0, *, seconds: float = 0, minutes: float = 0, hours: float = 0, days: float = 0
    ) -> Self:
        """Set the lifetime of messages: a number of seconds or a timedelta, plus seconds, minutes, hours and days.

        0: as long as the node's settings say, since nothing is carried for ever.
        """
        return self._set("lifetime_us", _summed_us("the time to live", duration, seconds, minutes, hours, days) or None)

    def set_time_to_live_ms(self, milliseconds: int) -> Self:
        """Set the time to live in milliseconds, for programs that come from Java."""
        return self.set_time_to_live(durations.milliseconds(milliseconds, "the time to live"))

    @property
    def time_to_live(self) -> float:
        """The lifetime that was set, in seconds."""
        return (self._options.lifetime_us or 0) / MICROSECONDS

    @in_seconds(1, "seconds", least=10_000, multiple=1_000)
    def set_delivery_delay(
        self, duration: Duration = 0.0, *, seconds: float = 0, minutes: float = 0, hours: float = 0, days: float = 0
    ) -> Self:
        """Set the delay of delivery: messages travel at once, and are delivered when it has passed since the send."""
        return self._set("delay_us", _summed_us("the delivery delay", duration, seconds, minutes, hours, days))

    def set_delivery_delay_ms(self, milliseconds: int) -> Self:
        """Set the delivery delay in milliseconds, for programs that come from Java."""
        return self.set_delivery_delay(durations.milliseconds(milliseconds, "the delivery delay"))

    @property
    def delivery_delay(self) -> float:
        """The delay that was set, in seconds."""
        return self._options.delay_us / MICROSECONDS

    def set_delivery_timeout(
        self, duration: Duration = 0.0, *, seconds: float = 0, minutes: float = 0, hours: float = 0, days: float = 0
    ) -> Self:
        """Set the time without a receipt after which a message that asks for one counts as FAILED; 0: never.

        It travels on until it expires, and a later receipt still counts.
        """
        return self._set(
            "receipt_timeout_us", _summed_us("the delivery timeout", duration, seconds, minutes, hours, days) or None
        )

    @property
    def delivery_timeout(self) -> float:
        """The timeout that was set, in seconds."""
        return (self._options.receipt_timeout_us or 0) / MICROSECONDS

    def set_property(self, name: str, value: PropertyValue | None) -> Self:
        """Give every message a property, in the place of its own of that name."""
        self._properties[name] = value
        return self

    def clear_properties(self) -> Self:
        """Take back all of these."""
        self._properties.clear()
        return self

    @property
    def properties(self) -> Properties:
        """The properties that every message gets; `Properties.set` has types that Python does not have."""
        return self._properties

    def set_jms_correlation_id(self, correlation_id: str | bytes | None) -> Self:
        """Give every message this JMSCorrelationID."""
        return self._set("correlation_id", headers_and_properties.correlation("jms_correlation_id", correlation_id))

    @property
    def jms_correlation_id(self) -> str | bytes | None:
        """The correlation id that was set."""
        return self._options.correlation_id

    def set_jms_reply_to(self, destination: Destination | str | None) -> Self:
        """Give every message this JMSReplyTo."""
        return self._set("reply_to", headers_and_properties.destination("jms_reply_to", destination))

    @property
    def jms_reply_to(self) -> Destination | None:
        """The destination that was set."""
        return self._options.reply_to

    def set_jms_type(self, kind: str | None) -> Self:
        """Give every message this JMSType."""
        return self._set("type", headers_and_properties.text_or_none("jms_type", kind))

    @property
    def jms_type(self) -> str | None:
        """The type that was set."""
        return self._options.type

    def set_request_receipt(self, request: bool) -> Self:
        """Let `Sent.delivered` hear of the first delivery of a message to a topic.

        Of what is PERSISTENT and goes to a queue that is heard in any case, of what is NON_PERSISTENT never.
        """
        return self._set("receipt", headers_and_properties.flag("request_receipt", request))

    @property
    def request_receipt(self) -> bool:
        """True if receipts are requested."""
        return self._options.receipt

    def set_recipients(self, recipients: Collection[str] | None) -> Self:
        """Set ids of other nodes, whose consumers of the topic alone are delivered messages; None: all consumers are.

        `send` raises `IllegalArgumentException` for the id of this node, for a queue and for a topic with an ordering.
        """
        return self._set("recipients", None if recipients is None else as_given(recipients))

    @property
    def recipients(self) -> tuple[str, ...] | None:
        """The recipients that were set."""
        return self._options.recipients

    def set_sealed(self, sealed: bool | None) -> Self:
        """Seal messages to queues and to recipients, so that only they can read them; None: as the settings say.

        With True, `send` raises `JMSSecurityException` if the key of a reader is not known; with False, messages go in
        plain text.
        """
        return self._set("sealed", None if sealed is None else headers_and_properties.flag("sealed", sealed))

    @property
    def sealed(self) -> bool | None:
        """The value that was set."""
        return self._options.sealed

    def set_label(self, label: str | None) -> Self:
        """Give every message this name in records and traces."""
        return self._set("label", headers_and_properties.text_or_none("label", label) or "")

    @property
    def label(self) -> str:
        """The label that was set; empty if there is none."""
        return self._options.label

    def set_disable_message_id(self, disable: bool) -> Self:
        """Ignore a hint, as JMS lets providers do: every message has an id here, by which copies are known."""
        headers_and_properties.flag("disable_message_id", disable)
        return self

    def set_disable_message_timestamp(self, disable: bool) -> Self:
        """Ignore a hint, as JMS lets providers do: every message has a time here, from which its deadline counts."""
        headers_and_properties.flag("disable_message_timestamp", disable)
        return self

    def set_async(self, listener: CompletionListener | None) -> Self:
        """Let `send` return as soon as the node has the message; the listener is called when it is stored.

        In a transaction that is when it was committed; `on_exception` is called for a rollback. Listeners are called in
        the order of sending, one at a time. None: `send` waits again.
        """
        if listener is not None and not (hasattr(listener, "on_completion") and hasattr(listener, "on_exception")):
            raise IllegalArgumentException(
                f"a completion listener must have on_completion and on_exception, not {listener!r}"[:200]
            )
        self._listener = listener
        return self


JMSProducer = Producer
"""As JMS calls it."""


def _summed_us(what: str, duration: Duration, *parts: float) -> int:
    """Return a length of time, and as many more seconds, minutes, hours and days, in microseconds."""
    more = sum(
        durations.seconds(part, name) * unit_s for part, (name, unit_s) in zip(parts, _UNITS_S.items(), strict=True)
    )
    return microseconds(durations.seconds(duration, what) + more, what)


_UNITS_S = {"seconds": 1, "minutes": 60, "hours": 3_600, "days": 86_400}
