"""A host's reports about itself: announcements, the times at which they are made, and its interest profile.

An announcement names this node, the digest of its profile and the nodes that it hears. The profile itself is sent on
request, or unasked to a newcomer if it is short; `gossip.interest.own_interests` decides its contents.

The `Beacon` has the times at which a host announces itself. The period doubles from `announce_s_min` to
`announce_s_max` while nothing changes, and falls back on a change; then the next announcement follows soon, after a
random delay, so that neighbours do not all transmit at once. Some strategies have a fixed period; without `beacons`
there are no periodic announcements at all.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from carrypost.gossip.discovery.neighbour import ANNOUNCE_BYTES, HEARD_BYTES, LINKED, SILENT, Stamps
from carrypost.gossip.layer import Layer, Layers
from carrypost.gossip.timers import PROVE
from carrypost.gossip.transfers.outbox import FRAME_ROOM
from carrypost.gossip.wire.checks import RECEIPT_BITMAP_BYTES_MAX
from carrypost.gossip.wire.fields import TOKEN_BYTES
from carrypost.gossip.wire.frames import Announce, Frame, Profile, ProfileRequest, Receipt
from carrypost.model.times import NEVER
from carrypost.security import packets

if TYPE_CHECKING:
    from collections.abc import Mapping
    from random import Random

    from carrypost.config import Settings
    from carrypost.gossip.discovery.neighbour import Neighbour, Places
    from carrypost.gossip.transfers.link import HostContext, Link


_HASTE_US: Final = 100_000
"""Longest time until a change is announced."""
_GAP_US: Final = 200_000
"""Shortest time between two announcements."""
_REPORT_US: Final = 1_000_000
"""Time within which unasked Parcels are confirmed."""
_JITTER: Final = 0.1


class Beacon:
    """The clock of one host's announcements."""

    __slots__ = ("_fixed", "_last_us", "_on", "_rng", "due_us", "period_max_us", "period_min_us", "period_us")

    def __init__(self, settings: Settings, rng: Random, *, fixed: bool = False) -> None:
        self._on = settings.beacons
        self._fixed = fixed
        self._rng = rng
        self.period_max_us = round(settings.announce_s_max * 1e6)
        self.period_min_us = self.period_max_us if self._fixed else round(settings.announce_s_min * 1e6)
        self.period_us = self.period_min_us
        self._last_us = -NEVER
        self.due_us = NEVER

    def sent(self, now: int) -> None:
        """Record that an announcement was broadcast."""
        period_us = self.period_us
        self._last_us = now
        if not self._fixed:
            self.period_us = min(self.period_max_us, period_us * 2)
        # Without jitter, hosts that met once would announce in step for ever, and collide on the
        # radio each time.
        self.due_us = now + round(period_us * (1 - _JITTER * self._rng.random()))

    def report(self, now: int) -> None:
        """Announce soon to confirm something that arrived, without changing the period."""
        if self._on and not self._fixed:
            soon = max(now + round(_REPORT_US * (1 - self._rng.random() / 4)), self._last_us + _GAP_US)
            self.due_us = min(self.due_us, soon)

    def hasten(self, now: int) -> None:
        """Announce soon, and often for a while, because something changed."""
        if not self._on:
            return
        if self._fixed:
            if self.due_us == NEVER:
                self.due_us = now + round(self.period_us * self._rng.random())
            return
        self.period_us = self.period_min_us
        soon = max(now + round(_HASTE_US * self._rng.random()), self._last_us + _GAP_US)
        self.due_us = min(self.due_us, soon)


_PROFILE_UNASKED_BYTES_MAX: Final = 600
PROVE_US, _DOUBLINGS = 250_000, 2
"""Time after which a neighbour is asked again for a proof that did not arrive. It doubles this number of times."""
_RECEIPT_BYTES_MAX: Final = RECEIPT_BITMAP_BYTES_MAX + 18
"""Largest receipt for one neighbour, in bytes."""


