"""Items that overlays send each other, and the one table of the authors that may send each kind.

Items travel in `Headers.control` of messages to `overlay/N`, or to `overlay/all` (`application.control`). What a broker
knows of others is packed (here, and in `overlay.tables`), and so are the routes of legs.

The one invariant: an item that `may_say` refuses, or that cannot be unpacked, changes nothing.
"""
# Why one table of authors and items. Items come in messages that any node can address to a broker.
# With the checks spread over their handlers, one that is forgotten lets a stranger move another
# consumer's seat. Here every kind of item names the role that its author has to have, and handlers
# are called for what passed only.

from __future__ import annotations

import enum
import struct
from bisect import bisect_left
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple, Protocol

import msgspec

from carrypost.application.control import ItemKinds
from carrypost.gossip.draft import Draft
from carrypost.gossip.wire.pieces import Blank
from carrypost.model import address
from carrypost.model.headers import DESTINATION_MAX, Headers
from carrypost.model.ids import PREFIX_BYTES, is_node_id
from carrypost.model.times import TIME_US_MAX
from carrypost.overlay.modulators.modulator import Modulator
from carrypost.overlay.modulators.registry import DIGEST_BYTES as MODULE_DIGEST_BYTES
from carrypost.overlay.relocation import HandoffId

if TYPE_CHECKING:
    from collections.abc import Collection, Container, Iterator

    from carrypost.gossip.transfers.link import HostContext
    from carrypost.model.descriptor import Descriptor
    from carrypost.model.ids import NodeId

# --- packed forms ------------------------------------------------------------------------------------------

# Packed forms that brokers send each other: entries about themselves, their versions, and routes of
# legs.
#
# An entry with six neighbours has 40 bytes. Entries are not signed by their authors, because a
# signature of 64 bytes would make an entry 2.6 times as long. A broker that lies can make paths
# longer by entries, and by rosters have events sent to brokers that do not need them. Rosters
# (`overlay.tables`) have versions of the same kind, and are packed in the same way. The route of a
# leg lists the brokers that are still to be passed, by four bytes each.
#
# What holds: of two versions of one broker at most one is the later, and no route passes a broker
# twice.


_HEAD = struct.Struct(">4sIBB")
"""Head of an entry: prefix, version, load, number of neighbours."""
_LINK = struct.Struct(">4sB")
_STAMP = struct.Struct(">4sI")
"""A broker and the version of its entry."""
HOPS_MAX = 255
ENTRIES_BYTES_MAX = 5 * 1024
"""Bytes of packed entries in one item: 128 of six neighbours each. More go in several messages."""
STAMPS_BYTES_MAX = 65_536 * _STAMP.size
ROUTE_BROKERS_MAX = 32
"""Brokers of one route; honest paths are shorter by far."""
ROUTES_MAX = 64
"""Routes of one leg."""
ROUTES_BYTES_MAX = 4 * 1024
"""Bytes of the routes of one leg, whose descriptor also contains the descriptor that it passes on."""
_ROUTE_BYTES = 2
"""Bytes that precede each route in the encoded leg."""
DIGEST_BYTES = 8
_VERSIONS = 2**32


class Versioned(Protocol):
    """A value that each broker writes about itself, and others pass on: an entry, or a roster."""

    @property
    def prefix(self) -> bytes:
        """Four bytes that identify the broker (`node_prefix`)."""

    @property
    def version(self) -> int:
        """Version, which `is_later` compares with others of the same broker."""

    @property
    def fingerprint(self) -> int:
        """Contribution to a digest."""


class Entry(NamedTuple):
    """The neighbours of one broker, as it reports them itself."""

    prefix: bytes
    """Four bytes that identify the broker (`node_prefix`)."""
    version: int
    """Number by which `is_later` compares entries: the upper half is the broker's incarnation, the lower half a
    sequence."""
    load: int
    """Load in percent of the capacity; 255 means 255 or more."""
    neighbours: tuple[tuple[bytes, int], ...]
    """Neighbours by their four bytes, with hops, ascending."""

    @property
    def fingerprint(self) -> int:
        """Contribution of this entry to a digest."""
        return hash_of(self.prefix, self.version)


def first_version(incarnation: int) -> int:
    """Return the first version of a broker's entries in an incarnation."""
    # The incarnation is the upper half, so that a restarted broker, which does not store its
    # version, is later than all that it wrote before.
    return incarnation % 2**16 << 16


