"""The state of one circle on a host: its rows in the store, its epochs, and what people see of it."""

from __future__ import annotations

import msgspec

from carrypost.log.events import LayerEvent
from carrypost.model.ids import NodeId, node_bytes, node_of
from carrypost.model.times import MICROSECONDS
from carrypost.security.circle import Charter, SignedCharter

_NO_EPOCH = 0, b""
_OVERDUE_US = 30 * 86_400 * MICROSECONDS
"""Age of a charter from which its owners, or their charters, seem to be out of reach: they issue one each week."""


class CircleChanged(LayerEvent, frozen=True):
    """A circle of this node has a new charter, or this node joined or left it."""

    name: str
    number: int
    """Number of the charter; 0: none is known."""
    epoch: int


class KeyMissing(LayerEvent, frozen=True):
    """A circle began an epoch whose secret this node was not given: an owner does not know its sealing key."""

    name: str


class CircleRow(msgspec.Struct, array_like=True):
    """A circle in the store; fields may be appended with a default."""

    name: str
    root: bytes
    tag_key: bytes
    first: int
    """Number of the first epoch of which this node may read messages."""
    seed: bytes = b""
    """Seed of the root, at owners."""
    charter: bytes = b""
    """The newest charter, as it travels."""
    removed: tuple[bytes, ...] = ()
    """All nodes that any charter removed."""
    invitation: bytes = b""
    """Private key of the invitation that this node joined by."""
    published_us: int = 0
    """Time at which this node last published the charter."""

    def __repr__(self) -> str:
        return f"<Circle {self.name}>"


class CircleView(msgspec.Struct, frozen=True):
    """A circle as people see it."""

    name: str
    id: NodeId
    owned: bool
    """True if this node is an owner."""
    number: int
    """Number of the charter; 0: none is known."""
    epoch: int
    """Number of the newest epoch; messages are sent under it if its secret is known."""
    readable: bool
    """True if that secret is known here."""
    members: tuple[NodeId, ...]
    invitations: int
    """Number of open invitations."""
    removed: tuple[NodeId, ...]
    date_us: int
    """Date of the charter."""


class EpochRow(msgspec.Struct, frozen=True, array_like=True):
    """The secret of an epoch in the store."""

    secret: bytes
    begun_us: int

    def __repr__(self) -> str:
        return "<EpochRow>"


class Circle(CircleRow, eq=False, kw_only=True):
    """A circle of this host."""

    id: NodeId
    signed: SignedCharter | None = None
    epochs: dict[tuple[int, bytes], EpochRow] = {}
    """Known epochs by number and id."""

    @property
    def is_owned(self) -> bool:
        """True if this node can issue charters."""
        return bool(self.seed)

    @property
    def latest(self) -> Charter:
        """The newest charter; without any, one of number 0 in the newest epoch that is known."""
        return (
            self.signed.charter if self.signed is not None else Charter(0, 0, *max(self.epochs, default=_NO_EPOCH), ())
        )

    @property
    def epoch(self) -> tuple[int, bytes] | None:
        """Number and id of the epoch under which this node sends; None while its secret is missing."""
        charter = self.latest
        newest = charter.epoch, charter.epoch_id
        return newest if newest in self.epochs else None

    def trouble(self, node: NodeId, date_us: int) -> str:
        """Return a word for what is wrong on this node: "removed", "key", "overdue", or nothing."""
        if node_bytes(node) in self.removed:
            return "removed"
        if self.epoch is None:
            return "key"
        charter = self.latest
        return "overdue" if charter.number and charter.date_us + _OVERDUE_US < date_us else ""

    @property
    def members(self) -> tuple[NodeId, ...]:
        """The listed members."""
        return tuple([node_of(each.node) for each in self.latest.members])

    @property
    def view(self) -> CircleView:
        """The circle as people see it."""
        charter = self.latest
        return CircleView(
            self.name, self.id, self.is_owned, charter.number, charter.epoch, self.epoch is not None, self.members,
            len(charter.invitations), tuple([node_of(each) for each in self.removed]), charter.date_us,
        )  # fmt: skip
