"""JMS messages in transit: the bytes that one program sends, and the message that another one receives."""

from __future__ import annotations

from typing import TypeVar

import msgspec

from carrypost.gossip.draft import Draft
from carrypost.jms.destinations import Destination, Topic
from carrypost.jms.mapping import Sending, from_handed, to_draft
from carrypost.jms.messages import Message
from carrypost.log.events import Handed
from carrypost.model.descriptor import Descriptor, PayloadCodec, decode
from carrypost.model.headers import Headers

M = TypeVar("M", bound=Message)
SENT_US = 1_700_000_000_123_456
RECEIVED_US = SENT_US + 60_000_000
NEWS = Topic("news")


def described(draft: Draft) -> Descriptor:
    """Return the descriptor that a host makes of a draft, as every other node decodes it."""
    assert isinstance(draft.payload, bytes)
    nbytes = len(draft.payload)
    deadline_us = None if draft.lifetime_us is None else SENT_US + draft.lifetime_us
    headers = draft.headers
    if draft.delay_us:
        headers = msgspec.structs.replace(headers or Headers(), delivery_time_us=SENT_US + draft.delay_us)
    made = Descriptor(
        "alan", 1, 7, SENT_US, deadline_us, draft.destination, nbytes, nbytes, PayloadCodec.PLAIN, b"", 1024,
        draft.priority, draft.persistent, draft.label, dict(draft.attributes), draft.ordering, (), headers,
    )  # fmt: skip
    return decode(made.wire)


def over_the_air(message: M, to: Destination = NEWS, sending: Sending | None = None, *, count: int = 1) -> M:
    """Return the message as a consumer elsewhere gets it."""
    draft = to_draft(message, to, sending or Sending())
    assert isinstance(draft.payload, bytes)
    found = handed(described(draft), draft.payload, count=count)
    assert type(found) is type(message)
    return found


def handed(descriptor: Descriptor, payload: bytes, *, count: int = 1) -> Message:
    return from_handed(Handed(3, 11, descriptor, count, hops=2), bytes(payload), RECEIVED_US)


def with_payload(message: Message, payload: bytes) -> Message:
    """Return a message as a stranger could send it: the headers of one message, with any payload."""
    draft = to_draft(message, NEWS)
    return handed(described(msgspec.structs.replace(draft, payload=payload)), payload)
