"""Discovery: the nodes in range, whether their links work both ways, and the pace of learning their interests.

A host announces itself by broadcast (`gossip.discovery.announcing`), and a newcomer is answered at once. An
announcement to one neighbour alone says that a contact with it begins: a neighbour that still believed in an earlier
one then begins anew. An announcement that says nothing new takes the fast path through `announced`: no cache, no batch,
no event.

`LearningPace` learns the neighbours' profiles one after the other, a moment at a time, with pauses. Most are learnt as
soon as they arrive. A profile that takes longer, such as one that a stranger made for that purpose, leaves this host
nine tenths of its time for everything else. Its sender waits, and is charged for all of it; for the first one, all
addresses together are. Only the index knows which profiles are being learnt (`ProfileIndex.learning`). The host's own
profile may be one of them and is then learnt at once, so none is remembered here from one moment to the next.
"""

# Why both sides have to list each other. Radio links are often one-way: a strong transmitter is
# heard by nodes that it cannot hear. Offers to such a node are lost, its requests never arrive, and
# every timeout runs to its end. A link is used only when each side has seen itself in the other's
# heard-list, or was named in a request, which proves as much.
#
# Why an address has to be proven. Announcements are not signed (`Stamps`), and prefixes in
# heard-lists are public, so anybody can send an announcement that lists this host, from any
# address. One datagram with a forged source would make this host send its messages to a victim. So
# a node that lists this host is sent a random token, and the link is used only when it has returned
# it. Until then its address is sent at most three times the bytes that came from it (`Link.send`),
# as in QUIC (RFC 9000, section 8).
#
# What a forger can do to a neighbour that is proven. An announcement counts if its stamp continues
# those that were heard before, or if it brings a proof. Any other changes nothing, whatever numbers
# it has, and its address is asked for a proof (`_doubt`): a node that restarted gives it. An address
# that is not proven yet is claimed by its first announcement; another claim is refused until the
# node there has been silent for two of the longest periods, or until a proof arrives (`_fresh`).

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from carrypost.errors import RemoteError
from carrypost.gossip.discovery.announcing import PROVE_US, Announcing
from carrypost.gossip.discovery.neighbour import (
    HEARD,
    LINKED,
    NEIGHBOUR_TABLE,
    SILENT,
    SILENT_PERIODS,
    Neighbour,
    NeighbourInput,
    Places,
)
from carrypost.gossip.layer import Layer, Layers
from carrypost.gossip.timers import ASK_PROFILE, FORGET, LEARN, PROVE, REPORT_ONE_WAY, Timers
from carrypost.gossip.transfers.accounts import FRAME, LOOKS, Work
from carrypost.gossip.transfers.inbox import Parts
from carrypost.gossip.transfers.link import Link
from carrypost.gossip.wire.frames import Announce, Frame, Profile, ProfileRequest, Request
from carrypost.log.events import NeighbourDown, NeighbourUp, OneWay
from carrypost.model.pattern import decode_entries, profile_digest
from carrypost.model.times import NEVER

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
    from random import Random

    from carrypost.gossip.discovery.neighbour import Series
    from carrypost.gossip.interest.index import Learning, View
    from carrypost.gossip.interest.matcher import Slotted
    from carrypost.gossip.strategy.strategy import Contact, Strategy
    from carrypost.gossip.transfers.link import HostContext
    from carrypost.model.pattern import Entry


_MOMENT_US: Final = 50_000
_PAUSE_US: Final = 750_000
_LOOK_US: Final = 3_000
"""Time for a profile that comes during a pause: most are learnt within it. Also the time by which matching is counted
between two looks at the clock."""
_PROFILE, _ENTRY, _COPY = 100, 30, 2
"""Work for a profile, for compiling a pattern, and for matching a message (`gossip.transfers.accounts`)."""


