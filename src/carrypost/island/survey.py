"""The survey: a host's reports of its own links, and its knowledge of those of others.

Hosts choose relays among their neighbours (`island.relays`), and notify them by link states beside announcements. Each
host sends all others a record that is passed on (`island.flood`): the hosts of which it is a relay, and those that only
claim to be its neighbours. From these, and from what is heard in reach, follow the distances (`island.records`): over
relays alone all of them are as short as over all links.

Everything that changes is looked at together, a moment later (`review`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from carrypost.gossip.transfers import signed
from carrypost.gossip.transfers.budget import Budget
from carrypost.gossip.wire.cloud_frames import LinkRecord, LinkState
from carrypost.island.flood import JITTER_US, Flood, News
from carrypost.island.records import Entry, Table, packed_prefixes
from carrypost.island.relays import choose
from carrypost.model.times import NEVER

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from random import Random

    from carrypost.gossip.transfers.host_context import HostContext
    from carrypost.gossip.transfers.link import Link
    from carrypost.gossip.wire.frames import Frame

_GATHER_US = 200_000
"""Time after which records of others are looked at, together."""
_STATE_US = 300_000
"""Time within which neighbours are informed of changed relays, unless an announcement does so sooner."""
_DIGEST_US = 2_000_000
"""One in which only the digest changed goes so long after the last: where hosts move, it changes all the time, and
neighbours are seldom behind for long."""
_ALONE_US = 1_000_000
"""Within this it goes even without an announcement, which may be seconds away: a host that a record did not reach finds
out only by another digest."""
_STATE_EVERY = 4
"""Number of announcements after which one carries a link state, even if nothing changed."""
_AT_ONCE = 3
"""Number of changes of its own record that a host sends at once."""
_GAP_US = 700_000
"""But no sooner than this one after another: where links begin, they begin together."""
_DENY_US = 400_000
"""Time after which a false claim is denied. If its author noticed at the same time, its record comes before that."""
_DENIED_MAX = 32
"""Claims that a host denies; further ones it cannot."""


class Survey:
    """The links that one host reports and knows."""

    def __init__(self, context: HostContext, table: Table, rng: Random) -> None:
        self._node, self._prefix, self._links = context.node, context.prefix, context.links
        self._identity, self._outputs = context.identity, context.outputs
        self.table = table
        self.flood = Flood(context, table, rng)
        pace_s = context.settings.island_s_min
        self._pace = Budget(1 / pace_s, burst_s=_AT_ONCE * pace_s) if pace_s else None
        self._incarnation = 0
        """Number of this incarnation; 0: nothing may be sent yet."""
        self._relays: frozenset[bytes] = frozenset()
        self._announced = 0
        """Announcements since the last one with a link state."""
        self._told_us = -NEVER
        """Time of that one."""
        self._review_us = self._record_us = self._state_us = self._digest_us = self._forget_us = NEVER
        self._false_us: dict[bytes, int] = {}
        """Hosts that claim to be neighbours and are not, and since when."""
        self._reviewed = False
        """True after a review that `expire` has not reported yet."""

    def started(self, incarnation: int, now: int) -> None:
        """Say something of links, from now on."""
        self._incarnation = incarnation
        self.review(now)

    def met(self, link: Link, now: int) -> None:
        """Begin a contact."""
        self.flood.meet(link, now)
        if link.prefix in self.flood.sent_content[2]:
            self._state_us = min(self._state_us, self.flood.soon(now, _STATE_US))
        self._look_soon(now, JITTER_US)

    def parted(self, link: Link, now: int) -> None:
        """End a contact."""
        self.flood.part(link)
        self._look_soon(now, JITTER_US)

    def heard(self, link: Link, now: int) -> None:
        """Process the heard-list of a neighbour."""
        if link.peer in self.flood.peers:
            self._look_soon(now, JITTER_US)

    def companions(self, now: int, link: Link | None) -> Sequence[Frame]:
        """Return the link state for a newcomer; for all neighbours if it changed, and periodically."""
        if self._review_us != NEVER:
            self.review(now)
        self._set_state()
        if link is None:
            self._announced += 1
            news = self.flood.news
            due = self._announced >= _STATE_EVERY or news is News.LINKS or self._is_unheeded()
            if not (due or (news is News.DIGEST and now >= self._told_us + _DIGEST_US)):
                return ()
            self._announced, self._told_us, self._digest_us = 0, now, NEVER
            return (self.flood.state_to_broadcast(),)
        return (self.flood.state(),)

    def _is_unheeded(self) -> bool:
        """Return True if neither end says that a relay was chosen: it may have lost the link states with the choice."""
        own = self.table.get(self._node)
        return own is not None and not self._relays <= self.table.claimants | own.claimed

    def expire(self, now: int) -> bool:
        """Do what is due. Returns True if it was looked at what changed."""
        if min(self._review_us, self._record_us, self._forget_us) <= now:
            self.review(now)
        if self._state_us <= now:
            self._state_us = NEVER
            self._set_state()
            if self.flood.content[1:] != self.flood.sent_content[1:]:
                self._outputs.broadcast((self.flood.state_to_broadcast(),))
        if self._digest_us <= now:
            self._digest_us = NEVER
            if self.table.digest != self.flood.sent_content[0]:
                self._told_us = now
                self._outputs.broadcast((self.flood.state_to_broadcast(),))
        self.flood.expire(now)
        reviewed, self._reviewed = self._reviewed, False
        return reviewed

    @property
    def due_us(self) -> int:
        """Time at which `expire` has something to do."""
        if self._reviewed:
            return 0
        return min(
            self._review_us, self._record_us, self._state_us, self._digest_us, self._forget_us, self.flood.due_us
        )  # fmt: skip

    def _set_state(self) -> None:
        links = [link for link in self._links if link.broadcast and link.prefix and not link.usable]
        self.flood.set_state(self._relays, [link.prefix for link in links])

    def _look_soon(self, now: int, within_us: int) -> None:
        self._review_us = min(self._review_us, self.flood.soon(now, within_us))

    # --- what comes ----------------------------------------------------------------------------------------

    def receive_state(self, link: Link, frame: LinkState, now: int) -> None:
        """Take the link state of a neighbour; raises `RemoteError`."""
        if self.flood.receive_state(link, frame, now):
            self._look_soon(now, JITTER_US)

    def receive_record(self, link: Link, record: LinkRecord, now: int) -> Entry | None:
        """Take a record; returns it if it is new. Raises `RemoteError`."""
        entry = self.flood.receive_record(link, record, now)
        if entry is not None:
            soon = entry.node == self._node or entry.concerns
            self._look_soon(now, JITTER_US if soon else _GATHER_US)
        return entry

    # --- what follows --------------------------------------------------------------------------------------

    def review(self, now: int) -> None:
        """See to all that depends on neighbours and records: relays, and the own record."""
        self._review_us, self._reviewed = NEVER, True
        peers = self.flood.peers.values()
        heard = {peer.link.prefix: self.flood.neighbours_of(peer) for peer in peers if peer.digest is not None}
        self.table.meet({peer.link.node: heard.get(peer.link.prefix, frozenset()) for peer in peers}, now)
        if self.flood.lossless:
            self._relays = frozenset(heard)
        else:
            self._relays = choose(self._prefix, heard, self._relays)
            self._set_state()
            if packed_prefixes(self._relays) != self.flood.sent_content[1]:
                self._state_us = min(self._state_us, self.flood.soon(now, _STATE_US))
        self._record_us = NEVER
        if self._incarnation:
            self._renew_record(now)
        self._forget_us = self.table.expire(now)
        if self._digest_us == NEVER and not self.flood.lossless and self.table.digest != self.flood.sent_content[0]:
            soon_us = now + _ALONE_US // 2
            self._digest_us = max(self.flood.soon(soon_us, _ALONE_US // 2), self._told_us + _DIGEST_US)

    def _denied(self, false: Iterable[bytes], now: int) -> frozenset[bytes]:
        """Return the hosts whose claims have to be denied: those in reach had time to withdraw them."""
        self._false_us = {prefix: self._false_us.get(prefix, now) for prefix in sorted(false)[:_DENIED_MAX]}
        wait_us = 0 if self.flood.lossless else _DENY_US
        due = {prefix: since_us + wait_us for prefix, since_us in self._false_us.items()}
        self._record_us = min([due_us for due_us in due.values() if due_us > now], default=NEVER)
        return frozenset([prefix for prefix, due_us in due.items() if due_us <= now])

    def _renew_record(self, now: int) -> None:
        """Publish a new record of this host's links if they changed, as soon as the minimum interval allows."""
        peers = self.flood.peers.values()
        linked = {peer.link.prefix for peer in peers}
        claiming = self.table.claimants
        denied = self._denied(claiming - linked, now)
        own = self.table.get(self._node)
        claimed = frozenset() if own is None else own.claimed
        # An edge that the other end claims counts already.
        needed = {peer.link.prefix for peer in peers if peer.chose} - (claiming - claimed)
        chosen_by = needed | (claimed & self._relays)
        if own is not None:
            # Links that are true and of no use, and links that no host claims any more, leave with the next necessary
            # record.
            same = needed <= claimed <= linked and denied <= own.denied and own.denied.isdisjoint(linked)
            if same and self.flood.outrun < (own.incarnation, own.sequence):
                return
            if self._pace is not None and (now < own.since_us + _GAP_US or not self._pace.try_spend(1, now)):
                self._record_us = max(now + 1, own.since_us + _GAP_US, self._pace.above_us(1 / _AT_ONCE, now))
                return
        latest = max(self.flood.outrun, (0, 0) if own is None else (own.incarnation, own.sequence))
        incarnation = max(self._incarnation, latest[0])
        sequence = latest[1] + 1 if latest[0] == incarnation else 0
        record = LinkRecord(
            signed.author(self._identity), incarnation, sequence, packed_prefixes(chosen_by), packed_prefixes(denied)
        )
        self.flood.publish(Entry.of(self._node, signed.sign(self._identity, record), now))
