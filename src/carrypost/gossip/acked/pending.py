"""Acknowledgements that this host owes, from the step in which that is decided until they are signed.

A row records it in the same batch as its cause: a confirmed message, or a closed entry of a queue. After a crash either
both are there or neither is. It is signed once the row is durable, and never if the confirmation was undone.
"""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Final

import msgspec

from carrypost.log.journal import ACKED
from carrypost.model.ids import MessageId

if TYPE_CHECKING:
    from collections.abc import Iterable

    from carrypost.gossip.transfers.link import HostContext
    from carrypost.log.journal import Key, Value

ROW: Final = b"P"
"""First bytes of the names of these rows; the id of the message follows."""


class _Due(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One acknowledgement that is due, in the form of its row; fields may be appended with a default."""

    until_us: int
    confirmed: bool
    """True if it follows from a confirmation, which must not be undone."""


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(_Due).decode


class Pending:
    """The acknowledgements that one host owes."""

    def __init__(self, context: HostContext) -> None:
        self._holdings, self._journal = context.holdings, context.outputs.journal
        self.ready: dict[MessageId, _Due] = {}
        """Acknowledgements that are durable."""
        self._givers: dict[MessageId, str] = {}
        """The address of the neighbour that brought each message of either, in this incarnation."""

    def rows(self) -> dict[Key, Value | None]:
        """Return the rows of acknowledgements since the last call, for the batch that is being made."""
        holdings = self._holdings
        if not holdings.acknowledged:
            return {}
        acknowledged: dict[MessageId, _Due] = {}
        for message, (until_us, giver) in holdings.pop_acknowledged().items():
            copy = holdings.cache.get(message)
            if giver:
                self._givers[message] = giver
            acknowledged[message] = _Due(until_us, copy is not None and holdings.is_confirmed(copy))
        self._journal.when_durable(self.ready.update, acknowledged)
        return {(ACKED, ROW + message, 0): _encode(due) for message, due in acknowledged.items()}

    def restore(self, message: MessageId, row: bytes) -> None:
        """Restore a row after a restart."""
        self.ready[message] = _decode(row)

    def givers(self) -> dict[MessageId, str]:
        """Return the addresses of the neighbours that brought what may be signed."""
        return {message: self._givers[message] for message in self.ready if message in self._givers}

    def pop_sound(self, date_us: int, most: int | None = None) -> dict[MessageId, int]:
        """Remove and return what may be signed, with the times until which it counts; delete finished rows.

        `most`: the largest number to return.
        """
        sound: dict[MessageId, int] = {}
        done: list[MessageId] = []
        for message, due in islice(self.ready.items(), most):
            if due.until_us > date_us and (not due.confirmed or self._is_confirmed(message)):
                sound[message] = due.until_us
            done.append(message)
        self._forget(done)
        return sound

    def _forget(self, messages: Iterable[MessageId]) -> None:
        for message in messages:
            del self.ready[message]
            self._givers.pop(message, None)
            self._journal.delete_later((ACKED, ROW + message, 0))  # After a crash it is signed again.

    def _is_confirmed(self, message: MessageId) -> bool:
        copy = self._holdings.cache.get(message)
        return copy is not None and self._holdings.is_confirmed(copy)
