"""Layers that consist of parts: each part takes part in what it overrides, and no layer passes anything on by hand.

A part has a timer if it has `due_us` and `expire`, messages to publish if it has `drafts`, and rows if it has
`restore`. The layer names its parts once, in the order in which they are called, for every method. The rows of a layer
are divided by family, the first byte of their names; each family belongs to one part.
"""
# Why the layer reads `due_us` of all timers, and parts do not announce that they are due: most of
# what becomes due in a step is done before the step ends, and a time that was announced too early
# would wake the host for nothing. To look at some twenty numbers takes less than a microsecond, if
# they are attributes: a part whose times are in an `Agenda` names that as its timer.

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from operator import attrgetter
from typing import TYPE_CHECKING, Protocol

from mypy_extensions import mypyc_attr

from carrypost.gossip.draft import Draft
from carrypost.gossip.layer import Layer
from carrypost.model.times import NEVER

if TYPE_CHECKING:
    from collections.abc import Iterable

    from carrypost.gossip.holdings.copies import Copy
    from carrypost.gossip.holdings.holdings import Holdings
    from carrypost.log.events import Reason
    from carrypost.log.journal import Key, Value

Stored = Mapping[bytes, Sequence[tuple[bytes, bytes]]]
"""Rows from before a restart by family: the rest of the name, and the value, in the order of the names."""


class Timer(Protocol):
    """Something that is due at some time, `due_us`."""

    due_us: int


@mypyc_attr(allow_interpreted_subclasses=True)
class Part:
    """One part of a layer. A method that it does not override is not called."""

    due_us: int = NEVER
    """Not after the time of its next `expire` or `drafts`; set by the part."""
    timers: Sequence[Timer] = ()
    """Owners of the times of `expire`, if it is not the part itself. Set before that joins its layer."""

    def restore(self, stored: Stored, now: int) -> None:
        """Restore its rows after a restart; the parts before it are restored already."""

    def expire(self, now: int) -> None:
        """Do what is due. Called once `due_us` has come."""

    def drafts(self, now: int) -> Sequence[Draft]:  # noqa: ARG002 - for parts that return some
        """Return messages to publish at the end of a step. Called once `due_us` has come."""
        return ()

    def published(self, copies: Sequence[Copy]) -> None:
        """Handle messages of this node that were admitted."""

    def left(self, copies: Sequence[Copy], reason: Reason) -> None:
        """Handle copies that left the cache."""


_DUE_US = attrgetter("due_us")


# Cached by the classes, as in `gossip.layer`: thousands of hosts have the same parts.
@functools.cache
def _overriding(kinds: tuple[type[Part], ...], name: str) -> Sequence[int]:
    """Return the places of the parts that override a method."""
    return [at for at, kind in enumerate(kinds) if getattr(kind, name) is not getattr(Part, name)]


@mypyc_attr(allow_interpreted_subclasses=True)
class Composite(Layer):
    """A layer of parts."""

    def compose(self, holdings: Holdings, parts: Sequence[Part]) -> None:
        """Set the parts, in the order in which they are called. Done once."""
        self.holdings = holdings
        kinds = tuple(map(type, parts))
        self._restored, self._publishing, self._leaving, expiring, self._drafting = (
            [parts[at] for at in _overriding(kinds, name)]
            for name in ("restore", "published", "left", "expire", "drafts")
        )
        self._expiring = [(timer, part) for part in expiring for timer in part.timers or (part,)]
        self._timers: list[Timer] = [*(timer for timer, _ in self._expiring), *self._drafting]

    def restore(self, rows: Iterable[tuple[Key, Value]]) -> None:
        """Restore the parts from their rows."""
        stored: dict[bytes, list[tuple[bytes, bytes]]] = {}
        for name, value in sorted((name, value) for (_, name, _), value in rows if isinstance(value, bytes)):
            stored.setdefault(name[:1], []).append((name[1:], value))
        for part in self._restored:
            part.restore(stored, self.holdings.now_us)
        self.look_ahead()

    def expire(self, now: int) -> None:
        """Do what is due in the parts."""
        self.expire_parts(now)
        self.look_ahead()

    def expire_parts(self, now: int) -> None:
        """Call the parts that are due, for a layer that has something to do afterwards."""
        for timer, part in self._expiring:
            if timer.due_us <= now:
                part.expire(now)

    def finish(self, now: int) -> Sequence[Draft]:
        """End a step; return messages to publish."""
        drafts: list[Draft] = []
        for part in self._drafting:
            if part.due_us <= now:
                drafts += part.drafts(now)
        self.look_ahead()
        return drafts

    def look_ahead(self) -> None:
        """Determine when a part is due next."""
        self.due_us = min(map(_DUE_US, self._timers), default=NEVER)

    def published(self, copies: Sequence[Copy]) -> None:
        """Pass on messages of this node that were admitted."""
        for part in self._publishing:
            part.published(copies)

    def left(self, copies: Sequence[Copy], reason: Reason | None) -> None:
        """Pass on copies that left the cache."""
        if reason is not None:
            for part in self._leaving:
                part.left(copies, reason)
