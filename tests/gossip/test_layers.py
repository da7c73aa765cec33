"""A layer of a host, with its own frame, companion, link, row, gate and draft.

`Quorum` holds every message of a destination back until enough neighbours have vouched for it, each by a frame. It
sends its own vouchers beside its announcements and when a contact begins, remembers vouchers in the store, keeps a
route, and publishes a note when something passed.
"""

# ruff: noqa: ARG002 - a layer is given more than this one needs
from __future__ import annotations

import random
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from carrypost.config import Settings
from carrypost.gossip.draft import Draft
from carrypost.gossip.holdings.copies import Copy
from carrypost.gossip.layer import Handler, Layer
from carrypost.gossip.transfers.link import HostContext, Link
from carrypost.gossip.wire.codec import fill_payloads
from carrypost.gossip.wire.frames import Announce, Digest, Frame, Transmission
from carrypost.host import Host
from carrypost.log.events import Delivered, Dropped, Event, Reason
from carrypost.log.journal import PIECE, Batch, Key, Value
from carrypost.model.ids import MessageId
from carrypost.model.times import NEVER
from carrypost.security.identity import Identity

S = 1_000_000
PATIENCE_US = 30 * S


class Vouch(msgspec.Struct, frozen=True):
    """The layer's own kind of frame: "I have these, and they are good"."""

    messages: tuple[MessageId, ...]


class Quorum(Layer):
    kind = "quorum"

    def __init__(self, context: HostContext) -> None:
        self._context = context
        self.held: dict[MessageId, Copy] = {}
        self.vouchers: dict[MessageId, set[str]] = {}
        self.vouched_for: list[MessageId] = []
        self.route = Link("route", context.links)
        context.links.add(self.route)
        self.told: list[tuple[object, ...]] = []
        self._changed: set[MessageId] = set()
        self._drafts: list[Draft] = []

    @property
    def handlers(self) -> Mapping[type, Handler]:
        return {Vouch: self._take_vouch}

    def companions(self, now: int, link: Link | None) -> Sequence[Frame]:
        return (Vouch(tuple(self.vouched_for)),) if self.vouched_for else ()  # type: ignore[return-value]

    def met(self, link: Link, now: int) -> None:
        self.told.append(("met", link.node))
        link.send(self.companions(now, link))

    def parted(self, link: Link, now: int) -> None:
        self.told.append(("parted", link.node, link.usable))

    def _take_vouch(self, link: Link, frame: Vouch, now: int) -> None:
        for message in frame.messages:
            self.vouchers.setdefault(message, set()).add(link.node)
            self._changed.add(message)
            self.due_us = now  # What it lets pass goes on when the next step begins.

    def receive(self, copies: Sequence[Copy]) -> Sequence[Copy]:
        for copy in copies:
            self.held[copy.id] = copy
            self.due_us = min(self.due_us, self._context.holdings.now_us + PATIENCE_US)
        passing = [copy for copy in self.held.values() if copy.own or len(self.vouchers.get(copy.id, ())) >= 2]
        for copy in passing:
            del self.held[copy.id]
            if copy.descriptor.destination == "asked" and not copy.own:
                self._drafts.append(Draft("passed", bytes(copy.id)))
        return passing

    def published(self, copies: Sequence[Copy]) -> None:
        self.told.append(("published", *[copy.descriptor.destination for copy in copies]))

    def confirmed(self, messages: Sequence[MessageId]) -> None:
        self.told.append(("confirmed", len(messages)))

    def left(self, copies: Sequence[Copy], reason: Reason | None) -> None:
        self.told.append(("left", reason, len(copies)))
        for copy in copies:
            self.held.pop(copy.id, None)

    def expire(self, now: int) -> None:
        self.due_us = now + PATIENCE_US if self.held else NEVER

    def finish(self, now: int) -> Sequence[Draft]:
        drafts, self._drafts = self._drafts, []
        return drafts

    def restore(self, rows: Iterable[tuple[Key, Value]]) -> None:
        for (_, name, _), value in rows:
            assert isinstance(value, bytes)
            self.vouchers[MessageId(name)] = set(value.decode().split())

    def rows(self) -> dict[Key, Value | None]:
        self._context.outputs.journal.when_durable(self.told.append, ("durable",))
        changed, self._changed = self._changed, set()
        return {
            (self.kind, message, 0): " ".join(sorted(self.vouchers[message])).encode() for message in changed
        }  # fmt: skip


