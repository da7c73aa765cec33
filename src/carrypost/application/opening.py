"""Opening: sealed messages get a second descriptor, with the fields that only this host and other readers see.

The layer stands between acknowledgements and order. A copy that this host can read is given the opened descriptor
(`Copy.opened`) when it is whole; its own descriptor stays as it travelled. A message for this host that it cannot open
is refused and dropped. A message of another node's queue passes as it is: the manager brings its secret.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from carrypost.errors import ForgeryError, LimitError
from carrypost.gossip.layer import Layer
from carrypost.log.events import PayloadWanted, Reason
from carrypost.log.journal import SEALING
from carrypost.model.address import SEALED, Kind, addressee, sealed_topic
from carrypost.model.ids import node_bytes
from carrypost.model.recipients import is_for
from carrypost.model.times import NEVER
from carrypost.security import sealing
from carrypost.security.circle import tags

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from carrypost.application.circle_state import Circle
    from carrypost.application.circles import Circles
    from carrypost.application.keyring import Keyring
    from carrypost.gossip.holdings.copies import Copy
    from carrypost.gossip.transfers.host_context import HostContext
    from carrypost.gossip.wire.pieces import Blank
    from carrypost.log.journal import Key, Value
    from carrypost.model.descriptor import Descriptor
    from carrypost.security.sealing import Seal

_OF_CIRCLES = (SEALED, f"{Kind.CONTROL}/")
"""Prefixes of destinations that may be of a circle."""


class Opening(Layer):
    """Opens the sealed messages of one host."""

    kind = SEALING

    def __init__(self, context: HostContext, keyring: Keyring, circles: Circles) -> None:
        self._holdings, self._outputs, self._limits = context.holdings, context.outputs, context.limits
        self._node, self._keyring, self._circles = context.node, keyring, circles
        self._waiting: dict[int, Copy] = {}
        """By slot, messages of circles under epochs that are not known yet."""
        self._passing: list[Copy] = []
        """Messages that waited, and go on with the next `receive`."""
        self._refused: list[Copy] = []
        """Copies that leave with the next step."""

    def restore(self, rows: Iterable[tuple[Key, Value]]) -> None:
        """Restore the keys after a restart, and open the messages that are here."""
        stored: dict[bytes, list[tuple[bytes, bytes]]] = {}
        for (_, name, _), value in rows:
            if isinstance(value, bytes):
                stored.setdefault(name[:1], []).append((name[1:], value))
        self._keyring.restore(stored)
        self._circles.read(stored)
        here = {copy.id for copy in self._holdings.known_copies() if copy.here}
        for message in self._keyring.labels.keys() - here:
            self._keyring.drop_label(message)
        for copy in self._holdings.known_copies():
            if copy.here and copy.whole and copy.interesting and copy.descriptor.is_sealed:
                self._admit(copy)

    def receive(self, copies: Sequence[Copy]) -> Sequence[Copy]:
        """Open what this host can read; leave out what it should and cannot, and what has to wait for a key."""
        if self._passing:
            passing, self._passing = self._passing, []
            return [*passing, *self.receive(copies)]
        for copy in copies:
            headers = copy.descriptor.headers
            if (headers is not None and headers.seal) or copy.descriptor.destination.startswith(_OF_CIRCLES):
                return [each for each in copies if self._admit(each)]
        return copies

    def _admit(self, copy: Copy) -> bool:
        """Open a sealed message if this host can; return False if it waits, or is refused."""
        if copy.opened is not None:
            return True
        descriptor = copy.descriptor
        circle = self._circles.at(descriptor.destination) if descriptor.destination.startswith(_OF_CIRCLES) else None
        if circle is None and not (descriptor.is_sealed and is_for(descriptor, self._node)):
            return True  # It is this node's own, or of a queue elsewhere, or not sealed.
        try:
            if circle is not None:
                return self._admit_to(circle, copy)
            self._keyring.open(copy)
        except (ForgeryError, LimitError) as error:
            self._outputs.refuse(error.reason, copy.giver or "", descriptor.shown)
        else:
            return True
        # A queue answers for its messages: its manager informs the sender.
        if circle is None and addressee(descriptor.destination) is not None:
            return True
        self._refused.append(copy)
        self.due_us = 0
        return False

    def _admit_to(self, circle: Circle, copy: Copy) -> bool:
        """Open a message of a circle; return False if it waits, or is done with. Raises if it is refused."""
        descriptor = copy.descriptor
        control = not descriptor.destination.startswith(SEALED)
        if not descriptor.is_sealed:
            if not control:
                raise ForgeryError("unsealed", "plain text to a circle")
            if not copy.own:
                self._outputs.emit(PayloadWanted(descriptor))  # It is a charter.
            return False
        seal = sealing.seal_of(descriptor)
        epoch = _epoch_of(circle, descriptor, seal)
        known = circle.epochs.get(epoch)
        if known is None:
            # From before this node joined, or so old that the secret is deleted: it has a place in
            # its order, and no program gets it.
            if epoch[0] < max(circle.first, min(circle.epochs)[0]):
                return True
            self._waiting[copy.slot] = copy
            return False
        opened, fields = sealing.opened_with(descriptor, seal, known.secret, circle.name)
        if len(fields.attributes) > self._limits.attributes_max:
            raise LimitError("seal", "too many attributes inside a seal")
        if control:
            if fields.attributes.get("joined") is True and not copy.own:
                node, now = descriptor.node, self._holdings.now_us
                self._circles.joined(circle, node, fields.reply_key, epoch[0], now)
            self._release()
            return False
        if sealed_topic(circle.id, tags(circle.tag_key, fields.topic)) != descriptor.destination:
            raise ForgeryError("seal", "the topic inside the seal is not that of the destination")
        copy.opened = opened
        return True

    def payload_read(self, copy: Copy, payload: bytes | Blank) -> None:
        """Apply a charter."""
        destination = copy.descriptor.destination
        circle = self._circles.at(destination) if destination.startswith(_OF_CIRCLES) else None
        if circle is None or not isinstance(payload, bytes):
            return
        try:
            self._circles.apply(circle, payload, self._holdings.now_us)
        except ForgeryError as error:
            self._outputs.refuse(error.reason, copy.giver or "", copy.descriptor.shown)
            self._refused.append(copy)
            self.due_us = 0
        self._release()

    def _release(self) -> None:
        """Let messages go on whose epoch became known."""
        if self._circles.learnt and self._waiting:
            self.due_us = 0
        self._circles.learnt.clear()

    def left(self, copies: Sequence[Copy], reason: Reason | None) -> None:
        """Forget messages that are gone."""
        for copy in copies if self._waiting else ():
            self._waiting.pop(copy.slot, None)
        for copy in copies if self._keyring.labels and reason is not None else ():
            self._keyring.drop_label(copy.id)

    def expire(self, now: int) -> None:  # noqa: ARG002 - what was refused leaves with the next step
        """Drop what was refused, and let messages go on that waited for a key."""
        refused, self._refused, self.due_us = self._refused, [], NEVER
        for copy in refused:
            if copy.here:
                self._holdings.discard(copy, Reason.UNREADABLE, done=True)
        waiting, self._waiting = self._waiting, {}
        self._passing += [copy for copy in waiting.values() if copy.here and self._admit(copy)]


def _epoch_of(circle: Circle, descriptor: Descriptor, seal: Seal) -> tuple[int, bytes]:
    """Return the epoch under which a message of a circle is sealed; raises `ForgeryError` if its author may not."""
    author = descriptor.node
    if node_bytes(author) in circle.removed:
        raise ForgeryError("removed", "the author was removed from the circle")
    epoch, present = seal.epoch, circle.signed
    if epoch is None:
        raise ForgeryError("seal", "a message to a circle that is sealed for nodes")
    # An old secret under the key of a new node is worth nothing.
    if present is not None and epoch[0] < present.charter.epoch and author not in circle.members:
        raise ForgeryError("removed", "an old secret, and an author that is no member")
    return epoch
