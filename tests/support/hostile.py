"""A scripted peer, which sends arbitrary bytes to the hosts of a `testing.network`.

Its frames are encoded, and decoded under the victim's limits, as on a real link; refusals of the codec are passed to
the host, as a node does. It hears what its victims send to it, so that it can use their handles and serials.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import msgspec
from tests.support.proofs import proven

from carrypost import testing
from carrypost.config import UNBOUNDED, Limits
from carrypost.emu.engine.radio import Burst, LinkModel
from carrypost.gossip.wire import codec
from carrypost.gossip.wire.frames import (
    Announce,
    Data,
    DescriptorPart,
    Digest,
    Frame,
    HashList,
    Offer,
    OfferEntry,
    Parcel,
    Profile,
    kind,
)
from carrypost.gossip.wire.pieces import HASH_BYTES, Blank, pack
from carrypost.log.events import Event, Refused
from carrypost.model.descriptor import PIECE_BYTES, Descriptor
from carrypost.model.ids import NodeId, node_prefix
from carrypost.model.pattern import Entry, encode_entries, entry, profile_digest
from carrypost.security.identity import Identity

BODY_BYTES = 1_024
DELAY_US = 5_000
"""Delay by which it hears later than the honest: of those that ask for the same, the last is served first."""
PERIOD_MS = 600_000
"""Announced period; long enough that a test needs only one announcement."""


@dataclass(frozen=True)
class Message:
    """A message as its author has it: everything that a transfer needs."""

    descriptor: Descriptor
    pieces: tuple[bytes, ...]
    hashes: bytes


def message(
    identity: Identity, payload: bytes | Blank = b"rubbish", *, compress: bool = False, **changes: object
) -> Message:
    """Return a message for `news` that is sound, but for what `changes` says of its descriptor."""
    packed = pack(payload, signed=identity.signed, compress=compress, limits=_LIMITS)
    fields: dict[str, Any] = {
        "author": identity.author, "incarnation": 1, "sequence": next(_sequences), "created_us": 0,
        "deadline_us": 3_600_000_000, "destination": "news", "size": packed.size, "length": packed.length,
        "codec": packed.codec, "root": packed.root, "fragment_bytes": BODY_BYTES,
    }  # fmt: skip
    descriptor = identity.sign(Descriptor(**fields | changes))
    return Message(descriptor, packed.pieces, packed.hashes)


_LIMITS = Limits()
_sequences = iter(range(1, 1 << 53))


@dataclass
class Refusals:
    """The refusals of a network's hosts."""

    counts: Counter[tuple[str, str]] = field(default_factory=Counter)

    def take(self, _t: float, node: str, event: Event) -> None:
        if isinstance(event, Refused):
            self.counts[node, event.reason] += event.count

    def at(self, node: str) -> Counter[str]:
        found: Counter[str] = Counter()
        for (where, reason), count in self.counts.items():
            if where == node:
                found[reason] += count
        return found


