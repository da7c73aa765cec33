"""A layer with a command, an event, rows, a timer and a route of its own, given by `Host(layers=)`.

`Bells` rings the bell of another node. A ring is a `Relay` that goes from neighbour to neighbour along a path, and is
repeated until it comes back along the reversed path. Nothing in the host or in gossip knows of it.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping, Sequence

import msgspec
import pytest

from carrypost.config import Limits, Settings
from carrypost.errors import IllegalStateException, LocalError
from carrypost.gossip.layer import Handler, Layer, Steps
from carrypost.gossip.transfers.link import HostContext, Link
from carrypost.gossip.wire import codec
from carrypost.gossip.wire.frames import Relay
from carrypost.host import Host
from carrypost.log.events import Done, Event, LayerEvent
from carrypost.log.journal import Batch, Key, Value
from carrypost.log.record import Record, register
from carrypost.model.ids import NodeId, node_prefix
from carrypost.model.times import NEVER
from carrypost.security.identity import Identity

S = 1_000_000


class Rang(LayerEvent, frozen=True):
    """A bell rang here, or the ring came back."""

    caller: str
    target: str


def _log(record: Record, t_us: int, node: str, event: Rang) -> None:
    record.add("ring", t_us, node, peer=event.caller, detail=event.target)


def ring_along(path: Sequence[str], kind: str) -> Relay:
    """Return a ring at the beginning of its path, or (`back`) its answer; the body has the kind and the names."""
    prefixes = b"".join(node_prefix(NodeId(name)) for name in path)
    return Relay(prefixes, 1, b"", " ".join((kind, *path)).encode())


class Bells(Layer):
    """The bell of one node, and the rings that it waits for."""

    kind = "bells"

    def __init__(self, context: HostContext) -> None:
        self._node, self._links, self._outputs = str(context.node), context.links, context.outputs
        self.awaited: dict[str, tuple[str, ...]] = {}
        """The paths of rings that did not come back yet, by their targets."""

    @classmethod
    def register(cls) -> None:
        register({Rang: _log}, kinds=["ring"])

    @property
    def handlers(self) -> Mapping[type, Handler]:
        return {Relay: self._take}

    def commands(self, steps: Steps) -> Ringing:
        return Ringing(self, steps)

    def restore(self, rows: Iterable[tuple[Key, Value]]) -> None:
        for (_, name, _), value in rows:
            assert isinstance(value, bytes)
            self.awaited[name.decode()] = tuple(value.decode().split())
            self._ring_now()

    def _ring_now(self) -> None:
        self.due_us = 0

    def ring(self, path: tuple[str, ...]) -> None:
        """Ring at the end of a path, once that is durable."""
        target = path[-1]
        if target in self.awaited:
            raise IllegalStateException(f"{target} is being rung at")
        self.awaited[target] = path
        self._outputs.journal.put((self.kind, target.encode(), 0), " ".join(path).encode())
        self._outputs.journal.when_durable(self._ring_now)

    def _forget(self, target: str) -> None:
        if self.awaited.pop(target, None) is not None:
            self._outputs.journal.delete((self.kind, target.encode(), 0))
            self._outputs.emit(Rang(self._node, target))

    def expire(self, now: int) -> None:
        """Ring again every second, as long as anything is awaited."""
        self.due_us = now + S if self.awaited else NEVER
        for path in self.awaited.values():
            self._send(ring_along(path, "ring"))

    def _take(self, link: Link, rings: Sequence[Relay], now: int) -> None:  # noqa: ARG002 - where it came from, and when
        for ring in rings:
            kind, *path = ring.body.decode().split()
            if ring.position < len(path) - 1:
                self._send(msgspec.structs.replace(ring, position=ring.position + 1))
            elif kind == "back":
                self._forget(path[0])
            else:
                self._outputs.emit(Rang(path[0], self._node))
                self._send(ring_along(path[::-1], "back"))

    def _send(self, ring: Relay) -> None:
        link = self._links.get(ring.body.decode().split()[1 + ring.position])
        if link is not None and link.usable:
            link.send((ring,))


class Ringing:
    """The commands of `Bells` for programs."""

    def __init__(self, bells: Bells, steps: Steps) -> None:
        self._bells, self._step = bells, steps.step

    def ring(self, number: int, path: Sequence[str], now: int) -> None:
        with self._step(now, number=number):
            self._bells.ring(tuple(path))


class Street:
    """Hosts in a row: each hears those beside it."""

    def __init__(self, names: str) -> None:
        self.now = 0
        self.names = names
        self.stores: dict[str, dict[Key, Value]] = {name: {} for name in names}
        self.events: dict[str, list[Event]] = {name: [] for name in names}
        self.hosts: dict[str, Host] = {}
        self.bytes = 0
        for name in names:
            self.start(name)

    def start(self, name: str) -> None:
        layers = [Bells]
        self.hosts[name] = Host(Identity.plain(name), Settings.emulated(), random.Random(name), layers=layers)
        self.hosts[name].restore(list(self.stores[name].items()), self.now)
        self.drain()

    def drain(self) -> None:
        while busy := [name for name in self.names if name in self.hosts and self.hosts[name].busy]:
            for name in busy:
                host = self.hosts[name]
                while (batch := host.changes()) is not None:
                    self._write(name, batch)
                for transmission in host.outgoing():
                    (datagram,) = codec.datagrams(transmission.frames, 1_400)
                    self.bytes += len(datagram)
                    for other in self.hosts:
                        near = abs(self.names.index(name) - self.names.index(other)) == 1
                        if near and transmission.to in (None, other):
                            decoded = codec.decode(datagram, Limits())
                            assert not decoded.refused
                            self.hosts[other].receive(decoded.frames, name, self.now)
                self.events[name] += host.events()

    def _write(self, name: str, batch: Batch) -> None:
        for key in batch.deletes:
            self.stores[name].pop(key, None)
        self.stores[name].update(batch.puts)
        self.hosts[name].durable(batch.serial, self.now)

    def run(self, seconds: float) -> None:
        end = self.now + round(seconds * S)
        while (due := min(host.next_deadline() or NEVER for host in self.hosts.values())) <= end:
            self.now = max(self.now, due)
            for host in self.hosts.values():
                host.tick(self.now)
            self.drain()
        self.now = end

    def ring(self, number: int, path: str) -> None:
        self.hosts[path[0]].commands(Ringing).ring(number, path, self.now)
        self.drain()

    def told(self, name: str, kind: type[Event]) -> list[Event]:
        return [event for event in self.events[name] if isinstance(event, kind)]


def test_a_command_of_a_layer_sends_its_frames_along_its_own_route_and_its_events_reach_both_ends() -> None:
    street = Street("abc")
    street.run(5)
    street.ring(1, "abc")
    assert street.told("a", Done) == [Done(1)]
    assert street.stores["a"]["bells", b"c", 0] == b"a b c"
    street.run(2)
    assert street.told("c", Rang) == [Rang("a", "c")]
    assert street.told("a", Rang) == [Rang("a", "c")]
    assert street.told("b", Rang) == []
    assert not [key for key in street.stores["a"] if key[0] == "bells"]


def test_its_timer_repeats_what_found_nobody_also_in_the_next_life() -> None:
    street = Street("ab")
    street.ring(1, "ab")
    street.run(0.5)
    street.start("a")
    assert street.told("a", Rang) == []
    street.run(10)
    assert street.told("b", Rang) == [Rang("a", "b")]
    assert street.told("a", Rang) == [Rang("a", "b")]


def test_a_number_is_answered_once() -> None:
    street = Street("ab")
    street.run(5)
    street.ring(8, "ab")
    with pytest.raises(IllegalStateException, match="b is being rung at"):
        street.ring(9, "ab")
    street.drain()
    street.run(5)
    assert street.told("b", Rang) == [Rang("a", "b")]
    assert street.told("a", Done) == [Done(8)]


def test_its_events_are_rows_of_the_record_which_can_be_read_again() -> None:
    street = Street("ab")
    street.run(5)
    street.ring(1, "ab")
    street.run(5)
    record = Record("run")
    for event in street.events["b"]:
        record.observe(street.now, "b", event)
    rows = [row for row in record.rows() if row["kind"] == "ring"]
    assert [(row["node"], row["peer"], row["detail"]) for row in rows] == [("b", "a", "b")]
    assert list(Record.from_json_lines(record.json_lines()).rows()) == list(record.rows())


def test_commands_of_a_layer_that_the_host_does_not_have_are_named() -> None:
    host = Host(Identity.plain("a"), Settings.emulated(), random.Random(1))
    with pytest.raises(LocalError, match="no layer of this host has the commands Ringing"):
        host.commands(Ringing)