class LearningPace:
    """The pace of learning: its times, its length, and the link that is charged for it."""

    def __init__(self, context: HostContext) -> None:
        self._index, self._accounts = context.holdings.index, context.links.accounts
        self._timers = Timers(context.links.schedule)
        context.links.schedule.add(self._timers)
        self._rested_us = 0
        """Time until which this host has to do other things than learn, but for profiles that take no time."""

    @property
    def due_us(self) -> int:
        """Time at which learning continues."""
        return self._timers.due[LEARN]

    def begin(
        self, entries: Iterable[Entry], digest: bytes, copies: Collection[Slotted | None], teller: Link, now: int
    ) -> bool:
        """Learn a profile, or begin to; return True if it is learnt; raises `LimitError` without room."""
        began_us, work = self._accounts.clock_us(), teller.work
        learning = self._index.begin(entries, digest, copies)
        # During a pause it is only tried if that may be enough: a neighbour may begin with many profiles and end none.
        rests = now < self._rested_us
        hopeless = rests and len(copies) > _LOOK_US
        learnt = not hopeless and self._go_on(learning, _LOOK_US if rests else _MOMENT_US)
        if not learnt:
            self._rested_us = now + _PAUSE_US
            self._timers.hasten(LEARN, self._rested_us)
        matcher = learning.view.matcher
        units = _PROFILE + _ENTRY * len(matcher.entries) + _COPY * len(copies) + matcher.spent_us
        work.did(units)
        # A newcomer's first profiles are necessary work. Charging them to the newcomer would mute
        # honest nodes with large profiles; not charging them at all would let a thousand addresses
        # compile patterns for free.
        learning.free = teller.takes_free(now)
        if learning.free:
            work.credit(units)
            work.owe(self._accounts.took(began_us, units), free=True)
        return learnt

    def go_on(self, tellers: Mapping[bytes, Link], now: int) -> bytes | None:
        """Continue with the earliest profile, and return its digest once it is learnt.

        Abandons every profile without a teller: no neighbour announces it any more.
        """
        self._timers.cancel(LEARN)
        index = self._index
        for digest in [digest for digest in index.learning if digest not in tellers]:
            index.abandon(digest)
        if not index.learning:
            return None
        digest, learning = next(iter(index.learning.items()))
        matcher = learning.view.matcher
        began_us, before_us = self._accounts.clock_us(), matcher.spent_us
        learnt = self._go_on(learning, _MOMENT_US)
        tellers[digest].work.owe(self._accounts.took(began_us, matcher.spent_us - before_us), free=learning.free)
        self._rested_us = now + _PAUSE_US
        if index.learning:
            self._timers.arm(LEARN, self._rested_us)
        return digest if learnt else None

    def _go_on(self, learning: Learning, within_us: int) -> bool:
        """Match for about this long, measured if it can be; return True once the profile is learnt."""
        began_us, counted_us, matcher = self._accounts.clock_us(), 0, learning.view.matcher
        while self._accounts.took(began_us, counted_us) < within_us:
            before_us = matcher.spent_us
            if self._index.go_on(learning, _LOOK_US):
                return True
            counted_us += max(_LOOK_US, matcher.spent_us - before_us)
        return False


_OVERTAKEN_US: Final = 250_000
"""Longest time by which frames of a contact may overtake the neighbour's announcement that the contact begins."""
_DOUBT_US: Final = 200_000
"""Shortest time between two requests to a neighbour for another proof."""
_LEFT_MAX: Final = 512
"""Number of nodes that left and are remembered."""
_PROFILE_RETRY_US: Final = 1_000_000
_CHANGE: Final = 25
"""Work for a link that begins, ends or accepts other datagrams, and for checking or giving a proof
(`gossip.transfers.accounts`)."""


