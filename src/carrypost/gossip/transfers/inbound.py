"""The receiving half of a link: from an offered entry to a whole, inspected and verified message in the cache.

Nothing is accepted that was not requested (`gossip.transfers.wants`). A descriptor is inspected first, then every piece
is checked against the hash list whose root the descriptor holds. When a contact breaks, whole pieces stay and fragments
are dropped.

`Inspection` checks descriptors from neighbours before they are admitted. Its checks run in the order of their cost:
sizes, id, author, deadline, date, recipients that are done with it, interest, room to remember it, security level, and
only then the signature, once per message. A failed check raises `RemoteError` with the reason under which the refusal
is counted.
"""

# Why checks have this order. Verifying a signature takes about 150 µs (`accounts.SIGNATURE`), everything before
# it a few. A flood of messages that would be refused anyway must not cause signature checks. A
# message that is here already was verified then, and is not verified again.
#
# What may come before the signature: any check whose answer is vouched for by the id. The id is the
# hash of the signed bytes, so a descriptor with the right id says what its author wrote, or is no
# descriptor of that message. Only a decision *in favour* of the message needs the signature.

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

from typing import TYPE_CHECKING, Final

from carrypost.errors import ForgeryError, LimitError, RemoteError
from carrypost.gossip.interest.matcher import Matcher
from carrypost.gossip.transfers.accounts import SIGNATURE
from carrypost.gossip.transfers.inbox import Parts
from carrypost.gossip.transfers.sending import AGE_MS_MAX, HOPS_MAX
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
)
from carrypost.gossip.wire.pieces import HASH_BYTES, check_ratio, hash_of, root_of
from carrypost.log import journal as keys
from carrypost.log.events import Reason, Reception
from carrypost.model import descriptor as descriptors
from carrypost.model.descriptor import Descriptor, PayloadCodec
from carrypost.model.descriptor_values import is_for
from carrypost.model.ids import NodeId
from carrypost.model.times import NEVER
from carrypost.security.identity import verify

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from carrypost.gossip.holdings.copies import Copy
    from carrypost.gossip.transfers.arrivals_and_removals import Arrivals
    from carrypost.gossip.transfers.inbox import Want
    from carrypost.gossip.transfers.link import HostContext, Link
    from carrypost.gossip.transfers.wants import Wants
    from carrypost.gossip.wire.frames import OfferEntry
    from carrypost.model.descriptor import AttributeValue
    from carrypost.model.pattern import Entry


class PurgedError(RemoteError):
    """A message that all of its recipients are done with.

    No neighbour is at fault: its carrier has not heard of it yet.
    """

    def __init__(self, memory: Copy) -> None:
        super().__init__(Reason.PURGED)
        self.memory = memory
        """Memory of the message, if there is room for it."""


class ForgetfulError(RemoteError):
    """A wanted message that could be delivered twice, as there is no room to remember it. No neighbour is at fault."""


