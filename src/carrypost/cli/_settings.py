"""A node's settings from the command line, the environment and a file."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from carrypost.config.document import assigned
from carrypost.errors import ConfigError
from carrypost.node.settings import NodeSettings, load


def settings_of(config: Path | None, data: Path | None, changes: Sequence[str] = ()) -> NodeSettings:
    """Settings from the file, the environment and the command line, the last on top."""
    keywords = dict(assigned(change, "udp.port=4000") for change in changes)
    if data is not None:
        keywords["node.data"] = absolute(data)
    return load(config, os.environ, keywords)


def absolute(path: Path) -> str:
    """What the shell did not expand, and from where the command was given."""
    try:
        return str(path.expanduser().absolute())
    except RuntimeError:
        raise ConfigError(f"there is no such user's folder: {path}") from None