class Site:
    """A few hosts in one room, with stores in dictionaries, and frames without encoding."""

    def __init__(self, *names: str) -> None:
        self.now = 0
        self.stores: dict[str, dict[Key, Value]] = {name: {} for name in names}
        self.events: dict[str, list[Event]] = {name: [] for name in names}
        self.hosts: dict[str, Host] = {}
        self.quorums: dict[str, Quorum] = {}
        self.sent: list[tuple[str, str | None, Frame]] = []
        for name in names:
            self.start(name)

    def start(self, name: str) -> None:
        def quorum(context: HostContext) -> Quorum:
            self.quorums[name] = Quorum(context)
            return self.quorums[name]

        settings = Settings.emulated(compress=False)
        host = self.hosts[name] = Host(Identity.plain(name), settings, random.Random(name), layers=[quorum])
        host.restore(list(self.stores[name].items()), self.now)
        self.drain()

    def drain(self) -> None:
        while any(host.busy for host in self.hosts.values()):
            for name, host in self.hosts.items():
                while (batch := host.changes()) is not None:
                    self._write(name, host, batch)
                for transmission in host.outgoing():
                    self._carry(name, transmission)
                self.events[name] += host.events()

    def _write(self, name: str, host: Host, batch: Batch) -> None:
        for key in batch.deletes:
            self.stores[name].pop(key, None)
        self.stores[name].update(batch.puts)
        host.durable(batch.serial, self.now)

    def _carry(self, name: str, transmission: Transmission) -> None:
        pieces = self.stores[name]
        self.sent += [(name, transmission.to, frame) for frame in transmission.frames]
        frames, _ = fill_payloads(transmission.frames, lambda message, piece: pieces.get((PIECE, message, piece)))  # type: ignore[arg-type,return-value]
        for other, host in self.hosts.items():
            if other != name and transmission.to in (None, other):
                host.receive(frames, name, self.now)

    def run(self, seconds: float) -> None:
        end = self.now + round(seconds * S)
        while (due := min(host.next_deadline() or NEVER for host in self.hosts.values())) <= end:
            self.now = max(self.now, due)
            for host in self.hosts.values():
                host.tick(self.now)
            self.drain()
        self.now = end

    def delivered(self, name: str) -> list[str]:
        found = [event for event in self.events[name] if isinstance(event, Delivered)]
        return [each.descriptor.destination for event in found for each in event.deliveries]


def room() -> Site:
    site = Site("a", "b", "c")
    for host in site.hosts.values():
        host.subscribe("asked|passed", now=0)
    site.run(5)
    return site


def vouch(site: Site, message: MessageId, *names: str) -> None:
    for name in names:
        site.quorums[name].vouched_for.append(message)
    site.run(10)


def test_a_gate_holds_messages_back_until_its_own_frames_beside_announcements_open_it() -> None:
    site = room()
    message = site.hosts["a"].publish("asked", b"x", now=site.now)
    site.run(5)
    assert site.delivered("a") == ["asked"]
    assert site.delivered("b") == []
    assert set(site.quorums["b"].held) == {message}
    vouch(site, message, "a")
    assert site.delivered("b") == []
    vouch(site, message, "c")
    assert site.delivered("b") == ["asked", "passed"]


def test_a_draft_is_published_in_the_step_in_which_a_layer_asks_for_it_and_told_back() -> None:
    site = room()
    message = site.hosts["a"].publish("asked", b"x", now=site.now)
    site.run(5)
    vouch(site, message, "a", "c")
    notes = [each for each in site.quorums["b"].told if each[0] == "published"]
    assert notes == [("published", "passed")]
    stored = [value for key, value in site.stores["b"].items() if key[0] == PIECE]
    assert bytes(message) in stored


