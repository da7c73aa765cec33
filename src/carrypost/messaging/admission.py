"""The bounds of everything that another node may ask of this one about queues, and the price of each item.

A control item comes from the author of its message, which signed it. Keys are free, so a bound for one node holds
against that node and not against an attacker with many keys. The threat model has a table of all items: their authors,
their costs, and what happens beyond the bounds.

Items are bounded in different ways. `Acknowledge`, `Release`, `Outcome` and `Snapshot` answer something that this node
assigned or asked: each counts once, and is never refused for coming in a burst, since a lost one would hold up a
message. The same is true of an `Ask` or `Withdraw` of a known demand. What a node asks on its own account, a new `Ask`,
the `Withdraw` of an unknown one, a `Place` or a `Discover`, is paid for from the node's account. A `Browse` waits its
turn (`messaging.queues.snapshots`). Everything beyond a bound is refused and counted (`Outputs.refuse`).
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
