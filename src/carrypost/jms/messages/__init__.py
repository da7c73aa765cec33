"""The messages of JMS: a bodiless one and five with bodies, as programs make, send and receive them.

`values`, `texts` and `conversions` are the types of values and what each may be read as; `codec` and `registry` make
bytes of bodies and bodies of bytes. Nothing here knows a node: `jms.mapping` is the way to the host.
"""

from carrypost.jms.messages.bytes_message import BytesMessage
from carrypost.jms.messages.map_message import MapMessage
from carrypost.jms.messages.message import Message
from carrypost.jms.messages.object_message import ObjectMessage
from carrypost.jms.messages.registry import register
from carrypost.jms.messages.stream_message import StreamMessage
from carrypost.jms.messages.text_message import TextMessage

__all__ = ["BytesMessage", "MapMessage", "Message", "ObjectMessage", "StreamMessage", "TextMessage", "register"]
