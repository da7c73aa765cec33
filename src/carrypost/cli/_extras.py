"""Extras that some commands need, and the way to install them."""

from __future__ import annotations

import importlib.util

from carrypost.errors import LocalError


def needs_emulator() -> None:
    """Raise `LocalError` where what the emulator needs is not installed."""
    _needs(
        "the emulator needs numpy and pyarrow: pip install 'carrypost[emu]'; in the source tree, '.[emu]'",
        "numpy",
        "pyarrow",
    )


def needs_reports() -> None:
    """Raise `LocalError` where what reports need is not installed."""
    _needs(
        "reports need vl-convert: pip install 'carrypost[lab]'; in the source tree, '.[lab]'", "pyarrow", "vl_convert"
    )


def _needs(sentence: str, *modules: str) -> None:
    """Say how to install what is missing, rather than which module is."""
    if not all(map(importlib.util.find_spec, modules)):
        raise LocalError(sentence)
