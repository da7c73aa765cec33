"""The links of a host, its closed network, and the context that all parts of gossip are built on.

A link has an address, the work that it causes, and the state of its transfers. It is known by its address, never by the
node that it claims to be, so that a forger gets a link of its own. The node behind a link, and whether the two hear
each other, is determined by `gossip.discovery`; what is offered over it, by `gossip.strategy`.

A link sends frames (`send`), and passes received ones to the handler of their kind (`receive`). The link of a neighbour
sends datagrams to an address that the driver knows. A layer may have links that send in another way, for example
through a neighbour: it derives them from `Link`, overrides `send`, and gives them the datagram size that is left inside
its own frames. Frames that arrive inside such frames are passed to `receive_inner`.

`Links` holds all of them, those of neighbours and those of layers alike, and their shared state: timers, handlers of
frames, and accounts.

`ClosedNetwork` is the closed network that this host belongs to, if any: keys of its datagrams, and what is refused for
its sake. `application.circles` writes it, from the circle that the settings name; discovery, links and inspection read
it. A link under an older key carries charters and nothing else, so that a member that was away learns of the present
epoch, and nobody who was removed learns anything.

`HostContext` is the foundation of the parts of gossip: values and owners, each of which alone changes its own fields.
"""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, Any, ClassVar, Final, NamedTuple, Protocol

import msgspec

from carrypost.config import Limits, Settings
from carrypost.errors import ForgeryError, LimitError, RemoteError
from carrypost.gossip.holdings.holdings import Holdings
from carrypost.gossip.interest.own_interests import OwnInterests
from carrypost.gossip.outputs import Outputs
from carrypost.gossip.slots import bits
from carrypost.gossip.timers import Schedule, Timers
from carrypost.gossip.transfers.accounts import FRAME, RECORDS_PER_S, Accounts, Budget, Work
from carrypost.gossip.transfers.inbox import Inbox
from carrypost.gossip.transfers.loss import Unconfirmed
from carrypost.gossip.transfers.outbox import FRAME_ROOM, PARCEL_GAIN, Outbox
from carrypost.gossip.wire import codec
from carrypost.gossip.wire.frames import (
    Ack,
    Announce,
    BlankData,
    Data,
    DescriptorPart,
    Frame,
    HashList,
    LinkRecord,
    LinkState,
    Offer,
    OpenParcel,
    OpenRelay,
    Profile,
    ProfileRequest,
    Relay,
    Request,
    StoredData,
    WholeDescriptor,
)
from carrypost.model import address
from carrypost.model.ids import NodeId, node_prefix
from carrypost.model.pattern import Entry, encode_entries, entry, profile_digest
from carrypost.model.times import NEVER
from carrypost.security import packets
from carrypost.security.identity import Identity

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from carrypost.model.descriptor import Descriptor
    from carrypost.security.packets import PacketKeys


_PREVIOUS_EVERY: Final = 4
"""Number of announcements of which one is sent under the key of the previous epoch, too."""


class Way(Protocol):
    """A link, as far as closed networks are concerned."""

    node: NodeId
    prefix: bytes
    is_old: bool


class Known(Protocol):
    """A neighbour, as far as closed networks are concerned."""

    heard_us: int

    @property
    def link(self) -> Way:
        """The link to it."""


