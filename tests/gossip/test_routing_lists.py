"""Lists of short hashes, by which hosts with `prophet` compare their sets."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.examples import examples

from carrypost import testing
from carrypost.gossip.wire.frames import LISTED_MAX, Held, Listing, listing_bytes, packed_hashes, unpacked_hashes
from carrypost.testing import Network

LONG = 1_100
"""More messages than a list has."""


@contextmanager
def network(**settings: Any) -> Iterator[Network]:  # noqa: ANN401
    """Yield a network of hosts a, b and z that all have `prophet`; b has met z."""
    with testing.network(**settings) as net:
        for node in "abz":
            net.add(node, strategy="prophet")
        net.link("b", "z")
        net.advance(30)
        net.unlink("b", "z")
        yield net


def publish(net: Network, node: str, count: int, recipient: str = "z") -> None:
    for number in range(count):
        net.publish(node, "news", b"x", label=f"{node}{number}", recipients=[recipient])


def frames(net: Network, kind: str) -> int:
    return sum(net.sent(node).frames.get(kind, 0) for node in "abz")


@given(st.integers(0, LISTED_MAX), st.integers())
@examples(20)
def test_hashes_come_back_from_their_bytes(count: int, seed: int) -> None:
    chance = random.Random(seed)
    hashes = sorted(chance.getrandbits(10 + count.bit_length()) for _ in range(count))
    packed = packed_hashes(hashes)
    assert len(packed) == listing_bytes(count) <= (13 * count + 15) // 8
    assert unpacked_hashes(packed, count) == hashes


@pytest.mark.parametrize(
    ("data", "count"),
    [
        (packed_hashes([1, 2]), 1),
        (packed_hashes([1]), 2),
        (packed_hashes([2, 1]), 2),
        (b"\xff" * listing_bytes(4), 4),
        ((1 << 30 + 6).to_bytes(listing_bytes(3), "little"), 3),
    ],
)
def test_bytes_that_are_no_ascending_list_are_none(data: bytes, count: int) -> None:
    assert unpacked_hashes(data, count) is None


def test_a_list_and_its_answer_replace_the_comparison() -> None:
    with network() as net:
        publish(net, "a", 30)
        before = frames(net, "Digest")
        net.link("a", "b")
        net.advance(5)
        assert net.host("b").overview().messages == 30
        assert frames(net, "Digest") == before
        net.unlink("a", "b")
        offers = net.sent("a").frames["Offer"]
        net.link("a", "b")
        net.advance(5)
        assert net.sent("a").frames["Offer"] == offers  # The list says that b has them.


def test_long_lists_and_hosts_that_do_not_know_them_are_reviewed(monkeypatch: pytest.MonkeyPatch) -> None:
    with network() as net:
        before = frames(net, "Listing")
        publish(net, "a", LONG)
        net.link("a", "b")
        net.advance(30)
        assert net.host("b").overview().messages == LONG
        assert frames(net, "Listing") == before
    monkeypatch.setattr("carrypost.gossip.strategy.prophet.Prophet._receive_listing", lambda *_: None)
    with network() as net:
        publish(net, "a", 3)
        net.link("a", "b")
        net.advance(10)
        assert net.host("b").overview().messages == 3
        assert frames(net, "Digest")


@pytest.mark.parametrize("seed", range(4))
def test_lost_tables_lists_and_answers_are_repeated(seed: int) -> None:
    with network(seed=seed, loss=0.4) as net:
        publish(net, "a", 3)
        net.link("a", "b")
        net.advance(300)
        assert net.host("b").overview().messages == 3


def test_wrong_lists_and_answers_change_nothing() -> None:
    with network() as net:
        publish(net, "a", 3)
        net.link("a", "b")
        net.advance(5)
        net.inject("a", [Listing(9, 1, 2, packed_hashes([2, 1])), Held(99, b""), Held(1, bytes(5))], "b")
        assert net.host("a").overview().refused["listing"] == 1
        assert net.host("a").overview().messages == 3
