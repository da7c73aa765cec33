"""Every name of the JMS 1.1 interfaces, and its name here: the table of `docs/porting.md`.

A name follows from Java's by the rule, unless `OTHERS` has it. The table is made only if the classes have these names,
both those that are awaited and those that block.
"""

from __future__ import annotations

import re
from types import ModuleType

import carrypost
from carrypost import classic, errors, sync
from carrypost.sync import classic as blocking

_PROPERTY_TYPES = "Boolean Byte Short Int Long Float Double String Object"
_VALUE_TYPES = "Boolean Byte Short Char Int Long Float Double Bytes Object"


def _each(prefix: str, types: str, suffix: str = "+") -> str:
    return " ".join(f"{prefix}{kind}{suffix}" for kind in types.split())


_SESSION = (
    "AUTO_ACKNOWLEDGE CLIENT_ACKNOWLEDGE DUPS_OK_ACKNOWLEDGE SESSION_TRANSACTED createBytesMessage createMapMessage "
    "createMessage createObjectMessage createStreamMessage createTextMessage getTransacted getAcknowledgeMode commit "
    "rollback close recover getMessageListener setMessageListener run createProducer createConsumer createQueue "
    "createTopic createDurableSubscriber createBrowser createTemporaryQueue createTemporaryTopic unsubscribe "
    "createDurableConsumer createSharedConsumer createSharedDurableConsumer"
)
_PRODUCER = (
    "setDisableMessageID getDisableMessageID setDisableMessageTimestamp getDisableMessageTimestamp setDeliveryMode "
    "getDeliveryMode setPriority getPriority setTimeToLive getTimeToLive getDestination close send setDeliveryDelay "
    "getDeliveryDelay"
)
_CONNECTION = (
    "createSession getClientID setClientID getMetaData getExceptionListener setExceptionListener start stop close "
    "createConnectionConsumer createDurableConnectionConsumer"
)
_HEADERS = (
    "MessageID Timestamp CorrelationID ReplyTo Destination DeliveryMode Redelivered Type Expiration Priority "
    "DeliveryTime"
)
INTERFACES: dict[str, str] = {
    "ConnectionFactory": "createConnection",
    "Connection": _CONNECTION,
    "ConnectionMetaData": "getJMSVersion getJMSMajorVersion getJMSMinorVersion getJMSProviderName getProviderVersion "
    "getProviderMajorVersion getProviderMinorVersion getJMSXPropertyNames",
    "Session": _SESSION,
    "MessageProducer": _PRODUCER,
    "MessageConsumer": "getMessageSelector getMessageListener setMessageListener receive receiveNoWait close",
    "QueueBrowser": "getQueue getMessageSelector getEnumeration close",
    "Enumeration": "hasMoreElements nextElement",
    "QueueConnectionFactory": "createQueueConnection createConnection",
    "QueueConnection": "createQueueSession createConnectionConsumer",
    "QueueSession": "createQueue createReceiver createSender createBrowser createTemporaryQueue",
    "QueueSender": "getQueue send",
    "QueueReceiver": "getQueue",
    "QueueRequestor": "request close",
    "TopicConnectionFactory": "createTopicConnection createConnection",
    "TopicConnection": "createTopicSession createConnectionConsumer createDurableConnectionConsumer",
    "TopicSession": "createTopic createSubscriber createDurableSubscriber createPublisher createTemporaryTopic "
    "unsubscribe",
    "TopicPublisher": "getTopic publish",
    "TopicSubscriber": "getTopic getNoLocal",
    "TopicRequestor": "request close",
    "Queue": "getQueueName",
    "Topic": "getTopicName",
    "TemporaryQueue": "delete getQueueName",
    "TemporaryTopic": "delete getTopicName",
    "DeliveryMode": "PERSISTENT NON_PERSISTENT",
    "Message": "DEFAULT_DELIVERY_MODE DEFAULT_PRIORITY DEFAULT_TIME_TO_LIVE "
    + " ".join(f"getJMS{field} setJMS{field}" for field in _HEADERS.split())
    + " getJMSCorrelationIDAsBytes setJMSCorrelationIDAsBytes clearProperties propertyExists getPropertyNames "
    + f"{_each('get', _PROPERTY_TYPES, 'Property+')} {_each('set', _PROPERTY_TYPES, 'Property+')} "
    + "acknowledge clearBody getBody+ isBodyAssignableTo",
    "TextMessage": "getText setText",
    "ObjectMessage": "getObject setObject",
    "MapMessage": f"{_each('get', _VALUE_TYPES)} getString+ {_each('set', _VALUE_TYPES)} setString "
    "getMapNames itemExists",
    "StreamMessage": f"{_each('read', _VALUE_TYPES)} readString {_each('write', _VALUE_TYPES)} writeString reset",
    "BytesMessage": "getBodyLength readUnsignedByte readUnsignedShort readUTF writeUTF reset "
     f"{_each('read', 'Boolean Byte Short Char Int Long Float Double Bytes')} {_each('write', _VALUE_TYPES)}",
    "JMSException": "getErrorCode getLinkedException setLinkedException",
    "InitialContext": "lookup bind rebind unbind list listBindings createSubcontext destroySubcontext "
    "getEnvironment close",
}  # fmt: skip
"""Of each interface, its names; ``+`` follows those that begin with get and have arguments."""
OTHERS = {
    "Message.getJMSCorrelationIDAsBytes": ("jms_correlation_id", "is bytes if it was set so"),
    "Message.setJMSCorrelationIDAsBytes": ("set_jms_correlation_id", "with bytes"),
    "JMSException.getErrorCode": ("error_code", ""),
    "JMSException.getLinkedException": ("__cause__", ""),
    "JMSException.setLinkedException": ("__cause__", "set by `raise … from …`"),
}
NOT_OFFERED = (
    "ConnectionConsumer", "ServerSession", "ServerSessionPool", "XAConnection", "XAConnectionFactory",
    "XAQueueConnection", "XAQueueConnectionFactory", "XAQueueSession", "XASession", "XATopicConnection",
    "XATopicConnectionFactory", "XATopicSession",
)  # fmt: skip
_LISTENERS = {"MessageListener.onMessage": "on_message", "ExceptionListener.onException": "on_exception"}
"""Names that programs define."""


