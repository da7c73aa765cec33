"""Consumers: this node's subscriptions to channels, and the results that they accept."""

# The results of a subscription have dense numbers. A consumer accepts the next one, if the broker
# that made it holds its *epoch*, and that epoch is open; later ones are held until their turn. So
# repeated and late results, and two seats at once, do no harm. What it accepted is stored with the
# delivery: the number of the last result, and a cursor for each producer, by which it recognizes
# events that it has, and counts those that are missing (`EventsLost`).
#
# Why epochs. A seat moves while its results are on their way, and a broker that lost its connection
# may still believe that it has the seat. Numbers alone would let results of both be mixed. An epoch
# belongs to one broker and one life of the seat, so that the consumer alone decides which broker's
# results count.
#
# - Epochs rise by one when the seat moves: the home names the broker that will hold the next epoch
#   (`Moving`), and results of both count, since the last ones of the old home may still be on their
#   way.
# - They rise by two, and all earlier ones are closed, when a consumer takes another home by itself,
#   and when a result is missing for `orphan_s` although later ones came. Then the seat begins anew
#   after the last accepted result. Two, because a relocation may go on without the consumer and use
#   the next number.
#
# A consumer keeps the last checkpoint of its seat, and the events whose results it accepted since,
# in their order. It sends both to a new home (`adoption`), which repeats those events, and goes on.

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import msgspec

from carrypost.errors import DecodeError, IllegalArgumentException, LocalError, RemoteError
from carrypost.log.events import PayloadWanted, Reason
from carrypost.model import address
from carrypost.model.address import nodes
from carrypost.model.ids import MessageId, NodeId
from carrypost.model.times import NEVER, TIME_US_MAX
from carrypost.overlay.events import EventsLost
from carrypost.overlay.items import CURSORS_MAX, Attach, Moving, Relocation, Role, shortened
from carrypost.overlay.modulators.modulator import Modulator
from carrypost.overlay.relocation import VARIANTS, Run, Snapshot, digest, extended, unpacked
from carrypost.security.identity import check_origin

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Iterator, Mapping, Sequence

    from carrypost.application.ledger import KnownRows
    from carrypost.gossip.holdings.copies import Copy
    from carrypost.gossip.transfers.link import HostContext
    from carrypost.gossip.wire.pieces import Blank
    from carrypost.model.headers import Covers

# --- subscription ------------------------------------------------------------------------------------------

# Subscriptions of this node to channels, and their rows in the store.
#
# A subscription has one row, which is in the same batch as each result that it accepts, and one
# more with its last checkpoint, which is larger and changes less often.


FAMILY = b"C"
"""First byte of the names of rows."""
NUMBER_BYTES = 8
_HOLDERS_MAX = 8
"""Number of open epochs; results of more relocations than that are not on their way at once."""
_CHECKPOINT = b"k"
"""Last byte of the names of rows that have checkpoints."""


class SubscriptionRow(msgspec.Struct, array_like=True):
    """A subscription as it is stored."""

    channel: str
    since_us: int
    """Time from which on events of producers without a cursor count: that of the subscription, or of the last result of
    a producer whose cursor was forgotten."""
    epoch: int
    number: int = 0
    """Number of the last result that was accepted."""
    cursors: dict[str, int] = {}
    """Number of the last event of each producer whose result was accepted."""
    home: NodeId | None = None
    """Broker whose results are accepted."""
    modulator: Modulator | None = None
    """Modulator that makes results of events at the home."""
    owner: str = ""
    """Kind of the layer that subscribed for its programs; empty if a program subscribed by itself."""
    relocation: Relocation = "strict"
    """Protocol by which its seat moves to another broker."""
    lost: int = 0
    """Events that are missing, and that no result for the program was marked with yet."""
    events: int = 0
    """Events that results covered."""
    faults: int = 0
    """Number of covered events that the modulator failed with."""
    busy_us: int = 0
    """Execution time of the modulator for covered events."""
    holders: dict[int, NodeId] = {}
    """Open epochs, and the broker that holds each: the present one, earlier ones, and perhaps the next."""
    adopting: bool = False
    """True until the home has the state that the seat begins with."""
    keeps: bool = False
    """True if there is a checkpoint of a modulator that has a state, and all events since then are in `repeats`."""
    repeats: list[Run] = []
    """Events whose results were accepted since the checkpoint, in that order."""
    discarded: int = 0
    """Results that the modulator refused to keep while this node could not be reached."""
    fault: str = ""
    """Last fault of the modulator."""

    def hold(self, epoch: int, broker: NodeId) -> None:
        """Open an epoch for a broker."""
        self.holders = dict(sorted((self.holders | {epoch: broker}).items())[-_HOLDERS_MAX:])


