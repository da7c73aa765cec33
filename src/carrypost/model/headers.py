"""Headers: the metadata of messaging, beside the descriptor's own fields and apart from the application's.

The last field of a descriptor. On the wire it is a map of optional fields by keys of one letter, so that later versions
can add some in any order and number: a carrier passes on fields that it does not know, because a descriptor's bytes
travel verbatim, and the author's signature covers them. A message without headers has no such field at all.

The header names of the papers (JOMS-12 figures 2 and 5, JOMS-15 figure 2) are fields of the descriptor or of this, and
never attributes, so an application may have a property called ``id``; `descriptor_values` has the fields that
patterns see.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

import msgspec

from carrypost.errors import PayloadError
from carrypost.model.ids import DIGEST_BYTES
from carrypost.model.properties import AttributeValue, misfit
from carrypost.model.times import TIME_US_MAX

TEXT_MAX = 1024
"""Length of a text in characters; the default limit of an attribute's value."""
DESTINATION_MAX = 256
FAULT_MAX = 200
OPERATION_MAX = 64
CONTROL_BYTES_MAX = 6 * 1024
"""Leaves a quarter of a descriptor's 8 KiB for everything else; longer content is sent in several messages."""
ORIGIN_BYTES_MAX = 2 * 1024
"""Size of a descriptor that another one holds, signature included: beside it are up to 128 recipients."""
SEAL_BYTES_MAX = 1024 * 1024
"""As long as a descriptor."""
_Text = Annotated[str, msgspec.Meta(max_length=TEXT_MAX)]
_Count = Annotated[int, msgspec.Meta(ge=0, le=TIME_US_MAX)]
_Number = Annotated[int, msgspec.Meta(ge=0, le=255)]
if TYPE_CHECKING:
    _Node = bytes | str
else:
    _Node = Any  # msgspec knows no union of bytes and str, so `address.fault` checks it


RUNS_MAX = 128
"""Number of runs of one result. Together with the producers that they name they fit into a descriptor."""
_Runs = Annotated[tuple[tuple[_Count, _Count, _Count], ...], msgspec.Meta(max_length=RUNS_MAX)]


class Covers(msgspec.Struct, frozen=True, array_like=True, omit_defaults=True, gc=False):
    """The events that a result of a subscription to a channel covers: those since the previous result."""

    epoch: _Count
    """Epoch of the seat that made the result; the consumer accepts results of open epochs only."""
    number: _Count
    """Number among the results of the subscription, from 1, without gaps."""
    producers: Annotated[tuple[_Node, ...], msgspec.Meta(max_length=RUNS_MAX)] = ()
    """Ids of the nodes that emitted the events, each once: text where security is off, else bytes."""
    runs: _Runs = ()
    """Runs of events in the order of processing: the producer's index in `producers`, the number before the first event
    and the number of the last. A run without events means that no event up to its number is missing."""
    discarded: _Count = 0
    """Number of results of these events that the modulator refused to keep."""
    empty: bool = False
    """True if the message only covers events that gave no result; it is not delivered to the program."""
    faults: _Count = 0
    """Number of these events for which the modulator failed."""
    busy_us: _Count = 0
    """Execution time of the modulator for these events."""


class BodyType(enum.IntEnum):
    """The type of message that a program makes of the payload; numbers are part of the wire format."""

    UNSAID = 0
    """Bytes that no program of messaging made."""
    MESSAGE = 1
    """There is none: the message is its headers and properties."""
    TEXT = 2
    BYTES = 3
    MAP = 4
    STREAM = 5
    OBJECT = 6


_KEYS = {
    "operation": "o", "body_type": "b", "property_types": "p", "correlation": "c", "correlation_bytes": "C",
    "reply_to": "r", "type": "t", "delivery_time_us": "d", "sent_us": "s", "client": "i", "connection": "k",
    "session": "e", "number": "n", "receipt": "w", "control": "x", "recipients": "v",
    "origin": "g", "connected": "y", "event": "E", "home": "h", "covers": "V", "joins": "j",
    "fault": "f", "seal": "z",
}  # fmt: skip
"""Keys of the fields on the wire. None is ever reused."""


