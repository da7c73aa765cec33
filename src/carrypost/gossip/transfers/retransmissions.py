"""The contents that have to be sent to one neighbour again, in the order of sending.

Each content is here once at most. Dropping the contents of one job, or asking for them, costs what that job has here,
and not what all jobs have: a neighbour decides by what it loses how much that is.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

J = TypeVar("J")
I = TypeVar("I")  # noqa: E741 - an item


class Retransmissions(Generic[J, I]):
    """Contents of lost frames: jobs and their items."""

    __slots__ = ("_items", "_order")

    def __init__(self) -> None:
        self._order: OrderedDict[tuple[J, I], None] = OrderedDict()
        self._items: dict[J, dict[I, None]] = {}
        """The same, by job."""

    def __len__(self) -> int:
        return len(self._order)

    def __iter__(self) -> Iterator[tuple[J, I]]:
        return iter(self._order)

    def of(self, job: J) -> Collection[I]:
        """Return the items of a job."""
        return self._items.get(job, ())

    def append(self, content: tuple[J, I]) -> None:
        """Put a content behind all others."""
        self._order[content] = None
        self._order.move_to_end(content)
        self._items.setdefault(content[0], {})[content[1]] = None

    def put_first(self, job: J, items: Sequence[I]) -> None:
        """Add items of a job before all others."""
        for item in reversed(items):
            self.append((job, item))
            self._order.move_to_end((job, item), last=False)

    def popleft(self) -> tuple[J, I]:
        """Remove and return the first content."""
        content, _ = self._order.popitem(last=False)
        self._forget(*content)
        return content

    def discard(self, content: tuple[J, I]) -> None:
        """Drop a content, if it is here."""
        if content in self._order:
            del self._order[content]
            self._forget(*content)

    def drop(self, job: J) -> None:
        """Drop all contents of a job."""
        for item in self._items.pop(job, ()):
            del self._order[job, item]

    def clear(self) -> None:
        """Drop everything."""
        self._order.clear()
        self._items.clear()

    def _forget(self, job: J, item: I) -> None:
        items = self._items[job]
        del items[item]
        if not items:
            del self._items[job]
