"""The exchange with one neighbour: state machine, beliefs about its cache, candidates for offers, and offers made.

`ExchangeMachine` is the progress in agreeing on what the neighbour lacks. `ExchangeContact` is what strategies of
exchange remember of a contact: beliefs about the neighbour's cache, and the offers made to it. No belief outlives the
next review: a neighbour may evict a message at any time, and does not report it to this host.

`Candidates` are messages in the order in which they are offered: each message is ranked once, not once per page.
Messages that the neighbour wants for itself come first, then higher privilege, then those that have waited longest;
ties go to the lowest slot. The rank of a message does not change while it keeps its slot, so the rest of one page is
already in order for the next. Permission to offer a message does change, and is checked when its turn comes.

`Choosing` is the part of a strategy that offers and sessions ask: which messages may go to which neighbour.
"""

# The state machine: theory of operation
# --------------------------------------
# Two hosts in contact each hold a set of messages, and each wants some: those that match its
# profile. The exchange is about the difference. A host finds out which of its messages the
# neighbour wants and lacks, by a *review*; it offers those; and from then on it offers only what it
# gains. It reviews again at intervals, because its beliefs go stale: the neighbour may have evicted
# a message.
#
# The obvious way is one handshake for both directions: exchange digests, then offers, then data, as
# in Vahdat and Becker's epidemic routing. It fails on real contacts. Profiles differ, so that the
# two directions compare different sets. Datagrams are lost, and a handshake in lockstep waits for
# each of them. New messages arrive while the handshake runs, and contacts of a few seconds end in
# the middle of it.
#
# So a contact has two exchanges, one in each direction, and each host keeps one of these machines
# for the direction in which it gives. The two machines never name each other's states on the wire.
# They are moved only by what a host sees for itself: the neighbour's profile, the steps of a
# reconciliation (`Digest`), and its own timer `REVIEW`.
#
# The machine answers one question, namely what may be offered:
#
#     uninformed, waiting, comparing    nothing: it is not known what the neighbour lacks;
#     helping                           what the neighbour's own run has shown it to lack, and nothing else;
#     agreed, reviewing                 everything that matches and that the neighbour is not believed to know.
#
# The consequences of an offer (a request, a burst, acknowledgements) are outside of it: offers stay
# open, and messages stay under way, whatever the machine does.
#
# Rules
# -----
# 1. *A run is for one profile.* When the neighbour's profile changes, everything that was compared
#    or shown is void, and the machine starts over (`PROFILE_CHANGED`, then `PROFILE_KNOWN`).
# 2. *The smaller id begins* its run at once; the other waits for `coalesce_s`. A host that waits
#    begins when that time is over, a host that compares begins anew when no answer comes for a
#    while, and a host that agreed begins again after `digest_every` announcements. All of these are
#    `BEGIN`, and all of them come from the timer `REVIEW`.
# 3. *Equal profiles need one run.* Its answers tell both sides everything, so either side's run,
#    once it is over, is `AGREE` for both. If both sides began one, that of the smaller id is kept:
#    the other gives up its own (`GIVE_WAY`).
# 4. *Different profiles need two runs, one after the other.* The neighbour's run, for what this
#    host wants, also shows what the neighbour lacks of that. If it wants any of it, that is offered
#    before this host's own run (`SHOWN`).
# 5. *Nothing to compare is agreement.* A host without any message that matches the neighbour's
#    profile need not ask, unless the profiles are equal and its run has to serve both directions.
# 6. The end of a contact is no move: the machine is dropped with it, and the next contact begins
#    with a new one.
#
# What must hold
# --------------
# - A move that the table does not have is a bug of this host. It raises, and the state stays what
#   it was. A neighbour cannot cause one: a frame that does not fit the state is refused or ignored
#   before it becomes a move.
# - `_move` alone writes the state, so that every transition is in the table and the table is all
#   there is to read.
# - A run is attached (`asking`) exactly while this host compares or reviews.
#
# Why
# ---
# - Why rule 4 offers before it compares: the messages that the other lacks are known already, and
#   on a short contact the second run may be all that there is time for.
# - Why `reviewing` is not `comparing`: a repeated review must not hold up new messages. On a slow
#   link a run takes longer than many contacts last.
# - Why waiting ends even while the neighbour's run goes on (4 s after its last step): a hostile
#   neighbour could begin runs and never end them.
# - Why the two sides may disagree about the state without harm: a lost `Digest` leaves one side
#   agreed and the other comparing. The one that compares begins anew, and the one that agreed
#   answers every run, whatever its state.
#
# Read on in `review` (the runs, and the steps of each) and `offers` (what follows an agreement).

