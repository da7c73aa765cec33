"""Agreeing with a neighbour on what it lacks, once per contact and again every now and then.

A review is one run of a reconciliation (`gossip.strategy.reconcile`), begun by the one who offers, for the profile of
who wants. The smaller node id begins; the other waits a moment for it. Where both have the same profile one run serves
both directions; else the other then runs its own, after it offered what the first one showed its neighbour to lack.

A run is over when none of its questions is open: then everything that the two sets had in common is believed known to
the neighbour, and the rest is offered. As long as answers come the run goes on, however slow the link is; when none
comes, it is begun anew. What belongs to another run, or answers nothing that is asked, is ignored.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from carrypost.gossip.strategy import reconcile
from carrypost.gossip.strategy.states import SYNCED, UNDECIDED, ReviewRun
from carrypost.gossip.timers import OFFER, REVIEW
from carrypost.gossip.transfers.accounts import price
from carrypost.gossip.wire.frames import Digest, Frame

if TYPE_CHECKING:
    from carrypost.gossip.interest.index import View
    from carrypost.gossip.strategy.beliefs import ExchangeContact
    from carrypost.gossip.transfers.departures import Departures
    from carrypost.gossip.transfers.ground import Ground

_REVIEW_GRACE = 2
"""The larger id leaves it to the other for so many periods to begin the next one."""
_TURN_US = 4_000_000
"""So long a neighbour that has begun a review may be silent before this side begins its own."""
_ANSWERED_MAX = 4096
_QUESTIONS_MAX = 4096
"""Questions open to one neighbour; one that asks without end makes this host forget the oldest."""
_OPENINGS_MAX = 8
"""Frames that may open a run; whoever sends more is charged for them (`gossip.transfers.accounts`)."""
_RUN_COST = 100
"""Cost of beginning a run, which a neighbour causes by its announcements."""
_PARTS_MAX = 256
"""Frames of one answer."""


class Review:
    """Runs the reconciliations of one host."""

    def __init__(self, ground: Ground, departures: Departures) -> None:
        self._holdings, self._outputs, self._own = ground.holdings, ground.outputs, ground.own
        self._settings, self._node = ground.settings, ground.node
        self._departures = departures
        self._number = 0
        self._wait_us = round(self._settings.coalesce_s * 1e6)

    def begin(self, contact: ExchangeContact, now: int) -> None:
        """A contact began, or its profile changed."""
        if self._node < contact.link.node:
            self.ask(contact, now)
        else:
            contact.timers.arm(REVIEW, now + self._wait_us)

    def conclude(self, contact: ExchangeContact, now: int) -> None:
        """Compare nothing: the neighbour may lack anything that it is not known to have."""
        self._agree(contact, ReviewRun(0, 0), now)

    def ask(self, contact: ExchangeContact, now: int) -> None:
        """Begin a run, if it is known what the neighbour wants."""
        view = contact.view
        if view is None:
            return
        self._departures.sweep()  # What expired is not compared any more.
        self._holdings.invite()
        self._number += 1
        run = ReviewRun(self._number, view.known)
        if not run.snapshot and not self._same(contact):
            self._agree(contact, run, now)
            return
        contact.timers.arm(REVIEW, now + self._patience_us(contact))
        contact.agreement.begin(run)
        contact.link.budgets.charge(_RUN_COST)
        self._send(contact, run, reconcile.opening(view), 0)

    def due(self, contact: ExchangeContact, now: int) -> bool:
        """Return True if it is time to begin anew: beliefs go stale.

        A review is repeated every so many periods of the neighbour, by the smaller id if it can.
        """
        grace = 0 if self._node < contact.link.node else _REVIEW_GRACE
        if contact.agreement.periods < self._settings.digest_every + grace:
            return False
        contact.timers.arm(REVIEW, now)
        return True

    @staticmethod
    def _patience_us(contact: ExchangeContact) -> int:
        return contact.link.outbox.recovery.answer_us(contact.agreement.tries)

    def take(self, contact: ExchangeContact, frame: Digest, now: int) -> None:
        """A step from the neighbour; raises `RemoteError` for a senseless one."""
        self._departures.sweep()
        offering = frame.round % 2 == 1
        view = contact.view if offering else self._own.view
        if view is None or frame.profile != view.digest:
            self._outputs.refuse("profile-stale", contact.link.peer)
            return
        agreement = contact.agreement
        run = agreement.asking if offering else self._answering(contact, view, frame, now)
        if run is None or run.number != frame.run or not _expected(run, frame):
            return
        if frame.answers:
            contact.link.outbox.recovery.expect(now - run.asked_us)
        if run.free:
            contact.link.budgets.credit(price(frame))
        if offering:
            contact.timers.arm(REVIEW, now + self._patience_us(contact))
        elif contact.view is not None and (agreement.state not in SYNCED or self._same(contact)):
            contact.timers.arm(REVIEW, now + _TURN_US)
        step = reconcile.answer(view, frame)
        run.mine_only |= step.mine_only | step.wanted_mine
        if step.reply is not None:
            self._send(contact, run, step.reply, frame.number)
        if not run.questions:
            self._end(contact, run, now, offering=offering)

    def _answering(self, contact: ExchangeContact, view: View, frame: Digest, now: int) -> ReviewRun | None:
        """Return the neighbour's run, if it is the one to answer.

        Where both begin one for the same set at a time, that of the smaller id stands. If half of its patience is
        over, its question or the answer was probably lost, while the neighbour's question is here.
        """
        agreement = contact.agreement
        run = agreement.answering
        if frame.round == 0 and (run is None or run.number != frame.run):
            if self._same(contact):
                mine = agreement.asking
                if (
                    mine is not None
                    and self._node < contact.link.node
                    and (now - mine.asked_us < contact.timers.due[REVIEW] - now)
                ):
                    return None
                agreement.give_way()
            self._holdings.invite()
            run = ReviewRun(frame.run, view.known)
            run.free = contact.link.budgets.runs.take(1, now)
            agreement.answer(run)
        if frame.round == 0 and run is not None:
            run.openings += 1
            run.free = run.free and run.openings <= _OPENINGS_MAX
        return run

    def _end(self, contact: ExchangeContact, run: ReviewRun, now: int, *, offering: bool) -> None:
        """No question of this run is open (though a part of its opening may still come, and mend what is believed)."""
        agreement = contact.agreement
        if offering or self._same(contact):
            self._agree(contact, run, now)
        elif agreement.state in UNDECIDED and contact.view is not None:
            offered = self._holdings.cache.whole & ~self._holdings.withheld
            lacks = run.mine_only & contact.view.matches & offered & ~contact.link.known
            if lacks or agreement.peer_lacks:
                agreement.shown(lacks)
                contact.timers.arm(OFFER, now)
            else:
                self.ask(contact, now)

    def _same(self, contact: ExchangeContact) -> bool:
        """Return True if both want the same. Then one run serves both."""
        return contact.view is not None and contact.view is self._own.view

    def _send(self, contact: ExchangeContact, run: ReviewRun, digest: Digest, answers: int) -> None:
        run.asked_us = self._holdings.now_us
        pages = reconcile.split(digest, contact.link.body_bytes_max)
        frames: list[Frame] = []
        for part, page in enumerate(pages):
            number = 0
            if page.buckets:
                self._number = number = self._number + 1
                run.questions[number] = set()
                if len(run.questions) > _QUESTIONS_MAX:
                    del run.questions[next(iter(run.questions))]
            frames.append(
                msgspec.structs.replace(
                    page, number=number, answers=answers, part=part, parts=len(pages), run=run.number
                )
            )
        contact.link.send(frames)

    @staticmethod
    def _agree(contact: ExchangeContact, run: ReviewRun, now: int) -> None:
        contact.agreement.agree()
        contact.link.learn(run.snapshot)
        contact.link.unlearn(run.mine_only)
        contact.timers.arm(OFFER, now)
        contact.timers.cancel(REVIEW)


def _expected(run: ReviewRun, frame: Digest) -> bool:
    """False for what was answered already, or answers nothing that is asked."""
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
