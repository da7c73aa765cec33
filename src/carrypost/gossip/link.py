"""Everything one host knows and owes about one neighbour: soft state, gone with the contact.

A link is known by its address, never by the node that it claims to be, so a forger who claims somebody's name gets
a link of its own. Whether it may be used is a small machine over what is heard (`LINK_TABLE`): a link is usable when
each side lists the other, and one that is heard without hearing this host is detected, recorded and not used.
"""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING

from carrypost.gossip.budget import Budget
from carrypost.gossip.receipts import Receipts
from carrypost.gossip.slots import bits
from carrypost.model.ids import NodeId, node_prefix

if TYPE_CHECKING:
    from carrypost.config import Settings
    from carrypost.gossip.wants import Want
    from carrypost.gossip.outbox import Outbox
    from carrypost.gossip.profiles import View

NEVER = 2**62
"""A time that does not come; so that the earliest of several is a plain `min`."""


class LinkState(enum.Enum):
    """What may be done with a link."""

    SILENT = "silent"
    HEARD = "heard"
    LINKED = "linked"


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


class OpenOffer:
    """An offer that has not been answered yet."""

    __slots__ = ("due_us", "mask", "tries")

    def __init__(self, mask: int, due_us: int, tries: int) -> None:
        self.mask = mask
        self.due_us = due_us
        self.tries = tries


class Link:
    """One neighbour, as this host sees it."""

    __slots__ = (
        "ack_due_us", "announced_us", "announcements", "answered", "answers", "boot",
        "budget_answers", "budget_bytes", "budget_frames", "budget_profiles", "budget_forgeries", "counter", "digest_due_us", "first_us",
        "fresh", "heard_us", "known", "mine_only", "node", "offer_due_us", "offered", "one_way_told", "open_offers", "outbox",
        "partial_offered", "partials_us", "peer", "period_us", "prefix", "profile", "profile_asked_us", "questions", "receipts",
        "request_due_us", "request_tries", "review_tries", "settled", "snapshot", "state", "synced", "told", "view", "wants",
    )  # fmt: skip

    def __init__(self, peer: str, settings: Settings, outbox: Outbox, now: int) -> None:
        limits = settings.limits
        self.peer = peer
        self.node = NodeId("")
        self.prefix = b""
        self.boot = -1
        self.counter = -1
        self.period_us = 0
        self.first_us = now
        """When this episode of hearing it began."""
        self.heard_us = now
        self.announced_us = -NEVER
        self.announcements = 0
        """Heard since the last digest; every `digest_every`-th repeats it."""
        self.state = LinkState.SILENT
        self.told = False
        """The driver says that the contact is there (`Host.link`); then lists and silence do not matter."""
        self.one_way_told = False
        self.profile = b""
        self.profile_asked_us = -NEVER
        self.view: View | None = None
        self.known = 0
        """Slots of messages that the neighbour is believed to know, or not to want."""
        self.offered = 0
        """Slots that stand in an offer not answered yet."""
        self.partials_us = 0
        """When the growth of half-received messages may be told again."""
        self.partial_offered: dict[int, int] = {}
        """By slot: which pieces of a half-received message stood in the last offer."""
        self.open_offers: dict[int, OpenOffer] = {}
        self.answers: list[int] = []
        """Serials of the neighbour's offers that are to be answered."""
        self.offer_due_us = NEVER
        self.synced = False
        """The two sets have been reconciled; from now on only increments are offered."""
        self.snapshot = 0
        """The set as it was when the review began."""
        self.mine_only = 0
        """What the neighbour turned out to lack of it."""
        self.questions: dict[int, set[int]] = {}
        """Numbers of the questions that are open, and the parts of each answer that have come."""
        self.answered: dict[int, None] = {}
        """Numbers of the neighbour's questions that were answered lately."""
        self.review_tries = 0
        self.digest_due_us = NEVER
        self.wants: dict[int, Want] = {}
        self.settled: dict[int, None] = {}
        """Handles that were wanted lately and are no more: what still comes of them is acknowledged."""
        self.request_due_us = NEVER
        self.request_tries = 0
        self.outbox = outbox
        self.fresh: list[int] = []
        """Handles that were offered since the last request."""
        self.receipts = Receipts()
        self.ack_due_us = NEVER
        self.budget_frames = Budget(limits.link_frames_per_s)
        self.budget_bytes = Budget(limits.link_bytes_per_s)
        self.budget_forgeries = Budget(limits.link_forgeries_per_s)
        self.budget_profiles = Budget(limits.link_profiles_per_s, burst_s=5.0)
        """For learning its profiles."""
        self.budget_answers = Budget(limits.link_profiles_per_s, burst_s=5.0)
        """For telling it this host's."""

    @property
    def usable(self) -> bool:
        """Whether messages may be exchanged over it."""
        return self.state is LinkState.LINKED

    def claim(self, node: NodeId) -> None:
        """The link says whose it is."""
        self.node = node
        self.prefix = node_prefix(node)

    def forget(self) -> None:
        """The contact is over: what was believed of it and owed to it is gone."""
        self.known = self.offered = self.snapshot = self.mine_only = 0
        self.partial_offered.clear()
        self.partials_us = 0
        self.open_offers.clear()
        self.questions.clear()
        self.answered.clear()
        self.answers.clear()
        self.fresh.clear()
        self.settled.clear()
        self.synced = False
        self.review_tries = self.request_tries = 0
        self.offer_due_us = self.digest_due_us = self.request_due_us = self.ack_due_us = NEVER
        self.receipts.clear()
        self.outbox.clear()

    def forget_slots(self, mask: int) -> None:
        """Slots were freed for other messages: believe nothing of them."""
        keep = ~mask
        self.known &= keep
        self.offered &= keep
        self.snapshot &= keep
        self.mine_only &= keep
        for offer in self.open_offers.values():
            offer.mask &= keep
        for slot in bits(mask) if self.partial_offered else ():
            self.partial_offered.pop(slot, None)

    def due_us(self) -> int:
        """When this link needs a tick."""
        offers = self.offer_due_us if self.synced and self.view is not None else NEVER
        return min(offers, self.digest_due_us, self.request_due_us, self.ack_due_us, self.outbox.due_us)
