"""Subscriptions of this node to channels, and their rows in the store.

A subscription has one row, which is in the same batch as each result that it accepts, and one more with its last
checkpoint, which is larger and changes less often.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from carrypost.model import address
from carrypost.model.ids import MessageId, NodeId
from carrypost.model.times import NEVER
from carrypost.overlay.items import Relocation, Role
from carrypost.overlay.modulator import Modulator
from carrypost.overlay.snapshot import Run

if TYPE_CHECKING:
    from carrypost.gossip.holdings.copies import Copy

FAMILY = b"C"
"""First byte of the names of rows."""
NUMBER_BYTES = 8
_HOLDERS_MAX = 8
"""Number of open epochs; results of more relocations than that are not on their way at once."""
_CHECKPOINT = b"k"
"""Last byte of the names of rows that have checkpoints."""


class SubscriptionRow(msgspec.Struct, array_like=True):
    """A subscription as it is stored."""

    channel: str
    since_us: int
    """Time of the subscription."""
    epoch: int
    number: int = 0
    """Number of the last result that was accepted."""
    cursors: dict[str, int] = {}
    """Number of the last event of each producer whose result was accepted."""
    home: NodeId | None = None
    """Broker whose results are accepted."""
    modulator: Modulator | None = None
    """Modulator that makes results of events at the home."""
    owner: str = ""
    """Kind of the layer that subscribed for its programs; empty if a program subscribed by itself."""
    relocation: Relocation = "strict"
    """Protocol by which its seat moves to another broker."""
    lost: int = 0
    """Events that are missing, and that no result for the program was marked with yet."""
    events: int = 0
    """Events that results covered."""
    faults: int = 0
    """Number of covered events that the modulator failed with."""
    busy_us: int = 0
    """Execution time of the modulator for covered events."""
    holders: dict[int, NodeId] = {}
    """Open epochs, and the broker that holds each: the present one, earlier ones, and perhaps the next."""
    adopting: bool = False
    """True until the home has the state that the seat begins with."""
    keeps: bool = False
    """True if there is a checkpoint of a modulator that has a state, and all events since then are in `repeats`."""
    repeats: list[Run] = []
    """Events whose results were accepted since the checkpoint, in that order."""
    discarded: int = 0
    """Results that the modulator refused to keep while this node could not be reached."""
    fault: str = ""
    """Last fault of the modulator."""

    def hold(self, epoch: int, broker: NodeId) -> None:
        """Open an epoch for a broker."""
        self.holders = dict(sorted((self.holders | {epoch: broker}).items())[-_HOLDERS_MAX:])


encode = msgspec.msgpack.Encoder().encode
decode = msgspec.msgpack.Decoder(SubscriptionRow).decode


class Subscription:
    """One subscription to a channel."""

    def __init__(self, number: int, node: NodeId, row: SubscriptionRow) -> None:
        self.number, self.row = number, row
        self.destination = address.results(node, str(number))
        self.held: dict[int, Copy] = {}
        """Results that wait for their turn, by number; bounded by the cache, which has their copies."""
        self.early: dict[MessageId, Copy] = {}
        """Results of the next epoch, whose author was not named yet."""
        self.missing_us = NEVER
        """Time since which the next result is missing although later ones came."""
        self.heard_us = 0
        """Time of the last result of the home."""
        self.after_us = 0
        """Time before which nothing is accepted."""
        self.unwritten = False
        """True if its row was in no batch that could be written."""

    @property
    def key(self) -> tuple[Role, str, int]:
        """Key of this subscription's client in `overlay.homes`."""
        return Role.CONSUMER, self.row.channel, self.number

    @property
    def name(self) -> bytes:
        """Name of the subscription's row."""
        return FAMILY + self.number.to_bytes(NUMBER_BYTES, "big")

    @property
    def checkpoint_name(self) -> bytes:
        """Name of the row with the last checkpoint."""
        return self.name + _CHECKPOINT
