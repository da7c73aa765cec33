"""Records of connections, subscriptions and claims, which refer to each other, and the claims that wait for a consumer.

A claim is the right of one subscription to one message. It waits for a consumer with credit, or first for its delivery
time; it is handed over, with a count; it comes back if it was not acknowledged; and it ends. The moves are in `MOVES`,
and there are no others. `Backlog` has the claims of one claimant that wait. Claims are made and moved by
`messaging.claims`, subscriptions are added and removed by `messaging.subscriptions`, sessions and consumers by
`messaging.sessions`.
"""

from __future__ import annotations

import enum
from collections import deque
from heapq import heappop, heappush
from typing import TYPE_CHECKING, Generic, NamedTuple, Protocol, TypeVar

import msgspec

from carrypost.errors import InvalidDestinationException, StateError
from carrypost.gossip.interest.matcher import Matcher
from carrypost.messaging.namespace import DEAD_LETTERS
from carrypost.model.address import (
    CIRCLE,
    address,
    channel_of,
    is_channel,
    is_held,
    name_of,
    topic,
    topic_written,
    written,
)
from carrypost.model.descriptor import Ordering
from carrypost.model.pattern import DESTINATION, Entry, plain_forms
from carrypost.model.times import NEVER

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from carrypost.config import Limits
    from carrypost.gossip.holdings.copies import Copy
    from carrypost.messaging.commands import Ack, Subscribe
    from carrypost.messaging.control import Terms
    from carrypost.model.descriptor import Descriptor
    from carrypost.model.ids import NodeId


_STALE_SLACK = 64
"""Places of claims that are gone are swept out when there are this many more than twice those that wait."""


class Placed(Protocol):
    """A claim, which has a place in the order of its claimant's claims."""

    place: int


T = TypeVar("T", bound=Placed)


# Two parts, as claims come back: fresh ones have rising places, and a queue will do; returned ones
# need a heap.
class Backlog(Generic[T]):
    """The claims of one claimant that wait, in the order of their places."""

    __slots__ = ("_fresh", "_order", "_places", "_returned")

    def __init__(self) -> None:
        self._fresh: dict[int, T] = {}
        self._order: deque[int] = deque()
        """Places of those, and of some that are gone: the front of a dict is slow to find after many deletions
        there."""
        self._returned: dict[int, T] = {}
        """Claims that come again: before any that was never handed over."""
        self._places: list[int] = []
        """Heap of the places of those, and of some that are gone."""

    def __len__(self) -> int:
        return len(self._fresh) + len(self._returned)

    def __iter__(self) -> Iterator[T]:
        for place in sorted(self._returned):
            yield self._returned[place]
        yield from self._fresh.values()

    def add(self, claim: T) -> None:
        """Add a claim at the end."""
        self._fresh[claim.place] = claim
        self._order.append(claim.place)

    def put_back(self, claims: Iterable[T]) -> None:
        """Put claims that were handed over back to their places."""
        for claim in claims:
            self._returned[claim.place] = claim
            heappush(self._places, claim.place)

    def discard(self, claim: T) -> None:
        """Remove a claim that ended while it waited."""
        # Places stay behind in the queue and the heap, and are skipped later: to find one in the
        # middle costs the whole length.
        if self._fresh.pop(claim.place, None) is None:
            self._returned.pop(claim.place, None)
        if len(self._order) > 2 * len(self._fresh) + _STALE_SLACK:
            self._order = deque(self._fresh)
        if len(self._places) > 2 * len(self._returned) + _STALE_SLACK:
            self._places = sorted(self._returned)

    @property
    def first(self) -> T:
        """The claim that is next."""
        if self._returned:
            while self._places[0] not in self._returned:
                heappop(self._places)
            # Only places that are still in the dict count: others were discarded meanwhile.
            return self._returned[self._places[0]]
        while self._order[0] not in self._fresh:
            self._order.popleft()
        return self._fresh[self._order[0]]

    def next(self) -> T:
        """Remove and return the first claim."""
        claim = self.first
        del (self._returned or self._fresh)[claim.place]
        return claim


class ClaimState(enum.Enum):
    """The state of a claim."""

    DELAYED = "delayed"
    """The delivery time has not come, or a program deferred the message."""
    WAITING = "waiting"
    """The claim waits for a consumer with credit."""
    HANDED = "handed"
    """A consumer has the message and has not acknowledged it yet."""
    ENDED = "ended"
    """The message was acknowledged, expired or dropped, or the subscription ended."""