class Announcing:
    """The announcements of one host, and its profile."""

    def __init__(
        self, context: HostContext, places: Places, layers: Layers, rng: Random, *, fixed_period: bool
    ) -> None:
        self._holdings, self._outputs = context.holdings, context.outputs
        self._links, self._interests = context.links, context.interests
        self._settings, self._limits, self._node = context.settings, context.limits, context.node
        self._places, self._layers, self._closed = places, layers, context.links.closed
        self._neighbours: Mapping[str, Neighbour] = places.neighbours
        self.beacon = Beacon(self._settings, rng, fixed=fixed_period)
        self._counter = 0
        self._stamps, self._rng = Stamps(rng), rng
        self._heeded = 0
        """The revision of the interests for which a profile was promised."""
        self._profile_due = True
        self.incarnation: int | None = None
        """The incarnation of this host; None until it may be announced."""

    def start(self, incarnation: int, now: int) -> None:
        """Begin to announce."""
        self.incarnation = incarnation
        self.refresh_profile(now)
        self.beacon.hasten(now)

    def introduce(self) -> None:
        """Send the profile beside the next announcement."""
        self._profile_due = True

    def announce(self, now: int, to: Neighbour | None = None, *, begins: bool = False) -> None:
        """Announce this node, its interests and the nodes that it hears."""
        if self._interests.stale:
            self._make_profile()
        begun = to.link.prefix if to is not None and begins else b""
        if to is not None and to.link.is_old:
            to.link.send(self._charters(packets.parted(to.link.peer)[1], to, begun))
            to.addressed_us = now
            return
        heard = tuple([
            each.link.prefix for each in self._neighbours.values() if each.state is not SILENT and not each.link.is_old
        ])  # fmt: skip
        if len(heard) > self._places.count:
            heard = self._places.listed(to)
        frames: list[Frame] = [self._announcement(to, heard, begun, self._receipts(len(heard), to))]
        if self._profile_due and len(self._interests.encoded) <= _PROFILE_UNASKED_BYTES_MAX:
            frames.extend(self._profile_frames(None if to is None else to.link))
        self._profile_due = False
        for layer in self._layers.having[Layer.companions]:
            frames.extend(layer.companions(now, None if to is None else to.link))
        if to is None:
            self._outputs.broadcast(frames)
            if self._closed.name:
                self._announce_older()
            self.beacon.sent(now)
        else:
            to.link.send(frames)
            to.addressed_us = now

    def _announce_older(self) -> None:
        """Announce this node under the keys of those that are heard under older ones, and at times the previous one."""
        parted = [packets.parted(each.link.peer)[1] for each in self._neighbours.values() if each.state is not SILENT]
        for key in dict.fromkeys(filter(None, [self._closed.repeats(), *parted])):
            self._outputs.send(self._charters(key), packets.under("", key))

    def _charters(
        self, key: bytes, to: Neighbour | None = None, begins: bytes = b"", token: bytes = b""
    ) -> tuple[Frame, ...]:
        """Return an announcement under an older key, which asks for charters, and lists who is heard under that key."""
        heard = tuple([
            each.link.prefix for each in self._neighbours.values()
            if each.state is not SILENT and packets.parted(each.link.peer)[1] == key
        ])[: self._places.count]  # fmt: skip
        made = self._announcement(to, heard, begins, token=token, profile=self._closed.digest)
        return made, Profile(self._closed.digest, 0, 1, self._closed.encoded)

    def challenge(self, now: int, to: Neighbour) -> None:
        """Announce this node to a neighbour that has to prove that it receives at its address."""
        if not to.token:
            to.token = self._rng.randbytes(TOKEN_BYTES)
        if to.link.is_old:
            to.link.send(self._charters(packets.parted(to.link.peer)[1], to, token=to.token)[:1])
        else:
            to.link.send((self._announcement(to, (to.link.prefix,), token=to.token),))
        to.addressed_us = now
        if not to.proven:
            to.link.timers.arm(PROVE, now + (PROVE_US << min(to.challenges, _DOUBLINGS)))
            to.challenges += 1

    def _announcement(
        self,
        to: Neighbour | None,
        heard: tuple[bytes, ...],
        begins: bytes = b"",
        receipts: tuple[Receipt, ...] = (),
        *,
        token: bytes = b"",
        profile: bytes = b"",
    ) -> Announce:
        """Return the next announcement; one to a neighbour has the proof for it, if it ever sent a token."""
        self._counter += 1
        stamp = b"" if to is not None and to.driver_asserted else self._stamps.stamp(self._counter)
        proof = b""
        if to is not None:
            proof, to.asks = to.token_there, False
        return Announce(
            self._node, self.incarnation or 0, self._counter, self.beacon.period_us // 1000,
            profile or (self._interests.view.digest if self._interests.view else b""), heard, begins, receipts,
            self._links.carried_bytes, stamp, token, proof,
        )  # fmt: skip

    def _receipts(self, heard: int, to: Neighbour | None) -> tuple[Receipt, ...]:
        """Return receipts of unasked Parcels that came lately, for their senders and for hosts that await the same.

        `heard` neighbours are listed: an announcement is one datagram, and receipts that do not fit wait for the next
        one.
        """
        found: list[Receipt] = []
        room = self._settings.datagram_bytes - ANNOUNCE_BYTES - HEARD_BYTES * heard
        for link in self._links.usable:
            if to is None or to.link is link:
                link.inbox.reported()
            if not link.inbox.unasked.is_empty and room >= _RECEIPT_BYTES_MAX:
                report = link.inbox.unasked.report() if to is None else link.inbox.unasked.peek()
                if report.bitmap:
                    found.append(Receipt(link.prefix, report.base, report.bitmap))
                    room -= _RECEIPT_BYTES_MAX - RECEIPT_BITMAP_BYTES_MAX + len(report.bitmap)
        return tuple(found)

    def carry(self, datagram_bytes: int, now: int) -> None:
        """Use the longest datagram that the interfaces here carry, and inform the neighbours."""
        self._links.carry(min(datagram_bytes, self._limits.datagram_bytes_max))
        if self.incarnation is not None:
            self.beacon.hasten(now)

    # --- the profile -----------------------------------------------------------------------------------------

    def interests_changed(self, now: int) -> None:
        """Announce another profile soon, if a change of subscriptions calls for it.

        It is made when it is announced. Until then the one that neighbours know is valid: a program may make or drop
        thousands of subscriptions, and each profile has to be matched against all copies.
        """
        revision = self._interests.revision
        if revision != self._heeded and self.incarnation is not None:  # Before that nothing is announced.
            self._heeded = revision
            self._announce_soon(now)

    def refresh_profile(self, now: int) -> None:
        """Make the profile anew because neighbours changed, and announce it if it is another one."""
        if self._make_profile():
            self._announce_soon(now)

    def _announce_soon(self, now: int) -> None:
        self._profile_due = True
        self.beacon.hasten(now)
        for neighbour in self._neighbours.values():
            if neighbour.driver_asserted:
                self._profile_due = True
                self.announce(now, neighbour)

    def _make_profile(self) -> bool:
        """Make the profile; return True if it is another one than before."""
        self._heeded = self._interests.revision
        linked = [each for each in self._neighbours.values() if each.state is LINKED]
        views = [each.view for each in linked if each.view is not None]
        return self._interests.renew(views, self._holdings.index, self._holdings.known_copies())

    def _profile_frames(self, to: Link | None) -> list[Frame]:
        own = self._interests.view
        if own is None:
            return []
        encoded = self._interests.encoded
        step = self._settings.datagram_bytes - FRAME_ROOM if to is None else to.body_bytes_max
        bodies = [encoded[at : at + step] for at in range(0, len(encoded), step)]
        return [Profile(own.digest, part, len(bodies), body) for part, body in enumerate(bodies)]

    def answer_profile(self, link: Link, frame: ProfileRequest, now: int) -> None:
        """Send the profile to a neighbour that requests it, but not as often as it likes; raises `LimitError`."""
        if link.is_old:
            link.answer((Profile(self._closed.digest, 0, 1, self._closed.encoded),), now)
        elif self._interests.view is not None and frame.digest == self._interests.view.digest:
            link.answer(self._profile_frames(link), now)
