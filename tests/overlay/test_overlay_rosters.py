"""Clients, their home brokers, and rosters, by which all brokers know of them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

import pytest
from tests.support.examples import soaked

from carrypost.errors import LocalError, ResourceAllocationException
from carrypost.gossip.outputs import Journal
from carrypost.log.events import Event
from carrypost.log.journal import MESSAGE, Batch, Durability, StoredMessage
from carrypost.model.descriptor import Descriptor
from carrypost.model.headers import Headers
from carrypost.model.ids import NodeId, node_prefix
from carrypost.overlay import tables
from carrypost.overlay.clients import LastEvents
from carrypost.overlay.items import (
    ENTRIES_BYTES_MAX,
    ITEMS,
    Attach,
    Attached,
    Broker,
    Entries,
    Entry,
    Item,
    Role,
    Sent,
    pack,
)
from carrypost.overlay.legs import LegArrived
from carrypost.overlay.tables import Client, Clients, Roster, Served, channel_hash
from carrypost.testing import Network, network

if TYPE_CHECKING:
    from carrypost.overlay.items import Outbox
    from carrypost.overlay.topology import Topology

NOTHING = bytes(8)
PRODUCER, CONSUMER = Role.PRODUCER, Role.CONSUMER


class Scene:
    """Brokers with capital letters, other nodes without."""

    def __init__(self, net: Network) -> None:
        self.net = net
        self.results: dict[tuple[str, str], str] = {}
        """Destinations of results, by consumer and channel."""

    @property
    def now(self) -> int:
        return round(self.net.now * 1e6)

    def attach(self, node: str, role: Role, channel: str = "flood") -> None:
        """Let a node emit an event to a channel, or consume one, which attaches it."""
        if role is PRODUCER:
            self.net.emit(node, channel)
        else:
            self.results[node, channel] = self.net.consume(node, channel)

    def detach(self, node: str, role: Role, channel: str = "flood") -> None:
        destination = f"channel/{channel}" if role is PRODUCER else self.results.pop((node, channel))
        self.net.host(node).overlay.close(destination, self.now)

    def serving(self, node: str, channel: str = "flood") -> dict[str, tuple[int, int]]:
        found = self.net.host(node).overlay.serving(channel)
        return {self.net.name(broker): (served.producers, served.seats) for broker, served in found.items()}

    def home(self, node: str, channel: str = "flood") -> str | None:
        return self.net.overlay(node).homes.get(channel)

    def say(self, author: str, to: str, *said: Item) -> None:
        destination = "overlay/all" if to == "all" else f"overlay/{self.net.host(to).node}"
        headers = Headers(control=ITEMS.encode(said))
        self.net.host(author).publish(destination, b"", headers=headers, now=self.now, lifetime_us=60_000_000)
        self.net.advance(3)

    def refused(self, node: str, reason: str) -> int:
        return self.net.host(node).overview().refused.get(reason, 0)


@contextmanager
def scene(links: str, *, seed: int = 1, loss: float = 0.0, security: str = "off", **options: object) -> Iterator[Scene]:
    """Yield nodes that are linked as written; each broker has the nearest one as its neighbour."""
    limits = options.pop("limits", {})
    overlay = {"enabled": True, "neighbours_max": 1, "update_s": 4.0, **options}
    net = network(seed=seed, loss=loss, island=True, island_s_min=0.2, security=security)
    for name in sorted(set(links.replace(" ", ""))):
        net.add(name, overlay=overlay | {"broker": name.isupper()}, limits=limits)
    with net:
        for pair in links.split():
            net.link(*pair)
        net.advance(20)
        yield Scene(net)


LINE = "AB BC CD xA Dy"

# --- clients and homes -------------------------------------------------------------------------------------


@pytest.mark.parametrize("topology", ["adaptive", "static"])
def test_clients_attach_to_the_nearest_broker_and_all_brokers_know_soon(topology: str) -> None:
    with scene(LINE, topology=topology) as play:
        play.attach("x", PRODUCER)
        play.attach("y", CONSUMER)
        play.attach("B", CONSUMER)
        play.net.advance(3)
        assert [play.home(name) for name in "xyB"] == ["A", "D", "B"]
        for name in "ABCD":
            seats = {broker: served for broker, served in play.serving(name).items() if served[1]}
            assert seats == {"B": (0, 1), "D": (0, 1)}, "events wait for rosters with new seats, which are sent sooner"
        assert "A" not in play.serving("D"), "it is three brokers away, and each waits for two seconds"
        play.net.advance(5)
        for name in "ABCD":
            assert play.serving(name) == {"A": (1, 0), "B": (0, 1), "D": (0, 1)}
        assert [play.net.overlay(name).clients for name in "ABCD"] == [1, 1, 0, 1]
        play.detach("x", PRODUCER)
        play.detach("x", PRODUCER)
        play.detach("B", CONSUMER)
        play.net.advance(8)
        for name in "ABCD":
            assert play.serving(name) == {"D": (0, 1)}


def test_rosters_that_wait_are_sent_with_the_entries_of_a_look() -> None:
    with scene("AB") as play:
        overlay = play.net.host("A").overlay._overlay  # noqa: SLF001 - the message is of interest, not its effect
        overlay.topology.serve({"flood": Served(1, 0)}, play.now)
        overlay.topology.look(play.now)
        overlay.topology.propagate()
        (item,) = [item for _, item in overlay._outbox._drafts]  # noqa: SLF001
        assert isinstance(item, Entries)
        assert len(tables.unpack_rosters(item.rosters)) == 1


def test_leases_are_renewed_and_end_with_the_node() -> None:
    with scene("AB xB") as play:
        play.attach("x", PRODUCER)
        play.net.advance(1_300)
        assert play.serving("A") == {"B": (1, 0)}
        play.net.kill("x")
        play.net.advance(700)
        assert play.serving("A") == {}
        assert play.net.overlay("B").clients == 0


def test_a_broker_that_crashes_keeps_its_clients_and_outbids_its_roster() -> None:
    with scene("AB xB") as play:
        play.attach("x", PRODUCER)
        play.net.advance(3)
        play.net.kill("B")
        play.net.unlink("x", "B")
        play.net.restart("B")
        play.net.advance(20)
        assert play.serving("A") == play.serving("B") == {"B": (1, 0)}


def test_a_client_attaches_anew_where_a_broker_lost_its_store() -> None:
    with scene("AB xB") as play:
        play.attach("x", PRODUCER)
        play.net.advance(3)
        play.net.kill("B")
        store = play.net._nodes["B"][0].store  # noqa: SLF001 - a disk that lost rows, and kept the number of its life
        gone = tuple(key for key, _ in store.state() if key[0] == "overlay")
        store.write(Batch(10**6, Durability.NORMAL, {}, gone))
        play.net.restart("B")
        play.net.advance(20)
        assert play.serving("A") == play.serving("B") == {"B": (1, 0)}


def test_a_client_without_any_broker_waits_and_one_without_a_path_is_carried_for() -> None:
    with scene("AB x1 ".replace("x1", "xz")) as play:
        play.attach("x", CONSUMER)
        play.net.advance(20)
        assert play.home("x") is None
        play.net.link("z", "B")
        play.net.advance(10)
        assert play.home("x") == "B"
        play.attach("z", PRODUCER)
        play.net.advance(2)
        play.net.unlink("z", "B")
        play.net.advance(30)
        play.attach("x", PRODUCER, "rain")
        play.net.advance(10)
        assert play.home("x", "rain") is None
        play.net.unlink("x", "z")
        play.net.link("z", "B")
        play.net.advance(10)
        assert play.serving("A", "rain") == {"B": (1, 0)}, "z carried it"
        play.net.unlink("z", "B")
        play.net.link("x", "z")
        play.net.advance(10)
        assert play.home("x", "rain") == "B"


def test_a_client_leaves_a_broker_that_is_gone() -> None:
    with scene("AB xB") as play:
        play.attach("x", PRODUCER)
        play.net.advance(3)
        play.net.link("x", "A")
        play.net.kill("B")
        play.net.advance(700)
        assert play.home("x") == "A"
        assert play.serving("A") == {"A": (1, 0)}


def test_a_broker_with_a_full_disk_serves_its_clients() -> None:
    with scene("AB xB") as play:
        play.net.fill_disk("B")
        play.attach("x", PRODUCER)
        play.net.advance(90)
        assert play.home("x") == "B"
        play.net.kill("B")
        play.net.unlink("x", "B")
        play.net.restart("B")
        play.net.advance(10)
        assert play.serving("A") == {"B": (1, 0)}


@pytest.mark.parametrize("seed", [1, 2, *soaked(range(3, 60))])
def test_rosters_heal_30_percent_loss_and_partitions(seed: int) -> None:
    with scene("AB BC CA xA yC", seed=seed, loss=0.3, update_s=3.0) as play:
        play.net.unlink("B", "C")
        play.net.unlink("A", "B")
        play.net.advance(10)
        for node, role in (("x", PRODUCER), ("y", CONSUMER), ("B", CONSUMER)):
            play.attach(node, role)
        play.net.advance(60)
        play.detach("x", PRODUCER)
        play.attach("x", PRODUCER, "rain")
        play.net.advance(10)
        play.net.link("A", "B")
        expected = {"flood": {"C": (0, 1), "B": (0, 1)}, "rain": {"A": (1, 0)}}
        for _ in range(30):
            play.net.advance(10)
            if all(play.serving(name, channel) == expected[channel] for name in "ABC" for channel in expected):
                return
        pytest.fail(f"{[play.serving(name, channel) for name in 'ABC' for channel in expected]}")


def test_a_broker_that_missed_a_roster_asks_the_one_that_announced_it() -> None:
    with scene("AB BC xA", topology="static") as play:
        host = play.net.host("C")
        play.attach("x", CONSUMER)
        play.net.advance(3)
        rows = host.overlay._overlay.topology.rosters  # noqa: SLF001
        rows.table.remove(node_prefix(play.net.host("A").node))
        assert play.serving("C") == {}
        play.net.advance(90)
        assert play.serving("C") == {"A": (0, 1)}, "nobody looks, and nothing changes"


def test_what_brokers_tell_each_other_is_neither_stored_nor_acknowledged(monkeypatch: pytest.MonkeyPatch) -> None:
    stored: list[Descriptor] = []
    pop = Journal.pop_batch

    def popped(journal: Journal) -> Batch | None:
        batch = pop(journal)
        rows = [] if batch is None else [row for (kind, _, _), row in batch.puts.items() if kind == MESSAGE]
        stored.extend(row.descriptor for row in rows if isinstance(row, StoredMessage))
        return batch

    monkeypatch.setattr(Journal, "pop_batch", popped)
    with scene("AB Bx xC") as play:
        play.net.advance(30)
        assert all(play.net.host(name).overlay.view().topology_bytes for name in "ABC")
        assert {each.destination for each in stored} == {"overlay/all"}
        assert [play.net.host(name).overview().acknowledgements for name in "ABCx"] == [0] * 4
        copies = [play.net.host(name)._holdings.known_copies() for name in "ABCx"]  # noqa: SLF001
        assert {copy.descriptor.destination for each in copies for copy in each if copy.here} == {"overlay/all"}


def test_misuse_raises_and_says_what_to_do() -> None:
    with scene("AB xA", limits={"clients_max": 2}) as play:
        for channel in ("", "x" * 300):
            with pytest.raises(LocalError, match="1 to 256 characters"):
                play.attach("x", PRODUCER, channel)
        for channel in "kl":
            play.attach("x", PRODUCER, channel)
        with pytest.raises(ResourceAllocationException, match="clients_max"):
            play.attach("x", PRODUCER, "m")


# --- bad input ---------------------------------------------------------------------------------------------


def packed(broker: str, version: int, channels: dict[str, tuple[int, int]]) -> bytes:
    rows = sorted((channel_hash(channel), Served(*served)) for channel, served in channels.items())
    (part,) = tables.pack_rosters([Roster(node_prefix(NodeId(broker)), version, dict(rows))])
    return part


@contextmanager
def known() -> Iterator[Scene]:
    """Brokers A, B, C that know of a producer at A; x is no broker."""
    with scene("AB BC xB") as play:
        play.attach("A", PRODUCER)
        play.net.advance(6)
        assert play.serving("C") == {"A": (1, 0)}
        yield play


def test_rosters_that_no_broker_tells_or_that_cannot_be_read_change_nothing() -> None:
    with known() as play:
        good = packed("A", 2**31 - 1, {"flood": (0, 3)})
        play.say("x", "C", Entries(NOTHING, rosters=good))
        assert play.refused("C", "overlay") == 1
        row = channel_hash("k") + bytes([0, 1, 0, 0])
        head = good[:8]
        bad = [good[:-1], good[:5], head + bytes([0, 2]) + row + row, head + bytes([0, 1]) + row[:8] + bytes(4)]
        for at, nonsense in enumerate(bad, 1):
            play.say("B", "C", Entries(NOTHING, rosters=nonsense))
            assert play.refused("C", "topology") == at
        play.say("B", "x", Entries(NOTHING, rosters=good))
        assert play.refused("x", "topology") == 1
        assert play.serving("C") == {"A": (1, 0)}


def test_an_old_roster_changes_nothing_and_is_counted() -> None:
    with known() as play:
        play.say("B", "C", Entries(NOTHING, rosters=packed("A", 2, {"flood": (0, 3)})))
        assert play.refused("C", "overlay-old") == 1
        assert play.serving("C") == {"A": (1, 0)}


def test_a_broker_outbids_rosters_that_others_tell_in_its_name() -> None:
    with known() as play:
        for version in (2**31 - 2, 2**32 - 1, 2**31 + 5):
            play.say("B", "C", Entries(NOTHING, rosters=packed("A", version, {"flood": (0, 3), "k": (1, 1)})))
            play.net.advance(30)
            assert [play.serving(name) for name in "ABC"] == [{"A": (1, 0)}] * 3
            assert play.serving("C", "k") == {}
        play.say("B", "C", Entries(NOTHING, rosters=packed("C", 5, {"flood": (0, 3)})))
        play.net.advance(10)
        assert [play.serving(name) for name in "ABC"] == [{"A": (1, 0)}] * 3, "C, which has no clients, says so"


def test_surplus_rosters_and_channels_keep_no_honest_broker_out() -> None:
    with scene("AB BC xB", limits={"overlay_brokers_max": 4, "overlay_channels_max": 3}) as play:
        made_up = b"".join(packed(f"m{at}", 1, {"flood": (0, 1)}) for at in range(50))
        play.say("B", "C", Entries(NOTHING, rosters=made_up))
        assert play.refused("C", "rosters") == 46
        assert play.serving("C") == {}, "nobody knows these brokers"
        many = {f"k{number}": (1, 1) for number in range(4)}
        before = play.refused("C", "rosters")
        play.say("B", "C", Entries(NOTHING, rosters=packed("A", 9, many)))
        assert play.refused("C", "rosters") == before + 1
        play.attach("A", PRODUCER)
        play.attach("x", CONSUMER)
        play.net.advance(5)
        assert play.serving("C") == {"A": (1, 0), "B": (0, 1)}


def test_a_broker_has_clients_of_so_many_channels_and_others_go_elsewhere() -> None:
    with scene("AB xA", limits={"overlay_channels_max": 3}) as play:
        for number in range(5):
            play.attach("x", PRODUCER, f"k{number}")
            play.net.advance(1)
        play.net.advance(5)
        assert [play.home("x", f"k{number}") for number in range(5)] == ["A", "A", "A", "B", "B"]
        assert play.refused("A", "clients") == 1, "it is not asked again so soon"


def test_replayed_and_surplus_clients_change_nothing() -> None:
    with scene("AB xA yA", limits={"clients_max": 6}) as play:
        play.say("x", "A", Attach(PRODUCER, "flood"), Attach(PRODUCER, "flood", 0, active=False))
        assert play.refused("A", "overlay-old") == 1, "of one message the first counts"
        assert play.serving("A") == {"A": (1, 0)}
        for number in range(9):
            play.say("x", "A", Attach(PRODUCER, f"k{number}"))
        assert play.refused("A", "clients") == 4
        play.attach("y", CONSUMER, "rain")
        play.net.advance(3)
        assert play.home("y", "rain") == "A", "the node with most clients gives way"
        play.say("x", "B", Attach(PRODUCER, "flood"), Attached(PRODUCER, "flood"))
        assert play.refused("B", "overlay") == 1, "x is no broker"
        before = play.refused("x", "overlay")
        play.say("B", "x", Attached(PRODUCER, "flood"))
        assert play.refused("x", "overlay") == before + 1, "x did not ask it"
        play.say("A", "y", Attach(PRODUCER, "flood"))
        assert play.refused("y", "clients") == 1, "y is no broker"


def test_clients_out_of_reach_give_way_to_those_in_reach() -> None:
    with scene("AB xA yA zA", limits={"clients_max": 2}) as play:
        for node in "xy":
            play.attach(node, PRODUCER)
        play.net.advance(3)
        assert play.serving("B") == {"A": (2, 0)}
        play.attach("z", PRODUCER)
        play.net.advance(3)
        assert play.home("z") == "B", "there is no room at A"
        play.detach("z", PRODUCER)
        play.net.unlink("x", "A")
        play.net.advance(90)
        play.attach("z", CONSUMER)
        play.net.advance(5)
        assert play.home("z") == "A"
        assert play.serving("B")["A"] == (1, 1)


def test_a_broker_that_lies_about_distances_costs_time_and_no_authenticity() -> None:
    with scene("AB BC AL", security="signed", neighbours_max=2) as play:
        assert play.net.overlay("A").path("C") == ["A", "C"]
        arrived: list[tuple[str, object]] = []

        def watch(_: float, node: str, event: Event) -> None:
            if isinstance(event, LegArrived):
                arrived.append((node, event.descriptor.id))

        play.net.watch(watch)
        ids = {name: play.net.host(name).node for name in "ABCL"}
        links = tuple(sorted((node_prefix(ids[name]), 1) for name in "AC"))
        near = Entry(node_prefix(ids["L"]), 2**31 - 3, 0, links)
        far = Entry(node_prefix(ids["C"]), 2**31 - 3, 0, ((node_prefix(ids["L"]), 1),))
        (part,) = pack([near, far])
        play.say("L", "A", Entries(NOTHING, part))
        assert play.net.overlay("A").path("C") == ["A", "L", "C"]
        message = play.net.publish("A", "topic/flood", b"rain", lifetime_s=600)
        play.net.host("A").overlay.send(message, [ids["C"]], play.now)
        play.net.advance(30)
        assert arrived == [("C", message)]
        assert play.net.overlay("A").path("C") == ["A", "C"], "C outbid what L told of it"


def test_rosters_are_packed_and_belong_to_the_digest() -> None:
    many = [Roster(node_prefix(NodeId(f"b{at}")), at, {channel_hash("k"): Served(at, 1)}) for at in range(1_000)]
    parts = tables.pack_rosters(many)
    assert [each for part in parts for each in tables.unpack_rosters(part)] == many
    assert all(ITEMS.is_readable(Entries(NOTHING, rosters=part)) for part in parts)
    full = {at.to_bytes(8, "big"): Served(1, 1) for at in range(tables.CHANNELS_MAX)}
    assert len(tables.pack_rosters([Roster(b"abcd", 1, full)])[0]) <= ENTRIES_BYTES_MAX
    assert many[5].fingerprint != Entry(many[5].prefix, 5, 0, ()).fingerprint
    assert ITEMS.is_readable(Broker(0, 2**32 - 1))


def test_a_roster_that_changes_costs_one_hash_for_each_channel_and_no_look_at_other_rosters(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    channels = [f"flood/{number}" for number in range(64)]
    seats = {channel_hash(each): Served(0, 1) for each in channels}
    table = [Roster(number.to_bytes(4, "big"), 1, seats) for number in range(64)]
    topology = SimpleNamespace(
        rosters=SimpleNamespace(table=table, news={table[3].prefix}), node_of=lambda prefix: NodeId(prefix.hex())
    )
    sent: list[tuple[NodeId, Item]] = []
    outbox = cast("Outbox", SimpleNamespace(add=lambda *item: sent.append(item)))
    clients = Clients(64, 64)
    last = LastEvents(cast("Topology", topology), clients)
    hashed: list[str] = []

    def counted(channel: str) -> bytes:
        hashed.append(channel)
        return channel_hash(channel)

    monkeypatch.setattr("carrypost.overlay.clients.channel_hash", counted)
    for each in channels:
        clients.put(Client(NodeId("p"), Attach(Role.PRODUCER, each), (1, 1), 1), ())
        last.attached(NodeId("p"), each, 5, passed_on=True)
    last.report(outbox)
    assert len(sent) == 64
    assert hashed == sorted(channels)
    last.attached(NodeId("p"), channels[0], 6)
    sent.clear()
    last.report(outbox)
    assert sent == [(NodeId(each.prefix.hex()), Sent(channels[0], ((NodeId("p"), 6),))) for each in table]
