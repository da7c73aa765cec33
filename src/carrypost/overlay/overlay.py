"""The overlay on one host, as a layer between order and messaging.

The layer reads messages to `overlay/N` and `overlay/all`, and passes each item to its part, if the author may send it.
Programs use it by `host.overlay`. A host whose settings do not enable it has no such layer.
"""
# Why a layer of its own. Brokers need what every layer needs: messages that are carried by any
# node, rows in the same batch as the cache, and undoing when a batch is lost. They talk to each
# other by ordinary messages, so that an overlay works over partitions without a protocol of its own
# below.
#
# Why `finish` does nearly everything. What arrives is only noted (`_has_work`). At the end
# of the step parts run in one order, and what one part sends to this same node is received at once,
# until no part sends anything more. Otherwise a broker that is its own client would need a step,
# and a batch, for each item that it sends to itself.

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from carrypost.application.ledger import KnownRows, Ledger
from carrypost.errors import RemoteError, StateError
from carrypost.gossip.draft import Draft
from carrypost.gossip.layer import Layer
from carrypost.gossip.wire.pieces import Blank
from carrypost.log import record
from carrypost.log.events import PayloadWanted, Reason
from carrypost.model import address
from carrypost.model.ids import NodeId, shown
from carrypost.model.pattern import entry
from carrypost.overlay import clients, consumers, events, handoffs, items, lanes, legs, placement, processing
from carrypost.overlay.clients import ClientManager, Reports
from carrypost.overlay.consumers import Consumers
from carrypost.overlay.handoffs import Handoffs
from carrypost.overlay.homes import Homes, check_channel
from carrypost.overlay.items import ModuleWanted, Pass, Reader, Replay, event_of, items_of, may_say
from carrypost.overlay.legs import Detours, Legs
from carrypost.overlay.load import Load
from carrypost.overlay.modulators import modules
from carrypost.overlay.modulators.modules import OwnModules
from carrypost.overlay.producer import NUMBERS, PASSED, ConsumerProgress, EventNumbers, Producer
from carrypost.overlay.seats import Seats
from carrypost.overlay.tables import lease_us
from carrypost.overlay.topology import Topology

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence
    from random import Random

    from carrypost.application.deliveries import Deliveries
    from carrypost.gossip.holdings.copies import Copy
    from carrypost.gossip.transfers.link import HostContext
    from carrypost.island.island import Island
    from carrypost.log.journal import Key, Value
    from carrypost.model.ids import MessageId
    from carrypost.overlay.modulators.modulator import Meter, Modulator

# --- inbox -------------------------------------------------------------------------------------------------

# The inbox of the overlay: messages to `overlay/N` and `overlay/all`, whose items go to the parts
# that process them.
#
# An item counts if its author may send it (`items.may_say`), and if the part that processes it
# finds the author in the required role. Any other item is refused, and counted. A message that was
# read is acknowledged and dropped at the end of the step. One whose payload is the state of a seat
# stays until that was read.


CopyHandler = Callable[[Any, "Copy", int], bool | Reader | None]
"""Function that processes an item with its message and a time; returns False to refuse it, or a reader of the payload.
May raise `RemoteError`."""
ItemHandler = Callable[[Any, "NodeId", int], bool | None]
"""Function that processes an item by its author and a time, without its message; returns False to refuse it."""


_QUESTIONS = (Replay, ModuleWanted)
"""Items whose answers are much longer than they are."""
_STRANGERS_MAX, _STRANGER_US = 32, 250_000
"""Questions of brokers out of reach that are answered in a row, and the time after which one more is.

Any node can announce brokers that do not exist. Each of them may ask, and answers to them fill the cache.
"""


