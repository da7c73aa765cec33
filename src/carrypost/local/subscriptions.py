"""What the applications of one host ask for: numbered entries, and which of them a message matches.

To compile all entries for each one that comes or goes would make a program's two thousand subscriptions cost two
thousand times two thousand. So a change only marks: entries that came since the last compilation have a small matcher
of their own, and those that went are passed over. All are compiled together again once what that costs has been spent
on doing without: on compiling the newcomers, and on messages that were asked about twice.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from carrypost.errors import LocalError
from carrypost.gossip.interest.horizon import entries_bytes_max, entry_bytes
from carrypost.gossip.interest.matcher import Matcher

if TYPE_CHECKING:
    from collections.abc import Collection

    from carrypost.config import Limits
    from carrypost.model.descriptor import Descriptor
    from carrypost.model.pattern import Entry

_TOLD_MAX = 256


class Subscriptions:
    """The subscriptions of one host; at most `limits.profile_entries_max`, which fit `limits.profile_bytes_max`."""

    __slots__ = (
        "_changed", "_compiled", "_debt", "_distinct", "_entries", "_limits", "_narrower", "_nbytes", "_newcomers",
        "_next", "_numbers", "_recent", "_told", "destinations", "revision",
    )  # fmt: skip

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._entries: dict[int, Entry] = {}
        """As the profile has them."""
        self._narrower: dict[int, Matcher] = {}
        """Of subscriptions that are applied at delivery only: what they ask for besides the destination."""
        self._distinct: Counter[Entry] = Counter()
        self._nbytes = 0
        self._next = 1
        self.revision = 0
        """Rises whenever the profile has to have other entries than before."""
        self._changed = False
        """Some came or went since all were compiled."""
        self._compiled = Matcher((), limits, own=True)
        self._numbers: tuple[int, ...] = ()
        """Those that are compiled together, by their places; some may be gone."""
        self._recent: dict[int, Entry] = {}
        """Those that are not."""
        self._newcomers: Matcher | None = None
        self._debt = 0
        """What has been spent since the last compilation, in entries compiled and messages looked at."""
        self._told: dict[tuple[int, ...], tuple[int, ...]] = {}
        """Numbers of the subscriptions by their places: bursts mostly match the same ones."""
        self.destinations: dict[str, tuple[int, ...]] | None = {}
        """Who asks for each destination, while all are compiled and nothing but whole destinations is asked for."""

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def entries(self) -> tuple[Entry, ...]:
        """What is asked for, each once."""
        return tuple(dict.fromkeys(self._entries.values()))

    def add(self, entry: Entry, narrower: Entry | None = None) -> int:
        """One more, which at delivery takes only what matches `narrower` as well; returns its number."""
        limits = self._limits
        if len(self._entries) >= limits.profile_entries_max:
            raise LocalError(f"more than {limits.profile_entries_max} subscriptions")
        another = entry not in self._distinct
        nbytes = self._nbytes + entry_bytes(entry) if another else self._nbytes
        if nbytes > entries_bytes_max(limits):
            raise LocalError(f"the interest profile would have more than {limits.profile_bytes_max} bytes")
        self._distinct[entry] += 1
        self._nbytes = nbytes
        self.revision += another
        number, self._next = self._next, self._next + 1
        self._entries[number] = self._recent[number] = entry
        if narrower is not None:
            self._narrower[number] = Matcher((narrower,), limits, own=True)
        self._changed = True
        self._newcomers = self.destinations = None
        return number

    def remove(self, numbers: Collection[int]) -> list[Entry]:
        """These are no more: all of them, or none if there is one that does not exist. Returns what they asked for."""
        unknown = next((number for number in numbers if number not in self._entries), None)
        if unknown is not None:
            raise LocalError(f"no subscription {unknown}")
        gone = []
        for number in dict.fromkeys(numbers):
            entry = self._entries.pop(number)
            gone.append(entry)
            self._narrower.pop(number, None)
            if self._recent.pop(number, None) is not None:
                self._newcomers = None
            self._distinct[entry] -= 1
            if not self._distinct[entry]:
                del self._distinct[entry]
                self._nbytes -= entry_bytes(entry)
                self.revision += 1
        if gone:
            self._changed = True
            self.destinations = None
        return gone

    def asked(self, number: int) -> Entry:
        """What a subscription asks for, with all that it leaves out at delivery."""
        narrower = self._narrower.get(number)
        return self._entries[number] if narrower is None else narrower.entries[0]

    # --- asking --------------------------------------------------------------------------------------------

    def wants(self, descriptor: Descriptor) -> bool:
        """Whether any of them matches, whatever it leaves out at delivery."""
        if self.destinations is not None:
            return descriptor.destination in self.destinations
        if self._changed:
            self._pay()
        if not self._changed:
            return self._compiled.matches(descriptor)
        found = self._newcomers is not None and self._newcomers.matches(descriptor)
        return found or any(self._numbers[place] in self._entries for place in self._compiled.which(descriptor))

    def asking(self, descriptor: Descriptor) -> tuple[int, ...]:
        """The numbers of those that ask for a message, ascending."""
        if self.destinations is not None:  # Most ask for whole destinations, and messages come by the thousand.
            return self.destinations.get(descriptor.destination, ())
        if self._changed:
            self._pay()
        numbers = self._told_as(self._compiled.which(descriptor))
        if self._changed:
            numbers = tuple([number for number in numbers if number in self._entries])
            if self._newcomers is not None:
                recent = tuple(self._recent)
                numbers += tuple([recent[place] for place in self._newcomers.which(descriptor)])
        if self._narrower:
            narrower = self._narrower
            return tuple([
                number for number in numbers if (own := narrower.get(number)) is None or own.matches(descriptor)
            ])  # fmt: skip
        return numbers

    def _pay(self) -> None:
        """Something changed, and a message is to be looked at: compile what came, or all if that is due by now."""
        compiling = bool(self._recent) and self._newcomers is None
        self._debt += 1 + len(self._recent) if compiling else 1
        if self._debt >= len(self._entries):
            self._compile()
        elif compiling:
            self._newcomers = Matcher(tuple(self._recent.values()), self._limits, own=True)

    def _compile(self) -> None:
        self._compiled = Matcher(tuple(self._entries.values()), self._limits, own=True)
        self._numbers = numbers = tuple(self._entries)
        self._changed, self._debt = False, 0
        self._recent, self._newcomers, self._told = {}, None, {}
        places = self._compiled.destinations if numbers else {}
        if places is not None and not self._narrower:
            self.destinations = {name: tuple([numbers[at] for at in which]) for name, which in places.items()}

    def _told_as(self, which: tuple[int, ...]) -> tuple[int, ...]:
        """The numbers of the subscriptions at these places."""
        numbers = self._told.get(which)
        if numbers is None:
            if len(self._told) >= _TOLD_MAX:
                self._told.clear()
            numbers = self._told[which] = tuple([self._numbers[index] for index in which])
        return numbers
