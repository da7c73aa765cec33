"""Contacts: neighbours with which messages may be exchanged, as a strategy sees them.

A `Contact` is soft state: it begins when a link becomes usable and ends with the link. A strategy that remembers more
of a neighbour than its profile derives a class of its own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, TypeVar

from carrypost.model.times import NEVER

if TYPE_CHECKING:
    from carrypost.config import Settings
    from carrypost.gossip.interest.index import View
    from carrypost.gossip.transfers.link import Link, Links


class Contact:
    """One neighbour with which messages may be exchanged."""

    __slots__ = ("link", "overdue_us", "timers", "view")

    def __init__(self, link: Link, settings: Settings) -> None:  # noqa: ARG002 - for those that remember more
        self.link = link
        self.timers = link.timers
        self.view: View | None = None
        """Profile of the neighbour; None until it is known."""
        self.overdue_us = NEVER
        """Time by which the neighbour should have been heard again; later it may be gone, though it has not timed
        out."""

    def learn(self, view: View) -> None:
        """Note that the profile of the neighbour is known."""
        self.view = view

    def unlearn(self) -> None:
        """Drop the neighbour's profile, which it has replaced by one not known yet."""
        self.view = None

    def announced(self, overdue_us: int, *, period: bool) -> bool:  # noqa: ARG002 - others count periods
        """Handle an announcement that says nothing new, and expect the next one by `overdue_us`.

        `period`: the announcement ends a period. Returns False, without counting it, if there is more to do than this.
        """
        self.overdue_us = overdue_us
        return True

    def count_period(self) -> None:
        """Count a period of the neighbour, which has announced itself again."""

    def expect(self, overdue_us: int) -> None:
        """Expect to hear the neighbour again by this time."""
        self.overdue_us = overdue_us

    def heard(self, now: int, overdue_us: int) -> None:  # noqa: ARG002 - others go on with what they had stopped
        """Note that the neighbour is still there."""
        self.overdue_us = overdue_us

    def forget_slots(self, mask: int) -> None:
        """Drop what is remembered of slots that were freed for other messages."""


C = TypeVar("C", bound=Contact)


class Contacts(Generic[C]):
    """The contacts of one host."""

    __slots__ = ("_by_link", "_links", "all", "of")

    def __init__(self, links: Links) -> None:
        self._links = links
        self._by_link: dict[Link, C] = {}
        self.of = self._by_link.get
        """Return the contact over a link; None for a link over which another layer exchanges messages."""
        self.all: list[C] = []
        """All contacts, in the order of their links."""

    def begin(self, contact: C) -> None:
        """Add a contact, whose link became usable."""
        self._by_link[contact.link] = contact
        contact.link.attach(contact)
        self._changed()

    def end(self, contact: C) -> None:
        """End a contact whose link is not usable any more."""
        del self._by_link[contact.link]
        self._changed()

    def _changed(self) -> None:
        self.all = [self._by_link[link] for link in self._links.usable if link in self._by_link]
