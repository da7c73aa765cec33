"""Control messages: lists of items from node to node.

A control message has no payload: its content is `Headers.control`, an encoded list of items of one layer. Several items
for one node go together in one message (`application.control_outbox`). An item that cannot be decoded, because a later
version wrote it or because it is nonsense, is skipped and counted; the others of its list are processed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Generic, TypeVar, cast

import msgspec

from carrypost.gossip.draft import Draft
from carrypost.model.descriptor import Descriptor
from carrypost.model.headers import CONTROL_BYTES_MAX, Headers
from carrypost.model.ids import NodeId
from carrypost.model.times import TIME_US_MAX

T = TypeVar("T")

_PRIORITY, _PRIORITY_WORD = 9, 4
"""Priorities: most items let others go on; reports of completed work are as urgent as any message."""
_LIST_BYTES = 3
"""Bytes around the items of a list, at most."""
ROOM_BYTES = CONTROL_BYTES_MAX - _LIST_BYTES
"""Bytes for the items of one control message."""
_encode = msgspec.msgpack.Encoder().encode
_decode_list = msgspec.msgpack.Decoder(list[msgspec.Raw]).decode


def _shortest(item: object) -> object:
    """Return an item as it is encoded: without the last fields that have no value, up to `left_out` of its kind.

    Such fields were added later, and most items do not need them.
    """
    optional: int = getattr(item, "left_out", 0)
    if not optional:
        return item
    fields: list[object] = msgspec.to_builtins(item, builtin_types=(bytes,))
    while optional and not fields[-1]:
        optional -= 1
        fields.pop()
    return fields


class ItemKinds(Generic[T]):
    """The kinds of items of one layer, and the messages that carry them."""

    def __init__(
        self,
        kinds: object,
        destination: Callable[[NodeId], str],
        *,
        lesser: tuple[type, ...] = (),
        dates: Mapping[type, tuple[str, ...]] | None = None,
    ) -> None:
        """Make the kinds of a layer: a union of tagged structs, of which the `lesser` are not urgent.

        `dates`: fields that are times, which a host has in its own time, and others as dates; 0 is none.
        """
        self._decode: Callable[[msgspec.Raw | bytes], T] = msgspec.msgpack.Decoder(cast("type[T]", kinds)).decode
        self._destination, self._lesser, self._dates = destination, lesser, dates or {}

    def encode(self, items: Sequence[T]) -> bytes:
        """Return a list of items in its wire form."""
        return _encode([_shortest(each) for each in items])

    def encoded_size(self, item: T) -> int:
        """Return the bytes that an item takes of a control message."""
        return len(_encode(_shortest(item)))

    def is_readable(self, item: T) -> bool:
        """Return True if other nodes can read an item that a program had a say in, and it fits into a message."""
        try:
            encoded = _encode(_shortest(item))
            return len(encoded) <= ROOM_BYTES and self._decode(encoded) == item
        except (ValueError, OverflowError):
            return False

    def draft(
        self,
        to: NodeId,
        items: Sequence[T],
        lifetime_us: int | None,
        *,
        withheld: bool = False,
        connected: bool = False,
        payload: bytes = b"",
        lead_us: int = 0,
    ) -> Draft:
        """Return a control message to one node; one that is `withheld` leaves when it is durable.

        `lead_us`: time by which the host's own time is ahead of dates.

        `connected`: it reaches the node only while that is connected with this one, and is never carried. `payload`:
        content of items that does not fit into headers.
        """
        headers = Headers(control=self.encode(self._shifted(items, -lead_us)), connected=connected)
        priority = _PRIORITY_WORD if all(isinstance(each, self._lesser) for each in items) else _PRIORITY
        return Draft(
            self._destination(to), payload, lifetime_us=lifetime_us, priority=priority, headers=headers,
            withheld=withheld,
        )  # fmt: skip

    def items_of(self, descriptor: Descriptor, lead_us: int = 0) -> tuple[list[T], int]:
        """Return the items of a control message, with times of this host, and the number of undecodable ones."""
        headers = descriptor.headers
        if headers is None or not headers.control:
            return [], 1
        try:
            parts = _decode_list(headers.control)
        except (ValueError, RecursionError):  # ValueError: msgspec's own, and text that is not UTF-8
            return [], 1
        found: list[T] = []
        for part in parts:
            try:
                found.append(self._decode(part))
            except (ValueError, RecursionError):  # ValueError: msgspec's own, and text that is not UTF-8
                continue
        return self._shifted(found, lead_us), len(parts) - len(found)

    def _shifted(self, items: Sequence[T], by_us: int) -> list[T]:
        """Return items whose times are shifted from dates to the host's own time, or back."""
        if not by_us:
            return list(items)
        shifted: list[T] = []
        for item in items:
            times = {name: getattr(item, name) for name in self._dates.get(type(item), ())}
            moved = {name: min(max(t_us + by_us, 1), TIME_US_MAX) for name, t_us in times.items() if t_us}
            shifted.append(msgspec.structs.replace(item, **moved) if moved else item)  # type: ignore[type-var]  # a struct
        return shifted