from __future__ import annotations

import enum
import sys
from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING, Protocol

from carrypost.errors import StateError
from carrypost.gossip.slots import Members, bits, mask_of
from carrypost.gossip.strategy.strategy import Contact
from carrypost.gossip.timers import OFFER, OFFER_AGAIN, REVIEW, Timers
from carrypost.model.times import NEVER

if TYPE_CHECKING:
    from collections.abc import Sequence

    from carrypost.config import Settings
    from carrypost.gossip.holdings.copies import Copy
    from carrypost.gossip.interest.index import View
    from carrypost.gossip.transfers.link import Link


class ExchangeState(enum.Enum):
    """The progress of the two hosts in agreeing on what the neighbour lacks."""

    UNINFORMED = "uninformed"
    """The neighbour's interests are not known."""
    WAITING = "waiting"
    """The neighbour may begin its run; this host begins its own when its time to wait is over."""
    COMPARING = "comparing"
    """The first run of this host with this profile is under way."""
    HELPING = "helping"
    """Messages that the neighbour's run has shown it to lack are offered; then this host begins its own run."""
    AGREED = "agreed"
    """The two sets have been compared: only what is new is offered."""
    REVIEWING = "reviewing"
    """Agreed, while another run checks that the agreement still holds."""


class ExchangeInput(enum.Enum):
    """The inputs that change the state of the exchange."""

    PROFILE_KNOWN = "profile known"
    PROFILE_CHANGED = "profile changed, not known yet"
    BEGIN = "own run begun"
    GIVE_WAY = "own run given up for the neighbour's"
    SHOWN = "neighbour's run over, it lacks something"
    AGREE = "run over, or nothing to compare"


UNINFORMED, WAITING, COMPARING, HELPING, AGREED, REVIEWING = ExchangeState
SYNCED = (AGREED, REVIEWING)
"""States in which the two sets have been compared, so that everything new may be offered."""
UNDECIDED = (WAITING, HELPING)
"""States in which it is this host's turn to compare, and it has not begun."""

EXCHANGE_TABLE: dict[tuple[ExchangeState, ExchangeInput], ExchangeState] = {
    (UNINFORMED, ExchangeInput.PROFILE_KNOWN): WAITING,
    # A profile may become known and change again before the timer ends, so every state but the
    # first has a way back to the start.
    (WAITING, ExchangeInput.PROFILE_CHANGED): UNINFORMED,
    (WAITING, ExchangeInput.BEGIN): COMPARING,
    (WAITING, ExchangeInput.SHOWN): HELPING,
    (WAITING, ExchangeInput.AGREE): AGREED,
    # In any state but UNINFORMED an agreement may come from outside: the neighbour's run serves
    # both (rule 3).
    (COMPARING, ExchangeInput.PROFILE_CHANGED): UNINFORMED,
    (COMPARING, ExchangeInput.BEGIN): COMPARING,
    (COMPARING, ExchangeInput.GIVE_WAY): WAITING,
    (COMPARING, ExchangeInput.AGREE): AGREED,
    (HELPING, ExchangeInput.PROFILE_CHANGED): UNINFORMED,
    (HELPING, ExchangeInput.BEGIN): COMPARING,
    # Nothing but SHOWN adds to what is offered here: the own run has not begun, so that all else
    # would be a guess.
    (HELPING, ExchangeInput.SHOWN): HELPING,
    (HELPING, ExchangeInput.AGREE): AGREED,
    (AGREED, ExchangeInput.PROFILE_CHANGED): UNINFORMED,
    (AGREED, ExchangeInput.BEGIN): REVIEWING,
    # A new agreement while agreed is no fault: the neighbour repeats its run whenever its own
    # beliefs are old.
    (AGREED, ExchangeInput.AGREE): AGREED,
    (REVIEWING, ExchangeInput.PROFILE_CHANGED): UNINFORMED,
    (REVIEWING, ExchangeInput.BEGIN): REVIEWING,
    (REVIEWING, ExchangeInput.GIVE_WAY): AGREED,
    (REVIEWING, ExchangeInput.AGREE): AGREED,
}


