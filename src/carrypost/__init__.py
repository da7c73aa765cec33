"""carrypost: message-oriented middleware for networks that are never whole.

Devices meet, exchange what the other wants, and part; messages are stored, carried and forwarded until their
deadline. This module is the public face: what `__all__` names is what programs rely on. It stays cheap to
import, because every command starts with it.
"""

from __future__ import annotations

from carrypost.errors import (
    CarrypostError,
    ConfigError,
    DecodeError,
    FileError,
    ForgeryError,
    LimitError,
    LocalError,
    PatternError,
    PayloadError,
    RemoteError,
    StateError,
    StoreError,
)

__version__ = "0.1.0"

__all__ = [
    "CarrypostError",
    "ConfigError",
    "DecodeError",
    "FileError",
    "ForgeryError",
    "LimitError",
    "LocalError",
    "PatternError",
    "PayloadError",
    "RemoteError",
    "StateError",
    "StoreError",
    "__version__",
]
