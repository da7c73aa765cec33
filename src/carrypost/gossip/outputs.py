"""Outputs of one host: changes for the store, frames to send, events.

Every part of a host writes here and none reads: a driver takes all of it, changes first, then frames, then events.
Refusals are counted by reason and, if they name no message, reported together, because strangers decide how many there
are.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from carrypost.gossip.wire.frames import Frame, Transmission, coalesce
from carrypost.log.events import Dropped, Expired, Passed, Reason, Received, Refused
from carrypost.log.journal import Journal, Retractable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from carrypost.config import Limits
    from carrypost.log.events import Event, Reception
    from carrypost.model.descriptor import Descriptor
    from carrypost.model.ids import NodeId


class Outputs:
    """The out-trays of one host."""

    __slots__ = (
        "_expired", "_named", "_received", "_refusals_max", "dropped", "events", "gathered", "journal", "outgoing",
        "refusals", "refused", "emit", "tracing",
    )  # fmt: skip

    def __init__(self, limits: Limits) -> None:
        self.events: list[Event | Retractable] = []
        self.emit = self.events.append
        """Emit an event at once; one that depends on a change is held in the journal instead."""
        self.journal = Journal(self.events)
        self.outgoing: list[Transmission] = []
        self.gathered = False
        """True if `report` has anything to report."""
        self.tracing = False
        """True if `passed` has to be called."""
        self._received: dict[tuple[NodeId, tuple[NodeId, ...]], list[Reception]] = {}
        """Arrivals not reported yet, by the host that sent them and the relays between."""
        self._expired: list[Descriptor] = []
        """Messages not reported yet that were received and will never be delivered."""
        self.refused: Counter[str] = Counter()
        """Number of refusals, by reason."""
        self.dropped: Counter[str] = Counter()
        """Number of copies that left or were not admitted, by reason."""
        self.refusals: Counter[tuple[str, str]] = Counter()
        """Refusals not reported yet, by reason and peer."""
        self._refusals_max = limits.refusals_max
        self._named = 0
        """Number of refusals among the events that name a message."""

    def send(self, frames: Sequence[Frame], to: str) -> None:
        """Transmit these frames to a link address. Called by links alone."""
        self.outgoing.append(Transmission(tuple(frames), to))

    def broadcast(self, frames: Sequence[Frame]) -> None:
        """Transmit these frames to all nodes in range."""
        self.outgoing.append(Transmission(tuple(frames), None))

    def receive(self, peer: NodeId, path: tuple[NodeId, ...], receptions: Sequence[Reception]) -> None:
        """Report messages that became whole with the next `report`, together with others of the same host and path.

        `path`: the relays between.
        """
        self._received.setdefault((peer, path), []).extend(receptions)
        self.gathered = True

    def trace(self) -> None:
        """Report from now on which neighbour has which message."""
        self.tracing = True

    def passed(self, peer: NodeId, descriptors: Sequence[Descriptor]) -> None:
        """Report that a neighbour acknowledged whole messages."""
        self.emit(Passed(peer, tuple(descriptors)))

    def expire(self, descriptors: Sequence[Descriptor]) -> None:
        """Report messages that will never be delivered with the next `report`, after their reception."""
        self._expired += descriptors
        self.gathered = True

    def report(self) -> None:
        """Report what was collected: at the end of a step, and before copies are dropped for new messages."""
        self.gathered = False
        for (peer, path), receptions in self._received.items():
            self.emit(Received(peer, tuple(receptions), path))
        self._received = {}
        if self._expired:
            self.emit(Expired(tuple(self._expired)))
            self._expired = []

    def drop(self, descriptors: Sequence[Descriptor], reason: Reason, *, undelivered: bool = False) -> None:
        """Count and report copies that leave or were not admitted; `undelivered`: they expired while waiting."""
        self.dropped[reason] += len(descriptors)
        self.emit(Expired(tuple(descriptors)) if undelivered else Dropped(tuple(descriptors), reason))

    def refuse(self, reason: str, peer: str, message: str | None = None, *, count: int = 1) -> None:
        """Count a refusal, or several of a kind. Refusals that name no message are reported together."""
        self.refused[reason] += count
        if message is not None and self._named < self._refusals_max:
            self._named += 1
            self.emit(Refused(reason, peer, count, message))
            return
        # Strangers can choose any addresses. Beyond a maximum of them, refusals are counted without the address.
        self.refusals[reason, peer if len(self.refusals) < self._refusals_max else ""] += count

    def pop_outgoing(self) -> list[Transmission]:
        """Return everything to send, once."""
        outgoing, self.outgoing = self.outgoing, []
        return outgoing if len(outgoing) == 1 else coalesce(outgoing)

    def pop_events(self) -> list[Event]:
        """Return all events, once."""
        if self.refusals:
            self.events.extend([Refused(reason, peer, count) for (reason, peer), count in self.refusals.items()])
            self.refusals.clear()
        self._named = 0
        return self.journal.pop_released()
