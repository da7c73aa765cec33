"""The exchange with one neighbour as a state machine: how far the two have agreed on what the neighbour lacks.

Theory of operation
-------------------
Two hosts in contact each have a set of messages, and each wants some: those that match its profile. The exchange is
about the difference. A host finds out which of its messages the neighbour wants and lacks, by a *review*; offers those;
and from then on offers only what it gains. Every so often it reviews again, since what it believes goes stale: the
neighbour may have evicted what it had.

A contact has two such exchanges, one in each direction, and each host keeps one of these machines for the direction in
which it gives. The two machines never name each other's states on the wire. What moves them is what a host sees for
itself: the neighbour's profile, the steps of a reconciliation (`Digest`), and its own timer `REVIEW`.

The machine says what may be offered, and that is all it is asked for:

    uninformed, waiting, comparing    nothing: it is not known what the neighbour lacks;
    helping                           what the neighbour's own run has shown it to lack, and nothing else;
    agreed, reviewing                 everything that matches and the neighbour is not believed to know.

What an offer leads to (a request, a burst, acknowledgements) is beside it: offers stay open, and messages under way,
whatever the machine does.

Rules
-----
1. *A run is for one profile.* When the neighbour's profile changes, whatever was compared or shown is void, and the
   machine starts over (`PROFILE_CHANGED`, then `PROFILE_KNOWN`).
2. *The smaller id begins* its run at once; the other waits for `coalesce_s`. Who waits begins when its time has come,
   whoever compares begins anew when no answer comes for a while, and whoever agreed begins again after `digest_every`
   announcements. All of these are `BEGIN`, and all of them are the timer `REVIEW`.
3. *Equal profiles need one run.* Its answers tell both sides everything, so either side's run, once it is over, is
   `AGREE` for both. If both began one, that of the smaller id stands: the other gives its own up (`GIVE_WAY`).
4. *Different profiles need two, one after the other.* The neighbour's run, for what this host wants, also shows what
   the neighbour lacks of that. If it wants any of it, this is offered before this host begins its own run (`SHOWN`).
5. *Nothing to compare is agreement.* Who has nothing that matches the neighbour's profile need not ask, unless the
   profiles are equal and its run would have to serve both.
6. The contact's end is no move: the machine is gone with it, and the next contact begins with a new one.

A move that the table does not have is a fault of this host. It raises, and the state stays what it was. What a
neighbour sends can never cause one: whatever does not fit the state is refused or ignored before it comes to a move.

Why
---
- Why rule 4 offers before it compares: the messages that the other lacks are known already, and on a short contact the
  second run may be all that there is time for.
- Why `reviewing` is not `comparing`: a review of an agreement must not hold up what is new in the meantime. On a slow
  link the run takes longer than many a contact lasts.
- Why waiting has an end even while the neighbour's run goes on (4 s after its last step): the neighbour may be one that
  begins runs and never ends them.
- Why the two sides may disagree about the state, and nothing comes of it: a lost `Digest` leaves one side agreed and
  the other comparing. The one that compares begins anew; who has agreed answers every run, whatever its state.
"""

from __future__ import annotations

import enum
import sys

from carrypost.errors import StateError


class ExchangeState(enum.Enum):
    """The progress of the two hosts in agreeing on what the neighbour lacks."""

    UNINFORMED = "uninformed"
    """The neighbour's interests are not known."""
    WAITING = "waiting"
    """The neighbour may begin; this host does when its time has come."""
    COMPARING = "comparing"
    """The first run of this host with this profile is under way."""
    HELPING = "helping"
    """Messages that the neighbour's run has shown it to lack are offered; then this host begins its own run."""
    AGREED = "agreed"
    """The two sets have been compared: only what is new is offered."""
    REVIEWING = "reviewing"
    """The same, while another run looks whether it is still true."""


class Move(enum.Enum):
    """The inputs that change the state of the exchange."""

    PROFILE_KNOWN = "profile known"
    PROFILE_CHANGED = "profile changed, not known yet"
    BEGIN = "own run begun"
    GIVE_WAY = "own run given up for the neighbour's"
    SHOWN = "neighbour's run over, it lacks something"
    AGREE = "run over, or nothing to compare"


UNINFORMED, WAITING, COMPARING, HELPING, AGREED, REVIEWING = ExchangeState
SYNCED = (AGREED, REVIEWING)
"""The two sets have been compared, so that everything new may be offered."""
UNDECIDED = (WAITING, HELPING)
"""The turn to compare is this host's, and it has not begun."""

