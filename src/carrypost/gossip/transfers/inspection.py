"""Inspection of descriptors from neighbours, before they are admitted.

Checks run in the order of their cost: sizes, id, author, deadline, date, recipients that are done with it, interest,
room to remember it, security level, and only then the signature, once per message. A failed check raises `RemoteError`
with the reason under which the refusal is counted.
"""

# Why this order. Verifying a signature takes about 150 µs (`accounts.SIGNATURE`), everything before
# it a few. A flood of messages that would be refused anyway must not cause signature checks. A
# message that is here already was verified then, and is not verified again.
#
# What may come before the signature: any check whose answer is vouched for by the id. The id is the
# hash of the signed bytes, so a descriptor with the right id says what its author wrote, or is no
# descriptor of that message. Only a decision *in favour* of the message needs the signature.

from __future__ import annotations

from typing import TYPE_CHECKING

from carrypost.errors import ForgeryError, LimitError, RemoteError
from carrypost.gossip.transfers.accounts import SIGNATURE
from carrypost.gossip.wire.pieces import HASH_BYTES, check_ratio
from carrypost.log.events import Reason
from carrypost.model.descriptor import Descriptor, PayloadCodec
from carrypost.model.recipients import is_for
from carrypost.security.identity import verify

if TYPE_CHECKING:
    from collections.abc import Mapping

    from carrypost.gossip.holdings.copies import Copy
    from carrypost.gossip.transfers.host_context import HostContext
    from carrypost.gossip.transfers.link import Link
    from carrypost.gossip.wire.frames import OfferEntry
    from carrypost.model.descriptor import AttributeValue


class PurgedError(RemoteError):
    """A message that all of its recipients are done with.

    No neighbour is at fault: its carrier has not heard of it yet.
    """

    def __init__(self, memory: Copy) -> None:
        super().__init__(Reason.PURGED)
        self.memory = memory
        """Memory of the message, if there is room for it."""


class ForgetfulError(RemoteError):
    """A wanted message that could be delivered twice, as there is no room to remember it. No neighbour is at fault."""


