"""The steps of one host: every command and every input is one.

A step begins with what is due: copies expire, and so do things that layers hold. Then comes the input or command. It
ends with the consequences: durable commands commit, changed interests are applied, layers publish their drafts,
neighbours are answered, and the driver is informed.
"""

# Why steps. Between two inputs a host must be consistent: bitsets without freed slots, nothing due
# that has not been done, every change in the journal together with the events that depend on it.
# Instead of asking each command to restore that, every command runs inside the same three phases.
#
#     begin     expire what is due by `now`, so that nothing acts upon a copy that is dead already
#     (body)    the command or the input
#     finish    report, commit, publish, sweep, deliver, answer, in this order
#
# The order of `finish` is not arbitrary. Arrivals are reported before anything is dropped for them.
# Layers publish before the sweep, since a draft may replace a copy. The sweep comes before
# neighbours are answered: an offer must not name a slot that is about to be reused.

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from carrypost.errors import IllegalStateException
from carrypost.gossip.draft import Draft
from carrypost.gossip.layer import Layer
from carrypost.log.events import Done
from carrypost.log.journal import DATE
from carrypost.model.times import MICROSECONDS, NEVER

if TYPE_CHECKING:
    from collections.abc import Sequence

    from carrypost.application.deliveries import Deliveries
    from carrypost.gossip.discovery.neighbours import Neighbours
    from carrypost.gossip.holdings.copies import Copy
    from carrypost.gossip.strategy.strategy import Strategy
    from carrypost.gossip.transfers.arrivals_and_removals import Arrivals, Removals
    from carrypost.gossip.transfers.link import HostContext, Link
    from carrypost.host.units_of_work import UnitsOfWork
    from carrypost.log.journal import Batch
    from carrypost.model.ids import MessageId

_DATE_US: Final = 60 * MICROSECONDS
"""Least time between two dates in the store."""
_SURE_US: Final = 3_600 * MICROSECONDS
"""Time after which a step of the clock forward is believed."""


class _Step:
    """One step. It ends normally even if its body raises."""

    __slots__ = ("_links", "_now", "_number", "_steps")

    def __init__(self, steps: Steps, now: int, *, links: bool, number: int | None) -> None:
        self._steps, self._now, self._links, self._number = steps, now, links, number

    def __enter__(self) -> None:
        if self._number is not None:
            self._steps.check_number(self._number)
        self._steps.begin(self._now)

    def __exit__(self, error: type[BaseException] | None, *_: object) -> None:
        if self._number is not None and error is None:
            self._steps.answer(self._number)
        self._steps.finish(self._now, links=self._links)


