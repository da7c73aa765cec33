"""Useless datagrams, each as expensive as a stranger can make it: the input of `bench hostile`.

A stranger is linked: it announces itself, lists its victim as heard, and wants everything, so it learns handles and the
victim's profile. For every kind of frame, `ATTACKS` has a maker of datagrams, each of at most `mtu_bytes`, filled with
the frames that cost the victim most. Numbers and ids are drawn anew for every datagram, so that remembering the last
one saves nothing.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final

import msgspec

from carrypost.config import Limits
from carrypost.gossip.acked import known_acks
from carrypost.gossip.discovery.neighbour import MISSED_MAX
from carrypost.gossip.strategy.review import CHILDREN_MAX, ROOT_CHILDREN
from carrypost.gossip.transfers import signed
from carrypost.gossip.wire import codec
from carrypost.gossip.wire import frames as f
from carrypost.gossip.wire.frames import packed, packed_hashes
from carrypost.gossip.wire.pieces import HASH_BYTES, pack
from carrypost.model.descriptor import Descriptor
from carrypost.model.headers import Headers
from carrypost.model.ids import MessageId, NodeId, node_prefix
from carrypost.model.pattern import encode_entries, entry, profile_digest
from carrypost.security.identity import Identity

PERIOD_MS: Final = 60_000
"""Announced, so that the link lasts without the stranger having to say much."""
_LIFETIME_US: Final = 3_600_000_000
_LIMITS: Final = Limits()
_EVERYTHING: Final = encode_entries([entry(".*")])


@dataclass
class Stranger:
    """One linked stranger: its identity, and its knowledge of the victim."""

    number: int
    victim: NodeId
    mtu_bytes: int = _LIMITS.datagram_bytes_max
    profile: bytes = b"\0" * 8
    """Digest of the victim's profile."""
    handles: list[int] = field(default_factory=list)
    """Under which the victim offered messages."""
    serials: tuple[int, int] = (0, 0)
    """The first and the last of what the victim has sent to it and that it has not acknowledged."""
    counter: int = 0
    proof: bytes = b""
    """The token that the victim sent to its address."""
    now_us: int = 0
    """The victim's clock, roughly: messages of the stranger were just made, and live for an hour."""
    welcome: bytes = b""
    """Encoded descriptor of a message that the victim accepts."""

    def __post_init__(self) -> None:
        self.chance = random.Random(self.number)
        self.identity = Identity.derived("stranger", str(self.number))
        self.to = node_prefix(self.victim)

    def introduction(self) -> list[bytes]:
        """Makes it a neighbour that wants everything."""
        return codec.datagrams([self.announce(), f.Profile(profile_digest(_EVERYTHING), 0, 1, _EVERYTHING)], 1_200)

    def announce(self, *, lists: bool = True, profile: bytes | None = None) -> f.Announce:
        """Return the next announcement."""
        self.counter += 1
        digest = profile_digest(_EVERYTHING) if profile is None else profile
        heard = (self.to,) if lists else ()
        return self.proven(f.Announce(self.identity.node, 1, self.counter, PERIOD_MS, digest, heard))

    def proven(self, announced: f.Announce) -> f.Announce:
        """Return an announcement with the proof that it receives at its address."""
        return msgspec.structs.replace(announced, proof=self.proof)

    def hear(self, sent: Iterable[f.Frame]) -> list[bytes]:
        """Learn from what the victim says; return the answers that keep it talking."""
        answers: list[f.Frame] = []
        for frame in sent:
            if isinstance(frame, f.Offer):
                self.handles = [each.handle for each in frame.entries] or self.handles
                answers.append(f.Request(self.to, (frame.serial,), tuple(self.handles)))
            elif isinstance(frame, f.OpenParcel | f.Data):
                self.serials = self.serials[0] or frame.serial, frame.serial
            elif isinstance(frame, f.Announce):
                self.profile = frame.profile
                if frame.token:
                    self.proof = frame.token
                    answers.append(self.announce())
            elif isinstance(frame, f.Digest) and frame.round == 0:  # It has nothing of what is compared.
                nothing = f.Bucket(0, 0, (), ())
                answers.append(f.Digest(frame.profile, 1, (nothing,), (), 1, frame.number, 0, 1, frame.run))
        return codec.datagrams(answers, 1_200) if answers else []

    def fill(self, frames: Iterator[f.Frame]) -> bytes:
        """Return as many of the frames as one datagram holds."""
        found: list[f.Frame] = []
        room = self.mtu_bytes - codec.datagram_overhead(codec.FRAMES_MAX)
        for frame in frames:
            room -= codec.wire_size(frame)
            if room < 0 or len(found) == codec.FRAMES_MAX:
                break
            found.append(frame)
        return codec.datagrams(found, self.mtu_bytes)[0]

    def some_id(self) -> MessageId:
        """Return an id that no message has."""
        return MessageId(self.chance.randbytes(16))