class ClaimInput(enum.Enum):
    """The moves of a claim."""

    DUE = "due"
    """The time of delivery has come."""
    HAND = "hand"
    """The message is given to a consumer."""
    RETURN = "return"
    """The consumer returned the message, or is gone."""
    DEFER = "defer"
    """The consumer returned the message, and no consumer gets it for a while."""
    ACKNOWLEDGE = "acknowledge"
    """The consumer acknowledged the message."""
    LEAVE = "leave"
    """The copy expired or was dropped."""
    END = "end"
    """The subscription ended."""


# A table, not methods: the diagram in the documentation is drawn from it, and a move that the table
# does not list raises instead of being half done.
_S, _M = ClaimState, ClaimInput
MOVES: dict[tuple[ClaimState, ClaimInput], ClaimState] = {
    (_S.DELAYED, _M.DUE): _S.WAITING,
    (_S.DELAYED, _M.LEAVE): _S.ENDED,
    (_S.DELAYED, _M.END): _S.ENDED,
    (_S.WAITING, _M.HAND): _S.HANDED,
    (_S.WAITING, _M.LEAVE): _S.ENDED,
    (_S.WAITING, _M.END): _S.ENDED,
    (_S.HANDED, _M.RETURN): _S.WAITING,
    (_S.HANDED, _M.DEFER): _S.DELAYED,
    (_S.HANDED, _M.ACKNOWLEDGE): _S.ENDED,
    (_S.HANDED, _M.LEAVE): _S.ENDED,
    (_S.HANDED, _M.END): _S.ENDED,
}
"""State after each move from each state; other moves are impossible."""


class Tenure(Protocol):
    """The right to a message of a queue, which one node has at a time. How it is stored is up to the implementation."""

    @property
    def count(self) -> int:
        """The number of times that the message was handed over."""

    @property
    def handed(self) -> bool:
        """True if a program of this node may have seen it."""

    @property
    def lease_us(self) -> int:
        """Time until which it is this node's; 0: for good."""

    @property
    def place(self) -> int:
        """The place of its claim when it was handed over on this node; 0 if it was not."""

    @property
    def doubtful(self) -> bool:
        """True if it was handed over before a restart, and perhaps caused it."""

    @property
    def deferred_us(self) -> int:
        """Time until which a program deferred it; 0: it did not."""

    @property
    def queue(self) -> str:
        """The address of its queue."""

    @property
    def terms(self) -> Terms | None:
        """Terms of its message, if it has any."""

    @property
    def copy(self) -> Copy | None:
        """The message, if it is here."""

    @property
    def stands(self) -> bool:
        """True if the message is still this node's."""

    def runs(self, now: int) -> bool:
        """Return True if it may be handed over: its lease is not over.

        A message that was handed over may still be acknowledged.
        """

    def keep(self, count: int, place: int, deferred_us: int) -> None:
        """Note how often it was handed over, its place, and the time until which a program deferred it."""

    def doubt(self) -> None:
        """Note that a program ended, perhaps because of it."""

    def done(self) -> None:
        """End it, because its message was acknowledged."""

    def release(self, *, dead: bool, error: str = "") -> None:
        """Give it back: no program on this node saw it, or (`dead`) none can consume it, because of an error."""


class Claim(msgspec.Struct, eq=False):
    """One message that one claimant has a right to."""

    claimant: Claimant
    copy: Copy
    place: int
    """Place in the order of the claimant's claims."""
    count: int
    """Number of times that it was handed over."""
    tenure: Tenure | None = None
    """The right by which a message of a queue belongs to its consumer; None for messages of topics."""
    state: ClaimState = ClaimState.WAITING
    consumer: Consumer | None = None
    """Consumer that has it."""
    number: int = 0
    """Number under which it was last handed over."""
    leased: bool = False
    """True if it was last handed over with a lease."""
    doubtful: bool = False
    """True if it was handed over before a restart or crash that it perhaps caused: it is handed over alone."""
    accompanied: bool = False
    """True if it is doubtful, and its session had another doubtful claim when it was handed over: a crash does not
    count against it."""
    deferred_us: int = 0
    """Time until which a program deferred it; 0: it did not."""
    lost: int = 0
    """Events of its channel that are missing before it."""

    def is_lapsed(self, now: int) -> bool:
        """Return True if it is a message of a queue whose lease is over, or that another consumer has."""
        return self.tenure is not None and not self.tenure.runs(now)

    def overtake(self, now: int) -> None:
        """Note that its message leaves: if a session has it after its lease, another consumer acknowledged it."""
        if self.state is ClaimState.HANDED and self.consumer is not None and self.leased and self.is_lapsed(now):
            self.consumer.session.overtaken[self.number] = self.claimant

    def doubt(self) -> None:
        """Note that a program was handed it, and perhaps crashed because of it: from now on it is handed over alone."""
        self.doubtful = True
        if self.tenure is not None:
            self.tenure.doubt()

    @property
    def kept(self) -> bool:
        """True if a row has the number of its hand-overs."""
        return self.tenure is not None or (self.claimant.durable and not self.claimant.ended)

    @property
    def tries(self) -> int:
        """Number of deliveries that its queue allows; 0: as the settings say."""
        terms = None if self.tenure is None else self.tenure.terms
        return 0 if terms is None else terms.tries

    @property
    def is_of_dead_letters(self) -> bool:
        """True if it is a dead letter already: those are handed over without limit."""
        return self.tenure is not None and self.claimant.name.startswith(DEAD_LETTERS)

    def move(self, move: ClaimInput) -> None:
        """Change to the state that a move leads to; raises `StateError` for an impossible move."""
        after = MOVES.get((self.state, move))
        if after is None:
            raise StateError(f"a claim that is {self.state.value} cannot {move.value}")
        self.state = after


