"""The descriptor: the signed metadata of a message.

A descriptor is a fixed list of typed fields, a map of `attributes` that belongs to the application, and `headers` that
belong to messaging, kept apart so that any property name is legal (JOMS-12 §III.A, figure 2). Its encoding is signed by
the author, its id is the hash of exactly those bytes, and they are forwarded verbatim: a field that a newer author
appends survives an older carrier. `encoded`, `id` and `fingerprint` are made once per object and kept with it, because
an emulation passes the same object to a thousand hosts.
"""

from __future__ import annotations

import enum
import hashlib
from collections.abc import Callable
from copy import copy
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Final, Generic, TypeVar, overload

import msgspec

from carrypost.config.rules import nearest
from carrypost.errors import DecodeError, LocalError
from carrypost.model import address, headers, ids
from carrypost.model.address import SEALED, Service, service_of
from carrypost.model.headers import Headers
from carrypost.model.ids import MessageId, NodeId
from carrypost.model.properties import AttributeValue as AttributeValue  # noqa: PLC0414 - part of this interface
from carrypost.model.times import NEVER
from carrypost.model.times import TIME_US_MAX as TIME_US_MAX  # noqa: PLC0414 - likewise

T = TypeVar("T")

PIECE_BYTES: Final = 16 * 1024
"""The verified unit of a payload. Fragments never cross the border of a piece."""
SIGNATURE_BYTES: Final = 64

_Count = Annotated[int, msgspec.Meta(ge=0, le=TIME_US_MAX)]
if TYPE_CHECKING:
    _Author = bytes | str
else:
    _Author = Any  # msgspec knows no union of bytes and str, so `decode` checks this field itself


class lazy(Generic[T]):  # noqa: N801 - reads like the property that it is
    """A value made once and kept in the instance.

    `functools.cached_property` takes a lock each time, which costs 5 µs a message.
    """

    def __init__(self, make: Callable[[Any], T]) -> None:
        self._make = make
        self.__doc__ = make.__doc__

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    @overload
    def __get__(self, instance: None, owner: type) -> lazy[T]: ...
    @overload
    def __get__(self, instance: object, owner: type) -> T: ...
    def __get__(self, instance: object | None, owner: type) -> lazy[T] | T:
        if instance is None:
            return self
        value = instance.__dict__[self._name] = self._make(instance)
        return value


class PayloadCodec(enum.IntEnum):
    """The encoding of a payload on the wire."""

    PLAIN = 0
    ZSTD = 1
    BLANK = 2
    """No bytes at all: they are counted, but not made (emulation, security off)."""


class Ordering(enum.IntEnum):
    """The order in which the messages of a destination are delivered (CAUSAL §IV, §V)."""

    NONE = 0
    CAUSAL = 1
    """After everything that they depend on and that is alive; what died undelivered is reported as missing."""
    DELTA_CAUSAL = 2
    """After everything that they depend on and that is alive; the dead are forgotten."""

    @property
    def text(self) -> str:
        """The spelling in scenarios and applications."""
        return self.name.lower().replace("_", "-")

    @classmethod
    def named(cls, text: object) -> Ordering:
        """Return the ordering of this name; raises `LocalError` for anything else."""
        found = _ORDERINGS.get(text) if isinstance(text, str) else None
        if found is None:
            hint = nearest(text, _ORDERINGS) if isinstance(text, str) else ""
            raise LocalError(f"an ordering must be one of {', '.join(map(repr, _ORDERINGS))}, not {text!r}{hint}"[:200])
        return found


_ORDERINGS: Final = {each.text: each for each in Ordering}


class Predecessor(msgspec.Struct, frozen=True, array_like=True):
    """An entry of a causal barrier: a message that must be delivered or expired before this one is delivered."""

    source: _Author
    """The author's node id, or the id of a message that only joins others: text if security is off, else the bytes of
    the id."""
    incarnation: _Count
    """Incarnation of the author that published the message."""
    sequence: _Count
    """Number of the message in that incarnation."""
    deadline_us: _Count | None
    """Deadline of the message; nil: it never expires."""

    @property
    def tag_and_end(self) -> tuple[int, int]:
        """The tag, and the deadline or `NEVER`, as order groups use them."""
        return tag_of(self.incarnation, self.sequence), NEVER if self.deadline_us is None else self.deadline_us