class ClosedNetwork:
    """The closed network of one host."""

    __slots__ = (
        "_by_peer", "_destination", "_outputs", "_sent", "digest", "encoded", "entries", "keys", "name", "removed",
        "since_us",
    )  # fmt: skip

    def __init__(self, name: str, outputs: Outputs, by_peer: Mapping[str, Way]) -> None:
        self._outputs, self._by_peer = outputs, by_peer
        self.name = name
        """Name of the circle whose members make up the network; empty: this host is in no closed network."""
        self.keys: PacketKeys | None = None
        """None while this host has no secret of the circle: it says nothing, and hears nothing."""
        self.removed: frozenset[NodeId] = frozenset()
        """Nodes that were removed from the circle."""
        self.since_us = 0
        """Time since which the present key is used."""
        self.entries: tuple[Entry, ...] = ()
        self.encoded = self.digest = b""
        """The profile of links under older keys, which asks for charters alone."""
        self._destination = ""
        self._sent = 0

    def update(self, circle: NodeId, keys: PacketKeys, removed: frozenset[NodeId], now: int) -> None:
        """Take over the state of the circle."""
        if self.keys is None or keys.present != self.keys.present:
            self.since_us = now
        self.keys, self.removed = keys, removed
        if not self._destination:
            self._destination = address.control(circle)
            self.entries = (entry(address.exactly(self._destination)),)
            self.encoded = encode_entries(self.entries)
            self.digest = profile_digest(self.encoded)

    def forget(self) -> None:
        """Note that this host is in the circle no more."""
        self.keys, self.removed, self._destination = None, frozenset(), ""

    def prefix_at(self, peer: str) -> bytes:
        """Return the prefix of the node at a link address; empty if none is known there."""
        link = self._by_peer.get(peer)
        return b"" if link is None else link.prefix

    def refuse(self, count: int) -> None:
        """Count datagrams that a driver dropped at a lookup: strangers sent them, or repeated those of members."""
        self._outputs.refuse("packet", "", count=count)

    def admits(self, frame: Announce, peer: str, neighbours: Iterable[Known]) -> bool:
        """Return False for announcements of nodes that were removed, and of members that repeat under an older key."""
        if not self.name:
            return True
        if frame.node in self.removed:
            self._outputs.refuse("removed", peer)
            return False
        # A member that has the present key is heard under that, and its link is the one to use.
        return not packets.is_old(peer) or not any(
            each.link.node == frame.node and not each.link.is_old and each.heard_us > self.since_us
            for each in neighbours
        )

    def limited(self, frame: Announce, holdings: Holdings) -> Announce:
        """Return an announcement under an older key, as if its node asked for charters alone."""
        if holdings.index.view(self.digest) is None:
            holdings.index.learn(self.entries, self.digest, holdings.known_copies(), own=True)
        return msgspec.structs.replace(frame, profile=self.digest)

    def check(self, found: Descriptor, link: Way) -> None:
        """Refuse messages of authors that were removed, and all but charters under an older key."""
        if self.removed and found.node in self.removed:
            raise ForgeryError("removed")
        if link.is_old and (found.destination != self._destination or found.is_sealed):
            raise LimitError("older-key")

    def repeats(self) -> bytes:
        """Return the key under which the announcement that is due is sent as well; empty: none."""
        if self.keys is None or not self.keys.older:
            return b""
        self._sent += 1
        return b"" if self._sent % _PREVIOUS_EVERY else self.keys.older[0].id


AMPLIFICATION_MAX: Final = 3
"""Bytes that may be sent to an address that is not proven, for each byte received from it (RFC 9000, section 8.1)."""
_INTRODUCTIONS: Final = (Announce, Profile, ProfileRequest)
"""Kinds that are sent to every neighbour that is heard; all others only after a contact has begun."""
_BEFORE_USABLE: Final = (Profile, ProfileRequest, Request, LinkState, LinkRecord)
"""Kinds that are accepted from a neighbour that does not list this host yet; a request that names this host is as good
as a list. Frames about links are for all hosts in range, and count only later (`island`)."""
_TOGETHER: Final = frozenset((OpenParcel, OpenRelay, Relay))
"""Kinds that come in bursts: those of one datagram are handled together, after all other frames."""
_UNDER_OLDER_KEYS: Final = frozenset((
    Announce, Profile, ProfileRequest, Offer, Request, DescriptorPart, WholeDescriptor, HashList, Data,
    BlankData, StoredData, Ack, OpenParcel,
))  # fmt: skip
"""Kinds that are accepted under an older key of a closed network: those by which a charter is found and brought."""
_AT_ONCE: Final = 4
"""Frames between two looks at the work that they cause."""
_ANSWERS_PER_S, _ANSWERS_BURST_S = 4.0, 25.0
"""Frames that a neighbour gets for the asking: the longest list of acknowledgements when a contact begins, then few. It
bounds what is sent because of one neighbour, and not the work for it."""
_FREE: Final = 25
"""Answers that work counts as which a neighbour may begin free of charge: four times at once, then every 6 s."""


