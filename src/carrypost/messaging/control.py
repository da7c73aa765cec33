"""Control messages about queues, topics and names: their items, the numbers and counts in these, and what bounds them.

A control message has no payload: its content is `Headers.control`, a list of items, many of which travel in one
message. Its author, which signed it, determines what it may ask for. Every item may come twice, late, or after a later
one: it is still true then, or does nothing. So rounds are named where a message may be assigned again, and credit is
the total granted so far.

Numbers. A node numbers what it asks of others: each number contains its incarnation, and later ones are larger. Most
nodes count their incarnations from 1, and have 32 bits for the numbers of each. A node that lost its store, or has no
key, continues from the time in milliseconds: such incarnations need 42 bits, and 20 are left for the numbers of each.
The highest bit distinguishes the two.

Counts (`Tally`) are of the messages that nodes consumed from one queue. They are advertised with the name of the
queue, for programs that place a queue at the busiest node. A queue counts `COUNTED_NODES_MAX` nodes at most, whatever
number of keys an attacker has. Beyond that a newcomer replaces the node that consumed least, and continues its count,
as in the space-saving algorithm. So a node that consumes more than one in `COUNTED_NODES_MAX` messages is always among
them, and no count is too low.

Bounds. Everything that another node may ask of this one has a bound, or a price that is paid from that node's account
(`Accounts`). Keys are free, so a bound for one node holds against that node and not against an attacker with many
keys. The threat model has a table of all items: their authors, their costs, and what happens beyond the bounds.

Items are bounded in different ways. `Acknowledge`, `Release`, `Outcome` and `Snapshot` answer something that this node
assigned or asked: each counts once, and is never refused for coming in a burst, since a lost one would hold up a
message. The same is true of an `Ask` or `Withdraw` of a known demand. What a node asks on its own account, a new
`Ask`, the `Withdraw` of an unknown one, a `Place` or a `Discover`, is paid for from the node's account. A `Browse`
waits its turn (`messaging.queues.queues`). Everything beyond a bound is refused and counted (`Outputs.refuse`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, ClassVar, Final, get_args

import msgspec

from carrypost.application.control import ItemKinds
from carrypost.gossip.transfers.accounts import Budget
from carrypost.log.events import ERROR_MAX, DeadLetter
from carrypost.model import address
from carrypost.model.descriptor import Ordering
from carrypost.model.headers import CONTROL_BYTES_MAX, DESTINATION_MAX
from carrypost.model.ids import NodeId
from carrypost.model.selector import STEPS_MAX
from carrypost.model.times import TIME_US_MAX
from carrypost.security.hpke import KEY_BYTES

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sized


COUNTED_NODES_MAX: Final = 64
"""Nodes that one queue counts for."""
COUNTS_TOLD_MAX: Final = 16
"""Number of nodes whose counts are advertised."""
Counted = tuple[
    Annotated[NodeId, msgspec.Meta(min_length=1, max_length=DESTINATION_MAX)],
    Annotated[int, msgspec.Meta(ge=0, le=TIME_US_MAX)],
]
"""A node, and the number of messages that it consumed."""
Counts = Annotated[tuple[Counted, ...], msgspec.Meta(max_length=COUNTS_TOLD_MAX)]


class Tally:
    """The nodes that consumed most from a queue."""

    __slots__ = ("_counts",)

    def __init__(self) -> None:
        self._counts: dict[NodeId, int] = {}

    def add(self, node: NodeId) -> None:
        """Count one more message."""
        counts = self._counts
        known = counts.get(node, 0)
        if not known and len(counts) >= COUNTED_NODES_MAX:
            known = counts.pop(min(counts, key=counts.__getitem__))
        counts[node] = known + 1

    def restore(self, counts: Iterable[tuple[NodeId, int]]) -> None:
        """Continue from the counts that were advertised before a restart."""
        self._counts |= dict(counts)

    def most(self) -> tuple[tuple[NodeId, int], ...]:
        """Return the nodes that consumed most, at most `COUNTS_TOLD_MAX`, with their counts; the busiest first."""
        return tuple(sorted(self._counts.items(), key=lambda each: (-each[1], each[0]))[:COUNTS_TOLD_MAX])


INCARNATION_BITS: Final = 32
"""Number of bits for the place within an incarnation."""
NUMBER_MAX: Final = 2**63 - 1
_COUNTED_MAX = 2**20
"""Number of incarnations that are counted from 1."""
_DATED: Final = 2**62
_DATED_BITS = 20


def last_before(incarnation: int) -> int:
    """Return the number right before the first one of an incarnation."""
    return incarnation << INCARNATION_BITS if incarnation < _COUNTED_MAX else _DATED | incarnation << _DATED_BITS


def incarnation_of(number: int) -> int:
    """Return the incarnation that a number was given in."""
    return number >> INCARNATION_BITS if number < _DATED else (number - _DATED) >> _DATED_BITS


# --- demands at a manager -------------------------------------------------------------------------------------------

REQUEST_US: Final = 86_400_000_000
"""Time for which a manager keeps a demand without hearing of it again: messages take hours, and nodes part for a day. A
demand that asks for longer is clamped to this, and so is the memory of a demand that was withdrawn."""
REQUESTS_NODE_MAX: Final = 256
"""Requests of one node that a manager remembers, including withdrawn ones."""
REQUESTS_MAX: Final = 4_096
"""Requests of all nodes. Beyond it, the node that has most of them loses one to a node that has fewer."""
WEIGHT_NODE_MAX: Final = STEPS_MAX
"""Steps that the selectors of one node may take for each message that comes."""
WEIGHT_MAX: Final = 8 * STEPS_MAX
"""Weight of the selectors of all nodes together, likewise shared."""
HELD_MAX: Final = 4_096
"""Unanswered messages of one queue that a node may have: as large a prefetch as links of several hops need."""
HELD_MIN: Final = 256
"""Number of unanswered messages that a node may always have, where several nodes ask for those of a queue and each has
at most its even part: two consumers with the default prefetch, or a transaction of that many messages."""
RECEIVERS_MAX: Final = 64
"""Nodes that a queue may name as its receivers: they travel with each of its advertisements, in 2 KiB."""

# --- browsing queues -------------------------------------------------------------------------------------------------

SNAPSHOT_MAX: Final = 1_000
"""Number of messages in the answer to a browse."""
SNAPSHOT_PART: Final = 100
"""Number of messages in one item of that answer."""
ANSWER_US: Final = 3_600_000_000
"""Time for which a question waits for its answer, and an answer for the node that asked."""
BROWSES_MAX: Final = 64
"""Browses that a node has open, at its own end and at each manager."""
BROWSES_ALL_MAX: Final = 1_024
"""Browses of all nodes that wait at a manager."""
BROWSE_STEPS_MAX: Final = 500_000
"""Steps that the selector of one browse may take, about 0.1 s; messages beyond these steps are not shown."""

# --- at a receiver ---------------------------------------------------------------------------------------------------

ASKED_MAX: Final = 4_096
"""Number of queues of other nodes that a node remembers having asked: no other node may assign anything to it."""
ASKED_US: Final = 30 * 86_400_000_000
"""Time for which that is remembered; assignments made meanwhile travel for as long as messages live."""
ASSIGNED_MAX: Final = 2 * HELD_MAX
"""Messages of one queue that a receiver remembers as assigned to it: those that it has, and those that it gave back."""

# --- queues that others place here -----------------------------------------------------------------------------------

PLACES_MAX: Final = 64
"""Nodes that are being asked to manage queues, at the asking end."""
PLACES_PER_S: Final = 10
"""Questions of all nodes that are answered in a second."""
PLACED_NAMES_MAX: Final = 128
"""Names that a node may have bound and still manage one more queue for others: half of its limit."""

# --- discovery -------------------------------------------------------------------------------------------------------

DISCOVERIES_MAX: Final = 16
"""Discoveries that wait for answers, at the asking end."""
DISCOVERIES_PER_S: Final = 10
"""Questions of all nodes that are answered in a second."""

# --- accounts --------------------------------------------------------------------------------------------------------

UNITS_PER_S: Final = 10_000
"""Work that a node may cause here on its own account, in units of about a microsecond: a hundredth of a core."""
UNITS_ALL_PER_S: Final = 20 * UNITS_PER_S
"""Work for browses of all nodes together: a fifth of a core, whatever number of keys they have."""
SAVED_S: Final = 10.0
"""Seconds of this that may be saved up. A node that opens 256 consumers in a burst uses a quarter."""
ITEM_UNITS: Final = 100
"""Price of a demand that begins, or of withdrawing an unknown one: a row, and a look at the waiting messages."""
PLACE_UNITS: Final = 10_000
"""Price of a request to manage a queue: two rows, an advertisement, an answer. So one a second."""
DISCOVERY_UNITS: Final = 10_000
"""Price of a question for the names of this node, of which there may be 256. So one a second."""
SELECTOR_UNITS: Final = 4
"""Price of each character of a selector, which has to be parsed."""
STEPS_PER_UNIT: Final = 5
"""Steps of a selector, which is applied to all waiting messages when a demand begins."""
ID_UNITS: Final = 10
"""Price of each message in the answer to a browse: it travels to every carrier."""
ACCOUNTS_MAX: Final = 4_096
"""Number of nodes with an account; beyond it, those that owe least are forgotten."""


def deadline_us(asked_us: int, now: int, skew_us: int) -> int:
    """Return the end of a demand that asks to last until `asked_us`, by a clock that may be ahead by `skew_us`."""
    return min(asked_us, now + REQUEST_US + skew_us)


def greediest(shares: Mapping[NodeId, Sized], node: NodeId) -> NodeId | None:
    """Return the node with the largest share, if it has to lose one for another of `node`; None if none has.

    That is so if it keeps at least as many as `node` then has. So a node that floods displaces only its own, and many
    nodes with one each displace none.
    """
    found = max(shares, key=lambda each: len(shares[each]), default=None)
    if found is None or len(shares[found]) <= len(shares.get(node, ())) + 1:
        return None
    return found


class Accounts:
    """The work that other nodes caused on their own account, so that each causes a bounded amount per second."""

    def __init__(self) -> None:
        self._budgets: dict[NodeId, Budget] = {}

    def __len__(self) -> int:
        return len(self._budgets)

    def pay(self, node: NodeId, units: int, now: int) -> bool:
        """Charge a node, unless that is more than it has saved up; return True if it paid."""
        if units > UNITS_PER_S * SAVED_S:
            return False
        budget = self._budgets.get(node)
        if budget is None:
            if len(self._budgets) >= ACCOUNTS_MAX:
                self._forget_half(now)
            budget = self._budgets[node] = Budget(UNITS_PER_S, SAVED_S)
        return budget.try_spend(units, now)

    def _forget_half(self, now: int) -> None:
        """Keep the accounts that owe most: being forgotten would be a gift to them."""
        owing = sorted(self._budgets.items(), key=lambda each: each[1].share(now))
        self._budgets = dict(owing[: ACCOUNTS_MAX // 2])


REASON_MAX = 256
"""Characters of a reason."""
_Name = Annotated[str, msgspec.Meta(min_length=1, max_length=256)]
"""The name of a queue, without its node."""
_Selector = Annotated[str, msgspec.Meta(max_length=4096)]
"""Selector of the messages that are meant; empty: all."""
_Message = Annotated[bytes, msgspec.Meta(min_length=1, max_length=512)]
"""The id of a message."""
_Count = Annotated[int, msgspec.Meta(ge=0, le=TIME_US_MAX)]
_Number = Annotated[int, msgspec.Meta(ge=0, le=NUMBER_MAX)]
"""A number that includes the incarnation of its node (`last_before`)."""
_Destination = Annotated[str, msgspec.Meta(min_length=1, max_length=DESTINATION_MAX)]
_Node = Annotated[NodeId, msgspec.Meta(min_length=1, max_length=DESTINATION_MAX)]
_Reason = Annotated[str, msgspec.Meta(max_length=REASON_MAX)]
_Key = Annotated[bytes, msgspec.Meta(max_length=KEY_BYTES)]
_Secrets = Annotated[bytes, msgspec.Meta(max_length=CONTROL_BYTES_MAX)]
NAMES_MAX = 256
"""Names in one answer to a discovery: as many as a node may have."""
STRETCHES_MAX = 256
"""Largest number of ranges in which numbers are sent. With the longest name they fit into a control message."""


class Ask(msgspec.Struct, frozen=True, array_like=True, tag="r", gc=False):
    """A receiver's demand for messages of a queue.

    A later `Ask` with the same number may grant more credit, and extends the demand.
    """

    queue: _Name
    number: _Number
    """Number of the demand, chosen by the receiver. Numbers of a node's later incarnations are higher."""
    credit: _Count
    """Total number of messages that the receiver accepts since the demand began."""
    deadline_us: _Count
    """Time at which it ends unless it is renewed."""
    selector: _Selector = ""
    heard: _Count = 0
    """Number up to which the receiver knows all its assignments."""
    key: _Key = b""
    """Public sealing key of the receiver, for the secrets of sealed messages. Left out where security is off."""
    left_out: ClassVar[int] = 1


