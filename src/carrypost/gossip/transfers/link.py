"""One link to a neighbour: an address, what may be asked of this host over it, what comes in and what goes out.

A link is known by its address, never by the node that it claims to be, so a forger who claims somebody's name gets a
link of its own. Who is behind it, and whether the two hear each other, is found by `gossip.discovery`; what is offered
over it is decided by `gossip.strategy`. Here messages are moved.
"""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, Protocol

from carrypost.gossip.slots import bits
from carrypost.gossip.timers import Schedule, Timers
from carrypost.gossip.transfers.budget import Budget, Volume
from carrypost.gossip.transfers.inbox import Inbox
from carrypost.gossip.transfers.outbox import Outbox
from carrypost.model.ids import NodeId, node_prefix

if TYPE_CHECKING:
    from carrypost.config import Limits, Settings
    from carrypost.gossip.interest.matcher import Matcher

_PROFILE_BURST_S = 5.0
_PROFILE_ENTRY_COST, _PROFILE_COPY_COST = 30, 2
"""To compile a pattern, and to match a message against a profile (`gossip.transfers.accounts`)."""
_PROFILE_US = 50_000
"""One whose selectors took longer counts as several: two a second of the longest would take half of a core."""
_PROFILES_FREE = 0.75
"""While so much of its budget for profiles is left, a neighbour is not charged for a new one."""
_RUNS_PER_S = 0.1
"""Reconciliations that a neighbour may begin at no cost: one at the beginning of a contact, then every few minutes."""
_RUNS_BURST_S = 40.0


class Standing(enum.IntEnum):
    """What came of a link so far: by this places are given where there are too few (`gossip.discovery.places`)."""

    STRANGER = 0
    TAKER = 1
    """It acknowledged a whole message."""
    GIVER = 2
    """It brought at least a piece of a message, which was asked for and verified."""


STRANGER, TAKER, GIVER = Standing


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
        """What its frames led to, less what they cost beyond their price, since `take_tally` (`transfers.accounts`)."""
        self.common = 0
        """What it cost that is charged to all addresses together, and not to this one."""

    def credit(self, worth: int) -> None:
        """Credit what came from the neighbour by what it led to."""
        self.tally += worth

    def charge(self, cost: int) -> None:
        """Charge what it cost beyond the price of its frames."""
        self.tally -= cost

    def take_tally(self) -> tuple[int, int]:
        """What its frames were worth since the last call, and what is charged to all addresses together."""
        tally, common = self.tally, self.common
        self.tally = self.common = 0
        return tally, common

    def learnt(self, profile: Matcher, copies: int, now: int) -> None:
        """Charge for a profile that was compiled and matched: the first ones to all addresses together only."""
        selecting_us = profile.selecting_us
        cost = _PROFILE_ENTRY_COST * len(profile.entries) + _PROFILE_COPY_COST * copies + selecting_us
        self.profiles.spend(selecting_us // _PROFILE_US, now)
        if self.profiles.share(now) < _PROFILES_FREE:
            self.tally -= cost
        else:
            self.common += cost


class Beliefs(Protocol):
    """What a strategy keeps about a link, for itself: here only so that freed slots are forgotten there, too."""

    def forget_slots(self, mask: int) -> None:
        """Believe nothing of these any more."""


class Link:
    """One link of this host."""

    __slots__ = (
        "beliefs", "budgets", "inbox", "known", "node", "outbox", "peer", "prefix", "served",
        "served_pieces", "standing", "timers", "usable",
    )  # fmt: skip

    def __init__(self, peer: str, settings: Settings, schedule: Schedule, *, stop_and_wait: bool = False) -> None:
        self.peer = peer
        """The address."""
        self.node = NodeId("")
        """Whom the other side claims to be."""
        self.prefix = b""
        """The name by which requests call it."""
        self.usable = False
        """Whether messages may be exchanged over it: changed by `Links`."""
        self.standing = STRANGER
        self.budgets = Budgets(settings.limits)
        self.timers = Timers(schedule)
        self.outbox = Outbox(settings, self.timers, stop_and_wait=stop_and_wait)
        self.beliefs: Beliefs | None
        self.clear()

    def clear(self) -> None:
        """The contact is over: what came, and what was on its way, is gone."""
        self.timers.cancel_all()
        self.inbox = Inbox()
        self.outbox.clear()
        self.known = 0
        """Slots of messages that the other side is known to have, or not to want."""
        self.served = 0
        """Slots of messages that were asked for whole in this contact, and queued."""
        self.served_pieces: dict[int, int] = {}
        """By slot: pieces that were asked for, where not the whole message was."""
        self.beliefs = None

    def believe(self, beliefs: Beliefs) -> None:
        """Let a strategy keep something with this link until the contact is over."""
        self.beliefs = beliefs

    def claim(self, node: NodeId) -> None:
        """Take note of which node says that it is at the other end."""
        if node != self.node:
            self.standing = STRANGER  # Who has the address now has not earned what its predecessor had.
        self.node = node
        self.prefix = node_prefix(node)

    def gave(self) -> None:
        """Note that it brought at least a piece of a message."""
        self.standing = GIVER

    def took(self) -> None:
        """Note that it acknowledged a whole message."""
        if self.standing is STRANGER:
            self.standing = TAKER

    def serve_whole(self, mask: int) -> None:
        """Note messages that are queued with all of their pieces."""
        self.served |= mask

    def serve(self, slot: int, pieces: int) -> int:
        """Note pieces of a message that are queued. Returns how many of them were queued before in this contact."""
        before = self.served_pieces.get(slot, 0)
        self.served_pieces[slot] = before | pieces
        return (pieces if self.served >> slot & 1 else pieces & before).bit_count()

    def learn(self, mask: int) -> None:
        """Note that the other side has these, or does not want them."""
        if mask:
            self.known |= mask

    def unlearn(self, mask: int) -> None:
        """Note that the other side lacks these after all."""
        self.known &= ~mask

    def forget_slots(self, mask: int) -> None:
        """Forget what is known of slots that are freed for other messages."""
        self.known &= ~mask
        self.served &= ~mask
        for slot in bits(mask) if self.served_pieces else ():
            self.served_pieces.pop(slot, None)
        if self.beliefs is not None:
            self.beliefs.forget_slots(mask)
