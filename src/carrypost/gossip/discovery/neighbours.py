"""Discovery: who is in reach, whether the link works both ways, and what they are interested in.

A host announces itself by broadcast (`gossip.discovery.beacon`), and a newcomer is answered at once. It tells its
interest profile by digest, and the profile itself on request, or unasked to a newcomer if it is short; what is in the
profile is decided in `gossip.interest.horizon`. An announcement to one neighbour alone says that a contact with it
begins: whoever still believed in an earlier one then begins anew.

An announcement that says nothing new takes the short way through `announced`: no cache, no batch, no event.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from carrypost.errors import RemoteError
from carrypost.events import NeighbourDown, NeighbourUp, OneWay
from carrypost.gossip.discovery.beacon import Beacon
from carrypost.gossip.discovery.places import Places
from carrypost.gossip.interest.horizon import carried_entries, profile_entries
from carrypost.gossip.transfers.link import HEARD, LINK_TABLE, LINKED, SILENT, SILENT_PERIODS, Link, Sign
from carrypost.gossip.transfers.outbox import FRAME_ROOM, Outbox
from carrypost.gossip.wire.frames import Announce, Frame, Profile, ProfileRequest, Transmission
from carrypost.gossip.wire.parts import Parts
from carrypost.model.pattern import decode_entries, encode_entries, profile_digest
from carrypost.model.times import NEVER

if TYPE_CHECKING:
    from collections.abc import Callable

    from carrypost.gossip.desk import Desk
    from carrypost.gossip.interest.index import View
    from carrypost.local.deliveries import Deliveries

_OVERTAKEN_US = 250_000
"""What a neighbour sends in a contact may overtake its announcement that the contact begins, by this at most."""
_REVIEW_GRACE = 2
_PROFILE_UNASKED_BYTES_MAX = 600
_PROFILE_RETRY_US = 1_000_000
_CHANGE_COST = 25
"""What a link costs that begins or ends, beside the frames that made it do so (`gossip.transfers.accounts`)."""


class Neighbours:
    """The links of one host, and its own announcements."""

    def __init__(
        self, desk: Desk, deliveries: Deliveries, up: Callable[[Link, int], None], down: Callable[[Link, int], None]
    ) -> None:
        self._desk = desk
        self._deliveries = deliveries
        self._up = up
        self._down = down
        settings = desk.settings
        self.beacon = Beacon(settings, desk.rng)
        self._parts = Parts(desk.limits.descriptor_buffer_bytes_max)
        self.lacking: list[Link] = []
        """Links whose profile is to be asked for."""
        self._carried = carried_entries(settings)
        self.places = Places(desk)
        self._told_early: dict[str, None] = {}
        """Contacts that the driver told of before this host could speak."""
        self._counter = 0
        self._encoded = b""
        self._heeded = self._made_of = 0
        """The revision of the subscriptions that a profile was promised for, and that it was made of."""
        self._tell_profile = True
        self.boot = 0

    # --- own announcements ---------------------------------------------------------------------------------

    def start(self, boot: int, now: int) -> None:
        """Begin to announce."""
        self.boot = boot
        self.refresh_profile(now)
        self.beacon.hasten(now)
        told, self._told_early = self._told_early, {}
        for peer in told:
            self.told(peer, up=True, now=now)

    def announce(self, now: int, to: str | None = None, *, begins: bool = False) -> None:
        """Say who is here, what it wants and whom it hears."""
        if self._made_of != self._deliveries.subscriptions.revision:
            self._make_profile()
        self._counter += 1
        links = self._desk.links
        heard = tuple([link.prefix for link in links.values() if link.state is not SILENT])
        if len(heard) > self.places.count:
            heard = self.places.listed(to)
        announced = Announce(
            self._desk.node, self.boot, self._counter, self.beacon.period_us // 1000,
            self._desk.own.digest if self._desk.own else b"", heard,
            links[to].prefix if to is not None and begins else b"",
        )  # fmt: skip
        frames: list[Frame] = [announced]
        if self._tell_profile and len(self._encoded) <= _PROFILE_UNASKED_BYTES_MAX:
            frames.extend(self._profile_frames())
        self._tell_profile = False
        self._desk.outgoing.append(Transmission(tuple(frames), to))
        if to is None:
            self.beacon.sent(now)
        else:
            links[to].told_us = now

    # --- own profile ---------------------------------------------------------------------------------------

    def interests_changed(self, now: int) -> None:
        """Subscriptions came or went: announce another profile soon, if it is another one.

        It is made when it is announced. Until then the one that neighbours know holds: a program may have thousands of
        subscriptions to make or to drop, and each profile costs a look at everything that is here.
        """
        revision = self._deliveries.subscriptions.revision
        if revision != self._heeded:
            self._heeded = revision
            self._announce_soon(now)

    def refresh_profile(self, now: int) -> None:
        """Neighbours changed: make the profile anew, and announce it if it is another one."""
        if self._make_profile():
            self._announce_soon(now)

    def _announce_soon(self, now: int) -> None:
        self._tell_profile = True
        self.beacon.hasten(now)
        for link in self._desk.links.values():
            if link.told:
                self._tell_profile = True
                self.announce(now, link.peer)

    def _make_profile(self) -> bool:
        """Whether it is another one than before."""
        subscriptions = self._deliveries.subscriptions
        self._made_of = self._heeded = subscriptions.revision
        views = [link.view for link in self._desk.usable if link.view is not None]
        neighbours = (view.entries for view in views)
        entries = profile_entries(subscriptions.entries, self._carried, neighbours, self._desk.settings)
        encoded = encode_entries(entries)
        digest = profile_digest(encoded)
        book, before = self._desk.book, self._desk.own
        if before is not None and before.digest == digest:
            return False
        copies = [copy for copy in self._desk.cache.copies if copy is not None]
        book.learn(entries, digest, copies, own=True)
        self._desk.own = book.keep(digest)
        if before is not None:
            book.drop(before.digest)
        self._encoded = encoded
        return True

    def _profile_frames(self) -> list[Frame]:
        own = self._desk.own
        if own is None:
            return []
        step = self._desk.settings.mtu_bytes - FRAME_ROOM
        bodies = [self._encoded[at : at + step] for at in range(0, len(self._encoded), step)]
        return [Profile(own.digest, part, len(bodies), body) for part, body in enumerate(bodies)]

    # --- hearing others ------------------------------------------------------------------------------------

    def told(self, peer: str, *, up: bool, now: int) -> None:
        """The driver knows of a contact: no need to find out."""
        if not self._desk.ready:
            if up:
                self._told_early[peer] = None
            else:
                self._told_early.pop(peer, None)
            return
        link = self._desk.links.get(peer)
        if not up:
            if link is not None:
                self._end(link, now)
            return
        if link is None:
            if not self.places.room_for_told():
                self._desk.refuse("neighbours", peer)
                return
            link = self._new(peer, now)
        link.told = True
        self._tell_profile = True
        self.announce(now, peer)

    def _found(self, peer: str, now: int) -> Link | None:
        """The link of an address that announces itself; a new one if there is a place for it."""
        link = self._desk.links.get(peer)
        if link is not None:
            return link
        going = self.places.ask(peer, now)
        if going is None:
            self._desk.refuse("neighbours", peer)
            return None
        for each in going:
            self._end(each, now)
        return self._new(peer, now)

    def _new(self, peer: str, now: int) -> Link:
        link = self._desk.links[peer] = Link(peer, self._desk.settings, Outbox(self._desk.settings), now)
        return link

    def _end(self, link: Link, now: int) -> None:
        """Forget a link and all that hangs on it."""
        self._sign(link, Sign.SILENCE, now)
        self._parts.leave(link.peer)
        del self._desk.links[link.peer]
        self._desk.links_changed()

    def announced(self, frame: Announce, peer: str, now: int) -> bool:
        """A neighbour says that it is there. False: nothing new."""
        if frame.node == self._desk.node:
            return False
        link = self._found(peer, now)
        if link is None or not self._fresh(link, frame, now):
            return False
        link.counter = frame.counter
        link.heard_us = link.announced_us = now
        link.agreement.announcements += 1
        lists_me = link.told or self._desk.prefix in frame.heard
        if frame.begins == self._desk.prefix and link.usable and self._begun_anew(link, now):
            self._sign(link, Sign.SILENCE, now)  # It has forgotten the contact that this host still believed in.
            link.profile = b""
        if link.profile == frame.profile and lists_me and link.state is LINKED and link.view is not None:
            return self._anything_due(link, now)
        link.announces_every(frame.period_ms)
        if link.profile != frame.profile:
            self._drop_view(link)
            link.profile = frame.profile
        if link.state is SILENT:
            self._tell_profile = True
            if not link.told:
                self.beacon.hasten(now)
        self._sign(link, Sign.LISTS_ME if lists_me else Sign.OMITS_ME, now, answer=frame.begins == self._desk.prefix)
        self._need_profile(link, now)
        if link.told and self._desk.prefix not in frame.heard and link.told_us <= now:
            self._tell_profile = True
            self.announce(now, peer)  # It could not listen yet when it was told.
        return True

    @staticmethod
    def _begun_anew(link: Link, now: int) -> bool:
        """Whether a neighbour for whom a contact begins had begun it before, and so has forgotten it in between.

        How long this host has been linked does not tell: on a slow link the two begin seconds apart, and where periods
        are short a neighbour that was suspended is forgotten a moment after it was met.
        """
        if now - link.begun_us >= _OVERTAKEN_US:
            return True
        link.begun(now)
        return False

    def _anything_due(self, link: Link, now: int) -> bool:
        """Whether an announcement that says nothing new lets something happen all the same."""
        sooner = link.silent_us < self._desk.wake_us  # A shorter period may end before the silence expected so far.
        return sooner or link.offering.stalled or (link.agreement.synced and self._review_due(link, now))

    def _review_due(self, link: Link, now: int) -> bool:
        """Beliefs go stale, so a review is repeated every so many announcements, by the smaller id if it can."""
        grace = 0 if self._desk.node < link.node else _REVIEW_GRACE
        settings = self._desk.settings
        if link.agreement.announcements < settings.digest_every + grace or settings.paper_mode:
            return False
        link.agreement.due_us = now
        return True

    def _fresh(self, link: Link, frame: Announce, now: int) -> bool:
        """False for a replay. A node that restarted counts from the start, with a larger boot number.

        Announcements are not signed: a forger may have claimed any numbers, or another name, for this address. So what
        was claimed holds only until it has not been repeated for a while.
        """
        lapsed = now - link.announced_us > 2 * self.beacon.period_max_us
        same = link.node == frame.node
        if same and link.boot == frame.boot:
            if frame.counter <= link.counter and not lapsed:
                self._desk.refuse("replay", link.peer)
                return False
            link.announces_every(frame.period_ms)
            return True
        if link.node and not lapsed and not (same and frame.boot > link.boot):
            self._desk.refuse("replay" if same else "address-taken", link.peer)
            return False
        if link.node:
            self._sign(link, Sign.SILENCE, now)
        link.claim(frame.node)
        link.boot = frame.boot
        return True

    def named(self, link: Link, now: int) -> None:
        """The neighbour's request names this host: so it hears it."""
        if link.node and link.state is not LINKED:
            link.heard_us = now
            self._sign(link, Sign.LISTS_ME, now)
            self._need_profile(link, now)

    def _sign(self, link: Link, sign: Sign, now: int, *, answer: bool = False) -> None:
        before, link.state = link.state, LINK_TABLE[link.state, sign]
        if before is link.state:
            return
        self._desk.links_changed()
        link.budgets.tally -= _CHANGE_COST
        if before is SILENT:
            link.first_us = now
        if link.state is LINKED:
            self._desk.events.append(NeighbourUp(link.node))
            link.linked_us = now
            link.begun_us = now if answer else NEVER
            link.one_way_told = False
            if not link.told:
                # What follows goes to somebody who may not have heard yet that it is heard.
                self.announce(now, link.peer, begins=not answer)
            if link.view is not None:
                self._up(link, now)
        elif before is LINKED:
            self._desk.events.append(NeighbourDown(link.node))
            self._down(link, now)
            link.first_us = now
            self.beacon.hasten(now)
            if self._desk.settings.horizon_hops > 1:
                self.refresh_profile(now)
        if link.state is SILENT:
            self._drop_view(link)

    # --- their profiles ------------------------------------------------------------------------------------

    def _need_profile(self, link: Link, now: int) -> None:
        if link.view is not None or link.state is not LINKED:
            return
        view = self._desk.book.view(link.profile)
        if view is not None:
            self._learnt(link, view, now)
        else:
            self.lacking.append(link)

    def ask_profiles(self, now: int) -> None:
        """Ask for the profiles that are still lacking at the end of a step: most come with the announcement."""
        lacking, self.lacking = self.lacking, []
        for link in lacking:
            if link.view is not None or not link.usable:
                continue
            if now >= link.profile_asked_us + _PROFILE_RETRY_US:
                link.profile_asked_us = now
                self._desk.outgoing.append(Transmission((ProfileRequest(link.profile),), link.peer))

    def _learnt(self, link: Link, view: View, now: int) -> None:
        link.view = self._desk.book.keep(view.digest)
        link.agreement.synced = False
        if link.state is LINKED:
            self._up(link, now)
            if self._desk.settings.horizon_hops > 1:
                self.refresh_profile(now)

    def _drop_view(self, link: Link) -> None:
        if link.view is not None:
            self._desk.book.drop(link.view.digest)
            link.view = None

    def take_profile(self, link: Link, frame: Profile, now: int) -> None:
        """A neighbour's profile, or a part of it; raises `RemoteError`."""
        if frame.digest != link.profile:
            raise RemoteError("profile-stale")
        if self._desk.book.view(frame.digest) is not None:
            self._need_profile(link, now)
            return
        key = (frame.digest, frame.parts)
        encoded = self._parts.add(link.peer, key, frame.part, frame.parts, frame.body)
        if encoded is None:
            return
        if profile_digest(encoded) != frame.digest:
            raise RemoteError("profile-digest")
        if not link.budgets.profiles.take(1, now):
            raise RemoteError("rate")
        entries = decode_entries(encoded, self._desk.limits)
        copies = [copy for copy in self._desk.cache.copies if copy is not None]
        self._desk.book.learn(entries, frame.digest, copies)
        link.budgets.learnt(len(entries), len(copies), now)
        for each in self._desk.links.values():
            if each.profile == frame.digest:
                self._need_profile(each, now)
                self.wake_for(each)

    def answer_profile(self, link: Link, frame: ProfileRequest, now: int) -> None:
        """Tell the profile to one who asks for it, but not as often as it likes; raises `RemoteError`."""
        if self._desk.own is not None and frame.digest == self._desk.own.digest:
            if not link.budgets.answers.take(1, now):
                raise RemoteError("rate")
            self._desk.outgoing.append(Transmission(tuple(self._profile_frames()), link.peer))

    # --- time ----------------------------------------------------------------------------------------------

    def tick(self, now: int) -> None:
        """End links that fell silent, and tell of those that work one way only."""
        for link in list(self._desk.links.values()):
            if now >= link.heard_us + SILENT_PERIODS * link.period_us and not link.told:
                self._end(link, now)
            elif link.state is LINKED:
                if link.view is None:
                    self._need_profile(link, now)
            elif link.state is HEARD and not link.one_way_told and now >= self._one_way_us(link):
                link.one_way_told = True
                self._desk.events.append(OneWay(link.node))

    def _one_way_us(self, link: Link) -> int:
        """When it will have been heard for long enough to tell that it does not hear this host."""
        return link.first_us + SILENT_PERIODS * self.beacon.period_max_us

    def look_ahead(self) -> None:
        """Find out when the next link needs a tick."""
        due = self._desk.look_us
        for link in self._desk.links.values():
            due = self._due_us(link, due)
        self._desk.wake_us = due

    def wake_for(self, link: Link) -> None:
        """This link may need a tick sooner than was thought. Done after every step that it had a part in."""
        self._desk.wake_us = self._due_us(link, self._desk.wake_us)

    def _due_us(self, link: Link, due: int) -> int:
        """When a link needs a tick, if that is before `due`."""
        # By comparisons: this is done after every step.
        if link.state is LINKED:
            due = link.due_us(due)
            if link.view is None and link.profile_asked_us + _PROFILE_RETRY_US < due:
                due = link.profile_asked_us + _PROFILE_RETRY_US
        elif not (link.one_way_told or link.told) and self._one_way_us(link) < due:
            due = self._one_way_us(link)
        if not link.told and link.heard_us + SILENT_PERIODS * link.period_us < due:
            due = link.silent_us
        return due

    def clock_stepped(self, delta_us: int) -> None:
        """The clock was set forward: that much silence was not silence."""
        for link in self._desk.links.values():
            link.heard_us += delta_us
            link.first_us += delta_us
            link.placed_us += delta_us
        self.places.clock_stepped(delta_us)