class Inspection:
    """The checks of one host."""

    def __init__(self, context: HostContext) -> None:
        self._holdings, self._interests, self._limits = context.holdings, context.interests, context.limits
        self._recipients, self._memories = context.holdings.recipients, context.holdings.cache.memories
        self._purges, self._struck = context.holdings.purged.by_node, context.holdings.recipients.struck
        self._outlived = context.holdings.cache.outlived.ids
        self._signs = context.identity.signed
        self._author, self._node = context.identity.author, context.node
        limits, settings, self._closed = context.limits, context.settings, context.links.closed
        self._text_bytes_max = min(limits.destination_bytes_max, limits.label_bytes_max, limits.attribute_bytes_max)
        """No text of this length is too long."""
        self._skew_us = round(settings.skew_s_max * 1e6)
        lifetime_s = settings.lifetime_s_max
        self._lifetime_us = None if lifetime_s is None else round(lifetime_s * 1e6) + self._skew_us

    def inspect(self, found: Descriptor, entry: OfferEntry, link: Link, now: int) -> bool:
        """Return True if the message is wanted here, False if it is carried for others; `RemoteError` refuses it."""
        if found.length != entry.length or found.length > self._limits.message_bytes_max:
            raise LimitError("message-size")
        signed = found.signed
        self._check_sizes(found, signed=signed)
        if self._closed.name:
            self._closed.check(found, link)
        if found.id != entry.message:
            raise ForgeryError("id")
        if found.author == self._author and not self._holdings.is_needed(found.id):
            self._remember_own(found, link, now)
            raise ForgeryError("own-message")
        self._check_times(found, now)
        if (self._purges or self._struck) and self.is_purged(found, now):
            # The message need not be offered again, nor requested from others. Its id covers its recipients, so the
            # signature does not matter.
            raise PurgedError(self._holdings.remember(found))
        wanted = self._interests.wants(found)
        if not wanted and not self._interests.carries(found):
            raise LimitError("interest")
        # Without a memory of its id the message could be delivered a second time later. Refusing it
        # keeps the promise "once per node" at the price of a delay.
        if wanted and self._memories.full and ((copy := self._holdings.cache.get(found.id)) is None or not copy.here):
            raise ForgetfulError("memory")
        if signed != self._signs:
            raise ForgeryError("security-level")
        if signed:
            self._verify(found, link)
        return wanted

    def is_purged(self, found: Descriptor, now: int) -> bool:
        """Return True if all recipients of the message are done with it."""
        if not (self._purges or self._struck) or found.signed != self._signs:
            return False
        return self._recipients.is_over(found, self._holdings.date_of(now))

    def _check_times(self, found: Descriptor, now: int) -> None:
        date_us, deadline_us = self._holdings.date_of(now), found.deadline_us
        if deadline_us is not None and deadline_us <= date_us:
            raise LimitError("expired")
        if self._outlived and found.id in self._outlived:
            raise LimitError("expired")  # By a clock that this host has had.
        # Authors with a fast clock are common, authors a day ahead are not. A date in the future
        # would put the message ahead wherever copies are ordered by date.
        if found.created_us > date_us + self._skew_us:
            raise LimitError("created")
        if self._lifetime_us is not None and (deadline_us is None or deadline_us > date_us + self._lifetime_us):
            raise LimitError("deadline")
        if found.barrier and self._lifetime_us is not None:
            # Nothing lives that long: what names it would wait for nothing.
            latest_us = date_us + self._lifetime_us
            if any(deadline_us > latest_us for _, _, deadline_us in found.predecessors):
                raise LimitError("barrier")

    def _remember_own(self, found: Descriptor, link: Link, now: int) -> None:
        """Remember an unknown message in this host's name, so that it is not offered again and again.

        Usually it was lost in a crash. Without signatures it may also be forged: then its number is not reused.
        """
        date_us = self._holdings.date_of(now)
        if self._holdings.cache.get(found.id) is not None or found.signed != self._signs or not found.alive(date_us):
            return
        if found.signed:
            self._verify(found, link)
        self._holdings.remember(found)

    def _verify(self, found: Descriptor, link: Link) -> None:
        """Verify the signature, the only expensive check, unless the message is here."""
        copy = self._holdings.cache.get(found.id)
        if copy is not None and copy.here:
            return
        link.work.did(SIGNATURE)
        verify(found)

    def _check_sizes(self, found: Descriptor, *, signed: bool) -> None:
        limits, wire_bytes = self._limits, found.wire_bytes
        if signed and (len(found.root) != HASH_BYTES or found.codec is PayloadCodec.BLANK):
            raise LimitError("digest-root")
        if (
            wire_bytes > limits.descriptor_bytes_max
            or len(found.attributes) > limits.attributes_max
            # No text within is longer than the whole.
            or (wire_bytes > self._text_bytes_max and self._has_long_text(found))
        ):
            raise LimitError("descriptor-size")
        if found.headers is not None:
            if len(found.headers.recipients) > limits.recipients_max:
                raise LimitError("recipients")
            if found.headers.connected and not is_for(found, self._node):
                raise LimitError("connected")
        if len(found.barrier) > limits.barrier_entries_max:
            raise LimitError("barrier")
        check_ratio(found, limits)

    def _has_long_text(self, found: Descriptor) -> bool:
        limits = self._limits
        return (
            _nbytes(found.destination) > limits.destination_bytes_max
            or _nbytes(found.label) > limits.label_bytes_max
            or _longest(found.attributes) > limits.attribute_bytes_max
        )


def _longest(attributes: Mapping[str, AttributeValue]) -> int:
    """Return the length in bytes of the longest name, or of the longest text among the values."""
    texts = [*attributes, *(value for value in attributes.values() if isinstance(value, str))]
    return max(map(_nbytes, texts), default=0)


def _nbytes(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode())
