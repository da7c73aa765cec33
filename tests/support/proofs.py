"""Proofs of made-up neighbours that they receive at their addresses."""

from __future__ import annotations

import msgspec

from carrypost.gossip.wire.frames import Announce, Frame
from carrypost.host import Host


def proven(host: Host, announced: Announce, peer: str, now: int) -> Announce | None:
    """Return an announcement with the token that the host sent to its address; None if the host has no place for it.

    A host that knows nothing of the address hears the announcement once without a proof.
    """
    neighbour = host._neighbours.get(peer)  # noqa: SLF001 - tokens are among the frames that the host sends
    if neighbour is not None and neighbour.driver_asserted:
        return announced
    if neighbour is None or not neighbour.token:
        # A host that is asked for its own proof asks for one, too.
        host.receive([msgspec.structs.replace(announced, begins=b"", receipts=(), token=b"anything")], peer, now)
        neighbour = host._neighbours.get(peer)  # noqa: SLF001
    return None if neighbour is None else msgspec.structs.replace(announced, proof=neighbour.token)


def tell(host: Host, announced: Announce, peer: str, now: int, *frames: Frame) -> bool:
    """Let a host hear an announcement with its proof, and more frames; return True if they contained anything new."""
    shown = proven(host, announced, peer, now)
    return host.receive([*(() if shown is None else (shown,)), *frames], peer, now)
