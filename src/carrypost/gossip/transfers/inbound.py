"""The receiving half of a link: from an offered entry to a whole, verified message in the cache.

Nothing is accepted that was not requested (`gossip.transfers.wants`). A descriptor is inspected first
(`gossip.transfers.inspection`), then every piece is checked against the hash list whose root the descriptor holds. When
a contact breaks, whole pieces stay and fragments are dropped.
"""

# When to acknowledge. A transfer frame is acknowledged when it need not be sent again: because it
# was used, or because it never will be. Two cases look alike and are not:
#
# - A fragment that arrives before its descriptor is not acknowledged. It cannot be checked yet, and
#   it must come again.
# - A frame of a message that is not accepted is not acknowledged either. A neighbour that sees
#   every frame of a message acknowledged believes that there is a carrier here, reports so to the
#   program that sent it, and never offers it again. So the message is declined explicitly, and the
#   neighbour stops sending it.
#
# What must hold: nothing unverified reaches the cache, and nothing that one neighbour sent can
# spoil what another sent. Pieces are verified one by one for that reason: with one hash over the
# whole message, a single bad fragment among 16 MiB would cost all of it, and the neighbour that
# sent it could not be identified.

from __future__ import annotations

from typing import TYPE_CHECKING

from carrypost.errors import RemoteError
from carrypost.gossip.interest.matcher import Matcher
from carrypost.gossip.transfers.burst_builder import AGE_MS_MAX, HOPS_MAX
from carrypost.gossip.transfers.inspection import ForgetfulError, Inspection, PurgedError
from carrypost.gossip.transfers.wants import BLOCK_US, CLOSED_MAX, SHARE_BLOCK_US
from carrypost.gossip.wire.frames import (
    BlankData,
    Data,
    DescriptorPart,
    HashList,
    OpenParcel,
    PieceRequest,
    Request,
    WholeDescriptor,
)  # fmt: skip
from carrypost.gossip.wire.parts import Parts
from carrypost.gossip.wire.pieces import HASH_BYTES, hash_of, root_of
from carrypost.log import journal as keys
from carrypost.log.events import Reason, Reception
from carrypost.model import descriptor as descriptors
from carrypost.model.descriptor import Descriptor, PayloadCodec
from carrypost.model.ids import NodeId
from carrypost.model.times import NEVER

if TYPE_CHECKING:
    from collections.abc import Sequence

    from carrypost.gossip.holdings.copies import Copy
    from carrypost.gossip.transfers.arrivals import Arrivals
    from carrypost.gossip.transfers.host_context import HostContext
    from carrypost.gossip.transfers.inbox import Want
    from carrypost.gossip.transfers.link import Link
    from carrypost.gossip.transfers.wants import Wants
    from carrypost.model.pattern import Entry

_DECLINE_AGAIN_US = 400_000
"""Time after which frames of a declined message show that the neighbour did not hear of it."""