class Unsealed(msgspec.Struct, frozen=True, gc=False):
    """The key to the payload of a sealed message."""

    key: bytes
    """The content key."""
    packed: int
    """Length of the payload before it was padded and encrypted."""
    secret: bytes = b""
    """The secret that the content key was derived from, where it is known: a queue's manager wraps it for receivers."""
    circle: str = ""
    """Name on this node of the circle that the message is for; empty for letters."""

    def __repr__(self) -> str:
        return "<Unsealed>"


Barrier = tuple[tuple[NodeId, int, int], ...]
"""Predecessors as (source, tag, deadline), the last `NEVER` where there is none."""


class Descriptor(msgspec.Struct, frozen=True, array_like=True, dict=True):
    """Signed fields of a message, and its application's attributes."""

    author: _Author
    """Ed25519 public key, or a plain name where security is off."""
    incarnation: _Count
    """Incarnation of the author that published the message, from 1."""
    sequence: _Count
    """Number among the messages of that incarnation, from 1."""
    created_us: _Count
    """Time of publication, by the author's clock."""
    deadline_us: _Count | None
    """Time from which the message is expired; nil: it never expires."""
    destination: str
    """Address of the message."""
    size: _Count
    """Payload bytes as published."""
    length: _Count
    """Payload bytes as sent: compressed, depending on `codec`."""
    codec: PayloadCodec
    """Encoding of the payload as sent."""
    root: bytes
    """SHA-256 over the SHA-256 of every piece; empty where security is off."""
    fragment_bytes: Annotated[int, msgspec.Meta(ge=64, le=PIECE_BYTES)]
    """Payload bytes in one fragment; the last one of a piece may be shorter."""
    priority: Annotated[int, msgspec.Meta(ge=0, le=9)] = 4
    """Priority of the message; 9 is the highest."""
    persistent: bool = False
    """True if the message is persistent. As in the papers, persistent messages rank above all others."""
    label: str = ""
    """The user's own name for the message."""
    attributes: dict[str, AttributeValue] = msgspec.field(default_factory=dict)
    """Attributes set by the application, by name."""
    ordering: Ordering = Ordering.NONE
    """Order in which the messages of its group are delivered. A group is all messages with this destination and this
    ordering."""
    barrier: tuple[Predecessor, ...] = ()
    """Direct predecessors in its group."""
    headers: Headers | None = None
    """Headers of messaging."""

    unsealed: ClassVar[Unsealed | None] = None
    """The key to the payload, of a sealed message with its plain fields; others have none."""

    @lazy
    def encoded(self) -> bytes:
        """Return the bytes that are hashed and signed, without trailing fields that say nothing.

        A message without headers and order ends before these fields, so that old messages keep their ids.
        """
        if self.headers is not None:
            return _ENCODER.encode((*msgspec.structs.astuple(self)[:_ORDERED_FIELDS], headers.travelling(self.headers)))
        fields = _UNORDERED_FIELDS if self.ordering is Ordering.NONE else _ORDERED_FIELDS
        return _ENCODER.encode(msgspec.structs.astuple(self)[:fields])

    @lazy
    def signature(self) -> bytes:
        """Return the author's signature; empty if security is off."""
        return b""

    @property
    def is_sealed(self) -> bool:
        """True if this is a sealed message as its carriers see it."""
        return self.headers is not None and bool(self.headers.seal)

    @property
    def sealed(self) -> str | None:
        """The circle that it was sealed for, or ``letter`` if for nodes; None for plain text.

        Of a circle whose message is not opened the id is returned.
        """
        if self.unsealed is not None:
            return self.unsealed.circle or "letter"
        if not self.is_sealed:
            return None
        return self.destination.split("/")[1] if self.destination.startswith(SEALED) else "letter"

    @lazy
    def id(self) -> MessageId:
        """Return the message's id."""
        if isinstance(self.author, str):
            return ids.plain_message_id(self.author, self.incarnation, self.sequence)
        return ids.signed_message_id(self.encoded)

    @lazy
    def fingerprint(self) -> int:
        """Return the 64 bits that identify the message in reconciliation."""
        own = self.id if self.signed else hashlib.sha256(self.id).digest()
        return int.from_bytes(own[:8], "big")

    @lazy
    def node(self) -> NodeId:
        """Return the author's node id."""
        return NodeId(self.author) if isinstance(self.author, str) else ids.node_id(self.author)

    @lazy
    def source(self) -> NodeId:
        """Return the source of the message in barriers: its author, or the message itself if it only joins others.

        A source's messages are delivered by their tags, and one that joins some predecessors must not come after all
        earlier ones of its author.
        """
        if not self.joins:
            return self.node
        return ids.node_of(self.id) if self.signed else NodeId(self.id.decode())

    @lazy
    def shown(self) -> str:
        """Return the name of the message for people and records: its label, else its id.

        A sealed message is called by its id on all nodes, since carriers do not know its label.
        """
        return (self.label if self.unsealed is None else "") or ids.shown(self.id)

    @lazy
    def id_text(self) -> str:
        """Return the id as programs see it: it begins with ``ID:``, signed or not."""
        return "ID:" + (ids.base32(self.id) if self.signed else self.id.decode())

    @lazy
    def tag(self) -> int:
        """Return its place among all messages of its author, as one number: later ones have larger tags."""
        return tag_of(self.incarnation, self.sequence)

    @lazy
    def ends_us(self) -> int:
        """Return the deadline, or `NEVER`."""
        return NEVER if self.deadline_us is None else self.deadline_us

    @lazy
    def predecessors(self) -> Barrier:
        """Return the barrier as order groups use it."""
        return tuple([
            (ids.node_of(each.source) if isinstance(each.source, bytes) else NodeId(each.source), *each.tag_and_end)
            for each in self.barrier
        ])  # fmt: skip

    @lazy
    def listed(self) -> tuple[NodeId, ...]:
        """Return the nodes that it lists as recipients, in the order of the list; none if it is for all subscribers."""
        return () if self.headers is None else address.nodes(self.headers.recipients)

    @lazy
    def home(self) -> NodeId | None:
        """Return the broker that an event goes to first; None if it names none."""
        home = None if self.headers is None else self.headers.home
        return None if home is None else address.nodes((home,))[0]

    @lazy
    def service(self) -> Service:
        """Return its class of service."""
        return service_of(self.destination, self.headers, self.size)

    @property
    def original(self) -> Descriptor:
        """The message that it passes on, as its author published it; itself if there is none that can be decoded."""
        headers = self.headers
        return self if headers is None or not headers.origin else self._passed_on or self

    @lazy
    def _passed_on(self) -> Descriptor | None:
        try:
            return None if self.headers is None else decode(self.headers.origin)
        except DecodeError:
            return None

    @property
    def joins(self) -> bool:
        """True if the message only joins its predecessors, and is not for programs."""
        return self.headers is not None and self.headers.joins

    @property
    def due_us(self) -> int:
        """The time from which it may be handed over; 0 if that is at once."""
        headers = self.headers
        return 0 if headers is None or headers.delivery_time_us is None else headers.delivery_time_us

    @lazy
    def signed(self) -> bool:
        """Return True if the author is a key."""
        return isinstance(self.author, bytes)

    @lazy
    def pieces(self) -> int:
        """Return the number of pieces of the payload; an empty payload has one, empty."""
        return max(1, -(-self.length // PIECE_BYTES))

    @lazy
    def fragments_per_piece(self) -> int:
        """Return the number of fragments of a full piece."""
        return -(-PIECE_BYTES // self.fragment_bytes)

    @lazy
    def small(self) -> bool:
        """Return True if the whole payload is one fragment, as with most messages."""
        return self.length <= self.fragment_bytes

    @lazy
    def wire(self) -> bytes:
        """Return signature and encoding in their wire form: one byte for the length of the signature, then both."""
        return bytes([len(self.signature)]) + self.signature + self.encoded

    @lazy
    def wire_bytes(self) -> int:
        """Return the length of `wire`, which is made only for sending."""
        return 1 + len(self.signature) + len(self.encoded)

    def piece_length(self, piece: int) -> int:
        """Return the number of bytes of piece number `piece`."""
        return min(PIECE_BYTES, self.length - piece * PIECE_BYTES)

    def fragment_at(self, index: int) -> tuple[int, int, int]:
        """Return the piece of a fragment of a large payload, its offset there, and its length; below 1: there is none.

        Called for each fragment that is sent or arrives. With long datagrams a piece is one fragment.
        """
        if self.fragments_per_piece == 1:
            return index, 0, min(PIECE_BYTES, self.length - index * PIECE_BYTES)
        piece, number = divmod(index, self.fragments_per_piece)
        offset = number * self.fragment_bytes
        return piece, offset, min(self.fragment_bytes, self.piece_length(piece) - offset)

    def fragments_in(self, piece: int) -> int:
        """Return the number of fragments of piece number `piece`; an empty piece has one, empty."""
        return max(1, -(-self.piece_length(piece) // self.fragment_bytes))

    def alive(self, now: int) -> bool:
        """Return True while the message has not expired: now < deadline. The only expiry test."""
        return self.deadline_us is None or now < self.deadline_us

    def with_signature(self, signature: bytes) -> Descriptor:
        """Return this descriptor, signed."""
        signed = copy(self)
        signed.__dict__.update(encoded=self.encoded, signature=signature)
        return signed


class _Address(msgspec.Struct, array_like=True, gc=False):
    """The first fields of a descriptor, up to its destination."""

    author: object
    incarnation: object
    sequence: object
    created_us: object
    deadline_us: object
    destination: str


_ENCODER: Final = msgspec.msgpack.Encoder()
_ADDRESS_DECODER: Final = msgspec.msgpack.Decoder(_Address)
_DECODER: Final = msgspec.msgpack.Decoder(Descriptor)
_UNORDERED_FIELDS: Final = Descriptor.__struct_fields__.index("ordering")
_ORDERED_FIELDS: Final = Descriptor.__struct_fields__.index("headers")
SEQUENCE_BITS: Final = TIME_US_MAX.bit_length()


def tag_of(incarnation: int, sequence: int) -> int:
    """Return incarnation and sequence as one number."""
    return incarnation << SEQUENCE_BITS | sequence


def predecessor(source: NodeId, tag: int, deadline_us: int, *, signed: bool) -> Predecessor:
    """Return an entry of a barrier in its wire form."""
    return Predecessor(
        ids.node_bytes(source) if signed else source,
        tag >> SEQUENCE_BITS,
        tag & (1 << SEQUENCE_BITS) - 1,
        None if deadline_us == NEVER else deadline_us,
    )


def destination_of(wire: bytes) -> str:
    """Return the destination of an encoded descriptor, in a third of the time that `decode` takes."""
    return _ADDRESS_DECODER.decode(wire[wire[0] + 1 :]).destination


def decode(wire: bytes) -> Descriptor:
    """Decode a descriptor; raises `DecodeError`. Signature and limits are checked by the caller."""
    if not wire or wire[0] not in (0, SIGNATURE_BYTES) or len(wire) <= wire[0] + 1:
        raise DecodeError("descriptor", "no descriptor")
    signature, encoded = wire[1 : wire[0] + 1], wire[wire[0] + 1 :]
    try:
        descriptor = _DECODER.decode(encoded)
    except (ValueError, RecursionError) as error:  # ValueError: msgspec's own, and text that is not UTF-8
        raise DecodeError("descriptor", str(error)) from None
    if not isinstance(descriptor.author, bytes | str):
        raise DecodeError("descriptor", "the author is neither a key nor a name")
    if not descriptor.author:
        raise DecodeError("descriptor", "the author has no name")
    if descriptor.barrier and not _well_named(descriptor):
        raise DecodeError("descriptor", "the barrier names nodes in another way than the author")
    if descriptor.headers is not None:
        wrong = headers.fault(descriptor.headers, descriptor.attributes, signed=descriptor.signed)
        if wrong is None and (named := descriptor.headers.recipients):
            wrong = address.fault(
                named,
                descriptor.node,
                descriptor.destination,
                ordered=bool(descriptor.ordering),
                signed=descriptor.signed,
            )
        if descriptor.headers.home is not None and not address.is_channel(descriptor.destination):
            wrong = "only a message to a channel has a home"
        if wrong is not None:
            raise DecodeError("descriptor", wrong)
    descriptor.__dict__.update(encoded=encoded, signature=signature, wire=wire)
    return descriptor


def _well_named(descriptor: Descriptor) -> bool:
    """Return True if the sources of a barrier are of the same kind as the author: ids of keys, or plain names."""
    if descriptor.signed:
        return all(
            isinstance(each.source, bytes) and len(each.source) == ids.DIGEST_BYTES for each in descriptor.barrier
        )
    return all(isinstance(each.source, str) and each.source for each in descriptor.barrier)
