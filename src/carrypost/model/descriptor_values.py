"""Values read from a descriptor: fields that patterns and selectors see, the recipients, and the privilege.

Patterns may name the header fields of the papers (JOMS-12 figures 2, 4 and 5, JOMS-15 figure 2), which are fields of
the descriptor or of its headers; selectors those that JMS allows (§3.8.1.1). All matching uses this module, so both
sides of a contact see the same.

Recipients are the nodes that a message is for, unless it is for all subscribers. A message to a topic may list them;
its author signs the list with the rest. A message to a queue, or from node to node, is for the one node in its
destination. A list says which nodes want a message and may deliver it. It does not say which nodes may carry it, and it
keeps nothing secret.

Privilege is the importance of a message, relative to others (JOMS-15 §2.4, EMMA §3.2). Persistent before
non-persistent, then priority 9 to 0; among equals the older one is dropped first. The function is pure, is evaluated
when a message enters, and may be replaced by the application's own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

from carrypost.model import address, ids
from carrypost.model.address import Kind, addressee, is_control_of_node
from carrypost.model.descriptor import AttributeValue, Descriptor
from carrypost.model.properties import Property, typed
from carrypost.model.times import MICROSECONDS

if TYPE_CHECKING:
    from carrypost.model.ids import NodeId


Field = Callable[[Descriptor], AttributeValue | None]
_TYPES: Final = {
    Kind.TOPIC: "topic",
    Kind.QUEUE: "queue",
    Kind.HOLDER: "topic",
    Kind.CHANNEL: "topic",
    Kind.CIRCLE: "topic",
}
_MILLISECOND_US: Final = 1_000


def message_named(text: str) -> ids.MessageId | None:
    """Return the message with this JMSMessageID; None if there cannot be one."""
    name = text.removeprefix("ID:")
    if name == text:
        return None
    try:
        return ids.MessageId(name.encode() if ":" in name else ids.from_base32(name))
    except ValueError:
        return None


def delivery_mode(descriptor: Descriptor) -> str:
    """Return JMSDeliveryMode as text."""
    return "PERSISTENT" if descriptor.persistent else "NON_PERSISTENT"


def timestamp_ms(descriptor: Descriptor) -> int:
    """Return JMSTimestamp: the time of sending in milliseconds since 1970."""
    headers = descriptor.headers
    sent_us = descriptor.created_us if headers is None or headers.sent_us is None else headers.sent_us
    return sent_us // _MILLISECOND_US


def typed_properties(descriptor: Descriptor) -> dict[str, Property]:
    """Return the properties with their original types; raises `MessageFormatException` if JMS has none."""
    return typed(descriptor.attributes, {} if descriptor.headers is None else descriptor.headers.property_types)


# ----------------------------------------------------------------------------------------------- patterns


def field_of(descriptor: Descriptor, name: str) -> AttributeValue | None:
    """Return the value that a pattern sees under a name that no attribute has; None if there is none.

    A null property hides the field of its name, so that nothing matches.
    """
    field = PATTERN_FIELDS.get(name)
    if field is None:
        return None
    headers = descriptor.headers
    return None if headers is not None and name in headers.property_types else field(descriptor)


def _destination_type(descriptor: Descriptor) -> str | None:
    found = address.address(descriptor.destination)
    return None if found is None else _TYPES.get(found.kind)


def _operation_type(descriptor: Descriptor) -> str | None:
    return None if descriptor.headers is None else descriptor.headers.operation


def _reply_id(descriptor: Descriptor) -> str | None:
    """Return the name of the reply destination, or the destination itself if it is no topic or queue."""
    to = None if descriptor.headers is None else descriptor.headers.reply_to
    return None if to is None else address.name_of(to) or to


def _moment(at_us: int | None) -> str | None:
    """Return a time as text that patterns can match in parts: ``2011-10-17T18:54:03Z``."""
    if at_us is None:
        return None
    return datetime.fromtimestamp(at_us // MICROSECONDS, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


PATTERN_FIELDS: Mapping[str, Field] = {
    "persistent": lambda descriptor: descriptor.persistent,
    "priority": lambda descriptor: descriptor.priority,
    "label": lambda descriptor: descriptor.label or None,
    "author": lambda descriptor: descriptor.node,
    "id": lambda descriptor: descriptor.id_text,
    "destination_id": lambda descriptor: address.name_of(descriptor.destination),
    "destination_type": _destination_type,
    "operation_type": _operation_type,
    "date": lambda descriptor: _moment(descriptor.created_us),
    "deadline": lambda descriptor: _moment(descriptor.deadline_us),
    "delivery_mode": delivery_mode,
    "src": lambda descriptor: descriptor.node,
    "reply_id": _reply_id,
}
"""Fields of a message that patterns may name."""

# ---------------------------------------------------------------------------------------------- selectors

SELECTOR_FIELDS: Mapping[str, Field] = {
    "JMSDeliveryMode": delivery_mode,
    "JMSPriority": lambda descriptor: descriptor.priority,
    "JMSMessageID": lambda descriptor: descriptor.id_text,
    "JMSTimestamp": timestamp_ms,
    "JMSCorrelationID": lambda descriptor: None if descriptor.headers is None else descriptor.headers.correlation,
    "JMSType": lambda descriptor: None if descriptor.headers is None else descriptor.headers.type,
}
"""Header fields that selectors may name. A correlation that is bytes is NULL to them."""


class Selectable(Mapping[str, AttributeValue | None]):
    """Header fields and properties of a message, for a selector to look up.

    Fields are made on demand: an id as text takes longer than everything else that a selector does. If a selector names
    none of `SELECTOR_FIELDS`, the attributes alone can be passed to it.
    """

    __slots__ = ("_attributes", "_descriptor")

    def __init__(self, descriptor: Descriptor) -> None:
        self._descriptor = descriptor
        self._attributes = descriptor.attributes

    def get(self, name: str, default: object = None) -> AttributeValue | None:  # noqa: ARG002 - what is not there is NULL
        """Return the value of an identifier; None, which is NULL, if there is none."""
        field = SELECTOR_FIELDS.get(name)
        return self._attributes.get(name) if field is None else field(self._descriptor)

    def __getitem__(self, name: str) -> AttributeValue | None:
        return SELECTOR_FIELDS[name](self._descriptor) if name in SELECTOR_FIELDS else self._attributes[name]

    def __iter__(self) -> Iterator[str]:
        yield from SELECTOR_FIELDS
        yield from (name for name in self._attributes if name not in SELECTOR_FIELDS)

    def __len__(self) -> int:
        return len(SELECTOR_FIELDS | self._attributes.keys())


def recipients(descriptor: Descriptor) -> tuple[NodeId, ...]:
    """Return the nodes that a message is for; none: it is for all subscribers."""
    headers = descriptor.headers
    if headers is not None and headers.recipients:
        return descriptor.listed
    node = addressee(descriptor.destination) if headers is None or headers.home is None else descriptor.home
    return () if node is None else (node,)


def is_for(descriptor: Descriptor, node: NodeId) -> bool:
    """Return True if this node is one of the recipients."""
    headers = descriptor.headers
    if headers is not None and headers.recipients:
        return node in descriptor.listed
    return (addressee(descriptor.destination) if headers is None or headers.home is None else descriptor.home) == node


def may_have(descriptor: Descriptor, node: NodeId) -> bool:
    """Return True if the node's subscriptions may get it: it lists no recipients, or the node among them."""
    headers = descriptor.headers
    return headers is None or not headers.recipients or node in descriptor.listed


PRIVILEGE_MAX: Final = 255
Privilege = Callable[[Descriptor], int]
"""Maps a descriptor to 0..255; a larger value is dropped later and sent earlier."""


def privilege(descriptor: Descriptor) -> int:
    """Return the privilege by the papers' rule: persistent first, then priority. Control messages count as persistent.

    Otherwise all messages of a queue would go before the few control messages that let any of them be consumed.
    """
    return (10 if descriptor.persistent or is_control_of_node(descriptor.destination) else 0) + descriptor.priority


def bounded(rule: Privilege) -> Privilege:
    """Return a rule whose values are clamped to 0..255: an application's own may exceed them."""
    return rule if rule is privilege else lambda descriptor: min(PRIVILEGE_MAX, max(0, int(rule(descriptor))))
