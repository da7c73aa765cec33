"""Relays that go on by their first bytes go where the long way leads, and no other datagram does."""

from __future__ import annotations

from random import Random
from typing import Self

import pytest
from tests.support.islands import Islands, S

from carrypost.config import Limits
from carrypost.gossip.wire import codec
from carrypost.gossip.wire import frames as fr
from carrypost.island import relaying
from carrypost.model.ids import NodeId, node_prefix

ACK = fr.Ack(1, b"\x01")


def path(names: str) -> bytes:
    return b"".join(node_prefix(NodeId(name)) for name in names)


def datagram(*frames: fr.Frame) -> bytes:
    (found,) = codec.datagrams(frames, 60_000)
    return found


class Line(Islands):
    """Hosts in a line, and the datagrams that one of them gets from a neighbour."""

    def __init__(self, names: str = "abcd", **options: object) -> None:
        super().__init__(names, **options)

    def __enter__(self) -> Self:
        super().__enter__()
        self.line()
        self.net.advance(3)
        return self

    def take(self, name: str, frame: fr.Frame, peer: str) -> None:
        """Give a host a frame as others are given."""
        self.net.inject(name, [frame], peer)
        self.net.advance(0)

    def pass_on(self, name: str, found: bytes, peer: str) -> tuple[str, bytes] | None:
        return self.net.host(name).pass_on(found, peer, round(self.net.now * S))


def test_what_follows_a_relay_goes_where_it_went() -> None:
    rng = Random(1)
    with Line() as line:
        for names, peer, to in (("abcd", "a", "c"), ("abc", "a", "c"), ("dcba", "c", "a")):
            at = names.index("b")
            for broken in (b"", path("xy")):
                first = datagram(fr.Relay(path(names), at, broken, b"first"))
                assert line.pass_on("b", first, peer) is None
                line.take("b", fr.Relay(path(names), at, broken, b"first"), peer)
                for length in (1, 255, 256, 1_200, 7_000):
                    body = rng.randbytes(length)
                    passed = line.pass_on("b", datagram(fr.Relay(path(names), at, broken, body)), peer)
                    assert passed == (to, datagram(fr.Relay(path(names), at + 1, broken, body)))


def test_no_other_datagram_goes_on_by_its_first_bytes() -> None:
    """Check that truncated, extended and changed datagrams are left to the decoder."""
    rng = Random(2)
    relay = fr.Relay(path("abcd"), 1, b"", rng.randbytes(300))
    with Line() as line:
        line.take("b", relay, "a")
        line.take("b", fr.Relay(path("cba"), 1, b"", b"back"), "c")
        sound = datagram(relay)
        others = [
            (datagram(ACK), "a"),
            (datagram(relay, ACK), "a"),
            (datagram(fr.Relay(path("abcd"), 1, path("cd"))), "a"),
            (datagram(fr.Relay(path("abcd"), 2, b"", b"x")), "a"),
            (datagram(fr.Relay(path("abd"), 1, b"", b"x")), "a"),
            (datagram(fr.Relay(path("abcd"), 1, b"", b"")), "a"),
            (datagram(fr.Relay(path("abcd"), 1, b"", bytes(Limits().datagram_bytes_max))), "a"),
            (sound, "c"),
            (sound, "x"),
            (sound + b"\0", "a"),
            *((sound[:end], "a") for end in range(len(sound))),
        ]
        assert [each for each in others if line.pass_on("b", *each) is not None] == []
        head = len(codec.relay_head(relay))
        for at in range(head + 3):  # One byte of all before the body is another one.
            changed = sound[:at] + bytes([sound[at] ^ rng.randrange(1, 256)]) + sound[at + 1 :]
            assert line.pass_on("b", changed, "a") is None, at
        assert line.pass_on("b", sound, "a") is not None


def test_a_flow_ends_with_the_neighbours_that_it_leads_through() -> None:
    relay = fr.Relay(path("abc"), 1, b"", b"x")
    with Line() as line:
        line.take("b", relay, "a")
        assert line.pass_on("b", datagram(relay), "a") is not None
        line.unlink("bc")
        line.net.advance(60)
        assert line.pass_on("b", datagram(relay), "a") is None
        assert line.net.host("b").overview().refused == {}


def test_flows_have_the_bounds_of_relays(monkeypatch: pytest.MonkeyPatch) -> None:
    """Check bytes of the neighbour, datagrams of a muted one, and the number of flows."""
    monkeypatch.setattr(relaying, "FLOWS_MAX", 16)
    with Line(limits={"link_relay_bytes_per_s": 10_000}) as line:
        relay = fr.Relay(path("abc"), 1, b"", bytes(100))
        line.take("b", relay, "a")
        passed = [line.pass_on("b", datagram(relay), "a") for _ in range(40)]
        assert 18 <= sum(each is not None for each in passed) <= 19
        kept = line.island("b").relaying.flows
        assert 19 * 100 <= kept.relayed_bytes <= 20 * 200
        line.net.advance(1)
        assert line.pass_on("b", datagram(relay), "a") is not None
        line.net.host("b")._links.accounts.charge("a", 10**6, round(line.net.now * S))  # noqa: SLF001 - as a flood is
        assert line.pass_on("b", datagram(relay), "a") is None
        line.net.advance(5)
        for number in range(40):
            target = number.to_bytes(4, "big")
            line.take("b", fr.Relay(path("abc") + target, 1, b"", b"x"), "a")
            line.net.advance(0.1)
            assert 0 < len(kept._flows) <= relaying.FLOWS_MAX  # noqa: SLF001
