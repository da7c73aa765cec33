"""The emulator: real hosts by the thousand, in one process and in virtual time.

What is named here is loaded when it is asked for: `carrypost.testing` uses modules of this package, and works without
numpy and pyarrow.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from carrypost.emu.records import Records
    from carrypost.emu.runs import run
    from carrypost.emu.scenario import Scenario
    from carrypost.emu.verify.bound import flood_bound

__all__ = ["Records", "Scenario", "flood_bound", "run"]

_HOMES = {"Records": "records", "Scenario": "scenario", "flood_bound": "verify.bound", "run": "runs"}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
