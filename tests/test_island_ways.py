"""Messages that go straight to their recipients through the island, and what becomes of them when it breaks."""

from __future__ import annotations

import pytest
from tests.islands import Islands

SIZES = (0, 100, 900, 1_000, 5_000, 100_000)


@pytest.mark.parametrize("options", [{"encoded": True}, {"security": "signed", "encoded": True}, {}, {"loss": 0.1}])
def test_messages_of_any_size_go_straight_and_nobody_else_has_a_copy(options: dict[str, object]) -> None:
    with Islands("abcde", seed=3, altruistic=True, **options) as islands:
        net = islands.net
        islands.line()
        net.subscribe("d", "news")
        net.advance(3)
        messages = []
        for size in SIZES:
            messages.append(net.publish("a", "news", bytes(size), recipients=["d"]))
            net.advance(3)
            assert set(islands.copies()) <= {"a", "d"}
        net.advance(10)
        assert islands.delivered("d") == dict.fromkeys(messages, 1)
        received = [event for name, event in islands.received if name == "d"]
        assert {event.peer for event in received} == {islands.id("a")}
        assert {event.path for event in received} == {(islands.id("b"), islands.id("c"))}
        assert {each.hops for event in received for each in event.receptions} == {1}
        assert islands.copies() == {}
        assert islands.island("b").relaying.relayed_bytes > sum(SIZES)
        assert not islands.refused()
