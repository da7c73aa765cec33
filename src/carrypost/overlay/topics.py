"""Channels as messaging uses them: subscriptions that it opens for its programs (`mom.channels`).

Messaging and the overlay are layers beside each other, and neither knows the other. The host gives messaging this part
of the overlay. All values are such as messaging keeps in its own rows: a modulator is the bytes of a `Modulator`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from carrypost.errors import IllegalArgumentException, InvalidSelectorException, LocalError
from carrypost.events import OverlayState
from carrypost.overlay.modulator import Modulator

if TYPE_CHECKING:
    from collections.abc import Sequence

    from carrypost.model.ids import MessageId
    from carrypost.overlay.overlay import Overlay

_decode = msgspec.msgpack.Decoder(Modulator).decode
_SELECTOR = "selector"


class ChannelTopics:
    """Subscriptions to channels for the programs of one layer above."""

    def __init__(self, overlay: Overlay, owner: str) -> None:
        self._overlay, self._owner = overlay, owner

    def open(self, channel: str, selector: str | None, modulator: bytes, relocation: str, now: int) -> str:
        """Subscribe to a channel; returns the destination of the results.

        Raises `LocalError` for a name that no channel can have, for a modulator that is none, and beyond the limits.
        """
        decoded = _modulator(selector, modulator)
        return self._overlay.consume(channel, now, decoded, relocation=relocation, owner=self._owner)

    def change(self, destination: str, modulator: bytes, now: int) -> None:
        """Give a subscription another modulator, or none; raises `LocalError` if there is no such subscription."""
        self._overlay.change(destination, _modulator(None, modulator), now)

    def close(self, destination: str, now: int) -> None:
        """End a subscription; raises `LocalError` if there is none."""
        self._overlay.close(destination, now)

    def opened(self) -> Sequence[str]:
        """Return the destinations of all its subscriptions, those of an earlier life included."""
        return [each.destination for each in self._overlay.consumers if each.row.owner == self._owner]

    def lost_before(self, message: MessageId) -> int:
        """Return how many events are missing before a result that came with the present step."""
        return self._overlay.consumers.lost_before(message)

    def state(self, destination: str) -> OverlayState:
        """Return the state of a subscription; raises `LocalError` if there is none."""
        found = self._overlay.consumers.find(destination)
        home, row = self._overlay.homes.home(*found.key), found.row
        hops = None if home is None else self._overlay.homes.hops(home)
        refusal = self._overlay.homes.refusal(*found.key)
        counts = row.events, row.faults, row.busy_us
        return OverlayState(home, hops, row.epoch, *counts, *refusal, discarded=row.discarded, fault=row.fault)


def _modulator(selector: str | None, encoded: bytes) -> Modulator | None:
    if selector is not None:
        try:
            return Modulator.named(_SELECTOR, text=selector)
        except LocalError as error:
            raise InvalidSelectorException(
                f"the selector of a channel's consumer is a parameter of the modulator {_SELECTOR!r}, and this one has "
                f"{len(selector.encode()):,} bytes: shorten it. {error}"
            ) from error
    try:
        return _decode(encoded) if encoded else None
    except (msgspec.MsgspecError, RecursionError) as error:
        raise IllegalArgumentException(f"invalid modulator: {error}") from None
