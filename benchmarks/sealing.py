"""Sealed messages beside plain, signed ones: CPU time and bytes on the air; every goal is a ratio within one run.

Two hosts without sockets and disks, as in `core`. *Publish* is the time of the author, *read* that of the reader, from
the first frame to the body. For CPU time the least of several rounds counts, because other load only adds; the kinds
are measured in turn.

Run: carrypost bench sealing [--quick] [--json] [--strict] [--messages 300] [--repeats 5] [--only NAME ...]
"""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from benchmarks._pair import Pair, Side
from benchmarks._processes import Row
from benchmarks._rounds import Rounds, Tables, at_most, judge
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

from carrypost.config import Limits, Settings
from carrypost.config.settings import PACKET_BYTES
from carrypost.gossip.wire import codec
from carrypost.gossip.wire.codec import assemble_payload
from carrypost.gossip.wire.frames import Frame, Parcel
from carrypost.log.events import Event, Handed
from carrypost.log.journal import StoredMessage
from carrypost.messaging import commands as do
from carrypost.messaging.commands import Declare, Receive, Subscribe
from carrypost.model import address
from carrypost.model.pattern import entry
from carrypost.security import circle as values
from carrypost.security import hpke, sealing
from carrypost.security.identity import Domain, Identity, derived, from_system, verify_bytes
from carrypost.security.packets import PacketKeys, Packets, packet_key

KB: Final = 1_000
MIB: Final = 1 << 20
PUBLISH_GOALS: Final = {"circle": 1.15, "letter": 1.6, "own queue": 1.1}
FAR_GOAL: Final = 1.8
LARGE_GOAL: Final = 1.4
CARRY_GOAL: Final = 1.02
PACKET_GOAL: Final = 1.06
AIR_GOALS: Final = {"circle": 1.25, "letter": 1.3, "protected": 1.05}
MEMBERS: Final = 100
_CREDIT: Final = 1_000_000
_LIMITS: Final = Limits()


class Reader(Side):
    """A side whose program reads what it is handed; `delivered` counts that alone."""

    floor: Callable[[], object] | None = None
    """Function that is called for each message, beside reading it."""

    def _take(self, event: Event, now: int) -> None:
        if isinstance(event, Handed):
            assemble_payload(event.descriptor, self._piece, _LIMITS)
            if self.floor is not None:
                self.floor()
            self.delivered += 1
        else:
            before = self.delivered
            super()._take(event, now)
            self.delivered = before


class Costs(NamedTuple):
    """CPU microseconds per message, and bytes on the air for all."""

    publish_us: float
    read_us: float
    nbytes: int


