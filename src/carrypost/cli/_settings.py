"""A node's settings from the command line, the environment and a file.

`NodeCommand` is what `carrypost node` is to do, as a value: it goes from the command line to the process that becomes
the node. `carrypost.cli._process` writes it down, `carrypost.cli.serve` carries it out.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import msgspec

from carrypost.config.document import assigned
from carrypost.errors import ConfigError
from carrypost.node.settings import FIELDS, NodeSettings, load


class NodeCommand(msgspec.Struct, frozen=True):
    """The command line of a node."""

    config: str | None
    data: str | None
    changes: tuple[str, ...]
    json: bool
    verbose: bool
    until_eof: bool = False
    """The node also ends at the end of stdin, on which nothing comes: whoever started it is gone."""

    def settings(self) -> NodeSettings:
        """Return the settings of the command."""
        config, data = (None if text is None else Path(text) for text in (self.config, self.data))
        return settings_of(config, data, (*self.changes, "node.log=info") if self.verbose else self.changes)


def settings_of(config: Path | None, data: Path | None, changes: Sequence[str] = ()) -> NodeSettings:
    """Return settings from the file, the environment and the command line; later ones override earlier ones."""
    keywords = changed(changes)
    if data is not None:
        keywords["node.data"] = absolute(data)
    return load(config, os.environ, keywords)


def changed(changes: Sequence[str]) -> dict[str, object]:
    """Return the settings of ``--set KEY=VALUE``, as in TOML, or as in the environment: lists without brackets."""
    pairs = [assigned(change, "udp.port=4000") for change in changes]
    return {key: FIELDS.meant(key, value) if isinstance(value, str) else value for key, value in pairs}


def absolute(path: Path) -> str:
    """Return the path in full, with `~` expanded, relative to the current folder."""
    try:
        return str(path.expanduser().absolute())
    except RuntimeError:
        raise ConfigError(f"there is no home folder of that user: {path}") from None
