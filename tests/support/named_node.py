"""One host with a directory, and a neighbour that advertises names to it."""

from __future__ import annotations

from collections import Counter
from typing import Any

import msgspec
from tests.support.one_node import OneNode, S
from tests.support.proofs import tell

from carrypost.errors import NameNotFoundException
from carrypost.gossip.wire import codec
from carrypost.gossip.wire.frames import Announce, Frame, Offer, OfferEntry, Parcel, Profile
from carrypost.log.events import Advertised, Received, Refused
from carrypost.log.journal import MESSAGE, MOM, StoredMessage
from carrypost.messaging.commands import BindName, Entries, Lookup, Unbind
from carrypost.messaging.control import Item, items_of
from carrypost.messaging.directory import Advert, encode_advert
from carrypost.messaging.namespace import Bind, Binding
from carrypost.model import address
from carrypost.model.descriptor import Descriptor, Ordering, PayloadCodec
from carrypost.model.headers import Headers
from carrypost.model.ids import NodeId, node_prefix
from carrypost.model.pattern import encode_entries, profile_digest

_NOTHING = encode_entries(())
_PERIOD_MS = 600_000


def advert(
    owner: str, name: str, meant: str, sequence: int, *, now: int, life_s: float = 60, **changes: object
) -> Descriptor:
    """Return a node's advertisement of a name, except for what `changes` says."""
    fields: dict[str, Any] = {
        "author": owner, "incarnation": 1, "sequence": sequence, "created_us": now,
        "deadline_us": now + round(life_s * S), "destination": address.directory(NodeId(owner), name), "size": 0,
        "length": 0, "codec": PayloadCodec.PLAIN, "root": b"", "fragment_bytes": 1_024, "headers": saying(meant),
    }  # fmt: skip
    return Descriptor(**fields | changes)


def saying(destination: str, ordering: Ordering = Ordering.NONE) -> Headers:
    return Headers(control=encode_advert(Advert(destination, ordering)))


class NamedNode(OneNode):
    """A host and its disk, and a neighbour that sends it anything, requested or not."""

    def __init__(
        self, name: str = "n", *, advert_s: float = 60, lease_s: float = 0, manage: object = False, **settings: object
    ) -> None:
        """`lease_s`: its directory has leases, of this length."""
        self.counter = self.handle = 0
        leased = {"directory": "lease", "directory_lease_s": lease_s} if lease_s else {}
        super().__init__(name, messaging={"advert_s": advert_s, "manage": manage, **leased}, **settings)

    # --- others --------------------------------------------------------------------------------------------

    def hear(self, descriptor: Descriptor, body: bytes = b"") -> Descriptor:
        """Return a message that its neighbour brings."""
        self.counter += 1
        self.handle += 1
        boot = self.host.incarnation
        profile = profile_digest(_NOTHING)
        heard = (node_prefix(self.host.node),)
        offered = OfferEntry(descriptor.id, self.handle, descriptor.length, 255)
        said = Announce(NodeId("neighbour"), boot, self.counter, _PERIOD_MS, profile, heard)
        tell(self.host, said, "neighbour", self.now)
        self._receive(
            Profile(profile, 0, 1, _NOTHING), Offer(self.counter, (offered,)),
        )  # fmt: skip
        self._receive(Parcel(self.handle, self.counter, 1, 0, False, descriptor.wire, body))
        return descriptor

    def _receive(self, *frames: Frame) -> None:
        for datagram in codec.datagrams(frames, 60_000):
            self.host.receive(codec.decode(datagram, self.settings.limits).frames, "neighbour", self.now)
        self.collect()

    def hear_of(self, owner: str, name: str, meant: str, sequence: int, **changes: Any) -> Descriptor:  # noqa: ANN401 - as `advert` has them
        return self.hear(advert(owner, name, meant, sequence, now=self.now, **changes))

    # --- programs ------------------------------------------------------------------------------------------

    def bind(self, name: str, destination: str = "", **asked: bool | Ordering) -> int:
        number = self.next_number()
        self.host.messaging.execute(BindName(Bind(name, destination, **asked)), self.now, number)  # type: ignore[arg-type]
        self.collect()
        return number

    def unbind(self, name: str, *, context: bool = False) -> int:
        number = self.next_number()
        self.host.messaging.execute(Unbind(name, context=context), self.now, number)
        self.collect()
        return number

    def found(self, name: str) -> Binding | None:
        try:
            found = self.host.messaging.execute(Lookup(name), self.now)
        except NameNotFoundException:
            found = None
        self.collect()
        return found

    def meaning(self, name: str) -> str | None:
        found = self.found(name)
        return None if found is None else found.destination

    def listed(self, context: str = "") -> list[str]:
        found = [each.name for each in self.host.messaging.execute(Entries(context), self.now)]
        self.collect()
        return found

    # --- what can be seen ----------------------------------------------------------------------------------

    def adverts(self, owner: str | None = None) -> list[Descriptor]:
        """Return the advertisements on its disk that are alive, those of its own or of another node."""
        prefix = f"directory/{owner or self.name}/"
        stored = [value.descriptor for value in self.disk.values() if isinstance(value, StoredMessage)]
        return [each for each in stored if each.destination.startswith(prefix) and each.alive(self.now)]

    def advertised(self) -> dict[str, str]:
        """Return the names that it advertises."""
        return {
            each.destination.split("/", 2)[2]: msgspec.msgpack.decode(each.headers.control, type=Advert).destination
            for each in self.adverts()
            if each.headers is not None
        }

    def told_control(self, to: str) -> list[Item]:
        """Return the control items for a node that are on this one's disk."""
        stored = [value.descriptor for value in self.disk.values() if isinstance(value, StoredMessage)]
        return [item for each in stored if each.destination == f"control/{to}" for item in items_of(each)[0]]

    def queues(self) -> int:
        found = self.host.messaging.overview()
        return 0 if found is None else found.queues

    def rows(self) -> list[bytes]:
        return sorted(name for kind, name, _ in self.disk if kind == MOM and name[:1] == b"D")

    def told(self) -> list[Advertised]:
        found = [each for each in self.events if isinstance(each, Advertised)]
        self.events = [each for each in self.events if each not in found]
        return found

    def refused(self) -> Counter[str]:
        """Return the refusals so far, by reason."""
        return Counter(each.reason for each in self.events if isinstance(each, Refused) for _ in range(each.count))

    def received(self, descriptor: Descriptor) -> bool:
        """Return True if a message came in. After a write that failed nothing is requested for a while."""
        return any(
            each.descriptor.id == descriptor.id
            for event in self.events if isinstance(event, Received)
            for each in event.receptions
        )  # fmt: skip

    def messages(self) -> int:
        return sum(kind == MESSAGE for kind, _, _ in self.disk)
