"""Letters: the decision whether a message of this host is sealed for nodes, and its seal.

A letter is a message to a queue, or to listed recipients. It is sealed if the program or the setting `sealing.letters`
asks for it, and by default if a key of every reader is known. There is no silent way back to plain text: a message for
a node whose key is out of date is refused, unless the program sends it with `sealed=False`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from carrypost.errors import IllegalArgumentException, JMSSecurityException
from carrypost.model.address import Kind, address
from carrypost.model.ids import NodeId
from carrypost.model.times import MICROSECONDS
from carrypost.security import sealing
from carrypost.security.sealing import Sealing

if TYPE_CHECKING:
    from carrypost.application.circles import Circles
    from carrypost.application.keyring import Keyring
    from carrypost.gossip.draft import Draft
    from carrypost.gossip.transfers.host_context import HostContext
    from carrypost.model.ids import MessageId

_HOUR_US = 3_600 * MICROSECONDS
"""Time for which a wrapped secret is used. It is kept in memory alone."""
_QUEUE = f"{Kind.QUEUE}/"
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
        self._wrapped: dict[tuple[bytes, ...], _Wrapped] = {}
        """Secrets in use, by the keys that they are wrapped for."""

    def addressed(self, draft: Draft) -> Draft:
        """Return a draft for the topic of a circle with the destination that carriers see."""
        return self._circles.sealed_draft(draft)

    def seal_for(self, draft: Draft) -> Sealing | None:
        """Return the seal of a letter that is about to be packed; None if the message goes in plain text.

        Raises `JMSSecurityException` if it should be sealed and cannot be.
        """
        if not self._signs:
            if draft.sealed:
                raise JMSSecurityException('a sealed message requires security = "signed" on this node')
            return None
        if draft.topic or (draft.sealed and draft.destination.startswith(f"{Kind.CONTROL}/")):
            return self._for_circle(draft)
        # Most messages are for all subscribers of a topic: to look closer would cost each of them some microseconds.
        readers = _readers(draft) if draft.recipients or draft.destination.startswith(_QUEUE) else ()
        if not readers:
            if draft.sealed:
                raise IllegalArgumentException(
                    f"only messages to a queue, or to listed recipients, can be sealed for nodes, not one to "
                    f"{draft.destination!r}: name recipients"
                )
            return None
        demanded = draft.sealed or (draft.sealed is None and self._asked == "always")
        if draft.sealed is False or (self._asked == "never" and not demanded):
            return None
        now = self._holdings.now_us
        if readers == (self._node,):
            return self._for_own_queue(draft, now)
        publics = self._keys_of(readers, now, demanded=bool(demanded))
        return None if publics is None else self._for_readers(draft, readers, publics, now)

    def keep_label(self, message: MessageId, label: str) -> None:
        """Keep the label of a letter that this host cannot read itself: its programs know it by that."""
        self._keyring.keep_label(message, label)

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
        return self._seal(draft, salt, secret, sealing.stanza_for_author(key), now, own=True)

    def _for_readers(self, draft: Draft, readers: tuple[NodeId, ...], publics: list[bytes], now: int) -> Sealing:
        salt, keys = self._keyring.entropy(sealing.SALT_BYTES), tuple(publics)
        found = self._wrapped.get(keys)
        if found is None or found.until_us <= now:
            found = self._wrap(keys, now)
            for node in readers:
                self._keyring.used(node, now)
        return self._seal(draft, salt, sealing.letter_secret(found.secret, salt), found.stanzas, now)

    def _wrap(self, publics: tuple[bytes, ...], now: int) -> _Wrapped:
        """Wrap a new secret for readers: a key exchange for each of them, which takes longer than a signature."""
        each = sealing.SECRET_BYTES
        drawn = self._keyring.entropy(each * (1 + len(publics)))
        secret = drawn[:each]
        stanzas = [
            sealing.wrap(public, secret, drawn[at * each : (at + 1) * each]) for at, public in enumerate(publics, 1)
        ]
        if len(self._wrapped) >= _WRAPPED_MAX:
            self._wrapped.clear()
        found = _Wrapped(secret, sealing.stanzas_for_readers(stanzas), now + _HOUR_US)
        self._wrapped[publics] = found
        return found

    def _for_circle(self, draft: Draft) -> Sealing:
        """Seal for all members of a circle, under its present epoch."""
        circle = self._circles.at(draft.destination)
        assert circle is not None  # The destination was made of it.
        epoch, salt = self._circles.sending(circle), self._keyring.entropy(sealing.SALT_BYTES)
        secret, stanza = circle.epochs[epoch].secret, sealing.stanza_for_epoch(*epoch)
        return self._seal(draft, salt, secret, stanza, self._holdings.now_us, circle=circle.name)

    def _seal(
        self, draft: Draft, salt: bytes, secret: bytes, stanzas: bytes, now: int, *, own: bool = False, circle: str = ""
    ) -> Sealing:
        assert isinstance(self._author, bytes)  # This node signs.
        content = sealing.content(secret, salt, self._author, draft.destination)
        # A request brings the key for its reply, which may go to a queue that nobody advertises; so does `Joined`.
        asks = (circle and not draft.topic) or (draft.headers is not None and draft.headers.reply_to is not None)
        return Sealing(
            salt, content, stanzas, reply_key=self._keyring.advertised(now) if asks else None,
            topic=draft.topic, circle=circle, secret=secret if own else b"",
        )  # fmt: skip


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
