"""The process of a node: how `carrypost node` becomes it (`become`), and its program (`main`).

A node runs for days, on small devices: before it begins, the process becomes a fresh interpreter that knows nothing of
the command line's libraries, which would cost it a quarter of its memory.

Signals have been held back since before that interpreter started; they get through before anything slow is loaded.
"""

from __future__ import annotations

import contextlib
import os
import sys
from typing import TYPE_CHECKING

from carrypost.cli import _exit
from carrypost.errors import ConfigError

if TYPE_CHECKING:
    from carrypost.cli._settings import NodeCommand


def become(command: NodeCommand) -> int:
    """Become the process that runs the node; where the system cannot do that, run it here and return its exit code."""
    import msgspec  # noqa: PLC0415 - `main` lets signals through before it is loaded

    try:
        text = msgspec.json.encode(command).decode()
    except UnicodeEncodeError:  # Arguments have been looked at; relative paths begin with the folder that one is in.
        raise ConfigError(
            "the name of the current folder is not UTF-8 text: run the command in another folder"
        ) from None
    if os.name == "posix" and sys.executable:
        _exit.hold()  # An interpreter that starts shows a traceback when Ctrl-C comes; `main` lets them through.
        with contextlib.suppress(OSError):  # Too much for one argument, or the interpreter was just replaced.
            # -P: a folder called carrypost where the command is given is none of our business.
            os.execv(sys.executable, [sys.executable, "-P", "-m", "carrypost.cli._process", text])  # noqa: S606 - ours
        _exit.release()
    from carrypost.cli import serve  # noqa: PLC0415 - what this module is there to avoid

    return serve.run(command)


def main() -> int:
    """Run the node that the first argument describes; returns the exit code."""
    _exit.end_at_once()
    from carrypost.cli import serve  # noqa: PLC0415 - takes most of the start

    return serve.main(sys.argv[1], titled=True)


if __name__ == "__main__":
    sys.exit(main())
