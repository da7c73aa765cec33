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
from carrypost.gossip.transfers.link import HEARD, LINK_TABLE, LINKED, SILENT, SILENT_PERIODS, Link, Sign
from carrypost.gossip.transfers.outbox import FRAME_ROOM, Outbox
from carrypost.gossip.wire.frames import Announce, Frame, Profile, ProfileRequest
from carrypost.gossip.wire.parts import Parts
from carrypost.model.pattern import decode_entries, profile_digest
from carrypost.model.times import NEVER

if TYPE_CHECKING:
    from random import Random

    from carrypost.gossip.interest.index import View
    from carrypost.gossip.layer import Layers
    from carrypost.gossip.strategy.exchange import Exchange
    from carrypost.gossip.transfers.ground import Ground

_OVERTAKEN_US = 250_000
"""What a neighbour sends in a contact may overtake its announcement that the contact begins, by this at most."""
_REVIEW_GRACE = 2
_PROFILE_UNASKED_BYTES_MAX = 600
_PROFILE_RETRY_US = 1_000_000
_CHANGE_COST = 25
"""What a link costs that begins or ends, beside the frames that made it do so (`gossip.transfers.accounts`)."""


class Neighbours:
    """The links of one host, and its own announcements."""

    def __init__(self, ground: Ground, exchange: Exchange, layers: Layers, rng: Random) -> None:
        self._holdings, self._outputs = ground.holdings, ground.outputs
        self._links, self._own = ground.links, ground.own
        self._settings, self._limits = ground.settings, ground.limits
        self._node, self._prefix = ground.node, ground.prefix
        self._exchange = exchange
        self._layers = layers
        self.beacon = Beacon(self._settings, rng)
        self._parts = Parts(self._limits.descriptor_buffer_bytes_max)
        self.lacking: list[Link] = []
        """Links whose profile is to be asked for."""
        self.places = Places(ground)
        self._told_early: dict[str, None] = {}
        """Contacts that the driver told of before this host could speak."""
        self._counter = 0
        self._heeded = 0
        """The revision of the interests that a profile was promised for."""
        self._tell_profile = True
        self._boot: int | None = None
        """The number of this life; None until it may be told."""

    # --- own announcements ---------------------------------------------------------------------------------

    def start(self, boot: int, now: int) -> None:
        """Begin to announce."""
        self._boot = boot
        self.refresh_profile(now)
        self.beacon.hasten(now)
        told, self._told_early = self._told_early, {}
        for peer in told:
            self.told(peer, up=True, now=now)

    def announce(self, now: int, to: str | None = None, *, begins: bool = False) -> None:
        """Say who is here, what it wants and whom it hears."""
        if self._own.stale:
            self._make_profile()
        self._counter += 1
        links = self._links
        heard = tuple([link.prefix for link in links if link.state is not SILENT])
        if len(heard) > self.places.count:
            heard = self.places.listed(to)
        announced = Announce(
            self._node, self._boot or 0, self._counter, self.beacon.period_us // 1000,
            self._own.view.digest if self._own.view else b"", heard,
            links[to].prefix if to is not None and begins else b"",
        )  # fmt: skip
        frames: list[Frame] = [announced]
        if self._tell_profile and len(self._own.encoded) <= _PROFILE_UNASKED_BYTES_MAX:
            frames.extend(self._profile_frames())
        self._tell_profile = False
        frames.extend(self._layers.companions(now))
        self._outputs.send(frames, to)
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
        revision = self._own.revision
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
        for link in self._links:
            if link.told:
                self._tell_profile = True
                self.announce(now, link.peer)

    def _make_profile(self) -> bool:
        """Whether it is another one than before."""
        self._heeded = self._own.revision
        views = [link.view for link in self._links.usable if link.view is not None]
        return self._own.renew(views, self._holdings.index, self._holdings.known_copies())

    def _profile_frames(self) -> list[Frame]:
        own = self._own.view
        if own is None:
            return []
        step = self._settings.mtu_bytes - FRAME_ROOM
        encoded = self._own.encoded
        bodies = [encoded[at : at + step] for at in range(0, len(encoded), step)]
        return [Profile(own.digest, part, len(bodies), body) for part, body in enumerate(bodies)]

    # --- hearing others ------------------------------------------------------------------------------------

    def told(self, peer: str, *, up: bool, now: int) -> None:
        """The driver knows of a contact: no need to find out."""
        if self._boot is None:
            if up:
                self._told_early[peer] = None
            else:
                self._told_early.pop(peer, None)
            return
        link = self._links.get(peer)
        if not up:
            if link is not None:
                self._end(link, now)
            return
        if link is None:
            if not self.places.room_for_told():
                self._outputs.refuse("neighbours", peer)
                return
            link = self._new(peer, now)
        link.told = True
        self._tell_profile = True
        self.announce(now, peer)

    def _found(self, peer: str, now: int) -> Link | None:
        """The link of an address that announces itself; a new one if there is a place for it."""
        link = self._links.get(peer)
        if link is not None:
            return link
        going = self.places.ask(peer, now)
        if going is None:
            self._outputs.refuse("neighbours", peer)
            return None
        for each in going:
            self._end(each, now)
        return self._new(peer, now)

    def _new(self, peer: str, now: int) -> Link:
        link = Link(peer, self._settings, Outbox(self._settings), now)
        self._links.add(link)
        return link

    def _end(self, link: Link, now: int) -> None:
        """Forget a link and all that hangs on it."""
        self._sign(link, Sign.SILENCE, now)
        self._parts.leave(link.peer)
        self._links.remove(link)

    def announced(self, frame: Announce, peer: str, now: int) -> bool:
        """A neighbour says that it is there. False: nothing new."""
        if frame.node == self._node:
            return False
        link = self._found(peer, now)
        if link is None or not self._fresh(link, frame, now):
            return False
        link.counter = frame.counter
        link.heard_us = link.announced_us = now
        link.agreement.announcements += 1
        lists_me = link.told or self._prefix in frame.heard
        if frame.begins == self._prefix and link.usable and self._begun_anew(link, now):
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
        self._sign(link, Sign.LISTS_ME if lists_me else Sign.OMITS_ME, now, answer=frame.begins == self._prefix)
        self._need_profile(link, now)
        if link.told and self._prefix not in frame.heard and link.told_us <= now:
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
        sooner = link.silent_us < self._links.wake_us  # A shorter period may end before the silence expected so far.
        return sooner or link.offering.stalled or (link.agreement.synced and self._review_due(link, now))

    def _review_due(self, link: Link, now: int) -> bool:
        """Beliefs go stale, so a review is repeated every so many announcements, by the smaller id if it can."""
        grace = 0 if self._node < link.node else _REVIEW_GRACE
        settings = self._settings
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
                self._outputs.refuse("replay", link.peer)
                return False
            link.announces_every(frame.period_ms)
            return True
        if link.node and not lapsed and not (same and frame.boot > link.boot):
            self._outputs.refuse("replay" if same else "address-taken", link.peer)
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
        self._links.changed()
        link.budgets.tally -= _CHANGE_COST
        if before is SILENT:
            link.first_us = now
        if link.state is LINKED:
            self._outputs.tell(NeighbourUp(link.node))
            link.linked_us = now
            link.begun_us = now if answer else NEVER
            link.one_way_told = False
            if not link.told:
                # What follows goes to somebody who may not have heard yet that it is heard.
                self.announce(now, link.peer, begins=not answer)
            if link.view is not None:
                self._exchange.up(link, now)
        elif before is LINKED:
            self._outputs.tell(NeighbourDown(link.node))
            self._exchange.down(link, now)
            link.first_us = now
            self.beacon.hasten(now)
            if self._settings.horizon_hops > 1:
                self.refresh_profile(now)
        if link.state is SILENT:
            self._drop_view(link)

    # --- their profiles ------------------------------------------------------------------------------------

    def _need_profile(self, link: Link, now: int) -> None:
        if link.view is not None or link.state is not LINKED:
            return
        view = self._holdings.index.view(link.profile)
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
                self._outputs.send((ProfileRequest(link.profile),), link.peer)

    def _learnt(self, link: Link, view: View, now: int) -> None:
        link.view = self._holdings.index.keep(view.digest)
        link.agreement.synced = False
        if link.state is LINKED:
            self._exchange.up(link, now)
            if self._settings.horizon_hops > 1:
                self.refresh_profile(now)

    def _drop_view(self, link: Link) -> None:
        if link.view is not None:
            self._holdings.index.drop(link.view.digest)
            link.view = None

    def take_profile(self, link: Link, frame: Profile, now: int) -> None:
        """A neighbour's profile, or a part of it; raises `RemoteError`."""
        if frame.digest != link.profile:
            raise RemoteError("profile-stale")
        if self._holdings.index.view(frame.digest) is not None:
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
        entries = decode_entries(encoded, self._limits)
        copies = self._holdings.known_copies()
        self._holdings.index.learn(entries, frame.digest, copies)
        link.budgets.learnt(len(entries), len(copies), now)
        for each in self._links:
            if each.profile == frame.digest:
                self._need_profile(each, now)
                self.wake_for(each)

    def answer_profile(self, link: Link, frame: ProfileRequest, now: int) -> None:
        """Tell the profile to one who asks for it, but not as often as it likes; raises `RemoteError`."""
        if self._own.view is not None and frame.digest == self._own.view.digest:
            if not link.budgets.answers.take(1, now):
                raise RemoteError("rate")
            self._outputs.send(self._profile_frames(), link.peer)

    # --- time ----------------------------------------------------------------------------------------------

    def tick(self, now: int) -> None:
        """End links that fell silent, and tell of those that work one way only."""
        for link in list(self._links):
            if now >= link.heard_us + SILENT_PERIODS * link.period_us and not link.told:
                self._end(link, now)
            elif link.state is LINKED:
                if link.view is None:
                    self._need_profile(link, now)
            elif link.state is HEARD and not link.one_way_told and now >= self._one_way_us(link):
                link.one_way_told = True
                self._outputs.tell(OneWay(link.node))

    def _one_way_us(self, link: Link) -> int:
        """When it will have been heard for long enough to tell that it does not hear this host."""
        return link.first_us + SILENT_PERIODS * self.beacon.period_max_us

    def look_ahead(self) -> None:
        """Find out when the next link needs a tick."""
        due = self._exchange.look_us
        for link in self._links:
            due = self._due_us(link, due)
        self._links.sleep(due)

    def wake_for(self, link: Link) -> None:
        """This link may need a tick sooner than was thought. Done after every step that it had a part in."""
        due = self._due_us(link, self._links.wake_us)
        if due < self._links.wake_us:
            self._links.wake(due)

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
        for link in self._links:
            link.heard_us += delta_us
            link.first_us += delta_us
            link.placed_us += delta_us
        self.places.clock_stepped(delta_us)