class Headers(msgspec.Struct, frozen=True, omit_defaults=True, rename=_KEYS, gc=False):
    """Fields of messaging, all of them optional: default values are not encoded."""

    operation: Annotated[str, msgspec.Meta(min_length=1, max_length=OPERATION_MAX)] | None = None
    """Request to a queue's manager; the papers' `operation_type`."""
    body_type: _Number = 0
    """0 unspecified, 1 no body, 2 text, 3 bytes, 4 map, 5 stream, 6 object; other values are for later versions."""
    property_types: dict[str, _Number] = msgspec.field(default_factory=dict)
    """Types of properties that do not follow from their values: 0 null, 1 boolean, 2 byte, 3 short, 4 int, 5 long, 6
    float, 7 double, 8 string. All properties but null ones are among the attributes."""
    correlation: _Text | None = None
    """JMSCorrelationID, if it is text."""
    correlation_bytes: Annotated[bytes, msgspec.Meta(max_length=TEXT_MAX)] | None = None
    """JMSCorrelationID, if it is bytes. At most one of the two is set."""
    reply_to: Annotated[str, msgspec.Meta(min_length=1, max_length=DESTINATION_MAX)] | None = None
    """The destination for replies, in full; the papers' `reply_id`."""
    type: _Text | None = None
    """JMSType."""
    delivery_time_us: _Count | None = None
    """Earliest time of delivery, by the author's clock."""
    sent_us: _Count | None = None
    """Time of sending, if it differs from `created_us`: the date of an ordered message may be ahead of it."""
    client: Annotated[str, msgspec.Meta(min_length=1, max_length=TEXT_MAX)] | None = None
    """Client id of the connection that sent the message."""
    connection: _Count = 0
    """Number of that connection in its author's incarnation, from 1."""
    session: _Count = 0
    """Number of the session in its author's incarnation, from 1."""
    number: _Count = 0
    """Number among the messages of that session, from 1; it increases from each message to a destination to the
    next."""
    receipt: bool = False
    """True if the author requests a receipt for its delivery."""
    control: Annotated[bytes, msgspec.Meta(max_length=CONTROL_BYTES_MAX)] = b""
    """Control message from one node to others about queues and names; carriers do not look into it."""
    recipients: tuple[_Node, ...] = ()
    """Ids of the recipients, ascending, each once: text where security is off, else the bytes that the text encodes.
    Without recipients the message is for all subscribers (`model.descriptor_values`)."""
    origin: Annotated[bytes, msgspec.Meta(max_length=ORIGIN_BYTES_MAX)] = b""
    """The message that this one passes on: its descriptor as sent, with its author's signature. Both have the same
    payload. Recipients check that (`security.identity`); carriers do not."""
    connected: bool = False
    """True if the message is only for recipients that are connected with its author (`carrypost.island`)."""
    event: _Count = 0
    """Number among the events of its author to its channel, from 1, without gaps; 0: the message is not an event."""
    home: _Node | None = None
    """For an event, the broker that it goes to first, which passes it on: the home of its producer when it was sent.
    Named like recipients. Without it the event stays at its author, and legs pass it on (`overlay.legs`)."""
    covers: Covers | None = None
    """For a result, the events that it was made of."""
    joins: bool = False
    """True if the message has no content, and only joins its predecessors: later messages name it instead of them. It
    has a place in the order like any other, and is not delivered to programs."""
    fault: Annotated[str, msgspec.Meta(max_length=FAULT_MAX)] = ""
    """For a result, the last error of the modulator, if it failed with events that the result covers."""
    seal: Annotated[bytes, msgspec.Meta(max_length=SEAL_BYTES_MAX)] = b""
    """Of a sealed message, what its readers need: who they are, and all fields that only they see
    (`carrypost.security.sealing`). Carriers do not look into it."""