class LinkRank(enum.IntEnum):
    """The record of a link, which decides about places where there are too few (`gossip.discovery.neighbour`)."""

    STRANGER = 0
    TAKER = 1
    """The neighbour acknowledged a whole message."""
    GIVER = 2
    """The neighbour brought at least a piece of a message that was requested and verified."""


STRANGER, TAKER, GIVER = LinkRank


class StrategyState(Protocol):
    """The beliefs that a strategy keeps about a link, declared here so that freed slots are forgotten there as well."""

    def forget_slots(self, mask: int) -> None:
        """Drop every belief about these slots."""


class Link:
    """One link of this host."""

    __slots__ = (
        "_allowance", "_handlers", "_links", "_outputs", "accepted_bytes", "answers", "begun_us",
        "body_bytes_max", "broadcast", "datagram_bytes_max", "doubted", "heard", "inbox", "is_old", "known", "node",
        "outbox", "parcel_bytes_max", "peer", "prefix", "rank", "records", "relayed", "served", "served_pieces",
        "strategy_state", "supplies", "timers", "unconfirmed", "usable", "work",
    )  # fmt: skip
    route: ClassVar = False
    """True if the other side is reached over relays: there is no contact with it, and it hears no announcements."""
    path: tuple[NodeId, ...] = ()
    """The relays over which a route last brought something."""

    def __init__(
        self,
        peer: str,
        links: Links,
        *,
        datagram_bytes_max: int | None = None,
        broadcast: bool = True,
        stop_and_wait: bool = False,
        patience_us: int = 0,
    ) -> None:
        settings = links.settings
        self._links, self._handlers, self._outputs = links, links.handlers, links.outputs
        self.peer = peer
        """The address."""
        self._allowance: int | None = None
        """Bytes that may be sent to an address that is not proven; None: any number."""
        self.datagram_bytes_max = datagram_bytes_max or settings.datagram_bytes
        self.body_bytes_max = self.datagram_bytes_max - FRAME_ROOM
        """Size of the frame bodies into which everything sent over the link is cut."""
        self.parcel_bytes_max = self.body_bytes_max + PARCEL_GAIN
        """Largest message that goes as one frame, headers included. `Links` may allow larger ones."""
        self.accepted_bytes = 0
        """The longest datagram that reaches the other side, as it reports; 0: not known."""
        self.is_old = packets.is_old(peer)
        """True if the other side of a closed network sends under an older key: it gets charters, and nothing else."""
        self.broadcast = broadcast and not self.is_old
        """True if the other side hears broadcasts. All such links have one size."""
        self.node = NodeId("")
        """The node that the other side claims to be."""
        self.prefix = b""
        """The name of the other side in requests."""
        self.heard: tuple[bytes, ...] = ()
        """Prefixes of the nodes that the other side reports to hear; none without `beacons`."""
        self.usable = False
        """True if messages may be exchanged over the link. Written by `Links`."""
        self.rank = STRANGER
        self.work = Work()
        self.relayed = Budget(settings.limits.link_relay_bytes_per_s)
        """Bytes that are passed on for the other side."""
        self.records = Budget(RECORDS_PER_S)
        """Records of unknown messages that the other side may pass on, at the pace of an honest host."""
        self.answers = Budget(_ANSWERS_PER_S, burst_s=_ANSWERS_BURST_S)
        """Frames that the other side gets for the asking."""
        self.timers = Timers(links.schedule)
        self.outbox = Outbox(
            self.timers,
            self.datagram_bytes_max,
            settings.window_bytes_max,
            patience_us=patience_us,
            stop_and_wait=stop_and_wait,
        )
        self.strategy_state: StrategyState | None
        self.begun_us: int
        """Time at which the contact was first known to have begun for the other side as well."""
        self.clear()

    # --- frames --------------------------------------------------------------------------------------------

    def send(self, frames: Sequence[Frame]) -> None:
        """Send frames to the other side; to an address that is not proven, only as much as its own frames allow."""
        if self._allowance is not None:
            nbytes = codec.datagram_overhead(len(frames)) + sum(codec.wire_sizes(frames))
            if nbytes > self._allowance:
                return
            self._allowance -= nbytes
        self._outputs.send(frames, self.peer)

    def distrust(self) -> None:
        """Send at most a multiple of what is received, until `trust` is called: the address may be forged."""
        self._allowance = 0

    def received(self, frames: Sequence[Frame], nbytes: int) -> None:
        """Note frames that were received from the address, and their bytes; 0: the driver does not know."""
        if self._allowance is not None:
            self._allowance += AMPLIFICATION_MAX * (nbytes or sum(codec.wire_sizes(frames)))

    def trust(self) -> None:
        """Send any number of bytes: the other side has proven that it receives at the address."""
        self._allowance = None

    def receive(self, frames: Sequence[Frame], now: int, *, began_us: int | None = None) -> bool:
        """Handle frames that came over the link: one by one, except that those of burst kinds are handled together.

        Returns False if they contained nothing new. `began_us`: their sender is charged for the time since then.
        """
        new, work = False, self.work
        accounts = self._links.accounts
        if began_us is None:
            began_us = accounts.clock_us()
        work.began_us = began_us
        together: dict[type, list[Frame]] = {}
        for number, frame in enumerate(frames, 1):
            # By `type`: to ask whether a Struct is an instance of its class takes five times as long.
            kind = type(frame)
            if self.is_old and kind not in _UNDER_OLDER_KEYS:
                self._outputs.refuse("older-key", self.peer)
                continue
            if kind in _TOGETHER and self.usable:
                together.setdefault(kind, []).append(frame)
                continue
            work.begin()
            if not self.usable and not self._listens_to(frame):
                # What a stranger says changes nothing, so it must not cost a round over all links.
                self._outputs.refuse("not-linked" if self.node else "unannounced", self.peer)
                continue
            new = self._dispatch(frame, now) or new
            # Five hundred expensive frames would keep this host busy while all others wait.
            if number % _AT_ONCE == 0 and self.stops(len(frames) - number, now):
                break
        for kind, burst in together.items():
            if not self.usable:  # An announcement among the frames ended the contact: they would not be acknowledged.
                self._outputs.refuse("not-linked", self.peer, count=len(burst))
                work.did(FRAME * len(burst))
            elif (handler := self._handlers.get(kind)) is not None:
                new = handler(self, burst, now) is not False or new
            else:
                self._outputs.refuse("kind", self.peer, count=len(burst))
                work.did(FRAME * len(burst))
        accounts.settle(self.peer, work, began_us, now)
        return new

    def stops(self, left: int, now: int) -> bool:
        """Return True, and refuse the last `left` frames of a step, if those before them wasted too much."""
        if not left or not self._links.accounts.exceeds(self.peer, self.work, now):
            return False
        self._outputs.refuse("muted", self.peer, count=left)
        self.work.did(FRAME * left)  # They were decoded.
        return True

    def answer(self, frames: Sequence[Frame], now: int) -> None:
        """Send frames for the asking, but not as often as the other side likes; raises `LimitError`."""
        if not self.answers.try_spend(len(frames), now):
            raise LimitError("rate")
        self.send(frames)

    def takes_free(self, now: int) -> bool:
        """Return True if work that the other side begins is free: some when a contact begins, then a little at times.

        This is for work that every neighbour causes now and then, and that takes long: comparing sets, and learning a
        profile.
        """
        return self.answers.try_spend(_FREE, now)

    def receive_inner(self, frames: Sequence[Frame], now: int) -> None:
        """Handle frames that came inside another frame, over another link."""
        if self._links.accounts.listens(self.peer, now, neighbour=self.usable):
            self._links.mark_changed(self)
            self.receive(frames, now)
        else:
            self._outputs.refuse("muted", self.peer, count=len(frames))

    def _listens_to(self, frame: Frame) -> bool:
        """Return True if a frame is accepted while messages may not be exchanged."""
        return type(frame) is Announce or (bool(self.node) and type(frame) in _BEFORE_USABLE)

    def _dispatch(self, frame: Frame, now: int) -> bool:
        """Pass a frame to the handler of its kind; return False if it contained nothing new."""
        kind = type(frame)
        handler = self._handlers.get(kind)
        if handler is None:  # Of a layer that this host has not, or not now.
            self._outputs.refuse("kind", self.peer)
            return True
        try:
            new = handler(self, frame, now) is not False
        # The one place where a peer's mistake becomes a count: nothing that a frame contains may
        # raise beyond it.
        except RemoteError as error:
            self._outputs.refuse(error.reason, self.peer)
            return True
        if self.begun_us == NEVER and kind not in _INTRODUCTIONS:
            self.begun(now)
        return new

    # --- the contact ---------------------------------------------------------------------------------------

    def set_accepted_bytes(self, datagram_bytes: int) -> None:
        """Set the longest datagram that reaches the other side, as it reports."""
        self.accepted_bytes = datagram_bytes

    def doubt(self) -> None:
        """Note that long datagrams do not get through in this contact, whatever the other side reports."""
        self.doubted = True

    def fit(self, datagram_bytes: int) -> None:
        """Send as one frame exactly those messages that fit into a datagram of this size."""
        before, self.parcel_bytes_max = self.parcel_bytes_max, datagram_bytes - FRAME_ROOM + PARCEL_GAIN
        if self.parcel_bytes_max < before:
            self.outbox.unpack(self.parcel_bytes_max)

    def begun(self, now: int) -> None:
        """Note that the contact has begun for the other side as well, if that is new."""
        if self.usable and self.begun_us == NEVER:
            self.begun_us = now

    def clear(self) -> None:
        """Reset the link at the end of its contact: everything received or on its way is dropped."""
        self.timers.cancel_all()
        self.inbox = Inbox()
        self.outbox.clear()
        self.unconfirmed = Unconfirmed()
        self.begun_us = NEVER
        self.doubted = False
        self.known = 0
        """Slots of messages that the other side is known to have, or not to want."""
        self.served = 0
        """Slots of messages that were requested whole in this contact, and queued."""
        self.served_pieces: dict[int, int] = {}
        """By slot: the requested pieces, where the message was not requested whole."""
        self.supplies = False
        """True if the other side sends what this host lacks, unasked, until that is acknowledged or declined."""
        self.strategy_state = None

    def supply(self) -> None:
        """Note that the other side knows what this host lacks: it may send as much unasked as its window allows."""
        self.supplies = True

    def attach(self, beliefs: StrategyState) -> None:
        """Attach a strategy's beliefs to this link until the contact is over."""
        self.strategy_state = beliefs

    def claim(self, node: NodeId) -> None:
        """Set the node that claims to be at the other end."""
        if node != self.node:
            self.rank = STRANGER  # The new node at the address has not earned the rank of its predecessor.
        self.node = node
        self.prefix = node_prefix(node)

    def set_heard(self, prefixes: tuple[bytes, ...]) -> None:
        """Set the nodes that the other side reports to hear.

        Without periodic announcements there are none: nobody would be informed of those that leave.
        """
        self.heard = prefixes if self._links.settings.beacons else ()

    def gave(self) -> None:
        """Note that the other side brought at least a piece of a message."""
        self.rank = GIVER

    def took(self) -> None:
        """Note that the other side acknowledged a whole message."""
        if self.rank is STRANGER:
            self.rank = TAKER

    def serve_whole(self, mask: int) -> None:
        """Note messages that are queued with all of their pieces."""
        self.served |= mask

    def serve(self, slot: int, pieces: int) -> int:
        """Note pieces of a message that are queued; return how many of them were queued before in this contact."""
        before = self.served_pieces.get(slot, 0)
        self.served_pieces[slot] = before | pieces
        return (pieces if self.served >> slot & 1 else pieces & before).bit_count()

    def learn(self, mask: int) -> None:
        """Note that the other side has these messages, or does not want them."""
        if mask:
            self.known |= mask

    def unlearn(self, mask: int) -> None:
        """Note that the other side lacks these messages after all."""
        self.known &= ~mask

    def forget_slots(self, mask: int) -> None:
        """Forget what is known of slots that are freed for other messages."""
        self.known &= ~mask
        self.served &= ~mask
        if self.unconfirmed.slots & mask:
            self.unconfirmed.forget_slots(mask)
        for slot in bits(mask) if self.served_pieces else ():
            self.served_pieces.pop(slot, None)
        if self.strategy_state is not None:
            self.strategy_state.forget_slots(mask)


