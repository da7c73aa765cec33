"""Sealing keys in the directory: this node advertises its own, and learns those of others.

The entry `directory/NODE/$key` is an ordinary, signed message without a payload; `Headers.control` has the key. It is
published once a week, with a new key, and more often only where messages live shorter than that. Of each node the
latest entry is kept and carried on. Programs never see these entries among names.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import msgspec

from carrypost.application.keyring import KEY_US
from carrypost.gossip.composite import Part, Stored
from carrypost.gossip.draft import Draft
from carrypost.log.events import Reason
from carrypost.model import address
from carrypost.model.headers import Headers
from carrypost.model.ids import MessageId
from carrypost.model.times import MICROSECONDS, NEVER
from carrypost.security.hpke import KEY_BYTES
from carrypost.security.sealing import SealingKey

if TYPE_CHECKING:
    from collections.abc import Sequence

    from carrypost.gossip.holdings.copies import Copy
    from carrypost.messaging.context import MessagingContext
    from carrypost.model.descriptor import Descriptor

NAME = "$key"
"""Name of the entry. Programs cannot bind it."""
SUFFIX = f"/{NAME}"
_RETRY_US = 10 * MICROSECONDS
"""Delay before an advertisement that found no room is published again."""
_encode = msgspec.msgpack.Encoder().encode


class KeyAdvert(msgspec.Struct, frozen=True, array_like=True):
    """The contents of an entry; fields may be appended with a default."""

    public: Annotated[bytes, msgspec.Meta(min_length=KEY_BYTES, max_length=KEY_BYTES)]


_decode = msgspec.msgpack.Decoder(KeyAdvert).decode


class SealingKeys(Part):
    """The entries with sealing keys, of this node and of others."""

    def __init__(self, context: MessagingContext) -> None:
        self._here, self._holdings, self._outputs = context.node, context.holdings, context.outputs
        self._keyring = context.keyring
        self._latest: dict[str, MessageId] = {}
        """The latest entry of each node, by destination."""
        self._renewal_us = NEVER
        """Time at which this node's entry is published next."""
        self._overtaken: list[MessageId] = []
        """Entries that leave the cache at the end of this step."""

    def restore(self, stored: Stored, now: int) -> None:  # noqa: ARG002 - the keyring has the rows
        """Advertise a key unless the entry of an earlier incarnation is here."""
        if self._keyring.signed:
            self._keyring.end_keys(now)
            for copy in self._holdings.known_copies():
                if copy.here and copy.destination.endswith(SUFFIX):
                    self._note(copy.descriptor)
            if self._renewal_us == NEVER:
                self._renewal_us = now
        self._look_ahead()

    def receive(self, copy: Copy) -> None:
        """Process an entry, this node's own among them."""
        descriptor = copy.descriptor
        found = address.address(descriptor.destination)
        advert = _advert_of(descriptor) if found is not None and found.node == descriptor.node else None
        if advert is None:
            self._outputs.refuse("directory", copy.giver or "", descriptor.shown)
            self._leave(copy.id)
        elif self._note(descriptor) and not copy.own:
            key = SealingKey(advert.public, descriptor.ends_us)
            self._keyring.learn(descriptor.node, key, self._holdings.now_us)

    def _note(self, descriptor: Descriptor) -> bool:
        """Note an entry; return False if a later one of its node is here."""
        before = self._latest.get(descriptor.destination)
        known = None if before is None else self._holdings.here(before)
        if known is not None and known.id != descriptor.id:
            if known.descriptor.tag > descriptor.tag:
                self._leave(descriptor.id)
                return False
            self._leave(known.id)
        self._latest[descriptor.destination] = descriptor.id
        if descriptor.node == self._here:
            # Half of the life is left for nodes that come by later.
            life_us = descriptor.ends_us - descriptor.created_us
            self._renewal_us = self._holdings.own_time(descriptor.created_us) + min(KEY_US, life_us // 2)
            self._look_ahead()
        return True

    def _leave(self, message: MessageId) -> None:
        self._overtaken.append(message)
        self.due_us = 0

    def drafts(self, now: int) -> Sequence[Draft]:
        """Return this node's entry if it is due; delete keys that no living message needs."""
        overtaken, self._overtaken = self._overtaken, []
        for message in overtaken:
            if (copy := self._holdings.here(message)) is not None:
                self._holdings.discard(copy, Reason.PURGED, done=True)
        drafts: list[Draft] = []
        if self._keyring.signed:
            self._keyring.end_keys(now)
            if self._renewal_us <= now:
                self._renewal_us = now + _RETRY_US  # Unless it is published, which `receive` notes.
                drafts.append(self._draft(now))
        self._look_ahead()
        return drafts

    def _draft(self, now: int) -> Draft:
        headers = Headers(control=_encode(KeyAdvert(self._keyring.current(now))))
        # A crash may take a new key back: it is advertised only when it is on disk.
        return Draft(
            address.directory(self._here, NAME), b"", lifetime_us=self._keyring.advertised_us, headers=headers,
            withheld=True,
        )  # fmt: skip

    def left(self, copies: Sequence[Copy], reason: Reason) -> None:  # noqa: ARG002 - whatever the reason is
        """Forget entries that are gone; their keys stay known."""
        for copy in copies:
            if copy.destination.endswith(SUFFIX) and self._latest.get(copy.destination) == copy.id:
                del self._latest[copy.destination]

    def _look_ahead(self) -> None:
        self.due_us = 0 if self._overtaken else min(self._renewal_us, self._keyring.ends_us)


def _advert_of(descriptor: Descriptor) -> KeyAdvert | None:
    """Return the contents of an entry; None if it is malformed."""
    headers = descriptor.headers
    if headers is None or descriptor.length or descriptor.deadline_us is None:
        return None
    try:
        return _decode(headers.control)
    except (ValueError, RecursionError):  # ValueError: msgspec's own, and text that is not UTF-8
        return None
