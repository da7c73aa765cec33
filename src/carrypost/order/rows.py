"""The registries as rows of the store: for every group its head (clock and barrier) and one row for each source.

A delivery changes two rows, whatever the number of sources.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from carrypost.errors import StoreError
from carrypost.log.journal import ORDER
from carrypost.model.descriptor import SEQUENCE_BITS, Ordering, Predecessor
from carrypost.model.ids import NodeId
from carrypost.model.times import NEVER
from carrypost.order.causal import Last

if TYPE_CHECKING:
    from collections.abc import Callable

    from carrypost.log.journal import Key
    from carrypost.order.causal import Group

_encode = msgspec.msgpack.Encoder().encode
_SEQUENCE_MASK = (1 << SEQUENCE_BITS) - 1


class Name(msgspec.Struct, frozen=True, array_like=True):
    """The name of a row."""

    ordering: Ordering
    destination: str
    source: str = ""
    """Empty: the head of the group."""


class Head(msgspec.Struct, frozen=True, array_like=True):
    """The state of a group besides its sources."""

    clock_us: int
    newest_us: int
    barrier: tuple[Predecessor, ...]
    opener: str = ""


_NAME = msgspec.msgpack.Decoder(Name)
_HEAD = msgspec.msgpack.Decoder(Head)
_SOURCE = msgspec.msgpack.Decoder(Predecessor)


def head_key(group: Group) -> Key:
    """Return the key of a group's head."""
    return ORDER, _encode(Name(group.ordering, group.destination)), 0


def source_key(group: Group, source: NodeId) -> Key:
    """Return the key of a source's row."""
    return ORDER, _encode((group.ordering, group.destination, source)), 0


def head_row(group: Group) -> bytes:
    """Return the row of a group's head: a `Head`."""
    clock_us, newest_us, barrier = group.head
    return _encode((clock_us, newest_us, [_entry(*each) for each in barrier], group.opener))


def source_row(source: NodeId, last: Last) -> bytes:
    """Return the row of a source in `co_delivered`: a `Predecessor`."""
    return _encode(_entry(source, *last))


def _entry(source: NodeId, tag: int, deadline_us: int) -> tuple[NodeId, int, int, int | None]:
    """Return a `Predecessor` in its encoded form; these rows are written at every delivery."""
    return source, tag >> SEQUENCE_BITS, tag & _SEQUENCE_MASK, None if deadline_us == NEVER else deadline_us


def load(group_of: Callable[[str, Ordering], Group], key: Key, value: bytes) -> None:
    """Load a row into its group; raises `StoreError`."""
    try:
        name = _NAME.decode(key[1])
        group = group_of(name.destination, name.ordering)
        if name.source:
            group.load_last(NodeId(name.source), Last(*_SOURCE.decode(value).tag_and_end))
            return
        head = _HEAD.decode(value)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise StoreError(f"the store has a registry of an order group that cannot be read: {error}") from None
    barrier = tuple((NodeId(str(each.source)), *each.tag_and_end) for each in head.barrier)
    group.load(head.clock_us, head.newest_us, barrier)
    group.opener = head.opener
