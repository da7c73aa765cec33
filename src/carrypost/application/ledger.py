"""Rows that a layer keeps in the store, in tables, marks and deadlines of its ledger; and agendas, of times to come.

A row goes into the journal when it changes, so that it is in the same batch as whatever it belongs to. The first byte
of its name is its family, which has one owner. Fields may be appended to a row, with a default: rows of earlier
versions can be read. Confirmations of messages, which holdings writes for a layer, go through the ledger as well.

An agenda has things that wait for a time, the earliest first: delivery times of claims, delays and leases of queue
entries. Most of them end long before their time, which may be years away. Those stay in the heap until they outnumber
the others, and are swept out then. So a sweep costs a constant for each thing that ended.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import msgspec
from mypy_extensions import mypyc_attr

from carrypost.gossip.layer import Part, Stored
from carrypost.log.journal import SEEN
from carrypost.model.ids import MessageId
from carrypost.model.times import NEVER

if TYPE_CHECKING:
    from collections.abc import Iterator

    from carrypost.gossip.holdings.copies import Copy
    from carrypost.gossip.outputs import Journal


class Ledger:
    """Rows by name; the first byte of a name is its family."""

    def __init__(self, journal: Journal, kind: str) -> None:
        self._journal, self._kind = journal, kind
        self._families: set[bytes] = set()

    def own(self, family: bytes) -> bytes:
        """Return a family of rows for its owner: no other part may have it."""
        assert family not in self._families, f"the rows {family!r} have an owner"
        self._families.add(family)
        return family

    def put(self, name: bytes, value: bytes) -> None:
        """Write a row."""
        self._journal.put((self._kind, name, 0), value)

    def delete(self, name: bytes) -> None:
        """Delete a row."""
        self._journal.delete((self._kind, name, 0))

    def confirmed(self, copy: Copy) -> None:
        """Record the acknowledgement of a message in the next batch."""
        self._journal.put((SEEN, copy.id, 0), copy.descriptor)


class KnownRows(Ledger):
    """Rows whose latest values are known here."""

    def __init__(self, journal: Journal, kind: str) -> None:
        super().__init__(journal, kind)
        self._latest: dict[bytes, bytes] = {}

    def restore(self, name: bytes, value: bytes) -> None:
        """Restore a row after a restart."""
        self._latest[name] = value

    def get(self, name: bytes) -> bytes | None:
        """Return a row as it was written last, on disk or not; None if there is none."""
        return self._latest.get(name)

    def put(self, name: bytes, value: bytes) -> None:
        """Write a row."""
        super().put(name, value)
        self._latest[name] = value

    def delete(self, name: bytes) -> None:
        """Delete a row."""
        super().delete(name)
        self._latest.pop(name, None)


Row = TypeVar("Row", bound=msgspec.Struct)
T = TypeVar("T")
_TIME_BYTES = 8
_encode = msgspec.msgpack.Encoder().encode


@functools.cache
def _decoder(kind: type[Any]) -> Callable[[bytes], Any]:
    """Return the decoder for rows of a kind; made once, and not for each host of an emulation."""
    return msgspec.msgpack.Decoder(kind).decode


class Table(Generic[Row]):
    """The rows of one family, all of one kind."""

    def __init__(self, ledger: Ledger, family: bytes, kind: type[Row]) -> None:
        self._ledger, self._family = ledger, ledger.own(family)
        self._decode: Callable[[bytes], Row] = _decoder(kind)

    def put(self, name: bytes, row: Row) -> None:
        """Write a row."""
        self._ledger.put(self._family + name, _encode(row))

    def delete(self, name: bytes) -> None:
        """Delete a row."""
        self._ledger.delete(self._family + name)

    def read(self, stored: Stored) -> list[tuple[bytes, Row]]:
        """Return the rows from before a restart, by their names."""
        return [(name, self._decode(value)) for name, value in stored.get(self._family, ())]


class Marks:
    """Messages that are marked, with an empty row each."""

    def __init__(self, ledger: Ledger, family: bytes) -> None:
        self._ledger, self._family = ledger, ledger.own(family)
        self._marked: set[MessageId] = set()

    def __contains__(self, message: object) -> bool:
        return message in self._marked

    def add(self, message: MessageId) -> None:
        """Mark a message. Idempotent."""
        if message not in self._marked:
            self._marked.add(message)
            self._ledger.put(self._family + message, b"")

    def discard(self, message: MessageId) -> None:
        """Remove the mark of a message. Idempotent."""
        if message in self._marked:
            self._marked.remove(message)
            self._ledger.delete(self._family + message)

    def read(self, stored: Stored, is_marked: Callable[[MessageId], object]) -> None:
        """Restore the marks after a restart, except those for which `is_marked` returns nothing."""
        self._marked = {MessageId(name) for name, _ in stored.get(self._family, ())}
        for message in [each for each in self._marked if not is_marked(each)]:
            self.discard(message)


@mypyc_attr(allow_interpreted_subclasses=True)
class Deadlines(Part):
    """Texts that are remembered until some time, with a row of 8 bytes each."""

    def __init__(self, ledger: Ledger, family: bytes) -> None:
        self._ledger, self._family = ledger, ledger.own(family)
        self._until_us: dict[str, int] = {}

    def __contains__(self, text: object) -> bool:
        return text in self._until_us

    def _put(self, text: str, until_us: int) -> None:
        """Remember a text until this time."""
        self._until_us[text] = until_us
        self._ledger.put(self._family + text.encode(), until_us.to_bytes(_TIME_BYTES, "big"))
        self.due_us = min(self.due_us, until_us)

    def forget(self, text: str) -> None:
        """Forget a text. Idempotent."""
        if self._until_us.pop(text, None) is not None:
            self._ledger.delete(self._family + text.encode())

    def expire(self, now: int) -> None:
        """Forget texts whose time is over."""
        for text in [each for each, until_us in self._until_us.items() if until_us <= now]:
            self.forget(text)
        self.due_us = min(self._until_us.values(), default=NEVER)

    def restore(self, stored: Stored, now: int) -> None:  # noqa: ARG002 - `expire` handles what fell due since
        """Restore the rows after a restart."""
        rows = stored.get(self._family, ())
        self._until_us = {name.decode(): int.from_bytes(value, "big") for name, value in rows}
        self.due_us = min(self._until_us.values(), default=NEVER)


class Agenda(Generic[T]):
    """Things by the time that they wait for."""

    __slots__ = ("_ended", "_heap", "_serial", "_waits", "due_us")

    def __init__(self, waits: Callable[[T, int], bool]) -> None:
        self._waits = waits
        """Function that returns True while a thing still waits for this time."""
        self._heap: list[tuple[int, int, T]] = []
        """Time, a number that breaks ties, and thing."""
        self._serial = 0
        self._ended = 0
        """Upper bound of the number of things in the heap that wait no more."""
        self.due_us = NEVER
        """Not after the time of the first thing that waits."""

    def next_us(self) -> int:
        """Return the time of the first thing that waits."""
        heap = self._heap
        while heap and not self._waits(heap[0][2], heap[0][0]):
            heappop(heap)
            self._ended = max(self._ended - 1, 0)
        self.due_us = heap[0][0] if heap else NEVER
        return self.due_us

    def __iter__(self) -> Iterator[T]:
        """Yield everything that waits, in no particular order."""
        return (thing for due_us, _, thing in self._heap if self._waits(thing, due_us))

    def add(self, thing: T, due_us: int) -> None:
        """Add a thing that waits for this time."""
        self._serial += 1
        heappush(self._heap, (due_us, self._serial, thing))
        self.due_us = min(self.due_us, due_us)

    def note_ended(self) -> None:
        """Note that a thing waits no more; sweep such things out once they are the majority."""
        self._ended += 1
        if self._ended * 2 > len(self._heap):
            self._heap = [each for each in self._heap if self._waits(each[2], each[0])]
            heapify(self._heap)
            self._ended = 0
        self.next_us()

    def pop_due(self, now: int) -> Iterator[T]:
        """Remove and yield the things whose time has come."""
        while self.next_us() <= now:
            yield heappop(self._heap)[2]
