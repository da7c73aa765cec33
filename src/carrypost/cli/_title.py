"""The title by which `ps` and `top` show the process of a node."""

from __future__ import annotations

import contextlib
from pathlib import Path

_ARGUMENTS_AT = slice(45, 47)
"""Place of the first and the last address of a process's arguments in `/proc/PID/stat`, after its name."""


def rename_process(name: str, arguments: str) -> None:
    """Let this process be shown by a name and arguments; only Linux can.

    `ps` reads the arguments from the memory of the process. If their last byte is not zero, the text up to the first
    zero counts, since many programs write their title over their arguments.
    """
    with contextlib.suppress(OSError, ValueError):
        first, last = Path("/proc/self/stat").read_text().rpartition(")")[2].split()[_ARGUMENTS_AT]
        size = int(last) - int(first)
        with Path("/proc/self/mem").open("r+b", buffering=0) as memory:
            memory.seek(int(first))
            memory.write(f"{name} {arguments}".encode()[: size - 2].ljust(size - 1, b"\0") + b".")
        Path("/proc/self/comm").write_text(name)
