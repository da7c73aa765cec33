"""Everything one host knows and owes about one neighbour: soft state, gone with the contact.

A link is known by its address, never by the node that it claims to be, so a forger who claims somebody's name gets
a link of its own. Whether it may be used is a small machine over what is heard (`LINK_TABLE`): a link is usable when
each side lists the other, and one that is heard without hearing this host is detected, recorded and not used.
"""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING

from carrypost.gossip.slots import bits
from carrypost.gossip.transfers.budget import Budget, Volume
from carrypost.gossip.transfers.inbox import Inbox
from carrypost.model.ids import NodeId, node_prefix
from carrypost.model.times import NEVER

if TYPE_CHECKING:
    from carrypost.config import Limits, Settings
    from carrypost.gossip.interest.index import View
    from carrypost.gossip.transfers.outbox import Outbox
    from carrypost.gossip.wire.frames import Announce

SILENT_PERIODS = 3
"""A neighbour that was not heard for so many of its periods is gone."""
_PERIOD_US_MIN = 50_000
_PERIOD_US_MAX = 600_000_000
_PROFILE_BURST_S = 5.0
_PROFILE_ENTRY_COST, _PROFILE_COPY_COST = 30, 2
"""To compile a pattern, and to match a message against a profile (`gossip.transfers.accounts`)."""
_PROFILES_FREE = 0.75
"""While so much of its budget for profiles is left, a neighbour is not charged for a new one."""
_RUNS_PER_S = 0.1
"""Reconciliations that a neighbour may begin at no cost: one at the beginning of a contact, then every few minutes."""
_RUNS_BURST_S = 40.0


class LinkState(enum.Enum):
    """What may be done with a link."""

    SILENT = "silent"
    HEARD = "heard"
    LINKED = "linked"


# To ask an enumeration for a member takes ten times as long as to look up a name, and these are asked for all the time.
SILENT, HEARD, LINKED = LinkState.SILENT, LinkState.HEARD, LinkState.LINKED


class Sign(enum.Enum):
    """What moves a link from state to state."""

    LISTS_ME = "announcement that lists this host, or a request that names it"
    OMITS_ME = "announcement that does not list this host"
    SILENCE = "three silent periods, or the driver says that the contact ended"


LINK_TABLE: dict[tuple[LinkState, Sign], LinkState] = {
    (LinkState.SILENT, Sign.LISTS_ME): LinkState.LINKED,
    (LinkState.SILENT, Sign.OMITS_ME): LinkState.HEARD,
    (LinkState.SILENT, Sign.SILENCE): LinkState.SILENT,
    (LinkState.HEARD, Sign.LISTS_ME): LinkState.LINKED,
    (LinkState.HEARD, Sign.OMITS_ME): LinkState.HEARD,
    (LinkState.HEARD, Sign.SILENCE): LinkState.SILENT,
    (LinkState.LINKED, Sign.LISTS_ME): LinkState.LINKED,
    (LinkState.LINKED, Sign.OMITS_ME): LinkState.HEARD,
    (LinkState.LINKED, Sign.SILENCE): LinkState.SILENT,
}


class Standing(enum.IntEnum):
    """What came of a link so far: by this places are given where there are too few (`gossip.discovery.places`)."""

    STRANGER = 0
    TAKER = 1
    """It acknowledged a whole message."""
    GIVER = 2
    """It brought at least a piece of a message, which was asked for and verified."""


STRANGER, TAKER, GIVER = Standing


class OpenOffer:
    """An offer that has not been answered yet."""

    __slots__ = ("due_us", "mask", "tries")

    def __init__(self, mask: int) -> None:
        self.mask = mask
        self.due_us = NEVER
        self.tries = 0


