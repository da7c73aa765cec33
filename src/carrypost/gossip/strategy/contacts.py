"""Contacts: neighbours with whom messages may be exchanged, as a strategy sees them.

A `Contact` is soft state: it begins when a link becomes usable and is gone with it. Strategies that remember more of a
neighbour than what it wants derive a class of their own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, TypeVar

from carrypost.model.times import NEVER

if TYPE_CHECKING:
    from carrypost.config import Settings
    from carrypost.gossip.interest.index import View
    from carrypost.gossip.transfers.link import Link, Links


class Contact:
    """One neighbour with whom messages may be exchanged."""

    __slots__ = ("link", "overdue_us", "timers", "view")

    def __init__(self, link: Link, settings: Settings) -> None:  # noqa: ARG002 - for those that remember more
        self.link = link
        self.timers = link.timers
        self.view: View | None = None
        """Profile of the neighbour; None until it is known."""
        self.overdue_us = NEVER
        """From then on it should have been heard again: it may be gone, though it is too early to tell."""

    def learn(self, view: View) -> None:
        """Note that the profile of the neighbour is known."""
        self.view = view

    def unlearn(self) -> None:
        """The neighbour wants something else, and it is not known yet what."""
        self.view = None

    def announced(self, overdue_us: int, *, period: bool) -> bool:  # noqa: ARG002 - others count periods
        """Take an announcement that says nothing new, and expect the next one until `overdue_us`.

        `period`: it ends a period. False: something has to be looked at, and nothing was counted.
        """
        self.overdue_us = overdue_us
        return True

    def count_period(self) -> None:
        """The neighbour announced itself, a period after the last one that was counted."""

    def expect(self, overdue_us: int) -> None:
        """From then on the neighbour should have been heard again."""
        self.overdue_us = overdue_us

    def heard(self, now: int, overdue_us: int) -> None:  # noqa: ARG002 - others go on with what they had stopped
        """Anything at all from the neighbour shows that it is still there."""
        self.overdue_us = overdue_us

    def forget_slots(self, mask: int) -> None:
        """Slots were freed for other messages."""


C = TypeVar("C", bound=Contact)


class Contacts(Generic[C]):
    """The contacts of one host."""

    __slots__ = ("_by_link", "_links", "all", "of")

    def __init__(self, links: Links) -> None:
        self._links = links
        self._by_link: dict[Link, C] = {}
        self.of = self._by_link.get
        """The contact over a link; None for a link over which a layer exchanges messages by itself."""
        self.all: list[C] = []
        """Contacts with whom messages may be exchanged, in the order of the links."""

    def begin(self, contact: C) -> None:
        """A link became usable."""
        self._by_link[contact.link] = contact
        contact.link.believe(contact)
        self._changed()

    def end(self, contact: C) -> None:
        """End a contact whose link is not usable any more."""
        del self._by_link[contact.link]
        self._changed()

    def _changed(self) -> None:
        self.all = [self._by_link[link] for link in self._links.usable if link in self._by_link]
