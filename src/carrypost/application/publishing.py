"""Publication: from a program's draft to a signed descriptor and a copy in the cache.

(incarnation, sequence) rises strictly; the incarnation is durable before any message with it leaves the host, so two
equal sends differ, also across a crash. Anything that a peer would refuse is refused here first, with a text that says
what is allowed. Lifetimes that layers choose, and the default, are cut to `lifetime_s_max`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import msgspec

from carrypost.errors import IllegalArgumentException, MessageFormatException, PayloadError, StateError
from carrypost.gossip.holdings.cache import PASSING, PUBLISHING
from carrypost.gossip.transfers.outbox import FRAME_ROOM
from carrypost.gossip.wire.pieces import Blank, Packed, full_mask, pack
from carrypost.log import journal as keys
from carrypost.log.events import Reason, Stored
from carrypost.log.journal import Durability
from carrypost.model.address import CIRCLE, Named, addressee, as_sent, is_channel, is_held
from carrypost.model.descriptor import PIECE_BYTES, TIME_US_MAX, AttributeValue, Descriptor, Ordering, Predecessor
from carrypost.model.headers import ORIGIN_BYTES_MAX, Headers, checked
from carrypost.model.ids import MessageId, NodeId, node_bytes, plain_message_id, shown
from carrypost.model.times import MICROSECONDS, NEVER
from carrypost.printing import length_of_time
from carrypost.security.hpke import TAG_BYTES
from carrypost.security.sealing import as_published, seal_headers

if TYPE_CHECKING:
    from collections.abc import Mapping

    from carrypost.application.sealed_messages import Letters
    from carrypost.config import Limits
    from carrypost.gossip.draft import Draft
    from carrypost.gossip.holdings.copies import Copy
    from carrypost.gossip.transfers.link import HostContext

PRIORITY_MAX = 9
_FRAGMENT_BYTES_MIN = 256


class Stamp(NamedTuple):
    """Values that a message gets when it is sent: its date, its predecessors, its number as an event."""

    created_us: int
    barrier: tuple[Predecessor, ...] = ()
    """The messages that it depends on directly."""
    event: int = 0
    """Number among the events of this node to its channel; 0: it is not an event."""
    home: NodeId | None = None
    """The broker that the event goes to first; None: it names none."""
    until_us: int = 0
    """Deadline of a message that joins its predecessors, the latest of theirs; 0: it is for programs."""


class Publisher:
    """Numbers, signs and stores the host's own messages."""

    def __init__(self, context: HostContext, letters: Letters) -> None:
        self._letters, self._signs = letters, context.identity.signed
        self._identity, self._settings, self._limits = context.identity, context.settings, context.limits
        self._holdings, self._journal = context.holdings, context.outputs.journal
        self._sequence = 0
        self._incarnation = 0
        self._permitted: list[MessageId] = []
        """Withheld messages that are durable, until `permit`."""
        room = self._settings.datagram_bytes - FRAME_ROOM
        # A power of two, so that fragments fill pieces evenly.
        self._fragment_bytes = min(PIECE_BYTES, max(_FRAGMENT_BYTES_MIN, 1 << (room.bit_length() - 1)))
        # Padded payloads often have a power of two bytes, too, and then a tag: one fragment is handled much faster.
        self._sealed_bytes = max(self._fragment_bytes, min(self._fragment_bytes + TAG_BYTES, room, PIECE_BYTES))

    def begin(self, incarnation: int) -> None:
        """Number the messages of this incarnation, once its number is durable."""
        self._incarnation = incarnation
        self._journal.put(keys.INCARNATION, incarnation, Durability.FULL)

    def accepted(self, draft: Draft) -> Draft:
        """Return a program's draft with the destination that carriers see, which differs for topics of circles.

        Raises `IllegalArgumentException` if the message should live longer than `lifetime_s_max`.
        """
        if str(draft.destination).startswith(CIRCLE):  # Callers are not checked: it may be anything.
            draft = self._letters.addressed(draft)
        asked_us, most_s = draft.lifetime_us, self._settings.lifetime_s_max
        # Values of other types are refused where the deadline is computed.
        if most_s is None or not isinstance(asked_us, int) or asked_us <= round(most_s * MICROSECONDS):
            return draft
        raise IllegalArgumentException(
            f"a message lives at most {length_of_time(most_s)} on this node (lifetime_s_max), not "
            f"{length_of_time(asked_us / MICROSECONDS)}: use a shorter time to live"
        )

    def pack(self, draft: Draft) -> Packed:
        """Return the payload in its wire form; raises `PayloadError` for a draft that cannot be published."""
        for name, (what, kind, allowed) in _FIELDS.items():
            if type(value := getattr(draft, name)) is not kind:
                raise _unlike(what, value, allowed)
        self._check_payload(draft.payload)
        self._check_texts(draft.destination, draft.label, draft.attributes)
        if not 0 <= draft.priority <= PRIORITY_MAX:
            raise PayloadError(f"a priority must be 0 to {PRIORITY_MAX}, not {draft.priority}")
        if draft.recipients is not None:
            self._named(draft, draft.recipients)
        if draft.payload_of is not None:
            return self._packed_of(draft.payload_of)
        seal = self._letters.seal_for(draft) if self._signs or draft.sealed else None
        signed, compress, limits = self._signs, self._settings.compress, self._limits
        packed = pack(draft.payload, signed=signed, compress=compress, limits=limits, seal=seal)
        if seal is not None and packed.length > limits.message_bytes_max:
            raise MessageFormatException(
                f"the body has {seal.plain[1]} bytes, and sealed {packed.length}, more than the "
                f"{limits.message_bytes_max} of limits.message_bytes_max: shorten it, or send with sealed=False"
            )
        return packed

    def _packed_of(self, message: MessageId) -> Packed:
        """Return the payload of a message that is here, in its wire form; raises `StateError` if it is not whole."""
        source = self._holdings.cache.get(message)
        if source is None or not source.here or not source.whole:
            raise StateError(f"the message {shown(message)} is not here, so its payload cannot be passed on")
        found = source.descriptor
        return Packed(
            found.codec, found.size, found.length, (), self._holdings.hashes(source), found.root, source=message
        )

    def make(self, draft: Draft, packed: Packed, stamp: Stamp, date_us: int, *, after: int = 0) -> Descriptor:
        """Return the descriptor of the next message, or of the next one after a sequence; not signed yet.

        Raises `PayloadError`.
        """
        sequence = max(self._sequence, after) + 1
        if not self._signs:
            # A stranger may have used the number in this node's name, or an earlier incarnation whose store was lost.
            while self._holdings.cache.get(plain_message_id(self._identity.node, self._incarnation, sequence)):
                sequence += 1
        headers, label, attributes = self._headers(draft, stamp, date_us), draft.label, dict(draft.attributes)
        fragment_bytes = self._fragment_bytes
        if packed.seal is not None:
            if fragment_bytes < packed.length <= self._sealed_bytes:
                fragment_bytes = packed.length
            headers, label, attributes = seal_headers(packed.seal, headers, attributes, label), "", {}
        descriptor = Descriptor(
            author=self._identity.author, incarnation=self._incarnation, sequence=sequence,
            created_us=stamp.created_us, deadline_us=self._deadline(draft, stamp),
            destination=draft.destination, size=packed.size, length=packed.length, codec=packed.codec,
            root=packed.root, fragment_bytes=fragment_bytes, priority=draft.priority,
            persistent=draft.persistent, label=label, attributes=attributes,
            ordering=draft.ordering, barrier=stamp.barrier, headers=headers,
        )  # fmt: skip
        if len(descriptor.encoded) > self._limits.descriptor_bytes_max - 65:
            most = self._limits.descriptor_bytes_max
            raise MessageFormatException(f"the descriptor has more than {most} bytes, with its attributes and headers")
        passed_on = is_held(descriptor.destination) or is_channel(descriptor.destination)
        if passed_on and len(descriptor.encoded) > ORIGIN_BYTES_MAX - 65:
            raise MessageFormatException(
                f"a message to a topic that a node holds, or to a channel, has at most {ORIGIN_BYTES_MAX} bytes beside "
                "its body, as others pass them on: shorten its properties and header fields, or put them into the body"
            )
        return descriptor

    def sign(self, descriptor: Descriptor) -> Descriptor:
        """Return the descriptor with the author's signature, if security is on."""
        return self._identity.sign(descriptor)

    def reserve(self, descriptor: Descriptor) -> None:
        """Reserve the number of a message that waits to be admitted."""
        self._sequence = max(self._sequence, descriptor.sequence)

    def admit(self, descriptor: Descriptor, packed: Packed, now: int, *, withheld: bool = False) -> Copy:
        """Admit the message to the cache; raises `StateError` if there is no room.

        A message with an order or a number, or one that is `withheld`, is neither offered nor evicted until it is
        durable.
        """
        numbered = descriptor.headers is not None and bool(descriptor.headers.event)
        withheld = withheld or bool(descriptor.ordering) or numbered
        memory = self._holdings.cache.get(descriptor.id)
        if memory is not None and not memory.here:
            # Where nothing is signed, a stranger may have used the number of a draft, whose id the program knows.
            self._holdings.cache.remove(memory, Reason.EXPIRED)
        source = None if packed.source is None else self._holdings.cache.get(packed.source)
        if source is not None:  # It must not be evicted for the message that has its payload.
            self._holdings.cache.pin((source,), PASSING)
        copy = self._holdings.admit(
            descriptor, nbytes=packed.length, held=full_mask(descriptor.pieces), interesting=True, own=True,
            withheld_by=PUBLISHING if withheld else 0, now=now,
        )  # fmt: skip
        if source is not None:
            self._holdings.cache.unpin((source,), PASSING)
        if isinstance(copy, Reason):
            raise StateError(f"the cache is full ({copy}), and nothing in it can be evicted for this message")
        self.reserve(descriptor)
        if packed.seal is not None:
            if packed.seal.is_own:
                copy.opened = as_published(descriptor, packed.seal)
            elif packed.seal.published is not None and (label := packed.seal.published.label):
                self._letters.keep_label(descriptor.id, label)
        if withheld:
            self._holdings.cache.pin((copy,), PUBLISHING)
        if descriptor.pieces > 1 and packed.hashes:
            self._holdings.keep_hashes(copy, packed.hashes)
        return copy

    def journal(self, copy: Copy, packed: Packed, *, alone: bool = True) -> None:
        """Journal a message that was admitted, after the layers had it.

        If it is sent `alone`, `Stored` waits until that is durable; else its unit of work is reported.
        """
        journal, descriptor = self._journal, copy.descriptor
        durability = Durability.FULL if descriptor.persistent else Durability.NORMAL
        if packed.source is not None:
            self._holdings.keep_pieces_of(copy, packed.source, durability)
        for number, piece in enumerate(() if descriptor.service.momentary else packed.pieces):
            journal.put((keys.PIECE, descriptor.id, number), piece, durability)
        if descriptor.pieces > 1 and packed.hashes:
            journal.put((keys.HASHES, descriptor.id, 0), packed.hashes, durability)
        self._holdings.keep((copy,), durability)
        if alone:
            journal.hold(Stored(descriptor.id))
        if copy.pins & PUBLISHING:
            journal.when_durable(self._permitted.append, descriptor.id)

    def permit(self) -> list[Copy]:
        """Release messages whose batches are durable, and return them."""
        found: list[Copy] = []
        for message in self._permitted:
            copy = self._holdings.cache.get(message)
            if copy is not None and copy.here:
                self._holdings.permit(copy, PUBLISHING)
                self._holdings.cache.unpin((copy,), PUBLISHING)
                found.append(copy)
        self._permitted.clear()
        return found

    def _headers(self, draft: Draft, stamp: Stamp, date_us: int) -> Headers | None:
        """Return the headers of a message, with its recipients, and its own date if order assigned another."""
        headers = None if draft.headers is None else checked(draft.headers, draft.attributes)
        if draft.recipients is not None:
            headers = msgspec.structs.replace(headers or Headers(), recipients=self._named(draft, draft.recipients))
        elif headers is not None and headers.recipients:
            raise PayloadError("recipients are given beside the headers, not among them")
        if headers is not None and headers.connected:
            self._check_connected(draft)
        if headers is not None and headers.event:
            raise PayloadError("events are numbered when they are sent: leave the header event out")
        if stamp.event:
            home = node_bytes(stamp.home) if stamp.home and self._signs else stamp.home
            headers = msgspec.structs.replace(headers or Headers(), event=stamp.event, home=home)
        if draft.delay_us:
            headers = msgspec.structs.replace(headers or Headers(), delivery_time_us=_due_us(draft, date_us))
        if headers is None or stamp.created_us == date_us or headers.sent_us is not None:
            return headers
        return msgspec.structs.replace(headers, sent_us=date_us)

    def _check_connected(self, draft: Draft) -> None:
        """Raise unless a message for connected nodes alone may be sent."""
        if not self._settings.island:
            raise PayloadError("a message for connected nodes requires island = true")
        if draft.recipients is None and addressee(draft.destination) is None:
            raise PayloadError("a message for connected nodes must name its recipients")

    def _named(self, draft: Draft, recipients: tuple[str, ...]) -> Named:
        """Return the recipients of a draft in their wire form; raises `IllegalArgumentException`."""
        signed, most = self._signs, self._limits.recipients_max
        ordered = bool(draft.ordering)
        return as_sent(recipients, self._identity.node, draft.destination, ordered=ordered, signed=signed, most=most)

    def _deadline(self, draft: Draft, stamp: Stamp) -> int | None:
        if stamp.until_us:
            return None if stamp.until_us == NEVER else stamp.until_us
        settings, lifetime_us = self._settings, draft.lifetime_us
        if lifetime_us is None and settings.overlay.enabled and is_channel(draft.destination):
            lifetime_us = round(settings.overlay.event_lifetime_s * 1e6)
        if lifetime_us is None and settings.lifetime_s_default is not None:
            lifetime_us = round(settings.lifetime_s_default * 1e6)
        if settings.lifetime_s_max is not None:
            most_us = round(settings.lifetime_s_max * 1e6)
            lifetime_us = most_us if lifetime_us is None else min(lifetime_us, most_us)
        if lifetime_us is None:
            return None
        if type(lifetime_us) is not int:
            raise _unlike("a lifetime", lifetime_us, "whole microseconds")
        if lifetime_us <= 0:
            raise PayloadError(f"a lifetime must be greater than 0, not {lifetime_us / 1e6} s")
        return min(stamp.created_us + lifetime_us, TIME_US_MAX) if draft.deadline_us is None else draft.deadline_us

    def _check_payload(self, payload: bytes | Blank) -> None:
        limits = self._limits
        if isinstance(payload, Blank):
            if type(payload.size) is not int:
                raise _unlike("the size of a blank", payload.size, "a whole number")
            if self._signs:
                raise PayloadError("a blank payload cannot be signed: emulate with security off")
            size = payload.size
        elif type(payload) is bytes:
            size = len(payload)
        else:
            raise _unlike("a payload", payload, "bytes")
        if not 0 <= size <= limits.message_bytes_max:
            raise PayloadError(f"a payload must have 0 to {limits.message_bytes_max} bytes, not {size}")

    def _check_texts(self, destination: str, label: str, attributes: Mapping[str, AttributeValue]) -> None:
        limits = self._limits
        _check_text("a destination", destination, limits.destination_bytes_max)
        _check_text("a label", label, limits.label_bytes_max, empty=True)
        check_attributes(attributes, limits)


