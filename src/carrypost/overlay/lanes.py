"""Lanes: events of producers that wait in a seat for their turn, and the room for them; and the seat itself.

The events of one producer have a lane in each seat of their channel. A lane is bounded in events and bytes, and so are
all lanes of a broker together, in which a message that waits for several seats counts once. If there is no room, later
events are dropped for earlier ones of their lane: otherwise a lane could fill up with events that wait for one that
finds no place. A lane always holds one event. Dropped events are requested again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, cast

import msgspec

from carrypost.model import address
from carrypost.model.headers import RUNS_MAX
from carrypost.model.ids import NodeId
from carrypost.model.times import NEVER
from carrypost.overlay.items import Replay, event_of
from carrypost.overlay.processing import with_cursor, without_repeated
from carrypost.overlay.relocation import Snapshot, digest

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Mapping

    from carrypost.config import Limits, Settings
    from carrypost.gossip.holdings.copies import Copy
    from carrypost.gossip.transfers.link import HostContext
    from carrypost.model.descriptor import Descriptor
    from carrypost.model.ids import MessageId
    from carrypost.overlay.items import Outbox, Sent
    from carrypost.overlay.legs import Legs
    from carrypost.overlay.processing import Processing, SeatRow
    from carrypost.overlay.tables import Client

FAMILY = b"S"
"""First byte of the names of the rows of seats."""
ASK_US, ASK_US_MAX = 1_000_000, 30_000_000
"""Shortest and longest delay before a producer is asked for missing events."""
ASK_ON_US = 600_000
"""Shortest delay after a question before the producer is asked for more: it answers a broker twice a second."""
LANES = 16
"""Number of full lanes that a broker has room for."""


class Lane(msgspec.Struct, eq=False):
    """Events of one producer that wait, and the state of those that are missing."""

    events: dict[int, Copy] = {}
    """Events by number that are not processed yet."""
    nbytes: int = 0
    """Bytes of the events' payloads."""
    last: int = 0
    """Number of the producer's last event that this broker heard of."""
    said_by: NodeId | None = None
    """Broker that reported of the producer before an event came; None: the producer itself, or an event."""
    since_us: int = NEVER
    """Time since which something is missing."""
    sent_us: int = 0
    """Time of the last event that was processed, by its producer's clock; 0: not known."""
    ask_us: int = NEVER
    """Time at which the producer is asked."""
    delay_us: int = ASK_US
    more_after: int = -1
    """Number of the last event that the answer to a question can bring, if more are missing; else -1."""
    more_us: int = 0
    """Time from which on the producer may be asked for those after it."""


class Room:
    """Room for the events in the lanes of one broker."""

    def __init__(self, legs: Legs, limits: Limits) -> None:
        self._legs = legs
        self._events_max, self._bytes_max = limits.lane_events_max, limits.lane_bytes_max
        self.held: dict[MessageId, int] = {}
        """Messages that wait, and the number of lanes that they wait in; bounded by the lanes."""
        self.bytes = 0
        """Bytes of the payloads of these messages."""

    def keep(self, lane: Lane, number: int, copy: Copy) -> bool:
        """Keep an event in its lane, dropping later ones if necessary; return False if there is no room."""
        # An empty lane accepts an event of any size. Otherwise an event larger than the bound would
        # be requested in vain until it is given up, and be lost.
        while lane.events and not self._fits(lane, copy):
            if (last := max(lane.events)) < number:
                return False
            self.release(lane, last)
        lane.events[number] = copy
        lane.nbytes += copy.descriptor.length
        if copy.id not in self.held:
            self.bytes += copy.descriptor.length
        self.held[copy.id] = self.held.get(copy.id, 0) + 1
        self._legs.hold(copy)
        return True

    def _fits(self, lane: Lane, copy: Copy) -> bool:
        nbytes = copy.descriptor.length
        # A message that waits in several lanes is one copy in the cache, and counts once.
        in_all = self.bytes + (0 if copy.id in self.held else nbytes)
        fits = len(lane.events) < self._events_max and lane.nbytes + nbytes <= self._bytes_max
        return fits and in_all <= LANES * self._bytes_max

    def release(self, lane: Lane, number: int) -> None:
        """Release an event that was processed, or is not needed."""
        self._legs.release(self.remove(lane, number))

    def release_upto(self, lane: Lane, cursor: int) -> None:
        """Release all events up to this one."""
        for number in [number for number in lane.events if number <= cursor]:
            self.release(lane, number)

    def remove(self, lane: Lane, number: int) -> Copy:
        """Forget an event whose message is gone. Returns its copy."""
        copy = lane.events.pop(number)
        lane.nbytes -= copy.descriptor.length
        self.held[copy.id] -= 1
        if not self.held[copy.id]:
            del self.held[copy.id]
            self.bytes -= copy.descriptor.length
        return copy

    def clear(self, lane: Lane) -> None:
        """Release all events of a lane."""
        for number in list(lane.events):
            self.release(lane, number)


