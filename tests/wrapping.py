"""A kind of frame that carries a datagram of others: what a layer with routes of its own brings."""

from __future__ import annotations

from carrypost.gossip.wire import codec
from carrypost.gossip.wire.frames import Envelope, LayerFrame


class Wrapped(LayerFrame, frozen=True, array_like=True, tag=101):
    """A datagram on its way from one node to another, as its relay sees it."""

    source: str
    target: str
    body: bytes


class OpenWrapped(Envelope, frozen=True):
    """In memory only: a `Wrapped` with its frames as they are."""

    source: str
    target: str

    def sealed(self, body: bytes) -> Wrapped:
        return Wrapped(self.source, self.target, body)


codec.register(Wrapped, envelope=OpenWrapped)