class Offering:
    """What this host believes of the neighbour's cache, and offers it (`gossip.strategy.offers`)."""

    __slots__ = (
        "due_us", "known", "offered", "offered_us", "open", "partials", "partials_us", "retry_us", "served",
        "served_pieces", "stalled",
    )  # fmt: skip

    def __init__(self) -> None:
        self.known = 0
        """Slots of messages that the neighbour is believed to know, or not to want."""
        self.offered = 0
        """Slots that stand in an offer not answered yet."""
        self.offered_us = -NEVER
        """When the last offer of something new went out."""
        self.open: dict[int, OpenOffer] = {}
        """Those offers, by serial."""
        self.partials: dict[int, int] = {}
        """By slot: which pieces of a half-received message stood in the last offer."""
        self.partials_us = 0
        """When their growth may be told again."""
        self.due_us = NEVER
        """When what is new goes out."""
        self.retry_us = NEVER
        """When the first of the open offers is repeated."""
        self.served = 0
        """Slots of messages that were asked for whole in this contact, and queued."""
        self.served_pieces: dict[int, int] = {}
        """By slot: pieces that were asked for, where not the whole message was."""
        self.stalled = False
        """The neighbour is overdue: nothing is offered, or offered again, until it is heard."""

    def stall(self) -> None:
        """The neighbour is overdue."""
        self.due_us = self.retry_us = NEVER
        self.stalled = True

    def revive(self, now: int) -> None:
        """It is heard again."""
        self.stalled = False
        self.due_us = self.retry_us = now

    def answered(self, serial: int) -> bool:
        """The neighbour answered an offer: what stood in it is known to it, or on its way. False: there was none."""
        offer = self.open.pop(serial, None)
        if offer is None:
            return False
        if not self.open:
            self.retry_us = NEVER
        self.offered &= ~offer.mask
        self.known |= offer.mask
        return True

    def serve(self, slot: int, pieces: int) -> int:
        """Some pieces of a message are queued. Returns how many of them were before, in this contact."""
        before = self.served_pieces.get(slot, 0)
        self.served_pieces[slot] = before | pieces
        return (pieces if self.served >> slot & 1 else pieces & before).bit_count()

    def knows(self, mask: int) -> None:
        """The neighbour has these: it offered them itself. Offers of them need no answer any more."""
        self.known |= mask
        if not self.offered & mask:
            return
        self.offered &= ~mask
        for serial, offer in list(self.open.items()):
            if offer.mask & mask:
                offer.mask &= ~mask
                if not offer.mask:
                    del self.open[serial]
        if not self.open:
            self.retry_us = NEVER

    def forget_slots(self, mask: int) -> None:
        """Believe nothing of these any more."""
        keep = ~mask
        self.known &= keep
        self.offered &= keep
        self.served &= keep
        for offer in self.open.values():
            offer.mask &= keep
        for slot in bits(mask) if self.partials or self.served_pieces else ():
            self.partials.pop(slot, None)
            self.served_pieces.pop(slot, None)


class Run:
    """One reconciliation, as one of its two sides sees it."""

    __slots__ = ("answered", "asked_us", "free", "mine_only", "number", "openings", "questions", "snapshot")

    def __init__(self, number: int, snapshot: int) -> None:
        self.number = number
        self.snapshot = snapshot
        """Slots of the set as it was when the run began."""
        self.asked_us = 0
        """When something of it last went out."""
        self.mine_only = 0
        """Slots of what the other side turned out to lack of it."""
        self.questions: dict[int, set[int]] = {}
        """Numbers of the questions that are open, and the parts of each answer that have come."""
        self.answered: dict[int, None] = {}
        """Numbers of the other side's questions that were answered lately."""
        self.openings = 0
        """Frames of the other side that opened it."""
        self.free = True
        """It is what an honest neighbour would do, and not charged as waste."""


class Agreement:
    """How far the two have agreed on what the neighbour lacks (`gossip.strategy.review`)."""

    __slots__ = ("announcements", "answering", "asking", "due_us", "lacking", "synced", "tries")

    def __init__(self) -> None:
        self.synced = False
        """The two sets have been reconciled; from now on only increments are offered."""
        self.asking: Run | None = None
        """The run that this host began, for what the neighbour wants."""
        self.answering: Run | None = None
        """The last one that the neighbour began, for what this host wants."""
        self.lacking = 0
        """What that showed the neighbour to lack: offered before this host asks."""
        self.announcements = 0
        """Heard since the last review; every `digest_every`-th repeats it."""
        self.tries = 0
        self.due_us = NEVER
        """When this host begins a run: anew, in its turn, or because it is time again."""

    def forget_slots(self, mask: int) -> None:
        """Believe nothing of these any more."""
        keep = ~mask
        self.lacking &= keep
        for run in (self.asking, self.answering):
            if run is not None:
                run.snapshot &= keep
                run.mine_only &= keep


class Budgets:
    """What the neighbour may make this host do."""

    __slots__ = ("answers", "common", "forgeries", "profiles", "runs", "tally", "volume")

    def __init__(self, limits: Limits) -> None:
        self.volume = Volume(limits.link_frames_per_s, limits.link_bytes_per_s)
        self.forgeries = Budget(limits.link_forgeries_per_s)
        self.profiles = Budget(limits.link_profiles_per_s, burst_s=_PROFILE_BURST_S)
        """For learning its profiles."""
        self.answers = Budget(limits.link_profiles_per_s, burst_s=_PROFILE_BURST_S)
        """For telling it this host's."""
        self.runs = Budget(_RUNS_PER_S, burst_s=_RUNS_BURST_S)
        """For reconciliations that it begins."""
        self.tally = 0
        """What its frames led to, less what they cost beyond their price (`transfers.accounts`), till it is settled."""
        self.common = 0
        """What it cost that is charged to all addresses together, and not to this one."""

    def learnt(self, entries: int, copies: int, now: int) -> None:
        """Charge for a profile that was compiled and matched: the first ones to all addresses together only."""
        cost = _PROFILE_ENTRY_COST * entries + _PROFILE_COPY_COST * copies
        if self.profiles.share(now) < _PROFILES_FREE:
            self.tally -= cost
        else:
            self.common += cost


