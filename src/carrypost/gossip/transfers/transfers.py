"""Moving messages over links, whatever decided that they are offered: all parts joined, and the path of small ones.

`Transfers` joins the parts: offers of neighbours become wants (`wants`, `requests`), received frames become whole
messages (`inbound`, `Parcels`, `arrivals_and_removals`), requests become bursts (`sending`, `outbox`). Both directions
run side by side, over several links at the same time. Everything is soft state: a lost request or acknowledgement costs
a timeout, a lost link costs nothing.

`Parcels` receives small messages, which arrive whole and in bursts: nearly everything that an exchange moves. An
unasked Parcel is an offer and the answer to its request in one (`Requests.receive_unasked`), and passes all checks of
both. Each message is inspected in its turn (`Inspection`), and its payload is checked against the descriptor. Those of
a burst that pass, are not known here and find room are admitted and delivered together, in runs of messages wanted here
and runs of messages carried for others. If room has to be made, or something is remembered of a message, it takes the
path of larger ones (`Inbound.store_small`), in its place among the others.
"""

from __future__ import annotations

from operator import attrgetter
from typing import TYPE_CHECKING, Final

from carrypost.errors import RemoteError
from carrypost.gossip.timers import ACKNOWLEDGE, REQUEST_AGAIN
from carrypost.gossip.transfers.accounts import PARCEL
from carrypost.gossip.transfers.inbound import Inbound
from carrypost.gossip.transfers.outbox import PARCEL_GAIN, TIMEOUTS_DOUBTFUL
from carrypost.gossip.transfers.requests import Requests, RoomRetry
from carrypost.gossip.transfers.sending import (
    AGE_MS_MAX,
    HOPS_MAX,
    WINDOW_BYTES_MAX,
    BurstBuilder,
    Pushes,
    RequestServer,
)
from carrypost.gossip.transfers.wants import BLOCK_US, Wants
from carrypost.gossip.wire import frames as fr
from carrypost.gossip.wire.pieces import hash_of, root_of
from carrypost.log.events import Reception
from carrypost.model.descriptor import PayloadCodec
from carrypost.model.ids import NodeId

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from random import Random

    from carrypost.gossip.holdings.copies import Copy, Newcomer
    from carrypost.gossip.transfers.arrivals_and_removals import Arrivals
    from carrypost.gossip.transfers.inbox import Want
    from carrypost.gossip.transfers.link import HostContext, Link
    from carrypost.gossip.wire.frames import OpenParcel
    from carrypost.model.ids import MessageId


_BLANK: Final = PayloadCodec.BLANK
_LENGTH: Final = attrgetter("descriptor.length")
_UNASKED_BYTES_MAX: Final = 2 * WINDOW_BYTES_MAX
"""Most bytes that may come unasked between two reports, from a neighbour that does not know what this host lacks. Twice
what may be on its way: where a link is slow, or others are pushed the same, a neighbour may believe some lost, or
arrived, before this host reports."""


