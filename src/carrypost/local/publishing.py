"""Publication: from what the application says to a signed descriptor and a copy in the cache.

(incarnation, sequence) rises strictly; the incarnation is durable before anything of it leaves the host, so two equal
sends differ, also across a crash. Lifetimes are clamped here; what a peer would refuse is refused here first, with a
text that says what is allowed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from carrypost import journal as keys
from carrypost.errors import PayloadError, StateError
from carrypost.events import Reason, Stored
from carrypost.gossip.transfers.outbox import FRAME_ROOM
from carrypost.gossip.wire.pieces import Blank, Packed, full_mask, pack
from carrypost.journal import Durability, Send
from carrypost.model.descriptor import PIECE_BYTES, TIME_US_MAX, AttributeValue, Descriptor, Ordering, Predecessor

if TYPE_CHECKING:
    from collections.abc import Container, Mapping

    from carrypost.gossip.desk import Desk
    from carrypost.gossip.holdings.copies import Copy
    from carrypost.model.ids import MessageId

PRIORITY_MAX = 9
Prepare = Callable[[str, Ordering, int], tuple[int, tuple[Predecessor, ...]]]
"""From destination, ordering and time to the date and the barrier of a message."""
_FRAGMENT_BYTES_MIN = 256


class Publisher:
    """Numbers, signs and stores the host's own messages."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk
        self._sequence = 0
        self.incarnation = 0
        room = desk.settings.mtu_bytes - FRAME_ROOM
        # A power of two, so that fragments fill pieces evenly.
        self._fragment_bytes = min(PIECE_BYTES, max(_FRAGMENT_BYTES_MIN, 1 << (room.bit_length() - 1)))

    def publish(
        self,
        destination: str,
        payload: bytes | Blank,
        attributes: Mapping[str, AttributeValue],
        *,
        now: int,
        lifetime_us: int | None,
        label: str,
        persistent: bool,
        priority: int,
        ordering: Ordering,
        prepare: Prepare,
    ) -> Copy:
        """Store a new message of this host. One that has an order is not sent before that is durable.

        `prepare` gives it its date and its barrier.
        """
        desk = self._desk
        self._check_payload(payload)
        self._check_texts(destination, label, attributes)
        _require("persistent", persistent, bool, "true or false")
        _require("a priority", priority, int, "a whole number")
        _require("an ordering", ordering, Ordering, "an Ordering")
        if not 0 <= priority <= PRIORITY_MAX:
            raise PayloadError(f"a priority is 0 to {PRIORITY_MAX}, not {priority}")
        packed = pack(payload, signed=desk.identity.signed, compress=desk.settings.compress, limits=desk.limits)
        created_us, barrier = prepare(destination, ordering, now) if ordering else (now, ())
        descriptor = Descriptor(
            author=desk.identity.author, incarnation=self.incarnation, sequence=self._sequence + 1,
            created_us=created_us, deadline_us=self._deadline(lifetime_us, created_us), destination=destination,
            size=packed.size, length=packed.length, codec=packed.codec, root=packed.root,
            fragment_bytes=self._fragment_bytes, priority=priority, persistent=persistent, label=label,
            attributes=dict(attributes), ordering=ordering, barrier=barrier,
        )  # fmt: skip
        if len(descriptor.encoded) > desk.limits.descriptor_bytes_max - 65:
            raise PayloadError(f"the descriptor has more than {desk.limits.descriptor_bytes_max} bytes")
        descriptor = desk.identity.sign(descriptor)
        copy = desk.cache.admit(
            descriptor, nbytes=packed.length, privilege=desk.rank(descriptor), interesting=True, own=True,
            held=full_mask(descriptor.pieces), now=now,
        )  # fmt: skip
        if isinstance(copy, Reason):
            raise StateError(f"the cache is full ({copy}), and nothing in it may give way to this message")
        self._sequence += 1
        self._store(copy, packed)
        return copy

    def _store(self, copy: Copy, packed: Packed) -> None:
        desk, descriptor = self._desk, copy.descriptor
        durability = Durability.FULL if descriptor.persistent else Durability.NORMAL
        for number, piece in enumerate(packed.pieces):
            desk.journal.put((keys.PIECE, descriptor.id, number), piece, durability)
        if descriptor.pieces > 1 and packed.hashes:
            desk.hashes[copy.slot] = packed.hashes
            desk.journal.put((keys.HASHES, descriptor.id, 0), packed.hashes, durability)
        desk.keep(copy, durability)
        desk.book.enter(copy)
        if descriptor.ordering:
            desk.unsent |= 1 << copy.slot
            desk.cache.pin(copy)
        else:
            desk.book.settle(copy)
        if not desk.ready:
            # Else a crash could give the same number to another message, after this one was told of.
            desk.journal.put(keys.INCARNATION, self.incarnation, Durability.FULL)
        desk.journal.hold(Stored(descriptor.id))
        if descriptor.ordering:
            desk.journal.hold(Send(descriptor.id))

    def permitted(self, pinned: Container[MessageId]) -> bool:
        """Let those messages leave whose batches are durable; some stay `pinned`. Whether there are any."""
        desk = self._desk
        messages, desk.journal.permitted = desk.journal.permitted, []
        found = False
        for message in messages:
            copy = desk.cache.get(message)
            if copy is not None and copy.here:
                desk.unsent &= ~(1 << copy.slot)
                desk.book.settle(copy)
                if message not in pinned:
                    desk.cache.unpin(copy)
                found = True
        return found

    def _deadline(self, lifetime_us: int | None, now: int) -> int | None:
        settings = self._desk.settings
        if lifetime_us is None and settings.lifetime_s_default is not None:
            lifetime_us = round(settings.lifetime_s_default * 1e6)
        if settings.lifetime_s_max is not None:
            most_us = round(settings.lifetime_s_max * 1e6)
            lifetime_us = most_us if lifetime_us is None else min(lifetime_us, most_us)
        if lifetime_us is None:
            return None
        _require("a lifetime", lifetime_us, int, "whole microseconds")
        if lifetime_us <= 0:
            raise PayloadError(f"a lifetime must be longer than nothing, not {lifetime_us / 1e6} s")
        return min(now + lifetime_us, TIME_US_MAX)

    def _check_payload(self, payload: bytes | Blank) -> None:
        limits = self._desk.limits
        if isinstance(payload, Blank):
            _require("the size of a blank", payload.size, int, "a whole number")
            if self._desk.identity.signed:
                raise PayloadError("a blank payload cannot be signed: emulate with security off")
            size = payload.size
        else:
            _require("a payload", payload, bytes, "bytes")
            size = len(payload)
        if not 0 <= size <= limits.message_bytes_max:
            raise PayloadError(f"a payload has 0 to {limits.message_bytes_max} bytes, not {size}")

    def _check_texts(self, destination: str, label: str, attributes: Mapping[str, AttributeValue]) -> None:
        limits = self._desk.limits
        _check_text("a destination", destination, limits.destination_bytes_max)
        _check_text("a label", label, limits.label_bytes_max, empty=True)
        if len(attributes) > limits.attributes_max:
            raise PayloadError(f"a message has at most {limits.attributes_max} attributes, not {len(attributes)}")
        for name, value in attributes.items():
            _check_text("the name of an attribute", name, limits.attribute_bytes_max)
            _check_value(name, value, limits.attribute_bytes_max)


def _require(what: str, value: object, kind: type, allowed: str) -> None:
    """A type that an annotation promised: callers are not all checked, and what travels has to be right."""
    if type(value) is not kind:
        raise PayloadError(f"{what} is {allowed}, not a {type(value).__name__}: {value!r}"[:200])


def _check_text(what: str, text: str, bytes_max: int, *, empty: bool = False) -> None:
    _require(what, text, str, "text")
    try:
        size = len(text.encode())
    except UnicodeEncodeError:
        raise PayloadError(f"{what} is Unicode text, without lone surrogates: {text!r}") from None
    if size > bytes_max or not (text or empty):
        raise PayloadError(f"{what} has {0 if empty else 1} to {bytes_max} bytes: {text!r}")


def _check_value(name: str, value: AttributeValue, bytes_max: int) -> None:
    what = f"the value of attribute {name!r}"
    if type(value) not in (bool, int, float, str):
        raise PayloadError(f"{what} is a bool, int, float or str, not a {type(value).__name__}")
    if isinstance(value, int) and not -(2**63) <= value < 2**63:
        raise PayloadError(f"{what} does not fit into 64 bits: {value}")
    if isinstance(value, str):
        _check_text(what, value, bytes_max, empty=True)
