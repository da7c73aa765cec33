"""The messages of one host: the cache, the index of profiles over it, hash lists and handles.

A copy that arrives is matched against every profile, and takes part in comparisons with neighbours once its id is
known. A copy that leaves is noted here, journalled and reported by `gossip.transfers.arrivals_and_removals`; its slot
is reused only after every owner of a bitset has forgotten it. The state of a copy that the store has to know is here as
well: that it was delivered, and that this was confirmed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from carrypost.gossip.holdings.cache import ISLAND, QUEUES, RECIPIENTS, Cache
from carrypost.gossip.holdings.copies import CLAIMED, DELIVERED
from carrypost.gossip.holdings.memories import Purged
from carrypost.gossip.holdings.recipients import Recipients
from carrypost.gossip.interest.index import ProfileIndex
from carrypost.gossip.slots import bits
from carrypost.gossip.timers import HostTime
from carrypost.gossip.wire.frames import OfferEntry
from carrypost.log import journal as keys
from carrypost.log.events import Reason
from carrypost.log.journal import MESSAGE, Durability, StoredMessage
from carrypost.model.descriptor import PayloadCodec
from carrypost.model.descriptor_values import bounded

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from random import Random

    from carrypost.config import Settings
    from carrypost.gossip.holdings.copies import Copy, Newcomer
    from carrypost.gossip.holdings.eviction import Ranking
    from carrypost.gossip.outputs import Journal
    from carrypost.log.journal import Key, Value
    from carrypost.model.descriptor import Descriptor
    from carrypost.model.descriptor_values import Privilege
    from carrypost.model.headers import Headers
    from carrypost.model.ids import MessageId, NodeId

_HANDLE_BASE_MAX: Final = 2**24
_REMINDERS_MAX: Final = 64
"""Number of reminders that are processed in one step."""
_BLANK: Final = PayloadCodec.BLANK
_FORGOTTEN: Final = (Reason.PAYLOAD_GONE, Reason.INCOMPLETE)
_NORMAL: Final = Durability.NORMAL


class Holdings(HostTime):
    """The copies of one host, and the state that belongs to them."""

    __slots__ = (
        "_handle", "_handled", "_hashes", "_journal", "_needed", "_seen",
        "_withholders", "acknowledged", "by_handle", "cache", "carried", "claims", "follows", "index",
        "kept_events", "lingering", "privilege", "purged", "recipients", "reminders", "struck", "watched", "withheld",
    )  # fmt: skip

    def __init__(
        self,
        settings: Settings,
        journal: Journal,
        privilege: Privilege,
        rng: Random,
        node: NodeId,
        *,
        ranking: Ranking,
    ) -> None:
        super().__init__()
        self._journal = journal
        self.privilege = bounded(privilege)
        """The privilege of a message, by the papers' rule or the application's own."""
        self.cache = Cache(settings, ranking)
        self.index = ProfileIndex(settings.limits)
        self.purged = Purged()
        """Messages that are not admitted any more, because they reached their addressees."""
        self.recipients = Recipients(node, journal, self.purged, self.cache.get)
        """The remaining recipients of messages that list recipients."""
        self._needed: set[MessageId] = set()
        """Messages of which a layer needs a copy that is not here."""
        self.withheld = 0
        """Slots of messages that must not be offered yet."""
        self._withholders: dict[int, int] = {}
        """The owners that withhold each slot."""
        self.watched = 0
        """Slots of own messages for which a program waits until a neighbour has them."""
        self.carried: list[Copy] = []
        """Watched messages that a neighbour has, until `pop_carried`."""
        self.claims = False
        """True if messaging ever had a claim in this incarnation or, unconfirmed, before a restart."""
        self.follows = False
        """True if messaging tracks the recipients of this host's messages. Set by messaging."""
        self.struck: list[tuple[MessageId, NodeId]] = []
        """Recipients that have a persistent message of this host, until messaging reads them."""
        self.kept_events: list[Copy] = []
        """Events of this host that need not be sent any more, until the island reads them."""
        self.lingering: list[Copy] = []
        """Copies without any recipient left that a program on this host has still to get."""
        self.acknowledged: dict[MessageId, tuple[int, str]] = {}
        """Messages to acknowledge, and the time until which that counts, until they are read."""
        self.reminders: dict[MessageId, str] = {}
        """Finished messages that were offered again, with their offerers: the acknowledgement may be lost."""
        self._seen: dict[int, Copy] = {}
        """Confirmed messages by slot: their ids are stored until the deadline. All were delivered or claimed."""
        # Handles start anywhere, so that those of an earlier incarnation are not mistaken for new ones.
        self._handle = rng.randrange(_HANDLE_BASE_MAX)
        self._handled: dict[int, Copy] = {}
        self.by_handle: Callable[[int], Copy | None] = self._handled.get
        """Return the copy that neighbours know by a handle."""
        self._hashes: dict[int, bytes] = {}
        """Hash lists of messages of several pieces, by slot."""

    def close(self) -> None:
        """Break reference cycles when the host is gone."""
        self.index.close()
        self.cache.copies.clear()

    # --- in ------------------------------------------------------------------------------------------------

    def admit(
        self,
        descriptor: Descriptor,
        *,
        nbytes: int,
        held: int,
        interesting: bool,
        own: bool = False,
        giver: NodeId | None = None,
        hops: int = 0,
        age_ms: int = 0,
        withheld_by: int = 0,
        now: int,
    ) -> Copy | Reason:
        """Admit a message with the pieces that are `held`, and `nbytes` for them; else the reason (`Cache.admit`).

        `withheld_by`: the owner without whose permission it is not offered (`permit`).
        """
        copy = self.cache.admit(
            descriptor, nbytes=nbytes, privilege=self.privilege(descriptor), interesting=interesting, own=own,
            giver=giver, hops=hops, age_ms=age_ms, held=held, now=now,
        )  # fmt: skip
        if isinstance(copy, Reason):
            return copy
        self.index.add(copy)
        if withheld_by:
            self.withhold(copy, withheld_by)
        elif copy.whole and not descriptor.service.momentary:
            self.index.mark_known(copy)
        else:
            self.index.mark_unknown(copy)  # It may have been declined before; now the rest of it is wanted.
        headers = descriptor.headers
        if headers is not None:
            self._enter_headers(copy, headers)
        return copy

    def admit_small(self, newcomers: list[Newcomer], giver: NodeId, now: int, *, interesting: bool) -> list[Copy]:
        """Admit whole messages of one piece, not known here, if there is room (`Cache.admit_small`)."""
        copies = self.cache.admit_small(newcomers, giver, now, interesting=interesting)
        self.index.add_all([copy for copy in copies if not self.recipients.is_direct(copy.descriptor)])
        for copy in copies:
            headers = copy.descriptor.headers
            if headers is not None:
                self._enter_headers(copy, headers)
        return copies

    def _enter_headers(self, copy: Copy, headers: Headers) -> None:
        """Index a new copy that lists its recipients, or is for one node or connected hosts alone."""
        if headers.recipients:
            self.index.mark_listed(copy)
            self.recipients.enter(copy.descriptor, self.date_us)
        if headers.recipients or copy.descriptor.service.direct:
            self._keep_to_itself(copy)
        if headers.connected:
            self.withhold(copy, ISLAND)

    def _keep_to_itself(self, copy: Copy) -> None:
        """Withhold a copy from all if this host is the only recipient left."""
        if self.recipients.is_for_this_host_alone(copy.descriptor):
            self.withhold(copy, RECIPIENTS)

    def strike(self, copy: Copy, node: NodeId) -> bool:
        """Strike a recipient off a message; return True if none is left, and this host need not keep the message."""
        over = self.recipients.strike(copy.descriptor, node, self.date_us)
        if not over and copy.here:
            self._keep_to_itself(copy)
        if over and copy.here and copy.own and copy.descriptor.home is not None:
            self.keep_event(copy)
            return False
        return over

    def note_struck(self, copy: Copy, node: NodeId) -> None:
        """Inform messaging, if it asked for it, that a recipient has an own message."""
        if self.follows:
            self.struck.append((copy.id, node))

    def pop_struck(self) -> list[tuple[MessageId, NodeId]]:
        """Return messages with the recipients that were struck off, once; for messaging."""
        struck, self.struck = self.struck, []
        return struck

    def linger(self, copy: Copy) -> None:
        """Keep a copy without recipients for programs on this host that have a claim to it; withhold it from all."""
        if copy not in self.lingering:
            self.withhold(copy, RECIPIENTS)
            self.cache.mark_done((copy,))
            self.lingering.append(copy)

    def keep_event(self, copy: Copy) -> None:
        """Keep an event of this host that is with its home, or has none, for nodes that ask for it (`overlay`)."""
        self.withhold(copy, RECIPIENTS)
        self.kept_events.append(copy)

    def is_kept_event(self, copy: Copy) -> bool:
        """Return True if an event of this host need not be sent any more."""
        return self.is_withheld(copy, by=RECIPIENTS)

    def pop_lingering(self) -> list[Copy]:
        """Return the lingering copies that no program on this host needs any more."""
        lingering = [copy for copy in self.lingering if copy.here and not copy.pins]
        self.lingering = [copy for copy in self.lingering if copy.here and copy.pins]
        return lingering

    def grow(self, copy: Copy, piece: int, nbytes: int) -> bool:
        """Add a verified piece to a copy; return False, and change nothing, if there is no room or the copy left."""
        grown = self.cache.grow(copy, piece, nbytes)
        if grown and copy.whole:
            self.index.mark_known(copy)
        return grown

    def remember(self, descriptor: Descriptor, *, delivered: bool = False) -> Copy:
        """Remember a message without a copy, so that it does not come again; `delivered`: before a restart."""
        memory = self.cache.remember(descriptor, given=DELIVERED if delivered else 0)
        self.note_memory(memory)
        return memory

    def note_memory(self, memory: Copy) -> None:
        """Count a message that is not here among the known ones."""
        self.index.add(memory)
        self._note_gone(memory)

    def _note_gone(self, memory: Copy) -> None:
        if not self.recipients.is_direct(memory.descriptor):
            self.index.mark_known(memory)
        if memory.finished and not memory.here:
            memory.condense()

    def need(self, message: MessageId, *, needed: bool) -> None:
        """Note that a layer needs a copy of this message, or does not any more."""
        if needed:
            self._needed.add(message)
        else:
            self._needed.discard(message)

    def is_needed(self, message: MessageId) -> bool:
        """Return True if a message may come in even if this host published it and no longer has it."""
        return message in self._needed

    def withhold(self, copy: Copy, owner: int) -> None:
        """Keep a copy from being offered until this owner, too, permits it (`holdings.cache`)."""
        self.withheld |= 1 << copy.slot
        self._withholders[copy.slot] = self._withholders.get(copy.slot, 0) | owner

    def permit(self, copy: Copy, owner: int) -> None:
        """Remove this owner's objection to offering a copy."""
        owners = self._withholders.pop(copy.slot, 0) & ~owner
        if owners:
            self._withholders[copy.slot] = owners
            return
        self.withheld &= ~(1 << copy.slot)
        self.index.mark_known(copy)

    def is_withheld(self, copy: Copy, *, by: int = -1, but_by: int = 0) -> bool:
        """Return True if one of these owners (by default any) withholds a copy."""
        return bool(self._withholders.get(copy.slot, 0) & by & ~but_by)

    def watch(self, copy: Copy) -> None:
        """Report once when the first neighbour has this own message whole (`pop_carried`)."""
        self.watched |= 1 << copy.slot

    def unwatch(self, copy: Copy) -> None:
        """Stop reporting, also if a neighbour has it already and that was not read yet."""
        self.watched &= ~(1 << copy.slot)
        if self.carried:
            self.carried = [each for each in self.carried if each is not copy]

    def mark_carried(self, mask: int) -> None:
        """Note that a neighbour has these slots: it acknowledged all of their frames, or offers them whole.

        After acknowledging, the neighbour may still have found no room; nothing reports that. A neighbour that merely
        knows of a message, by a review or by requesting nothing of an offer, does not count.
        """
        found = mask & self.watched
        self.watched &= ~found
        self.carried += self.at(found)

    def at(self, mask: int) -> list[Copy]:
        """Return the copies that have these slots."""
        return [copy for slot in bits(mask) if (copy := self.cache.copies[slot]) is not None]

    def pop_carried(self) -> list[Copy]:
        """Return the watched messages found to be at a neighbour since the last call."""
        carried, self.carried = self.carried, []
        return carried

    def here(self, message: MessageId) -> Copy | None:
        """Return the copy of a message in the cache; None if it is not here."""
        copy = self.cache.get(message)
        return copy if copy is not None and copy.here else None

    def known_copies(self) -> list[Copy]:
        """Return everything that has a slot: here, or remembered."""
        return [copy for copy in self.cache.copies if copy is not None]

    def invite(self) -> None:
        """Choose declined messages that would find room, and leave them out of the next comparison."""
        invited, ended = self.cache.memories.invite()
        for copy in invited:
            self.index.mark_unknown(copy)
        for copy in ended:
            self.index.mark_known(copy)

    # --- hash lists and handles ----------------------------------------------------------------------------

    def hashes(self, copy: Copy) -> bytes:
        """Return the hash list of a message of several pieces; empty if there is none."""
        return self._hashes.get(copy.slot, b"")

    def keep_hashes(self, copy: Copy, hashes: bytes) -> None:
        """Keep the hash list of a copy."""
        self._hashes[copy.slot] = hashes

    def handle_of(self, copy: Copy) -> int:
        """Return the number under which neighbours know this copy."""
        if copy.handle < 0:
            self._handle += 1
            copy.handle = self._handle
            self._handled[copy.handle] = copy
        return copy.handle

    def entry_of(self, copy: Copy) -> OfferEntry:
        """Return the entry of an offer for this copy, which must be whole."""
        if copy.entry is None:
            copy.entry = OfferEntry(copy.id, self.handle_of(copy), copy.descriptor.length, copy.privilege)
        return copy.entry

    # --- delivered and confirmed ---------------------------------------------------------------------------

    def is_delivered(self, copy: Copy) -> bool:
        """Return True if it was delivered to the application, in this incarnation or, unconfirmed, before a restart."""
        return bool(copy.given & DELIVERED)

    def is_claimed(self, copy: Copy) -> bool:
        """Return True if messaging has, or had, a claim to it."""
        return bool(copy.given & CLAIMED)

    def is_given(self, copy: Copy) -> bool:
        """Return True if it was delivered to the application, or messaging has or had a claim to it."""
        return bool(copy.given)

    def mark_delivered(self, copies: Iterable[Copy]) -> None:
        """Note that these were delivered to the application."""
        for copy in copies:
            copy.given |= DELIVERED

    def unmark_delivered(self, copy: Copy) -> None:
        """Undo the mark of a copy that was not delivered to any program."""
        copy.given = 0

    def mark_claimed(self, copy: Copy) -> None:
        """Note that subscriptions have claims to it."""
        copy.given |= CLAIMED
        self.claims = True

    def is_confirmed(self, copy: Copy) -> bool:
        """Return True if a program here confirmed it. Then only programs that were promised it before get it."""
        return copy.slot in self._seen

    def confirm(self, copies: Iterable[Copy]) -> None:
        """Journal that a program here has these, as far as they were given to one, and that is new."""
        seen = self._seen
        done: list[Copy] = []
        for copy in copies:
            if copy.slot not in seen and copy.given:
                seen[copy.slot] = copy
                done.append(copy)
                headers = copy.descriptor.headers
                if headers is not None and headers.recipients and self.recipients.lists_this_host(copy.descriptor):
                    self.acknowledge(copy.id, copy.descriptor.ends_us)
        self.cache.mark_done(done)
        self.keep_confirmations(done)

    def acknowledge(self, message: MessageId, until_us: int) -> None:
        """Acknowledge a message that lists this host to all neighbours, once all changes so far are durable.

        A confirmation must not be lost afterwards. The acknowledgement counts until then, or for a day
        (`gossip.acked`).
        """
        copy = self.cache.get(message)
        if copy is None or not copy.descriptor.service.momentary:
            self.acknowledged[message] = until_us, "" if copy is None else copy.giver or ""

    def remind(self, message: MessageId, peer: str) -> None:
        """Note that a finished message was offered."""
        if len(self.reminders) < _REMINDERS_MAX:
            self.reminders[message] = peer

    def pop_reminders(self) -> dict[MessageId, str]:
        """Return the finished messages that were offered."""
        taken, self.reminders = self.reminders, {}
        return taken

    def pop_acknowledged(self) -> dict[MessageId, tuple[int, str]]:
        """Return the messages to acknowledge, once: until when, and the address of the neighbour that brought each."""
        taken, self.acknowledged = self.acknowledged, {}
        return taken

    def unconfirm(self, copy: Copy) -> None:
        """Undo the confirmation of a delivery that no program has."""
        if self._seen.pop(copy.slot, None) is not None:
            self._journal.delete((keys.SEEN, copy.id, 0))

    def mark_confirmed(self, copy: Copy) -> None:
        """Restore a confirmation of an earlier incarnation."""
        copy.given |= DELIVERED
        self._seen[copy.slot] = copy
        self.cache.mark_done((copy,))

    # --- the store -----------------------------------------------------------------------------------------

    def keep(self, copies: Iterable[Copy], durability: Durability = Durability.NORMAL) -> None:
        """Journal the state of copies."""
        self._journal.put_all({
            (MESSAGE, copy.id, 0): StoredMessage(
                copy.descriptor, copy.held, copy.hops, copy.age_ms, copy.received_us, copy.giver, copy.own,
                copy.interesting, bool(copy.given & DELIVERED), bool(copy.given & CLAIMED), copy.predecessors_lost,
            )
            for copy in copies if not copy.descriptor.service.momentary
        }, durability)  # fmt: skip

    def keep_pieces(self, pieces: Iterable[tuple[Descriptor, bytes]], number: int = 0) -> None:
        """Journal pieces of this number, one for each payload, unless they are blank."""
        self._journal.put_all({
            (keys.PIECE, descriptor.id, number): body
            for descriptor, body in pieces if descriptor.codec is not _BLANK and not descriptor.service.momentary
        })  # fmt: skip

    def keep_pieces_of(self, copy: Copy, source: MessageId, durability: Durability) -> None:
        """Journal that a message has the same pieces as another, all of which are stored, without reading them."""
        for piece in range(copy.descriptor.pieces) if copy.descriptor.codec is not _BLANK else ():
            self._journal.put_piece_of((keys.PIECE, copy.id, piece), source, durability)

    def keep_confirmations(self, copies: Sequence[Copy]) -> None:
        """Journal that these are never delivered again."""
        seen: dict[Key, Value] = {}
        durability = _NORMAL
        for copy in copies:
            seen[keys.SEEN, copy.id, 0] = copy.descriptor
            if copy.descriptor.persistent:
                durability = Durability.FULL
        self._journal.put_all(seen, durability)

    def forget(self, descriptor: Descriptor, held: int) -> None:
        """Journal that the store may forget a copy."""
        if descriptor.service.momentary:
            return
        message = descriptor.id
        # A message from node to node that comes back after a crash is sent again, and refused.
        delete = self._journal.delete_later if descriptor.service.direct else self._journal.delete
        delete((MESSAGE, message, 0))
        if descriptor.codec is not _BLANK:
            for piece in bits(held):
                delete((keys.PIECE, message, piece))
        if descriptor.pieces > 1 and descriptor.signed:
            delete((keys.HASHES, message, 0))

    # --- out -----------------------------------------------------------------------------------------------

    def discard(self, copy: Copy, reason: Reason, *, done: bool = False, owner: int = QUEUES) -> None:
        """Remove a copy; the next sweep reports it. A copy without a payload is forgotten, so that it may come again.

        A copy that its `owner` has no room for (`PENDING`) may come again when that owner allows it (`Cache.reopen`).
        """
        forgotten = reason in _FORGOTTEN
        self.cache.remove(copy, Reason.EXPIRED if forgotten else reason, done=done, owner=owner)
        self.cache.note_removed(copy, reason)

    def clear(self, copies: Iterable[Copy], *, expired: bool) -> None:
        """Drop what belonged to copies that left, in the store and here; those still remembered count as known."""
        hashes, handled, known, seen = self._hashes, self._handled, self.cache.get, self._seen
        for copy in copies:
            self.forget(copy.descriptor, copy.held)
            if expired and seen.pop(copy.slot, None) is not None:
                self.cache.outlived.forget(copy, self.date_us, self._journal)
            if hashes:
                hashes.pop(copy.slot, None)
            if copy.handle >= 0:
                handled.pop(copy.handle, None)
                copy.handle, copy.entry = -1, None
            if known(copy.id) is copy:
                self._note_gone(copy)

    def pop_released(self) -> int:
        """Return the slots that may be reused from now on, after everything here forgot them."""
        released = self.cache.pop_released()
        if released:
            self.index.release(released)
            self.watched &= ~released
            if self.withheld & released:
                self.withheld &= ~released
                for slot in bits(released):
                    self._withholders.pop(slot, None)
            for slot in bits(released) if self._seen else ():
                if (copy := self._seen.pop(slot, None)) is not None:
                    self.cache.outlived.forget(copy, self.date_us, self._journal)
            self.cache.outlived.sweep(self.date_us, self._journal)
        return released