def next_version(version: int) -> int:
    """Return the version after this one."""
    return (version + 1) % _VERSIONS


def is_later(version: int, other: int) -> bool:
    """Return True if a version is later than another. They wrap around, so that none is the last (RFC 1982)."""
    # Of two versions exactly half the circle apart neither is the later, which is what the
    # invariant demands.
    return 0 < (version - other) % _VERSIONS < _VERSIONS // 2


def hash_of(prefix: bytes, version: int, kind: int = 1) -> int:
    """Return 64 bits that stand for an entry, or a row of another kind (splitmix64).

    Brokers that forge entries need no collisions to lie.
    """
    # A digest is an XOR of these values. Without mixing, changes of two brokers by the same amount
    # would cancel out, and go unnoticed.
    mixed = (int.from_bytes(prefix, "big") << 32 | version) + kind * 0x9E3779B97F4A7C15
    mixed = ((mixed ^ mixed >> 30) * 0xBF58476D1CE4E5B9) % 2**64
    mixed = ((mixed ^ mixed >> 27) * 0x94D049BB133111EB) % 2**64
    return mixed ^ mixed >> 31


def paged(rows: Iterable[bytes]) -> list[bytes]:
    """Return packed rows, joined to as many parts as items are needed for them."""
    parts: list[bytearray] = []
    for each in rows:
        if not parts or len(parts[-1]) + len(each) > ENTRIES_BYTES_MAX:
            parts.append(bytearray())
        parts[-1] += each
    return [bytes(part) for part in parts]


def unpaged(packed: bytes, head: struct.Struct, cell: struct.Struct) -> Iterator[tuple[Any, list[tuple[Any, ...]]]]:
    """Return the rows that were packed: the fields of the head without the last one, the number of cells, and these.

    Raises `ValueError` for anything else.
    """
    at = 0
    while at < len(packed):
        fields = head.unpack_from(packed, at) if len(packed) - at >= head.size else None
        if fields is None or (end := at + head.size + fields[-1] * cell.size) > len(packed):
            raise ValueError("a row is cut short")
        cells = list(cell.iter_unpack(packed[at + head.size : end]))
        # A canonical form: one set of cells has one encoding, and none is listed twice.
        names = [name for name, *_ in cells]
        if names != sorted(set(names)):
            raise ValueError("the cells of a row must be in order, and listed once each")
        yield fields[:-1], cells
        at = end


def pack(entries: Iterable[Entry]) -> list[bytes]:
    """Return entries as they travel, cut into as many parts as items are needed for them; at least one."""
    return paged(
        _HEAD.pack(each.prefix, each.version, each.load, len(each.neighbours))
        + b"".join([_LINK.pack(prefix, hops) for prefix, hops in each.neighbours])
        for each in entries
    ) or [b""]


def unpack(packed: bytes) -> list[Entry]:
    """Return the entries that were packed; raises `ValueError` for anything else."""
    found = [
        Entry(prefix, version, load, tuple(links)) for (prefix, version, load), links in unpaged(packed, _HEAD, _LINK)
    ]
    for each in found:
        hops = dict(each.neighbours)
        if each.prefix in hops or 0 in hops.values():
            raise ValueError("a broker cannot be its own neighbour, and neighbours are at least one hop away")
    return found


def pack_stamps(entries: Iterable[Versioned]) -> bytes:
    """Return brokers and versions of entries, or of rosters, as they travel."""
    return b"".join(_STAMP.pack(each.prefix, each.version) for each in entries)


def unpack_stamps(packed: bytes) -> dict[bytes, int]:
    """Return versions by broker; raises `ValueError` for bytes that `pack_stamps` cannot have made."""
    if len(packed) % _STAMP.size:
        raise ValueError("a version is cut short")
    return dict(_STAMP.iter_unpack(packed))


def pages(routes: Iterable[bytes]) -> list[tuple[bytes, ...]]:
    """Return routes cut into as many parts as legs are needed for them."""
    found: list[list[bytes]] = []
    room = 0
    for route in routes:
        room -= len(route) + _ROUTE_BYTES
        if room < 0 or len(found[-1]) == ROUTES_MAX:
            found.append([])
            room = ROUTES_BYTES_MAX - len(route) - _ROUTE_BYTES
        found[-1].append(route)
    return [tuple(page) for page in found]


def cursor_pages(cursors: Iterable[tuple[NodeId | str, int]]) -> Iterator[tuple[tuple[NodeId | str, int], ...]]:
    """Return cursors cut into as many parts as items are needed for them."""
    rows = tuple(cursors)
    for at in range(0, len(rows), CURSORS_MAX):
        yield rows[at : at + CURSORS_MAX]


