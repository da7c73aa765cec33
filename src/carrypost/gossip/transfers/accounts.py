"""Bounds of the work that neighbours cause: token buckets, accounts of wasted work, and addresses muted for it.

A `Budget` is a token bucket: something may be done at a fixed rate, and a little of it at once. An `Account` counts the
work that one link address has wasted, and `Accounts` mutes the addresses whose accounts are overdrawn.
"""

# The attack. Limits on frames and bytes do not bound work: one frame may name five hundred
# messages, each of which has to be looked up. A stranger that sends such frames as fast as it can
# keeps a node busy within every such limit.
#
# The way chosen. A node measures the CPU time that it takes to read and handle the frames of an
# address. The parts of gossip that handle a frame count what they do for it (`Work.did`), and what
# of that led to something: a message received, a new offer, a request that is served
# (`Work.credit`). The rest is *waste*. By its share in the count, a part of the time is wasted, and
# that part is charged here, per link address and for all addresses together. Nobody has to know
# beforehand what a frame may cost. An emulation measures nothing, so that its runs can be repeated:
# there the count stands for the time, a unit for about a microsecond.
#
# What must hold.
# 1. An address whose account is overdrawn is *muted*: its datagrams are dropped unread until time
#    has paid the debt.
# 2. If all addresses together are over their bound, strangers are not read, and an address that
#    wastes more than a little is muted until all is paid. Neighbours that waste nothing notice
#    nothing.
# 3. *Merit*, which is earned by messages that arrived whole, pays for waste first: a neighbour that
#    brings messages is not muted for broadcasts meant for others.
# 4. Accounts go by link address, not by node id, and survive the end of a link. Ids are free to a
#    forger, and reconnecting must not pay a debt.
# 5. One step alone mutes no address whose account is full, however long it takes: the first
#    contact of an honest neighbour may take long. But while all addresses together are over their
#    bound, a step handles no more than what its address may waste without being muted by rule 2:
#    ten strangers that begin at once must not have a long step each.
# 6. What frames cause later is charged as well: the end of their step, where they are answered, and
#    what is repeated because a neighbour did not send what it offered.
#
# Measurements: docs/benchmarks.md, "Hostile strangers".

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from carrypost.config import Limits


_SECOND_US: Final = 1_000_000


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


FRAME: Final = 4
"""Decoding, looking up and refusing one frame, whatever its contents."""
PARCEL: Final = 6
"""Decoding and looking up a frame with a whole message, or with a datagram for another host."""
SIGNATURE: Final = 150
"""Checking a signature."""
RECORDS_PER_S: Final = 20
"""Records with signatures that are sent in a second: each host that gets them has to check them."""
LOOKS: Final = 4
"""Number of entries of a table that are read within one unit."""
MESSAGE: Final = 1_000
"""Worth of a message that came whole: several times what it takes to verify and store it."""
MERIT_MAX: Final = 200_000
"""Merit that a neighbour can save up: this much may be wasted before its account is charged."""
ACCOUNTS_MAX: Final = 4_096
"""Number of addresses that are remembered; beyond it, those without a debt are forgotten."""
_BURST_S: Final = 1.0
"""Seconds of waste that are allowed at once. Honest contacts waste little, and a crowd of strangers begins together."""
_DEBT_S_MAX: Final = 1.5
"""A debt is paid in this time at the latest: with `_RECOVERED_SHARE`, an address is muted for 2 s at a time, which is
less than three periods of announcements, so that its link outlives it."""
_RECOVERED_SHARE: Final = 0.5
"""An address that was overdrawn is listened to again when it has this part of what it may waste. Muted and heard again
a hundred times a second, a flood would cost more than what is read of it. Strangers are listened to while as much is
left of what all may waste."""
_STEP_SHARE: Final = 0.9
"""Part of its allowance that one step may cost an address."""
_INNOCENT_SHARE: Final = 0.9
"""Part of its allowance above which an address need not wait until others have paid."""


class Work:
    """The work that the frames of one link have caused and that was not charged yet, counted where it is done."""

    __slots__ = ("_frame", "began_us", "common", "done", "owed", "useful")

    def __init__(self) -> None:
        self.began_us = 0
        """CPU time at which the step began whose frames are handled (`Accounts.clock_us`)."""
        self.done = self.useful = 0
        """Units of work that frames caused while they were handled, and those of it that led to something."""
        self.owed = 0
        """Work that they cause at other times: charged as it is."""
        self.common = 0
        """Work that is charged to all addresses together, and not to this one."""
        self._frame = 0
        """Value of `done` before the present frame."""

    def begin(self, units: int = FRAME) -> None:
        """Count the beginning of a frame."""
        self._frame = self.done
        self.done += units

    def did(self, units: int) -> None:
        """Count work that was done for a frame."""
        self.done += units

    def credit(self, units: int | None = None) -> None:
        """Credit what frames led to; None: everything that was done for the present frame."""
        self.useful += self.done - self._frame if units is None else units

    def owe(self, units: int, *, free: bool = False) -> None:
        """Count work that is not part of handling a frame; `free`: all addresses together are charged for it."""
        if free:
            self.common += units
        else:
            self.owed += units


class Account:
    """The waste that one link address is still allowed."""

    __slots__ = ("budget", "merit", "muted_us")

    def __init__(self, limits: Limits) -> None:
        self.budget = Budget(limits.link_waste_per_s, burst_s=_BURST_S)
        self.merit = 0
        self.muted_us = 0
        """Time until which its datagrams are dropped unread."""


