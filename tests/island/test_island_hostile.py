"""Lies about links: what a neighbour may say, it says of itself alone, and it is bounded and counted."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise

import pytest
from tests.support.contacts import island

from carrypost.gossip.transfers import signed
from carrypost.gossip.wire.frames import LinkRecord, LinkState, Relay
from carrypost.model.ids import NodeId, node_prefix
from carrypost.security.identity import Identity
from carrypost.testing import Network, network


@contextmanager
def line(**settings: object) -> Iterator[Network]:
    """Hosts a, b and c in a line, which know each other; b is the liar."""
    with network("a", "b", "c", seed=1, island=True, **settings) as net:  # type: ignore[arg-type]
        net.link("a", "b")
        net.link("b", "c")
        net.advance(5)
        yield net


def refused(net: Network, node: str, reason: str) -> int:
    return net.host(node).overview().refused.get(reason, 0)


def plain(author: str, sequence: int = 0, claimed: bytes = b"", incarnation: int = 1) -> LinkRecord:
    return LinkRecord(author.encode(), incarnation, sequence, claimed)


def test_a_claim_of_a_link_with_this_host_is_denied_to_everybody() -> None:
    with line() as net:
        net.inject("a", [plain("liar", claimed=node_prefix(NodeId("a")))], "b")
        net.inject("b", [plain("liar", claimed=node_prefix(NodeId("a")))], "c")
        net.inject("c", [plain("liar", claimed=node_prefix(NodeId("a")))], "b")
        net.advance(3)
        assert [sorted(net.reach(node)) for node in "abc"] == [["b", "c"], ["a", "c"], ["a", "b"]]


@pytest.mark.parametrize("age", [(0, 9), (1, 0)])
def test_what_was_said_in_an_earlier_incarnation_or_before_does_not_count(age: tuple[int, int]) -> None:
    incarnation, sequence = age
    with line() as net:
        net.inject("a", [plain("d", 5), plain("d", sequence, incarnation=incarnation)], "b")
        entry = island(net, "a").table.get(NodeId("d"))
        assert entry is not None
        assert (entry.incarnation, entry.sequence) == (1, 5)
        assert refused(net, "a", "record-old") == 1


def test_nobody_speaks_for_another_key() -> None:
    with line(security="signed") as net:
        liar, victim = Identity.derived(7, "liar"), Identity.derived(1, "c")
        told = signed.sign(liar, LinkRecord(signed.author(liar), 1, 0))
        known = island(net, "a").table.get(victim.node)
        assert known is not None
        forged = LinkRecord(signed.author(victim), known.incarnation, known.sequence + 1, b"", b"", told.signature)
        net.inject("a", [forged, LinkRecord(signed.author(victim), 9, 0)], "b")
        assert island(net, "a").table.get(victim.node) is known
        assert (refused(net, "a", "signature"), refused(net, "a", "security-level")) == (1, 1)


def test_a_flood_of_forged_records_is_checked_no_further_than_the_limit() -> None:
    with line(security="signed") as net:
        for number in range(1_000):
            net.inject("a", [LinkRecord(number.to_bytes(32, "big"), 1, 0, b"", b"", bytes(64))], "b")
        assert refused(net, "a", "signature") <= 100
        assert refused(net, "a", "signature") + refused(net, "a", "muted") == 1_000


def test_a_flood_of_keys_fills_the_table_and_displaces_nobody_in_reach() -> None:
    with line(limits={"island_nodes_max": 8}) as net:
        for number in range(100):
            net.inject("a", [plain(f"key{number}")], "b")
        table = island(net, "a").table
        assert len(table) == 8
        assert net.reach("a") == {"b": 1, "c": 2}
        for number in range(100, 200):
            net.inject("a", [plain(f"key{number}", claimed=node_prefix(NodeId("b")))], "b")
        assert len(table) == 8
        assert {"b", "c"} <= set(net.reach("a"))
        assert refused(net, "a", "island") > 0


def test_a_forged_record_displaces_nobody() -> None:
    with line(security="signed", limits={"island_nodes_max": 3}) as net:
        table = island(net, "a").table
        before = [entry.node for entry in table]
        assert len(before) == 3
        net.unlink("b", "c")
        net.advance(20)
        assert len(net.reach("a")) == 1, "one of them cannot be reached any more"
        net.inject("a", [LinkRecord(bytes(31) + b"x", 1, 0, b"", b"", bytes(64))], "b")
        assert refused(net, "a", "signature") == 1
        assert [entry.node for entry in table] == before


def test_who_sent_a_record_is_forgotten_with_the_contact() -> None:
    with line() as net:
        table = island(net, "a").table
        assert any(entry.senders - {""} for entry in table)
        net.unlink("a", "b")
        net.advance(20)
        assert len(table) > 1
        assert not any(entry.senders - {""} for entry in table)


def test_digests_that_never_agree_cost_few_lists() -> None:
    with line() as net:
        before = net.sent("a").frame_bytes["LinkState"]
        for number in range(600):
            net.inject("a", [LinkState(number.to_bytes(8, "big"))], "b")
            net.advance(0.1)
        assert net.sent("a").frame_bytes["LinkState"] - before < 60 * 30
        net.advance(10)
        assert net.reach("a") == {"b": 1, "c": 2}


def test_lists_and_wishes_without_end_are_answered_at_a_pace() -> None:
    everything = bytes(8) + bytes([255] * 4 + [0] * 4)
    with line() as net:
        before = net.sent("a").bytes
        for _ in range(1_000):
            net.inject("a", [LinkState(bytes(8), b"", everything, node_prefix(NodeId("a")))], "b")
        assert refused(net, "a", "rate") + refused(net, "a", "muted") > 800
        assert net.sent("a").bytes - before < 60_000


@pytest.mark.parametrize("security", ["off", "signed"])
def test_other_links_each_time_are_taken_and_passed_on_at_the_pace_of_one_author(security: str) -> None:
    with line(security=security) as net:
        liar = Identity.derived(7, "liar") if security == "signed" else Identity.plain("liar")
        for number in range(200):
            told = LinkRecord(signed.author(liar), 1, number, number.to_bytes(4, "big"))
            net.inject("b", [signed.sign(liar, told)], "a")
            net.advance(0.05)
        entry = island(net, "c").table.get(liar.node)
        assert entry is not None
        assert entry.sequence > 100, "it is not silenced"
        assert refused(net, "b", "rate") >= 170


def test_nobody_uses_up_what_another_author_may_say() -> None:
    with line(security="signed") as net:
        author = Identity.derived(1, "c")
        known = island(net, "a").table.get(author.node)
        assert known is not None
        for number in range(30):
            net.inject("a", [LinkRecord(signed.author(author), 9, number, b"", b"", bytes(64))], "b")
            net.advance(0.2)
        told = signed.sign(author, LinkRecord(signed.author(author), 9, 99))
        net.advance(2)
        net.inject("a", [told], "b")
        entry = island(net, "a").table.get(author.node)
        assert entry is not None
        assert entry.record == told


def test_link_states_without_end_are_looked_at_at_a_pace() -> None:
    with line() as net:
        for number in range(5_000):
            net.inject("a", [LinkState(number.to_bytes(8, "big"))], "b")
        assert refused(net, "a", "muted") >= 3_000
        net.advance(10)
        assert net.reach("a") == {"b": 1, "c": 2}


def test_datagrams_to_nowhere_are_answered_at_a_pace() -> None:
    with line() as net:
        path = b"".join(node_prefix(NodeId(node)) for node in ("b", "a", "nobody"))
        before = net.sent("a").frame_bytes["Relay"]
        for _ in range(1_000):
            net.inject("a", [Relay(path, 1, b"", b"x")], "b")
        assert net.sent("a").frame_bytes["Relay"] - before < 110 * 25
        assert refused(net, "a", "rate") + refused(net, "a", "muted") >= 890


@pytest.mark.parametrize("names", ["abcd", "bacd"])
def test_of_records_whose_stamps_are_in_the_wrong_order_the_newer_one_counts(names: str) -> None:
    """The third host's incarnation jumps while the first is away: by its stamp, the earlier record is the newer one."""
    with network(*names, seed=1, island=True) as net:
        pairs = list(pairwise(names))
        for pair in pairs:
            net.link(*pair)
        net.advance(10)
        first, third = names[0], names[2]
        net.unlink(*pairs[0])
        net.advance(10)
        net.kill(third)
        net.restart(third)
        net.advance(0)
        island(net, third).survey.started(3_000, round(net.now * 1e6))
        net.advance(10)
        net.link(*pairs[0])
        net.advance(8)
        entries = [island(net, name).table.get(NodeId(third)) for name in names]
        assert [each.incarnation for each in entries if each is not None] == [3_000] * 4
        assert len({island(net, name).table.digest for name in names}) == 1
        assert refused(net, first, "record-old") <= 1