_ENCODER = msgspec.msgpack.Encoder()
_DECODER = msgspec.msgpack.Decoder(Headers)
_FIELDS = {key: field for field, key in _KEYS.items()}
_PATH = re.compile(r"(?P<fault>.*) - at .*?`\$\.(?P<key>\w).*`", re.DOTALL)
_NONE = Headers()


def key_of(field: str) -> str:
    """Return the key of a field on the wire."""
    return _KEYS[field]


def travelling(headers: Headers) -> dict[str, object]:
    """Return the map of fields in its wire form.

    For the struct itself msgspec would write a longer map header than there are fields with a value.
    """
    made: dict[str, object] = msgspec.to_builtins(headers, builtin_types=(bytes,))
    return made


def checked(headers: Headers, attributes: Mapping[str, AttributeValue]) -> Headers | None:
    """Return a copy as every receiver will decode it, None if it is empty; raises `PayloadError`.

    It is encoded and decoded: so nothing is refused here and accepted there, or the other way round.
    """
    if type(headers) is not Headers:
        raise PayloadError(f"headers must be Headers, not {type(headers).__name__}")
    try:
        made = _DECODER.decode(_ENCODER.encode(headers))
    except msgspec.ValidationError as error:
        raise PayloadError(_fault_of(error)) from None
    except UnicodeEncodeError:
        raise PayloadError("headers must be Unicode text without lone surrogates") from None
    except (TypeError, OverflowError, RecursionError) as error:
        raise PayloadError(f"headers that cannot be encoded: {error}") from None
    wrong = fault(made, attributes)
    if wrong is not None:
        raise PayloadError(wrong)
    return None if made == _NONE else made


def fault(headers: Headers, attributes: Mapping[str, AttributeValue], *, signed: bool | None = None) -> str | None:
    """Return the fault of headers that types alone do not exclude, or None.

    `signed`: True if the author has a key, False if it has a plain name, None if that is not known yet.
    """
    if headers.correlation is not None and headers.correlation_bytes is not None:
        return "a correlation must be text or bytes, not both"
    if headers.covers is not None and (wrong := _covers_fault(headers.covers, signed)) is not None:
        return wrong
    if headers.home is not None and (wrong := _home_fault(headers, signed)) is not None:
        return wrong
    return misfit(attributes, headers.property_types) if headers.property_types else None


_NAMINGS: tuple[set[type], ...] = (set(), {str}, {bytes})


def _covers_fault(covers: Covers, signed: bool | None) -> str | None:
    named = covers.producers
    kinds = {type(each) for each in named}
    if "" in named or kinds not in _NAMINGS or any(len(each) != DIGEST_BYTES for each in named if type(each) is bytes):
        return "the producers of events are named by ids, all as text or all as bytes"
    if signed is not None and kinds == {str if signed else bytes}:
        return "the producers of events are named in another way than the author"
    if len(set(named)) < len(named):
        return "a producer of events is listed twice"
    if any(at >= len(named) or after > upto for at, after, upto in covers.runs):
        return "a run of events ends before it begins, or is of no producer that is listed"
    return None


def _home_fault(headers: Headers, signed: bool | None) -> str | None:
    home = headers.home
    if not headers.event or headers.recipients:
        return "only an event, without recipients, has a home"
    if not (isinstance(home, bytes) and len(home) == DIGEST_BYTES if signed else isinstance(home, str) and home):
        return "the home of an event is named in another way than the author"
    return None


def _fault_of(error: msgspec.ValidationError) -> str:
    """Return msgspec's description of an error, with the field's name instead of its key."""
    found = _PATH.fullmatch(str(error))
    return f"headers: {error}" if found is None else f"the header {_FIELDS[found['key']]!r}: {found['fault']}"