def brokers_of(route: bytes, own: bytes) -> list[bytes]:
    """Return the brokers of a route, in order; raises `ValueError` for one that is cut short or comes back."""
    if not route:
        return []
    if len(route) % PREFIX_BYTES:
        raise ValueError("a route is cut short")
    found = [route[at : at + PREFIX_BYTES] for at in range(0, len(route), PREFIX_BYTES)]
    if len(set(found)) < len(found) or own in found:
        raise ValueError("a route passes a broker twice")
    return found


CURSORS_MAX = 64
"""Most producers whose cursors a consumer sends to its home, and most runs of events in one item."""
DETAIL_MAX = 200
"""Characters of the details of a refusal."""
REFUSAL_MAX = 16
"""Characters of the word that says why a broker refuses a client."""
REPORTED_MAX = 4
"""Most brokers that one report of a consumer lists."""
ATTACH_BYTES_MAX = 1_600
"""Bytes of an `Attach` with cursors. Together with its signature it fits into a message that passes it on."""
_Count = Annotated[int, msgspec.Meta(ge=0, le=TIME_US_MAX)]
_Version = Annotated[int, msgspec.Meta(ge=0, lt=2**32)]
_Digest = Annotated[bytes, msgspec.Meta(min_length=DIGEST_BYTES, max_length=DIGEST_BYTES)]
_Hops = Annotated[int, msgspec.Meta(ge=0, le=HOPS_MAX)]
_Channel = Annotated[str, msgspec.Meta(max_length=DESTINATION_MAX)]
_Name = Annotated[str, msgspec.Meta(min_length=1, max_length=DESTINATION_MAX)]
_Route = Annotated[bytes, msgspec.Meta(max_length=ROUTE_BROKERS_MAX * PREFIX_BYTES)]
Cursors = Annotated[tuple[tuple[_Name, _Count], ...], msgspec.Meta(max_length=CURSORS_MAX)]
"""Producers, and the number of an event of each."""


class Broker(msgspec.Struct, frozen=True, array_like=True, tag="b", gc=False):
    """The author is a broker. Sent to all nodes, and again before the message expires."""

    capacity: _Count = 0
    """Work that it can do, in thousandths of a processor."""
    roster: _Version = 0
    """Version of its roster; 0: it never had clients in this incarnation."""


class Entries(msgspec.Struct, frozen=True, array_like=True, tag="t", gc=False):
    """Entries and rosters that changed since the author's last message, and a digest of all that it has."""

    digest: _Digest
    """XOR of the fingerprints of all entries and rosters."""
    entries: Annotated[bytes, msgspec.Meta(max_length=ENTRIES_BYTES_MAX)] = b""
    """Packed entries (`Entry`)."""
    known: Annotated[bytes, msgspec.Meta(max_length=STAMPS_BYTES_MAX)] | None = None
    """The author lacks something, and asks for it: packed brokers and versions of all entries that it has."""
    rosters: Annotated[bytes, msgspec.Meta(max_length=ENTRIES_BYTES_MAX)] = b""
    """Packed rosters (`rosters.Roster`) that changed."""
    known_rosters: Annotated[bytes, msgspec.Meta(max_length=STAMPS_BYTES_MAX)] | None = None
    """Packed brokers and versions of all rosters that the author has, if it asks for what it lacks."""


class Pass(msgspec.Struct, frozen=True, array_like=True, tag="p", gc=False):
    """The message is a leg: it passes on another message, to the brokers at the ends of its routes."""

    channel: _Channel = ""
    """Name of the message's channel; empty if it belongs to none."""
    routes: Annotated[tuple[_Route, ...], msgspec.Meta(min_length=1, max_length=ROUTES_MAX)] = (b"",)
    """Brokers that are still to be passed, the last one included, by four bytes each; empty: this is the last one."""
    repaired: bool = False
    """True if a route was changed on its way already, because the next broker could not be reached."""
    spread: bool = False
    """True if it is an event on its way to its producer's home, which passes it on to all brokers with seats."""


Relocation = Literal["strict", "stateless", "lossy", "light"]
MoveReason = Literal["nearer", "load", "upstream", "downstream"]


class Role(enum.IntEnum):
    """Use that a client makes of a channel."""

    PRODUCER = 1
    CONSUMER = 2


