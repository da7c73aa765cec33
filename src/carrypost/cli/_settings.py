"""A node's settings from the command line, the environment and a file."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from carrypost.errors import ConfigError
from carrypost.node.settings import NodeSettings, load


def settings_of(config: Path | None, data: Path | None, changes: Sequence[str] = ()) -> NodeSettings:
    """Settings from the file, the environment and the command line, the last on top."""
    keywords: dict[str, Any] = {}
    for change in changes:
        key, equals, text = change.partition("=")
        if not equals or not key.strip():
            raise ConfigError(f"--set takes KEY=VALUE, as in udp.port=4000, not {change!r}")
        keywords[key.strip()] = _value(text.strip())
    if data is not None:
        keywords["node.data"] = absolute(data)
    return load(config, os.environ, keywords)


def absolute(path: Path) -> str:
    """What the shell did not expand, and from where the command was given."""
    try:
        return str(path.expanduser().absolute())
    except RuntimeError:
        raise ConfigError(f"there is no such user's folder: {path}") from None


def _value(text: str) -> object:
    """A value as in TOML; text need not be quoted."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text
