"""Accounts of wasted work per link address, and the addresses that are muted for it."""

# The attack. Limits on frames and bytes do not bound work: one frame may name five hundred
# messages, each of which has to be looked up. A stranger that sends such frames as fast as it can
# keeps a node busy within every other limit.
#
# The way chosen. Every frame has a *price*, by its contents (`price`), in units of about a
# microsecond of CPU. The part of gossip that handles a frame credits to the link (`Budgets.tally`)
# what the frame led to: a message received, a new offer, a request that is served. The rest is
# *waste*, and it is charged here, per link address and for all addresses together. A price is an
# estimate, and some frame may always cost more than anybody thought of. So a real node measures the
# CPU time that it takes to handle frames, and charges that instead if it is more (`Accounts.waste`).
# An emulation measures nothing, so that its runs can be repeated.
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
#
# Measurements: docs/benchmarks.md, "Hostile strangers".

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from carrypost.gossip.transfers.budget import Budget
from carrypost.gossip.wire import frames as f

if TYPE_CHECKING:
    from carrypost.config import Limits

FRAME = 4
"""Decoding, looking up and refusing one frame, whatever its contents."""
PARCEL = 6
"""Decoding a frame with a descriptor in it."""
LINKS = 8
"""Decoding, looking up and refusing a frame about links, or a relayed one."""
BROKEN = 20
"""Answering that a link on the path of a frame is gone."""
_XOR = 12
"""Comparing one part of a set, and listing its contents if it differs."""
SIGNATURE = 150
"""Checking the signature of a record."""
ENTRY = 2
"""Looking up one entry of an offer, or one piece request."""
MESSAGE = 1_000
"""Worth of a message that came whole: several times what it takes to verify and store it."""
MERIT_MAX = 200_000
"""Merit that a neighbour can save up: this much may be wasted before its account is charged."""
ACCOUNTS_MAX = 4_096
"""Number of addresses that are remembered; beyond it, those without a debt are forgotten."""
_BURST_S = 1.0
"""Seconds of waste that are allowed at once. Honest contacts waste little, and a crowd of strangers begins together."""
_DEBT_S_MAX = 1.5
"""A debt is paid in this time at the latest: with `_RECOVERED_SHARE`, an address is muted for 2 s at a time, which is
less than three periods of announcements, so that its link outlives it."""
_RECOVERED_SHARE = 0.5
"""An address that was overdrawn is listened to again when it has this part of what it may waste. Muted and heard again
a hundred times a second, a flood would cost more than what is read of it. Strangers are listened to while as much is
left of what all may waste."""
_INNOCENT_SHARE = 0.9
"""Part of its allowance above which an address need not wait until others have paid."""


def _bucket_price(bucket: f.Bucket) -> int:
    listed = 2 if bucket.depth else _XOR  # All that is held here is compared with a list of everything.
    return listed + _XOR * len(bucket.fingerprints) + len(bucket.members or ())


_PRICES: dict[type, Callable[[Any], int]] = {
    f.Announce: lambda frame: FRAME + 2 + len(frame.heard) // 8,
    f.Profile: lambda frame: FRAME + len(frame.body) // 32,
    f.Digest: lambda frame: FRAME + len(frame.wanted) + sum(map(_bucket_price, frame.buckets)),
    f.WholeDescriptor: lambda _: PARCEL,
    f.DescriptorPart: lambda _: PARCEL,
    f.OpenParcel: lambda _: PARCEL,
    f.Offer: lambda frame: FRAME + ENTRY * len(frame.entries),
    f.Request: lambda frame: FRAME + len(frame.handles) + ENTRY * len(frame.pieces) + len(frame.offers) // 4,
    f.Ack: lambda frame: FRAME + len(frame.bitmap) // 64,
    f.AckRecord: lambda frame: FRAME + len(frame.messages),
    f.AckList: lambda frame: FRAME + (len(frame.xors) + len(frame.fingerprints)) // 8,
    f.Summary: lambda frame: FRAME + len(frame.fingerprints) // 8,
    f.Missing: lambda frame: FRAME + len(frame.fingerprints) // 8,
    f.LinkState: lambda frame: LINKS + (len(frame.relays) + len(frame.heads) + len(frame.wanted)) // 8,
    f.Relay: lambda frame: LINKS + len(frame.body) // 64,
    f.LinkRecord: lambda frame: LINKS + (len(frame.chosen_by) + len(frame.denied)) // 16,
}


def price(frame: f.Frame) -> int:
    """Return the cost of handling a frame, in units of about a microsecond, by its kind and contents."""
    priced = _PRICES.get(type(frame))
    return FRAME if priced is None else priced(frame)


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
        """`meter`: returns the CPU time of this thread so far in microseconds; without it prices alone count."""
        self._limits, self._meter = limits, meter
        self._all = Budget(limits.waste_per_s, burst_s=_BURST_S)
        self._short_us = 0
        """Time until which strangers have to wait, because all addresses together wasted too much."""
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
        """Return the CPU time so far, from which `waste` measures; 0 without a meter."""
        return 0 if self._meter is None else self._meter()

    def waste(self, waste: int, cost: int, began_us: int) -> int:
        """Return the waste of frames that are handled since `began_us`, of which prices say that it is `waste`.

        Where the handling is measured, the same part of the time is wasted as of the `cost`, if that is more.
        """
        if self._meter is None or waste <= 0:
            return waste
        took_us = min(self._meter() - began_us, self._limits.link_waste_per_s)
        return max(waste, took_us * min(waste, cost) // max(1, cost))

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
        overdrawn = self._all.spend(amount, now, debt_s_max=_DEBT_S_MAX) > now
        self._short_us = self._all.above_us(_RECOVERED_SHARE, now)
        return self._short_us if overdrawn else now

    def _open(self, peer: str, now: int) -> Account:
        if len(self._accounts) >= ACCOUNTS_MAX:
            # Addresses are free to a forger: those that owe something or earned something are worth remembering.
            kept = {key: each for key, each in self._accounts.items() if each.muted_us > now or each.merit}
            self._accounts = kept if len(kept) < ACCOUNTS_MAX else {}
        account = self._accounts[peer] = Account(self._limits)
        return account
