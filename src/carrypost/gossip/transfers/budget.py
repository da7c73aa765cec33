"""Token buckets: the work that one link address may cause at this host.

A budget is charged per observed link address, before any work is done for it, because node ids are free to a forger and
link addresses are not.
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
"""Costs of compiling a pattern, and of matching a message against a profile (`gossip.transfers.accounts`)."""
_PROFILE_US = 50_000
"""A profile whose selectors took longer counts as several: two a second of the longest would take half of a core."""
_PROFILES_FREE = 0.75
"""While this part of its budget for profiles is left, a neighbour is not charged for a new one."""
_RUNS_PER_S = 0.1
"""Reconciliations that a neighbour may begin free of charge: one when a contact begins, then one every few minutes."""
_RUNS_BURST_S = 40.0
_LISTS_PER_S = 1.0
"""Frames of a comparison of acknowledgements that are answered: a few when a contact begins, then one a minute."""
_LISTS_BURST_S = 100.0
"""A whole list of the default size fits into this many frames."""
_STRANGE_PER_S, _STRANGE_BURST_S = 2.0, 20.0
"""Acknowledgements of unknown messages that are broadcast: keys and ids are free, and each host multiplies them."""
_RELAY_BYTES_MIN = 1_000
"""A shorter datagram counts as this many bytes of `limits.link_relay_bytes_per_s`: each costs as much work."""
_STATES_PER_S = 20.0
"""Link states that are processed: one or two with an announcement, and a few more where lists are compared."""
_REMINDERS_PER_S, _REMINDERS_BURST_S = 20.0, 5.0
"""Records of acknowledgements that are sent once more, each for up to 32 messages; one offer may call for many."""
_BREAKS_PER_S = 10.0
"""Answers that a link on a path is gone: the first one of a burst informs about all of it."""


class Budget:
    """A token bucket, filled at a fixed rate and saved up for at most `burst_s` seconds.

    It is stored as the time at which it will be full again (the virtual scheduling of GCRA, ITU-T I.371), so that no
    timer has to fill it.
    """

    __slots__ = ("_burst_us", "_full_us", "_token_us")

    def __init__(self, rate_per_s: float, burst_s: float = 2.0) -> None:
        self._token_us = _SECOND_US / rate_per_s
        self._burst_us = burst_s * _SECOND_US
        self._full_us = 0.0

    def try_spend(self, amount: float, now: int) -> bool:
        """Spend `amount` and return True, if it is available. A full bucket always allows one amount, of any size."""
        # Otherwise an amount above the burst, such as one datagram of 9 KiB, could never pass.
        if self._full_us <= now:
            self._full_us = now + amount * self._token_us
            return True
        full_us = self._full_us + amount * self._token_us
        if full_us > now + self._burst_us:
            return False
        self._full_us = full_us
        return True

    def give_back(self, amount: float) -> None:
        """Undo the last `try_spend`."""
        self._full_us -= amount * self._token_us

    def spend(self, amount: float, now: int, *, debt_s_max: float = 60.0) -> int:
        """Charge for work done already; return the time at which the debt is paid, before which `try_spend` refuses."""
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
        "_bytes", "_charged", "_frames", "_relayed", "answers", "breaks", "common", "forgeries", "lists", "profiles",
        "records", "reminders", "runs", "states", "strange", "tally",
    )  # fmt: skip

    def __init__(self, limits: Limits) -> None:
        self._frames, self._bytes = Budget(limits.link_frames_per_s), Budget(limits.link_bytes_per_s)
        self.forgeries = Budget(limits.link_forgeries_per_s)
        self.records = Budget(limits.link_records_per_s)
        """For acknowledgements of other hosts that the neighbour passes on: each has a signature."""
        self.strange = Budget(_STRANGE_PER_S, burst_s=_STRANGE_BURST_S)
        """For broadcasting those whose messages are not known here."""
        self._relayed = Budget(limits.link_relay_bytes_per_s)
        self.breaks = Budget(_BREAKS_PER_S)
        """For answers that a frame could not be passed on."""
        self.reminders = Budget(_REMINDERS_PER_S, burst_s=_REMINDERS_BURST_S)
        """For own acknowledgements that are repeated to the neighbour."""
        self.states = Budget(_STATES_PER_S)
        """For link states."""
        self.lists = Budget(_LISTS_PER_S, burst_s=_LISTS_BURST_S)
        """For comparing lists of acknowledgements."""
        self.profiles = Budget(limits.link_profiles_per_s, burst_s=_PROFILE_BURST_S)
        """For learning the neighbour's profiles."""
        self.answers = Budget(limits.link_profiles_per_s, burst_s=_PROFILE_BURST_S)
        """For sending this host's profile to the neighbour."""
        self.runs = Budget(_RUNS_PER_S, burst_s=_RUNS_BURST_S)
        """For reconciliations that the neighbour begins."""
        self.tally = 0
        """Worth of the neighbour's frames, less their cost beyond their price, since `pop_tally`
        (`transfers.accounts`)."""
        self._charged = 0
        """Cost of the neighbour's frames beyond their price, since `pop_tally`."""
        self.common = 0
        """Cost that is charged to all addresses together, and not to this one."""

    def receive(self, frames: int, nbytes: int, now: int) -> bool:
        """Charge for a received datagram; return False, and charge nothing, if it exceeds the budget."""
        if not self._frames.try_spend(frames, now):
            return False
        if self._bytes.try_spend(nbytes, now):
            return True
        self._frames.give_back(frames)
        return False

    def relay(self, nbytes: int, now: int) -> bool:
        """Charge for a Relay of the neighbour; return False, and charge nothing, if it exceeds the budget."""
        return self._relayed.try_spend(max(nbytes, _RELAY_BYTES_MIN), now)

    def receive_relayed(self, datagram_bytes: int, nbytes: int, now: int) -> bool:
        """Charge for a datagram that is one Relay, as `receive` and `relay` do."""
        # Without calling them: this is done for every datagram that a relay passes on.
        relayed_bytes = max(nbytes, _RELAY_BYTES_MIN)
        if not self._relayed.try_spend(relayed_bytes, now):
            return False
        if self._frames.try_spend(1, now):
            if self._bytes.try_spend(datagram_bytes, now):
                return True
            self._frames.give_back(1)
        self._relayed.give_back(relayed_bytes)
        return False

    def credit(self, worth: int) -> None:
        """Credit the neighbour with the worth of what its frames led to."""
        self.tally += worth

    def charge(self, cost: int) -> None:
        """Charge the neighbour for costs beyond the price of its frames."""
        self.tally -= cost
        self._charged += cost

    def pop_tally(self) -> tuple[int, int, int]:
        """Return and reset the worth of its frames, their cost beyond their price, and the cost that all share."""
        tally, charged, common = self.tally, self._charged, self.common
        self.tally = self._charged = self.common = 0
        return tally, charged, common

    def learnt(self, profile: Matcher, copies: int, now: int) -> None:
        """Charge for a profile that was compiled and matched: the first ones to all addresses together only."""
        selecting_us = profile.selecting_us
        cost = _PROFILE_ENTRY_COST * len(profile.entries) + _PROFILE_COPY_COST * copies + selecting_us
        self.profiles.spend(selecting_us // _PROFILE_US, now)
        # A newcomer's first profiles are necessary work. Charging them to the newcomer would mute
        # honest nodes with large profiles; not charging them at all would let a thousand addresses
        # compile patterns for free.
        if self.profiles.share(now) < _PROFILES_FREE:
            self.charge(cost)
        else:
            self.common += cost
