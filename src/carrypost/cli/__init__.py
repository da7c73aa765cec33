"""The command `carrypost`.

Data goes to stdout, everything else to stderr. Exit codes: 0 done, 2 usage or configuration, 3 timeout, 4 no
node, 5 already running, 1 anything else (`carrypost.cli._exit` has the rule); 128 and its number after a signal.
Commands import what they need when they are called, so that `--help` is quick.
"""

from __future__ import annotations

import io
import sys

from carrypost.cli import _exit


def main() -> None:
    """Run the command line; never returns."""
    _exit.end_at_once()
    if sys.stderr is None:  # It is closed.
        sys.stderr = io.StringIO()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # What cannot be shown here is shown by its number.
            stream.reconfigure(errors="backslashreplace")
    from carrypost.cli.app import run  # noqa: PLC0415 - typer is loaded only when a command is really run

    sys.exit(run(sys.argv[1:]))
