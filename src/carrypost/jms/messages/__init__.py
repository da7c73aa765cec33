"""The messages of JMS: a bodiless one and five with bodies, as programs make, send and receive them.

`values` has the types of values, their texts and what each may be read as, and makes bytes of bodies and bodies of
bytes. Nothing here knows a node: `jms.mapping` is the way to the host.
"""

from carrypost.jms.messages.map_and_stream import MapMessage, StreamMessage
from carrypost.jms.messages.message import Message
from carrypost.jms.messages.object_message import ObjectMessage, register
from carrypost.jms.messages.text_and_bytes import BytesMessage, TextMessage

__all__ = ["BytesMessage", "MapMessage", "Message", "ObjectMessage", "StreamMessage", "TextMessage", "register"]