class Attach(msgspec.Struct, frozen=True, array_like=True, tag="a", gc=False):
    """A client of the author chooses the addressee as its home broker, or leaves it; the newest `Attach` counts."""

    role: Role
    channel: _Name
    subscription: _Count = 0
    """Number of the consumer's subscription; 0 for producers."""
    active: bool = True
    """False: the client leaves."""
    epoch: _Count = 0
    """Number of the seat that results are accepted of; of a consumer that leaves, elsewhere."""
    number: _Count = 0
    """Number of the last result that the consumer accepted, or of the last event that the producer sent."""
    since_us: _Count = 0
    """Time from which on the consumer wants events."""
    cursors: Cursors = ()
    """Producers, and the last event of each that the consumer has; not all, and none if its home has its seat."""
    modulator: Modulator | None = None
    """The modulator of the consumer; none: events go to it as they are."""
    relocation: Relocation = "strict"
    """Variant by which the seat of the consumer moves."""
    adopts: bool = False
    """True: the payload is the state that the seat begins with; all earlier epochs are closed."""
    passed_on: bool = False
    """True: the home that the producer leaves passes on all earlier events, so no seat needs the number of the last
    one."""


class Attached(msgspec.Struct, frozen=True, array_like=True, tag="h", gc=False):
    """The author accepts a client of the addressee, and is its home broker; or it refuses the client."""

    role: Role
    channel: _Channel
    subscription: _Count = 0
    refusal: Annotated[str, msgspec.Meta(max_length=REFUSAL_MAX)] = ""
    """Reason of a refusal, after which the client asks another broker (`overlay.clients`); empty: it is accepted."""
    epoch: _Count = 0
    """Not 0: the seat of a consumer moved to the author, or was adopted by it, and has this epoch now."""
    detail: Annotated[str, msgspec.Meta(max_length=DETAIL_MAX)] = ""
    """Details of the refusal, for people."""


class Progress(msgspec.Struct, frozen=True, array_like=True, tag="G", gc=False):
    """Consumers have checkpoints after these events, which need not be kept for them any longer.

    One consumer of the author, whose home is the addressee; or all consumers at the author, which has seats; or, if the
    author is the addressee's home, all consumers of the channel.
    """

    channel: _Channel
    cursors: Cursors
    """Producers, and the last event of each; those that are not listed are as before."""
    subscription: _Count = 0
    """Number of the consumer's subscription; 0: all consumers."""


class Report(msgspec.Struct, frozen=True, array_like=True, tag="R", gc=False):
    """Brokers are at least as near to a consumer of the author as its home, the addressee."""

    channel: _Channel
    subscription: _Count
    brokers: Annotated[tuple[tuple[_Name, _Hops], ...], msgspec.Meta(min_length=1, max_length=REPORTED_MAX)]
    """The brokers, and the hops from the consumer to each; the nearest first."""
    placed: bool = False
    """True if the seat moved to that home upstream."""


class Moving(msgspec.Struct, frozen=True, array_like=True, tag="m", gc=False):
    """The seat of a consumer of the addressee moves from the author to another broker."""

    channel: _Channel
    subscription: _Count
    epoch: _Count
    """Epoch of the seat at the author; that of the new one is the next."""
    to: _Name
    reason: MoveReason = "nearer"
    """Reason for the move (`events`)."""


class Handoff(msgspec.Struct, frozen=True, array_like=True, tag="o", gc=False):
    """The author offers a seat to the addressee; the message passes on the consumer's own `Attach`."""

    h: HandoffId
    work: _Count = 0
    """Work that the seat makes, in thousandths of a processor."""
    load: _Count = 0
    """Load of the author in percent, with that work."""


class Ready(msgspec.Struct, frozen=True, array_like=True, tag="y", gc=False):
    """The author has listed the client of a seat that it was offered, and keeps its events; or it refuses the seat."""

    h: HandoffId
    refusal: Annotated[str, msgspec.Meta(max_length=REFUSAL_MAX)] = ""
    """Reason of a refusal; empty: there is none."""
    last: Annotated[tuple[tuple[_Name, _Count], ...], msgspec.Meta(max_length=CURSORS_MAX)] | None = None
    """Numbers of the last events of producers that came before it kept them for the seat; None: events do not come."""


class Detour(msgspec.Struct, frozen=True, array_like=True, tag="d", gc=False):
    """Events of a channel are also wanted at another broker. If `to` is the author: the seat stays there after all."""

    h: HandoffId
    channel: _Channel
    to: _Name


