"""Messages with recipients where hosts differ: both strategies, paper mode, and hosts that refuse acknowledgements."""

from __future__ import annotations

import random
from collections import Counter
from itertools import combinations
from typing import Any

import pytest
from tests.support.examples import soaked

from carrypost import testing
from carrypost.gossip.holdings.cache import CopyState
from carrypost.gossip.wire.frames import AckList, AckRecord
from carrypost.model.ids import MessageId

KINDS: dict[str, dict[str, Any]] = {
    "exchange": {},
    "paper": {"paper_mode": True},
    "anti-entropy": {"strategy": "anti-entropy"},
    "refusing": {},
}
HOSTS = [f"{kind} {number}" for kind in KINDS for number in range(2)]
REFUSING = {name for name in HOSTS if name.startswith("refusing")}
LIFE_S = 3_600
DATA = ("Parcel", "DescriptorPart", "Data")


def refuse(net: testing.Network, name: str) -> None:
    """Let a host refuse acknowledgements, as earlier versions do."""
    handlers = net.host(name)._links.handlers  # noqa: SLF001 - where a host without this layer has nothing
    del handlers[AckList], handlers[AckRecord]


def has(net: testing.Network, name: str, message: MessageId) -> bool:
    return net.host(name).state_of(message) in {CopyState.WHOLE, CopyState.FINISHED}


def data(net: testing.Network) -> int:
    """Return the number of frames with messages sent so far."""
    return sum(net.sent(name).frames[kind] for name in HOSTS for kind in DATA)


@pytest.mark.parametrize("seed", [0, *soaked(range(1, 40))])
def test_everything_is_delivered_once_and_copies_go_where_acknowledgements_are_taken(seed: int) -> None:
    chance = random.Random(seed)
    security = "off" if seed % 2 else "signed"
    with testing.network(seed=seed, loss=0.1, security=security, altruistic=True, acked_s=1.0) as net:
        for name in HOSTS:
            net.add(name, **KINDS[name.split()[0]])
            net.subscribe(name, "roads")
            if name in REFUSING:
                refuse(net, name)
        recipients: dict[MessageId, list[str]] = {}
        for _ in range(12):
            chosen = chance.sample(list(combinations(HOSTS, 2)), 6)
            for pair in chosen:
                net.link(*pair)
            author, *listed = chance.sample(HOSTS, chance.randint(2, 5))
            payload = chance.randbytes(chance.choice([10, 3_000]))
            message = net.publish(author, "roads", payload, persistent=True, recipients=listed, lifetime_s=LIFE_S)
            recipients[message] = listed
            net.advance(chance.uniform(5, 40))
            for pair in chosen:
                net.unlink(*pair)
        for pair in combinations(HOSTS, 2):
            net.link(*pair)
        net.advance(300)
        acknowledged = [message for message, listed in recipients.items() if not REFUSING & set(listed)]
        for name in HOSTS:
            expected = {message: 1 for message, listed in recipients.items() if name in listed}
            assert Counter(each.message for each in net.deliveries(name)) == expected
            if name not in REFUSING:
                assert [message for message in acknowledged if has(net, name, message)] == []
            assert bool(net.host(name).overview().refused.get("kind")) == (name in REFUSING)
        before = data(net)
        net.advance(120)
        assert data(net) == before, "what was purged is not given again by those who did not hear of it"
        net.advance(LIFE_S)
        assert not any(has(net, name, message) for name in HOSTS for message in recipients)