class Leaving(NamedTuple):
    """Results of one event, on their way to the consumer."""

    row: SeatRow
    """The seat once they are published."""
    numbers: set[int]
    """Numbers of results that are not published yet."""
    event: Descriptor | None = None
    """The event; None: they cover events that gave no results."""


class Seat:
    """The seat of one subscription."""

    def __init__(self, client: Client, row: SeatRow, processing: Processing, checkpoints: Checkpoints) -> None:
        self.client, self.row, self.processing, self.checkpoints = client, row, processing, checkpoints
        self.name = name_of(client)
        """Name of its row."""
        self.destination = address.results(client.node, str(client.item.subscription))
        """Destination of its results."""
        self.lanes: dict[NodeId, Lane] = {}
        self.leaving: Leaving | None = None
        """Results that were passed to the host to publish."""
        self.reading: Copy | None = None
        """The event that is processed next, whose payload is being read."""
        self.booked: Copy | None = None
        """The event that is at work until `after_us`, where nothing measures how long it takes."""
        self.cover_us = NEVER
        """Time at which the consumer is informed of events that gave no result."""
        self.after_us = 0
        """Time before which nothing is processed."""
        self.keep_us = 0
        """Time at which its modulator is asked again about results for a consumer that cannot be reached."""
        self.pause_us = 0
        """Pause after the last event, because its client's own code failed; 0 if it did not."""
        self.suspended = False
        """True if it moved away: a copy is kept, and works no more."""
        self.stops: Mapping[NodeId, int] | None = None
        """By producer: the last event that it processes before it moves away; None: it stays."""
        self.skips: set[NodeId] = set()
        """Producers whose next event may leave a gap: those before it came while the seat moved."""
        self.spoke_us = 0
        """Time of its last result."""
        self.flow = Flow()
        """Bytes that it got and sent."""
        self.opened_us = 0
        """Time since which it is here, in this incarnation of the broker."""
        self.next_us = 0
        """Time before which there is nothing to do for it, unless it is changed; 0: not known."""

    @property
    def awaits_state(self) -> bool:
        """True if it must not work before its state comes, from another broker or from the consumer."""
        item = self.client.item
        return not self.row.epoch or (item.adopts and item.epoch > self.row.epoch)

    @property
    def since_us(self) -> int:
        """Time from which on events of producers without a cursor count."""
        return max(self.client.item.since_us, self.row.since_us)

    @property
    def is_idle(self) -> bool:
        """True if it processes nothing: it moved away, or its state or its module has to come first."""
        return self.suspended or self.awaits_state or self.processing.is_absent

    @property
    def is_settled(self) -> bool:
        """True if the seat works, and nothing is in progress that another broker would have to know."""
        row = self.row
        return not (self.is_idle or row.repeats or row.lacks) and self.stops is None

    def snapshot(self, *, state: bool) -> Snapshot:
        """Return a snapshot of the seat; `state`: with the modulator's state."""
        row = self.row
        kept = row.state if state else b""
        return Snapshot(
            row.epoch, row.number, row.cursors, kept, digest(self.client.item.modulator), row.runs,
            discarded=row.discarded, since_us=row.since_us,
        )  # fmt: skip

    @property
    def unfinished(self) -> Descriptor | None:
        """The event of which some results found no room: it is processed again before anything else.

        The others are on their way, with numbers that must not become those of other results.
        """
        return self.leaving.event if self.leaving is not None and self.leaving.numbers else None

    @property
    def checkpoint_us(self) -> int:
        """Time of the next checkpoint."""
        if self.processing.instance is None or self.row.repeats or self.unfinished is not None:
            return NEVER
        if self.row.lacks or not self.row.begun:
            return 0
        return self.checkpoints.due_us(self.row) if self.processing.has_state else NEVER

    def look_ahead(self) -> None:
        """Note the time at which there is something to do for it."""
        self.next_us = min([lane.ask_us for lane in self.lanes.values()], default=NEVER)
        if not self.is_idle:
            cover_us = self.cover_us if self.unfinished is None else NEVER
            self.next_us = min(
                self.next_us, max(self.after_us, 0 if self.heads() else min(cover_us, self.checkpoint_us))
            )

    def heads(self) -> list[Copy]:
        """Return the events that can be processed next: one of each producer, or the one that has to be repeated."""
        lanes, cursors, stops = self.lanes, cast("Mapping[NodeId, int]", self.row.cursors), self.stops
        first = self.unfinished.node if self.unfinished is not None else None
        if first is None and self.row.repeats:
            first = NodeId(self.row.repeats[0][0])
        return [
            lanes[each].events[cursors[each] + 1]
            for each in (cursors if first is None else [first])
            if each in lanes
            and cursors[each] + 1 in lanes[each].events
            # The new home gets all later events, too. A seat that went on with them would never be done
            # with its last events while producers send more.
            and (stops is None or cursors[each] < stops.get(each, 0))
        ]

    def has_next(self, copy: Copy) -> bool:
        """Return True if the event after this one is here, too."""
        event = copy.descriptor.original
        return event_of(event) + 1 in self.lanes[event.node].events

    def pass_over(self, producer: NodeId, upto: int) -> int:
        """Let a cursor skip events; return how many of them were to be repeated.

        The next result says where the gap begins, by a run without events: the consumer may not know the producer yet.
        If results cannot have more runs, nothing is skipped before one has reported those there are.
        """
        row, before = self.row, self.row.cursors[producer]
        if (unfinished := self.unfinished) is not None and unfinished.node == producer:
            self.leaving = None  # The event is gone; while it is awaited, no result reports any runs.
            self.processing.restore(row.state)
        reported = row.runs
        if not any(each == producer for each, _, _ in (*reported, *row.repeats)):
            # One run is left for the next event, which a result has to cover, too.
            if len(reported) >= RUNS_MAX - 1:
                self.cover_us = 0
                return 0
            reported = [*reported, (producer, before, before)]
        runs = [(max(after, before), min(last, upto)) for each, after, last in row.repeats if each == producer]
        lacking = sum(max(last - after, 0) for after, last in runs)
        lacks = row.lacks | {producer: row.lacks.get(producer, 0) + lacking} if lacking else row.lacks
        cursors = with_cursor(row.cursors, producer, upto)
        self.row = without_repeated(msgspec.structs.replace(row, cursors=cursors, runs=reported, lacks=lacks))
        return lacking

    def is_unsure(self, producer: NodeId, before_us: int) -> bool:
        """Return True if a producer is known by hearsay only, or has not said since then where its events begin."""
        lane = self.lanes[producer]
        return producer not in self.row.cursors and (not lane.events or lane.since_us <= before_us)

    def idle(self) -> NodeId | None:
        """Return the producer that was processed longest ago, and of which nothing waits or is missing."""
        if self.stops is not None or self.suspended or self.awaits_state:
            return None
        kept = {each for each, _, _ in self.row.repeats} | self.row.lacks.keys()
        for each in self.row.cursors:
            lane = self.lanes.get(NodeId(each))
            if (lane is None or (not lane.events and lane.ask_us == NEVER)) and each not in kept:
                return NodeId(each)
        return None

    def forget(self, producer: NodeId, now: int) -> None:
        """Forget the cursor of a producer: its events count again if they are later than the last one processed."""
        lane = self.lanes.get(producer)
        sent_us = lane.sent_us if lane is not None and lane.sent_us else self.opened_us
        for row in (self.row, *(() if self.leaving is None else (self.leaving.row,))):
            row.cursors = {each: number for each, number in row.cursors.items() if each != producer}
            # Not later than now: the producer's clock may be wrong, or lie.
            row.since_us = max(row.since_us, min(sent_us + 1, now))
        self.skips.discard(producer)

    def gap(self, producer: NodeId) -> tuple[int, int] | None:
        """Return the numbers before and at the end of what is missing of a producer, if later events are known."""
        cursor, lane = self.row.cursors.get(producer), self.lanes[producer]
        if self.suspended or self.awaits_state or producer in self.skips:
            return None
        if cursor is not None and cursor + 1 in lane.events:
            return None  # By far the most frequent case: nothing is missing before the next event.
        upto = min((number for number in lane.events if number > (cursor or 0)), default=lane.last + 1) - 1
        if cursor is None:
            return (0, upto) if lane.events or lane.last else None
        return (cursor, upto) if upto > cursor else None

    def waits(self, producer: NodeId) -> bool:
        """Return True if later events of a producer, or those to repeat, wait for missing ones.

        They do not while it is not known where the events of the producer begin: lost ones could not be counted.
        """
        cursor = self.row.cursors.get(producer)
        if any(each == producer for each, _, _ in self.row.repeats):
            return True
        return cursor is not None and any(number > cursor for number in self.lanes[producer].events)


