"""The option `--plugin`: files with metrics of one's own."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from carrypost.cli import _paths

if TYPE_CHECKING:
    from carrypost.lab.metrics.plugins import Plugin

PluginOption = Annotated[
    list[Path], _paths.option("--plugin", "Python file with metrics of your own; may be repeated.", "FILE.py")
]


def read(paths: Sequence[Path]) -> tuple[Plugin, ...]:
    """Return the plugins in these files."""
    from carrypost.lab.metrics.plugins import Plugin  # noqa: PLC0415 - needs the extra

    return tuple(map(Plugin.read, paths))
