"""The bounds of everything that another node may say to this one about queues, and what each item costs it.

A control item is said by the author of its message, whose signature is on it; keys are free, so a bound for one node
holds against that node and not against somebody with many keys. The threat model has a table of all items: who may say
them, what they may cost, and what happens beyond.

Items differ in what makes them bounded. `Acknowledge`, `Release`, `Outcome` and `Snapshot` answer something that this
node gave or asked: each counts once, and is never refused for coming in a burst, since a lost one would hold up a
message. The same goes for a `Ask` or `Withdraw` of a demand that stands. What a node says on its own account, a
new `Ask`, the `Withdraw` of an unknown one, a `Place` or a `Discover`, is paid for from the node's account. A `Browse`
waits its turn (`mom.queues.showing`). Whatever is beyond a bound is refused and counted (`Outputs.refuse`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from carrypost.gossip.transfers.budget import Budget
from carrypost.model.selector import STEPS_MAX

if TYPE_CHECKING:
    from collections.abc import Mapping, Sized

    from carrypost.model.ids import NodeId

# --- demands at a manager -------------------------------------------------------------------------------------------

REQUEST_US: Final = 86_400_000_000
"""Time for which a demand stands at a manager that hears nothing more of it: messages take hours, and nodes part for a
day. One that asks for longer is clamped to this, and so is the memory of a demand that was withdrawn."""
REQUESTS_NODE_MAX: Final = 256
"""Requests of one node that a manager remembers, those that were withdrawn included."""
REQUESTS_MAX: Final = 4_096
"""Of all nodes. When they are used up the node that has most of them gives one up for a node that has fewer."""
WEIGHT_NODE_MAX: Final = STEPS_MAX
"""Steps that the selectors of one node may take for each message that comes."""
WEIGHT_MAX: Final = 8 * STEPS_MAX
"""Weight of the selectors of all nodes together, likewise shared."""
HELD_MAX: Final = 4_096
"""Messages of one queue that a node may have and not have answered: as large a prefetch as links of some hops need."""
HELD_MIN: Final = 256
"""Number of unanswered messages that a node may always have, where several nodes ask for those of a queue and each has
at most its even part: two consumers with the default prefetch, or a transaction of that many messages."""
RECEIVERS_MAX: Final = 64
"""Nodes that a queue may name as its receivers: they travel with each of its advertisements, in 2 KiB."""

# --- looks into a queue ----------------------------------------------------------------------------------------------

SNAPSHOT_MAX: Final = 1_000
"""Messages of which the answer to a look tells."""
SNAPSHOT_PART: Final = 100
"""So many of them go into one item."""
ANSWER_US: Final = 3_600_000_000
"""A question waits for its answer, and an answer for the node that asked, for so long."""
LOOKS_MAX: Final = 64
"""Looks that a node has open, at its own end and at each manager."""
LOOKS_ALL_MAX: Final = 1_024
"""Looks of all nodes that wait at a manager."""
LOOK_STEPS_MAX: Final = 500_000
"""Steps that the selector of one look may take, about 0.1 s; messages beyond those that they suffice for are not
shown."""

# --- at a receiver ---------------------------------------------------------------------------------------------------

ASKED_MAX: Final = 4_096
"""Queues of other nodes that a node remembers having asked: nobody else assigns anything to it."""
ASKED_US: Final = 30 * 86_400_000_000
"""For so long after it asked last; what was assigned to it meanwhile is on its way for as long as messages live."""
ASSIGNED_MAX: Final = 2 * HELD_MAX
"""Messages of one queue of which a receiver remembers that they were assigned to it: those that it has, and those that
it gave back."""

# --- queues that others place here -----------------------------------------------------------------------------------

PLACES_MAX: Final = 64
"""Nodes that are being asked to manage queues, at the asking end."""
PLACES_PER_S: Final = 10
"""Questions of all nodes that are answered in a second."""
PLACED_NAMES_MAX: Final = 128
"""Names that a node may have bound and still manage one more queue for others: half of all that it may bind."""

# --- discovery -------------------------------------------------------------------------------------------------------

DISCOVERIES_MAX: Final = 16
"""Discoveries that wait for answers, at the asking end."""
DISCOVERIES_PER_S: Final = 10
"""Questions of all nodes that are answered in a second."""

# --- accounts --------------------------------------------------------------------------------------------------------

UNITS_PER_S: Final = 10_000
"""Work that a node may cause here on its own account, in units of about a microsecond: a hundredth of a core."""
UNITS_ALL_PER_S: Final = 20 * UNITS_PER_S
"""Work for looks of all nodes together: a fifth of a core, whatever number of keys they have."""
SAVED_S: Final = 10.0
"""For so many seconds of this it may do at once. A node that opens 256 consumers in a burst uses a quarter."""
ITEM_UNITS: Final = 100
"""For a demand that begins, or the withdrawal of one that is unknown: a row, and a look at what waits."""
PLACE_UNITS: Final = 10_000
"""For a question whether this node will manage a queue: two rows, an advertisement, an answer. So one a second."""
DISCOVERY_UNITS: Final = 10_000
"""For a question for the names of this node, which may be 256. So one a second."""
SELECTOR_UNITS: Final = 4
"""For each character of a selector, which has to be read."""
STEPS_PER_UNIT: Final = 5
"""Steps of a selector, which is held against all that waits when a demand begins."""
ID_UNITS: Final = 10
"""For each message that an answer to a look tells of: it travels to every carrier."""
ACCOUNTS_MAX: Final = 4_096
"""Nodes of which it is remembered what they spent; beyond it, those that owe least are forgotten."""


def deadline_us(asked_us: int, now: int, skew_us: int) -> int:
    """Return when a demand ends that asks to stand until `asked_us`, by a clock that may be ahead by `skew_us`."""
    return min(asked_us, now + REQUEST_US + skew_us)


def greediest(shares: Mapping[NodeId, Sized], node: NodeId) -> NodeId | None:
    """Return the node with the largest share, if one of its gives way to another one of `node`; None if none does.

    It does where it keeps at least as many as `node` then has. So a node that floods displaces only what is its own,
    and many nodes with one each displace nobody.
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
        """Charge a node, unless that is more than it has saved up. Return True if it paid."""
        if units > UNITS_PER_S * SAVED_S:
            return False
        budget = self._budgets.get(node)
        if budget is None:
            if len(self._budgets) >= ACCOUNTS_MAX:
                self._forget_half(now)
            budget = self._budgets[node] = Budget(UNITS_PER_S, SAVED_S)
        return budget.take(units, now)

    def _forget_half(self, now: int) -> None:
        """Keep those that owe most: to be forgotten is worth least to them."""
        owing = sorted(self._budgets.items(), key=lambda each: each[1].share(now))
        self._budgets = dict(owing[: ACCOUNTS_MAX // 2])
