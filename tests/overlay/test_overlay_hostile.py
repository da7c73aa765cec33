"""Lies about the overlay: items count from those that may say them, tables are bounded, and legs have to fit."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise

import msgspec
import pytest
from tests.support.hostile import message

from carrypost.config import Settings
from carrypost.log.events import Published
from carrypost.model.descriptor import Descriptor, PayloadCodec
from carrypost.model.headers import Headers
from carrypost.model.ids import MessageId, NodeId, node_prefix
from carrypost.overlay.items import (
    ITEMS,
    ROUTE_BROKERS_MAX,
    Broker,
    Entries,
    Entry,
    Item,
    Pass,
    first_version,
    is_later,
    next_version,
    pack,
    pages,
    unpack,
)
from carrypost.overlay.legs import LegArrived
from carrypost.security.identity import Identity
from carrypost.testing import Blank, Network, network

NOTHING = bytes(8)


@contextmanager
def line(security: str = "off", **limits: float) -> Iterator[Network]:
    """Brokers A, B and C in a line, which know each other, and x beside B, the liar, which is no broker."""
    net = network(seed=1, island=True, island_s_min=0.2, security=security)
    for name in "ABCx":
        overlay = {"enabled": True, "broker": name.isupper(), "update_s": 5.0}
        net.add(name, overlay=overlay, limits=limits)
    with net:
        for pair in ("AB", "BC", "Bx"):
            net.link(*pair)
        net.advance(20)
        assert {name: sorted(net.overlay(name).brokers) for name in "AC"} == {"A": ["B", "C"], "C": ["A", "B"]}
        yield net


def say(net: Network, author: str, to: str, *said: Item, payload: bytes | Blank = b"", origin: bytes = b"") -> None:
    """Send items to a broker, or to all."""
    destination = "overlay/all" if to == "all" else f"overlay/{net.host(to).node}"
    headers = Headers(control=ITEMS.encode(said), origin=origin)
    net.host(author).publish(destination, payload, headers=headers, now=round(net.now * 1e6), lifetime_us=60_000_000)
    net.advance(3)


def refused(net: Network, node: str, reason: str) -> int:
    return net.host(node).overview().refused.get(reason, 0)


def packed(*entries: Entry) -> bytes:
    (part,) = pack(entries)
    return part


def entry(name: str, version: int, *neighbours: str) -> Entry:
    links = tuple(sorted((node_prefix(NodeId(each)), 1) for each in neighbours))
    return Entry(node_prefix(NodeId(name)), version, 0, links)


def paths(net: Network) -> list[Sequence[str] | None]:
    return [net.overlay(one).path(other) for one in "ABC" for other in "ABC" if one != other]


def test_a_broker_that_asks_for_everything_again_and_again_is_answered_once() -> None:
    with line() as net:
        topology = net.host("A").overlay._overlay.topology  # noqa: SLF001 - the bytes of its answers
        asked = Entries(NOTHING, b"", b"")
        before = topology.topology_bytes
        say(net, "B", "A", *[asked] * 64)
        assert refused(net, "A", "topology") == 63
        assert topology.topology_bytes - before < 1_000


def test_what_a_node_that_is_no_broker_tells_of_the_overlay_changes_nothing() -> None:
    with line() as net:
        before = paths(net)
        say(net, "x", "A", Entries(NOTHING, packed(entry("C", 2**31 - 1, "A"))))
        assert refused(net, "A", "overlay") == 1
        assert paths(net) == before


@pytest.mark.parametrize(
    "nonsense",
    [
        b"\x01", packed(entry("C", 5, "A"))[:-1], packed(entry("C", 5, "A", "C")),
        packed(Entry(b"abcd", 1, 0, ((b"efgh", 1), (b"efgh", 1)))), packed(Entry(b"abcd", 1, 0, ((b"efgh", 0),))),
    ],
)  # fmt: skip
def test_entries_that_cannot_be_read_change_nothing(nonsense: bytes) -> None:
    with line() as net:
        before = paths(net)
        say(net, "B", "A", Entries(NOTHING, nonsense), Entries(NOTHING, b"", b"123"))
        assert refused(net, "A", "topology") == 2
        assert paths(net) == before


def test_items_said_to_the_wrong_nodes_or_unreadable_ones_are_refused() -> None:
    with line() as net:
        say(net, "x", "A", Broker())
        assert "x" not in net.overlay("A").brokers
        say(net, "B", "all", Entries(NOTHING))
        assert refused(net, "A", "overlay") == 2
        headers = Headers(control=msgspec.msgpack.encode([["z", 1], 5, ["p", "x", []]]))
        net.host("B").publish("overlay/A", b"", headers=headers, now=round(net.now * 1e6))
        net.advance(3)
        assert refused(net, "A", "overlay") == 5


def test_a_broker_outbids_whatever_others_tell_in_its_name() -> None:
    with line() as net:
        before = paths(net)
        for version in (2**31 - 2, 2**32 - 1, 2**31 + 5):
            say(net, "B", "A", Entries(NOTHING, packed(entry("C", version, "A"))))
            assert net.overlay("A").path("C") == ["A", "C"], "a lie about distances costs time"
            net.advance(30)
            assert paths(net) == before


def test_a_full_table_of_made_up_brokers_keeps_no_honest_one_out() -> None:
    with line(overlay_brokers_max=4) as net:
        for number in range(8):
            net.add(f"s{number}", overlay={"enabled": True, "broker": True, "update_s": 600.0})
            net.link("x", f"s{number}")
        net.advance(10)
        made_up = [entry(f"m{number}", 1, "A") for number in range(100)]
        say(net, "B", "A", Entries(NOTHING, packed(*made_up)))
        assert refused(net, "A", "brokers") > 0
        for number in range(8):
            net.unlink("x", f"s{number}")
        net.add("D", overlay={"enabled": True, "broker": True, "update_s": 5.0}, limits={"overlay_brokers_max": 4})
        net.link("C", "D")
        net.advance(60)
        assert net.overlay("A").path("D") is not None
        assert net.overlay("D").path("A") is not None


def test_versions_wrap_around_and_entries_are_packed_in_40_bytes() -> None:
    assert is_later(next_version(2**32 - 1), 2**32 - 1)
    assert not is_later(5, 5)
    assert is_later(first_version(8), first_version(7) + 65_535)
    full = entry("a", 7, *(f"n{number}" for number in range(6)))
    assert len(packed(full)) == 40
    assert unpack(packed(full, full)) == [full, full]
    many = [entry(f"b{number}", 1, *(f"n{each}" for each in range(6))) for number in range(300)]
    assert [each for part in pack(many) for each in unpack(part)] == many
    assert all(ITEMS.is_readable(Entries(NOTHING, part)) for part in pack(many))


@pytest.mark.parametrize(
    "route", [b"abc", node_prefix(NodeId("B")) * 2, node_prefix(NodeId("A")), node_prefix(NodeId("nobody"))]
)
def test_a_leg_whose_route_is_cut_short_comes_back_or_leads_nowhere_is_dropped(route: bytes) -> None:
    with line() as net:
        arrived = listening(net)
        say(net, "x", "A", Pass("w", (route,)), payload=b"rain", origin=published(net, "x", b"rain").wire)
        assert refused(net, "A", "route") == 1
        assert not arrived


@pytest.mark.parametrize("routes", [(b"abcd" * 33,), (b"",) * 65, ()])
def test_a_leg_with_longer_or_more_routes_than_honest_brokers_send_is_not_read(routes: tuple[bytes, ...]) -> None:
    with line() as net:
        arrived = listening(net)
        say(net, "x", "A", Pass("w", routes), payload=b"rain", origin=published(net, "x", b"rain").wire)
        assert refused(net, "A", "overlay") == 1
        assert not arrived


def test_many_long_routes_go_in_several_legs() -> None:
    routes = [bytes([number]) * 4 * ROUTE_BROKERS_MAX for number in range(40)] + [b"abcd"] * 100
    found = pages(routes)
    assert [route for page in found for route in page] == routes
    assert all(ITEMS.is_readable(Pass("w", page)) for page in found)
    assert [len(page) for page in found] == [31, 64, 45]
    assert not pages([])


def published(net: Network, node: str, payload: bytes | Blank) -> Descriptor:
    found: list[Descriptor] = []
    net.watch(lambda *told: found.append(told[2].descriptor) if isinstance(told[2], Published) else None)
    net.publish(node, "topic/w", payload)
    return found[-1]


def listening(net: Network) -> list[str]:
    """Return a list of the brokers at which legs arrive from now on."""
    arrived: list[str] = []
    net.watch(lambda *told: arrived.append(told[1]) if isinstance(told[2], LegArrived) else None)
    return arrived


def test_a_leg_that_fits_arrives_whoever_sends_it() -> None:
    with line("signed") as net:
        arrived = listening(net)
        say(net, "x", "A", Pass("w", (b"",)), payload=b"rain", origin=published(net, "B", b"rain").wire)
        assert arrived == ["A"]


@pytest.mark.parametrize("how", ["none", "nonsense", "another signature", "a leg", "unsigned"])
def test_a_leg_whose_origin_does_not_fit_is_dropped(how: str) -> None:
    with line("signed") as net:
        origin = published(net, "B", b"rain").wire
        if how == "another signature":
            origin = origin[:1] + bytes(64) + origin[65:]
        elif how == "a leg":
            headers = Headers(origin=origin)
            net.host("x").publish("topic/w", b"rain", headers=headers, now=round(net.now * 1e6))
            origin = next(
                copy.descriptor.wire
                for copy in net.host("x")._holdings.known_copies()  # noqa: SLF001 - nobody else knows
                if copy.own and copy.descriptor.destination == "topic/w"
            )
        elif how == "unsigned":
            origin = message(Identity.plain("B"), b"rain").descriptor.wire
        arrived = listening(net)
        given = {"none": b"", "nonsense": b"\0\1\2"}.get(how, origin)
        say(net, "x", "A", Pass("w", (b"",)), payload=b"rain", origin=given)
        assert sum(refused(net, "A", reason) for reason in ("origin", "signature")) == 1
        assert not arrived


@pytest.mark.parametrize("change", [{"root": bytes(32)}, {"length": 5}, {"size": 5}, {"codec": PayloadCodec.ZSTD}])
def test_a_leg_of_another_root_length_size_or_codec_than_its_origin_is_dropped(change: dict[str, object]) -> None:
    """Check a leg whose origin is signed by its author with values that do not match."""
    with line("signed") as net:
        sound = published(net, "B", b"rain")
        origin = Identity.derived(1, "B").sign(msgspec.structs.replace(sound, **change))
        assert origin.node == net.host("B").node
        arrived = listening(net)
        say(net, "x", "A", Pass("w", (b"",)), payload=b"rain", origin=origin.wire)
        assert refused(net, "A", "origin") == 1
        assert not arrived


def swap_payloads(sizes: Sequence[int]) -> None:
    """Send legs whose payload is a little longer or shorter than that of the message which they pass on."""
    with line() as net:
        arrived = listening(net)
        pairs = [*pairwise(sizes), *pairwise(reversed(sizes))]
        for of, given in pairs:
            origin = published(net, "B", Blank(of)).wire
            say(net, "x", "A", Pass("w", (b"",)), payload=Blank(given), origin=origin)
        net.advance(60)
        assert refused(net, "A", "origin") == len(pairs)
        assert not arrived


def test_a_leg_with_the_payload_of_another_message_is_dropped() -> None:
    swap_payloads([0, 1, 1_023, 1_024, 1_025, 200_000])


@pytest.mark.soak
def test_a_leg_of_16_mib_with_the_payload_of_another_message_is_dropped() -> None:
    swap_payloads([16 * 2**20 - 1, 16 * 2**20])


def test_legs_of_a_stranger_to_an_absent_broker_leave_room_for_others() -> None:
    """A stranger fills its part of the room for legs; the messages of others pass all the same."""
    with line(share_queues=0.002) as net:
        told: list[MessageId] = []
        net.watch(lambda *seen: told.append(seen[2].descriptor.id) if isinstance(seen[2], LegArrived) else None)
        net.unlink("B", "C")
        net.advance(10)
        route = (node_prefix(NodeId("C")),)
        for _ in range(60):
            origin = published(net, "x", b"spam").wire
            headers = Headers(control=ITEMS.encode([Pass("w", route)]), origin=origin)
            net.host("x").publish("overlay/B", b"spam", headers=headers, now=round(net.now * 1e6))
        net.advance(30)
        under_way = [
            copy for copy in net.host("B")._holdings.known_copies()  # noqa: SLF001 - nobody else knows
            if copy.own and copy.here and copy.descriptor.destination == "overlay/C"
        ]  # fmt: skip
        assert 1 < len(under_way) <= Settings.emulated().cache_messages_max * 0.002 * 0.25
        assert refused(net, "B", "legs") == 60 - len(under_way)
        mine = net.publish("A", "topic/w", b"rain", lifetime_s=600)
        net.host("A").overlay.send(mine, [net.host("C").node], round(net.now * 1e6))
        net.advance(5)
        net.link("B", "C")
        net.advance(15)
        assert mine in told
        net.advance(120)
        assert len(told) == 61, "those that waited come, too"
