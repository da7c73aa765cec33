"""Accounts of wasted work per link address, and the addresses that are muted for it.

Limits on frames and bytes do not bound work: one frame may name five hundred things, each of which has to be looked up.
So every frame has a *price*, by what it holds (`price`), in units that are about a microsecond of CPU. Whoever handles
a frame credits to the link (`Budgets.tally`) what led to something: a message received, a new offer, a request that is
served. What is left is *waste*, and it is charged here, per link address and for all addresses together.

The invariant: an address whose account is overdrawn is *muted*, and what it sends is dropped unread until the debt has
been paid off by time. Where all addresses together are over their bound, strangers are not read, and whoever wastes
more than a little is muted until all is paid; neighbours that waste nothing notice nothing. *Merit*, which is earned by
messages that came whole, pays for waste first: who brings something is not muted for what others overhear of it.
Accounts go by address, and stay when a link ends, so that to come anew does not pay a debt.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from carrypost.gossip.transfers.budget import Budget
from carrypost.gossip.wire import frames as f

if TYPE_CHECKING:
    from carrypost.config import Limits

FRAME = 4
"""To decode, look up and refuse one frame, whatever is in it."""
PARCEL = 6
"""To decode a frame with a descriptor in it."""
LINKS = 8
"""To decode, look up and refuse a frame about links, or one that is relayed."""
BROKEN = 20
"""To answer that a link on the path of a frame is gone."""
_XOR = 12
"""To compare one part of a set, and to say what is in it where it differs."""
SIGNATURE = 150
"""To check the signature of a record."""
ENTRY = 2
"""To look up one entry of an offer, or one piece request."""
MESSAGE = 1_000
"""Worth of a message that came whole: several times what it takes to verify and store it."""
MERIT_MAX = 200_000
"""A neighbour that brought much may waste this before its account is charged."""
ACCOUNTS_MAX = 4_096
"""Addresses that are remembered; beyond it, those without a debt are forgotten."""
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
    return 2 + _XOR * len(bucket.fingerprints) + len(bucket.members or ())


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
    """Return the cost of handling a frame, in microseconds or so: by kind, and by how much is in it."""
    priced = _PRICES.get(type(frame))
    return FRAME if priced is None else priced(frame)


class Account:
    """The waste that one link address is still allowed."""

    __slots__ = ("budget", "merit", "muted_us")

    def __init__(self, limits: Limits) -> None:
        self.budget = Budget(limits.link_waste_per_s, burst_s=_BURST_S)
        self.merit = 0
        self.muted_us = 0
        """Until when what it sends is dropped unread."""


class Accounts:
    """The accounts of all link addresses at one host."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._all = Budget(limits.waste_per_s, burst_s=_BURST_S)
        self._short_us = 0
        """Until when strangers have to wait, because all together wasted too much."""
        self._accounts: dict[str, Account] = {}

    def listens(self, peer: str, now: int, *, neighbour: bool) -> bool:
        """Return True if frames from an address are to be read."""
        account = self._accounts.get(peer)
        return (account is None or account.muted_us <= now) and (neighbour or self._short_us <= now)

    def muted_us(self, peer: str) -> int:
        """Until when an address is muted; in the past if it is not."""
        account = self._accounts.get(peer)
        return 0 if account is None else account.muted_us

    def charge(self, peer: str, waste: int, now: int, *, common: int = 0) -> None:
        """Charge an address for work that led to nothing. Negative waste is merit: it brought more than it cost.

        `common` is charged to all addresses together and not to this one: what every newcomer is entitled to, but not
        a thousand of them at once.
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
            if recovered_us > account.muted_us and budget.share(now) < _INNOCENT_SHARE:
                account.muted_us = recovered_us

    def _charge_all(self, amount: int, now: int) -> int:
        """Charge all addresses together. Returns when they will have recovered; now, if they are not overdrawn."""
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
