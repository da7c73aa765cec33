"""carrypost: message-oriented middleware for networks that are never whole.

Devices meet, exchange what the other wants, and part; messages are stored, carried and forwarded until their deadline.
This module is the public face: what `__all__` names is what programs rely on. It stays cheap to import, because every
command starts with it: a name is imported from its module when it is first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

import carrypost.extensions as _extensions  # noqa: F401 - first: it chooses what every later import finds

if TYPE_CHECKING:
    from carrypost.errors import (
        AmbiguousNameException,
        CarrypostError,
        ConfigError,
        ContextNotEmptyException,
        DecodeError,
        DeliveryTimeoutException,
        FileError,
        ForgeryError,
        IllegalArgumentException,
        IllegalStateException,
        IllegalStateRuntimeException,
        InvalidClientIDException,
        InvalidClientIDRuntimeException,
        InvalidDestinationException,
        InvalidDestinationRuntimeException,
        InvalidNameException,
        InvalidSelectorException,
        InvalidSelectorRuntimeException,
        JMSException,
        JMSRuntimeException,
        JMSSecurityException,
        JMSSecurityRuntimeException,
        LimitError,
        ListenerException,
        LocalError,
        MessageEOFException,
        MessageFormatException,
        MessageFormatRuntimeException,
        MessageNotReadableException,
        MessageNotWriteableException,
        MessageNotWriteableRuntimeException,
        NameAlreadyBoundException,
        NameNotFoundException,
        NamingException,
        NotContextException,
        NullValueException,
        NumberFormatException,
        PatternError,
        PayloadError,
        RemoteError,
        ResourceAllocationException,
        ResourceAllocationRuntimeException,
        StateError,
        StoreError,
        TransactionInProgressException,
        TransactionRolledBackException,
        TransactionRolledBackRuntimeException,
    )
    from carrypost.jms.consumer import Consumer, JMSConsumer, Job, QueueBrowser
    from carrypost.jms.context import Context, JMSContext
    from carrypost.jms.declarations import TemporaryQueue, TemporaryTopic
    from carrypost.jms.destinations import Destination, Queue, Topic
    from carrypost.jms.durations import UnitWarning
    from carrypost.jms.factory import ConnectionFactory
    from carrypost.jms.messages import (
        BytesMessage,
        MapMessage,
        Message,
        ObjectMessage,
        StreamMessage,
        TextMessage,
        register,
    )
    from carrypost.jms.modes import DeliveryMode, SessionMode
    from carrypost.jms.producer import JMSProducer, Producer
    from carrypost.jms.requestor import Request
    from carrypost.jms.sent import Sent
    from carrypost.log.events import SendState
    from carrypost.messaging.placement_and_discovery import here, most_receiving
    from carrypost.model.selector import Selector
    from carrypost.overlay.modulators.modulator import Modulator
    from carrypost.overlay.modulators.registry import Result, modulator
    from carrypost.version import __version__

__all__ = [
    "AmbiguousNameException",
    "BytesMessage",
    "CarrypostError",
    "ConfigError",
    "ConnectionFactory",
    "Consumer",
    "Context",
    "ContextNotEmptyException",
    "DecodeError",
    "DeliveryMode",
    "DeliveryTimeoutException",
    "Destination",
    "FileError",
    "ForgeryError",
    "IllegalArgumentException",
    "IllegalStateException",
    "IllegalStateRuntimeException",
    "InvalidClientIDException",
    "InvalidClientIDRuntimeException",
    "InvalidDestinationException",
    "InvalidDestinationRuntimeException",
    "InvalidNameException",
    "InvalidSelectorException",
    "InvalidSelectorRuntimeException",
    "JMSConsumer",
    "JMSContext",
    "JMSException",
    "JMSProducer",
    "JMSRuntimeException",
    "JMSSecurityException",
    "JMSSecurityRuntimeException",
    "Job",
    "LimitError",
    "ListenerException",
    "LocalError",
    "MapMessage",
    "Message",
    "MessageEOFException",
    "MessageFormatException",
    "MessageFormatRuntimeException",
    "MessageNotReadableException",
    "MessageNotWriteableException",
    "MessageNotWriteableRuntimeException",
    "Modulator",
    "NameAlreadyBoundException",
    "NameNotFoundException",
    "NamingException",
    "NotContextException",
    "NullValueException",
    "NumberFormatException",
    "ObjectMessage",
    "PatternError",
    "PayloadError",
    "Producer",
    "Queue",
    "QueueBrowser",
    "RemoteError",
    "Request",
    "ResourceAllocationException",
    "ResourceAllocationRuntimeException",
    "Result",
    "Selector",
    "SendState",
    "Sent",
    "SessionMode",
    "StateError",
    "StoreError",
    "StreamMessage",
    "TemporaryQueue",
    "TemporaryTopic",
    "TextMessage",
    "Topic",
    "TransactionInProgressException",
    "TransactionRolledBackException",
    "TransactionRolledBackRuntimeException",
    "UnitWarning",
    "__version__",
    "here",
    "modulator",
    "most_receiving",
    "register",
]

_HOMES = {
    "log.events": ("SendState",),
    "jms.consumer": ("Consumer", "JMSConsumer", "Job", "QueueBrowser"),
    "jms.context": ("Context", "JMSContext"),
    "jms.destinations": ("Destination", "Queue", "Topic"),
    "jms.durations": ("UnitWarning",),
    "jms.factory": ("ConnectionFactory",),
    "jms.messages": (
        "BytesMessage", "MapMessage", "Message", "ObjectMessage", "StreamMessage", "TextMessage", "register",
    ),
    "jms.modes": ("DeliveryMode", "SessionMode"),
    "jms.producer": ("JMSProducer", "Producer"),
    "jms.requestor": ("Request",),
    "jms.sent": ("Sent",),
    "jms.declarations": ("TemporaryQueue", "TemporaryTopic"),
    "model.selector": ("Selector",),
    "messaging.placement_and_discovery": ("here", "most_receiving"),
    "overlay.modulators.modulator": ("Modulator",),
    "overlay.modulators.registry": ("Result", "modulator"),
    "version": ("__version__",),
}  # fmt: skip
"""Public names that are no errors, by module. An `import` statement would make every layer depend on these modules."""


if not TYPE_CHECKING:  # Else every name would be one to type checkers.

    def __getattr__(name: str) -> object:
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        home = next((module for module, names in _HOMES.items() if name in names), "errors")
        found = getattr(importlib.import_module(f"{__name__}.{home}"), name)
        globals()[name] = found  # The next access finds it at once.
        return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