def known_lanes(seats: Iterable[Seat]) -> dict[NodeId, Lane]:
    """Return empty lanes that know the last events of producers, as far as some seats of the same channel do."""
    found: dict[NodeId, Lane] = {}
    for seat in seats:
        for producer, lane in seat.lanes.items():
            known = found.setdefault(producer, Lane())
            known.last, known.said_by = max(known.last, lane.last), lane.said_by
    return found


class WaitingEvents:
    """Events in the lanes of seats, by channel. Those of a channel are collected when they are first asked for."""

    def __init__(self, seats: Mapping[str, Mapping[bytes, Seat]]) -> None:
        self._seats = seats
        self._found: dict[str, dict[NodeId, dict[int, Copy]]] = {}

    def of(self, channel: str, producer: NodeId) -> Mapping[int, Copy]:
        """Return the events of a producer that wait, by number."""
        if channel not in self._found:
            found = self._found[channel] = {}
            for seat in self._seats.get(channel, {}).values():
                for each, lane in seat.lanes.items():
                    found.setdefault(each, {}).update(lane.events)
        return self._found[channel].get(producer, {})


def date_of(copy: Copy) -> tuple[int, str]:
    """Return the key that orders events of several producers: by date."""
    # The date of the event itself. The leg that brought it was made by a broker, later, and a
    # detour would change the order.
    event: Descriptor = copy.descriptor.original
    return event.created_us, event.node