class Inspection:
    """The checks of one host."""

    def __init__(self, context: HostContext) -> None:
        self._holdings, self._interests, self._limits = context.holdings, context.interests, context.limits
        self._recipients, self._memories = context.holdings.recipients, context.holdings.cache.memories
        self._purges, self._struck = context.holdings.purged.by_node, context.holdings.recipients.struck
        self._outlived = context.holdings.cache.outlived.ids
        self._signs = context.identity.signed
        self._author, self._node = context.identity.author, context.node
        limits, settings, self._closed = context.limits, context.settings, context.links.closed
        self._text_bytes_max = min(limits.destination_bytes_max, limits.label_bytes_max, limits.attribute_bytes_max)
        """No text of this length is too long."""
        self._skew_us = round(settings.skew_s_max * 1e6)
        lifetime_s = settings.lifetime_s_max
        self._lifetime_us = None if lifetime_s is None else round(lifetime_s * 1e6) + self._skew_us

    def inspect(self, found: Descriptor, entry: OfferEntry, link: Link, now: int) -> bool:
        """Return True if the message is wanted here, False if it is carried for others; `RemoteError` refuses it."""
        if found.length != entry.length or found.length > self._limits.message_bytes_max:
            raise LimitError("message-size")
        signed = found.signed
        self._check_sizes(found, signed=signed)
        if self._closed.name:
            self._closed.check(found, link)
        if found.id != entry.message:
            raise ForgeryError("id")
        if found.author == self._author and not self._holdings.is_needed(found.id):
            self._remember_own(found, link, now)
            raise ForgeryError("own-message")
        self._check_times(found, now)
        if (self._purges or self._struck) and self.is_purged(found, now):
            # The message need not be offered again, nor requested from others. Its id covers its recipients, so the
            # signature does not matter.
            raise PurgedError(self._holdings.remember(found))
        wanted = self._interests.wants(found)
        if not wanted and not self._interests.carries(found):
            raise LimitError("interest")
        # Without a memory of its id the message could be delivered a second time later. Refusing it
        # keeps the promise "once per node" at the price of a delay.
        if wanted and self._memories.full and ((copy := self._holdings.cache.get(found.id)) is None or not copy.here):
            raise ForgetfulError("memory")
        if signed != self._signs:
            raise ForgeryError("security-level")
        if signed:
            self._verify(found, link)
        return wanted

    def is_purged(self, found: Descriptor, now: int) -> bool:
        """Return True if all recipients of the message are done with it."""
        if not (self._purges or self._struck) or found.signed != self._signs:
            return False
        return self._recipients.is_over(found, self._holdings.date_of(now))

    def _check_times(self, found: Descriptor, now: int) -> None:
        date_us, deadline_us = self._holdings.date_of(now), found.deadline_us
        if deadline_us is not None and deadline_us <= date_us:
            raise LimitError("expired")
        if self._outlived and found.id in self._outlived:
            raise LimitError("expired")  # By a clock that this host has had.
        # Authors with a fast clock are common, authors a day ahead are not. A date in the future
        # would put the message ahead wherever copies are ordered by date.
        if found.created_us > date_us + self._skew_us:
            raise LimitError("created")
        if self._lifetime_us is not None and (deadline_us is None or deadline_us > date_us + self._lifetime_us):
            raise LimitError("deadline")
        if found.barrier and self._lifetime_us is not None:
            # Nothing lives that long: what names it would wait for nothing.
            latest_us = date_us + self._lifetime_us
            if any(deadline_us > latest_us for _, _, deadline_us in found.predecessors):
                raise LimitError("barrier")

    def _remember_own(self, found: Descriptor, link: Link, now: int) -> None:
        """Remember an unknown message in this host's name, so that it is not offered again and again.

        Usually it was lost in a crash. Without signatures it may also be forged: then its number is not reused.
        """
        date_us = self._holdings.date_of(now)
        if self._holdings.cache.get(found.id) is not None or found.signed != self._signs or not found.alive(date_us):
            return
        if found.signed:
            self._verify(found, link)
        self._holdings.remember(found)

    def _verify(self, found: Descriptor, link: Link) -> None:
        """Verify the signature, the only expensive check, unless the message is here."""
        copy = self._holdings.cache.get(found.id)
        if copy is not None and copy.here:
            return
        link.work.did(SIGNATURE)
        verify(found)

    def _check_sizes(self, found: Descriptor, *, signed: bool) -> None:
        limits, wire_bytes, headers = self._limits, found.wire_bytes, found.headers
        if signed and (len(found.root) != HASH_BYTES or found.codec is PayloadCodec.BLANK):
            raise LimitError("digest-root")
        if (
            wire_bytes > limits.descriptor_bytes_max
            or len(found.attributes) > limits.attributes_max
            # No text within is longer than the whole, less what carriers do not read.
            or (
                wire_bytes - (len(headers.seal) if headers is not None else 0) > self._text_bytes_max
                and self._has_long_text(found)
            )
        ):
            raise LimitError("descriptor-size")
        if headers is not None:
            if len(headers.recipients) > limits.recipients_max:
                raise LimitError("recipients")
            if headers.connected and not is_for(found, self._node):
                raise LimitError("connected")
        if len(found.barrier) > limits.barrier_entries_max:
            raise LimitError("barrier")
        check_ratio(found, limits)

    def _has_long_text(self, found: Descriptor) -> bool:
        limits = self._limits
        return (
            _nbytes(found.destination) > limits.destination_bytes_max
            or _nbytes(found.label) > limits.label_bytes_max
            or _longest(found.attributes) > limits.attribute_bytes_max
        )


def _longest(attributes: Mapping[str, AttributeValue]) -> int:
    """Return the length in bytes of the longest name, or of the longest text among the values."""
    texts = [*attributes, *(value for value in attributes.values() if isinstance(value, str))]
    return max(map(_nbytes, texts), default=0)


def _nbytes(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode())


_DECLINE_AGAIN_US: Final = 400_000
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
            piece, offset, expected = frame.index, 0, descriptor.length
        else:
            piece, offset, expected = descriptor.fragment_at(frame.index)
        if piece >= descriptor.pieces or length != expected or not (length or descriptor.small):
            self._outputs.refuse("fragment", link.peer)
        elif descriptor.small:
            self._store(link, want, 0, body, now)
        else:
            self._buffer(link, want, (piece, offset), body, now)
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
        """Keep a fragment until its piece is whole; `at` is the piece, and the fragment's offset in it."""
        piece, offset = at
        descriptor, copy = want.descriptor, self._cache.get(want.entry.message)
        if descriptor is None or (copy is not None and copy.here and copy.held >> piece & 1):
            return
        if descriptor.fragments_per_piece == 1 and self._has_hashes(want, descriptor):
            link.work.credit()
            self._store(link, want, piece, body, now)
            return
        fragments = want.fragments.setdefault(piece, {})
        # Only the first arrival of a fragment counts as useful: sent over and over, it would pay
        # for its own flood.
        if offset not in fragments:
            link.work.credit()
            fragments[offset] = body
            self._wants.charge(link, want.entry.handle, piece, len(body))
            self._finish(link, want.entry.handle, piece, now)

    def _finish(self, link: Link, handle: int, piece: int, now: int) -> None:
        """Store a piece once all of its fragments and the hash list are here."""
        want = link.inbox.wants.get(handle)
        descriptor = want.descriptor if want is not None else None
        if want is None or descriptor is None or not self._has_hashes(want, descriptor):
            return
        if len(want.fragments.get(piece, ())) == descriptor.fragments_in(piece):
            found = self._wants.free(link, handle, piece) or {}
            self._store(link, want, piece, b"".join([found[offset] for offset in sorted(found)]), now)

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
        if descriptor.codec is not PayloadCodec.BLANK:
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
    def _has_hashes(want: Want, descriptor: Descriptor) -> bool:
        """Return True if nothing but its fragments is missing to verify a piece."""
        return bool(want.hashes) or not descriptor.signed or descriptor.pieces == 1

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
