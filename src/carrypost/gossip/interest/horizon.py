"""The interest profile that a host announces: its own interests, what it carries, and its neighbours' interests.

With a horizon of h > 1 hops a host adds its neighbours' entries to its own, at one hop more, as long as that is below h
(N10). A profile has to fit the limits of every neighbour. This host's own interests come first, so that neighbours'
entries cannot crowd them out, however many there are.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from carrypost.config import Limits, Settings
from carrypost.errors import ConfigError, PatternError
from carrypost.model.pattern import CARRIED_HOPS, Entry, encode_entries, entry

_LIST_BYTES = 8
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
