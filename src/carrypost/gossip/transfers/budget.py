"""Token buckets: how much one link address may make this host do.

A budget is charged per observed link address, before any work is done for it, because identities are free to a
forger and link addresses are not.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from carrypost.config import Limits
    from carrypost.gossip.interest.matcher import Matcher

_SECOND_US = 1_000_000
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
_LISTS_PER_S = 1.0
"""Frames of a comparison of acknowledgements that are answered: a few when a contact begins, then one a minute."""
_LISTS_BURST_S = 100.0
"""A whole list of the default size fits into this many frames."""
_RELAY_BYTES_MIN = 1_000
"""A shorter datagram counts as so many bytes of `limits.link_relay_bytes_per_s`: each costs as much work."""
_STATES_PER_S = 20.0
"""Link states that are looked at: one or two beside an announcement, and a few more where lists are compared."""
_REMINDERS_PER_S, _REMINDERS_BURST_S = 20.0, 5.0
"""Records of acknowledgements that are sent once more, each for up to 32 messages; one offer may ask for many."""
_BREAKS_PER_S = 10.0
"""Answers that a link on a path is gone: the first one of a burst says it for all."""


class Budget:
    """Token bucket: so many tokens a second, saved up for at most `burst_s` seconds.

    It is kept as the moment at which it will be full again (the virtual scheduling of GCRA, ITU-T I.371), so that time
    alone fills it.
    """

    __slots__ = ("_burst_us", "_full_us", "_token_us")

    def __init__(self, rate_per_s: float, burst_s: float = 2.0) -> None:
        self._token_us = _SECOND_US / rate_per_s
        self._burst_us = burst_s * _SECOND_US
        self._full_us = 0.0

    def take(self, amount: float, now: int) -> bool:
        """Spend `amount` if it is there; a bucket that is full always gives once."""
        if self._full_us <= now:
            self._full_us = now + amount * self._token_us
            return True
        full_us = self._full_us + amount * self._token_us
        if full_us > now + self._burst_us:
            return False
        self._full_us = full_us
        return True

    def give_back(self, amount: float) -> None:
        """Undo the last `take`."""
        self._full_us -= amount * self._token_us

    def spend(self, amount: float, now: int, *, debt_s_max: float = 60.0) -> int:
        """Charge for what was done already; `take` refuses until the debt is paid. Returns when that will be."""
        spent_us = max(self._full_us, now) + amount * self._token_us
        self._full_us = min(spent_us, now + self._burst_us + debt_s_max * _SECOND_US)
        return self.above_us(0.0, now)

    def share(self, now: int) -> float:
        """Return the balance as a part of the maximum; negative: a debt."""
        return 1 - max(0, self._full_us - now) / self._burst_us

    def above_us(self, share: float, now: int) -> int:
        """Return the time at which the balance reaches this share if nothing is spent; now, if it has."""
        return max(now, math.ceil(self._full_us - (1 - share) * self._burst_us))


class Budgets:
    """Budgets for the work that one neighbour may cause."""

    __slots__ = (
        "_bytes", "_frames", "_relayed", "answers", "breaks", "common", "forgeries", "lists", "profiles", "records",
        "reminders", "runs", "states", "tally",
    )  # fmt: skip

    def __init__(self, limits: Limits) -> None:
        self._frames, self._bytes = Budget(limits.link_frames_per_s), Budget(limits.link_bytes_per_s)
        self.forgeries = Budget(limits.link_forgeries_per_s)
        self.records = Budget(limits.link_records_per_s)
        """For acknowledgements of hosts that it passes on: each has a signature."""
        self._relayed = Budget(limits.link_relay_bytes_per_s)
        self.breaks = Budget(_BREAKS_PER_S)
        """For answers that something could not be passed on."""
        self.reminders = Budget(_REMINDERS_PER_S, burst_s=_REMINDERS_BURST_S)
        """For own acknowledgements that it is told again."""
        self.states = Budget(_STATES_PER_S)
        """For link states."""
        self.lists = Budget(_LISTS_PER_S, burst_s=_LISTS_BURST_S)
        """For comparing lists of those."""
        self.profiles = Budget(limits.link_profiles_per_s, burst_s=_PROFILE_BURST_S)
        """For learning its profiles."""
        self.answers = Budget(limits.link_profiles_per_s, burst_s=_PROFILE_BURST_S)
        """For telling it this host's."""
        self.runs = Budget(_RUNS_PER_S, burst_s=_RUNS_BURST_S)
        """For reconciliations that it begins."""
        self.tally = 0
        """Worth of its frames, less their cost beyond their price, since `take_tally` (`transfers.accounts`)."""
        self.common = 0
        """Cost that is charged to all addresses together, and not to this one."""

    def receive(self, frames: int, nbytes: int, now: int) -> bool:
        """Charge for what came over the link. Returns False, and charges nothing, where it is too much."""
        if not self._frames.take(frames, now):
            return False
        if self._bytes.take(nbytes, now):
            return True
        self._frames.give_back(frames)
        return False

    def relay(self, nbytes: int, now: int) -> bool:
        """Charge for a Relay that is passed on for the neighbour. Returns False, and charges nothing, if it is not."""
        return self._relayed.take(max(nbytes, _RELAY_BYTES_MIN), now)

    def receive_relayed(self, datagram_bytes: int, nbytes: int, now: int) -> bool:
        """Charge for a datagram that came over the link and is one Relay of so many bytes, as the two above do."""
        # Without calling them: this is done for every datagram that a relay passes on.
        relayed_bytes = max(nbytes, _RELAY_BYTES_MIN)
        if not self._relayed.take(relayed_bytes, now):
            return False
        if self._frames.take(1, now):
            if self._bytes.take(datagram_bytes, now):
                return True
            self._frames.give_back(1)
        self._relayed.give_back(relayed_bytes)
        return False

    def credit(self, worth: int) -> None:
        """Credit what came from the neighbour by what it led to."""
        self.tally += worth

    def charge(self, cost: int) -> None:
        """Charge what it cost beyond the price of its frames."""
        self.tally -= cost

    def take_tally(self) -> tuple[int, int]:
        """Return the worth of its frames since the last call, and the cost that all addresses share."""
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
