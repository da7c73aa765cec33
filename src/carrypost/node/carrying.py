"""The messages that a node carries, for which nodes and for how long: derived from its settings, for people.

By default a node carries nothing for others: it has what its programs publish and subscribe to, and gives that to
neighbours that ask for it. A user that starts a third node between two and expects it to relay has to see that.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import msgspec

from carrypost.config import MIB, Settings
from carrypost.model.address import Kind
from carrypost.model.pattern import beginnings
from carrypost.printing import length_of_time

_ADDRESSES = tuple(f"{kind}/" for kind in Kind)


class Carrying(msgspec.Struct, frozen=True, rename=lambda name: name.removeprefix("cache_")):
    """The settings that decide it, as `status` shows them."""

    altruistic: bool | tuple[str, ...]
    """Carry messages that no program here asked for: never, always, or if the destination matches one of these."""
    horizon_hops: int
    cache_messages_max: int
    cache_bytes_max: int
    lifetime_s_default: float | None
    lifetime_s_max: float | None

    @classmethod
    def of(cls, value: Settings | Mapping[str, object]) -> Carrying:
        """Return what a node with these settings carries, or what one reported at its control socket."""
        return msgspec.convert(value, cls, from_attributes=True)

    def sentences(self) -> tuple[tuple[str, str], ...]:
        """Return sentences for people: the carried messages, their recipients, and their end."""
        room = f"at most {self.cache_messages_max:,} messages and {self.cache_bytes_max / MIB:,.0f} MiB"
        return (
            ("carries", f"what programs here publish and subscribe to; {room}"),
            ("carries for", ", ".join(self._whom())),
            ("carries until", self._until()),
        )

    def _whom(self) -> Iterator[str]:
        if self.altruistic is True:
            yield "all nodes, also what no program here asked for (altruistic = true)"
            return
        yield "neighbours that ask for the same"
        if self.horizon_hops > 1:
            hops = self.horizon_hops - 1
            yield f"nodes up to {hops} hop{'s' * (hops > 1)} away, whatever they ask for (horizon_hops = {hops + 1})"
        if self.altruistic:
            yield f"all nodes, what matches {_listed(self.altruistic)} (altruistic)"
        else:
            yield "nothing for others (set altruistic = true to carry for all nodes)"

    def _until(self) -> str:
        if self.lifetime_s_default is None:
            default = "set only if the sender gives one"
        else:
            default = f"{length_of_time(self.lifetime_s_default)} after it was sent, unless the sender gives another"
        most = "" if self.lifetime_s_max is None else f", {length_of_time(self.lifetime_s_max)} at most"
        return f"each message's deadline: {default}{most}"


def fruitless(settings: Settings) -> tuple[str, ...]:
    """Return the patterns of `altruistic` that no topic and no queue can match, on a node with messaging.

    Messages of messaging have destinations such as ``topic/news``. A pattern that begins with anything else, and with
    no wildcard, was most likely written for the names of topics.
    """
    if isinstance(settings.altruistic, bool) or not settings.messaging.enabled:
        return ()
    return tuple(pattern for pattern in settings.altruistic if not _reaches_addresses(pattern))


def _reaches_addresses(pattern: str) -> bool:
    values, prefixes = beginnings(pattern)
    return any(value.startswith(_ADDRESSES) for value in values) or any(
        prefix.startswith(kind) or kind.startswith(prefix) for prefix in prefixes for kind in _ADDRESSES
    )


def _listed(patterns: Sequence[str], most: int = 3) -> str:
    more = f" and {len(patterns) - most} more" if len(patterns) > most else ""
    return ", ".join(patterns[:most]) + more