encode = msgspec.msgpack.Encoder().encode
decode = msgspec.msgpack.Decoder(SubscriptionRow).decode


class Subscription:
    """One subscription to a channel."""

    def __init__(self, number: int, node: NodeId, row: SubscriptionRow) -> None:
        self.number, self.row = number, row
        self.destination = address.results(node, str(number))
        self.held: dict[int, Copy] = {}
        """Results that wait for their turn, by number; bounded by the cache, which has their copies."""
        self.early: dict[MessageId, Copy] = {}
        """Results of the next epoch, whose author was not named yet."""
        self.missing_us = NEVER
        """Time since which the next result is missing although later ones came."""
        self.heard_us = 0
        """Time of the last result of the home."""
        self.after_us = 0
        """Time before which nothing is accepted."""
        self.sent_us: dict[str, int] = {}
        """By producer with a cursor: date that its author gave the last result of its events in this incarnation."""
        self.missed = 0
        """Events that were missing, in this incarnation."""
        self.latest: tuple[int, int] = (0, 0)
        """Epoch, and incarnation of its broker, of the last result that was accepted in this incarnation."""

    @property
    def key(self) -> tuple[Role, str, int]:
        """Key of this subscription's client in `overlay.homes`."""
        return Role.CONSUMER, self.row.channel, self.number

    @property
    def name(self) -> bytes:
        """Name of the subscription's row."""
        return FAMILY + self.number.to_bytes(NUMBER_BYTES, "big")

    @property
    def checkpoint_name(self) -> bytes:
        """Name of the row with the last checkpoint."""
        return self.name + _CHECKPOINT

    def attach(self, *, renews: bool) -> Attach:
        """Return the request to its home; `renews`: to one that has its seat, and so the cursors."""
        row = self.row
        # A list of all producers with every renewal would grow with consumers times producers.
        cursors = () if renews else tuple(list(row.cursors.items())[-CURSORS_MAX:])
        item = Attach(
            *self.key, epoch=row.epoch, number=row.number, since_us=row.since_us, cursors=cursors,
            modulator=row.modulator, relocation=row.relocation, adopts=row.adopting,
        )  # fmt: skip
        return shortened(item)

    def disowns(self, epoch: int) -> bool:
        """Return True if a seat of this epoch does not count, and cannot: only the next one may begin unannounced."""
        return epoch not in self.row.holders and epoch != self.row.epoch + 1


# --- kept checkpoints --------------------------------------------------------------------------------------

# Checkpoints that a consumer keeps of its seats, and the events that results covered since.
#
# A subscription keeps the last checkpoint of its seat in a row of its own. It notes which events
# the results that it accepted since covered, in their order (`Coverage.count`). Both together are
# the state of the seat after the last result that was accepted, which a new home begins with
# (`adoption`).