def name_of(client: Client) -> bytes:
    """Return the name of a seat's row."""
    return FAMILY + client.digest


# --- gaps --------------------------------------------------------------------------------------------------

# Gaps: events that are missing in the lanes of seats, and their recovery.
#
# An event that comes before its turn waits in a lane. The events before it are requested (`Replay`)
# from their producer, and are skipped if the producer does not have them any more, or after
# `gap_s`. A seat that hears of a producer for the first time asks it for the events that it sent
# since the consumer subscribed. Callers pass the seats concerned, which `overlay.seats` has.


class Gaps:
    """The lanes of one broker's seats, and requests for the events missing in them."""

    def __init__(self, context: HostContext, legs: Legs, outbox: Outbox) -> None:
        self._holdings, self._outputs, self._outbox = context.holdings, context.outputs, outbox
        self._clients_max, self._gap_us = context.limits.clients_max, round(context.settings.overlay.gap_s * 1e6)
        self._replay_max = context.limits.replay_events_max
        self.room = Room(legs, context.limits)
        self._started = False

    def start(self) -> None:
        """Begin to look for missing events: before that, the time is not known."""
        self._started = True

    # --- lanes ---------------------------------------------------------------------------------------------

    def enter(self, seat: Seat, copy: Copy) -> bool:
        """Add an event to its lane. Returns True if the seat will process it and did not have it before."""
        event = copy.descriptor.original
        number, producer = event_of(event), event.node
        if (lane := self._lane(seat, producer, has_events=True)) is None:
            return False
        cursor = seat.row.cursors.get(producer)
        if producer in seat.skips:
            self.skip_to(seat, producer, number)
            cursor = seat.row.cursors[producer]
        # The first event of all needs no question about the beginning, unless its producer may have been forgotten.
        elif cursor is None and number == 1 and event.created_us >= seat.row.since_us:
            cursor = seat.row.cursors[producer] = 0
        lane.last = max(lane.last, number)
        if number in lane.events or (cursor is not None and number <= cursor):
            return False
        kept = self.room.keep(lane, number, copy)
        if not kept:
            self._outputs.refuse("lanes", producer, event.shown)
        self.look(seat, producer)
        return kept and (seat.stops is None or number <= seat.stops.get(producer, 0))

    def skip_to(self, seat: Seat, producer: NodeId, number: int) -> None:
        """Skip events that came before one while the seat moved, if its consumer allows it."""
        if producer in seat.skips and number > seat.row.cursors[producer]:
            seat.skips.discard(producer)
            seat.pass_over(producer, number - 1)

    def _lane(self, seat: Seat, producer: NodeId, *, has_events: bool = False) -> Lane | None:
        """Return the lane of a producer; None if there is no room for one more, after counting a refusal.

        Any node can name producers that do not exist. So an unconfirmed producer loses its lane to the next one, and
        only a producer that `has_events` displaces the one that was idle for the longest time.
        """
        if (lane := seat.lanes.get(producer)) is not None:
            return lane
        known = seat.lanes.keys() | seat.row.cursors.keys()
        if len(known) >= self._clients_max and producer not in known:
            before_us = self._holdings.now_us - self._gap_us
            unsure = next((each for each in seat.lanes if seat.is_unsure(each, before_us)), None)
            displaced = seat.idle() if unsure is None and has_events else unsure
            if displaced is None:
                self._outputs.refuse("lanes", producer)
                return None
            if displaced in seat.row.cursors:
                seat.forget(displaced, self._holdings.now_us)
            if (lane := seat.lanes.pop(displaced, None)) is not None:
                self.room.clear(lane)
        lane = seat.lanes[producer] = Lane()
        return lane

    def forget(self, seat: Seat, gone: Container[MessageId]) -> None:
        """Forget events that are gone: they are requested again."""
        for producer, lane in seat.lanes.items():
            found = [number for number, copy in lane.events.items() if copy.id in gone] if lane.events else ()
            for number in found:
                seat.next_us = 0
                if lane.events[number] is seat.reading:
                    seat.reading = None
                self.room.remove(lane, number)
                self.look(seat, producer)

    def clear(self, seat: Seat) -> None:
        """Release all events of a seat."""
        for lane in seat.lanes.values():
            self.room.clear(lane)

    # --- answers -------------------------------------------------------------------------------------------

    def handle_item(self, seat: Seat, item: Sent, author: NodeId, *, listed: int) -> None:
        """Process the answer of a producer about missing events, or a report of producers' homes.

        `listed`: the author is a broker with so many producers. What it reports of these counts until they report
        something else themselves.
        """
        for producer, number in item.last:
            if producer == author or self._may_report(seat, producer, author, listed):
                self._sent(seat, NodeId(producer), number, author)
        if item.since_us:
            self._start(seat, item, author)
        self._skip(seat, item, author)

    def _may_report(self, seat: Seat, producer: str, author: NodeId, listed: int) -> bool:
        """Return True if a broker may report of a producer: it does not report of more unknown ones than it lists."""
        if producer in seat.row.cursors or producer in seat.lanes:
            return listed > 0
        return sum(lane.said_by == author for each, lane in seat.lanes.items() if each not in seat.row.cursors) < listed

    def _sent(self, seat: Seat, producer: NodeId, number: int, author: NodeId) -> None:
        """Process the number of a producer's last event, as the producer or its home reports it."""
        final, is_new = producer == author, producer not in seat.lanes
        if (lane := self._lane(seat, producer)) is not None:
            if is_new and not final:
                lane.said_by = author
            # Only the producer itself may lower the number: a broker that reported too high a one,
            # by mistake or on purpose, would make the seat ask for events that never existed, until
            # the producer answers.
            lane.last = number if final else max(lane.last, number)
            self.look(seat, producer)

    def _start(self, seat: Seat, item: Sent, producer: NodeId) -> None:
        """Process the number from which on a producer's events are for a seat, as the producer reports."""
        unknown = producer not in seat.row.cursors and item.since_us == seat.since_us
        if unknown and self._lane(seat, producer) is not None:
            seat.row.cursors[producer] = item.before
            self._cursor_moved(seat, producer)

    def _skip(self, seat: Seat, item: Sent, producer: NodeId) -> None:
        """Skip events that their producer does not have any more."""
        for after, upto in item.gone:
            gap, cursor = None, seat.row.cursors.get(producer)
            if producer in seat.lanes:
                gap = seat.gap(producer)
            # Only up to the end of the present gap. Events after it are here, though the producer
            # may have dropped its own copies.
            if cursor is not None and gap is not None and after <= cursor < upto:
                self._pass_over(seat, producer, min(upto, gap[1]))

    def _pass_over(self, seat: Seat, producer: NodeId, upto: int) -> None:
        """Skip events that no node has. Those to repeat are missing in the state: count and report them."""
        if repeated := seat.pass_over(producer, upto):
            self._outputs.refuse("repeats", producer, count=repeated)
        self._cursor_moved(seat, producer)

    def _cursor_moved(self, seat: Seat, producer: NodeId) -> None:
        """Release events that a cursor passed without processing them."""
        lane = seat.lanes[producer]
        self.room.release_upto(lane, seat.row.cursors[producer])
        lane.since_us = NEVER
        self.look(seat, producer)

    # --- asking --------------------------------------------------------------------------------------------

    def expect(self, seat: Seat) -> None:
        """Look for events that have to be repeated, or were released, and request them again."""
        for producer, _, upto in seat.row.repeats:
            if (lane := self._lane(seat, NodeId(producer), has_events=True)) is not None:
                lane.last = max(lane.last, upto)
        for producer in seat.lanes:
            lane = seat.lanes[producer]
            lane.since_us = NEVER
            self.look(seat, producer)

    def look(self, seat: Seat, producer: NodeId) -> None:
        """Note since when something of a producer is missing, and when it is requested."""
        lane = seat.lanes[producer]
        if not self._started or seat.gap(producer) is None:
            lane.since_us = lane.ask_us = NEVER
            lane.delay_us = ASK_US
        elif lane.since_us == NEVER:
            cursor, now = seat.row.cursors.get(producer), self._holdings.now_us
            lane.since_us = now
            # Events overtake each other on different paths, so a gap is given time to close by
            # itself. Of a new producer nothing is processed before it answers, hence no delay. Nor
            # does a gap close by itself that one answer was too small for.
            if cursor is None:
                lane.ask_us = now
            elif cursor == lane.more_after:
                lane.ask_us = max(now, lane.more_us)
            else:
                lane.ask_us = now + lane.delay_us

    def held_by_others(self, seat: Seat, waiting: WaitingEvents, now: int) -> list[Copy]:
        """Return events that a seat would ask producers for now, though other seats of the channel have them.

        A producer does not send an event again to a broker that has not acknowledged it, and the broker does that when
        all its seats have processed it. A seat with much work would keep it from one that came later.
        """
        found: list[Copy] = []
        # Not of a producer whose beginning is unknown: its first events may be older than the
        # subscription.
        for producer in [each for each, lane in seat.lanes.items() if lane.ask_us <= now and each in seat.row.cursors]:
            after, upto = seat.gap(producer) or (0, 0)
            lacks, events = range(after + 1, upto + 1), waiting.of(seat.client.item.channel, producer)
            # The shorter one: other nodes may name later events that do not exist.
            shorter = lacks if len(lacks) < len(events) else sorted(events)
            found += [events[number] for number in shorter if number in lacks and number in events]
        return found

    def expire(self, seat: Seat, now: int) -> None:
        """Ask producers for missing events; skip those that are missing for long."""
        for producer, lane in list(seat.lanes.items()):
            if lane.ask_us > now:
                continue
            # Its home reports a producer that exists again, when that attaches or renews its lease.
            if producer not in seat.row.cursors and not lane.events and now - lane.since_us >= self._gap_us:
                del seat.lanes[producer]
            else:
                self._ask(seat, producer, lane, now)

    def _ask(self, seat: Seat, producer: NodeId, lane: Lane, now: int) -> None:
        gap = seat.gap(producer)
        if gap is None:
            self.look(seat, producer)
            return
        if now - lane.since_us >= self._gap_us and seat.waits(producer):
            self._pass_over(seat, producer, gap[1])
            return
        known = producer in seat.row.cursors
        self._outbox.add(producer, Replay(seat.client.item.channel, *gap, 0 if known else seat.since_us))
        last = gap[0] + self._replay_max
        lane.more_after, lane.more_us = last if known and last < gap[1] else -1, now + ASK_ON_US
        lane.ask_us = now + lane.delay_us
        # Doubled: more questions do not help while the producer is out of reach.
        lane.delay_us = min(2 * lane.delay_us, ASK_US_MAX)


