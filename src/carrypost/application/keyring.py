"""The keyring of a host: its own sealing keys, and those of other nodes.

This host has a new key each week, and keeps the old ones until the last message that may be sealed for them is dead:
then the private key is deleted, and whoever steals the store later opens nothing that was sealed for it. Keys of other
nodes come from their signed directory entries, and from requests that ask for a sealed reply. Of a node whose key is
out of date the key is remembered, so that nothing is sent to it in plain text by mistake.

Rows are of kind `sealing`: own keys by key id, others' by node. Times are this host's own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from carrypost.application.ledger import Ledger, Table
from carrypost.errors import ForgeryError, IllegalArgumentException, JMSSecurityException, LimitError
from carrypost.log.journal import SEALING
from carrypost.model.ids import MessageId, NodeId
from carrypost.model.times import MICROSECONDS, NEVER
from carrypost.security import hpke, sealing
from carrypost.security.codes import card_of, read_card
from carrypost.security.sealing import SealingKey

if TYPE_CHECKING:
    from carrypost.gossip.holdings.copies import Copy
    from carrypost.gossip.layer import Stored
    from carrypost.gossip.transfers.link import HostContext
    from carrypost.model.descriptor import Descriptor
    from carrypost.security.identity import Entropy
    from carrypost.security.sealing import Fields, Seal

KEY_US = 7 * 86_400 * MICROSECONDS
"""Age at which an own key is replaced."""
_ADVERTISED_US = 30 * 86_400 * MICROSECONDS
"""Time for which others may seal messages for an advertised key, at most."""
_OPENED_MAX = 256
"""Number of stanzas whose secrets are kept in memory."""
KNOWN_MAX = 4_096
"""Number of nodes whose keys are known: as many as names in the directory."""
_SECRET = b"carrypost assigned secret 1\0"
_SECRETS = b"carrypost browsed secrets 1\0"


class OwnKey(msgspec.Struct, frozen=True, array_like=True):
    """An own sealing key in the store."""

    private: bytes
    made_us: int

    def __repr__(self) -> str:
        return "<OwnKey>"


class KnownKey(msgspec.Struct, array_like=True):
    """The sealing key of another node."""

    public: bytes
    until_us: int
    used_us: int = 0
    """Time at which a message was last sealed for it; 0: never. A flood of strangers pushes out unused keys alone."""


class LabelRow(msgspec.Struct, frozen=True, array_like=True):
    """The label of an own letter in the store; fields may be appended with a default."""

    label: str


class Keyring:
    """The sealing keys of one host. Without a signing key it has none, and opens nothing."""

    def __init__(self, context: HostContext, entropy: Entropy) -> None:
        self.entropy, self._identity, self._node = entropy, context.identity, context.node
        self.signed = context.identity.signed
        self._holdings, self._limits = context.holdings, context.limits
        lifetime_s = context.settings.lifetime_s_max
        self.lifetime_us = NEVER if lifetime_s is None else round(lifetime_s * MICROSECONDS)
        self.advertised_us = min(_ADVERTISED_US, self.lifetime_us)
        """Lifetime of an advertisement of the own key."""
        self.ledger = ledger = Ledger(context.outputs.journal, SEALING)
        """The rows of keys, and of circles."""
        self._own_rows, self._rows = Table(ledger, b"K", OwnKey), Table(ledger, b"N", KnownKey)
        self._own: dict[bytes, OwnKey] = {}
        """Own keys by their ids, the newest last."""
        self.privates: dict[bytes, bytes] = {}
        """The own private keys by their ids."""
        self._known: dict[NodeId, KnownKey] = {}
        self._opened: dict[bytes, bytes] = {}
        """Secrets of the last stanzas."""
        self._label_rows = Table(ledger, b"L", LabelRow)
        self.labels: dict[MessageId, str] = {}
        """Labels of own letters here that this host cannot read itself."""

    # --- own keys ------------------------------------------------------------------------------------------

    def current(self, now: int) -> bytes:
        """Return the public key that others should seal for, made now unless there is one of this week."""
        return hpke.public_of(self.privates[self._newest(now)])

    def _newest(self, now: int) -> bytes:
        newest = next(reversed(self._own), None)
        if newest is None or self._own[newest].made_us + KEY_US <= now:
            key = OwnKey(self.entropy(hpke.KEY_BYTES), now)
            newest = sealing.key_id(hpke.public_of(key.private))
            self._enter(newest, key)
            self._own_rows.put(newest, key)
        return newest

    def advertised(self, now: int) -> SealingKey:
        """Return the own key for others, with the date until which they may use it."""
        return SealingKey(self.current(now), self._holdings.date_of(now) + self.advertised_us)

    @property
    def public(self) -> bytes:
        """The current public key; empty where security is off."""
        return self.current(self._holdings.now_us) if self.signed else b""

    @property
    def ends_us(self) -> int:
        """Time at which the oldest own key is to be deleted."""
        return min(map(self._end, self._own.values()), default=NEVER)

    def _end(self, key: OwnKey) -> int:
        """Return the time at which a key is of no use: it was advertised, then used, then the last message died."""
        return min(key.made_us + KEY_US + self.advertised_us + self.lifetime_us, NEVER)

    def end_keys(self, now: int) -> None:
        """Delete own keys that no living message needs."""
        for name in [name for name, key in self._own.items() if self._end(key) <= now]:
            del self._own[name], self.privates[name]
            self._own_rows.delete(name)
            self._opened.clear()

    def _enter(self, name: bytes, key: OwnKey) -> None:
        self._own[name], self.privates[name] = key, key.private

    def own_secret(self, salt: bytes, now: int) -> tuple[bytes, bytes]:
        """Return the id of a key and the secret of a message that this host seals for itself."""
        newest = self._newest(now)
        return newest, sealing.own_secret(self.privates[newest], salt)

    # --- opening -------------------------------------------------------------------------------------------

    def open(self, copy: Copy, secret: bytes = b"") -> None:
        """Open a sealed message with its secret, or with a key of this host.

        Raises `ForgeryError` or `LimitError` if there is no key for it, or it is not what its author should have made.
        """
        descriptor = copy.descriptor
        seal = sealing.seal_of(descriptor)
        found = secret or self._secret_of(descriptor, seal)
        if found is None:
            raise ForgeryError("seal-key", "it is sealed for a key that is not here")
        copy.opened, fields = self.opened(descriptor, seal, found)
        if fields.reply_key is not None:
            self.learn(descriptor.node, fields.reply_key, self._holdings.now_us)

    def opened(self, descriptor: Descriptor, seal: Seal, secret: bytes, circle: str = "") -> tuple[Descriptor, Fields]:
        """Return a sealed message with its plain fields, and the fields; raises as `open` does."""
        opened, fields = sealing.opened_with(descriptor, seal, secret, circle)
        if len(fields.attributes) > self._limits.attributes_max:
            raise LimitError("seal", "too many attributes inside a seal")
        return opened, fields

    def _secret_of(self, descriptor: Descriptor, seal: Seal) -> bytes | None:
        """Return the secret of a sealed message; None if it is not sealed for this host. Raises `ForgeryError`."""
        if seal.is_own:
            own = self.privates.get(seal.stanzas[0]) if descriptor.node == self._node else None
            return None if own is None else sealing.own_secret(own, seal.salt)
        for stanza in seal.stanzas:
            # An author uses one for several messages, and a key exchange takes long.
            found = self._opened.get(stanza)
            if found is None and (found := sealing.unwrap(self.privates, stanza)) is not None:
                if len(self._opened) >= _OPENED_MAX:
                    self._opened.clear()
                self._opened[stanza] = found
            if found is not None:
                return sealing.letter_secret(found, seal.salt)
        return None

    def wrap_secrets(self, public: bytes, secrets: bytes, message: bytes = b"") -> bytes:
        """Return the secret of a message for the node that it is assigned to, or of several for one that browses."""
        return sealing.wrap(public, secrets, self.entropy(hpke.KEY_BYTES), _SECRET + message if message else _SECRETS)

    def unwrap_secrets(self, stanza: bytes, message: bytes = b"") -> bytes:
        """Return what `wrap_secrets` was given; empty if there is nothing, or this host cannot read it."""
        try:
            return sealing.unwrap(self.privates, stanza, _SECRET + message if message else _SECRETS) or b""
        except ForgeryError:
            return b""

    # --- other nodes ---------------------------------------------------------------------------------------

    def learn(self, node: NodeId, key: SealingKey, now: int) -> None:
        """Learn the key of another node; of two, the one that is advertised for longer is the newer."""
        if node == self._node or len(key.public) != hpke.KEY_BYTES:
            return
        # A date far ahead would let a node's own mistake outlive every correction.
        until_us = min(self._holdings.own_time(key.until_us), now + self.advertised_us)
        known = self._known.get(node)
        if known is not None and known.until_us >= until_us:
            return
        if known is None and len(self._known) >= KNOWN_MAX:
            self.forget(min(self._known, key=lambda each: (self._known[each].used_us, self._known[each].until_us)))
        found = self._known[node] = KnownKey(key.public, until_us, 0 if known is None else known.used_us)
        self._rows.put(node.encode(), found)

    def card(self, now: int) -> str:
        """Return the card of this node, by which others who meet its owner know its keys."""
        if not self.signed:
            raise JMSSecurityException('a card requires security = "signed" on this node')
        return card_of(self._identity, self.advertised(now))

    def add_card(self, code: str, now: int) -> NodeId:
        """Learn the sealing key of a card; return the node. Raises `IllegalArgumentException`."""
        if not self.signed:
            raise JMSSecurityException('cards require security = "signed" on this node')
        found = read_card(code, self._holdings.date_of(now))
        if found.node == self._node:
            raise IllegalArgumentException("the card is this node's own")
        self.learn(found.node, found.key, now)
        self.used(found.node, now)  # A person chose it: strangers do not push it out.
        return found.node

    def forget(self, node: NodeId) -> None:
        """Forget the key of a node."""
        del self._known[node]
        self._rows.delete(node.encode())

    def key_for(self, node: NodeId) -> KnownKey | None:
        """Return the key of a node, which may be out of date; None if it was never known."""
        return self._known.get(node)

    def used(self, node: NodeId, now: int) -> None:
        """Note that a message was sealed for a node; written at most once a day."""
        known = self._known[node]
        if known.used_us + 86_400 * MICROSECONDS <= now:
            known.used_us = now
            self._rows.put(node.encode(), known)

    # --- labels --------------------------------------------------------------------------------------------

    def keep_label(self, message: MessageId, label: str) -> None:
        """Keep the label of an own letter as long as that is here."""
        self.labels[message] = label
        self._label_rows.put(message, LabelRow(label))

    def drop_label(self, message: MessageId) -> None:
        """Drop the label of a letter that is gone."""
        if self.labels.pop(message, None) is not None:
            self._label_rows.delete(message)

    # --- the store -----------------------------------------------------------------------------------------

    def restore(self, stored: Stored) -> None:
        """Restore all keys after a restart."""
        for name, key in sorted(self._own_rows.read(stored), key=lambda each: each[1].made_us):
            self._enter(name, key)
        for name, found in self._rows.read(stored):
            self._known[NodeId(name.decode())] = found
        self.labels.update((MessageId(name), row.label) for name, row in self._label_rows.read(stored))