class KeptCheckpoints:
    """The last checkpoints of the subscriptions of one node."""

    def __init__(self, context: HostContext, rows: KnownRows) -> None:
        self._rows, self._limits, self._outputs = rows, context.limits, context.outputs
        self._signed = context.identity.signed
        self._payloads: dict[MessageId, bytes | Blank] = {}
        """The checkpoint that was read last."""

    def has_read(self, copy: Copy) -> bool:
        """Return True if the payload of a checkpoint was read; otherwise request it."""
        if copy.id in self._payloads:
            return True
        self._outputs.emit(PayloadWanted(copy.descriptor))
        return False

    def read(self, copy: Copy, payload: bytes | Blank) -> None:
        """Process the payload of a checkpoint whose turn it is."""
        # One at a time: a checkpoint is read when it is its turn, and may be large.
        self._payloads = {copy.id: payload}

    def keep(self, found: Subscription, copy: Copy, covers: Covers) -> Mapping[str, int]:
        """Replace the checkpoint before, and the events since then, with one that was read.

        Returns how many events its state lacks of which there were results, by producer.
        """
        if (payload := self._payloads.pop(copy.id, None)) is None:
            return {}
        try:
            snapshot = unpacked(payload, self._limits, signed=self._signed)
            if (snapshot.epoch, snapshot.number) != (covers.epoch, covers.number) or snapshot.repeats or snapshot.runs:
                raise DecodeError("snapshot", "the snapshot is of another seat, or of another time")
        except RemoteError as error:
            self._outputs.refuse(error.reason, copy.descriptor.node, copy.descriptor.shown)
            return {}
        # The events before the checkpoint are in its state, and need not be repeated any more.
        found.row.keeps, found.row.repeats = bool(snapshot.modulator), []
        self._rows.put(found.checkpoint_name, payload if isinstance(payload, bytes) else b"")
        return snapshot.lacks

    def forget(self, found: Subscription) -> None:
        """Forget the checkpoint of a subscription that is closed."""
        if self._rows.get(found.checkpoint_name) is not None:
            self._rows.delete(found.checkpoint_name)

    def adoption(self, found: Subscription) -> Snapshot:
        """Return the state that a new home of a subscription begins with."""
        row, kept = found.row, self._kept(found)
        if kept is None:
            return Snapshot(row.epoch, row.number, row.cursors)
        return Snapshot(
            row.epoch, row.number, kept.cursors, kept.state, kept.modulator, repeats=row.repeats,
            since_us=kept.since_us,
        )  # fmt: skip

    def needed_after(self, found: Subscription) -> Mapping[str, int]:
        """Return the last event of each producer that no home of a subscription will need any more."""
        kept = self._kept(found)
        return found.row.cursors if kept is None else kept.cursors

    def _kept(self, found: Subscription) -> Snapshot | None:
        """Return the last checkpoint of the present modulator; None if it has no state, or gave no results yet."""
        stored = self._rows.get(found.checkpoint_name) if found.row.keeps else None
        try:
            kept = None if stored is None else unpacked(stored, self._limits, signed=self._signed)
        except RemoteError:  # The limits were other ones when it was stored.
            return None
        return kept if kept is not None and kept.modulator == digest(found.row.modulator) else None


