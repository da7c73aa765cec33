"""The start of a node by `carrypost node`.

A node runs for days, on small devices: before it begins, the process becomes a fresh interpreter that knows nothing of
the command line's libraries, which would cost it a quarter of its memory.
"""

from __future__ import annotations

import contextlib
import os
import sys

import msgspec

from carrypost.cli import _signals
from carrypost.cli._settings import NodeCommand
from carrypost.errors import ConfigError


def become(command: NodeCommand) -> int:
    """Become the process that runs the node; where the system cannot do that, run it here and return its exit code."""
    try:
        text = msgspec.json.encode(command).decode()
    except UnicodeEncodeError:  # Arguments have been looked at; relative paths begin with the folder that one is in.
        raise ConfigError(
            "the name of the current folder is not UTF-8 text: run the command in another folder"
        ) from None
    if os.name == "posix" and sys.executable:
        _signals.hold()  # An interpreter that starts shows a traceback when Ctrl-C comes; `_process` lets them through.
        with contextlib.suppress(OSError):  # Too much for one argument, or the interpreter was just replaced.
            # -P: a folder called carrypost where the command is given is none of our business.
            os.execv(sys.executable, [sys.executable, "-P", "-m", "carrypost.cli._process", text])  # noqa: S606 - ours
        _signals.release()
    from carrypost.cli import serve  # noqa: PLC0415 - what this module is there to avoid

    return serve.run(command)