# --- flow --------------------------------------------------------------------------------------------------

# Flow: the bytes that a seat received and sent for its latest events.
#
# Both count payloads and descriptors: of events as their producers sent them, and of results as
# they leave. Checkpoints do not count: they are a small part of all bytes, and the first one of a
# seat would look like a burst of results.


_EVENTS_MIN, _EVENTS_MAX = 8, 64
"""Events after which a ratio is known, and after which all counts are halved, so that old events fade."""


class Flow:
    """Bytes through one seat."""

    def __init__(self) -> None:
        self._events, self._got, self._sent = 0, 0, 0

    def got(self, nbytes: int) -> None:
        """Count an event that is processed."""
        if self._events >= _EVENTS_MAX:
            self._events, self._got, self._sent = self._events // 2, self._got // 2, self._sent // 2
        self._events += 1
        self._got += nbytes

    def sent(self, nbytes: int) -> None:
        """Count a result."""
        self._sent += nbytes

    @property
    def ratio(self) -> float | None:
        """Bytes sent for each byte received; None as long as too few events were processed."""
        return self._sent / self._got if self._events >= _EVENTS_MIN else None


# --- checkpoints -------------------------------------------------------------------------------------------

# Checkpoints: when a seat sends its state to the consumer.
#
# A checkpoint is a result that has nothing for the program: its payload is a snapshot of the seat.
# It has a number as any result, so it fits what the consumer accepted before it exactly. A seat
# whose modulator has a state sends one when that state begins, and then every `checkpoint_s` as
# long as there are events, if it has at most `checkpoint_share` of the bytes of results since the
# last one. Up to 1 KiB are always allowed. It also sends one before the consumer would have to
# remember more than `runs_max` runs of events. A modulator without a state has one checkpoint,
# which says so.


