"""A file that only takes up room, to be given up when the disk is full: even deleting needs some."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from carrypost.node.store.schema import free_bytes

RESERVE_BYTES = 2 * 1024 * 1024
_MARGIN_BYTES = 512 * 1024
_MARGIN_RATIO = 4
"""Room that is left beside it for the log, or that part of what there is: otherwise it would be given up at once."""


class Reserve:
    """The reserve beside one store."""

    def __init__(self, store: Path) -> None:
        self.path = store.with_name(store.name + ".reserve")
        self.held_bytes = 0
        """Room that it takes now, which is less than all of it if the disk has no more."""
        with contextlib.suppress(OSError):
            self.held_bytes = min(self.path.stat().st_size, RESERVE_BYTES)

    @property
    def whole(self) -> bool:
        """True if it has its full size."""
        return self.held_bytes == RESERVE_BYTES

    def make(self) -> bool:
        """Take the room, or as much of it as the disk has; return True if all of it is held. Never raises."""
        if self.whole:
            return True
        room = self.held_bytes + free_bytes(self.path)
        nbytes = min(RESERVE_BYTES, room - min(_MARGIN_BYTES, room // _MARGIN_RATIO))
        if nbytes > self.held_bytes:
            try:
                self._fill(nbytes)
            except OSError:
                self.give_up()
            else:
                self.held_bytes = nbytes
        return self.whole

    def _fill(self, nbytes: int) -> None:
        handle = os.open(self.path, os.O_WRONLY | os.O_CREAT | getattr(os, "O_CLOEXEC", 0), 0o600)
        try:
            if hasattr(os, "posix_fallocate"):
                # Zeroes that are only written might be packed by the file system until they take no room.
                os.posix_fallocate(handle, 0, nbytes)
            else:
                os.write(handle, bytes(nbytes))
            os.ftruncate(handle, nbytes)
        finally:
            os.close(handle)

    def give_up(self) -> bool:
        """Release the room; return True if there was any."""
        self.held_bytes = 0
        try:
            self.path.unlink()
        except OSError:
            return False
        return True
