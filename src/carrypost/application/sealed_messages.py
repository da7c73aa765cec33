"""Sealed messages of a host: those that it seals when it sends them, and those that it opens when they arrive.

Sealing. A letter is a message to a queue, or to listed recipients. It is sealed if the program or the setting
`sealing.letters` asks for it, and by default if a key of every reader is known. There is no silent way back to plain
text: a message for a node whose key is out of date is refused, unless the program sends it with `sealed=False`. A
message to a topic of a circle is sealed under the present epoch of the circle.

Opening. The layer stands between acknowledgements and order. A copy that this host can read is given a second
descriptor when it is whole, with the fields that only this host and other readers see (`Copy.opened`); its own
descriptor stays as it travelled. A message for this host that it cannot open is refused and dropped. A message of
another node's queue passes as it is: the manager brings its secret.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from carrypost.application.circles import OF_CIRCLES
from carrypost.errors import ForgeryError, IllegalArgumentException, JMSSecurityException, LimitError
from carrypost.gossip.layer import Layer
from carrypost.log.events import PayloadWanted, Reason
from carrypost.log.journal import SEALING
from carrypost.model.address import SEALED, Kind, address, addressee
from carrypost.model.descriptor_values import is_for
from carrypost.model.ids import NodeId, node_bytes
from carrypost.model.times import MICROSECONDS, NEVER
from carrypost.security import hpke, sealing
from carrypost.security.circle import sealed_topic
from carrypost.security.sealing import Sealing

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from carrypost.application.circle_state import Circle
    from carrypost.application.circles import Circles
    from carrypost.application.keyring import Keyring
    from carrypost.gossip.draft import Draft
    from carrypost.gossip.holdings.copies import Copy
    from carrypost.gossip.transfers.link import HostContext
    from carrypost.gossip.wire.pieces import Blank
    from carrypost.log.journal import Key, Value
    from carrypost.model.descriptor import Descriptor
    from carrypost.security.sealing import Seal


_HOUR_US = 3_600 * MICROSECONDS
"""Time for which a wrapped secret is used. It is kept in memory alone."""
_QUEUE, _CONTROL = f"{Kind.QUEUE}/", f"{Kind.CONTROL}/"
_WRAPPED_MAX = 256
"""Number of lists of readers for which a secret is in use."""


class _Wrapped(NamedTuple):
    """A secret that is wrapped for readers."""

    secret: bytes
    stanzas: bytes
    until_us: int

    def __repr__(self) -> str:
        return "<_Wrapped>"


class Letters:
    """Seals the letters of one host."""

    def __init__(self, context: HostContext, keyring: Keyring, circles: Circles) -> None:
        self._node, self._holdings = context.node, context.holdings
        self._author, self._signs = context.identity.author, context.identity.signed
        self._asked, self._keyring = context.settings.sealing.letters, keyring
        self._circles = circles
        self.addressed = circles.sealed_draft
        """Function that returns a draft for the topic of a circle with the destination that carriers see."""
        self.keep_label = keyring.keep_label
        """Function that keeps the label of a letter that this host cannot read: its programs know it by that."""
        self._wrapped: dict[tuple[bytes, ...], _Wrapped] = {}
        """Secrets in use, by the keys that they are wrapped for."""

    def seal_for(self, draft: Draft) -> Sealing | None:
        """Return the seal of a letter that is about to be packed; None if the message goes in plain text.

        Raises `JMSSecurityException` if it should be sealed and cannot be.
        """
        if not self._signs:
            if draft.sealed:
                raise JMSSecurityException('a sealed message requires security = "signed" on this node')
            return None
        if draft.topic or (draft.sealed and draft.destination.startswith(_CONTROL)):
            return self._for_circle(draft)
        if draft.sealed is False or (draft.sealed is None and self._asked == "never"):
            return None
        # Most messages are for all subscribers of a topic: to look closer would cost each of them some microseconds.
        readers = _readers(draft) if draft.recipients or draft.destination.startswith(_QUEUE) else ()
        if not readers:
            if draft.sealed:
                raise IllegalArgumentException(
                    f"only messages to a queue, or to listed recipients, can be sealed for nodes, not one to "
                    f"{draft.destination!r}: name recipients"
                )
            return None
        now = self._holdings.now_us
        if readers == (self._node,):
            return self._for_own_queue(draft, now)
        publics = self._keys_of(readers, now, demanded=draft.sealed or self._asked == "always")
        return None if publics is None else self._for_readers(draft, readers, publics, now)

    def _keys_of(self, readers: tuple[NodeId, ...], now: int, *, demanded: bool) -> list[bytes] | None:
        """Return a key of every reader; None if some key was never known and the letter need not be sealed."""
        known = {node: self._keyring.key_for(node) for node in readers}
        stale = [node for node, key in known.items() if key is not None and key.until_us <= now]
        if stale:
            raise JMSSecurityException(
                f"the sealing key of {_listed(stale)} is out of date: wait until its node was met again, or send "
                "with sealed=False"
            )
        missing = [node for node, key in known.items() if key is None]
        if missing and (demanded or len(missing) < len(known)):
            # Plain text for some recipients would be plain text for those whose keys are known, too.
            others = "" if demanded else ", but keys of other recipients are, who are sent no plain text"
            raise JMSSecurityException(
                f"no sealing key of {_listed(missing)} is known here{others}: wait until its directory entry has come, "
                "add it by `carrypost keys add CARD`, or send with sealed=False"
            )
        if missing:
            return None
        if len(readers) > sealing.READERS_MAX:
            raise IllegalArgumentException(
                f"a sealed message has at most {sealing.READERS_MAX} recipients, not {len(readers)}: send it several "
                "times, or with sealed=False"
            )
        return [key.public for key in known.values() if key is not None]

    def _for_own_queue(self, draft: Draft, now: int) -> Sealing:
        """Seal for this node alone. No key exchange is needed: it derives the secret of its key again."""
        salt = self._keyring.entropy(sealing.SALT_BYTES)
        key, secret = self._keyring.own_secret(salt, now)
        made = self._seal(draft, salt, secret, sealing.stanza_for_author(key))
        made.secret = secret
        return made

    def _for_readers(self, draft: Draft, readers: tuple[NodeId, ...], publics: list[bytes], now: int) -> Sealing:
        salt, keys = self._keyring.entropy(sealing.SALT_BYTES), tuple(publics)
        found = self._wrapped.get(keys)
        if found is None or found.until_us <= now:
            found = self._wrap(keys, now)
            for node in readers:
                self._keyring.used(node, now)
        return self._seal(draft, salt, sealing.letter_secret(found.secret, salt), found.stanzas)

    def _wrap(self, publics: tuple[bytes, ...], now: int) -> _Wrapped:
        """Wrap a new secret for readers: a key exchange for each of them, which takes longer than a signature."""
        entropy = self._keyring.entropy
        secret = entropy(sealing.SECRET_BYTES)
        stanzas = [sealing.wrap(public, secret, entropy(hpke.KEY_BYTES)) for public in publics]
        if len(self._wrapped) >= _WRAPPED_MAX:
            self._wrapped.clear()
        found = self._wrapped[publics] = _Wrapped(secret, sealing.stanzas_for_readers(stanzas), now + _HOUR_US)
        return found

    def _for_circle(self, draft: Draft) -> Sealing:
        """Seal for all members of a circle, under its present epoch."""
        circle = self._circles.at(draft.destination)
        assert circle is not None  # The destination was made of it.
        epoch, salt = self._circles.sending(circle), self._keyring.entropy(sealing.SALT_BYTES)
        secret, stanza = circle.epochs[epoch].secret, sealing.stanza_for_epoch(*epoch)
        made = self._seal(draft, salt, secret, stanza)
        made.topic, made.circle = draft.topic, circle.name
        return made

    def _seal(self, draft: Draft, salt: bytes, secret: bytes, stanzas: bytes) -> Sealing:
        assert isinstance(self._author, bytes)  # This node signs.
        made = sealing.begun(secret, salt, self._author, draft.destination, stanzas)
        # A request brings the key for its reply, which may go to a queue that nobody advertises; so does `Joined`.
        if draft.destination.startswith(_CONTROL) or (draft.headers is not None and draft.headers.reply_to is not None):
            made.reply_key = self._keyring.advertised(self._holdings.now_us)
        return made


def _readers(draft: Draft) -> tuple[NodeId, ...]:
    """Return the nodes that a letter is for; none if the draft is no letter."""
    found = address(draft.destination)
    if found is None or found.kind not in (Kind.QUEUE, Kind.TOPIC):
        return ()
    if found.node is not None:
        return (found.node,)
    return tuple(dict.fromkeys(map(NodeId, draft.recipients or ())))


def _listed(nodes: list[NodeId]) -> str:
    return ", ".join(nodes[:3]) + (" and others" if len(nodes) > 3 else "")  # noqa: PLR2004 - enough to find the cause


class Opening(Layer):
    """Opens the sealed messages of one host."""

    kind = SEALING

    def __init__(self, context: HostContext, keyring: Keyring, circles: Circles) -> None:
        self._holdings, self._outputs = context.holdings, context.outputs
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
            if (headers is not None and headers.seal) or copy.descriptor.destination.startswith(OF_CIRCLES):
                return [each for each in copies if each.opened is not None or self._admit(each)]
        return copies

    def _admit(self, copy: Copy) -> bool:
        """Open a sealed message if this host can; return False if it waits, or is refused."""
        descriptor = copy.descriptor
        circle = self._circles.at(descriptor.destination)
        if circle is None and not (descriptor.is_sealed and is_for(descriptor, self._node)):
            return True  # It is this node's own, or of a queue elsewhere, or not sealed.
        try:
            if circle is not None:
                return self._admit_to(circle, copy)
            self._keyring.open(copy)
        except (ForgeryError, LimitError) as error:
            # A queue answers for its messages: its manager informs the sender.
            passes = circle is None and addressee(descriptor.destination) is not None
            self._refuse(copy, error, drop=not passes)
            return passes
        return True

    def _refuse(self, copy: Copy, error: ForgeryError | LimitError, *, drop: bool = True) -> None:
        """Count a message as refused; it leaves with the next step, if it is to be dropped."""
        self._outputs.refuse(error.reason, copy.giver or "", copy.descriptor.shown)
        if drop:
            self._refused.append(copy)
            self.due_us = 0

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
        opened, fields = self._keyring.opened(descriptor, seal, known.secret, circle.name)
        if control:
            if fields.attributes.get("joined") is True and not copy.own:
                self._circles.joined(circle, descriptor.node, fields.reply_key, epoch[0], self._holdings.now_us)
            self._release()
            return False
        if sealed_topic(circle.id, circle.tag_key, fields.topic) != descriptor.destination:
            raise ForgeryError("seal", "the topic inside the seal is not that of the destination")
        copy.opened = opened
        return True

    def payload_read(self, copy: Copy, payload: bytes | Blank) -> None:
        """Apply a charter."""
        circle = self._circles.at(copy.descriptor.destination)
        if circle is None or not isinstance(payload, bytes):
            return
        try:
            self._circles.apply(circle, payload, self._holdings.now_us)
        except ForgeryError as error:
            self._refuse(copy, error)
        self._release()

    def _release(self) -> None:
        """Try messages again that wait for an epoch: it may have become known."""
        if self._waiting:
            self.due_us = 0

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
    if circle.removed and node_bytes(author) in circle.removed:
        raise ForgeryError("removed", "the author was removed from the circle")
    epoch, present = seal.epoch, circle.signed
    if epoch is None:
        raise ForgeryError("seal", "a message to a circle that is sealed for nodes")
    # An old secret under the key of a new node is worth nothing.
    if present is not None and epoch[0] < present.charter.epoch and author not in circle.members:
        raise ForgeryError("removed", "an old secret, and an author that is no member")
    return epoch
