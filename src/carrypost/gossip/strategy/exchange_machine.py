"""The exchange with one neighbour as a state machine: the progress in agreeing on what the neighbour lacks."""

# Theory of operation
# -------------------
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
# Read on in `review` (the runs), `reconcile` (the steps of one run) and `offers` (what follows an
# agreement).

from __future__ import annotations

import enum
import sys

from carrypost.errors import StateError


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