class Link:
    """One neighbour, as this host sees it."""

    __slots__ = (
        "agreement", "announced_us", "begun_us", "boot", "budgets", "counter", "first_us", "heard_us", "inbox",
        "linked_us", "node", "offering", "one_way_told", "outbox", "peer", "period_us", "placed_us", "prefix",
        "profile", "profile_asked_us", "review_after", "standing", "state", "told", "told_us", "view",
    )  # fmt: skip

    def __init__(self, peer: str, settings: Settings, outbox: Outbox, now: int) -> None:
        self.peer = peer
        self.node = NodeId("")
        self.prefix = b""
        self.boot = -1
        self.counter = -1
        self.period_us = _PERIOD_US_MIN
        self.placed_us = now
        """When it got its place."""
        self.standing = STRANGER
        self.first_us = now
        """When this episode of hearing it began."""
        self.heard_us = now
        self.linked_us = now
        """When it became usable."""
        self.begun_us = NEVER
        """When it was first known that this contact has begun for the neighbour as well."""
        self.announced_us = -NEVER
        self.state = SILENT
        self.told = False
        """The driver says that the contact is there (`Host.link`); then lists and silence do not matter."""
        self.told_us = -NEVER
        """When an announcement last went to it alone."""
        self.one_way_told = False
        self.profile = b""
        self.profile_asked_us = -NEVER
        self.review_after = settings.digest_every - 1
        """After so many announcements the next one may be the time to compare sets again."""
        self.view: View | None = None
        self.budgets = Budgets(settings.limits)
        self.outbox = outbox
        self.forget()

    def forget(self) -> None:
        """The contact is over: what was believed of it and owed to it is gone."""
        self.offering = Offering()
        self.agreement = Agreement()
        self.inbox = Inbox()
        self.outbox.clear()

    @property
    def usable(self) -> bool:
        """Whether messages may be exchanged over it."""
        return self.state is LINKED

    def heard(self, now: int) -> None:
        """Anything at all from a usable neighbour shows that it is still there."""
        self.heard_us = now
        if self.offering.stalled:
            self.offering.revive(now)

    def begun(self, now: int) -> None:
        """The neighbour says what it says to those only with whom a contact has begun."""
        if self.begun_us == NEVER:
            self.begun_us = now

    def announces_every(self, period_ms: int) -> None:
        """So often it says that it announces itself."""
        period_us = period_ms * 1000
        if not _PERIOD_US_MIN <= period_us <= _PERIOD_US_MAX:
            period_us = min(_PERIOD_US_MAX, max(_PERIOD_US_MIN, period_us))
        self.period_us = period_us

    def repeats(self, frame: Announce, prefix: bytes, now: int) -> bool:
        """Whether an announcement only says once more what is known, as most do. Then it is noted, and nothing is due.

        The short way for what hosts hear most: a beacon from a neighbour over a link that works (`prefix` is this
        host's). Anything that is not just like the last one goes the long way.
        """
        agreement, period_us = self.agreement, frame.period_ms * 1000
        if (
            frame.counter <= self.counter
            or frame.boot != self.boot
            or not self.period_us <= period_us <= _PERIOD_US_MAX  # Silence is expected later rather than sooner.
            or frame.profile != self.profile
            or self.state is not LINKED
            or self.view is None
            or self.offering.stalled
            or agreement.announcements >= self.review_after
            or frame.begins
            or frame.node != self.node
            or prefix not in frame.heard
        ):
            return False
        self.counter = frame.counter
        self.period_us = period_us
        self.heard_us = self.announced_us = now
        agreement.announcements += 1
        return True

    @property
    def silent_us(self) -> int:
        """When three periods will have passed without a word."""
        return NEVER if self.told else self.heard_us + SILENT_PERIODS * self.period_us

    def overdue(self, now: int) -> bool:
        """Whether it should have been heard by now; it may be gone, though it is too early to tell."""
        return not self.told and now > self.heard_us + self.period_us + (self.period_us >> 1)

    def claim(self, node: NodeId) -> None:
        """The link says whose it is."""
        if node != self.node:
            self.standing = STRANGER  # Who has the address now has not earned what its predecessor had.
        self.node = node
        self.prefix = node_prefix(node)

    def forget_slots(self, mask: int) -> None:
        """Slots were freed for other messages."""
        self.offering.forget_slots(mask)
        agreement = self.agreement
        if agreement.lacking or agreement.asking is not None or agreement.answering is not None:
            agreement.forget_slots(mask)

    def due_us(self, due: int = NEVER) -> int:
        """When this link needs a tick, if that is before `due`. Asked of every link after every step."""
        agreement, inbox, outbox = self.agreement, self.inbox, self.outbox
        offering = self.offering
        if offering.due_us < due and self.view is not None and (agreement.synced or agreement.lacking):
            due = offering.due_us
        if offering.retry_us < due:
            due = offering.retry_us
        if agreement.due_us < due:
            due = agreement.due_us
        if inbox.request_due_us < due:
            due = inbox.request_due_us
        if inbox.ack_due_us < due:
            due = inbox.ack_due_us
        if outbox.recovery.due_us < due:
            due = outbox.recovery.due_us
        if outbox.wait_us < due:
            due = outbox.wait_us
        return due