def _endless(make: Callable[[Stranger], f.Frame]) -> Callable[[Stranger], bytes]:
    def datagram(stranger: Stranger) -> bytes:
        return stranger.fill(iter(lambda: make(stranger), None))

    return datagram


def _unknown_handles(stranger: Stranger) -> f.Frame:
    # Small numbers take one byte each; none of them is a handle, because handles begin anywhere.
    return f.Request(stranger.to, (), tuple(range(1, 128)) * 4)


def _unknown_serials(stranger: Stranger) -> f.Frame:
    return f.Request(stranger.to, tuple(range(1, 128)) * 4)


def _unknown_pieces(stranger: Stranger) -> f.Frame:
    return f.Request(stranger.to, (), (), tuple(f.PieceRequest(number, b"\1") for number in range(1, 128)) * 4)


def _same_again(stranger: Stranger) -> f.Frame:
    """Return the same frame that it was offered, again and again."""
    return f.Request(stranger.to, (), tuple(stranger.handles[:60]) or (1,))


def _for_another(_: Stranger) -> f.Frame:
    return f.Request(b"\0\0\0\0", ())


def _new_offer(stranger: Stranger) -> f.Frame:
    """Offer messages that no node has."""
    chance = stranger.chance
    entries = (f.OfferEntry(stranger.some_id(), chance.randrange(2**24), 100, 4) for _ in range(40))
    return f.Offer(chance.randrange(2**24), tuple(entries))


def _same_handle(stranger: Stranger) -> f.Frame:
    """Another message under the same handles each time."""
    entries = (f.OfferEntry(stranger.some_id(), number, 100, 4) for number in range(40))
    return f.Offer(stranger.chance.randrange(2**24), tuple(entries))


def _same_offer(stranger: Stranger) -> f.Frame:
    """Offer the same messages, and never send them."""
    chance = random.Random(1)
    entries = (f.OfferEntry(MessageId(chance.randbytes(16)), number, 100, 4) for number in range(40))
    return f.Offer(stranger.chance.randrange(2**24), tuple(entries))


