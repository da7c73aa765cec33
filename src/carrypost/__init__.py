"""carrypost: message-oriented middleware for networks that are never whole.

Devices meet, exchange what the other wants, and part; messages are stored, carried and forwarded until their
deadline. This module is the public face: what `__all__` names is what programs rely on. It stays cheap to
import, because every command starts with it: a name is imported from its module when somebody asks for it.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from carrypost.errors import (
        CarrypostError,
        ConfigError,
        DecodeError,
        FileError,
        ForgeryError,
        InvalidDestinationException,
        InvalidSelectorException,
        JMSException,
        LimitError,
        LocalError,
        MessageFormatException,
        PatternError,
        PayloadError,
        RemoteError,
        StateError,
        StoreError,
    )
    from carrypost.model.selector import Selector

__version__ = "0.1.0"

__all__ = [
    "CarrypostError",
    "ConfigError",
    "DecodeError",
    "FileError",
    "ForgeryError",
    "InvalidDestinationException",
    "InvalidSelectorException",
    "JMSException",
    "LimitError",
    "LocalError",
    "MessageFormatException",
    "PatternError",
    "PayloadError",
    "RemoteError",
    "Selector",
    "StateError",
    "StoreError",
    "__version__",
]

_MODULES = {
    "CarrypostError": "errors",
    "ConfigError": "errors",
    "DecodeError": "errors",
    "FileError": "errors",
    "ForgeryError": "errors",
    "InvalidDestinationException": "errors",
    "InvalidSelectorException": "errors",
    "JMSException": "errors",
    "LimitError": "errors",
    "LocalError": "errors",
    "MessageFormatException": "errors",
    "PatternError": "errors",
    "PayloadError": "errors",
    "RemoteError": "errors",
    "Selector": "model.selector",
    "StateError": "errors",
    "StoreError": "errors",
}
"""Where each public name is. An `import` statement would make every layer depend on the highest of these modules."""


if not TYPE_CHECKING:  # Else every name would be one to type checkers.

    def __getattr__(name: str) -> object:
        module = _MODULES.get(name)
        if module is None:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        found = getattr(importlib.import_module(f"{__name__}.{module}"), name)
        globals()[name] = found  # Who asks next finds it at once.
        return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
