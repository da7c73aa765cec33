"""Messages that pass on others: checking the origin.

The signature of the message itself is checked when it arrives, as for every message. This module checks the signature
of the message that it passes on, and that both have the same payload: pieces were checked against the root of the one,
so they are those of the other.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from carrypost.errors import ForgeryError
from carrypost.security.identity import verify

if TYPE_CHECKING:
    from carrypost.model.descriptor import Descriptor


def check_origin(found: Descriptor) -> None:
    """Raise `ForgeryError` unless a message passes on a message of the author that it names, with its payload."""
    origin = found.original
    if origin is found or origin.original is not origin:
        raise ForgeryError("origin", "the origin is missing, or has an origin itself")
    if origin.signed != found.signed:
        raise ForgeryError("origin", "only one of the two messages is signed")
    payload = found.root, found.length, found.size, found.codec
    if payload != (origin.root, origin.length, origin.size, origin.codec):
        raise ForgeryError("origin", "the payload is not that of the message that is passed on")
    if origin.signed:
        verify(origin)
