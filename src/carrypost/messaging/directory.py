"""The directory: names and sealing keys, which nodes exchange by advertisements (JOMS-15 §2.3, EMMA §3.1.1).

This node advertises what it binds and may speak for: any topic, and queues of its own. An advertisement is an ordinary
message to ``directory/NODE/NAME`` without a payload; the destination of the name is in `Headers.control`. Each node
wants all of them and carries them on. They expire, and are published anew before that, at times that differ from name
to name.

An advertisement of another node is an entry of this device until the advertisement's deadline. Only its own node speaks
for a name, by the author of the message, and only for queues that are its own; anything else is refused and not passed
on. The newest of a name counts; so replays change nothing. Sending to a destination, or receiving from it, prolongs its
names on this device alone; with the setting "lease", only the next advertisement does. Of one name this node keeps one
copy: superseded ones leave the cache.

The one invariant: every entry has a row, written in the batch of the message that it comes from.

Sealing keys (`SealingKeys`) are in the directory, too: this node advertises its own, and learns those of others. The
entry ``directory/NODE/$key`` is an ordinary, signed message without a payload; `Headers.control` has the key. It is
published once a week, with a new key, and more often only where messages live shorter than that. Of each node the
latest entry is kept and carried on. Programs never see these entries among names.
"""

# A directory in a network that is never connected as a whole cannot be a server. Every node has its
# own, filled by what it hears, and two nodes may disagree. The attacks to expect: a stranger that
# claims the name of another's queue, one that advertises names until nothing else fits, and one
# that replays an old advertisement after its owner rebound the name. The author of the message,
# signed where nodes sign, answers the first, shares per owner and of the cache the second, and
# serial numbers the third.

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING, Annotated, TypeVar

import msgspec

from carrypost.application.keyring import KEY_US
from carrypost.application.ledger import Table
from carrypost.errors import (
    InvalidDestinationException,
    InvalidNameException,
    JMSSecurityException,
    ResourceAllocationException,
)
from carrypost.gossip.draft import Draft
from carrypost.gossip.layer import Part, Stored
from carrypost.log.events import Advertised, Reason
from carrypost.messaging.control import RECEIVERS_MAX, Counts
from carrypost.messaging.namespace import Bind, Entry, Namespace, fault_of
from carrypost.model import address
from carrypost.model.address import Kind
from carrypost.model.descriptor import Ordering
from carrypost.model.headers import CONTROL_BYTES_MAX, DESTINATION_MAX, Headers
from carrypost.model.ids import MessageId, NodeId
from carrypost.model.pattern import entry, plain_forms
from carrypost.model.times import MICROSECONDS, NEVER
from carrypost.security.hpke import KEY_BYTES
from carrypost.security.sealing import SealingKey

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from carrypost.gossip.holdings.copies import Copy
    from carrypost.messaging.context import MessagingContext
    from carrypost.messaging.queues.queues import Queues
    from carrypost.messaging.subscriptions import Topics
    from carrypost.model.descriptor import Descriptor


A = TypeVar("A")
NAMES_MAX = 4_096
"""Number of names of others: some thousand devices with a few each. A row and its entry take 1 KiB, with the copy 2."""
CACHE_SHARE = 4
"""And never more than one in this many of the messages that the cache has room for: advertisements are wanted, and
would push out everything that is only carried."""
OWNER_MAX = 256
"""Number of names of one node, this one included: at least sixteen keys are needed to fill another's directory."""
RENEWED_AT_ONCE = 16
"""Number of advertisements that are published in one step; the next ones follow a second later, so that a node that was
off for long does not publish all of its names at once."""
_PACE_US = 1_000_000
_RETRY_US = 10_000_000
"""Delay before an advertisement that found no room, in the cache or on the disk, is published again."""
_WRITE_PART = 30
"""Part of a name's time after which its use is written again."""
PREFIX = f"{Kind.DIRECTORY}/"
_Node = Annotated[NodeId, msgspec.Meta(min_length=1, max_length=DESTINATION_MAX)]


