"""The notes that this node owes others about queues, and the control messages that they go out in.

Whoever has something to say adds a note: to whom, about which subject, on which matter. A note waits until everything
that changed with it is durable; so nothing is said that a crash could take back. Then the subject is asked for the
item, which is what holds now, or nothing; and is told when that is on its way. The subject's own row remembers what it
has still to say, so nothing goes unsaid, either.

What is for one node goes together. It leaves at once if nothing left for that node a moment ago, else when that moment
is over: a short one, so that whoever waits for answers one by one loses little, and a longer one, up to `coalesce_s`,
as long as much gathers meanwhile. A note to this node itself is handed back by `take_own`, at once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

from carrypost.events import Reason
from carrypost.model.times import NEVER
from carrypost.mom.control import ROOM_BYTES, Item, control_draft, encoded_size

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from carrypost.gossip.holdings.copies import Copy
    from carrypost.gossip.layer import Draft
    from carrypost.gossip.transfers.ground import Ground
    from carrypost.model.ids import MessageId, NodeId

_LOST = NEVER
"""The batch that a note waits for was lost, and is not made again yet."""
_SHORTEST = 32
"""The shortest moment is this part of the longest."""
_MANY = 4
"""So many notes at once, and the next moment is twice as long."""
_AGAIN_US = 5_000_000
"""Where there was no room for a control message, on the disk or in the cache, it is tried again after so long."""
_NOTICE_US = 1_000_000
"""What is said to all leaves this often at most: it is of use to carriers only, and each of them keeps it."""


class Subject(Protocol):
    """What a note is about."""

    def item(self, matter: int, to: NodeId | None) -> Item | None:
        """What is to be said on this matter to a node, or (None) to all; None if that no longer holds."""

    def said(self, matter: int) -> None:
        """It is on its way."""

    def unsaid(self, matter: int, to: NodeId | None) -> None:
        """It is not, after all: it could not be written, and is said again."""


class Said:
    """What is said once and remembered by nobody: a crash takes it back, and no harm is done."""

    __slots__ = ("_item",)

    def __init__(self, item: Item) -> None:
        self._item = item

    def item(self, matter: int, to: NodeId | None) -> Item | None:  # noqa: ARG002 - there is but one thing to say
        """It."""
        return self._item

    def said(self, matter: int) -> None:
        """Nothing is noted."""

    def unsaid(self, matter: int, to: NodeId | None) -> None:
        """It is said again."""


class Note(NamedTuple):
    """Something that is to be said."""

    subject: Subject
    matter: int
    serial: int
    """The batch that has to be durable first."""
    after_us: int
    """Not before this time, but sooner in the company of others."""
    until_us: int
    """When it is of no use any more."""
    again: bool = False
    """It was sent before, and could not be written: now it leaves only once it is, else a full disk would fill all
    others with what it said again and again."""


class _Target:
    """One node, or all nodes."""

    __slots__ = ("free_us", "moment_us", "notes")

    def __init__(self) -> None:
        self.notes: list[Note] = []
        self.free_us = 0
        """When a control message may leave for it again."""
        self.moment_us = 0
        """How long after the last one that is."""


class Post:
    """What one node has to say."""

    def __init__(self, ground: Ground) -> None:
        self._node, self._journal, self._holdings = ground.node, ground.outputs.journal, ground.holdings
        self._moment_us_max = round(ground.settings.coalesce_s * 1e6)
        self._targets: dict[NodeId | None, _Target] = {}
        self._open: set[int] = set()
        """Batches that were not answered."""
        self._leaving: dict[tuple[str, bytes], tuple[NodeId | None, list[Note]]] = {}
        """What was given to the host to publish, by its destination and its content."""
        self._sent: dict[MessageId, tuple[NodeId | None, list[Note]]] = {}
        """What was published and is not durable yet."""
        self.due_us = NEVER

    def add(
        self, to: NodeId | None, subject: Subject, matter: int, *, after_us: int = 0, until_us: int | None = None
    ) -> None:
        """Something is to be said to a node, or (None) to all, once all that changed up to now is durable."""
        note = Note(subject, matter, self._serial(), after_us, NEVER if until_us is None else until_us)
        self._targets.setdefault(to, _Target()).notes.append(note)
        self.due_us = 0

    def _serial(self) -> int:
        journal = self._journal
        if journal.puts or journal.deletes:
            return journal.serial
        return max(self._open, default=0)

    # --- batches -------------------------------------------------------------------------------------------

    def batched(self, serial: int) -> None:
        """A batch was made."""
        self._open.add(serial)

    def durable(self, serial: int) -> None:
        """A batch is on disk."""
        self._open.discard(serial)
        self._sent = {message: each for message, each in self._sent.items() if each[1][0].serial != serial}
        if self._targets:
            self.due_us = 0

    def lost(self, serial: int) -> None:
        """A batch could not be written: what waits for it waits until it is written again."""
        self._open.discard(serial)
        for target in self._targets.values():
            target.notes = [note._replace(serial=_LOST) if note.serial == serial else note for note in target.notes]

    def rewritten(self) -> None:
        """What was lost is in the batch that is being made."""
        serial = self._serial()
        for target in self._targets.values():
            target.notes = [note._replace(serial=serial) if note.serial == _LOST else note for note in target.notes]
        self.due_us = 0

    # --- sending -------------------------------------------------------------------------------------------

    def take_own(self, now: int) -> list[Item]:
        """What this node has to say to itself."""
        target = self._targets.get(self._node)
        if target is None:
            return []
        items: list[Item] = []
        for note in self._take_ready(target, now):
            if (item := note.subject.item(note.matter, self._node)) is not None:
                items.append(item)
                note.subject.said(note.matter)
        if not target.notes:
            del self._targets[self._node]
        return items

    def drafts(self, now: int) -> list[Draft]:
        """The control messages that may leave."""
        if self.due_us > now:
            return []
        for to, notes in self._leaving.values():
            self._return(to, notes, now + _AGAIN_US)  # The host did not publish it: there was no room.
        self._leaving = {}
        made = [
            draft for to, target in list(self._targets.items())
            if to != self._node and target.free_us <= now
            for draft in self._drafts_to(to, target, now)
        ]  # fmt: skip
        for to in [to for to, target in self._targets.items() if not target.notes and target.free_us <= now]:
            del self._targets[to]
        self._look_ahead(now)
        return made

    def _drafts_to(self, to: NodeId | None, target: _Target, now: int) -> list[Draft]:
        ready = self._take_ready(target, now)
        pages: list[tuple[list[Item], list[Note]]] = []
        room = 0
        for note in ready:
            item = note.subject.item(note.matter, to)
            if item is None:
                continue
            size = encoded_size(item)
            if size > room:
                pages.append(([], []))
                room = ROOM_BYTES
            room -= size
            pages[-1][0].append(item)
            pages[-1][1].append(note)
        if pages:
            crowded = sum(len(notes) for _, notes in pages) >= _MANY
            least_us = self._moment_us_max // _SHORTEST
            target.moment_us = min(2 * target.moment_us or least_us, self._moment_us_max) if crowded else least_us
            target.free_us = now + (target.moment_us if to is not None else max(self._moment_us_max, _NOTICE_US))
        drafts = []
        for items, notes in pages:
            until_us = max(note.until_us for note in notes)
            lifetime_us = None if until_us == NEVER else max(until_us - now, 1)
            draft = control_draft(to, items, lifetime_us, withheld=any(note.again for note in notes))
            assert draft.headers is not None  # Made by `control_draft`.
            self._leaving[draft.destination, draft.headers.control] = to, notes
            drafts.append(draft)
        return drafts

    def _take_ready(self, target: _Target, now: int) -> list[Note]:
        """The notes that may be said, if there is any that has to be; they are not here any more."""
        first = min(self._open, default=self._journal.serial)
        ready = [note for note in target.notes if note.serial < first]
        if not any(note.after_us <= now for note in ready):
            return []
        target.notes = [note for note in target.notes if note.serial >= first]
        return ready

    def _look_ahead(self, now: int) -> None:
        first = min(self._open, default=self._journal.serial)
        dues = [NEVER]
        for to, target in self._targets.items():
            ready = [note.after_us for note in target.notes if note.serial < first]
            if ready:
                dues.append(max(min(ready), target.free_us if to != self._node else 0))
            elif not target.notes:
                dues.append(target.free_us)
        self.due_us = max(min(dues), now)

    def published(self, copies: Sequence[Copy]) -> None:
        """Messages of this node were admitted."""
        for copy in copies if self._leaving else ():
            destination, headers = copy.descriptor.destination, copy.descriptor.headers
            found = None if headers is None else self._leaving.pop((destination, headers.control), None)
            if found is not None:
                to, notes = found
                for note in notes:
                    note.subject.said(note.matter)
                self._sent[copy.id] = to, [note._replace(serial=self._journal.serial) for note in notes]

    def left(self, copies: Sequence[Copy], reason: Reason) -> None:
        """Copies are gone; those that could not be written are sent again."""
        for copy in copies if self._sent and reason is Reason.STORE else ():
            if (found := self._sent.pop(copy.id, None)) is not None:
                to, notes = found
                for note in notes:
                    note.subject.unsaid(note.matter, to)
                self._return(to, [note._replace(again=True) for note in notes], self._holdings.now_us + _AGAIN_US)

    def _return(self, to: NodeId | None, notes: Iterable[Note], after_us: int) -> None:
        target = self._targets.setdefault(to, _Target())
        target.notes += [note._replace(after_us=after_us, serial=self._serial()) for note in notes]
        self.due_us = 0
