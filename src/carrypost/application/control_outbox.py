"""Items that a layer of this node owes to others, and the control messages that carry them.

A layer adds a note: a node, and a subject. A note waits until everything that changed with it is durable; so nothing is
sent that a crash could take back. Then the subject is asked for its item, which is valid now, or None; and is informed
when that was sent. The subject's own row remembers what it has still to send, so nothing is forgotten, either.

Items for one node go together. They leave at once if nothing left for that node a moment ago, else when that moment is
over: a short one, so that a program that waits for answers one by one loses little, and a longer one, up to
`coalesce_s`, as long as many are collected meanwhile. A note to this node itself is returned by `pop_own`, at once.
"""

from __future__ import annotations

from operator import attrgetter
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from carrypost.application.control import ROOM_BYTES
from carrypost.application.ledger import Agenda
from carrypost.gossip.layer import Part
from carrypost.model.times import NEVER

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from carrypost.application.control import ItemKinds
    from carrypost.gossip.draft import Draft
    from carrypost.gossip.holdings.copies import Copy
    from carrypost.gossip.transfers.link import HostContext
    from carrypost.model.ids import NodeId

_SHORTEST = 32
"""The shortest moment, as a fraction of the longest."""
_MANY = 4
"""Number of notes at once after which the next moment is twice as long."""
_AGAIN_US = 5_000_000
"""Delay before a control message for which there was no room in the cache is sent again."""


class Subject:
    """Subject of a note. One with a row records whether its item was sent."""

    __slots__ = ()

    def item(self) -> msgspec.Struct | None:
        """Return the item to send; None if it no longer applies."""
        raise NotImplementedError

    def mark_sent(self) -> None:
        """Note that the item was sent."""


class UnstoredItem(Subject):
    """An item without a row: a crash loses it, and no harm is done."""

    __slots__ = ("_item",)

    def __init__(self, item: msgspec.Struct) -> None:
        self._item = item

    def item(self) -> msgspec.Struct | None:
        """Return the item."""
        return self._item


class Note(NamedTuple):
    """One item to send."""

    subject: Subject
    after_us: int
    """Time before which it is not sent alone, though it may go with others."""
    until_us: int
    """Time from which it is of no use any more."""


class _Target(msgspec.Struct, eq=False):
    """The pending notes of one node."""

    to: NodeId
    number: int
    """Place among all notes that ever were."""
    ready: list[Note] = []
    """Notes that may be sent: everything that changed with them is durable."""
    after_us: int = NEVER
    """Time at which the first of these has to be sent."""
    waiting: int = 0
    """Number of notes that wait for batches."""
    free_us: int = 0
    """Time at which a control message may leave for it again."""
    moment_us: int = 0
    """Time between the last one and that."""
    due_us: int = NEVER
    """Time at which it is examined; `NEVER` once it is forgotten."""

    def add(self, note: Note) -> None:
        """Add a note that may be sent."""
        self.ready.append(note)
        self.after_us = min(self.after_us, note.after_us)

    def pop_due(self, now: int) -> list[Note]:
        """Return all notes that may be sent, if one of them has to be by now."""
        if self.after_us > now:
            return []
        ready, self.ready, self.after_us = self.ready, [], NEVER
        return ready

    @property
    def empty(self) -> bool:
        """True if there is nothing to send, now or later."""
        return not (self.ready or self.waiting)


