"""A copy that the application throws out of the cache."""

from __future__ import annotations

import random

from carrypost import testing
from carrypost.log.events import Dropped, Event, Reason, Received


def test_a_message_discarded_while_it_comes_in_stays_away() -> None:
    events: list[Event] = []
    payload = random.Random(1).randbytes(200_000)
    with testing.network("a", "b", seed=1, rate_bytes_per_s=20_000) as net:
        net.watch(lambda _, node, event: events.append(event) if node == "b" else None)
        net.subscribe("b", "news")
        net.link("a", "b")
        message = net.publish("a", "news", payload)
        net.advance(6)
        assert not any(isinstance(event, Received) for event in events)
        net.host("b").discard(message, Reason.WITHDRAWN, round(net.now * 1e6))
        net.advance(60)
        assert [event.reason for event in events if isinstance(event, Dropped)] == [Reason.WITHDRAWN]
        assert not any(isinstance(event, Received) for event in events)
        assert net.deliveries("b") == []
