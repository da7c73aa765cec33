"""The command `carrypost`.

Data goes to stdout, everything else to stderr. Exit codes: 0 done, 2 usage or configuration, 3 timeout, 4 no
node, 5 already running, 1 anything else. Commands import what they need when they are called, so that
`--help` is quick.
"""

from __future__ import annotations

import sys

_INTERRUPTED = 130
"""As shells have it for who was ended by Ctrl-C."""


def main() -> None:
    """Run the command line; never returns."""
    try:
        from carrypost.cli.app import run  # noqa: PLC0415 - typer is loaded only when a command is really run

        code = run(sys.argv[1:])
    except KeyboardInterrupt:
        code = _INTERRUPTED
    sys.exit(code)
