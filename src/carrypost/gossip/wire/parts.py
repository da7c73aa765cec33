"""Descriptors and profiles that arrive in several parts and are not complete yet.

The buffer is bounded for all senders together, in bytes and in parts (a part of one byte is not free, either). When it
is full, the sender that fills most of it loses the thing that has waited longest without a new part, and has to send it
again: so a sender of nothing but first parts does not hinder others.
"""

from __future__ import annotations

from collections.abc import Hashable

from carrypost.errors import LimitError

PARTS_MAX = 256
"""Number of parts of one thing."""
OPEN_MAX = 1024
"""Number of parts of all things."""
_PART_BYTES = 128
"""Approximate bytes of a part beside its body."""


class Parts:
    """A bounded buffer of incomplete multi-part things, by owner."""

    __slots__ = ("_bytes", "_bytes_max", "_count", "_open", "_used")

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._bytes = 0
        self._count = 0
        self._open: dict[str, dict[Hashable, dict[int, bytes]]] = {}
        self._used: dict[str, int] = {}

    def __len__(self) -> int:
        return sum(map(len, self._open.values()))

    def add(self, owner: str, key: Hashable, part: int, parts: int, body: bytes) -> bytes | None:
        """Add one part; return the whole once it is complete. An empty or oversized part is refused."""
        if not 0 <= part < parts <= PARTS_MAX or not body or len(body) > self._bytes_max:
            raise LimitError("parts", f"part {part} of {parts}, {len(body)} bytes")
        things = self._open.setdefault(owner, {})
        have = things.pop(key, {})
        things[key] = have
        if part in have:
            self._charge(owner, -1, -len(have[part]))
        self._charge(owner, 1, len(body))
        have[part] = body
        if len(have) == parts and max(have) == parts - 1:
            self._forget(owner, key)
            return b"".join(have[number] for number in range(parts))
        while self._bytes > self._bytes_max or self._count > OPEN_MAX:
            fullest = max(self._used, key=self._used.__getitem__)
            self._forget(fullest, next(iter(self._open[fullest])))
        return None

    def leave(self, owner: str) -> None:
        """Drop everything of an owner."""
        for key in list(self._open.get(owner, ())):
            self._forget(owner, key)

    def _forget(self, owner: str, key: Hashable) -> None:
        have = self._open[owner].pop(key)
        self._charge(owner, -len(have), -sum(map(len, have.values())))
        if not self._open[owner]:
            del self._open[owner], self._used[owner]

    def _charge(self, owner: str, parts: int, nbytes: int) -> None:
        self._count += parts
        self._bytes += nbytes
        self._used[owner] = self._used.get(owner, 0) + nbytes + parts * _PART_BYTES