class Parcels:
    """Receiver of bursts of small messages."""

    def __init__(
        self, context: HostContext, wants: Wants, requests: Requests, inbound: Inbound, arrivals: Arrivals
    ) -> None:
        self._holdings, self._outputs = context.holdings, context.outputs
        self._wants, self._requests = wants, requests
        self._inbound = inbound
        self._inspect = inbound.inspection.inspect
        self._arrivals = arrivals

    def receive(self, link: Link, frames: Sequence[OpenParcel], now: int) -> tuple[list[int], list[int], bool]:
        """Handle a burst; return the serials to acknowledge, of requested and of unasked messages.

        Only messages that were stored, are here already or are finished are acknowledged, since their giver may then
        believe that there is a copy here, or needs none. Of the rest, requested ones are declined. The last value is
        False if the burst says nothing except that the neighbour has messages that are here as well.
        """
        cache, wants, closed = self._holdings.cache, link.inbox.wants, link.inbox.closed
        known = cache.get
        roomy = cache.room.fits(len(frames), sum(map(_LENGTH, frames)))
        accepted: list[OpenParcel] = []
        unasked: dict[int, bool] = {}
        run: dict[MessageId, OpenParcel] = {}
        run_wanted = True
        for number, frame in enumerate(frames, 1):
            link.work.begin(PARCEL)
            handle, message = frame.handle, frame.descriptor.id
            want = wants.get(handle)
            if want is not None or handle in closed:
                accepted.append(frame)
            else:
                want = self._unasked(link, frame, unasked, now, roomy=roomy)
            if want is None or message in run:
                continue
            wanted = self._checked(link, want, frame, now)
            if wanted is None:
                # Checking the signatures of a whole burst may take many times what its sender may waste.
                if link.stops(len(frames) - number, now):
                    frames = frames[:number]
                    break
                continue
            # A run collects messages that can be admitted by one call. Anything else ends it first,
            # so that messages enter, and are reported, in the order of their arrival.
            stored = True
            if roomy and known(message) is None:
                if wanted != run_wanted:
                    self._enter(link, run, unasked, now, wanted=run_wanted)
                    run, run_wanted = {}, wanted
                run[message] = frame
            else:
                self._enter(link, run, unasked, now, wanted=run_wanted)
                run = {}
                stored = self._inbound.store_small(link, want, frame, now, wanted=wanted)
            if stored and want.unasked is not None:
                unasked[frame.serial] = True
        self._enter(link, run, unasked, now, wanted=run_wanted)
        if len(run) < len(frames):
            self._decline(link, frames, accepted, unasked)
            accepted = [each for each in accepted if each.handle in wants or self._inbound.closed(link, each.handle)]
        serials = [frame.serial for frame in accepted]
        return serials, list(unasked), len(unasked) < len(frames) or any(unasked.values())

    def _decline(
        self, link: Link, frames: Sequence[OpenParcel], accepted: Sequence[OpenParcel], unasked: Mapping[int, bool]
    ) -> None:
        """Decline Parcels of a neighbour that supplies this host and that were not stored: it need not repeat them."""
        if not link.supplies:
            return
        asked = {frame.serial for frame in accepted}
        for frame in frames:
            if frame.serial not in asked and frame.serial not in unasked:
                self._inbound.decline(link, frame.handle)

    def _unasked(
        self, link: Link, frame: OpenParcel, unasked: dict[int, bool], now: int, *, roomy: bool
    ) -> Want | None:
        """Handle an unasked Parcel as its offer; None if it is not accepted.

        `unasked`: serials of such messages that are here, and True for those that say something new.
        """
        descriptor, message = frame.descriptor, frame.descriptor.id
        nbytes = link.inbox.charge_unasked(descriptor.wire_bytes + descriptor.length)
        # The bound keeps a neighbour from filling the link with unwanted messages. A neighbour that
        # knows from this host what is lacking here is bound by its window instead.
        if (nbytes > _UNASKED_BYTES_MAX and not link.supplies) or self._wants.blocked(link, message, now):
            self._outputs.refuse("unsolicited", link.peer)
            return None
        copy = self._holdings.cache.get(message)
        if copy is not None:
            self._inbound.remind(link, copy)
            if copy.whole or copy.finished:
                unasked[frame.serial] = self._requests.has(link, 1 << copy.slot)
                return None
        return self._requests.receive_unasked(link, frame, now, roomy=roomy)

    def _checked(self, link: Link, want: Want, frame: OpenParcel, now: int) -> bool | None:
        """Return True if a message is wanted here, False if it is carried for others, None if it is refused."""
        descriptor, body = frame.descriptor, frame.body
        try:
            wanted = self._inspect(descriptor, want.entry, link, now)
        except RemoteError as error:
            self._inbound.refuse(link, want, error, now)
            return None
        # What is wrong is not only refused: its signature, which is dear to look at, would come again and again.
        if not descriptor.small or (descriptor.codec is not _BLANK if body is None else len(body) != descriptor.length):
            self._wants.block_from(link, frame.handle, "fragment", now + BLOCK_US)
            return None
        if descriptor.signed and root_of(hash_of(body or b"")) != descriptor.root:
            self._wants.block_from(link, frame.handle, "digest", now + BLOCK_US)
            return None
        return wanted

    def _enter(
        self, link: Link, run: dict[MessageId, OpenParcel], unasked: dict[int, bool], now: int, *, wanted: bool
    ) -> None:
        """Admit messages that passed and find room, all wanted here or all carried for others."""
        if not run:
            return
        giver = NodeId(link.peer)
        privilege = self._holdings.privilege
        newcomers: list[Newcomer] = []
        for frame in run.values():
            # Unsigned numbers.
            hops, age_ms, descriptor = frame.hops, frame.age_ms, frame.descriptor
            if not (0 < hops <= HOPS_MAX and 0 <= age_ms <= AGE_MS_MAX):
                hops, age_ms = min(max(hops, 1), HOPS_MAX), min(max(age_ms, 0), AGE_MS_MAX)
            newcomers.append((descriptor, privilege(descriptor), hops, age_ms))
        if pieces := [(frame.descriptor, frame.body) for frame in run.values() if frame.body is not None]:
            self._holdings.keep_pieces(pieces)
        copies = self._holdings.admit_small(newcomers, giver, now, interesting=wanted)
        self._wants.fulfil(copies)
        link.gave()
        receptions = [Reception(copy.descriptor, copy.hops, copy.age_ms) for copy in copies]
        serials = [each if (each := frame.serial) in unasked else None for frame in run.values()] if unasked else None
        self._arrivals.whole(copies, receptions, link, serials)


_ENTRY_BYTES: Final = 25
"""Largest size of an offer's entry without its id, in bytes."""


