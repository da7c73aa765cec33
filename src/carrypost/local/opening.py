"""Opening: sealed messages get a second descriptor, with the fields that only this host and other readers see.

The layer stands between acknowledgements and order. A copy that this host can read is given the opened descriptor
(`Copy.opened`) when it is whole; its own descriptor stays as it travelled. A message for this host that it cannot open
is refused and dropped. A message of another node's queue passes as it is: the manager brings its secret.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from carrypost.errors import ForgeryError, LimitError
from carrypost.events import Reason
from carrypost.gossip.layer import Layer
from carrypost.journal import SEALING
from carrypost.model.address import addressee
from carrypost.model.recipients import is_for
from carrypost.model.times import NEVER

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from carrypost.gossip.holdings.copies import Copy
    from carrypost.gossip.transfers.host_context import HostContext
    from carrypost.journal import Key, Value
    from carrypost.local.keyring import Keyring


class Opening(Layer):
    """Opens the sealed messages of one host."""

    kind = SEALING

    def __init__(self, context: HostContext, keyring: Keyring) -> None:
        self._holdings, self._outputs = context.holdings, context.outputs
        self._node, self._keyring = context.node, keyring
        self._refused: list[Copy] = []
        """Copies that leave with the next step."""

    def restore(self, rows: Iterable[tuple[Key, Value]]) -> None:
        """Restore the keys after a restart, and open the messages that are here."""
        stored: dict[bytes, list[tuple[bytes, bytes]]] = {}
        for (_, name, _), value in rows:
            if isinstance(value, bytes):
                stored.setdefault(name[:1], []).append((name[1:], value))
        self._keyring.restore(stored)
        for copy in self._holdings.known_copies():
            if copy.here and copy.whole and copy.descriptor.is_sealed:
                self._admit(copy)

    def receive(self, copies: Sequence[Copy]) -> Sequence[Copy]:
        """Open what this host can read; leave out what is for it and cannot be opened."""
        for copy in copies:
            headers = copy.descriptor.headers
            if headers is not None and headers.seal:
                return [each for each in copies if not each.descriptor.is_sealed or self._admit(each)]
        return copies

    def _admit(self, copy: Copy) -> bool:
        """Open a sealed message if this host can; return False if it is refused."""
        if copy.opened is not None or not is_for(copy.descriptor, self._node):
            return True  # Else it is this node's own, or of a queue elsewhere.
        try:
            self._keyring.open(copy)
        except (ForgeryError, LimitError) as error:
            self._outputs.refuse(error.reason, copy.giver or "", copy.descriptor.shown)
        else:
            return True
        # A queue answers for its messages: its manager informs the sender.
        if addressee(copy.descriptor.destination) is not None:
            return True
        self._refused.append(copy)
        self.due_us = 0
        return False

    def expire(self, now: int) -> None:  # noqa: ARG002 - what was refused leaves with the next step
        """Drop what was refused."""
        refused, self._refused, self.due_us = self._refused, [], NEVER
        for copy in refused:
            if copy.here:
                self._holdings.discard(copy, Reason.UNREADABLE, done=True)
