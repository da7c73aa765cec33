"""Gaps: events that are missing in the lanes of seats, and their recovery.

An event that comes before its turn waits in a lane. The events before it are requested (`Replay`) from their producer,
and are skipped if the producer does not have them any more, or after `gap_s`. A seat that hears of a producer for the
first time asks it for the events that it sent since the consumer subscribed. Callers pass the seats concerned, which
`overlay.seats` has.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from carrypost.model.ids import NodeId
from carrypost.model.times import NEVER
from carrypost.overlay.event_numbers import event_of
from carrypost.overlay.items import Gone, Item, Replay, Sent, Start
from carrypost.overlay.lanes import ASK_ON_US, ASK_US, ASK_US_MAX, Lane, Room, Seat, WaitingEvents

if TYPE_CHECKING:
    from collections.abc import Container

    from carrypost.gossip.holdings.copies import Copy
    from carrypost.gossip.transfers.host_context import HostContext
    from carrypost.model.ids import MessageId
    from carrypost.overlay.legs import Legs


class Gaps:
    """The lanes of one broker's seats, and requests for the events missing in them."""

    def __init__(self, context: HostContext, legs: Legs) -> None:
        self._holdings, self._outputs = context.holdings, context.outputs
        self._clients_max, self._gap_us = context.limits.clients_max, round(context.settings.overlay.gap_s * 1e6)
        self._replay_max = context.limits.replay_events_max
        self.room = Room(legs, context.limits)
        self._items: list[tuple[NodeId, Item]] = []
        self._started = False

    def start(self) -> None:
        """Begin to look for missing events: before that, the time is not known."""
        self._started = True

    def pop_items(self) -> list[tuple[NodeId, Item]]:
        """Return the items for producers, each once, and forget them: several seats may ask for the same events."""
        items, self._items = self._items, []
        # A dict and not a set: the order of messages must not differ between two runs of one seed.
        return list(dict.fromkeys(items))

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
            for number in [number for number, copy in lane.events.items() if copy.id in gone]:
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

    def handle_item(self, seat: Seat, item: Start | Gone | Sent, author: NodeId, *, listed: int) -> None:
        """Process the answer of a producer about missing events, or a report of producers' homes.

        `listed`: the author is a broker with so many producers. What it reports of these counts until they report
        something else themselves.
        """
        if isinstance(item, Start):
            self._start(seat, item, author)
        elif isinstance(item, Gone):
            self._skip(seat, item, author)
        else:
            for producer, number in item.last:
                if producer == author or self._may_report(seat, producer, author, listed):
                    self._sent(seat, NodeId(producer), number, author)

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

    def _start(self, seat: Seat, item: Start, producer: NodeId) -> None:
        """Process the number from which on a producer's events are for a seat, as the producer reports."""
        unknown = producer not in seat.row.cursors and item.since_us == seat.since_us
        if unknown and self._lane(seat, producer) is not None:
            seat.row.cursors[producer] = item.number
            self._advanced(seat, producer)

    def _skip(self, seat: Seat, item: Gone, producer: NodeId) -> None:
        """Skip events that their producer does not have any more."""
        for after, upto in item.runs:
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
        self._advanced(seat, producer)

    def _advanced(self, seat: Seat, producer: NodeId) -> None:
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

    def here(self, seat: Seat, waiting: WaitingEvents, now: int) -> list[Copy]:
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
        asked = Replay(seat.client.item.channel, *gap, 0 if known else seat.since_us)
        self._items.append((producer, asked))
        last = gap[0] + self._replay_max
        lane.more_after, lane.more_us = last if known and last < gap[1] else -1, now + ASK_ON_US
        lane.ask_us = now + lane.delay_us
        # Doubled: more questions do not help while the producer is out of reach.
        lane.delay_us = min(2 * lane.delay_us, ASK_US_MAX)