class Withdraw(msgspec.Struct, frozen=True, array_like=True, tag="w", gc=False):
    """The end of a demand. Messages that are assigned to it stay assigned."""

    queue: _Name
    number: _Number
    """Number of the demand."""


class Terms(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Facts that a receiver has to know of a message beside its assignment."""

    tries: _Count = 0
    """Number of deliveries after which the message becomes a dead letter; 0: as the receiver's settings say."""
    letter: DeadLetter | None = None
    """History of the message, if it is a dead letter."""


class Assign(msgspec.Struct, frozen=True, array_like=True, tag="a", gc=False):
    """The assignment of a queue's message to a receiver."""

    queue: _Name
    message: _Message
    demand: _Number
    """Number of the demand that the message is assigned to."""
    round: _Count
    """Number of times that the message was assigned, including this one. An answer names it."""
    count: _Count = 0
    """Number of times that the message may have been delivered before."""
    lease_us: _Count = 0
    """Time at which the assignment ends; 0: it does not end."""
    until_us: _Count = 0
    """Deadline of the message; 0: none."""
    again: bool = False
    """True if the assignment was sent before and not answered. A receiver that had answered it answers again."""
    number: _Count = 0
    """Number among the assignments of that demand, from 1; 0: unknown."""
    terms: Terms | None = None
    """Terms of the message, if it has any. Left out otherwise, if nothing follows."""
    secret: _Secrets = b""
    """Secret of a sealed message, wrapped for the receiver. Left out for other messages."""
    left_out: ClassVar[int] = 2


class Gone(msgspec.Struct, frozen=True, array_like=True, tag="g", gc=False):
    """Assignments of a demand that ended without an answer: their messages expired, or their leases ended."""

    queue: _Name
    demand: _Number
    """Number of the demand."""
    numbers: Annotated[tuple[_Count, ...], msgspec.Meta(max_length=2 * STRETCHES_MAX)] = ()
    """Numbers of the assignments, as ranges: first and last of each in turn."""
    known: bool = False
    """True in the receiver's answer that it knew all of them."""


class Acknowledge(msgspec.Struct, frozen=True, array_like=True, tag="k", gc=False):
    """Acknowledgement by the receiver of a message."""

    message: _Message
    round: _Count
    """Round that it answers."""


class Release(msgspec.Struct, frozen=True, array_like=True, tag="l", gc=False):
    """Return of an assigned message by its receiver: no program there saw it, or none can consume it."""

    message: _Message
    round: _Count
    """Round that it answers."""
    count: _Count = 0
    """Number of times that the message was delivered."""
    dead: bool = False
    """True if programs there failed with the message too often."""
    error: Annotated[str, msgspec.Meta(max_length=ERROR_MAX)] = ""
    """The last error, if the message is dead. Left out if it is empty."""
    left_out: ClassVar[int] = 1


class Outcome(msgspec.Struct, frozen=True, array_like=True, tag="o", gc=False):
    """The outcome of a message, sent to its author."""

    message: _Message
    kind: Annotated[int, msgspec.Meta(ge=0, le=255)]
    """0: its manager has it; 1: it was consumed; 2: it failed. Other values are for later versions."""
    reason: _Reason = ""
    """Reason of the failure."""


HANDED_OVER, DELIVERED, FAILED = range(3)


class Purge(msgspec.Struct, frozen=True, array_like=True, tag="p", gc=False):
    """Notice that a message to one of the author's own destinations has arrived, so that copies are useless.

    Earlier versions sent it to all nodes; it is still understood.
    """

    message: _Message


class Browse(msgspec.Struct, frozen=True, array_like=True, tag="b", gc=False):
    """Request of a node to see the messages that wait in a queue."""

    queue: _Name
    number: _Count
    """Number that the answer repeats."""
    selector: _Selector = ""
    key: _Key = b""
    """Public sealing key of the node that asks. Left out where security is off."""
    left_out: ClassVar[int] = 1


class Snapshot(msgspec.Struct, frozen=True, array_like=True, tag="s", gc=False):
    """A part of the answer to `Browse`: ids of the waiting messages, in order."""

    queue: _Name
    number: _Count
    """Number of the question."""
    taken_us: _Count
    """Time at which the manager took the snapshot, by its clock."""
    first: _Count
    """Index of the first entry of this part."""
    total: _Count
    """Number of entries in all parts."""
    messages: tuple[_Message, ...] = ()
    """Ids of the messages."""
    secrets: _Secrets = b""
    """Secrets of these messages, 32 bytes for each, wrapped together for the node that asked; zeros for a message that
    is not sealed. Left out if none is."""
    left_out: ClassVar[int] = 1


class Place(msgspec.Struct, frozen=True, array_like=True, tag="n", gc=False):
    """Request of a node that another node manage a queue."""

    queue: _Name
    number: _Count
    """Number that the answer repeats. Numbers of a node's later incarnations are higher."""
    until_us: _Count
    """Time until which the answer is awaited."""
    lease_us: _Count = 0
    """Time that a receiver has for a message before others may get it; 0: unlimited."""
    policy: _Name = "fair"
    """Name of the policy by which messages are handed out."""
    receivers: Annotated[tuple[_Node, ...], msgspec.Meta(max_length=RECEIVERS_MAX)] | None = None
    """Nodes that may receive from the queue besides its manager; nil: any node."""
    advertised: bool = True
    """False if the manager must not advertise the queue."""
    tries: _Count = 0
    """Number of deliveries after which a message becomes a dead letter; 0, which is left out: as settings say."""
    sealed: bool = False
    """True if the queue takes sealed messages alone. Left out otherwise."""
    left_out: ClassVar[int] = 2


class Placed(msgspec.Struct, frozen=True, array_like=True, tag="y", gc=False):
    """The answer to `Place`: the author manages the queue, or declines to."""

    number: _Count
    """Number of the question."""
    accepted: bool
    """True if the author manages the queue."""
    reason: _Reason = ""
    """Reason for declining."""


class Enrol(msgspec.Struct, frozen=True, array_like=True, tag="e", gc=False):
    """Subscription of a node to a topic, at its holder.

    Of all `Enrol` and `Leave` items of a node for one topic, the highest number counts.
    """

    topic: _Name
    """Name of the topic, without the holder's node."""
    number: _Number
    """Number chosen by the subscriber; it increases, also from one incarnation to the next."""
    durable: bool
    """False: the subscriber is served while there is a path to it, and dropped when there is none."""
    deadline_us: _Count
    """Time at which it ends unless it is renewed."""
    selector: _Selector = ""


class Leave(msgspec.Struct, frozen=True, array_like=True, tag="q", gc=False):
    """The end of a node's subscription to a topic."""

    topic: _Name
    """Name of the topic, without the holder's node."""
    number: _Number
    """Number higher than that of the last `Enrol`."""


class Discover(msgspec.Struct, frozen=True, array_like=True, tag="d", gc=False):
    """Request of a node to another, connected one for its names of topics and queues."""

    number: _Count
    """Number that the answer repeats. Numbers of a node's later incarnations are higher."""
    until_us: _Count
    """Time until which the answer is awaited."""


NameEntry = tuple[_Name, _Destination, Ordering]
"""A name, its destination, and the ordering with which the topic is opened."""


class Found(msgspec.Struct, frozen=True, array_like=True, tag="f", gc=False):
    """A part of the answer to `Discover`: names that the author advertises."""

    number: _Count
    """Number of the question."""
    first: _Count
    """Index of the first entry of this part."""
    total: _Count
    """Number of entries in all parts."""
    names: Annotated[tuple[NameEntry, ...], msgspec.Meta(max_length=NAMES_MAX)] = ()
    """Array for each name: the name, its destination, and the ordering of a topic."""


Item = (
    Ask | Withdraw | Assign | Gone | Acknowledge | Release | Outcome | Purge | Browse | Snapshot | Place | Placed
    | Enrol | Leave | Discover | Found
)  # fmt: skip
KINDS: tuple[type, ...] = get_args(Item)

_DATES: dict[type, tuple[str, ...]] = {
    Ask: ("deadline_us",), Assign: ("lease_us", "until_us"), Place: ("until_us",), Enrol: ("deadline_us",),
    Discover: ("until_us",),
}  # fmt: skip
"""Times in items. A node has them in its own time (`Holdings.own_time`), and sends them as dates."""
CONTROL = ItemKinds[Item](Item, address.control, lesser=(Outcome, Snapshot), dates=_DATES)
is_readable = CONTROL.is_readable
control_draft, items_of = CONTROL.draft, CONTROL.items_of