class ReviewRun:
    """One run of a reconciliation, as one of its two sides sees it."""

    __slots__ = ("answered", "asked_us", "free", "mine_only", "number", "openings", "questions", "snapshot")

    def __init__(self, number: int, snapshot: int) -> None:
        self.number = number
        self.snapshot = snapshot
        """Slots of the set when the run began."""
        self.asked_us = 0
        """Time at which a part of the run was last sent."""
        self.mine_only = 0
        """Slots of messages that the other side turned out to lack."""
        self.questions: dict[int, set[int]] = {}
        """Numbers of the questions that are open, and the parts of each answer that have come."""
        self.answered: dict[int, None] = {}
        """Numbers of the other side's questions that were answered lately."""
        self.openings = 0
        """Number of frames of the other side that opened the run."""
        self.free = True
        """True if an honest neighbour would do the same, so that it is not charged as waste."""

    def forget_slots(self, mask: int) -> None:
        """Drop every belief about these slots."""
        self.snapshot &= ~mask
        self.mine_only &= ~mask


class ExchangeMachine:
    """The state of the exchange with one neighbour, and the results of its runs so far (`gossip.strategy.review`)."""

    __slots__ = ("answering", "asking", "peer_lacks", "periods", "state", "tries")

    def __init__(self) -> None:
        self.state = UNINFORMED
        """Written by `_move` alone."""
        self.asking: ReviewRun | None = None
        """The run that this host began, for the neighbour's profile: while comparing or reviewing."""
        self.answering: ReviewRun | None = None
        """The last run that the neighbour began, for this host's profile: in any state."""
        self.peer_lacks = 0
        """Slots of messages that the neighbour's run has shown it to lack, while helping."""
        self.periods = 0
        """Number of the neighbour's announcements since the last review, which is repeated every `digest_every` of
        them."""
        self.tries = 0
        """Number of runs begun since one last ended."""

    def count_period(self, most: int = sys.maxsize) -> bool:
        """Count a period of the neighbour, unless this many were counted since the last review."""
        if self.periods >= most:
            return False
        self.periods += 1
        return True

    def profile_known(self) -> None:
        """Note that the neighbour's interests are known."""
        self._move(ExchangeInput.PROFILE_KNOWN)

    def profile_changed(self) -> None:
        """Void what was compared: the neighbour's profile changed, and the new one is not known yet."""
        self._move(ExchangeInput.PROFILE_CHANGED)
        self.asking = None
        self.peer_lacks = 0

    def begin(self, run: ReviewRun) -> None:
        """Begin a run, for the first time or again."""
        self._move(ExchangeInput.BEGIN)
        self.asking = run
        self.peer_lacks = self.periods = 0
        self.tries += 1

    def answer(self, run: ReviewRun) -> None:
        """Remember a run that the neighbour began."""
        self.answering = run

    def give_way(self) -> None:
        """Give up the own run, if there is one, because the neighbour's run serves both."""
        if self.asking is not None:
            self._move(ExchangeInput.GIVE_WAY)
            self.asking = None

    def shown(self, peer_lacks: int) -> None:
        """Note the messages that the neighbour's run has shown it to lack."""
        self._move(ExchangeInput.SHOWN)
        self.peer_lacks |= peer_lacks

    def agree(self) -> None:
        """Note that the comparison is over: the messages that the neighbour lacks are known."""
        self._move(ExchangeInput.AGREE)
        self.asking = None
        self.peer_lacks = self.periods = self.tries = 0

    def forget_slots(self, mask: int) -> None:
        """Drop every belief about these slots."""
        self.peer_lacks &= ~mask
        for run in (self.asking, self.answering):
            if run is not None:
                run.forget_slots(mask)

    def _move(self, move: ExchangeInput) -> None:
        after = EXCHANGE_TABLE.get((self.state, move))
        if after is None:
            raise StateError(f"an exchange that is {self.state.value} has no move {move.name}")
        self.state = after


_FEW = 16
"""Newcomers are pushed one by one if the heap is more than this many times larger."""
_STALE_SLACK = 64
"""Number of stale entries, beyond twice the others, at which stale ones are swept out."""