class Connection(msgspec.Struct, eq=False):
    """One program's connection to this node."""

    number: int
    client: str
    """Client id; empty if it has none."""
    sessions: dict[int, Session] = {}


class Session(msgspec.Struct, eq=False):
    """One thread of work of a connection: what it was handed is acknowledged, or given back, together."""

    number: int
    connection: Connection
    consumers: dict[int, Consumer] = {}
    handed: dict[int, Claim] = {}
    """Claims that it has and did not acknowledge, by number; numbers rise."""
    alone: Claim | None = None
    """The doubtful claim beside which it is handed nothing else for now, if any."""
    alone_until_us: int = 0
    """Time at which it is handed more nevertheless."""
    doubtful: dict[int, Claim] = {}
    """The doubtful claims among those that it has, by number."""
    leased: bool = False
    """True if it was ever handed a message with a lease."""
    overtaken: dict[int, Claimant] = {}
    """By number, who had messages whose leases ended, and that are gone because other consumers acknowledged them."""
    closed: bool = False

    def named(self, ack: Ack) -> list[Claim]:
        """Return the claims that an acknowledgement names, without those that ended meanwhile."""
        found = [claim for number, claim in self.handed.items() if number <= ack.through] if ack.through else []
        numbers = dict.fromkeys(ack.numbers)
        found += [claim for number in numbers if number > ack.through and (claim := self.handed.get(number))]
        return found

    def named_overtaken(self, ack: Ack) -> list[int]:
        """Return the numbers of overtaken messages that an acknowledgement names."""
        return [number for number in self.overtaken if number <= ack.through or number in ack.numbers]

    def forget_overtaken(self, numbers: Iterable[int]) -> None:
        """Forget overtaken messages that its program acknowledged or returned, too late."""
        for number in numbers:
            if (claimant := self.overtaken.pop(number, None)) is not None:
                claimant.answer_late()


class Consumer(msgspec.Struct, eq=False):
    """Receiver of the messages of a claimant, as many as it has credit for."""

    number: int
    session: Session
    claimant: Claimant
    messages: int = 0
    """Number of messages that it still takes."""
    nbytes: int = 0
    """Number of bytes of payload that it still takes; the last message may exceed it."""

    @property
    def has_credit(self) -> bool:
        """True if it takes another message."""
        return self.messages > 0 and self.nbytes > 0 and self.session.alone is None

    def hand(self, claim: Claim) -> None:
        """Record a hand-over to it."""
        self.messages -= 1
        self.nbytes -= claim.copy.descriptor.length
        self.session.handed[claim.number] = claim
        self.session.leased = self.session.leased or claim.leased

    def return_credit(self, claim: Claim) -> None:
        """Undo a hand-over that did not reach it."""
        self.messages += 1
        self.nbytes += claim.copy.descriptor.length


Key = tuple[str, str, bool]
"""Client id, name, and True if it is durable: the identity of named subscriptions."""


class LocalNode(NamedTuple):
    """Id and incarnation of this node."""

    node: NodeId
    incarnation: int


