"""Acknowledgements: a layer that spreads which recipients have which messages.

A recipient signs that it has a message once that is durable, and cannot be undone. Every host keeps such records for a
day at most, passes them on, and strikes their authors off the messages that list them. A copy without any recipient
left is dropped. A record counts for a message only if its author is a recipient of it, so no host can purge others'
messages.

New records are broadcast together, at most every `acked_s`. Lists are compared when a contact begins
(`gossip.acked.known_acks`), so a host that missed a broadcast, or was elsewhere, gets all records that are still valid.
"""
# Why records and not a mark in each message. A message that has reached all its recipients is
# useless, yet carriers would keep it until its deadline. Only a recipient knows that it has the
# message, and carriers far away must believe it without having met it, so that it signs. The attack
# to fear is a purge: a host that could acknowledge for others could erase their messages from the
# network. A record therefore counts only for messages that list its author as a recipient.
#
# Why a record is made late. A recipient that acknowledged a message and then lost it in a crash
# would have lost it for good, as all carriers drop it. So a record is signed after the message is
# durable here and no commit can be undone.
#
# Why lists are bounded in time and number. Records travel to all hosts, and each costs a signature
# check. They are packed with many ids, sent at a pace that neighbours can check, and forgotten
# after a day at most; a host that missed a record only keeps its copy longer.

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from carrypost.errors import ForgeryError, LimitError, RemoteError
from carrypost.gossip.acked import known_acks
from carrypost.gossip.acked.known_acks import UNKNOWN, Comparison, KnownAcks
from carrypost.gossip.acked.pending import ROW, Pending
from carrypost.gossip.holdings.cache import ISLAND
from carrypost.gossip.layer import Layer
from carrypost.gossip.transfers import signed
from carrypost.gossip.transfers.accounts import RECORDS_PER_S
from carrypost.gossip.transfers.arrivals_and_removals import strike
from carrypost.gossip.wire.frames import ACKED_IDS_MAX, FINGERPRINT_BYTES, AckList, AckRecord
from carrypost.log.events import Acknowledged, Reason
from carrypost.log.journal import ACKED
from carrypost.model.descriptor_values import is_for
from carrypost.model.ids import MessageId
from carrypost.model.times import NEVER

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from carrypost.gossip.acked.known_acks import Contact
    from carrypost.gossip.holdings.copies import Copy
    from carrypost.gossip.layer import Handler, Rows
    from carrypost.gossip.transfers.link import HostContext, Link
    from carrypost.log.journal import Key, Value
    from carrypost.model.descriptor import Descriptor

LASTS_US: Final = 86_400_000_000
"""Longest life of a record. A host that did not hear of it keeps its copies until they expire."""
_RECORD: Final = b"R"
"""First bytes of the names of the rows of records; the fingerprint follows."""
_CLAIMED_US: Final = 60_000_000
"""Time within which subscriptions of an earlier incarnation are there again, and claim what they are owed."""
_PRIVATE_MAX: Final = 1_024
"""Number of acknowledgements of messages without carriers that are kept to be sent again."""
STRAIGHT_US: Final = 1_000_000
"""Shortest time between two records that go straight to the givers of messages, unless they are full. Records are
passed on to all, and lists of them overflow if there is one for each message."""
_PACE_US: Final = 1_000_000
"""Delay of the next records while there are more to send than a neighbour checks in a second."""
_BROADCAST: Final = 2
"""Answers that a broadcast of a neighbour's record counts as."""


