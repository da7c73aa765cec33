"""A network in which everything goes wrong at once, with limits drawn from their smallest values up.

Three hosts run programs on topics and queues, with drafts, units of work, names and orders. They meet, part, crash and
run out of disk. Strangers replay datagrams, damage them byte by byte or field by field, and publish messages in the
name of other nodes: to queues, as control messages, to the directory, with forged barriers. Everything is drawn from
one seed. Programs may get errors for their calls; any other exception is raised by `play`.
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import TypeVar

import msgspec
from tests.support.hostile import Attacker, Message

from carrypost import testing
from carrypost.config import UNBOUNDED, Limits
from carrypost.errors import JMSException, LocalError
from carrypost.gossip.draft import Draft
from carrypost.gossip.wire import codec
from carrypost.gossip.wire import frames as f
from carrypost.gossip.wire.pieces import Blank, pack
from carrypost.host import Host
from carrypost.log.events import Event, Handed, Published
from carrypost.messaging import control
from carrypost.messaging.commands import (
    Ack,
    BindName,
    Browse,
    CloseConsumer,
    Connect,
    Consume,
    Credit,
    Declare,
    DeclareQueue,
    Disconnect,
    EndQueue,
    OpenSession,
    Receive,
    Recover,
    Redelivery,
    Release,
    Rollback,
    Subscribe,
    UnitOfWork,
    Unsubscribe,
)
from carrypost.messaging.control import INCARNATION_BITS
from carrypost.messaging.namespace import Bind
from carrypost.model import address
from carrypost.model.descriptor import Descriptor, Ordering, Predecessor, predecessor, tag_of
from carrypost.model.headers import Headers
from carrypost.model.ids import MessageId, NodeId
from carrypost.model.pattern import Entry, entry
from carrypost.security.identity import Identity

T = TypeVar("T")
NODES = "abc"
S = 1_000_000
BUDGETS = {"link_waste_per_s", "waste_per_s"}
"""Budgets that are unbounded unless they are drawn: no peer is muted, so that each other bound shows."""
MUFFLING = {
    "destination_bytes_max", "pattern_bytes_max", "message_bytes_max", "profile_bytes_max", "profile_entries_max",
    "frames_max", "neighbours_max", "heard_max", "attributes_max",
    "descriptor_bytes_max", "profiles_max", *BUDGETS,
}  # fmt: skip
"""With these at their smallest hardly anything goes on: they are drawn in some runs only."""
POOL_MAX = 300


def drawn_limits(chance: random.Random) -> dict[str, float]:
    """Draw limits of which a few, many or all are at their smallest, or little above."""
    fields = dataclasses.fields(Limits)
    count = chance.choice([3, 6, 12, 24, 24, len(fields)])
    muffled = count == len(fields) or chance.random() < 0.2
    candidates = [each for each in fields if muffled or each.name not in MUFFLING]
    tight = chance.sample(candidates, min(count, len(candidates)))
    found: dict[str, float] = {}
    for each in fields:
        low, default = each.metadata["rule"].kind.__metadata__[0].ge, each.default
        if each in tight and (count == len(fields) or chance.random() < 0.7):
            found[each.name] = low
        elif each in tight and isinstance(default, int):
            found[each.name] = min(default, int(low) + chance.randrange(1, 12))
        elif each.name in BUDGETS:
            found[each.name] = UNBOUNDED
    largest = max(found.get(name, getattr(Limits(), name)) for name in ("descriptor_bytes_max", "profile_bytes_max"))
    found["descriptor_buffer_bytes_max"] = max(found.get("descriptor_buffer_bytes_max", 1024), largest)
    return found


class Scrambled:
    """One such network."""

    def __init__(self, seed: int, *, limits: Mapping[str, float] | None = None) -> None:
        self.chance = chance = random.Random(seed)
        limits = limits or drawn_limits(chance)
        self.signed = chance.random() < 0.3
        lifetime_s = chance.choice([None, 600.0])
        self.net = testing.network(
            *NODES, seed=seed, confirm=chance.random() < 0.7, disk_delay_s=chance.choice([0.0, 0.0, 0.2]),
            encoded=chance.random() < 0.2, limits=limits, security="signed" if self.signed else "off",
            lifetime_s_default=lifetime_s, lifetime_s_max=lifetime_s,
            mtu_bytes=min(1_200, int(limits.get("datagram_bytes_max", 1_200))),
            altruistic=chance.random() < 0.5, horizon_hops=chance.choice([1, 3]), paper_mode=chance.random() < 0.1,
            cache_messages_max=chance.choice([1, 3, 20, 200, 1_000]),
            cache_bytes_max=chance.choice([300, 100_000, 10_000_000, 10_000_000]), shares=chance.random() < 0.7,
            announce_s_min=0.5, announce_s_max=2.0,
            messaging={"draft_bytes_max": chance.choice([1024, 100_000]), "prefetch": 1, "advert_s": 60.0},
        )  # fmt: skip
        self.sequence = 0
        self.number = 0
        self.messages: list[MessageId] = [MessageId(b"nothing")]
        self.descriptors: list[Descriptor] = []
        self.said: list[control.Item] = []
        """Items that nodes sent each other."""
        self.sent: list[tuple[str, tuple[f.Frame, ...]]] = []
        self.handed: list[tuple[str, int]] = []
        self.consumers: list[tuple[str, Host, int, int, int]] = []
        """Node, host, connection, session, consumer."""
        self.drafts: list[tuple[str, Host, int]] = []
        self.subscriptions: list[tuple[str, int]] = []
        self.down: set[str] = set()

    def play(self, steps: int) -> None:
        """Perform this many random steps, one after the other."""
        chance = self.chance
        with self.net as net:
            radio = net._radio  # noqa: SLF001 - to overhear what is sent
            send = radio.send

            def overhear(sender: str, frames: Sequence[f.Frame], to: str | None, mtu_bytes: int) -> None:
                self.sent.append((sender, tuple(frames)))
                del self.sent[: max(0, len(self.sent) - POOL_MAX)]
                send(sender, frames, to, mtu_bytes)

            radio.send = overhear  # type: ignore[method-assign]
            net.watch(self._watch)
            with suppress(LocalError):  # Its own patterns may not fit.
                net.open_messaging()
            self.ids = [net.host(name).node for name in NODES]
            self.strangers = [Attacker(net, name) for name in ("mallory", "trudy")]
            actions = [action for action, weight in ACTIONS for _ in range(weight)]
            for one, other in ("ab", "bc", "ac"):
                net.link(one, other)
            net.advance(5)
            for action in (Scrambled.declare, Scrambled.consume, Scrambled.subscribe, Scrambled.publish) * 4:
                action(self)
            for _ in range(steps):
                chance.choice(actions)(self)
                net.advance(chance.choice([0.0, 0.01, 0.3, 1.0, 3.0]))
            net.advance(chance.choice([5.0, 70.0]))

    def _watch(self, _: float, node: str, event: Event) -> None:
        if isinstance(event, Published):
            self.messages.append(event.descriptor.id)
            self.descriptors.append(event.descriptor)
            if address.is_control_of_node(event.descriptor.destination):
                self.said += control.items_of(event.descriptor)[0]
        elif isinstance(event, Handed):
            self.handed.append((node, event.number))

    # --- drawing ---------------------------------------------------------------------------------------------

    def node(self) -> str:
        return self.chance.choice([name for name in NODES if name not in self.down])

    def node_id(self) -> NodeId:
        return self.chance.choice(self.ids)

    def now(self) -> int:
        return round(self.net.now * S)

    def destination(self) -> str:
        pick = self.chance.choice
        node = self.node_id()
        return pick([
            "x", "news", *["topic/news"] * 4, "topic/t", "topic/t", *[address.queue("q", node)] * 6,
            address.queue("DLQ.q", node), address.control(node), address.EVERYBODY, address.directory(node, "name"),
            f"queue/{node}/", "directory/", "control/",
        ])  # fmt: skip

    def message(self) -> MessageId:
        pick = self.chance
        return pick.choice(self.messages[-20:]) if pick.random() < 0.9 else MessageId(pick.randbytes(16))

    def items(self) -> list[control.Item]:
        return [self._item() for _ in range(self.chance.randrange(1, 6))]

    def _item(self) -> control.Item:
        if self.said and self.chance.random() < 0.5:
            return self._altered(self.chance.choice(self.said[-20:]))
        pick = self.chance.choice
        count = pick([0, 1, 2, 5, 1_000])
        request = pick(
            [0, 1, 2, 3, 1 << INCARNATION_BITS | 1, 1 << INCARNATION_BITS | 2, 2 << INCARNATION_BITS | 1, 2**53 - 1]
        )
        queue = pick(["q", "q", "DLQ.q", "none", "a/b", "all"])
        t_us = pick([0, 1, self.now(), self.now() + S, self.now() + 1_000 * S, 2**53 - 1])
        makers: list[Callable[[], control.Item]] = [
            lambda: control.Ask(queue, request, count, t_us, pick(["", "n > 1", "no selector ((", "x" * 2_000])),
            lambda: control.Withdraw(queue, request),
            lambda: control.Assign(queue, self.message(), request, count, t_us, until_us=self.now() + 50 * S),
            lambda: control.Assign(queue, self.message(), request, pick([1, 2, 3]), again=True),
            lambda: control.Acknowledge(self.message(), pick([1, 2, 3])),
            lambda: control.Release(self.message(), pick([1, 2, 3]), count, dead=pick([True, False])),
            lambda: control.Outcome(self.message(), pick([0, 1, 2, 3]), "because"),
            lambda: control.Purge(self.message()),
            lambda: control.Browse(queue, request, pick(["", "n > 1", "((", "x" * 2_000])),
            lambda: control.Place(
                queue, request, t_us, count, pick(["fair", "none"]), pick([None, (), (NodeId("a"),)])
            ),
            lambda: control.Placed(request, pick([True, False]), "because"),
            lambda: control.Discover(request, t_us),
            lambda: control.Found(request, count, count + 1, (("x", pick(["topic/x", "queue/a/x"]), Ordering.NONE),)),
            lambda: control.Snapshot(queue, request, t_us, count, count + 3, (self.message(), self.message())),
        ]
        return pick(makers)()

    def _altered(self, item: control.Item) -> control.Item:
        """Return a copy of a sent item, unchanged or with another number."""
        numbers = [name for name in item.__struct_fields__ if type(getattr(item, name)) is int]
        if not numbers or self.chance.random() < 0.4:
            return item
        name = self.chance.choice(numbers)
        value = self.chance.choice([0, 1, getattr(item, name) + 1, max(0, getattr(item, name) - 1)])
        return msgspec.structs.replace(item, **{name: value})

    def headers(self, destination: str) -> Headers | None:
        chance = self.chance
        if destination.startswith("control/"):
            said = msgspec.msgpack.encode(self.items())
            if chance.random() < 0.3:
                said = spoilt(chance, said)
            return Headers(control=said)
        if destination.startswith("directory/"):
            advert = msgspec.msgpack.encode([chance.choice(["topic/news", address.queue("q", self.node_id())])])
            return Headers(control=spoilt(chance, advert) if chance.random() < 0.3 else advert)
        if chance.random() < 0.3:
            return Headers(delivery_time_us=self.now() + chance.choice([0, S, 100 * S]))
        return None

    def payload(self) -> bytes | Blank:
        size = self.chance.choice([0, 0, 1, 1, 30, 600, 3_000, 40_000])
        return bytes(size) if self.signed or self.chance.random() < 0.7 else Blank(size)

    def draft(self) -> Draft:
        chance, destination = self.chance, self.destination()
        return Draft(
            destination, b"" if destination.startswith(("control/", "directory/")) else self.payload(),
            {"n": chance.randrange(4)} if chance.random() < 0.3 else {},
            chance.choice([None, S, 30 * S, 10_000 * S]), persistent=chance.random() < 0.4,
            priority=chance.randrange(10), ordering=chance.choice([Ordering.NONE, Ordering.NONE, *Ordering]),
            headers=self.headers(destination), receipt=chance.random() < 0.3,
        )  # fmt: skip

    def next(self) -> int:
        self.number += 1
        return self.number

    def command(self, node: str, call: Callable[[Host, int], T]) -> T | None:
        """Ask a host for something that it may refuse; what follows from it must not raise."""
        try:
            found = call(self.net.host(node), self.now())
        except (LocalError, JMSException):
            found = None
        self.net._driver(node).drain()  # noqa: SLF001 - as whoever calls a host directly has to
        return found

    # --- programs --------------------------------------------------------------------------------------------

    def publish(self) -> None:
        draft = self.draft()
        self.command(self.node(), lambda host, now: host.perform(UnitOfWork(self.next(), (draft,)), now))

    def subscribe(self) -> None:
        node, chance = self.node(), self.chance
        pattern = chance.choice(["news", ".*", "topic/.*", "x", "[a-z]*s", "queue/.*", "(a|b)+"])
        selector = chance.choice([None, None, "n > 1", "n IN ('1', '2') OR JMSPriority > 3"])
        number = self.command(node, lambda host, now: host.subscribe(pattern, selector, now=now))
        if number is not None:
            self.subscriptions.append((node, number))

    def unsubscribe(self) -> None:
        if self.subscriptions:
            node, number = self.subscriptions.pop(self.chance.randrange(len(self.subscriptions)))
            if node not in self.down:
                self.command(node, lambda host, now: host.unsubscribe(number, now))

    def declare(self) -> None:
        again = self.chance.choice(list(Redelivery))
        asked = Declare("q", again, 5 * S if again is Redelivery.AFTER_LEASE else 0)
        self.command(self.node(), lambda host, now: host.messaging.execute(DeclareQueue(asked), now, self.next()))

    def consume(self) -> None:
        node, chance = self.node(), self.chance
        choices: list[Subscribe | Receive] = [
            Receive(address.queue("q", self.node_id())), Receive(address.queue("q", self.node_id()), "n > 1"),
            Subscribe(entry("topic/news")), Subscribe(entry("topic/t"), Ordering.CAUSAL),
            Subscribe(entry("topic/news", "n > 1"), name="d", durable=True, shared=True),
        ]  # fmt: skip
        asked = chance.choice(choices)
        host = self.net.host(node)

        def open_(host: Host, now: int) -> tuple[int, int, int]:
            connection = host.messaging.execute(Connect(), now)
            session = host.messaging.execute(OpenSession(connection), now)
            return connection, session, host.messaging.execute(Consume(session, asked), now, self.next())

        found = self.command(node, open_)
        if found is not None:
            self.consumers.append((node, host, *found))
            self.command(
                node, lambda host, now: host.messaging.execute(Credit(found[2], chance.choice([1, 3, 100]), 10**9), now)
            )

    def act(self) -> None:
        """Let a session do something."""
        alive = [each for each in self.consumers if each[0] not in self.down and self.net.host(each[0]) is each[1]]
        if not alive:
            return
        node, host, connection, session, consumer = self.chance.choice(alive)
        chance, mine = self.chance, [number for at, number in self.handed if at == node][-3:]
        numbers = tuple(chance.sample(mine, chance.randrange(len(mine) + 1)))
        sends: list[Draft | int] = [self.draft() for _ in range(chance.randrange(4))]
        sends += [number for _, at, number in self.drafts if at is host and chance.random() < 0.3]
        messaging = host.messaging
        through = max(mine, default=0)

        def work(ack: Ack) -> Callable[[Host, int], object]:
            return lambda host, now: host.perform(UnitOfWork(self.next(), tuple(sends), (ack,)), now)

        drafted = self.draft()
        call = chance.choice([
            work(Ack(session, numbers)), work(Ack(session, numbers)), work(Ack(session, through=through)),
            lambda host, now: self.drafts.append((node, host, host.draft(session, drafted, now)[0])),
            lambda host, now: host.perform(UnitOfWork(self.next(), tuple(sends)), now),
            lambda _, now: messaging.execute(Recover(session, numbers), now),
            lambda _, now: messaging.execute(Rollback(session), now),
            lambda _, now: messaging.execute(Release(session, numbers, dead=chance.random() < 0.5), now, self.next()),
            lambda _, now: messaging.execute(Credit(consumer, 3, 10**6), now),
            lambda _, now: messaging.execute(CloseConsumer(consumer, numbers), now),
            lambda _, now: messaging.execute(Disconnect(connection), now),
            lambda _, now: messaging.execute(Browse(session, address.queue("q", self.node_id()), None), now),
            lambda _, now: messaging.execute(EndQueue(address.queue("q", host.node)), now, self.next()),
            lambda _, now: messaging.execute(Unsubscribe("", "d"), now, self.next()),
        ])  # fmt: skip
        self.command(node, call)

    def bind(self) -> None:
        asked = Bind("name", "topic/news")
        number = self.next()
        self.command(self.node(), lambda host, now: host.messaging.execute(BindName(asked), now, number))

    # --- the world -------------------------------------------------------------------------------------------

    def move(self) -> None:
        one, other = self.chance.sample(NODES, 2)
        (self.net.unlink if self.net.linked(one, other) else self.net.link)(one, other)

    def kill(self) -> None:
        if len(self.down) < 2:
            node = self.node()
            self.net.kill(node)
            self.down.add(node)
            self.subscriptions = [each for each in self.subscriptions if each[0] != node]

    def restart(self) -> None:
        if self.down:
            node = self.down.pop()
            with suppress(LocalError):
                self.net.restart(node)

    def fill_disk(self) -> None:
        self.net.fill_disk(self.node(), full=self.chance.random() < 0.5)

    # --- strangers -------------------------------------------------------------------------------------------

    def throw(self, frames: Sequence[f.Frame], victim: str | None = None, peer: str | None = None) -> None:
        """Deliver frames to a host from a peer, as bytes, some of which are damaged."""
        victim = victim or self.node()
        peer = peer or self.chance.choice([*NODES, "mallory", "trudy"])
        if peer == victim:
            return
        for datagram in codec.datagrams(tuple(frames), 60_000):
            if self.chance.random() < 0.3:
                datagram = spoilt(self.chance, datagram)  # noqa: PLW2901
            decoded = codec.decode(datagram, self.net._settings.limits)  # noqa: SLF001
            self.net.host(victim).refused(decoded.refused, peer, self.now(), nbytes=len(datagram))
            self.net.inject(victim, decoded.frames, peer)

    def replay(self) -> None:
        if self.sent:
            sender, frames = self.chance.choice(self.sent)
            self.throw(frames, peer=sender if self.chance.random() < 0.5 else None)

    def mix(self) -> None:
        """Frames that were sent, with fields of others."""
        if self.sent:
            frames = [self.chance.choice(self.chance.choice(self.sent)[1]) for _ in range(self.chance.randrange(1, 6))]
            self.throw([self._mixed(each) for each in frames])

    def _mixed(self, frame: f.Frame) -> f.Frame:
        chance = self.chance
        fields = frame.__struct_fields__
        name = chance.choice(fields)
        others = [getattr(other, name) for _, frames in self.sent[-50:] for other in frames if hasattr(other, name)]
        value = getattr(frame, name)
        if isinstance(value, int) and not isinstance(value, bool) and chance.random() < 0.5:
            value = chance.choice([0, 1, value + 1, max(0, value - 1), 2**40])
        elif others:
            value = chance.choice(others)
        made = msgspec.structs.replace(frame, **{name: value})
        try:
            codec.datagrams((made,), 60_000)
        except Exception:  # noqa: BLE001 - what cannot be said is not
            return frame
        return made

    def meet(self) -> None:
        stranger, chance = self.chance.choice(self.strangers), self.chance
        costly = Entry((("destination", "y" * 400), ("n", "(")), "-n+" * 300 + "n = 1")
        choices: list[list[str | Entry]] = [
            ["news"], [".*"], ["news", costly], [entry("x", "n > 1")], [entry("[a-z]*s")],
        ]  # fmt: skip
        wanted = chance.choice(choices)
        victim = self.node()
        profile = stranger.wants(*wanted)
        self.throw([stranger.announcement(victim), *profile], victim, stranger.address)

    def forge(self) -> None:
        """Publish something in another's name, and give it to a host."""
        stranger, chance = self.chance.choice(self.strangers), self.chance
        victim = self.node()
        if chance.random() < 0.5:
            self.throw([stranger.announcement(victim), *stranger.wants(".*")], victim, stranger.address)
        given = self._forged(stranger)
        self.messages.append(given.descriptor.id)
        handle = chance.randrange(1, 6)
        frames: list[f.Frame] = [stranger.offer(given, handle)]
        if len(given.pieces) == 1 and len(given.pieces[0]) < 500 and chance.random() < 0.5:
            frames.append(stranger.parcel(given, handle))
        else:
            frames += [*stranger.describe(given, handle), *stranger.fragments(given, handle)]
        if chance.random() < 0.2:
            chance.shuffle(frames)
        self.throw(frames, victim, stranger.address)

    def _forged(self, stranger: Attacker) -> Message:
        chance, draft = self.chance, self.draft()
        identity = stranger.identity
        if not self.signed and chance.random() < 0.6:
            identity = Identity.plain(self.node_id())
        packed = pack(draft.payload, signed=identity.signed, compress=False, limits=Limits())
        ordering = draft.ordering
        barrier: tuple[Predecessor, ...] = ()
        if ordering and self.descriptors:
            named = chance.sample(self.descriptors[-5:], min(2, len(self.descriptors[-5:])))
            until_us = self.now() + 50 * S
            barrier = tuple([
                predecessor(node, tag_of(1, chance.randrange(1, 9)), until_us, signed=self.signed)
                for node in {each.node for each in named}
            ])  # fmt: skip
        self.sequence += 1
        descriptor = Descriptor(
            author=identity.author, incarnation=chance.choice([1, 1, 1, 2]),
            sequence=chance.choice([self.sequence, chance.randrange(1, 10)]),
            created_us=max(0, self.now() + chance.choice([-S, 0, 0, 100 * S])),
            deadline_us=chance.choice([None, self.now() + S, self.now() + 300 * S, self.now() + 300 * S]),
            destination=draft.destination, size=packed.size, length=packed.length, codec=packed.codec,
            root=packed.root, fragment_bytes=1_024, priority=draft.priority, persistent=draft.persistent,
            attributes=dict(draft.attributes), ordering=ordering, barrier=barrier, headers=draft.headers,
        )  # fmt: skip
        return Message(identity.sign(descriptor), packed.pieces, packed.hashes)


def spoilt(chance: random.Random, data: bytes) -> bytes:
    """Return the same with a few bytes changed, taken out or added."""
    changed = bytearray(data)
    for _ in range(chance.choice([1, 1, 2, 5])):
        at = chance.randrange(len(changed) + 1)
        changed[at : at + chance.randrange(2)] = chance.choice([b"", bytes([chance.randrange(256)]), b"\xc1", b"\xff"])
    return bytes(changed)


ACTIONS: list[tuple[Callable[[Scrambled], None], int]] = [
    (Scrambled.publish, 12), (Scrambled.subscribe, 2), (Scrambled.unsubscribe, 1), (Scrambled.declare, 2),
    (Scrambled.consume, 3), (Scrambled.act, 12), (Scrambled.bind, 1), (Scrambled.move, 2), (Scrambled.kill, 1),
    (Scrambled.restart, 2), (Scrambled.fill_disk, 1), (Scrambled.replay, 4), (Scrambled.mix, 6), (Scrambled.meet, 2),
    (Scrambled.forge, 10),
]  # fmt: skip
"""And how often each is drawn, beside the others."""