class Bench(Rounds):
    """Plain and sealed messages."""

    def _pair(self) -> Pair:
        pair = Pair(Settings(altruistic=True, island=False, announce_s_min=1.0, compress=False), side=Reader)
        for side in (pair.a, pair.b):
            side.host.messaging.open(0)
            side.drain(0)
        return pair

    def _measured(self, kind: str, nbytes: int, count: int) -> Costs:
        """Publish on one host, and read on the other: `topic`, `circle`, `queue`, `letter`, `own`, `own letter`.

        `far` and `far letter` are for a queue of the author, whose messages are assigned to the other host. `topic
        floor` and `own floor` are plain messages; before each is sent, and when it is read, the cryptography of a
        sealed one is done, for nothing.
        """
        payload, sealed = random.Random(1).randbytes(nbytes), True if kind.endswith("letter") else None
        floor, reading = _cryptography(payload, own=kind.startswith("own")) if kind.endswith("floor") else (None, None)
        pair = self._pair()
        assert isinstance(pair.b, Reader)
        pair.b.floor = reading
        a, b = pair.a.host, pair.b.host
        pair.meet(3)
        number = iter(range(1, 100))
        wanted: Subscribe | Receive
        if kind == "circle":
            a.circles.found("team", pair.now)
            b.circles.join(a.circles.invite("team", pair.now), pair.now)
            to, wanted = "circle/team/x", Subscribe(entry(address.topic_pattern("x", "circle/team/")))
        elif kind.startswith("topic"):
            to, wanted = "topic/x", Subscribe(entry("topic/x"))
        else:
            owner = a if kind.startswith(("own", "far")) else b
            to = owner.messaging.execute(do.DeclareQueue(Declare("x")), pair.now, next(number))
            wanted = Receive(to)
        pair.meet(5)
        if not kind.startswith("own"):
            connection = b.messaging.execute(do.Connect(""), pair.now)
            session = b.messaging.execute(do.OpenSession(connection), pair.now)
            consumer = b.messaging.execute(do.Consume(session, wanted), pair.now, next(number))
            b.messaging.execute(do.Credit(consumer, _CREDIT, 1 << 40), pair.now)
            pair.meet(3)
        sealed = False if kind in ("queue", "own", "far", "own floor") else sealed
        began_s = time.process_time()
        for _ in range(count):
            if floor is not None:
                floor()
            a.publish(to, payload, now=pair.now, sealed=sealed)
        publish_us = (time.process_time() - began_s) * 1e6 / count
        if kind.startswith("own"):
            return Costs(publish_us, 0.0, 0)
        until, before_s = pair.b.delivered + count, time.process_time()
        pair.run(until)
        return Costs(publish_us, (time.process_time() - before_s) * 1e6 / count, 0)

    def _least(self, kinds: Sequence[str], nbytes: int, count: int) -> dict[str, Costs]:
        found: dict[str, list[Costs]] = {kind: [] for kind in kinds}
        for _ in range(self.repeats):
            for kind, costs in found.items():
                costs.append(self._measured(kind, nbytes, count))
        return {
            kind: Costs(min(each.publish_us for each in costs), min(each.read_us for each in costs), 0)
            for kind, costs in found.items()
        }

    def small(self) -> list[Row]:
        """Messages of 1 kB."""
        kinds = (
            "topic", "topic floor", "circle", "queue", "letter", "own", "own floor", "own letter", "far", "far letter",
        )  # fmt: skip
        costs = self._least(kinds, KB, self.messages)
        return [
            _row("circle, publish", costs["circle"].publish_us, costs["topic"].publish_us, PUBLISH_GOALS["circle"]),
            _row(
                "circle, publish: its cryptography alone", costs["topic floor"].publish_us, costs["topic"].publish_us,
                PUBLISH_GOALS["circle"],
            ),
            _row("circle, transfer and read", costs["circle"].read_us, costs["topic"].read_us, PUBLISH_GOALS["circle"]),
            _row(
                "circle, transfer and read: its cryptography alone", costs["topic floor"].read_us,
                costs["topic"].read_us, PUBLISH_GOALS["circle"],
            ),
            _row("letter, publish", costs["letter"].publish_us, costs["queue"].publish_us, PUBLISH_GOALS["letter"]),
            _row("letter, transfer and read", costs["letter"].read_us, costs["queue"].read_us, PUBLISH_GOALS["letter"]),
            _row(
                "letter to an own queue", costs["own letter"].publish_us, costs["own"].publish_us,
                PUBLISH_GOALS["own queue"],
            ),
            _row(
                "letter to an own queue: its cryptography alone", costs["own floor"].publish_us,
                costs["own"].publish_us, PUBLISH_GOALS["own queue"],
            ),
            _row("letter, receivers elsewhere", sum(costs["far letter"][:2]), sum(costs["far"][:2]), FAR_GOAL),
        ]  # fmt: skip

    def large(self) -> list[Row]:
        """Messages of 1 MiB."""
        costs = self._least(("topic", "circle"), MIB, max(2, self.messages // 100))
        sealed, plain = costs["circle"], costs["topic"]
        return [_row("circle, 1 MiB", sum(sealed[:2]), sum(plain[:2]), LARGE_GOAL)]

    def air(self) -> list[Row]:
        """Bytes of descriptor and payload of one message of 1 kB, and of its datagram."""
        rows: list[Row] = []
        for kind, plain in (("circle", "topic"), ("letter", "queue")):
            sizes = [self._size(each) for each in (kind, plain)]
            times = at_most(sizes[0] / sizes[1], AIR_GOALS[kind])
            rows.append({"what": kind, "sealed B": sizes[0], "plain B": sizes[1], **times})
        datagram = len(codec.datagrams(_frames(), 1_400)[0])
        times = at_most((datagram + PACKET_BYTES) / datagram, AIR_GOALS["protected"])
        return [*rows, {"what": "protected", "sealed B": datagram + PACKET_BYTES, "plain B": datagram, **times}]

    def _size(self, kind: str) -> int:
        pair = self._pair()
        a, b = pair.a.host, pair.b.host
        pair.meet(3)
        to = "topic/x"
        if kind == "circle":
            a.circles.found("team", pair.now)
            to = "circle/team/x"
        elif kind != "topic":
            to = b.messaging.execute(do.DeclareQueue(Declare("x")), pair.now, 1)
        pair.meet(3)
        message = a.publish(to, random.Random(1).randbytes(KB), now=pair.now, sealed=False if kind == "queue" else None)
        pair.a.drain(pair.now)
        (found,) = [
            each.descriptor for each in pair.a.store.values()
            if isinstance(each, StoredMessage) and each.descriptor.id == message
        ]  # fmt: skip
        return found.wire_bytes + found.length

    def carry(self) -> list[Row]:
        """A sealed message at a node that carries it, beside a plain one of its size."""
        costs: dict[str, list[float]] = {"circle": [], "topic": []}
        wire = self._size("circle") - self._size("topic") + KB
        for _ in range(self.repeats):
            for kind, found in costs.items():
                found.append(self._carried(kind, KB if kind == "circle" else wire))
        return [_row("carry a circle's message", min(costs["circle"]), min(costs["topic"]), CARRY_GOAL)]

    def _carried(self, kind: str, nbytes: int) -> float:
        """Return the time of taking a message over, at a node that is no member."""
        pair = self._pair()
        pair.meet(3)
        a, b = pair.a.host, pair.b.host
        if kind == "circle":
            a.circles.found("team", pair.now)
        pair.meet(5)
        payload = random.Random(1).randbytes(nbytes)
        for _ in range(self.messages):
            a.publish("circle/team/x" if kind == "circle" else "topic/x", payload, now=pair.now)
        until, began_s = b.copies + self.messages, time.process_time()
        while b.copies < until:
            pair.meet(0.05)
        return (time.process_time() - began_s) * 1e6 / self.messages

    def packets(self) -> list[Row]:
        """Protected datagrams, of a member and of a stranger."""
        limits, keys = Settings().limits, PacketKeys(packet_key(b"k" * 32))
        one, other, stranger = (Packets(each, derived(1, str(each), 1)) for each in (b"aaaa", b"bbbb", b"cccc"))
        for each in (one, other):
            each.rekey(keys)
        stranger.rekey(PacketKeys(packet_key(b"s" * 32)))
        pair = self._pair()
        pair.meet(3)
        frames = _frames()
        (plain,) = codec.datagrams(frames, 1_400)
        strange = stranger.seal([plain])[0]
        undecodable = b"CP\x09" + strange[3:]
        host = pair.b.host

        def refused(datagram: bytes) -> None:
            if host.listens("x", pair.now):
                host.refused(codec.decode(datagram, limits).refused, "x", pair.now, nbytes=0)

        protect_us = _least_us(lambda: other.open(one.seal([plain])[0]), 2_000)
        message_us = self._least(("topic",), KB, self.messages)["topic"].read_us
        cipher, head, body = ChaCha20Poly1305(keys.present.secret), bytes(23), plain[3:]

        def ciphers() -> None:
            cipher.decrypt(bytes(12), cipher.encrypt(bytes(12), body, head), head)

        bare_us = message_us + _least_us(lambda: codec.decode(codec.datagrams(frames, 1_400)[0], limits), 500)
        return [
            _row("protected, transfer and read", bare_us + protect_us, bare_us, PACKET_GOAL),
            _row(
                "protected, transfer and read: its cryptography alone", bare_us + _least_us(ciphers, 2_000), bare_us,
                PACKET_GOAL,
            ),
            _row(
                "a stranger's datagram, beside an undecodable one", _least_us(lambda: other.open(strange), 2_000),
                _least_us(lambda: refused(undecodable), 2_000), 1.0,
            ),
        ]  # fmt: skip

    def charter(self) -> list[Row]:
        """A charter for 100 members."""
        root = Identity.from_seed(bytes(32))
        author = root.author
        assert isinstance(author, bytes)
        privates = [at.to_bytes(32, "big") for at in range(1, MEMBERS + 1)]
        keys = {Identity.from_seed(each).node: hpke.public_of(each) for each in privates}
        epoch, entropy = values.Epoch(1, bytes(32)), derived(1, "bench", 1)
        wrap_us = _least_us(lambda: hpke.wrap(hpke.public_of(privates[0]), bytes(32), b"", bytes([1]) * 32), 50)

        def make() -> values.SignedCharter:
            return values.sign(root, values.charter_of(author, epoch, keys, (), entropy))

        encoded, reader = make().encoded, {sealing.key_id(hpke.public_of(privates[50])): privates[50]}

        def apply() -> None:
            values.epoch_of(values.read_charter(encoded, root.node), reader)

        charter = values.read_charter(encoded, root.node)
        (stanza,) = [each.stanza for each in charter.charter.members if each.stanza[: sealing.KEY_ID_BYTES] in reader]
        signature, said = encoded[32:96], encoded[96:]

        def cryptography() -> None:
            verify_bytes(author, Domain.CHARTER, said, signature)
            sealing.unwrap(reader, stanza, b"carrypost charter 1\0" + author + (1).to_bytes(4, "big"))

        return [
            _row("make, in wraps", _least_us(make, 1), wrap_us, 110.0),
            _row("apply, in wraps", _least_us(apply, 20), wrap_us, 2.0),
            _row("apply, in wraps: its cryptography alone", _least_us(cryptography, 20), wrap_us, 2.0),
        ]


def _frames() -> list[Frame]:
    """Return the frames of a datagram with one message of 1 kB."""
    carried = random.Random(1).randbytes(KB)
    return [Parcel(1, 1, 0, 0, True, carried[:150], carried)]


def _cryptography(payload: bytes, *, own: bool) -> tuple[Callable[[], object], Callable[[], object]]:
    """Return what no implementation of the format can leave out when it seals, and opens, a message of this payload."""
    secret, author, fields = bytes(32), bytes(32), bytes(40)
    destination = "queue/x" if own else address.sealed_topic(Identity.from_seed(bytes(32)).node, "abcdefgh")
    padded = payload.ljust(sealing.padded_length(len(payload)), b"\0")

    salt = bytes(sealing.SALT_BYTES)
    cipher = ChaCha20Poly1305(sealing.content(secret, salt, author, destination)[0])
    sealed = cipher.encrypt(bytes(12), padded, None), cipher.encrypt(bytes([1, *bytes(11)]), fields, None)

    def seal() -> tuple[bytes, bytes]:
        salt = from_system(sealing.SALT_BYTES)
        key, _ = sealing.content(sealing.own_secret(secret, salt) if own else secret, salt, author, destination)
        cipher = ChaCha20Poly1305(key)
        return cipher.encrypt(bytes(12), padded, None), cipher.encrypt(bytes([1, *bytes(11)]), fields, None)

    def unseal() -> tuple[bytes, bytes]:
        key, _ = sealing.content(secret, salt, author, destination)
        cipher = ChaCha20Poly1305(key)
        return cipher.decrypt(bytes(12), sealed[0], None), cipher.decrypt(bytes([1, *bytes(11)]), sealed[1], None)

    return seal, unseal


def _least_us(call: Callable[[], object], times: int) -> float:
    rounds: list[float] = []
    for _ in range(20):  # Other programs take the processor, or its clock, for whole rounds.
        began_s = time.process_time()
        for _ in range(times):
            call()
        rounds.append((time.process_time() - began_s) * 1e6 / times)
    return min(rounds)


def _row(what: str, sealed_us: float, plain_us: float, goal: float) -> Row:
    return {"what": what, "sealed µs": sealed_us, "plain µs": plain_us, **at_most(sealed_us / plain_us, goal)}


TABLES: Tables[Bench] = {
    "small": ("messages of 1 kB", Bench.small),
    "large": ("messages of 1 MiB", Bench.large),
    "air": ("bytes on the air", Bench.air),
    "carry": ("carriers", Bench.carry),
    "packets": ("protected datagrams", Bench.packets),
    "charter": ("a charter for 100 members", Bench.charter),
}


def main(argv: Sequence[str]) -> int:
    """Measure and print; exit code 1 if a goal is missed with --strict."""
    return judge(Bench, TABLES, ("sealing", __doc__ or ""), argv, few=30, many=300)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
