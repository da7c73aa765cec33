"""What the hosts of a run tell, as rows of its record.

Times are those of the run; where a node's clock is wrong, deliveries say what it showed. Signed nodes are called by
their names. A message that comes again to a node that had it and did not drop it was lost in a crash: only such a
reception is marked `again`. Which nodes will crash is known beforehand, so of all others nothing has to be remembered.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from carrypost.emu.driver import Driver
from carrypost.events import Delivered, Dropped, Event, Received
from carrypost.gossip.journal import MESSAGE, Batch, StoredMessage
from carrypost.model.ids import MessageId, NodeId
from carrypost.record import Record

MICROSECONDS = 1_000_000


class Observer:
    """Writes what happens in one run to its record."""

    def __init__(self, record: Record, name: Callable[[NodeId], str], crashing: Iterable[str]) -> None:
        self._record = record
        self._name = name
        self._held: dict[str, set[MessageId]] = {node: set() for node in crashing}
        """What each of those nodes received and did not drop."""

    def observe(self, driver: Driver, event: Event) -> None:
        """Something that a host told."""
        record, node = self._record, driver.name
        start = len(record)
        held = self._held.get(node)
        if type(event) is Delivered and not driver.clock.right:
            attrs = {"clock": repr(driver.now / MICROSECONDS)}
            record.delivered(driver.t_us, node, event, attrs=attrs)
        else:
            record.observe(driver.t_us, node, event, again=held)
        if held is not None:
            self._remember(held, event)
        if driver.identity.signed:
            for column in (record.peer, record.source):
                column[start:] = [shown and self._name(NodeId(shown)) for shown in column[start:]]

    def published(self, driver: Driver, message: MessageId, batches: Sequence[Batch]) -> None:
        """A publication, found in what the host wants stored; whether that can be stored shows later."""
        for batch in batches:
            kept = batch.puts.get((MESSAGE, message, 0))
            if isinstance(kept, StoredMessage):
                self._record.published(driver.t_us, driver.name, kept.descriptor)

    def _remember(self, held: set[MessageId], event: Event) -> None:
        if isinstance(event, Received):
            held.update(reception.descriptor.id for reception in event.receptions)
        elif isinstance(event, Dropped):
            held.difference_update(descriptor.id for descriptor in event.descriptors)