class Attacker:
    """One link address that speaks for itself, or (`as_`) for another."""

    def __init__(self, net: testing.Network, address: str = "mallory", *, name: str | None = None) -> None:
        self.net = net
        self.address = address
        self.identity = Identity.derived("attack", name or address)
        self.node: NodeId = self.identity.node if self._signed else NodeId(name or address)
        if not self._signed:
            self.identity = Identity.plain(self.node)
        self.heard: list[Frame] = []
        self.reacts: Callable[[Frame], None] = lambda _: None
        """Reaction to a frame that it hears."""
        self.counter = 0
        self.serial = 0
        self.profile = b""
        self._radio = net._radio  # noqa: SLF001 - there is no public way to be nobody's host on a network
        self._radio.add(address, self._hear)

    @property
    def _signed(self) -> bool:
        return self.net._settings.security == "signed"  # noqa: SLF001

    def _hear(self, burst: Burst, _peer: str) -> None:
        for datagram in burst:
            for frame in datagram.frames:
                self.heard.append(frame)
                self.reacts(frame)

    def sends(self, kind_: type[Frame]) -> list[Any]:
        """Return the frames of one kind that this peer heard."""
        return [frame for frame in self.heard if kind(frame) == kind_.__name__]

    def say(self, victim: str, *frames: Frame, as_: str | None = None) -> None:
        """Send frames in one datagram, unless they are too many for one."""
        host = self.net.host(victim)
        peer, now = as_ or self.address, round(self.net.now * 1e6)
        if as_ is None:  # It can prove its own address, and no other.
            frames = tuple(
                shown
                for each in frames
                if (shown := proven(host, each, peer, now) if isinstance(each, Announce) else each) is not None
            )
        for datagram in codec.datagrams(frames, 60_000):
            decoded = codec.decode(datagram, self.net._settings.limits)  # noqa: SLF001
            host.refused(decoded.refused, peer, now, nbytes=len(datagram))
            self.net.inject(victim, decoded.frames, peer)

    def announcement(self, *lists: str, **changes: object) -> Announce:
        self.counter += 1
        heard = tuple(node_prefix(self.net.host(name).node) for name in lists)
        profile = self.profile or profile_digest(encode_entries(()))
        said = Announce(self.node, 1, self.counter, PERIOD_MS, profile, heard)
        return msgspec.structs.replace(said, **changes)

    def wants(self, *patterns: str | Entry) -> list[Frame]:
        """Return the frames of its profile, which it announces from now on."""
        entries = [entry(each) if isinstance(each, str) else each for each in patterns]
        encoded = encode_entries(entries)
        self.profile = profile_digest(encoded)
        step = 50_000
        bodies = [encoded[at : at + step] for at in range(0, len(encoded), step)]
        return [Profile(self.profile, number, len(bodies), body) for number, body in enumerate(bodies)]

    def meet(self, victim: str, *patterns: str, hears: bool = True) -> None:
        """Become a neighbour in good standing."""
        if hears and not self._radio.linked(victim, self.address):
            self._radio.link(victim, self.address, one_way=True, model=LinkModel(delay_us=DELAY_US))
        profile = self.wants(*patterns)
        self.say(victim, self.announcement(victim), *profile)

    def agree(self, victim: str) -> None:
        """Make the victim believe that this peer has everything, so that only new messages are offered."""
        self.net.advance(1)
        for asked in self.sends(Digest):
            if asked.number:
                self.say(victim, Digest(asked.profile, asked.round + 1, answers=asked.number, run=asked.run))
        self.net.advance(1)

    def offer(self, given: Message, handle: int = 1, **changes: object) -> Offer:
        """Return an offer of one message."""
        self.serial += 1
        shown = OfferEntry(given.descriptor.id, handle, given.descriptor.length, 255)
        return Offer(self.serial, (msgspec.structs.replace(shown, **changes),))

    def describe(self, given: Message, handle: int = 1) -> list[Frame]:
        """Return the frames that vouch for a message: descriptor and hash list."""
        self.serial += 2
        wire = given.descriptor.wire
        frames: list[Frame] = [DescriptorPart(handle, self.serial, 1, 0, 0, 1, wire)]
        if given.descriptor.pieces > 1 and given.hashes:
            step = 1_000 * HASH_BYTES
            for at in range(0, len(given.hashes), step):
                self.serial += 1
                frames.append(HashList(handle, self.serial, at // HASH_BYTES, given.hashes[at : at + step]))
        return frames

    def fragments(self, given: Message, handle: int = 1) -> list[Data]:
        """Return the frames of its payload."""
        found = []
        descriptor = given.descriptor
        for number, piece in enumerate(given.pieces):
            first = number * descriptor.fragments_per_piece
            for index, at in enumerate(range(0, len(piece) or 1, descriptor.fragment_bytes), first):
                self.serial += 1
                body = piece[at : at + descriptor.fragment_bytes]
                found.append(Data(handle, self.serial, index, last=False, body=body))
        assert all(len(piece) <= PIECE_BYTES for piece in given.pieces)
        return found

    def parcel(self, given: Message, handle: int = 1, **changes: object) -> Parcel:
        """Return a small message whole."""
        self.serial += 1
        made = Parcel(handle, self.serial, 1, 0, False, given.descriptor.wire, b"".join(given.pieces))
        return msgspec.structs.replace(made, **changes)

    def give(self, victim: str, given: Message, handle: int = 1) -> None:
        """Offer a message and send all of it, asked or not."""
        self.say(victim, self.offer(given, handle), *self.describe(given, handle), *self.fragments(given, handle))


def spoil(body: bytes) -> bytes:
    """Return bytes of the same length with other contents."""
    return bytes([body[0] ^ 1]) + body[1:]


class Scene:
    """Two honest hosts in contact, `a` and `b`, both interested in `news`, and any peers that are added."""

    def __init__(self, net: testing.Network) -> None:
        self.net = net
        self.refusals = Refusals()
        self.published: list[bytes] = []
        net.watch(self.refusals.take)
        for node in "ab":
            net.subscribe(node, "news")
        net.link("a", "b")
        net.advance(5)

    def attacker(self, *victims: str, address: str = "mallory", pattern: str = "news") -> Attacker:
        """Return a neighbour of these hosts."""
        made = Attacker(self.net, address)
        for victim in victims:
            made.meet(victim, pattern)
        return made

    def publish(self, *, size: int = 100_000) -> None:
        """News in both directions, small and large."""
        for node in "ab":
            for nbytes in (20, size):
                payload = f"{node}{len(self.published)}".encode() * (nbytes // 2)
                self.net.publish(node, "news", payload)
                self.published.append(payload)

    def refused(self, node: str = "b") -> Counter[str]:
        """Return the refusals of a host so far, by reason."""
        return self.refusals.at(node)

    def check(self, within_s: float = 60, *, strangers: bool = False) -> None:
        """Check that every honest message arrives at both within this time, nothing else ever did, and nothing twice.

        `strangers`: messages that others signed themselves may have come, too.
        """
        self.publish()
        self.net.advance(within_s)
        for node in "ab":
            found = [
                delivery.payload
                for delivery in self.net.deliveries(node)
                if not strangers or self.net.name(delivery.descriptor.node) in ("a", "b")
            ]
            assert sorted(found) == sorted(self.published)


@contextmanager
def scene(**settings: object) -> Iterator[Scene]:
    """Yield a scene with signatures and lifetimes, unless the settings say otherwise.

    No peer is muted for useless work, and datagrams may be long, so that each other limit shows by itself;
    `tests.gossip.test_accounts` has the accounts.
    """
    usual: dict[str, object] = {"security": "signed", "lifetime_s_default": 3_600, "lifetime_s_max": 7_200}
    given = settings.pop("limits", {})
    assert isinstance(given, dict)
    limits = {"link_waste_per_s": UNBOUNDED, "waste_per_s": UNBOUNDED, "datagram_bytes_max": 65_507} | given
    with testing.network("a", "b", seed=1, **usual | settings, limits=limits) as net:  # type: ignore[arg-type]  # all are Settings
        yield Scene(net)
