"""Things that come in several parts and are not whole yet: long descriptors and profiles.

The buffer is bounded in bytes for everybody together; when it is full the thing that has waited longest without a
new part is forgotten, and its sender sends it again.
"""

from __future__ import annotations

from collections.abc import Hashable

from carrypost.errors import LimitError

PARTS_MAX = 256


class Parts:
    """A bounded buffer of incomplete multi-part things."""

    __slots__ = ("_bytes", "_bytes_max", "_open")

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._bytes = 0
        self._open: dict[Hashable, dict[int, bytes]] = {}

    def __len__(self) -> int:
        return len(self._open)

    def add(self, key: Hashable, part: int, parts: int, body: bytes) -> bytes | None:
        """Take one part; the whole once it is there. A part that says nothing or too much is refused."""
        if not 0 <= part < parts <= PARTS_MAX or not body or len(body) > self._bytes_max:
            raise LimitError("parts", f"part {part} of {parts}, {len(body)} bytes")
        have = self._open.pop(key, {})
        self._open[key] = have
        self._bytes += len(body) - len(have.get(part, b""))
        have[part] = body
        if len(have) == parts and max(have) == parts - 1:
            self.forget(key)
            return b"".join(have[number] for number in range(parts))
        while self._bytes > self._bytes_max:
            self.forget(next(iter(self._open)))
        return None

    def forget(self, key: Hashable) -> None:
        """Drop what has come of `key`."""
        self._bytes -= sum(map(len, self._open.pop(key, {}).values()))
