"""A process that floods a node with datagrams at a given rate: noise, damaged datagrams, meaningless frames.

``python -m tests.support.flood '{"unicast": 40001, "shared": 20123, "node": ..., "count": 300000, ...}'``; it says what
it did as one line of JSON. Everything goes to loopback, from one address and port or from many.
"""

from __future__ import annotations

import json
import random
import socket
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec

from carrypost.config import Limits
from carrypost.gossip.wire import codec
from carrypost.gossip.wire import frames as f
from carrypost.gossip.wire.pieces import HASH_BYTES, pack
from carrypost.model.descriptor import Descriptor
from carrypost.model.ids import MessageId, NodeId, node_prefix
from carrypost.model.pattern import encode_entries, entry, profile_digest
from carrypost.security.identity import Identity

GOLDEN = Path(__file__).parents[1] / "golden"
BURST = 64
"""Datagrams between two looks at the clock."""
PROFILES = [encode_entries([entry(pattern)]) for pattern in ("news", ".*", "(a+)+$", "nothing")]
DIGESTS = [profile_digest(each) for each in PROFILES]


class Orders(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """The datagrams to throw, and their targets."""

    unicast: int
    """The victim's own port."""
    shared: int
    """The port on which all nodes listen."""
    group: str = "239.255.67.80"
    node: str
    """The victim's id."""
    destination: str = "news"
    """Destination that the victim subscribes to."""
    count: int
    per_s: int = 0
    """Pace; 0: as fast as it goes."""
    sources: int = 1
    """Ports to send from, at addresses 127.0.0.1, 127.0.0.2 and so on."""
    pool: int = 20_000
    """Different datagrams; they come again in another order."""
    seed: int = 1
    s_max: float = 600.0


class Pool:
    """Makes datagrams."""

    def __init__(self, orders: Orders) -> None:
        self._orders = orders
        self._chance = random.Random(orders.seed)
        self._golden = [bytes.fromhex(file.read_text()) for file in sorted(GOLDEN.glob("*.hex"))]
        self._authors = [Identity.derived("flood", f"{orders.seed} {number}") for number in range(300)]
        self._messages = [self._message(number) for number in range(20)]

    def make(self) -> list[bytes]:
        """Return all datagrams: a third each of noise, of spoiled datagrams, and of sound frames."""
        kinds = (self._noise, self._spoiled, self._sound)
        return [kinds[number % 3]() for number in range(self._orders.pool)]

    def _noise(self) -> bytes:
        body = self._chance.randbytes(self._chance.choice((0, 1, 20, 200, 1_200)))
        head = codec.MAGIC + bytes((codec.VERSION,)) if self._chance.random() < 0.5 else b""
        return head + body

    def _spoiled(self) -> bytes:
        chance = self._chance
        body = bytearray(self._sound() if chance.random() < 0.5 else chance.choice(self._golden))
        for _ in range(chance.choice((1, 1, 2, 8))):
            at = chance.randrange(len(body))
            match chance.randrange(4):
                case 0:
                    body[at] ^= 1 << chance.randrange(8)
                case 1:
                    body[at] = chance.randrange(256)
                case 2:
                    del body[at:]
                case _:
                    body[at:at] = chance.randbytes(chance.randrange(1, 9))
            body = body or bytearray(1)
        return bytes(body)

    def _sound(self) -> bytes:
        return codec.datagrams([self._frame() for _ in range(self._chance.choice((1, 1, 2, 5)))], 60_000)[0]

    def _number(self) -> int:
        return self._chance.choice((0, 1, 2, 3, self._chance.randrange(5_000), 2**31, 2**53))

    def _prefix(self) -> bytes:
        return self._chance.choice((node_prefix(NodeId(self._orders.node)), b"\0\0\0\0"))

    def _frame(self) -> f.Frame:
        number, chance = self._number, self._chance
        makers = (
            self._announce, self._announce, self._profile, self._digest, self._offer, self._transfer, self._transfer,
            lambda: f.ProfileRequest(chance.choice(DIGESTS)),
            lambda: f.Request(self._prefix(), (number(),), (number(), number()), (f.PieceRequest(number(), b"\xff"),)),
            lambda: f.Ack(number(), chance.randbytes(chance.choice((0, 8, 1_000)))),
        )  # fmt: skip
        return chance.choice(makers)()

    def _announce(self) -> f.Frame:
        chance = self._chance
        node = NodeId(self._orders.node) if chance.random() < 0.05 else chance.choice(self._authors).node
        period_ms = chance.choice((1, 500, 5_000, 2**31))
        return f.Announce(node, self._number(), self._number(), period_ms, chance.choice(DIGESTS), (self._prefix(),))

    def _profile(self) -> f.Frame:
        which = self._chance.randrange(len(PROFILES))
        if self._chance.random() < 0.5:
            return f.Profile(DIGESTS[which], 0, 1, PROFILES[which])
        return f.Profile(self._chance.randbytes(8), self._chance.randrange(3), 3, self._chance.randbytes(50))

    def _digest(self) -> f.Frame:
        chance = self._chance
        wide = f.Bucket(0, 0, tuple(chance.getrandbits(64) for _ in range(64)))
        listed = f.Bucket(0, 0, (), tuple(chance.getrandbits(64) for _ in range(chance.randrange(20))))
        return f.Digest(
            chance.choice(DIGESTS), chance.randrange(4), (chance.choice((wide, listed)),), (chance.getrandbits(64),),
            self._number(), self._number(),
        )  # fmt: skip

    def _offer(self) -> f.Frame:
        chance = self._chance
        entries = []
        for _ in range(chance.choice((1, 1, 10))):
            real, _, _ = chance.choice(self._messages)
            invented = MessageId(chance.randbytes(16)), chance.choice((0, 1, 500, 100_000, 2**40))
            message, length = (real.id, real.length) if chance.random() < 0.5 else invented
            entries.append(f.OfferEntry(message, chance.randrange(20), length, chance.randrange(256)))
        return f.Offer(self._number(), tuple(entries))

    def _transfer(self) -> f.Frame:
        """Return a part of a message, under some handle."""
        chance, number = self._chance, self._number
        descriptor, pieces, hashes = chance.choice(self._messages)
        handle = chance.randrange(20)
        match chance.randrange(5):
            case 0:
                return f.DescriptorPart(handle, number(), number(), number(), 0, 1, descriptor.wire)
            case 1:
                return f.DescriptorPart(handle, number(), 0, 0, chance.randrange(3), 3, chance.randbytes(100))
            case 2:
                return f.HashList(handle, number(), chance.randrange(3), hashes or bytes(HASH_BYTES))
            case 3:
                body = pieces[0] if chance.random() < 0.7 else chance.randbytes(20)
                return f.Parcel(handle, number(), number(), number(), chance.random() < 0.5, descriptor.wire, body)
            case _:
                index = chance.randrange(16)
                body = pieces[0][index * 1_024 :][:1_024]
                return f.Data(handle, number(), index, chance.random() < 0.5, body)

    def _message(self, number: int) -> tuple[Descriptor, Sequence[bytes], bytes]:
        chance = self._chance
        identity, now = chance.choice(self._authors), time.time_ns() // 1_000
        payload = chance.randbytes(chance.choice((10, 1_000, 40_000)))
        packed = pack(payload, signed=True, compress=False, limits=Limits())
        made = Descriptor(
            author=identity.author, incarnation=1, sequence=number + 1, created_us=now, deadline_us=now + 3_600_000_000,
            destination=self._orders.destination, size=packed.size, length=packed.length, codec=packed.codec,
            root=packed.root, fragment_bytes=1_024,
        )  # fmt: skip
        descriptor = identity.sign(made)
        if chance.random() < 0.3:
            descriptor = descriptor.with_signature(bytes(len(descriptor.signature)))
        return descriptor, packed.pieces, packed.hashes


def sources(count: int) -> list[socket.socket]:
    """Return sockets at this many ports, at most 64 of them at one address."""
    found = []
    for number in range(count):
        made = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        made.bind((f"127.0.0.{1 + number // 64}", 0))
        made.setsockopt(socket.SOL_SOCKET, socket.SO_BROADCAST, 1)
        made.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, socket.inet_aton("127.0.0.1"))
        made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 0)  # What the victim answers is of no interest.
        made.setblocking(False)
        found.append(made)
    return found