def check_attributes(attributes: Mapping[str, AttributeValue], limits: Limits) -> None:
    """Raise `PayloadError` unless a message may have these attributes."""
    if len(attributes) > limits.attributes_max:
        raise PayloadError(f"a message has at most {limits.attributes_max} attributes, not {len(attributes)}")
    for name, value in attributes.items():
        if type(name) is not str:
            raise _unlike("the name of an attribute", name, "text")
        _check_text("the name of an attribute", name, limits.attribute_bytes_max)
        _check_value(name, value, limits.attribute_bytes_max)


_FIELDS: Mapping[str, tuple[str, type, str]] = {
    "destination": ("a destination", str, "text"), "label": ("a label", str, "text"),
    "persistent": ("persistent", bool, "true or false"), "priority": ("a priority", int, "a whole number"),
    "ordering": ("an ordering", Ordering, "an Ordering"),
}  # fmt: skip
"""Fields of drafts that must have the type that their annotation promises: callers are not all checked."""


def _due_us(draft: Draft, date_us: int) -> int:
    """Return when a delayed message is due, from the same date as its timestamp: programs compare the two."""
    if type(draft.delay_us) is not int:
        raise _unlike("a delivery delay", draft.delay_us, "whole microseconds")
    if draft.delay_us < 0:
        raise PayloadError(f"a delivery delay must not be negative: {draft.delay_us / 1e6} s")
    return min(date_us + draft.delay_us, TIME_US_MAX)


def _unlike(what: str, value: object, allowed: str) -> PayloadError:
    """Return the error for a value of another type than its annotation promises."""
    return PayloadError(f"{what} must be {allowed}, not {type(value).__name__}: {value!r}"[:200])


def _check_text(what: str, text: str, bytes_max: int, *, empty: bool = False) -> None:
    try:
        size = len(text.encode())
    except UnicodeEncodeError:
        raise PayloadError(f"{what} must be Unicode text without lone surrogates, not {text!r}") from None
    if size > bytes_max or not (text or empty):
        raise PayloadError(f"{what} must have {0 if empty else 1} to {bytes_max} bytes: {text!r}")


def _check_value(name: str, value: AttributeValue, bytes_max: int) -> None:
    what = f"the value of attribute {name!r}"
    if type(value) not in (bool, int, float, str):
        raise PayloadError(f"{what} must be a bool, int, float or str, not {type(value).__name__}")
    if isinstance(value, int) and not -(2**63) <= value < 2**63:
        raise PayloadError(f"{what} does not fit into 64 bits: {value}")
    if isinstance(value, str):
        _check_text(what, value, bytes_max, empty=True)
