"""The program of a process that is nothing but a node: `carrypost node` becomes it (`carrypost.cli._launch`).

Signals have been held back since before this interpreter started; they get through before anything slow is loaded.
"""

from __future__ import annotations

import sys

from carrypost.cli import _signals


def main() -> int:
    """Run the node that the first argument describes; returns the exit code."""
    _signals.end_at_once()
    from carrypost.cli import serve  # noqa: PLC0415 - takes most of the start

    return serve.main(sys.argv[1], titled=True)


if __name__ == "__main__":
    sys.exit(main())