def flood(orders: Orders) -> dict[str, float]:
    """Throw them, and say how many and how fast."""
    chance = random.Random(orders.seed)
    pool, senders = Pool(orders).make(), sources(orders.sources)
    own, everybody = ("127.0.0.1", orders.unicast), (orders.group, orders.shared)
    targets = (own, own, everybody, ("127.255.255.255", orders.shared))
    offered = failed = 0
    began_s = time.monotonic()
    while offered < orders.count and (took_s := time.monotonic() - began_s) < orders.s_max:
        if orders.per_s and offered > took_s * orders.per_s:
            time.sleep(BURST / orders.per_s)
            continue
        start, step = chance.randrange(len(pool)), chance.randrange(1, 50)
        for number in range(BURST):
            datagram = pool[(start + number * step) % len(pool)]
            try:
                senders[chance.randrange(len(senders))].sendto(datagram, targets[number & 3])
            except OSError:
                failed += 1
        offered += BURST
    took_s = time.monotonic() - began_s
    for each in senders:
        each.close()
    return {"offered": offered, "failed": failed, "took_s": round(took_s, 3), "per_s": round(offered / took_s)}


if __name__ == "__main__":
    print(json.dumps(flood(msgspec.json.decode(sys.argv[1], type=Orders))), flush=True)  # noqa: T201 - its answer