class Inbox:
    """The items that one node receives from other overlays."""

    def __init__(
        self, context: HostContext, topology: Topology, legs: Legs, copy_handlers: Mapping[type, CopyHandler],
        item_handlers: Mapping[type, ItemHandler],
    ) -> None:  # fmt: skip
        """Map kinds of items to functions that process them, except `Pass`, which `legs` processes."""
        self._holdings, self._outputs = context.holdings, context.outputs
        self._eligible = frozenset(context.settings.overlay.brokers)
        self._topology, self._legs = topology, legs
        self._copy_handlers, self._item_handlers = copy_handlers, item_handlers
        self._read: list[Copy] = []
        """Messages that were processed, and can be dropped."""
        self._strangers_us = 0
        """Time at which as many questions of brokers out of reach are answered as at the start."""
        self._unread: dict[MessageId, Reader] = {}
        """Messages whose payloads are being read, and what reads them; bounded by the cache, which has the copies."""

    def receive(self, copy: Copy, *, to_all: bool) -> None:
        """Process the items of a message."""
        descriptor, author = copy.descriptor, copy.descriptor.node
        items, unread = items_of(descriptor)
        allowed = [
            item
            for item in items
            if may_say(item, author, to_all=to_all, eligible=self._eligible, known=self._topology.brokers)
        ]
        if unread or len(allowed) < len(items):
            refused = unread + len(items) - len(allowed)
            self._outputs.refuse("overlay", author, descriptor.shown, count=refused)
        passed = [item for item in allowed if isinstance(item, Pass)]
        for item in allowed:
            if not isinstance(item, Pass):
                self._guard(copy, partial(self._handle, item, copy))
        if len(passed) == 1 and len(items) == 1:
            self._legs.arrived(copy, passed[0])
        elif not to_all:
            if passed:  # A leg must have one item: otherwise it is unclear which item forwards the origin.
                self._outputs.refuse("overlay", author, descriptor.shown)
            if copy.id not in self._unread:
                self._finish(copy)

    def _handle(self, item: object, copy: Copy) -> bool | None:
        now = self._holdings.now_us
        if isinstance(item, _QUESTIONS) and not self._may_ask(copy.descriptor.node, now):
            return False
        if (handle := self._item_handlers.get(type(item))) is not None:
            return handle(item, copy.descriptor.node, now)
        answer = self._copy_handlers[type(item)](item, copy, now)
        if answer is None or isinstance(answer, bool):
            return answer
        self._unread[copy.id] = answer
        self._outputs.emit(PayloadWanted(copy.descriptor))
        return None

    def _may_ask(self, author: NodeId, now: int) -> bool:
        """Return True if a broker is answered: it can be reached, or few of those that cannot be asked lately."""
        if self._topology.can_reach(author):
            return True
        full_us = max(self._strangers_us, now) + _STRANGER_US
        if full_us > now + _STRANGERS_MAX * _STRANGER_US:
            return False
        self._strangers_us = full_us
        return True

    def handle_own(self, item: object, author: NodeId) -> None:
        """Process an item that this node sent to itself."""
        self._item_handlers[type(item)](item, author, self._holdings.now_us)

    def _guard(self, copy: Copy, act: Callable[[], bool | None]) -> None:
        """Process an item, and count its refusal, by reason."""
        author, shown = copy.descriptor.node, copy.descriptor.shown
        try:
            if act() is False:
                self._outputs.refuse("overlay", author, shown)
        except RemoteError as error:
            self._outputs.refuse(error.reason, author, shown)

    def _finish(self, copy: Copy) -> None:
        self._read.append(copy)
        self._holdings.acknowledge(copy.id, copy.descriptor.ends_us)

    def payload_read(self, copy: Copy, payload: bytes | Blank) -> None:
        """Process a payload that was requested here."""
        if (read := self._unread.pop(copy.id, None)) is not None:
            self._guard(copy, partial(read, payload))
            self._finish(copy)

    def left(self, copies: Sequence[Copy]) -> None:
        """Forget messages that are gone."""
        for copy in copies if self._unread else ():
            self._unread.pop(copy.id, None)

    def finish(self) -> None:
        """Drop messages that were read."""
        if self._read:
            read, self._read = self._read, []
            self._holdings.cache.throw_out(dict.fromkeys(read), Reason.PURGED)