_FREE_BYTES = 1024
"""Checkpoints up to this length are sent, however few bytes of results there were since the last one."""
_CURSOR_BYTES = 32
"""Estimated bytes of one cursor in a checkpoint."""


class Checkpoints:
    """The checkpoints of one seat."""

    def __init__(self, settings: Settings, now: int) -> None:
        self._every_us, self._share = round(settings.overlay.checkpoint_s * 1e6), settings.overlay.checkpoint_share
        # Results that are made of one event may have RUNS_MAX runs before it.
        self._runs_max = max(settings.limits.runs_max - RUNS_MAX, 1)
        self._since_us = now
        self._runs = 1  # Perhaps of an earlier incarnation.
        self._bytes = 0
        self._last: tuple[str, int] | None = None
        """The last event that was processed."""

    def processed(self, producer: str, number: int) -> None:
        """Note an event that was processed."""
        self._runs += self._last != (producer, number - 1)
        self._last = producer, number

    def sent(self, nbytes: int) -> None:
        """Note a result that was sent."""
        self._bytes += nbytes

    def begin(self, now: int, *, runs: int = 0) -> None:
        """Note a checkpoint that was sent, or a state that came with this many runs of events after its checkpoint."""
        self._since_us, self._bytes, self._last = now, 0, None
        self._runs = runs

    def due_us(self, row: SeatRow) -> int:
        """Return the time of the next checkpoint, of a seat whose modulator has a state."""
        if not self._runs:
            return NEVER
        if self._runs >= self._runs_max:
            return 0
        size = len(row.state) + len(row.cursors) * _CURSOR_BYTES
        return self._since_us + self._every_us if size <= max(_FREE_BYTES, self._share * self._bytes) else NEVER
