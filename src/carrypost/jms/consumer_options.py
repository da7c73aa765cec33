"""Requests to a node by programs that open a consumer or a browser, with the modulators that consumers ask for.

Not all programs have their types checked, so that an argument may be anything, and is checked here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from carrypost.config import Limits
from carrypost.config.rules import nearest
from carrypost.errors import (
    CarrypostError,
    IllegalArgumentException,
    InvalidDestinationException,
    JMSException,
    LocalError,
)
from carrypost.jms.destinations import ChannelTopic, Queue, SealedTopic, Topic, as_destination
from carrypost.jms.messages.headers_and_properties import is_given
from carrypost.jms.provider import translated
from carrypost.messaging.commands import Receive, Subscribe
from carrypost.model.pattern import DESTINATION, entry
from carrypost.model.selector import Selector
from carrypost.overlay.modulators.modulator import Instance, Modulator
from carrypost.overlay.modulators.registry import is_registered
from carrypost.overlay.relocation import VARIANTS

if TYPE_CHECKING:
    from carrypost.jms.destinations import Destination


def encoded(modulator: object) -> bytes:
    """Return a modulator as the node takes it, empty for none; raises `IllegalArgumentException`.

    One that is registered in this process is tried with its parameters. Of any other the broker decides.
    """
    if modulator is None:
        return b""
    if not isinstance(modulator, Modulator):
        raise IllegalArgumentException(
            f"modulator must be made by a constructor such as Modulator.named(NAME, ...), not {modulator!r}"[:200]
        )
    if is_registered(modulator.name, modulator.version):
        try:
            Instance(modulator, Limits(), 0)
        except LocalError as error:
            raise IllegalArgumentException(str(error)) from error
    return msgspec.msgpack.encode(modulator)


def check_relocation(relocation: object) -> None:
    """Raise `IllegalArgumentException` for a relocation protocol that there is not."""
    if relocation is not None and relocation not in VARIANTS:
        there = ", ".join(map(repr, VARIANTS))
        hint = nearest(str(relocation), VARIANTS)
        raise IllegalArgumentException(f"relocation must be {there}, not {relocation!r}{hint}")


def check_unmodulated(modulator: object, relocation: object, destination: Destination) -> None:
    """Raise `IllegalArgumentException` if a consumer of something else than a channel asks for either."""
    if modulator is None and relocation is None:
        return
    option = "relocation" if modulator is None else "a modulator"
    raise IllegalArgumentException(
        f"{option} requires a channel, and {destination!r} is not one: create the topic with "
        f'create_topic(NAME, model="channel"), or leave it out'
    )


class ConsumerOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Destination and options that a consumer was opened for, as its program said it."""

    destination: Any
    selector: Any = None
    no_local: bool = False
    patterns: Mapping[str, str] | None = None
    prefetch: Any = None
    name: str = ""
    durable: bool = False
    shared: bool = False
    modulator: Any = None
    relocation: Any = None
    acknowledge: Any = None
    """Mode of the consumer alone; None: that of its context."""

    def __post_init__(self) -> None:
        msgspec.structs.force_setattr(self, "destination", as_destination(self.destination))


def asked(wanted: ConsumerOptions) -> Subscribe | Receive:
    """Return the request of a consumer."""
    if isinstance(wanted.destination, Queue):
        return _received(wanted, wanted.destination)
    return _subscribed(wanted)


def _received(wanted: ConsumerOptions, queue: Queue) -> Receive:
    if wanted.durable or wanted.shared:
        raise InvalidDestinationException(
            f"a subscription needs a topic, and {queue!r} is a queue: use create_consumer"
        )
    if wanted.no_local:
        raise IllegalArgumentException(f"no_local requires a topic, and {queue!r} is a queue")
    if wanted.patterns:
        raise IllegalArgumentException(f"patterns require a topic, and {queue!r} is a queue: use a selector")
    check_unmodulated(wanted.modulator, wanted.relocation, queue)
    return Receive(queue.address, queue_selector(wanted.selector))


def queue_selector(selector: object) -> str | None:
    """Return the selector of a consumer or a browser of a queue; None where there is none."""
    text = _selector(selector)
    if text is None:
        return None
    found = Selector(text)
    _refuse_given(found, "a queue chooses")
    return text if found.weight else None


def _refuse_given(selector: Selector, who: str) -> None:
    """Raise for properties that the receiving node sets: they do not exist when messages are selected."""
    selector.refuse(is_given, f"is set when a message is received, and {who} before that")


def _selector(selector: object) -> str | None:
    if selector is not None and not isinstance(selector, str):
        raise IllegalArgumentException(f"a selector must be a str, not {type(selector).__name__}")
    return selector


def _subscribed(wanted: ConsumerOptions) -> Subscribe:
    topic, patterns, selector = wanted.destination, wanted.patterns or {}, _selector(wanted.selector)
    if not isinstance(topic, Topic):
        raise InvalidDestinationException(
            (
                "the destination must be a topic (create_topic), a queue (create_queue), or text such as "
                f"'topic/news', not {topic!r}"
            )[:200]
        )
    if isinstance(topic, ChannelTopic):
        _check_channel(wanted)
    else:
        check_unmodulated(wanted.modulator, wanted.relocation, topic)
    if isinstance(topic, SealedTopic) and patterns:
        raise IllegalArgumentException("a topic of a circle takes no patterns, which others would see: use a selector")
    if DESTINATION in patterns:
        raise IllegalArgumentException("patterns must not name the destination: the topic selects it")
    if selector is not None:
        _refuse_given(Selector(selector), "messages of a topic are chosen")
    try:
        found = entry({DESTINATION: topic.pattern, **patterns}, selector)
    except JMSException:
        raise
    except CarrypostError as error:
        raise translated(error) from error
    return Subscribe(
        found, ordering=topic.ordering, name=wanted.name, durable=wanted.durable, shared=wanted.shared,
        no_local=wanted.no_local, modulator=encoded(wanted.modulator), relocation=wanted.relocation or "",
    )  # fmt: skip


def _check_channel(wanted: ConsumerOptions) -> None:
    """Raise `IllegalArgumentException` for options that a consumer of a channel cannot have."""
    check_relocation(wanted.relocation)
    if wanted.patterns:
        raise IllegalArgumentException("a channel takes no patterns: use a selector")
    if wanted.modulator is None:
        return
    if wanted.selector is not None:
        raise IllegalArgumentException(
            "a consumer of a channel has either a selector or a modulator, since the selector runs as a "
            "modulator at the home broker: leave the selector out, and select in the modulator"
        )
    if wanted.no_local:
        raise IllegalArgumentException(
            "no_local cannot be combined with a modulator, whose results do not name the connection that "
            "sent the event: select by a property of the events in the modulator"
        )