class OverlayLayer(Layer):
    """The overlay of one host."""

    kind = "overlay"

    @classmethod
    def register(cls) -> None:
        """Register the rows that homes, relocations and lost events add to the event log."""
        record.register(events.ROWS)

    def __init__(
        self, context: HostContext, deliveries: Deliveries, island: Island, rng: Random, meter: Meter | None = None
    ) -> None:
        self._node, self.broker = context.node, context.settings.overlay.broker
        self._holdings, self._outputs, self._deliveries = context.holdings, context.outputs, deliveries
        self.date_of = context.holdings.date_of
        self.load = Load(context.settings.overlay)
        outbox = self._outbox = items.Outbox(context, lease_us(context.settings))
        self.topology = Topology(context, island, rng, self.load, outbox)
        detours = Detours(context, self.topology)
        self.legs = Legs(context, self.topology, detours)
        self.channel = placement.SystemChannel(context.outputs)
        self.channel.add(placement.TopologyAdaptor(self.topology, self.legs, self.channel))
        self._ledger = Ledger(context.outputs.journal, self.kind)
        self._rows = KnownRows(context.outputs.journal, self.kind)
        self.own_modules = OwnModules(context, self.legs, self._ledger)
        self.seats = Seats(context, self.legs, self._rows, self.load, outbox=outbox, meter=meter)
        self.reports = Reports(context, self.topology, self.seats)
        self.clients = ClientManager(context, self.topology, self._ledger, self.seats, outbox)
        self.handoffs = Handoffs(
            context, self.topology, self.clients, self.seats, detours,
            outbox=outbox, rows=self._rows, ledger=self._ledger,
        )  # fmt: skip
        self.channel.add(placement.HomeBrokerAdaptor(context, self.topology, self.load, self.seats, self.handoffs))
        self.consumers = Consumers(context, self._rows, self.topology.brokers)
        numbers = EventNumbers(context.outputs.journal, self._ledger)
        self.homes = Homes(context, island, self.topology, outbox, consumers=self.consumers, last_event=numbers.written)
        self.producer = Producer(
            context, self.topology, self.legs, self.homes, numbers=numbers, ledger=self._ledger, outbox=outbox
        )
        self.progress = ConsumerProgress(
            context, self.topology, self.clients, outbox, consumers=self.consumers, producer=self.producer
        )
        self._interests: dict[str, int] = {}
        """Numbers of the interests in results, by their destinations."""
        self._has_work = True
        """True if something happened since the last call of `finish` that it has to process."""
        self._inbox = Inbox(
            context, self.topology, self.legs,
            copy_handlers={
                items.Broker: self._announced, items.Entries: self._receive_topology,
                items.Attach: self.handoffs.attach, items.Handoff: self.handoffs.offered,
                items.State: self.handoffs.state,
            },
            item_handlers={
                items.Progress: self.progress.receive, items.Attached: self.homes.attached,
                items.Moving: self.homes.moving, items.Report: self._report,
                items.ModuleWanted: self.own_modules.wanted, items.Replay: self.producer.replay,
                items.Sent: self.reports.handle_item, items.Detour: self._detour,
                **dict.fromkeys((items.Ready, items.Detoured), self.handoffs.answered),
            },
        )  # fmt: skip

    def send(self, message: MessageId, brokers: Collection[NodeId], channel: str) -> None:
        """Pass on a message that is here; raises `LocalError` if that is impossible."""
        copy = self._holdings.cache.get(message)
        if copy is None or not copy.here or not copy.whole:
            raise StateError(f"the message {shown(message)} is not here, or not whole: publish it, or wait for it")
        self._has_work = True
        self.legs.send(copy, brokers, channel)

    # --- a layer -------------------------------------------------------------------------------------------

    def restore(self, rows: Iterable[tuple[Key, Value]]) -> None:
        """Carry messages between overlays, subscribe to those for this node, and restore rows."""
        found: dict[bytes, list[tuple[bytes, bytes]]] = {}
        for (_, name, _), row in rows:
            if isinstance(row, bytes):
                found.setdefault(name[:1], []).append((name, row))
        self.legs.restore(found.pop(legs.FAMILY, []))
        for restore, families in (
            (self._rows.restore, (lanes.FAMILY, processing.PARTS)), (self.clients.restore, (clients.FAMILY,)),
            (self.handoffs.restore, handoffs.FAMILIES), (self.consumers.restore, (consumers.FAMILY,)),
            (self.own_modules.restore, (modules.FAMILY,)), (self.producer.restore, (NUMBERS, PASSED)),
        ):  # fmt: skip
            for name, row in itertools.chain(*(found.get(each, ()) for each in families)):
                restore(name, row)
        self._deliveries.carry([entry(f"{prefix}.*") for prefix in address.CARRIED_BY_OVERLAYS])
        for destination in (address.OVERLAYS, address.overlay(self._node)):
            self._deliveries.want(entry(address.exactly(destination)), advertised=False)
        for each in self.consumers:
            self._want(each.destination)
            self.homes.attach(*each.key, broker=each.row.home)
        copies = self._holdings.known_copies()
        self.producer.start(copies)
        for copy in [each for each in copies if each.here and self.legs.is_at_home(each)]:
            self.legs.came_home(copy)

    def _want(self, destination: str) -> None:
        self._interests[destination] = self._deliveries.want(entry(address.exactly(destination)), advertised=False)

    # --- commands ------------------------------------------------------------------------------------------

    def consume(
        self, channel: str, now: int, modulator: Modulator | None = None, *, relocation: str, owner: str = ""
    ) -> str:
        """Subscribe to a channel; return the destination of its results."""
        check_channel(channel)
        self.own_modules.add(modulator)
        found = self.consumers.open(channel, now, modulator, relocation=relocation, owner=owner)
        self._want(found.destination)
        self.homes.attach(*found.key)
        self._look_ahead()
        return found.destination

    def change(self, destination: str, modulator: Modulator | None, now: int) -> None:
        """Give a subscription another modulator."""
        self.consumers.find(destination)
        self.own_modules.add(modulator)
        found = self.consumers.change(destination, modulator)
        self._forget_modules()
        self.homes.attach_again(found.key, now)
        self._look_ahead()

    def close(self, destination: str) -> None:
        """End a subscription, or this node's part as a producer of a channel."""
        channel = address.channel_of(destination)
        if channel is not None:
            self.homes.detach(items.Role.PRODUCER, channel, 0)
        else:
            found = self.consumers.close(destination)
            self._forget_modules()
            self._deliveries.unsubscribe([self._interests.pop(destination)])
            self.homes.detach(*found.key)
        self._look_ahead()

    def _forget_modules(self) -> None:
        used = (each.row.modulator for each in self.consumers)
        self.own_modules.keep({each.digest for each in used if each is not None})

    # --- a layer -------------------------------------------------------------------------------------------

    def started(self, incarnation: int, now: int) -> None:
        """Begin to announce this node, and to look for brokers."""
        self.topology.start(incarnation, now)
        self.clients.start(now)
        self.homes.start()
        self.handoffs.start(incarnation, now)
        self._look_ahead()

    def receive(self, copies: Sequence[Copy]) -> Sequence[Copy]:
        """Read messages for overlays. Results pass when it is their turn, all other copies at once."""
        self._has_work = self._has_work or bool(copies)
        for copy in copies:
            if not copy.here or not copy.descriptor.service.direct:
                continue
            destination = copy.descriptor.destination
            if destination.startswith(address.BETWEEN_OVERLAYS[0]):
                to_all = destination == address.OVERLAYS
                if to_all:  # From now on it is only carried, for those that did not read it yet.
                    self._holdings.cache.set_interesting(copy, False)
                mine = to_all or address.addressee(destination) == self._node
                if mine and copy.descriptor.node != self._node and not self._holdings.is_confirmed(copy):
                    self._inbox.receive(copy, to_all=to_all)
            elif self.legs.is_at_home(copy) and address.is_channel(destination):
                self.legs.came_home(copy)
        return self.consumers.receive(copies)

    def _announced(self, item: items.Broker, copy: Copy, now: int) -> None:
        self.topology.announced(item, copy.descriptor, copy.hops, now)
        if (info := self.topology.brokers.get(copy.descriptor.node)) is not None:
            self.homes.announced(info, now)

    def _receive_topology(self, item: items.Entries, copy: Copy, now: int) -> None:
        if self.topology.receive(item, copy.descriptor.node, now):
            self.channel.publish(placement.Propagated(copy.descriptor.node, now))

    def _report(self, item: items.Report, author: NodeId, now: int) -> bool:
        found = self.clients.table.at(author, items.Role.CONSUMER, item.channel, item.subscription)
        if found is None or not found.seated:
            return False
        brokers = tuple((NodeId(broker), hops) for broker, hops in item.brokers)
        self.channel.publish(
            placement.NearestBroker((author, item.channel, item.subscription), brokers, now, item.placed)
        )
        return True

    def _detour(self, item: items.Detour, author: NodeId, now: int) -> bool:
        self._receive_events()  # Those that were passed on already are among the last ones.
        return self.handoffs.detour(item, author, now)

    def compiled(self, digest: bytes, code: bytes, refusal: str, took_us: int) -> None:
        """Handle a module that the driver compiled, or the reason why that failed."""
        self.seats.modules.compiled(digest, code, refusal, took_us)
        self._look_ahead()

    def expire(self, now: int) -> None:
        """Do everything that is due."""
        for broker in self.topology.expire(now):
            self.homes.lost(broker, now)
            self.channel.publish(placement.BrokerLost(broker))
        if self.clients.table.due_us <= now:
            self.clients.expire(now)
        for part in (self.homes, self.seats, self.handoffs):
            if part.due_us <= now:
                part.expire(now)
        for each in self.consumers.expire(now) if self.consumers.due_us <= now else ():
            self.homes.attach_again(each.key, now)
        if self.load.due_us <= now and self.load.expire(now, self.seats.cut_off(self.topology)):
            self.channel.publish(placement.LoadChanged(self.load.predicted, now))
        if self.topology.look_us <= now and self.topology.begin_look(now):
            self.channel.publish(placement.Timer(now))

    def check_unit(self, drafts: Sequence[Draft], acks: Sequence[object]) -> None:  # noqa: ARG002 - it has none
        """Raise for events that cannot be sent, before any part of a unit of work takes effect."""
        channels = [name for each in drafts if (name := address.channel_of(each.destination))]
        self.homes.check_producers(dict.fromkeys(channels))

    def published(self, copies: Sequence[Copy]) -> None:
        """Process messages of this node that were admitted to the cache."""
        self.topology.published(copies)
        # No part of the overlay keeps a momentary message.
        if not (copies := [copy for copy in copies if not copy.descriptor.service.momentary]):
            return
        self._has_work = True
        for part in (self.producer, self.legs, self.own_modules, self.seats, self.handoffs):
            part.published(copies)

    def payload_read(self, copy: Copy, payload: bytes | Blank) -> None:
        """Handle the payload of an event, a checkpoint, or a message with the state of a seat."""
        self._has_work = True
        self.seats.payload_read(copy, payload)
        self.consumers.payload_read(copy, payload)
        self._inbox.payload_read(copy, payload)

    def last_event(self, destination: str) -> int | None:
        """Return the number of this node's last event to a channel."""
        channel = address.channel_of(destination)
        return None if channel is None else self.producer.numbers.last(channel)

    def event_home(self, destination: str) -> NodeId | None:
        """Return the home of this node's events to a channel."""
        channel = address.channel_of(destination)
        return None if channel is None else self.producer.home(channel)

    def confirmed(self, messages: Sequence[MessageId]) -> None:
        """Release results that the program confirmed."""
        self.consumers.confirmed(messages)

    def left(self, copies: Sequence[Copy], reason: Reason | None) -> None:
        """Note copies that are gone."""
        copies = [] if reason is None else [copy for copy in copies if not copy.descriptor.service.momentary]
        if reason is not None and copies:
            self.legs.left(copies)
            self.producer.left(copies, reason)
            self.seats.left(copies)
            self.consumers.left(copies)
            self._inbox.left(copies)
            self.handoffs.left(copies, reason)
            # Messages that were read, passed on or acknowledged leave with nearly every step, and nothing waits for it.
            if reason is not Reason.PURGED:
                self._look_ahead()

    def finish(self, now: int) -> Sequence[Draft]:
        """Return messages to publish, and drop those that were read. Most steps do not concern the overlay."""
        if self.homes.watch_us <= now and self.homes.watch(now):
            self._look_ahead()
        if not self._has_work and self.due_us > now:
            return ()
        self._inbox.finish()
        self.producer.work()
        if self.legs.events:
            self._receive_events()
        self._receive_modules(now)
        self.reports.work(now)
        self.handoffs.work(now)
        if self.consumers.have_advanced:
            self.progress.work()
        self._pass_own(now)
        results = [*self.own_modules.drafts(), *self.seats.work(now)]
        drafts = [*self._outbox.drafts(), *results, *self.legs.drafts(now)]
        if self.legs.fresh:
            self._settle()
        if drafts:  # They are published now, and `follow_up` looks ahead then.
            self._has_work = True
        else:
            self._look_ahead()
            self._has_work = False
        return drafts

    def _settle(self) -> None:
        """Release messages that all their legs pass on."""
        for copy in self.legs.settle():
            self.producer.passed(copy)

    def follow_up(self, now: int) -> Sequence[Draft]:
        """Process further events of seats whose results were just published."""
        results = self.seats.work_on(now)
        if self.legs.fresh:
            self._settle()
        if results:
            self._has_work = True
        elif self._has_work:
            self._look_ahead()
            self._has_work = bool(self.legs.fresh)  # Everything else that was published has its time.
        return results

    def _receive_modules(self, now: int) -> None:
        """Have modules read that arrived, and answer the clients that waited for them."""
        if self.legs.modules:
            arrived, self.legs.modules = self.legs.modules, []
            self.seats.modules.arrived(arrived)
        if self.seats.modules.settled or self.clients.again_us <= now:
            self.seats.modules.settled = False
            self.clients.attach_again(now)

    def _receive_events(self) -> None:
        """Give seats the events that arrived."""
        arrived, self.legs.events = self.legs.events, []
        for copy, channel in arrived:
            event = copy.descriptor.original
            self.clients.last_events.passed(event.node, channel, event_of(event))
            self.seats.arrived(copy, channel)

    def _pass_own(self, now: int) -> None:
        """Process items of this node to itself. The answer of one part may be the question of another."""
        self.clients.last_events.report(self._outbox)
        while own := self._outbox.pop_own():
            for item, payload in own:
                if isinstance(item, items.Attach):
                    self.handoffs.attach_own(item, payload, now)
                else:
                    self._inbox.handle_own(item, self._node)
            self._receive_events()
            self.clients.last_events.report(self._outbox)

    def _look_ahead(self) -> None:
        self._has_work = True
        self.due_us = min(
            self.topology.due_us, self.legs.due_us, self.clients.table.due_us, self.clients.again_us,
            self.homes.due_us, self.seats.due_us, self.consumers.due_us, self.handoffs.due_us, self.load.due_us,
        )  # fmt: skip
