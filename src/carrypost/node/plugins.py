"""Modules that a node loads when it starts (`[node] plugins`): they register what is theirs."""

from __future__ import annotations

import importlib
from collections.abc import Iterable
from types import ModuleType

from carrypost.errors import NodeError


def load(names: Iterable[str]) -> list[ModuleType]:
    """Load modules, and return them; raises `NodeError` if one cannot be loaded."""
    found = []
    for name in names:
        try:
            found.append(importlib.import_module(name))
        except Exception as error:
            raise NodeError(f"[node] plugins: the module {name!r} cannot be loaded: {error!r}") from error
    return found
