"""What a node carries, for whom, and until when: read off its settings, told to programs and to people.

A node that nobody told to carries nothing for others: it has what programs on it publish and subscribe to, and hands
that to neighbours who ask for it. Whoever starts a third node between two and expects it to carry has to see that.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import msgspec

from carrypost.config import Settings

_DAY_S = 86_400
_HOUR_S = 3_600
_MIB = 1024 * 1024


class Carrying(msgspec.Struct, frozen=True):
    """The settings that decide it, as `status` tells them."""

    altruistic: bool | tuple[str, ...]
    """Carry what nobody here asked for: never, always, or where the destination matches one of these."""
    horizon_hops: int
    messages_max: int
    bytes_max: int
    lifetime_s_default: float | None
    lifetime_s_max: float | None

    @classmethod
    def of(cls, settings: Settings) -> Carrying:
        """What a node with these settings does."""
        return cls(
            altruistic=settings.altruistic,
            horizon_hops=settings.horizon_hops,
            messages_max=settings.cache_messages_max,
            bytes_max=settings.cache_bytes_max,
            lifetime_s_default=settings.lifetime_s_default,
            lifetime_s_max=settings.lifetime_s_max,
        )

    @classmethod
    def told(cls, value: Mapping[str, object]) -> Carrying:
        """What a node said at its control socket."""
        return msgspec.convert(value, cls)

    def sentences(self) -> tuple[tuple[str, str], ...]:
        """For people: what, for whom, until when."""
        room = f"at most {self.messages_max:,} messages and {self.bytes_max / _MIB:,.0f} MiB"
        return (
            ("carries", f"what programs here publish and subscribe to; {room}"),
            ("carries for", ", ".join(self._whom())),
            ("carries until", self._until()),
        )

    def _whom(self) -> Iterator[str]:
        if self.altruistic is True:
            yield "everybody: also what nobody here asked for (altruistic = true)"
            return
        yield "neighbours who ask for the same"
        if self.horizon_hops > 1:
            hops = self.horizon_hops - 1
            yield f"nodes up to {hops} hop{'s' * (hops > 1)} away whatever they ask for (horizon_hops = {hops + 1})"
        if self.altruistic:
            yield f"everybody what matches {_listed(self.altruistic)} (altruistic)"
        else:
            yield "nothing for others (altruistic = true carries for everybody)"

    def _until(self) -> str:
        if self.lifetime_s_default is None:
            default = "which a message has only if its sender says so"
        else:
            default = f"{_length(self.lifetime_s_default)} after it was sent unless the sender says otherwise"
        most = "" if self.lifetime_s_max is None else f", {_length(self.lifetime_s_max)} at most"
        return f"each message's deadline: {default}{most}"


def _listed(patterns: Sequence[str], most: int = 3) -> str:
    more = f" and {len(patterns) - most} more" if len(patterns) > most else ""
    return ", ".join(patterns[:most]) + more


def _length(seconds: float) -> str:
    for unit, size in (("day", _DAY_S), ("hour", _HOUR_S), ("minute", 60)):
        count = seconds / size
        if count >= 1 and count == int(count):
            return f"{int(count):,} {unit}{'s' * (count > 1)}"
    return f"{seconds:g} s"