class Candidates:
    """The messages that one neighbour may be offered."""

    __slots__ = ("_heap", "_ranked")

    def __init__(self) -> None:
        self._heap: list[tuple[bool, int, int, int]] = []
        """For each: True if it would only be carried, its sending order, its slot, and its serial in the cache. Entries
        whose slot was freed are stale, and are skipped."""
        self._ranked = 0
        """The slots in the heap."""

    def __len__(self) -> int:
        return len(self._heap)

    def clear(self) -> None:
        """Forget all ranks, because the neighbour's profile changed."""
        self._heap.clear()
        self._ranked = 0

    def forget_slots(self, mask: int) -> None:
        """Forget slots that are freed for other messages."""
        self._ranked &= ~mask

    def unranked(self, mask: int) -> int:
        """Return the slots among these that were not ranked yet."""
        return mask & ~self._ranked

    def rank(self, mask: int, wanted: int, copies: Sequence[Copy | None]) -> None:
        """Rank slots; the neighbour wants those in `wanted` for itself, and would only carry the others."""
        self._ranked |= mask
        chosen = set(bits(wanted))
        fresh = [
            (slot not in chosen, copy.sending_order, slot, copy.serial)
            for slot in bits(mask)
            if (copy := copies[slot]) is not None
        ]
        # Pushing one entry costs log n and heapify costs n: which is cheaper depends on how many
        # are new.
        if _FEW * len(fresh) < len(self._heap):
            for each in fresh:
                heappush(self._heap, each)
        else:
            self._heap += fresh
            heapify(self._heap)
        # Freed slots leave entries behind. To remove each at once would be O(n); to keep them all
        # would let a neighbour that makes messages come and go grow the heap without end.
        if len(self._heap) > 2 * self._ranked.bit_count() + _STALE_SLACK:
            self._heap = [each for each in self._heap if _tenant(copies, each[2], each[3]) is not None]
            heapify(self._heap)

    def first(self, mask: int, most: int, copies: Sequence[Copy | None]) -> list[Copy]:
        """Return the best `most` of these slots, which must all be ranked already.

        Entries that were looked at and may not be offered now lose their rank, and are ranked again later.
        """
        heap, allowed = self._heap, Members(mask)
        found: list[Copy] = []
        passed: list[int] = []
        while heap and len(found) < most:
            _, _, slot, serial = heappop(heap)
            copy = _tenant(copies, slot, serial)
            if copy is not None:
                passed.append(slot)
                if slot in allowed:
                    found.append(copy)
        self._ranked &= ~mask_of(passed)
        return found


def _tenant(copies: Sequence[Copy | None], slot: int, serial: int) -> Copy | None:
    """Return the copy that has a slot, if it is the one with this serial."""
    copy = copies[slot]
    return copy if copy is not None and copy.serial == serial else None


class OpenOffer:
    """An offer that has not been answered yet."""

    __slots__ = ("due_us", "mask", "tries")

    def __init__(self, mask: int) -> None:
        self.mask = mask
        self.due_us = NEVER
        self.tries = 0


class Judged:
    """The messages that were looked at for a neighbour, each once, and those of them that it is to get."""

    __slots__ = ("found", "seen")

    def __init__(self) -> None:
        self.seen = self.found = 0

    def fresh(self, mask: int) -> int:
        """Return the slots among these that were not looked at yet. The caller does so, and adds to `found`."""
        fresh = mask & ~self.seen
        self.seen |= fresh
        return fresh

    def forget_slots(self, mask: int) -> None:
        """Look at the messages in these slots again."""
        self.seen &= ~mask
        self.found &= ~mask


