"""Agreeing with a neighbour on what it lacks, once per contact and again every now and then.

The one with the smaller node id asks first; the other waits a moment for it. Where both have the same profile, one
reconciliation serves both directions; else each side runs its own, for the profile of the one who wants. Every
question has a number, and the review is over when no question is open: then everything that the two sets had in
common is believed known to the neighbour, and the rest is offered. Questions that get no answer are asked anew from
the start; an answer to a forgotten question is ignored. The algorithm itself is in `gossip.reconcile`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from carrypost.gossip import reconcile
from carrypost.gossip.frames import Digest, Frame, Transmission
from carrypost.gossip.link import NEVER
from carrypost.gossip.outbox import FRAME_ROOM

if TYPE_CHECKING:
    from carrypost.gossip.desk import Desk
    from carrypost.gossip.link import Link
    from carrypost.gossip.profiles import View

_RETRY_US = 1_000_000
_RETRY_DOUBLINGS = 4
_ANSWERED_MAX = 256
_QUESTIONS_MAX = 256
"""Questions open to one neighbour; one that asks without end makes this host forget the oldest."""
_PARTS_MAX = 256
"""Frames of one answer."""


class Review:
    """Runs the reconciliations of one host."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk
        self._number = 0
        self._wait_us = round(desk.settings.coalesce_s * 1e6)

    def begin(self, link: Link, now: int) -> None:
        """A contact began, or its profile changed."""
        if self._desk.settings.paper_mode:
            self._settle(link, now)
        elif self._desk.node < link.node:
            self.ask(link, now)
        else:
            link.agreement.due_us = now + self._wait_us

    def ask(self, link: Link, now: int) -> None:
        """Start from the beginning."""
        view, agreement = link.view, link.agreement
        if view is None or not link.usable:
            agreement.due_us = NEVER
            return
        agreement.questions.clear()
        agreement.lacking = 0
        agreement.snapshot = view.known
        agreement.mine_only = 0
        agreement.announcements = 0
        if not agreement.snapshot and not self._same(link):
            self._settle(link, now)
            return
        delay_us = _RETRY_US << min(agreement.tries, _RETRY_DOUBLINGS)
        agreement.tries += 1
        self._send(link, reconcile.opening(view), 0)
        agreement.due_us = now + delay_us

    def take(self, link: Link, frame: Digest, now: int) -> None:
        """A step from the neighbour; raises `RemoteError` for a senseless one."""
        offering = frame.round % 2 == 1
        view = link.view if offering else self._desk.own
        if view is None or not link.usable or frame.profile != view.digest:
            self._desk.refuse("profile-stale", link.peer)
            return
        same = self._same(link)
        if frame.round == 0 and not self._yields(link, same=same):
            return
        if not self._expected(link, frame):
            return
        if frame.round == 0:
            self._opened(link, view, now, same=same)
        self._step(link, view, frame, now, both=offering or same)

    def _yields(self, link: Link, *, same: bool) -> bool:
        """Where both asked at once, the smaller id's question stands, and the other will answer it."""
        return not (same and link.agreement.questions and self._desk.node < link.node)

    @staticmethod
    def _opened(link: Link, view: View, now: int, *, same: bool) -> None:
        """The neighbour asks: this side's turn comes when that is settled, if it is not settled with it."""
        agreement = link.agreement
        if same or not agreement.synced:
            agreement.due_us = now + _RETRY_US
        if same:
            agreement.questions.clear()
            agreement.snapshot, agreement.mine_only = view.known, 0

    def _step(self, link: Link, view: View, frame: Digest, now: int, *, both: bool) -> None:
        """Compare and answer. `both`: it is about what this side may offer, not only about what it wants."""
        agreement = link.agreement
        step = reconcile.answer(view, frame)
        if both:
            agreement.announcements = 0  # Else it is the other direction's review, and this one's is still due.
            agreement.mine_only |= step.mine_only | step.wanted_mine
        elif link.view is not None:
            agreement.lacking |= step.mine_only & link.view.matches
        if step.reply is not None:
            self._send(link, step.reply, frame.number)
        if agreement.questions:
            return
        if both:
            self._settle(link, now)
        elif not agreement.synced:
            self._take_turn(link, now)

    def _take_turn(self, link: Link, now: int) -> None:
        """The neighbour's review is over, and showed something of what it lacks: offer that, then ask for the rest."""
        if link.agreement.lacking:
            link.offering.due_us = now
            link.agreement.due_us = now + _RETRY_US
        else:
            self.ask(link, now)

    def _expected(self, link: Link, frame: Digest) -> bool:
        """False for what was answered already, or answers nothing that is asked."""
        if frame.number:
            if frame.number in link.agreement.answered:
                return False
            link.agreement.answered[frame.number] = None
            if len(link.agreement.answered) > _ANSWERED_MAX:
                del link.agreement.answered[next(iter(link.agreement.answered))]
        if not frame.answers:
            return frame.round == 0
        parts = link.agreement.questions.get(frame.answers)
        if parts is None or frame.part in parts or frame.parts > _PARTS_MAX:
            return False
        parts.add(frame.part)
        if len(parts) >= frame.parts:
            del link.agreement.questions[frame.answers]
        return True

    def _same(self, link: Link) -> bool:
        return self._desk.own is not None and self._desk.own.digest == link.profile

    def _send(self, link: Link, digest: Digest, answers: int) -> None:
        pages = reconcile.split(digest, self._desk.settings.mtu_bytes - FRAME_ROOM)
        frames: list[Frame] = []
        for part, page in enumerate(pages):
            number = 0
            if page.buckets:
                self._number = number = self._number + 1
                link.agreement.questions[number] = set()
                if len(link.agreement.questions) > _QUESTIONS_MAX:
                    del link.agreement.questions[next(iter(link.agreement.questions))]
            frames.append(msgspec.structs.replace(page, number=number, answers=answers, part=part, parts=len(pages)))
        self._desk.outgoing.append(Transmission(tuple(frames), link.peer))

    def _settle(self, link: Link, now: int) -> None:
        agreement = link.agreement
        link.offering.known = (link.offering.known | agreement.snapshot) & ~agreement.mine_only
        agreement.synced = True
        agreement.tries = 0
        agreement.due_us = NEVER
        link.offering.due_us = now