class Accounts:
    """The accounts of all link addresses at one host."""

    def __init__(self, limits: Limits, meter: Callable[[], int] | None = None) -> None:
        """`meter`: returns the CPU time of this thread so far in microseconds; without it the count stands for it."""
        self._limits, self._meter = limits, meter
        self.step_max = max(1, int(limits.link_waste_per_s * _STEP_SHARE))
        """Waste beyond which the frames of one step are not handled, and for which it is charged at most."""
        self._ending: tuple[str, float, int] | None = None
        """Of the step whose frames were handled last: the address, the wasted part, the time at which that ended."""
        self._all = Budget(limits.waste_per_s, burst_s=_BURST_S)
        self._short_us = 0
        """Time until which strangers have to wait, because all addresses together wasted too much."""
        self._overdrawn_us = 0
        """Time until which all addresses together are over their bound."""
        self._accounts: dict[str, Account] = {}

    def listens(self, peer: str, now: int, *, neighbour: bool) -> bool:
        """Return True if frames from an address may be read."""
        account = self._accounts.get(peer)
        return (account is None or account.muted_us <= now) and (neighbour or self._short_us <= now)

    def muted_us(self, peer: str) -> int:
        """Return the time until which an address is muted; in the past if it is not."""
        account = self._accounts.get(peer)
        return 0 if account is None else account.muted_us

    def clock_us(self) -> int:
        """Return the CPU time so far, from which `took` and `waste` measure; 0 without a meter."""
        return 0 if self._meter is None else self._meter()

    def begin_step(self) -> int:
        """Return `clock_us` at the beginning of a step, for whose end nobody is to be charged yet."""
        self._ending = None
        return self.clock_us()

    def took(self, began_us: int, units: int) -> int:
        """Return the time since `began_us`, or the count of the work where nothing is measured."""
        return units if self._meter is None else self._meter() - began_us

    def waste(self, work: Work, began_us: int) -> int:
        """Return the waste of frames that are handled since `began_us`; negative: what they are worth beyond it."""
        wasted = work.done - work.useful
        if wasted > 0:
            wasted = min(self.took(began_us, work.done) * wasted // work.done, self.step_max)
        return wasted + work.owed

    def exceeds(self, peer: str, work: Work, now: int) -> bool:
        """Return True if the frames of a step wasted so much that those left of it are dropped."""
        wasted = self.waste(work, work.began_us)
        if wasted <= 0 or (self._overdrawn_us <= now and wasted < self.step_max):
            return False
        account = self._accounts.get(peer)
        share, merit = (1.0, 0) if account is None else (account.budget.share(now), account.merit)
        left = merit + int((share - _INNOCENT_SHARE) * self._limits.link_waste_per_s)
        return wasted >= min(self.step_max, max(left, 0))

    def settle(self, peer: str, work: Work, began_us: int, now: int) -> None:
        """Charge an address for the work since `began_us`."""
        wasted = work.done - work.useful
        self._ending = (peer, wasted / work.done, self._meter()) if wasted > 0 and self._meter is not None else None
        self.charge(peer, self.waste(work, began_us), now, common=work.common)
        work.done = work.useful = work.owed = work.common = 0

    def end_step(self, now: int) -> None:
        """Charge the address whose frames were handled last for the end of their step, as far as it is measured."""
        if self._ending is not None:
            (peer, part, ended_us), self._ending = self._ending, None
            self.charge_time(peer, ended_us, now, part=part)

    def charge_time(self, peer: str, began_us: int, now: int, *, part: float = 1.0) -> None:
        """Charge an address for a part of the time since `began_us`, as far as it is measured."""
        self.charge(peer, min(int(self.took(began_us, 0) * part), self.step_max), now)

    def charge(self, peer: str, waste: int, now: int, *, common: int = 0) -> None:
        """Charge an address for work that led to nothing; negative waste is merit.

        `common` is charged to all addresses together and not to this one: every newcomer is entitled to it, but not a
        thousand of them at once.
        """
        if common:
            self._charge_all(common, now)
        if waste == 0:
            return
        account = self._accounts.get(peer)
        if account is None:
            account = self._open(peer, now)
        if waste < 0:
            account.merit = min(MERIT_MAX, account.merit - waste)
            return
        paid = min(waste, account.merit)
        account.merit -= paid
        waste -= paid
        if waste:
            recovered_us, budget = self._charge_all(waste, now), account.budget
            if budget.spend(waste, now, debt_s_max=_DEBT_S_MAX) > now:
                account.muted_us = budget.above_us(_RECOVERED_SHARE, now)
            # While all together are overdrawn an address that hardly wastes anything keeps being
            # heard: a flood from other addresses must not cut off honest neighbours.
            if recovered_us > account.muted_us and budget.share(now) < _INNOCENT_SHARE:
                account.muted_us = recovered_us

    def _charge_all(self, amount: int, now: int) -> int:
        """Charge all addresses together; return the time at which they will have recovered, now if not overdrawn."""
        self._overdrawn_us = self._all.spend(amount, now, debt_s_max=_DEBT_S_MAX)
        self._short_us = self._all.above_us(_RECOVERED_SHARE, now)
        return self._short_us if self._overdrawn_us > now else now

    def _open(self, peer: str, now: int) -> Account:
        if len(self._accounts) >= ACCOUNTS_MAX:
            # Addresses are free to a forger: those that owe something or earned something are worth remembering.
            kept = {key: each for key, each in self._accounts.items() if each.muted_us > now or each.merit}
            self._accounts = kept if len(kept) < ACCOUNTS_MAX else {}
        account = self._accounts[peer] = Account(self._limits)
        return account