def _new_run(stranger: Stranger) -> f.Frame:
    """Return the beginning of a reconciliation in which everything differs."""
    chance = stranger.chance
    xors = tuple(chance.getrandbits(64) for _ in range(ROOT_CHILDREN))
    buckets = (f.Bucket(0, 0, xors),) * (CHILDREN_MAX // ROOT_CHILDREN)
    number = chance.randrange(1, 2**40)
    return f.Digest(stranger.profile, 0, buckets, (), number, 0, 0, 1, number)


def _listing(stranger: Stranger) -> f.Frame:
    """Reconcile with a list of messages that no node has."""
    chance = stranger.chance
    members = tuple(chance.getrandbits(64) for _ in range(900))
    number = chance.randrange(1, 2**40)
    return f.Digest(stranger.profile, 0, (f.Bucket(0, 0, (), members),), (), number, 0, 0, 1, number)


def short_run(stranger: Stranger) -> f.Frame:
    """Reconcile again and again, with a list of nothing."""
    number = stranger.chance.randrange(1, 2**40)
    return f.Digest(stranger.profile, 0, (f.Bucket(0, 0, (), ()),), (), number, 0, 0, 1, number)


def _no_run(stranger: Stranger) -> f.Frame:
    return f.Digest(stranger.chance.randbytes(8), 0, (f.Bucket(0, 0, (0,) * ROOT_CHILDREN),))


def _flapping(stranger: Stranger) -> f.Frame:
    """Return announcements that hear the victim and do not, in turn."""
    return stranger.announce(lists=bool(stranger.counter & 1))


def _changing(stranger: Stranger) -> f.Frame:
    """Return a different profile each time."""
    return stranger.announce(profile=stranger.chance.randbytes(8))


def _replayed(stranger: Stranger) -> f.Frame:
    said = f.Announce(stranger.identity.node, 1, 1, PERIOD_MS, profile_digest(_EVERYTHING), (stranger.to,))
    return stranger.proven(said)


def _unproven(stranger: Stranger) -> f.Frame:
    """Return announcements that neither continue the others nor bring a proof."""
    said = f.Announce(stranger.identity.node, 1, stranger.counter + MISSED_MAX, PERIOD_MS, profile_digest(_EVERYTHING))
    return msgspec.structs.replace(said, stamp=stranger.chance.randbytes(8))


def _asking(stranger: Stranger) -> f.Frame:
    """Return announcements that ask for another proof each time."""
    return msgspec.structs.replace(stranger.announce(), token=stranger.chance.randbytes(8))


def _crowd(stranger: Stranger) -> f.Frame:
    """Return a long list of those that it hears."""
    stranger.counter += 1
    chance, digest = stranger.chance, profile_digest(_EVERYTHING)
    heard = tuple(chance.randbytes(4) for _ in range(160))
    said = f.Announce(stranger.identity.node, 1, stranger.counter, PERIOD_MS, digest, (*heard, stranger.to))
    return stranger.proven(said)


def _profile_asked(stranger: Stranger) -> f.Frame:
    return f.ProfileRequest(stranger.profile)


def _profile_part(stranger: Stranger) -> f.Frame:
    chance = stranger.chance
    return f.Profile(profile_digest(_EVERYTHING), chance.randrange(1_000), 1_000, b"x")


def _profiles(stranger: Stranger) -> bytes:
    """Announce a new profile with many patterns."""
    found = [entry(f"{stranger.chance.randrange(10**6)}[ab]*c{number}") for number in range(stranger.mtu_bytes // 48)]
    encoded = encode_entries(found)
    digest = profile_digest(encoded)
    return codec.datagrams([stranger.announce(profile=digest), f.Profile(digest, 0, 1, encoded)], stranger.mtu_bytes)[0]


def _selectors(stranger: Stranger) -> bytes:
    """Announce and send a new profile of long selectors: each is read, and evaluated in vain for every message."""
    sums = "+".join(["-n"] * 330)
    count = (stranger.mtu_bytes - 256) // (len(sums) + 32)
    found = [entry("news", f"{sums} = {stranger.chance.randrange(10**6)}.{number}") for number in range(count)]
    encoded = encode_entries(found)
    digest = profile_digest(encoded)
    return codec.datagrams([stranger.announce(profile=digest), f.Profile(digest, 0, 1, encoded)], stranger.mtu_bytes)[0]


def _descriptor_of(stranger: Stranger, *, body: bytes) -> Descriptor:
    packed = pack(body, signed=True, compress=False, limits=_LIMITS)
    made = Descriptor(
        author=stranger.identity.author, incarnation=1, sequence=stranger.chance.randrange(1, 2**40), created_us=0,
        deadline_us=None, destination="news", size=packed.size, length=packed.length, codec=packed.codec,
        root=packed.root, fragment_bytes=1_024,
    )  # fmt: skip
    return made.with_signature(bytes(64))


def _parcel(stranger: Stranger) -> f.Frame:
    """Send an unrequested message that no host would accept: it lives for ever."""
    wire = _descriptor_of(stranger, body=b"").wire
    return f.Parcel(stranger.chance.randrange(2**24), 1, 1, 1, True, wire, b"")


def acceptable(stranger: Stranger) -> Descriptor:
    """Return a message that the victim would carry, but for its signature."""
    made = _descriptor_of(stranger, body=b"")
    lives = {"created_us": stranger.now_us, "deadline_us": stranger.now_us + _LIFETIME_US}
    return msgspec.structs.replace(made, **lives)


def _forged_parcel(stranger: Stranger) -> f.Frame:
    """Send an unrequested message in which everything but the signature is right."""
    wire = acceptable(stranger).with_signature(bytes(64)).wire
    return f.Parcel(stranger.chance.randrange(2**24), stranger.chance.randrange(2**24), 1, 1, True, wire, b"")


def _endless_parcel(stranger: Stranger) -> f.Frame:
    """Send an unrequested message whose burst does not end, so that it is not acknowledged."""
    return msgspec.structs.replace(_forged_parcel(stranger), last=False)


def _listing_parcel(stranger: Stranger) -> f.Frame:
    """Send an unrequested message with a long list of recipients, of which only the end is invalid."""
    nodes = sorted(stranger.chance.randbytes(16) for _ in range(40))
    named = msgspec.structs.replace(acceptable(stranger), headers=Headers(recipients=(*nodes[1:], nodes[0])))
    return f.Parcel(stranger.chance.randrange(2**24), 1, 1, 1, True, stranger.identity.sign(named).wire, b"")


def _repeated_parcel(stranger: Stranger) -> f.Frame:
    """Return a message that was welcome when it came for the first time."""
    if not stranger.welcome:
        stranger.welcome = stranger.identity.sign(acceptable(stranger)).wire
    return f.Parcel(
        stranger.chance.randrange(2**24), stranger.chance.randrange(2**24), 1, 1, True, stranger.welcome, b""
    )


def _descriptor(stranger: Stranger) -> f.Frame:
    wire = _descriptor_of(stranger, body=b"").wire
    return f.DescriptorPart(stranger.chance.randrange(2**24), 1, 1, 1, 0, 1, wire)


def _descriptor_part(stranger: Stranger) -> f.Frame:
    return f.DescriptorPart(stranger.chance.randrange(2**24), 1, 1, 1, 0, 2, b"x")


def _data(stranger: Stranger) -> f.Frame:
    return f.Data(stranger.chance.randrange(2**24), 1, 0, True, b"")


def _hash_list(stranger: Stranger) -> f.Frame:
    return f.HashList(stranger.chance.randrange(2**24), 1, 0, bytes(HASH_BYTES))


def _ack(stranger: Stranger) -> f.Frame:
    return f.Ack(stranger.chance.randrange(2**24), b"\xff")


def _long_ack(stranger: Stranger) -> f.Frame:
    return f.Ack(stranger.chance.randrange(2**24), b"\xff" * 1_000)


def _ack_around(stranger: Stranger) -> f.Frame:
    """Acknowledge nothing of what is in flight, so that all of it is sent again."""
    first, last = stranger.serials
    bits = 1 << last + 1 - first | 1
    return f.Ack(max(0, first - 1), bits.to_bytes(bits.bit_length() // 8 + 1, "little"))


def _unknown_ids(stranger: Stranger) -> list[MessageId]:
    """Ids of messages that do not exist."""
    return [MessageId(stranger.chance.randbytes(16)) for _ in range(4)]


def _acked(stranger: Stranger) -> f.AckRecord:
    """Return an acknowledgement of messages that do not exist, which counts for an hour."""
    return known_acks.signed_record(stranger.identity, stranger.now_us + _LIFETIME_US, _unknown_ids(stranger))


def _forged_acked(stranger: Stranger) -> f.Frame:
    """Return an acknowledgement in the name of a key; everything but its signature is right."""
    key = stranger.chance.randbytes(32)
    return f.AckRecord(key, stranger.now_us + _LIFETIME_US, tuple(_unknown_ids(stranger)), bytes(64))


def _late_acked(stranger: Stranger) -> f.Frame:
    """Return an acknowledgement that ended."""
    return f.AckRecord(bytes(32), 0, tuple(_unknown_ids(stranger)), bytes(64))


def _other_list(stranger: Stranger) -> f.Frame:
    """Return a list of acknowledgements that is not the victim's."""
    return f.AckList(0, stranger.chance.randbytes(8))


def _other_parts(stranger: Stranger) -> f.Frame:
    return f.AckList(1, stranger.chance.randbytes(512))


def _long_list(stranger: Stranger) -> f.Frame:
    """List acknowledgements that do not exist, all of which the victim would seem to have."""
    return f.AckList(2, bytes([255] * 8), stranger.chance.randbytes(8 * min(2_000, stranger.mtu_bytes // 9)))


def _tickets(stranger: Stranger) -> f.Frame:
    """Return tickets for the messages of an offer that was never made."""
    return f.Tickets(stranger.chance.randrange(1 << 20), (1,))


def _encounters(stranger: Stranger) -> f.Frame:
    """Return another table, with a node that does not exist."""
    return f.Encounters(0, 1, stranger.chance.randbytes(4) + bytes([64, 0]), b"", True)


def _short_hashes(stranger: Stranger) -> f.Frame:
    """List messages that do not exist, under another key each time."""
    hashes = sorted(stranger.chance.getrandbits(20) for _ in range(512))
    return f.Listing(stranger.chance.getrandbits(40), stranger.chance.getrandbits(32), 512, packed_hashes(hashes))


def _held(stranger: Stranger) -> f.Frame:
    """Return an answer to a list that was never sent."""
    return f.Held(stranger.chance.getrandbits(40), bytes([255]))


def _empty_summary(stranger: Stranger) -> f.Frame:
    """Return a list of nothing: everything is lacking, each time."""
    return f.Summary(stranger.chance.getrandbits(40), 0, 1, 0)


def _long_summary(stranger: Stranger) -> f.Frame:
    """List messages that do not exist, all of which the victim would seem to lack."""
    count = min(2_000, stranger.mtu_bytes // 9)
    listed = packed(sorted({stranger.chance.getrandbits(64) for _ in range(count)}))
    return f.Summary(stranger.chance.getrandbits(40), 0, 1, 0, listed)


def _missing(stranger: Stranger) -> f.Frame:
    """Return an answer to a list of an earlier session."""
    return f.Missing(stranger.chance.getrandbits(40), 0, stranger.chance.randbytes(8))


def _relay_of_strangers(stranger: Stranger) -> f.Frame:
    """Relay a datagram for the victim, from an unknown host, by way of this one."""
    own = node_prefix(stranger.identity.node)
    return f.Relay(stranger.chance.randbytes(4) + own + stranger.to, 2, b"", _endless(_data)(stranger)[:900])


def _relay_nowhere(stranger: Stranger) -> f.Frame:
    """Send a datagram that the victim should pass on to an unknown host."""
    own = node_prefix(stranger.identity.node)
    return f.Relay(own + stranger.to + stranger.chance.randbytes(4), 1, b"", b"x")


def _false_break(stranger: Stranger) -> f.Frame:
    """News of a link that is gone, of a path that the victim does not use."""
    own = node_prefix(stranger.identity.node)
    return f.Relay(own + stranger.to, 1, own + stranger.chance.randbytes(4))


def _other_state(stranger: Stranger) -> f.Frame:
    """Return a digest that never agrees."""
    return f.LinkState(stranger.chance.randbytes(8))


def _flapping_state(stranger: Stranger) -> f.Frame:
    """The victim is its relay, and is not."""
    return f.LinkState(stranger.chance.randbytes(8), stranger.to if stranger.chance.random() < 0.5 else b"")


def _empty_heads(stranger: Stranger) -> f.Frame:
    """Return a list without any record: all are missing in it."""
    return f.LinkState(stranger.chance.randbytes(8), b"", bytes(8) + bytes([255] * 4 + [0] * 4))


def _long_heads(stranger: Stranger) -> f.Frame:
    """Hosts that do not exist, all of whose records the victim would want."""
    count = min(2_000, stranger.mtu_bytes // 9)
    heads = sorted({stranger.chance.randbytes(4) for _ in range(count)})
    return f.LinkState(stranger.chance.randbytes(8), b"", b"".join([each + b"\1\1\1\1" for each in heads]))


def _own_links(stranger: Stranger) -> f.Frame:
    """Other links of its own each time."""
    stranger.counter += 1
    plain = f.LinkRecord(
        signed.author(stranger.identity),
        1,
        stranger.counter,
        b"".join(sorted({stranger.to, stranger.chance.randbytes(4)})),
    )
    return signed.sign(stranger.identity, plain)


def _forged_links(stranger: Stranger) -> f.Frame:
    """Links of a key; everything but the signature is right."""
    return f.LinkRecord(stranger.chance.randbytes(32), 1, 1, stranger.to, b"", bytes(64))


def _old_links(stranger: Stranger) -> f.Frame:
    """Repeat link records that were sent before."""
    return signed.sign(stranger.identity, f.LinkRecord(signed.author(stranger.identity), 0, 0))


def _no_kind(stranger: Stranger) -> bytes:
    """Frames of a kind that there is not."""
    count = min(codec.FRAMES_MAX, stranger.mtu_bytes // 4)
    return codec.MAGIC + bytes((codec.VERSION, 0xDC)) + count.to_bytes(2, "big") + b"\x92\x7f\x00" * count


def _broken(stranger: Stranger) -> bytes:
    """Return an array of frames that breaks off at its end."""
    return _endless(_data)(stranger)[:-1] + b"\xc1"


ATTACKS: Final[dict[str, Callable[[Stranger], bytes]]] = {
    "Announce: replayed": _endless(_replayed),
    "Announce: hears, hears not": _endless(_flapping),
    "Announce: another profile each time": _endless(_changing),
    "Announce: long lists": _endless(_crowd),
    "Announce: not proven": _endless(_unproven),
    "Announce: asks for a proof each time": _endless(_asking),
    "Profile: new patterns": _profiles,
    "Profile: new selectors": _selectors,
    "Profile: single parts": _endless(_profile_part),
    "ProfileRequest": _endless(_profile_asked),
    "Digest: runs without end": _endless(_new_run),
    "Digest: runs without end, of nothing": _endless(short_run),
    "Digest: long listings": _endless(_listing),
    "Digest: of no profile": _endless(_no_run),
    "Offer: what nobody has": _endless(_new_offer),
    "Offer: other messages, same handles": _endless(_same_handle),
    "Offer: the same, never sent": _endless(_same_offer),
    "Request: unknown handles": _endless(_unknown_handles),
    "Request: unknown serials": _endless(_unknown_serials),
    "Request: unknown pieces": _endless(_unknown_pieces),
    "Request: the same again": _endless(_same_again),
    "Request: for another": _endless(_for_another),
    "DescriptorPart: unasked": _endless(_descriptor),
    "DescriptorPart: single parts": _endless(_descriptor_part),
    "HashList: unasked": _endless(_hash_list),
    "Data: unasked": _endless(_data),
    "Parcel: unasked": _endless(_parcel),
    "Parcel: unasked, forged": _endless(_forged_parcel),
    "Parcel: unasked, more than may be on its way": _endless(_endless_parcel),
    "Parcel: unasked, the same again": _endless(_repeated_parcel),
    "Parcel: recipients out of order": _endless(_listing_parcel),
    "Ack: of nothing": _endless(_ack),
    "Ack: of nothing, long": _endless(_long_ack),
    "Ack: of nothing in flight": _endless(_ack_around),
    "AckRecord: of nothing": _endless(_acked),
    "AckRecord: forged": _endless(_forged_acked),
    "AckRecord: that ended": _endless(_late_acked),
    "AckList: another one each time": _endless(_other_list),
    "AckList: other parts": _endless(_other_parts),
    "AckList: long": _endless(_long_list),
    "Tickets: of no offer": _endless(_tickets),
    "Encounters: another table each time": _endless(_encounters),
    "Listing: of unknown messages, another one each time": _endless(_short_hashes),
    "Held: of no list": _endless(_held),
    "Summary: of nothing, another one each time": _endless(_empty_summary),
    "Summary: of unknown messages": _endless(_long_summary),
    "Missing: of no list": _endless(_missing),
    "LinkState: another digest each time": _endless(_other_state),
    "LinkState: a relay, no relay": _endless(_flapping_state),
    "LinkState: a list of nothing": _endless(_empty_heads),
    "LinkState: hosts that do not exist": _endless(_long_heads),
    "LinkRecord: other links each time": _endless(_own_links),
    "LinkRecord: forged": _endless(_forged_links),
    "LinkRecord: old": _endless(_old_links),
    "Relay: from strangers": _endless(_relay_of_strangers),
    "Relay: to nowhere": _endless(_relay_nowhere),
    "Relay: of links that are not used": _endless(_false_break),
    "no frames: unknown kinds": _no_kind,
    "no frames: broken off": _broken,
}
"""By kind of frame: makes a datagram."""