def test_a_layer_hears_of_a_contact_before_sets_are_compared_and_of_its_end() -> None:
    site = Site("a")
    site.hosts["a"].subscribe("asked", now=0)
    message = site.hosts["a"].publish("asked", b"x", now=0)
    site.quorums["a"].vouched_for.append(message)
    site.run(5)
    site.stores["b"], site.events["b"] = {}, []
    site.start("b")
    site.hosts["b"].subscribe("asked", now=site.now)
    site.run(5)
    kinds: list[type] = [type(frame) for name, to, frame in site.sent if (name, to) == ("a", "b")]
    assert kinds[0] is Announce
    assert kinds.index(Vouch) < kinds.index(Digest)
    assert site.quorums["b"].vouchers == {message: {"a"}}
    del site.hosts["b"]
    site.run(60)
    contacts = [each for each in site.quorums["a"].told if each[0] in {"met", "parted"}]
    assert contacts == [("met", "b"), ("parted", "b", False)]


def test_what_waits_behind_a_gate_and_dies_there_is_told_and_leaves_the_routes_of_the_layer() -> None:
    site = room()
    host, quorum = site.hosts["b"], site.quorums["b"]
    site.hosts["a"].publish("asked", b"x", now=site.now, lifetime_us=8 * S)
    site.run(5)
    (copy,) = quorum.held.values()
    quorum.route.learn(1 << copy.slot)
    for number in range(40):  # Slots of what expired are freed together.
        host.publish("elsewhere", b"x", now=site.now, lifetime_us=8 * S + number)
    site.drain()
    site.run(20)
    assert not quorum.held
    assert ("left", Reason.EXPIRED, 1) in quorum.told
    assert next(event.reason for event in site.events["b"] if isinstance(event, Dropped)) is Reason.EXPIRED
    assert not quorum.route.known >> copy.slot & 1


def test_rows_of_a_layer_are_in_the_batch_of_what_they_belong_to_and_come_back_to_it() -> None:
    site = room()
    message = site.hosts["a"].publish("asked", b"x", now=site.now)
    site.run(5)
    vouch(site, message, "a", "c")
    assert site.stores["b"]["quorum", message, 0] == b"a c"
    site.start("b")
    assert site.quorums["b"].vouchers[message] == {"a", "c"}


def test_confirmations_and_the_answers_of_the_disk_are_told_to_layers() -> None:
    site = room()
    message = site.hosts["a"].publish("asked", b"x", now=site.now)
    site.run(1)
    quorum = site.quorums["a"]
    quorum.told.clear()
    site.hosts["a"].confirm([message], site.now)
    site.drain()
    assert [each[0] for each in quorum.told] == ["confirmed", "durable"]
    quorum.told.clear()
    site.hosts["a"].publish("asked", b"y", now=site.now)
    site.drain()
    assert ("published", "asked") in quorum.told


def test_nobody_wants_it_any_more_is_told_without_a_reason() -> None:
    site = room()
    site.hosts["a"].publish("asked", b"x", now=site.now)
    site.run(5)
    site.hosts["b"].unsubscribe(1, site.now)
    assert site.quorums["b"].told[-1] == ("left", None, 1)
    assert not site.quorums["b"].held


def test_a_frame_of_a_layer_that_a_host_has_not_is_refused_and_taken_from_when_the_layer_joins_it() -> None:
    site = room()
    host = site.hosts["a"] = Host(Identity.plain("a"), Settings.emulated(compress=False), random.Random(1))
    host.start(site.now)
    site.run(5)
    vouch(site, MessageId(b"b:1:1"), "b")
    refused = host.overview().refused["kind"]
    assert refused > 0
    quorum = Quorum(host._host_context)  # noqa: SLF001 - messaging joins a host in this way
    host._layers.insert(quorum)  # noqa: SLF001
    site.run(10)
    assert quorum.vouchers == {b"b:1:1": {"b"}}
    assert host.overview().refused["kind"] == refused


def test_what_a_layer_does_not_override_is_never_called() -> None:
    class Idle(Layer):
        def __getattribute__(self, name: str) -> object:
            calls.append(name)
            return super().__getattribute__(name)

    calls: list[str] = []
    host = Host(Identity.plain("a"), Settings.emulated(), random.Random(1), layers=[lambda _: Idle()])
    calls.clear()
    host.start(0)
    host.subscribe("x", now=0)
    host.publish("x", b"x", now=0)
    batch = host.changes()
    assert batch is not None
    host.durable(batch.serial, 0)
    host.tick(S)
    assert set(calls) <= {"kind"}
