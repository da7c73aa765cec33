"""Old names of documented functions, classes and methods: they still work, with a warning."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Mapping
from typing import Any


def renamed(module: str, names: Mapping[str, str]) -> Callable[[str], Any]:
    """Return a module's ``__getattr__`` that finds what has a new name by its old one, too."""

    def find(name: str) -> Any:  # noqa: ANN401 - whatever has the name
        if name not in names:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        warnings.warn(f"{module}.{name} is now called {names[name]}", DeprecationWarning, stacklevel=2)
        return getattr(sys.modules[module], names[name])

    return find


def renamed_method(old: str, new: str) -> Callable[..., Any]:
    """Return a method that calls the one with the new name."""

    def call(self: object, *args: object, **options: object) -> Any:  # noqa: ANN401 - whatever the method returns
        warnings.warn(f"{type(self).__name__}.{old} is now called {new}", DeprecationWarning, stacklevel=2)
        return getattr(self, new)(*args, **options)

    return call