class ControlOutbox(Part):
    """The control messages that one node has to send.

    There are many nodes, and items for them wait for disks: so no step examines all of them. A note waits with the
    batch that it depends on, and a target for the time when something may leave for it.
    """

    def __init__(self, context: HostContext, kinds: ItemKinds[Any]) -> None:
        self._kinds = kinds
        self._node, self._journal, self._holdings = context.node, context.outputs.journal, context.holdings
        self._moment_us_max = round(context.settings.coalesce_s * 1e6)
        self._targets: dict[NodeId, _Target] = {}
        self._made = 0
        """Number of targets that there ever were."""
        self._agenda = Agenda(_is_due)
        """Targets by the times at which they are examined."""
        self._leaving: dict[tuple[str, bytes], tuple[NodeId, list[Note]]] = {}
        """Notes passed to the host to publish, by destination and content."""

    def add(self, to: NodeId, subject: Subject, *, after_us: int = 0, until_us: int | None = None) -> None:
        """Add a note for a node, to be sent once all changes up to now are durable."""
        self._put(to, Note(subject, after_us, NEVER if until_us is None else until_us))
        self.due_us = 0

    def _put(self, to: NodeId, note: Note) -> None:
        target = self._targets.get(to)
        if target is None:
            self._made += 1
            target = self._targets[to] = _Target(to, self._made)
        target.waiting += 1
        self._schedule(target)
        self._journal.when_durable(self._release, target, note)

    def _release(self, target: _Target, note: Note) -> None:
        """Let a note leave: everything that changed with it is durable."""
        target.waiting -= 1
        target.add(note)
        self._schedule(target)
        self.due_us = 0

    def _schedule(self, target: _Target) -> None:
        """Determine when to examine a target: when something may leave for it, or when it may be forgotten."""
        due_us = NEVER
        if target.ready:
            due_us = max(target.after_us, target.free_us if target.to != self._node else 0)
        elif not target.waiting:
            due_us = target.free_us
        if due_us != target.due_us:
            target.due_us = due_us
            if due_us < NEVER:
                self._agenda.add(target, due_us)

    # --- sending -------------------------------------------------------------------------------------------

    def pop_own(self, now: int) -> list[Any]:
        """Return the items that this node has for itself."""
        target = self._targets.get(self._node)
        if target is None:
            return []
        items: list[Any] = []
        for note in target.pop_due(now):
            if (item := note.subject.item()) is not None:
                items.append(item)
                note.subject.mark_sent()
        if target.empty:
            self._forget(target)
        else:
            self._schedule(target)
        return items

    def drafts(self, now: int) -> list[Draft]:
        """Return the control messages that may leave."""
        # Drafts that the host could not publish come back here, because `published` did not name
        # them.
        for to, notes in self._leaving.values():
            self._return(to, notes, now + _AGAIN_US)  # The host did not publish it: there was no room.
        self._leaving = {}
        due = sorted(self._agenda.pop_due(now), key=attrgetter("number"))
        made: list[Draft] = []
        for target in due:
            target.due_us = NEVER
            if target.to != self._node:
                made += self._drafts_to(target, now)
        for target in due:
            if target.empty and target.free_us <= now:
                self._forget(target)
            else:
                self._schedule(target)
        self.due_us = max(self._agenda.next_us(), now)
        return made

    def _forget(self, target: _Target) -> None:
        target.due_us = NEVER
        del self._targets[target.to]

    def _drafts_to(self, target: _Target, now: int) -> list[Draft]:
        to, ready = target.to, target.pop_due(now)
        pages: list[tuple[list[Any], list[Note]]] = []
        room = 0
        for note in ready:
            item = note.subject.item()
            if item is None:
                continue
            size = self._kinds.encoded_size(item)
            if size > room:
                pages.append(([], []))
                room = ROOM_BYTES
            room -= size
            pages[-1][0].append(item)
            pages[-1][1].append(note)
        if pages:
            # The moment grows only while notes come in crowds. A receiver that acknowledges one
            # message at a time would otherwise wait for `coalesce_s` after each.
            crowded = sum(len(notes) for _, notes in pages) >= _MANY
            least_us = self._moment_us_max // _SHORTEST
            target.moment_us = min(2 * target.moment_us or least_us, self._moment_us_max) if crowded else least_us
            target.free_us = now + target.moment_us
        drafts = []
        for items, notes in pages:
            until_us = max(note.until_us for note in notes)
            lifetime_us = None if until_us == NEVER else max(until_us - now, 1)
            draft = self._kinds.draft(to, items, lifetime_us, lead_us=self._holdings.lead_us)
            assert draft.headers is not None  # Made by `ItemKinds.draft`.
            self._leaving[draft.destination, draft.headers.control] = to, notes
            drafts.append(draft)
        return drafts

    def published(self, copies: Sequence[Copy]) -> None:
        """Note which control messages were admitted."""
        for copy in copies if self._leaving else ():
            destination, headers = copy.descriptor.destination, copy.descriptor.headers
            found = None if headers is None else self._leaving.pop((destination, headers.control), None)
            if found is not None:
                for note in found[1]:
                    note.subject.mark_sent()

    def _return(self, to: NodeId, notes: Iterable[Note], after_us: int) -> None:
        for note in notes:
            self._put(to, note._replace(after_us=after_us))
        self.due_us = 0


def _is_due(target: _Target, due_us: int) -> bool:
    return target.due_us == due_us