class Detoured(msgspec.Struct, frozen=True, array_like=True, tag="D", gc=False):
    """Events of the author's producers after these numbers are sent to both brokers of a relocation."""

    h: HandoffId
    last: Cursors


class State(msgspec.Struct, frozen=True, array_like=True, tag="S", gc=False):
    """The payload is the seat that moves to the addressee (`overlay.relocation`)."""

    h: HandoffId


class Replay(msgspec.Struct, frozen=True, array_like=True, tag="r", gc=False):
    """The author lacks events of the addressee, a producer, for seats that it has."""

    channel: _Channel
    after: _Count
    upto: _Count
    """Last event that is missing; the first has the number after `after`."""
    since_us: _Count = 0
    """Not 0: it does not know where to begin, and wants those that were sent since this time."""


class Sent(msgspec.Struct, frozen=True, array_like=True, tag="n", gc=False):
    """Events that the author, a producer, sent or does not have any more; or that producers attached to it sent."""

    channel: _Channel
    last: Cursors = ()
    """Producers, and the number of the last event of each."""
    since_us: _Count = 0
    """Not 0: a time, as the addressee asked by `Replay`."""
    before: _Count = 0
    """Number of the author's last event before that time. Those after it may be missing."""
    gone: Annotated[tuple[tuple[_Count, _Count], ...], msgspec.Meta(max_length=CURSORS_MAX)] = ()
    """Runs of the author's events that it does not have any more: the number before the first one, and the last one."""


class ModuleWanted(msgspec.Struct, frozen=True, array_like=True, tag="M", gc=False):
    """The author is to run a modulator of the addressee, and lacks its module."""

    digest: Annotated[bytes, msgspec.Meta(min_length=MODULE_DIGEST_BYTES, max_length=MODULE_DIGEST_BYTES)]
    """SHA-256 of the module."""


OfRelocation = Handoff | Ready | Detour | Detoured | State
"""Items of a relocation, by which brokers move a seat."""
OfClients = Attach | Attached | Progress | Report | Moving | ModuleWanted
"""Items of clients and their homes."""
Item = Broker | Entries | Pass | Replay | Sent | OfClients | OfRelocation
ITEMS = ItemKinds[Item](Item, address.overlay)
Reader = Callable[[bytes | Blank], bool]
"""Function that processes the payload of a message; returns False to refuse it. May raise `RemoteError`."""


def shortened(item: Attach) -> Attach:
    """Return an `Attach` with as many of the latest cursors as fit: a broker that moves the seat passes it on."""

    def without(count: int) -> Attach:
        return msgspec.structs.replace(item, cursors=item.cursors[count:])

    if ITEMS.encoded_size(item) <= ATTACH_BYTES_MAX:
        return item
    counts = range(len(item.cursors))
    return without(bisect_left(counts, -ATTACH_BYTES_MAX, key=lambda count: -ITEMS.encoded_size(without(count))))


def event_of(descriptor: Descriptor) -> int:
    """Return the number of an event; 0 if the message is not an event."""
    return 0 if descriptor.headers is None else descriptor.headers.event


def items_of(descriptor: Descriptor) -> tuple[list[Item], int]:
    """Return the items of a message, and the number of those that cannot be read, or name nodes by what is no id.

    Names are checked here, once: later a name may be stored, or encoded as an id, and must not fail there.
    """
    found, unread = ITEMS.items_of(descriptor)
    sound = [each for each in found if not descriptor.signed or all(map(is_node_id, _nodes(each)))]
    return sound, unread + len(found) - len(sound)


def _nodes(item: Item) -> Iterator[str]:
    """Return the nodes that an item names."""
    if isinstance(item, OfRelocation):
        yield item.h.source
    if isinstance(item, Moving | Detour):
        yield item.to
    elif isinstance(item, Report):
        yield from (node for node, _ in item.brokers)
    elif isinstance(item, Attach | Progress):
        yield from (node for node, _ in item.cursors)
    elif isinstance(item, Sent | Detoured | Ready):
        yield from (node for node, _ in item.last or ())


# --- allowed authors of items ------------------------------------------------------------------------------


class Who(enum.Enum):
    """Authors whose items of a kind count."""

    ANYBODY = enum.auto()
    ELIGIBLE = enum.auto()
    """Nodes that `overlay.brokers` lists; all nodes if it lists none."""
    BROKER = enum.auto()
    """Brokers that are known here."""
    CLIENT = enum.auto()
    """Clients of the addressee, which looks for them in its table."""
    LISTED = enum.auto()
    """Clients of the addressee, and brokers, which it looks for in its tables."""
    HOME = enum.auto()
    """Brokers that are known here; of a client it is about, the home, or the broker that was asked to be."""
    PARTY = enum.auto()
    """Brokers that are known here, and have that part in the relocation."""


