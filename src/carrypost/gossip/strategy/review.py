"""Reviews: agreeing with a neighbour on the messages that it lacks, once per contact and again at intervals.

A review is one run of a reconciliation (`gossip.strategy.reconcile`), begun by the side that offers, for the profile of
the side that receives. The smaller node id begins; the other waits a moment for it. If both profiles are equal, one run
serves both directions. Otherwise the other side runs its own, after it offered what the first run showed its neighbour
to lack.
"""

# What a run believes, and when. A run is over when none of its questions is open. Only then are the
# messages that both sets had in common noted as known to the neighbour, and only then is the rest
# offered. Anything sooner would offer messages that a listing still on its way shows to be there.
#
# What must hold.
# 1. A run ends. Every answer lists a bucket or goes one level deeper (`reconcile`), and a run
#    without answers is begun anew when its patience is over, later each time. While answers come it
#    goes on, however slow the link is.
# 2. Frames of other runs change nothing. A run has a number, a question has a number within it, and
#    an answer names both, the part that it is, and the number of parts. Whatever answers no open
#    question is dropped unread, so duplicates, stragglers and forgeries cost one lookup.
# 3. What a neighbour can make this host do is bounded and charged: questions kept, parts of an
#    answer, frames that open a run, and the runs that it causes by its announcements (`RUN`).
#    A few runs per contact are free, because an honest neighbour needs them.
# 4. The set that is compared is frozen (`ReviewRun.snapshot`). A message that arrives during the
#    run is not in it, so it is neither believed known nor lacking, and is offered as a new one.

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from carrypost.gossip.strategy import reconcile
from carrypost.gossip.strategy.exchange_machine import UNDECIDED, ReviewRun
from carrypost.gossip.timers import OFFER, REVIEW
from carrypost.gossip.wire.frames import Bucket, Digest, Frame

if TYPE_CHECKING:
    from carrypost.gossip.interest.index import View
    from carrypost.gossip.strategy.exchange_contact import ExchangeContact
    from carrypost.gossip.transfers.host_context import HostContext
    from carrypost.gossip.transfers.removals import Removals

_REVIEW_GRACE = 2
"""Number of periods for which the larger id leaves the next review to the other."""
_TURN_US = 4_000_000
"""Time that a neighbour may be silent within its review before this side begins its own."""
_ANSWERED_MAX = 4096
_QUESTIONS_MAX = 4096
"""Number of questions open to one neighbour; beyond it the oldest is forgotten."""
_OPENINGS_MAX = 8
"""Number of frames that may open a run; a neighbour is charged for further ones (`gossip.transfers.accounts`)."""
RUN = 100
"""Work for beginning a run, which a neighbour causes by its announcements (`gossip.transfers.accounts`)."""
_XOR = 12
"""Work for comparing one part of a set, and for listing its contents if it differs."""
_PARTS_MAX = 256
"""Frames of one answer."""