class Neighbours:
    """The neighbours of one host."""

    def __init__(self, context: HostContext, strategy: Strategy[Any], layers: Layers, rng: Random) -> None:
        self._holdings, self._outputs = context.holdings, context.outputs
        self._links, self._interests = context.links, context.interests
        self._settings, self._limits = context.settings, context.limits
        self._node, self._prefix = context.node, context.prefix
        self._strategy = strategy
        self._layers, self._closed = layers, context.links.closed
        self._parts = Parts(self._limits.descriptor_buffer_bytes_max)
        self._neighbours: dict[str, Neighbour] = {}
        self.get = self._neighbours.get
        """Return the neighbour at a link address. Called for every datagram."""
        self._pace = LearningPace(context)
        self.profiles_wanted: list[Neighbour] = []
        """Neighbours whose profile is to be requested."""
        self.places = Places(context, self._neighbours)
        self.announcing = Announcing(context, self.places, layers, rng, fixed_period=strategy.fixed_period)
        self.beacon = self.announcing.beacon
        self._left: dict[str, Series] = {}
        """Nodes that left and had proven their addresses. They need not prove them again if they come back soon."""
        self._asserted_early: dict[str, None] = {}
        """Contacts that the driver asserted before this host could announce itself."""
        self._links.handlers.update(
            {
                Announce: lambda link, frame, now: self._announced(self._at(link), frame, now),
                Profile: self._receive_profile,
                ProfileRequest: self.announcing.answer_profile,
                Request: self._receive_request,
            }
        )

    def __iter__(self) -> Iterator[Neighbour]:
        return iter(self._neighbours.values())

    def start(self, incarnation: int, now: int) -> None:
        """Begin to announce."""
        self.announcing.start(incarnation, now)
        early, self._asserted_early = self._asserted_early, {}
        for peer in early:
            self.driver_link(peer, up=True, now=now)

    # --- hearing others ------------------------------------------------------------------------------------

    def driver_link(self, peer: str, *, up: bool, now: int) -> None:
        """Begin or end a contact that the driver asserts, without discovery."""
        if self.announcing.incarnation is None:
            if up:
                self._asserted_early[peer] = None
            else:
                self._asserted_early.pop(peer, None)
            return
        neighbour = self.get(peer)
        if not up:
            if neighbour is not None:
                self._end(neighbour, now)
            return
        if neighbour is None:
            if not self.places.room_for_asserted():
                self._outputs.refuse("neighbours", peer)
                return
            neighbour = self._new(peer, now)
        neighbour.driver_asserted = True
        neighbour.link.trust()
        neighbour.link.timers.cancel(REPORT_ONE_WAY)
        neighbour.alive(neighbour.heard_us)
        self.announcing.introduce()
        self.announcing.announce(now, neighbour)

    def _found(self, peer: str, now: int) -> Neighbour | None:
        """Make a neighbour of an address that announces itself, if there is a place for it."""
        going = self.places.ask(peer, now)
        if going is None:
            self._outputs.refuse("neighbours", peer)
            return None
        for each in going:
            self._end(each, now)
        neighbour = self._new(peer, now)
        neighbour.link.distrust()
        return neighbour

    def _new(self, peer: str, now: int) -> Neighbour:
        link = Link(peer, self._links, stop_and_wait=self._strategy.stop_and_wait)
        self._links.add(link)
        neighbour = self._neighbours[peer] = Neighbour(link, now)
        return neighbour

    def _end(self, neighbour: Neighbour, now: int) -> None:
        """Forget a neighbour and everything that belongs to it."""
        self._advance(neighbour, NeighbourInput.SILENCE, now)
        self._parts.leave(neighbour.link.peer)
        if neighbour.proven:
            self._left.pop(neighbour.link.peer, None)
            self._left[neighbour.link.peer] = neighbour.series
            if len(self._left) > _LEFT_MAX:
                del self._left[next(iter(self._left))]
        self._links.remove(neighbour.link)
        del self._neighbours[neighbour.link.peer]

    def receive(self, frames: Sequence[Frame], peer: str, now: int, *, nbytes: int, began_us: int) -> bool:
        """Handle frames from an address without a link: an announcement may make it a neighbour, others are refused.

        Returns False if they contained nothing new. `began_us`: their sender is charged for the time since then.
        """
        work = Work()
        for number, frame in enumerate(frames, 1):
            work.did(FRAME)
            if type(frame) is not Announce:
                self._outputs.refuse("unannounced", peer)
                continue
            if not self._closed.admits(frame, peer, self):
                break  # What follows is about the same node.
            if frame.node != self._node and (neighbour := self._found(peer, now)) is not None:
                neighbour.link.received(frames, nbytes)
                series = self._left.pop(peer, None)
                if series is not None and series.goes_on(frame):
                    neighbour.resume(series)
                neighbour.link.work.did(work.done)
                new = self._announced(neighbour, frame, now)
                return neighbour.link.receive(frames[number:], now, began_us=began_us) or new
        self._links.accounts.settle(peer, work, began_us, now)
        return False

    def _announced(self, neighbour: Neighbour, frame: Announce, now: int) -> bool:
        """Handle an announcement; return False if it says nothing new."""
        neighbour.link.work.did(len(frame.heard) // LOOKS)
        if frame.node == self._node or not self._closed.admits(frame, neighbour.link.peer, self):
            return False
        if neighbour.link.is_old:
            frame = self._closed.limited(frame, self._holdings)
        proves = neighbour.proves(frame)
        if neighbour.proven and not (proves or neighbour.driver_asserted or neighbour.continues(frame)):
            return self._doubt(neighbour, frame, now)
        named = neighbour.link.node == frame.node  # Another name may be a damaged one: it needs a second proof.
        if not self._fresh(neighbour, frame, now, proves=proves):
            return False
        if proves and named:
            neighbour.prove()
        return self._heed(neighbour, frame, now)

    def _heed(self, neighbour: Neighbour, frame: Announce, now: int) -> bool:
        """Handle an announcement that is new; return False if it says nothing else than the last one."""
        due_us = self._links.schedule.next_due_us()
        others = neighbour.announced(frame, now) and self._heard(neighbour.link, now)
        followed = not frame.token and self._strategy.announced_receipts(neighbour.link, frame.receipts, now)
        lists_me = neighbour.driver_asserted or (neighbour.proven and self._prefix in frame.heard)
        begins = frame.begins == self._prefix
        if begins and neighbour.state is LINKED and self._begun_anew(neighbour, now):
            # It has forgotten the contact that this host still believed in.
            self._advance(neighbour, NeighbourInput.SILENCE, now)
            neighbour.profile = b""
        if frame.datagram_bytes != neighbour.link.accepted_bytes:
            neighbour.link.set_accepted_bytes(frame.datagram_bytes)
            neighbour.link.work.did(_CHANGE)
            self._links.fit()
        contact = neighbour.contact
        if neighbour.profile == frame.profile and lists_me and contact is not None and contact.view is not None:
            self._answer(neighbour, frame, now)
            # A shorter period may end before anything else is due; then the driver has to look at its timer.
            sooner = neighbour.silent_us < due_us
            return sooner or self._strategy.stale(contact, now) or followed or others or frame.token != b""
        if neighbour.profile != frame.profile:
            self._drop_view(neighbour)
            neighbour.profile = frame.profile
        if neighbour.state is SILENT:
            self.announcing.introduce()
            if not neighbour.driver_asserted:
                self.beacon.hasten(now)
        self._advance(neighbour, NeighbourInput.LISTS_ME if lists_me else NeighbourInput.OMITS_ME, now, answer=begins)
        if begins:
            neighbour.link.begun(now)
        self._answer(neighbour, frame, now)
        self._need_profile(neighbour, now)
        if neighbour.driver_asserted and self._prefix not in frame.heard and neighbour.addressed_us <= now:
            self.announcing.introduce()
            self.announcing.announce(now, neighbour)  # It could not listen yet at the first announcement.
        return True

    def _heard(self, link: Link, now: int) -> bool:
        """Inform layers that a neighbour hears others than before; return True if any layer needs to know."""
        layers = [] if link.is_old else self._layers.having[Layer.heard]
        for layer in layers:
            layer.heard(link, now)
        return bool(layers)

    def _answer(self, neighbour: Neighbour, frame: Announce, now: int) -> None:
        """Ask a neighbour for a proof of its address, or give it that of this host, as far as it is needed."""
        neighbour.hears_me = frame.token != b"" or self._prefix in frame.heard
        if neighbour.driver_asserted:
            return
        if neighbour.asks:
            neighbour.link.work.did(_CHANGE)
        if neighbour.proven:
            if neighbour.asks:
                self.announcing.announce(now, neighbour)
        elif neighbour.asks or (
            self._node < frame.node
            if not neighbour.challenges
            else neighbour.hears_me and neighbour.link.timers.due[PROVE] == NEVER
        ):
            self.announcing.challenge(now, neighbour)
        elif neighbour.link.timers.due[PROVE] == NEVER:
            # The smaller id asks first; the other one only if it is not asked.
            neighbour.link.timers.arm(PROVE, now + PROVE_US)

    @staticmethod
    def _begun_anew(neighbour: Neighbour, now: int) -> bool:
        """Return True if a neighbour that begins a contact had begun it before, and so forgot it in between.

        The time since this host was linked does not tell: on a slow link the two begin seconds apart, and with short
        periods a neighbour that was suspended is forgotten a moment after it was met.
        """
        if now - neighbour.link.begun_us >= _OVERTAKEN_US:
            return True
        neighbour.link.begun(now)
        return False

    def _doubt(self, neighbour: Neighbour, frame: Announce, now: int) -> bool:
        """Refuse an announcement that may be forged, and ask its address for a proof, as a restarted node needs it."""
        link = neighbour.link
        known = frame.node == link.node and (frame.incarnation, frame.counter) <= neighbour.last
        self._outputs.refuse("replay" if known else "unproven", link.peer)
        if known:
            return False
        link.work.did(_CHANGE)
        if now - neighbour.doubted_us < _DOUBT_US:
            return False
        neighbour.doubted_us = now
        neighbour.asked(frame, now)
        self.announcing.challenge(now, neighbour)
        return True

    def _fresh(self, neighbour: Neighbour, frame: Announce, now: int, *, proves: bool) -> bool:
        """Return False for a replay. A node that restarted counts from the start, with a larger incarnation.

        A forger may have claimed any numbers, or another name, for an address that is not proven. Such a claim ends
        when it was not repeated for a while, or with a proof.
        """
        yields = now - neighbour.announced_us > 2 * self.beacon.period_max_us or (proves and not neighbour.proven)
        same, known = neighbour.link.node == frame.node, bool(neighbour.link.node)
        if same and not yields and (frame.incarnation, frame.counter) <= neighbour.last:
            self._outputs.refuse("replay", neighbour.link.peer)
            return False
        if same and neighbour.incarnation == frame.incarnation:
            return True
        if known and not (same or yields):
            self._outputs.refuse("address-taken", neighbour.link.peer)
            return False
        if known:
            self._advance(neighbour, NeighbourInput.SILENCE, now)
            neighbour.link.set_heard(())
        if proves:
            neighbour.token = b""  # Replayed, the proof must not bring the earlier node back.
        if not same:
            neighbour.rename()
        neighbour.link.claim(frame.node)
        neighbour.incarnation = frame.incarnation
        return True

    def _receive_request(self, link: Link, frame: Request, now: int) -> None:
        """Serve a request. One that names this host proves that its sender hears it, so a contact may begin with it."""
        if frame.to != self._prefix:
            self._outputs.refuse("not-for-me", link.peer)
            return
        if not link.usable:
            neighbour = self._at(link)
            if not neighbour.proven:
                raise RemoteError("not-linked")
            neighbour.alive(now)
            self._advance(neighbour, NeighbourInput.LISTS_ME, now)
            self._need_profile(neighbour, now)
        self._strategy.receive_request(link, frame, now)

    def _at(self, link: Link) -> Neighbour:
        """Return the neighbour at the other end of a link; raises `RemoteError` if there is none."""
        neighbour = self.get(link.peer)
        if neighbour is None:
            raise RemoteError("unannounced")
        return neighbour

    def _advance(self, neighbour: Neighbour, event: NeighbourInput, now: int, *, answer: bool = False) -> None:
        """Move a neighbour to its next state, and begin or end the contact with it."""
        before, neighbour.state = neighbour.state, NEIGHBOUR_TABLE[neighbour.state, event]
        if before is neighbour.state:
            return
        self._links.open(neighbour.link, usable=neighbour.state is LINKED)
        neighbour.link.work.did(_CHANGE)
        timers = neighbour.link.timers
        if before is SILENT:
            neighbour.first_us = now
        if neighbour.state is LINKED:
            timers.cancel(REPORT_ONE_WAY)
            self._begin_contact(neighbour, now, answer=answer)
        elif neighbour.contact is not None:
            self._end_contact(neighbour, neighbour.contact, now)
        if neighbour.state is SILENT:
            self._drop_view(neighbour)
        elif neighbour.state is HEARD and not neighbour.one_way_reported:
            timers.arm(REPORT_ONE_WAY, now + SILENT_PERIODS * self.beacon.period_max_us)

    def _begin_contact(self, neighbour: Neighbour, now: int, *, answer: bool) -> None:
        """Begin a contact; `answer`: the neighbour began it already."""
        self._outputs.emit(NeighbourUp(neighbour.link.node))
        neighbour.linked_us = now
        neighbour.one_way_reported = False
        neighbour.contact = contact = self._strategy.begin(neighbour.link)
        neighbour.alive(neighbour.heard_us)
        if not neighbour.driver_asserted:
            # The next frames go to a node that may not know yet that it is heard.
            self.announcing.announce(now, neighbour, begins=not answer)
        for layer in () if neighbour.link.is_old else self._layers.having[Layer.met]:
            layer.met(neighbour.link, now)
        if neighbour.view is not None:
            self._strategy.learn(contact, neighbour.view, now)

    def _end_contact(self, neighbour: Neighbour, contact: Contact, now: int) -> None:
        """End a contact."""
        self._outputs.emit(NeighbourDown(neighbour.link.node))
        for layer in () if neighbour.link.is_old else self._layers.having[Layer.parted]:
            layer.parted(neighbour.link, now)
        self._strategy.end(contact, now)
        neighbour.contact = None
        neighbour.alive(neighbour.heard_us)
        neighbour.first_us = now
        self.beacon.hasten(now)
        if self._settings.horizon_hops > 1:
            self.announcing.refresh_profile(now)

    # --- their profiles ------------------------------------------------------------------------------------

    def _need_profile(self, neighbour: Neighbour, now: int) -> None:
        if neighbour.view is not None or neighbour.state is not LINKED:
            return
        view = self._holdings.index.view(neighbour.profile)
        if view is not None:
            self._learnt(neighbour, view, now)
        elif neighbour.profile in self._holdings.index.learning:
            neighbour.link.timers.cancel(ASK_PROFILE)
        else:
            self.profiles_wanted.append(neighbour)

    def ask_profiles(self, now: int) -> None:
        """Request the profiles that are still missing at the end of a step: most come with the announcement."""
        wanted, self.profiles_wanted = self.profiles_wanted, []
        for neighbour in wanted:
            if neighbour.view is not None or neighbour.state is not LINKED:
                continue
            if now >= neighbour.profile_asked_us + _PROFILE_RETRY_US:
                neighbour.profile_asked_us = now
                neighbour.link.send((ProfileRequest(neighbour.profile),))
            neighbour.link.timers.arm(ASK_PROFILE, neighbour.profile_asked_us + _PROFILE_RETRY_US)

    def _learnt(self, neighbour: Neighbour, view: View, now: int) -> None:
        neighbour.view = self._holdings.index.keep(view.digest)
        neighbour.link.timers.cancel(ASK_PROFILE)
        if neighbour.contact is not None:
            self._strategy.learn(neighbour.contact, neighbour.view, now)
            if self._settings.horizon_hops > 1:
                self.announcing.refresh_profile(now)

    def _drop_view(self, neighbour: Neighbour) -> None:
        if neighbour.view is not None:
            self._holdings.index.drop(neighbour.view.digest)
            neighbour.view = None
            if neighbour.contact is not None:
                neighbour.contact.unlearn()

    def _receive_profile(self, link: Link, frame: Profile, now: int) -> None:
        """Handle a neighbour's profile, or a part of it; raises `RemoteError`."""
        neighbour = self._at(link)
        if frame.digest != neighbour.profile:
            raise RemoteError("profile-stale")
        index = self._holdings.index
        if frame.digest in index.learning or index.view(frame.digest) is not None:
            self._need_profile(neighbour, now)
            return
        key = (frame.digest, frame.parts)
        encoded = self._parts.add(link.peer, key, frame.part, frame.parts, frame.body)
        if encoded is None:
            return
        if profile_digest(encoded) != frame.digest:
            raise RemoteError("profile-digest")
        entries = decode_entries(encoded, self._limits)
        if self._pace.begin(entries, frame.digest, self._holdings.cache.copies, link, now):
            self._use_profile(frame.digest, now)

    def _use_profile(self, digest: bytes, now: int) -> None:
        """Use a profile that is learnt for all neighbours that have it."""
        for each in self._neighbours.values():
            if each.profile == digest:
                self._need_profile(each, now)

    # --- time ----------------------------------------------------------------------------------------------

    def tick(self, now: int) -> None:
        """Drop neighbours that timed out, report those that do not hear this host, and learn profiles."""
        if self._pace.due_us <= now:
            # Of several neighbours that have the same profile, the one that came first pays.
            tellers = {each.profile: each.link for each in reversed(self._neighbours.values())}
            learnt = self._pace.go_on(tellers, now)
            if learnt is not None:
                self._use_profile(learnt, now)
        for neighbour in list(self._neighbours.values()):
            timers = neighbour.link.timers
            if timers.due[FORGET] <= now or neighbour.link.node in self._closed.removed:
                self._end(neighbour, now)
            elif neighbour.state is LINKED:
                if neighbour.view is None:
                    self._need_profile(neighbour, now)
            else:
                if timers.due[PROVE] <= now:
                    timers.cancel(PROVE)
                    if neighbour.hears_me:
                        self.announcing.challenge(now, neighbour)
                if timers.due[REPORT_ONE_WAY] <= now:
                    timers.cancel(REPORT_ONE_WAY)
                    neighbour.one_way_reported = True
                    self._outputs.emit(OneWay(neighbour.link.node))

    def clock_stepped(self, delta_us: int) -> None:
        """Shift all times after the clock was set forward: that much silence was none."""
        for neighbour in self._neighbours.values():
            neighbour.alive(neighbour.heard_us + delta_us)
            neighbour.first_us += delta_us
            neighbour.link.timers.postpone(REPORT_ONE_WAY, delta_us)
            neighbour.placed_us += delta_us
        self.places.clock_stepped(delta_us)