AUTHORS: dict[type, tuple[Who, bool]] = {
    Broker: (Who.ELIGIBLE, True),
    Entries: (Who.BROKER, False),
    Pass: (Who.ANYBODY, False),
    Attach: (Who.ANYBODY, False),
    Progress: (Who.LISTED, False),
    Attached: (Who.HOME, False),
    Replay: (Who.BROKER, False),
    Sent: (Who.ANYBODY, False),
    ModuleWanted: (Who.BROKER, False),
    Report: (Who.CLIENT, False),
    Moving: (Who.HOME, False),
    Handoff: (Who.BROKER, False),
    Ready: (Who.PARTY, False),
    Detour: (Who.BROKER, False),
    Detoured: (Who.PARTY, False),
    State: (Who.PARTY, False),
}
"""By kind: the authors whose items count, and True if they are for all nodes, False if for one.

Authors whose role only the receiver's tables show are checked again by the part that processes the item.
"""


def may_say(item: Item, author: NodeId, *, to_all: bool, eligible: Collection[str], known: Container[NodeId]) -> bool:
    """Return True if an item counts.

    `eligible`: nodes that may be brokers, all nodes if there are none; `known`: brokers that are known.
    """
    who, said_to_all = AUTHORS[type(item)]
    if said_to_all is not to_all:
        return False
    if who is Who.ELIGIBLE:
        return not eligible or author in eligible
    return who is Who.ANYBODY or who is Who.CLIENT or who is Who.LISTED or author in known


# --- outbox ------------------------------------------------------------------------------------------------

_NOW = Handoff | Ready | Detour | Detoured | Report | Entries
"""Items of momentary use. They go to connected nodes, live `handoff_s`, and are never carried."""
_LEASED = Attach | Attached | Moving | Broker
"""Items that are of use as long as a lease."""
_FREE = Replay | Sent | ModuleWanted | Broker
"""Items that follow from what is durable. Every other one waits until its cause is, unless it is of momentary use."""
_LIFE_US = 60_000_000
"""Lifetime of items that are repeated until they are answered."""
_PRIORITY, _PRIORITY_OF_ALL = 9, 4
"""Priorities of items to one node, and to all."""


class Outbox:
    """Items of one node that have not been published yet. Those to itself are processed without a message."""

    def __init__(self, context: HostContext, lease_us: int) -> None:
        self._node, self._now_us = context.node, round(context.settings.overlay.handoff_s * 1e6)
        self._lease_us = lease_us
        self._drafts: dict[tuple[NodeId | None, Item], Draft] = {}
        self._own: list[tuple[Item, bytes]] = []

    def add(
        self, to: NodeId | None, item: Item, *, origin: bytes = b"", payload: bytes = b"", lifetime_us: int = 0
    ) -> None:
        """Send an item to a node, or to all (None), once in a step.

        `origin`: a message that it passes on, `payload`: content beside it, `lifetime_us`: that of the message, unless
        it is the usual one.
        """
        if to == self._node:
            self._own.append((item, payload))
            return
        now = isinstance(item, _NOW)
        usual_us = self._now_us if now else self._lease_us if isinstance(item, _LEASED) else _LIFE_US
        headers = Headers(control=ITEMS.encode([item]), connected=now, origin=origin)
        destination, priority = (address.OVERLAYS, _PRIORITY_OF_ALL) if to is None else (address.overlay(to), _PRIORITY)
        self._drafts[to, item] = Draft(
            destination, payload, lifetime_us=lifetime_us or usual_us, priority=priority, headers=headers,
            withheld=not now and not isinstance(item, _FREE),
        )  # fmt: skip

    def broadcast(self, nodes: Iterable[NodeId], item: Item) -> None:
        """Send an item to several nodes."""
        for node in nodes:
            self.add(node, item)

    def pop_own(self) -> list[tuple[Item, bytes]]:
        """Return the items of this node to itself, with their payloads, once."""
        own, self._own = self._own, []
        return own

    def drafts(self) -> list[Draft]:
        """Return the messages to publish, once."""
        if not self._drafts:
            return []
        drafts, self._drafts = self._drafts, {}
        return list(drafts.values())