class Transfers:
    """The moving half of one host's contacts."""

    def __init__(self, context: HostContext, arrivals: Arrivals, rng: Random, *, durable_first: bool = False) -> None:
        """`durable_first`: acknowledge transfer frames once what they brought is durable, and not before."""
        self._links = context.links
        self.wants = Wants(context)
        self.inbound = Inbound(context, self.wants, arrivals)
        self._bursts = BurstBuilder(context, rng)
        self.pushes = Pushes(context, self._bursts)
        self.server = RequestServer(context, self._bursts, self.pushes)
        self.room_retry = RoomRetry(context, self.wants)
        self.requests = Requests(context, self.wants, self.room_retry, durable_first=durable_first)
        self._parcels = Parcels(context, self.wants, self.requests, self.inbound, arrivals)
        self._holdings, self._entries_max = context.holdings, context.limits.offer_entries_max
        self._offers = 0
        self._links.handlers.update(
            {
                fr.WholeDescriptor: self._receive_preamble,
                fr.DescriptorPart: self._receive_preamble,
                fr.HashList: self._receive_preamble,
                fr.Data: self._receive_data,
                fr.BlankData: self._receive_data,
                fr.OpenParcel: self._receive_parcels,
            }
        )

    def end(self, link: Link, now: int) -> None:
        """End the contact over a link, and request from others what it was asked for."""
        others = self.wants.alternatives(link)
        self.inbound.drop_link(link)
        link.clear()
        self.requests.released(others, now)

    def repeat(self, link: Link, now: int) -> None:
        """Retransmit frames and repeat requests that were lost."""
        link.outbox.tick(now)
        # Two timeouts in a row: either the neighbour left, or its interface reported a larger
        # datagram than the path carries. Smaller frames cost little in the first case and solve the
        # second.
        doubtful = link.outbox.recovery.timeouts >= TIMEOUTS_DOUBTFUL
        if doubtful and (unpacked := link.outbox.unpack(link.body_bytes_max + PARCEL_GAIN)):
            link.doubt()
            self._links.fit()
            self.offer(link, [job.copy for job in unpacked if job.unasked])
        if link.timers.due[REQUEST_AGAIN] <= now:
            began_us = self._links.accounts.clock_us()
            self.requests.repeat(link, now)
            # A neighbour that sends most of what it offers pays for this by its merit.
            self._links.accounts.charge_time(link.peer, began_us, now)

    def push(self, link: Link, copies: Sequence[Copy], now: int) -> None:
        """Send messages over a link unasked: as Parcels, which are repeated until they arrive, and the rest in offers.

        Messages that were sent this way before, and are not on their way any more, are offered.
        """
        self.server.give(link, copies)
        self._bursts.flush([link], now)
        self.offer(link, [copy for copy in copies if copy.slot not in link.outbox.jobs])

    def offer(self, link: Link, copies: Sequence[Copy]) -> None:
        """Offer messages over a link, with or without a contact. The offer is not repeated."""
        step = link.body_bytes_max // max((len(copy.id) + _ENTRY_BYTES for copy in copies), default=1)
        step = min(step, self._entries_max)
        for at in range(0, len(copies), step):
            entries = tuple(map(self._holdings.entry_of, copies[at : at + step]))
            link.send((fr.Offer(self.offer_serial(), entries),))

    def offer_serial(self) -> int:
        """Return the serial of another offer."""
        self._offers += 1
        return self._offers

    def flush(self, now: int) -> None:
        """Send what the windows of all links allow."""
        self._bursts.flush(self._links.usable, now)

    def _receive_parcels(self, link: Link, frames: Sequence[fr.OpenParcel], now: int) -> bool:
        """Handle small messages, each of which arrived whole; return False if they contained nothing new."""
        serials, unasked, new = self._parcels.receive(link, frames, now)
        # Several bursts may come together, or the end of one first.
        last = frames[-1].last or any(frame.last for frame in frames)
        if unasked:
            self.requests.came_unasked(link, unasked, now)
        if serials:
            self.requests.arrived(link, serials, now, last=last)
            link.inbox.progress_us = now
        elif last:
            link.timers.arm(ACKNOWLEDGE, now)
        return new or link.timers.due[ACKNOWLEDGE] <= now

    def _receive_preamble(
        self, link: Link, frame: fr.WholeDescriptor | fr.DescriptorPart | fr.HashList, now: int
    ) -> None:
        if isinstance(frame, fr.HashList):
            accepted = self.inbound.hash_list(link, frame, now)
        else:
            accepted = self.inbound.descriptor(link, frame, now)
        if accepted:
            self.requests.arrived(link, [frame.serial], now, last=False)

    def _receive_data(self, link: Link, frame: fr.Data | fr.BlankData, now: int) -> None:
        if self.inbound.data(link, frame, now):
            self.requests.arrived(link, [frame.serial], now, last=frame.last)
            link.inbox.progress_us = now
        elif frame.last:
            link.timers.arm(ACKNOWLEDGE, now)
