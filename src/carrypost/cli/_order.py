"""What `carrypost node` is to do, as a value: it goes from the command line to the process that becomes the node.

Both sides know it and neither the other: `carrypost.cli._launch` writes it down, `carrypost.cli.serve` carries it out.
"""

from __future__ import annotations

import msgspec


class NodeCommand(msgspec.Struct, frozen=True):
    """What the command line said."""

    config: str | None
    data: str | None
    changes: tuple[str, ...]
    json: bool
    verbose: bool