class Links:
    """The links of one host."""

    __slots__ = (
        "_by_peer", "accounts", "carried_bytes", "closed", "datagram_bytes", "get", "handlers", "in_reach", "outputs",
        "schedule", "settings", "changed", "usable",
    )  # fmt: skip

    def __init__(self, settings: Settings, outputs: Outputs, meter: Callable[[], int] | None = None) -> None:
        self.settings, self.outputs = settings, outputs
        self._by_peer: dict[str, Link] = {}
        self.get: Callable[[str], Link | None] = self._by_peer.get
        """Return the link of an address. Called for every datagram."""
        self.usable: list[Link] = []
        """Links over which messages may be exchanged. Replaced, never modified, when one opens or closes."""
        self.carried_bytes = 0
        """The longest datagram that the interfaces here carry, as the driver reports; 0: not known."""
        self.datagram_bytes = settings.datagram_bytes
        """The longest datagram that is sent to any neighbour."""
        self.schedule = Schedule()
        """The timers of all links."""
        self.accounts = Accounts(settings.limits, meter)
        self.handlers: dict[type, Callable[[Link, Any, int], object]] = {}
        """Handlers of frames by kind: each part of gossip enters its own, and so do layers. A handler of a kind that
        comes in bursts gets a list. A handler that finds nothing new returns False."""
        self.closed = ClosedNetwork(settings.sealing.closed, outputs, self._by_peer)
        """The closed network of this host."""
        self.changed: list[Link] = []
        self.in_reach: set[NodeId] = set()
        """Hosts to which a path leads, written by the island alone; empty without an island."""

    def __iter__(self) -> Iterator[Link]:
        return iter(self._by_peer.values())

    def __getitem__(self, peer: str) -> Link:
        return self._by_peer[peer]

    def add(self, link: Link) -> None:
        """Add a new link."""
        self._by_peer[link.peer] = link
        self.schedule.add(link.timers)

    def remove(self, link: Link) -> None:
        """Remove a link. If it is usable, transfers over it end with the step."""
        if link.usable:
            self.mark_changed(link)
        self.open(link, usable=False)
        del self._by_peer[link.peer]
        self.schedule.remove(link.timers)

    def open(self, link: Link, *, usable: bool) -> None:
        """Allow messages to be exchanged over a link, or forbid it."""
        link.usable = usable
        self.usable = [link for link in self if link.usable]
        self.fit()

    def carry(self, datagram_bytes: int) -> None:
        """Set the longest datagram that the interfaces here carry; 0: not known."""
        self.carried_bytes = datagram_bytes
        self.fit()

    def fit(self) -> None:
        """Let datagrams be as long as all neighbours in use accept, unless the settings name a length.

        There is one length for all of them, because one broadcast may serve several.
        """
        if self.settings.mtu_bytes is not None:
            return
        links = [link for link in self.usable if link.broadcast]
        accepted = [0 if link.doubted else link.accepted_bytes for link in links]
        self.datagram_bytes = max(self.settings.datagram_bytes, min([self.carried_bytes, *accepted]))
        for link in links:
            link.fit(self.datagram_bytes)

    def mark_changed(self, link: Link) -> None:
        """Have all links processed at the end of the step, because this one received or ended outside of it."""
        self.changed.append(link)

    def pop_changed(self) -> list[Link]:
        """Return the links passed to `mark_changed` since the last call."""
        changed, self.changed = self.changed, []
        return changed

    def close(self) -> None:
        """Drop all references back to the links, when the host is done with them."""
        self.handlers.clear()
        self._by_peer.clear()
        self.usable = []

    @property
    def sending(self) -> bool:
        """True if anything is on its way to a neighbour."""
        return any(link.outbox.jobs for link in self.usable)


class HostContext(NamedTuple):
    """One host's identity and settings, its holdings, interests and links, and the outputs of its parts."""

    identity: Identity
    settings: Settings
    holdings: Holdings
    outputs: Outputs
    interests: OwnInterests
    links: Links

    @property
    def node(self) -> NodeId:
        """The id of this node."""
        return self.identity.node

    @property
    def prefix(self) -> bytes:
        """The name of this node in heard-lists and requests."""
        return node_prefix(self.identity.node)

    @property
    def limits(self) -> Limits:
        """The bounds on what peers may make this host keep and do."""
        return self.settings.limits
