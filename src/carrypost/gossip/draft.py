"""Drafts: messages that a program, or a layer of a host, wants to be published."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from carrypost.gossip.wire.pieces import Blank
from carrypost.model.descriptor import AttributeValue, Ordering
from carrypost.model.headers import Headers
from carrypost.model.ids import MessageId


class Draft(msgspec.Struct, frozen=True, gc=False):
    """A message to be published."""

    destination: str
    payload: bytes | Blank
    attributes: Mapping[str, AttributeValue] = {}
    lifetime_us: int | None = None
    label: str = ""
    persistent: bool = False
    priority: int = 4
    ordering: Ordering = Ordering.NONE
    headers: Headers | None = None
    receipt: bool = False
    """True if the sender wants receipts of the message's progress (`events.Receipt`)."""
    receipt_timeout_us: int | None = None
    """Time after which the message counts as failed without a report of its delivery."""
    recipients: tuple[str, ...] | None = None
    """Ids of its recipients; None: it is for all subscribers."""
    withheld: bool = False
    """True if it is neither offered nor evicted before it is durable."""
    payload_of: MessageId | None = None
    """A whole message here with the same payload, which is copied in the store; `payload` is then empty."""
    deadline_us: int | None = None
    """Time from which it is expired, a date, if the sender named that instead of a lifetime. Its lifetime from now on
    must be in `lifetime_us`."""
    delay_us: int = 0
    """Time from its sending for which it is not delivered."""
    sealed: bool | None = None
    """Seal it for its readers; None: as the settings say."""
    topic: str = ""
    """Name of the topic of a circle, if the destination is that which carriers see."""