class Coverage:
    """Events that the accepted results of one node cover, and those that are missing.

    Sums are clamped: a home could report numbers whose sum cannot be stored.
    """

    def __init__(self, context: HostContext) -> None:
        self._limits, self._outputs, self._holdings = context.limits, context.outputs, context.holdings
        self.missed = 0
        """Events that were missing, since the start."""

    def count(self, found: Subscription, covers: Covers, sent_us: int) -> bool:
        """Advance the cursors by the events of a result of this time; return False if the consumer has all of them."""
        named, row = nodes(covers.producers), found.row
        found.sent_us |= dict.fromkeys(named, sent_us)
        new = not covers.runs
        for at, after, upto in covers.runs:
            cursor = row.cursors.setdefault(named[at], after)
            if upto > cursor:
                new = True
                row.cursors.pop(named[at], None)  # The last one that was heard of is the last to be forgotten.
                row.cursors[named[at]] = upto
                if row.keeps and upto > after:
                    row.repeats = extended(row.repeats, (named[at], max(after, cursor), upto))
                row.events = min(row.events + upto - max(after, cursor), TIME_US_MAX)
                if after > cursor:
                    self.lose(found, named[at], after - cursor)
        if new:
            row.faults = min(row.faults + covers.faults, TIME_US_MAX)
            row.busy_us = min(row.busy_us + covers.busy_us, TIME_US_MAX)
            row.discarded = min(row.discarded + covers.discarded, TIME_US_MAX)
        self._shorten(found)
        return new

    def lose(self, found: Subscription, producer: NodeId, events: int) -> None:
        """Report events to the program that are missing, or that the modulator's state lacks from now on."""
        found.row.lost = min(found.row.lost + events, TIME_US_MAX)
        self.missed += events
        found.missed += events
        self._outputs.emit(EventsLost(found.destination, producer, events))

    def _shorten(self, found: Subscription) -> None:
        """Enforce the bounds: a home could send results that name ever more producers, or events."""
        row = found.row
        while len(row.cursors) > self._limits.clients_max:
            forgotten = next(iter(row.cursors))
            del row.cursors[forgotten]
            # A new home would ask that producer for all events since then, which the program has.
            # Not later than now: the clock of another node may be wrong, or lie.
            sent_us = found.sent_us.pop(forgotten, None) or min(found.sent_us.values())
            row.since_us = max(row.since_us, min(sent_us + 1, self._holdings.date_us))
            self._outputs.refuse("lanes", row.home or "")
        if len(row.repeats) > self._limits.runs_max:
            row.keeps, row.repeats = False, []
            self._outputs.refuse("repeats", row.home or "")


# --- consumers ---------------------------------------------------------------------------------------------

_COUNTER = FAMILY
"""Name of the row that has the number of the last subscription."""
_STEP = 2
"""Number of epochs that are skipped when earlier ones are closed: one may have begun without the consumer."""
_EARLY_MAX = 256
"""Most results of one subscription that wait for `Moving` to name their author."""
_AGAIN_US = 1_000_000
"""Delay before results that could not be written are accepted again."""


