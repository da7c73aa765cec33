"""The receiving side of a contact: requests, acknowledgements, and a second look at messages that found no room.

A host requests what it lacks of an offer, in the order of the offer, and each piece from one neighbour at a time. Every
offer is answered, if only by an empty request, so that a lost offer is noticed. A neighbour that does not send what was
requested is asked again, then given up in favour of others that offered the same.

`RoomRetry` takes a second look at messages that were declined for lack of room (`holdings.memories`), when room
appears. Room is unused space, or the space of copies that may be evicted. It appears when a copy leaves, or becomes
evictable because it was confirmed. Then the neighbours' offers are looked through, highest rank first, and as much is
requested as fits beside what each neighbour was asked for already: at once, and at most once a second.
"""

# Why a second look is needed. A full cache declines offers, and neighbours remember that. When a copy expires
# later, nothing would come in its place until the next contact: reviews count a declined message as
# known, or two full caches would offer each other the same messages in every round. So the
# receiving side keeps the initiative.
#
# A message that a neighbour offered during this contact is known by its handle (for messages
# evicted since, see `Inbox.closed`), and is requested without a new offer. A message declined
# before the contact is on offer nowhere; so some of these are invited when a review begins while
# there is room, and the neighbour offers them again.
#
# Why it ends. Unused room displaces no message; otherwise a lower rank makes room for a higher one.
# Sort the contents of a cache by rank before and after: the later sequence is the larger, so no two
# messages can displace each other in turns.

from __future__ import annotations

from functools import cache, partial
from operator import attrgetter, itemgetter
from typing import TYPE_CHECKING, Final

from msgspec import structs

from carrypost.errors import LimitError
from carrypost.gossip.slots import bits, mask_of, without
from carrypost.gossip.timers import ACKNOWLEDGE, REQUEST_AGAIN, SECOND_LOOK, Timers
from carrypost.gossip.transfers.accounts import FRAME
from carrypost.gossip.transfers.link import GIVER, Link
from carrypost.gossip.transfers.wants import PATIENCE_US
from carrypost.gossip.wire.frames import Ack, Frame, Offer, OfferEntry, OpenParcel, PieceRequest, Request
from carrypost.gossip.wire.pieces import from_bitmap, full_mask, to_bitmap
from carrypost.model.descriptor import PIECE_BYTES
from carrypost.model.times import NEVER

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from carrypost.gossip.holdings.cache import Cache
    from carrypost.gossip.holdings.copies import Copy
    from carrypost.gossip.transfers.inbox import Inbox, Want
    from carrypost.gossip.transfers.link import HostContext
    from carrypost.gossip.transfers.wants import Wants
    from carrypost.model.ids import MessageId


_REQUEST_RETRY_US: Final = 2_000_000
_REQUEST_DOUBLINGS: Final = 2
_PATIENCE_US_MAX: Final = _REQUEST_RETRY_US << _REQUEST_DOUBLINGS
_REQUEST_TRIES: Final = 4
_UNSURE_TRIES: Final = (2, 6)
"""Numbers of repetitions after which an old offer is given up: if the neighbour is idle, and in any case."""
_GIVEN_UP_PART: Final = 2
"""Fraction of `offers_open_max` that may be messages requested in vain; they are accepted should they come."""
_TRIAL_WANTS: Final = 1_024
"""Offers of a neighbour that has brought nothing yet are not read beyond this many wants. An honest one is told of the
first ones, and sends some, before it has offered more; else it repeats the offer."""
_FEW_WANTS: Final = 512
"""With more wants than this, requests are not repeated sooner: repeating them costs more than a stranger may cause."""
_REASK_US: Final = 400_000
_HOPELESS: Final = 20
"""Work for a message that was offered, requested several times and never sent (`gossip.transfers.accounts`)."""
ENTRY: Final = 2
"""Work for one entry of an offer."""
_HANDLE_BYTES: Final = 6
_LENGTH: Final = attrgetter("length")
_ACK_DELAY_US: Final = 20_000
_ACK_FRAMES: Final = 32
_ACK_UNASKED: Final = 16
"""Number of unasked Parcels without a receipt that call for an acknowledgement."""