class Acked(Layer):
    """The acknowledgements of one host, its own and others'."""

    kind = ACKED

    def __init__(self, context: HostContext) -> None:
        self._context, self._node, self._identity = context, context.node, context.identity
        self._holdings, self._cache = context.holdings, context.holdings.cache
        self._outputs, self._journal, self._links = context.outputs, context.outputs.journal, context.links
        settings = context.settings
        self._period_us = round(settings.acked_s * 1e6)
        self._until_us_max = LASTS_US + round(settings.skew_s_max * 1e6)
        """Longest life of a record that is believed: the clock of its author may be ahead of this host's."""
        self._pace = RECORDS_PER_S if context.identity.signed else settings.limits.acked_max
        """Number of records that are sent at once; without signatures there is nothing to check."""
        self.known = KnownAcks(settings.limits.acked_max, self._written_by)
        self._pending = Pending(context)
        self._comparison = Comparison(context, self.known)
        self._own: dict[int, tuple[MessageId, ...]] = {}
        """Records of this host that are in the list, and their messages."""
        self._own_of: dict[MessageId, int] = {}
        """The same by message."""
        self._private: dict[MessageId, AckRecord] = {}
        """Own acknowledgements that go only to the givers of the messages. The latest."""
        self._fresh: dict[int, set[str]] = {}
        """Records to broadcast, and the addresses of neighbours that have them."""
        self._broadcast_us = 0
        """Time before which nothing is broadcast."""
        self._send_us = NEVER
        """Time at which something is signed, broadcast or sent next."""
        self._straight = settings.island
        """True if acknowledgements go to the givers of the messages as soon as they may be signed."""
        self._straight_us, self._straight_after_us = NEVER, 0
        """Time of the next straight sends, and the time before which there are none."""
        self._restored: list[AckRecord] = []
        self._linger_us = 0
        """Time before which no lingering copy is dropped: claims to it may have been made in an earlier incarnation."""

    # --- a layer -------------------------------------------------------------------------------------------

    @property
    def handlers(self) -> Mapping[type, Handler]:
        """Handlers of records, and of lists of them."""
        return {AckRecord: self._receive_record, AckList: self._receive_list}

    def restore(self, rows: Iterable[tuple[Key, Value]]) -> None:
        """Restore the records, and the acknowledgements still to be made, after a restart."""
        for (_, name, _), value in rows:
            if not isinstance(value, bytes):
                continue
            if name.startswith(ROW):
                self._pending.restore(MessageId(name[len(ROW) :]), value)
            else:
                self._restored.append(known_acks.from_row(value))
        if self._pending.ready or self._restored:
            self._send_us = self.due_us = 0
            self._straight_us = 0 if self._straight else NEVER

    def rows(self) -> Rows:
        """Return the rows of acknowledgements to make, for the batch with the changes that they follow from."""
        rows = self._pending.rows()
        if rows or self._holdings.lingering:
            self._journal.when_durable(self._sign_soon)
        return rows

    def _sign_soon(self) -> None:
        """Sign what may be signed now, as soon as something may be broadcast."""
        if self._pending.ready:
            if self._straight:
                full = len(self._pending.ready) >= ACKED_IDS_MAX
                self._straight_us = max(0 if full else self._straight_after_us, self._holdings.now_us)
                self._look_ahead()
            else:
                self._hasten()
        if self._holdings.lingering and self._linger_us <= self._holdings.now_us:
            self.due_us = 0

    def met(self, link: Link, now: int) -> None:
        """Sign what may be signed, and compare lists with the neighbour."""
        self._sign(now)
        self._expire_records(now)
        self._comparison.met(link, now)
        self._look_ahead()

    def parted(self, link: Link, now: int) -> None:  # noqa: ARG002 - as layers have it
        """Drop what was to be sent to this neighbour."""
        self._comparison.parted(link)
        self._look_ahead()

    def expire(self, now: int) -> None:
        """Do what is due: write, sign, broadcast, send, compare, forget."""
        if self._restored:
            self._count_restored(now)
        if self._holdings.lingering and self._linger_us <= now:
            self._cache.throw_out(self._holdings.pop_lingering(), Reason.PURGED)
        if self._straight_us <= now:
            self._answer(now)
        if self._send_us <= now:
            self._send(now)
        self._comparison.repeat(now)
        self._expire_records(now)
        self._look_ahead()

    def _look_ahead(self) -> None:
        ends_us = self._holdings.own_time(self.known.ends_us)
        self.due_us = min(self._send_us, self._straight_us, self._comparison.due_us, ends_us)

    def _hasten(self) -> None:
        """Sign and broadcast new acknowledgements as soon as possible."""
        self._send_us = min(self._send_us, max(self._broadcast_us, self._holdings.now_us))
        self._look_ahead()

    # --- what this host says -------------------------------------------------------------------------------

    def _answer(self, now: int) -> None:
        """Sign what may be signed, because the givers of the messages wait for it.

        Full records are signed as they come: thousands of messages at a time would keep this host from everything else.
        """
        # A record for each message would fill the lists of all hosts (`STRAIGHT_US`); full records
        # may go at any time.
        if self._straight_after_us <= now:
            self._straight_us, self._straight_after_us = NEVER, now + STRAIGHT_US
            self._sign(now)
        else:
            self._straight_us = self._straight_after_us
            self._sign(now, len(self._pending.ready) // ACKED_IDS_MAX * ACKED_IDS_MAX)
        if self._fresh:
            self._hasten()

    def _send_to(self, peer: str, record: AckRecord) -> bool:
        link = self._links.get(peer)
        if link is None or not link.usable:
            return False
        link.send((record,))
        return True

    def repeat(self, messages: Mapping[MessageId, str], now: int) -> None:
        """Send acknowledgements of this host once more, to addresses that have not heard of them: each once."""
        found: dict[tuple[str, AckRecord], None] = {}
        for message, peer in messages.items():
            fingerprint, private = self._own_of.get(message), self._private.get(message)
            if fingerprint is not None and (record := self.known.get(fingerprint)) is not None:
                found[peer, record] = None
            if private is not None and private.until_us > self._holdings.date_of(now):
                found[peer, private] = None
        for peer, record in found:
            link = self._links.get(peer)
            # A neighbour that asks again and again would have this host repeat all day.
            if link is not None and link.usable and link.answers.try_spend(1, now):
                link.send((record,))

    def _sign(self, now: int, most: int | None = None) -> None:
        """Make records of what this host has to acknowledge, at most `most`, as far as that is durable and still valid.

        In an island each of them goes straight to the givers of its messages.
        """
        if not self._pending.ready:
            return
        givers, date_us = self._pending.givers(), self._holdings.date_of(now)
        sound = self._sign_private(self._pending.pop_sound(date_us, most), givers, date_us)
        for page in known_acks.pages(sound, self._context.settings.datagram_bytes):
            until_us = min(max(sound[message] for message in page), date_us + LASTS_US)
            record = known_acks.signed_record(self._identity, until_us, page)
            fingerprint = signed.fingerprint(record)
            if fingerprint in self.known:
                continue
            peers = sorted({givers[message] for message in page if message in givers}) if self._straight else ()
            self._keep(fingerprint, record, {peer for peer in peers if self._send_to(peer, record)})

    def _sign_private(
        self, sound: dict[MessageId, int], givers: Mapping[MessageId, str], date_us: int
    ) -> dict[MessageId, int]:
        """Acknowledge messages that only their author need hear of to their givers; return all others."""
        found: dict[str, dict[MessageId, int]] = {}
        for message, until_us in sound.items():
            copy, giver = self._cache.get(message), givers.get(message, "")
            if copy is not None and self._is_for_author(copy.descriptor, giver):
                found.setdefault(giver, {})[message] = until_us
        for peer, theirs in found.items():
            for page in known_acks.pages(theirs, self._context.settings.datagram_bytes):
                until_us = min(max(theirs[message] for message in page), date_us + LASTS_US)
                record = known_acks.signed_record(self._identity, until_us, page)
                self._private.update(dict.fromkeys(page, record))
                self._send_to(peer, record)
        while len(self._private) > _PRIVATE_MAX:
            del self._private[next(iter(self._private))]
        private = {message for theirs in found.values() for message in theirs}
        return {message: until_us for message, until_us in sound.items() if message not in private}

    def _is_for_author(self, descriptor: Descriptor, giver: str) -> bool:
        """Return True if only the author of a message for this host alone need hear that it arrived.

        Private messages have no carriers, so no other host has a copy to drop. Direct messages mostly come from their
        author, which knows whether it gave them to any other host, and then informs all.
        """
        if descriptor.service.private:
            return True
        link = self._links.get(giver)
        return descriptor.service.direct and link is not None and link.node == descriptor.node

    def _send(self, now: int) -> None:
        """Broadcast new records, if that is due, and send neighbours what they lack; no more than they can check."""
        self._send_us = NEVER
        sent = 0
        if self._broadcast_us <= now:
            if not self._straight:
                self._sign(now)
            sent = self._broadcast()
            if sent:
                self._broadcast_us = now + (_PACE_US if self._fresh else self._period_us)
        for contact in self._comparison.contacts.values():
            self._send_owed(contact, max(0, self._pace - sent))
        if self._broadcast_us > now and (self._fresh or (self._pending.ready and not self._straight)):
            self._send_us = self._broadcast_us
        if any(contact.owed for contact in self._comparison.contacts.values()):
            self._send_us = min(self._send_us, now + _PACE_US)

    def _broadcast(self) -> int:
        """Broadcast records that some neighbour may lack; return their number. Without neighbours, none is sent."""
        peers = {link.peer for link in self._links.usable if not link.route}
        leaving: list[AckRecord] = []
        for fingerprint, having in list(self._fresh.items()):
            if len(leaving) == self._pace:
                break
            del self._fresh[fingerprint]
            record = self.known.get(fingerprint)
            if record is not None and not peers <= having:
                leaving.append(record)
        if leaving:
            self._outputs.broadcast(leaving)
        return len(leaving)

    def _send_owed(self, contact: Contact, most: int) -> None:
        owed = list(contact.owed)[:most]
        for fingerprint in owed:
            del contact.owed[fingerprint]
        if found := [record for each in owed if (record := self.known.get(each)) is not None]:
            contact.link.send(found)

    # --- what others say -----------------------------------------------------------------------------------

    def _receive_list(self, link: Link, frame: AckList, now: int) -> None:
        """Handle one step of a comparison."""
        self._expire_records(now)
        self._comparison.receive(link, frame, now)
        if self._comparison.contacts[link.peer].owed:
            self._send_us = min(self._send_us, now)
        self._look_ahead()

    def _receive_record(self, link: Link, record: AckRecord, now: int) -> bool:
        """Handle a record; raises `RemoteError`. Cheap checks come first, the signature last."""
        link.work.did(len(record.messages))
        fingerprint = signed.fingerprint(record)
        # Cheapest check first. The same record arrives from several neighbours.
        if fingerprint in self.known:
            if fingerprint in self._fresh:
                self._fresh[fingerprint] |= self._reached_by(link)
            return False
        node = signed.author_of(record, signed=self._identity.signed)
        if node == self._node:
            return False  # Its own incarnation says what this host has.
        date_us = self._holdings.date_of(now)
        if record.until_us <= date_us:
            raise LimitError("expired")
        if record.until_us > date_us + self._until_us_max:
            raise LimitError("deadline")
        concerns = self._written_by(record) != UNKNOWN
        # A stranger acknowledges messages that are here and not addressed to it: a purge that must
        # not be passed on.
        if not concerns and all(self._cache.get(message) is not None for message in record.messages):
            raise RemoteError("purge-authority")
        if self._identity.signed:
            signed.check(record, link)
        if self._is_private(record):
            self._count(fingerprint, record)
        else:
            # The carriers of a message may be behind hosts that never knew it, so a record travels on
            # from such a host, too. But anybody can sign records of messages that do not exist: beyond
            # a rate they are not broadcast, and reach others when lists are compared.
            spread = concerns or not self._period_us or link.answers.try_spend(_BROADCAST, now)
            self._keep(fingerprint, record, self._reached_by(link) if spread else None)
            self._hasten()
        # Of records about unknown messages, only those beyond the pace of an honest host are wasted:
        # a neighbour must not be muted because a stranger has it pass on what it made up.
        if concerns or link.records.try_spend(1, now):
            link.work.credit()
        return True

    def _is_private(self, record: AckRecord) -> bool:
        """Return True if a record is about messages of this host alone that no host but its author has.

        Some of the messages that it lists may have expired here while it was on its way.
        """
        copies = [copy for message in record.messages if (copy := self._cache.get(message)) is not None]
        return bool(copies) and all(copy.own and self._is_kept_back(copy) for copy in copies)

    def _is_kept_back(self, copy: Copy) -> bool:
        """Return True if a message of this host was given only to its one recipient, or is gone."""
        if copy.descriptor.service.private:
            return True
        withheld = not copy.here or self._holdings.is_withheld(copy, by=ISLAND)
        return withheld and copy.descriptor.service.direct

    def _reached_by(self, link: Link) -> set[str]:
        """Return the addresses of a neighbour and of those that it hears: its broadcasts reached them, too."""
        return {link.peer, *(each.peer for each in self._links.usable if each.prefix in link.heard)}

    def _written_by(self, record: AckRecord) -> str:
        """Return the author of the first known message in a record that has the record's author as a recipient."""
        try:
            node = signed.author_of(record, signed=self._identity.signed)
        except ForgeryError:
            return UNKNOWN
        for message in record.messages:
            if (copy := self._cache.get(message)) is not None and is_for(copy.descriptor, node):
                return copy.descriptor.node
        return UNKNOWN

    # --- the list ------------------------------------------------------------------------------------------

    def _keep(self, fingerprint: int, record: AckRecord, having: set[str] | None) -> None:
        """Add a record to the list, unless others last longer, and apply it; `having`: addresses that have it.

        None: it is not broadcast. Neighbours may also miss a broadcast: lists are compared later.
        """
        self._forget(self.known.add(fingerprint, record))
        if fingerprint in self.known:
            self._journal.put(_row_key(fingerprint), known_acks.to_row(record))
            if having is not None:
                self._fresh[fingerprint] = having
            self._comparison.changed(self._holdings.now_us)
        self._count(fingerprint, record)

    def _count(self, fingerprint: int, record: AckRecord) -> None:
        """Strike a record's author off its messages, and report those that this host sent."""
        node = signed.author_of(record, signed=self._identity.signed)
        known = {message: copy for message in record.messages if (copy := self._cache.get(message)) is not None}
        messages: Sequence[MessageId] = record.messages
        if node == self._node:  # Of what is addressed to it by its destination, it drops copies itself.
            messages = [message for message, copy in known.items() if copy.descriptor.listed]
            if fingerprint in self.known:
                self._own[fingerprint] = record.messages
                self._own_of.update(dict.fromkeys(record.messages, fingerprint))
        left = self._holdings.recipients.left
        own = [
            copy for copy in known.values()
            if copy.own and copy.descriptor.persistent and copy.descriptor.listed and node in left(copy.descriptor)
        ]  # fmt: skip
        strike(self._context, messages, node, record.until_us)
        for copy in own:
            self._holdings.note_struck(copy, node)
            self._journal.hold(Acknowledged(copy.id, node, tuple(left(copy.descriptor)), copy.descriptor.label))

    def _count_restored(self, now: int) -> None:
        """Apply the records of an earlier incarnation, and forget those that ended."""
        self._linger_us = now + _CLAIMED_US
        restored, self._restored = self._restored, []
        for record in restored:
            fingerprint = signed.fingerprint(record)
            if record.until_us > self._holdings.date_of(now) and fingerprint not in self.known:
                self._forget(self.known.add(fingerprint, record))
                self._count(fingerprint, record)
            else:
                self._forget((fingerprint,))

    def _expire_records(self, now: int) -> None:
        self._forget(self.known.expire(self._holdings.date_of(now)))

    def _forget(self, fingerprints: Iterable[int]) -> None:
        for each in fingerprints:
            self._fresh.pop(each, None)
            for message in self._own.pop(each, ()):
                if self._own_of.get(message) == each:
                    del self._own_of[message]
            self._journal.delete(_row_key(each))


def _row_key(fingerprint: int) -> Key:
    return ACKED, _RECORD + fingerprint.to_bytes(FINGERPRINT_BYTES, "big"), 0