def python_name(java: str) -> str:
    """Return a name by the rule: camelCase becomes snake_case, and getters become attributes."""
    if java.isupper():
        return java
    name = re.sub("JMSX|JMS|ID|UTF|XA", lambda found: found[0].capitalize(), java.rstrip("+"))
    name = re.sub("(?<!^)([A-Z])", r"_\1", name).lower()
    return name.removeprefix("get_") if java.startswith("get") and not java.endswith("+") else name


def classes(interface: str) -> tuple[type, ...]:
    """Return the classes of an interface: those that are awaited, and those that block."""
    homes: tuple[ModuleType, ...] = (carrypost, sync, classic, blocking, errors)
    if interface in classic.__all__:  # `carrypost` has other classes of some of these names.
        homes = (classic, blocking)
    found = tuple(dict.fromkeys(getattr(home, interface) for home in homes if hasattr(home, interface)))
    assert found, interface
    return found


def names() -> dict[str, tuple[str, str]]:
    """Return, for every name of Java, the name here and a note."""
    found = {}
    for interface, listed in INTERFACES.items():
        for java in listed.split():
            key = f"{interface}.{java.rstrip('+')}"
            found[key] = OTHERS.get(key, (python_name(java), ""))
    return found | {key: (ours, "defined by the program") for key, ours in _LISTENERS.items()}


def missing() -> list[str]:
    """Return the names that a class does not have."""
    return [
        f"{kind.__module__}.{kind.__name__}.{ours}"
        for key, (ours, _) in names().items()
        if key not in _LISTENERS and not key.startswith("JMSException")
        for kind in classes(key.partition(".")[0])
        if ours not in dir(kind)
    ]


def names_table() -> str:
    """Return a table of all names, one line for each interface; raises if a class lacks one."""
    if found := missing():
        raise ValueError(f"these names are not there: {', '.join(found)}")
    lines: dict[str, list[str]] = {}
    for key, (ours, note) in names().items():
        interface, _, java = key.partition(".")
        lines.setdefault(interface, []).append(f"`{java}`: `{ours}`{f' ({note})' if note else ''}")
    made = [f"| `{interface}` | {', '.join(each)} |" for interface, each in lines.items()]
    refused = ", ".join(f"`{each}`" for each in NOT_OFFERED)
    return "\n".join(["| interface | Java: Python |", "|---|---|", *made, f"| {refused} | not offered |"])