class Requests:
    """Requests of one host to all its neighbours."""

    def __init__(
        self, context: HostContext, wants: Wants, second_look: RoomRetry, *, durable_first: bool = False
    ) -> None:
        """`durable_first`: acknowledge a transfer frame once what it brought is durable, and not before."""
        self._holdings, self._cache = context.holdings, context.holdings.cache
        self._outputs, self._interests = context.outputs, context.interests
        self._limits = context.limits
        self._reminded = context.settings.island
        """True if offers of messages that this host acknowledged are answered by the acknowledgement."""
        self._wants, self._durable_first = wants, durable_first
        self._room_retry, self._memories = second_look, context.holdings.cache.memories
        self._given_up_max = self._limits.offers_open_max // _GIVEN_UP_PART

    def receive_offer(self, link: Link, frame: Offer, now: int, *, offered: int) -> int:
        """Note what the neighbour has; the answer goes out at the end of the step, for several offers together.

        `offered`: slots that this host offered to the neighbour, without an answer yet. Returns those that the
        neighbour has. Raises `LimitError` for an offer that is not read.
        """
        link.work.did(ENTRY * len(frame.entries))
        _require_room(link)
        cache = self._cache
        # Whether this host wants a message for itself is not known before its descriptor comes; of one that only
        # carries it is.
        interesting = self._interests.wants_something
        noted_before = len(link.inbox.wants) + len(self._memories.offers(link))
        roomy = cache.room.fits(len(frame.entries), sum(map(_LENGTH, frame.entries)))
        known: list[int] = []
        add, fresh = self._wants.add, link.inbox.fresh
        for entry in frame.entries:
            copy = cache.get(entry.message)
            if copy is not None and (copy.whole or not copy.here):
                if not entry.pieces:  # A neighbour that offers some pieces lacks the others.
                    known.append(copy.slot)
                if copy.finished or not copy.here:
                    self._offered_in_vain(link, entry, copy, now)
            elif roomy or cache.admits(entry.length, entry.privilege, interesting=interesting):
                want = add(link, entry, now)
                if want is None or want.asked_us:
                    self._offered_before(link, want, entry, now)
                else:
                    fresh.append(entry.handle)
            else:
                self._outputs.refuse("no-room", link.peer)
                self._room_retry.decline(link, entry, now)
        mask = mask_of(known)
        if len(known) < len(frame.entries) or without(mask, offered):
            link.inbox.answers.append(frame.serial)
        # Else the two offered each other the same, and either offer answers the other.
        # Only entries that are new here are worth something. A neighbour that repeats the same
        # offer pays for it.
        noted = len(link.inbox.wants) + len(self._memories.offers(link)) - noted_before
        if self._wants.is_full(link):
            noted = 0  # An honest neighbour offers the rest when the first are through.
        news = without(mask, link.known).bit_count() + max(0, noted)
        if news:
            link.work.credit(FRAME + ENTRY * news)
        self._learn(link, mask)
        return mask

    def _offered_in_vain(self, link: Link, entry: OfferEntry, copy: Copy, now: int) -> None:
        """Handle an offer of a message that this host is done with, or has declined."""
        if not copy.finished:
            self._room_retry.decline(link, entry, now)
        elif self._reminded:
            self._holdings.remind(copy.id, link.peer)

    def receive_unasked(self, link: Link, frame: OpenParcel, now: int, *, roomy: bool) -> Want | None:
        """Handle an unasked Parcel of a message that is not here as its offer; None if it is not accepted.

        `roomy`: there is unused room for it.
        """
        descriptor, cache = frame.descriptor, self._cache
        copy, privilege = cache.get(descriptor.id), self._holdings.privilege(descriptor)
        entry = OfferEntry(descriptor.id, frame.handle, descriptor.length, privilege)
        if copy is not None and not copy.here:
            self.has(link, 1 << copy.slot)
            if not copy.finished:
                self._room_retry.decline(link, entry, now)
            return None
        if roomy or cache.admits(entry.length, privilege, interesting=self._interests.wants_something):
            want = self._wants.add(link, entry, now, whole=True)
            if want is None:
                self._offered_before(link, None, entry, now)
            else:
                want.unasked = frame.serial
            return want
        self._outputs.refuse("no-room", link.peer)
        self._room_retry.decline(link, entry, now)
        return None

    def has(self, link: Link, mask: int) -> bool:
        """Note that a Parcel shows the neighbour to have these messages; return True if a program waits for that."""
        watched = bool(mask & self._holdings.watched)
        if mask & ~link.known:
            link.work.credit()
            self._learn(link, mask)
        return watched

    def _learn(self, link: Link, mask: int) -> None:
        """Note that the neighbour has all of these, because it offers them."""
        link.learn(mask)
        if mask & self._holdings.watched:
            self._holdings.mark_carried(mask)

    def _offered_before(self, link: Link, want: Want | None, entry: OfferEntry, now: int) -> None:
        """Handle an offer of a message that was requested already, or (no want) may not be requested now."""
        if want is None:
            if self._wants.is_full(link):
                self._room_retry.decline(link, entry, now)
            return
        if want.requested and want.descriptor is None and now - want.asked_us >= _REASK_US:
            want.requested = 0  # A neighbour that offers it again missed the request.
        want.unsure = False
        if _given_up(want):
            want.tries = 0
            self._wants.revive(link, entry.handle)
        link.inbox.fresh.append(entry.handle)

    def _request(self, link: Link, among: Iterable[int], serials: tuple[int, ...], now: int) -> None:
        """Request the missing pieces of these wants that were not requested yet."""
        handles: list[int] = []
        parts: list[PieceRequest] = []
        inbox, wants, known = link.inbox, self._wants, self._cache.get
        due_us, tries = link.timers.due[REQUEST_AGAIN], NEVER
        for handle in among:
            want = inbox.wants.get(handle)
            if want is None:
                continue
            entry = want.entry
            small = entry.length <= PIECE_BYTES
            missing = 1 & ~want.requested if small and known(entry.message) is None else self._missing(want)
            if not missing:
                continue
            # One source at a time. Asking two neighbours for the same piece would double the
            # traffic exactly where several neighbours compete for one channel.
            if elsewhere := wants.requested_elsewhere(entry.message, link, now):
                missing &= ~elsewhere
                due_us = min(due_us, now + PATIENCE_US)
                if not missing:
                    continue
            want.requested |= missing
            want.asked_us = now
            tries = min(tries, want.tries)
            wants.asked(entry.message, now)
            if small or missing == full_mask(_pieces(want)):
                handles.append(handle)
            else:
                parts.append(PieceRequest(handle, to_bitmap(missing)))
        if handles or parts:
            inbox.asked_us = inbox.asked_us or now
            inbox.progress_us = inbox.progress_us or now
            due_us = min(due_us, now + _patience_us(link, tries))
        link.timers.arm(REQUEST_AGAIN, due_us)
        frames = self._request_frames(link, serials, handles, parts)
        if frames:
            link.send(frames)

    def _missing(self, want: Want) -> int:
        entry = want.entry
        copy = self._cache.get(entry.message)
        offered = from_bitmap(entry.pieces) if entry.pieces else full_mask(_pieces(want))
        held = copy.held if copy is not None and copy.here else 0
        return offered & ~(held | want.requested)

    def _request_frames(
        self, link: Link, serials: tuple[int, ...], handles: list[int], parts: list[PieceRequest]
    ) -> list[Frame]:
        step, to = min(self._limits.request_handles_max, link.body_bytes_max // _HANDLE_BYTES), link.prefix
        if len(serials) + len(handles) <= step and not parts:
            return [Request(to, serials, tuple(handles))] if serials or handles else []
        return [
            *(Request(to, serials[at : at + step]) for at in range(0, len(serials), step)),
            *(Request(to, (), tuple(handles[at : at + step])) for at in range(0, len(handles), step)),
            *(Request(to, (), (), (part,)) for part in parts),
        ]

    def released(self, links: list[Link], now: int) -> None:
        """Request from these neighbours what another one will not send."""
        for link in links:
            if link.usable:
                self._request(link, list(link.inbox.wants), (), now)

    def arrived(self, link: Link, serials: list[int], now: int, *, last: bool) -> None:
        """Record transfer frames that need not come again; acknowledge them soon, and at once at the end of a burst."""
        inbox = link.inbox
        if inbox.asked_us:
            link.outbox.recovery.expect(now - inbox.asked_us)
            inbox.asked_us = 0
        if earlier := inbox.acks.note(serials):
            self._acknowledge(link, earlier)
        if last or inbox.acks.count >= _ACK_FRAMES:
            link.timers.arm(ACKNOWLEDGE, now)
        elif link.timers.due[ACKNOWLEDGE] == NEVER:
            link.timers.arm(ACKNOWLEDGE, now + _ACK_DELAY_US)

    def came_unasked(self, link: Link, serials: list[int], now: int) -> None:
        """Record unasked Parcels: the next announcement names them, and so does an acknowledgement.

        The acknowledgement is for routes, whose other end does not hear announcements.
        """
        inbox = link.inbox
        # An announcement confirms pushes to all neighbours at no extra cost. A burst of sixteen
        # would wait too long for it.
        if not link.route:
            inbox.unasked.note(serials)
        if earlier := inbox.acks.note(serials):
            self._acknowledge(link, earlier)
        if inbox.acks.count >= _ACK_UNASKED and link.timers.due[ACKNOWLEDGE] > now:
            link.timers.arm(ACKNOWLEDGE, now)

    def flush(self, link: Link, now: int) -> None:
        """Answer offers and acknowledge arrivals, at the end of a step."""
        inbox = link.inbox
        if inbox.answers or inbox.fresh:
            serials, inbox.answers = tuple(inbox.answers), []
            fresh, inbox.fresh = inbox.fresh, []
            self._request(link, fresh, serials, now)
        if link.timers.due[ACKNOWLEDGE] <= now:
            link.timers.cancel(ACKNOWLEDGE)
            self._acknowledge(link, [inbox.acks.report()])
            inbox.reported()

    def _acknowledge(self, link: Link, acks: list[Ack]) -> None:
        """Send acknowledgements, at once or when everything that they name is durable."""
        if self._durable_first:
            stored = [structs.replace(ack, stored=True) for ack in acks]
            self._outputs.journal.when_durable(_send_within, link, link.inbox, stored)
        else:
            link.send(acks)

    def repeat(self, link: Link, now: int) -> None:
        """Repeat requests.

        Each want has its own patience: arrivals of others do not show that this request was heard.
        """
        inbox = link.inbox
        link.timers.cancel(REQUEST_AGAIN)
        silent = now - inbox.progress_us >= PATIENCE_US
        again: list[int] = []
        hopeless: list[Want] = []
        given_up: list[int] = []
        # Thousands may be waited for, asked for at many times: at each of these all are looked at.
        patience_us, next_us = cache(partial(_patience_us, link)), NEVER
        for handle, want in inbox.wants.items():
            if not want.requested:  # It was given up, or the neighbours that were asked did not send it.
                (given_up if _given_up(want) else again).append(handle)
            elif (due_us := want.asked_us + patience_us(want.tries)) > now:
                if due_us < next_us:
                    next_us = due_us
            elif (silent and want.tries >= _REQUEST_TRIES) or (want.unsure and self._forgotten(link, want, now)):
                hopeless.append(want)
            else:
                want.tries += 1
                want.requested = 0
                again.append(handle)
        link.timers.hasten(REQUEST_AGAIN, next_us)
        if again and inbox.asked_us:
            inbox.asked_us = now
        self._request(link, again, (), now)
        if hopeless:
            # It does not answer: leave it to the next review, and ask the others.
            others = self._wants.alternatives(link)
            link.work.owe(_HOPELESS * len(hopeless))
            for want in hopeless:
                want.tries = _REQUEST_TRIES + 1
                want.requested = 0
                self._wants.give_up(link, want.entry.handle)
                given_up.append(want.entry.handle)
            self._memories.note_room()  # Nothing is kept free for these any more.
            for handle in given_up[: max(0, len(given_up) - self._given_up_max)]:
                self._wants.drop(link, handle)
            self.released(others, now)

    @staticmethod
    def _forgotten(link: Link, want: Want, now: int) -> bool:
        """Return True if the neighbour seems to have evicted a message that it offered a while ago."""
        few, many = _UNSURE_TRIES
        idle = now - link.inbox.progress_us >= _REQUEST_RETRY_US
        return want.tries >= many or (idle and want.tries >= few)


def _require_room(link: Link) -> None:
    """Raise `LimitError` if offers of the neighbour are not read for now."""
    # A stranger may offer what it does not have: all of that is noted, requested, and requested again.
    if link.rank is not GIVER and len(link.inbox.wants) >= _TRIAL_WANTS:
        raise LimitError("offers-open")


def _send_within(link: Link, inbox: Inbox, acks: list[Ack]) -> None:
    """Send acknowledgements, unless their contact is over: the next one numbers its frames anew."""
    if link.inbox is inbox:
        link.send(acks)


def _patience_us(link: Link, tries: int) -> int:
    """Return the time to wait for a message that was requested `tries` times before.

    While nothing arrives, the request itself was probably lost. Otherwise the message may have to wait for others. With
    many wants, several requests were sent, and hardly all of them were lost.
    """
    if link.inbox.asked_us and len(link.inbox.wants) <= _FEW_WANTS:
        return min(_PATIENCE_US_MAX, link.outbox.recovery.answer_us(tries))
    return _REQUEST_RETRY_US << min(tries, _REQUEST_DOUBLINGS)


def _given_up(want: Want) -> bool:
    """Return True if it was requested in vain, and is not requested any more unless it is offered again."""
    return want.tries > _REQUEST_TRIES and not want.requested


def _pieces(want: Want) -> int:
    return max(1, -(-want.entry.length // PIECE_BYTES))


_LOOK_GAP_US: Final = 1_000_000
_LOOK_ENTRIES_MAX: Final = 16_384
"""Number of entries that are looked through at a time; the other links have their turn at the next look."""

Candidate = tuple[int, int, "OfferEntry"]
"""The rank of a message, the bytes that it lacks, and the neighbour's entry for it."""
_RANK, _LACKING = itemgetter(0), itemgetter(1)


class RoomRetry:
    """Requests to the neighbours of one host for messages that it had no room for."""

    def __init__(self, context: HostContext, wants: Wants) -> None:
        self._cache = context.holdings.cache
        self._links, self._interests = context.links, context.interests
        self._wants, self._memories = wants, context.holdings.cache.memories
        self._looked_us = -NEVER
        self._timers = Timers(context.links.schedule)
        context.links.schedule.add(self._timers)
        self._first = 0
        """Index of the link that comes first."""

    def room_appeared(self, now: int) -> None:
        """Look soon for messages that fit into the room that appeared."""
        self._recall(self._memories.pop_reopened())
        if self._memories.opens() and self._links.usable:
            self._look_soon(now)

    def _look_soon(self, now: int) -> None:
        self._timers.hasten(SECOND_LOOK, max(now, self._looked_us + _LOOK_GAP_US))

    def look_again(self, messages: Collection[MessageId], now: int) -> None:
        """Look soon at what neighbours offered: this host wants more than before, these messages among it."""
        self._recall(messages)
        if self._links.usable:
            self._look_soon(now)

    def _recall(self, messages: Collection[MessageId]) -> None:
        """Consider these messages again: closed handles show which neighbours offered them."""
        for link in self._links.usable if messages else ():
            for entry in [each for each in link.inbox.closed.values() if each.message in messages]:
                self._memories.decline(link, entry, interesting=self._interests.wants_something)

    def decline(self, link: Link, entry: OfferEntry, now: int) -> None:
        """Record an offer that is not requested, for lack of room, or of open requests.

        If the message was declined before, there may be room by now.
        """
        self._memories.decline(link, entry, interesting=self._interests.wants_something)
        if (copy := self._cache.get(entry.message)) is not None and not copy.here:
            if (candidate := self._candidate(entry)) and self._fits(link, candidate, 0, 0):
                self._look_soon(now)
        elif self._wants.is_full(link):
            self._timers.hasten(SECOND_LOOK, now + _LOOK_GAP_US)

    def tick(self, now: int) -> None:
        """Look again, if it is due."""
        if self._timers.due[SECOND_LOOK] <= now:
            self._look(now)

    def _look(self, now: int) -> None:
        """Request what fits by now."""
        self._timers.cancel(SECOND_LOOK)
        self._looked_us = now
        places = _SpareRoom(self._cache)
        self._memories.expect_nothing()
        links, left = self._links.usable, _LOOK_ENTRIES_MAX
        for turn in range(len(links)):
            link = links[(self._first + turn) % len(links)]
            left -= len(self._memories.offers(link)) + len(link.inbox.closed)
            if candidates := self._candidates(link):
                self._ask(link, candidates, places, now)
            if left <= 0 and turn + 1 < len(links):
                self._first += turn + 1
                self._timers.hasten(SECOND_LOOK, now + _LOOK_GAP_US)
                break

    def _candidates(self, link: Link) -> list[Candidate]:
        """Return the messages that the neighbour offered in this contact and that found no room here, by rank."""
        inbox, get = link.inbox, self._cache.get
        offered = {entry.handle: entry for entry in self._memories.offers(link)}
        for handle, entry in inbox.closed.items() if self._cache.declined else ():
            copy = get(entry.message)
            if copy is not None and not (copy.here or copy.finished or handle in inbox.wants):
                offered.setdefault(handle, entry)
        found: list[Candidate] = []
        for handle, entry in offered.items():
            if candidate := self._candidate(entry):
                found.append(candidate)
            else:
                self._memories.forget_offer(link, handle)
        found.sort(key=_RANK, reverse=True)
        return found

    def _candidate(self, entry: OfferEntry) -> Candidate | None:
        """Return the candidate for an entry; None if the message is here, or never wanted again."""
        copy = self._cache.get(entry.message)
        if copy is not None and (copy.whole or copy.finished):
            return None
        if copy is None or (not copy.here and not copy.rank):
            # Of what never came, the age is not known: it may be younger than any.
            wanted = self._interests.wants_something
            return self._cache.ranking.best(entry.privilege, wanted), entry.length, entry
        return copy.rank, entry.length - (copy.held_bytes if copy.here else 0), entry

    def _coming(self, link: Link) -> tuple[int, int]:
        """Return the messages and bytes that this neighbour was asked for, or that are half here from any neighbour."""
        cache, wants = self._cache, self._wants
        messages = nbytes = 0
        for want in link.inbox.wants.values():
            if want.requested and ((copy := cache.get(want.entry.message)) is None or not copy.here):
                messages += 1
                nbytes += want.entry.length
        for slot in bits(cache.partial):
            half = cache.copies[slot]
            if half is not None and wants.sources(half.id):
                nbytes += max(0, half.descriptor.length - half.held_bytes)
        return messages, nbytes

    def _ask(self, link: Link, candidates: list[Candidate], places: _SpareRoom, now: int) -> None:
        inbox = link.inbox
        messages, nbytes = self._coming(link)
        too_much = NEVER
        cache = self._cache
        self._memories.expect(candidates[0][0], min(map(_LACKING, candidates)))
        lowest = cache.room.lowest(candidates[0][0])
        for candidate in candidates:
            rank, lacking, entry = candidate
            least = lowest is None or rank <= lowest.rank
            if least and not cache.room.fits(messages + 1, nbytes):
                return  # Nor would any that follow find room.
            if self._wants.is_full(link):
                if now - inbox.progress_us < PATIENCE_US:
                    self._timers.hasten(SECOND_LOOK, now + _LOOK_GAP_US)
                return
            coming = messages + places.messages, nbytes + places.bytes
            if lacking >= too_much or not self._fits(link, candidate, *coming):
                continue
            if not places.reserve(candidate, messages, nbytes):
                too_much = lacking  # For whatever comes next, and has a lower rank, too.
                continue
            self._memories.forget_offer(link, entry.handle)
            self._wants.forgive(link, entry.message)
            if (want := self._wants.add(link, entry, now)) is not None:
                want.unsure = True
                inbox.fresh.append(entry.handle)

    def _fits(self, link: Link, candidate: Candidate, messages: int, nbytes: int) -> bool:
        """Return True if there may be room beside this much that is on its way, by evicting others if necessary."""
        rank, lacking, entry = candidate
        cache, copy = self._cache, self._cache.get(entry.message)
        if copy is not None and self._memories.is_turned_away(copy):
            return False
        messages, nbytes = messages + 1, nbytes + lacking
        if cache.room.fits(messages, nbytes):
            return True
        # A party over its share takes no room from others. Messages carried between nodes take it from their own kind
        # only.
        if self._wants.blocked(link, entry.message) or not cache.room.displaces(messages, nbytes, rank):
            return False
        return copy is None or not cache.room.shared_out(copy, 1, lacking)


class _SpareRoom:
    """The room of a cache during one look: unused space, and the space of evictable copies, each counted once."""

    def __init__(self, cache: Cache) -> None:
        self._cache = cache
        self._yielding: list[tuple[int, int]] | None = None
        """Rank and bytes of evictable copies, lowest last; computed when a copy has to be evicted."""
        self.messages = self.bytes = 0
        """Messages and bytes requested during this look, less the room of the copies that are evicted for them."""

    def reserve(self, candidate: Candidate, messages: int, nbytes: int) -> bool:
        """Reserve room for a candidate, beside this much that is on its way; return False if there is too little."""
        rank, lacking, _ = candidate
        messages += self.messages + 1
        nbytes += self.bytes + lacking
        gone: list[tuple[int, int]] = []
        freed = 0
        while not self._cache.room.fits(messages - len(gone), nbytes - freed):
            if self._yielding is None:
                self._yielding = self._cache.room.yielding()
            if not self._yielding or self._yielding[-1][0] >= self._cache.room.reach(rank):
                self._yielding += reversed(gone)
                return False
            gone.append(self._yielding.pop())
            freed += gone[-1][1]
        self.messages += 1 - len(gone)
        self.bytes += lacking - freed
        return True
