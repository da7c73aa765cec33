"""Copies of queue messages that a carrier throws away: because the manager acknowledges them, or at their deadline.

Two signed hosts. One has sent messages to a queue of its own, and the other carries copies of them. Then either records
cross over that acknowledge all of them, or their time is over. What the carrier does about that, until its changes are
written and its answers sent, is timed, in CPU time; its neighbour's part is not.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from functools import partial
from typing import Final

from benchmarks._pair import ROUND_US, Pair
from benchmarks._queue_control import SIZE_BYTES, Member

from carrypost.config import Settings
from carrypost.gossip.draft import Draft
from carrypost.gossip.wire import codec
from carrypost.gossip.wire.frames import AckRecord
from carrypost.log.journal import MOM

COPIES: Final = 1_000
_LIFETIME_US: Final = 600_000_000
_RECORD_US: Final = 60_000_000


class Carrying:
    """A carrier with copies, and the manager beside it."""

    def __init__(self, copies: int) -> None:
        settings = Settings.emulated(security="signed", cache_messages_max=4 * copies + 1_000)
        self._pair = Pair(settings, side=Member)
        manager, carrier = self._pair.a, self._pair.b
        assert isinstance(manager, Member)
        self._manager, self._carrier = manager, carrier
        self._pair.meet(5)
        queue = manager.declare(self._pair.now)
        self._ids = manager.send([Draft(queue, bytes(SIZE_BYTES), lifetime_us=_LIFETIME_US)] * copies, self._pair.now)
        self._pair.meet(30)
        assert self._carried == copies
        self._spent_s = 0.0
        self._record_bytes = 0
        gc.collect()

    @property
    def _carried(self) -> int:
        return self._carrier.host.overview().messages

    def _timed(self, does: Callable[[], object]) -> None:
        """Let the carrier do something, and pass on its answers."""
        began_s = time.process_time()
        does()
        answers = self._carrier.drain(self._pair.now)
        self._spent_s += time.process_time() - began_s
        for frames in answers:
            self._manager.host.receive(frames, "b", self._pair.now)

    def purge(self) -> float:
        """CPU seconds that acknowledgements take it."""
        pair, host, manager = self._pair, self._carrier.host, self._manager.host
        with manager.step(pair.now):
            for message in self._ids:
                manager._holdings.acknowledge(message, pair.now + _RECORD_US)  # noqa: SLF001 - as its queues do
            manager._outputs.journal.put((MOM, b"X", 0), b"")  # noqa: SLF001 - a row that this follows from
        while self._carried:
            for frames in self._manager.drain(pair.now):
                self._record_bytes += sum(codec.wire_size(frame) for frame in frames if isinstance(frame, AckRecord))
                self._timed(partial(host.receive, frames, "a", pair.now))
            pair.now += ROUND_US
            for each in (self._manager.host, host):
                if (each.next_deadline() or 0) <= pair.now:
                    each.tick(pair.now)
        return self._spent_s

    def purge_bytes(self) -> int:
        """Bytes of the records that they take."""
        self.purge()
        return self._record_bytes

    def expire(self) -> float:
        """CPU seconds that their deadline takes it."""
        self._pair.now += _LIFETIME_US
        self._timed(partial(self._carrier.host.tick, self._pair.now))
        assert self._carried == 0
        return self._spent_s
