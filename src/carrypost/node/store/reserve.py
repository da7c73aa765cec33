"""A file that only takes up room, to be given up when the disk is full: even deleting needs some."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from carrypost.node.store.schema import free_bytes

RESERVE_BYTES = 2 * 1024 * 1024
_MARGIN_BYTES = 512 * 1024
"""It is taken only where so much is left beside it for the log, or it would have to be given up again at once."""


class Reserve:
    """The reserve beside one store."""

    def __init__(self, store: Path) -> None:
        self.path = store.with_name(store.name + ".reserve")
        self.held = False
        """Whether the room is taken now."""

    def make(self) -> bool:
        """Take the room if the disk has it; whether it is held now. Never raises."""
        if self.held:
            return True
        with contextlib.suppress(OSError):
            if self.path.stat().st_size == RESERVE_BYTES:
                self.held = True
                return True
        if free_bytes(self.path) < RESERVE_BYTES + _MARGIN_BYTES:
            return False
        try:
            self._fill()
        except OSError:
            self.give_up()
            return False
        self.held = True
        return True

    def _fill(self) -> None:
        handle = os.open(self.path, os.O_WRONLY | os.O_CREAT | getattr(os, "O_CLOEXEC", 0), 0o600)
        try:
            if hasattr(os, "posix_fallocate"):
                # Zeroes that are only written might be packed by the file system until they take no room.
                os.posix_fallocate(handle, 0, RESERVE_BYTES)
            else:
                os.write(handle, bytes(RESERVE_BYTES))
            os.ftruncate(handle, RESERVE_BYTES)
        finally:
            os.close(handle)

    def give_up(self) -> bool:
        """Give the room back; whether there was any to give."""
        self.held = False
        try:
            self.path.unlink()
        except OSError:
            return False
        return True