class Review:
    """Runs the reconciliations of one host."""

    def __init__(self, context: HostContext, departures: Removals) -> None:
        self._holdings, self._outputs, self._interests = context.holdings, context.outputs, context.interests
        self._settings, self._node = context.settings, context.node
        self._removals = departures
        self._number = 0
        self._wait_us = round(self._settings.coalesce_s * 1e6)

    def begin(self, contact: ExchangeContact, now: int) -> None:
        """Begin a run, or wait for the neighbour's: a contact began, or its profile changed."""
        if self._node < contact.link.node:
            self.ask(contact, now)
        else:
            contact.timers.arm(REVIEW, now + self._wait_us)

    def conclude(self, contact: ExchangeContact, now: int) -> None:
        """Agree without a comparison: the neighbour may lack anything that it is not known to have."""
        self.agree(contact, ReviewRun(0, 0), now)

    def ask(self, contact: ExchangeContact, now: int) -> None:
        """Begin a run, if the neighbour's profile is known."""
        view = contact.view
        if view is None:
            return
        self._removals.sweep()  # What expired is not compared any more.
        self._holdings.invite()
        self._number += 1
        run = ReviewRun(self._number, view.known)
        # With nothing to compare there is nothing to ask. If the profiles are equal the run also
        # shows what this host lacks, so an empty host asks nevertheless.
        if not run.snapshot and not self.same(contact):
            self.agree(contact, run, now)
            return
        contact.timers.arm(REVIEW, now + self.patience_us(contact))
        contact.machine.begin(run)
        contact.link.work.owe(RUN)
        self._send(contact, run, reconcile.opening(view), 0)

    def due(self, contact: ExchangeContact, now: int) -> bool:
        """Return True, and arm the timer, if it is time to compare again.

        A review is repeated every `digest_every` periods of the neighbour, by the smaller id if it can.
        """
        grace = 0 if self._node < contact.link.node else _REVIEW_GRACE
        if contact.machine.periods < self._settings.digest_every + grace:
            return False
        contact.timers.arm(REVIEW, now)
        return True

    @staticmethod
    def patience_us(contact: ExchangeContact) -> int:
        """Return the time to wait for an answer before a run is begun anew."""
        return contact.link.outbox.recovery.answer_us(contact.machine.tries)

    def receive(self, contact: ExchangeContact, frame: Digest, now: int) -> None:
        """Handle one step of a reconciliation; raises `RemoteError` for an impossible one."""
        self._removals.sweep()
        # Even rounds are questions about what this host wants, odd rounds are answers about what it
        # gives.
        offering = frame.round % 2 == 1
        view = contact.view if offering else self._interests.view
        if view is None or frame.profile != view.digest:
            self._outputs.refuse("profile-stale", contact.link.peer)
            return
        agreement = contact.machine
        run = agreement.asking if offering else self._answering(contact, view, frame, now)
        if run is None or run.number != frame.run or not _expected(run, frame):
            return
        # A digest and its answer measure the round trip before any message was sent: the first
        # burst then starts with a timeout that fits the link.
        if frame.answers:
            contact.link.outbox.recovery.expect(now - run.asked_us)
        contact.link.work.did(len(frame.wanted) + sum(map(_looks, frame.buckets)))
        if run.free:
            contact.link.work.credit()
        if offering:
            contact.timers.arm(REVIEW, now + self.patience_us(contact))
        elif contact.view is not None and (agreement.state in UNDECIDED or self.same(contact)):
            # A neighbour that begins a run and never ends it must not keep this side from its own. Nor must one that
            # begins runs often: a run of this side that is under way keeps its own patience.
            contact.timers.arm(REVIEW, now + _TURN_US)
        step = reconcile.answer(view, frame)
        run.mine_only |= step.mine_only | step.wanted_mine
        if step.reply is not None:
            self._send(contact, run, step.reply, frame.number)
        if not run.questions:
            self._end(contact, run, now, offering=offering)

    def _answering(self, contact: ExchangeContact, view: View, frame: Digest, now: int) -> ReviewRun | None:
        """Return the neighbour's run, if this side has to answer it.

        If both sides begin a run for the same set at the same time, the run of the smaller id is kept. If half of its
        patience is over, its question or the answer was probably lost, while the neighbour's question is here.
        """
        run = contact.machine.answering
        if frame.round == 0 and (run is None or run.number != frame.run):
            run = self.answering(contact, view, frame.run, now)
        if frame.round == 0 and run is not None:
            run.openings += 1
            run.free = run.free and run.openings <= _OPENINGS_MAX
        return run

    def answering(self, contact: ExchangeContact, view: View, number: int, now: int) -> ReviewRun | None:
        """Return a new run of the neighbour; None if this host's own takes precedence."""
        agreement = contact.machine
        if self.same(contact):
            mine = agreement.asking
            if (
                mine is not None
                and self._node < contact.link.node
                and (now - mine.asked_us < contact.timers.due[REVIEW] - now)
            ):
                return None
            agreement.give_way()
        free = contact.link.takes_free(now)
        if free:
            # This takes milliseconds in a nearly full cache: a neighbour that begins runs all the
            # time must not cause it each time.
            self._holdings.invite()
        run = ReviewRun(number, view.known)
        run.free = free
        agreement.answer(run)
        return run

    def _end(self, contact: ExchangeContact, run: ReviewRun, now: int, *, offering: bool) -> None:
        """End a run without open questions."""
        # A part of the neighbour's opening may still come, and correct what is believed from here
        # on.
        agreement = contact.machine
        if offering or self.same(contact):
            self.agree(contact, run, now)
        elif agreement.state in UNDECIDED and contact.view is not None:
            offered = self._holdings.cache.whole & ~self._holdings.withheld
            lacks = run.mine_only & contact.view.matches & offered & ~contact.link.known
            if lacks or agreement.peer_lacks:
                agreement.shown(lacks)
                contact.timers.arm(OFFER, now)
            else:
                self.ask(contact, now)

    def same(self, contact: ExchangeContact) -> bool:
        """Return True if both sides have the same profile, so that one run serves both."""
        return contact.view is not None and contact.view is self._interests.view

    def _send(self, contact: ExchangeContact, run: ReviewRun, digest: Digest, answers: int) -> None:
        run.asked_us = self._holdings.now_us
        pages = reconcile.split(digest, contact.link.body_bytes_max)
        frames: list[Frame] = []
        for part, page in enumerate(pages):
            number = 0
            if page.buckets:
                self._number = number = self._number + 1
                run.questions[number] = set()
                # A dict keeps insertion order, so the first key is the oldest question.
                if len(run.questions) > _QUESTIONS_MAX:
                    del run.questions[next(iter(run.questions))]
            frames.append(
                msgspec.structs.replace(
                    page, number=number, answers=answers, part=part, parts=len(pages), run=run.number
                )
            )
        contact.link.send(frames)

    @staticmethod
    def agree(contact: ExchangeContact, run: ReviewRun, now: int) -> None:
        """Note what a run has shown that is over: the neighbour knows all that was compared, except what it lacks."""
        contact.machine.agree()
        # The order matters: everything compared is known, except what the other side turned out to
        # lack.
        contact.link.learn(run.snapshot)
        contact.link.unlearn(run.mine_only)
        contact.timers.arm(OFFER, now)
        contact.timers.cancel(REVIEW)


def _looks(bucket: Bucket) -> int:
    """Return the work for comparing a part of a set: all that is held here is compared with a list of everything."""
    listed = 2 if bucket.depth else _XOR
    return listed + _XOR * len(bucket.fingerprints) + len(bucket.members or ())


def _expected(run: ReviewRun, frame: Digest) -> bool:
    """Return False for a question that was answered already, or an answer to no open question."""
    if frame.number:
        if frame.number in run.answered:
            return False
        run.answered[frame.number] = None
        if len(run.answered) > _ANSWERED_MAX:
            del run.answered[next(iter(run.answered))]
    if not frame.answers:
        return frame.round == 0
    parts = run.questions.get(frame.answers)
    if parts is None or frame.part in parts or frame.parts > _PARTS_MAX:
        return False
    parts.add(frame.part)
    if len(parts) >= frame.parts:
        del run.questions[frame.answers]
    return True