class Consumers:
    """The subscriptions of one node to channels."""

    def __init__(self, context: HostContext, rows: KnownRows, brokers: Container[NodeId]) -> None:
        """Make the consumers of a node; `brokers` are the nodes known as brokers."""
        self._node, self._rows, self._limits = context.node, rows, context.limits
        self._brokers, self.coverage, self.kept = brokers, Coverage(context), KeptCheckpoints(context, rows)
        self._holdings, self._outputs = context.holdings, context.outputs
        self._orphan_us = round(context.settings.overlay.orphan_s * 1e6)
        self._open: dict[str, Subscription] = {}
        """Subscriptions by destination."""
        self.have_advanced = True
        """True if results were accepted since the last look at progress, perhaps in an earlier incarnation."""
        self._last = 0
        self._lost: dict[MessageId, int] = {}
        """Numbers of events missing before the results that passed last."""

    def __iter__(self) -> Iterator[Subscription]:
        return iter(self._open.values())

    # --- subscriptions -------------------------------------------------------------------------------------

    def restore(self, name: bytes, value: bytes) -> None:
        """Restore a row after a restart."""
        self._rows.restore(name, value)
        number = int.from_bytes(name[len(FAMILY) :], "big")
        if name == _COUNTER:
            self._last = int.from_bytes(value, "big")
        elif len(name) == len(FAMILY) + NUMBER_BYTES:
            found = Subscription(number, self._node, decode(value))
            self._open[found.destination] = found

    def open(
        self, channel: str, now: int, modulator: Modulator | None = None, *, relocation: str = "strict", owner: str = ""
    ) -> Subscription:
        """Subscribe to a channel, from now on; raises `LocalError` if that is impossible."""
        if relocation not in VARIANTS:
            raise IllegalArgumentException(
                f"relocation must be {', '.join(map(repr, VARIANTS))}, not {relocation!r}"[:200]
            )
        if len(self._open) >= (most := self._limits.clients_max):
            raise LocalError(f"this node has {most:,} subscriptions to channels (limits.clients_max): close some")
        self._last += 1
        self._rows.put(_COUNTER, self._last.to_bytes(NUMBER_BYTES, "big"))
        reference = None if modulator is None else modulator.reference
        row = SubscriptionRow(
            channel, max(self._holdings.date_of(now), 1), 1,
            modulator=reference, owner=owner, relocation=cast("Relocation", relocation),
        )  # fmt: skip
        found = Subscription(self._last, self._node, row)
        self._open[found.destination] = found
        self._rows.put(found.name, encode(found.row))
        return found

    def close(self, destination: str) -> Subscription:
        """End a subscription; raises `LocalError` if there is none."""
        found = self.find(destination)
        del self._open[destination]
        for copy in [each for each in self._holdings.known_copies() if each.descriptor.destination == destination]:
            self._finish(copy)
        self._rows.delete(found.name)
        self.kept.forget(found)
        return found

    def change(self, destination: str, modulator: Modulator | None) -> Subscription:
        """Give a subscription another modulator; raises `LocalError` if there is none."""
        found = self.find(destination)
        found.row.modulator = None if modulator is None else modulator.reference
        self._rows.put(found.name, encode(found.row))
        return found

    def find(self, destination: str) -> Subscription:
        """Return a subscription; raises `LocalError` if there is none."""
        if (found := self._open.get(destination)) is None:
            raise LocalError(
                f"no subscription of this node has its results at {destination!r}: it was closed, or never was"
            )
        return found

    def at(self, number: int) -> Subscription | None:
        """Return a subscription by its number."""
        return self._open.get(address.results(self._node, str(number)))

    def adopted(self, found: Subscription, epoch: int) -> None:
        """Note that the home has the state."""
        if found.row.adopting and found.row.epoch == epoch:
            found.row.adopting = False
            self._rows.put(found.name, encode(found.row))

    def ask(self, found: Subscription, broker: NodeId) -> None:
        """Accept only results of this broker from now on; in a new epoch, if it was another one."""
        if found.row.home != broker:
            before, found.row.home = found.row.home, broker
            self._begin_epoch(found, change=before is not None)

    def begin_epoch(self, found: Subscription) -> None:
        """Begin a new epoch, because the home does not have the seat any more: the home needs its state."""
        if not found.row.adopting:
            self._begin_epoch(found, adopting=True)

    def _begin_epoch(self, found: Subscription, *, change: bool = True, adopting: bool = False) -> None:
        """Close all epochs, and begin one that no seat has yet; `adopting`: with a state in any case."""
        row = found.row
        row.epoch += _STEP * change
        # All other brokers are closed out, those included that still believe that they have the
        # seat.
        row.holders = {} if row.home is None else {row.epoch: row.home}
        # Without a modulator the cursors are all there is to a state, and `Attach` has room for
        # them, up to a number.
        row.adopting = adopting or (change and (row.modulator is not None or len(row.cursors) > CURSORS_MAX))
        found.missing_us = NEVER
        self._rows.put(found.name, encode(row))
        closed = *found.held.values(), *found.early.values()
        found.held, found.early = {}, {}
        for copy in closed:
            self._finish(copy)

    def moving(self, item: Moving, author: NodeId) -> bool:
        """Note the broker that will hold the next epoch; return False if the author is not the present home."""
        found = self.at(item.subscription)
        if found is None or found.row.home != author or found.row.epoch != item.epoch:
            return False
        found.row.hold(item.epoch + 1, NodeId(item.to))
        self._rows.put(found.name, encode(found.row))
        # Results of the next seat may overtake `Moving`. They waited without counting, because
        # until now any node could have made them.
        early, found.early = found.early, {}
        for copy in early.values():
            self._enter(found, copy)
        return True

    def moved(self, found: Subscription, broker: NodeId, epoch: int) -> bool:
        """Change the home to the broker that the seat moved to; return False if it does not hold its epoch."""
        if found.row.holders.get(epoch) != broker or epoch < found.row.epoch:
            return False
        if epoch > found.row.epoch:
            found.row.epoch, found.row.home = epoch, broker
            self._rows.put(found.name, encode(found.row))
        return True

    # --- results -------------------------------------------------------------------------------------------

    def receive(self, copies: Sequence[Copy]) -> Sequence[Copy]:
        """Return the messages that pass: results whose turn it is, and everything that is not a result."""
        # Every message of the node passes here; without subscriptions there is nothing to look for.
        if not self._open:
            return copies
        self._lost = {}
        passed = []
        for copy in copies:
            found = self._open.get(copy.descriptor.destination)
            if found is None or self._holdings.is_given(copy) or self._holdings.is_confirmed(copy):
                passed.append(copy)
            else:
                self._enter(found, copy)
        for found in self._open.values():
            if found.held:
                passed += self._release(found)
        return passed

    def _enter(self, found: Subscription, copy: Copy) -> None:
        """Hold a result until its turn, or until `Moving` names its author; drop any that does not count."""
        covers, row, author = _covers(copy), found.row, copy.descriptor.node
        if covers is None:
            self._outputs.refuse("result", author, copy.descriptor.shown)
            self._finish(copy)
            return
        is_early = covers.epoch == row.epoch + 1 and covers.epoch not in row.holders
        if is_early and author in self._brokers and len(found.early) < _EARLY_MAX:
            found.early[copy.id] = copy
            return
        held = found.held.get(covers.number)
        known = covers.number <= row.number or (held is not None and _age(held) > _age(copy))
        valid = self._is_valid(found, copy, covers)
        if valid and author == row.home:
            found.heard_us = self._holdings.now_us
        useless: Copy | None = copy
        if valid and not known:
            # If its broker crashes, or the seat moves, before all results of an event have left, their numbers are
            # used again, perhaps for another event.
            found.held[covers.number], useless = copy, held
        if useless is not None:
            self._finish(useless)

    def _is_valid(self, found: Subscription, copy: Copy, covers: Covers) -> bool:
        """Return True if the author of a result holds its epoch, and that is open."""
        descriptor, row, refusal = copy.descriptor, found.row, ""
        if row.holders.get(covers.epoch) != descriptor.node:
            closed = covers.epoch not in row.holders and covers.epoch < row.epoch
            refusal = "overlay-old" if closed else "result"
        elif descriptor.headers is not None and descriptor.headers.origin:
            try:
                check_origin(descriptor)
            except RemoteError as error:
                refusal = error.reason
        if refusal:
            self._outputs.refuse(refusal, descriptor.node, descriptor.shown)
        return not refusal

    def _finish(self, copy: Copy) -> None:
        """Drop a result that is of no use, here and at its carriers."""
        if copy.here:
            self._holdings.acknowledge(copy.id, copy.descriptor.ends_us)
            self._holdings.discard(copy, Reason.PURGED, done=True)

    def _release(self, found: Subscription) -> list[Copy]:
        """Accept the results whose turn it is."""
        now, before = self._holdings.now_us, found.row.number
        passed = []
        while found.after_us <= now and (event := self._next(found)):
            last, covers = event[-1]
            if covers.empty and last.descriptor.size and not self.kept.has_read(last):
                found.after_us = now + _AGAIN_US
                break
            new = self.coverage.count(found, covers, last.descriptor.original.created_us)
            found.row.adopting = found.row.adopting and covers.epoch < found.row.epoch
            for producer, events in self.kept.keep(found, last, covers).items() if covers.empty else ():
                self.coverage.lose(found, NodeId(producer), events)
            found.latest = _age(last)[:2]
            for copy, of in event:
                if self._accept(found, copy, passes=new and not of.empty):
                    passed.append(copy)
        if found.row.number > before or not found.held:
            found.missing_us = now if found.held else NEVER
        elif found.missing_us == NEVER:
            found.missing_us = now
        return passed

    def _accept(self, found: Subscription, copy: Copy, *, passes: bool) -> bool:
        """Accept one result; return `passes` if it contains something for the program."""
        found.row.number += 1
        self.have_advanced = True
        del found.held[found.row.number]
        if (headers := copy.descriptor.headers) is not None and headers.fault:
            found.row.fault = headers.fault
        if passes and found.row.lost:
            self._lost[copy.id], found.row.lost = found.row.lost, 0
        self._rows.put(found.name, encode(found.row))
        if not passes:
            self._finish(copy)
        elif not copy.own:  # No other node has a result of a seat on this node.
            self._holdings.acknowledge(copy.id, copy.descriptor.ends_us)
        return passes

    def _next(self, found: Subscription) -> list[tuple[Copy, Covers]]:
        """Return the results of the next event, if all of them are here: the last one covers it.

        They are accepted together, so that all or none of them come again from another home.
        """
        event: list[tuple[Copy, Covers]] = []
        while (copy := found.held.get(found.row.number + len(event) + 1)) is not None:
            headers = copy.descriptor.headers
            assert headers is not None
            assert headers.covers is not None
            event.append((copy, headers.covers))
            if headers.covers.runs or headers.covers.empty:
                # Results of an earlier incarnation, or epoch, are left of an event that is processed again. They are
                # replaced when its results come.
                ages = {_age(each)[:2] for each, _ in event}
                return event if len(ages) == 1 and ages.pop() >= found.latest else []
        return []

    def payload_read(self, copy: Copy, payload: bytes | Blank) -> None:
        """Process the payload of a checkpoint whose turn it is."""
        found, covers = self._open.get(copy.descriptor.destination), _covers(copy)
        if found is not None and covers is not None and found.held.get(covers.number) is copy:
            self.kept.read(copy, payload)
            found.after_us = 0

    def lost_before(self, message: MessageId) -> int:
        """Return the number of events missing before a result that passed with the last `receive`."""
        return self._lost.get(message, 0)

    def confirmed(self, messages: Iterable[MessageId]) -> None:
        """Release results that the program confirmed."""
        found = [self._holdings.cache.get(message) for message in dict.fromkeys(messages)] if self._open else ()
        results = [
            copy for copy in found
            if copy is not None and not copy.own and copy.descriptor.destination in self._open
        ]  # fmt: skip
        if results:
            self._holdings.cache.throw_out(results, Reason.PURGED)

    def left(self, copies: Sequence[Copy]) -> None:
        """Forget results that are gone."""
        for copy in copies if self._open else ():
            found = self._open.get(copy.descriptor.destination)
            covers = _covers(copy)
            if found is not None:
                found.early.pop(copy.id, None)
            if found is not None and covers is not None and found.held.get(covers.number) is copy:
                del found.held[covers.number]

    # --- time ----------------------------------------------------------------------------------------------

    @property
    def due_us(self) -> int:
        """Time at which `expire` has something to do."""
        due_us = NEVER
        for each in self._open.values():
            ready_us = each.after_us if each.held and self._next(each) else NEVER
            due_us = min(due_us, each.missing_us + self._orphan_us, ready_us)
        return due_us

    def expire(self, now: int) -> list[Subscription]:
        """Begin a new epoch if a result is missing for long; return subscriptions whose homes have to be informed."""
        late = [each for each in self._open.values() if each.missing_us + self._orphan_us <= now]
        for each in late:
            self._begin_epoch(each)
        return late


def _covers(copy: Copy) -> Covers | None:
    """Return the events that a result covers; None if the message is not a result."""
    headers = copy.descriptor.headers
    return None if headers is None else headers.covers


def _age(copy: Copy) -> tuple[int, int, int]:
    """Return the place of a result among all that were made of its subscription."""
    covers, descriptor = _covers(copy), copy.descriptor
    return (0 if covers is None else covers.epoch), descriptor.incarnation, descriptor.sequence