class Steps:
    """Begins and finishes the steps of one host, and makes those that are due."""

    def __init__(
        self,
        host_context: HostContext,
        deliveries: Deliveries,
        units: UnitsOfWork,
        *,
        departures: Removals,
        receptions: Arrivals,
        strategy: Strategy[Any],
        neighbours: Neighbours,
    ) -> None:
        self._holdings, self._outputs, self._links = host_context.holdings, host_context.outputs, host_context.links
        self._journal = host_context.outputs.journal
        self._cache, self._deadlines = host_context.holdings.cache, host_context.holdings.cache.deadlines
        self._deliveries, self._interest_changes = deliveries, deliveries.interest_changes
        self._units, self._layers, self._timed = units, units.layers, units.layers.timed
        self._publisher = units.publisher
        self._removals, self._arrivals = departures, receptions
        self._strategy, self._transfers = strategy, strategy.transfers
        self._neighbours, self._schedule = neighbours, host_context.links.schedule
        self.incarnation = 0
        """The incarnation of this host; 0 before it began."""
        self.ready = False
        """True once the incarnation is durable: this host may send."""
        self._dated_us = -_DATE_US
        """The date in the store."""
        self._sure_us = 0
        """Time from which the last step of the clock forward is believed."""
        self._begun = False
        """True if the incarnation is durable."""
        self._unanswered: set[int] = set()
        """Numbers of commands that wait for the batch with their changes."""

    def start(self, incarnation: int) -> None:
        """Begin the incarnation of this number."""
        self.incarnation = incarnation
        self._sure_us = self._holdings.now_us + _SURE_US
        self._publisher.begin(incarnation)
        self._journal.when_durable(self._begin_to_send)

    def _begin_to_send(self) -> None:
        self._begun = True

    def step(self, now: int, *, links: bool = True, number: int | None = None) -> _Step:
        """Return one step as a context; without `links` no neighbour was involved.

        `number`: it is a command, answered by `Done` of that number.
        """
        return _Step(self, now, links=links, number=number)

    def publish(self, draft: Draft, now: int) -> MessageId:
        """Publish a message in a step of its own and return its id; raises if it is invalid."""
        with self.step(now):
            return self._units.publish(draft, now).id

    def join(self, layer: Layer) -> None:
        """Add a layer to the host, above those that it has."""
        self._layers.insert(layer)

    def forget_drafts(self, session: int) -> None:
        """Forget the drafts of a session that rolled back, or is gone."""
        self._units.forget_drafts(session)

    def check_number(self, number: int) -> None:
        """Raise if a command of this number was not answered yet."""
        if number in self._unanswered:
            raise IllegalStateException(f"the command number {number} is in use: choose another")

    def answer(self, number: int) -> None:
        """Answer a command by `Done`, once its changes are durable."""
        self._unanswered.add(number)
        self._journal.when_durable(self._unanswered.discard, number)
        self._journal.hold(Done(number))

    # --- one step ------------------------------------------------------------------------------------------

    def begin(self, now: int) -> bool:
        """Expire what is due; return True if a step has to be finished for that alone."""
        self._holdings.begin(now)
        changed = False
        if self._deadlines.due_us <= now:
            # Of all the work at the end of a step, only transfers can have changed.
            changed = self._removals.expire(now) and self._links.sending
            if self._cache.memories.has_new_room:
                self._transfers.room_retry.room_appeared(now)
        for layer in self._timed:
            if layer.due_us <= now:
                layer.expire(now)
                self._hand_on(())
                self._outputs.report()
                changed = True
        return changed

    def finish(self, now: int, link: Link | None = None, *, links: bool = True) -> None:
        """Publish drafts of layers, answer, acknowledge, offer, send, and report events.

        `link`: the only link that the step came over, if there is one. Without `links` it came over none, and what is
        due on them waits for its tick.
        """
        cache = self._cache
        if self._outputs.gathered:
            self._outputs.report()
        if self._arrivals.news:
            self._pass_on(now)
        if self._layers.having[Layer.finish]:
            self._finish_layers(now)
        if cache.changed:
            self._removals.sweep()
        if self._deliveries.burst or self._deliveries.waiting:
            self._deliveries.flush()
        # Without links nothing has to be answered now. Room that appeared is noted, and used at the
        # next tick.
        if not (links and self.ready):
            if cache.memories.has_new_room:
                self._transfers.room_retry.room_appeared(now)
            return
        if self._neighbours.profiles_wanted:
            self._neighbours.ask_profiles(now)
        self._strategy.flush(now, link)
        if self._schedule.bound_us <= now:
            self._schedule.refresh()  # Else the driver would wake the host at once, for what was just done.

    def _pass_on(self, now: int) -> None:
        """Push and offer new messages; unasked ones have to be confirmed soon."""
        news = self._arrivals.pop_news()
        self._strategy.news(now, news)
        if news.unasked:
            self._neighbours.beacon.report(now)

    def _finish_layers(self, now: int) -> None:
        """Apply changed interests, and publish drafts of layers."""
        if self._interest_changes.entries or self._interest_changes.found:
            self.apply_interest_changes(now)
        drafts: list[Draft] = []
        for layer in self._layers.having[Layer.finish]:
            drafts += layer.finish(now)
        # A layer may publish in answer to its own publication, for example a leg to the next
        # broker. Each round is a step further, and ends because a layer publishes a bounded number
        # of times.
        while drafts:
            self._units.publish_all(drafts, now)
            drafts = [draft for layer in self._layers.having[Layer.follow_up] for draft in layer.follow_up(now)]

    def apply_interest_changes(self, now: int) -> None:
        """Apply changes of this node's interests: pass on copies that are here, and inform neighbours."""
        entries, found, unwanted = self._interest_changes.pop()
        if unwanted:
            for layer in self._layers.having[Layer.left]:
                layer.left(unwanted, None)
        if found:
            self._hand_on(found)
        if entries:
            self._transfers.inbound.interests_changed(entries)
            self._neighbours.announcing.interests_changed(now)
        if (missed := self._interest_changes.pop_missed()) is not None:
            self._transfers.room_retry.look_again(missed, now)

    def _hand_on(self, copies: Sequence[Copy]) -> None:
        """Pass stored copies to the layers; the store learns which were delivered."""
        self._holdings.keep(self._layers.receive(copies))

    # --- the store -----------------------------------------------------------------------------------------

    def changes(self) -> Batch | None:
        """Return what is to be stored; None if nothing is."""
        journal = self._journal
        if not (journal.puts or journal.deletes):
            return None
        self._layers.write(journal)
        if journal.puts:  # A batch of deletions alone makes room, also on a full disk.
            self._write_date()
        return journal.pop_batch()

    def _write_date(self) -> None:
        """Write the date, unless that was done lately: ids of messages are forgotten by it after a restart.

        A step forward is not believed for an hour, in case it is taken back: until then the date is the one before it.
        """
        holdings = self._holdings
        sure = holdings.now_us >= self._sure_us
        date_us = max(holdings.date_us - (0 if sure else self._cache.outlived.slack_us), 0)
        if not 0 <= date_us - self._dated_us < _DATE_US:
            self._dated_us = date_us
            self._journal.put(DATE, date_us)

    def durable(self, serial: int, now: int) -> None:
        """Report and offer what waited for a batch, which is on disk."""
        changed = self.begin(now)  # What expired while its batch was written is not delivered any more.
        self._journal.durable(serial)
        if permitted := self._publisher.permit():  # What was withheld until it is durable may be offered.
            self._strategy.published(permitted, now)
        if permitted or changed or self._layers.having[Layer.finish]:
            self.finish(now, links=bool(permitted))
        if self._begun and not self.ready:
            self.ready = True
            for layer in self._layers.having[Layer.started]:
                layer.started(self.incarnation, now)
            self._neighbours.start(self.incarnation, now)

    # --- what is due ---------------------------------------------------------------------------------------

    def tick(self, now: int) -> None:
        """Do what is due, except an announcement."""
        schedule = self._schedule
        if self.begin(now):
            self.finish(now)
        if self.ready and (schedule.bound_us <= now or (schedule.marked and schedule.next_due_us() <= now)):
            schedule.refresh()  # What was due may have come to pass meanwhile.
            if schedule.bound_us <= now:
                self._neighbours.tick(now)
                self._strategy.tick(now)
                self.finish(now)

    def clock_stepped(self, delta_us: int) -> None:
        """Set dates forward or back, and the host's own time forward as far as dates overtake it."""
        before_us, jump_us = self._holdings.lead_us, self._holdings.clock_stepped(delta_us)
        self._cache.outlived.clock_stepped(delta_us)
        self._sure_us = self._holdings.now_us + jump_us + _SURE_US
        if self._holdings.lead_us != before_us:
            self._deadlines.set_lead(self._holdings.lead_us)
            for layer in self._timed:
                layer.due_us = 0  # Some of what it waits for are dates.
            self._holdings.begin(self._holdings.now_us)
            self._write_date()
        if jump_us:
            self._neighbours.clock_stepped(jump_us)

    def announce(self, now: int) -> bool:
        """Announce this host if that is due; return True if more followed from it than the announcement."""
        schedule, beacon = self._schedule, self._neighbours.beacon
        if beacon.due_us > now:
            return False
        self._neighbours.announcing.announce(now)
        more = self._strategy.announced(now)
        if more:
            self.finish(now)
        if schedule.bound_us < beacon.due_us:
            schedule.refresh()  # Else what is no longer due would wake it before the next announcement.
        return more

    def next_deadline(self) -> int | None:
        """Return the time at which the next tick is due."""
        # By comparisons: drivers ask after every step.
        due = self._deadlines.due_us
        for layer in self._timed:
            if layer.due_us < due:
                due = layer.due_us
        if self.ready:
            schedule = self._schedule
            if schedule.marked:
                schedule.next_due_us()
            if schedule.bound_us < due:
                due = schedule.bound_us
            if self._neighbours.beacon.due_us < due:
                due = self._neighbours.beacon.due_us
        return None if due >= NEVER else due