class Inbound:
    """Receiver of transfer frames."""

    def __init__(self, context: HostContext, wants: Wants, arrivals: Arrivals) -> None:
        self._holdings, self._cache = context.holdings, context.holdings.cache
        self._outputs, self._links, self._interests, self._limits = (
            context.outputs,
            context.links,
            context.interests,
            context.limits,
        )
        self._wants, self._memories = wants, context.holdings.cache.memories
        self._arrivals = arrivals
        self._keep_partials = context.settings.keep_partials
        self._reminded = context.settings.island
        """True if authors are reminded that a message they send was acknowledged."""
        self.inspection = Inspection(context)
        self._parts = Parts(self._limits.descriptor_buffer_bytes_max)

    def drop_link(self, link: Link) -> None:
        """Drop the wants and the half-received descriptors of a contact that is over."""
        begun = [] if self._keep_partials else [want.entry.message for want in link.inbox.wants.values()]
        self._wants.drop_link(link)
        self._parts.leave(link.peer)
        for message in begun:
            copy = self._holdings.here(message)
            if copy is not None and not copy.whole and not self._wants.is_coming(message):
                self._holdings.discard(copy, Reason.INCOMPLETE)

    def closed(self, link: Link, handle: int) -> bool:
        """Return True if a frame without a want is to be acknowledged, so that the neighbour stops sending the message.

        A frame of a message that was not accepted is not acknowledged, but declined: otherwise the neighbour would
        believe that this host carries the message.
        """
        entry = link.inbox.closed.get(handle)
        if entry is None:
            self._outputs.refuse("unsolicited", link.peer)
            return False
        copy = self._cache.get(entry.message)
        if copy is not None and (copy.whole or copy.finished):
            self.remind(link, copy)
            return True
        self.decline(link, handle)
        return False

    def remind(self, link: Link, copy: Copy) -> None:
        """Repeat the acknowledgement of a finished message that comes again, over a route or from its author."""
        if copy.finished and (link.route or (self._reminded and link.node == copy.descriptor.node)):
            self._holdings.remind(copy.id, link.peer)

    def decline(self, link: Link, handle: int) -> None:
        """Inform the neighbour that a message is not accepted, unless that was sent a moment ago."""
        declined, now = link.inbox.declined, self._holdings.now_us
        if now - declined.get(handle, -NEVER) >= _DECLINE_AGAIN_US:  # Else it is on its way to the neighbour.
            link.send((Request(link.prefix, (), (), (PieceRequest(handle, b""),)),))
            declined[handle] = now
            if len(declined) > CLOSED_MAX:
                del declined[next(iter(declined))]

    def interests_changed(self, entries: Sequence[Entry]) -> None:
        """Match incoming messages again, because these entries of the own profile are new or gone."""
        wants = [want for link in self._links for want in link.inbox.wants.values() if want.descriptor]
        if not wants:
            return
        changed = Matcher(entries, self._limits, own=True)
        for want in wants:
            if want.descriptor is not None and changed.matches(want.descriptor):
                want.interesting = self._interests.wants(want.descriptor)

    # --- descriptors and hash lists ------------------------------------------------------------------------

    def descriptor(self, link: Link, frame: WholeDescriptor | DescriptorPart, now: int) -> bool:
        """Handle a descriptor, or a part of one; return True if the frame is to be acknowledged.

        The descriptor of a small message has the serial of its only fragment, and is acknowledged with it.
        """
        want = link.inbox.wants.get(frame.handle)
        if want is None:
            return self.closed(link, frame.handle)
        if want.descriptor is not None:
            return not (isinstance(frame, WholeDescriptor) and want.descriptor.small)
        try:
            if isinstance(frame, WholeDescriptor):
                found = frame.descriptor
            else:
                key = (frame.handle, want.entry.message, frame.parts)
                wire = self._parts.add(link.peer, key, frame.part, frame.parts, frame.body)
                if wire is None:
                    return True
                found = descriptors.decode(wire)
            want.interesting = self.inspection.inspect(found, want.entry, link, now)
        except RemoteError as error:
            self.refuse(link, want, error, now)
            return self.closed(link, frame.handle)
        # Better to decline now than after megabytes: the first pieces would fit and the rest would
        # not.
        if found.pieces > 1 and not self._has_room(found, want):
            self._cache.remember(found, done=False)
            self._decline(link, want, found, Reason.NO_ROOM)
            return self.closed(link, frame.handle)
        link.work.credit()
        self._wants.opened(link, frame.handle, want)
        self._accept(want, found, frame)
        return not (isinstance(frame, WholeDescriptor) and found.small)

    def refuse(self, link: Link, want: Want, error: RemoteError, now: int) -> None:
        """Block a message from this neighbour for a while or, if its recipients are done with it, drop it for good."""
        if isinstance(error, PurgedError):
            self._outputs.refuse("purged", link.peer, error.memory.descriptor.shown)
            link.work.credit()
            self._wants.fulfil((error.memory,))
        elif isinstance(error, ForgetfulError):
            self._wants.block_from(link, want.entry.handle, error.reason, now + SHARE_BLOCK_US, blamed=False)
        else:
            self._wants.block_from(link, want.entry.handle, error.reason, now + BLOCK_US)

    def _accept(self, want: Want, found: Descriptor, frame: WholeDescriptor | DescriptorPart | OpenParcel) -> None:
        """Accept a descriptor, and the unsigned numbers beside it."""
        # Carriers change hops and age, so that no author can sign them. They are clamped, since a
        # wild value would end up in other nodes' records.
        want.hops = min(HOPS_MAX, max(1, frame.hops))
        want.age_ms = min(AGE_MS_MAX, max(0, frame.age_ms))
        want.reset = False
        copy = self._cache.get(found.id)
        # Where the message is known, its signature was not looked at again: the one that was is kept.
        want.descriptor = copy.descriptor if copy is not None and copy.here else found

    def hash_list(self, link: Link, frame: HashList, now: int) -> bool:
        """Handle a part of a hash list; return True if the frame is to be acknowledged."""
        want = link.inbox.wants.get(frame.handle)
        if want is None or want.hashes:
            return want is not None or self.closed(link, frame.handle)
        descriptor = want.descriptor
        if descriptor is None:
            return want.reset
        count, odd = divmod(len(frame.hashes), HASH_BYTES)
        if odd or not count or frame.start + count > descriptor.pieces or not descriptor.signed:
            self._outputs.refuse("hash-list", link.peer)
            return True
        if frame.start not in want.hash_parts:
            link.work.credit()
        want.hash_parts[frame.start] = frame.hashes
        if sum(map(len, want.hash_parts.values())) < descriptor.pieces * HASH_BYTES:
            return True
        hashes = b"".join(want.hash_parts[start] for start in sorted(want.hash_parts))
        want.hash_parts.clear()
        if root_of(hashes) != descriptor.root:
            self._wants.block_from(link, frame.handle, "digest", now + BLOCK_US)
            return self.closed(link, frame.handle)
        want.hashes = hashes
        for piece in list(want.fragments):
            self._finish(link, frame.handle, piece, now)
        return True

    # --- data ----------------------------------------------------------------------------------------------

    def data(self, link: Link, frame: Data | BlankData, now: int) -> bool:
        """Handle a fragment; return True if the frame is to be acknowledged."""
        want = link.inbox.wants.get(frame.handle)
        if want is None:
            return self.closed(link, frame.handle)
        descriptor = want.descriptor
        if descriptor is None:
            return want.reset
        want.asked_us = now
        if isinstance(frame, BlankData):
            length, body = frame.length, b""
        else:
            length, body = len(frame.body), b"" if descriptor.codec is PayloadCodec.BLANK else frame.body
        if descriptor.small:
            piece, number, expected = frame.index, 0, descriptor.length
        else:
            piece, number = divmod(frame.index, descriptor.fragments_per_piece)
            rest = descriptor.piece_length(piece) - number * descriptor.fragment_bytes
            expected = min(descriptor.fragment_bytes, rest) if rest > 0 else -1
        if piece >= descriptor.pieces or length != expected:
            self._outputs.refuse("fragment", link.peer)
        elif descriptor.small:
            self._store(link, want, 0, body, now)
        else:
            self._buffer(link, want, (piece, number), body, now)
        return frame.handle in link.inbox.wants or self.closed(link, frame.handle)

    def store_small(self, link: Link, want: Want, frame: OpenParcel, now: int, *, wanted: bool) -> bool:
        """Store a small message that arrived whole and passed all checks, evicting others if necessary.

        Returns False if there was no room.
        """
        want.interesting = wanted
        self._accept(want, frame.descriptor, frame)
        self._store(link, want, 0, b"" if frame.body is None else frame.body, now)
        copy = self._cache.get(frame.descriptor.id)
        return copy is not None and (copy.whole or copy.finished)

    def _buffer(self, link: Link, want: Want, at: tuple[int, int], body: bytes, now: int) -> None:
        """Keep a fragment until its piece is whole; `at` is the piece, and the fragment's number in it."""
        piece, number = at
        copy = self._cache.get(want.entry.message)
        if want.descriptor is None or (copy is not None and copy.here and copy.held >> piece & 1):
            return
        fragments = want.fragments.setdefault(piece, {})
        # Only the first arrival of a fragment counts as useful: sent over and over, it would pay
        # for its own flood.
        if number not in fragments:
            link.work.credit()
            fragments[number] = body
            self._wants.charge(link, want.entry.handle, piece, len(body))
            self._finish(link, want.entry.handle, piece, now)

    def _finish(self, link: Link, handle: int, piece: int, now: int) -> None:
        """Store a piece once all of its fragments and the hash list are here."""
        want = link.inbox.wants.get(handle)
        descriptor = want.descriptor if want is not None else None
        if want is None or descriptor is None or (descriptor.signed and descriptor.pieces > 1 and not want.hashes):
            return
        if len(want.fragments.get(piece, ())) == descriptor.fragments_in(piece):
            found = self._wants.free(link, handle, piece) or {}
            self._store(link, want, piece, b"".join([found[number] for number in sorted(found)]), now)

    def _store(self, link: Link, want: Want, piece: int, body: bytes, now: int) -> None:
        """Verify a whole piece, make room for it and journal it."""
        descriptor, handle = want.descriptor, want.entry.handle
        if descriptor is None:
            return
        if descriptor.signed and not self._fits(descriptor, want, piece, body):
            self._wants.block_from(link, handle, "digest", now + BLOCK_US)
            return
        copy = self._cache.get(descriptor.id)
        if copy is None or not copy.here:
            if copy is not None and copy.finished:
                self._wants.fulfil((copy,))  # It was dropped for good while it came in: it is not requested again.
                return
            copy = self._admit(link, want, descriptor, piece, now)
            if copy is None:
                return
        elif not self._holdings.grow(copy, piece, descriptor.piece_length(piece)):
            self._wants.drop(link, handle)
            self._memories.decline(link, want.entry, interesting=self._interests.wants_something)
            self._holdings.discard(copy, Reason.NO_ROOM)
            return
        want.requested &= ~(1 << piece)
        link.gave()
        self._wants.progressed(descriptor.id, now)
        self._holdings.keep_pieces([(descriptor, body)], piece)
        if copy.whole:
            self._wants.fulfil((copy,))
            serials = None if want.unasked is None else (want.unasked,)
            self._arrivals.whole((copy,), (Reception(copy.descriptor, want.hops, want.age_ms),), link, serials)
        else:
            self._arrivals.piece(copy)
            if not want.requested:
                link.inbox.fresh.append(handle)  # What else it offers of this message may be missing by now.

    @staticmethod
    def _fits(descriptor: Descriptor, want: Want, piece: int, body: bytes) -> bool:
        if descriptor.pieces == 1:
            return root_of(hash_of(body)) == descriptor.root
        return want.hashes[piece * HASH_BYTES : (piece + 1) * HASH_BYTES] == hash_of(body)

    def _admit(self, link: Link, want: Want, descriptor: Descriptor, piece: int, now: int) -> Copy | None:
        """Admit a message with its first piece; None if it is refused."""
        if self.inspection.is_purged(descriptor, now):  # Its descriptor came before that was known.
            self.refuse(link, want, PurgedError(self._holdings.remember(descriptor)), now)
            return None
        # Shares are charged to the address, because names are free to a forger.
        copy = self._holdings.admit(
            descriptor, nbytes=descriptor.piece_length(piece) + len(want.hashes), held=1 << piece,
            interesting=want.interesting, giver=NodeId(link.peer), hops=want.hops, age_ms=want.age_ms, now=now,
        )  # fmt: skip
        if copy is Reason.SHARE:
            # The fault lies with the neighbour or the author, which is over its share. So the message is not remembered
            # as bad.
            if (memory := self._cache.get(descriptor.id)) is not None:
                self._cache.remove(memory, Reason.EXPIRED)
            self._wants.block_from(link, want.entry.handle, copy.value, now + SHARE_BLOCK_US)
            # In unused room, shares do not matter.
            self._memories.decline(link, want.entry, interesting=self._interests.wants_something)
            return None
        if isinstance(copy, Reason):
            self._decline(link, want, descriptor, copy)
            return None
        if want.hashes:
            self._holdings.keep_hashes(copy, want.hashes)
            self._outputs.journal.put((keys.HASHES, descriptor.id, 0), want.hashes)
        return copy

    def _has_room(self, found: Descriptor, want: Want) -> bool:
        """Return True if there is room for more than the message's first pieces."""
        copy = self._cache.get(found.id)
        here = copy is not None and copy.here
        return here or self._cache.admits(found.length, self._holdings.privilege(found), interesting=want.interesting)

    def _decline(self, link: Link, want: Want, descriptor: Descriptor, reason: Reason) -> None:
        self._outputs.refuse(reason.value, link.peer, descriptor.shown)
        link.work.credit()  # Not its fault.
        memory = self._cache.get(descriptor.id)
        if memory is not None:
            self._holdings.note_memory(memory)
        self._wants.drop(link, want.entry.handle)
        self._memories.decline(link, want.entry, interesting=self._interests.wants_something)
