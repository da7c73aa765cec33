"""Types of the fields of frames, with the bounds that apply to anything from the wire."""

from __future__ import annotations

from typing import Annotated, Final

import msgspec

from carrypost.model.ids import PREFIX_BYTES, MessageId, NodeId
from carrypost.model.pattern import PROFILE_DIGEST_BYTES

MESSAGE_ID_BYTES_MAX: Final = 98
"""A plain id: a name of 64 bytes and two numbers of 16 digits."""

# What stands in these annotations holds for frames that come from the wire, whatever `Limits` says;
# constructors do not check it. Handles and serials are counted up in one incarnation, so 63 bits never run out.
Handle = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
"""Handle: the offering host's number for the message."""
Serial = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
"""Number of this frame among the sender's transfer frames."""
Count = Annotated[int, msgspec.Meta(ge=0, le=2**53)]
Fingerprint = Annotated[int, msgspec.Meta(ge=0)]
"""64 bits; msgpack has no longer numbers."""
Part = Annotated[int, msgspec.Meta(ge=0, le=2**16)]
"""Number of this part, from 0."""
Parts = Annotated[int, msgspec.Meta(ge=1, le=2**16)]
"""Number of parts."""
NodeName = Annotated[NodeId, msgspec.Meta(min_length=1, max_length=64)]
"""Id of the sender, or its plain name."""
NodePrefix = Annotated[bytes, msgspec.Meta(min_length=PREFIX_BYTES, max_length=PREFIX_BYTES)]
ProfileDigest = Annotated[bytes, msgspec.Meta(min_length=PROFILE_DIGEST_BYTES, max_length=PROFILE_DIGEST_BYTES)]
"""Digest of an interest profile."""
TOKEN_BYTES: Final = 8
Token = Annotated[bytes, msgspec.Meta(max_length=TOKEN_BYTES)]
"""8 bytes, or none."""
MessageKey = Annotated[MessageId, msgspec.Meta(min_length=1, max_length=MESSAGE_ID_BYTES_MAX)]
"""Id of the message."""
Floor = Annotated[int, msgspec.Meta(ge=0, le=255 << 54 | 2**53)]
"""Rank of the lowest copy of a full cache: its privilege and, in the lower 54 bits, its time of creation. 0: there is
room."""