class Advert(msgspec.Struct, frozen=True, array_like=True):
    """The contents of an advertisement; fields may be appended with a default."""

    destination: str
    ordering: Ordering = Ordering.NONE
    """Ordering that the topic is opened with."""
    receivers: Annotated[tuple[_Node, ...], msgspec.Meta(max_length=RECEIVERS_MAX)] | None = None
    """Of a queue, the nodes that may receive from it; None: any."""
    counts: Counts = ()
    """Of a queue, the nodes that consumed most from it, and how many messages. Not encoded where there are none."""


_encode = msgspec.msgpack.Encoder().encode
_decode_advert = msgspec.msgpack.Decoder(Advert).decode


def encode_advert(advert: Advert) -> bytes:
    """Return the encoded advertisement, with as many counts as fit."""
    fields = msgspec.structs.astuple(advert)
    for told in range(len(advert.counts), 0, -1):
        encoded = _encode((*fields[:-1], advert.counts[:told]))
        if len(encoded) <= CONTROL_BYTES_MAX:
            return encoded
    return _encode(fields[:-1])


class _Advertised(Part):
    """Entries of nodes whose latest messages stay in the cache; overtaken ones leave at the end of their step."""

    def __init__(self, context: MessagingContext) -> None:
        self._here, self._holdings, self._outputs = context.node, context.holdings, context.outputs
        self._overtaken: list[MessageId] = []

    def _discard_later(self, message: MessageId) -> None:
        self._overtaken.append(message)
        self.due_us = 0

    def _discard_overtaken(self) -> None:
        overtaken, self._overtaken = self._overtaken, []
        for message in overtaken:
            if (copy := self._holdings.here(message)) is not None:
                self._holdings.discard(copy, Reason.PURGED, done=True)

    def _refuse(self, copy: Copy) -> None:
        """Refuse a message that is malformed, or that its author may not send."""
        self._outputs.refuse("directory", copy.giver or "", copy.descriptor.shown)
        self._discard_later(copy.id)


