"""The interests of this node: numbered entries, those that a message matches, and the profile that is announced.

The application's side adds and removes entries; inspection, discovery and transfers read them. Compiling all
entries at each change would make a program's two thousand subscriptions cost two thousand times two thousand. So a
change only marks: entries added since the last compilation have a small matcher of their own, and removed ones are
skipped. All are compiled together again once the workarounds have cost as much as that: compiling the new entries, and
matching messages twice.

The profile contains these entries, what the administrator or a layer lets this node carry, and the interests of
neighbours within the horizon. It is made when it is announced; until then the one that neighbours know is valid. An
entry may be left out of it that asks for a part of what is carried in any case, such as messages addressed to this
node: profiles that name nodes would all be different, and every message is matched against each known profile.

With a horizon of h > 1 hops a host adds its neighbours' entries to its own, at one hop more, as long as that is below h
(N10). A profile has to fit the limits of every neighbour. This host's own interests come first, so that neighbours'
entries cannot crowd them out, however many there are.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

import msgspec

from carrypost.config import Limits, Settings
from carrypost.errors import ConfigError, LocalError, PatternError
from carrypost.gossip.interest.matcher import Matcher
from carrypost.model.descriptor_values import is_for
from carrypost.model.pattern import CARRIED_HOPS, Entry, encode_entries, entry, profile_digest

if TYPE_CHECKING:
    from collections.abc import Collection

    from carrypost.gossip.interest.index import ProfileIndex, View
    from carrypost.gossip.interest.matcher import Slotted
    from carrypost.model.descriptor import Descriptor
    from carrypost.model.ids import NodeId


_LIST_BYTES: Final = 8
"""Largest overhead of an encoded profile around its entries, in bytes."""


def entry_bytes(one: Entry) -> int:
    """Return the bytes of an entry in a profile."""
    return len(encode_entries((one,)))


def entries_bytes_max(limits: Limits) -> int:
    """Return the bytes that the entries of a profile may take together."""
    return limits.profile_bytes_max - _LIST_BYTES


def carried_entries(settings: Settings, *, everything: bool = False) -> tuple[Entry, ...]:
    """Return what this host carries for others: everything, or what the settings say; raises `ConfigError`."""
    carried = everything or settings.altruistic
    if isinstance(carried, bool):
        return (entry(".*"),) if carried else ()
    try:
        return tuple(entry(pattern, limits=settings.limits) for pattern in carried)
    except PatternError as error:
        raise ConfigError(f"altruistic: {error}") from None


def profile_entries(
    own: Iterable[Entry], carried: Iterable[Entry], neighbours: Iterable[Iterable[Entry]], settings: Settings
) -> tuple[Entry, ...]:
    """Return the entries of the profile, nearest first."""
    nearest = dict.fromkeys(own, 0)
    for each in carried:
        nearest.setdefault(each, CARRIED_HOPS)
    local = len(nearest)
    for entries in neighbours if settings.horizon_hops > 1 else ():
        for theirs in entries:
            hops = theirs.hops + 1
            bare = msgspec.structs.replace(theirs, hops=0)
            if hops < settings.horizon_hops and hops < nearest.get(bare, CARRIED_HOPS + 1):
                nearest[bare] = hops
    ranked = list(nearest.items())
    # Sorted by encoding within one distance, so that two hosts with the same neighbours announce
    # the same profile: every distinct profile costs each neighbour a view.
    ranked[local:] = sorted(ranked[local:], key=lambda item: (item[1], encode_entries((item[0],))))
    found: list[Entry] = []
    room_bytes = entries_bytes_max(settings.limits)
    for bare, hops in ranked[: settings.limits.profile_entries_max]:
        one = msgspec.structs.replace(bare, hops=hops)
        room_bytes -= entry_bytes(one)
        if room_bytes < 0:
            break
        found.append(one)
    return tuple(found)


_NUMBERS_MAX: Final = 256


class OwnInterests:
    """The interests of one node; its profile has at most `limits.profile_entries_max` and `profile_bytes_max`."""

    __slots__ = (
        "_carried", "_changed", "_compiled", "_debt", "_distinct", "_entries", "_hidden", "_limits", "_nbytes",
        "_newcomers", "_next", "_node", "_numbers", "_numbers_by_match", "_plain", "_recent", "_settings", "encoded",
        "revision", "stale", "view",
    )  # fmt: skip

    def __init__(self, settings: Settings, node: NodeId, *, everything: bool = False) -> None:
        """Make the interests of a node; `everything`: it carries all messages, and not only what the settings say."""
        self._settings = settings
        self._node = node
        self._limits = limits = settings.limits
        self._entries: dict[int, Entry] = {}
        self._hidden: set[int] = set()
        """Numbers of the entries that the profile leaves out."""
        self._distinct: Counter[Entry] = Counter()
        self._nbytes = 0
        self._next = 1
        self.revision = 0
        """Rises whenever the entries of the profile change."""
        self._changed = False
        """True if entries came or went since all were compiled."""
        self._compiled = Matcher((), limits, own=True)
        self._numbers: tuple[int, ...] = ()
        """Numbers of the entries that are compiled together, by their places; some may be gone."""
        self._recent: dict[int, Entry] = {}
        """Entries that are not compiled together."""
        self._newcomers: Matcher | None = None
        self._debt = 0
        """Cost since the last compilation, in entries compiled and messages examined."""
        self._numbers_by_match: dict[tuple[int, ...], tuple[int, ...]] = {}
        """Numbers of the entries at these places: bursts mostly match the same ones."""
        self._plain: dict[str, tuple[int, ...]] = {}
        """Entries for each destination that no other entry matches, while all are compiled."""
        self._carried = carried_entries(settings, everything=everything)
        self.stale = False
        """True if entries came or went since the profile was made."""
        self.view: View | None = None
        """The profile as last made, matched against all copies."""
        self.encoded = b""
        """The entries of the profile in their wire form."""

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def entries(self) -> tuple[Entry, ...]:
        """The entries in the profile, each once."""
        if not self._hidden:
            return tuple(dict.fromkeys(self._entries.values()))
        return tuple(dict.fromkeys([each for number, each in self._entries.items() if number not in self._hidden]))

    def __getitem__(self, number: int) -> Entry:
        return self._entries[number]

    def carry(self, entries: Iterable[Entry]) -> None:
        """Carry messages for others that match these entries, too."""
        carried = tuple(dict.fromkeys((*self._carried, *entries)))
        if carried != self._carried:
            self._carried = carried
            self._revise()

    def is_carried(self, entry: Entry) -> bool:
        """Return True if an entry asks for a part of what this node carries: neighbours offer that in any case."""
        asked = dict(entry.patterns).get("destination", "")
        advertised = [each.patterns[0][1] for each in self._carried if len(each.patterns) == 1]
        return "|" not in asked and any(each.endswith("/.*") and asked.startswith(each[:-2]) for each in advertised)

    def add(self, entry: Entry, *, advertised: bool = True) -> int:
        """Add an entry and return its number; without `advertised` the profile leaves it out."""
        if advertised:
            self._advertise(entry)
        number, self._next = self._next, self._next + 1
        if not advertised:
            self._hidden.add(number)
        self._entries[number] = self._recent[number] = entry
        self._changed = True
        self._newcomers = None
        self._plain = {}
        return number

    def _advertise(self, entry: Entry) -> None:
        """Put this entry into the profile; raises `LocalError` if there is no room for it."""
        limits = self._limits
        if len(self._entries) - len(self._hidden) >= limits.profile_entries_max:
            raise LocalError(f"more than {limits.profile_entries_max} subscriptions")
        another = entry not in self._distinct
        nbytes = self._nbytes + entry_bytes(entry) if another else self._nbytes
        if nbytes > entries_bytes_max(limits):
            raise LocalError(f"the interest profile would have more than {limits.profile_bytes_max} bytes")
        self._distinct[entry] += 1
        self._nbytes = nbytes
        if another:
            self._revise()

    def remove(self, numbers: Collection[int]) -> list[Entry]:
        """Remove all of these, or none if one does not exist; return the removed entries."""
        unknown = next((number for number in numbers if number not in self._entries), None)
        if unknown is not None:
            raise LocalError(f"no subscription {unknown}")
        gone = []
        for number in dict.fromkeys(numbers):
            entry = self._entries.pop(number)
            gone.append(entry)
            if self._recent.pop(number, None) is not None:
                self._newcomers = None
            if number in self._hidden:
                self._hidden.remove(number)
                continue
            self._distinct[entry] -= 1
            if not self._distinct[entry]:
                del self._distinct[entry]
                self._nbytes -= entry_bytes(entry)
                self._revise()
        if gone:
            self._changed = True
            self._plain = {}
        return gone

    def _revise(self) -> None:
        self.revision += 1
        self.stale = True

    # --- asking --------------------------------------------------------------------------------------------

    @property
    def wants_something(self) -> bool:
        """True if this node wants anything for itself. Without a profile, anything may be wanted."""
        return self.view is None or bool(self._hidden) or self.view.wants_something

    def wants(self, descriptor: Descriptor) -> bool:
        """Return True if any entry matches or, if a message names its recipients, this node is one of them."""
        headers = descriptor.headers
        if headers is not None and (headers.recipients or headers.home is not None):
            return is_for(descriptor, self._node)
        if descriptor.destination in self._plain:  # Most ask for whole destinations, and messages come by the thousand.
            return True
        if self._changed:
            self._pay()
        if not self._changed:
            return self._compiled.matches(descriptor)
        found = self._newcomers is not None and self._newcomers.matches(descriptor)
        return found or any(self._numbers[place] in self._entries for place in self._compiled.which_of(descriptor))

    def carries(self, descriptor: Descriptor) -> bool:
        """Return True if a message is carried for others: altruistically, or for a node within the horizon."""
        return self.view is not None and self.view.matcher.matches(descriptor)

    def which(self, descriptor: Descriptor) -> tuple[int, ...]:
        """Return the numbers of the entries that match a message, ascending; none if it lists other recipients."""
        headers = descriptor.headers
        if headers is not None and headers.recipients and not is_for(descriptor, self._node):
            return ()
        known = self._plain.get(descriptor.destination)
        if known is not None:
            return known
        if self._changed:
            self._pay()
        numbers = self._numbered(self._compiled.which_of(descriptor))
        if self._changed:
            numbers = tuple([number for number in numbers if number in self._entries])
            if self._newcomers is not None:
                recent = tuple(self._recent)
                numbers += tuple([recent[place] for place in self._newcomers.which_of(descriptor)])
        return numbers

    def _pay(self) -> None:
        """Count the cost of matching after a change; compile the new entries, or all if that is due."""
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
        self._recent, self._newcomers, self._numbers_by_match = {}, None, {}
        plain = self._compiled.plain or {}
        self._plain = {name: tuple([numbers[at] for at in which]) for name, which in plain.items()}

    def _numbered(self, which: tuple[int, ...]) -> tuple[int, ...]:
        """Return the numbers of the entries at these places."""
        numbers = self._numbers_by_match.get(which)
        if numbers is None:
            if len(self._numbers_by_match) >= _NUMBERS_MAX:
                self._numbers_by_match.clear()
            numbers = self._numbers_by_match[which] = tuple([self._numbers[index] for index in which])
        return numbers

    # --- the profile ---------------------------------------------------------------------------------------

    def renew(self, neighbours: Iterable[View], index: ProfileIndex, copies: Iterable[Slotted]) -> bool:
        """Make the profile, and match it against all copies that have a slot; return False if it is unchanged."""
        self.stale = False
        theirs = (view.entries for view in neighbours)
        entries = profile_entries(self.entries, self._carried, theirs, self._settings)
        encoded = encode_entries(entries)
        digest = profile_digest(encoded)
        before = self.view
        if before is not None and before.digest == digest:
            return False
        index.learn(entries, digest, copies, own=True)
        self.view = index.keep(digest)
        if before is not None:
            index.drop(before.digest)
        self.encoded = encoded
        return True