class OffersMade:
    """The beliefs about one neighbour's cache, and the offers made to it (`gossip.strategy.offers`)."""

    __slots__ = (
        "_timers", "candidates", "carried", "naming", "offered", "offered_us", "open", "partials", "partials_us",
        "stalled",
    )  # fmt: skip

    def __init__(self, timers: Timers) -> None:
        self._timers = timers
        self.candidates = Candidates()
        """Messages that may be offered next."""
        self.naming = Judged()
        """Messages outside the neighbour's profile whose recipient lists were read, and those that name it."""
        self.carried = Judged()
        """Messages for others, and those that the neighbour gets to carry, for strategies that look at each once."""
        self.offered = 0
        """Slots in offers without an answer yet."""
        self.offered_us = -NEVER
        """Time of the last offer of something new."""
        self.open: dict[int, OpenOffer] = {}
        """Open offers, by serial."""
        self.partials: dict[int, int] = {}
        """By slot: the pieces of a half-received message that the last offer listed."""
        self.partials_us = 0
        """Earliest time to report again that a half-received message has grown."""
        self.stalled = False
        """True while the neighbour is overdue: nothing is offered, or offered again, until it is heard."""

    def withdraw(self) -> None:
        """Forget all open offers."""
        self.open.clear()
        self._timers.cancel(OFFER_AGAIN)
        self.offered = 0

    def stall(self) -> None:
        """Pause offers, because the neighbour is overdue."""
        self._timers.cancel(OFFER)
        self._timers.cancel(OFFER_AGAIN)
        self.stalled = True

    def revive(self, now: int) -> None:
        """Resume offers, because the neighbour was heard again."""
        self.stalled = False
        self._timers.arm(OFFER, now)
        self._timers.arm(OFFER_AGAIN, now)

    def answered(self, serial: int) -> int | None:
        """Close an offer that the neighbour answered, and return its slots; None if no such offer is open.

        The neighbour has these messages, or they are on their way to it.
        """
        offer = self.open.pop(serial, None)
        if offer is None:
            return None
        if not self.open:
            self._timers.cancel(OFFER_AGAIN)
        self.offered &= ~offer.mask
        return offer.mask

    def needless(self, mask: int) -> None:
        """Remove slots from open offers, because the neighbour offered the same messages itself."""
        if not self.offered & mask:
            return
        self.offered &= ~mask
        for serial, offer in list(self.open.items()):
            if offer.mask & mask:
                offer.mask &= ~mask
                if not offer.mask:
                    del self.open[serial]
        if not self.open:
            self._timers.cancel(OFFER_AGAIN)

    def forget_slots(self, mask: int) -> None:
        """Drop every belief about these slots."""
        keep = ~mask
        for each in (self.candidates, self.naming, self.carried):
            each.forget_slots(mask)
        self.offered &= keep
        for offer in self.open.values():
            offer.mask &= keep
        for slot in bits(mask) if self.partials else ():
            self.partials.pop(slot, None)


class ExchangeContact(Contact):
    """One neighbour, the messages that it is believed to have, and the state of the comparison with it."""

    __slots__ = ("_review_after", "machine", "offers")

    def __init__(self, link: Link, settings: Settings) -> None:
        super().__init__(link, settings)
        self.offers = OffersMade(link.timers)
        self.machine = ExchangeMachine()
        self._review_after = settings.digest_every - 1
        """Number of periods after which the next one may be due for a comparison."""

    def learn(self, view: View) -> None:
        """Note the neighbour's interests."""
        self.view = view
        self.offers.candidates.clear()
        self.machine.profile_known()

    def unlearn(self) -> None:
        """Drop the neighbour's profile, which it has replaced by one not known yet."""
        self.view = None
        self.machine.profile_changed()
        self.timers.cancel(REVIEW)

    def announced(self, overdue_us: int, *, period: bool) -> bool:
        """Count an announcement that says nothing new; return False if a review may be due."""
        if self.offers.stalled or (period and not self.machine.count_period(self._review_after)):
            return False
        self.overdue_us = overdue_us
        return True

    def count_period(self) -> None:
        """Count a period of the neighbour; after `digest_every` of them the sets are compared again."""
        self.machine.count_period()

    def heard(self, now: int, overdue_us: int) -> None:
        """Note that the neighbour is still there."""
        self.overdue_us = overdue_us
        if self.offers.stalled:
            self.offers.revive(now)

    def forget_slots(self, mask: int) -> None:
        """Drop every belief about slots that were freed for other messages."""
        self.offers.forget_slots(mask)
        self.machine.forget_slots(mask)


class Choosing(Protocol):
    """A strategy, as its offers and sessions see it."""

    @property
    def chooses(self) -> bool:
        """True if `choose` is to be asked."""

    @property
    def unicast(self) -> bool:
        """True if each message is offered to one neighbour at a time."""

    def choose(self, contact: ExchangeContact, mask: int, now: int) -> int:
        """Return those of the slots in `mask` whose messages may go to this neighbour."""