class Directory(_Advertised):
    """The names of one node."""

    def __init__(self, context: MessagingContext, topics: Topics, queues: Queues) -> None:
        super().__init__(context)
        settings, self._topics, self._queues = context.settings, topics, queues
        self._limits, self._deliveries = context.limits, context.deliveries
        self._table = Table(context.ledger, b"D", Entry)
        self.names: Namespace = Namespace(context.node)
        asked = settings.messaging
        self._leased = asked.directory == "lease"
        """True if use prolongs nothing: a name of another node is known until its newest advertisement ends."""
        life_s = asked.directory_lease_s if self._leased else asked.advert_s
        if settings.lifetime_s_max is not None:
            life_s = min(life_s, settings.lifetime_s_max)
        self._life_us = round(life_s * MICROSECONDS)
        self._names_max = min(NAMES_MAX, max(1, settings.cache_messages_max // CACHE_SHARE))
        self._idle: dict[Entry, None] = {}
        """Names of others that this device never used, in the order of arrival: they are dropped first."""
        self._used: dict[Entry, None] = {}
        """Names that this device used, least recently used first."""
        self._renewals: dict[str, int] = {}
        """Times at which own names are advertised next."""
        self._paced_us = 0
        """Time before which no advertisement is published."""
        self._next_us = self._lapse_us = NEVER
        """Times at which an advertisement is due, and at which a name of others may have to be dropped."""

    # --- the life of the node ------------------------------------------------------------------------------

    def restore(self, stored: Stored, now: int) -> None:
        """Restore the names after a restart; want advertisements, and process those that are here, too.

        What was due meanwhile is done at the pace of all advertisements.
        """
        for _, found in self._table.read(stored):
            self._add(found)
            if found.owner == self._here and found.advertised:
                self._renewals[found.name] = self._renewal(found) if found.message else now
        self._idle = dict.fromkeys(sorted(self._idle, key=lambda each: each.deadline_us))
        self._used = dict.fromkeys(sorted(self._used, key=lambda each: each.used_us))
        self._make_room(0)
        self._discard_overtaken()
        self._deliveries.want(entry(f"{PREFIX}.*"))
        self._plan()

    def expire(self, now: int) -> None:
        """Drop names whose time is over, unless a program consumes from their destination and that counts as use."""
        if self._lapse_us <= now:
            for each in [each for each in (*self._idle, *self._used) if each.deadline_us <= now]:
                consumed = self._topics.consumers_of(each.destination) or self._queues.receiver.asks(each.destination)
                if consumed and not (self._leased or each.hidden):
                    self._use(each, now)
                else:
                    self._drop(each)
            self._lapse_us = min([each.deadline_us for each in (*self._idle, *self._used)], default=NEVER)
            self._look_ahead()

    # --- advertising ---------------------------------------------------------------------------------------

    def drafts(self, now: int) -> list[Draft]:
        """Return the advertisements that are due; superseded ones leave."""
        if self._overtaken:
            self._discard_overtaken()
            self._look_ahead()
        if self._next_us > now:
            return []
        due = sorted((at, name) for name, at in self._renewals.items() if at <= now)[:RENEWED_AT_ONCE]
        for _, name in due:  # `receive` of what is published says when it is due again; what is not, is tried again.
            # Publishing may fail for want of room. Then the name is due again soon, and not only
            # after half a life.
            self._renewals[name] = now + min(_RETRY_US, self._life_us)
        if len(due) == RENEWED_AT_ONCE:
            self._paced_us = now + _PACE_US
        self._plan()
        own = [self.names.bound[name] for _, name in due]
        return [self._draft(each, self._queues.counts(each.destination)) for each in own]

    def _plan(self) -> None:
        """Determine when the next advertisement is due."""
        self._next_us = max(min(self._renewals.values()), self._paced_us) if self._renewals else NEVER
        self._look_ahead()

    def _look_ahead(self) -> None:
        self.due_us = 0 if self._overtaken else min(self._next_us, self._lapse_us)

    def _draft(self, own: Entry, counts: tuple[tuple[NodeId, int], ...]) -> Draft:
        headers = Headers(control=encode_advert(_advert(own, counts)))
        destination = address.directory(self._here, own.name)
        # A crash may take a binding back: it is advertised only when it is on disk.
        return Draft(destination, b"", lifetime_us=self._life_us, headers=headers, withheld=True)

    def _renewal(self, own: Entry) -> int:
        """Return the time at which a name is advertised anew: after a third to a half of its advertisement's life.

        The exact part depends on the name, so that names bound together drift apart. Half of the life is left for nodes
        that come by later.
        """
        part = zlib.crc32(f"{self._here}/{own.name}".encode()) / 2**32
        return own.deadline_us - round(self._life_us * (3 + part) / 6)

    # --- what comes ----------------------------------------------------------------------------------------

    def receive(self, copy: Copy) -> None:
        """Process an advertisement."""
        descriptor = copy.descriptor
        found = address.address(descriptor.destination)
        advert = _advert_of(descriptor) if found is not None and found.node == descriptor.node else None
        if found is None or advert is None or fault_of(found.name) is not None:
            self._refuse(copy)
            return
        known = self.names.entry(descriptor.node, found.name)
        # The advertisement that is known already, again: after a restart, or from another
        # neighbour.
        if known is not None and known.message == copy.id:
            return
        if copy.own:
            self._note_own(copy, known, advert)
        elif known is not None and _serial(descriptor) <= (known.incarnation, known.sequence):
            self._discard_later(copy.id)
        else:
            self._enter(copy, found.name, advert, known)

    def _note_own(self, copy: Copy, known: Entry | None, advert: Advert) -> None:
        """Record an advertisement of this node, just published or from before a restart."""
        descriptor = copy.descriptor
        stands = known is not None and known.advertised and advert == _advert(known, advert.counts)
        if known is None or not stands or _serial(descriptor) < (known.incarnation, known.sequence):
            self._discard_later(copy.id)
            return
        self._overtake(known)
        _note(known, descriptor)
        known.deadline_us, known.counts = self._holdings.own_time(descriptor.deadline_us), advert.counts
        self._renewals[known.name] = self._renewal(known)
        self._write(known)
        self._plan()

    def _enter(self, copy: Copy, name: str, advert: Advert, known: Entry | None) -> None:
        """Enter another node's advertisement that is newer than the known one of that name."""
        descriptor = copy.descriptor
        entry = Entry(
            descriptor.node, name, advert.destination, advert.ordering,
            deadline_us=self._holdings.own_time(descriptor.deadline_us), receivers=advert.receivers,
            counts=advert.counts,
        )  # fmt: skip
        _note(entry, descriptor)
        if known is not None:
            self._overtake(known)
            self._remove(known)
            # A name that leads elsewhere now has not been used there: it does not inherit the use
            # of the old destination.
            if known.destination == entry.destination:
                entry.used_us = known.used_us
                if not self._leased:
                    entry.deadline_us = max(known.deadline_us, entry.deadline_us)
        theirs = self.names.of_owner(entry.owner)
        if len(theirs) >= OWNER_MAX:
            # Of one owner's names the one least used gives way: an owner with too many hurts itself
            # alone.
            self._drop(min(theirs, key=lambda each: each.used_us))
        self._make_room(1)
        self._add(entry)
        self._write(entry)
        if known is None or known.hidden or known.destination != entry.destination:
            self._outputs.emit(Advertised(entry.name, entry.destination))

    def _make_room(self, more: int) -> None:
        while len(self._idle) + len(self._used) + more > self._names_max:
            self._drop(next(iter(self._idle or self._used)))

    # --- use -----------------------------------------------------------------------------------------------

    def published(self, copies: Sequence[Copy]) -> None:
        """Note the use of names by messages of this node that were admitted."""
        for copy in copies:
            self.used(copy.descriptor.destination, self._holdings.now_us)

    def used(self, destination: str, now: int) -> None:
        """Note that this device sends to a destination, or receives from it: its names stay here for longer.

        Leases are not prolonged, but names in use are the last to be dropped for others.
        """
        for each in list(self.names.of_others(destination)):
            if not each.hidden:
                self._use(each, now)

    def opened(self, pattern: str, now: int) -> None:
        """Note the use of the destinations of a pattern by a consumer, if it names some."""
        for destination in sorted((plain_forms(pattern) or ((),))[0]):
            self.used(destination, now)

    def _use(self, entry: Entry, now: int) -> None:
        self._idle.pop(entry, None)
        self._used.pop(entry, None)
        self._used[entry] = None
        first, entry.used_us = not entry.used_us, max(now, 1)
        deadline_us = entry.deadline_us if self._leased else now + self._life_us
        # Every send uses names. A row is written only when the deadline moved by a good part, not
        # for every message.
        if first or deadline_us - entry.deadline_us >= self._life_us // _WRITE_PART:
            entry.deadline_us = max(entry.deadline_us, deadline_us)
            self._write(entry)

    def check_receiver(self, destination: str) -> None:
        """Raise if the owner of a queue does not let this node receive from it, under every known name."""
        known = [each for each in self.names.of_others(destination) if not each.hidden]
        if known and all(each.receivers is not None and self._here not in each.receivers for each in known):
            raise JMSSecurityException(
                f"this node, {self._here!r}, is not among the receivers of the queue "
                f"{address.name_of(destination)!r}: ask its owner to add this node to `receivers`"
            )

    # --- commands ------------------------------------------------------------------------------------------

    def bind(self, asked: Bind, now: int) -> None:
        """Bind a name to a destination, or make a context."""
        self.check(asked)
        self.enter(asked, now)

    def enter(self, asked: Bind, now: int) -> None:
        """Bind a name that was checked."""
        self._exchange(self.names.bound.get(asked.name), self._made(asked), now)

    def _made(self, asked: Bind) -> Entry:
        advertised = asked.advertise and may_say(self._here, asked.destination)
        return Entry(
            self._here, asked.name, asked.destination, asked.ordering, advertised=advertised, receivers=asked.receivers
        )

    def check(self, asked: Bind) -> None:
        """Raise unless a name may be bound, or a context made."""
        self.names.check_bindable(asked)
        over = len(address.directory(self._here, asked.name).encode()) - self._limits.destination_bytes_max
        if over > 0:
            raise InvalidNameException(f"{asked.name!r} is too long for a name, by {over} bytes")
        if asked.destination and not _can_be_named(asked.destination):
            raise InvalidDestinationException(
                f"a name must be bound to a topic or a queue in printable text, not to {asked.destination!r}"[:200]
            )
        if asked.name not in self.names.bound and len(self.names.bound) >= OWNER_MAX:
            raise ResourceAllocationException(f"this node has {OWNER_MAX} names already: unbind some of them first")

    def unbind(self, name: str, now: int) -> None:
        """Unbind a name; another node's only on this device, and until it is advertised anew."""
        found = self.names.unbindable(name)
        if found[0].owner == self._here:
            self._exchange(found[0], None, now)
            return
        for each in found:
            self.names.hide(each, hidden=True)
            self._write(each)

    def unbind_all(self, destination: str, now: int) -> None:
        """Unbind all names of this node for a destination that does not exist any more."""
        for each in self.names.bound_to(destination):
            self._exchange(each, None, now)

    def destroy(self, name: str, now: int) -> None:
        """Remove an empty context."""
        self._exchange(self.names.destructible(name), None, now)

    def _exchange(self, before: Entry | None, after: Entry | None, now: int) -> None:
        """Replace one own name by another."""
        if before is not None:
            self._overtake(before)
            self._remove(before)
        if after is not None:
            self._add(after)
            self._write(after)
            if after.advertised:
                self._renewals[after.name] = now
            self._outputs.emit(Advertised(after.name, after.destination))
        self._plan()

    # --- rows ----------------------------------------------------------------------------------------------

    def _add(self, entry: Entry) -> None:
        self.names.add(entry)
        if entry.owner != self._here:
            (self._used if entry.used_us else self._idle)[entry] = None
            self._lapse_us = min(self._lapse_us, entry.deadline_us)
            self._look_ahead()

    def _remove(self, entry: Entry) -> None:
        self.names.remove(entry)
        self._table.delete(_row_name(entry))
        self._idle.pop(entry, None)
        self._used.pop(entry, None)
        if entry.owner == self._here:
            self._renewals.pop(entry.name, None)

    def _drop(self, entry: Entry) -> None:
        """Drop a name of another node, and stop carrying its advertisement."""
        self._overtake(entry)
        self._remove(entry)

    def _overtake(self, entry: Entry) -> None:
        if entry.message:
            self._discard_later(MessageId(entry.message))

    def _write(self, entry: Entry) -> None:
        self._table.put(_row_name(entry), entry)


def _row_name(entry: Entry) -> bytes:
    return address.directory(entry.owner, entry.name).encode()


def _serial(descriptor: Descriptor) -> tuple[int, int]:
    """Return a number that rises with everything that a node publishes."""
    return descriptor.incarnation, descriptor.sequence


def _note(entry: Entry, descriptor: Descriptor) -> None:
    """Note the latest advertisement of a name."""
    entry.message, (entry.incarnation, entry.sequence) = descriptor.id, _serial(descriptor)


def _advert(own: Entry, counts: tuple[tuple[NodeId, int], ...]) -> Advert:
    return Advert(own.destination, own.ordering, own.receivers, counts)


def _can_be_named(destination: str) -> bool:
    found = address.address(destination)
    if found is None or found.kind not in (Kind.TOPIC, Kind.QUEUE, Kind.HOLDER, Kind.CHANNEL):
        return False
    # Destinations of strangers are shown on terminals, in logs and in completions of shells.
    return len(destination) <= DESTINATION_MAX and destination.isprintable()


def _advert_of(descriptor: Descriptor) -> Advert | None:
    """Return the contents of an advertisement; None if it is malformed, or its author may not make it."""
    advert = _content(_decode_advert, descriptor)
    return advert if advert is not None and may_say(descriptor.node, advert.destination) else None


def _content(decode: Callable[[bytes], A], descriptor: Descriptor) -> A | None:
    """Return the contents of an entry; None if it is malformed."""
    headers = descriptor.headers
    if headers is None or descriptor.length or descriptor.deadline_us is None:
        return None
    try:
        return decode(headers.control)
    except (ValueError, RecursionError):  # ValueError: msgspec's own, and text that is not UTF-8
        return None


def may_say(node: NodeId, destination: str) -> bool:
    """Return True if a node may advertise a name for this destination: any topic or channel, or its own queue."""
    found = address.address(destination)
    theirs = found is not None and (found.kind in (Kind.TOPIC, Kind.CHANNEL) or found.node == node)
    return theirs and _can_be_named(destination)


NAME = "$key"
"""Name of the entry. Programs cannot bind it."""
SUFFIX = f"/{NAME}"
_KEY_RETRY_US = 10 * MICROSECONDS
"""Delay before an advertisement that found no room is published again."""


class KeyAdvert(msgspec.Struct, frozen=True, array_like=True):
    """The contents of an entry; fields may be appended with a default."""

    public: Annotated[bytes, msgspec.Meta(min_length=KEY_BYTES, max_length=KEY_BYTES)]


_decode_key = msgspec.msgpack.Decoder(KeyAdvert).decode


class SealingKeys(_Advertised):
    """The entries with sealing keys, of this node and of others."""

    def __init__(self, context: MessagingContext) -> None:
        super().__init__(context)
        self._keyring = context.keyring
        self._latest: dict[str, MessageId] = {}
        """The latest entry of each node, by destination."""
        self._renewal_us = NEVER
        """Time at which this node's entry is published next."""

    def restore(self, stored: Stored, now: int) -> None:  # noqa: ARG002 - the keyring has the rows
        """Advertise a key unless the entry of an earlier incarnation is here."""
        if self._keyring.signed:
            self._keyring.end_keys(now)
            for copy in self._holdings.known_copies():
                if copy.here and copy.destination.endswith(SUFFIX):
                    self._note(copy.descriptor)
            if self._renewal_us == NEVER:
                self._renewal_us = now
        self._look_ahead()

    def receive(self, copy: Copy) -> None:
        """Process an entry, this node's own among them."""
        descriptor = copy.descriptor
        found = address.address(descriptor.destination)
        advert = _content(_decode_key, descriptor) if found is not None and found.node == descriptor.node else None
        if advert is None:
            self._refuse(copy)
        elif self._note(descriptor) and not copy.own:
            key = SealingKey(advert.public, descriptor.ends_us)
            self._keyring.learn(descriptor.node, key, self._holdings.now_us)

    def _note(self, descriptor: Descriptor) -> bool:
        """Note an entry; return False if a later one of its node is here."""
        before = self._latest.get(descriptor.destination)
        known = None if before is None else self._holdings.here(before)
        if known is not None and known.id != descriptor.id:
            if known.descriptor.tag > descriptor.tag:
                self._discard_later(descriptor.id)
                return False
            self._discard_later(known.id)
        self._latest[descriptor.destination] = descriptor.id
        if descriptor.node == self._here:
            # Half of the life is left for nodes that come by later.
            life_us = descriptor.ends_us - descriptor.created_us
            self._renewal_us = self._holdings.own_time(descriptor.created_us) + min(KEY_US, life_us // 2)
            self._look_ahead()
        return True

    def drafts(self, now: int) -> Sequence[Draft]:
        """Return this node's entry if it is due; delete keys that no living message needs."""
        self._discard_overtaken()
        drafts: list[Draft] = []
        if self._keyring.signed:
            self._keyring.end_keys(now)
            if self._renewal_us <= now:
                self._renewal_us = now + _KEY_RETRY_US  # Unless it is published, which `receive` notes.
                drafts.append(self._draft(now))
        self._look_ahead()
        return drafts

    def _draft(self, now: int) -> Draft:
        headers = Headers(control=_encode(KeyAdvert(self._keyring.current(now))))
        # A crash may take a new key back: it is advertised only when it is on disk.
        return Draft(
            address.directory(self._here, NAME), b"", lifetime_us=self._keyring.advertised_us, headers=headers,
            withheld=True,
        )  # fmt: skip

    def left(self, copies: Sequence[Copy], reason: Reason) -> None:  # noqa: ARG002 - whatever the reason is
        """Forget entries that are gone; their keys stay known."""
        for copy in copies:
            if copy.destination.endswith(SUFFIX) and self._latest.get(copy.destination) == copy.id:
                del self._latest[copy.destination]

    def _look_ahead(self) -> None:
        self.due_us = 0 if self._overtaken else min(self._renewal_us, self._keyring.ends_us)
