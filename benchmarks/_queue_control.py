"""Bytes of control messages of queues on one hop: all frames, or parts, about control messages and purges.

Two signed hosts are in contact. One manages a queue; on the other a program sends PERSISTENT messages to it, and
another program there consumes them. So every control message crosses the hop: assignment, acknowledgement and receipt;
and so do the records that purge copies. Descriptors, offers, requests and Acks count; of an offer or a request that
also lists other messages, only the bytes for control messages count. The request that opens the consumer does not
count; renewals of its credit do.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import count
from typing import Final

import msgspec
from benchmarks._pair import Pair, Side

from carrypost.config import Settings
from carrypost.gossip.draft import Draft
from carrypost.gossip.wire import codec
from carrypost.gossip.wire.frames import CARRYING, AckList, AckRecord, Frame, Offer, OpenParcel, Request, kind
from carrypost.gossip.wire.frames import Ack as AckFrame
from carrypost.log.events import Event, Handed
from carrypost.messaging.commands import (
    Ack,
    Connect,
    Consume,
    Credit,
    Declare,
    DeclareQueue,
    OpenSession,
    Receive,
    UnitOfWork,
)
from carrypost.messaging.control import items_of
from carrypost.model.descriptor import Descriptor
from carrypost.model.ids import MessageId

SIZE_BYTES: Final = 100
APART_S: Final = 100.0
"""Seconds between messages that are sent one at a time: all control messages were sent by then."""
_PLENTY: Final = 2**40
_numbers = count(1)


class Member(Side):
    """A host with a program that consumes and acknowledges."""

    def __init__(self, name: str, settings: Settings) -> None:
        super().__init__(name, settings)
        self.host.messaging.open(0)
        self._session = self.host.messaging.execute(OpenSession(self.host.messaging.execute(Connect(), 0)), 0)
        self._prefetch = settings.messaging.prefetch
        self._consumer = 0
        self._taken = 0
        self.handed = 0

    def declare(self, now: int) -> str:
        """Declare a queue that this host manages."""
        return self.host.messaging.execute(DeclareQueue(Declare("jobs")), now, next(_numbers))

    def consume(self, queue: str, now: int) -> None:
        """Take what the queue has, with as much credit as a consumer of the Context API gives, and when it does."""
        self._consumer = self.host.messaging.execute(Consume(self._session, Receive(queue)), now, next(_numbers))
        self.host.messaging.execute(Credit(self._consumer, self._prefetch, _PLENTY), now)

    def send(self, drafts: Iterable[Draft], now: int) -> list[MessageId]:
        """Send messages in one step; return their ids."""
        return [sent.id for sent in self.host.perform(UnitOfWork(next(_numbers), sends=tuple(drafts)), now)]

    def _take(self, event: Event, now: int) -> None:
        if isinstance(event, Handed):
            self.handed += 1
            self._taken += 1
            if self._taken * 2 >= self._prefetch:
                self.host.messaging.execute(Credit(self._consumer, self._taken, 0), now)
                self._taken = 0
            self.host.perform(UnitOfWork(next(_numbers), acks=(Ack(self._session, (event.number,)),)), now)

    def descriptor(self, message: MessageId) -> Descriptor:
        """Return the descriptor of a message that this host has."""
        copy = self.host._holdings.cache.get(message)  # noqa: SLF001 - what is offered is there
        assert copy is not None
        return copy.descriptor


class _Sender:
    """The control messages of one side."""

    def __init__(self) -> None:
        self.handles: set[int] = set()
        self.offers: set[int] = set()
        self.serials: set[int] = set()
        """Of frames that carried them, and were not acknowledged."""


class Account:
    """The bytes that control messages take, by kind of frame."""

    def __init__(self, pair: Pair) -> None:
        self._sides = {"a": pair.a, "b": pair.b}
        self._senders = {"a": _Sender(), "b": _Sender()}
        self._known: set[MessageId] = set()
        self.frame_bytes: Counter[str] = Counter()
        self.items: Counter[str] = Counter()
        """Number of items, by kind."""

    @property
    def messages(self) -> int:
        """Control messages that were offered or sent."""
        return len(self._known)

    def watch(self, sender: str, frames: tuple[Frame, ...]) -> None:
        """One side sends these."""
        peer = self._senders["b" if sender == "a" else "a"]
        for frame in frames:
            self.frame_bytes[kind(frame)] += self._share(frame, sender, peer)

    def _share(self, frame: Frame, sender: str, peer: _Sender) -> int:
        if isinstance(frame, Offer):
            return self._offered(frame, sender)
        if isinstance(frame, Request):
            return _requested(frame, peer)
        if isinstance(frame, AckFrame):
            came = _acked(frame, peer)
            peer.serials -= came
            return codec.wire_size(frame) if came else 0
        if isinstance(frame, AckRecord | AckList):
            return codec.wire_size(frame)
        mine = self._senders[sender]
        if isinstance(frame, OpenParcel):  # It may not have been offered.
            self._know(frame.descriptor, frame.handle, mine)
        if getattr(frame, "handle", None) not in mine.handles:
            return 0
        mine.serials.add(frame.serial)  # type: ignore[union-attr]  # what has a handle has a serial
        return codec.wire_size(frame)

    def _know(self, descriptor: Descriptor, handle: int, sender: _Sender) -> bool:
        """Note the items of a control message; return False for other messages."""
        if not descriptor.destination.startswith("control/"):
            return False
        sender.handles.add(handle)
        if descriptor.id not in self._known:
            self._known.add(descriptor.id)
            self.items.update(type(item).__name__ for item in items_of(descriptor)[0])
        return True

    def _offered(self, offer: Offer, sender: str) -> int:
        mine, side = self._senders[sender], self._sides[sender]
        assert isinstance(side, Member)
        others = []
        for entry in offer.entries:
            if self._know(side.descriptor(entry.message), entry.handle, mine):
                mine.offers.add(offer.serial)
            else:
                others.append(entry)
        if len(others) == len(offer.entries):
            return 0
        rest = msgspec.structs.replace(offer, entries=tuple(others))
        return codec.wire_size(offer) - (codec.wire_size(rest) if others else 0)


def _requested(request: Request, asked: _Sender) -> int:
    others = tuple(handle for handle in request.handles if handle not in asked.handles)
    if not request.handles and not request.pieces:
        return codec.wire_size(request) if asked.offers.intersection(request.offers) else 0
    if others == request.handles:
        return 0
    rest = msgspec.structs.replace(request, handles=others)
    return codec.wire_size(request) - (codec.wire_size(rest) if others or request.pieces else 0)


def _acked(ack: AckFrame, sender: _Sender) -> set[int]:
    bitmap = int.from_bytes(ack.bitmap, "little")
    return {serial for serial in sender.serials if serial >= ack.base and bitmap >> (serial - ack.base) & 1}


@dataclass(frozen=True, slots=True)
class Spoken:
    """The control traffic about messages, per message."""

    together: int
    """Number of messages that are sent at once."""
    nbytes: float
    control_messages: float
    frame_bytes: dict[str, float]
    items: dict[str, float]

    @property
    def carrying_bytes(self) -> float:
        """Bytes of frames that carry messages, for control messages: their descriptors."""
        return sum(self.frame_bytes.get(each.__name__, 0.0) for each in CARRYING)

    @property
    def acknowledging_bytes(self) -> float:
        """Bytes of the records that purge copies, and of comparing lists of them."""
        return sum(self.frame_bytes.get(each.__name__, 0.0) for each in (AckRecord, AckList))


def spoken(messages: int, together: int) -> Spoken:
    """Send this many messages, `together` of them at once."""
    pair = Pair(Settings.emulated(security="signed"), side=Member)
    manager, other = pair.a, pair.b
    assert isinstance(manager, Member)
    assert isinstance(other, Member)
    pair.meet(APART_S)
    queue = manager.declare(pair.now)
    other.consume(queue, pair.now)
    pair.meet(APART_S)
    account = Account(pair)
    for _ in range(messages // together):
        other.send([Draft(queue, bytes(SIZE_BYTES), persistent=True)] * together, pair.now)
        pair.meet(APART_S, account.watch)
    assert other.handed == messages
    return Spoken(
        together, sum(account.frame_bytes.values()) / messages, account.messages / messages,
        {name: nbytes / messages for name, nbytes in account.frame_bytes.items() if nbytes},
        {name: said / messages for name, said in account.items.items()},
    )  # fmt: skip