class Claimant:
    """The holder of claims: a subscription to topics, or one consumer of a queue."""

    __slots__ = (
        "_turn", "backlog", "client", "consumers", "durable", "ended", "name", "number", "ordering", "pattern",
    )  # fmt: skip

    def __init__(self, number: int, pattern: str, name: str) -> None:
        self.number = number
        """Number among all claimants of the node: demands at queues have numbers beyond those of subscriptions."""
        self.pattern = pattern
        """Pattern of the destinations of its messages."""
        self.name = name
        """Name that its user gave it."""
        self.client = ""
        """The client id that it belongs to, if any."""
        self.durable = False
        """True if it has a row, and its claims have."""
        self.ordering = Ordering.NONE
        """Ordering with which its topic was opened."""
        self.consumers: list[Consumer] = []
        self.backlog: Backlog[Claim] = Backlog()
        self.ended = False
        self._turn = 0

    @property
    def is_only(self) -> bool:
        """True if no other claimant can have its messages: they are dropped when they are acknowledged."""
        return False

    @property
    def written(self) -> str:
        """Name for people: its topic, with the name that its user gave it, or its queue."""
        name = topic_written(self.pattern)
        place = (
            written(_one(self.pattern) or self.pattern) if name is None else written(topic(name), self.ordering.text)
        )
        return place if self.name in (self.pattern, name_of(self.pattern)) else f"{place} ({self.name})"

    def next_consumer(self) -> Consumer | None:
        """Return the consumer for the next message: of those with credit, each in its turn."""
        # Round robin, so that a consumer that always has credit does not get everything.
        consumers = self.consumers
        for _ in consumers:
            self._turn = (self._turn + 1) % len(consumers)
            if consumers[self._turn].has_credit:
                return consumers[self._turn]
        return None

    def miss(self) -> None:
        """Note that its consumer does not get a message of a queue that was assigned to it."""

    def answer_late(self) -> None:
        """Note that its program acknowledged or returned a message of a queue after its lease."""

    def give_back(self, tenure: Tenure) -> None:
        """Return a message of a queue that none of its sessions has any more."""


class Subscription(Claimant):
    """A subscription to topics."""

    __slots__ = ("_narrower", "asked", "channel", "circle", "connection", "held", "interest", "lease_us", "results")

    def __init__(self, number: int, asked: Subscribe, connection: int, client: str, limits: Limits) -> None:
        pattern = destination_of(asked.entry)
        super().__init__(number, pattern, asked.name or pattern)
        self.asked = asked
        self.client, self.durable, self.ordering = client, asked.durable, asked.ordering
        self.connection = connection
        """The connection that it belongs to; one with a client id belongs to that id."""
        self.interest: Interest | None = None
        self.lease_us = NEVER
        self.held = held_of(asked.entry)
        """The destination of publications, if a node holds the topic; else empty."""
        self.channel = channel_named(asked.entry)
        """Name of the channel that the topic is; empty if it is none."""
        self.results = ""
        """Destination of the results of a channel that are for this subscription."""
        self.circle = is_of_circle(asked.entry)
        """True if the topic is of a circle: then carriers are told its sealed destination alone."""
        whole = asked.ordering or self.held or self.circle
        self._narrower = Matcher((asked.entry,), limits, own=True) if whole else None

    @property
    def is_only(self) -> bool:
        """True if its messages are results of a channel, which are made for each subscription."""
        return bool(self.results)

    @property
    def key(self) -> Key:
        """The key under which it is found, if it has a name."""
        return self.client, self.asked.name, self.asked.durable

    def takes(self, descriptor: Descriptor, here: LocalNode) -> bool:
        """Return True if it wants a message that its interest matches; `here`: this node, in this incarnation."""
        if self._narrower is not None and not self._narrower.matches(descriptor):
            return False
        headers = descriptor.headers
        if not self.asked.no_local or headers is None or descriptor.node != here.node:
            return True
        if self.durable and self.client:
            return headers.client != self.client
        # The incarnation counts, too: after a restart numbers of connections begin anew, and
        # another program may have this one.
        return headers.connection != self.connection or descriptor.incarnation != here.incarnation


class Interest(msgspec.Struct, eq=False):
    """An interest of the node because of subscriptions."""

    entry: Entry
    number: int
    """Number among the node's interests."""
    subscriptions: dict[Subscription, None] = {}
    ends_us: int = NEVER


def held_of(entry: Entry) -> str:
    """Return the destination of publications to a held topic that an entry asks for; empty if it asks for none."""
    pattern = destination_of(entry)
    if not is_held(pattern):
        return ""
    found = _one(pattern)
    if address(found) is None:
        raise InvalidDestinationException(f"a subscription at a holder must name one topic, NAME@NODE, not {pattern!r}")
    return found


def channel_named(entry: Entry) -> str:
    """Return the name of the channel that an entry asks for; empty if it asks for none."""
    pattern = destination_of(entry)
    if not is_channel(pattern):
        return ""
    found = channel_of(_one(pattern))
    if found is None:
        raise InvalidDestinationException(f"a subscription must name one channel, not {pattern!r}")
    return found


def _one(pattern: str) -> str:
    """Return the only destination that a pattern matches; empty if there are several."""
    values, prefixes = plain_forms(pattern) or ((), ())
    return "" if len(values) != 1 or prefixes else next(iter(values))


def is_of_circle(entry: Entry) -> bool:
    """Return True if an entry asks for topics of a circle."""
    return destination_of(entry).startswith(CIRCLE)


def destination_of(entry: Entry) -> str:
    """Return the pattern of an entry's destinations; empty if it names none."""
    return dict(entry.patterns).get(DESTINATION, "")
