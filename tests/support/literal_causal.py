"""Codes 1 to 13 of FGCS-21 (Guidec, Launay, Mahéo), word for word: the reference that must fail on some schedules.

`test_causal_literal` runs it side by side with our algorithm, to show that each repair is needed. Nothing is corrected
here. Where the paper leaves a choice, the more favourable one is made: "for all" iterates over a copy, unless
`in_place` asks for the listing as printed. The body of code 5 and the listing of `oppnet_discard` are missing from our
copy of the text, and follow its prose. Names are the paper's.

The networking layer below is as simple as the system model of the paper: a cache, to which a message is added once. A
repeated message is ignored while the first copy is there. Messages beyond their deadline are not added, and are
removed.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass


@dataclass(frozen=True)
class Message:
    """The message that `oppnet_broadcast` sends."""

    mid: str
    src: str
    st: int
    cb: dict[str, int]
    dln: int | None


class LiteralHost:
    """One host: codes 1 to 7, or 8 to 13 if `delta`.

    `now` is its clock, and `lifetime` the lifetime of the next message; the test sets both. `co_deliver` is the
    application. `air` has every message that a host has sent, by name.
    """

    def __init__(
        self,
        host_id: str,
        air: dict[str, Message],
        co_deliver: Callable[[str], None],
        *,
        delta: bool,
        in_place: bool = False,
    ) -> None:
        self.host_id = host_id
        self.delta = delta
        self.in_place = in_place
        self.co_deliver = co_deliver
        self.now = 0
        self.cache: dict[str, Message] = {}
        self.air = air
        self.disk: tuple[int, dict[str, int], dict[str, int], dict[str, dict[str, int]]] | None = None
        self.initialise()

    # -------------------------------------------------------------------------------------- the causal layer
    def initialise(self) -> None:
        """Codes 1 and 8."""
        self.lifetime = 0
        self.st = 0
        self.c_barrier: dict[str, int] = {}
        self.co_delivered: dict[str, int] = {}
        self.pending: dict[str, dict[str, int]] = {}

    def co_broadcast(self, mid: str) -> None:
        """Codes 2 and 9."""
        if self.delta:
            self.st = self.now + self.lifetime
            self._expunge_expired_predecessors(self.c_barrier)
        else:
            self.st = self.st + 1
        st = self.st
        self._oppnet_broadcast(Message(mid, self.host_id, st, self.c_barrier, st if self.delta else None))
        self.c_barrier = {}
        self._perform_delivery(self.host_id, st, mid)

    def _perform_delivery(self, src: str, st: int, mid: str) -> None:
        """Code 3."""
        self.co_delivered[src] = st
        self.c_barrier[src] = st
        self.co_deliver(mid)
        self._forget_dependency(src, st)

    def _forget_dependency(self, src: str, st: int) -> None:
        """Code 4."""
        for cb in self.pending.values():
            if src in cb and cb[src] <= st:
                del cb[src]

    def _oppnet_receive(self, mid: str, src: str, st: int, cb: dict[str, int]) -> None:
        """Codes 5 and 11; the body of code 5 from the prose."""
        if self.delta:
            self._expunge_expired_predecessors(cb)
        self._expunge_delivered_predecessors(cb)
        if cb:
            self.pending[mid] = cb
        else:
            self._perform_delivery(src, st, mid)
            self._check_pending_messages()

    def _expunge_delivered_predecessors(self, cb: dict[str, int]) -> None:
        """Code 6."""
        for src, st in list(cb.items()):
            if src in self.co_delivered and self.co_delivered[src] >= st:
                del cb[src]

    def _check_pending_messages(self) -> None:
        """Codes 7 and 13."""
        if self.delta:
            self._forget_expired_messages()
        msg_delivered = True
        while msg_delivered:
            msg_delivered = False
            for mid, cb in self._all(self.pending.items()):
                if not cb:
                    del self.pending[mid]
                    message = self.cache[mid]  # `extract` cannot mean to remove it: it still has to be carried
                    self._perform_delivery(message.src, message.st, mid)
                    msg_delivered = True

    def _all(self, entries: Iterable[tuple[str, dict[str, int]]]) -> Iterator[tuple[str, dict[str, int]]]:
        """Yield the entries of the "for all" of code 7, whose body removes entries while it iterates."""
        return iter(entries if self.in_place else list(entries))

    def _expunge_expired_predecessors(self, cb: dict[str, int]) -> None:
        """Code 10."""
        for src, st in list(cb.items()):
            if st < self.now:
                del cb[src]

    def _forget_expired_messages(self) -> None:
        """Code 12."""
        for cb in self.pending.values():
            self._expunge_expired_predecessors(cb)
        for src, st in list(self.co_delivered.items()):
            if st < self.now:
                del self.co_delivered[src]

    def _oppnet_discard(self, mid: str) -> None:
        """The listing that section V.C describes."""
        if mid in self.pending:
            del self.pending[mid]
            message = self.cache[mid]
            self._forget_dependency(message.src, message.st)
            self._check_pending_messages()

    # ----------------------------------------------------------------------------- the networking layer below
    def _oppnet_broadcast(self, message: Message) -> None:
        self.cache[message.mid] = message
        self.air[message.mid] = message

    def arrive(self, message: Message) -> None:
        """A copy comes from the network (sections III and V.B)."""
        if message.mid not in self.cache and not self._reached(message):
            self.cache[message.mid] = message
            self._oppnet_receive(message.mid, message.src, message.st, dict(message.cb))

    def expire(self) -> None:
        """Remove messages whose deadline has come from the cache (section V.B)."""
        for mid in [mid for mid, message in self.cache.items() if self._reached(message)]:
            self._oppnet_discard(mid)
            del self.cache[mid]

    def evict(self, mid: str, *, told: bool) -> None:
        """Evict a copy for lack of room; the paper does not state whether the layer above is informed (`told`)."""
        if told:
            self._oppnet_discard(mid)
        del self.cache[mid]

    def save(self) -> None:
        """Give the host a disk for what the paper keeps in memory."""
        self.disk = copy.deepcopy((self.st, self.c_barrier, self.co_delivered, self.pending))

    def restart(self) -> None:
        """Restart, from the disk if there is one; the cache is kept."""
        self.initialise()
        if self.disk is not None:
            self.st, self.c_barrier, self.co_delivered, self.pending = copy.deepcopy(self.disk)

    def alive(self, mid: str) -> bool:
        """Return True if a message is alive by the local clock."""
        return not self._reached(self.air[mid])

    def _reached(self, message: Message) -> bool:
        """Section V.C: what comes up is "a message whose deadline has not been reached yet"."""
        return message.dln is not None and message.dln <= self.now