EXCHANGE_TABLE: dict[tuple[ExchangeState, Move], ExchangeState] = {
    (UNINFORMED, Move.PROFILE_KNOWN): WAITING,
    (WAITING, Move.PROFILE_CHANGED): UNINFORMED,
    (WAITING, Move.BEGIN): COMPARING,
    (WAITING, Move.SHOWN): HELPING,
    (WAITING, Move.AGREE): AGREED,
    (COMPARING, Move.PROFILE_CHANGED): UNINFORMED,
    (COMPARING, Move.BEGIN): COMPARING,
    (COMPARING, Move.GIVE_WAY): WAITING,
    (COMPARING, Move.AGREE): AGREED,
    (HELPING, Move.PROFILE_CHANGED): UNINFORMED,
    (HELPING, Move.BEGIN): COMPARING,
    (HELPING, Move.SHOWN): HELPING,
    (HELPING, Move.AGREE): AGREED,
    (AGREED, Move.PROFILE_CHANGED): UNINFORMED,
    (AGREED, Move.BEGIN): REVIEWING,
    (AGREED, Move.AGREE): AGREED,
    (REVIEWING, Move.PROFILE_CHANGED): UNINFORMED,
    (REVIEWING, Move.BEGIN): REVIEWING,
    (REVIEWING, Move.GIVE_WAY): AGREED,
    (REVIEWING, Move.AGREE): AGREED,
}


class ReviewRun:
    """One run of a reconciliation, as one of its two sides sees it."""

    __slots__ = ("answered", "asked_us", "free", "mine_only", "number", "openings", "questions", "snapshot")

    def __init__(self, number: int, snapshot: int) -> None:
        self.number = number
        self.snapshot = snapshot
        """Slots of the set as it was when the run began."""
        self.asked_us = 0
        """Time at which a part of it last went out."""
        self.mine_only = 0
        """Slots of what the other side turned out to lack of it."""
        self.questions: dict[int, set[int]] = {}
        """Numbers of the questions that are open, and the parts of each answer that have come."""
        self.answered: dict[int, None] = {}
        """Numbers of the other side's questions that were answered lately."""
        self.openings = 0
        """Frames of the other side that opened it."""
        self.free = True
        """True if an honest neighbour would do the same, so that it is not charged as waste."""

    def forget_slots(self, mask: int) -> None:
        """Believe nothing of these any more."""
        self.snapshot &= ~mask
        self.mine_only &= ~mask


class Agreement:
    """The state of the exchange with one neighbour, and what was found out on the way (`gossip.strategy.review`)."""

    __slots__ = ("answering", "asking", "peer_lacks", "periods", "state", "tries")

    def __init__(self) -> None:
        self.state = UNINFORMED
        """Written by `_move` alone."""
        self.asking: ReviewRun | None = None
        """The run that this host began, for what the neighbour wants: while comparing or reviewing."""
        self.answering: ReviewRun | None = None
        """The last one that the neighbour began, for what this host wants: in any state."""
        self.peer_lacks = 0
        """Messages that the neighbour's run has shown it to lack, while helping."""
        self.periods = 0
        """Of the neighbour's announcements since the last review; every `digest_every`-th repeats it."""
        self.tries = 0
        """Runs begun since the last one that was over."""

    def count_period(self, most: int = sys.maxsize) -> bool:
        """Count a period of the neighbour, unless so many were counted since the last review."""
        if self.periods >= most:
            return False
        self.periods += 1
        return True

    def profile_known(self) -> None:
        """Note that the neighbour's interests are known."""
        self._move(Move.PROFILE_KNOWN)

    def profile_changed(self) -> None:
        """The neighbour wants something else, and it is not known yet what."""
        self._move(Move.PROFILE_CHANGED)
        self.asking = None
        self.peer_lacks = 0

    def begin(self, run: ReviewRun) -> None:
        """Begin a run, for the first time or again."""
        self._move(Move.BEGIN)
        self.asking = run
        self.peer_lacks = self.periods = 0
        self.tries += 1

    def answer(self, run: ReviewRun) -> None:
        """Answer a run that the neighbour begins."""
        self.answering = run

    def give_way(self) -> None:
        """Give up the own run, if there is one, because the neighbour's serves both."""
        if self.asking is not None:
            self._move(Move.GIVE_WAY)
            self.asking = None

    def shown(self, peer_lacks: int) -> None:
        """Learn from the neighbour's run what it lacks."""
        self._move(Move.SHOWN)
        self.peer_lacks |= peer_lacks

    def agree(self) -> None:
        """Believe that it is known what the neighbour lacks."""
        self._move(Move.AGREE)
        self.asking = None
        self.peer_lacks = self.periods = self.tries = 0

    def forget_slots(self, mask: int) -> None:
        """Believe nothing of these any more."""
        self.peer_lacks &= ~mask
        for run in (self.asking, self.answering):
            if run is not None:
                run.forget_slots(mask)

    def _move(self, move: Move) -> None:
        after = EXCHANGE_TABLE.get((self.state, move))
        if after is None:
            raise StateError(f"an exchange that is {self.state.value} has no move {move.name}")
        self.state = after
